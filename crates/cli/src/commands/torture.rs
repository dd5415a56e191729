//! `martlet torture`

use std::time::{Duration, Instant};

use clap::Args;
use martlet_bench::report::{Figure, Report, Unit};
use martlet_bench::trial::clients::{self, Via};
use martlet_bench::trial::service::Connections;
use martlet_bench::trial::strikes::Strike;
use martlet_bench::trial::testbed::Testbed;
use martlet_bench::trial::wardens::{Beat, Wardens};
use martlet_bench::trial::workload::Mix;
use martlet_bench::trial::{Fault, Trial};
use martlet_cluster::directory::{FabricFlags, Plan, check_durability};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, GOOD, styled};
use martlet_cluster::scratch::Scratch;
use martlet_node::config::{DurabilityKind, EngineKind, FabricKind};
use serde_json::json;

/// Kill, pause, restart, add and remove nodes under load, and check what clients see.
///
/// The command starts a cluster of its own. Faults come in random order and strike random nodes, the primary as often as not. Around each fault the clients'
/// history is checked for linearizability. At the end nothing of the cluster may be left: no process, file, segment or socket. Exit code 4 when a check fails.
/// The same seed repeats the load and the order of the faults.
///
/// Example: martlet torture --kills 500 --pauses 200 --restarts 100
///
/// Example: martlet torture --fabric ethernet --wardens 200
///
/// Example: martlet torture --engine hsuc --nodes 5 --all-but-one 200 --kills 0 --pauses 0 --restarts 0
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of SIGKILLs, each followed by a restart.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = number::<u32>(..))]
    kills: u32,
    /// Number of SIGSTOPs, each followed by a SIGCONT, most of them after more than a lease.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = number::<u32>(..))]
    pauses: u32,
    /// Number of orderly restarts.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number::<u32>(..))]
    restarts: u32,
    /// Number of changes of the set of nodes: each adds one node and removes another.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u32>(..))]
    changes: u32,
    /// Number of nodes, each a replica and a coordinator.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u16>(3..=7))]
    nodes: u16,
    /// Number of clients on the fabric.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u16>(0..=64))]
    clients: u16,
    /// Number of clients that speak the Redis protocol.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u16>(0..=64))]
    redis_clients: u16,
    /// First port of the Redis protocol, for the clients that speak it.
    #[arg(long, value_name = "PORT", default_value_t = 27711, value_parser = number::<u16>(1..=65000))]
    redis_port: u16,
    /// Number of clients at the cluster's one address. Each opens its connection once, and the connection has to outlive every fault but a loss of power
    /// [default: 1 with --fabric shm and without --power-losses, otherwise 0].
    #[arg(long, value_name = "N", value_parser = number::<u16>(0..=64))]
    connections: Option<u16>,
    /// Replication engine: primary-backup, mu, dare, apus, hsuc or huc.
    #[arg(long, default_value_t)]
    engine: EngineKind,
    /// What an acknowledged request outlives: memory, async or sync. async and sync need --engine mu or apus.
    #[arg(long, default_value_t)]
    durability: DurabilityKind,
    /// Number of losses of power: SIGKILL of all nodes at once, then a restart of each. Needs --durability sync.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u32>(..))]
    power_losses: u32,
    /// How often to kill all nodes but one within a millisecond. They are restarted once the one that is left has served alone. Only on one host, with an
    /// engine that needs no majority.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u32>(..))]
    all_but_one: u32,
    /// How often to strike the warden of a node's host. It is killed, restarted, killed together with the node, or forged: another process stands in its place
    /// and says that all other nodes are dead. Only with a fabric that spans hosts; each node then takes itself to be on a host of its own.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u32>(..))]
    wardens: u32,
    /// Seed of the random load and faults [default: a new one each time].
    #[arg(long, value_parser = number::<u64>(..))]
    seed: Option<u64>,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// How the wardens hear each other.
const BEAT: Beat = Beat { interval_us: 1_000, jitter_us: 5_000 };

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let one_address = !arguments.fabric.kind().traits().spans_hosts;
    let kept = arguments.connections.unwrap_or(u16::from(one_address && arguments.power_losses == 0));
    if kept > 0 && !one_address {
        return Err(Fail::usage(format_args!(
            "--connections is {kept}, and --fabric {}: nodes that may be on several hosts have no address in common; allowed is 0",
            arguments.fabric.kind()
        )));
    }
    if kept > 0 && arguments.power_losses > 0 {
        return Err(Fail::usage(format_args!(
            "--connections is {kept}, and --power-losses {}: no connection outlives a loss of power; allowed is 0",
            arguments.power_losses
        )));
    }
    if arguments.clients + arguments.redis_clients + kept == 0 {
        return Err(Fail::usage("--clients, --redis-clients and --connections are all 0; without clients nothing is checked"));
    }
    let Arguments { kills, pauses, restarts, changes, all_but_one, power_losses, wardens, .. } = *arguments;
    if [kills, pauses, restarts, changes, all_but_one, power_losses, wardens].iter().all(|count| *count == 0) {
        return Err(Fail::usage(
            "the counts of all faults are 0: --kills, --pauses, --restarts and the others; without faults nothing is checked",
        ));
    }
    check_durability(arguments.durability, arguments.engine)?;
    if arguments.power_losses > 0 && arguments.durability != DurabilityKind::Sync {
        return Err(Fail::usage(format_args!(
            "--power-losses is {}, and --durability {}; only with sync nothing acknowledged may be lost with the power",
            arguments.power_losses, arguments.durability
        )));
    }
    if arguments.all_but_one > 0 {
        check_all_but_one(arguments)?;
    }
    if arguments.wardens > 0 && !arguments.fabric.kind().traits().spans_hosts {
        let (kind, allowed) = (arguments.fabric.kind(), FabricKind::names_with(|traits| traits.spans_hosts));
        return Err(Fail::usage(format_args!(
            "--wardens is {}, but with --fabric {kind} nodes need no warden to see each other's deaths; allowed are {allowed}",
            arguments.wardens
        )));
    }
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut rng = fastrand::Rng::with_seed(seed);
    let redis_port = (arguments.redis_clients > 0).then_some(arguments.redis_port);
    // One more to change places with.
    let nodes = arguments.nodes + u16::from(arguments.changes > 0);
    let scratch = Scratch::new("torture-wardens").context("cannot make a directory")?;
    let prepare = || Wardens::prepare(scratch.path(), nodes, BEAT);
    let mut wardens = (arguments.wardens > 0).then(prepare).transpose()?;
    wardens.as_mut().map_or(Ok(()), Wardens::start)?;
    let plan = Plan {
        redis_port,
        service_port: (kept > 0).then_some(0),
        engine: arguments.engine,
        durability: arguments.durability,
        fabric: arguments.fabric.plan(None)?,
        wardens: wardens.is_some().then(|| scratch.path().to_owned()),
        ..Plan::new("torture", nodes)
    };
    let start = Instant::now();
    let mut testbed = Testbed::start(&plan, &interrupt)?;
    let lease = Duration::from_nanos(testbed.cluster().lease_ns());
    let mut callers = clients::open(testbed.cluster(), arguments.clients, Via::Fabric)?;
    callers.extend(clients::open(testbed.cluster(), arguments.redis_clients, Via::Redis)?);
    let connections = (kept > 0).then(|| Connections::open(testbed.cluster(), kept)).transpose()?.map(|(kept, connections)| {
        callers.extend(kept);
        connections
    });
    // The clients know them all by now.
    if arguments.changes > 0 {
        testbed.set_aside(arguments.nodes)?;
    }
    let mix = Mix { keys: 24, reads: 50, readers: 0, pause: Duration::from_micros(50), value_bytes: 32 };
    if let Some(wardens) = &wardens {
        wardens.await_nodes(&testbed.cluster().config().name, &testbed.running())?;
    }
    let mut trial = Trial::new(testbed, callers, mix, seed, &interrupt).with_wardens(wardens);
    let mut failover = Figure::new("torture", "kill of the primary to the next acknowledged request", Unit::Microseconds);
    let mut alone = Figure::new(
        "torture",
        "first of all kills but one, the primary's among them, to the next acknowledged request",
        Unit::Microseconds,
    );
    let mut kills = Figure::new("torture", "first to last of all kills but one", Unit::Microseconds);

    let counted = [
        (Fault::Kill, arguments.kills),
        (Fault::Pause(lease), arguments.pauses),
        (Fault::Restart, arguments.restarts),
        (Fault::PowerLoss, arguments.power_losses),
        (Fault::AllButOne, arguments.all_but_one),
        (Fault::Change, arguments.changes),
    ];
    let mut faults: Vec<Fault> = counted.iter().flat_map(|(fault, count)| (0..*count).map(|_| *fault)).collect();
    // Each kind of strike as often as the others, or once more.
    faults.extend(Strike::ALL.into_iter().cycle().take(arguments.wardens as usize).map(Fault::Warden));
    rng.shuffle(&mut faults);
    let forged = faults.iter().filter(|fault| **fault == Fault::Warden(Strike::Forge)).count();
    let mut disbelieved = 0;
    let count = faults.len();
    format.print(format_args!("{count} faults, seed {seed}"), || json!({"event": "begin", "faults": count, "seed": seed}));
    for (done, fault) in faults.into_iter().enumerate() {
        let (primary, _) = trial.testbed().primary()?;
        let numbers = trial.testbed().numbers();
        let is_any = fault == Fault::AllButOne || !rng.bool();
        let target = if is_any { numbers[rng.usize(..numbers.len())] } else { primary.node.0 };
        let fault = match fault {
            // From much shorter than a lease to many of them.
            Fault::Pause(lease) => Fault::Pause(lease.mul_f64(0.2 + rng.f64() * 20.0)),
            fault => fault,
        };
        let before = Duration::from_millis(rng.u64(10..60));
        let round = trial.round(fault, target, before, Duration::from_millis(20))?;
        connections.as_ref().map_or(Ok(0), Connections::kept)?;
        disbelieved += u32::from(round.has_disbelieved);
        let took = round.timeline.as_ref().and_then(|timeline| timeline.first("first reply received"));
        let figure = if fault == Fault::AllButOne { &mut alone } else { &mut failover };
        took.into_iter().for_each(|ns| figure.record(ns));
        round.kills_ns.into_iter().for_each(|ns| kills.record(ns));
        let who = match fault {
            Fault::PowerLoss => "all nodes".to_owned(),
            Fault::AllButOne => {
                let within = round.kills_ns.unwrap_or(0) as f64 / 1e3;
                let was = if primary.node.0 == target { "the primary" } else { "a backup" };
                format!("within {within:.0} us; node {target} is left ({was})")
            }
            _ => format!("node {target} ({})", if primary.node.0 == target { "the primary" } else { "a backup" }),
        };
        let took_text = took.map_or_else(String::new, |ns| format!(", answered after {:.1} us", ns as f64 / 1e3));
        format.print(
            format_args!(
                "{:>5}/{count} {:<10} {who}: {} requests, {} without a reply, linearizable{took_text}",
                done + 1,
                fault.name(),
                round.operations,
                round.unknown
            ),
            || {
                json!({
                    "event": "fault",
                    "number": done + 1,
                    "fault": fault.name(),
                    "node": (fault != Fault::PowerLoss).then_some(target),
                    "primary": fault == Fault::PowerLoss || primary.node.0 == target,
                    "operations": round.operations,
                    "unknown": round.unknown,
                    "answered_after_us": took.map(|ns| ns as f64 / 1e3),
                })
            },
        );
    }
    let stand = connections.as_ref().map_or(Ok(0), Connections::kept)?;
    let replaced = trial.testbed().replaced();
    let totals = trial.end()?;
    let mut report = Report::new(format);
    report.set("seed", seed);
    report.set("clients", arguments.clients);
    report.set("redis_clients", arguments.redis_clients);
    report.set("connections", kept);
    [failover, alone, kills].into_iter().filter(|figure| figure.n() > 0).for_each(|figure| report.add(figure));
    totals.add_to(&mut report, "torture", ["GET under faults", "change under faults"]);
    report.finish();
    let (operations, unknown) = (totals.operations, totals.unknown);
    let (refused, refused_text) = (totals.refused.0, totals.refusals());
    let replaced_text =
        if replaced > 0 { format!("{replaced} nodes that stood still were killed by their successors, ") } else { String::new() };
    let kept_text = if kept > 0 { format!("{stand} of {kept} connections kept, {replaced_text}") } else { String::new() };
    let forged_text =
        if forged > 0 { format!("{disbelieved} of {forged} forged wardens heard to the end and not believed, ") } else { String::new() };
    format.print(
        format_args!(
            "\n{} {count} faults, {operations} requests, {unknown} without a reply{refused_text}; all linearizable, {kept_text}{forged_text}nothing left behind, {:.0} s",
            styled(GOOD, "passed:"),
            start.elapsed().as_secs_f64()
        ),
        || json!({"event": "passed", "faults": count, "operations": operations, "unknown": unknown, "refused": refused, "connections_kept": stand, "replaced": replaced, "forged": forged, "disbelieved": disbelieved, "seed": seed}),
    );
    Ok(())
}

/// Whether one of the nodes can go on without all others.
fn check_all_but_one(arguments: &Arguments) -> Outcome {
    let refused = |what: String, allowed: String| {
        Err(Fail::usage(format_args!("--all-but-one is {}, but {what}; allowed are {allowed}", arguments.all_but_one)))
    };
    let (engine, fabric) = (arguments.engine, arguments.fabric.kind());
    if engine.traits().commits_by_majority() {
        let allowed = EngineKind::names_with(|traits| !traits.commits_by_majority());
        return refused(format!("with --engine {engine} a majority of the replicas has to live"), allowed);
    }
    if !fabric.traits().memory_outlives_process {
        let allowed = FabricKind::names_with(|traits| traits.memory_outlives_process);
        return refused(format!("with --fabric {fabric} a majority of the coordinators has to live"), allowed);
    }
    Ok(())
}

//! `martlet demo`

use std::time::{Duration, Instant};

use clap::Args;
use martlet_bench::report::placement::two_cores;
use martlet_bench::report::{Figure, Report, Unit, echo, reference};
use martlet_bench::trial::clients::{self, Via};
use martlet_bench::trial::service::Connections;
use martlet_bench::trial::testbed::Testbed;
use martlet_bench::trial::workload::Mix;
use martlet_bench::trial::{Fault, Trial};
use martlet_cluster::directory::{FabricFlags, Plan};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::engine;
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, GOOD, HEAD, styled};
use martlet_node::config::EngineKind;
use serde_json::json;

/// Watch a cluster outlive kill -9 of its primary, under load.
///
/// The demo starts three replicas on this host, kills the primary three times, and proves that nothing was lost. The clients keep a history of all requests and
/// replies, and a checker searches for an order that explains it: if an acknowledged write were lost or a stale value read, there would be none. At the end all
/// processes are gone.
///
/// Two clients read and write the nodes' memory. Two more speak the Redis protocol at the cluster's one address: each opens its connection once, and the
/// connection outlives every kill. On a network, where nodes have no address in common, these two look for another node when theirs is dead.
///
/// Example: martlet demo --json | jq 'select(.event == "failover")'
///
/// Example: martlet demo --fabric ethernet
#[derive(Debug, Args)]
pub struct Arguments {
    /// How often to kill the primary.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u64>(1..=1000))]
    kills: u64,
    /// Replication engine.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// Seed of the random load [default: a new one each time].
    #[arg(long, value_parser = number::<u64>(..))]
    seed: Option<u64>,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// Kills of the bare death probe, for comparison.
const PROBES: u32 = 50;
/// Clients that write into the nodes' memory.
const CLIENTS: u16 = 2;
/// Clients that speak the Redis protocol.
const REDIS_CLIENTS: u16 = 2;
/// Samples of the bare echo, for comparison, and its bytes.
const ECHOES: u64 = 5_000;
const ECHO_BYTES: usize = 64;

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    let spans_hosts = arguments.fabric.kind().traits().spans_hosts;
    let (redis_port, service_port) = if spans_hosts { (Some(0), None) } else { (None, Some(0)) };
    let plan = Plan { engine: arguments.engine, fabric: arguments.fabric.plan(None)?, redis_port, service_port, ..Plan::new("demo", 3) };
    let mix = Mix { keys: 64, reads: 50, readers: 0, pause: Duration::from_micros(20), value_bytes: 64 };
    let start = Instant::now();
    format.say(styled(HEAD, "Three processes, each replica and coordinator, and no other memory than their own"));
    let testbed = Testbed::start(&plan, &interrupt)?;
    let mut callers = clients::open(testbed.cluster(), CLIENTS, Via::Fabric)?;
    let connections = if spans_hosts {
        callers.extend(clients::open(testbed.cluster(), REDIS_CLIENTS, Via::Redis)?);
        None
    } else {
        let (kept, connections) = Connections::open(testbed.cluster(), REDIS_CLIENTS)?;
        callers.extend(kept);
        Some(connections)
    };
    for number in testbed.numbers() {
        let pid = testbed.process(number)?.map(|process| process.pid);
        format.print(
            format_args!("  node {number}  process {}", pid.unwrap_or_default()),
            || json!({"event": "started", "node": number, "pid": pid}),
        );
    }
    match &connections {
        Some(Connections { address, .. }) => format.print(
            format_args!("  {CLIENTS} clients in shared memory, {REDIS_CLIENTS} connections to {address}, each opened once"),
            || json!({"event": "connected", "clients": CLIENTS, "connections": REDIS_CLIENTS, "address": address.to_string()}),
        ),
        None => format.print(
            format_args!("  {CLIENTS} clients over {}, {REDIS_CLIENTS} that speak the Redis protocol", plan.fabric.kind),
            || json!({"event": "connected", "clients": CLIENTS, "redis_clients": REDIS_CLIENTS}),
        ),
    }
    let clients = CLIENTS + REDIS_CLIENTS;
    let load = format!("{clients} clients, {} keys, half reads and half changes of {} bytes", mix.keys, mix.value_bytes);
    format.say(format_args!("  ready after {:.2} s; {load}, seed {seed}\n", start.elapsed().as_secs_f64()));
    let mut trial = Trial::new(testbed, callers, mix, seed, &interrupt);
    for kill in 1..=arguments.kills {
        let (primary, _) = trial.testbed().primary()?;
        let round = trial.round(Fault::Kill, primary.node.0, Duration::from_millis(1200), Duration::from_millis(600))?;
        let kept = connections.as_ref().map(Connections::kept).transpose()?;
        let Some(timeline) = round.timeline else { continue };
        format.print(format_args!("{}", timeline), || timeline.json(kill as usize));
        let of_connections = kept.map(|kept| format!("; {kept} of {REDIS_CLIENTS} connections kept")).unwrap_or_default();
        format.print(
            format_args!(
                "  {} {} requests around it, {} of them without a reply: linearizable{of_connections}\n",
                styled(GOOD, "nothing lost, nothing stale:"),
                round.operations,
                round.unknown
            ),
            || {
                json!({
                    "event": "checked",
                    "round": round.number,
                    "operations": round.operations,
                    "unknown": round.unknown,
                    "linearizable": true,
                    "connections_kept": kept,
                })
            },
        );
    }
    let totals = trial.end()?;
    format.say(styled(HEAD, "What it took, failovers included, beside what the machine itself takes"));
    let mut report = Report::new(format);
    report.set("clients", CLIENTS);
    report.set(if spans_hosts { "redis_clients" } else { "connections" }, REDIS_CLIENTS);
    report.set("seed", seed);
    for (metric, samples) in [("GET, replicated three ways", &totals.reads), ("change, replicated three ways", &totals.changes)] {
        let mut figure = Figure::new("demo", metric, Unit::Microseconds);
        figure.merge(samples);
        report.add(figure);
    }
    if spans_hosts {
        report.add(echo::measure(ECHO_BYTES, ECHOES, two_cores().map(|(_, there)| there), &interrupt)?);
    } else {
        for figure in reference::measure()? {
            report.add(figure);
        }
        report.add(reference::death_probe(PROBES)?);
    }
    report.finish();
    let operations = totals.operations;
    format.print(
        format_args!(
            "\n{} {} kills, {operations} requests judged, nothing left behind, {:.1} s",
            styled(GOOD, "done:"),
            arguments.kills,
            start.elapsed().as_secs_f64()
        ),
        || json!({"event": "done", "kills": arguments.kills, "operations": operations, "unknown": totals.unknown, "left_behind": 0}),
    );
    Ok(())
}

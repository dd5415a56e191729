//! `martlet torture`

mod allowed;
mod figures;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use figures::Figures;
use martlet_bench::trial::caller::AnyCaller;
use martlet_bench::trial::clients::{self, Via};
use martlet_bench::trial::service::Connections;
use martlet_bench::trial::strikes::Strike;
use martlet_bench::trial::testbed::Testbed;
use martlet_bench::trial::wardens::{Beat, Wardens};
use martlet_bench::trial::workload::Mix;
use martlet_bench::trial::{Fault, Trial};
use martlet_cluster::directory::{FabricFlags, Plan};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::{durability, engine};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::scratch::Scratch;
use martlet_node::config::{Cluster, DurabilityKind, EngineKind};
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
    /// Replication engine.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// What an acknowledged request outlives. async and sync need --engine mu or apus.
    #[arg(long, default_value_t, value_parser = durability())]
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

impl Arguments {
    /// How many clients stay at the cluster's one address.
    fn kept_connections(&self) -> u16 {
        self.connections.unwrap_or(u16::from(self.has_one_address() && self.power_losses == 0))
    }

    /// Nodes that may be on several hosts have no address in common.
    fn has_one_address(&self) -> bool {
        !self.fabric.kind().traits().spans_hosts
    }

    /// The cluster. `wardens` is the directory of those that watch it.
    fn plan(&self, wardens: Option<PathBuf>) -> Outcome<Plan> {
        Ok(Plan {
            redis_port: (self.redis_clients > 0).then_some(self.redis_port),
            service_port: (self.kept_connections() > 0).then_some(0),
            engine: self.engine,
            durability: self.durability,
            fabric: self.fabric.plan(None)?,
            wardens,
            ..Plan::new("torture", self.all_nodes())
        })
    }

    /// How many nodes there are, with one more to change places with.
    fn all_nodes(&self) -> u16 {
        self.nodes + u16::from(self.changes > 0)
    }

    /// All clients, and the connections of those that keep theirs.
    fn open_clients(&self, cluster: &Cluster) -> Outcome<(Vec<AnyCaller>, Option<Connections>)> {
        let mut callers = clients::open(cluster, self.clients, Via::Fabric)?;
        callers.extend(clients::open(cluster, self.redis_clients, Via::Redis)?);
        let kept = self.kept_connections();
        let connections = (kept > 0).then(|| Connections::open(cluster, kept)).transpose()?.map(|(kept, connections)| {
            callers.extend(kept);
            connections
        });
        Ok((callers, connections))
    }

    /// All faults, in a random order.
    fn faults(&self, lease: Duration, rng: &mut fastrand::Rng) -> Vec<Fault> {
        let counted = [
            (Fault::Kill, self.kills),
            (Fault::Pause(lease), self.pauses),
            (Fault::Restart, self.restarts),
            (Fault::PowerLoss, self.power_losses),
            (Fault::AllButOne, self.all_but_one),
            (Fault::Change, self.changes),
        ];
        let mut faults: Vec<Fault> = counted.iter().flat_map(|(fault, count)| (0..*count).map(|_| *fault)).collect();
        // Each kind of strike as often as the others, or once more.
        faults.extend(Strike::ALL.into_iter().cycle().take(self.wardens as usize).map(Fault::Warden));
        rng.shuffle(&mut faults);
        faults
    }
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    allowed::check(arguments)?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut rng = fastrand::Rng::with_seed(seed);
    let scratch = Scratch::new("torture-wardens").context("cannot make a directory")?;
    let prepare = || Wardens::prepare(scratch.path(), arguments.all_nodes(), BEAT);
    let mut wardens = (arguments.wardens > 0).then(prepare).transpose()?;
    wardens.as_mut().map_or(Ok(()), Wardens::start)?;
    let plan = arguments.plan(wardens.is_some().then(|| scratch.path().to_owned()))?;
    let mut figures = Figures::begin(format);
    let mut testbed = Testbed::start(&plan, &interrupt)?;
    let lease = Duration::from_nanos(testbed.cluster().lease_ns());
    let (callers, connections) = arguments.open_clients(testbed.cluster())?;
    // The clients know them all by now.
    if arguments.changes > 0 {
        testbed.set_aside(arguments.nodes)?;
    }
    let mix = Mix { keys: 24, reads: 50, readers: 0, pause: Duration::from_micros(50), value_bytes: 32 };
    if let Some(wardens) = &wardens {
        wardens.await_nodes(&testbed.cluster().config().name, &testbed.running())?;
    }
    let mut trial = Trial::new(testbed, callers, mix, seed, &interrupt).with_wardens(wardens);

    let faults = arguments.faults(lease, &mut rng);
    let count = faults.len();
    format.print(format_args!("{count} faults, seed {seed}"), || json!({"event": "begin", "faults": count, "seed": seed}));
    for (number, fault) in (1..).zip(faults) {
        let (primary, _) = trial.testbed().primary()?;
        let numbers = trial.testbed().numbers();
        let is_any = fault == Fault::AllButOne || !rng.bool();
        let node = if is_any { numbers[rng.usize(..numbers.len())] } else { primary.node.0 };
        let fault = match fault {
            // From much shorter than a lease to many of them.
            Fault::Pause(lease) => Fault::Pause(lease.mul_f64(0.2 + rng.f64() * 20.0)),
            fault => fault,
        };
        let before = Duration::from_millis(rng.u64(10..60));
        let round = trial.round(fault, node, before, Duration::from_millis(20))?;
        connections.as_ref().map_or(Ok(0), Connections::kept)?;
        let is_primary = primary.node.0 == node;
        figures.add([number, count], &figures::Struck { fault, node, is_primary }, &round);
    }
    let stand = connections.as_ref().map_or(Ok(0), Connections::kept)?;
    let replaced = trial.testbed().replaced();
    let totals = trial.end()?;
    figures.end(&figures::Ended { arguments, seed, totals, stand, replaced });
    Ok(())
}

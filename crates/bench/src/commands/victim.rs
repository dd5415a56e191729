//! `martlet victim`: what benchmarks start only to kill it. Not for people, so it is hidden.

use clap::{Args, ValueEnum};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output;
use martlet_fabric::host::probe::{self, Pastime, VictimPlan};
use martlet_fabric::primitive::Ordering;
use martlet_fabric::shm::ShmFabric;
use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind};
use martlet_protocol::basics::layout::{self, LIFE, MAX_WATCHERS, Sizes, life};
use martlet_warden::AppId;
use martlet_warden::client::Warden;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Wait to be killed.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Arguments {
    /// What kind of process to be.
    #[arg(long)]
    kind: Kind,
    /// Bare: the descriptor of the memory that holds the word.
    #[arg(long, default_value_t = -1)]
    fd: i32,
    /// Member: the cluster's name.
    #[arg(long, default_value = "")]
    cluster: String,
    /// Member: which life of its node it is.
    #[arg(long, default_value_t = 1, value_parser = number::<u64>(..))]
    incarnation: u64,
    /// Spin instead of sleeping.
    #[arg(long)]
    spin: bool,
    /// Walk through the resident memory instead.
    #[arg(long, conflicts_with = "spin")]
    walk: bool,
    /// The core to run on.
    #[arg(long, value_parser = number::<u16>(..))]
    core: Option<u16>,
    /// Dump core where a signal says so.
    #[arg(long)]
    dumps: bool,
    /// Mebibytes to keep resident.
    #[arg(long, default_value_t = 0, value_parser = number::<usize>(..))]
    resident: usize,
}

impl Arguments {
    fn pastime(&self) -> Pastime {
        match (self.spin, self.walk) {
            (true, _) => Pastime::Spin,
            (_, true) => Pastime::Walk,
            _ => Pastime::Sleep,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// One robust futex word and nothing else.
    Bare,
    /// A member on the fabric, with its death words registered as a node's are.
    Member,
    /// An application that registers with a warden, at the socket that `cluster` names, by the number that `incarnation` says.
    Application,
    /// Nothing of that.
    Unregistered,
}

/// The key of a cluster that lives as long as one benchmark and holds nothing.
pub const BENCH_KEY: &[u8] = b"a benchmark's cluster holds nothing";
/// Which node a member is.
pub const VICTIM_NODE: NodeId = NodeId(1);

/// What a benchmark's processes are on the fabric.
pub fn bench_fabric(cluster: &str, node: NodeId, incarnation: u64) -> Outcome<ShmFabric> {
    let identity = Identity { node, incarnation: Incarnation(incarnation), kind: PeerKind::Member };
    let sizes = Sizes::default();
    let mut config =
        martlet_fabric::shm::ShmConfig::new(cluster, BENCH_KEY, identity, layout::regions(sizes), layout::client_regions(sizes));
    config.prefault = false;
    ShmFabric::start(config).map_err(Fail::failed)
}

/// Does that, until it is killed.
///
/// # Errors
/// When it cannot begin.
pub fn run(arguments: &Arguments) -> Outcome {
    let cpu = arguments.core.map(usize::from);
    let plan = VictimPlan { pastime: arguments.pastime(), cpu, resident_bytes: arguments.resident << 20 };
    match arguments.kind {
        Kind::Bare => {
            let never = probe::victim(arguments.fd, plan).context("the victim could not get ready")?;
            match never {}
        }
        Kind::Member => member(arguments),
        Kind::Application => application(arguments, true),
        Kind::Unregistered => application(arguments, false),
    }
}

/// What every victim but the bare one does first. Returns its resident memory.
fn prepare(arguments: &Arguments) -> Outcome<Vec<u8>> {
    martlet_fabric::host::process::end_with_parent().context("cannot tie ourselves to our parent")?;
    match arguments.dumps {
        true => {
            let most = rustix::process::getrlimit(Resource::Core).maximum;
            setrlimit(Resource::Core, Rlimit { current: most, maximum: most }).context("cannot turn core dumps on")?;
        }
        false => martlet_fabric::host::process::disable_core_dumps().context("cannot turn core dumps off")?,
    }
    if let Some(core) = arguments.core {
        martlet_node::sched::pin_current_thread(core).context("cannot bind the thread")?;
    }
    let mut resident = vec![0u8; arguments.resident << 20];
    resident.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    Ok(resident)
}

fn application(arguments: &Arguments, joins: bool) -> Outcome {
    let resident = prepare(arguments)?;
    if !joins {
        // Nothing else says that it has its memory.
        output::raw(b"ready\n");
        arguments.pastime().pass(&resident)
    }
    let number = i64::try_from(arguments.incarnation).map_err(Fail::usage)?;
    let mut warden = Warden::connect(arguments.cluster.as_ref(), "victim").map_err(Fail::failed)?;
    let _acting = warden.threads().act().map_err(Fail::failed)?;
    warden.join(AppId::new(number).map_err(Fail::usage)?).map_err(Fail::failed)?;
    arguments.pastime().pass(&resident)
}

fn member(arguments: &Arguments) -> Outcome {
    let resident = prepare(arguments)?;
    let fabric = bench_fabric(&arguments.cluster, VICTIM_NODE, arguments.incarnation)?;
    let signs = fabric.own_region(LIFE).expect("every process offers signs of life");
    let words: Vec<usize> = (0..MAX_WATCHERS).map(|watcher| life::death(0, watcher)).collect();
    let _words = signs.register_death_words(&words).context("cannot register death words")?;
    signs.memory()[life::THREADS].store(life::counting(0, 0), Ordering::Release);
    arguments.pastime().pass(&resident)
}

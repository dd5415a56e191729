//! The exchange as a program: a node of it, a load for it, and a demonstration that starts three nodes, loads them, kills the leader and
//! checks that every order was executed exactly once.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use martlet::config::{Cluster, ClusterConfig, EngineKind, Key, NodeEntry};
use martlet::observe::{ClientEndpoint, NodeId, Roles, View};
use martlet::{Direct, ProcessPolicy, Replica, Turn};
use martlet_exchange::load::{Client, Executed, Orders, digest, expected_market, leader};
use martlet_exchange::market::Market;
use martlet_exchange::server;

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
#[command(about = "An order matching engine, replicated by Martlet")]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Start three nodes and a load, kill the leader in the middle of it (kill -9), and check every order and every book
    Demo {
        #[command(flatten)]
        load: Load,
        /// How many times a leader is killed during the second half of the load
        #[arg(long, default_value_t = 3)]
        kills: u32,
        /// How orders are replicated: primary-backup, mu, dare, apus, hsuc or huc
        #[arg(long, default_value_t)]
        engine: EngineKind,
        /// On which thread each node serves its clients
        #[arg(long, value_enum, default_value_t)]
        threading: Threading,
    },
    /// Run one node
    Node {
        /// The cluster's file
        #[arg(long)]
        cluster: PathBuf,
        /// The number of the node in that file
        #[arg(long)]
        number: u16,
        /// The address at which clients reach the node
        #[arg(long)]
        listen: SocketAddr,
        /// On which thread the node serves its clients
        #[arg(long, value_enum, default_value_t)]
        threading: Threading,
        /// Is killed when the process that started it ends
        #[arg(long, hide = true)]
        with_parent: bool,
    },
    /// Load nodes that run already. Their books must be empty, or the check at the end fails
    Load {
        /// The addresses of the nodes
        #[arg(long, required = true, value_delimiter = ',')]
        servers: Vec<SocketAddr>,
        #[command(flatten)]
        load: Load,
    },
}

/// How a node's clients and its replica share threads (Mu, section 7.1).
#[derive(Clone, Copy, Default, ValueEnum)]
enum Threading {
    /// On the replica's own thread
    Direct,
    /// On threads of its own, which hand requests over to the replica's
    #[default]
    Handover,
}

impl Threading {
    fn name(self) -> &'static str {
        match self {
            Threading::Direct => "direct",
            Threading::Handover => "handover",
        }
    }
}

#[derive(Args, Clone, Copy)]
#[group(id = "how-much")]
struct Load {
    /// How many clients there are, each with a thread, a connection and a session of its own
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// How many orders each client sends
    #[arg(long, default_value_t = 20_000)]
    orders: u64,
    /// How many orders of a client may wait for their replies
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=512))]
    outstanding: u32,
    /// How many symbols are traded
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    symbols: u16,
    /// The seed from which the orders are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A line on standard output. Unlike `println!` it does not panic when that takes no more.
fn say(line: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write to standard output: {error}")))
}

/// Prints a line on standard error, if possible: a node does not end because its disk is full, and then there is nowhere left to report that.
fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn main() -> ExitCode {
    let done = match Options::parse().what {
        What::Demo { load, kills, engine, threading } => demo(load, kills, engine, threading),
        What::Node { cluster, number, listen, threading, with_parent } => node(&cluster, number, listen, threading, with_parent),
        What::Load { servers, load } => {
            let mut executed = Vec::new();
            run(&servers, load, 0, &mut executed, |_| Ok(())).and_then(|()| check(&servers, &executed))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("exchange: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn node(cluster: &Path, number: u16, listen: SocketAddr, threading: Threading, with_parent: bool) -> Result<(), Failure> {
    if with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    let builder = Replica::builder().cluster_file(cluster).node(number).listen(listen.to_string());
    // This process is a node and nothing else.
    let builder = builder.process_policy(ProcessPolicy::OWN);
    match threading {
        Threading::Direct => direct(builder.direct(Market::default())?, number, listen),
        Threading::Handover => handover(&builder.start(Market::default())?, number, listen),
    }
}

fn direct(replica: Direct<Market>, number: u16, listen: SocketAddr) -> Result<(), Failure> {
    let stop = replica.stop_handle();
    let mut server = server::direct::Server::new(TcpListener::bind(listen)?)?;
    replica.watch(server.events())?;
    let (mut shown, mut failed) = (false, Ok(()));
    replica.run(|here| {
        if !std::mem::replace(&mut shown, true) {
            complain(format_args!("node {number}: {}", here.replica().started().placement));
        }
        server.turn(here).unwrap_or_else(|error| {
            failed = Err(error);
            stop.request_once();
            Turn::Idle
        })
    })?;
    server.finish();
    Ok(failed?)
}

fn handover(replica: &Replica<Market>, number: u16, listen: SocketAddr) -> Result<(), Failure> {
    complain(format_args!("node {number}: {}", replica.started().placement));
    let listener = TcpListener::bind(listen)?;
    let served = replica.clone();
    std::thread::spawn(move || {
        if let Err(error) = server::handover::serve(&served, &listener) {
            complain(format_args!("exchange: {listen}: {error}"));
            served.stop_handle().request();
        }
    });
    replica.join()?;
    Ok(())
}

/// Nodes as child processes.
struct Nodes {
    dir: PathBuf,
    threading: Threading,
    children: Children,
}

/// By number; `None` while it is meant to be dead.
type Children = Arc<Mutex<Vec<Option<Child>>>>;

impl Nodes {
    fn start(engine: EngineKind, threading: Threading) -> Result<Nodes, Failure> {
        let dir = std::env::temp_dir().join(format!("martlet-exchange-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let nodes = (0..3).map(NodeEntry::new);
        let name = format!("exchange-{}", std::process::id());
        let key = Some(Key::generate()?.to_hex().into());
        let config = ClusterConfig { key, engine, ..ClusterConfig::new(name, nodes.collect()) };
        let nodes = Nodes { dir, threading, children: Arc::new(Mutex::new(vec![None, None, None])) };
        std::fs::write(nodes.file(), config.to_toml())?;
        for number in 0..3 {
            nodes.spawn(number)?;
        }
        nodes.watch();
        Ok(nodes)
    }

    /// All clients here ask until a node answers. So when a node has ended unexpectedly, the demonstration ends too, and its other nodes with it.
    fn watch(&self) {
        let (children, dir) = (Arc::downgrade(&self.children), self.dir.clone());
        std::thread::spawn(move || {
            while let Some(children) = children.upgrade() {
                for (number, child) in children.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().enumerate() {
                    let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) else { continue };
                    complain(format_args!("exchange: node {number} has ended unexpectedly: {status}"));
                    let _ = std::fs::remove_dir_all(&dir);
                    std::process::exit(1);
                }
                drop(children);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    fn children(&self) -> MutexGuard<'_, Vec<Option<Child>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> PathBuf {
        self.dir.join("cluster.toml")
    }

    /// An address that nothing else uses while this process runs: all of 127.0.0.0/8 is this host.
    fn address(number: usize) -> SocketAddr {
        let pid = std::process::id();
        SocketAddr::from(([127, (pid >> 8) as u8 | 1, pid as u8, number as u8 + 1], 6000 + (pid >> 16) as u16))
    }

    fn addresses() -> Vec<SocketAddr> {
        (0..3).map(Nodes::address).collect()
    }

    fn spawn(&self, number: usize) -> io::Result<()> {
        let listen = Nodes::address(number).to_string();
        let child = Command::new(std::env::current_exe()?)
            .args(["node", "--with-parent", "--threading", self.threading.name()])
            .args(["--number", &number.to_string(), "--listen", &listen, "--cluster"])
            .arg(self.file())
            .spawn()?;
        self.children()[number] = Some(child);
        Ok(())
    }

    /// Kills the leader with SIGKILL, and starts a new process in its place once another leads. Returns for how long no node answered reads.
    fn kill_leader(&self) -> Result<Duration, Failure> {
        let servers = Nodes::addresses();
        let killed = servers.iter().position(|server| *server == leader(&servers)).expect("one of them");
        let mut child = self.children()[killed].take().expect("it leads");
        let start = Instant::now();
        child.kill().expect("our own child");
        let next = leader(&servers);
        let outage = start.elapsed();
        child.wait()?;
        say(format_args!(
            "  killed node {killed}; node {} answered a read after {:.0} us",
            place(&servers, next),
            outage.as_secs_f64() * 1e6
        ))?;
        self.spawn(killed)?;
        self.settle()?;
        Ok(outage)
    }

    /// Waits until all three hold the whole state. Until then another death could destroy it.
    fn settle(&self) -> Result<(), Failure> {
        let mut watcher = ClientEndpoint::open(&Cluster::load(&self.file())?)?;
        let whole = |view: View| view.with_roles(Roles::REPLICA).count() == 3;
        loop {
            while watcher.event().is_some() {}
            if (0..3).all(|number| watcher.view(NodeId(number)).is_ok_and(|view| view.is_some_and(whole))) {
                return Ok(());
            }
            watcher.wait(Duration::from_millis(2));
        }
    }
}

fn place(servers: &[SocketAddr], server: SocketAddr) -> usize {
    servers.iter().position(|s| *s == server).unwrap_or(servers.len())
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for mut child in self.children().iter_mut().filter_map(Option::take) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn demo(load: Load, kills: u32, engine: EngineKind, threading: Threading) -> Result<(), Failure> {
    say(format_args!("three nodes of an exchange, each a process with a replica of all books, replicated by {engine}"))?;
    say(format_args!("clients are served by {}", threading.name()))?;
    let nodes = Nodes::start(engine, threading)?;
    nodes.settle()?;
    let servers = Nodes::addresses();
    let mut executed = Vec::new();
    say(format_args!("one order at a time:"))?;
    let alone = Load { clients: 1, outstanding: 1, ..load };
    run(&servers, alone, 1_000_000, &mut executed, |_| Ok(()))?;
    say(format_args!("{} at a time from each of {} clients, while the leader is killed {kills} times:", load.outstanding, load.clients))?;
    run(&servers, load, 0, &mut executed, |progress| {
        for kill in 1..=kills {
            // At equal distances over the load.
            let due = load.orders * u64::from(load.clients) * u64::from(kill) / u64::from(kills + 1);
            while progress.recv().is_ok_and(|done| done < due) {}
            nodes.kill_leader()?;
        }
        Ok(())
    })?;
    nodes.settle()?;
    check(&servers, &executed)
}

/// Runs a load, and beside it `meanwhile`, which is told how many orders are done. Adds what was executed.
fn run(
    servers: &[SocketAddr],
    load: Load,
    first_account: u32,
    executed: &mut Vec<Executed>,
    meanwhile: impl FnOnce(&Receiver<u64>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (sender, progress) = channel();
    let done = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let start = Instant::now();
    let clients: Vec<JoinHandle<io::Result<OfClient>>> = (0..load.clients)
        .map(|client| {
            let (servers, sender, done) = (servers.to_vec(), sender.clone(), Arc::clone(&done));
            std::thread::spawn(move || {
                client_load(&servers, load, first_account + client, || {
                    // Relaxed: a count.
                    let _ = sender.send(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
                })
            })
        })
        .collect();
    drop(sender);
    let beside = meanwhile(&progress);
    let mut latencies = Histogram::<u64>::new(3)?;
    let (mut count, mut repeats) = (0, 0);
    for client in clients {
        let (its, repeated) = client.join().map_err(|_| "a client panicked")??;
        its.iter().try_for_each(|one| latencies.record(one.latency_ns))?;
        count += its.len();
        repeats += repeated;
        executed.extend(its);
    }
    beside?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    say(format_args!(
        "  {count} orders, {rate:.0} a second; latency in us: p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}; {repeats} connection(s) \
         lost, with all waiting orders sent again",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        latencies.max() as f64 / 1e3
    ))?;
    say(format_args!("  clients ran on cores of {}, as the scheduler chose", cores()))?;
    Ok(())
}

fn cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.map_or_else(|| "an unknown set".into(), |list| list.trim().to_owned())
}

/// What a client has executed, and how often it had to repeat what was under way.
type OfClient = (Vec<Executed>, u64);

fn client_load(servers: &[SocketAddr], load: Load, account: u32, mut done: impl FnMut()) -> io::Result<OfClient> {
    let mut client = Client::open(servers)?;
    let mut orders = Orders::new(load.seed, account, load.symbols);
    let mut executed = Vec::with_capacity(load.orders as usize);
    let mut sent = 0;
    while (executed.len() as u64) < load.orders {
        while sent < load.orders && client.under_way() < load.outstanding as usize {
            client.send(orders.next_command());
            sent += 1;
        }
        if let Some(one) = client.next_executed()? {
            orders.note(&one);
            executed.push(one);
            done();
        }
    }
    Ok((executed, client.repeats))
}

/// How long backups may take to apply the last orders, and to say so, before their books are declared different.
const APPLY_PATIENCE: Duration = Duration::from_secs(10);

/// Checks that the books of every server are those that follow from the answers.
fn check(servers: &[SocketAddr], executed: &[Executed]) -> Result<(), Failure> {
    let expected = expected_market(executed.iter()).map_err(|why| format!("NOT exactly once: {why}"))?;
    let wanted = (expected.digest(), expected.accepted());
    for (number, server) in servers.iter().enumerate() {
        let start = Instant::now();
        loop {
            let shown = digest(*server);
            match shown {
                Ok(shown) if shown == wanted => break,
                // On busy cores, an answer may take longer than a client waits for it when it can ask others.
                _ if start.elapsed() <= APPLY_PATIENCE => std::thread::sleep(Duration::from_millis(1)),
                Ok(_) => return Err(format!("the books of node {number} do not match the replies that clients got").into()),
                Err(error) => return Err(format!("cannot read the books of node {number}: {error}").into()),
            }
        }
    }
    let resting: usize = expected.books().map(|(_, book)| book.len()).sum();
    say(format_args!(
        "every order was executed exactly once: {} commands, {} orders accepted, {resting} of them resting; the books of all {} nodes \
         match the replies (digest {:016x})",
        executed.len(),
        wanted.1,
        servers.len(),
        wanted.0
    ))?;
    Ok(())
}

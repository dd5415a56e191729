//! Clusters of child processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use martlet_fabric::NodeId;
use martlet_node::client::ClientEndpoint;
use martlet_node::config::{Cluster, ClusterConfig, Key, NodeConfig, NodeEntry, Role, Settings};
use martlet_node::counters::{Counter, EventKind, Reading};
use martlet_node::{Hooks, ProcessPolicy, run};
use martlet_protocol::membership::{Roles, View};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};

use crate::counter::{Counter as Machine, CounterApp};

/// After this long, a wait prints what it has seen so far, and goes on.
const WORRY: Duration = Duration::from_secs(10);

/// Names the node's file to the child process.
pub const CONFIG: &str = "MARTLET_TEST_NODE";

/// The highest number that the child process can read in its log, for a child that plays an earlier build.
const READS_UP_TO: &str = "MARTLET_TEST_READS_UP_TO";

/// What a child process runs.
pub fn be_a_node(config: &Path) {
    // No child outlives the test, however the test ends.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("our own attribute");
    let settings = Settings::load(config).expect("the tests write good files");
    let hooks = Hooks { policy: ProcessPolicy::OWN, ..Hooks::new().expect("descriptors") };
    let app = CounterApp::new(settings.cluster().sizes());
    let machine = match std::env::var(READS_UP_TO) {
        Ok(number) => Machine::that_reads_up_to(number.parse().expect("a number")),
        Err(_) => Machine::default(),
    };
    match run(&settings, app, machine, hooks) {
        Ok(_) => std::process::exit(0),
        Err(error) => {
            // The test reads it there.
            std::fs::write(config.with_extension("error"), error.to_string()).expect("our directory");
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

/// Some nodes of one cluster, and an endpoint that watches them.
pub struct Nodes {
    dir: PathBuf,
    pub cluster: Cluster,
    children: Vec<Option<Child>>,
    pub watcher: ClientEndpoint,
}

impl Nodes {
    /// Writes the files of a cluster of `count` nodes and starts them all. Its detectors are patient: the processes that these tests kill are known to be dead
    /// for certain, and a busy machine must not cause further failovers.
    pub fn start(name: &str, count: u16) -> Nodes {
        Nodes::start_with(name, count, Nodes::patient, |_| {})
    }

    pub fn patient(config: &mut ClusterConfig) {
        config.detector.heartbeat_us = 10_000_000;
        config.detector.broadcast_timeout_us = 600_000_000;
    }

    pub fn start_with(name: &str, count: u16, shape: impl Fn(&mut ClusterConfig), change: impl Fn(&mut NodeConfig)) -> Nodes {
        let name = format!("{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(format!("martlet-node-{name}"));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let nodes = (0..count)
            .map(|number| NodeEntry { number, redis: String::new(), address: String::new(), roles: vec![Role::Coordinator, Role::Replica] })
            .collect();
        let mut config =
            ClusterConfig { key: Some(Key::generate().expect("randomness").to_hex().into()), ..ClusterConfig::new(name, nodes) };
        shape(&mut config);
        std::fs::write(dir.join("cluster.toml"), config.to_toml()).expect("our directory");
        for number in 0..count {
            let mut node = NodeConfig::new(number, "cluster.toml");
            change(&mut node);
            std::fs::write(dir.join(format!("{number}.toml")), node.to_toml()).expect("our directory");
        }
        let cluster = Cluster::new(config).expect("a good configuration");
        let watcher = ClientEndpoint::open(&cluster).expect("an endpoint");
        let mut nodes = Nodes { dir, cluster, children: (0..count).map(|_| None).collect(), watcher };
        (0..count).for_each(|number| nodes.spawn(number));
        nodes
    }

    /// Starts a node that is not running.
    pub fn spawn(&mut self, number: u16) {
        self.spawn_with(number, None);
    }

    /// The same, for a build that reads entries up to this number.
    pub fn spawn_that_reads_up_to(&mut self, number: u16, most: u64) {
        self.spawn_with(number, Some(most));
    }

    /// The error with which a node has ended.
    pub fn error_of(&self, number: u16) -> String {
        std::fs::read_to_string(self.dir.join(format!("{number}.error"))).expect("it has ended with one")
    }

    fn spawn_with(&mut self, number: u16, reads_up_to: Option<u64>) {
        let slot = &mut self.children[usize::from(number)];
        assert!(slot.is_none(), "node {number} runs already");
        let child = Command::new(std::env::current_exe().expect("ourselves"))
            .args(["--exact", "node_process", "--nocapture", "--test-threads=1"])
            .env(CONFIG, self.dir.join(format!("{number}.toml")))
            .envs(reads_up_to.map(|most| (READS_UP_TO, most.to_string())))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("ourselves again");
        *slot = Some(child);
    }

    pub fn signal(&self, number: u16, signal: Signal) {
        let child = self.children[usize::from(number)].as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("our own child");
    }

    /// Pauses a node. When this returns, the node no longer runs.
    pub fn pause(&self, number: u16) {
        self.signal(number, Signal::STOP);
        let child = self.children[usize::from(number)].as_ref().expect("it runs");
        let (_, status) = waitpid(Some(Pid::from_child(child)), WaitOptions::UNTRACED).expect("our own child").expect("it has stopped");
        assert!(status.stopped(), "{status:?}");
    }

    /// Kills a node. It may still be ending when this returns.
    pub fn kill(&mut self, number: u16) {
        self.signal(number, Signal::KILL);
        self.reap(number);
    }

    /// Waits for a node's process to end.
    pub fn reap(&mut self, number: u16) -> ExitStatus {
        self.children[usize::from(number)].take().expect("it ran").wait().expect("our own child")
    }

    pub fn running(&self) -> impl Iterator<Item = u16> + '_ {
        self.children.iter().enumerate().filter(|(_, c)| c.is_some()).map(|(i, _)| i as u16)
    }

    pub fn reading(&mut self, number: u16) -> Option<Reading> {
        while self.watcher.event().is_some() {}
        self.watcher.reading(NodeId(number)).ok()
    }

    pub fn view(&mut self, number: u16) -> Option<View> {
        while self.watcher.event().is_some() {}
        self.watcher.view(NodeId(number)).ok().flatten()
    }

    /// Waits until a condition holds. There is no time limit: if it never holds, the test hangs and prints what it waits for.
    pub fn until<T>(&mut self, what: &str, mut is_so: impl FnMut(&mut Nodes) -> Option<T>) -> T {
        let name = self.cluster.config().name.clone();
        eprintln!("{name}: waiting until {what}");
        let (start, mut told) = (Instant::now(), false);
        loop {
            if let Some(found) = is_so(self) {
                return found;
            }
            if !told && start.elapsed() > WORRY {
                told = true;
                eprintln!("{name}: still waiting until {what}. What has happened so far:");
                self.show(0);
                for number in self.running().collect::<Vec<_>>() {
                    let view = self
                        .view(number)
                        .map(|v| (v.number, v.members.iter().map(|m| (m.id.to_string(), m.roles.to_string())).collect::<Vec<_>>()));
                    let now = martlet_node::clock::now().0;
                    let counters = self.reading(number).map(|r| {
                        let age_ms = now.saturating_sub(r.get(Counter::PublishedNs)) / 1_000_000;
                        let values: Vec<_> = Counter::ALL.iter().map(|c| format!("{} {}", c.name(), r.get(*c))).collect();
                        format!("published {age_ms} ms ago: {}", values.join(", "))
                    });
                    eprintln!("n{number}: {view:?}\n    {counters:?}");
                }
            }
            self.watcher.wait(Duration::from_millis(2));
        }
    }

    /// Waits until some running node leads, and returns it.
    pub fn primary(&mut self) -> u16 {
        self.until("somebody leads", |nodes| {
            let running: Vec<u16> = nodes.running().collect();
            running.into_iter().find(|n| nodes.reading(*n).is_some_and(|r| r.get(Counter::Standing) == 2))
        })
    }

    /// Waits until every running node knows a view whose replicas are exactly the running nodes, and which has no other members.
    pub fn settle(&mut self) {
        let running: Vec<u16> = self.running().collect();
        self.until(&format!("{running:?} are all replicas"), |nodes| {
            running
                .iter()
                .all(|n| {
                    // Compared by their lives: a view may still list an earlier life of a node that has been killed and started again.
                    let lives: Vec<_> = running.iter().map(|n| nodes.watcher.process(NodeId(*n))).collect();
                    nodes.view(*n).is_some_and(|view| {
                        let mut replicas: Vec<_> = view.with_roles(Roles::REPLICA).map(|m| Some(m.id)).collect();
                        replicas.sort_unstable();
                        replicas == lives && view.members.len() == running.len()
                    })
                })
                .then_some(())
        });
    }

    /// All events of all running nodes, in the order of their stamps.
    pub fn timeline(&mut self) -> Vec<(u16, martlet_node::counters::Event)> {
        let running: Vec<u16> = self.running().collect();
        let mut events: Vec<_> = running
            .into_iter()
            .filter_map(|n| Some((n, self.reading(n)?)))
            .flat_map(|(n, r)| r.events.into_iter().map(move |(_, e)| (n, e)))
            .collect();
        events.sort_by_key(|(_, e)| e.at);
        events
    }

    /// Prints the timeline, from one moment on.
    pub fn show(&mut self, from_ns: u64) {
        for (node, event) in self.timeline().into_iter().filter(|(_, e)| e.at.0 >= from_ns) {
            let about = event.process.map(|p| p.to_string()).unwrap_or_default();
            let us = (event.at.0 - from_ns) as f64 / 1_000.0;
            eprintln!("{us:>12.1} us  n{node}  {:<18} view {:<4} {about} {}", event.kind.name(), event.view, event.detail);
        }
    }

    pub fn has_event(&mut self, number: u16, kind: EventKind) -> bool {
        self.reading(number).is_some_and(|r| r.events.iter().any(|(_, e)| e.kind == kind))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

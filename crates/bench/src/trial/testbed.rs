//! A cluster of our own, made to be broken: its nodes are our children, its directory is temporary, and nothing of it outlives us.

use std::os::unix::fs::FileExt as _;
use std::process::Child;
use std::time::Duration;

use martlet_cluster::directory::{Directory, FabricPlan, Life, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::process::{Handle, ProcessName};
use martlet_cluster::scratch::Scratch;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_cluster::watch::standing;
use martlet_node::clock;
use martlet_node::config::{Cluster, DurabilityKind, ElectionConfig, EngineKind, NodeEntry, ThreadsConfig};
use martlet_protocol::basics::{ProcessId, Time};
use martlet_protocol::membership::View;
use rustix::process::Signal;

use crate::trial::leftovers;

/// How long a cluster may take to become whole, or a node to end, before something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of our own.
pub struct Testbed {
    scratch: Scratch,
    directory: Directory,
    cluster: Cluster,
    nodes: Vec<Running>,
    /// One that is none of the cluster's just now, and can become one.
    spare: Option<NodeEntry>,
    observer: Observer,
    interrupt: Interrupt,
}

/// A node and its process, which may be gone.
struct Running {
    number: u16,
    /// `None` once it is dead and reaped.
    process: Option<(Child, Handle)>,
}

impl Running {
    /// Its number, if its process was there and has ended by itself.
    fn ended(&mut self) -> Option<u16> {
        let (child, _) = self.process.as_mut()?;
        (!matches!(child.try_wait(), Ok(None))).then_some(self.number)
    }
}

/// What a cluster of our own looks like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// What it is for: part of its name.
    pub purpose: &'static str,
    /// How many nodes hold the state, and decide about membership.
    pub nodes: u16,
    /// The first port of the Redis protocol; `None`: none is served.
    pub redis_port: Option<u16>,
    /// How requests are replicated.
    pub engine: EngineKind,
    /// What an acknowledgement means.
    pub durability: DurabilityKind,
    /// How closely leaders are watched, where it is not as the detector would.
    pub election: Option<ElectionConfig>,
    /// Which threads a node has, and where they run.
    pub threads: ThreadsConfig,
    /// What the nodes reach each other's memory by.
    pub fabric: FabricPlan,
}

impl Testbed {
    /// Starts a cluster and waits until it is whole. The calling thread must live as long as the value: the nodes die with it.
    pub fn start(shape: &Shape, interrupt: &Interrupt) -> Outcome<Testbed> {
        let scratch = Scratch::new(shape.purpose).context("cannot make a temporary directory")?;
        let directory = Directory::new(&scratch.path().join("cluster"));
        std::fs::create_dir(directory.path()).context("cannot make a temporary directory")?;
        let plan = Plan {
            name: format!("{}-{}", shape.purpose, std::process::id()),
            replicas: shape.nodes,
            coordinators: shape.nodes,
            redis_port: shape.redis_port,
            redis_cluster: true,
            engine: shape.engine,
            durability: shape.durability,
            election: shape.election.clone(),
            threads: shape.threads.clone(),
            fabric: shape.fabric.clone(),
        };
        let cluster = directory.create(&plan)?;
        let observer = Observer::open(&cluster)?;
        let nodes = (0..shape.nodes).map(|number| Running { number, process: None }).collect();
        let mut testbed = Testbed { scratch, directory, cluster, nodes, spare: None, observer, interrupt: interrupt.clone() };
        for number in 0..shape.nodes {
            testbed.spawn(number)?;
        }
        testbed.await_whole()?;
        Ok(testbed)
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The nodes' numbers.
    pub fn numbers(&self) -> Vec<u16> {
        self.cluster.config().nodes.iter().map(|node| node.number).collect()
    }

    /// Removes a node from the cluster, for good as far as that one is concerned: it leaves in order, and nothing of it is kept.
    pub fn set_aside(&mut self, number: u16) -> Outcome {
        let entry = self.cluster.config().nodes.iter().find(|node| node.number == number).cloned();
        let entry =
            entry.ok_or_else(|| Fail::failed(format_args!("node {number} is none of the cluster's nodes, {:?}", self.numbers())))?;
        self.signal(number, Signal::TERM)?;
        self.await_end(number)?;
        self.await_whole()?;
        let engine = self.cluster.config().engine;
        let gone = |sights: &[Sight]| standing::is_without(sights, number, engine);
        let what = format!("the others counted on node {number} for {} s after it had left", PATIENCE.as_secs());
        self.observer.wait_for(PATIENCE, &self.interrupt, gone)?.map_err(|sights| observer::not_ready(&what, &sights))?;
        self.directory.clear_data(number)?;
        self.cluster = self.directory.unlist_node(&self.cluster, number)?;
        self.spare = Some(entry);
        Ok(())
    }

    /// Adds the node that was set aside, which begins with nothing. When this returns it holds the state.
    pub fn take_in(&mut self) -> Outcome {
        let entry = self.spare.take().ok_or_else(|| Fail::failed("no node has been set aside"))?;
        self.cluster = self.directory.list_node(&self.cluster, &entry)?;
        self.spawn(entry.number)?;
        self.await_whole().map(|_| ())
    }

    /// Where the nodes serve the Redis protocol.
    pub fn addresses(&self) -> Vec<&str> {
        self.cluster.config().nodes.iter().map(|node| node.redis.as_str()).filter(|address| !address.is_empty()).collect()
    }

    /// Starts a node that does not run.
    pub fn spawn(&mut self, number: u16) -> Outcome {
        let (name, child) = self.directory.start(number, Life::OfOurs)?;
        let handle = name.open().context(format_args!("cannot reach node {number}"))?;
        let handle = handle.ok_or_else(|| self.ended(number))?;
        self.node(number).process = Some((child, handle));
        Ok(())
    }

    fn ended(&self, number: u16) -> Fail {
        Fail::failed(format_args!("node {number} ended by itself; the last it said:\n{}", self.directory.log_tail(number, 12)))
    }

    fn node(&mut self, number: u16) -> &mut Running {
        self.nodes.iter_mut().find(|node| node.number == number).expect("a number of ours")
    }

    /// Waits until all nodes that run are in one view, hold the state and follow one primary: with `mu` the one that will go on leading.
    pub fn await_whole(&mut self) -> Outcome<Vec<Sight>> {
        let numbers: Vec<u16> = self.nodes.iter().filter(|node| node.process.is_some()).map(|node| node.number).collect();
        let mut ended = None;
        let elects = self.cluster.config().engine == EngineKind::Mu;
        let nodes = &mut self.nodes;
        let found = self.observer.wait_for(PATIENCE, &self.interrupt, |sights| {
            ended = nodes.iter_mut().find_map(Running::ended);
            ended.is_some() || observer::is_whole(sights, &numbers) && (!elects || observer::is_settled(sights, &numbers))
        })?;
        if let Some(number) = ended {
            return Err(self.ended(number));
        }
        found.map_err(|sights| observer::not_ready(&format!("the cluster was not whole within {} s", PATIENCE.as_secs()), &sights))
    }

    /// What all nodes show now.
    pub fn look(&mut self) -> Vec<Sight> {
        self.observer.look()
    }

    /// The process that leads, and the newest view.
    pub fn primary(&mut self) -> Outcome<(ProcessId, View)> {
        // With an election of its own there can be a moment without a leader, also when all are well.
        let sights = match self.cluster.config().engine {
            EngineKind::PrimaryBackup => self.observer.look(),
            EngineKind::Mu => self.await_whole()?,
        };
        let view = observer::newest_view(&sights).cloned().ok_or_else(|| Fail::failed("no node shows a view"))?;
        let primary = match self.cluster.config().engine {
            EngineKind::PrimaryBackup => view.primary(),
            // It has an election of its own.
            EngineKind::Mu => observer::primary(&sights).and_then(|sight| view.members.iter().find(|m| m.id.node.0 == sight.node)),
        };
        let primary = primary.map(|member| member.id).ok_or_else(|| Fail::failed(format_args!("nobody leads in view {}", view.number)))?;
        Ok((primary, view))
    }

    /// For looks at what a node's acting thread is doing.
    pub fn pulse(&mut self, number: u16) -> Outcome<Pulse> {
        let doing = format!("cannot look at node {number}");
        let Some((child, _)) = &self.node(number).process else {
            return Err(Fail::failed(format_args!("{doing}: it does not run")));
        };
        std::fs::File::open(format!("/proc/{}/stat", child.id())).map(Pulse).context(doing)
    }

    /// Sends a signal to a node, and returns the moment just before.
    pub fn signal(&mut self, number: u16, signal: Signal) -> Outcome<Time> {
        let doing = format!("cannot signal node {number}");
        let Some((_, handle)) = &self.node(number).process else {
            return Err(Fail::failed(format_args!("{doing}: it does not run")));
        };
        let at = clock::now();
        handle.signal(signal).context(doing)?;
        Ok(at)
    }

    /// Waits until a node that has been told to end is gone.
    pub fn await_end(&mut self, number: u16) -> Outcome {
        let doing = format!("cannot wait for node {number}");
        let Some((mut child, handle)) = self.node(number).process.take() else { return Ok(()) };
        let gone = handle.wait_gone(PATIENCE).context(&doing)?;
        if !gone {
            child.kill().context(&doing)?;
        }
        child.wait().context(&doing)?;
        if gone {
            Ok(())
        } else {
            Err(Fail::wrong(format_args!("node {number} did not end within {} s of being asked to", PATIENCE.as_secs())))
        }
    }

    /// A node's process, as its number and start name it.
    pub fn process(&self, number: u16) -> Outcome<Option<ProcessName>> {
        self.directory.process(number)
    }

    /// Ends all nodes in order and looks for what they left behind.
    pub fn end(mut self) -> Outcome<Vec<String>> {
        let running: Vec<u16> = self.nodes.iter().filter(|node| node.process.is_some()).map(|node| node.number).collect();
        for number in &running {
            self.signal(*number, Signal::TERM)?;
        }
        for number in running {
            self.await_end(number)?;
        }
        let name = self.cluster.config().name.clone();
        let path = self.directory.path().to_path_buf();
        // Our own endpoint is a part of it, and the directory is ours to remove.
        drop(self);
        Ok(leftovers::of_cluster(&name, &path))
    }
}

/// Looks at what a process's first thread is doing, which is a node's acting thread. Opened beforehand, so that a look is one system call.
pub struct Pulse(std::fs::File);

impl Pulse {
    /// Whether it sleeps.
    pub fn is_asleep(&self) -> Outcome<bool> {
        let mut stat = [0; 128];
        let len = self.0.read_at(&mut stat, 0).context("cannot look at a node")?;
        Ok(state(&stat[..len]) == Some(b'S'))
    }
}

/// The state in a line of /proc/PID/stat: it follows the program's name, which stands in parentheses and may hold any.
fn state(stat: &[u8]) -> Option<u8> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some((mut child, _)) = node.process.take() {
                // What cannot be killed is gone; what cannot be waited for dies with us.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        let _ = &self.scratch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_thread_is_found_behind_any_name() {
        assert_eq!(state(b"17 (martlet) S 1 17"), Some(b'S'));
        assert_eq!(state(b"17 (a) S (b) R 1 17"), Some(b'R'));
        assert_eq!(state(b""), None);
        assert_eq!(state(b"17 (martlet)"), None);
    }

    #[test]
    fn who_looks_at_itself_is_awake() {
        let own = std::fs::File::open("/proc/thread-self/stat").map(Pulse).expect("it runs");
        assert!(!own.is_asleep().expect("it runs"));
    }
}

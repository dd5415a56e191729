//! A cluster of our own, made to be broken: its nodes are our children, its directory is temporary, and nothing of it outlives us.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use martlet_cluster::directory::{Directory, Life, Plan, own_command};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::process::{Handle, ProcessName};
use martlet_cluster::scratch::Scratch;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_cluster::watch::standing;
use martlet_fabric::host::stat::Stat;
use martlet_node::config::{Cluster, Idle, NodeEntry, Priority};
use martlet_node::connections::service;
use martlet_node::{clock, sched};
use martlet_protocol::basics::{ProcessId, Time};
use martlet_protocol::membership::View;
use rustix::process::Signal;

use crate::trial::leftovers;

/// How long a cluster may take to become whole, or a node to end, before something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often a node's process is looked at that is to end by itself.
const LOOK: Duration = Duration::from_millis(10);

/// A cluster of our own.
pub struct Testbed {
    scratch: Scratch,
    directory: Directory,
    cluster: Cluster,
    nodes: Vec<Running>,
    /// Those that are none of the cluster's just now, and can become so, the first that was set aside first.
    spares: VecDeque<NodeEntry>,
    /// How many nodes were killed by their successors, and started again.
    replaced: u32,
    /// `None`: nobody looks on.
    observer: Option<Observer>,
    interrupt: Interrupt,
}

/// A node and its process, which may be gone.
struct Running {
    number: u16,
    /// `None` once it is dead and reaped.
    process: Option<(Child, Handle)>,
}

impl Running {
    /// Its number, and how it ended, if its process was there and has ended by itself.
    fn ended(&mut self) -> Option<(u16, ExitStatus)> {
        let (child, _) = self.process.as_mut()?;
        Some((self.number, child.try_wait().ok()??))
    }
}

impl Testbed {
    /// Starts a cluster and waits until it is whole. The calling thread must live as long as the value: the nodes die with it.
    pub fn start(plan: &Plan, interrupt: &Interrupt) -> Outcome<Testbed> {
        let mut testbed = Testbed::prepare(plan, interrupt)?;
        testbed.numbers().into_iter().try_for_each(|number| testbed.spawn(number))?;
        testbed.await_whole()?;
        Ok(testbed)
    }

    /// Makes a cluster whose nodes are started one by one. The plan's name says what it is for; the cluster's is that and this process's number.
    pub fn prepare(plan: &Plan, interrupt: &Interrupt) -> Outcome<Testbed> {
        let scratch = Scratch::new(&plan.name).context("cannot make a temporary directory")?;
        let directory = Directory::new(&scratch.path().join("cluster"));
        std::fs::create_dir(directory.path()).context("cannot make a temporary directory")?;
        let cluster = directory.create(&Plan { name: format!("{}-{}", plan.name, std::process::id()), ..plan.clone() })?;
        let observer = Observer::open(&cluster)?;
        let nodes = cluster.config().nodes.iter().map(|node| Running { number: node.number, process: None }).collect();
        Ok(Testbed {
            scratch,
            directory,
            cluster,
            nodes,
            spares: VecDeque::new(),
            replaced: 0,
            observer: Some(observer),
            interrupt: interrupt.clone(),
        })
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
        let entry = entry.ok_or_else(|| {
            Fail::failed(format_args!("node {number} does not belong to the cluster, whose nodes are {:?}", self.numbers()))
        })?;
        self.signal(number, Signal::TERM)?;
        self.await_end(number)?;
        self.await_whole()?;
        let engine = self.cluster.config().engine;
        let gone = move |sights: &[Sight]| standing::is_without(sights, number, engine);
        let what = format!("node {number} had left, but the others still relied on it");
        self.await_that(PATIENCE, &what, gone)?;
        self.directory.clear_data(number)?;
        self.cluster = self.directory.unlist_node(&self.cluster, number)?;
        self.spares.push_back(entry);
        Ok(())
    }

    /// Adds the node that was set aside first, which begins with nothing. When this returns it holds the state.
    pub fn take_in(&mut self) -> Outcome {
        self.take_in_within(PATIENCE)
    }

    /// The same, of a state so large that it may take so long.
    pub fn take_in_within(&mut self, patience: Duration) -> Outcome {
        let entry = self.spares.pop_front().ok_or_else(|| Fail::failed("no node has been set aside"))?;
        self.cluster = self.directory.list_node(&self.cluster, &entry)?;
        self.spawn(entry.number)?;
        self.await_whole_within(patience).map(|_| ())
    }

    /// A file beside the cluster's directory, which goes away with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts a node that does not run.
    pub fn spawn(&mut self, number: u16) -> Outcome {
        let started = self.directory.start(number, Life::OfOurs)?;
        self.keep(number, started)
    }

    /// Starts a node by another command of this executable, to which its file is passed by `--config`. What it runs must end with its parent by itself.
    pub fn spawn_as(&mut self, number: u16, command: &str, configure: impl FnOnce(&mut Command)) -> Outcome {
        let mut own = own_command()?;
        own.arg(command).arg("--config").arg(self.directory.node_file(number));
        configure(&mut own);
        let started = self.directory.start_by(number, own)?;
        self.keep(number, started)
    }

    fn keep(&mut self, number: u16, (name, mut child): (ProcessName, Child)) -> Outcome {
        let handle = name.open().context(format_args!("cannot reach node {number}"))?;
        let Some(handle) = handle else {
            let status = child.wait().context(format_args!("cannot wait for node {number}"))?;
            return Err(self.ended(number, status));
        };
        self.node(number).process = Some((child, handle));
        Ok(())
    }

    fn ended(&self, number: u16, status: ExitStatus) -> Fail {
        let said = self.directory.log_tail(number, 12);
        Fail::failed(format_args!("node {number} ended by itself ({status}); its last output:\n{said}"))
    }

    fn node(&mut self, number: u16) -> &mut Running {
        self.nodes.iter_mut().find(|node| node.number == number).expect("a number of ours")
    }

    /// The nodes that run.
    pub fn running(&self) -> Vec<u16> {
        self.nodes.iter().filter(|node| node.process.is_some()).map(|node| node.number).collect()
    }

    /// Whether the engine has an election of its own.
    fn elects(&self) -> bool {
        self.cluster.config().engine.traits().elects()
    }

    /// Waits until all nodes that run are in one view, hold the state and follow one primary: where the engine elects, the one that will go on leading.
    pub fn await_whole(&mut self) -> Outcome<Vec<Sight>> {
        self.await_whole_within(PATIENCE)
    }

    fn await_whole_within(&mut self, patience: Duration) -> Outcome<Vec<Sight>> {
        let numbers = self.running();
        let (elects, engine) = (self.elects(), self.cluster.config().engine);
        self.await_that(patience, "the cluster was not whole", |sights| {
            observer::is_whole(sights, &numbers) && (!elects || observer::is_settled(sights, &numbers, engine))
        })
    }

    /// Waits until something is true of what the nodes show. `otherwise` is what is to be said when it is not in time.
    ///
    /// # Errors
    /// When it is not, or a node ends meanwhile that was not replaced at the cluster's one address: such a one is started again.
    pub fn await_that(&mut self, patience: Duration, otherwise: &str, enough: impl FnMut(&[Sight]) -> bool) -> Outcome<Vec<Sight>> {
        self.await_that_or_end(None, patience, otherwise, enough)
    }

    /// The same, but a node that ends by itself, and well, is enough too.
    pub fn await_that_or_end(
        &mut self,
        may_end: Option<u16>,
        patience: Duration,
        otherwise: &str,
        mut enough: impl FnMut(&[Sight]) -> bool,
    ) -> Outcome<Vec<Sight>> {
        let until = Instant::now() + patience;
        loop {
            let mut ended = None;
            let nodes = &mut self.nodes;
            let left = until.saturating_duration_since(Instant::now());
            let found = looking(&mut self.observer, &self.cluster)?.wait_for(left, &self.interrupt, |sights| {
                ended = nodes.iter_mut().find_map(Running::ended);
                ended.is_some() || enough(sights)
            })?;
            match ended {
                Some((number, status)) if may_end == Some(number) && status.success() => return self.look(),
                Some((number, status)) if self.was_replaced(status) => {
                    self.node(number).process = None;
                    self.replaced += 1;
                    self.spawn(number)?;
                }
                Some((number, status)) => return Err(self.ended(number, status)),
                None => {
                    return found.map_err(|sights| observer::not_ready(&format!("{otherwise} within {} s", patience.as_secs()), &sights));
                }
            }
        }
    }

    /// How many nodes were killed by their successors so far, and started again.
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Whether a node that ended like this was killed by its successor: one that does not get on, also for want of a core, has its connections at the cluster's one address taken over
    /// before it may go on.
    fn was_replaced(&self, status: ExitStatus) -> bool {
        self.cluster.config().service.is_some() && status.signal() == Some(Signal::KILL.as_raw())
    }

    /// Waits until a node has ended by itself, and well.
    ///
    /// # Errors
    /// When it has not ended well, or another one ends before it.
    pub fn await_own_end(&mut self, number: u16) -> Outcome {
        loop {
            self.interrupt.check()?;
            match self.nodes.iter_mut().find_map(Running::ended) {
                Some((first, status)) if first == number && status.success() => {
                    self.node(number).process = None;
                    return Ok(());
                }
                Some((first, status)) => return Err(self.ended(first, status)),
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// What all nodes show now.
    pub fn look(&mut self) -> Outcome<Vec<Sight>> {
        Ok(looking(&mut self.observer, &self.cluster)?.look())
    }

    /// Closes the connections by which the nodes are looked at, until they are looked at again.
    pub fn look_away(&mut self) {
        self.observer = None;
    }

    /// The process that leads, and the newest view.
    pub fn primary(&mut self) -> Outcome<(ProcessId, View)> {
        // With an election of its own there can be a moment without a leader, also when all are well.
        let sights = if self.elects() { self.await_whole()? } else { self.look()? };
        let view = observer::newest_view(&sights).cloned().ok_or_else(|| Fail::failed("no node shows a view"))?;
        let primary = if self.elects() {
            observer::primary(&sights).and_then(|sight| view.members.iter().find(|m| m.id.node.0 == sight.node))
        } else {
            view.primary()
        };
        let primary = primary.map(|member| member.id).ok_or_else(|| Fail::failed(format_args!("no node leads in view {}", view.number)))?;
        Ok((primary, view))
    }

    /// A node's process.
    pub fn pid(&mut self, number: u16) -> Outcome<u32> {
        let process = self.node(number).process.as_ref().map(|(child, _)| child.id());
        process.ok_or_else(|| Fail::failed(format_args!("node {number} is not running")))
    }

    /// For looks at what a node's acting thread is doing.
    pub fn pulse(&mut self, number: u16) -> Outcome<Pulse> {
        let doing = format!("cannot look at node {number}");
        let Some((child, _)) = &self.node(number).process else {
            return Err(Fail::failed(format_args!("{doing}: it is not running")));
        };
        std::fs::File::open(format!("/proc/{}/stat", child.id())).map(Pulse).context(doing)
    }

    /// Has a node dump core by the signals that say so.
    pub fn let_dump(&mut self, number: u16) -> Outcome {
        let Some((child, _)) = &self.node(number).process else {
            return Err(Fail::failed(format_args!("node {number} cannot dump core: it is not running")));
        };
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process has a number");
        let most = rustix::process::Rlimit { current: None, maximum: None };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Core, most).map(|_| ()).context("cannot have a node dump core")
    }

    /// Sends a signal to a node, and returns the moment just before.
    pub fn signal(&mut self, number: u16, signal: Signal) -> Outcome<Time> {
        let doing = format!("cannot signal node {number}");
        let Some((_, handle)) = &self.node(number).process else {
            return Err(Fail::failed(format_args!("{doing}: it is not running")));
        };
        let at = clock::now();
        handle.signal(signal).context(doing)?;
        Ok(at)
    }

    /// Sends nodes a signal, each so many nanoseconds after the first may have it, from a thread that nothing else keeps from running, where that is allowed. `times` ascend. Returns
    /// the moment just before each.
    pub fn signal_each(&self, numbers: &[u16], times: &[u64], signal: Signal) -> Outcome<Vec<Time>> {
        let handle = |number: &u16| {
            let running = self.nodes.iter().find(|node| node.number == *number).and_then(|node| node.process.as_ref());
            running.map(|(_, handle)| handle).ok_or_else(|| Fail::failed(format_args!("cannot signal node {number}: it is not running")))
        };
        let handles = numbers.iter().map(handle).collect::<Outcome<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                sched::place_current_thread(None, Priority::Fifo, Idle::Park).context("cannot place the thread that kills")?;
                let start = clock::now();
                let send = |(handle, after_ns): (&&Handle, &u64)| {
                    while clock::now() < start.after(*after_ns) {
                        std::hint::spin_loop();
                    }
                    let at = clock::now();
                    handle.signal(signal).context("cannot signal a node")?;
                    Ok(at)
                };
                handles.iter().zip(times).map(send).collect()
            });
            sender.join().expect("it does not panic")
        })
    }

    /// Waits until a node that has been told to end is gone. Returns how it ended; `None` when it did not run.
    pub fn await_end(&mut self, number: u16) -> Outcome<Option<ExitStatus>> {
        let doing = format!("cannot wait for node {number}");
        let Some((mut child, handle)) = self.node(number).process.take() else { return Ok(None) };
        let gone = handle.wait_gone(PATIENCE).context(&doing)?;
        if !gone {
            child.kill().context(&doing)?;
        }
        let status = child.wait().context(&doing)?;
        if gone {
            Ok(Some(status))
        } else {
            Err(Fail::wrong(format_args!("node {number} did not end within {} s of being asked to", PATIENCE.as_secs())))
        }
    }

    /// Ends a node in order.
    ///
    /// # Errors
    /// When it does not end, or says that it did not end well.
    pub fn end_node(&mut self, number: u16) -> Outcome {
        self.signal(number, Signal::TERM)?;
        match self.await_end(number)? {
            Some(status) if !status.success() => {
                let said = self.directory.log_tail(number, 12);
                Err(Fail::failed(format_args!("node {number} was asked to end, and ended with {status}; its last output:\n{said}")))
            }
            _ => Ok(()),
        }
    }

    /// A node's process, as its number and start name it.
    pub fn process(&self, number: u16) -> Outcome<Option<ProcessName>> {
        self.directory.process(number)
    }

    /// Ends all nodes in order and looks for what they left behind.
    pub fn end(mut self) -> Outcome<Vec<String>> {
        let running = self.running();
        for number in &running {
            self.signal(*number, Signal::TERM)?;
        }
        for number in running {
            self.await_end(number)?;
        }
        let name = self.cluster.config().name.clone();
        let path = self.directory.path().to_path_buf();
        let patience = if self.cluster.config().service.is_some() { leftovers::PATIENCE_OF_SERVICE } else { leftovers::PATIENCE };
        // Our own endpoint is a part of it, and the directory is ours to remove.
        drop(self);
        Ok(leftovers::of_cluster(&name, &path, patience))
    }
}

/// The observer of that cluster, which is connected anew if it has been closed.
fn looking<'a>(observer: &'a mut Option<Observer>, cluster: &Cluster) -> Outcome<&'a mut Observer> {
    Ok(match observer {
        Some(observer) => observer,
        closed => closed.insert(Observer::open(cluster)?),
    })
}

/// Looks at what a process's first thread is doing, which is a node's acting thread. Opened beforehand, so that a look is one system call.
pub struct Pulse(std::fs::File);

impl Pulse {
    /// Whether it sleeps.
    pub fn is_asleep(&self) -> Outcome<bool> {
        let mut stat = [0; 1024];
        let len = self.0.read_at(&mut stat, 0).context("cannot look at a node")?;
        Ok(Stat::parse(&String::from_utf8_lossy(&stat[..len])).is_some_and(|stat| stat.state == 'S'))
    }
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
        // What the last of them held nobody will ask for.
        if let Some(address) = self.cluster.config().service {
            service::let_go(&self.cluster.config().name, address);
        }
        let _ = &self.scratch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_looks_at_itself_is_awake() {
        let own = std::fs::File::open("/proc/thread-self/stat").map(Pulse).expect("it runs");
        assert!(!own.is_asleep().expect("it runs"));
    }
}

//! The cluster whose leader is watched: the leader on a core of its own, everybody else on the others.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use martlet_cluster::directory::{Directory, FabricPlan, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::scratch::Scratch;
use martlet_cluster::watch::observer::{self, Observer, Role, Sight};
use martlet_node::clock;
use martlet_node::config::{Cluster, DurabilityKind, EngineKind, Idle, ThreadsConfig};
use martlet_node::counters::Counter;
use martlet_protocol::basics::Time;
use rustix::process::{Pid, Signal, kill_process};

use super::record::Record;
use crate::report::reference;
use crate::trial::leftovers;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(180);
/// Who leads: the first to be there, and the lowest.
pub const LEADER: u16 = 0;
/// Who is added.
pub const NEWCOMER: u16 = 3;

/// Which cores there are for whom.
#[derive(Clone, Debug)]
pub struct Cores {
    /// The leader's; nobody else's of ours, but the reference thread's, where there are two at least.
    pub leader: Option<u16>,
    /// Everybody else's.
    pub others: Vec<u16>,
}

/// The cluster.
pub struct Nodes {
    scratch: Scratch,
    directory: Directory,
    cluster: Cluster,
    cores: Cores,
    state: u64,
    children: Vec<(u16, Child)>,
    observer: Observer,
    interrupt: Interrupt,
}

impl Nodes {
    /// Three nodes that hold an empty state, the first of which leads.
    pub fn start(engine: EngineKind, durability: DurabilityKind, cores: Cores, state: u64, interrupt: &Interrupt) -> Outcome<Nodes> {
        let scratch = Scratch::new("bench-pauses").context("cannot make a temporary directory")?;
        let directory = Directory::new(&scratch.path().join("cluster"));
        std::fs::create_dir(directory.path()).context("cannot make a temporary directory")?;
        let alone = cores.leader.is_some_and(|leader| !cores.others.contains(&leader));
        let plan = Plan {
            name: format!("bench-pauses-{}", std::process::id()),
            replicas: NEWCOMER + 1,
            coordinators: NEWCOMER,
            redis_port: None,
            redis_cluster: true,
            engine,
            durability,
            election: None,
            // On a single core everybody has to give way, and nobody may sleep through what is due.
            threads: ThreadsConfig { idle: if alone { Idle::Adaptive } else { Idle::Yield }, ..ThreadsConfig::default() },
            fabric: FabricPlan::Shm,
        };
        let cluster = directory.create(&plan)?;
        let observer = Observer::open(&cluster)?;
        let mut nodes = Nodes { scratch, directory, cluster, cores, state, children: Vec::new(), observer, interrupt: interrupt.clone() };
        if durability == DurabilityKind::Memory {
            for number in 0..NEWCOMER {
                nodes.spawn(number)?;
                nodes.await_whole(&format!("node {number} to be taken in"))?;
            }
        } else {
            // A cluster with disks is founded when everybody is there who might have data. Who comes later had left.
            (0..=NEWCOMER).try_for_each(|number| nodes.spawn(number))?;
            nodes.await_whole("all nodes to be there")?;
            nodes.end_last()?;
            nodes.await_whole("the last node to have left")?;
        }
        Ok(nodes)
    }

    /// Bytes in a log.
    pub fn log_bytes(&self) -> u64 {
        self.cluster.config().sizes.log_ring_bytes
    }

    fn record_file(&self, number: u16) -> PathBuf {
        self.scratch.path().join(format!("record-{number}"))
    }

    /// Starts a node.
    pub fn spawn(&mut self, number: u16) -> Outcome {
        let doing = format!("cannot start node {number}");
        let log = self.directory.log_file(number);
        let out = File::options().create(true).append(true).open(&log).context(&doing)?;
        let err = out.try_clone().context(&doing)?;
        let others = &self.cores.others;
        let core = if number == LEADER { self.cores.leader } else { others.get(usize::from(number) % others.len().max(1)).copied() };
        let mut command = reference::own_command()?;
        command.arg("pauses-node").arg("--config").arg(self.directory.node_file(number));
        command.arg("--record").arg(self.record_file(number)).args(["--state", &self.state.to_string()]);
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        for other in others {
            command.args(["--helpers", &other.to_string()]);
        }
        if number == LEADER && !others.iter().any(|other| Some(*other) == core) {
            command.arg("--alone");
        }
        // A group of its own: Ctrl-C at our terminal is for us, and we end it.
        let child = command.process_group(0).stdin(Stdio::piped()).stdout(out).stderr(err).spawn().context(&doing)?;
        self.children.push((number, child));
        Ok(())
    }

    /// Tells all nodes what is wanted: whoever leads does it.
    pub fn order(&mut self, line: &str) -> Outcome {
        for (number, child) in &mut self.children {
            let orders = child.stdin.as_mut().ok_or_else(|| Fail::failed(format_args!("node {number} takes no orders")))?;
            writeln!(orders, "{line}").context(format_args!("cannot tell node {number} what to do"))?;
        }
        Ok(())
    }

    fn numbers(&self) -> Vec<u16> {
        self.children.iter().map(|(number, _)| *number).collect()
    }

    /// Waits until something is true of what the nodes show.
    pub fn until(&mut self, what: &str, mut enough: impl FnMut(&[Sight]) -> bool) -> Outcome<Vec<Sight>> {
        let children = &mut self.children;
        let mut ended = None;
        let found = self.observer.wait_for(PATIENCE, &self.interrupt, |sights| {
            ended = children.iter_mut().find_map(|(number, child)| (!matches!(child.try_wait(), Ok(None))).then_some(*number));
            ended.is_some() || enough(sights)
        })?;
        if let Some(number) = ended {
            let said = self.directory.log_tail(number, 12);
            return Err(Fail::failed(format_args!("node {number} ended by itself; the last it said:\n{said}")));
        }
        found.map_err(|sights| observer::not_ready(&format!("waited {} s in vain for {what}", PATIENCE.as_secs()), &sights))
    }

    /// Waits until all nodes that run hold the state, and follow the one that is to lead.
    pub fn await_whole(&mut self, what: &str) -> Outcome {
        let numbers = self.numbers();
        let leads = |sights: &[Sight]| observer::primary(sights).is_some_and(|sight| sight.node == LEADER);
        self.until(what, |sights| observer::is_whole(sights, &numbers) && leads(sights)).map(drop)
    }

    /// What a counter of a node shows.
    pub fn counter(&mut self, number: u16, counter: Counter) -> u64 {
        counter_of(&self.observer.look(), number, counter)
    }

    /// Waits until a node shows all that was committed at this moment.
    pub fn await_level(&mut self, number: u16) -> Outcome {
        let committed = self.counter(LEADER, Counter::CommittedIndex);
        let what = format!("node {number} to show entry {committed}");
        self.until(&what, |sights| counter_of(sights, number, Counter::AppliedIndex) >= committed).map(drop)
    }

    /// How often the leader's role has changed hands there; `None` if it is not the leader's now.
    pub fn reign(&mut self) -> Option<u64> {
        let sights = self.observer.look();
        let leader = sights.iter().find(|sight| sight.node == LEADER)?;
        (leader.role() == Some(Role::Primary)).then(|| leader.counter(Counter::Reign))
    }

    /// Sends a node a signal, and returns when.
    pub fn signal(&mut self, number: u16, signal: Signal) -> Outcome<Time> {
        let child = self.children.iter().find(|(n, _)| *n == number).map(|(_, child)| child);
        let pid = child.and_then(|child| Pid::from_raw(child.id() as i32));
        let pid = pid.ok_or_else(|| Fail::failed(format_args!("cannot signal node {number}: it does not run")))?;
        kill_process(pid, signal).context(format_args!("cannot signal node {number}"))?;
        Ok(clock::now())
    }

    /// Ends the node that was started last, in order.
    fn end_last(&mut self) -> Outcome {
        let Some((number, mut child)) = self.children.pop() else { return Ok(()) };
        let doing = format!("cannot end node {number}");
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            kill_process(pid, Signal::TERM).context(&doing)?;
        }
        let status = child.wait().context(&doing)?;
        if !status.success() {
            let said = self.directory.log_tail(number, 12);
            return Err(Fail::failed(format_args!("node {number} ended with {status}; the last it said:\n{said}")));
        }
        Ok(())
    }

    /// Ends all nodes in order. Returns what the leader has seen, and what was left behind.
    pub fn end(mut self) -> Outcome<(Record, Vec<String>)> {
        // The leader last, so that it need not hand over to anybody.
        while !self.children.is_empty() {
            self.end_last()?;
        }
        let file = self.record_file(LEADER);
        let record = Record::load(&file).context(format_args!("cannot read {}", file.display()))?;
        let record = record.ok_or_else(|| Fail::failed(format_args!("{} was cut short", file.display())))?;
        let name = self.cluster.config().name.clone();
        let path = self.directory.path().to_path_buf();
        drop(self);
        Ok((record, leftovers::of_cluster(&name, &path)))
    }
}

/// What a counter of a node shows; 0 for one that does not run.
pub fn counter_of(sights: &[Sight], number: u16, counter: Counter) -> u64 {
    sights.iter().find(|sight| sight.node == number).map_or(0, |sight| sight.counter(counter))
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // What cannot be killed is gone; what cannot be waited for dies with us.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

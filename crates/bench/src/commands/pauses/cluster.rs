//! The cluster whose leader is watched: the leader on a core of its own, everybody else on the others.

use std::process::Stdio;
use std::time::Duration;

use martlet_cluster::directory::Plan;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::watch::observer::{self, Role, Sight};
use martlet_node::config::{DurabilityKind, EngineKind, Idle, ThreadsConfig};
use martlet_node::counters::Counter;
use martlet_protocol::basics::Time;
use rustix::process::Signal;

use super::record::Record;
use crate::trial::testbed::Testbed;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(180);
/// The leader: the first to be there, and the lowest.
pub const LEADER: u16 = 0;
/// The node that is added.
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
    testbed: Testbed,
    cores: Cores,
    state: u64,
    /// In the order in which they were started.
    started: Vec<u16>,
}

impl Nodes {
    /// Three nodes that hold an empty state, the first of which leads.
    pub fn start(engine: EngineKind, durability: DurabilityKind, cores: Cores, state: u64, interrupt: &Interrupt) -> Outcome<Nodes> {
        let alone = cores.leader.is_some_and(|leader| !cores.others.contains(&leader));
        let plan = Plan {
            coordinators: NEWCOMER,
            engine,
            durability,
            // On a single core everybody has to give way, and nobody may sleep through what is due.
            threads: ThreadsConfig { idle: if alone { Idle::Adaptive } else { Idle::Yield }, ..ThreadsConfig::default() },
            ..Plan::new("bench-pauses", NEWCOMER + 1)
        };
        let mut nodes = Nodes { testbed: Testbed::prepare(&plan, interrupt)?, cores, state, started: Vec::new() };
        if durability == DurabilityKind::Memory {
            for number in 0..NEWCOMER {
                nodes.spawn(number)?;
                nodes.await_whole(&format!("node {number} was not taken in"))?;
            }
        } else {
            // A cluster with disks is founded when everybody is there who might have data. A node that comes later had left.
            (0..=NEWCOMER).try_for_each(|number| nodes.spawn(number))?;
            nodes.await_whole("not all nodes were there")?;
            nodes.end_last()?;
            nodes.await_whole("the last node had not left")?;
        }
        Ok(nodes)
    }

    /// Bytes in a log.
    pub fn log_bytes(&self) -> u64 {
        self.testbed.cluster().config().sizes.log_ring_bytes
    }

    /// Starts a node.
    pub fn spawn(&mut self, number: u16) -> Outcome {
        let record = self.testbed.file(&format!("record-{number}"));
        let others = &self.cores.others;
        let core = if number == LEADER { self.cores.leader } else { others.get(usize::from(number) % others.len().max(1)).copied() };
        self.testbed.spawn_as(number, "pauses-node", |command| {
            command.arg("--record").arg(record).args(["--state", &self.state.to_string()]);
            if let Some(core) = core {
                command.args(["--core", &core.to_string()]);
            }
            for other in others {
                command.args(["--helpers", &other.to_string()]);
            }
            if number == LEADER && !others.iter().any(|other| Some(*other) == core) {
                command.arg("--alone");
            }
            command.stdin(Stdio::piped());
        })?;
        self.started.push(number);
        Ok(())
    }

    /// Tells all nodes what is wanted: whoever leads does it.
    pub fn order(&mut self, line: &str) -> Outcome {
        self.testbed.tell_all(line)
    }

    /// Waits until something is true of what the nodes show. `otherwise` is what is to be said when it is not in time.
    pub fn until(&mut self, otherwise: &str, enough: impl FnMut(&[Sight]) -> bool) -> Outcome<Vec<Sight>> {
        self.testbed.await_that(PATIENCE, otherwise, enough)
    }

    /// Waits until all nodes that run hold the state, and follow the one that is to lead.
    pub fn await_whole(&mut self, otherwise: &str) -> Outcome {
        let numbers = self.testbed.running();
        let leads = |sights: &[Sight]| observer::primary(sights).is_some_and(|sight| sight.node == LEADER);
        self.until(otherwise, |sights| observer::is_whole(sights, &numbers) && leads(sights)).map(drop)
    }

    /// What a counter of a node shows.
    pub fn counter(&mut self, number: u16, counter: Counter) -> Outcome<u64> {
        Ok(counter_of(&self.testbed.look()?, number, counter))
    }

    /// Waits until a node shows all that was committed at this moment.
    pub fn await_level(&mut self, number: u16) -> Outcome {
        let committed = self.counter(LEADER, Counter::CommittedIndex)?;
        let otherwise = format!("node {number} did not show entry {committed}");
        self.until(&otherwise, |sights| counter_of(sights, number, Counter::AppliedIndex) >= committed).map(drop)
    }

    /// How often the leader's role has changed hands there; `None` if it is not the leader's now.
    pub fn reign(&mut self) -> Outcome<Option<u64>> {
        let sights = self.testbed.look()?;
        let leader = sights.iter().find(|sight| sight.node == LEADER && sight.role() == Some(Role::Primary));
        Ok(leader.map(|leader| leader.counter(Counter::Reign)))
    }

    /// Sends a node a signal, and returns when.
    pub fn signal(&mut self, number: u16, signal: Signal) -> Outcome<Time> {
        self.testbed.signal(number, signal)
    }

    /// Ends the node that was started last, in order.
    fn end_last(&mut self) -> Outcome {
        self.started.pop().map_or(Ok(()), |number| self.testbed.end_node(number))
    }

    /// Ends all nodes in order. Returns what the leader has seen, and what was left behind.
    pub fn end(mut self) -> Outcome<(Record, Vec<String>)> {
        // The leader last, so that it need not hand over to anybody.
        while !self.started.is_empty() {
            self.end_last()?;
        }
        let file = self.testbed.file(&format!("record-{LEADER}"));
        let record = Record::load(&file).context(format_args!("cannot read {}", file.display()))?;
        let record = record.ok_or_else(|| Fail::failed(format_args!("{} was cut short", file.display())))?;
        Ok((record, self.testbed.end()?))
    }
}

/// What a counter of a node shows; 0 for one that does not run.
pub fn counter_of(sights: &[Sight], number: u16, counter: Counter) -> u64 {
    sights.iter().find(|sight| sight.node == number).map_or(0, |sight| sight.counter(counter))
}

//! A trial: a cluster of our own under load, faults one after another, and a verdict on what the clients saw around each.

pub mod caller;
pub mod clients;
pub mod crowd;
pub mod leftovers;
pub mod redis;
pub mod testbed;
pub mod timeline;
pub mod wardens;
pub mod workload;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::watch::observer;
use martlet_protocol::basics::Time;
use martlet_sim::linearizability::Outcome as Ending;
use rustix::process::Signal;

use crate::trial::caller::AnyCaller;
use crate::trial::timeline::Timeline;
use testbed::{PATIENCE, Testbed};
use workload::{Mix, Recording};

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, and a new start after a while.
    Kill,
    /// SIGSTOP, and SIGCONT after so long.
    Pause(Duration),
    /// SIGTERM, and a new start.
    Restart,
    /// SIGKILL of all nodes, and a new start of each: what a host can show of a loss of power. What the kernel has taken and not written is not lost with it.
    PowerLoss,
    /// The node that was set aside is added, and this one removed, in order and with what it has.
    Change,
}

impl Fault {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Pause(_) => "pause",
            Fault::Restart => "restart",
            Fault::PowerLoss => "power loss",
            Fault::Change => "change",
        }
    }
}

/// A cluster of our own under load.
pub struct Trial {
    testbed: Testbed,
    callers: Vec<AnyCaller>,
    mix: Mix,
    seed: u64,
    round: u64,
    interrupt: Interrupt,
    /// What has been seen so far.
    pub totals: Totals,
}

/// What a trial has seen so far.
#[derive(Debug)]
pub struct Totals {
    /// Operations that were judged.
    pub operations: usize,
    /// Those of them without a reply.
    pub unknown: usize,
    /// Requests that were refused, and the last reason.
    pub refused: (u64, Option<String>),
    /// Latencies of reads, in nanoseconds.
    pub reads: Histogram<u64>,
    /// Latencies of changes, in nanoseconds.
    pub changes: Histogram<u64>,
}

/// What came of one round.
#[derive(Debug)]
pub struct Round {
    /// Its number, from 1 on.
    pub number: u64,
    /// Operations that were judged: there is an order that explains every reply.
    pub operations: usize,
    /// Those of them without a reply.
    pub unknown: usize,
    /// The failover, when the primary was killed.
    pub timeline: Option<Timeline>,
}

impl Trial {
    /// A trial of a cluster with these clients.
    pub fn new(testbed: Testbed, callers: Vec<AnyCaller>, mix: Mix, seed: u64, interrupt: &Interrupt) -> Trial {
        let histogram = || Histogram::new(3).expect("three digits are supported");
        let totals = Totals { operations: 0, unknown: 0, refused: (0, None), reads: histogram(), changes: histogram() };
        Trial { testbed, callers, mix, seed, round: 0, interrupt: interrupt.clone(), totals }
    }

    /// The cluster.
    pub fn testbed(&mut self) -> &mut Testbed {
        &mut self.testbed
    }

    /// One round: load, a fault in the middle of it, load until the cluster is whole again and for `after` more; then the verdict.
    pub fn round(&mut self, fault: Fault, target: u16, before: Duration, after: Duration) -> Outcome<Round> {
        self.round += 1;
        let number = self.round;
        let (testbed, interrupt) = (&mut self.testbed, &self.interrupt);
        let (mut recordings, struck) = workload::round(&mut self.callers, number, self.mix, self.seed, |acknowledged| {
            await_progress(acknowledged, interrupt)?;
            interrupt.sleep(before)?;
            let struck = strike(testbed, fault, target, interrupt)?;
            await_progress(acknowledged, interrupt)?;
            interrupt.sleep(after)?;
            Ok(struck)
        })?;
        let auditor = self.callers.len() as u64 + 1;
        recordings.push(workload::audit(&mut self.callers[0], auditor, number, self.mix));
        let operations = workload::judge(&recordings, self.seed)?;
        let unknown = recordings.iter().map(Recording::unknown).sum();
        self.note(&recordings, operations, unknown);
        let timeline = struck.map(|struck| struck.timeline(&recordings));
        Ok(Round { number, operations, unknown, timeline })
    }

    fn note(&mut self, recordings: &[Recording], operations: usize, unknown: usize) {
        self.totals.operations += operations;
        self.totals.unknown += unknown;
        for recording in recordings {
            self.totals.reads.add(&recording.reads).expect("auto-resizing");
            self.totals.changes.add(&recording.changes).expect("auto-resizing");
            self.totals.refused.0 += recording.refused.0;
            if recording.refused.1.is_some() {
                self.totals.refused.1.clone_from(&recording.refused.1);
            }
        }
    }

    /// Ends the cluster in order. An error says what it left behind.
    pub fn end(self) -> Outcome<Totals> {
        // The clients are a part of it.
        drop(self.callers);
        let left = self.testbed.end()?;
        if left.is_empty() { Ok(self.totals) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
    }
}

/// Waits until the clients get replies.
fn await_progress(acknowledged: &AtomicU64, interrupt: &Interrupt) -> Outcome {
    const ENOUGH: u64 = 50;
    let start = acknowledged.load(Ordering::Relaxed);
    let until = Instant::now() + PATIENCE;
    while acknowledged.load(Ordering::Relaxed) < start + ENOUGH {
        interrupt.check()?;
        if Instant::now() > until {
            return Err(Fail::wrong(format_args!("the clients made no progress for {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A primary was killed.
struct Struck {
    timeline: Timeline,
    killed: Time,
}

impl Struck {
    /// Adds the first reply that a client got from the next primary: the first after that one had taken over.
    fn timeline(mut self, recordings: &[Recording]) -> Timeline {
        if let Some(took_over) = self.timeline.first("took over") {
            let from = self.killed.after(took_over).0;
            let replies = recordings.iter().flat_map(|recording| &recording.history).filter_map(|op| match op.outcome {
                Ending::Returned { at_ns, .. } if at_ns >= from => Some(at_ns),
                _ => None,
            });
            if let Some(reply) = replies.min() {
                self.timeline.add_reply(Time(reply).since(self.killed));
            }
        }
        self.timeline
    }
}

fn strike(testbed: &mut Testbed, fault: Fault, target: u16, interrupt: &Interrupt) -> Outcome<Option<Struck>> {
    let (primary, _) = testbed.primary()?;
    let leads = primary.node.0 == target;
    match fault {
        Fault::Kill => {
            let killed = testbed.signal(target, Signal::KILL)?;
            testbed.await_end(target)?;
            // The survivors first: the failover is theirs alone.
            let sights = testbed.await_whole()?;
            let timeline = Timeline::new(primary, killed, &observer::events(&sights));
            testbed.spawn(target)?;
            testbed.await_whole()?;
            Ok(leads.then_some(Struck { timeline, killed }))
        }
        Fault::Pause(duration) => {
            testbed.signal(target, Signal::STOP)?;
            let slept = interrupt.sleep(duration);
            testbed.signal(target, Signal::CONT)?;
            slept?;
            testbed.await_whole()?;
            Ok(None)
        }
        Fault::PowerLoss => {
            let numbers = testbed.numbers();
            for number in &numbers {
                testbed.signal(*number, Signal::KILL)?;
            }
            for number in &numbers {
                testbed.await_end(*number)?;
            }
            for number in &numbers {
                testbed.spawn(*number)?;
            }
            testbed.await_whole()?;
            Ok(None)
        }
        Fault::Change => {
            testbed.take_in()?;
            testbed.set_aside(target)?;
            Ok(None)
        }
        Fault::Restart => {
            testbed.signal(target, Signal::TERM)?;
            testbed.await_end(target)?;
            testbed.spawn(target)?;
            testbed.await_whole()?;
            Ok(None)
        }
    }
}

//! A trial: a cluster of our own under load, faults one after another, and a verdict on what the clients saw around each.

pub mod caller;
pub mod clients;
pub mod crowd;
pub mod judged;
pub mod leftovers;
pub mod redis;
pub mod service;
pub mod strikes;
pub mod survivor;
pub mod testbed;
pub mod timeline;
pub mod wardens;
pub mod workload;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::watch::observer;
use martlet_protocol::basics::{ProcessId, Time};
use martlet_sim::linearizability::Outcome as Ending;
use rustix::process::Signal;

use crate::trial::caller::AnyCaller;
use crate::trial::judged::{Judged, Totals};
use crate::trial::timeline::Timeline;
use strikes::Strike;
use survivor::{Fate, fate};
use testbed::{PATIENCE, Testbed};
use wardens::Wardens;
use workload::{Mix, Recording};

/// Within which all but one are killed.
pub const AT_ONCE: Duration = Duration::from_millis(1);

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
    /// SIGKILL of all nodes but this one, within [`AT_ONCE`] of each other and in any order; those that are dead are started again when this one has served alone.
    AllButOne,
    /// The node that was set aside is added, and this one removed, in order and with what it has.
    Change,
    /// To the warden of its host.
    Warden(Strike),
}

impl Fault {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Pause(_) => "pause",
            Fault::Restart => "restart",
            Fault::PowerLoss => "power loss",
            Fault::AllButOne => "all but one",
            Fault::Change => "change",
            Fault::Warden(strike) => strike.name(),
        }
    }
}

/// A cluster of our own under load.
pub struct Trial {
    testbed: Testbed,
    load: Judged,
    interrupt: Interrupt,
    /// Of the nodes' hosts, where they have any.
    wardens: Option<Wardens>,
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
    /// Nanoseconds from the first kill to the last, when several were killed at once.
    pub kills_ns: Option<u64>,
    /// Whether the node is known to have heard what a forged warden said, and to have believed none of it.
    pub has_disbelieved: bool,
}

impl Trial {
    /// A trial of a cluster with these clients.
    pub fn new(testbed: Testbed, callers: Vec<AnyCaller>, mix: Mix, seed: u64, interrupt: &Interrupt) -> Trial {
        Trial { testbed, load: Judged::new(callers, mix, seed, 1), interrupt: interrupt.clone(), wardens: None }
    }

    /// The same, where node N's host has warden N.
    #[must_use]
    pub fn with_wardens(self, wardens: Option<Wardens>) -> Trial {
        Trial { wardens, ..self }
    }

    /// The cluster.
    pub fn testbed(&mut self) -> &mut Testbed {
        &mut self.testbed
    }

    /// One round: load, a fault in the middle of it, load until the cluster is whole again and for `after` more; then the verdict.
    pub fn round(&mut self, fault: Fault, target: u16, before: Duration, after: Duration) -> Outcome<Round> {
        let number = self.load.next_round();
        let mut chance = Rng::with_seed(self.load.seed() ^ number);
        let (testbed, interrupt, wardens) = (&mut self.testbed, &self.interrupt, self.wardens.as_mut());
        let mut has_disbelieved = false;
        let (seen, struck) = self.load.round(|acknowledged| {
            await_progress(acknowledged, interrupt)?;
            interrupt.sleep(before)?;
            let mut scene = Scene { testbed, wardens, acknowledged, interrupt, chance: &mut chance, has_disbelieved: false };
            let struck = scene.strike(fault, target)?;
            has_disbelieved = scene.has_disbelieved;
            await_progress(acknowledged, interrupt)?;
            interrupt.sleep(after)?;
            Ok(struck)
        })?;
        let kills_ns = struck.as_ref().and_then(|struck| struck.kills_ns);
        let timeline = struck.filter(|struck| struck.led).map(|struck| struck.timeline(&seen.recordings));
        Ok(Round { number, operations: seen.operations, unknown: seen.unknown, timeline, kills_ns, has_disbelieved })
    }

    /// Ends the cluster in order. An error says what it left behind.
    pub fn end(self) -> Outcome<Totals> {
        // The clients are a part of it.
        let totals = self.load.end();
        if let Some(mut wardens) = self.wardens {
            wardens.end()?;
        }
        let left = self.testbed.end()?;
        if left.is_empty() { Ok(totals) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
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

/// Nodes were killed.
struct Struck {
    timeline: Timeline,
    /// The first of them.
    killed: Time,
    /// The primary was one of them.
    led: bool,
    kills_ns: Option<u64>,
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

/// A cluster under load, in the middle of a round.
struct Scene<'a> {
    testbed: &'a mut Testbed,
    wardens: Option<&'a mut Wardens>,
    acknowledged: &'a AtomicU64,
    interrupt: &'a Interrupt,
    chance: &'a mut Rng,
    has_disbelieved: bool,
}

impl Scene<'_> {
    fn strike(&mut self, fault: Fault, target: u16) -> Outcome<Option<Struck>> {
        let testbed = &mut *self.testbed;
        if matches!(fault, Fault::Kill | Fault::Warden(Strike::KillBoth)) {
            // One that was presumed dead, and has not got the data again, counts as dead: the node that is killed may be the last one with the data.
            testbed.await_whole()?;
        }
        let (primary, _) = testbed.primary()?;
        match fault {
            Fault::Kill => {
                let struck = self.kill(target, primary)?;
                self.testbed.spawn(target)?;
                self.testbed.await_whole()?;
                Ok(Some(struck))
            }
            Fault::Warden(strike) => self.strike_warden(strike, target, primary),
            Fault::Pause(duration) => {
                testbed.signal(target, Signal::STOP)?;
                let slept = self.interrupt.sleep(duration);
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
            Fault::AllButOne => self.kill_all_but(target, primary).map(Some),
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

    /// Kills a node, and waits until the others are whole: the failover is theirs alone.
    fn kill(&mut self, target: u16, primary: ProcessId) -> Outcome<Struck> {
        let killed = self.testbed.signal(target, Signal::KILL)?;
        self.testbed.await_end(target)?;
        let sights = self.testbed.await_whole()?;
        let timeline = Timeline::new(primary, killed, &observer::events(&sights));
        Ok(Struck { timeline, killed, led: primary.node.0 == target, kills_ns: None })
    }

    /// Strikes the warden of a node's host, and has it there again.
    fn strike_warden(&mut self, strike: Strike, node: u16, primary: ProcessId) -> Outcome<Option<Struck>> {
        let wardens = self.wardens.take().ok_or_else(|| Fail::failed("the nodes' hosts have no wardens"))?;
        wardens.strike(node, strike.signal())?;
        let mut struck = None;
        match strike {
            Strike::Kill | Strike::Restart => {}
            Strike::Forge => self.has_disbelieved = strikes::forge(self.testbed, wardens, node)?,
            Strike::KillBoth => {
                struck = Some(self.kill(node, primary)?);
                self.testbed.spawn(node)?;
            }
        }
        wardens.restart(node)?;
        self.testbed.await_whole()?;
        // Else the next fault may come before the nodes have registered again.
        if self.chance.bool() {
            wardens.await_nodes(&self.testbed.cluster().config().name, &self.testbed.running())?;
        }
        Ok(struck)
    }

    /// Kills all nodes but one, has that one serve alone, and starts the others again.
    fn kill_all_but(&mut self, survivor: u16, primary: ProcessId) -> Outcome<Struck> {
        let Scene { testbed, acknowledged, interrupt, chance, .. } = self;
        let sights = testbed.await_whole()?;
        let view = observer::newest_view(&sights).ok_or_else(|| Fail::failed("no node shows a view"))?;
        let left = view.members.iter().map(|member| member.id).find(|id| id.node.0 == survivor);
        let left =
            left.ok_or_else(|| Fail::failed(format_args!("node {survivor}, which is to be left, is not in view {}", view.number)))?;
        let mut victims: Vec<u16> = testbed.numbers().into_iter().filter(|number| *number != survivor).collect();
        chance.shuffle(&mut victims);
        // Some at one moment, as when the kernel ends them all, and some between two steps of what the deaths before have set off.
        let within_ns = AT_ONCE.as_nanos() as u64;
        let mut times: Vec<u64> = victims.iter().map(|_| if chance.bool() { 0 } else { chance.u64(..within_ns) }).collect();
        times.sort_unstable();
        let kills = testbed.signal_each(&victims, &times, Signal::KILL)?;
        for victim in &victims {
            testbed.await_end(*victim)?;
        }
        let unclear = format!("node {survivor} was left, and neither went on alone nor found itself cut off");
        let sights = testbed.await_that(PATIENCE, &unclear, |sights| fate(sights, left).is_some())?;
        if fate(&sights, left) != Some(Fate::Alone) {
            return Err(Fail::failed(format_args!(
                "node {survivor}, which was to be left, was presumed dead when the others were killed, so nothing was left: use a host that is less busy"
            )));
        }
        await_progress(acknowledged, interrupt)?;
        let timeline = Timeline::new(primary, kills[0], &observer::events(&sights));
        for victim in &victims {
            testbed.spawn(*victim)?;
        }
        testbed.await_whole()?;
        let kills_ns = kills.last().map(|last| last.since(kills[0]));
        Ok(Struck { timeline, killed: kills[0], led: primary.node.0 != survivor, kills_ns })
    }
}

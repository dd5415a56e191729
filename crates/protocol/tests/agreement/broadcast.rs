//! The two broadcasts: OSRB with the perfect failure detector that the paper assumes, FCURB with views that exclude arbitrary processes.

use std::collections::BTreeSet;

use super::explore::{Model, explore, is_on_the_page};
use crate::{MessageId, Place, Places, View, fcurb, osrb};

const MOST: usize = 3_000_000;

/// OSRB: the first process broadcasts, and so may the second; processes crash, and each other process learns of each crash in its own time, in any order
/// relative to messages.
struct Reliable {
    processes: u8,
    senders: u8,
    crashes: usize,
    /// A message of a sender that is known to be gone is not relayed, as printed (TRAPS 24).
    as_printed: bool,
    /// A process declares its own message stable as soon as it has sent it.
    stable_too_early: bool,
}

#[derive(Clone, Hash)]
struct ReliableState {
    machines: Vec<osrb::Osrb<u8>>,
    alive: Places,
    sent: Places,
    /// The crashes that each process has heard of.
    heard: Vec<Places>,
    delivered: Vec<BTreeSet<(MessageId, u8)>>,
    net: BTreeSet<(Place, Place, MessageId, u8)>,
}

#[derive(Clone, Debug)]
#[expect(dead_code, reason = "printed, in the steps to what is wrong")]
enum ReliableAction {
    Broadcast(Place),
    Take { from: Place, at: Place, id: MessageId },
    Lose { from: Place, to: Place, id: MessageId },
    Crash(Place),
    Hear { at: Place, gone: Place },
}

impl Reliable {
    /// Takes what a process says and delivers. `relays`: whether what it sends counts.
    fn settle(&self, state: &mut ReliableState, at: Place, relays: bool) {
        while let Some(output) = state.machines[usize::from(at)].poll() {
            match output {
                osrb::Output::Send { to, id, message } if relays && state.alive.contains(to) => {
                    state.net.insert((at, to, id, message));
                }
                osrb::Output::Send { .. } => {}
                osrb::Output::Deliver { id, message } => {
                    assert!(state.delivered[usize::from(at)].insert((id, message)), "process {at} delivers {id:?} twice");
                }
            }
        }
    }
}

impl Model for Reliable {
    type State = ReliableState;
    type Action = ReliableAction;

    fn initial(&self) -> ReliableState {
        let (all, count) = (Places::first_of(self.processes), usize::from(self.processes));
        ReliableState {
            machines: (0..self.processes).map(|me| osrb::Osrb::new(me, all)).collect(),
            alive: all,
            sent: Places::default(),
            heard: vec![Places::default(); count],
            delivered: vec![BTreeSet::new(); count],
            net: BTreeSet::new(),
        }
    }

    fn next(&self, state: &ReliableState) -> Vec<(ReliableAction, ReliableState)> {
        let mut next = Vec::new();
        let gone = Places::first_of(self.processes).without(state.alive);
        for me in state.alive.iter() {
            let at = usize::from(me);
            if me < self.senders && !state.sent.contains(me) {
                let mut after = state.clone();
                after.sent.insert(me);
                let id = after.machines[at].broadcast(10 + me);
                self.settle(&mut after, me, true);
                if self.stable_too_early {
                    after.machines.iter_mut().for_each(|machine| machine.stabilize(id));
                }
                next.push((ReliableAction::Broadcast(me), after));
            }
            for gone in gone.without(state.heard[at]).iter() {
                let mut after = state.clone();
                after.heard[at].insert(gone);
                after.machines[at].crash(gone);
                self.settle(&mut after, me, true);
                next.push((ReliableAction::Hear { at: me, gone }, after));
            }
            if gone.iter().count() < self.crashes {
                let mut after = state.clone();
                after.alive = after.alive.except(me);
                after.net.retain(|(_, to, ..)| *to != me);
                next.push((ReliableAction::Crash(me), after));
            }
        }
        for message in &state.net {
            let (from, to, id, what) = *message;
            let mut after = state.clone();
            after.net.remove(message);
            if !state.alive.contains(from) {
                next.push((ReliableAction::Lose { from, to, id }, after.clone()));
            }
            after.machines[usize::from(to)].handle(id, what);
            let relays = !(self.as_printed && state.heard[usize::from(to)].contains(id.sender));
            self.settle(&mut after, to, relays);
            if self.stable_too_early {
                after.machines[usize::from(to)].stabilize(id);
            }
            next.push((ReliableAction::Take { from, at: to, id }, after));
        }
        next
    }

    fn is_progress(&self, action: &ReliableAction) -> bool {
        !matches!(action, ReliableAction::Crash(_))
    }

    fn check(&self, state: &ReliableState, ended: bool) -> Result<(), String> {
        if state.delivered.iter().flatten().any(|(id, what)| !state.sent.contains(id.sender) || *what != 10 + id.sender) {
            return Err("a message that nobody broadcast is delivered".into());
        }
        let mut correct = state.alive.iter().map(|place| &state.delivered[usize::from(place)]);
        let first = correct.next();
        if ended && correct.any(|delivered| Some(delivered) != first) {
            return Err(format!("not all correct processes deliver the same: {:?}", state.delivered));
        }
        let own = state.sent.iter().filter(|place| state.alive.contains(*place));
        if own.into_iter().any(|place| !state.delivered[usize::from(place)].iter().any(|(id, _)| id.sender == place)) {
            return Err("a correct process does not deliver what it broadcast".into());
        }
        Ok(())
    }
}

fn reliable(processes: u8, senders: u8, crashes: usize) -> Reliable {
    Reliable { processes, senders, crashes, as_printed: false, stable_too_early: false }
}

#[test]
fn osrb_delivers_at_all_correct_processes_what_it_delivers_at_one() {
    for (processes, senders, crashes) in [(3, 1, 1), (3, 1, 2), (3, 2, 1), (3, 2, 2), (4, 1, 2)] {
        let states = explore(&reliable(processes, senders, crashes), MOST).right();
        println!("osrb: {processes} processes, {senders} senders, {crashes} crashes: {states} states");
    }
    is_on_the_page("OSRB, one sender, up to three crashes", 4, explore(&reliable(4, 1, 3), MOST).right());
}

#[test]
fn trap_24_a_message_that_comes_after_its_senders_crash_is_relayed() {
    let printed = Reliable { as_printed: true, ..reliable(3, 1, 1) };
    println!("osrb as printed: {} steps", explore(&printed, MOST).wrong("not all correct processes"));
}

#[test]
fn what_is_called_stable_too_early_is_lost() {
    let early = Reliable { stable_too_early: true, ..reliable(3, 1, 1) };
    println!("osrb, stable too early: {} steps", explore(&early, MOST).wrong("not all correct processes"));
}

#[test]
fn what_is_stable_is_kept_no_more() {
    let mut osrb = osrb::Osrb::new(0, Places::first_of(2));
    let ids: Vec<MessageId> = (0..3).map(|message| osrb.broadcast(message)).collect();
    ids[..2].iter().for_each(|id| osrb.stabilize(*id));
    assert_eq!(osrb.kept(), 1);
}

/// FCURB: the first processes broadcast one message each; views exclude processes, dead or not, and each member enters them in its own time.
struct FailConsistent {
    processes: u8,
    senders: u8,
    views: usize,
    crashes: usize,
    flaw: Flaw,
}

/// Ways in which the paper's primitive could be misread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A message is delivered as soon as it arrives, as if a heartbeat were an atomic multicast.
    DeliveredOnReceipt,
    /// A death is reported as soon as the view is entered, so the notice overtakes the last heartbeat.
    NoticeOvertakes,
}

#[derive(Clone, Hash)]
struct FailConsistentState {
    machines: Vec<fcurb::Fcurb<u8>>,
    alive: Places,
    sent: Places,
    entered: Vec<usize>,
    views: Vec<View>,
    delivered: Vec<BTreeSet<MessageId>>,
    /// For each process, the processes that it has been told are gone.
    told: Vec<Places>,
    net: BTreeSet<(Place, Place, fcurb::Message<u8>)>,
    /// A message that is delivered after its sender was said to be gone.
    late: Option<MessageId>,
}

#[derive(Clone, Debug)]
#[expect(dead_code, reason = "printed, in the steps to what is wrong")]
enum FailConsistentAction {
    Broadcast(Place),
    Take { from: Place, at: Place, message: fcurb::Message<u8> },
    Lose { from: Place, message: fcurb::Message<u8> },
    Crash(Place),
    Exclude(Place),
    Enter { at: Place, view: View },
}

impl FailConsistent {
    fn deliver(&self, state: &mut FailConsistentState, at: Place, id: MessageId) {
        let new = state.delivered[usize::from(at)].insert(id);
        assert!(new || self.flaw == Flaw::DeliveredOnReceipt, "process {at} delivers {id:?} twice");
        if new && state.told[usize::from(at)].contains(id.sender) {
            state.late = Some(id);
        }
    }

    fn settle(&self, state: &mut FailConsistentState, at: Place) {
        while let Some(output) = state.machines[usize::from(at)].poll() {
            match output {
                fcurb::Output::Send { to, message } => {
                    if state.alive.contains(to) {
                        state.net.insert((at, to, message));
                    }
                }
                fcurb::Output::Deliver { id, message } => {
                    assert_eq!(message, 10 + id.sender);
                    self.deliver(state, at, id);
                }
                fcurb::Output::Crash(gone) => {
                    state.told[usize::from(at)].insert(gone);
                }
            }
        }
    }
}

impl Model for FailConsistent {
    type State = FailConsistentState;
    type Action = FailConsistentAction;

    fn initial(&self) -> FailConsistentState {
        let view = View { round: 0, members: Places::first_of(self.processes) };
        let count = usize::from(self.processes);
        FailConsistentState {
            machines: (0..self.processes).map(|me| fcurb::Fcurb::new(me, view)).collect(),
            alive: view.members,
            sent: Places::default(),
            entered: vec![0; count],
            views: vec![view],
            delivered: vec![BTreeSet::new(); count],
            told: vec![Places::default(); count],
            net: BTreeSet::new(),
            late: None,
        }
    }

    fn next(&self, state: &FailConsistentState) -> Vec<(FailConsistentAction, FailConsistentState)> {
        let mut next = Vec::new();
        let crashed = Places::first_of(self.processes).without(state.alive).iter().count();
        for me in state.alive.iter() {
            let at = usize::from(me);
            if me < self.senders && !state.sent.contains(me) {
                let mut after = state.clone();
                after.sent.insert(me);
                after.machines[at].broadcast(10 + me);
                self.settle(&mut after, me);
                next.push((FailConsistentAction::Broadcast(me), after));
            }
            if let Some(view) = state.views.get(state.entered[at] + 1).filter(|view| view.members.contains(me)) {
                let mut after = state.clone();
                after.entered[at] += 1;
                if self.flaw == Flaw::NoticeOvertakes {
                    after.told[at] = after.told[at].with(Places::first_of(self.processes).without(view.members));
                }
                after.machines[at].enter(*view);
                self.settle(&mut after, me);
                next.push((FailConsistentAction::Enter { at: me, view: *view }, after));
            }
            if crashed < self.crashes {
                let mut after = state.clone();
                after.alive = after.alive.except(me);
                after.net.retain(|(_, to, _)| *to != me);
                next.push((FailConsistentAction::Crash(me), after));
            }
        }
        for message in &state.net {
            let (from, to, what) = message;
            let mut after = state.clone();
            after.net.remove(message);
            if !state.alive.contains(*from) {
                next.push((FailConsistentAction::Lose { from: *from, message: what.clone() }, after.clone()));
            }
            if let (Flaw::DeliveredOnReceipt, fcurb::Message::Broadcast { id, .. }) = (self.flaw, what)
                && state.machines[usize::from(*to)].view().members.contains(*from)
            {
                self.deliver(&mut after, *to, *id);
            }
            after.machines[usize::from(*to)].handle(*from, what.clone());
            self.settle(&mut after, *to);
            next.push((FailConsistentAction::Take { from: *from, at: *to, message: what.clone() }, after));
        }
        let members = state.views.last().expect("the first at least").members;
        if state.views.len() <= self.views {
            for suspect in members.iter() {
                let rest = members.except(suspect);
                if rest.iter().any(|place| state.alive.contains(place)) {
                    let mut after = state.clone();
                    after.views.push(View { round: state.views.len() as u64, members: rest });
                    next.push((FailConsistentAction::Exclude(suspect), after));
                }
            }
        }
        next
    }

    fn is_progress(&self, action: &FailConsistentAction) -> bool {
        !matches!(action, FailConsistentAction::Crash(_) | FailConsistentAction::Exclude(_))
    }

    fn check(&self, state: &FailConsistentState, ended: bool) -> Result<(), String> {
        if let Some(id) = state.late {
            return Err(format!("{id:?} is delivered after its sender was said to be gone"));
        }
        let members = state.views.last().expect("the first at least").members;
        if !ended || !state.alive.contains_all(members) {
            return Ok(());
        }
        let all: BTreeSet<MessageId> = state.delivered.iter().flatten().copied().collect();
        for member in members.iter().map(usize::from) {
            if state.delivered[member] != all {
                return Err(format!("what some process delivers, process {member} does not: {:?}", state.delivered));
            }
            if state.told[member] != Places::first_of(self.processes).without(members) {
                return Err(format!("process {member} is not told who is gone: {:?}", state.told));
            }
        }
        let own = state.sent.iter().filter(|place| members.contains(*place));
        match own.into_iter().find(|place| !all.iter().any(|id| id.sender == *place)) {
            Some(place) => Err(format!("nobody delivers what process {place} broadcast, which is a member")),
            None => Ok(()),
        }
    }
}

fn fail_consistent(processes: u8, senders: u8, views: usize, crashes: usize) -> FailConsistent {
    FailConsistent { processes, senders, views, crashes, flaw: Flaw::None }
}

#[test]
fn fcurb_delivers_everywhere_what_it_delivers_anywhere_and_before_the_senders_end() {
    for (processes, senders, views, crashes) in [(2, 1, 1, 1), (3, 1, 1, 1), (3, 1, 2, 0), (3, 1, 2, 1)] {
        let states = explore(&fail_consistent(processes, senders, views, crashes), MOST).right();
        println!("fcurb: {processes} processes, {senders} senders, {views} views, {crashes} crashes: {states} states");
    }
    is_on_the_page("FCURB, one sender, two views, two crashes", 3, explore(&fail_consistent(3, 1, 2, 2), MOST).right());
    is_on_the_page("FCURB, two senders, one view", 3, explore(&fail_consistent(3, 2, 1, 0), MOST).right());
}

#[test]
fn trap_58_a_message_that_is_delivered_on_receipt_may_be_delivered_by_one_alone() {
    let flawed = FailConsistent { flaw: Flaw::DeliveredOnReceipt, ..fail_consistent(3, 1, 2, 2) };
    println!("fcurb, delivered on receipt: {} steps", explore(&flawed, MOST).wrong("process"));
}

#[test]
fn trap_58_a_notice_that_overtakes_the_last_message_breaks_fail_consistency() {
    let flawed = FailConsistent { flaw: Flaw::NoticeOvertakes, ..fail_consistent(3, 1, 1, 1) };
    println!("fcurb, notice overtakes: {} steps", explore(&flawed, MOST).wrong("after its sender"));
}

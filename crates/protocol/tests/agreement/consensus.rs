//! HSUC and HUC with views that exclude arbitrary processes, in every order of messages, entries into views, and crashes.
//!
//! Views are decided in one step each, since membership is a consensus of its own; each process enters them later, in its own time. A view may exclude a
//! process that lives. A crash loses any of the process's messages that have not arrived, so it may happen in the middle of sending to all.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use super::explore::{Explored, Model, explore, is_on_the_page};
use crate::{Place, Places, View, hsuc, huc};

/// A machine that decides.
trait Decides: Clone + Hash {
    type Message: Clone + Ord + Hash + Debug;

    fn new(me: Place, view: View) -> Self;
    fn propose(&mut self, value: u8);
    fn handle(&mut self, from: Place, message: Self::Message);
    fn enter(&mut self, view: View);
    fn view(&self) -> View;
    /// The messages that it sends, and what it decides.
    fn drain(&mut self) -> (Vec<(Place, Self::Message)>, Option<u8>);
    /// The choice in a message that a leader sends as its choice.
    fn chosen(message: &Self::Message) -> Option<u8>;
}

macro_rules! decides {
    ($machine:ident, $module:ident, $chosen:expr) => {
        impl Decides for $module::$machine<u8> {
            type Message = $module::Message<u8>;

            fn new(me: Place, view: View) -> Self {
                $module::$machine::new(me, view)
            }
            fn propose(&mut self, value: u8) {
                self.propose(value);
            }
            fn handle(&mut self, from: Place, message: Self::Message) {
                self.handle(from, message);
            }
            fn enter(&mut self, view: View) {
                self.enter(view);
            }
            fn view(&self) -> View {
                self.view()
            }
            fn drain(&mut self) -> (Vec<(Place, Self::Message)>, Option<u8>) {
                let (mut sent, mut decided) = (Vec::new(), None);
                while let Some(output) = self.poll() {
                    match output {
                        $module::Output::Send { to, message } => sent.push((to, message)),
                        $module::Output::Decide(value) => assert_eq!(decided.replace(value), None, "decided twice"),
                    }
                }
                (sent, decided)
            }
            fn chosen(message: &Self::Message) -> Option<u8> {
                $chosen(message)
            }
        }
    };
}

decides!(Hsuc, hsuc, |_: &hsuc::Message<u8>| None);
decides!(Huc, huc, |message: &huc::Message<u8>| match message {
    huc::Message::Choice(crate::fcurb::Message::Broadcast { message, .. }) => Some(*message),
    _ => None,
});

/// A bug that the model plants between the machines and their callers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A process acts on its own detector's suspicion, in a view of its own (TRAPS 25).
    SuspicionIsCrash,
    /// HUC: a leader decides when its choice is sent, and answers its client (section 6.4).
    AnsweredWhenSent,
    /// HSUC: a process that has decided sends nothing more.
    SilentWhenDecided,
    /// A process that has entered a view acknowledges what was proposed in an earlier one.
    OldRoundsCount,
}

#[derive(Clone, Hash)]
struct State<D: Decides> {
    machines: Vec<D>,
    alive: Places,
    proposed: Places,
    decided: Vec<Option<u8>>,
    /// How many views each process has entered after the first.
    entered: Vec<usize>,
    /// The views that are decided.
    views: Vec<View>,
    net: BTreeSet<(Place, Place, D::Message)>,
}

#[derive(Clone, Debug)]
#[expect(dead_code, reason = "printed, in the steps to what is wrong")]
enum Action<M> {
    Propose(Place),
    /// A process takes a message from another.
    Take {
        from: Place,
        at: Place,
        message: M,
    },
    /// A process takes a message as if it had not entered its view.
    TakeAsBefore {
        from: Place,
        at: Place,
        message: M,
    },
    Lose {
        from: Place,
        message: M,
    },
    Crash(Place),
    /// A view without a process is decided.
    Exclude(Place),
    Enter {
        at: Place,
        view: View,
    },
    /// A process makes a view of its own.
    Suspect {
        at: Place,
        view: View,
    },
}

struct World<D> {
    processes: u8,
    /// How many views there are beside the first.
    views: usize,
    crashes: usize,
    /// Whether every process proposes before anything else happens; otherwise at any time.
    early: bool,
    flaw: Flaw,
    of: std::marker::PhantomData<D>,
}

impl<D: Decides> World<D> {
    fn new(processes: u8, views: usize, crashes: usize) -> World<D> {
        World { processes, views, crashes, early: true, flaw: Flaw::None, of: std::marker::PhantomData }
    }

    fn with(self, flaw: Flaw) -> World<D> {
        World { flaw, ..self }
    }

    fn explore(&self) -> Explored {
        explore(self, 6_000_000)
    }

    /// Takes what a process says and decides.
    fn settle(&self, state: &mut State<D>, at: Place) {
        let silent = self.flaw == Flaw::SilentWhenDecided && state.decided[usize::from(at)].is_some();
        let (sent, decided) = state.machines[usize::from(at)].drain();
        for (to, message) in sent {
            if self.flaw == Flaw::AnsweredWhenSent && state.decided[usize::from(at)].is_none() {
                state.decided[usize::from(at)] = D::chosen(&message);
            }
            if state.alive.contains(to) && !silent {
                state.net.insert((at, to, message));
            }
        }
        if state.decided[usize::from(at)].is_none() {
            state.decided[usize::from(at)] = decided;
        }
    }
}

impl<D: Decides> Model for World<D> {
    type State = State<D>;
    type Action = Action<D::Message>;

    fn initial(&self) -> State<D> {
        let view = View { round: 0, members: Places::first_of(self.processes) };
        let count = usize::from(self.processes);
        let mut state = State {
            machines: (0..self.processes).map(|me| D::new(me, view)).collect(),
            alive: view.members,
            proposed: Places::default(),
            decided: vec![None; count],
            entered: vec![0; count],
            views: vec![view],
            net: BTreeSet::new(),
        };
        if self.early {
            for me in 0..self.processes {
                state.proposed.insert(me);
                state.machines[usize::from(me)].propose(10 + me);
                self.settle(&mut state, me);
            }
        }
        state
    }

    fn next(&self, state: &State<D>) -> Vec<(Action<D::Message>, State<D>)> {
        let mut next = Vec::new();
        let crashed = self.processes as usize - state.alive.iter().count();
        for me in state.alive.iter() {
            let at = usize::from(me);
            if !state.proposed.contains(me) {
                let mut after = state.clone();
                after.proposed.insert(me);
                after.machines[at].propose(10 + me);
                self.settle(&mut after, me);
                next.push((Action::Propose(me), after));
            }
            if let Some(view) = state.views.get(state.entered[at] + 1).filter(|view| view.members.contains(me)) {
                let mut after = state.clone();
                after.entered[at] += 1;
                after.machines[at].enter(*view);
                self.settle(&mut after, me);
                next.push((Action::Enter { at: me, view: *view }, after));
            }
            if self.flaw == Flaw::SuspicionIsCrash {
                let View { round, members } = state.machines[at].view();
                for suspect in members.except(me).iter() {
                    let mut after = state.clone();
                    let view = View { round: round + 1, members: members.except(suspect) };
                    after.machines[at].enter(view);
                    self.settle(&mut after, me);
                    next.push((Action::Suspect { at: me, view }, after));
                }
            }
            if crashed < self.crashes {
                let mut after = state.clone();
                after.alive = after.alive.except(me);
                after.net.retain(|(_, to, _)| *to != me);
                next.push((Action::Crash(me), after));
            }
        }
        for message in &state.net {
            let (from, to, what) = message;
            let mut after = state.clone();
            after.net.remove(message);
            if !state.alive.contains(*from) {
                next.push((Action::Lose { from: *from, message: what.clone() }, after.clone()));
            }
            if self.flaw == Flaw::OldRoundsCount {
                // As if the process were still in its previous view.
                let old = state.views.iter().rev().nth(1).copied();
                if let Some(answer) = old.and_then(|old| as_if_in::<D>(old, *to, *from, what)) {
                    let mut after = after.clone();
                    after.net.extend(answer.into_iter().filter(|(_, to, _)| state.alive.contains(*to)));
                    next.push((Action::TakeAsBefore { from: *from, at: *to, message: what.clone() }, after));
                }
            }
            after.machines[usize::from(*to)].handle(*from, what.clone());
            self.settle(&mut after, *to);
            next.push((Action::Take { from: *from, at: *to, message: what.clone() }, after));
        }
        let members = state.views.last().expect("the first at least").members;
        if state.views.len() <= self.views && self.flaw != Flaw::SuspicionIsCrash {
            for suspect in members.iter() {
                let rest = members.except(suspect);
                // A process that stays has to decide it.
                if rest.iter().any(|place| state.alive.contains(place)) {
                    let mut after = state.clone();
                    after.views.push(View { round: state.views.len() as u64, members: rest });
                    next.push((Action::Exclude(suspect), after));
                }
            }
        }
        next
    }

    fn is_progress(&self, action: &Action<D::Message>) -> bool {
        !matches!(action, Action::Crash(_) | Action::Exclude(_) | Action::Suspect { .. })
    }

    fn check(&self, state: &State<D>, ended: bool) -> Result<(), String> {
        let values: BTreeSet<u8> = state.decided.iter().flatten().copied().collect();
        if values.len() > 1 {
            return Err(format!("two values are decided: {:?}", state.decided));
        }
        if values.iter().any(|value| !state.proposed.contains(value - 10)) {
            return Err(format!("nobody proposed {values:?}"));
        }
        let members = state.views.last().expect("the first at least").members;
        let waits = members.iter().any(|place| state.decided[usize::from(place)].is_none());
        // Processes that act on suspicions soon wait for each other. What matters is whether they decide alike.
        if ended && self.flaw != Flaw::SuspicionIsCrash && state.alive.contains_all(members) && waits {
            return Err(format!("nothing happens any more, and not all have decided: {:?}", state.decided));
        }
        Ok(())
    }
}

/// What a process would answer to a message if it had not left a view.
fn as_if_in<D: Decides>(view: View, me: Place, from: Place, what: &D::Message) -> Option<Vec<(Place, Place, D::Message)>> {
    if !view.members.contains(me) {
        return None;
    }
    let mut machine = D::new(me, view);
    machine.handle(from, what.clone());
    let (sent, _) = machine.drain();
    (!sent.is_empty()).then(|| sent.into_iter().map(|(to, message)| (me, to, message)).collect())
}

type Hsuc = hsuc::Hsuc<u8>;
type Huc = huc::Huc<u8>;

#[test]
fn hsuc_decides_one_value_whoever_is_excluded_and_whoever_crashes() {
    for (processes, views, crashes) in [(3, 1, 0), (3, 2, 0), (3, 1, 1), (3, 2, 1), (4, 1, 0)] {
        let states = World::<Hsuc>::new(processes, views, crashes).explore().right();
        println!("hsuc: {processes} processes, {views} views, {crashes} crashes: {states} states");
    }
    is_on_the_page("HSUC, two views, two crashes", 3, World::<Hsuc>::new(3, 2, 2).explore().right());
    is_on_the_page("HSUC, one view, one crash", 4, World::<Hsuc>::new(4, 1, 1).explore().right());
    let late = World::<Hsuc> { early: false, ..World::new(3, 1, 1) };
    println!("hsuc, values proposed at any time: {} states", late.explore().right());
}

#[test]
fn huc_decides_one_value_whoever_is_excluded_and_whoever_crashes() {
    for (processes, views, crashes) in [(3, 1, 0), (3, 2, 0), (3, 1, 1), (3, 2, 1)] {
        let states = World::<Huc>::new(processes, views, crashes).explore().right();
        println!("huc: {processes} processes, {views} views, {crashes} crashes: {states} states");
    }
    is_on_the_page("HUC, two views, two crashes", 3, World::<Huc>::new(3, 2, 2).explore().right());
}

#[test]
fn trap_25_a_suspicion_that_is_taken_for_a_crash_decides_two_values() {
    println!("hsuc: {} steps", World::<Hsuc>::new(3, 0, 0).with(Flaw::SuspicionIsCrash).explore().wrong("two values"));
    println!("huc: {} steps", World::<Huc>::new(3, 0, 0).with(Flaw::SuspicionIsCrash).explore().wrong("two values"));
}

#[test]
fn trap_59_a_choice_that_is_answered_before_all_hold_it_is_lost() {
    println!("huc: {} steps", World::<Huc>::new(3, 1, 1).with(Flaw::AnsweredWhenSent).explore().wrong("two values"));
}

#[test]
fn a_process_that_has_decided_must_go_on_answering() {
    println!("hsuc: {} steps", World::<Hsuc>::new(3, 1, 1).with(Flaw::SilentWhenDecided).explore().wrong("nothing happens"));
}

#[test]
fn rounds_that_were_left_must_not_be_acknowledged() {
    println!("hsuc: {} steps", World::<Hsuc>::new(3, 1, 0).with(Flaw::OldRoundsCount).explore().wrong("two values"));
}

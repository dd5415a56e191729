//! Hierarchical stabilizing uniform consensus (FiDe appendix A.3, algorithm 3), one decision.
//!
//! The first member of the view leads. It proposes a value to all, and each member adopts the value and acknowledges it. Once **all members of the view** have
//! done so, the leader decides and tells all by [reliable broadcast](super::osrb). When a view excludes the leader, the next leader proposes the value that it
//! has adopted, or its own if it has adopted none. All but one of the processes may fail.
//!
//! Proposals and acknowledgements carry their round, which is the view, and the adopted value is what is proposed (TRAPS 26; the algorithm as printed sends
//! `v`). A process that has decided still acknowledges, because the leader may not know of the decision.
//!
//! **Why all decide alike.** A leader decides after acknowledgements of its own round from every member of its view; each member had entered that view and no
//! later one when it sent its acknowledgement. So every member of every later view has adopted the value, and a later leader proposes nothing else.

use std::collections::VecDeque;

use super::osrb::{self, Osrb};
use super::{MessageId, Place, Places, View};

/// What processes send to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message<V> {
    /// The leader of a round proposes a value.
    Propose {
        /// The round.
        round: u64,
        /// The value.
        value: V,
    },
    /// The value proposed in a round is adopted.
    Acknowledge {
        /// The round.
        round: u64,
    },
    /// A value is decided, whatever the round.
    Decide {
        /// The broadcast's name.
        id: MessageId,
        /// The value.
        value: V,
    },
}

/// What a caller has to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Output<V> {
    /// Send this to another process.
    Send {
        /// The receiver.
        to: Place,
        /// What.
        message: Message<V>,
    },
    /// The value is decided. Said once.
    Decide(V),
}

/// One process's part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hsuc<V> {
    me: Place,
    view: View,
    /// What this process would propose.
    own: Option<V>,
    adopted: Option<V>,
    /// Whether this process has proposed in this round.
    proposed: bool,
    /// The members that have acknowledged this round's proposal.
    acknowledged: Places,
    decided: bool,
    decision: Osrb<V>,
    /// Messages of rounds that this process has not entered.
    early: Vec<(Place, Message<V>)>,
    out: VecDeque<Output<V>>,
}

impl<V: Clone> Hsuc<V> {
    /// The part of process `me` in the first view.
    pub fn new(me: Place, view: View) -> Hsuc<V> {
        Hsuc {
            me,
            view,
            own: None,
            adopted: None,
            proposed: false,
            acknowledged: Places::default(),
            decided: false,
            decision: Osrb::new(me, view.members),
            early: Vec::new(),
            out: VecDeque::new(),
        }
    }

    /// The view that this process has entered.
    pub fn view(&self) -> View {
        self.view
    }

    /// Proposes a value. Only the first counts. Every process should: a leader without a value keeps the others waiting.
    pub fn propose(&mut self, value: V) {
        self.own.get_or_insert(value);
        self.lead();
    }

    /// A message came from a process.
    pub fn handle(&mut self, from: Place, message: Message<V>) {
        match &message {
            Message::Propose { round, .. } | Message::Acknowledge { round } if *round > self.view.round => {
                self.early.push((from, message));
                return;
            }
            Message::Propose { round, .. } | Message::Acknowledge { round } if *round < self.view.round => return,
            // A decision holds in every view. A sender from a later view is a member of this view too.
            _ if !self.view.members.contains(from) => return,
            _ => {}
        }
        match message {
            Message::Propose { round, value } => {
                // A broken peer sent this.
                if from != self.view.leader() {
                    return;
                }
                self.adopted = Some(value);
                self.out.push_back(Output::Send { to: from, message: Message::Acknowledge { round } });
            }
            Message::Acknowledge { .. } => {
                self.acknowledged.insert(from);
                self.conclude();
            }
            Message::Decide { id, value } => {
                self.decision.handle(id, value);
                self.take_decision();
            }
        }
    }

    /// Enters the next view that membership has decided. This process is a member of it, and the caller has shut out all processes that are not.
    ///
    /// # Panics
    /// When it does not follow the present one.
    pub fn enter(&mut self, view: View) {
        self.view.precedes(&view, self.me);
        let gone = self.view.members.without(view.members);
        (self.view, self.proposed, self.acknowledged) = (view, false, Places::default());
        gone.iter().for_each(|gone| self.decision.crash(gone));
        self.take_decision();
        self.lead();
        for (from, message) in std::mem::take(&mut self.early) {
            self.handle(from, message);
        }
    }

    /// The next thing that the caller has to do.
    pub fn poll(&mut self) -> Option<Output<V>> {
        self.out.pop_front()
    }

    /// Proposes in this round, if this process leads in it and has something to propose.
    fn lead(&mut self) {
        if self.proposed || self.decided || self.view.leader() != self.me {
            return;
        }
        let Some(value) = self.adopted.clone().or_else(|| self.own.clone()) else { return };
        (self.proposed, self.adopted) = (true, Some(value.clone()));
        self.acknowledged.insert(self.me);
        let round = self.view.round;
        for to in self.view.members.except(self.me).iter() {
            self.out.push_back(Output::Send { to, message: Message::Propose { round, value: value.clone() } });
        }
        self.conclude();
    }

    /// Decides, once all members of the view have adopted what this process proposed in it.
    fn conclude(&mut self) {
        if self.proposed && !self.decided && self.acknowledged.contains_all(self.view.members) {
            self.decision.broadcast(self.adopted.clone().expect("a leader adopts what it proposes"));
            self.take_decision();
        }
    }

    fn take_decision(&mut self) {
        while let Some(output) = self.decision.poll() {
            match output {
                osrb::Output::Send { to, id, message } => {
                    self.out.push_back(Output::Send { to, message: Message::Decide { id, value: message } });
                }
                osrb::Output::Deliver { message, .. } => {
                    if !self.decided {
                        self.decided = true;
                        self.out.push_back(Output::Decide(message));
                    }
                }
            }
        }
    }
}

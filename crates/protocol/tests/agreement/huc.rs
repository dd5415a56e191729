//! Heartbeat uniform consensus (FiDe section 4.1, algorithm 4), one decision.
//!
//! Every process sends its value to the leader, the first that is not known to be gone. The leader waits for the values of all, chooses that of the first
//! process, and sends it by [fail-consistent broadcast](super::fcurb). The value that this delivers is decided. When the leader is gone, all send their values
//! to the next one. No round of acknowledgements is needed: if any process learned of a leader's choice, every process learns of it before it is told that the
//! leader is gone.
//!
//! A leader decides, and answers a client, when its choice is delivered to itself, which is when all members of its view hold it. In section 6.4 of the paper
//! it answers as soon as the choice is queued for a heartbeat; a crash before that heartbeat then loses what was answered.

use std::collections::{BTreeMap, VecDeque};

use super::fcurb::{self, Fcurb};
use super::{Place, Places, View};

/// What processes send to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message<V> {
    /// The sender's proposed value, sent to the process that it takes for the leader.
    Propose(V),
    /// Of the broadcast of the leader's choice.
    Choice(fcurb::Message<V>),
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
pub struct Huc<V> {
    me: Place,
    /// The processes that this one has not been told are gone.
    correct: Places,
    own: Option<V>,
    proposals: BTreeMap<Place, V>,
    /// Whether this process has chosen.
    chosen: bool,
    decided: bool,
    choice: Fcurb<V>,
    out: VecDeque<Output<V>>,
}

impl<V: Clone> Huc<V> {
    /// The part of process `me` in the first view.
    pub fn new(me: Place, view: View) -> Huc<V> {
        Huc {
            me,
            correct: view.members,
            own: None,
            proposals: BTreeMap::new(),
            chosen: false,
            decided: false,
            choice: Fcurb::new(me, view),
            out: VecDeque::new(),
        }
    }

    /// The view that this process has entered.
    pub fn view(&self) -> View {
        self.choice.view()
    }

    /// Proposes a value. Only the first counts. Every process should: the leader waits for all.
    pub fn propose(&mut self, value: V) {
        if self.own.is_none() {
            self.own = Some(value);
            self.tell_leader();
        }
    }

    /// A message came from a process.
    pub fn handle(&mut self, from: Place, message: Message<V>) {
        match message {
            Message::Propose(value) => {
                if self.correct.contains(from) {
                    self.proposals.insert(from, value);
                    self.choose();
                }
            }
            Message::Choice(message) => {
                self.choice.handle(from, message);
                self.take_choice();
            }
        }
    }

    /// Enters the next view that membership has decided. This process is a member of it, and the caller has shut out all processes that are not.
    ///
    /// # Panics
    /// When it does not follow the present one.
    pub fn enter(&mut self, view: View) {
        self.choice.enter(view);
        self.take_choice();
    }

    /// The next thing that the caller has to do.
    pub fn poll(&mut self) -> Option<Output<V>> {
        self.out.pop_front()
    }

    fn leader(&self) -> Place {
        self.correct.first().expect("this process at least")
    }

    fn tell_leader(&mut self) {
        let Some(value) = self.own.clone().filter(|_| !self.decided) else { return };
        let leader = self.leader();
        if leader == self.me {
            self.proposals.insert(self.me, value);
            self.choose();
        } else {
            self.out.push_back(Output::Send { to: leader, message: Message::Propose(value) });
        }
    }

    /// Chooses a value, once all have proposed one to this process.
    fn choose(&mut self) {
        let all = self.proposals.keys().copied().collect::<Places>().contains_all(self.correct);
        if self.leader() == self.me && !self.chosen && !self.decided && all {
            self.chosen = true;
            let value = self.proposals.values().next().expect("at least its own").clone();
            self.choice.broadcast(value);
            self.take_choice();
        }
    }

    fn take_choice(&mut self) {
        while let Some(output) = self.choice.poll() {
            match output {
                fcurb::Output::Send { to, message } => self.out.push_back(Output::Send { to, message: Message::Choice(message) }),
                fcurb::Output::Deliver { message, .. } => {
                    if !self.decided {
                        self.decided = true;
                        self.out.push_back(Output::Decide(message));
                    }
                }
                fcurb::Output::Crash(gone) => {
                    let led = self.leader() == gone;
                    self.correct = self.correct.except(gone);
                    self.proposals.remove(&gone);
                    if led {
                        self.tell_leader();
                    }
                    // One less to wait for.
                    self.choose();
                }
            }
        }
    }
}

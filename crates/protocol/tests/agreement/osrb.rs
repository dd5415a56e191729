//! Optimistic stabilizing reliable broadcast (FiDe appendix A.2, algorithm 2).
//!
//! A sender sends its message to all. A process that has a message keeps it until its user says that it is *stable*, and relays it when its sender is gone. So
//! a message that one correct process delivers, all correct processes deliver.
//!
//! Two things differ from algorithm 2. A message whose sender is *already* known to be gone when it arrives is relayed at once. As printed, it never is, and
//! the others wait for it for ever (TRAPS 24). And at a crash only messages of the crashed process are relayed, not everything that is kept: a living sender
//! has sent its messages to all, and a message of another sender that is gone was relayed when that became known or when the message arrived. So each process
//! sends each message to all at most once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{MessageId, Place, Places};

/// What a caller has to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Output<M> {
    /// Send the message to another process, whose [`Osrb::handle`] takes it.
    Send {
        /// The receiver.
        to: Place,
        /// The message's name.
        id: MessageId,
        /// The message.
        message: M,
    },
    /// The message is delivered.
    Deliver {
        /// The message's name.
        id: MessageId,
        /// The message.
        message: M,
    },
}

/// One process's part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Osrb<M> {
    me: Place,
    /// The processes that are not known to be gone.
    correct: Places,
    /// What may have to be relayed.
    kept: BTreeMap<MessageId, M>,
    delivered: BTreeSet<MessageId>,
    next: u64,
    out: VecDeque<Output<M>>,
}

impl<M: Clone> Osrb<M> {
    /// The part of process `me`, one of `all`.
    pub fn new(me: Place, all: Places) -> Osrb<M> {
        Osrb { me, correct: all, kept: BTreeMap::new(), delivered: BTreeSet::new(), next: 0, out: VecDeque::new() }
    }

    /// Sends a message to all, this process included.
    pub fn broadcast(&mut self, message: M) -> MessageId {
        let id = MessageId { sender: self.me, number: self.next };
        self.next += 1;
        self.send_to_all(id, &message);
        self.take(id, message);
        id
    }

    /// A message arrived, from its sender or from a process that relays it. The caller has checked that the process from which it came is not shut out.
    pub fn handle(&mut self, id: MessageId, message: M) {
        if self.delivered.contains(&id) {
            return;
        }
        if !self.correct.contains(id.sender) {
            self.send_to_all(id, &message);
        }
        self.take(id, message);
    }

    /// A process is gone: a view excludes it.
    pub fn crash(&mut self, gone: Place) {
        if !self.correct.contains(gone) {
            return;
        }
        self.correct = self.correct.except(gone);
        let orphans: Vec<(MessageId, M)> =
            self.kept.iter().filter(|(id, _)| id.sender == gone).map(|(id, message)| (*id, message.clone())).collect();
        orphans.iter().for_each(|(id, message)| self.send_to_all(*id, message));
    }

    /// Every correct process has received the message: it need not be kept. The caller guarantees this, and agreement depends on it.
    pub fn stabilize(&mut self, id: MessageId) {
        self.kept.remove(&id);
    }

    /// How many messages are kept for relaying.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The next thing that the caller has to do.
    pub fn poll(&mut self) -> Option<Output<M>> {
        self.out.pop_front()
    }

    fn take(&mut self, id: MessageId, message: M) {
        self.delivered.insert(id);
        self.kept.insert(id, message.clone());
        self.out.push_back(Output::Deliver { id, message });
    }

    fn send_to_all(&mut self, id: MessageId, message: &M) {
        for to in self.correct.except(self.me).iter() {
            self.out.push_back(Output::Send { to, id, message: message.clone() });
        }
    }
}

//! Fail-consistent uniform reliable broadcast (FiDe section 4.1 and appendix A.4).
//!
//! A message that any process delivers, all correct processes deliver, and each delivers it before it is told that the sender is gone.
//!
//! The paper takes both from the network: a heartbeat is an atomic multicast, and no notice of a death overtakes the last heartbeat. Where either fails, or
//! where a message counts before it has been sent, consensus built on it decides twice (`docs/fide.md`). Here neither is assumed.
//!
//! 1. A process that holds a message tells all others so, and delivers it when it knows that **every member of its view holds it**. In the paper's terms, the
//!    message travels with one heartbeat, and the news that it is held with the next.
//! 2. To enter a view, a process shuts out all processes that are not in it, and then tells all members **what it holds** ([`Message::Flush`]).
//! 3. A process is reported as gone when all members of the view have said what they hold, and every message of that process among this has been delivered.
//!
//! If any process has delivered a message, every member of its view holds it. Every later view consists of such members only, so each of them says in step 2
//! that it holds the message, and in step 3 none is told that the sender is gone before it has delivered the message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{MessageId, Place, Places, View};

/// What processes send to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message<M> {
    /// A message is broadcast.
    Broadcast {
        /// The sender's view.
        round: u64,
        /// The message's name.
        id: MessageId,
        /// The message.
        message: M,
    },
    /// The sender holds a message.
    Held {
        /// Its view.
        round: u64,
        /// The message's name.
        id: MessageId,
    },
    /// The sender has entered a view, and holds these messages.
    Flush {
        /// Its view.
        round: u64,
        /// What it holds.
        held: Vec<(MessageId, M)>,
    },
}

impl<M> Message<M> {
    fn round(&self) -> u64 {
        match self {
            Message::Broadcast { round, .. } | Message::Held { round, .. } | Message::Flush { round, .. } => *round,
        }
    }
}

/// What a caller has to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Output<M> {
    /// Send this to another process.
    Send {
        /// The receiver.
        to: Place,
        /// What.
        message: Message<M>,
    },
    /// A message is delivered.
    Deliver {
        /// The message's name.
        id: MessageId,
        /// The message.
        message: M,
    },
    /// A process is gone, and no further message from it will be delivered.
    Crash(Place),
}

/// One process's part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fcurb<M> {
    me: Place,
    view: View,
    held: BTreeMap<MessageId, M>,
    /// The members that have said, in this view, that they hold a message.
    holders: BTreeMap<MessageId, Places>,
    /// The members that have said, in this view, what they hold.
    flushed: Places,
    /// Processes that the view excludes, of which the user has not been told.
    departed: Places,
    delivered: BTreeSet<MessageId>,
    /// Messages of views that this process has not entered.
    early: Vec<(Place, Message<M>)>,
    next: u64,
    out: VecDeque<Output<M>>,
}

impl<M: Clone> Fcurb<M> {
    /// The state of process `me` in the first view. In that view, no process holds anything before the first message.
    pub fn new(me: Place, view: View) -> Fcurb<M> {
        Fcurb {
            me,
            view,
            held: BTreeMap::new(),
            holders: BTreeMap::new(),
            flushed: view.members,
            departed: Places::default(),
            delivered: BTreeSet::new(),
            early: Vec::new(),
            next: 0,
            out: VecDeque::new(),
        }
    }

    /// The view that this process has entered.
    pub fn view(&self) -> View {
        self.view
    }

    /// Sends a message to all, this process included.
    pub fn broadcast(&mut self, message: M) -> MessageId {
        let id = MessageId { sender: self.me, number: self.next };
        self.next += 1;
        self.held.insert(id, message.clone());
        self.holders.entry(id).or_default().insert(self.me);
        self.send_to_all(&Message::Broadcast { round: self.view.round, id, message });
        self.settle();
        id
    }

    /// A message came from a process.
    pub fn handle(&mut self, from: Place, message: Message<M>) {
        if message.round() > self.view.round {
            self.early.push((from, message));
        } else if message.round() == self.view.round && self.view.members.contains(from) {
            self.take(from, message);
            self.settle();
        }
    }

    /// Enters the next view that membership has decided. This process is a member of it, and the caller has shut out all processes that are not.
    ///
    /// # Panics
    /// When it does not follow the present one.
    pub fn enter(&mut self, view: View) {
        self.view.precedes(&view, self.me);
        self.departed = self.departed.with(self.view.members.without(view.members));
        self.view = view;
        self.flushed = Places::from_iter([self.me]);
        self.holders = self.held.keys().map(|id| (*id, Places::from_iter([self.me]))).collect();
        let held = self.held.iter().map(|(id, message)| (*id, message.clone())).collect();
        self.send_to_all(&Message::Flush { round: view.round, held });
        for (from, message) in std::mem::take(&mut self.early) {
            self.handle(from, message);
        }
        self.settle();
    }

    /// The next thing that the caller has to do.
    pub fn poll(&mut self) -> Option<Output<M>> {
        self.out.pop_front()
    }

    fn take(&mut self, from: Place, message: Message<M>) {
        match message {
            Message::Broadcast { id, message, .. } => self.hold(from, id, message),
            Message::Held { id, .. } => {
                self.holders.entry(id).or_default().insert(from);
            }
            Message::Flush { held, .. } => {
                self.flushed.insert(from);
                held.into_iter().for_each(|(id, message)| self.hold(from, id, message));
            }
        }
    }

    /// Another process holds a message, and now this one holds it too.
    fn hold(&mut self, from: Place, id: MessageId, message: M) {
        self.holders.entry(id).or_default().insert(from);
        if self.held.insert(id, message).is_none() {
            self.holders.entry(id).or_default().insert(self.me);
            self.send_to_all(&Message::Held { round: self.view.round, id });
        }
    }

    /// Delivers what all hold, and reports departed processes once none of their messages is left.
    fn settle(&mut self) {
        for (id, message) in &self.held {
            if !self.delivered.contains(id) && self.holders[id].contains_all(self.view.members) {
                self.delivered.insert(*id);
                self.out.push_back(Output::Deliver { id: *id, message: message.clone() });
            }
        }
        let is_left = |id: &MessageId| self.departed.contains(id.sender) && !self.delivered.contains(id);
        if self.flushed.contains_all(self.view.members) && !self.held.keys().any(is_left) {
            self.out.extend(std::mem::take(&mut self.departed).iter().map(Output::Crash));
        }
    }

    fn send_to_all(&mut self, message: &Message<M>) {
        for to in self.view.members.except(self.me).iter() {
            self.out.push_back(Output::Send { to, message: message.clone() });
        }
    }
}

//! One turn of the duty cycle, as both front ends see it.

use martlet_protocol::replica::{Replica, Ticket};

use crate::commands::{ClientSlot, Clock, Ctx, Executed, Shared, bound, execute};
use crate::frontend::redis::Mark;
use crate::resp::Args;
use crate::store::{Effect, KvMachine};

/// What a request may add to the log besides its own bytes: names, lengths, and a reply to keep.
const OVERHEAD_BYTES: usize = 512;

/// A check for room never asks for more than this much: where there is room for it, any request is accepted.
const ENOUGH_BYTES: usize = 64 << 10;

/// How many bytes of replies one turn writes, and roughly how many it sends. A request that has begun is finished even if it exceeds this. A turn that copied
/// much more would take so long that the primary would be taken for dead.
pub(crate) const REPLY_BYTES: usize = 4 << 20;

/// After this much work, in bytes copied or their equivalent, a turn takes no further request; that is some ten milliseconds. A request that has begun is
/// finished however long it takes, and shows meanwhile that the node is alive.
const WORK_BYTES: u64 = 16 << 20;

/// What a reply waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) ticket: Ticket,
    /// The lease is not enough: a majority has to be asked after that turn.
    pub(crate) by_quorum: bool,
}

/// Which replies may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) usual: Ticket,
    pub(crate) by_quorum: Ticket,
}

impl Released {
    /// Whether a reply that waits for this may be sent.
    #[inline]
    pub(crate) fn lets_go(self, wait: Wait) -> bool {
        wait.ticket <= if wait.by_quorum { self.by_quorum } else { self.usual }
    }
}

/// A turn: the replica, the state that outlives the turn, and the budget.
pub(crate) struct Turn<'a, R> {
    pub(crate) replica: &'a mut R,
    pub(crate) shared: &'a mut Shared,
    pub(crate) clock: &'a mut Clock,
    /// How many more requests may be executed.
    pub(crate) budget: usize,
    pub(crate) executed: usize,
    /// How many bytes of replies have been written.
    pub(crate) replied: usize,
    /// How much work commands had done in all when the turn began.
    pub(crate) work: u64,
    /// The last request that was executed has changed something.
    pub(crate) changed: bool,
    /// How far the requests that changed something have been executed on the connection being served. It goes into the log together with what they did.
    pub(crate) mark: Option<Mark>,
}

impl<R: Replica<Machine = KvMachine>> Turn<'_, R> {
    /// What the replies of this turn wait for: a quorum, where their client wants one. Call this only for a reply that will wait: for each turn in which a
    /// reply has taken a ticket, an engine without leases asks its followers whether they still give their permission.
    #[inline]
    pub(crate) fn wait(&mut self, by_quorum: bool) -> Wait {
        let ticket = match (self.shared.env.is_primary, by_quorum) {
            (true, true) => self.replica.ticket_by_quorum(),
            (true, false) => self.replica.ticket(),
            (false, _) => Ticket(0),
        };
        Wait { ticket, by_quorum }
    }

    /// Whether a request of so many bytes may be executed in this turn. The engine takes entries of any length, so it is asked only whether it keeps up. A
    /// request larger than its rings would otherwise wait forever for room.
    #[inline]
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.budget > 0
            && self.replied < REPLY_BYTES
            && self.shared.work().wrapping_sub(self.work) < WORK_BYTES
            && (!self.shared.env.is_primary
                || self.replica.has_room(self.shared.effects.bytes().len() + bytes.min(ENOUGH_BYTES) + OVERHEAD_BYTES))
    }

    /// Executes a request. Its effects are kept until [`Turn::finish_request`].
    #[inline]
    pub(crate) fn execute(&mut self, slot: ClientSlot, args: Args<'_>, out: &mut Vec<u8>) -> Executed {
        self.budget = self.budget.saturating_sub(1);
        self.executed += 1;
        self.shared.limit = self.replica.max_proposal_bytes().saturating_sub(OVERHEAD_BYTES);
        if !self.has_room_beside_others(slot, args) {
            // The effects gathered so far belong to whole requests, so they may be proposed.
            self.propose();
        }
        let mut ctx = Ctx { machine: self.replica.machine_mut(), shared: self.shared, slot, clock: self.clock };
        let before = out.len();
        let effects = ctx.shared.effects.bytes().len();
        let executed = execute(&mut ctx, args, out);
        self.changed = self.shared.effects.bytes().len() > effects;
        self.replied += out.len().saturating_sub(before);
        executed
    }

    /// Whether the effects of a request fit into one entry with those that are already waiting.
    #[inline]
    fn has_room_beside_others(&self, slot: ClientSlot, args: Args<'_>) -> bool {
        let queued = self.shared.clients.get(slot).transaction.as_ref().map_or(0, |t| t.effect_bytes);
        let most = self.shared.effects.bytes().len() + bound::roughly(args) + queued;
        // The other half is room for what the request copies.
        most <= self.shared.limit / 2
    }

    /// How long a reply may be that is kept together with the change it answers.
    pub(crate) fn longest_kept_reply(&self) -> usize {
        self.shared.limit.saturating_sub(self.shared.effects.bytes().len())
    }

    /// Changes the state outside any command.
    pub(crate) fn perform(&mut self, effect: Effect<'_>) {
        self.replica.machine_mut().perform(effect);
        self.shared.effects.push(effect);
    }

    /// Ends a request. Its effects are complete now, and go to the engine if enough have been gathered.
    #[inline]
    pub(crate) fn finish_request(&mut self) {
        if self.shared.effects.bytes().len() > self.shared.env.config.batch_bytes {
            self.propose();
        }
    }

    /// Adds the mark of the connection being served to the effects of its requests.
    pub(crate) fn put_mark(&mut self) {
        if let Some(mark) = self.mark.take() {
            mark.with(|effect| self.perform(effect));
        }
    }

    /// Hands all effects to the engine.
    pub(crate) fn propose(&mut self) {
        self.put_mark();
        if self.shared.effects.is_empty() {
            return;
        }
        self.shared.stats.proposals += 1;
        self.shared.stats.proposed_bytes += self.shared.effects.bytes().len() as u64;
        if self.replica.propose(self.shared.effects.bytes()).is_err() {
            // This node leads no more: nothing longer than a record is ever executed, so length cannot be the reason.
            self.replica.give_up();
        }
        self.shared.effects.clear();
    }
}

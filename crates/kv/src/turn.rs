//! One turn of the duty cycle, as both front ends see it.

use martlet_protocol::replica::{Replica, Ticket};

use crate::commands::{ClientSlot, Clock, Ctx, Executed, Shared, bound, execute};
use crate::frontend::redis::Mark;
use crate::resp::Args;
use crate::store::{Effect, KvMachine};

/// What a request may add to the log beside its own bytes: names, lengths, a reply to keep.
const OVERHEAD_BYTES: usize = 512;

/// Room for so many bytes is room for any request.
const ENOUGH_BYTES: usize = 64 << 10;

/// How many bytes of replies one turn writes, and about how many it sends; a request that has been begun is finished. A turn that copies much more takes so
/// long that the primary is taken for dead.
pub(crate) const REPLY_BYTES: usize = 4 << 20;

/// After so much work, in bytes copied or their equal, a turn takes no further request: some ten milliseconds. A request that has been begun is finished, however
/// long it takes, and shows meanwhile that the node lives.
const WORK_BYTES: u64 = 16 << 20;

/// What a reply waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) ticket: Ticket,
    /// Not by the lease: a majority has to be asked after that turn.
    pub(crate) by_quorum: bool,
}

/// Which replies may go out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) usual: Ticket,
    pub(crate) by_quorum: Ticket,
}

impl Released {
    /// Whether a reply that waits for this may go.
    #[inline]
    pub(crate) fn lets_go(self, wait: Wait) -> bool {
        wait.ticket <= if wait.by_quorum { self.by_quorum } else { self.usual }
    }
}

/// A turn: the replica, what outlives it, and the budget.
pub(crate) struct Turn<'a, R> {
    pub(crate) replica: &'a mut R,
    pub(crate) shared: &'a mut Shared,
    pub(crate) clock: &'a mut Clock,
    /// How many more requests may be executed.
    pub(crate) budget: usize,
    pub(crate) executed: usize,
    /// How many bytes of replies have been written.
    pub(crate) replied: usize,
    /// How much work commands had been when the turn began.
    pub(crate) work: u64,
    /// The last request that was executed has changed something.
    pub(crate) changed: bool,
    /// How far the connection that is served has come with requests that changed something: goes into the log with what they did.
    pub(crate) mark: Option<Mark>,
}

impl<R: Replica<Machine = KvMachine>> Turn<'_, R> {
    /// What the replies of this turn wait for, by quorum where their client wants that. Only to be taken by a reply: an engine without leases asks its followers, for each turn in which a reply has
    /// taken one, whether they still give their permission.
    #[inline]
    pub(crate) fn wait(&mut self, by_quorum: bool) -> Wait {
        let ticket = match (self.shared.env.is_primary, by_quorum) {
            (true, true) => self.replica.ticket_by_quorum(),
            (true, false) => self.replica.ticket(),
            (false, _) => Ticket(0),
        };
        Wait { ticket, by_quorum }
    }

    /// Whether a request of so many bytes may be executed in this turn. The engine takes entries of any length; what is asked of it is
    /// only whether it keeps up, so one that is larger than its rings is not kept waiting for a room that will never be.
    #[inline]
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.budget > 0
            && self.replied < REPLY_BYTES
            && self.shared.work().wrapping_sub(self.work) < WORK_BYTES
            && (!self.shared.env.is_primary
                || self.replica.has_room(self.shared.effects.bytes().len() + bytes.min(ENOUGH_BYTES) + OVERHEAD_BYTES))
    }

    /// Executes a request; its effects wait for [`Turn::finish_request`].
    #[inline]
    pub(crate) fn execute(&mut self, slot: ClientSlot, args: Args<'_>, out: &mut Vec<u8>) -> Executed {
        self.budget = self.budget.saturating_sub(1);
        self.executed += 1;
        self.shared.limit = self.replica.max_proposal_bytes().saturating_sub(OVERHEAD_BYTES);
        if !self.has_room_beside_others(slot, args) {
            // What is there is of whole requests.
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

    /// Whether the effects of a request go into one entry with those that wait there.
    #[inline]
    fn has_room_beside_others(&self, slot: ClientSlot, args: Args<'_>) -> bool {
        let queued = self.shared.clients.get(slot).transaction.as_ref().map_or(0, |t| t.effect_bytes);
        let most = self.shared.effects.bytes().len() + bound::roughly(args) + queued;
        // For what is copied there is room apart from that.
        most <= self.shared.limit / 2
    }

    /// How long the reply to a change may be that is kept with it.
    pub(crate) fn longest_kept_reply(&self) -> usize {
        self.shared.limit.saturating_sub(self.shared.effects.bytes().len())
    }

    /// Changes the state apart from any command.
    pub(crate) fn perform(&mut self, effect: Effect<'_>) {
        self.replica.machine_mut().perform(effect);
        self.shared.effects.push(effect);
    }

    /// Ends a request: what it did is now one whole, and goes to the engine if enough has come together.
    #[inline]
    pub(crate) fn finish_request(&mut self) {
        if self.shared.effects.bytes().len() > self.shared.env.config.batch_bytes {
            self.propose();
        }
    }

    /// Puts the mark of the connection that is served beside what its requests have done.
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
            // It leads no more. Nothing longer than a record is executed.
            self.replica.give_up();
        }
        self.shared.effects.clear();
    }
}

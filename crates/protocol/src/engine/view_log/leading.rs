//! What a primary does: it writes entries into every lane and parts of the state to learners, and determines what is committed.

use std::collections::VecDeque;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::pulse;
use martlet_fabric::ring::Record;
use martlet_fabric::{Fabric, OpError, PeerId, invariant};

use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time, ViewNumber};
use crate::engine::{DropReason, Event};
use crate::membership::{Roles, View};
use crate::replica::part::{self, Oversized, REST_NS};
use crate::replica::{Execution, StateMachine};

use super::HEARTS;
use super::config::Config;
use super::follower::{Follower, Op, Phase, Transfer};
use super::layout::{ACKNOWLEDGED_OFFSET, HEADER_BYTES, Header, Kind};
use super::peers::lane_of;
use super::queue::EntryQueue;
use super::rule::Holds;

/// A primary's reign, from the beginning of its takeover.
#[derive(Debug)]
pub(super) struct Leading {
    me: ProcessId,
    config: Config,
    holds: Holds,
    /// The newest view, in which this process is primary.
    view: ViewNumber,
    /// The highest index known to be committed when the takeover began.
    base: LogIndex,
    /// The last entry found by the takeover, which is complete when all replicas hold it.
    recovered: LogIndex,
    pub followers: Vec<Follower>,
    /// Entries not yet posted, or not whole.
    queue: EntryQueue,
    /// How much of the first of them has been posted.
    head_posted: usize,
    /// Entries waiting to be executed, where that is done on commit; otherwise none.
    unexecuted: EntryQueue,
    committed: LogIndex,
    last_post: Time,
    /// When the state was last found to be unteachable, if that is not long ago.
    unteachable_since: Option<Time>,
    /// Nothing may be proposed until a learner for which the log waits has got its next part.
    owes_part: bool,
    record: Record,
}

impl Leading {
    /// Begins the takeover in `view`: `queue` holds what is not known to be committed, after `base`.
    #[expect(clippy::too_many_arguments, reason = "what a reign begins with")]
    pub fn new(
        me: ProcessId,
        config: Config,
        holds: Holds,
        view: &View,
        base: LogIndex,
        queue: EntryQueue,
        record: Record,
        lane_of: impl Fn(ProcessId) -> Option<(PeerId, u64)>,
    ) -> Leading {
        let mut unexecuted = EntryQueue::new(base.next());
        if config.execution == Execution::Committed {
            queue.iter().for_each(|(_, entry)| unexecuted.push(entry, false));
        }
        let mut leading = Leading {
            me,
            config,
            holds,
            view: view.number,
            base,
            recovered: queue.last(),
            followers: Vec::new(),
            queue,
            head_posted: 0,
            unexecuted,
            committed: base,
            last_post: Time(0),
            unteachable_since: None,
            owes_part: false,
            record,
        };
        for member in view.with_roles(Roles::REPLICA).filter(|m| m.id != me) {
            leading.followers.push(Follower::new(member.id, lane_of(member.id), Phase::Unstarted, &config));
        }
        leading.enter(view, lane_of);
        leading
    }

    /// Continues in a newer view in which this process is still primary: nothing is truncated, and processes that left no longer count.
    pub fn enter(&mut self, view: &View, lane_of: impl Fn(ProcessId) -> Option<(PeerId, u64)>) {
        self.view = view.number;
        let belongs = |p: ProcessId| view.member(p).is_some_and(|m| m.roles.has(Roles::REPLICA) || m.roles.has(Roles::LEARNER));
        self.followers.retain(|f| belongs(f.process));
        for member in view.members.iter().filter(|m| m.id != self.me && belongs(m.id)) {
            let replica = member.roles.has(Roles::REPLICA);
            match self.followers.iter_mut().find(|f| f.process == member.id) {
                Some(follower) => {
                    follower.replica = replica;
                    if replica && follower.phase == Phase::Dropped && follower.broken.is_none() {
                        follower.phase = Phase::Unlearned;
                    }
                }
                None => {
                    // Even a replica has to learn if this primary never saw it learn, because the primary cannot know whether that replica holds everything.
                    let mut follower = Follower::new(member.id, lane_of(member.id), Phase::Unlearned, &self.config);
                    follower.replica = replica;
                    self.followers.push(follower);
                }
            }
        }
    }

    pub fn connect(&mut self, process: ProcessId, peer: PeerId, salt: u64) {
        if let Some(follower) = self.followers.iter_mut().find(|f| f.process == process) {
            follower.connect(peer, salt, &self.config);
        }
    }

    pub fn handle_completion(&mut self, op: Op, peer: PeerId, result: Result<u64, OpError>) {
        if let Some(follower) = self.followers.iter_mut().find(|f| f.peer == Some(peer)) {
            follower.handle_completion(op, result, self.holds);
        }
    }

    pub fn last(&self) -> LogIndex {
        self.queue.last()
    }

    pub fn committed(&self) -> LogIndex {
        self.committed
    }

    /// Entries replicated again by the takeover.
    pub fn recovered_entries(&self) -> u64 {
        self.recovered.0 - self.base.0
    }

    pub fn propose(&mut self, effects: &[u8]) -> LogIndex {
        self.queue.push(effects, false);
        if self.config.execution == Execution::Committed {
            self.unexecuted.push(effects, false);
        }
        self.queue.last()
    }

    /// Up to which entry the machine shows the log.
    pub fn applied(&self) -> LogIndex {
        match self.config.execution {
            Execution::Speculative => self.last(),
            Execution::Committed => LogIndex(self.unexecuted.first().0 - 1),
        }
    }

    /// Executes what has been committed, where execution is on commit.
    pub fn execute<S: StateMachine>(&mut self, machine: &mut S) {
        self.execute_up_to(self.committed, machine);
    }

    /// Executes all that there is, committed or not.
    pub fn execute_all<S: StateMachine>(&mut self, machine: &mut S) {
        self.execute_up_to(self.last(), machine);
    }

    fn execute_up_to<S: StateMachine>(&mut self, last: LogIndex, machine: &mut S) {
        while self.unexecuted.first() <= last {
            let Some(entry) = self.unexecuted.front() else { return };
            machine.apply(self.unexecuted.first(), entry);
            self.unexecuted.pop_front();
        }
    }

    /// Reads what the others have acknowledged, where commits depend on that. An acknowledgement stays valid, whatever has become of the view: no replica gave
    /// one after it had learned of a view without this process.
    pub fn take_acknowledgements<F: Fabric>(&mut self, fabric: &F) {
        if self.holds != Holds::Acknowledged {
            return;
        }
        let posted = self.posted();
        for follower in self.followers.iter_mut().filter(|f| f.gets_entries()) {
            let Some(memory) = follower.peer.and_then(|peer| lane_of(fabric, peer)) else { continue };
            // Pairs with the release of the follower's write.
            let word = memory[ACKNOWLEDGED_OFFSET / 8].load(Ordering::Acquire);
            let index = word.checked_sub(1).map(LogIndex);
            // An acknowledgement from before its last start, or of something that it cannot hold, is ignored.
            follower.acked = follower.acked.max(index.filter(|index| *index >= follower.started && *index <= posted));
        }
    }

    /// Whether a learner for which the log waits has got entries but no part of the state since. A part goes out only when everything proposed has been posted.
    /// If there were always something new, the learner would be taught nothing, however long the log waits for room in its lane.
    pub fn owes_part(&self) -> bool {
        self.owes_part
    }

    /// Whether everything proposed has been posted.
    fn drained(&self) -> bool {
        self.queue.is_empty()
    }

    /// The last entry that has been posted whole.
    fn posted(&self) -> LogIndex {
        LogIndex(self.queue.first().0 - 1)
    }

    fn header(&self, kind: Kind, index: LogIndex) -> Header {
        Header::new(kind, index, self.view, self.committed)
    }

    /// Writes what can be written: starts, then entries, then the rest. Returns whether anything was posted.
    pub fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &S, events: &mut VecDeque<Event>) -> bool {
        self.post_starts(fabric);
        let posted = self.post_entries(fabric);
        if posted && self.holds == Holds::Acknowledged {
            // Requests wait for what the followers will do.
            self.followers.iter().filter(|f| f.gets_entries()).filter_map(|f| f.peer).for_each(|peer| fabric.nudge(peer));
        }
        self.unteachable_since = self.unteachable_since.filter(|since| now.since(*since) <= REST_NS);
        self.begin_transfers(fabric, events);
        let sent = self.transfer(now, fabric, machine, events);
        self.owes_part = self.followers.iter().any(|f| f.owed_part && self.waits_for(f) && f.is_being_taught());
        if posted {
            self.last_post = now;
        } else if self.drained() && !Canary::NoFlush.is_planted() && now.since(self.last_post) >= self.config.flush_idle_ns {
            self.flush(fabric);
        }
        for follower in &mut self.followers {
            follower.tend(now, fabric, &self.config);
        }
        posted || sent
    }

    fn post_starts<F: Fabric>(&mut self, fabric: &mut F) {
        if self.followers.iter().all(|f| f.phase != Phase::Unstarted) {
            return;
        }
        let count = u32::try_from(self.recovered_entries());
        invariant!(count.is_ok(), "{} entries to replicate again", self.recovered_entries());
        let start = Header { count: count.unwrap_or(0), ..Header::new(Kind::Start, self.base, self.view, self.base) };
        self.record.fill(|out| start.encode(out));
        for follower in self.followers.iter_mut().filter(|f| f.phase == Phase::Unstarted) {
            if follower.push(fabric, &mut self.record, Some(self.base)) {
                follower.started = self.base;
                follower.phase = Phase::Following;
                follower.told = self.base;
            }
        }
    }

    /// Whether the log waits for room in this follower's lane: it does for a replica, and for a learner that it has overrun too often. Otherwise a learner
    /// whose lane is small for the load, or that gets little processor time, would be overrun for ever.
    fn waits_for(&self, follower: &Follower) -> bool {
        follower.gets_entries() && (follower.counts() || follower.overruns > self.config.learner_overruns)
    }

    /// Each record goes into every lane at once, or into none. So one buffer holds what waits, whichever lane it waits for.
    fn post_entries<F: Fabric>(&mut self, fabric: &mut F) -> bool {
        let mut any = false;
        if self.followers.iter().any(|f| f.phase == Phase::Unstarted && f.broken.is_none()) {
            return any;
        }
        let alone = !self.followers.iter().any(Follower::gets_entries);
        let fragment_bytes = self.config.fragment_bytes();
        let holds_back = self.holds_back();
        while let Some(entry) = self.queue.front() {
            if holds_back && self.head_posted == 0 {
                break;
            }
            let rest = &entry[self.head_posted..];
            let more = rest.len() > fragment_bytes;
            let fragment = &rest[..rest.len().min(fragment_bytes)];
            let payload = HEADER_BYTES + fragment.len();
            let mut stalled = false;
            for at in 0..self.followers.len() {
                if self.waits_for(&self.followers[at]) {
                    let follower = &mut self.followers[at];
                    follower.set_full(!follower.fits(payload));
                    stalled |= follower.is_full();
                }
            }
            if stalled {
                Mark::LaneFull.reach();
                break;
            }
            let index = self.queue.first();
            let header = Header { more, ..Header::new(Kind::Entry, index, self.view, self.committed) };
            if !alone {
                self.record.fill(|out| {
                    header.encode(out);
                    out.extend_from_slice(fragment);
                });
            }
            let mark = (!more).then_some(index);
            for follower in self.followers.iter_mut().filter(|f| f.gets_entries()) {
                if follower.push(fabric, &mut self.record, mark) {
                    follower.told = self.committed;
                    follower.owed_part = true;
                } else {
                    overrun(follower, &self.config);
                }
                pulse::moved(fabric, HEARTS, payload);
            }
            if more {
                Mark::Fragmented.reach();
                self.head_posted += fragment_bytes;
            } else {
                self.head_posted = 0;
                self.queue.pop_front();
            }
            any = true;
        }
        any
    }

    /// Whether new entries wait until a learner begins. Where the state that it gets shows only what is committed, the entries under way have to be committed
    /// first, which takes as long as one request.
    fn holds_back(&self) -> bool {
        let begins = |f: &Follower| f.phase == Phase::Unlearned && f.broken.is_none() && f.peer.is_some() && f.outstanding() == 0;
        self.config.execution == Execution::Committed && self.unteachable_since.is_none() && self.followers.iter().any(begins)
    }

    /// Whether the lanes hold what the machine does not show.
    fn is_ahead(&self) -> bool {
        self.posted() > self.applied()
    }

    /// Begins the transfers of waiting learners, between two entries and once their lanes are empty. While the state cannot be taught, a follower that counts
    /// as a replica and would have to learn is given up, because all writes wait for it.
    fn begin_transfers<F: Fabric>(&mut self, fabric: &mut F, events: &mut VecDeque<Event>) {
        let nobody = self.followers.iter().all(|f| f.phase != Phase::Unlearned);
        if self.head_posted != 0 || nobody {
            return;
        }
        if self.unteachable_since.is_some() {
            self.followers.iter_mut().filter(|f| f.phase == Phase::Unlearned && f.replica).for_each(|f| give_up_transfer(f, events));
            return;
        }
        if self.is_ahead() && !Canary::HsucUnheldStart.is_planted() {
            // What would have to be committed first waits for these replicas.
            self.followers.iter_mut().filter(|f| f.phase == Phase::Unlearned && f.replica).for_each(|f| give_up_transfer(f, events));
            return;
        }
        let posted = self.posted();
        let start = Header { learner: true, ..self.header(Kind::Start, posted) };
        self.record.fill(|out| start.encode(out));
        for follower in self.followers.iter_mut().filter(|f| f.phase == Phase::Unlearned && f.broken.is_none()) {
            if follower.outstanding() > 0 {
                follower.set_full(true);
                continue;
            }
            if follower.push(fabric, &mut self.record, Some(posted)) {
                (follower.started, follower.told) = (posted, self.committed);
                follower.phase = Phase::Learning(Transfer { cursor: Some(0), part: Vec::new(), posted: 0, end: None });
            }
        }
    }

    /// Sends learners their next bytes, as long as their lanes are less than half full, because entries come first.
    fn transfer<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &S, events: &mut VecDeque<Event>) -> bool {
        let mut any = false;
        if self.head_posted != 0 {
            return any;
        }
        let (drained, posted) = (self.drained(), self.posted());
        let (part_header, end) = (self.header(Kind::Part, posted), self.header(Kind::End, posted));
        for follower in &mut self.followers {
            let broken = follower.broken.is_some();
            if broken && !follower.replica && !follower.given_up {
                follower.given_up = true;
                events.push_back(Event::Drop { process: follower.process, reason: DropReason::LaneLost });
                // Once it has been reported as caught up, it counts until a view removes it, since a view may already have promoted it.
                if follower.phase != Phase::Following {
                    follower.caught_up = false;
                    follower.phase = Phase::Dropped;
                }
            }
            // Taken out while the follower is written to; put back below.
            let Phase::Learning(transfer) = &mut follower.phase else { continue };
            if broken || transfer.end.is_some() {
                continue;
            }
            let mut transfer = std::mem::replace(transfer, Transfer { cursor: None, part: Vec::new(), posted: 0, end: None });
            match send_parts(follower, &mut transfer, &mut self.record, part_header, drained, &self.config, fabric, machine) {
                Ok(sent) => {
                    any |= sent;
                    follower.owed_part &= !sent;
                }
                Err(Oversized(bytes)) => {
                    self.unteachable_since = Some(now);
                    events.push_back(Event::Unteachable { process: follower.process, bytes });
                    give_up_transfer(follower, events);
                    continue;
                }
            }
            if transfer.cursor.is_none() && transfer.part.is_empty() && drained {
                self.record.fill(|out| end.encode(out));
                if follower.push(fabric, &mut self.record, None) {
                    transfer.end = Some((follower.last_op(), posted));
                    follower.want_nudge();
                    any = true;
                }
            }
            follower.phase = Phase::Learning(transfer);
        }
        any
    }

    /// Sends the commit index on its own when no entry carries it (TRAPS 13).
    fn flush<F: Fabric>(&mut self, fabric: &mut F) {
        let header = self.header(Kind::Flush, self.posted());
        let mut filled = false;
        for follower in self.followers.iter_mut().filter(|f| f.gets_entries() && f.told < header.committed) {
            if !filled {
                self.record.fill(|out| header.encode(out));
                filled = true;
            }
            if follower.push(fabric, &mut self.record, None) {
                Mark::Flushed.reach();
                follower.told = header.committed;
            }
        }
    }

    /// The last entry that is held by every process that counts; `None` while one of them has not even started.
    fn settled(&self) -> Option<LogIndex> {
        let (mut settled, mut fastest) = (self.posted(), LogIndex(0));
        let counts = |f: &&Follower| f.counts() && !(f.broken.is_some() && Canary::HsucSuspicionIsCrash.is_planted());
        for follower in self.followers.iter().filter(counts) {
            let holds_all = match &follower.phase {
                Phase::Following => true,
                Phase::Learning(transfer) => transfer.end.is_some_and(|end| follower.has_learned(end, self.holds)),
                Phase::Unstarted | Phase::Unlearned | Phase::Dropped => false,
            };
            match follower.acked {
                Some(acked) if holds_all => (settled, fastest) = (settled.min(acked), fastest.max(acked)),
                _ => return None,
            }
        }
        if Canary::FastestBackup.is_planted() && fastest > settled {
            settled = fastest;
        }
        Some(settled)
    }

    /// Draws the conclusions from what has completed, given that the view was active after that: what is committed, and which learners have caught up. Returns
    /// whether all replicas hold what this takeover found; nothing is committed before they do.
    pub fn conclude(&mut self, events: &mut VecDeque<Event>) -> bool {
        let settled = self.settled().filter(|settled| *settled >= self.recovered);
        // A backup that has just begun to count, or was made a replica too early, may hold less than is already committed.
        self.committed = self.committed.max(settled.unwrap_or(self.committed));
        for follower in &mut self.followers {
            let Phase::Learning(transfer) = &follower.phase else { continue };
            let Some((op, end)) = transfer.end else { continue };
            // The parts that were sent to it show nothing newer than `end`. Once that is committed, it holds nothing that others may lack.
            let done = follower.has_learned((op, end), self.holds) || Canary::EarlyPromotion.is_planted();
            if !done || end > self.committed || follower.broken.is_some() {
                continue;
            }
            // From here on nothing is committed without this learner. So it has everything as soon as it has what is committed now, however fast the log grows,
            // and it keeps having everything, whichever view promotes it.
            if !follower.caught_up {
                Mark::LearnerCounts.reach();
            }
            follower.caught_up = !Canary::UncountedLearner.is_planted();
            if follower.acked >= Some(self.committed) {
                Mark::LearnerCaughtUp.reach();
                follower.phase = Phase::Following;
                if !follower.replica {
                    events.push_back(Event::CaughtUp(follower.process));
                }
            }
        }
        settled.is_some()
    }
}

/// The log has overrun a learner, which starts over when it has emptied its lane.
fn overrun(follower: &mut Follower, config: &Config) {
    invariant!(!follower.counts() && follower.overruns <= config.learner_overruns, "a lane that had room is full");
    Mark::LearnerOverrun.reach();
    follower.overruns += 1;
    follower.acked = None;
    follower.phase = Phase::Unlearned;
    if follower.overruns > config.learner_overruns {
        Mark::LearnerAwaited.reach();
    }
}

/// The state cannot be taught. The learner begins again when it can be, unless a view already counts on it and nothing is committed without it; then it is
/// reported.
fn give_up_transfer(follower: &mut Follower, events: &mut VecDeque<Event>) {
    follower.acked = None;
    if follower.replica {
        follower.phase = Phase::Dropped;
        follower.given_up = true;
        events.push_back(Event::Drop { process: follower.process, reason: DropReason::Unteachable });
    } else {
        follower.phase = Phase::Unlearned;
    }
}

/// Posts up to a turn's worth of parts. Returns whether any was posted.
#[expect(clippy::too_many_arguments, reason = "one step of `Leading::transfer`, with its parts borrowed one by one")]
fn send_parts<F: Fabric, S: StateMachine>(
    follower: &mut Follower,
    transfer: &mut Transfer,
    record: &mut Record,
    header: Header,
    drained: bool,
    config: &Config,
    fabric: &mut F,
    machine: &S,
) -> Result<bool, Oversized> {
    let mut budget = config.transfer_budget_bytes;
    let mut any = false;
    loop {
        if transfer.part.is_empty() {
            let Some(cursor) = transfer.cursor else { break };
            // The machine shows everything proposed so far. The lane has to hold all of that before a part of this state goes there.
            if !drained || budget == 0 || follower.outstanding() * 2 > config.log_ring_bytes as u64 {
                break;
            }
            transfer.posted = 0;
            transfer.cursor = part::transfer(machine, cursor, config.transfer_budget_bytes, &mut transfer.part)?;
            if transfer.part.is_empty() {
                // Even an empty range of the state costs a part of the budget, so that this loop ends.
                budget = budget.saturating_sub(config.transfer_budget_bytes.div_ceil(8));
                continue;
            }
        }
        let rest = &transfer.part[transfer.posted..];
        let fragment = &rest[..rest.len().min(config.fragment_bytes())];
        let room = follower.outstanding() * 2 <= config.log_ring_bytes as u64 && follower.fits(HEADER_BYTES + fragment.len());
        if budget == 0 || !room {
            break;
        }
        let header = Header { more: fragment.len() < rest.len(), ..header };
        let len = fragment.len();
        record.fill(|out| {
            header.encode(out);
            out.extend_from_slice(fragment);
        });
        if !follower.push(fabric, record, None) {
            break;
        }
        any = true;
        follower.want_nudge();
        budget = budget.saturating_sub(len);
        transfer.posted += len;
        if transfer.posted == transfer.part.len() {
            transfer.part.clear();
        }
    }
    Ok(any)
}

//! Taking and renewing the lease (Algorithms 2 and 6), in the background of the process that acts under it; and what a round of questions proves
//! without any clock, for callers that do not rely on leases.

use martlet_fabric::{Fabric, OpError, PeerId};

use super::inquiry::{Finding, Inquiry, Proof, Round};
use super::{Core, Milestone, Read, read_token, remote_life};
use crate::basics::ballot::{self, FROZEN, SlotState, SlotWord};
use crate::basics::layout::life;
use crate::basics::{Canary, Mark, Time, ViewNumber};
use crate::membership::message::Message;

/// How long to leave a slot alone after it was found taken, in nanoseconds.
pub(super) const TAKEN_NS: u64 = 20_000;

/// The state of getting and renewing the lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewal {
    inquiry: Inquiry,
    /// Until then, do not ask again: the view is known to be superseded, or its next slot is being contended for.
    taken_until: Time,
    /// When a majority last confirmed the view, if one has.
    confirmed: Option<Time>,
    /// Lease words requested and not answered yet.
    words_asked: u32,
    /// The first lease carries over from the previous view.
    carries_over: bool,
    /// What the last round that was won proved about this view.
    proof: Option<Proof>,
}

impl Renewal {
    pub fn cancel(&mut self) {
        self.inquiry.give_up();
        (self.confirmed, self.proof) = (None, None);
    }

    /// Gives up the round under way: the next tick asks all coordinators again.
    pub fn ask_anew(&mut self) {
        self.inquiry.give_up();
    }

    pub fn restart(&mut self, carries_over: bool) {
        self.inquiry.restart();
        *self = Renewal { inquiry: std::mem::take(&mut self.inquiry), carries_over, ..Renewal::default() };
    }
}

impl Core {
    /// How often a majority of the coordinators was asked about the lease, and confirmed it.
    pub fn renewals_by_majority(&self) -> u64 {
        self.renewal.inquiry.won()
    }

    /// When the coordinators are to be asked again. A process that renews through a cache allows the cache some extra time first.
    pub(super) fn renewal_due(&self) -> Time {
        match &self.view {
            Some(view) if self.lease.view() == view.number => {
                let usable_ns = self.config.clocks.shortened(view.lease_ns);
                let margin_ns = if self.borrowing.works() { usable_ns / 3 } else { usable_ns / 2 };
                Time(self.lease.end().0.saturating_sub(margin_ns))
            }
            _ => Time(0),
        }
    }

    /// Continues taking or renewing the lease, as far as is possible now.
    pub(super) fn renew<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(view) = self.view.as_ref().filter(|v| v.member(self.config.me).is_some()) else { return };
        let (number, lease_ns) = (view.number, view.lease_ns);
        if self.excluded || self.leaving {
            return;
        }
        self.ask_for_lease_words(fabric);
        self.ask_cache(now, fabric);
        if now >= self.renewal_due() && self.may_ask(now, lease_ns) {
            self.ask_coordinators(now, fabric, number);
        }
        self.start_lease(now);
    }

    /// Whether a round can begin: there is only one at a time, and a slot that was found taken is left alone for a while.
    fn may_ask(&self, now: Time, lease_ns: u64) -> bool {
        !self.renewal.inquiry.is_under_way(now, lease_ns) && now >= self.renewal.taken_until
    }

    /// Begins a round. Whatever its purpose, winning it extends the lease.
    fn ask_coordinators<F: Fabric>(&mut self, now: Time, fabric: &mut F, number: ViewNumber) {
        if !Canary::LateLeaseWord.is_planted() || self.lease.view() == number {
            self.store_lease_word(fabric, number);
        }
        self.renewal.inquiry.ask(now, fabric, Read::Slot, number, &self.coordinators);
    }

    /// Begins a round of questions at once, for a caller that has to know whether the view is still current, and returns the round: this call posts
    /// an operation to every coordinator. [`proof`](Core::proof) tells when the round is won. It renews the lease like any other round, so that
    /// frequent rounds of this kind do not hold up renewals. The caller acts under the lease, and so makes progress (TRAPS 9).
    ///
    /// `None`: no round can begin now. Either one is under way, which began too early to serve; or the next view's slot was found taken; or this
    /// process takes no leases, is out, or is leaving. Ask again in the next turn. A round may also be lost, or be given up when the view changes:
    /// then another has to begin.
    pub fn begin_round<F: Fabric>(&mut self, now: Time, fabric: &mut F) -> Option<Round> {
        let view = self.view.as_ref().filter(|view| view.member(self.config.me).is_some())?;
        let (number, lease_ns) = (view.number, view.lease_ns);
        let acts = self.lease_wanted && !self.excluded && !self.leaving;
        if !acts || !self.may_ask(now, lease_ns) {
            return None;
        }
        Mark::RoundAsked.reach();
        self.ask_coordinators(now, fabric, number);
        Some(self.renewal.inquiry.latest())
    }

    /// The clock has done what its bounds exclude, for instance because the host was suspended or its virtual machine stopped. What was measured by
    /// it proves nothing any more. The lease is given up, and so is the round under way, whose beginning was read from that clock. The coordinators
    /// are asked again at once, as for a first lease. If the first lease on this view had not begun, the processes that may hold an older one are
    /// waited for in full once more, from now on, unless they have given it back.
    ///
    /// The lease word stays, so that no process takes this one for one that holds nothing.
    pub fn distrust_clock(&mut self, now: Time) {
        Mark::ClockDistrusted.reach();
        let number = self.view_number();
        if Canary::KeptLease.is_planted() {
            return;
        }
        let began = self.lease.view() == number;
        self.lease.drop_it();
        self.renewal.cancel();
        self.renewal.taken_until = now;
        self.borrowing.restart();
        self.learned = now;
        if let Some(view) = self.view.as_ref().filter(|_| !began) {
            self.handover.wait_until(now.after(self.config.clocks.lengthened(view.fence_ns)));
        }
    }

    /// What the last round that was won proved about the newest view.
    pub fn proof(&self) -> Option<Proof> {
        self.renewal.proof
    }

    /// Takes a coordinator's slot word for the next view, requested in the lease's round with that serial.
    pub(super) fn note_slot<F: Fabric>(&mut self, now: Time, fabric: &mut F, serial: u64, result: Result<u64, OpError>) {
        let Some(number) = self.view.as_ref().map(|v| v.number) else { return };
        let Some(word) = result.ok().filter(|_| self.renewal.inquiry.awaits(serial)) else { return };
        let round = self.renewal.inquiry.latest();
        let finding = self.renewal.inquiry.note(is_empty(word, number), self.coordinators.len());
        self.mind_frozen(now, fabric, word, number);
        let Some(view) = self.view.as_ref().filter(|v| v.number == number) else { return }; // the next has just been decided
        match finding {
            None => {}
            Some(Finding::Taken) => {
                // The view may be superseded. Find out, and don't hammer the slot meanwhile.
                Mark::LeaseRefused.reach();
                self.renewal.taken_until = now.after(TAKEN_NS);
                self.pull(fabric);
            }
            Some(Finding::Stands(asked)) => {
                let start = if Canary::LeaseFromAnswers.is_planted() { now } else { asked };
                let end = start.after(self.config.clocks.shortened(view.lease_ns));
                self.renewal.confirmed = Some(end);
                self.renewal.proof = Some(Proof { round, view: number });
                Mark::LeaseConfirmed.reach();
                if self.lease.view() == number {
                    Mark::LeaseExtended.reach();
                    self.lease.extend(end);
                } else {
                    self.start_lease(now);
                }
            }
        }
    }

    /// A frozen slot never looks empty again, whatever is decided there: asks for another view, so that leases depend on another slot.
    pub(super) fn mind_frozen<F: Fabric>(&mut self, now: Time, fabric: &mut F, word: u64, number: ViewNumber) {
        let frozen = SlotWord(word).state_in(ballot::generation_of(number.next())).is_some_and(|s| s.min == FROZEN);
        if frozen && !self.wishes.renew {
            Mark::LeaseFrozen.reach();
            self.wishes.renew = true;
            self.tell_leader(now, fabric, &Message::Frozen { view: number });
        }
    }

    /// Starts the first lease on the view once the view is confirmed and no process can hold an older lease.
    fn start_lease(&mut self, now: Time) {
        let Some(view) = &self.view else { return };
        let number = view.number;
        let Some(end) = self.renewal.confirmed.filter(|_| self.lease.view() != number) else { return };
        if self.renewal.carries_over || self.handover.is_over(now) {
            if !self.renewal.carries_over && self.handover.awaited().next().is_some() {
                Mark::LeaseRanOut.reach();
            }
            Mark::LeaseBegun.reach();
            self.lease.begin(number, now, end);
            self.milestone(Milestone::Acknowledged(number));
            self.milestone(Milestone::Active(number));
        } else if end <= now {
            // By the time the older leases are over, the confirmation is stale: ask again.
            self.renewal.confirmed = None;
        }
    }

    /// Reads the lease words of the processes that may hold an older lease.
    fn ask_for_lease_words<F: Fabric>(&mut self, fabric: &mut F) {
        if self.renewal.words_asked > 0 || self.renewal.carries_over {
            return;
        }
        let Some(view) = &self.view else { return };
        if self.lease.view() == view.number {
            return;
        }
        let round = lease_word_round(view.number);
        for process in self.handover.awaited() {
            if let Some(peer) = self.peers.of(process) {
                self.renewal.words_asked += 1;
                fabric.read_word(remote_life(peer, life::LEASE), read_token(Read::LeaseWord, round, peer));
            }
        }
    }

    /// Takes a lease word. Only a word requested under this view is used: an older answer was read before the view was decided.
    pub(super) fn note_lease_word(&mut self, now: Time, round: usize, peer: PeerId, result: Result<u64, OpError>) {
        let number = self.view_number();
        if round != lease_word_round(number) {
            return;
        }
        self.renewal.words_asked = self.renewal.words_asked.saturating_sub(1);
        let (Some(process), Ok(word)) = (self.peers.process(peer), result) else { return };
        if word == 0 || ViewNumber(word) >= number {
            Mark::LeaseWordReleased.reach();
            self.handover.release(process);
            self.start_lease(now);
        }
    }
}

/// Whether this word says that nothing was accepted for the view after `number`. It is evidence for that slot and no other (TRAPS 3).
pub(super) fn is_empty(word: u64, number: ViewNumber) -> bool {
    SlotWord(word).state_in(ballot::generation_of(number.next())).is_some_and(SlotState::is_empty)
}

/// Marks in a token the view under which a lease word was requested. Eight bits are enough: a queue never holds an operation for 256 views.
fn lease_word_round(view: ViewNumber) -> usize {
    (view.0 & 0xff) as usize
}

#[cfg(test)]
mod tests {
    use martlet_fabric::primitive::{AtomicU64, Ordering};
    use martlet_fabric::{Completion, Incarnation, Local, LocalRegion, Memory, NodeId, Region, Remote, Token};

    use super::super::{Config, Proof, Round};
    use super::*;
    use crate::basics::ProcessId;
    use crate::basics::layout::{LIFE, SLOT_WORDS, SLOTS};
    use crate::membership::lease::Handover;
    use crate::membership::{Leases, Member, Roles, View};

    /// Records what is asked of others, which is nothing but reads of words.
    struct Asked {
        life: Vec<AtomicU64>,
        words: Vec<(Remote, Token)>,
    }

    impl Fabric for Asked {
        const ZOMBIES_REACHABLE: bool = true;

        fn memory(&self, region: LocalRegion) -> Option<&Memory> {
            (region == LocalRegion::Public(LIFE)).then_some(&*self.life)
        }
        fn read_word(&mut self, from: Remote, token: Token) {
            self.words.push((from, token));
        }
        fn write(&mut self, at: Remote, _: &[u8], _: Token) {
            unreachable!("a round writes nothing, and this was for {at:?}");
        }
        fn read(&mut self, from: Remote, _: Local, _: usize, _: Token) {
            unreachable!("a round reads words only, and this was of {from:?}");
        }
        fn compare_and_swap(&mut self, at: Remote, _: u64, _: u64, _: Token) {
            unreachable!("a round swaps nothing, and this was at {at:?}");
        }
        martlet_fabric::idle!(poll, send, multicast, receive, event, grant, revoke, nudge, forget);
    }

    const VIEW: ViewNumber = ViewNumber(5);
    const LEASE_NS: u64 = 1_000_000;

    /// A process that leads view 5, which has three coordinators. With `coordinates` it is one of them. The last coordinator is not connected.
    fn leads(coordinates: bool) -> (Core, Asked) {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        let mine = if coordinates { both } else { Roles::REPLICA };
        let others = if coordinates { 1..3 } else { 1..4 };
        let roles = [(0, mine)].into_iter().chain(others.map(|node| (node, both)));
        let members = roles.map(|(node, roles)| Member::new(id(node), roles)).collect();
        let mut core = Core::new(Time(0), Config { leases: Leases::Primary, ..Config::new(id(0), mine) });
        core.view =
            Some(View { number: VIEW, lease_ns: LEASE_NS, fence_ns: LEASE_NS, compatible: false, level: 1, members, departed: Vec::new() });
        core.coordinators = vec![Some(PeerId(0)), Some(PeerId(1)), None];
        core.lease_wanted = true;
        (core, Asked { life: (0..life::WORDS).map(|_| AtomicU64::new(0)).collect(), words: Vec::new() })
    }

    /// The word of a slot in which nothing was accepted for the view after 5.
    fn empty() -> u64 {
        SlotWord::new(SlotState { min: 3, accepted: 0, value: 0 }, ballot::generation_of(VIEW.next())).0
    }

    fn taken() -> u64 {
        SlotWord::new(SlotState { min: 3, accepted: 3, value: 1 }, ballot::generation_of(VIEW.next())).0
    }

    /// Answers the `at`-th request with this word.
    fn answer(core: &mut Core, fabric: &mut Asked, now: Time, at: usize, word: u64) {
        let token = fabric.words[at].1;
        core.handle_completion(now, fabric, Completion { token, result: Ok(word) });
    }

    /// A round reads nothing but the next view's slot word at every connected coordinator, after the lease word has been stored.
    #[test]
    fn appendix_b_a_round_that_is_asked_for_reads_the_next_slot_of_every_coordinator() {
        for coordinates in [true, false] {
            let (mut core, mut fabric) = leads(coordinates);
            let round = core.begin_round(Time(10), &mut fabric).expect("none is under way");
            assert_eq!(fabric.life[life::LEASE].load(Ordering::SeqCst), VIEW.0, "who asks may come to hold a lease");
            let at = |peer| Remote { peer: PeerId(peer), region: Region::Public(SLOT_WORDS), offset: ballot::slot_of(VIEW.next()) * 8 };
            assert_eq!(fabric.words.iter().map(|(remote, _)| *remote).collect::<Vec<_>>(), [at(0), at(1)]);
            assert_eq!(core.proof(), None);
            answer(&mut core, &mut fabric, Time(20), 0, empty());
            assert_eq!(core.proof(), None, "one of three");
            answer(&mut core, &mut fabric, Time(30), 1, empty());
            assert_eq!(core.proof(), Some(Proof { round, view: VIEW }));
            assert_eq!(core.renewals_by_majority(), 1, "it renews the lease");
            assert!(core.renewal_due() > Time(30), "and so no other round has to");
        }
    }

    #[test]
    fn a_round_under_way_is_not_one_that_begins_now() {
        let (mut core, mut fabric) = leads(true);
        // The round renews the lease by itself.
        core.renew(Time(10), &mut fabric);
        assert_eq!(fabric.words.len(), 2);
        assert_eq!(core.begin_round(Time(20), &mut fabric), None, "what was asked before a read says nothing about it");
        for at in 0..2 {
            answer(&mut core, &mut fabric, Time(30), at, empty());
        }
        assert_eq!(core.proof(), Some(Proof { round: Round(1), view: VIEW }));
        assert_eq!(core.begin_round(Time(40), &mut fabric), Some(Round(2)));
        assert_eq!(core.proof(), Some(Proof { round: Round(1), view: VIEW }), "the second has not been won");
        // A late answer to the first round does not count for the second.
        answer(&mut core, &mut fabric, Time(50), 0, empty());
        answer(&mut core, &mut fabric, Time(50), 1, empty());
        assert_eq!(core.proof(), Some(Proof { round: Round(1), view: VIEW }));
    }

    /// What was measured by a clock that has jumped proves nothing, and that includes a round that began before the jump.
    #[test]
    fn trap_8_a_clock_that_jumps_costs_the_lease_until_a_later_round_is_won() {
        let (mut core, mut fabric) = leads(true);
        core.begin_round(Time(10), &mut fabric).expect("none is under way");
        (0..2).for_each(|at| answer(&mut core, &mut fabric, Time(20), at, empty()));
        core.renew(Time(20), &mut fabric);
        assert!(core.lease().active(VIEW, Time(30)));
        core.begin_round(Time(30), &mut fabric).expect("none is under way");
        core.distrust_clock(Time(40));
        assert!(!core.lease().active(VIEW, Time(40)));
        assert_eq!(fabric.life[life::LEASE].load(Ordering::SeqCst), VIEW.0, "nobody else may take it for one that holds nothing");
        (2..4).for_each(|at| answer(&mut core, &mut fabric, Time(50), at, empty()));
        assert!(!core.lease().active(VIEW, Time(50)), "they were asked before the jump");
        assert_eq!(core.proof(), None);
        assert_eq!(core.renewal_due(), Time(0), "it asks again without delay");
        core.renew(Time(60), &mut fabric);
        (4..6).for_each(|at| answer(&mut core, &mut fabric, Time(70), at, empty()));
        assert!(core.lease().active(VIEW, Time(70)));
        assert_eq!(core.lease().end(), Time(60).after(core.config.clocks.shortened(LEASE_NS)));
    }

    /// The time it has waited for others is measured by the same clock.
    #[test]
    fn trap_8_a_clock_that_jumps_has_not_waited_for_older_leases() {
        let (mut core, mut fabric) = leads(true);
        let other = ProcessId { node: NodeId(3), incarnation: Incarnation(1) };
        core.handover = Handover::new([other].into_iter(), Time(500));
        core.distrust_clock(Time(100_000));
        core.renew(Time(100_000), &mut fabric);
        (0..2).for_each(|at| answer(&mut core, &mut fabric, Time(100_010), at, empty()));
        assert!(!core.lease().active(VIEW, Time(100_010)), "the other one may hold a lease");
        core.handover.release(other);
        core.renew(Time(100_020), &mut fabric);
        assert!(core.lease().active(VIEW, Time(100_020)));
    }

    #[test]
    fn a_slot_that_is_taken_proves_nothing_and_is_left_alone_for_a_while() {
        let (mut core, mut fabric) = leads(true);
        core.begin_round(Time(10), &mut fabric).expect("none is under way");
        answer(&mut core, &mut fabric, Time(20), 0, empty());
        answer(&mut core, &mut fabric, Time(20), 1, taken());
        assert_eq!(core.proof(), None);
        assert_eq!(core.begin_round(Time(20 + TAKEN_NS - 1), &mut fabric), None);
        assert!(core.begin_round(Time(20 + TAKEN_NS), &mut fabric).is_some());
    }

    /// However often rounds are requested, a renewal that is due has begun, or is under way.
    #[test]
    fn rounds_that_are_asked_for_without_a_break_keep_the_lease() {
        let (mut core, mut fabric) = leads(true);
        let mut now = Time(10);
        core.begin_round(now, &mut fabric).expect("the first");
        for _ in 0..100 {
            now = now.after(LEASE_NS / 3);
            (0..2).for_each(|at| answer(&mut core, &mut fabric, now, at, empty()));
            fabric.words.clear();
            assert!(core.lease().active(VIEW, now));
            core.renew(now, &mut fabric);
            core.begin_round(now, &mut fabric);
            assert_eq!(fabric.words.len(), 2, "one round at a time");
        }
    }

    #[test]
    fn one_that_takes_no_leases_or_leaves_asks_nobody() {
        let (mut core, mut fabric) = leads(true);
        core.lease_wanted = false;
        assert_eq!(core.begin_round(Time(10), &mut fabric), None);
        (core.lease_wanted, core.leaving) = (true, true);
        assert_eq!(core.begin_round(Time(10), &mut fabric), None);
        assert!(fabric.words.is_empty());
    }

    /// A slot is reused for a later view, and then its word speaks about that one.
    #[test]
    fn trap_3_that_a_slot_is_empty_says_nothing_of_another() {
        let asked = ViewNumber(7);
        let accepted = |view: ViewNumber| SlotWord::new(SlotState { min: 3, accepted: 3, value: 1 }, ballot::generation_of(view)).0;
        let promised = |view: ViewNumber| SlotWord::new(SlotState { min: 3, accepted: 0, value: 0 }, ballot::generation_of(view)).0;
        assert!(is_empty(promised(asked.next()), asked));
        assert!(!is_empty(accepted(asked.next()), asked), "the next view may be decided");
        let a_lap_later = ViewNumber(asked.0 + SLOTS as u64);
        assert!(
            !is_empty(promised(a_lap_later.next()), asked),
            "the slot of a view a lap later is empty, and the one asked about was decided long ago"
        );
        assert!(!is_empty(accepted(a_lap_later.next()), asked));
        assert!(is_empty(accepted(asked.next()), a_lap_later), "what an earlier lap left is no acceptance in this one");
    }
}

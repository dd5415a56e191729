//! Requests that the device has forgotten.
//!
//! A device ends each request, successfully or not, once its retransmissions have run out. But software RDMA has been seen to forget a request
//! (`docs/rdma.md`): it then never reports that request, nor the requests that wait after it. So the endpoint itself keeps track of how long a queue
//! pair has been silent with something under way, and gives up a connection on which the device should have ended everything long ago.
//!
//! - Requests on one queue pair complete in order, so any completion starts the wait anew: from then on, another request is waited for.
//! - Each packet that is under way may get lost once before anything completes. But there are not many packets between two completions, since a long
//!   operation goes as many requests (module `line`). So the wait is bounded, whatever the size of the operation.
//! - Only time in which this process has looked counts. A process that was stopped, or had other things to do, does not blame a peer for that; it
//!   first takes what has completed meanwhile.

use std::time::{Duration, Instant};

use super::line::{Channel, Line, SILENT_PACKETS};
use super::queue::Patience;

/// While something is under way, the clock is read once in this many turns.
const TURNS: u32 = 16;
/// The longest wait, divided by this, is the most time that counts between two readings of the clock.
const LOOKS: u32 = 32;
/// At least this many turns are taken before anything is overdue.
pub(super) const LEAST_TURNS: u32 = TURNS * LOOKS;

/// How much of the time that passes counts.
#[derive(Debug)]
pub(super) struct Attention {
    turns: u32,
    last: Option<Instant>,
    most: Duration,
}

impl Attention {
    /// For something that is overdue after `longest`.
    pub(super) fn new(longest: Duration) -> Attention {
        Attention { turns: 0, last: None, most: longest / LOOKS }
    }

    /// Takes a turn. If the clock is due, returns how much time counts since it was last read.
    #[inline]
    pub(super) fn turn(&mut self, clock: impl FnOnce() -> Instant) -> Option<Duration> {
        self.turns = (self.turns + 1) % TURNS;
        (self.turns == 0).then(|| {
            let now = clock();
            let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
            self.last = Some(now);
            passed.min(self.most)
        })
    }
}

/// How long one queue pair has been silent.
#[derive(Debug, Default)]
struct Silence {
    /// How many requests had completed when something was first seen to be under way.
    since: Option<u64>,
    lasted: Duration,
}

impl Silence {
    /// Lets time pass. `completed` is how many requests have completed so far, if others are under way.
    fn pass(&mut self, completed: Option<u64>, time: Duration) -> Duration {
        self.lasted = if completed.is_some() && completed == self.since { self.lasted + time } else { Duration::ZERO };
        self.since = completed;
        self.lasted
    }
}

/// How long a peer's queue pairs have been silent: the one of the background plane, and the one of the lane that is being written.
#[derive(Debug, Default)]
pub(super) struct Silences {
    background: Silence,
    lane: Silence,
    /// How many requests on the background plane's queue pair have completed, including the endpoint's own.
    pub(super) completed: u64,
}

impl Silences {
    /// Lets time pass. Returns how long nothing has completed, if that is too long. `notices` says whether notices are under way. A packet to the
    /// peer carries `packet` bytes.
    pub(super) fn overdue(&mut self, line: &Line, notices: bool, packet: u32, patience: Patience, time: Duration) -> Option<Duration> {
        let (operations, on_lane) = (line.outstanding() > 0, matches!(line.channel, Channel::Lane(_)));
        let background = (operations && !on_lane) || line.look.is_some() || notices;
        let background = self.background.pass(background.then_some(self.completed), time);
        let lane = self.lane.pass((operations && on_lane).then(|| line.answered()), time);
        let lasted = background.max(lane);
        // Packets are counted only if it comes to that.
        (lasted > patience.longest(0) && lasted > patience.longest(line.packets(packet).min(SILENT_PACKETS))).then_some(lasted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::OpError;
    use crate::verbs::line::tests::op;
    use crate::verbs::line::{Look, Op, State, Work};

    const PACKET: u32 = 1024;
    const PATIENCE: Patience = Patience { timeout: 14, retries: 6 };

    /// An endpoint's turns with a clock that we set, and a peer.
    struct Turns {
        attention: Attention,
        now: Instant,
        silences: Silences,
        line: Line,
        notices: bool,
        tokens: u64,
    }

    impl Turns {
        fn new() -> Turns {
            let (attention, now) = (Attention::new(PATIENCE.longest(0)), Instant::now());
            Turns { attention, now, silences: Silences::default(), line: Line::new(64), notices: false, tokens: 0 }
        }

        /// One turn, after `time` has passed.
        fn after(&mut self, time: Duration) -> Option<Duration> {
            self.now += time;
            let time = self.attention.turn(|| self.now)?;
            self.silences.overdue(&self.line, self.notices, PACKET, PATIENCE, time)
        }

        /// A turn each millisecond, until something is overdue.
        fn attend(&mut self, millis: u32) -> Option<Duration> {
            (0..millis).find_map(|_| self.after(Duration::from_millis(1)))
        }

        fn begin(&mut self, work: Work, channel: Channel, bytes: u32) {
            self.tokens += 1;
            self.line.append(Op { work, bytes, ..op(self.tokens, channel, State::Queued) });
            self.line.channel = channel;
            self.line.begin(bytes);
            self.line.advance();
        }
    }

    /// The time after which the endpoint gives a peer up: 28 times 67 ms.
    const LONGEST: u32 = 1880;

    #[test]
    fn a_request_that_is_never_heard_of_is_overdue() {
        for channel in [Channel::Background, Channel::Lane(0)] {
            let mut turns = Turns::new();
            assert_eq!(turns.attend(10_000), None, "nothing is under way");
            turns.begin(Work::Write, channel, 8);
            assert_eq!(turns.attend(LONGEST), None, "{channel:?}: the device may yet end it");
            let lasted = turns.attend(200).expect("overdue");
            assert!((1880..2100).contains(&lasted.as_millis()), "{channel:?}: {lasted:?}");
        }
    }

    #[test]
    fn a_look_or_a_notice_that_is_never_heard_of_is_overdue() {
        let mut turns = Turns::new();
        turns.line.look = Some(Look { lane: 0, number: 1, before: 0 });
        assert!(turns.attend(LONGEST).is_none() && turns.attend(200).is_some());
        let mut turns = Turns::new();
        turns.notices = true;
        assert!(turns.attend(LONGEST).is_none() && turns.attend(200).is_some());
    }

    /// Progress on a lane says nothing about the other queue pair.
    #[test]
    fn a_busy_lane_hides_no_forgotten_notice() {
        let mut turns = Turns::new();
        turns.notices = true;
        let mut overdue = None;
        for _ in 0..300 {
            turns.begin(Work::Write, Channel::Lane(0), 8);
            overdue = overdue.or(turns.attend(10));
            turns.line.end_posted(State::Done(Err(OpError::AccessLost)));
            turns.line.pop();
        }
        assert!(overdue.is_some());
    }

    #[test]
    fn whatever_completes_starts_the_wait_anew() {
        let mut turns = Turns::new();
        for _ in 0..64 {
            turns.begin(Work::ReadWord, Channel::Background, 8);
        }
        for _ in 0..10 {
            assert_eq!(turns.attend(1500), None);
            turns.silences.completed += 1;
        }
        // And so does the first request of a batch after all of the last batch has ended, although nobody looked in between.
        let mut turns = Turns::new();
        for _ in 0..10 {
            turns.begin(Work::Write, Channel::Lane(0), 8);
            assert_eq!(turns.attend(1500), None);
            turns.line.end_posted(State::Done(Err(OpError::AccessLost)));
        }
    }

    /// SIGSTOP, a machine that is moved, a long turn: the peer is not to blame.
    #[test]
    fn one_that_was_away_blames_nobody() {
        let mut turns = Turns::new();
        turns.begin(Work::Write, Channel::Background, 8);
        assert_eq!(turns.attend(1000), None);
        for _ in 0..5 {
            assert_eq!(turns.after(Duration::from_secs(3600)), None);
            assert_eq!(turns.attend(16), None, "the device has to be heard first");
        }
        assert!(turns.attend(1000).is_some(), "but that is no excuse for ever");
    }

    /// Each of its packets may get lost, one after the other, and only the end of the READ is reported.
    #[test]
    fn a_read_of_some_packets_is_given_a_time_out_for_each() {
        let mut turns = Turns::new();
        turns.begin(Work::Read { address: 0, lkey: 0 }, Channel::Background, 10 * PACKET);
        assert_eq!(turns.attend(LONGEST + 10 * 67), None);
        assert!(turns.attend(300).is_some());
    }

    /// A log of 64 MiB has so many packets that losing them one by one would take an hour, and at any time as much of it is under way as the queue
    /// pair takes. Each piece of it starts the wait anew, so if the pieces cease to come, that is noticed no later than with a short READ.
    #[test]
    fn a_read_of_a_whole_log_is_overdue_as_soon_as_one_piece_of_it_is() {
        let mut turns = Turns::new();
        let bytes = 64 << 20;
        turns.line.append(Op { work: Work::Read { address: 0, lkey: 0 }, bytes, ..op(1, Channel::Background, State::Queued) });
        let hand_over = |turns: &mut Turns| {
            let piece = turns.line.op(0).next_bytes(PACKET);
            turns.line.begin(piece);
            piece
        };
        assert!((0..64).map(|_| hand_over(&mut turns)).sum::<u32>() < bytes);
        for piece in 1..=20 {
            assert_eq!(turns.attend(LONGEST), None, "piece {piece}");
            turns.silences.completed += 1;
            hand_over(&mut turns);
        }
        assert_eq!(turns.attend(LONGEST), None);
        let lasted = turns.attend(SILENT_PACKETS * 67 + 100).expect("overdue");
        assert!(lasted < PATIENCE.longest(0) * 3, "{lasted:?}");
    }
}

//! Finds out whether a peer is still there after its TCP connection has ended. Anybody on the way can end a TCP connection, so its end proves nothing
//! by itself: the peer is asked, under the keys of the connection. A dead process does not answer. A live one does, through its stand-in if its
//! thread is busy.
//!
//! The peer is asked [`ASKED`] times, [`PAUSE_US`] apart, and is gone if no answer has come within [`PATIENCE_US`]. As long as there is no new TCP
//! connection, it is asked again after every answer. Time is passed in as an argument, in microseconds.

/// How often the peer is asked before it is considered gone, and how far apart.
const ASKED: u64 = 3;
const PAUSE_US: u64 = 1_000;
/// How long the peer has to answer.
const PATIENCE_US: u64 = 5_000;
/// How long after an answer the peer is asked again. With this, a death that follows an answer is noticed no later than it would be by the
/// heartbeats.
const AGAIN_US: u64 = 20_000;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Ask,
    /// The peer is gone.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be asked at this time.
    ToAsk(u64),
    /// It has been asked `times` times and had `waited` microseconds to answer when it was last looked at, at `looked`.
    Asked { times: u64, waited: u64, looked: u64 },
}

/// A peer that is asked.
#[derive(Debug)]
pub(super) struct Doubt(State);

impl Doubt {
    /// It is to be asked as soon as possible.
    pub(super) fn new() -> Doubt {
        Doubt(State::ToAsk(0))
    }

    /// The peer has answered something.
    pub(super) fn heard(&mut self, now: u64) {
        if let State::Asked { .. } = self.0 {
            self.0 = State::ToAsk(now + AGAIN_US);
        }
    }

    /// What is to be done now. `drained` says whether all answers that had arrived are taken. Until they are, an answer cannot be told from an
    /// earlier one, and none can be called missing.
    pub(super) fn step(&mut self, now: u64, drained: bool) -> Step {
        match &mut self.0 {
            State::ToAsk(at) if now >= *at && drained => {
                self.0 = State::Asked { times: 1, waited: 0, looked: now };
                Step::Ask
            }
            State::ToAsk(_) => Step::Nothing,
            State::Asked { times, waited, looked } => {
                // A process that was stopped could not listen, so only a part of that time counts.
                *waited += now.saturating_sub(*looked).min(PAUSE_US);
                *looked = now;
                if *waited >= PATIENCE_US && drained {
                    return Step::Gone;
                }
                if *times < ASKED && *waited >= *times * PAUSE_US {
                    *times += 1;
                    return Step::Ask;
                }
                Step::Nothing
            }
        }
    }

    /// The latest time at which to call [`Doubt::step`] again.
    pub(super) fn due(&self) -> u64 {
        match self.0 {
            State::ToAsk(at) => at,
            State::Asked { looked, .. } => looked + PAUSE_US,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps as often as is due until the peer is gone. Returns how often it asked, and when it ended.
    fn until_gone(doubt: &mut Doubt, mut now: u64) -> (u64, u64) {
        let mut asked = 0;
        loop {
            match doubt.step(now, true) {
                Step::Ask => asked += 1,
                Step::Nothing => {}
                Step::Gone => return (asked, now),
            }
            now = doubt.due();
        }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_asked_three_times_and_gone_after_five_milliseconds() {
        assert_eq!(until_gone(&mut Doubt::new(), 7_000), (3, 12_000));
    }

    #[test]
    fn a_peer_that_answers_stays_and_is_asked_again() {
        let mut doubt = Doubt::new();
        let mut now = 0;
        for _ in 0..100 {
            assert_eq!(doubt.step(now, true), Step::Ask);
            assert_eq!(doubt.step(now + 900, true), Step::Nothing);
            doubt.heard(now + 900);
            assert_eq!((doubt.step(now + 6_000, true), doubt.due()), (Step::Nothing, now + 20_900));
            now = doubt.due();
        }
        assert_eq!(until_gone(&mut doubt, now), (3, now + 5_000), "and it is gone when it does not");
    }

    #[test]
    fn an_answer_from_before_the_question_is_none() {
        let mut doubt = Doubt::new();
        assert_eq!(doubt.step(0, false), Step::Nothing, "answers to earlier requests have not been taken yet");
        doubt.heard(1);
        assert_eq!(until_gone(&mut doubt, 2), (3, 5_002));
    }

    #[test]
    fn nobody_is_gone_whose_answer_may_have_come() {
        let mut doubt = Doubt::new();
        assert_eq!(doubt.step(0, true), Step::Ask);
        (1..=9).for_each(|ms| assert_ne!(doubt.step(ms * 1_000, false), Step::Gone));
        doubt.heard(9_000);
        assert_eq!(doubt.step(9_000, true), Step::Nothing);
    }

    #[test]
    fn time_in_which_nobody_listened_does_not_count() {
        let mut doubt = Doubt::new();
        assert_eq!(doubt.step(0, true), Step::Ask);
        let stalls = (1..5).map(|n| doubt.step(n * 1_000_000, true)).collect::<Vec<_>>();
        assert_eq!(stalls, [Step::Ask, Step::Ask, Step::Nothing, Step::Nothing]);
        assert_eq!(doubt.step(5_000_000, true), Step::Gone);
    }
}

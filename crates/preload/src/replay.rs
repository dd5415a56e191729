//! The rounds that a replica has been told of: those that its server has yet to execute, and those that it can pass on to a newcomer.
//!
//! A newcomer is a fork of a replica, so it knows all rounds up to the fork. When its node is taught the state, as any newcomer's is, it is given the rounds
//! that the teacher still has, and takes those that it lacks.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use martlet_protocol::replica::UnreadablePart;

use crate::entry::Entry;

/// At least so many bytes of rounds are kept, if there are so many.
const KEPT_BYTES: usize = 16 << 20;
/// At most so many bytes are kept for a newcomer that is on its way. It is as much as a busy server may be sent while one is taught.
///
/// A leader slows down long before that ([`Pace`](crate::pace::Pace)).
const MOST_KEPT_BYTES: usize = 1 << 30;

/// The rounds of one replica.
#[derive(Debug, Default)]
pub struct Replay {
    /// What the server has yet to execute, without a gap, from `next` on.
    queue: VecDeque<Rc<[u8]>>,
    /// The number of the first round in the queue.
    next: u64,
    /// Rounds that arrived before some that precede them.
    early: BTreeMap<u64, Rc<[u8]>>,
    /// The last rounds, without a gap, up to round `next + queue.len() - 1`.
    kept: VecDeque<Rc<[u8]>>,
    kept_bytes: usize,
    /// Rounds from this one on are kept for a newcomer.
    lacked: Option<u64>,
    /// The log has told this replica of a round since it was forked.
    heard: bool,
    /// This replica has been taught what others know since it was forked.
    taught: bool,
    /// How often it has been taught something that follows on what it knows, or that it knew already.
    lessons: u64,
    /// Others have begun to teach it again since this was last asked.
    is_pupil: bool,
}

impl Replay {
    /// The rounds of a service whose first round is yet to come.
    pub fn new() -> Replay {
        Replay { next: 1, ..Replay::default() }
    }

    /// The number of the last round that is known without a gap; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.next + self.queue.len() as u64 - 1
    }

    /// Whether rounds wait for others that come before them.
    pub fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// The first of the rounds that wait for others; 0 if none does.
    pub fn first_early(&self) -> u64 {
        self.early.keys().next().copied().unwrap_or(0)
    }

    /// From here on this is a fork's copy, which the log has told nothing.
    pub fn fork(&mut self) {
        (self.heard, self.taught) = (false, false);
    }

    /// Others begin to teach this replica what they know: it has not heard what lies between their lesson and what it knows. It forgets nothing.
    pub fn begin_lesson(&mut self) {
        (self.heard, self.taught, self.is_pupil) = (false, false, true);
    }

    /// Whether a lesson has begun since this was last asked.
    pub fn take_pupil(&mut self) -> bool {
        std::mem::take(&mut self.is_pupil)
    }

    /// Whether it has been taught what others know, since it was forked.
    pub fn is_taught(&self) -> bool {
        self.taught
    }

    /// How often it has been taught something that follows on what it knows, or that it knew already. As long as that goes on, it may still get what it lacks.
    pub fn lessons(&self) -> u64 {
        self.lessons
    }

    /// The first round that a newcomer lacks; `None`: no newcomer is on its way.
    pub fn lacked(&self) -> Option<u64> {
        self.lacked
    }

    /// How many bytes of the kept rounds a newcomer lacks; `None`: no newcomer is on its way.
    pub fn lacked_bytes(&self) -> Option<usize> {
        let lacked = self.lacked?;
        let count = (self.last() + 1).saturating_sub(lacked).min(self.kept.len() as u64);
        // An estimate: all rounds are taken to be equally long.
        Some(if count == 0 { 0 } else { (self.kept_bytes as u128 * u128::from(count) / self.kept.len() as u128) as usize })
    }

    /// Whether nothing is lacked any more: the log tells this replica of rounds, and all before those are known.
    pub fn is_level(&self) -> bool {
        self.heard && self.early.is_empty()
    }

    /// Takes the round of this number from the log. A round that is known already is skipped.
    pub fn take(&mut self, number: u64, bytes: &[u8]) {
        self.heard = true;
        self.learn(number, bytes);
    }

    fn learn(&mut self, number: u64, bytes: &[u8]) {
        if number <= self.last() || self.early.contains_key(&number) {
            return;
        }
        self.early.insert(number, bytes.into());
        while let Some(round) = self.early.remove(&(self.last() + 1)) {
            self.keep(Rc::clone(&round));
            self.queue.push_back(round);
        }
    }

    /// Takes a round that this replica has proposed and gives to its server itself.
    ///
    /// # Panics
    /// When the round does not follow on what is known, or the server has not executed everything before it.
    pub fn take_own(&mut self, number: u64, bytes: &[u8]) {
        assert!(
            self.queue.is_empty() && self.early.is_empty() && number == self.next,
            "round {number} of its own, where {} is next",
            self.next
        );
        self.keep(bytes.into());
        self.next += 1;
    }

    /// A newcomer is on its way that lacks the rounds from this one on; `None`: there is no newcomer.
    pub fn expect(&mut self, lacked: Option<u64>) {
        self.lacked = lacked;
    }

    fn keep(&mut self, round: Rc<[u8]>) {
        // The number of the first round that is kept.
        let mut number = self.last() + 1 - self.kept.len() as u64;
        self.kept_bytes += round.len();
        self.kept.push_back(round);
        while let Some(first) = self.kept.front() {
            let wanted = if self.lacked.is_some_and(|lacked| lacked <= number) { MOST_KEPT_BYTES } else { KEPT_BYTES };
            if self.kept_bytes - first.len() < wanted {
                break;
            }
            self.kept_bytes -= first.len();
            self.kept.pop_front();
            number += 1;
        }
    }

    /// The number of the next round for the server, if it is known.
    pub fn upcoming(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(self.next)
    }

    /// The next round for the server.
    pub fn next(&mut self) -> Option<Rc<[u8]>> {
        let round = self.queue.pop_front()?;
        self.next += 1;
        Some(round)
    }

    /// Appends the rounds from number `cursor` on, about `budget` bytes of them. Returns the number of the next round that this replica knows, or `None` when
    /// there is none.
    ///
    /// It includes rounds that wait for others: so the pupil lacks no more than its teacher does.
    pub fn part(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let (start, first) = (out.len(), self.last() + 1 - self.kept.len() as u64);
        let skipped = cursor.saturating_sub(first).min(self.kept.len() as u64) as usize;
        let kept = (first..).zip(&self.kept).skip(skipped);
        let mut rounds = kept.chain(self.early.range(cursor..).map(|(number, round)| (*number, round)));
        while let Some((_, round)) = rounds.next() {
            out.extend_from_slice(&(round.len() as u32).to_le_bytes());
            out.extend_from_slice(round);
            if out.len() - start >= budget {
                return rounds.next().map(|(number, _)| number);
            }
        }
        None
    }

    /// Takes what [`part`](Replay::part) wrote.
    ///
    /// # Errors
    /// When the bytes are not such a part. All rounds before the fault have been taken.
    pub fn install(&mut self, mut part: &[u8]) -> Result<(), UnreadablePart> {
        self.taught = true;
        let mut follows = true;
        while !part.is_empty() {
            let (len, rest) = part.split_first_chunk::<4>().ok_or(UnreadablePart)?;
            let (round, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(UnreadablePart)?;
            let Ok(Entry::Round(header)) = Entry::decode(round) else { return Err(UnreadablePart) };
            follows &= header.number <= self.last() + 1;
            self.learn(header.number, round);
            part = rest;
        }
        self.lessons += u64::from(follows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Stamp, Writer};

    fn round(number: u64) -> Vec<u8> {
        let mut memory = vec![0; 64];
        let len = Writer::new(&mut memory, number, Stamp::default()).len();
        memory.truncate(len);
        memory
    }

    fn numbers(replay: &mut Replay) -> Vec<u64> {
        std::iter::from_fn(|| replay.next())
            .map(|bytes| match Entry::decode(&bytes) {
                Ok(Entry::Round(round)) => round.number,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn rounds_are_executed_once_and_in_order_however_they_come() {
        let mut replay = Replay::new();
        for number in [2, 1, 1, 4, 3, 2] {
            replay.take(number, &round(number));
        }
        assert!(!replay.has_gap());
        replay.take(6, &round(6));
        assert!(replay.has_gap());
        assert_eq!(replay.upcoming(), Some(1));
        assert_eq!((numbers(&mut replay), replay.upcoming()), (vec![1, 2, 3, 4], None));
        replay.take(5, &round(5));
        assert_eq!(numbers(&mut replay), [5, 6]);
        replay.take_own(7, &round(7));
        assert_eq!((replay.last(), numbers(&mut replay)), (7, vec![]));
    }

    #[test]
    fn a_fork_is_taught_what_it_lacks() {
        let (mut teacher, mut fork) = (Replay::new(), Replay::new());
        for number in 1..=3 {
            teacher.take(number, &round(number));
            fork.take(number, &round(number));
        }
        assert_eq!(numbers(&mut fork), [1, 2, 3]);
        fork.fork();
        numbers(&mut teacher);
        (4..=9).for_each(|number| teacher.take_own(number, &round(number)));
        assert!(!fork.is_level(), "it does not know what it lacks");
        // Meanwhile the log goes on.
        fork.take(10, &round(10));
        assert!(!fork.is_level());
        let (mut cursor, mut parts) = (Some(0), 0);
        while let Some(at) = cursor {
            let mut part = Vec::new();
            cursor = teacher.part(at, 40, &mut part);
            assert_eq!(fork.install(&part), Ok(()));
            parts += 1;
        }
        assert!(parts > 1 && fork.is_level() && fork.is_taught());
        assert_eq!(numbers(&mut fork), [4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_fork_from_before_what_is_kept_has_a_gap() {
        let mut teacher = Replay::new();
        let mut long = vec![0; 1 << 20];
        for number in 1..=40 {
            let len = long_round(&mut long, number);
            teacher.take_own(number, &long[..len]);
        }
        let mut part = Vec::new();
        assert_eq!(teacher.part(0, usize::MAX, &mut part), None);
        assert!(part.len() > KEPT_BYTES && part.len() < KEPT_BYTES + (1 << 20));
        let mut fork = Replay::new();
        assert_eq!(fork.install(&part), Ok(()));
        assert!(fork.has_gap());
        assert_eq!(numbers(&mut fork), []);
        // Where one is expected, all that it lacks is kept, and no longer than it is.
        for (expected, first) in [(Some(41), 41), (None, 81 + 40 - 32)] {
            teacher.expect(expected);
            let from = teacher.last() + 1;
            for number in from..from + 40 {
                let len = long_round(&mut long, number);
                teacher.take_own(number, &long[..len]);
            }
            let mut part = Vec::new();
            assert_eq!(teacher.part(0, 1, &mut part), Some(first + 1));
        }
    }

    #[test]
    fn what_is_known_already_is_a_lesson_and_what_leaves_a_gap_is_none() {
        let (mut teacher, mut fork) = (Replay::new(), Replay::new());
        for number in 1..=9 {
            teacher.take_own(number, &round(number));
        }
        let part = |teacher: &Replay, from: u64| {
            let mut part = Vec::new();
            teacher.part(from, 1, &mut part);
            part
        };
        // A lesson that was meant for another replica, which lacks more.
        (1..=3).for_each(|number| fork.take(number, &round(number)));
        for (from, last, lessons) in [(1, 3, 1), (2, 3, 2), (4, 4, 3), (7, 4, 3), (5, 5, 4)] {
            assert_eq!(fork.install(&part(&teacher, from)), Ok(()));
            assert_eq!((fork.last(), fork.lessons()), (last, lessons), "from {from} on");
        }
        // What a newcomer lacks, in bytes.
        assert_eq!(teacher.lacked_bytes(), None);
        for (lacked, rounds) in [(10, 0), (9, 1), (4, 6), (1, 9)] {
            teacher.expect(Some(lacked));
            assert_eq!(teacher.lacked_bytes(), Some(rounds * round(1).len()));
        }
    }

    /// Teaches `pupil` from the round `cursor` on, a part a round.
    fn teach(teacher: &Replay, pupil: &mut Replay, cursor: u64) {
        let mut next = Some(cursor);
        while let Some(at) = next {
            let mut part = Vec::new();
            next = teacher.part(at, 1, &mut part);
            assert_eq!(pupil.install(&part), Ok(()));
        }
    }

    #[test]
    fn what_another_newcomer_lacks_is_no_reason_to_skip_rounds() {
        let (mut teacher, mut pupil) = (Replay::new(), Replay::new());
        (1..=9).for_each(|number| teacher.take_own(number, &round(number)));
        (1..=3).for_each(|number| pupil.take(number, &round(number)));
        teacher.expect(Some(7));
        teach(&teacher, &mut pupil, 0);
        assert_eq!((pupil.last(), pupil.has_gap()), (9, false));
    }

    #[test]
    fn one_that_lacks_rounds_teaches_all_that_it_knows() {
        let (mut teacher, mut pupil) = (Replay::new(), Replay::new());
        [1, 2, 3, 5, 6, 7, 9].into_iter().for_each(|number| teacher.take(number, &round(number)));
        [1, 2, 3, 4, 8].into_iter().for_each(|number| pupil.take(number, &round(number)));
        teach(&teacher, &mut pupil, 0);
        assert_eq!((pupil.last(), pupil.has_gap()), (9, false));
        let mut part = Vec::new();
        assert_eq!((teacher.part(6, 1, &mut part), teacher.part(8, 1, &mut part), teacher.part(10, 1, &mut part)), (Some(7), None, None));
    }

    #[test]
    fn one_that_is_taught_again_lacks_rounds_until_the_log_tells_it_of_one() {
        let mut pupil = Replay::new();
        (1..=3).for_each(|number| pupil.take(number, &round(number)));
        assert!(pupil.is_level() && !pupil.take_pupil());
        pupil.begin_lesson();
        assert!(!pupil.is_level() && !pupil.is_taught() && pupil.take_pupil() && !pupil.take_pupil());
        let mut teacher = Replay::new();
        (1..=5).for_each(|number| teacher.take_own(number, &round(number)));
        teach(&teacher, &mut pupil, 0);
        assert!(pupil.is_taught() && !pupil.is_level(), "more may be lacking");
        pupil.take(6, &round(6));
        assert_eq!((pupil.is_level(), pupil.last()), (true, 6));
    }

    fn long_round(long: &mut [u8], number: u64) -> usize {
        let mut writer = Writer::new(long, number, Stamp::default());
        writer.begin_input(0, 1, 0, 1 << 19, 0).expect("room");
        writer.end_input(1 << 19, crate::entry::End::Open);
        writer.len()
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let mut replay = Replay::new();
        for bytes in [&b"abc"[..], &[9, 0, 0, 0, 1], &[2, 0, 0, 0, 7, 7]] {
            assert_eq!(replay.install(bytes), Err(UnreadablePart));
        }
        assert_eq!(replay.last(), 0);
    }
}

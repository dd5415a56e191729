//! The receiver's half.

use martlet_fabric::ring::{self, Reader};
use martlet_fabric::{Memory, PeerId};

use super::TransferKind;
use crate::basics::{LogIndex, Time};
use crate::replica::StateMachine;
use crate::replica::backlog::{Content, HEADER_BYTES};
use crate::replica::entries::Mark;
use crate::replica::group::Group;
use crate::replica::part::Part;
use crate::replica::patience::discounted;
use crate::replica::record::{self, Header, LaneFault};

/// What has arrived of a state.
#[derive(Debug, Default)]
pub struct Received {
    /// The last entry that the machine shows, once the transfer has begun.
    pub at: Option<Mark>,
    /// The group there.
    pub group: Group,
    part: Part,
    /// Every part has arrived.
    whole: bool,
    /// What the sender has said to be committed.
    pub committed: LogIndex,
}

impl Received {
    /// The transfer begins, at `index` and `position`, with this encoded group.
    ///
    /// # Errors
    /// When that is no group.
    pub fn begin<K, S: StateMachine>(&mut self, at: Mark, group: &[u8], machine: &mut S) -> Result<(), LaneFault<K>> {
        self.group = Group::decode(group).ok_or(LaneFault::Body)?;
        machine.clear();
        self.part.clear();
        (self.at, self.whole) = (Some(at), false);
        Ok(())
    }

    /// Takes a record that follows the begin. `log_bytes`: the size of all logs.
    ///
    /// # Errors
    /// When it makes no sense here.
    pub fn take<K: TransferKind, S: StateMachine>(
        &mut self,
        header: &Header<K>,
        body: &[u8],
        log_bytes: u64,
        machine: &mut S,
    ) -> Result<(), LaneFault<K>> {
        let kind = header.kind;
        let Some(at) = &mut self.at else { return Err(LaneFault::Order(kind)) };
        self.committed = self.committed.max(header.committed());
        if kind == K::PART && !self.whole {
            return Ok(self.part.take(body, header.count > 0, machine)?);
        }
        // No other record comes between the fragments of a part.
        if self.part.is_open() {
            return Err(LaneFault::Order(kind));
        }
        if kind == K::END {
            self.whole = true;
        } else if kind.is_entry() && (K::CONTINUES || !self.whole) {
            K::check(header, body)?;
            if header.index != at.index.next() {
                return Err(LaneFault::Index { expected: at.index.next(), found: header.index });
            }
            match kind.content() {
                Some(Content::Group) => self.group = Group::decode(body).ok_or(LaneFault::Body)?,
                Some(Content::Commands) => {
                    for (command, index) in record::commands(body).zip(header.index.0..) {
                        machine.apply(LogIndex(index), command?);
                    }
                }
                None => {}
            }
            // Where the record ends in every log that has it; where it was sent it has another position.
            let position = ring::position_after(at.position, HEADER_BYTES + body.len(), log_bytes);
            *at = Mark { index: header.last(), position };
        } else if kind != K::FLUSH {
            return Err(LaneFault::Order(kind));
        }
        Ok(())
    }
}

/// A request for the state, and how far it has been fulfilled.
#[derive(Debug)]
pub struct Learning {
    /// The replica that was asked.
    pub teacher: PeerId,
    /// The request's number.
    pub request: u64,
    /// When the teacher was last heard.
    pub heard: Time,
    /// What it has sent.
    pub received: Received,
    /// The highest number under which it has sent records.
    pub number: u64,
    /// The highest number that was known here when the request was made.
    pub known: u64,
    /// The teacher has given up, or made no sense.
    pub broken: bool,
    /// How many transfers in a row have made no sense, up to and including this one.
    pub refusals: u32,
}

impl Learning {
    /// A new request, after this earlier one.
    pub fn new(now: Time, teacher: PeerId, request: u64, known: u64, earlier: Option<&Learning>) -> Learning {
        let refusals = earlier.map_or(0, |earlier| earlier.refusals);
        Learning { teacher, request, heard: now, received: Received::default(), number: 0, known, broken: false, refusals }
    }

    /// This process was itself stalled for `gap_ns`, which does not count as waiting.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.heard = discounted(self.heard, gap_ns, now);
    }

    /// The last entry that the machine shows, once it shows the whole state.
    pub fn done(&self) -> Option<Mark> {
        self.received.at.filter(|_| self.received.whole && !self.broken)
    }

    /// Whether it does, and all that it shows is known to be committed.
    pub fn is_committed(&self) -> bool {
        self.done().is_some_and(|at| at.index <= self.received.committed)
    }

    /// Takes the records that have arrived in the teacher's lane. Returns whether there were any, and what was wrong with the last one. `log_bytes`: the size of
    /// all logs. `is_plausible`: whether a number is, given the second one.
    #[allow(clippy::too_many_arguments, reason = "where the records are, and what they are for")]
    pub fn take_from<K: TransferKind, S: StateMachine>(
        &mut self,
        now: Time,
        lane: &Memory,
        reader: &mut Reader,
        buffer: &mut Vec<u8>,
        log_bytes: u64,
        is_plausible: fn(u64, u64) -> bool,
        machine: &mut S,
    ) -> (bool, Option<LaneFault<K>>) {
        let (mut any, mut fault) = (false, None);
        // A state that is not continued is complete as soon as all of it is known to be committed.
        while !self.broken && (K::CONTINUES || !self.is_committed()) && reader.next(lane, buffer) {
            (any, self.heard) = (true, now);
            fault = self.take(buffer, log_bytes, is_plausible, machine).err();
            if fault.is_some() {
                self.broken = true;
                self.refusals += 1;
            }
        }
        reader.publish(lane);
        (any, fault)
    }

    /// Takes one record.
    fn take<K: TransferKind, S: StateMachine>(
        &mut self,
        payload: &[u8],
        log_bytes: u64,
        is_plausible: fn(u64, u64) -> bool,
        machine: &mut S,
    ) -> Result<(), LaneFault<K>> {
        let (header, body) = Header::<K>::decode(payload)?;
        let begins = header.kind == K::BEGIN;
        if begins || header.kind == K::BREAK {
            let (position, body) = if begins { record::split_position(body)? } else { (0, body) };
            let (request, group) = body.split_first_chunk().ok_or(LaneFault::Body)?;
            if u64::from_le_bytes(*request) != self.request {
                return Ok(()); // of an earlier request
            }
            if begins {
                return self.received.begin(Mark { index: header.index, position }, group, machine);
            }
            self.broken = true;
            return Ok(());
        }
        if self.received.at.is_none() {
            return Ok(());
        }
        if !is_plausible(header.number, self.known) {
            return Err(LaneFault::Range);
        }
        self.number = self.number.max(header.number);
        self.received.take(&header, body, log_bytes, machine)
    }

    /// Whether a further request has to wait, since what was sent made no sense. Another teacher's state may; if no state does, or there is no other teacher
    /// than `next`, requests are slowed down, so that they are not repeated at the speed of the fabric.
    pub fn delays(&self, now: Time, next: Option<PeerId>, patience_ns: u64) -> bool {
        (self.refusals > 1 || self.refusals == 1 && Some(self.teacher) == next) && now.since(self.heard) <= patience_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ProcessId;
    use crate::replica::record::RecordKind;
    use crate::replica::{PartFault, UnreadablePart};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind<const CONTINUES: bool> {
        Commands = 1,
        Group,
        Begin,
        Part,
        End,
        Flush,
        Break,
    }

    impl<const CONTINUES: bool> RecordKind for Kind<CONTINUES> {
        const ALL: &'static [Self] = &[Self::Commands, Self::Group, Self::Begin, Self::Part, Self::End, Self::Flush, Self::Break];

        fn is_entry(self) -> bool {
            self.content().is_some()
        }

        fn content(self) -> Option<Content> {
            match self {
                Self::Commands => Some(Content::Commands),
                Self::Group => Some(Content::Group),
                _ => None,
            }
        }

        fn byte(self) -> u8 {
            self as u8
        }
    }

    impl<const CONTINUES: bool> TransferKind for Kind<CONTINUES> {
        const BEGIN: Self = Self::Begin;
        const PART: Self = Self::Part;
        const END: Self = Self::End;
        const FLUSH: Self = Self::Flush;
        const BREAK: Self = Self::Break;
        const CONTINUES: bool = CONTINUES;
    }

    /// Accepts every part except 7.
    #[derive(Debug, Default)]
    struct Fussy {
        applied: u64,
    }

    impl StateMachine for Fussy {
        fn apply(&mut self, _: LogIndex, _: &[u8]) {
            self.applied += 1;
        }

        fn transfer(&self, _: u64, _: usize, _: &mut Vec<u8>) -> Option<u64> {
            None
        }

        fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
            if part.contains(&7) { Err(UnreadablePart) } else { Ok(()) }
        }

        fn clear(&mut self) {
            self.applied = 0;
        }

        fn digest(&self) -> u64 {
            self.applied
        }
    }

    const REQUEST: u64 = 3;
    const LOG_BYTES: u64 = 4096;

    fn learning() -> Learning {
        Learning::new(Time(0), PeerId(1), REQUEST, 1 << 20, None)
    }

    fn record(kind: Kind<true>, count: u32, index: u64, body: &[u8]) -> Vec<u8> {
        let header = Header { kind, count, number: 1, index: LogIndex(index), beside: 9 };
        [&header.bytes()[..], body].concat()
    }

    fn begin(position: u64, request: u64) -> Vec<u8> {
        let mut body = Vec::new();
        record::begin_body(position, request, &Group::new(vec![ProcessId::default()]), &mut body);
        record(Kind::Begin, 0, 9, &body)
    }

    fn take<const CONTINUES: bool>(learning: &mut Learning, payload: &[u8]) -> Result<(), LaneFault<Kind<CONTINUES>>> {
        learning.take(payload, LOG_BYTES, |number, known| number <= known, &mut Fussy::default())
    }

    #[test]
    fn a_transfer_begins_where_a_record_can_stand() {
        for position in [8, 1 << 62, u64::MAX - 15] {
            let mut learning = learning();
            assert_eq!(take::<true>(&mut learning, &begin(position, REQUEST)), Err(LaneFault::Body), "{position}");
            assert_eq!(learning.received.at, None);
        }
        let mut learning = learning();
        assert_eq!(take::<true>(&mut learning, &begin(160, REQUEST - 1)), Ok(()));
        assert_eq!(learning.received.at, None, "it fulfils an earlier request");
        assert_eq!(take::<true>(&mut learning, &begin(160, REQUEST)), Ok(()));
        assert_eq!(learning.received.at, Some(Mark { index: LogIndex(9), position: 160 }));
        for (request, broken) in [(REQUEST - 1, false), (REQUEST, true)] {
            assert_eq!(take::<true>(&mut learning, &record(Kind::Break, 0, 0, &request.to_le_bytes())), Ok(()));
            assert_eq!(learning.broken, broken);
        }
    }

    #[test]
    fn a_number_that_is_not_plausible_is_refused() {
        let mut learning = learning();
        take::<true>(&mut learning, &begin(0, REQUEST)).expect("it begins");
        for (number, taken) in [(1 << 20, Ok(())), ((1 << 20) + 1, Err(LaneFault::Range))] {
            let header = Header { kind: Kind::<true>::Flush, count: 0, number, index: LogIndex(9), beside: 9 };
            assert_eq!(take::<true>(&mut learning, &header.bytes()), taken);
        }
        assert_eq!(learning.number, 1 << 20);
    }

    #[test]
    fn a_part_without_end_is_refused_and_one_that_is_none() {
        let mut learning = learning();
        learning.received.part = Part::of_at_most(40);
        take::<true>(&mut learning, &begin(0, REQUEST)).expect("it begins");
        for _ in 0..2 {
            assert_eq!(take::<true>(&mut learning, &record(Kind::Part, 1, 9, &[0; 20])), Ok(()));
            assert_eq!(take::<true>(&mut learning, &record(Kind::Part, 0, 9, &[0; 20])), Ok(()), "as long as a part may be");
        }
        assert_eq!(take::<true>(&mut learning, &record(Kind::Part, 1, 9, &[0; 40])), Ok(()));
        assert_eq!(take::<true>(&mut learning, &record(Kind::Part, 1, 9, &[0])), Err(PartFault::TooLong.into()));
        let unreadable = Err(PartFault::Unreadable(UnreadablePart).into());
        assert_eq!(take::<true>(&mut learning, &record(Kind::Part, 0, 9, &[7])), unreadable);
    }

    #[test]
    fn nothing_stands_within_a_part_but_the_beginning_of_another_transfer() {
        let mut learning = learning();
        take::<true>(&mut learning, &begin(0, REQUEST)).expect("it begins");
        for kind in [Kind::End, Kind::Flush, Kind::Commands] {
            assert_eq!(take(&mut learning, &record(Kind::Part, 1, 9, &[7; 20])), Ok::<(), LaneFault<Kind<true>>>(()));
            assert_eq!(take(&mut learning, &record(kind, 0, 9, &[])), Err(LaneFault::Order(kind)));
            assert_eq!(take::<true>(&mut learning, &begin(0, REQUEST)), Ok(()));
        }
        assert_eq!(take::<true>(&mut learning, &record(Kind::Part, 0, 9, &[0; 9])), Ok(()), "nothing is left of the earlier one");
    }

    #[test]
    fn entries_follow_the_end_only_where_a_transfer_goes_on() {
        let command = |index| record(Kind::Commands, 1, index, &[1, 0, 0, 0, 5]);
        let (mut goes_on, mut ends) = (learning(), learning());
        for payload in [begin(0, REQUEST), command(10), record(Kind::End, 0, 10, &[])] {
            assert_eq!(take::<true>(&mut goes_on, &payload), Ok(()));
            assert_eq!(take::<false>(&mut ends, &payload), Ok(()));
        }
        assert_eq!(goes_on.done().map(|at| at.index), Some(LogIndex(10)));
        assert!(!goes_on.is_committed(), "up to 9 only");
        assert_eq!(take::<true>(&mut goes_on, &command(12)), Err(LaneFault::Index { expected: LogIndex(11), found: LogIndex(12) }));
        assert_eq!(take::<true>(&mut goes_on, &command(11)), Ok(()));
        assert_eq!(take::<false>(&mut ends, &command(11)), Err(LaneFault::Order(Kind::Commands)));
        assert_eq!(take::<true>(&mut goes_on, &record(Kind::Part, 0, 11, &[])), Err(LaneFault::Order(Kind::Part)));
    }
}

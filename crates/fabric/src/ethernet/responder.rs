//! The serving half of a flow: a function of its state and one packet, without a timer. The asker does all the remembering, so any thread may be the
//! responder, one at a time.
//!
//! Parts are executed in the order of their numbers, each once. A part that arrives too early is kept. A part that arrives again only shows that an
//! answer to the asker was lost. A response says everything about the parts between what the asker has confirmed and `done`, or names a smaller
//! `done`. So any response may be lost, repeated or late.
//!
//! A READ of more than a word is executed again when it is asked for again, since its bytes are not remembered. The asker sends nothing after such a
//! READ before it has all of its bytes, so no READ sees the effect of what was posted after it.

use std::collections::{BTreeMap, VecDeque};

use super::canary::Canary;
use super::packet::{Act, Bytes, Grants, MAX_PART_BYTES, MAX_UNDER_WAY, Outcome, Part, Place, decode_request, encode_response};
use crate::contract::{Memory, RegionName};
use crate::primitive::{Ordering, fence, load_words, store_words};

/// The memory that one peer acts on.
pub(super) trait Regions {
    /// A public region of ours.
    fn public(&self, name: RegionName) -> Option<&Memory>;

    /// The lane of that name that we keep for the peer, and the lane's place among the peer's lanes.
    fn lane(&self, name: RegionName) -> Option<(usize, &Memory)>;

    /// Whether the peer may change this public region. A client may not change any, and nobody but us may change a region that we own.
    fn may_change_public(&self, name: RegionName) -> bool;
}

/// No process of ours sends such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The serving half of one flow.
#[derive(Debug)]
pub(super) struct Responder {
    /// The part to be executed next.
    next: u64,
    /// The asker knows the outcome of every part below this one.
    confirmed: u64,
    /// The outcomes of parts from `confirmed` on that did not simply take effect.
    results: VecDeque<(u64, Outcome)>,
    /// Parts that arrived too early, as they arrived.
    early: BTreeMap<u64, Vec<u8>>,
    /// READs that are to be answered.
    reads: Vec<(u64, Place)>,
    /// The epochs of our lanes. Odd: the peer may write.
    epochs: Box<[u32]>,
    owes: bool,
}

impl Responder {
    /// The responder of a fresh connection with `lanes` lanes, each of them granted.
    pub(super) fn new(lanes: usize) -> Responder {
        Responder {
            next: 1,
            confirmed: 1,
            results: VecDeque::new(),
            early: BTreeMap::new(),
            reads: Vec::new(),
            epochs: vec![1; lanes].into(),
            owes: false,
        }
    }

    /// Revokes the permission on a lane (`false`), or grants it again. Returns the new epoch.
    pub(super) fn change(&mut self, lane: usize, granted: bool) -> u32 {
        let epoch = &mut self.epochs[lane];
        let is = *epoch % 2 == 1;
        // Each grant and each revocation is a new epoch, even if the previous change was the same.
        *epoch += if is == granted { 2 } else { 1 };
        *epoch
    }

    /// Whether an answer is owed.
    pub(super) fn owes(&self) -> bool {
        self.owes
    }

    /// Takes the body of a request. `heard` gets what it says of the asker's own lanes before anything of it takes effect.
    pub(super) fn take(&mut self, body: &[u8], regions: &impl Regions, heard: impl FnOnce(Grants<'_>)) -> Result<(), Malformed> {
        let mut bytes = Bytes(body);
        let head = decode_request(&mut bytes).ok_or(Malformed)?;
        if head.confirmed > self.next {
            return Err(Malformed);
        }
        heard(head.grants);
        if head.confirmed > self.confirmed {
            self.confirmed = head.confirmed;
            self.results.retain(|(number, _)| *number >= head.confirmed);
        }
        self.owes = true;
        let mut number = head.first;
        while !bytes.0.is_empty() {
            let before = bytes.0;
            let part = Part::decode(&mut bytes).ok_or(Malformed)?;
            let encoded = &before[..before.len() - bytes.0.len()];
            if number >= self.confirmed + MAX_UNDER_WAY {
                return Err(Malformed);
            }
            if number == self.next {
                self.execute(number, part, regions)?;
                self.next += 1;
                self.execute_early(regions)?;
            } else if number > self.next {
                self.early.entry(number).or_insert_with(|| encoded.to_vec());
            } else {
                self.repeated(number, part, regions)?;
            }
            number += 1;
        }
        Ok(())
    }

    fn execute_early(&mut self, regions: &impl Regions) -> Result<(), Malformed> {
        while let Some(encoded) = self.early.remove(&self.next) {
            let part = Part::decode(&mut Bytes(&encoded)).expect("it was decoded before it was kept");
            self.execute(self.next, part, regions)?;
            self.next += 1;
        }
        Ok(())
    }

    /// A part that has already been executed has arrived again: its answer was lost, or is on its way.
    fn repeated(&mut self, number: u64, part: Part<'_>, regions: &impl Regions) -> Result<(), Malformed> {
        if Canary::ExecutedTwice.is_planted() && number >= self.confirmed {
            self.results.retain(|(of, _)| *of != number);
            return self.execute(number, part, regions);
        }
        if part.act == Act::Read && number >= self.confirmed {
            memory(part.place, regions)?;
            self.read(number, part.place);
        }
        Ok(())
    }

    fn read(&mut self, number: u64, place: Place) {
        if !self.reads.iter().any(|(of, _)| *of == number) {
            self.reads.push((number, place));
        }
    }

    fn execute(&mut self, number: u64, part: Part<'_>, regions: &impl Regions) -> Result<(), Malformed> {
        let (words, lane) = memory(part.place, regions)?;
        let allowed = match lane {
            Some(lane) => {
                let epoch = self.epochs[lane];
                let same = epoch == part.place.epoch || Canary::LateEpoch.is_planted();
                !part.act.changes() || (epoch % 2 == 1 && same)
            }
            None => !part.act.changes() || regions.may_change_public(part.place.region),
        };
        if !allowed {
            self.remember(number, Outcome::Refused);
            return Ok(());
        }
        match part.act {
            Act::Write(bytes) => write(words, bytes),
            Act::Read => self.read(number, part.place),
            Act::ReadWord => self.remember(number, Outcome::Word(words[0].load(Ordering::SeqCst))),
            Act::Swap { expected, new } => {
                let found = words[0].compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
                self.remember(number, Outcome::Word(found.unwrap_or_else(|found| found)));
            }
        }
        Ok(())
    }

    fn remember(&mut self, number: u64, outcome: Outcome) {
        if Canary::ForgottenRefusal.is_planted() && outcome == Outcome::Refused {
            return;
        }
        let at = self.results.partition_point(|(of, _)| *of < number);
        self.results.insert(at, (number, outcome));
    }

    /// Writes the bodies of the responses that are owed, one after another. For each, `begin` prepares the buffer, the body is appended to what it
    /// put there, and `emit` takes the buffer.
    pub(super) fn answer(
        &mut self,
        regions: &impl Regions,
        packet: &mut Vec<u8>,
        begin: impl Fn(&mut Vec<u8>),
        mut emit: impl FnMut(&mut Vec<u8>),
    ) {
        self.owes = false;
        let mut base = self.confirmed;
        let mut read = [0; MAX_PART_BYTES];
        // A READ that was executed is read only now, so what it reads may be newer than when it was executed. That is fine: the asker has nothing
        // under way after it.
        fence(Ordering::SeqCst);
        for (number, place) in std::mem::take(&mut self.reads) {
            let Ok((words, _)) = memory(place, regions) else { continue };
            let bytes = &mut read[..words.len() * 8];
            load_words(words, bytes);
            fence(Ordering::Acquire);
            begin(packet);
            // If the results fill the packet, the response names a small `done`, but what was read is valid all the same.
            self.encode((base, self.next), Some((number, bytes)), packet);
            emit(packet);
        }
        loop {
            begin(packet);
            let told = self.encode((base, self.next), None, packet);
            emit(packet);
            if told == self.next {
                return;
            }
            base = told;
        }
    }

    fn encode(&self, (base, done): (u64, u64), read: Option<(u64, &[u8])>, packet: &mut Vec<u8>) -> u64 {
        let results = self.results.iter().filter(|(number, _)| *number >= base).copied();
        encode_response((base, done), Ranges(self.early.keys().copied(), None), self.epochs.iter().copied(), results, read, packet)
    }
}

/// Numbers in order, as ranges.
struct Ranges<I>(I, Option<u64>);

impl<I: Iterator<Item = u64>> Iterator for Ranges<I> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let from = self.1.take().or_else(|| self.0.next())?;
        let mut to = from + 1;
        for number in self.0.by_ref() {
            if number != to {
                self.1 = Some(number);
                break;
            }
            to += 1;
        }
        Some((from, to))
    }
}

/// The words that a part addresses, and the place of the lane that they are in, if they are in one.
fn memory(place: Place, regions: &impl Regions) -> Result<(&Memory, Option<usize>), Malformed> {
    let (memory, lane) = if place.lane {
        regions.lane(place.region).map(|(lane, memory)| (memory, Some(lane)))
    } else {
        regions.public(place.region).map(|memory| (memory, None))
    }
    .ok_or(Malformed)?;
    let from = place.offset as usize;
    let words = memory.get(from..from + usize::from(place.words)).ok_or(Malformed)?;
    Ok((words, lane))
}

/// Stores the first word last, so that a reader that finds it finds the others.
fn write(words: &Memory, bytes: &[u8]) {
    // A reader that sees any word of this write also sees everything that was stored before it.
    fence(Ordering::Release);
    store_words(&words[1..], &bytes[8..]);
    words[0].store(u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_make_ranges() {
        let ranges = |numbers: &[u64]| Ranges(numbers.iter().copied(), None).collect::<Vec<_>>();
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[4]), [(4, 5)]);
        assert_eq!(ranges(&[4, 5, 7, 9, 10]), [(4, 6), (7, 8), (9, 11)]);
    }
}

//! The layout of packets. Numbers are little-endian.
//!
//! ```text
//! 0   1  layout, 0xE1                 clear, 16 bytes, all of it associated data
//! 1   1  kind: 1 request, 2 response, 3 datagram
//! 2   2  key epoch, its low bits
//! 4   4  the receiver's number for this flow
//! 8   8  counter, from 1 in each epoch
//! 16     sealed body, then 16 bytes of tag
//! ```
//!
//! | body | |
//! |---|---|
//! | request | number of its first part (8), number below which no result is needed any more (8), grants, parts |
//! | response | number from which it tells all (8), number below which all is done (8), held ranges, grants, results, one READ: its part's number (8), bytes |
//! | datagram | its number (4), which part (1) of how many (1), bytes |
//!
//! A *part* is one operation on the wire: a WRITE or a READ of up to [`MAX_PART_BYTES`], a READ of a word, or a compare-and-swap. The parts of each
//! flow are numbered from 1, and those of one request are consecutive.
//!
//! *Grants* are the epochs of the lanes that the sender keeps for the receiver, for those lanes whose epoch has ever changed: a count (1), then for
//! each a lane's place (1) and its epoch (4). Odd epochs mean granted, even ones revoked; a fresh lane is in epoch 1. Every packet carries them, so
//! none can be missed for good, and a process that has seen anything that an owner wrote after a change knows of the change.

use crate::contract::RegionName;
use crate::meeting::regions::MAX_REGIONS;

/// The version of this layout.
pub(super) const LAYOUT: u8 = 0xE1;
/// Bytes of the clear head.
pub(super) const HEAD: usize = 16;
/// Bytes of the tag.
pub(super) const TAG: usize = 16;
/// Bytes of the largest packet, except for requests on paths that carry more: what every IPv6 path carries in one piece, less the headers of IPv6 and
/// UDP.
pub(super) const MAX_PACKET: usize = 1_232;
/// Bytes of the largest packet that is ever sent or accepted. Two of them fit in one bundle.
pub(super) const LARGEST_PACKET: usize = 32_000;
/// Bytes of the largest body of a packet of [`MAX_PACKET`].
pub(super) const MAX_BODY: usize = MAX_PACKET - HEAD - TAG;
/// The most bytes that one part writes or reads. It leaves room for the grants of all lanes.
pub(super) const MAX_PART_BYTES: usize = 1_000;
/// How many parts may be under way. A responder remembers this many results, and keeps this many parts that arrived too early.
pub(super) const MAX_UNDER_WAY: u64 = 256;
/// The highest number that a part can have. No flow gets there, and adding to a number that arrived in a packet cannot overflow.
const LAST_PART: u64 = u64::MAX / 2;
/// The most held ranges that a response names.
const MAX_RANGES: usize = 4;
/// The most bytes of a datagram that one packet carries.
pub(super) const MAX_DATAGRAM_PART: usize = MAX_BODY - 6;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request = 1,
    Response = 2,
    Datagram = 3,
}

/// The clear part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// The low bits of the key epoch.
    pub(super) epoch: u16,
    /// The receiver's number for the flow.
    pub(super) flow: u32,
    pub(super) counter: u64,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        out[0] = LAYOUT;
        out[1] = self.kind as u8;
        out[2..4].copy_from_slice(&self.epoch.to_le_bytes());
        out[4..8].copy_from_slice(&self.flow.to_le_bytes());
        out[8..].copy_from_slice(&self.counter.to_le_bytes());
        out
    }

    /// Decodes the head of a packet that is long enough to have a body; `None` for what no process of ours sends.
    pub(super) fn decode(packet: &[u8]) -> Option<Head> {
        let (head, rest) = packet.split_first_chunk::<HEAD>()?;
        let kind = match head[1] {
            1 => Kind::Request,
            2 => Kind::Response,
            3 => Kind::Datagram,
            _ => return None,
        };
        let mut bytes = Bytes(&head[2..]);
        let head = Head { kind, epoch: bytes.u16()?, flow: bytes.u32()?, counter: bytes.u64()? };
        (packet[0] == LAYOUT && rest.len() >= TAG && packet.len() <= LARGEST_PACKET).then_some(head)
    }
}

/// Takes a body apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        Some(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Where a part acts in the receiver's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Whether the place is in the lane of that name that the receiver keeps for the sender, rather than in the public region.
    pub(super) lane: bool,
    pub(super) region: RegionName,
    /// In words.
    pub(super) offset: u32,
    /// In words; at least 1.
    pub(super) words: u16,
    /// For a change in a lane, the only epoch in which it may take effect. Otherwise 0, and not on the wire.
    pub(super) epoch: u32,
}

/// What a part does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act<'a> {
    Write(&'a [u8]),
    Read,
    ReadWord,
    Swap { expected: u64, new: u64 },
}

impl Act<'_> {
    pub(super) fn changes(&self) -> bool {
        matches!(self, Act::Write(_) | Act::Swap { .. })
    }
}

/// One operation on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) place: Place,
    pub(super) act: Act<'a>,
}

/// Bytes of the head of every part.
const PART_HEAD: usize = 8;
const LANE: u8 = 0x80;

impl<'a> Part<'a> {
    /// Bytes on the wire.
    pub(super) fn len(&self) -> usize {
        let act = match self.act {
            Act::Write(bytes) => bytes.len(),
            Act::Swap { .. } => 16,
            Act::Read | Act::ReadWord => 0,
        };
        PART_HEAD + if self.has_epoch() { 4 } else { 0 } + act
    }

    fn has_epoch(&self) -> bool {
        self.place.lane && self.act.changes()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.act {
            Act::Write(_) => 1,
            Act::Read => 2,
            Act::ReadWord => 3,
            Act::Swap { .. } => 4,
        };
        out.extend([if self.place.lane { kind | LANE } else { kind }, self.place.region.0]);
        out.extend_from_slice(&self.place.words.to_le_bytes());
        out.extend_from_slice(&self.place.offset.to_le_bytes());
        if self.has_epoch() {
            out.extend_from_slice(&self.place.epoch.to_le_bytes());
        }
        match self.act {
            Act::Write(bytes) => out.extend_from_slice(bytes),
            Act::Swap { expected, new } => {
                out.extend_from_slice(&expected.to_le_bytes());
                out.extend_from_slice(&new.to_le_bytes());
            }
            Act::Read | Act::ReadWord => {}
        }
    }

    /// The next part; `None` for what no process of ours sends.
    pub(super) fn decode(bytes: &mut Bytes<'a>) -> Option<Part<'a>> {
        let (kind, region) = (bytes.u8()?, RegionName(bytes.u8()?));
        let (words, offset) = (bytes.u16()?, bytes.u32()?);
        let lane = kind & LANE != 0;
        let changes = matches!(kind & !LANE, 1 | 4);
        let epoch = if lane && changes { bytes.u32()? } else { 0 };
        let len = usize::from(words) * 8;
        if len == 0 || len > MAX_PART_BYTES {
            return None;
        }
        let act = match (kind & !LANE, words) {
            (1, _) => Act::Write(bytes.take(len)?),
            (2, _) => Act::Read,
            (3, 1) => Act::ReadWord,
            (4, 1) => Act::Swap { expected: bytes.u64()?, new: bytes.u64()? },
            _ => return None,
        };
        Some(Part { place: Place { lane, region, offset, words, epoch }, act })
    }
}

/// Appends the epochs of the lanes that have changed.
fn encode_grants(epochs: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    let count_at = out.len();
    out.push(0);
    for (lane, epoch) in epochs.enumerate().filter(|(_, epoch)| *epoch > 1) {
        out.push(lane as u8);
        out.extend_from_slice(&epoch.to_le_bytes());
        out[count_at] += 1;
    }
}

fn decode_grants<'a>(bytes: &mut Bytes<'a>) -> Option<Grants<'a>> {
    let count = usize::from(bytes.u8()?);
    if count > MAX_REGIONS {
        return None;
    }
    Some(Grants(bytes.take(count * 5)?))
}

/// The epochs that a packet tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grants<'a>(&'a [u8]);

impl Grants<'_> {
    /// The places of the lanes, and their epochs.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.0.as_chunks::<5>().0.iter().map(|[lane, a, b, c, d]| (usize::from(*lane), u32::from_le_bytes([*a, *b, *c, *d])))
    }
}

/// The head of a request; its parts follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestHead<'a> {
    /// The number of its first part.
    pub(super) first: u64,
    /// The sender knows the outcome of every part below this number.
    pub(super) confirmed: u64,
    pub(super) grants: Grants<'a>,
}

/// Begins the body of a request, after whatever `out` already holds.
pub(super) fn begin_request(first: u64, confirmed: u64, epochs: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&confirmed.to_le_bytes());
    encode_grants(epochs, out);
}

/// Reads the head of a request; its parts are what is left of `bytes`.
pub(super) fn decode_request<'a>(bytes: &mut Bytes<'a>) -> Option<RequestHead<'a>> {
    let (first, confirmed) = (bytes.u64()?, bytes.u64()?);
    let grants = decode_grants(bytes)?;
    let plausible = confirmed >= 1 && first >= confirmed && first - confirmed < MAX_UNDER_WAY && first <= LAST_PART;
    plausible.then_some(RequestHead { first, confirmed, grants })
}

/// What became of a part, unless it simply took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The word that was read, or found by a compare-and-swap.
    Word(u64),
    /// It would have changed something without permission.
    Refused,
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response<'a> {
    /// The response tells everything about the parts from this number on.
    pub(super) base: u64,
    /// Parts below this number are done.
    pub(super) done: u64,
    ranges: &'a [u8],
    pub(super) grants: Grants<'a>,
    results: &'a [u8],
    /// The number of a READ part, and what it read.
    pub(super) read: Option<(u64, &'a [u8])>,
}

/// Bytes of a result: the distance of its number from the base, its kind, its word.
const RESULT: usize = 10;

impl Response<'_> {
    /// The ranges of parts beyond `done` that have arrived, as numbers: first, and end (exclusive).
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.as_chunks::<4>().0.iter().map(|[a, b, c, d]| {
            let from = self.base + u64::from(u16::from_le_bytes([*a, *b]));
            (from, from + u64::from(u16::from_le_bytes([*c, *d])))
        })
    }

    /// The outcomes of parts that did not simply take effect, in the order of their numbers.
    pub(super) fn results(&self) -> impl Iterator<Item = (u64, Outcome)> + '_ {
        self.results.as_chunks::<RESULT>().0.iter().map(|[at, kind, word @ ..]| {
            let outcome = if *kind == 0 { Outcome::Refused } else { Outcome::Word(u64::from_le_bytes(*word)) };
            (self.base + u64::from(*at), outcome)
        })
    }
}

/// Writes a response with as many results as it has room for. It may therefore name a smaller `done` than it was given; it returns the one that it
/// named.
pub(super) fn encode_response(
    (base, done): (u64, u64),
    held: impl Iterator<Item = (u64, u64)>,
    epochs: impl Iterator<Item = u32>,
    results: impl Iterator<Item = (u64, Outcome)>,
    read: Option<(u64, &[u8])>,
    out: &mut Vec<u8>,
) -> u64 {
    let start = out.len();
    out.extend_from_slice(&base.to_le_bytes());
    let done_at = out.len();
    out.extend_from_slice(&done.to_le_bytes());
    let count_at = out.len();
    out.push(0);
    for (from, to) in held.take(MAX_RANGES) {
        out.extend_from_slice(&((from - base) as u16).to_le_bytes());
        out.extend_from_slice(&((to - from) as u16).to_le_bytes());
        out[count_at] += 1;
    }
    encode_grants(epochs, out);
    let room = MAX_BODY - read.map_or(0, |(_, bytes)| 8 + bytes.len());
    let count_at = out.len();
    out.push(0);
    let mut told = done;
    for (number, outcome) in results {
        if out.len() - start + RESULT > room || out[count_at] == u8::MAX {
            told = number;
            out[done_at..done_at + 8].copy_from_slice(&told.to_le_bytes());
            break;
        }
        let (kind, word) = match outcome {
            Outcome::Refused => (0, 0),
            Outcome::Word(word) => (1, word),
        };
        out.extend([(number - base) as u8, kind]);
        out.extend_from_slice(&word.to_le_bytes());
        out[count_at] += 1;
    }
    if let Some((number, bytes)) = read {
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(bytes);
    }
    told
}

/// Reads a response; `None` for what no process of ours sends.
pub(super) fn decode_response(body: &[u8]) -> Option<Response<'_>> {
    let mut bytes = Bytes(body);
    let (base, done) = (bytes.u64()?, bytes.u64()?);
    if base == 0 || done < base || done - base > MAX_UNDER_WAY || done > LAST_PART {
        return None;
    }
    let count = usize::from(bytes.u8()?);
    if count > MAX_RANGES {
        return None;
    }
    let ranges = bytes.take(count * 4)?;
    let grants = decode_grants(&mut bytes)?;
    let count = usize::from(bytes.u8()?);
    let results = bytes.take(count * RESULT)?;
    let in_order = results.as_chunks::<RESULT>().0.windows(2).all(|two| two[0][0] < two[1][0]);
    let within = results.as_chunks::<RESULT>().0.iter().all(|result| result[1] <= 1 && base + u64::from(result[0]) < done);
    if !in_order || !within {
        return None;
    }
    let read = match bytes.0 {
        [] => None,
        _ => {
            let number = bytes.u64()?;
            let read = bytes.0;
            if read.is_empty() || !read.len().is_multiple_of(8) || read.len() > MAX_PART_BYTES {
                return None;
            }
            Some((number, read))
        }
    };
    Some(Response { base, done, ranges, grants, results, read })
}

/// Bodies of packets, for the samples of encodings.
#[cfg(feature = "fuzzing")]
pub(super) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let place = |lane, words, epoch| Place { lane, region: RegionName(9), offset: 0x0102_0304, words, epoch };
    let mut request = Head { kind: Kind::Request, epoch: 3, flow: 0x0102_0304, counter: 5 }.encode().to_vec();
    begin_request(7, 6, [1, 4].into_iter(), &mut request);
    for (lane, words, epoch, act) in [
        (true, 2, 5, Act::Write(&[8; 16])),
        (false, 2, 0, Act::Read),
        (true, 1, 0, Act::ReadWord),
        (false, 1, 0, Act::Swap { expected: 1, new: 2 }),
    ] {
        Part { place: place(lane, words, epoch), act }.encode(&mut request);
    }
    let mut response = Vec::new();
    let results = [(6, Outcome::Word(9)), (8, Outcome::Refused)].into_iter();
    encode_response((6, 10), [(12, 14)].into_iter(), [1, 5].into_iter(), results, Some((9, &[3; 16])), &mut response);
    vec![("request", request), ("response", response)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response with a single result, the first one, and nothing else.
    fn response(base: u64, done: u64) -> Vec<u8> {
        let mut body = Vec::new();
        encode_response((base, done), std::iter::empty(), std::iter::empty(), [(base, Outcome::Word(7))].into_iter(), None, &mut body);
        body
    }

    #[test]
    fn a_number_that_nobody_can_have_reached_is_not_believed() {
        assert!(decode_response(&response(5, 6)).is_some());
        assert!(decode_response(&response(LAST_PART - 1, LAST_PART)).is_some());
        for base in [LAST_PART, u64::MAX - 1] {
            assert!(decode_response(&response(base, base + 1)).is_none(), "{base}");
        }
        for (first, plausible) in [(LAST_PART, true), (LAST_PART + 1, false), (u64::MAX, false)] {
            let mut packet = Vec::new();
            begin_request(first, first, std::iter::empty(), &mut packet);
            assert_eq!(decode_request(&mut Bytes(&packet)).is_some(), plausible, "{first}");
        }
    }
}

//! The records of engines that keep a log: their header, and what the kinds that every such engine has have in common.
//!
//! The payload of a record is a header of [`HEADER_BYTES`], four little-endian words, and then a body:
//!
//! | word | content |
//! |---|---|
//! | 0 | kind (bits 0 to 7), zero (8 to 31), count (32 to 63) |
//! | 1 | the number of the reign under which it was written: a proposal number, a term, a view, as the engine calls it |
//! | 2 | index: of its first entry; of records without entries, the last entry before them |
//! | 3 | `beside`: a further word of the engine; usually what its writer knew to be committed |
//!
//! The ring seals each record over its bytes, length and absolute position ([`martlet_fabric::ring`]). So what is decoded here was written by the process that
//! owns the writing end. It is checked all the same, and what makes no sense is a [`LaneFault`].

use std::fmt::Debug;

use super::PartFault;
use super::backlog::{self, COMMAND_HEADER_BYTES, Content, HEADER_BYTES};
use super::group::Group;
use crate::basics::{LogIndex, MAX_NUMBER, is_number};

/// The kinds of records that an engine has.
pub trait RecordKind: Copy + Debug + Eq + 'static {
    /// All kinds. The first has number 1 in the first word of a record, and so on.
    const ALL: &'static [Self];
    /// The highest number of a reign that there can be.
    const MOST: u64 = MAX_NUMBER;

    /// Whether it is part of the log.
    fn is_entry(self) -> bool;

    /// What such an entry holds, unless its content is specific to the engine.
    fn content(self) -> Option<Content>;

    /// Its number: its place in [`ALL`](RecordKind::ALL), from 1 on.
    fn byte(self) -> u8;

    /// The kind of this number.
    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).wrapping_sub(1)).copied().filter(|kind| kind.byte() == byte)
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<K> {
    /// What the record is.
    pub kind: K,
    /// How many entries, or what the kind says.
    pub count: u32,
    /// The number of the reign under which it was written.
    pub number: u64,
    /// See the [module](self).
    pub index: LogIndex,
    /// See the [module](self).
    pub beside: u64,
}

impl<K: RecordKind> Header<K> {
    /// As encoded in front of a body.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        let first = u64::from(self.kind.byte()) | (u64::from(self.count) << 32);
        for (word, into) in [first, self.number, self.index.0, self.beside].into_iter().zip(bytes.as_chunks_mut::<8>().0) {
            *into = word.to_le_bytes();
        }
        bytes
    }

    /// Appends the [`HEADER_BYTES`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// Splits a payload into header and body.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(payload: &[u8]) -> Result<(Header<K>, &[u8]), LaneFault<K>> {
        let (head, body) = payload.split_at_checked(HEADER_BYTES).ok_or(LaneFault::Short(payload.len()))?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let unknown = LaneFault::Kind { word: word(0), most: K::ALL.len() };
        let kind = K::of(word(0) as u8).filter(|_| word(0) & 0xffff_ff00 == 0).ok_or(unknown)?;
        let header = Header { kind, count: (word(0) >> 32) as u32, number: word(8), index: LogIndex(word(16)), beside: word(24) };
        if header.number > K::MOST || !is_number(header.index.0) || !is_number(header.beside) {
            return Err(LaneFault::Range);
        }
        Ok((header, body))
    }

    /// The last index of a record with entries.
    pub fn last(&self) -> LogIndex {
        LogIndex((self.index.0 + u64::from(self.count)).saturating_sub(1))
    }

    /// What its writer knew to be committed, in records whose other word says that.
    pub fn committed(&self) -> LogIndex {
        LogIndex(self.beside)
    }
}

/// Whether a record could begin there in a log.
pub fn is_position(position: u64) -> bool {
    position.is_multiple_of(16) && is_number(position)
}

/// Splits a body into the position that it begins with and the rest.
///
/// # Errors
/// When it begins with none.
pub fn split_position<K>(body: &[u8]) -> Result<(u64, &[u8]), LaneFault<K>> {
    let (position, rest) = body.split_first_chunk().ok_or(LaneFault::Body)?;
    Some((u64::from_le_bytes(*position), rest)).filter(|(position, _)| is_position(*position)).ok_or(LaneFault::Body)
}

/// Appends the body of the record that begins a state transfer: the position of the last entry that the state shows, the number of the wish that it fulfils,
/// and the group there.
pub fn begin_body(position: u64, wish: u64, group: &Group, out: &mut Vec<u8>) {
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(&wish.to_le_bytes());
    group.encode(out);
}

/// The commands of a body, in order.
pub fn commands<K>(body: &[u8]) -> impl Iterator<Item = Result<&[u8], LaneFault<K>>> {
    backlog::commands(body).map(|command| command.ok_or(LaneFault::Body))
}

/// Checks that a record with entries is what its header says. `is_own`: it is an entry specific to the engine, and valid as such.
///
/// # Errors
/// When it is not.
pub fn check_entries<K: RecordKind>(header: &Header<K>, body: &[u8], is_own: bool) -> Result<(), LaneFault<K>> {
    let sane = match header.kind.content() {
        Some(Content::Group) => header.count == 1 && Group::decode(body).is_some(),
        Some(Content::Commands) => {
            header.count > 0 && backlog::commands(body).try_fold(0, |n, command| command.map(|_| n + 1)) == Some(header.count)
        }
        None => is_own,
    };
    if sane && header.index.0 > 0 { Ok(()) } else { Err(LaneFault::Body) }
}

/// The longest command that fits into a payload.
pub const fn command_room(payload: usize) -> usize {
    payload - HEADER_BYTES - COMMAND_HEADER_BYTES
}

/// Why data in another process's memory, or from there, makes no sense although its seals hold. The reader takes nothing more from that lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneFault<K> {
    /// A record is shorter than its header.
    #[error("a record of {0} bytes is shorter than its header of {HEADER_BYTES}")]
    Short(usize),
    /// There is no such kind of record.
    #[error("a record's first word is {word:#x}; kinds are 1 to {most}, and bits 8 to 31 zero")]
    Kind {
        /// The word.
        word: u64,
        /// How many kinds there are.
        most: usize,
    },
    /// Numbers that no log reaches.
    #[error("a record's number, index or committed index is out of range")]
    Range,
    /// What follows the header is not what the header says.
    #[error("a record's body does not fit its header")]
    Body,
    /// A record of this kind must not be here.
    #[error("a record of kind {0:?} out of order")]
    Order(K),
    /// Its number is not the one expected here.
    #[error("a record of number {found} where {expected} was due")]
    Number {
        /// Due here.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// Its index is not the next one.
    #[error("a record of index {found} where {expected} was due")]
    Index {
        /// Due here.
        expected: LogIndex,
        /// As found.
        found: LogIndex,
    },
    /// It is elsewhere in its ring than in ours; the rings differ in size.
    #[error("a record that ends at {found} where {expected} was due: its log was of another size")]
    Position {
        /// Due here.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// It does not follow the entry before it here.
    #[error("a record that follows an entry of number {found} where the last one is of number {expected}")]
    Follows {
        /// The number of the last entry here.
        expected: u64,
        /// The number that the writer expected there.
        found: u64,
    },
    /// The log has no room for it, which its writer should have known.
    #[error("a record that the log has no room for")]
    Room,
    /// No record can begin there: its writer names no place in its lane.
    #[error("records are to begin at {0}, which is no place between two")]
    Start(u64),
    /// The log is to be cut off where no entry ends, or below what is committed.
    #[error("the log is to be cut off at {0}, where no entry ends that is not known to be committed")]
    Cut(u64),
    /// Records are said to reach up to there, and do not.
    #[error("records are said to stand up to {0}, and do not")]
    Tail(u64),
    /// A part of the state that cannot be taken.
    #[error(transparent)]
    Part(#[from] PartFault),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        Commands = 1,
        Group,
        Own,
        Flush,
    }

    impl RecordKind for Kind {
        const ALL: &'static [Kind] = &[Kind::Commands, Kind::Group, Kind::Own, Kind::Flush];
        const MOST: u64 = 1 << 45;

        fn byte(self) -> u8 {
            self as u8
        }

        fn is_entry(self) -> bool {
            self != Kind::Flush
        }

        fn content(self) -> Option<Content> {
            match self {
                Kind::Commands => Some(Content::Commands),
                Kind::Group => Some(Content::Group),
                _ => None,
            }
        }
    }

    #[test]
    fn headers_come_back_as_they_went() {
        for kind in Kind::ALL.iter().copied() {
            let header = Header { kind, count: 7, number: 1 << 40, index: LogIndex(9), beside: 8 };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes.push(3);
            assert_eq!(Header::decode(&bytes), Ok((header, &[3u8][..])));
            let beyond = Header { number: (1 << 45) + 1, ..header };
            assert_eq!(Header::<Kind>::decode(&beyond.bytes()), Err(LaneFault::Range));
        }
        let unknown = Header::<Kind>::decode(&[5; HEADER_BYTES]).expect_err("four kinds");
        assert_eq!(unknown.to_string(), "a record's first word is 0x505050505050505; kinds are 1 to 4, and bits 8 to 31 zero");
    }

    #[test]
    fn hostile_bytes_are_faults_and_not_panics() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..rng.usize(0..80)).map(|_| if rng.bool() { 0 } else { rng.u8(..) }).collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 6;
            }
            if let Ok((header, body)) = Header::<Kind>::decode(&bytes) {
                let _ = check_entries(&header, body, false);
            }
        }
        let header = Header { kind: Kind::Commands, count: 1, number: 1, index: LogIndex(1), beside: 0 };
        assert_eq!(check_entries(&header, &[200, 0, 0, 0, 1], false), Err(LaneFault::Body), "a length beyond the body");
        assert_eq!(check_entries(&header, &[], false), Err(LaneFault::Body), "fewer commands than counted");
        assert_eq!(check_entries(&header, &[1, 0, 0, 0, 1], false), Ok(()));
        assert_eq!(check_entries(&Header { index: LogIndex(0), ..header }, &[1, 0, 0, 0, 1], false), Err(LaneFault::Body));
        assert_eq!(check_entries(&Header { kind: Kind::Own, ..header }, &[], true), Ok(()), "as the engine says");
    }
}

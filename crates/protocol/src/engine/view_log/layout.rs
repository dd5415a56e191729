//! The content of a record in a log lane.
//!
//! A lane is a [`martlet_fabric::ring`] with one writer, the primary, and one reader, its owner. The payload of each record is a header of
//! [`HEADER_BYTES`], four little-endian words, and then bytes:
//!
//! | word | content |
//! |---|---|
//! | 0 | kind (bits 0 to 7), flags (8 to 15), zero (16 to 31), count (32 to 63; only of a start) |
//! | 1 | index: of the entry; of a start, its base; of a flush, a part and an end, the last entry posted before it |
//! | 2 | the view in which the record was posted; never falls within a lane |
//! | 3 | the highest index that the writer knew to be committed when it posted the record; never falls within a lane |
//!
//! A lane is written only after its owner has stored the lane's salt in its header. Otherwise a replica could be made primary before it knows of the lane that
//! holds the latest acknowledged entries.
//!
//! The ring seals each record over its bytes, length and absolute position. So what arrives here was written by the peer that owns the lane's writing end. It
//! is checked all the same, and what makes no sense is a [`LaneFault`].

use crate::basics::{LogIndex, ViewNumber, is_number};
use crate::engine::PartFault;
#[cfg(doc)]
use martlet_fabric::ring;

/// The word by which a replica acknowledges entries, in engines that use it; its offset in bytes from the lane's start. It holds one more than the index of the
/// last entry that the replica has taken from the primary's lane; 0 for none. The word is in the header of the lane that the primary keeps for that replica,
/// and only increases.
pub const ACKNOWLEDGED_OFFSET: usize = 16;
/// Bytes of a record's payload before its content.
pub const HEADER_BYTES: usize = 32;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first record of a lane: its writer has become primary. `index` is the base, and `count` the number of entries that are replicated again and follow
    /// at once. With [`Header::learner`] it begins a transfer instead, and may be anywhere in a lane.
    Start = 1,
    /// An entry, or with [`Header::more`] a fragment of one that is not its last.
    Entry = 2,
    /// Nothing but a newer committed index.
    Flush = 3,
    /// A part of the state for a learner, or with [`Header::more`] a fragment of one that is not its last.
    Part = 4,
    /// The transfer is complete: the learner now holds the whole state as of `index`.
    End = 5,
}

const MORE: u8 = 1;
const LEARNER: u8 = 2;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the record is.
    pub kind: Kind,
    /// More fragments of the same entry or part follow.
    pub more: bool,
    /// A start for a learner.
    pub learner: bool,
    /// Entries that a start replicates again.
    pub count: u32,
    /// See the table of the [module](self).
    pub index: LogIndex,
    /// The view in which the record was posted.
    pub view: ViewNumber,
    /// What its writer knew to be committed.
    pub committed: LogIndex,
}

impl Header {
    /// A header without flags and count.
    pub fn new(kind: Kind, index: LogIndex, view: ViewNumber, committed: LogIndex) -> Header {
        Header { kind, more: false, learner: false, count: 0, index, view, committed }
    }

    /// Appends the [`HEADER_BYTES`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let flags = (if self.more { MORE } else { 0 }) | (if self.learner { LEARNER } else { 0 });
        let word = u64::from(self.kind as u8) | (u64::from(flags) << 8) | (u64::from(self.count) << 32);
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.index.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.view.0.to_le_bytes());
        bytes[24..].copy_from_slice(&self.committed.0.to_le_bytes());
        out.extend_from_slice(&bytes);
    }

    /// Splits a record's payload into header and content.
    pub fn decode(payload: &[u8]) -> Result<(Header, &[u8]), LaneFault> {
        let (head, content) = payload.split_at_checked(HEADER_BYTES).ok_or(LaneFault::Short(payload.len()))?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let first = word(0);
        let kind = match first as u8 {
            1 => Kind::Start,
            2 => Kind::Entry,
            3 => Kind::Flush,
            4 => Kind::Part,
            5 => Kind::End,
            other => return Err(LaneFault::Kind(other)),
        };
        let flags = (first >> 8) as u8;
        let count = (first >> 32) as u32;
        let allowed = match kind {
            Kind::Start => LEARNER,
            Kind::Entry | Kind::Part => MORE,
            Kind::Flush | Kind::End => 0,
        };
        let learner = flags & LEARNER != 0;
        let odd_count = count != 0 && (kind != Kind::Start || learner);
        if flags & !allowed != 0 || odd_count || (first >> 16) & 0xffff != 0 {
            return Err(LaneFault::Flags(first));
        }
        let bare = matches!(kind, Kind::Start | Kind::Flush | Kind::End);
        if bare && !content.is_empty() {
            return Err(LaneFault::Trailing(content.len()));
        }
        let header = Header {
            kind,
            more: flags & MORE != 0,
            learner,
            count,
            index: LogIndex(word(8)),
            view: ViewNumber(word(16)),
            committed: LogIndex(word(24)),
        };
        if ![header.index.0, header.committed.0, header.view.0].into_iter().all(is_number) || header.view.0 == 0 {
            return Err(LaneFault::Range { index: header.index, view: header.view, committed: header.committed });
        }
        Ok((header, content))
    }
}

/// Why the content of a lane makes no sense although its seals hold. The reader takes nothing more from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneFault {
    /// A record is shorter than its header.
    #[error("a record of {0} bytes is shorter than its header of {HEADER_BYTES}")]
    Short(usize),
    /// There is no such kind of record.
    #[error("a record is of kind {0}; kinds are 1 to 5")]
    Kind(u8),
    /// Flags, count or reserved bits do not fit the kind.
    #[error("a record's first word is {0:#x}, with flags that its kind does not have")]
    Flags(u64),
    /// A record that is all header has content.
    #[error("{0} bytes follow a record that carries none")]
    Trailing(usize),
    /// Numbers that no log reaches.
    #[error("a record has index {index}, view {view}, committed {committed}: out of range")]
    Range {
        /// As found.
        index: LogIndex,
        /// As found.
        view: ViewNumber,
        /// As found.
        committed: LogIndex,
    },
    /// A lane has to begin with a start, and has only one.
    #[error("a record of kind {0:?} stands where the lane's start, or no other start, is allowed")]
    Order(Kind),
    /// An entry, flush or end does not continue the log.
    #[error("a record has index {found} where {expected} is due")]
    Index {
        /// The index that is due.
        expected: LogIndex,
        /// As found.
        found: LogIndex,
    },
    /// The view of a lane's records fell.
    #[error("a record of view {found} follows one of view {before}")]
    View {
        /// The view of an earlier record.
        before: ViewNumber,
        /// As found.
        found: ViewNumber,
    },
    /// What the record declares committed has not been written.
    #[error("index {committed} is said to be committed where only {last} has been written")]
    Commit {
        /// As found.
        committed: LogIndex,
        /// The highest index that could be.
        last: LogIndex,
    },
    /// A primary relies on entries that this replica does not hold.
    #[error("a primary starts from index {base}; this replica holds entries up to {last}")]
    Gap {
        /// The base of its start.
        base: LogIndex,
        /// The last entry held.
        last: LogIndex,
    },
    /// A primary would truncate what has been applied, hence committed.
    #[error("a primary's log ends at {end} when it starts; this replica has applied {applied}")]
    Behind {
        /// Where its log ended.
        end: LogIndex,
        /// What has been applied.
        applied: LogIndex,
    },
    /// A primary takes this process for a replica, but it holds only a part of the state.
    #[error("a primary takes this process for a replica, but its transfer never ended")]
    NotWhole,
    /// A part or end without a transfer, or in the middle of a fragment.
    #[error("a record of kind {0:?} outside a transfer, or inside a fragmented record")]
    Transfer(Kind),
    /// A part of the state that cannot be taken.
    #[error(transparent)]
    Part(#[from] PartFault),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind) -> Header {
        Header::new(kind, LogIndex(7), ViewNumber(3), LogIndex(5))
    }

    #[test]
    fn headers_survive_their_encoding() {
        let more = Header { more: true, ..header(Kind::Entry) };
        let start = Header { count: 9, ..header(Kind::Start) };
        let learner = Header { learner: true, ..header(Kind::Start) };
        for h in [more, start, learner, header(Kind::Flush), header(Kind::Part), header(Kind::End)] {
            let mut bytes = Vec::new();
            h.encode(&mut bytes);
            assert_eq!(bytes.len(), HEADER_BYTES);
            assert_eq!(Header::decode(&bytes), Ok((h, &[][..])));
        }
    }

    #[test]
    fn every_single_byte_change_is_a_fault_or_another_header_but_never_a_panic() {
        let mut bytes = Vec::new();
        header(Kind::Entry).encode(&mut bytes);
        for at in 0..HEADER_BYTES {
            for value in 0..=255u8 {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok((h, _)) = Header::decode(&changed) {
                    let mut again = Vec::new();
                    h.encode(&mut again);
                    assert_eq!(again, changed, "what is accepted is canonical");
                }
            }
        }
        for len in 0..HEADER_BYTES {
            assert_eq!(Header::decode(&bytes[..len]), Err(LaneFault::Short(len)));
        }
    }
}

//! The contents of a log entry.

use martlet_protocol::basics::LogIndex;

/// The longest command, in bytes. With a majority engine (`mu`, `dare`, `apus`) the limit is about a quarter of `sizes.log_ring_bytes`, less headers, where
/// that is lower. With the default sizes it is slightly lower.
pub const MAX_COMMAND_BYTES: usize = 1 << 20;
/// The most bytes that an entry holds besides its command.
pub(super) const HEADER_BYTES: usize = 25;

/// An entry of the log, in the form in which it is proposed and applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// A command that is never repeated.
    Plain { command: &'a [u8] },
    /// A command of a session, which may be repeated.
    InSession { session: u64, seq: u64, confirmed: u64, command: &'a [u8] },
    /// A new session, named by the entry's index. If there are too many sessions, another one is evicted. The primary says which, since a replica that is still
    /// receiving the state cannot know.
    Open { evicted: Option<LogIndex> },
    /// The end of a session.
    Close { session: u64 },
}

const PLAIN: u8 = 1;
const IN_SESSION: u8 = 2;
const OPEN: u8 = 3;
const CLOSE: u8 = 4;

impl<'a> Entry<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Plain { command } => {
                out.push(PLAIN);
                out.extend_from_slice(command);
            }
            Entry::InSession { session, seq, confirmed, command } => {
                out.push(IN_SESSION);
                for number in [session, seq, confirmed] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(command);
            }
            Entry::Open { evicted } => {
                out.push(OPEN);
                // No entry has the index 0.
                out.extend_from_slice(&evicted.map_or(0, |index| index.0).to_le_bytes());
            }
            Entry::Close { session } => {
                out.push(CLOSE);
                out.extend_from_slice(&session.to_le_bytes());
            }
        }
    }

    /// `None` when the bytes are no entry.
    pub fn decode(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let (kind, rest) = bytes.split_first()?;
        let word = |bytes: &'a [u8]| bytes.split_first_chunk::<8>().map(|(word, rest)| (u64::from_le_bytes(*word), rest));
        match *kind {
            PLAIN => Some(Entry::Plain { command: rest }),
            IN_SESSION => {
                let (session, rest) = word(rest)?;
                let (seq, rest) = word(rest)?;
                let (confirmed, command) = word(rest)?;
                Some(Entry::InSession { session, seq, confirmed, command })
            }
            OPEN => {
                let (evicted, rest) = word(rest)?;
                rest.is_empty().then_some(Entry::Open { evicted: (evicted != 0).then_some(LogIndex(evicted)) })
            }
            CLOSE => {
                let (session, rest) = word(rest)?;
                rest.is_empty().then_some(Entry::Close { session })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_comes_back_from_its_bytes() {
        for entry in [
            Entry::Plain { command: b"" },
            Entry::Plain { command: b"abc" },
            Entry::InSession { session: 1, seq: u64::MAX, confirmed: 3, command: b"x" },
            Entry::Open { evicted: None },
            Entry::Open { evicted: Some(LogIndex(9)) },
            Entry::Close { session: 7 },
        ] {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            assert!(bytes.len() <= HEADER_BYTES + 3);
            assert_eq!(Entry::decode(&bytes), Some(entry));
        }
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for bytes in [&[][..], &[0], &[IN_SESSION, 1, 2], &[OPEN, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[CLOSE, 1], &[9; 30]] {
            assert_eq!(Entry::decode(bytes), None, "{bytes:?}");
        }
    }
}

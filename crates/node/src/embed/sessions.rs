//! Sessions make retries exactly-once. The table of sessions is replicated state: if only the leader held it, commands would be repeated after a failover
//! (TRAPS 19).

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use martlet_protocol::basics::{LogIndex, is_number};
use martlet_protocol::replica::{MAX_PART_BYTES, MAX_TRANSFER_BUDGET_BYTES, UnreadablePart};

use super::error::CallError;

/// The most sessions that are kept. When another is opened, the one that has not been used for longest is evicted.
pub const MAX_SESSIONS: usize = 1 << 14;
/// The most replies that are kept for a session whose client does not confirm them.
pub const MAX_UNCONFIRMED: usize = 1024;
/// Once the replies kept for a session have this many bytes, it may propose nothing more before it confirms some.
pub const MAX_UNCONFIRMED_BYTES: usize = 256 << 20;
/// The longest reply to a session's command that is kept, in bytes.
pub const MAX_KEPT_REPLY_BYTES: usize = 512 << 20;

// A session is transferred as a whole, in one part.
const _: () = assert!(
    MAX_TRANSFER_BUDGET_BYTES + MAX_UNCONFIRMED_BYTES + MAX_KEPT_REPLY_BYTES + 64 * MAX_UNCONFIRMED <= MAX_PART_BYTES,
    "a part with any session is one that a learner takes"
);

/// Within a part, this plus the reply's length stands in place of the length of a reply that was too long to be kept.
const NOT_KEPT: u64 = 1 << 63;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    /// The number of the last command that was executed; 0 before the first.
    last: u64,
    /// The index of the last entry that used it.
    used: u64,
    /// The replies to the last commands, up to `last`.
    replies: VecDeque<Reply>,
    /// The total length of these replies, in bytes.
    bytes: usize,
}

/// What is kept of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Kept(Vec<u8>),
    /// The reply was too long to be kept: its length in bytes.
    TooLong(u64),
}

impl Reply {
    fn bytes(&self) -> usize {
        match self {
            Reply::Kept(bytes) => bytes.len(),
            Reply::TooLong(_) => 0,
        }
    }
}

/// The state of a session's command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<'a> {
    /// It is the next of its session, and is to be executed.
    New,
    /// It has been executed, and this was its reply.
    Done(&'a [u8]),
}

/// All sessions, by the index of the entry that opened them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sessions {
    open: BTreeMap<u64, Session>,
}

impl Sessions {
    /// The state of the command `seq` of a session.
    pub fn turn(&self, session: u64, seq: u64) -> Result<Turn<'_>, CallError> {
        let kept = self.open.get(&session).ok_or(CallError::SessionUnknown { session })?;
        let next = kept.last + 1;
        if seq > next || seq == 0 {
            return Err(CallError::OutOfTurn { session, seq, next });
        }
        if seq == next {
            return Ok(Turn::New);
        }
        let behind = (kept.last - seq) as usize;
        let at = kept.replies.len().checked_sub(behind + 1).ok_or(CallError::Confirmed { session, seq })?;
        match &kept.replies[at] {
            Reply::Kept(reply) => Ok(Turn::Done(reply)),
            Reply::TooLong(bytes) => Err(CallError::ReplyTooLong { session, seq, bytes: *bytes }),
        }
    }

    /// Whether one more reply can be kept, once those to commands up to `confirmed` are gone.
    pub fn has_room(&self, session: u64, confirmed: u64) -> Result<(), CallError> {
        let Some(kept) = self.open.get(&session) else { return Err(CallError::SessionUnknown { session }) };
        let confirmable = kept.confirmable(confirmed);
        let unconfirmed = kept.replies.len() - confirmable;
        let bytes = kept.bytes - kept.replies.range(..confirmable).map(Reply::bytes).sum::<usize>();
        match unconfirmed < MAX_UNCONFIRMED && bytes < MAX_UNCONFIRMED_BYTES {
            true => Ok(()),
            false => Err(CallError::TooManyUnconfirmed { session, kept: unconfirmed }),
        }
    }

    /// Notes that the next command of a session has been executed, and forgets the replies to commands up to `confirmed`. If this replica does not know the
    /// session, the session has not been transferred to it yet, and will include this command when it is.
    pub fn record(&mut self, index: LogIndex, session: u64, seq: u64, confirmed: u64, reply: &[u8]) {
        let Some(kept) = self.open.get_mut(&session) else { return };
        martlet_fabric::invariant!(seq == kept.last + 1, "command {seq} of session {session}, whose last was {}", kept.last);
        // Reuses the buffer of a reply that is forgotten.
        let mut buffer = Vec::new();
        for _ in 0..kept.confirmable(confirmed) {
            let Some(gone) = kept.replies.pop_front() else { break };
            kept.bytes -= gone.bytes();
            if let Reply::Kept(bytes) = gone {
                buffer = bytes;
            }
        }
        buffer.clear();
        let reply = if reply.len() <= MAX_KEPT_REPLY_BYTES {
            buffer.extend_from_slice(reply);
            Reply::Kept(buffer)
        } else {
            Reply::TooLong(reply.len() as u64)
        };
        kept.bytes += reply.bytes();
        kept.replies.push_back(reply);
        (kept.last, kept.used) = (seq, index.0);
    }

    /// Opens a session, named by `index`.
    pub fn open(&mut self, index: LogIndex, evicted: Option<LogIndex>) {
        if let Some(evicted) = evicted {
            self.open.remove(&evicted.0);
        }
        self.open.insert(index.0, Session { used: index.0, ..Session::default() });
    }

    /// Forgets a session.
    pub fn close(&mut self, session: u64) {
        self.open.remove(&session);
    }

    /// Which session to evict when one more is opened. Looks at all sessions when there are too many, and only then.
    pub fn to_evict(&self) -> Option<LogIndex> {
        if self.open.len() < MAX_SESSIONS {
            return None;
        }
        self.open.iter().min_by_key(|(_, kept)| kept.used).map(|(name, _)| LogIndex(*name))
    }

    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// Appends sessions, from the name `from` on: as many as fit into `budget` bytes, but at least one. In front of them it writes the range of names of which
    /// these are all the sessions. Returns the name to go on from.
    pub fn transfer(&self, from: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        out.extend_from_slice(&from.to_le_bytes());
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        for (name, kept) in self.open.range(from..) {
            for word in [*name, kept.last, kept.used, kept.replies.len() as u64] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            for reply in &kept.replies {
                let (length, bytes) = match reply {
                    Reply::Kept(bytes) => (bytes.len() as u64, &bytes[..]),
                    Reply::TooLong(length) => (NOT_KEPT | length, &[][..]),
                };
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            if out.len() - start >= budget {
                out[start + 8..start + 16].copy_from_slice(&name.to_le_bytes());
                return Some(name + 1);
            }
        }
        None
    }

    /// Takes a part that [`Sessions::transfer`] wrote.
    pub fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        let mut rest = part;
        let (Some(first), Some(last)) = (take_word(&mut rest), take_word(&mut rest)) else { return Err(UnreadablePart) };
        let sessions = read_sessions(rest, &(first..=last)).ok_or(UnreadablePart)?;
        self.open.retain(|name, _| !(first..=last).contains(name));
        self.open.extend(sessions);
        Ok(())
    }
}

fn take_word(rest: &mut &[u8]) -> Option<u64> {
    let (word, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*word))
}

/// The sessions of a part that covers this range of names. `None` when it is not a part.
fn read_sessions(mut rest: &[u8], range: &RangeInclusive<u64>) -> Option<Vec<(u64, Session)>> {
    let mut sessions = Vec::new();
    while !rest.is_empty() {
        let name = take_word(&mut rest)?;
        let (last, used, replies) = (take_word(&mut rest)?, take_word(&mut rest)?, take_word(&mut rest)?);
        // Each reply is to a command of its own, and commands are numbered from 1 on.
        if !range.contains(&name) || ![name, last].into_iter().all(is_number) || replies > last {
            return None;
        }
        let mut kept = Session { last, used, replies: VecDeque::new(), bytes: 0 };
        for _ in 0..replies {
            let length = take_word(&mut rest)?;
            if length & NOT_KEPT != 0 {
                kept.replies.push_back(Reply::TooLong(length & !NOT_KEPT));
                continue;
            }
            let (reply, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            kept.bytes += reply.len();
            kept.replies.push_back(Reply::Kept(reply.to_vec()));
            rest = after;
        }
        sessions.push((name, kept));
    }
    Some(sessions)
}

impl Session {
    /// How many of the replies kept are to commands up to `confirmed`.
    fn confirmable(&self, confirmed: u64) -> usize {
        let first = self.last + 1 - self.replies.len() as u64;
        let below = confirmed.saturating_add(1).saturating_sub(first);
        usize::try_from(below).map_or(self.replies.len(), |below| below.min(self.replies.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(commands: &[(u64, u64)]) -> Sessions {
        let mut sessions = Sessions::default();
        sessions.open(LogIndex(5), None);
        for (seq, confirmed) in commands {
            sessions.record(LogIndex(5 + seq), 5, *seq, *confirmed, &[*seq as u8]);
        }
        sessions
    }

    #[test]
    fn a_command_is_executed_once_and_in_its_turn() {
        let sessions = with(&[(1, 0), (2, 0)]);
        assert_eq!(sessions.turn(5, 3), Ok(Turn::New));
        assert_eq!(sessions.turn(5, 2), Ok(Turn::Done(&[2])));
        assert_eq!(sessions.turn(5, 1), Ok(Turn::Done(&[1])));
        for seq in [0, 4, u64::MAX] {
            assert_eq!(sessions.turn(5, seq), Err(CallError::OutOfTurn { session: 5, seq, next: 3 }));
        }
        assert_eq!(sessions.turn(6, 1), Err(CallError::SessionUnknown { session: 6 }));
    }

    #[test]
    fn a_confirmed_reply_is_forgotten_and_never_executed_again() {
        let sessions = with(&[(1, 0), (2, 0), (3, 2)]);
        assert_eq!(sessions.turn(5, 3), Ok(Turn::Done(&[3])));
        assert_eq!(sessions.turn(5, 2), Err(CallError::Confirmed { session: 5, seq: 2 }));
        assert_eq!(with(&[(1, u64::MAX), (2, u64::MAX)]).turn(5, 2), Ok(Turn::Done(&[2])), "a reply not yet given is not confirmed");
    }

    #[test]
    fn replies_that_nobody_confirms_are_bounded() {
        let commands: Vec<_> = (1..=MAX_UNCONFIRMED as u64).map(|seq| (seq, 0)).collect();
        let sessions = with(&commands);
        assert_eq!(sessions.has_room(5, 0), Err(CallError::TooManyUnconfirmed { session: 5, kept: MAX_UNCONFIRMED }));
        assert_eq!(sessions.has_room(5, 1), Ok(()));
    }

    #[test]
    fn replies_that_nobody_confirms_are_bounded_in_bytes_too() {
        let (mut sessions, long) = (with(&[]), vec![0; MAX_UNCONFIRMED_BYTES / 2]);
        sessions.record(LogIndex(6), 5, 1, 0, &long);
        assert_eq!(sessions.has_room(5, 0), Ok(()));
        sessions.record(LogIndex(7), 5, 2, 0, &long);
        assert_eq!(sessions.has_room(5, 0), Err(CallError::TooManyUnconfirmed { session: 5, kept: 2 }));
        assert_eq!(sessions.has_room(5, 1), Ok(()), "what the next command confirms takes no room");
        sessions.record(LogIndex(8), 5, 3, 1, b"x");
        assert_eq!((sessions.open[&5].bytes, sessions.has_room(5, 1)), (MAX_UNCONFIRMED_BYTES / 2 + 1, Ok(())));
    }

    /// Executed once and never again, whichever client asks and whichever replica leads.
    #[test]
    fn a_reply_that_is_too_long_to_be_taught_is_not_kept_and_its_command_is_not_executed_again() {
        let mut sessions = with(&[(1, 0)]);
        // Zeroed memory that is never touched, so that it costs none.
        let long = vec![0; MAX_KEPT_REPLY_BYTES + 1];
        sessions.record(LogIndex(7), 5, 2, 0, &long);
        sessions.record(LogIndex(8), 5, 3, 0, &[3]);
        let mut part = Vec::new();
        assert_eq!(sessions.transfer(0, usize::MAX, &mut part), None);
        let mut learner = Sessions::default();
        learner.install(&part).expect("a part");
        assert_eq!(learner, sessions);
        let gone = CallError::ReplyTooLong { session: 5, seq: 2, bytes: long.len() as u64 };
        assert_eq!((learner.turn(5, 1), learner.turn(5, 2), learner.turn(5, 3)), (Ok(Turn::Done(&[1])), Err(gone), Ok(Turn::Done(&[3]))));
        assert_eq!((learner.has_room(5, 0), learner.turn(5, 4)), (Ok(()), Ok(Turn::New)));
    }

    #[test]
    fn the_session_not_used_for_longest_goes_first() {
        let mut sessions = Sessions::default();
        for index in 1..=MAX_SESSIONS as u64 {
            assert_eq!(sessions.to_evict(), None);
            sessions.open(LogIndex(index), None);
        }
        sessions.record(LogIndex(1 << 20), 1, 1, 0, b"");
        assert_eq!(sessions.to_evict(), Some(LogIndex(2)));
        sessions.open(LogIndex(2 << 20), Some(LogIndex(2)));
        assert_eq!(sessions.turn(2, 1), Err(CallError::SessionUnknown { session: 2 }));
        assert_eq!(sessions.turn(2 << 20, 1), Ok(Turn::New));
    }

    #[test]
    fn one_that_is_taught_while_commands_go_on_keeps_the_same_sessions() {
        let mut sessions = Sessions::default();
        for index in 1..=5 {
            sessions.open(LogIndex(index), None);
        }
        let mut learner = Sessions::default();
        learner.open(LogIndex(3), None);
        let (mut cursor, mut index, mut round) = (Some(0), 10, 0);
        while let Some(from) = cursor {
            round += 1;
            let mut part = Vec::new();
            cursor = sessions.transfer(from, 1, &mut part);
            learner.install(&part).expect("a part");
            // One session that has been transferred, and one that has not.
            for session in [1, 5] {
                index += 1;
                let seq = sessions.open[&session].last + 1;
                for table in [&mut sessions, &mut learner] {
                    table.record(LogIndex(index), session, seq, seq / 2, &[index as u8]);
                }
            }
            // Opens new sessions, one of them in place of another. Not for ever, or the transfer would never end.
            if round <= 4 {
                index += 1;
                for table in [&mut sessions, &mut learner] {
                    table.open(LogIndex(index), (round == 3).then_some(LogIndex(2)));
                }
            }
        }
        assert!(round > 5, "{round} parts");
        assert_eq!(learner, sessions);
    }

    #[test]
    fn what_is_no_part_is_refused_and_changes_nothing() {
        let part = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let before = with(&[(1, 0), (2, 0)]);
        for bad in [
            vec![1, 2, 3],
            // There is no reply to a command before the first.
            part(&[0, u64::MAX, 5, 0, 7, 1, 0]),
            part(&[0, u64::MAX, 5, 2, 7, 3, 0, 0, 0]),
            part(&[0, u64::MAX, 5, u64::MAX, 7, 0]),
            part(&[0, u64::MAX, u64::MAX, 2, 7, 0]),
            part(&[6, 9, 5, 2, 7, 0]),
            part(&[0, u64::MAX, 5, 2, 7, 1, 9]),
            part(&[0, u64::MAX, 5, 2, 7, 1 << 40]),
        ] {
            let mut sessions = before.clone();
            assert_eq!(sessions.install(&bad), Err(UnreadablePart), "{bad:?}");
            assert_eq!(sessions, before);
        }
        let mut sessions = before;
        assert_eq!(sessions.install(&part(&[0, 5, 5, 1, 7, 1, 0])), Ok(()));
        assert_eq!((sessions.turn(5, 1), sessions.has_room(5, 1)), (Ok(Turn::Done(&[])), Ok(())));
    }
}

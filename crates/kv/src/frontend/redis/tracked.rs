//! What a connection's successor needs to know besides the two byte streams: the client's state, in bytes, and the marks that the log keeps.

use martlet_node::connections::Holder;
use martlet_node::connections::ledger::MOST_STATE_BYTES;

use crate::commands::{Client, ReplyMode};
use crate::resp::Protocol;
use crate::store::{Effect, Session, SessionId};

/// The first byte of an encoded state, which says how to read it.
const FORMAT: u8 = 1;

const AUTHENTICATED: u8 = 1;
const RESP3: u8 = 1 << 1;
const READONLY: u8 = 1 << 2;
const BY_QUORUM: u8 = 1 << 3;
const BY_LEASE: u8 = 1 << 7;
const NO_EVICT: u8 = 1 << 4;
/// It watches keys. Its successor cannot tell whether they have changed in between, so it assumes that they have.
const WATCHES: u8 = 1 << 5;
/// It ends when its output has been sent.
const CLOSING: u8 = 1 << 6;

/// The part of the state that commands which touch keys can change. Only commands that touch no keys change the rest.
pub(super) fn flags(client: &Client, closing: bool) -> (u8, ReplyMode) {
    let all = [
        (client.authenticated, AUTHENTICATED),
        (client.protocol == Protocol::Resp3, RESP3),
        (client.readonly, READONLY),
        (client.wants_quorum == Some(true), BY_QUORUM),
        (client.wants_quorum == Some(false), BY_LEASE),
        (client.no_evict, NO_EVICT),
        (client.watch_broken || !client.watched.is_empty(), WATCHES),
        (closing, CLOSING),
    ];
    (all.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum(), client.reply_mode)
}

/// Encodes a client's state. Returns `false` if it is longer than a line can hold.
pub(super) fn write_state(client: &Client, closing: bool, out: &mut Vec<u8>) -> bool {
    out.clear();
    let (flags, mode) = flags(client, closing);
    let mode = match mode {
        ReplyMode::On => 0,
        ReplyMode::Off => 1,
        ReplyMode::SkipNext => 2,
        ReplyMode::Skip => 3,
    };
    out.extend_from_slice(&[FORMAT, flags, mode]);
    out.extend_from_slice(&client.since_ms.to_le_bytes());
    for text in [&client.name, &client.library, &client.library_version] {
        let Ok(len) = u16::try_from(text.len()) else { return false };
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out.len() <= MOST_STATE_BYTES
}

/// Gives a client an encoded state. Returns whether that client was closing, or `None` if the bytes are not understood.
pub(super) fn read_state(mut state: &[u8], client: &mut Client) -> Option<bool> {
    fn take<'s>(state: &mut &'s [u8], n: usize) -> Option<&'s [u8]> {
        let (head, tail) = state.split_at_checked(n)?;
        *state = tail;
        Some(head)
    }
    let [FORMAT, flags, mode] = *take(&mut state, 3)? else { return None };
    let is = |flag: u8| flags & flag != 0;
    client.authenticated = is(AUTHENTICATED);
    client.protocol = if is(RESP3) { Protocol::Resp3 } else { Protocol::Resp2 };
    (client.readonly, client.no_evict, client.watch_broken) = (is(READONLY), is(NO_EVICT), is(WATCHES));
    client.wants_quorum = (is(BY_QUORUM) || is(BY_LEASE)).then_some(is(BY_QUORUM));
    client.reply_mode = match mode {
        0 => ReplyMode::On,
        1 => ReplyMode::Off,
        2 => ReplyMode::SkipNext,
        3 => ReplyMode::Skip,
        _ => return None,
    };
    client.since_ms = u64::from_le_bytes(take(&mut state, 8)?.try_into().ok()?);
    for text in [&mut client.name, &mut client.library, &mut client.library_version] {
        let len = u16::from_le_bytes(take(&mut state, 2)?.try_into().ok()?);
        *text = String::from_utf8(take(&mut state, len.into())?.to_vec()).ok()?;
    }
    state.is_empty().then_some(is(CLOSING))
}

/// How far a connection's requests are executed: the positions behind the last one in its input and in its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// States that a connection's requests are executed up to here, the effects of the last one included. It goes into the log with those effects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) cookie: u64,
    pub(crate) place: Place,
}

impl Mark {
    /// Performs the effect that records it.
    pub(crate) fn with<R>(self, perform: impl FnOnce(Effect<'_>) -> R) -> R {
        let Place { input, output } = self.place;
        perform(Effect::Answer { session: SessionId::of_connection(self.cookie), seq: input, lowest: input, reply: &output.to_le_bytes() })
    }

    /// The mark that a session holds, if it is a connection's.
    pub(super) fn of(id: SessionId, session: &Session) -> Option<Mark> {
        let cookie = id.cookie()?;
        let (input, output) = session.replies().last()?;
        let output = u64::from_le_bytes(output.try_into().ok()?);
        Some(Mark { cookie, place: Place { input, output } })
    }
}

/// States that a process may hold connections. It is in the log before the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// Of two holds, the one with the larger order is the later.
    pub(super) order: u64,
    pub(super) holder: Holder,
}

impl Hold {
    /// The name of the hold among sessions. It is unique in practice: the kernel gives a process number to another process only long after.
    pub(super) fn session(&self) -> SessionId {
        // The kernel's process numbers have at most 22 bits, and 39 bits hold 170 years of ticks.
        SessionId::of_process((self.holder.pid as u64) << 39 | self.holder.started & ((1 << 39) - 1))
    }

    /// Performs the effect that records it.
    pub(super) fn with<R>(self, perform: impl FnOnce(Effect<'_>) -> R) -> R {
        let mut reply = [0; 14];
        reply[..2].copy_from_slice(&self.holder.node.to_le_bytes());
        reply[2..6].copy_from_slice(&self.holder.pid.to_le_bytes());
        reply[6..].copy_from_slice(&self.holder.started.to_le_bytes());
        perform(Effect::Answer { session: self.session(), seq: self.order, lowest: self.order, reply: &reply })
    }

    /// The hold that a session holds, if it is a holder's.
    pub(super) fn of(id: SessionId, session: &Session) -> Option<Hold> {
        if !id.is_process() {
            return None;
        }
        let (order, reply) = session.replies().last()?;
        let node = u16::from_le_bytes(reply.get(..2)?.try_into().ok()?);
        let pid = i32::from_le_bytes(reply.get(2..6)?.try_into().ok()?);
        let started = u64::from_le_bytes(reply.get(6..)?.try_into().ok()?);
        Some(Hold { order, holder: Holder { node, pid, started } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KvMachine;

    fn client() -> Client {
        Client::new("127.0.0.1:5".into(), "127.0.0.1:6".into(), false, 77)
    }

    #[test]
    fn a_client_is_what_it_was() {
        let mut client = client();
        (client.authenticated, client.protocol, client.reply_mode) = (true, Protocol::Resp3, ReplyMode::Off);
        (client.wants_quorum, client.watch_broken) = (Some(true), true);
        client.name = "worker".into();
        client.library_version = "1.2".into();
        let mut state = Vec::new();
        assert!(write_state(&client, true, &mut state));
        let mut other = self::client();
        other.since_ms = 0;
        assert_eq!(read_state(&state, &mut other), Some(true));
        assert_eq!(flags(&other, true), flags(&client, true));
        assert_eq!((other.name, other.library_version, other.since_ms), ("worker".into(), "1.2".into(), 77));
        for cut in 0..state.len() {
            assert_eq!(read_state(&state[..cut], &mut self::client()), None, "{cut}");
        }
        client.name = "x".repeat(MOST_STATE_BYTES);
        assert!(!write_state(&client, false, &mut state), "too long");
    }

    #[test]
    fn marks_and_holds_are_sessions_that_say_what_was_said_last() {
        let mut machine = KvMachine::new();
        let place = |input, output| Mark { cookie: 70_003, place: Place { input, output } };
        let hold = Hold { order: 4, holder: Holder { node: 3, pid: 4_000_001, started: 987_654_321 } };
        for mark in [place(10, 5), place(30, 9)] {
            mark.with(|effect| machine.perform(effect));
        }
        hold.with(|effect| machine.perform(effect));
        let sessions = || machine.sessions().from(SessionId::default());
        let marks: Vec<Mark> = sessions().filter_map(|(id, session)| Mark::of(id, session)).collect();
        assert_eq!(marks.iter().map(|mark| (mark.cookie, mark.place)).collect::<Vec<_>>(), [(70_003, Place { input: 30, output: 9 })]);
        assert_eq!(sessions().filter_map(|(id, session)| Hold::of(id, session)).collect::<Vec<_>>(), [hold]);
    }
}

//! What makes a retry harmless: the replies to clients' writes are kept until the clients have them (TRAPS 19).

use std::collections::{BTreeMap, VecDeque};

/// The name of a client for its whole life; by convention its incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Marks an even name as one that belongs to no client of the fabric.
const SERVICE: u64 = 1 << 63;
/// Marks such a name as that of a process.
const PROCESS: u64 = 1 << 62;

impl SessionId {
    /// The name of a Redis client's connection that outlives nodes, by its socket's cookie. The session's reply says how far the connection's requests are
    /// executed. Clients over the fabric have random odd names; these names are even.
    pub fn of_connection(cookie: u64) -> SessionId {
        SessionId(SERVICE | cookie << 1 & (PROCESS - 1))
    }

    /// The socket's cookie, if this is the name of a connection.
    pub fn cookie(self) -> Option<u64> {
        (self.0 & (SERVICE | PROCESS | 1) == SERVICE).then_some((self.0 & !SERVICE) >> 1)
    }

    /// The name of a process that may hold such connections.
    pub fn of_process(process: u64) -> SessionId {
        SessionId(SERVICE | PROCESS | process << 1 & (PROCESS - 1))
    }

    /// Whether it is the name of a process.
    pub fn is_process(self) -> bool {
        self.0 & (SERVICE | PROCESS | 1) == SERVICE | PROCESS
    }

    /// Whether it may be the name of a client that sends requests over the fabric.
    pub fn is_clients(self) -> bool {
        self.0 & (SERVICE | 1) != SERVICE
    }
}

/// How many emptied buffers a session keeps for its next replies.
const SPARES: usize = 8;
/// The longest buffer worth keeping, in bytes.
const SPARE_BYTES: usize = 1024;
/// What a session, and each of its replies, costs in addition to the replies' bytes.
const OVERHEAD_BYTES: usize = 64;

/// One client's replies to writes that it has not confirmed.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// Every request below this number has been answered, and the client has the answer.
    lowest: u64,
    /// Number and reply of each executed write from `lowest` on, in order of the numbers.
    replies: VecDeque<(u64, Vec<u8>)>,
    /// Total bytes of the replies.
    bytes: usize,
    spares: Vec<Vec<u8>>,
}

/// What is known of a request that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Known<'a> {
    /// Nothing: it has not been executed, or it was a read.
    New,
    /// Its client has the answer already: it must not be executed, and no reply is awaited.
    Settled,
    /// It was executed, and this was the answer.
    Answered(&'a [u8]),
}

impl Session {
    /// What is known of request `seq`.
    pub fn look_up(&self, seq: u64) -> Known<'_> {
        if seq < self.lowest {
            return Known::Settled;
        }
        match self.replies.binary_search_by_key(&seq, |(s, _)| *s) {
            Ok(at) => Known::Answered(&self.replies[at].1),
            Err(_) => Known::New,
        }
    }

    /// The lowest unconfirmed request's number.
    pub fn lowest(&self) -> u64 {
        self.lowest
    }

    /// The replies kept, by request number.
    pub fn replies(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.replies.iter().map(|(seq, reply)| (*seq, &reply[..]))
    }

    fn heap_bytes(&self) -> usize {
        OVERHEAD_BYTES * (1 + self.replies.len()) + self.bytes
    }
}

/// The sessions of all clients: replicated state.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    sessions: BTreeMap<SessionId, Session>,
    heap_bytes: usize,
}

impl Sessions {
    /// What is known of request `seq` of `session`.
    pub fn look_up(&self, session: SessionId, seq: u64) -> Known<'_> {
        self.sessions.get(&session).map_or(Known::New, |s| s.look_up(seq))
    }

    /// Whether anything is known of `session`: it has written something, and has not been ended.
    pub fn is_known(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// How many replies are kept for `session`, and how many bytes they have in all. Those below `lowest` are left out: they are forgotten with the next reply.
    pub fn unconfirmed(&self, session: SessionId, lowest: u64) -> (usize, usize) {
        self.sessions.get(&session).map_or((0, 0), |s| {
            let confirmed = s.replies.partition_point(|(seq, _)| *seq < lowest);
            let gone: usize = s.replies.range(..confirmed).map(|(_, reply)| reply.len()).sum();
            (s.replies.len() - confirmed, s.bytes - gone)
        })
    }

    /// Keeps the reply to `seq`, and forgets those below `lowest`.
    pub fn answer(&mut self, session: SessionId, seq: u64, lowest: u64, reply: &[u8]) {
        let s = self.sessions.entry(session).or_insert_with(|| {
            self.heap_bytes += OVERHEAD_BYTES;
            Session::default()
        });
        s.lowest = s.lowest.max(lowest);
        while s.replies.front().is_some_and(|(seq, _)| *seq < s.lowest) {
            let (_, mut bytes) = s.replies.pop_front().expect("just seen");
            self.heap_bytes -= bytes.len() + OVERHEAD_BYTES;
            s.bytes -= bytes.len();
            if s.spares.len() < SPARES && bytes.capacity() <= SPARE_BYTES {
                bytes.clear();
                s.spares.push(bytes);
            }
        }
        if seq < s.lowest {
            return;
        }
        let mut bytes = s.spares.pop().unwrap_or_default();
        bytes.extend_from_slice(reply);
        self.heap_bytes += bytes.len() + OVERHEAD_BYTES;
        s.bytes += bytes.len();
        match s.replies.binary_search_by_key(&seq, |(s, _)| *s) {
            Ok(at) => {
                let (_, old) = std::mem::replace(&mut s.replies[at], (seq, bytes));
                self.heap_bytes -= old.len() + OVERHEAD_BYTES;
                s.bytes -= old.len();
            }
            Err(at) => s.replies.insert(at, (seq, bytes)),
        }
    }

    /// Forgets the session of a client that is gone.
    pub fn end(&mut self, session: SessionId) {
        if let Some(s) = self.sessions.remove(&session) {
            self.heap_bytes -= s.heap_bytes();
        }
    }

    /// Restores a session that came with a state transfer.
    pub fn restore(&mut self, session: SessionId, lowest: u64, replies: impl Iterator<Item = (u64, Vec<u8>)>) {
        self.end(session);
        let mut replies: VecDeque<_> = replies.collect();
        replies.make_contiguous().sort_unstable_by_key(|(seq, _)| *seq);
        let bytes = replies.iter().map(|(_, reply)| reply.len()).sum();
        let s = Session { lowest, replies, bytes, spares: Vec::new() };
        self.heap_bytes += s.heap_bytes();
        self.sessions.insert(session, s);
    }

    /// Forgets the sessions in a range of names, both ends included.
    pub fn clear_range(&mut self, first: SessionId, last: SessionId) {
        let gone: Vec<_> = self.sessions.range(first..=last).map(|(id, _)| *id).collect();
        for id in gone {
            self.end(id);
        }
    }

    /// The sessions from `first` on, by name.
    pub fn from(&self, first: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.range(first..).map(|(id, s)| (*id, s))
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Roughly how much heap they take, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_confirms_itself_takes_no_room() {
        let mut sessions = Sessions::default();
        (1..=4).for_each(|seq| sessions.answer(SessionId(7), seq, 1, b"+OK\r\n"));
        assert_eq!([1, 3, 5].map(|lowest| sessions.unconfirmed(SessionId(7), lowest)), [(4, 20), (2, 10), (0, 0)]);
        assert_eq!(sessions.unconfirmed(SessionId(8), 0), (0, 0));
        // A reply that replaces another, one that confirms others, and a session that was transferred.
        sessions.answer(SessionId(7), 4, 1, b"longer");
        sessions.answer(SessionId(7), 5, 3, b"x");
        assert_eq!(sessions.unconfirmed(SessionId(7), 1), (3, 12));
        let kept: Vec<_> = sessions.from(SessionId(7)).flat_map(|(_, s)| s.replies()).map(|(seq, r)| (seq, r.to_vec())).collect();
        let heap_bytes = sessions.heap_bytes();
        sessions.restore(SessionId(7), 3, kept.into_iter());
        assert_eq!((sessions.unconfirmed(SessionId(7), 1), sessions.heap_bytes()), ((3, 12), heap_bytes));
    }

    #[test]
    fn a_repeated_request_gets_the_stored_reply_until_it_is_confirmed() {
        let mut sessions = Sessions::default();
        let me = SessionId(9);
        assert_eq!(sessions.look_up(me, 1), Known::New);
        sessions.answer(me, 1, 1, b"one");
        sessions.answer(me, 3, 1, b"three");
        assert_eq!(sessions.look_up(me, 1), Known::Answered(b"one"));
        assert_eq!(sessions.look_up(me, 2), Known::New, "a read leaves nothing");
        assert_eq!(sessions.look_up(me, 3), Known::Answered(b"three"));
        sessions.answer(me, 4, 3, b"four");
        assert_eq!(sessions.look_up(me, 1), Known::Settled);
        assert_eq!(sessions.look_up(me, 2), Known::Settled);
        assert_eq!(sessions.look_up(me, 3), Known::Answered(b"three"));
        assert_eq!(sessions.look_up(SessionId(8), 3), Known::New, "another client's numbers are its own");
        sessions.end(me);
        assert_eq!((sessions.look_up(me, 3), sessions.heap_bytes()), (Known::New, 0));
    }

    #[test]
    fn confirmation_never_goes_backwards() {
        let mut sessions = Sessions::default();
        sessions.answer(SessionId(1), 10, 10, b"x");
        sessions.answer(SessionId(1), 11, 2, b"y");
        assert_eq!(sessions.look_up(SessionId(1), 9), Known::Settled);
        assert_eq!(sessions.look_up(SessionId(1), 10), Known::Answered(b"x"));
    }
}

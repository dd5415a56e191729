//! The replicated state of simulated clusters: keys with small but awkward values, and for each client the outcome of its last write.

use std::collections::BTreeMap;
use std::ops::Bound;

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{StateMachine, UnreadablePart};

use crate::canaries::Careless;
use crate::linearizability::kv::{Action, Bytes, Output};

/// A value as clients see it: a number that only one write writes. In the machine it carries a tail that is derived from it, so that entries and parts of the
/// state have every length.
pub type Value = u64;

/// Where the clients' sessions are among the keys: they are replicated and transferred like keys (TRAPS 19).
const SESSIONS: u64 = 1 << 40;

/// What asked for a write: the client and the number of its request.
pub type Request = (u64, u64);

/// An entry that this machine has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its place in the log.
    pub index: LogIndex,
    /// The index of the entry taken before it; 0 when the machine had just forgotten everything, or was new.
    pub after: LogIndex,
    /// A digest of it.
    pub digest: u64,
    /// The request whose effects it holds.
    pub request: Request,
}

/// Keys and what they hold.
#[derive(Debug, Default)]
pub struct Machine {
    held: BTreeMap<u64, Vec<u8>>,
    applied: LogIndex,
    /// It has forgotten everything since the last look, so what it had taken before counts no more.
    pub cleared: bool,
    /// What it has taken since the last look.
    pub taken: Vec<Taken>,
}

/// The tail that follows a value.
fn tail(value: Value) -> impl ExactSizeIterator<Item = u8> {
    let length = (value.wrapping_mul(0x9e37_79b9) >> 7) as usize % 5;
    // Mostly short; some are longer than a ring's record, and some longer than the ring.
    let length = [0, 3, 40, 300, 3000][length];
    (0..length).map(move |at| (value as usize * 7 + at) as u8)
}

fn append_with_tail(bytes: &mut Vec<u8>, value: Value) {
    bytes.extend_from_slice(&value.to_le_bytes());
    bytes.extend(tail(value));
}

fn value_of(bytes: &[u8]) -> Value {
    let value = peek(bytes);
    let (tail, rest) = (tail(value), &bytes[8..]);
    // Compares every byte even after a difference: then many bytes are compared at a time, which is faster.
    let differ = tail.len() != rest.len() || rest.iter().zip(tail).fold(0, |differ, (is, due)| differ | (is ^ due)) != 0;
    assert!(!differ, "a value has been altered");
    value
}

/// Only the number, from bytes that were checked when they came in.
fn peek(bytes: &[u8]) -> Value {
    Value::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

/// A key or a value as clients see it.
pub fn shown(number: u64) -> Bytes {
    Bytes::from(&number.to_le_bytes())
}

fn number_of(bytes: &Bytes) -> u64 {
    u64::from_le_bytes(bytes.0[..].try_into().expect("shown by `shown`"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"))
}

fn fold(digest: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut digest = digest;
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        digest = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    for byte in words.remainder() {
        digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    digest
}

const DIGEST: u64 = 0xcbf2_9ce4_8422_2325;

/// The word that a session keeps for a reply.
fn code(output: &Output) -> u64 {
    match output {
        Output::Done => 1,
        Output::Changed(false) => 2,
        Output::Changed(true) => 3,
        other => unreachable!("no simulated write returns {other:?}"),
    }
}

fn output_of(code: u64) -> Output {
    match code {
        1 => Output::Done,
        2 => Output::Changed(false),
        3 => Output::Changed(true),
        other => unreachable!("a session holds {other}"),
    }
}

/// The effects of a write as they are in the log: client, number, reply, whether the key changes, key, and the key's new value if it has one.
const HEADER: usize = 40;
/// In place of a reply: this is a request, to be executed when it is applied. Then the number of its action replaces the flag that says whether the key
/// changes, and what the action needs follows the key.
const REQUEST: u64 = 0;
/// The actions of requests, by number.
const PUT: u64 = 0;
const DELETE: u64 = 1;
/// Compare and swap where the key is expected to hold nothing, or something.
const SWAP_NOTHING: u64 = 2;
const SWAP: u64 = 3;
/// The longest effects of a write, or the longest request: see `tail`.
pub const MOST_EFFECTS: usize = HEADER + 16 + 3000;

impl Machine {
    /// The client's newest write and its reply.
    pub fn session(&self, client: u64) -> Option<(u64, Output)> {
        let held = self.held.get(&(SESSIONS | client))?;
        Some((word(held, 0), output_of(word(held, 1))))
    }

    /// Appends a write as a request, to be executed when it is applied.
    pub fn encode_request(request: Request, key: u64, action: &Action, out: &mut Vec<u8>) {
        let (number, expected, new) = match action {
            Action::Put(value) => (PUT, None, Some(number_of(value))),
            Action::Delete => (DELETE, None, None),
            Action::CompareAndSwap { expected: None, new } => (SWAP_NOTHING, None, Some(number_of(new))),
            Action::CompareAndSwap { expected: Some(expected), new } => (SWAP, Some(number_of(expected)), Some(number_of(new))),
            Action::Get | Action::Add(_) | Action::Append(_) => unreachable!("no write, or none that a simulated client asks for"),
        };
        for word in [request.0, request.1, REQUEST, number, key].into_iter().chain(expected) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        if let Some(value) = new {
            append_with_tail(out, value);
        }
    }

    /// Decodes what [`encode_request`](Self::encode_request) wrote, unless these are effects.
    fn decode_request(command: &[u8]) -> Option<(Request, u64, Action)> {
        let [client, number, reply, action, key] = [0, 1, 2, 3, 4].map(|at| word(command, at));
        let rest = &command[HEADER..];
        let action = match (reply, action) {
            (REQUEST, PUT) => Action::Put(shown(value_of(rest))),
            (REQUEST, DELETE) => Action::Delete,
            (REQUEST, SWAP_NOTHING) => Action::CompareAndSwap { expected: None, new: shown(value_of(rest)) },
            (REQUEST, SWAP) => Action::CompareAndSwap { expected: Some(shown(word(rest, 0))), new: shown(value_of(&rest[8..])) },
            _ => return None,
        };
        Some(((client, number), key, action))
    }

    /// Executes a request, and appends its effects to `effects`. No effects mean that there is nothing to replicate: it was a read, or a write that has been
    /// executed already and gets the same reply again.
    pub fn execute(&mut self, request: Request, key: u64, action: &Action, effects: &mut Vec<u8>) -> Output {
        let held = self.held.get(&key).map(|bytes| peek(bytes));
        let (output, change) = match action {
            Action::Get => return Output::Value(held.map(shown)),
            Action::Put(value) => (Output::Done, Some(Some(number_of(value)))),
            Action::Delete => (Output::Changed(held.is_some()), held.map(|_| None)),
            Action::CompareAndSwap { expected, new } => {
                let fits = held.map(shown) == *expected;
                (Output::Changed(fits), fits.then(|| Some(number_of(new))))
            }
            Action::Add(_) | Action::Append(_) => unreachable!("no simulated client asks for it"),
        };
        for word in [request.0, request.1, code(&output), u64::from(change.is_some()), key] {
            effects.extend_from_slice(&word.to_le_bytes());
        }
        if let Some(Some(value)) = change {
            append_with_tail(effects, value);
        }
        self.change(effects, true);
        output
    }

    /// Notes where in the log the effects of the last `execute` are.
    pub fn note_proposed(&mut self, index: LogIndex, effects: &[u8]) {
        let after = std::mem::replace(&mut self.applied, index);
        self.taken.push(Taken { index, after, digest: fold(DIGEST, effects), request: (word(effects, 0), word(effects, 1)) });
    }

    fn change(&mut self, effects: &[u8], remembers: bool) {
        let [client, number, code, changes, key] = [0, 1, 2, 3, 4].map(|at| word(effects, at));
        if remembers {
            let session = self.held.entry(SESSIONS | client).or_default();
            session.clear();
            for word in [number, code] {
                session.extend_from_slice(&word.to_le_bytes());
            }
        }
        let value = &effects[HEADER..];
        if changes == 0 {
            return;
        }
        if value.is_empty() {
            self.held.remove(&key);
        } else {
            value_of(value);
            self.held.insert(key, value.to_vec());
        }
    }
}

impl StateMachine for Machine {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        assert!(index > self.applied, "entry {index} is applied after {}", self.applied);
        match Machine::decode_request(command) {
            Some((request, key, action)) => {
                self.execute(request, key, &action, &mut Vec::new());
            }
            None => self.change(command, !Careless::UnreplicatedSession.is_planted()),
        }
        self.note_proposed(index, command);
    }

    /// A part: the first key in its range, the first key behind it (0: none), then key, length and bytes of each.
    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        out.extend_from_slice(&cursor.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        for (key, bytes) in self.held.range(cursor..) {
            if out.len() - start >= budget.max(17) {
                out[start + 8..start + 16].copy_from_slice(&key.to_le_bytes());
                return Some(*key);
            }
            out.extend_from_slice(&key.to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        None
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        let word = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("8 bytes"));
        let (from, to) = (word(0), word(8));
        let end = if to == 0 { Bound::Unbounded } else { Bound::Excluded(to) };
        let stale: Vec<u64> = self.held.range((Bound::Included(from), end)).map(|(key, _)| *key).collect();
        for key in stale {
            self.held.remove(&key);
        }
        let mut at = 16;
        while at < part.len() {
            let (key, len) = (word(at), word(at + 8) as usize);
            let bytes = part[at + 16..at + 16 + len].to_vec();
            if key < SESSIONS {
                value_of(&bytes);
            }
            self.held.insert(key, bytes);
            at += 16 + len;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.held.clear();
        self.taken.clear();
        (self.applied, self.cleared) = (LogIndex(0), true);
    }

    fn digest(&self) -> u64 {
        self.held.iter().fold(DIGEST, |digest, (key, bytes)| fold(fold(digest, &key.to_le_bytes()), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_and_parts_make_equal_machines() {
        let mut chance = fastrand::Rng::with_seed(3);
        let (mut primary, mut backup, mut learner) = (Machine::default(), Machine::default(), Machine::default());
        let mut cursor = Some(0);
        for i in 0..400 {
            let key = chance.u64(1..40);
            let action = match chance.u8(..5) {
                0 => Action::Delete,
                1 => Action::CompareAndSwap { expected: None, new: shown(i) },
                2 => Action::Get,
                _ => Action::Put(shown(i)),
            };
            let mut effects = Vec::new();
            let request = (i % 3, i);
            let output = primary.execute(request, key, &action, &mut effects);
            if effects.is_empty() {
                assert_eq!(action, Action::Get);
            } else {
                assert_eq!(primary.session(request.0), Some((request.1, output)));
                backup.apply(LogIndex(i + 1), &effects);
                learner.apply(LogIndex(i + 1), &effects);
            }
            if i > 100
                && i % 5 == 0
                && let Some(from) = cursor
            {
                let mut part = Vec::new();
                cursor = primary.transfer(from, 100, &mut part);
                learner.install(&part).expect("a part");
            }
        }
        assert_eq!(cursor, None);
        assert_eq!((primary.digest(), primary.digest()), (backup.digest(), learner.digest()));
        assert_ne!(primary.digest(), Machine::default().digest());
        assert_eq!(primary.session(2), learner.session(2));
    }
}

//! The replicated state of simulated clusters: keys that hold values, small but awkward.

use std::collections::BTreeMap;
use std::ops::Bound;

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::StateMachine;

use crate::linearizability::kv::{Action, Bytes, Output};

/// A value as clients see it: a number that nobody else writes. In the machine it carries a tail that follows from it, so that entries and parts
/// of the state have every length.
pub type Value = u64;

/// Keys and what they hold.
#[derive(Debug, Default)]
pub struct Machine {
    held: BTreeMap<u64, Vec<u8>>,
    applied: LogIndex,
}

fn with_tail(value: Value) -> Vec<u8> {
    let tail = (value.wrapping_mul(0x9e37_79b9) >> 7) as usize % 5;
    // Mostly short; some longer than a ring's record, some than the ring.
    let tail = [0, 3, 40, 300, 3000][tail];
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend((0..tail).map(|at| (value as usize * 7 + at) as u8));
    bytes
}

fn value_of(bytes: &[u8]) -> Value {
    let value = Value::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert!(bytes == with_tail(value), "a value has been altered");
    value
}

/// What clients see as a key or a value.
pub fn shown(number: u64) -> Bytes {
    Bytes::from(&number.to_le_bytes())
}

fn number_of(bytes: &Bytes) -> u64 {
    u64::from_le_bytes(bytes.0[..].try_into().expect("shown by `shown`"))
}

impl Machine {
    /// Executes a request, and appends its effects to `effects`; none means that it has changed nothing.
    pub fn execute(&mut self, key: u64, action: &Action, effects: &mut Vec<u8>) -> Output {
        let held = self.held.get(&key).map(|bytes| value_of(bytes));
        match action {
            Action::Get => Output::Value(held.map(shown)),
            Action::Put(value) => {
                self.set(key, Some(number_of(value)), effects);
                Output::Done
            }
            Action::Delete => {
                if held.is_some() {
                    self.set(key, None, effects);
                }
                Output::Changed(held.is_some())
            }
            Action::CompareAndSwap { expected, new } => {
                let fits = held.map(shown) == *expected;
                if fits {
                    self.set(key, Some(number_of(new)), effects);
                }
                Output::Changed(fits)
            }
            Action::Add(_) | Action::Append(_) => unreachable!("no simulated client asks for it"),
        }
    }

    fn set(&mut self, key: u64, value: Option<Value>, effects: &mut Vec<u8>) {
        effects.extend_from_slice(&key.to_le_bytes());
        match value {
            Some(value) => {
                let bytes = with_tail(value);
                effects.extend_from_slice(&bytes);
                self.held.insert(key, bytes);
            }
            None => {
                self.held.remove(&key);
            }
        }
    }
}

impl StateMachine for Machine {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        assert!(index > self.applied, "entry {index} is applied after {}", self.applied);
        self.applied = index;
        let (key, value) = command.split_at(8);
        let key = u64::from_le_bytes(key.try_into().expect("8 bytes"));
        if value.is_empty() {
            self.held.remove(&key);
        } else {
            value_of(value);
            self.held.insert(key, value.to_vec());
        }
    }

    /// A part: the first key that it is about, the first that it is not (0: none), then key, length, bytes of each.
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

    fn install(&mut self, part: &[u8]) {
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
            value_of(&bytes);
            self.held.insert(key, bytes);
            at += 16 + len;
        }
    }

    fn clear(&mut self) {
        self.held.clear();
        self.applied = LogIndex(0);
    }

    fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for (key, bytes) in &self.held {
            for byte in key.to_le_bytes().iter().chain(bytes) {
                digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        digest
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
            let action = match chance.u8(..4) {
                0 => Action::Delete,
                1 => Action::CompareAndSwap { expected: None, new: shown(i) },
                _ => Action::Put(shown(i)),
            };
            let mut effects = Vec::new();
            primary.execute(key, &action, &mut effects);
            if !effects.is_empty() {
                backup.apply(LogIndex(i + 1), &effects);
                learner.apply(LogIndex(i + 1), &effects);
            }
            if i > 100
                && i % 5 == 0
                && let Some(from) = cursor
            {
                let mut part = Vec::new();
                cursor = primary.transfer(from, 100, &mut part);
                learner.install(&part);
            }
        }
        assert_eq!(cursor, None);
        assert_eq!((primary.digest(), primary.digest()), (backup.digest(), learner.digest()));
        assert_ne!(primary.digest(), Machine::default().digest());
    }
}

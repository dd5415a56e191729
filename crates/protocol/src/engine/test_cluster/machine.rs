//! A state machine that detects a missing, repeated or misplaced command.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::basics::LogIndex;
use crate::replica::{MAX_PART_BYTES, StateMachine, UnreadablePart};

/// A command: its number, its key, and bytes to make it longer.
pub fn command(id: u64, key: u8, padding: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.push(key);
    bytes.resize(9 + padding, id as u8);
    bytes
}

/// Bytes of a key in a part of the state.
pub const KEY_BYTES: usize = 17;

pub fn id_of(command: &[u8]) -> u64 {
    u64::from_le_bytes(command[..8].try_into().expect("8 bytes"))
}

/// Each key holds the number of its commands, and a hash chain of them.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub keys: BTreeMap<u8, (u64, u64)>,
    /// What was applied or executed since the state was last cleared; not part of the state.
    pub log: Vec<(LogIndex, u64)>,
    pub cleared: u64,
    /// Whether its engine uses no index for itself, so that none may be left out.
    pub gapless: bool,
    /// As a teacher it sends what is no part.
    pub misleads: bool,
    /// Whether, as a teacher, it sends a part that is too long for any learner; and how often it did.
    pub sprawls: bool,
    pub sprawled: Cell<u32>,
}

impl Machine {
    pub fn execute(&mut self, index: LogIndex, command: &[u8]) {
        if let Some((before, _)) = self.log.last() {
            let follows = if self.gapless { before.next() == index } else { *before < index };
            assert!(follows, "{index} is applied after {before}");
        }
        self.log.push((index, id_of(command)));
        self.chain(command);
    }

    /// The state's part of a command.
    pub fn chain(&mut self, command: &[u8]) {
        let (count, hash) = self.keys.entry(command[8]).or_default();
        *count += 1;
        *hash = (*hash ^ id_of(command)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ command.len() as u64;
    }

    /// Commands that its state is of.
    pub fn commands(&self) -> u64 {
        self.keys.values().map(|(count, _)| count).sum()
    }

    /// What a key holds.
    pub fn digest_of(&self, key: u8) -> Option<(u64, u64)> {
        self.keys.get(&key).copied()
    }
}

impl StateMachine for Machine {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        self.execute(index, command);
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        if self.misleads {
            out.push(1);
            return None;
        }
        if self.sprawls && cursor > 0 {
            self.sprawled.set(self.sprawled.get() + 1);
            // Memory that is never touched.
            *out = vec![0; MAX_PART_BYTES + 1];
            return None;
        }
        // A part is the range of keys that it covers and what they hold.
        let end = (cursor + (budget / KEY_BYTES).max(1) as u64).min(256);
        out.extend_from_slice(&cursor.to_le_bytes());
        out.extend_from_slice(&end.to_le_bytes());
        for (key, (count, hash)) in self.keys.iter().filter(|(k, _)| (cursor..end).contains(&u64::from(**k))) {
            out.push(*key);
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(&hash.to_le_bytes());
        }
        (end < 256).then_some(end)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        if part.len() < 16 {
            return Err(UnreadablePart);
        }
        let word = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("8 bytes"));
        let range = word(0)..word(8);
        self.keys.retain(|k, _| !range.contains(&u64::from(*k)));
        for entry in part[16..].chunks_exact(KEY_BYTES) {
            let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
            self.keys.insert(entry[0], (word(1), word(9)));
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.log.clear();
        self.cleared += 1;
    }

    fn digest(&self) -> u64 {
        self.keys
            .iter()
            .fold(0, |d, (k, (count, hash))| (d ^ u64::from(*k)).wrapping_mul(0x0100_0000_01b3).wrapping_add(*count).rotate_left(17) ^ hash)
    }
}

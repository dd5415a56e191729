//! A state machine that tells a command that is missing, repeated or out of order.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::basics::LogIndex;
use crate::replica::{MAX_PART_BYTES, StateMachine, UnreadablePart};

/// A command: its number, its key, and bytes to make it longer.
pub fn command(id: u64, padding: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.push(id as u8);
    bytes.resize(9 + padding, id as u8);
    bytes
}

pub fn id_of(command: &[u8]) -> u64 {
    u64::from_le_bytes(command[..8].try_into().expect("8 bytes"))
}

/// Each key holds a hash chain of its commands.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    keys: BTreeMap<u8, u64>,
    /// What was applied or executed since the state was last cleared; no part of the state.
    pub log: Vec<(LogIndex, u64)>,
    pub cleared: u64,
    /// As a teacher it sends what is no part.
    pub misleads: bool,
    /// As a teacher it sends a part that is too long for anybody; how often it did.
    pub sprawls: bool,
    pub sprawled: Cell<u32>,
}

impl Machine {
    pub fn execute(&mut self, index: LogIndex, command: &[u8]) {
        if let Some((before, _)) = self.log.last() {
            assert!(*before < index, "{index} is applied after {before}");
        }
        self.log.push((index, id_of(command)));
        self.chain(command);
    }

    /// The state's part of a command.
    pub fn chain(&mut self, command: &[u8]) {
        let hash = self.keys.entry(command[8]).or_default();
        *hash = (*hash ^ id_of(command)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ command.len() as u64;
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
            // Of memory that nobody touches.
            *out = vec![0; MAX_PART_BYTES + 1];
            return None;
        }
        let end = (cursor + (budget / 9).max(1) as u64).min(256);
        out.extend_from_slice(&cursor.to_le_bytes());
        out.extend_from_slice(&end.to_le_bytes());
        for (key, hash) in self.keys.iter().filter(|(k, _)| (cursor..end).contains(&u64::from(**k))) {
            out.push(*key);
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
        for entry in part[16..].chunks_exact(9) {
            self.keys.insert(entry[0], u64::from_le_bytes(entry[1..].try_into().expect("8 bytes")));
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.log.clear();
        self.cleared += 1;
    }

    fn digest(&self) -> u64 {
        self.keys.iter().fold(0, |d, (k, hash)| (d ^ u64::from(*k)).wrapping_mul(0x0100_0000_01b3).rotate_left(17) ^ hash)
    }
}

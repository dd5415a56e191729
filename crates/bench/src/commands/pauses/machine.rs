//! A state of whatever size: bytes, into which commands write.

use std::ops::Range;

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{StateMachine, UnreadablePart};

/// A command's first word: where it writes, or that it lengthens the state by the number of bytes in its second word.
const GROW: u64 = u64::MAX;

/// Bytes, each of which stands for a part of some program's state.
#[derive(Debug, Default)]
pub struct Bytes(Vec<u8>);

/// A command that lengthens the state.
pub fn grow(bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&GROW.to_le_bytes());
    out.extend_from_slice(&(bytes as u64).to_le_bytes());
}

/// A command of `length` bytes, at least 8, that writes all but the first 8 of them into the state at `place`.
pub fn write(place: u64, length: usize, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&place.to_le_bytes());
    out.resize(length.max(8), place as u8);
}

fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), rest))
}

impl Bytes {
    /// An empty state with room for so many bytes: memory is taken as it is filled, and nothing is ever moved.
    pub fn with_capacity(bytes: usize) -> Bytes {
        Bytes(Vec::with_capacity(bytes))
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where in the state `length` bytes from `place` on stand, as far as there are any.
    fn range(&self, place: u64, length: usize) -> Range<usize> {
        let start = usize::try_from(place).unwrap_or(usize::MAX).min(self.0.len());
        start..start.saturating_add(length).min(self.0.len())
    }
}

impl StateMachine for Bytes {
    /// A replica that is being taught has the state up to some place: what goes beyond comes with the rest of it.
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        let Some((place, rest)) = word(command) else { return };
        if place == GROW {
            let more = word(rest).map_or(0, |(bytes, _)| bytes as usize);
            self.0.resize(self.0.len() + more, index.0 as u8);
            return;
        }
        let range = self.range(place, rest.len());
        let taken = range.len();
        self.0[range].copy_from_slice(&rest[..taken]);
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let range = self.range(cursor, budget);
        out.extend_from_slice(&cursor.to_le_bytes());
        out.extend_from_slice(&self.0[range.clone()]);
        (range.end < self.0.len()).then_some(range.end as u64)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        let Some((place, bytes)) = word(part) else { return Err(UnreadablePart) };
        self.0.truncate(self.range(place, 0).start);
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn digest(&self) -> u64 {
        self.0.iter().fold(0, |digest: u64, byte| digest.rotate_left(5) ^ u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_taught_between_commands_ends_with_the_same_state() {
        let mut teacher = Bytes::default();
        let mut command = Vec::new();
        grow(1000, &mut command);
        teacher.apply(LogIndex(1), &command);
        let mut learner = Bytes::with_capacity(1000);
        let mut rng = fastrand::Rng::with_seed(5);
        let (mut cursor, mut index) = (Some(0), 1);
        while let Some(at) = cursor {
            let mut part = Vec::new();
            cursor = teacher.transfer(at, 64, &mut part);
            learner.install(&part).expect("a part");
            for _ in 0..50 {
                index += 1;
                write(rng.u64(..1000), 40, &mut command);
                teacher.apply(LogIndex(index), &command);
                learner.apply(LogIndex(index), &command);
            }
        }
        assert_eq!(learner.0, teacher.0);
        assert_eq!(learner.digest(), teacher.digest());
    }

    #[test]
    fn what_is_no_command_changes_nothing() {
        let mut bytes = Bytes(vec![1; 10]);
        for command in [&[][..], &[1, 2, 3], &u64::MAX.to_le_bytes(), &[[0xff; 8], [0; 8]].concat(), &[[0xfe; 8], [9; 8]].concat()] {
            bytes.apply(LogIndex(1), command);
            assert_eq!(bytes.install(&command[..command.len().min(7)]), Err(UnreadablePart));
        }
        assert_eq!(bytes.0, [1; 10]);
    }
}

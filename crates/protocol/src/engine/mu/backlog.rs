//! What has been proposed and is not in the log yet: commands in batches, one batch a record.

use std::collections::VecDeque;

use super::layout::{COMMAND_HEADER_BYTES, Kind};

/// Bodies of records to come, in order. In steady state it allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    head: usize,
    batches: VecDeque<Batch>,
}

/// The body of one record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub kind: Kind,
    pub count: u32,
    pub len: usize,
}

impl Backlog {
    pub fn with_capacity(bytes: usize) -> Backlog {
        Backlog { bytes: Vec::with_capacity(bytes), head: 0, batches: VecDeque::with_capacity(64) }
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// How many entries it will come to.
    pub fn entries(&self) -> u64 {
        self.batches.iter().map(|b| u64::from(b.count)).sum()
    }

    /// Whether a change of the group waits.
    pub fn has_group(&self) -> bool {
        self.batches.iter().any(|b| b.kind == Kind::Group)
    }

    /// Appends a command, to the last batch if that does not grow beyond `batch_bytes` by it.
    pub fn push(&mut self, command: &[u8], batch_bytes: usize) {
        let len = COMMAND_HEADER_BYTES + command.len();
        match self.batches.back_mut() {
            Some(batch) if batch.kind == Kind::Commands && batch.len + len <= batch_bytes => {
                batch.count += 1;
                batch.len += len;
            }
            _ => self.batches.push_back(Batch { kind: Kind::Commands, count: 1, len }),
        }
        self.bytes.extend_from_slice(&(command.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(command);
    }

    pub fn push_group(&mut self, encoded: &[u8]) {
        self.batches.push_back(Batch { kind: Kind::Group, count: 1, len: encoded.len() });
        self.bytes.extend_from_slice(encoded);
    }

    /// The next record's body.
    pub fn front(&self) -> Option<(Batch, &[u8])> {
        self.batches.front().map(|batch| (*batch, &self.bytes[self.head..self.head + batch.len]))
    }

    pub fn pop_front(&mut self) {
        self.head += self.batches.pop_front().map_or(0, |b| b.len);
        if self.batches.is_empty() {
            self.bytes.clear();
            self.head = 0;
        } else if self.head > self.bytes.len() / 2 && self.head > 64 << 10 {
            self.bytes.copy_within(self.head.., 0);
            self.bytes.truncate(self.bytes.len() - self.head);
            self.head = 0;
        }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.head = 0;
        self.batches.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_commands_in_order_up_to_the_limit_and_groups_stand_alone() {
        let mut backlog = Backlog::default();
        for n in 0..5u8 {
            backlog.push(&[n; 10], 30);
        }
        backlog.push_group(b"group");
        backlog.push(&[9; 100], 30);
        let mut seen = Vec::new();
        while let Some((batch, body)) = backlog.front() {
            assert_eq!(body.len(), batch.len);
            seen.push((batch.kind, batch.count, body.len()));
            backlog.pop_front();
        }
        let c = Kind::Commands;
        assert_eq!(seen, [(c, 2, 28), (c, 2, 28), (c, 1, 14), (Kind::Group, 1, 5), (c, 1, 104)]);
        assert!(backlog.is_empty() && backlog.bytes() == 0);
    }
}

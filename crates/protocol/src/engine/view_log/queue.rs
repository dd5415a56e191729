//! Entries in a row, in one buffer: the primary's proposals before they are posted, a backup's entries before they are applied.

use std::collections::VecDeque;

use martlet_fabric::{Pulse, invariant};

use crate::basics::LogIndex;

/// What an emptied queue keeps of its buffer, so that one long entry does not hold memory for ever.
const KEEP_BYTES: usize = 4 << 20;
/// How many free bytes at the front make it worthwhile to move the rest.
const COMPACT_BYTES: usize = 64 << 10;

/// Entries of consecutive indices. In steady state it allocates nothing.
#[derive(Debug)]
pub(super) struct EntryQueue {
    bytes: Vec<u8>,
    /// Where the first entry begins in `bytes`.
    head: usize,
    lens: VecDeque<usize>,
    /// The index of the first entry, or of the next one to be pushed when there is none.
    first: LogIndex,
    /// Bytes at the end of the buffer that belong to an entry whose last fragment has not arrived.
    open: Option<usize>,
    pulse: Pulse,
}

impl EntryQueue {
    /// An empty queue whose first entry will have index `first`.
    pub fn new(first: LogIndex) -> EntryQueue {
        EntryQueue { bytes: Vec::new(), head: 0, lens: VecDeque::new(), first, open: None, pulse: Pulse::default() }
    }

    /// Long entries are copied with signs of life from now on.
    pub fn keep_alive(&mut self, pulse: Pulse) {
        self.pulse = pulse;
    }

    /// Forgets everything; the next entry will have index `first`.
    pub fn restart(&mut self, first: LogIndex) {
        self.bytes.clear();
        self.bytes.shrink_to(KEEP_BYTES);
        self.head = 0;
        self.lens.clear();
        self.first = first;
        self.open = None;
    }

    /// The index of the last whole entry; the one before [`EntryQueue::first`] when there is none.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.first.0 + self.lens.len() as u64 - 1)
    }

    /// The index of the first entry, or of the next one.
    pub fn first(&self) -> LogIndex {
        self.first
    }

    /// Whole entries.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Whether an entry has begun whose last fragment has not arrived.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Appends a fragment; with `more`, others of the same entry follow.
    pub fn push(&mut self, fragment: &[u8], more: bool) {
        self.pulse.append(&mut self.bytes, fragment);
        let len = self.open.take().unwrap_or(0) + fragment.len();
        if more {
            self.open = Some(len);
        } else {
            self.lens.push_back(len);
        }
    }

    /// Forgets the fragments of an entry that will never be whole.
    pub fn discard_open(&mut self) {
        if let Some(len) = self.open.take() {
            self.bytes.truncate(self.bytes.len() - len);
        }
    }

    /// The first entry.
    pub fn front(&self) -> Option<&[u8]> {
        self.lens.front().map(|len| &self.bytes[self.head..self.head + len])
    }

    /// Drops the first entry.
    pub fn pop_front(&mut self) {
        let len = self.lens.pop_front();
        invariant!(len.is_some(), "popped an empty queue");
        self.head += len.unwrap_or(0);
        self.first = self.first.next();
        if self.head == self.bytes.len() {
            self.bytes.clear();
            if self.bytes.capacity() > KEEP_BYTES {
                self.bytes.shrink_to(KEEP_BYTES);
            }
            self.head = 0;
        } else if self.head > COMPACT_BYTES && self.head * 2 > self.bytes.len() {
            // Each byte is moved at most once for every byte that was dropped.
            self.bytes.copy_within(self.head.., 0);
            self.bytes.truncate(self.bytes.len() - self.head);
            self.head = 0;
        }
    }

    /// Steps over an entry that never entered the queue. The queue has to be empty.
    pub fn skip(&mut self) {
        invariant!(self.lens.is_empty() && self.open.is_none(), "skipped an entry of a queue that holds some");
        self.first = self.first.next();
    }

    /// Drops all entries after `index`, and an unfinished one.
    pub fn truncate_after(&mut self, index: LogIndex) {
        self.discard_open();
        while !self.lens.is_empty() && self.last() > index {
            let len = self.lens.pop_back().unwrap_or(0);
            self.bytes.truncate(self.bytes.len() - len);
        }
    }

    /// All whole entries with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (LogIndex, &[u8])> {
        let mut at = self.head;
        self.lens.iter().zip(self.first.0..).map(move |(len, index)| {
            let entry = &self.bytes[at..at + len];
            at += len;
            (LogIndex(index), entry)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain list, through pushes, fragments, pops and truncations.
    #[test]
    fn it_behaves_like_a_list_of_entries() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut queue = EntryQueue::new(LogIndex(1));
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        let mut first = 1u64;
        let mut open: Vec<u8> = Vec::new();
        for step in 0..20_000u32 {
            let bytes: Vec<u8> = (0..rng.usize(0..9000)).map(|_| rng.u8(..)).collect();
            match rng.u8(0..10) {
                0..=3 => {
                    queue.push(&bytes, false);
                    open.extend_from_slice(&bytes);
                    model.push_back(std::mem::take(&mut open));
                }
                4 => {
                    queue.push(&bytes, true);
                    open.extend_from_slice(&bytes);
                }
                5 => {
                    queue.discard_open();
                    open.clear();
                }
                6..=8 if !model.is_empty() => {
                    queue.pop_front();
                    model.pop_front();
                    first += 1;
                }
                9 if step % 16 == 0 => {
                    let after = first + rng.u64(0..=model.len() as u64);
                    queue.truncate_after(LogIndex(after));
                    model.truncate((after + 1 - first) as usize);
                    open.clear();
                }
                _ => {}
            }
            assert_eq!(queue.first(), LogIndex(first));
            assert_eq!(queue.len(), model.len());
            assert_eq!(queue.last().0 + 1, first + model.len() as u64);
            assert_eq!(queue.front(), model.front().map(Vec::as_slice));
            if step % 64 == 0 {
                assert!(queue.iter().map(|(_, e)| e).eq(model.iter().map(Vec::as_slice)));
            }
        }
    }
}

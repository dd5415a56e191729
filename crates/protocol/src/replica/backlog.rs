//! What has been proposed but is not in the log yet: commands in batches, one record per batch.

use martlet_fabric::ring::{self, Record};

/// Bytes of a record's payload before its body.
pub const HEADER_BYTES: usize = 32;
/// Bytes before each command in a body: its length.
pub const COMMAND_HEADER_BYTES: usize = 4;

/// What a record to come holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Commands, each behind its length in four bytes.
    #[default]
    Commands,
    /// A new group.
    Group,
}

/// The commands of a body, in order; `None` in place of bytes that are no command.
pub fn commands(mut body: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        let split = body.split_at_checked(COMMAND_HEADER_BYTES).and_then(|(len, rest)| {
            let len = u32::from_le_bytes(len.try_into().expect("4 bytes")) as usize;
            rest.split_at_checked(len)
        });
        let Some((command, rest)) = split else {
            body = &[];
            return Some(None);
        };
        body = rest;
        Some(Some(command))
    })
}

/// Future records, in order, complete except for their headers, so that a command is copied only once on its way into a record. In steady state nothing is
/// allocated.
///
/// Records stay where they are and are refilled; those from `head` on have not gone out. When none is left, filling starts again with the first, which is warm
/// in the caches.
#[derive(Debug, Default)]
pub struct Backlog {
    batches: Vec<Batch>,
    /// How many of them are kept when none is waiting.
    kept: usize,
    head: usize,
    end: usize,
    /// Bytes of the payloads to come.
    bytes: usize,
}

/// A record that is still open.
#[derive(Debug)]
pub struct Batch {
    /// What it holds.
    pub kind: Content,
    /// Its entries.
    pub count: u32,
    /// As far as it is filled.
    pub record: Record,
}

impl Backlog {
    /// A backlog with room reserved for `backlog_bytes`, in batches of `batch_bytes`, where no command is longer than `max_command_bytes`.
    pub fn new(backlog_bytes: usize, batch_bytes: usize, max_command_bytes: usize) -> Backlog {
        let bytes = HEADER_BYTES + batch_bytes.min(max_command_bytes + COMMAND_HEADER_BYTES);
        let records = (backlog_bytes / batch_bytes).clamp(1, 64);
        let batch = || Batch { kind: Content::Commands, count: 0, record: Record::with_capacity(bytes) };
        Backlog { batches: (0..records).map(|_| batch()).collect(), kept: records, head: 0, end: 0, bytes: 0 }
    }

    /// Whether nothing is to come.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.end
    }

    /// Bytes of the records' payloads.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most bytes of the log that these records take together with one more command of `bytes`: headers and fillers at most double it.
    pub fn log_bytes_with(&self, bytes: usize) -> u64 {
        2 * (self.bytes + bytes + COMMAND_HEADER_BYTES + HEADER_BYTES + 2 * ring::RECORD_HEADER_BYTES) as u64
    }

    fn to_come(&self) -> &[Batch] {
        &self.batches[self.head..self.end]
    }

    /// How many entries it will come to.
    pub fn entries(&self) -> u64 {
        self.to_come().iter().map(|b| u64::from(b.count)).sum()
    }

    /// Whether a change of the group waits.
    pub fn has_group(&self) -> bool {
        self.to_come().iter().any(|b| b.kind == Content::Group)
    }

    /// Whether commands wait.
    pub fn has_commands(&self) -> bool {
        self.to_come().iter().any(|b| b.kind == Content::Commands)
    }

    /// Appends a command, to the last batch if that does not exceed `batch_bytes` with it.
    #[inline]
    pub fn push(&mut self, command: &[u8], batch_bytes: usize) {
        let len = COMMAND_HEADER_BYTES + command.len();
        let limit = HEADER_BYTES + batch_bytes;
        let joins = |batch: &Batch| matches!(batch.kind, Content::Commands) && batch.record.len() + len <= limit;
        if self.is_empty() || !joins(&self.batches[self.end - 1]) {
            self.open(Content::Commands);
        }
        let batch = &mut self.batches[self.end - 1];
        batch.count += 1;
        batch.record.extend(&(command.len() as u32).to_le_bytes());
        batch.record.extend(command);
        self.bytes += len;
    }

    /// Appends a group.
    pub fn push_group(&mut self, encoded: &[u8]) {
        self.open(Content::Group);
        let batch = &mut self.batches[self.end - 1];
        batch.count = 1;
        batch.record.extend(encoded);
        self.bytes += encoded.len();
    }

    #[inline]
    fn open(&mut self, kind: Content) {
        if self.end == self.batches.len() {
            self.make_room();
        }
        let batch = &mut self.batches[self.end];
        (batch.kind, batch.count) = (kind, 0);
        batch.record.open(HEADER_BYTES);
        self.bytes += HEADER_BYTES;
        self.end += 1;
    }

    #[cold]
    fn make_room(&mut self) {
        // The records that have gone out come last. If they are few, more are made, so that all of them are moved only rarely.
        if self.head > self.batches.len() / 2 {
            self.batches.rotate_left(self.head);
            (self.head, self.end) = (0, self.end - self.head);
            self.batches[self.end..].iter_mut().for_each(|batch| batch.record.clear());
        } else {
            self.batches.push(Batch { kind: Content::Commands, count: 0, record: Record::default() });
        }
    }

    /// The next record.
    #[inline]
    pub fn front(&mut self) -> Option<&mut Batch> {
        self.batches[self.head..self.end].first_mut()
    }

    /// The next record has gone out.
    #[inline]
    pub fn pop_front(&mut self) {
        if self.is_empty() {
            return;
        }
        self.bytes -= self.batches[self.head].record.len();
        self.head += 1;
        if self.is_empty() {
            self.begin_anew();
        }
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.begin_anew();
        self.bytes = 0;
    }

    /// Starts again with the first record. Extra memory that a rush of proposals took is freed.
    #[inline]
    fn begin_anew(&mut self) {
        if self.end > 1 {
            self.batches[1..self.end].iter_mut().for_each(|batch| batch.record.clear());
            self.batches.truncate(self.kept.max(1));
        }
        (self.head, self.end) = (0, 0);
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
        let (mut seen, mut left) = (Vec::new(), backlog.bytes());
        while let Some(batch) = backlog.front() {
            batch.record.close(&[7; HEADER_BYTES]);
            let (header, body) = batch.record.payload().split_at(HEADER_BYTES);
            assert_eq!(header, [7; HEADER_BYTES]);
            seen.push((batch.kind, batch.count, body.len()));
            left -= header.len() + body.len();
            backlog.pop_front();
            assert_eq!(backlog.bytes(), left);
        }
        let c = Content::Commands;
        assert_eq!(seen, [(c, 2, 28), (c, 2, 28), (c, 1, 14), (Content::Group, 1, 5), (c, 1, 104)]);
        assert!(backlog.is_empty() && left == 0);
    }

    #[test]
    fn records_are_used_again_and_keep_their_order_however_many_wait() {
        let mut backlog = Backlog::default();
        let (mut rng, mut pushed, mut popped) = (fastrand::Rng::with_seed(8), 0u64, 0u64);
        for _ in 0..20_000 {
            if rng.u32(..) % 100 < 51 {
                backlog.push(&pushed.to_le_bytes(), 1);
                pushed += 1;
            } else if let Some(batch) = backlog.front() {
                batch.record.close(&[0; HEADER_BYTES]);
                assert_eq!(batch.record.payload()[HEADER_BYTES + COMMAND_HEADER_BYTES..], popped.to_le_bytes());
                backlog.pop_front();
                popped += 1;
            }
            assert_eq!((backlog.entries(), backlog.is_empty()), (pushed - popped, pushed == popped));
            assert_eq!(backlog.bytes() as u64, (pushed - popped) * (HEADER_BYTES + COMMAND_HEADER_BYTES + 8) as u64);
        }
        assert!(popped > 9_000);
    }

    #[test]
    fn a_rush_leaves_nothing_behind() {
        let mut backlog = Backlog::new(1 << 20, 16 << 10, 1 << 20);
        let rush = |backlog: &mut Backlog, n: usize| {
            (0..n).for_each(|_| backlog.push(&[7; 100], 1));
            backlog.clear();
            (backlog.batches.len(), backlog.batches.iter().map(|b| b.record.len()).sum::<usize>())
        };
        let one = rush(&mut backlog, 1);
        assert_eq!(one, (64, HEADER_BYTES + COMMAND_HEADER_BYTES + 100), "the first record is used again as it is");
        assert_eq!(rush(&mut backlog, 1000), one);
        // Some of them move while they wait.
        for _ in 0..500 {
            backlog.push(&[7; 100], 1);
            if backlog.entries() > 50 {
                backlog.pop_front();
            }
        }
        while backlog.front().is_some() {
            backlog.pop_front();
        }
        assert_eq!(rush(&mut backlog, 1), one);
    }
}

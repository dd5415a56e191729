//! Tables and indices that were discarded as a whole, and are given back to the allocator a little at a time.

use super::expiry::ExpiryIndex;
use super::table::{Bucket, Table};

/// How many expiry dates are dropped in one step: about as much work as a bucket.
const DATES: usize = 512;

/// Tables and indices that are no longer used. Freeing a million entries takes longer than a turn may, and the primary's heartbeat must not stop for a
/// FLUSHALL. So one [`Remains::step`] frees about as much as one bucket holds.
#[derive(Debug, Default)]
pub(super) struct Remains {
    tables: Vec<Vec<Vec<Bucket>>>,
    indices: Vec<ExpiryIndex>,
}

impl Remains {
    /// Takes in a table and an index to be freed.
    pub(super) fn take(&mut self, table: Table, index: ExpiryIndex) {
        if !table.is_empty() {
            self.tables.push(table.into_buckets());
        }
        if !index.is_empty() {
            self.indices.push(index);
        }
    }

    /// How many steps are due in a turn: the more is waiting, the more steps, so that a client which fills and flushes by turns cannot pile up memory.
    #[inline]
    pub(super) fn due(&self) -> usize {
        self.tables.len() + self.indices.len()
    }

    /// Frees a little.
    pub(super) fn step(&mut self) {
        if let Some(index) = self.indices.last_mut() {
            if !index.drop_some(DATES) {
                self.indices.pop();
            }
        } else if let Some(segments) = self.tables.last_mut() {
            match segments.last_mut() {
                // The bucket is dropped together with its entries.
                Some(buckets) => {
                    if buckets.pop().is_none() {
                        segments.pop();
                    }
                }
                None => {
                    self.tables.pop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Entry;
    use super::super::hash::Seed;
    use super::super::table::BUCKET_ENTRIES;
    use super::*;

    #[test]
    fn a_large_table_goes_in_many_small_steps_and_to_the_end() {
        const KEYS: u64 = 100_000;
        let (mut table, mut index) = (Table::new(Seed(1, 2)), ExpiryIndex::default());
        for i in 0..KEYS {
            let key = i.to_le_bytes();
            let hash = table.keyed(&key).hash;
            table.insert_new(hash, Entry::new(&key, b"v", Some(i)));
            index.moved(hash, None, Some(i));
        }
        let mut remains = Remains::default();
        remains.take(table, index);
        let held = |r: &Remains| -> usize {
            let entries = r.tables.iter().flatten().flatten().map(Bucket::len).sum::<usize>();
            entries + r.indices.iter().map(ExpiryIndex::len).sum::<usize>()
        };
        assert_eq!(held(&remains), 2 * KEYS as usize);
        while remains.due() > 0 {
            let before = held(&remains);
            remains.step();
            assert!(before - held(&remains) <= BUCKET_ENTRIES.max(DATES));
        }
        assert_eq!(held(&remains), 0);
    }
}

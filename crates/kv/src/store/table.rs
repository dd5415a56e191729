//! An extendible hash table: a directory of small tables, by the top bits of the hash.
//!
//! A hash table that doubles as a whole pauses the insert that fills it, for longer the larger the table is. Here the hash's top `SEGMENT_BITS` choose a
//! segment, and the bits below them choose a bucket through the segment's directory. A bucket that reaches [`BUCKET_ENTRIES`] splits in two. So the work of one
//! insert is bounded: it splits one bucket, and at most doubles one segment's directory, which takes four bytes for each bucket of a 256th of the table.
//!
//! Each bucket covers a range of hashes, and a split only cuts a range in two. So a walk through the table in the order of the hashes, which remembers only how
//! far it came, meets every entry that is there throughout, even if buckets split meanwhile.

use hashbrown::HashTable;
use martlet_fabric::Pulse;
use martlet_fabric::pulse::STEP_BYTES;

use super::entry::Entry;
use super::hash::{Hasher, POSITION_BITS, Position, Seed, position};

/// How many bits of the hash choose a segment.
const SEGMENT_BITS: u32 = 8;
/// A bucket splits when an insert would take it beyond this many entries: what 512 slots hold at hashbrown's load of 7/8.
pub const BUCKET_ENTRIES: usize = 448;
/// How many buckets one call of [`Table::walk`] looks into. A table that was emptied keeps its buckets, and passing a million of them takes longer than a turn
/// may.
const WALK_BUCKETS: usize = 1024;
/// A table of at most this many entries is cleared at once.
const SMALL_ENTRIES: usize = 1024;
/// No bucket splits so often that its range becomes narrower than a [`Position`].
const MAX_DEPTH: u32 = POSITION_BITS - SEGMENT_BITS;

/// A key and its hash, computed once for all that a command does with the key.
#[derive(Clone, Copy, Debug)]
pub struct Keyed<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its hash under the table's seed.
    pub hash: u64,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    entries: HashTable<Entry>,
    /// How many bits of the hash, after the segment's, all of its entries share.
    depth: u32,
}

impl Bucket {
    /// How many entries it holds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[derive(Debug)]
struct Segment {
    /// `1 << depth` indices into `buckets`.
    directory: Vec<u32>,
    depth: u32,
    buckets: Vec<Bucket>,
    /// Entries in all buckets.
    len: usize,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment { directory: vec![0], depth: 0, buckets: vec![Bucket::default()], len: 0 }
    }
}

/// The bits of the hash that hashbrown sees. It tells entries apart by the top 7 bits, and in our hash those are the same for all entries of a bucket.
#[inline]
fn inner(hash: u64) -> u64 {
    hash.rotate_left(32)
}

#[inline]
fn segment_of(hash: u64) -> usize {
    (hash >> (64 - SEGMENT_BITS)) as usize
}

impl Segment {
    #[inline]
    fn slot(&self, hash: u64) -> usize {
        // Two shifts, since a shift by 64 does nothing.
        ((hash << SEGMENT_BITS) >> 1 >> (63 - self.depth)) as usize
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[self.directory[self.slot(hash)] as usize]
    }

    #[inline]
    fn bucket_mut(&mut self, hash: u64) -> &mut Bucket {
        let at = self.directory[self.slot(hash)] as usize;
        &mut self.buckets[at]
    }

    /// Splits the bucket of `hash` in two; the next bit of an entry's hash says which bucket it goes to.
    fn split(&mut self, hash: u64, hasher: &Hasher) {
        let at = self.directory[self.slot(hash)] as usize;
        let depth = self.buckets[at].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|&b| [b, b]).collect();
            self.depth += 1;
        }
        let upper_index = u32::try_from(self.buckets.len()).expect("memory ends before");
        let bit = 1u64 << (63 - SEGMENT_BITS - depth);
        let all = std::mem::take(&mut self.buckets[at].entries);
        let half = BUCKET_ENTRIES / 2;
        let (mut lower, mut upper) = (HashTable::with_capacity(half), HashTable::with_capacity(half));
        for entry in all {
            let hash = hasher.hash(entry.key());
            let into = if hash & bit == 0 { &mut lower } else { &mut upper };
            into.insert_unique(inner(hash), entry, |e| inner(hasher.hash(e.key())));
        }
        self.buckets[at] = Bucket { entries: lower, depth: depth + 1 };
        self.buckets.push(Bucket { entries: upper, depth: depth + 1 });
        // The bucket's share of the directory is one run; its upper half now names the new bucket.
        let run = 1usize << (self.depth - depth);
        let first = self.slot(hash) & !(run - 1);
        self.directory[first + run / 2..first + run].fill(upper_index);
    }

    fn heap_bytes(&self) -> usize {
        self.directory.capacity() * size_of::<u32>() + self.buckets.capacity() * size_of::<Bucket>()
    }
}

/// The table. See the [module](self).
#[derive(Debug)]
pub struct Table {
    hasher: Hasher,
    segments: Box<[Segment]>,
    len: usize,
    /// Bytes of the entries' allocations.
    entry_bytes: usize,
    /// Bytes of the buckets' slots and of the directories.
    table_bytes: usize,
    /// A bucket that stands in for an empty segment during a walk.
    nothing: Bucket,
}

impl Table {
    /// An empty table under `seed`.
    pub fn new(seed: Seed) -> Table {
        let segments: Box<[Segment]> = (0..1 << SEGMENT_BITS).map(|_| Segment::default()).collect();
        let table_bytes = segments.len() * size_of::<Segment>() + segments.iter().map(Segment::heap_bytes).sum::<usize>();
        Table { hasher: Hasher::new(seed), segments, len: 0, entry_bytes: 0, table_bytes, nothing: Bucket::default() }
    }

    /// Whether it is so small that it can be cleared at once.
    pub(super) fn is_small(&self) -> bool {
        self.len <= SMALL_ENTRIES && self.segments.iter().map(|segment| segment.buckets.len()).sum::<usize>() <= 2 * self.segments.len()
    }

    /// Removes every entry of a table that is [small](Table::is_small).
    pub(super) fn clear_small(&mut self, pulse: &Pulse) {
        if self.len == 0 {
            return;
        }
        for segment in self.segments.iter_mut().filter(|segment| segment.len > 0) {
            pulse.worked(segment.len * STEP_BYTES);
            *segment = Segment::default();
        }
        let slots = |segment: &Segment| segment.buckets.iter().map(|bucket| bucket.entries.allocation_size()).sum::<usize>();
        let in_segments: usize = self.segments.iter().map(|segment| segment.heap_bytes() + slots(segment)).sum();
        self.table_bytes = self.segments.len() * size_of::<Segment>() + in_segments;
        (self.len, self.entry_bytes) = (0, 0);
    }

    /// Its buckets, by segment, so that they can be freed one by one.
    pub(super) fn into_buckets(self) -> Vec<Vec<Bucket>> {
        self.segments.into_iter().map(|segment| segment.buckets).collect()
    }

    /// The seed of its hash.
    pub fn seed(&self) -> Seed {
        self.hasher.seed()
    }

    /// How many entries it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How much heap it takes, in bytes: entries and slots.
    pub fn heap_bytes(&self) -> usize {
        self.entry_bytes + self.table_bytes
    }

    /// The key with its hash.
    #[inline]
    pub fn keyed<'a>(&self, key: &'a [u8]) -> Keyed<'a> {
        Keyed { key, hash: self.hasher.hash(key) }
    }

    /// The entry of that key.
    #[inline]
    pub fn get(&self, k: Keyed<'_>) -> Option<&Entry> {
        self.segments[segment_of(k.hash)].bucket(k.hash).entries.find(inner(k.hash), |e| e.key() == k.key)
    }

    /// An entry with that hash and expiry, for the index of expiries.
    pub fn find_expiring(&self, hash: u64, expiry: u64) -> Option<&Entry> {
        self.segments[segment_of(hash)].bucket(hash).entries.find(inner(hash), |e| e.expiry() == Some(expiry))
    }

    /// Calls `change` with the entry of that key, if there is one, and returns what `change` returns.
    #[inline]
    pub fn update<T>(&mut self, k: Keyed<'_>, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.segments[segment_of(k.hash)].bucket_mut(k.hash).entries.find_mut(inner(k.hash), |e| e.key() == k.key)?;
        let before = entry.heap_bytes();
        let result = change(entry);
        self.entry_bytes = self.entry_bytes - before + entry.heap_bytes();
        Some(result)
    }

    /// Adds an entry whose key is not there yet.
    pub fn insert_new(&mut self, hash: u64, entry: Entry) {
        let hasher = &self.hasher;
        let segment = &mut self.segments[segment_of(hash)];
        while segment.bucket(hash).entries.len() >= BUCKET_ENTRIES && segment.bucket(hash).depth < MAX_DEPTH {
            let before = segment.heap_bytes() + segment.bucket(hash).entries.allocation_size();
            let at = segment.directory[segment.slot(hash)] as usize;
            segment.split(hash, hasher);
            let halves =
                segment.buckets[at].entries.allocation_size() + segment.buckets.last().expect("just pushed").entries.allocation_size();
            self.table_bytes = self.table_bytes - before + segment.heap_bytes() + halves;
        }
        segment.len += 1;
        let entries = &mut segment.bucket_mut(hash).entries;
        let before = entries.allocation_size();
        self.entry_bytes += entry.heap_bytes();
        entries.insert_unique(inner(hash), entry, |e| inner(hasher.hash(e.key())));
        self.table_bytes = self.table_bytes - before + entries.allocation_size();
        self.len += 1;
    }

    /// Removes the entry of that key.
    pub fn remove(&mut self, k: Keyed<'_>) -> Option<Entry> {
        let hasher = &self.hasher;
        let segment = &mut self.segments[segment_of(k.hash)];
        let entries = &mut segment.bucket_mut(k.hash).entries;
        let entry = entries.find_entry(inner(k.hash), |e| e.key() == k.key).ok()?.remove().0;
        segment.len -= 1;
        let entries = &mut segment.bucket_mut(k.hash).entries;
        self.len -= 1;
        self.entry_bytes -= entry.heap_bytes();
        if entries.capacity() > 16 && entries.len() < entries.capacity() / 8 {
            let before = entries.allocation_size();
            entries.shrink_to(entries.len() * 2, |e| inner(hasher.hash(e.key())));
            self.table_bytes = self.table_bytes - before + entries.allocation_size();
        }
        Some(entry)
    }

    /// Every entry, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.segments.iter().flat_map(|s| s.buckets.iter()).flat_map(|b| b.entries.iter())
    }

    /// Visits entries in the order of their positions, starting at `from`, until `visit` returns `false`; entries that share the last one's position are still
    /// visited. Returns where to continue, or `None` at the end. One call passes a bounded number of buckets, so it may stop before `visit` says so, and may
    /// visit nothing.
    pub fn walk<'a>(&'a self, from: Position, mut visit: impl FnMut(Position, &'a Entry) -> bool) -> Option<Position> {
        let mut from = from;
        let mut bucket: Vec<(Position, &Entry)> = Vec::new();
        let mut passed = 0;
        loop {
            let hash = from << (64 - POSITION_BITS);
            let segment = &self.segments[segment_of(hash)];
            let Bucket { entries, depth } = if segment.len > 0 { segment.bucket(hash) } else { &self.nothing };
            bucket.clear();
            bucket.extend(entries.iter().map(|e| (position(self.hasher.hash(e.key())), e)).filter(|(p, _)| *p >= from));
            bucket.sort_unstable_by_key(|(p, _)| *p);
            let mut stop_after = None;
            for &(at, entry) in &bucket {
                if stop_after.is_some_and(|stop| stop != at) {
                    return Some(at);
                }
                if !visit(at, entry) {
                    stop_after = Some(at);
                }
            }
            // The first position after the bucket's range.
            let width = 1u64 << (POSITION_BITS - SEGMENT_BITS - depth);
            from = (from & !(width - 1)) + width;
            if from >> POSITION_BITS != 0 {
                return None;
            }
            passed += 1;
            if stop_after.is_some() || passed == WALK_BUCKETS {
                return Some(from);
            }
        }
    }

    /// An entry chosen by `chance`: one from the bucket that `chance` falls into when taken as a hash, or from the next bucket that has any.
    pub fn any(&self, chance: u64) -> Option<&Entry> {
        if self.is_empty() {
            return None;
        }
        let mut from = position(chance);
        loop {
            let hash = from << (64 - POSITION_BITS);
            let segment = &self.segments[segment_of(hash)];
            if segment.len == 0 {
                let width = 1u64 << (POSITION_BITS - SEGMENT_BITS);
                from = ((from & !(width - 1)) + width) & ((1 << POSITION_BITS) - 1);
                continue;
            }
            let Bucket { entries, depth } = segment.bucket(hash);
            if !entries.is_empty() {
                let nth = (chance as usize & 0xffff) % entries.len();
                return entries.iter().nth(nth);
            }
            let width = 1u64 << (POSITION_BITS - SEGMENT_BITS - depth);
            from = (from & !(width - 1)) + width;
            from &= (1 << POSITION_BITS) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn filled(keys: std::ops::Range<u32>) -> Table {
        let mut table = Table::new(Seed(1, 2));
        for i in keys {
            put(&mut table, &i.to_le_bytes());
        }
        table
    }

    fn put(table: &mut Table, key: &[u8]) {
        let hash = table.keyed(key).hash;
        table.insert_new(hash, Entry::new(key, b"v", None));
    }

    #[test]
    fn splits_keep_every_entry_reachable() {
        let table = filled(0..300_000);
        assert_eq!(table.len(), 300_000);
        assert!(table.segments.iter().all(|s| s.buckets.len() > 1 && s.buckets.iter().all(|b| b.entries.len() <= BUCKET_ENTRIES)));
        for i in 0..300_000u32 {
            let key = i.to_le_bytes();
            assert_eq!(table.get(table.keyed(&key)).map(Entry::key), Some(&key[..]));
        }
        assert!(table.get(table.keyed(b"absent")).is_none());
        assert_eq!(table.iter().count(), 300_000);
    }

    #[test]
    fn a_walk_meets_what_is_there_throughout_while_the_table_splits() {
        let mut table = filled(0..20_000);
        let (mut seen, mut from, mut next_key) = (HashSet::new(), Some(0), 1_000_000u32);
        while let Some(at) = from {
            let mut budget = 50;
            from = table.walk(at, |_, e| {
                seen.insert(e.key().to_vec());
                budget -= 1;
                budget > 0
            });
            for _ in 0..40 {
                put(&mut table, &next_key.to_le_bytes());
                next_key += 1;
            }
        }
        assert!((0..20_000u32).all(|i| seen.contains(&i.to_le_bytes()[..])));
    }

    #[test]
    fn accounting_follows_the_parts() {
        let mut table = filled(0..50_000);
        let sum = |t: &Table| -> (usize, usize) {
            let slots: usize = t.segments.iter().flat_map(|s| &s.buckets).map(|b| b.entries.allocation_size()).sum();
            let fixed = t.segments.len() * size_of::<Segment>() + t.segments.iter().map(Segment::heap_bytes).sum::<usize>();
            (t.iter().map(Entry::heap_bytes).sum(), slots + fixed)
        };
        assert_eq!((table.entry_bytes, table.table_bytes), sum(&table));
        for i in 0..45_000u32 {
            let key = i.to_le_bytes();
            let k = table.keyed(&key);
            table.update(k, |e| e.replace(&vec![b'x'; (i % 100) as usize], None, &Pulse::default()));
        }
        assert_eq!((table.entry_bytes, table.table_bytes), sum(&table));
        for i in 0..50_000u32 {
            let key = i.to_le_bytes();
            assert!(table.remove(table.keyed(&key)).is_some());
        }
        assert_eq!((table.entry_bytes, table.table_bytes), sum(&table));
        assert_eq!((table.len(), table.entry_bytes), (0, 0));
    }

    #[test]
    fn memory_per_key_is_below_redis() {
        // Redis 7.0 with jemalloc, a key of 16 bytes and a value of 3: a dict entry (32), the key (32), the value (32), and the slot (8 at
        // the least): 104 bytes and more.
        let mut table = Table::new(Seed(1, 2));
        for i in 0..200_000u32 {
            let key = format!("key:{i:012}");
            let hash = table.keyed(key.as_bytes()).hash;
            table.insert_new(hash, Entry::new(key.as_bytes(), b"xxx", None));
        }
        let each = table.heap_bytes() / table.len();
        assert!(each < 80, "{each} bytes a key");
    }

    #[test]
    fn any_reaches_a_lonely_entry() {
        let mut table = filled(0..100_000);
        for i in 0..99_999u32 {
            let key = i.to_le_bytes();
            table.remove(table.keyed(&key));
        }
        for chance in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!(table.any(chance).map(Entry::key), Some(&99_999u32.to_le_bytes()[..]));
        }
    }

    #[test]
    fn a_walk_over_an_emptied_table_comes_in_small_steps_and_to_the_end() {
        let mut table = filled(0..500_000);
        for i in 3_000..500_000u32 {
            let key = i.to_le_bytes();
            table.remove(table.keyed(&key));
        }
        assert!(table.segments.iter().all(|s| s.len > 0), "no segment is passed at once");
        let buckets: usize = table.segments.iter().map(|s| s.buckets.len()).sum();
        let (mut from, mut calls, mut seen) = (Some(0), 0, 0);
        while let Some(at) = from {
            calls += 1;
            from = table.walk(at, |_, _| {
                seen += 1;
                true
            });
        }
        assert_eq!((seen, calls), (3_000, buckets.div_ceil(WALK_BUCKETS)));
        assert!(calls > 1);
    }

    proptest! {
        #[test]
        fn is_a_map(ops in prop::collection::vec((any::<u16>(), any::<Option<u8>>()), 0..2000)) {
            let mut table = Table::new(Seed(7, 9));
            let mut model = BTreeMap::new();
            for (key, value) in ops {
                let key = (key % 700).to_le_bytes();
                let k = table.keyed(&key);
                match value {
                    Some(v) => {
                        let value = vec![v; usize::from(v)];
                        if table.update(k, |e| e.replace(&value, None, &Pulse::default())).is_none() {
                            table.insert_new(k.hash, Entry::new(&key, &value, None));
                        }
                        model.insert(key, value);
                    }
                    None => prop_assert_eq!(table.remove(k).is_some(), model.remove(&key).is_some()),
                }
            }
            prop_assert_eq!(table.len(), model.len());
            prop_assert_eq!(table.segments.iter().map(|s| s.len).sum::<usize>(), model.len());
            for (key, value) in &model {
                prop_assert_eq!(table.get(table.keyed(key)).map(Entry::value), Some(&value[..]));
            }
        }
    }
}

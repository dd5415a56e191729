//! Records in a lane: one writer, one reader, sealed entries at absolute positions (TRAPS 4, 14 and 17).
//!
//! A lane is a header of [`HEADER_BYTES`] followed by a power of two of data bytes. The writer appends records at ever-growing *absolute*
//! positions; the byte of position `p` lies at `p % capacity`. A record is
//!
//! ```text
//! word 0   length of the payload in bytes (low 32) | position / 16, low 31 bits, under a bit that is always set (high 32)
//! word 1   seal: crc32 of the payload, mixed with the length, the whole position and the lane's salt
//! ...      payload, zero-padded to a multiple of 16
//! ```
//!
//! Nothing is ever zeroed. Bytes of an earlier lap carry another position, and so identify themselves as stale. A record that is torn, or only partly
//! there, fails its seal and is treated as not there yet. A record never crosses the end of the data: a filler record covers what is left there.
//!
//! A payload may come from outside, and positions can be guessed. An attacker could therefore plant bytes that look like the record of the next lap
//! in the place where that record will be. To prevent this, both ends of a lane that carries such payloads share a *salt*, a random number that
//! nobody else knows, without which a seal cannot be forged: [`Writer::salted`] and [`Reader::salted`]. The owner draws the salt, and the writer
//! learns it before it writes.
//!
//! | word of the header | who writes | meaning | may move |
//! |---|---|---|---|
//! | 0 | the owner (reader) | position up to which records have been consumed | upwards |
//! | 1 | the owner (reader) | the lane's salt, nonzero, once the owner's program reads this lane; for the ring's users, not the ring | from 0 to the salt |

use crate::canary::Canary;
use crate::contract::{Fabric, Memory, Remote, Token};
use crate::invariant;
use crate::primitive::{Ordering, load_words, prefetch_for_write, store_words};

/// The part of a lane before its data.
pub const HEADER_BYTES: usize = 64;
/// Where the owner can say that it reads the lane, and with which [`salt`]: this word of the header, in bytes from the lane's start.
pub const ATTENDED_OFFSET: usize = 8;
/// What a record takes up in addition to its payload.
pub const RECORD_HEADER_BYTES: usize = 16;
/// The length that marks a filler record.
const FILLER: u32 = u32::MAX;

/// The bytes that a record with a payload of `payload` bytes takes in the ring.
pub const fn record_bytes(payload: usize) -> usize {
    RECORD_HEADER_BYTES + payload.next_multiple_of(16)
}

/// The length of a lane whose ring holds `capacity` bytes (a power of two, at least 256).
pub const fn lane_bytes(capacity: usize) -> usize {
    assert!(capacity.is_power_of_two() && capacity >= 256, "a ring's capacity is a power of two, at least 256");
    HEADER_BYTES + capacity
}

/// The position after a record with a payload of `len` bytes that is put at `position`, including the filler before it if one is needed. This is the
/// same in every ring of this capacity, so logs with the same records have them at the same positions.
pub fn position_after(position: u64, len: usize, capacity: u64) -> u64 {
    let need = record_bytes(len) as u64;
    position + filler_before(position, need, capacity) + need
}

#[inline]
fn filler_before(position: u64, need: u64, capacity: u64) -> u64 {
    let to_end = capacity - within(position, capacity);
    if need > to_end { to_end } else { 0 }
}

/// Puts a record, without salt, at `position` into a ring of our own that no other process writes. Returns [`position_after`] it. The caller makes
/// sure that what the record overwrites is no longer needed.
pub fn place(ring: &Memory, position: u64, record: &Record) -> u64 {
    put(ring, position, record.len, record.crc, |words| store_words(words, &record.bytes[RECORD_HEADER_BYTES..]))
}

/// Like [`place`], for the record that `reader` has just taken. The reader has verified those bytes, so they need no second checksum.
pub fn place_taken(ring: &Memory, position: u64, payload: &[u8], reader: &Reader) -> u64 {
    debug_assert_eq!(reader.crc, crc32fast::hash(payload), "not what was taken last");
    put(ring, position, payload.len(), reader.crc, |words| {
        let (whole, tail) = payload.as_chunks::<8>();
        let (words, rest) = words.split_at(whole.len());
        store_words(words, whole.as_flattened());
        // Zero the rest of the record: the last word's bytes after the payload, and the words after it.
        let mut last = tail.iter().rev().fold(0u64, |word, byte| (word << 8) | u64::from(*byte));
        for word in rest {
            word.store(std::mem::take(&mut last), Ordering::Relaxed);
        }
    })
}

/// Reads back a record that we have put at `position` into a ring of our own that no other process writes. It was verified when it was put there, so
/// it needs no second checksum. Returns where the next record begins, or `None` if there is no record at `position`.
pub fn reread(ring: &Memory, position: u64, into: &mut Vec<u8>) -> Option<u64> {
    let mut reader = Reader::at(position);
    reader.step(ring, into, false).then_some(reader.next)
}

/// Copies a payload of `len` bytes that begins with these words.
#[inline]
fn load_payload(words: &Memory, len: usize, into: &mut Vec<u8>) {
    let count = len.div_ceil(8);
    // The buffer's contents are overwritten, so a buffer that is long enough is not cleared first.
    into.resize(count * 8, 0);
    load_words(&words[..count], into);
    into.truncate(len);
}

#[inline(always)]
fn put(ring: &Memory, position: u64, len: usize, crc: u32, store: impl FnOnce(&Memory)) -> u64 {
    let capacity = capacity_of(ring);
    let need = record_bytes(len) as u64;
    invariant!(len <= max_payload(capacity as usize), "record of {len} bytes in a ring of {capacity}");
    let filler = filler_before(position, need, capacity);
    if filler > 0 {
        let at = index_of(position, capacity);
        ring[at + 1].store(seal(0, 0, FILLER, position), Ordering::Relaxed);
        ring[at].store(word0(FILLER, position), Ordering::Release);
    }
    let position = position + filler;
    let at = index_of(position, capacity);
    let record = &ring[at..at + (need / 8) as usize];
    record[1].store(seal(0, crc, len as u32, position), Ordering::Relaxed);
    store(&record[RECORD_HEADER_BYTES / 8..]);
    // Last, as in a fabric's write: a reader that finds this word finds the rest. Pairs with the acquire in `Reader::maybe`.
    record[0].store(word0(len as u32, position), Ordering::Release);
    position + need
}

/// Hints that a record will soon be placed in the `len` bytes from `position` on.
#[inline]
pub fn expect_place(ring: &Memory, position: u64, len: usize) {
    let from = index_of(position, capacity_of(ring));
    prefetch_for_write(&ring[from..(from + len / 8).min(ring.len())]);
}

/// The longest payload that a ring of this capacity takes. It is limited to a quarter of the ring, so that a filler and the record always fit
/// together.
pub const fn max_payload(capacity: usize) -> usize {
    capacity / 4 - RECORD_HEADER_BYTES
}

/// The finaliser of splitmix64: every bit of the argument affects every bit of the result.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn seal(salt: u64, crc: u32, len: u32, position: u64) -> u64 {
    mix(position ^ (u64::from(len) << 32) ^ 0x9e37_79b9_7f4a_7c15 ^ salt) ^ ((u64::from(crc) << 32) | u64::from(crc))
}

/// The salt of one lane, which is never 0. It is derived from a secret that was drawn once; `lane` tells the lanes with that secret apart.
pub fn salt(secret: u64, lane: u64) -> u64 {
    mix(secret ^ mix(lane.wrapping_add(1))) | 1
}

/// Never 0, so that fresh memory never looks like a record, whatever the position.
fn tag(position: u64) -> u64 {
    (position / 16) & 0x7fff_ffff | 0x8000_0000
}

fn word0(len: u32, position: u64) -> u64 {
    u64::from(len) | (tag(position) << 32)
}

/// A record being built. Its payload is written once and its checksum computed once, however many lanes the record goes to.
#[derive(Debug, Default)]
pub struct Record {
    /// 16 bytes for the header, then the payload, then padding.
    bytes: Vec<u8>,
    len: usize,
    crc: u32,
}

impl Record {
    /// An empty record with room for a payload of `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Record {
        Record { bytes: Vec::with_capacity(record_bytes(capacity)), len: 0, crc: 0 }
    }

    /// Replaces the payload with what `fill` appends to the buffer that it is given. `fill` must not remove anything from that buffer.
    pub fn fill(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.clear();
        self.bytes.resize(RECORD_HEADER_BYTES, 0);
        fill(&mut self.bytes);
        self.len = self.bytes.len() - RECORD_HEADER_BYTES;
        self.crc = crc32fast::hash(&self.bytes[RECORD_HEADER_BYTES..]);
        self.bytes.resize(record_bytes(self.len), 0);
    }

    /// Bytes of the payload.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Begins a payload whose first `header` bytes are not known yet. [`Record::extend`] appends to the payload, and [`Record::close`] ends it.
    pub fn open(&mut self, header: usize) {
        // Old contents are overwritten when the record is closed and sealed.
        self.bytes.resize(self.bytes.len().max(RECORD_HEADER_BYTES + header), 0);
        self.bytes.truncate(RECORD_HEADER_BYTES + header);
        self.len = header;
    }

    /// Drops the contents and keeps the capacity.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// Appends to a payload that has been opened.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Ends an open payload; `header` becomes its first bytes. The record can be closed again with another header.
    pub fn close(&mut self, header: &[u8]) {
        self.bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.len()].copy_from_slice(header);
        self.crc = crc32fast::hash(self.payload());
        self.bytes.resize(record_bytes(self.len), 0);
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + self.len]
    }

    /// The bytes that go to `position` of a lane with this salt. For the samples of encodings.
    #[cfg(feature = "fuzzing")]
    pub fn sealed(&mut self, position: u64, salt: u64) -> Vec<u8> {
        self.sealed_at(position, salt).to_vec()
    }

    /// The bytes that go to `position`.
    #[inline]
    fn sealed_at(&mut self, position: u64, salt: u64) -> &[u8] {
        let len = u32::try_from(self.len).expect("bounded by the ring");
        self.bytes[..8].copy_from_slice(&word0(len, position).to_le_bytes());
        self.bytes[8..16].copy_from_slice(&seal(salt, self.crc, len, position).to_le_bytes());
        &self.bytes
    }
}

/// The writing end of a lane, held by the writer. [`Writer::note_consumed`] tells it of the reader's progress.
#[derive(Debug)]
pub struct Writer {
    lane: Remote,
    capacity: u64,
    salt: u64,
    tail: u64,
    consumed: u64,
}

impl Writer {
    /// A writer at the start of a fresh lane, whose offset 0 is `lane` and whose ring holds `capacity` bytes. It has no salt, so it is only for
    /// payloads that nobody outside can influence.
    pub fn new(lane: Remote, capacity: usize) -> Writer {
        Writer::salted(lane, capacity, 0)
    }

    /// Like [`Writer::new`], for a lane with this salt.
    pub fn salted(lane: Remote, capacity: usize, salt: u64) -> Writer {
        invariant!(capacity.is_power_of_two() && capacity >= 256, "ring capacity {capacity} is no power of two of at least 256");
        Writer { lane, capacity: capacity as u64, salt, tail: 0, consumed: 0 }
    }

    /// Continues at `position`, where the lane's users agree that the next record goes. They regard everything before `consumed` as consumed.
    pub fn move_to(&mut self, position: u64, consumed: u64) {
        invariant!(consumed <= position, "consumed up to {consumed} of {position}");
        (self.tail, self.consumed) = (position, consumed);
    }

    /// Whether the lane has a salt.
    pub fn is_salted(&self) -> bool {
        self.salt != 0
    }

    /// A copy of this writer, which must have written nothing yet, for its lane with the salt that has now become known.
    pub fn with_salt(&self, salt: u64) -> Writer {
        invariant!(self.tail == 0, "a lane's salt changed at position {}", self.tail);
        Writer::salted(self.lane, self.capacity as usize, salt)
    }

    /// The position after the last record.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Bytes written that, as far as this end knows, have not been consumed.
    pub fn outstanding(&self) -> u64 {
        self.tail - self.consumed
    }

    /// The ring's size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The address of the reader's progress: read it with `read_word` and pass the value to [`Writer::note_consumed`].
    pub fn consumed_word(&self) -> Remote {
        self.lane
    }

    /// Takes in the reader's progress, as read from its memory. A value that goes backwards or lies beyond the tail is a mistake of the peer's and is
    /// ignored. Returns whether the value made sense.
    pub fn note_consumed(&mut self, position: u64) -> bool {
        let sane = position >= self.consumed && position <= self.tail;
        if sane {
            self.consumed = position;
        }
        sane
    }

    /// Whether a payload of `len` bytes fits now. If not, refresh the reader's progress and try again.
    pub fn fits(&self, len: usize) -> bool {
        let need = record_bytes(len) as u64;
        let filler = filler_before(self.tail, need, self.capacity);
        let outstanding = if Canary::CircularOffsets.is_planted() { self.outstanding() % self.capacity } else { self.outstanding() };
        outstanding + filler + need <= self.capacity || Canary::OverwrittenRecord.is_planted()
    }

    /// Posts the record at the tail if it fits. When `token` completes, the record is in the lane. If a filler is needed, it is posted ahead of the
    /// record under the same token, so `token` may complete twice.
    ///
    /// Returns how many completions of `token` will come, or `None` if there is no room.
    #[inline]
    pub fn push<F: Fabric>(&mut self, fabric: &mut F, record: &mut Record, token: Token) -> Option<u32> {
        let need = record_bytes(record.len) as u64;
        invariant!(record.len <= max_payload(self.capacity as usize), "record of {} bytes in a ring of {}", record.len, self.capacity);
        let filler = filler_before(self.tail, need, self.capacity);
        if self.outstanding() + filler + need > self.capacity && !Canary::OverwrittenRecord.is_planted() {
            return None;
        }
        let mut posted = 1;
        if filler > 0 {
            let mut header = [0u8; RECORD_HEADER_BYTES];
            header[..8].copy_from_slice(&word0(FILLER, self.tail).to_le_bytes());
            header[8..].copy_from_slice(&seal(self.salt, 0, FILLER, self.tail).to_le_bytes());
            fabric.write(self.at(self.tail), &header, token);
            self.tail += filler;
            posted = 2;
        }
        let at = self.at(self.tail);
        fabric.write(at, record.sealed_at(self.tail, self.salt), token);
        self.tail += need;
        Some(posted)
    }

    /// Hints that records will soon be pushed: up to `len` bytes of them, starting `ahead` bytes after the tail.
    #[inline]
    pub fn expect<F: Fabric>(&self, fabric: &F, ahead: usize, len: usize) {
        fabric.expect_write(self.at(self.tail + ahead as u64), len);
    }

    #[inline]
    fn at(&self, position: u64) -> Remote {
        Remote { offset: self.lane.offset + HEADER_BYTES + within(position, self.capacity) as usize, ..self.lane }
    }
}

/// The reading end of a lane, held by the owner, which passes the lane's memory to each call.
#[derive(Debug, Default)]
pub struct Reader {
    salt: u64,
    next: u64,
    published: u64,
    /// The checksum of the payload taken last.
    crc: u32,
}

impl Reader {
    /// A reader at the start of a fresh lane without salt.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// Like [`Reader::new`], for a lane with this salt.
    pub fn salted(salt: u64) -> Reader {
        Reader { salt, ..Reader::default() }
    }

    /// A reader of a lane without salt, starting at `position`, where the writer has said that a record begins or will begin. [`Reader::publish`]
    /// then frees everything before that position, whether or not it was read.
    pub fn at(position: u64) -> Reader {
        Reader { next: position, ..Reader::default() }
    }

    /// Continues, with the same salt, at `position`, where the writer has said that a record begins or will begin. [`Reader::publish`] then frees
    /// everything before that position, whether or not it was read.
    pub fn move_to(&mut self, position: u64) {
        *self = Reader { salt: self.salt, ..Reader::at(position) };
    }

    /// The position after the last record taken.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Bytes taken but not yet published to the writer.
    pub fn unpublished(&self) -> u64 {
        self.next - self.published
    }

    /// Whether the lane holds something that claims to be the next record. Its seal is not checked. One load, for polling.
    #[inline]
    pub fn maybe(&self, lane: &Memory) -> bool {
        let capacity = capacity_of(lane);
        let word = lane[index_of(self.next, capacity)].load(Ordering::Acquire);
        word >> 32 == tag(self.next)
    }

    /// Takes the next record's payload into `into` (cleared first). Returns `false` if there is none yet, or not all of it.
    ///
    /// The bytes are copied before they are checked, so a writer that goes on writing cannot change what has been verified.
    pub fn next(&mut self, lane: &Memory, into: &mut Vec<u8>) -> bool {
        self.step(lane, into, true)
    }

    #[inline(always)]
    fn step(&mut self, lane: &Memory, into: &mut Vec<u8>, verifies: bool) -> bool {
        let capacity = capacity_of(lane);
        loop {
            if !self.maybe(lane) {
                return false;
            }
            let at = index_of(self.next, capacity);
            let len = lane[at].load(Ordering::Acquire) as u32;
            let sealed = lane[at + 1].load(Ordering::Acquire);
            let to_end = capacity - within(self.next, capacity);
            if len == FILLER {
                if verifies && sealed != seal(self.salt, 0, FILLER, self.next) {
                    return false;
                }
                self.next += to_end;
                continue;
            }
            let need = record_bytes(len as usize) as u64;
            if need > to_end {
                return false; // garbage: no writer of ours crosses the end
            }
            load_payload(&lane[at + RECORD_HEADER_BYTES / 8..], len as usize, into);
            if verifies {
                let crc = crc32fast::hash(into);
                if sealed != seal(self.salt, crc, len, self.next) && !Canary::UnsealedRecord.is_planted() {
                    into.clear();
                    return false;
                }
                self.crc = crc;
            }
            self.next += need;
            return true;
        }
    }

    /// Tells the writer that everything taken so far may be overwritten. Pairs with the writer's `read_word` of [`Writer::consumed_word`]; the
    /// release store keeps our copying of the records ahead of it.
    pub fn publish(&mut self, lane: &Memory) {
        if self.published != self.next {
            self.published = self.next;
            lane[0].store(self.next, Ordering::Release);
        }
    }
}

#[inline]
fn capacity_of(lane: &Memory) -> u64 {
    (lane.len() * 8 - HEADER_BYTES) as u64
}

/// The offset of a position within the data. Masked, since a division would take longer than storing a small record.
#[inline]
fn within(position: u64, capacity: u64) -> u64 {
    debug_assert!(capacity.is_power_of_two(), "a ring of {capacity} bytes");
    position & (capacity - 1)
}

#[inline]
fn index_of(position: u64, capacity: u64) -> usize {
    (HEADER_BYTES + within(position, capacity) as usize) / 8
}

#[cfg(all(test, not(loom)))]
mod tests;

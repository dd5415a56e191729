//! What a node tells about itself, in shared memory that outside processes read: counters, and the timeline of failovers.
//!
//! The region is [`layout::COUNTERS`]. `martlet status` and the benchmarks read it one-sidedly through a client's endpoint, so a hot thread
//! never answers them.
//!
//! | words | who writes | meaning | may move |
//! |---|---|---|---|
//! | 0 | owner, once | [`MAGIC`]: format and version | |
//! | 1 | owner | how many events have been recorded | upwards |
//! | 8.. | owner | one word for each [`Counter`], in its order | as the counter says |
//! | 128.. | owner | ring of [`EVENTS`] sealed records of 8 words; event `n` (from 0) lies in record `n % EVENTS` | |
//!
//! A counter is one word and so never torn; two counters may be from different moments. An event's record is sealed over its words and its
//! number: a reader that comes while it is overwritten sees a broken seal and skips it.

mod counter;
mod event;

use martlet_fabric::Memory;
use martlet_fabric::primitive::Ordering;
use martlet_protocol::basics::layout;

pub use counter::Counter;
pub use event::{Event, EventKind};

/// The first word of the region: "MARTLET" and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MARTLET\x01");
/// Where the counters start, in words.
const COUNTERS_AT: usize = 8;
/// Where the events start, in words.
const EVENTS_AT: usize = 128;
/// How many events are kept.
pub const EVENTS: usize = (layout::COUNTERS_BYTES / 8 - EVENTS_AT) / event::WORDS;

const _: () = assert!(COUNTERS_AT + Counter::ALL.len() <= EVENTS_AT, "the counters run into the events");
const _: () = assert!(EVENTS >= 128, "too few events to tell some failovers in a row");

/// The writing side. It belongs to the main thread, which counts in its own memory and publishes from time to time; events go out at once.
#[derive(Debug)]
pub struct Counters {
    values: [u64; Counter::ALL.len()],
    published: [u64; Counter::ALL.len()],
    events: Vec<[u64; event::WORDS]>,
    recorded: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            values: [0; Counter::ALL.len()],
            published: [0; Counter::ALL.len()],
            events: vec![[0; event::WORDS]; EVENTS],
            recorded: 0,
        }
    }
}

impl Counters {
    /// Adds to a counter. It shows after the next [`Counters::publish`].
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.values[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Sets a counter. It shows after the next [`Counters::publish`].
    #[inline]
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.values[counter as usize] = value;
    }

    /// A counter as it is here.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Writes everything into a fresh region: after the start, and again when the node has taken a new identity.
    pub fn open(&mut self, region: &Memory) {
        for (i, record) in self.events.iter().enumerate() {
            store(region, EVENTS_AT + i * event::WORDS, record);
        }
        self.published = self.values;
        store(region, COUNTERS_AT, &self.values);
        region[1].store(self.recorded, Ordering::Release);
        // Release: who reads the magic sees all of the above.
        region[0].store(MAGIC, Ordering::Release);
    }

    /// Writes the counters that have changed.
    pub fn publish(&mut self, region: &Memory) {
        for (i, value) in self.values.iter().enumerate() {
            if self.published[i] != *value {
                self.published[i] = *value;
                region[COUNTERS_AT + i].store(*value, Ordering::Relaxed);
            }
        }
    }

    /// Records an event. It shows at once.
    pub fn record(&mut self, region: &Memory, event: Event) {
        let slot = (self.recorded % EVENTS as u64) as usize;
        let words = event.sealed(self.recorded);
        self.events[slot] = words;
        store(region, EVENTS_AT + slot * event::WORDS, &words);
        self.recorded += 1;
        // Release: who reads this number finds the record of the event before it, or a later one.
        region[1].store(self.recorded, Ordering::Release);
    }
}

fn store(region: &Memory, at: usize, words: &[u64]) {
    for (word, value) in region[at..].iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
}

/// A node's counters and events as somebody read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    counters: [u64; Counter::ALL.len()],
    /// The events still kept, oldest first, each with its number.
    pub events: Vec<(u64, Event)>,
    /// How many events have ever been recorded.
    pub recorded: u64,
}

/// Why bytes are no counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// Too few.
    #[error("{0} bytes of counters, {wanted} are needed", wanted = layout::COUNTERS_BYTES)]
    Short(usize),
    /// They start otherwise.
    #[error("the counters start with {0:#018x} instead of {MAGIC:#018x}: the node is just starting, or of another version")]
    Magic(u64),
}

impl Reading {
    /// Makes sense of a copy of the region. It may be torn and may come from anybody: what does not hold together is left out.
    pub fn parse(bytes: &[u8]) -> Result<Reading, ReadingError> {
        if bytes.len() < layout::COUNTERS_BYTES {
            return Err(ReadingError::Short(bytes.len()));
        }
        let words: Vec<u64> = bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
        if words[0] != MAGIC {
            return Err(ReadingError::Magic(words[0]));
        }
        let mut counters = [0; Counter::ALL.len()];
        counters.copy_from_slice(&words[COUNTERS_AT..COUNTERS_AT + Counter::ALL.len()]);
        let mut events: Vec<(u64, Event)> = words[EVENTS_AT..]
            .chunks_exact(event::WORDS)
            .take(EVENTS)
            .filter_map(|record| Event::unsealed(record.try_into().expect("whole records")))
            .collect();
        events.sort_by_key(|(number, _)| *number);
        Ok(Reading { counters, events, recorded: words[1] })
    }

    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::primitive::AtomicU64;
    use martlet_protocol::basics::{Time, ViewNumber};

    use super::*;

    fn region() -> Vec<AtomicU64> {
        (0..layout::COUNTERS_BYTES / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn bytes(region: &Memory) -> Vec<u8> {
        region.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    fn event(at: u64) -> Event {
        Event { at: Time(at), kind: EventKind::ViewDecided, view: ViewNumber(at + 1), process: None, detail: 3 * at }
    }

    #[test]
    fn what_was_written_is_read() {
        let region = region();
        let mut counters = Counters::default();
        counters.set(Counter::Pid, 99);
        assert_eq!(Reading::parse(&bytes(&region)), Err(ReadingError::Magic(0)), "not opened yet");
        counters.open(&region);
        counters.add(Counter::Turns, 2);
        counters.add(Counter::Turns, 3);
        assert_eq!(Reading::parse(&bytes(&region)).expect("opened").get(Counter::Turns), 0, "not published yet");
        counters.publish(&region);
        counters.record(&region, event(7));
        let reading = Reading::parse(&bytes(&region)).expect("opened");
        assert_eq!((reading.get(Counter::Pid), reading.get(Counter::Turns)), (99, 5));
        assert_eq!(reading.events, [(0, event(7))]);
        assert_eq!(reading.recorded, 1);
    }

    #[test]
    fn the_ring_keeps_the_newest_and_a_new_region_gets_them_all() {
        let (old, new) = (region(), region());
        let mut counters = Counters::default();
        counters.open(&old);
        let n = EVENTS as u64 + 10;
        (0..n).for_each(|i| counters.record(&old, event(i)));
        counters.open(&new);
        for region in [&old, &new] {
            let reading = Reading::parse(&bytes(region)).expect("opened");
            assert_eq!(reading.recorded, n);
            assert_eq!(reading.events.len(), EVENTS);
            assert!(reading.events.iter().zip(10..).all(|(found, i)| *found == (i, event(i))));
        }
    }

    #[test]
    fn a_torn_event_is_left_out() {
        let region = region();
        let mut counters = Counters::default();
        counters.open(&region);
        (0..3).for_each(|i| counters.record(&region, event(i)));
        region[EVENTS_AT + event::WORDS + 1].store(1234, Ordering::Relaxed);
        let reading = Reading::parse(&bytes(&region)).expect("opened");
        assert_eq!(reading.events, [(0, event(0)), (2, event(2))]);
    }

    #[test]
    fn too_few_bytes_are_an_error() {
        let error = Reading::parse(&[0; 64]).expect_err("short");
        assert_eq!(error.to_string(), format!("64 bytes of counters, {} are needed", layout::COUNTERS_BYTES));
    }
}

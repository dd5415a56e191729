//! Raw writes to the same followers: what a request's replication is compared with.
//!
//! Where nobody reads what is written, its cache lines stay with the core that writes them, and a write through shared memory is one to one's own cache. Those of a
//! log do not: its readers look at the next line all the time, and have read the others, so that a writer gets each of them from another core. So there are both.

use std::sync::atomic::{AtomicU64, Ordering};

use martlet_fabric::primitive::Ordering as Order;
use martlet_fabric::{Fabric, LocalRegion, PeerId, Region, Remote};
use martlet_node::clock;
use martlet_protocol::basics::layout::Component;

use super::super::alone::{Alone, RAW_LANE, RAW_LANE_BYTES};
use super::super::endpoint::Endpoint;
use super::Leader;
use crate::report::{Figure, Unit};

/// Bits of a stamp for the number of a write in its series, above which stands the number of the series.
const NUMBER_BITS: u32 = 40;
/// Bits for the length of the writes, in what readers are told of a series.
const LEN_BITS: u32 = 32;
/// How many writes a reader takes before it looks after anything else.
const READ_AT_ONCE: usize = 64;

/// What the followers are to read: the number of a series and the length of its writes in one word; 0 for nothing.
#[derive(Debug, Default)]
pub struct Assignment(AtomicU64);

/// The first word of a write, which no other write has.
fn stamp(series: u64, number: u64) -> u64 {
    (series << NUMBER_BITS) | number
}

/// Where that write of its series begins: from place to place, as a log goes on.
fn offset(number: u64, len: usize) -> usize {
    (number % (RAW_LANE_BYTES / len) as u64) as usize * len
}

/// A follower that reads raw writes, as it would read a log: it looks for the next one, and takes the whole of it.
#[derive(Debug, Default)]
pub struct Reader {
    series: u64,
    next: u64,
}

impl Reader {
    /// Takes what stands there. `writer`: who writes.
    pub fn read<F: Fabric>(&mut self, assignment: &Assignment, fabric: &F, writer: PeerId) {
        let assigned = assignment.0.load(Ordering::Acquire);
        if assigned == 0 {
            return;
        }
        let (series, len) = (assigned >> LEN_BITS, (assigned & ((1 << LEN_BITS) - 1)) as usize);
        if self.series != series {
            *self = Reader { series, next: 0 };
        }
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer, name: RAW_LANE }) else { return };
        for _ in 0..READ_AT_ONCE {
            let from = offset(self.next, len) / 8;
            let found = lane[from].load(Order::Acquire);
            if found < stamp(series, self.next) {
                return;
            }
            let read = lane[from + 1..from + len / 8].iter().fold(found, |sum, word| sum.wrapping_add(word.load(Order::Relaxed)));
            std::hint::black_box(read);
            // It may have been overtaken by the writer, who does not wait.
            self.next = (found & ((1 << NUMBER_BITS) - 1)) + 1;
        }
    }
}

impl<F: Endpoint, E: Alone> Leader<'_, F, E> {
    /// Writes of so many bytes to both followers, who read them or do not look. `why`: what is said about that length.
    pub(super) fn raw(&mut self, len: usize, is_read: bool, why: &str, samples: u64) -> Figure {
        let who = if is_read { "two followers that read it" } else { "two followers" };
        let mut figure = Figure::new("replicate", format!("raw write of {len} B to {who}{why}"), Unit::Nanoseconds);
        self.series += 1;
        if is_read {
            self.assignment.0.store((self.series << LEN_BITS) | len as u64, Ordering::Release);
        }
        let mut bytes = vec![7u8; len];
        let token = Component::Application.token(0);
        for sample in 0..samples + samples / 10 {
            bytes[..8].copy_from_slice(&stamp(self.series, sample).to_le_bytes());
            self.replica.turn();
            let start = clock::now();
            for peer in &self.replica.peers {
                let at = Remote { peer: *peer, region: Region::Lane(RAW_LANE), offset: offset(sample, len) };
                self.replica.fabric.write(at, &bytes, token);
            }
            let mut left = self.replica.peers.len();
            while left > 0 {
                match self.replica.fabric.poll() {
                    Some(completion) if completion.token == token => left -= 1,
                    // The engine's own, of the turn before.
                    Some(completion) => self.replica.engine.handle_completion(completion),
                    None => {}
                }
            }
            let took = clock::now().since(start);
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                figure.record(took);
            }
        }
        self.assignment.0.store(0, Ordering::Release);
        figure
    }
}

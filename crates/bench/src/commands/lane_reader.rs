//! Peers that read raw writes, as followers read a log: what operations on memory cost depends on whether somebody else's core looks at it.

use std::sync::atomic::{AtomicU64, Ordering};

use martlet_fabric::primitive::Ordering as Order;
use martlet_fabric::{Fabric, LocalRegion, PeerId, RegionName};

/// A lane for raw writes, which no engine looks at.
pub const RAW_LANE: RegionName = RegionName(200);
/// Its bytes.
pub const RAW_LANE_BYTES: usize = 256 << 10;

/// Bits of a stamp for the number of a write in its series, above which stands the number of the series.
const NUMBER_BITS: u32 = 40;
/// Bits for the length of the writes, in what readers are told of a series.
const LEN_BITS: u32 = 32;
/// How many writes a reader takes before it looks after anything else.
const READ_AT_ONCE: usize = 64;

/// What the readers are to read: the number of a series and the length of its writes in one word; 0 for nothing.
#[derive(Debug, Default)]
pub struct Assignment(AtomicU64);

impl Assignment {
    /// From now on writes of that series are read, each of so many bytes.
    pub fn read(&self, series: u64, len: usize) {
        self.0.store((series << LEN_BITS) | len as u64, Ordering::Release);
    }

    /// From now on nothing is read.
    pub fn rest(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The first word of a write, which no other write has.
pub fn stamp(series: u64, number: u64) -> u64 {
    (series << NUMBER_BITS) | number
}

/// Where that write of its series begins in the lane: from place to place, as a log goes on.
pub fn offset(number: u64, len: usize) -> usize {
    (number % (RAW_LANE_BYTES / len) as u64) as usize * len
}

/// One that reads raw writes, as it would read a log: it looks for the next one, and takes the whole of it.
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

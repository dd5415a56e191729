//! Finds out how large the packets are that a path carries (RFC 8899), as far as that gains anything. A packet of plain Ethernet has room for one
//! part, no more than one of the base size, so only far larger sizes are tried.
//!
//! A connection begins with the base size. If the system says that the route takes more, and there is enough to send, a packet of a larger size is
//! tried: a request like any other, with more parts. If it arrives, which an answer to its parts shows, others of that size follow. If it is lost,
//! its parts go out again in packets of the base size, as every retransmission does, and the next try is twice as far off. So a path that carries no
//! large packets, or a peer whose build takes none, costs a packet now and then.
//!
//! A path may cease to carry large packets and give no sign of it. When three large packets in a row were lost while their parts arrived in small
//! ones, the size goes back to the base size. A peer that lies about what has arrived still gets no packets larger than the route takes.

use super::canary::Canary;
use super::packet::{LARGEST_PACKET, MAX_PACKET, MAX_PART_BYTES};

/// The sizes that are tried, the smaller first: what fits into the 9,000-byte frames of some networks, and what the loopback device takes.
const SIZES: [usize; 2] = [8_952, LARGEST_PACKET];
/// How much larger a packet has to be to have room for another part.
const WORTH: usize = MAX_PART_BYTES + 32;
/// How long to wait after a tried packet was lost, at first and at most.
const FIRST_WAIT_US: u64 = 20_000;
const LONGEST_WAIT_US: u64 = 600_000_000;
/// After so many lost large packets in a row, the path is assumed to carry none.
const LOST_IN_A_ROW: u32 = 3;

/// What is known of a path.
#[derive(Debug)]
pub(super) struct Path {
    /// The packet size that the route takes, according to the system.
    most: usize,
    /// Bytes of the largest packet that has arrived.
    size: usize,
    /// The packet being tried: its number among those of the flow, and its size in bytes.
    tried: Option<(u64, usize)>,
    next_at: u64,
    wait: u64,
    /// How many large packets were lost since one arrived, and the last of them.
    lost: u32,
    last_lost: u64,
}

impl Path {
    /// A path on a route that takes packets of `most` bytes, as far as the system knows.
    pub(super) fn new(most: usize) -> Path {
        Path { most, size: MAX_PACKET, tried: None, next_at: 0, wait: FIRST_WAIT_US, lost: 0, last_lost: 0 }
    }

    /// The most bytes in a packet.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The size to try with the next packet, if a larger one is to be tried now.
    pub(super) fn to_try(&self, now: u64) -> Option<usize> {
        if self.tried.is_some() || now < self.next_at {
            return None;
        }
        SIZES.into_iter().find(|size| *size >= self.size + WORTH && *size <= self.most)
    }

    /// A packet of `bytes` bytes has gone out for the first time. Returns whether it is a large one.
    pub(super) fn sent(&mut self, packet: u64, bytes: usize) -> bool {
        if bytes > self.size {
            self.tried = Some((packet, bytes));
        }
        bytes > MAX_PACKET
    }

    /// A large packet has arrived.
    pub(super) fn came(&mut self, packet: u64) {
        self.lost = 0;
        if let Some((_, bytes)) = self.tried.take_if(|(tried, _)| *tried == packet) {
            self.size = bytes;
            self.wait = FIRST_WAIT_US;
        }
    }

    /// A large packet is considered lost, or its answer is late.
    pub(super) fn missed(&mut self, packet: u64, now: u64) {
        if self.tried.take_if(|(tried, _)| *tried == packet).is_some() {
            self.wait_longer(now);
        }
    }

    /// The contents of a large packet have arrived after being sent again in small ones.
    pub(super) fn came_otherwise(&mut self, packet: u64, now: u64) {
        if packet == self.last_lost || self.size == MAX_PACKET || Canary::PathIsForEver.is_planted() {
            return;
        }
        self.last_lost = packet;
        self.lost += 1;
        if self.lost == LOST_IN_A_ROW {
            (self.size, self.lost, self.tried) = (MAX_PACKET, 0, None);
            self.wait_longer(now);
        }
    }

    fn wait_longer(&mut self, now: u64) {
        self.next_at = now + self.wait;
        self.wait = (2 * self.wait).min(LONGEST_WAIT_US);
    }
}

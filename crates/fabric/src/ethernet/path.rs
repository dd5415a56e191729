//! How large the packets are that a path carries (RFC 8899), as far as it gains anything: a packet of plain Ethernet has room for one part, as one of the base size has, so
//! that only what is far larger is tried.
//!
//! A connection begins with the base size. Where the system says that the route takes more, and there is enough to send, a packet of a larger size is tried: a request like
//! any other, with more parts. When it has come, as an answer to its parts shows, others of that size follow. When it was lost, its parts go out again in packets of the base
//! size, as all does that is sent again, and the next try is twice as far off. So a path that carries no large packets, or a peer whose build takes none, costs a packet
//! now and then.
//!
//! A path may cease to carry what it did, and say nothing of it. Where three large packets in a row have not come and their parts have, in small ones, it is back to the base
//! size. A peer that lies about what has come gets no packets larger than the route takes.

use super::canary::Canary;
use super::packet::{LARGEST_PACKET, MAX_PACKET, MAX_PART_BYTES};

/// What is tried, the smaller first: what fits into the frames of 9,000 bytes that some networks have, and what the loopback device takes.
const SIZES: [usize; 2] = [8_952, LARGEST_PACKET];
/// By so much a packet has to be larger to have room for another part.
const WORTH: usize = MAX_PART_BYTES + 32;
/// The wait after a packet that was tried and lost, at first and at most.
const FIRST_WAIT_US: u64 = 20_000;
const LONGEST_WAIT_US: u64 = 600_000_000;
/// So many large packets in a row are lost before the path is taken for one that carries none.
const LOST_IN_A_ROW: u32 = 3;

/// What is known of a path.
#[derive(Debug)]
pub(super) struct Path {
    /// What the system says that the route takes.
    most: usize,
    /// Bytes of the largest packet that has come.
    size: usize,
    /// The packet that is tried, by its number among those of the flow, and its bytes.
    tried: Option<(u64, usize)>,
    next_at: u64,
    wait: u64,
    /// Large packets that were lost, since one came; the last of them.
    lost: u32,
    last_lost: u64,
}

impl Path {
    /// Of a route that takes packets of so many bytes, as far as the system knows.
    pub(super) fn new(most: usize) -> Path {
        Path { most, size: MAX_PACKET, tried: None, next_at: 0, wait: FIRST_WAIT_US, lost: 0, last_lost: 0 }
    }

    /// Bytes of a packet at most.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Bytes that the next packet may have, where a larger one is to be tried now.
    pub(super) fn to_try(&self, now: u64) -> Option<usize> {
        if self.tried.is_some() || now < self.next_at {
            return None;
        }
        SIZES.into_iter().find(|size| *size >= self.size + WORTH && *size <= self.most)
    }

    /// A packet of so many bytes has gone out for the first time. Whether it is a large one.
    pub(super) fn sent(&mut self, packet: u64, bytes: usize) -> bool {
        if bytes > self.size {
            self.tried = Some((packet, bytes));
        }
        bytes > MAX_PACKET
    }

    /// A large packet has come.
    pub(super) fn came(&mut self, packet: u64) {
        self.lost = 0;
        if let Some((_, bytes)) = self.tried.take_if(|(tried, _)| *tried == packet) {
            self.size = bytes;
            self.wait = FIRST_WAIT_US;
        }
    }

    /// A large packet is taken for lost, or its answer is late.
    pub(super) fn missed(&mut self, packet: u64, now: u64) {
        if self.tried.take_if(|(tried, _)| *tried == packet).is_some() {
            self.wait_longer(now);
        }
    }

    /// What was in a large packet has come after it was sent again in small ones.
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

//! Raw writes to the same followers: what a request's replication is compared with.
//!
//! Where nobody reads what is written, its cache lines stay with the core that writes them, and a write through shared memory is one to one's own cache. Those of a
//! log do not: its readers look at the next line all the time, and have read the others, so that a writer gets each of them from another core. So there are both.

use martlet_fabric::{Region, Remote};
use martlet_node::clock;
use martlet_protocol::basics::layout::Component;

use super::super::alone::Alone;
use super::super::endpoint::Endpoint;
use super::super::lane_reader::{RAW_LANE, offset, stamp};
use super::Leader;
use crate::report::{Figure, Unit};

impl<F: Endpoint, E: Alone> Leader<'_, F, E> {
    /// Writes of so many bytes to both followers, who read them or do not look. `why`: what is said about that length.
    pub(super) fn raw(&mut self, len: usize, is_read: bool, why: &str, samples: u64) -> Figure {
        let who = if is_read { "two followers that read it" } else { "two followers" };
        let mut figure = Figure::new("replicate", format!("{}raw write of {len} B to {who}{why}", self.prefix), Unit::Nanoseconds);
        self.series += 1;
        if is_read {
            self.assignment.read(self.series, len);
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
        self.assignment.rest();
        figure
    }
}

//! A wire that loses, repeats, reorders and corrupts what an endpoint sends, for tests. It does so at random, from a seed.

use std::net::SocketAddr;

/// How hostile the wire is: how many packets in a thousand are affected.
#[derive(Clone, Copy, Debug)]
pub struct Mangling {
    /// Are lost.
    pub lost: u64,
    /// Are sent twice.
    pub repeated: u64,
    /// Are sent after the next one.
    pub reordered: u64,
    /// Have a bit changed.
    pub corrupted: u64,
    /// The seed of the random choices.
    pub seed: u64,
}

#[derive(Debug)]
pub(super) struct Wire {
    mangling: Mangling,
    chance: u64,
    late: Option<(Vec<u8>, SocketAddr)>,
}

impl Wire {
    pub(super) fn new(mangling: Mangling) -> Wire {
        Wire { chance: mangling.seed | 1, mangling, late: None }
    }

    fn draw(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance >> 8
    }

    fn happens(&mut self, of_a_thousand: u64) -> bool {
        self.draw() % 1000 < of_a_thousand
    }

    pub(super) fn send(&mut self, packet: &[u8], to: SocketAddr, mut send: impl FnMut(&[u8], SocketAddr)) {
        let Mangling { lost, repeated, reordered, corrupted, .. } = self.mangling;
        let before = self.late.take();
        let mut packet = packet.to_vec();
        if self.happens(corrupted) {
            let bit = self.draw() as usize % (packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        if self.happens(repeated) {
            send(&packet, to);
        }
        if self.happens(lost) {
            // It never arrives.
        } else if before.is_none() && self.happens(reordered) {
            self.late = Some((packet, to));
        } else {
            send(&packet, to);
        }
        if let Some((packet, to)) = before {
            send(&packet, to);
        }
    }
}

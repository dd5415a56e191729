//! Presumed death by silence: the long timeout on periodic broadcasts (uKharon section 4.2, catastrophic failures).

use crate::basics::Time;

/// When a peer was last heard.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    heard: Time,
}

impl Silence {
    /// A peer that was heard just now, when its connection came up.
    pub fn new(now: Time) -> Silence {
        Silence { heard: now }
    }

    /// One of its broadcasts has arrived, or we were ourselves stalled and cannot blame it.
    pub fn reset(&mut self, now: Time) {
        self.heard = now;
    }

    /// Whether it has been silent for longer than `timeout_ns`.
    pub fn is_suspicious(&self, now: Time, timeout_ns: u64) -> bool {
        now.since(self.heard) > timeout_ns
    }
}

/// The largest set of processes, including `me`, that all reach each other: what the leader cuts the membership down to.
///
/// `links[i]` has bit `j` set when `i` heard `j` recently; a link is used only when both have heard each other. The search is exact: there are at
/// most 16 processes. Among sets of the same size, the one with the more senior (lower) members wins, so that repeated cuts agree.
pub fn largest_clique(links: &[u16], me: usize) -> u16 {
    let mutual = |i: usize| -> u16 {
        (0..links.len()).filter(|&j| i == j || (links[i] >> j & 1 == 1 && links[j] >> i & 1 == 1)).map(|j| 1 << j).sum()
    };
    let neighbours: Vec<u16> = (0..links.len()).map(mutual).collect();
    let mut best = 1 << me;
    grow(&neighbours, 1 << me, neighbours[me] & !(1 << me), &mut best);
    best
}

fn grow(neighbours: &[u16], clique: u16, mut candidates: u16, best: &mut u16) {
    if clique.count_ones() > best.count_ones() {
        *best = clique;
    }
    while candidates != 0 && clique.count_ones() + candidates.count_ones() > best.count_ones() {
        let i = candidates.trailing_zeros() as usize;
        candidates &= candidates - 1;
        grow(neighbours, clique | 1 << i, candidates & neighbours[i], best);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ukharon_4_2_the_clique_contains_the_leader_and_is_largest() {
        // 0 reaches 1 and 2, which do not reach each other; both 0 and 1 reach 3.
        let links = [0b1111, 0b1011, 0b0101, 0b1011];
        assert_eq!(largest_clique(&links, 0), 0b1011);
        assert_eq!(largest_clique(&links, 2), 0b0101);
    }

    #[test]
    fn a_one_way_link_is_no_link() {
        let links = [0b11, 0b10];
        assert_eq!(largest_clique(&links, 0), 0b01);
    }

    #[test]
    fn everybody_reaches_everybody() {
        let links = [0xffff; 16];
        assert_eq!(largest_clique(&links, 9), 0xffff);
    }
}

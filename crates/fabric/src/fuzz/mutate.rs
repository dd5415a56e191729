//! Unguided mutations: for machines without a C++ compiler, and for a few thousand quick ones in the normal test suite.

use fastrand::Rng;

/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 12] = [0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, (1 << 62) - 1, i64::MAX as u64, u64::MAX - 7, u64::MAX];

/// Inputs for one target: mutations of its seeds, the same for the same random seed.
#[derive(Debug)]
pub struct Mutations {
    seeds: Vec<Vec<u8>>,
    max_bytes: usize,
    chance: Rng,
}

impl Mutations {
    /// Mutations of `seeds`, none longer than `max_bytes`.
    pub fn new(max_bytes: usize, seeds: Vec<Vec<u8>>, chance: u64) -> Mutations {
        Mutations { seeds, max_bytes, chance: Rng::with_seed(chance) }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let chance = &mut self.chance;
        let mut input = if self.seeds.is_empty() { Vec::new() } else { self.seeds[chance.usize(..self.seeds.len())].clone() };
        // Mostly one or two changes, sometimes many.
        let most = 1 << chance.usize(..5);
        for _ in 0..=chance.usize(..most) {
            mutate(&mut input, &self.seeds, chance);
        }
        input.truncate(self.max_bytes);
        input
    }
}

fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], chance: &mut Rng) {
    let len = input.len();
    let at = chance.usize(..=len);
    match chance.usize(..9) {
        0 if at < len => input[at] ^= 1 << chance.u8(..8),
        1 if at < len => input[at] = chance.u8(..),
        2 if at < len => input[at] = input[at].wrapping_add(if chance.bool() { 1 } else { 255 }),
        3 => input.insert(at, chance.u8(..)),
        4 if at < len => {
            input.drain(at..(at + 1 + chance.usize(..16)).min(len));
        }
        5 => input.truncate(at),
        6 => {
            // A word, or part of one, at the limit of what it may be.
            let bytes = EDGES[chance.usize(..EDGES.len())].to_le_bytes();
            let width = 1 << chance.usize(..4);
            let end = (at + width).min(len);
            input.splice(at..end, bytes[..width].iter().copied());
        }
        7 if len > 0 => {
            // A part of itself once more.
            let end = (at + 1 + chance.usize(..32)).min(len);
            let part = input[at.min(end)..end].to_vec();
            let to = chance.usize(..=len);
            input.splice(to..to, part);
        }
        _ => {
            // The end of another seed after the beginning of this one.
            if let Some(other) = seeds.get(chance.usize(..seeds.len().max(1))) {
                let from = chance.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}

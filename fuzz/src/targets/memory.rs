//! A fabric whose peers are the input: what this process posts is kept, and completes as the input says.

use std::collections::VecDeque;

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::{Completion, Fabric, Local, LocalRegion, Memory, OpError, PeerId, RegionName, Remote, Token};

/// An operation that waits for its completion.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) token: Token,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The first word that is written, and the number of bytes.
    Write {
        at: Remote,
        word: u64,
        len: usize,
    },
    Word {
        from: Remote,
    },
    Read {
        from: Remote,
        into: Local,
        len: usize,
    },
    Swap {
        expected: u64,
    },
    Revoke,
}

/// Our own memory, and what we have posted.
#[derive(Debug, Default)]
pub(super) struct OwnMemory {
    regions: Vec<(LocalRegion, Vec<AtomicU64>)>,
    pub(super) posted: VecDeque<Posted>,
    /// A region of ours to which all writes go, at once. For targets that play the peer that writes there.
    pub(super) written: Option<LocalRegion>,
}

impl OwnMemory {
    pub(super) fn add(&mut self, region: LocalRegion, bytes: usize) {
        self.regions.push((region, (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()));
    }

    fn post(&mut self, token: Token, what: What) {
        self.posted.push_back(Posted { token, what });
    }

    /// Completes the oldest operation. `result` holds what a word was found to be; a read leaves `record` in our memory.
    pub(super) fn complete(&mut self, result: Result<u64, OpError>, record: &[u64]) -> Option<Completion> {
        let Posted { token, what } = self.posted.pop_front()?;
        if let (What::Read { into, len, .. }, Ok(_)) = (what, result) {
            let memory = self.memory(into.region).expect("we read into memory of ours");
            for (i, word) in memory[into.offset / 8..(into.offset + len) / 8].iter().enumerate() {
                word.store(record.get(i).copied().unwrap_or(0), Ordering::Relaxed);
            }
        }
        Some(Completion { token, result })
    }

    /// Writes a word of our memory, as a peer does.
    pub(super) fn scribble(&self, region: LocalRegion, at: usize, word: u64) {
        if let Some(memory) = self.memory(region)
            && !memory.is_empty()
        {
            memory[at % memory.len()].store(word, Ordering::Relaxed);
        }
    }
}

fn first_word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

impl Fabric for OwnMemory {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        self.regions.iter().find(|(of, _)| *of == region).map(|(_, words)| &words[..])
    }
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        assert!(at.offset.is_multiple_of(8) && bytes.len().is_multiple_of(8), "{at:?}, {} bytes", bytes.len());
        let Some(memory) = self.written.and_then(|region| self.memory(region)) else {
            return self.post(token, What::Write { at, word: first_word(bytes), len: bytes.len() });
        };
        for (word, bytes) in memory[at.offset / 8..][..bytes.len() / 8].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
    }
    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        assert!(from.offset.is_multiple_of(8) && into.offset.is_multiple_of(8) && len.is_multiple_of(8), "{from:?}, {into:?}, {len} bytes");
        self.post(token, What::Read { from, into, len });
    }
    fn read_word(&mut self, from: Remote, token: Token) {
        assert!(from.offset.is_multiple_of(8), "{from:?}");
        self.post(token, What::Word { from });
    }
    fn compare_and_swap(&mut self, at: Remote, expected: u64, _: u64, token: Token) {
        assert!(at.offset.is_multiple_of(8), "{at:?}");
        self.post(token, What::Swap { expected });
    }
    fn send(&mut self, _: PeerId, datagram: &[u8]) {
        self.multicast(datagram);
    }
    fn multicast(&mut self, datagram: &[u8]) {
        assert!(datagram.len() <= martlet_fabric::contract::MAX_DATAGRAM_BYTES, "a datagram of {} bytes", datagram.len());
    }
    fn forget(&mut self, peer: PeerId) {
        self.regions.retain(|(region, _)| !matches!(region, LocalRegion::Lane { writer, .. } if *writer == peer));
    }
    fn revoke(&mut self, _: PeerId, _: RegionName, token: Token) {
        self.post(token, What::Revoke);
    }
    martlet_fabric::idle!(poll, receive, event, grant, nudge);
}

//! Connected processes, as the promises use them.

use super::Harness;
use crate::contract::{
    Completion, Fabric, Local, LocalRegion, Memory, OpError, PeerEvent, PeerId, Region, RegionName, RegionSpec, Remote, Token,
};
use crate::primitive::Ordering;
use crate::ring;

/// A public region.
pub const PUBLIC: RegionName = RegionName(1);
/// Its length.
pub const PUBLIC_BYTES: usize = 4096;
/// A public region that only its owner writes, of [`PUBLIC_BYTES`].
pub const OWNED: RegionName = RegionName(3);
/// A public region in which a process's own reads land.
pub const LANDING: RegionName = RegionName(2);
/// A lane, for members and for clients.
pub const LANE: RegionName = RegionName(16);
/// Its length.
pub const LANE_BYTES: usize = 4096;
/// A lane that holds a ring.
pub const RING: RegionName = RegionName(17);
/// The ring's capacity: small, so that it wraps often.
pub const RING_CAPACITY: usize = 1024;

/// What every member of the suite's clusters offers.
pub fn spec() -> RegionSpec {
    RegionSpec {
        public: vec![(PUBLIC, PUBLIC_BYTES), (OWNED, PUBLIC_BYTES), (LANDING, PUBLIC_BYTES)],
        owned: vec![OWNED],
        member_lanes: vec![(LANE, LANE_BYTES), (RING, ring::lane_bytes(RING_CAPACITY))],
        client_lanes: vec![(LANE, LANE_BYTES)],
    }
}

/// What the suite's clients offer.
pub fn client_spec() -> RegionSpec {
    RegionSpec { public: vec![(LANDING, PUBLIC_BYTES)], member_lanes: vec![(LANE, LANE_BYTES)], ..RegionSpec::default() }
}

/// A harness, and what each process has been told.
pub(super) struct Cluster<H: Harness> {
    pub(super) harness: H,
    /// Events of each process so far, in order.
    pub(super) events: Vec<Vec<PeerEvent>>,
    /// Completions of each process that have not been asked for yet, in order.
    pub(super) completions: Vec<Vec<Completion>>,
    next_token: u64,
}

impl<H: Harness> Cluster<H> {
    /// `members` processes, all connected to each other.
    pub(super) fn connected(round: u64, members: usize) -> Cluster<H> {
        let mut cluster = Cluster {
            harness: H::start(round, members, &spec()),
            events: vec![Vec::new(); members],
            completions: vec![Vec::new(); members],
            next_token: 1,
        };
        for of in 0..members {
            for target in (0..members).filter(|t| *t != of) {
                cluster.wait_for_up(of, target);
            }
        }
        cluster
    }

    pub(super) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Takes in what has happened at one process.
    pub(super) fn observe(&mut self, process: usize) {
        while self.events.len() <= process {
            self.events.push(Vec::new());
            self.completions.push(Vec::new());
        }
        while let Some(event) = self.harness.fabric(process).event() {
            self.events[process].push(event);
        }
        while let Some(completion) = self.harness.fabric(process).poll() {
            self.completions[process].push(completion);
        }
    }

    /// Lets time pass until `done` says so.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..H::PATIENCE {
            if done(self) {
                return;
            }
            self.harness.pass();
        }
        panic!("after {} passes still not: {what}", H::PATIENCE);
    }

    /// The number by which `of` knows `target`, if `target` has come up there.
    pub(super) fn peer_if_up(&mut self, of: usize, target: usize) -> Option<PeerId> {
        let wanted = self.harness.identity(target);
        self.events[of].iter().find_map(|event| match *event {
            PeerEvent::Up { peer, identity } if identity == wanted => Some(peer),
            _ => None,
        })
    }

    /// The number by which `of` knows `target`.
    pub(super) fn peer(&mut self, of: usize, target: usize) -> PeerId {
        if of == target { PeerId::SELF } else { self.peer_if_up(of, target).expect("connected before") }
    }

    pub(super) fn wait_for_up(&mut self, of: usize, target: usize) -> PeerId {
        self.until(&format!("process {target} is up at process {of}"), |c| {
            c.observe(of);
            c.peer_if_up(of, target).is_some()
        });
        self.peer(of, target)
    }

    /// Waits for one completion; others stay in the list.
    pub(super) fn complete(&mut self, process: usize, token: Token) -> Result<u64, OpError> {
        let mut result = None;
        self.until(&format!("{token:?} completes at process {process}"), |c| {
            c.observe(process);
            if let Some(at) = c.completions[process].iter().position(|done| done.token == token) {
                result = Some(c.completions[process].remove(at).result);
            }
            result.is_some()
        });
        result.expect("waited for")
    }

    /// Writes words and waits for the completion.
    pub(super) fn write(&mut self, process: usize, at: Remote, words: &[u64]) -> Result<u64, OpError> {
        let token = self.token();
        self.harness.fabric(process).write(at, &bytes_of(words), token);
        self.complete(process, token)
    }

    /// Reads one word and waits for it.
    pub(super) fn read_word(&mut self, process: usize, from: Remote) -> Result<u64, OpError> {
        let token = self.token();
        self.harness.fabric(process).read_word(from, token);
        self.complete(process, token)
    }

    /// Reads words into the landing region and waits for them.
    pub(super) fn read(&mut self, process: usize, from: Remote, words: usize) -> Result<Vec<u64>, OpError> {
        let token = self.token();
        let into = Local { region: LocalRegion::Public(LANDING), offset: 0 };
        self.harness.fabric(process).read(from, into, words * 8, token);
        self.complete(process, token)?;
        let memory = self.memory(process, LocalRegion::Public(LANDING));
        Ok(words_of(&memory[..words]))
    }

    pub(super) fn swap(&mut self, process: usize, at: Remote, expected: u64, new: u64) -> Result<u64, OpError> {
        let token = self.token();
        self.harness.fabric(process).compare_and_swap(at, expected, new, token);
        self.complete(process, token)
    }

    /// A process's own region.
    pub(super) fn memory(&mut self, process: usize, region: LocalRegion) -> &Memory {
        self.harness.fabric(process).memory(region).expect("declared by the suite")
    }

    /// The lane of `owner` in which `writer` writes, as the owner sees it now.
    pub(super) fn lane_words(&mut self, owner: usize, writer: usize, words: usize) -> Vec<u64> {
        let writer = self.peer(owner, writer);
        words_of(&self.memory(owner, LocalRegion::Lane { writer, name: LANE })[..words])
    }

    /// An address in `target`'s public region, for `of`.
    pub(super) fn public(&mut self, of: usize, target: usize, word: usize) -> Remote {
        Remote { peer: self.peer(of, target), region: Region::Public(PUBLIC), offset: word * 8 }
    }

    /// An address in the lane that `target` keeps for `of`.
    pub(super) fn lane(&mut self, of: usize, target: usize, word: usize) -> Remote {
        Remote { peer: self.peer(of, target), region: Region::Lane(LANE), offset: word * 8 }
    }
}

pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn words_of(memory: &Memory) -> Vec<u64> {
    memory.iter().map(|word| word.load(Ordering::Acquire)).collect()
}

//! What a fabric promises. The conformance suite states each promise as a test, and every backend runs it.
//!
//! A process **owns** regions; its **peers** act on them with one-sided operations, without the owner's CPU. An endpoint (a value of a type
//! that implements [`Fabric`]) belongs to one thread. Operations are posted with a [`Token`] and complete later, through [`Fabric::poll`].
//!
//! # Promises
//! 1. *Order.* Operations that one endpoint posts to one peer take effect, and complete, in the order in which they were posted.
//! 2. *Words.* An aligned 8-byte word never tears, whether read or written. Anything longer can tear, at word boundaries: every record
//!    carries its own seal ([`crate::ring`]).
//! 3. *Swap.* [`Fabric::compare_and_swap`] is atomic against every other `compare_and_swap` of that word, the owner's included, who posts it
//!    to [`PeerId::SELF`] like everybody else (TRAPS 5).
//! 4. *No mixing.* A word that is a target of `compare_and_swap` is never written by a plain store or a WRITE while anyone may CAS it.
//! 5. *Visibility.* A completed write is visible to the owner, and to whoever learns of the completion through memory.
//! 6. *Revocation.* Once [`Fabric::revoke`] has completed, a write of that peer either is already visible to the owner in whole or completes
//!    at the peer with [`OpError::AccessLost`]. A write that completes `Ok` had the grant after its last byte was stored.
//!    What a writer posts after it has seen anything that the owner did after a [`Fabric::grant`] is under that grant; what it posts earlier may not be.
//! 7. *Zombies.* A dead process's memory stays reachable on backends that say so ([`Fabric::ZOMBIES_REACHABLE`]); elsewhere operations on
//!    it complete with [`OpError::PeerLost`] in bounded time.
//! 8. *Datagrams* ([`Fabric::send`]) may be lost, repeated or reordered, are never altered, and come only from authenticated peers of this
//!    cluster.

use crate::primitive::AtomicU64;
use crate::pulse::Pulse;

/// The number an operator gives a node in the cluster's configuration; the same after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// Tells the lives of one node apart: a restarted process is never the old one (TRAPS 28). Larger is later; 0 is nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// What a process is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerKind {
    /// A node of the cluster.
    Member,
    /// A client: it may read public regions and write its own lanes, nothing else.
    Client,
}

/// The identity of a process. Two processes never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its number in the configuration; for a client, any number.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What it is.
    pub kind: PeerKind,
}

/// A connected process as one process numbers it. Never used again: not for another process, not for a later life of the same node, and not for another
/// connection with the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl PeerId {
    /// The process itself: operations on its own memory go the same way as everybody else's.
    pub const SELF: PeerId = PeerId(0);
}

/// Names a region of a process. The names a cluster uses are constants of the protocol's `layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionName(pub u8);

/// Memory of a process, as a peer addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// The one region of that name, which every member may read, write and CAS, and every client may read. Of those that only their owner writes
    /// ([`RegionSpec::owned`]) members may read too, and no more.
    Public(RegionName),
    /// The lane of that name which the owner keeps for the posting process alone. Its write permission can be revoked.
    Lane(RegionName),
}

/// An address in a peer's memory. `offset` is in bytes and a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Whose memory.
    pub peer: PeerId,
    /// Which region of it.
    pub region: Region,
    /// Bytes from the region's start; a multiple of 8.
    pub offset: usize,
}

/// Memory of this process, as it addresses it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalRegion {
    /// A public region of ours.
    Public(RegionName),
    /// Our lane of that name in which `writer` writes.
    Lane {
        /// The only peer that writes there.
        writer: PeerId,
        /// The lane's name.
        name: RegionName,
    },
}

/// An address in our own memory: where a [`Fabric::read`] puts what it read. `offset` is in bytes and a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Which region.
    pub region: LocalRegion,
    /// Bytes from its start; a multiple of 8.
    pub offset: usize,
}

/// What the poster calls an operation; it comes back with the completion. The fabric does not look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Memory that others may act on at any time: aligned words, each one atomic.
///
/// A slice of atomics, so that whoever holds it can neither tear a word nor race in the language's sense.
pub type Memory = [AtomicU64];

/// Why an operation did not take effect, or cannot be known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpError {
    /// The owner has revoked the permission, or there was none: what was written is not in what readers use.
    AccessLost,
    /// The peer is out of reach. The operation may or may not have taken effect.
    PeerLost,
}

impl std::fmt::Display for OpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OpError::AccessLost => "write permission was revoked",
            OpError::PeerLost => "peer is out of reach",
        })
    }
}

impl std::error::Error for OpError {}

/// The end of one posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As posted.
    pub token: Token,
    /// `read_word`: the word. `compare_and_swap`: the word as found, whether or not it was swapped. Otherwise 0.
    pub result: Result<u64, OpError>,
}

/// A process came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The peer is connected in both directions: operations on it may be posted.
    Up {
        /// Its number from now on.
        peer: PeerId,
        /// Its identity.
        identity: Identity,
    },
    /// The peer's process is gone for certain (its kernel says so), or the connection with it is lost. Its memory, where zombies are
    /// reachable, stays mapped until [`Fabric::forget`]. The other end hears that the connection is lost as well, once it can be told, and two processes
    /// that live and reach each other again then meet anew: as [`PeerEvent::Up`] under another number, with fresh lanes, and always after this event. What was posted under the old
    /// number has taken effect by then, or never will; its completions may still come.
    Gone {
        /// Its number so far.
        peer: PeerId,
        /// True when the kernel vouches that every thread of the process has ended.
        certain: bool,
    },
}

/// What regions a process offers; the same list, in the same sizes, at every member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSpec {
    /// Public regions and their lengths in bytes, multiples of 8.
    pub public: Vec<(RegionName, usize)>,
    /// Those of them that only their owner writes. A write or swap of anybody else's completes with [`OpError::AccessLost`], and where peers map memory they
    /// map this one for reading only: a stray store of theirs is their end, and changes nothing here.
    pub owned: Vec<RegionName>,
    /// Lanes kept for each member that connects.
    pub member_lanes: Vec<(RegionName, usize)>,
    /// Lanes kept for each client that connects.
    pub client_lanes: Vec<(RegionName, usize)>,
}

impl RegionSpec {
    /// Declares public regions that only their owner writes.
    pub fn own(&mut self, regions: impl IntoIterator<Item = (RegionName, usize)>) {
        for (name, bytes) in regions {
            self.public.push((name, bytes));
            self.owned.push(name);
        }
    }

    /// Whether only its owner writes the public region of that name.
    pub fn is_owned(&self, name: RegionName) -> bool {
        self.owned.contains(&name)
    }
}

/// One thread's endpoint on the fabric. See the [module](self) for what it promises.
///
/// Posting never blocks and never allocates after the start. Out-of-range addresses and lengths that are not multiples of 8 are mistakes of
/// the caller and panic: sizes are agreed at connection, and a peer whose sizes differ is refused there.
pub trait Fabric {
    /// Whether a dead process's memory can still be read and written.
    const ZOMBIES_REACHABLE: bool;

    /// Our own memory, or `None` when the region was never declared or its writer has been forgotten.
    fn memory(&self, region: LocalRegion) -> Option<&Memory>;

    /// A pulse that beats in these words of our own public regions, which nobody but this endpoint's thread writes. The default shows nothing to anybody:
    /// for fabrics on which no turn takes any time.
    fn pulse(&self, _words: &[(RegionName, usize)]) -> Pulse {
        Pulse::default()
    }

    /// Posts a write of `bytes` (a multiple of 8 long) at `at`.
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token);

    /// A hint that `len` bytes at `at` (multiples of 8, as everywhere) are about to be written: where it helps, their cache lines are fetched from whoever
    /// has them, so that the write need not wait for them. Nothing depends on it.
    #[inline]
    fn expect_write(&self, _at: Remote, _len: usize) {}

    /// Posts a read of `len` bytes (a multiple of 8) from `from` into our memory at `into`.
    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token);

    /// Posts a read of one word; the completion carries it.
    fn read_word(&mut self, from: Remote, token: Token);

    /// Posts a compare-and-swap of one word; the completion carries the word as found.
    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token);

    /// The next completion, in posting order for each peer. Everything posted before it returns `None` is on its way; a write's completion
    /// is returned only after a full fence between its last store and the check of its permission.
    fn poll(&mut self) -> Option<Completion>;

    /// Sends a datagram of at most [`MAX_DATAGRAM_BYTES`] to one peer. It may be lost.
    fn send(&mut self, to: PeerId, datagram: &[u8]);

    /// Sends a datagram to every connected member. Each copy may be lost by itself.
    fn multicast(&mut self, datagram: &[u8]);

    /// Takes the next datagram into `into` (cleared first) and names its sender.
    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId>;

    /// The next coming or going of a peer.
    fn event(&mut self) -> Option<PeerEvent>;

    /// Lets `writer` write its lane `name` again, in a new epoch. A fresh lane is granted from the start.
    fn grant(&mut self, writer: PeerId, name: RegionName);

    /// Posts the revocation of `writer`'s permission on its lane `name`; see promise 6 for what its completion means.
    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token);

    /// Asks a peer that may be idle to look at its memory soon. A hint: it costs one load when the peer is awake, and may be lost only
    /// together with the peer. Post it after [`Fabric::poll`] has fenced what the peer is to see.
    fn nudge(&mut self, peer: PeerId);

    /// Gives up the memory of a peer: its lanes here and our mapping of its regions. Operations still in flight complete with
    /// [`OpError::PeerLost`].
    fn forget(&mut self, peer: PeerId);
}

/// The longest datagram, in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 4096;

//! What a fabric promises. The conformance suite states each promise as a test, and every backend runs it.
//!
//! A process **owns** regions. Its **peers** act on them with one-sided operations, which do not involve the owner's CPU. An endpoint (a value of a
//! type that implements [`Fabric`]) belongs to one thread. Operations are posted with a [`Token`] and complete later, through [`Fabric::poll`].
//!
//! # Promises
//! 1. *Order.* Operations that one endpoint posts to one peer take effect, and complete, in the order in which they were posted.
//! 2. *Words.* An aligned 8-byte word never tears, whether read or written. Anything longer can tear at word boundaries, so every record carries its
//!    own seal ([`crate::ring`]).
//! 3. *Swap.* [`Fabric::compare_and_swap`] is atomic with respect to every other `compare_and_swap` of that word. This includes the owner's, provided
//!    that the owner posts it to [`PeerId::SELF`] as any peer would (TRAPS 5).
//! 4. *No mixing.* While any process may CAS a word, the word is never written by a plain store or a WRITE.
//! 5. *Visibility.* A completed write is visible to the owner, and to any process that learns of the completion through memory.
//! 6. *Revocation.* Once [`Fabric::revoke`] has completed, each write of that peer either is already visible to the owner in whole or completes at
//!    the peer with [`OpError::AccessLost`]. A write that completes `Ok` still had the grant after its last byte was stored. A write that is posted
//!    after the writer has seen anything that the owner did after a [`Fabric::grant`] is under that grant; a write posted earlier may not be.
//! 7. *Zombies.* A dead process's memory stays reachable on backends that say so ([`Fabric::ZOMBIES_REACHABLE`]). On the others, operations on it
//!    complete with [`OpError::PeerLost`] in bounded time.
//! 8. *Datagrams* ([`Fabric::send`]) may be lost, repeated or reordered. They are never altered, and come only from authenticated peers of this
//!    cluster.

use crate::primitive::AtomicU64;
use crate::pulse::Pulse;

/// The number that the cluster's configuration gives a node. It stays the same when the node restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// Tells the lives of one node apart: a restarted process is never the old one (TRAPS 28). A larger number is a later life; no process has 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// The role of a process, as its peers see it.
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
    /// The node's number in the configuration; for a client, any number.
    pub node: NodeId,
    /// Which life of the node this is.
    pub incarnation: Incarnation,
    /// Member or client.
    pub kind: PeerKind,
}

/// The number by which one process knows a connected process. A number is never reused: not for another process, not for a later life of the same
/// node, and not for another connection to the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl PeerId {
    /// The process itself: operations on its own memory are posted like those on any peer's.
    pub const SELF: PeerId = PeerId(0);
}

/// Names a region of a process. The names a cluster uses are constants of the protocol's `layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionName(pub u8);

/// Memory of a process, as a peer addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// The one region of that name. Every member may read, write and CAS it, and every client may read it. If only its owner writes it
    /// ([`RegionSpec::owned`]), members may only read it, too.
    Public(RegionName),
    /// The lane of that name which the owner keeps for the posting process alone. The owner can revoke the permission to write it.
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

/// Memory of this process, as the process itself addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalRegion {
    /// One of our public regions.
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

/// The poster's name for an operation, returned with its completion. The fabric does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Memory that other processes may act on at any time: aligned words, each of them atomic.
///
/// It is a slice of atomics, so that code that holds it can neither tear a word nor cause a data race in Rust's sense.
pub type Memory = [AtomicU64];

/// Why an operation did not take effect, or why it is unknown whether it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpError {
    /// The owner has revoked the permission, or never gave it: what was written is not in the memory that readers use.
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
    /// The token that the operation was posted with.
    pub token: Token,
    /// For `read_word`, the word. For `compare_and_swap`, the word as found, whether or not it was swapped. Otherwise 0.
    pub result: Result<u64, OpError>,
}

/// A peer has connected or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The peer is connected in both directions: operations on it may be posted.
    Up {
        /// The number by which it is known from now on.
        peer: PeerId,
        /// Its identity.
        identity: Identity,
    },
    /// Either the peer's process is certainly gone (its kernel says so), or the connection to it is lost. Where zombies are reachable, its memory
    /// stays mapped until [`Fabric::forget`].
    /// If the connection is lost, the other end is told so too as soon as it can be reached. Two processes that are both alive and reach each other
    /// again then connect anew: each sees [`PeerEvent::Up`] with another number and fresh lanes, and always after this event. By then each operation
    /// posted under the old number has either taken effect or never will, though its completion may still come.
    Gone {
        /// The number by which it was known.
        peer: PeerId,
        /// True if the kernel vouches that every thread of the process has ended.
        certain: bool,
    },
}

/// The regions that a process offers. Every member of a cluster offers the same list, in the same sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSpec {
    /// Public regions and their lengths in bytes, multiples of 8.
    pub public: Vec<(RegionName, usize)>,
    /// The public regions that only their owner writes. A write or swap by any other process completes with [`OpError::AccessLost`]. Where peers map
    /// memory, they map these regions read-only: a stray store by a peer kills that peer and changes nothing here.
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

    /// Whether only its owner writes the public region called `name`.
    pub fn is_owned(&self, name: RegionName) -> bool {
        self.owned.contains(&name)
    }
}

/// One thread's endpoint on the fabric. See the [module](self) for what it promises.
///
/// Posting never blocks, and never allocates after the start. Out-of-range addresses and lengths that are not multiples of 8 are the caller's
/// mistakes and cause a panic: sizes are agreed when two processes connect, and a peer whose sizes differ is refused then.
pub trait Fabric {
    /// Whether a dead process's memory can still be read and written.
    const ZOMBIES_REACHABLE: bool;

    /// Our own memory, or `None` if the region was never declared or its writer has been forgotten.
    fn memory(&self, region: LocalRegion) -> Option<&Memory>;

    /// A pulse that beats in these words of our own public regions, which only this endpoint's thread writes. The default shows nothing: it is for
    /// fabrics on which no turn takes any time.
    fn pulse(&self, _words: &[(RegionName, usize)]) -> Pulse {
        Pulse::default()
    }

    /// Posts a write of `bytes` (a multiple of 8 long) at `at`.
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token);

    /// A hint that `len` bytes at `at` (multiples of 8, as everywhere) are about to be written. Where it helps, their cache lines are fetched from
    /// the cores that hold them, so that the write need not wait. Nothing depends on this hint.
    #[inline]
    fn expect_write(&self, _at: Remote, _len: usize) {}

    /// Posts a read of `len` bytes (a multiple of 8) from `from` into our memory at `into`.
    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token);

    /// Posts a read of one word. The completion carries the word.
    fn read_word(&mut self, from: Remote, token: Token);

    /// Posts a compare-and-swap of one word. The completion carries the word as found.
    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token);

    /// The next completion; the completions of each peer come in posting order. Once this returns `None`, everything posted before is on its way. A
    /// write's completion is returned only after a full fence between the write's last store and the check of its permission.
    fn poll(&mut self) -> Option<Completion>;

    /// Sends a datagram of at most [`MAX_DATAGRAM_BYTES`] to one peer. It may be lost.
    fn send(&mut self, to: PeerId, datagram: &[u8]);

    /// Sends a datagram to every connected member. Each copy may be lost independently.
    fn multicast(&mut self, datagram: &[u8]);

    /// Takes the next datagram into `into` (cleared first) and names its sender.
    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId>;

    /// The next event: a peer has connected or is gone.
    fn event(&mut self) -> Option<PeerEvent>;

    /// Lets `writer` write its lane `name` again, in a new epoch. A fresh lane is already granted.
    fn grant(&mut self, writer: PeerId, name: RegionName);

    /// Posts the revocation of `writer`'s permission to write its lane `name`. Promise 6 says what its completion means.
    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token);

    /// Asks a peer that may be idle to look at its memory soon. This is a hint: it costs one load when the peer is awake, and is lost only if the
    /// peer is lost too. Post it after [`Fabric::poll`] has fenced what the peer is to see.
    fn nudge(&mut self, peer: PeerId);

    /// Gives up the memory shared with a peer: its lanes here and our mapping of its regions. Operations still in flight complete with
    /// [`OpError::PeerLost`].
    fn forget(&mut self, peer: PeerId);
}

/// The longest datagram, in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 4096;

//! The endpoint: the contract's operations on mapped memory.
//!
//! # Memory order
//! An operation takes effect while it is posted. What keeps promise 1 (order), and what each fence pairs with:
//!
//! - The words of a write are relaxed stores after a release fence, so a write is never seen before an earlier operation. The fence pairs with the
//!   acquire loads (or relaxed loads and an acquire fence) of reads, here and in [`crate::ring`]. The first word is stored last, as a release.
//! - A read or a swap that follows writes without a full fence in between issues that fence first. Otherwise the processor could load before the
//!   earlier stores have left its store buffer.
//! - A write's completion is decided only after a full fence after its last store. One fence serves all writes that are pending at that moment.
//!   Together with the owner's fence in `revoke`, this is Dekker's algorithm: either the writer sees the new grant word, or the owner sees the write.
//!   A writer that has lost its grant may have stored some or all of its bytes: they are in its own lane, and its completion says so.

mod parking;
mod posting;
mod private;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::mail::{self, Popped};
use super::peer::{Own, Peer};
use super::regions::OwnRegions;
use super::shared::{Command, Note, Shared};
use crate::contract::{
    Completion, Fabric, Identity, Local, LocalRegion, MAX_DATAGRAM_BYTES, Memory, NodeId, OpError, PeerEvent, PeerId, Region, RegionName,
    Remote, Token,
};
use crate::exchange::BootstrapCounters;
use crate::host::OwnRegion;
use crate::host::memory::{self, Area};
use crate::invariant;
use crate::primitive::{Ordering, fence, prefetch_for_write};
use crate::pulse::Pulse;

pub use parking::ParkWord;
use posting::{Outcome, Posted, load};

/// Completions kept before the queue has to grow.
const QUEUE: usize = 4096;

/// What happened to datagrams at this endpoint since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// Sent and handed to the receiver's ring.
    pub sent: u64,
    /// Dropped because the receiver's ring was full, or because the receiver is not a member, is gone or is unknown.
    pub dropped: u64,
    /// Received.
    pub received: u64,
    /// Skipped because no sender of ours produces such a record.
    pub malformed: u64,
}

/// A process's endpoint on the shared-memory fabric. It can be moved to another thread; only one thread uses it at a time.
///
/// Dropping it closes all connections (the peers see `Gone` without certainty), unmaps everything and ends the bootstrap thread.
#[derive(Debug)]
pub struct ShmFabric {
    identity: Identity,
    shared: Arc<Shared>,
    own: Arc<Own>,
    thread: Option<JoinHandle<()>>,
    /// By number; entry 0 is never used.
    peers: Vec<Option<Box<Peer>>>,
    /// The members with a mail ring, in the order in which they connected.
    members: Vec<PeerId>,
    /// Where in `members` the next look for mail begins.
    turn: usize,
    queue: VecDeque<Posted>,
    /// How many entries at the front of the queue have been followed by a full fence.
    fenced: usize,
    /// Whether something has been stored without a full fence since.
    dirty: bool,
    /// Mail to ourselves.
    loopback: (mail::Sender, mail::Receiver),
    mail: DatagramCounters,
    #[cfg(debug_assertions)]
    swapped: std::collections::BTreeSet<(PeerId, Region, usize)>,
}

impl ShmFabric {
    /// `thread` makes the connections. Without it, the only connections are those made otherwise ([`ShmFabric::private`]).
    pub(super) fn new(identity: Identity, shared: Arc<Shared>, own: Arc<Own>, loopback: Area, thread: Option<JoinHandle<()>>) -> ShmFabric {
        ShmFabric {
            identity,
            shared,
            own,
            thread,
            peers: Vec::with_capacity(64),
            members: Vec::with_capacity(64),
            turn: 0,
            queue: VecDeque::with_capacity(QUEUE),
            fenced: 0,
            dirty: false,
            loopback: (mail::Sender::new(loopback.clone()), mail::Receiver::new(loopback)),
            mail: DatagramCounters::default(),
            #[cfg(debug_assertions)]
            swapped: std::collections::BTreeSet::new(),
        }
    }

    /// This process's identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Accepts connections from now on, if [`super::ShmConfig::closed`] was set. Connections that came earlier have waited. [`ShmFabric::connect`]
    /// does the same, so only a process that never dials needs this call.
    pub fn open(&self) {
        self.shared.ask(Command::Open);
    }

    /// Asks for a connection to a member whenever it is there: now, later, and again after it has restarted (each life comes as an `Up` event with a
    /// number of its own). Returns at once.
    pub fn connect(&self, node: NodeId) {
        self.shared.ask(Command::Connect(node));
    }

    /// Undoes [`ShmFabric::connect`]: no further attempts. An existing connection is kept; [`Fabric::forget`] ends it.
    pub fn disconnect(&self, node: NodeId) {
        self.shared.ask(Command::Disconnect(node));
    }

    /// The identity of a peer, from its `Up` event until it is forgotten.
    pub fn peer_identity(&self, peer: PeerId) -> Option<Identity> {
        self.peer(peer).map(|p| p.identity)
    }

    /// Whether a peer that has not been forgotten is known to be gone.
    pub fn is_gone(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(|p| p.gone)
    }

    /// Whether [`Fabric::event`] has nothing. One load.
    #[inline]
    pub fn is_empty_of_events(&self) -> bool {
        self.shared.is_empty()
    }

    /// Whether [`Fabric::receive`] has nothing. One load for each member.
    #[inline]
    pub fn is_empty_of_mail(&self) -> bool {
        self.loopback.1.is_empty()
            && self.members.iter().all(|id| self.peer(*id).and_then(|p| p.inbound.as_ref()).is_none_or(mail::Receiver::is_empty))
    }

    /// What has happened at the bootstrap socket.
    pub fn bootstrap_counters(&self) -> BootstrapCounters {
        self.shared.counters()
    }

    /// Why the latest refused handshake was refused, by us or by the other end. The text names both ends and what they disagree about.
    pub fn last_refusal(&self) -> Option<String> {
        self.shared.last_refusal()
    }

    /// The latest refusal that was due to the builds of the two ends, if it is less than `within` old.
    pub fn misfit(&self, within: Duration) -> Option<String> {
        self.shared.misfit(within)
    }

    /// What has happened to datagrams.
    pub fn datagram_counters(&self) -> DatagramCounters {
        self.mail
    }

    /// Our public regions, for other threads: to register death words, or to read and write counters while the endpoint's thread runs.
    pub fn own_regions(&self) -> OwnRegions {
        OwnRegions::new(self.own.clone())
    }

    /// A public region of ours, for other threads; `None` if it was never declared.
    pub fn own_region(&self, name: RegionName) -> Option<OwnRegion> {
        self.own.public(name).map(OwnRegion::new)
    }

    /// Words of a public region of a peer, or of our own, to be read directly. `None` if the peer is unknown or forgotten, or has no such region.
    /// Load them relaxed, and follow with an acquire fence where order matters, since a client's mapping is read-only.
    #[inline]
    pub fn peer_memory(&self, peer: PeerId, name: RegionName) -> Option<&Memory> {
        if peer == PeerId::SELF {
            return self.own.public(name).map(Area::memory);
        }
        self.peer(peer)?.public(name).map(Area::memory)
    }

    #[inline]
    fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(id.0 as usize)?.as_deref()
    }

    /// A full fence after everything stored so far.
    #[inline]
    fn full_fence(&mut self) {
        fence(Ordering::SeqCst);
        self.dirty = false;
        self.fenced = self.queue.len();
    }

    fn local(&self, region: LocalRegion) -> Option<&Area> {
        match region {
            LocalRegion::Public(name) => self.own.public(name),
            LocalRegion::Lane { writer, name } => self.peer(writer)?.ours.iter().find(|l| l.name == name).map(|l| &l.area),
        }
    }

    fn set_granted(&mut self, writer: PeerId, name: RegionName, granted: bool) {
        // A writer that has been forgotten has no lane, so nothing that it writes is read.
        if let Some(peer) = self.peer(writer) {
            let lane = peer.ours.iter().find(|l| l.name == name);
            invariant!(lane.is_some(), "we keep no lane {} for {writer:?}", name.0);
            lane.expect("just checked").set_granted(granted);
        }
    }

    fn deliver(&mut self, to: PeerId, datagram: &[u8]) {
        invariant!(datagram.len() <= MAX_DATAGRAM_BYTES, "datagram of {} bytes, at most {MAX_DATAGRAM_BYTES} are allowed", datagram.len());
        let sender = match to {
            PeerId::SELF => Some(&mut self.loopback.0),
            _ => self
                .peers
                .get_mut(to.0 as usize)
                .and_then(Option::as_deref_mut)
                .filter(|peer| !peer.gone)
                .and_then(|peer| peer.outbound.as_mut()),
        };
        if sender.is_some_and(|sender| sender.push(datagram)) {
            self.mail.sent += 1;
        } else {
            self.mail.dropped += 1;
        }
    }
}

impl Fabric for ShmFabric {
    const ZOMBIES_REACHABLE: bool = true;

    #[inline]
    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        self.local(region).map(Area::memory)
    }

    fn pulse(&self, words: &[(RegionName, usize)]) -> Pulse {
        memory::pulse(words, |name| self.own.public(name))
    }

    // `at` is taken apart at the call. Passed as a whole, it would be stored in parts and loaded as one, and such a load has to wait until earlier
    // stores have left the processor's store buffer. Those in turn wait for cache lines that another core holds.
    #[inline(always)]
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        self.write_at(at.peer, at.region, at.offset, bytes, token);
    }

    #[inline]
    fn expect_write(&self, at: Remote, len: usize) {
        let area = match (at.region, self.peer(at.peer)) {
            (Region::Lane(name), Some(peer)) => peer.their_lane(name).map(|(_, lane)| &lane.area),
            (Region::Public(name), Some(peer)) => peer.public_to(name).filter(|(_, writable)| *writable).map(|(area, _)| area),
            (Region::Public(name), None) if at.peer == PeerId::SELF => self.own.public(name),
            _ => None,
        };
        if let Some(words) = area.map(Area::memory) {
            let from = (at.offset / 8).min(words.len());
            prefetch_for_write(&words[from..(from + len / 8).min(words.len())]);
        }
    }

    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        if self.dirty {
            self.full_fence();
        }
        let target = self.local(into.region);
        invariant!(target.is_some(), "no such region of ours: {into:?}");
        let target = target.expect("just checked");
        invariant!(
            into.offset.is_multiple_of(8) && into.offset.checked_add(len).is_some_and(|end| end <= target.bytes()),
            "{len} bytes into {into:?}, a region of {} bytes",
            target.bytes()
        );
        let result = self.locate(from, len).map(|place| {
            for (to, word) in target.memory()[into.offset / 8..].iter().zip(place.words) {
                to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            0
        });
        self.post(token, from.peer, Outcome::Done(result));
    }

    #[inline]
    fn read_word(&mut self, from: Remote, token: Token) {
        if self.dirty {
            self.full_fence();
        }
        let result = self.locate(from, 8).map(|place| load(&place.words[0]));
        self.post(token, from.peer, Outcome::Done(result));
    }

    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token) {
        if self.dirty {
            self.full_fence();
        }
        #[cfg(debug_assertions)]
        self.swapped.insert((at.peer, at.region, at.offset));
        let outcome = match self.locate(at, 8) {
            Err(error) => Outcome::Done(Err(error)),
            Ok(place) if !place.writable => Outcome::Done(Err(OpError::AccessLost)),
            Ok(place) => {
                let found = match place.words[0].compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(found) | Err(found) => found,
                };
                Outcome::Done(Ok(found))
            }
        };
        // Later reads must not pass the swap, on machines where it is not a full fence by itself.
        self.dirty |= !cfg!(target_arch = "x86_64");
        self.post(token, at.peer, outcome);
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        let unsure = !matches!(self.queue.front()?.outcome, Outcome::Done(_));
        if self.fenced == 0 && unsure {
            self.full_fence();
        }
        let posted = *self.queue.front()?;
        self.fenced = self.fenced.saturating_sub(1);
        self.queue.pop_front();
        let result = if posted.peer == PeerId::SELF {
            match posted.outcome {
                Outcome::Done(result) => result,
                _ => Ok(0),
            }
        } else {
            match (posted.outcome, self.peer(posted.peer)) {
                (_, None) => Err(OpError::PeerLost),
                (Outcome::Done(result), _) => result,
                (Outcome::Public, _) => Ok(0),
                // After the fence, it is still the same epoch: the owner will see the write when it revokes.
                (Outcome::Lane { lane, grant }, Some(peer)) if peer.theirs[usize::from(lane)].grant() == grant => Ok(0),
                (Outcome::Lane { .. }, _) => Err(OpError::AccessLost),
            }
        };
        Some(Completion { token: posted.token, result })
    }

    fn send(&mut self, to: PeerId, datagram: &[u8]) {
        self.deliver(to, datagram);
        // A datagram wakes its receiver, because it has no completion after which the sender could nudge.
        self.full_fence();
        self.nudge(to);
    }

    fn multicast(&mut self, datagram: &[u8]) {
        for at in 0..self.members.len() {
            let to = self.members[at];
            if !self.is_gone(to) {
                self.deliver(to, datagram);
            }
        }
        self.full_fence();
        for at in 0..self.members.len() {
            self.nudge(self.members[at]);
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId> {
        match self.loopback.1.pop(into) {
            Popped::Datagram => {
                self.mail.received += 1;
                return Some(PeerId::SELF);
            }
            Popped::Nothing => {}
            Popped::Malformed => self.mail.malformed += 1,
        }
        // In turn, so that one busy sender does not starve the others.
        for _ in 0..self.members.len() {
            self.turn = (self.turn + 1) % self.members.len();
            let from = self.members[self.turn];
            let inbound = self.peers[from.0 as usize].as_deref_mut().and_then(|p| p.inbound.as_mut());
            match inbound.map_or(Popped::Nothing, |ring| ring.pop(into)) {
                Popped::Datagram => {
                    self.mail.received += 1;
                    return Some(from);
                }
                Popped::Nothing => {}
                Popped::Malformed => self.mail.malformed += 1,
            }
        }
        None
    }

    #[inline]
    fn event(&mut self) -> Option<PeerEvent> {
        loop {
            match self.shared.note()? {
                Note::Up(id, peer) => {
                    let at = id.0 as usize;
                    if self.peers.len() <= at {
                        self.peers.resize_with(at + 1, || None);
                    }
                    let identity = peer.identity;
                    if peer.inbound.is_some() {
                        self.members.push(id);
                    }
                    self.peers[at] = Some(peer);
                    return Some(PeerEvent::Up { peer: id, identity });
                }
                Note::Gone { peer: id, certain } => {
                    // If it has been forgotten meanwhile, the caller does not want to know.
                    if let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) {
                        peer.gone = true;
                        return Some(PeerEvent::Gone { peer: id, certain });
                    }
                }
            }
        }
    }

    fn grant(&mut self, writer: PeerId, name: RegionName) {
        self.set_granted(writer, name, true);
    }

    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token) {
        self.set_granted(writer, name, false);
        // Pairs with the fence before a writer's last look at its grant, in `poll`.
        self.full_fence();
        // This completes at our end, whatever becomes of the writer.
        self.post(token, PeerId::SELF, Outcome::Done(Ok(0)));
    }

    #[inline]
    fn nudge(&mut self, peer: PeerId) {
        if self.dirty {
            self.full_fence();
        }
        if let Some(peer) = self.peer(peer) {
            peer.bell.ring();
        }
    }

    fn forget(&mut self, peer: PeerId) {
        let mapped = self.peers.get_mut(peer.0 as usize).and_then(Option::take);
        self.members.retain(|id| *id != peer);
        self.turn = 0;
        #[cfg(debug_assertions)]
        self.swapped.retain(|(id, _, _)| *id != peer);
        if self.thread.is_some() {
            self.shared.ask(Command::Forget(peer, mapped));
        }
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.ask(Command::Stop);
        if thread.join().is_err() {
            tracing::error!("the bootstrap thread panicked");
        }
    }
}

//! The endpoint: the contract's operations as requests to the card.
//!
//! Operations are gathered as they are posted and are handed to the card when the endpoint is polled, so that one doorbell and one completion serve
//! all that were posted together. Only the last request of a short batch asks for a completion, which stands for those before it.
//!
//! # Long transfers
//! Writes of more than two packets go as requests of one packet each, so that every packet is acknowledged. A device counts its retransmissions, and
//! starts the count again when it gets an acknowledgement. Software RDMA asks for one at the end of a request and otherwise only every 66 packets, so
//! that with 5 % loss half of the writes of 600 KiB ran out of their six retransmissions.
//! Reads, of which each packet of the answer is an acknowledgement, go as requests of sixteen packets. Nothing is heard of a request before its end,
//! and a process that reads a whole log should find out sooner that the rest will never come (module `overdue`).
//!
//! # Order
//! A queue pair keeps the order of its requests, with two exceptions: what follows a READ or a compare-and-swap may overtake it. In these cases the
//! later request waits here until the earlier one has completed. The interface's fence would let the card do the same wait, but software RDMA can
//! forget a fenced request for ever when packets are lost. Module `line` keeps the order between a peer's queue pairs.
//!
//! # Revocation
//! The owner revokes by destroying the lane's queue pair. When that call has returned, no request that came in on the queue pair is at work any more:
//! nothing more is stored, and no answer has promised otherwise. On software RDMA, a change of flags, the error state and RESET are no such fence
//! (`docs/rdma.md`; module `fences` finds out what is one on other devices). A notice tells the writer of the revocation, and the grant word tells it
//! what became of its writes (module `grant`).

mod completions;
mod posting;
mod revocation;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::ffi::{SendWr, Sge};
use super::line::{Line, Work};
use super::mail::{Assembly, Mail, MailCounters};
use super::mailbox::Failure;
use super::overdue::{Attention, Silences};
use super::packet::Hearing;
use super::peer::{Card, Peer, find};
use crate::contract::{
    Completion, Fabric, Identity, Local, LocalRegion, MAX_DATAGRAM_BYTES, Memory, NodeId, PeerEvent, PeerId, PeerKind, RegionName, Remote,
    Token,
};
use crate::exchange::BootstrapCounters;
use crate::host::{OwnRegion, memory};
use crate::invariant;
use crate::meeting::tcp::shared::{Command, Note, Shared};
use crate::primitive::{Ordering, fence};
use crate::pulse::Pulse;

/// A connected process, and what is under way to it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) peer: Peer,
    line: Line,
    pub(super) assembly: Assembly,
    pub(super) hearing: Hearing,
    /// Whether it is in the list of lines to work on.
    active: bool,
    notices_due: bool,
    silences: Silences,
}

/// A process's endpoint on the RDMA fabric. It can be moved to another thread; only one thread uses it at a time.
///
/// Dropping it closes all connections: the peers see `Gone`.
#[derive(Debug)]
pub struct VerbsFabric {
    identity: Identity,
    // Peers are dropped before the card that they were made with.
    entries: Vec<Option<Box<Entry>>>,
    members: Vec<PeerId>,
    /// Lines with operations that are not done, or notices under way.
    active: Vec<PeerId>,
    attention: Attention,
    ready: VecDeque<Completion>,
    /// Requests under way on each plane, and how many may be.
    under_way: [u64; 2],
    most: [u64; 2],
    wrs: Vec<SendWr>,
    sges: Vec<Sge>,
    mail: Mail,
    shared: Arc<Shared<Peer>>,
    thread: Option<JoinHandle<()>>,
    card: Arc<Card>,
    listens_at: Option<SocketAddr>,
    #[cfg(feature = "conformance")]
    deaf_to: Option<PeerId>,
    #[cfg(debug_assertions)]
    swapped: std::collections::HashSet<(PeerId, crate::contract::Region, usize)>,
}

// SAFETY: the requests' pointers in `wrs` point into `sges` and are written anew for each batch; everything else may be moved freely.
unsafe impl Send for VerbsFabric {}

impl VerbsFabric {
    pub(super) fn new(
        identity: Identity,
        card: Arc<Card>,
        mail: Mail,
        ourselves: Peer,
        shared: Arc<Shared<Peer>>,
        thread: JoinHandle<()>,
        listens_at: Option<SocketAddr>,
    ) -> VerbsFabric {
        // Half of a queue is for completions of requests that were given up.
        let most = [&card.background, &card.replication].map(|queue| u64::from(queue.depth / 2));
        let mut fabric = VerbsFabric {
            identity,
            entries: Vec::with_capacity(64),
            members: Vec::with_capacity(64),
            active: Vec::with_capacity(64),
            attention: Attention::new(card.patience.longest(0)),
            ready: VecDeque::with_capacity(1024),
            under_way: [0; 2],
            most,
            wrs: Vec::with_capacity(256),
            sges: Vec::with_capacity(256),
            mail,
            shared,
            thread: Some(thread),
            card,
            listens_at,
            #[cfg(feature = "conformance")]
            deaf_to: None,
            #[cfg(debug_assertions)]
            swapped: std::collections::HashSet::new(),
        };
        fabric.insert(PeerId::SELF, ourselves);
        fabric
    }

    /// This process's identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where it listens for others. If the configuration said port 0, the system has chosen the port.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listens_at
    }

    /// Accepts connections from now on, if [`super::VerbsConfig::closed`] was set. Connections that came earlier have waited.
    pub fn open(&self) {
        self.shared.ask(Command::Open);
    }

    /// Asks for a connection to the member that listens at `at`, whenever it is there: now, later, and again after it has restarted (each life comes
    /// as an `Up` event with a number of its own). Returns at once.
    pub fn connect(&self, node: NodeId, at: SocketAddr) {
        self.shared.ask(Command::Connect(node, at));
    }

    /// Undoes [`VerbsFabric::connect`]. An existing connection is kept; [`Fabric::forget`] ends it.
    pub fn disconnect(&self, node: NodeId) {
        self.shared.ask(Command::Disconnect(node));
    }

    /// The identity of a peer, from its `Up` event until it is forgotten.
    pub fn peer_identity(&self, peer: PeerId) -> Option<Identity> {
        self.entry(peer).filter(|_| peer != PeerId::SELF).map(|entry| entry.peer.identity)
    }

    /// Whether a peer that has not been forgotten is known to be gone.
    pub fn is_gone(&self, peer: PeerId) -> bool {
        self.entry(peer).is_some_and(|entry| entry.peer.gone)
    }

    /// What has happened to connections.
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

    /// A public region of ours, for other threads; `None` if it was never declared.
    pub fn own_region(&self, name: RegionName) -> Option<OwnRegion> {
        find(&self.card.own.public, name).map(OwnRegion::new)
    }

    /// The multicast group that datagrams to all members may go to, if there is one.
    #[cfg(feature = "conformance")]
    pub fn multicast_group(&self) -> Option<std::net::IpAddr> {
        self.mail.group()
    }

    /// Leaves the multicast group without telling anyone, as if the network stopped carrying it.
    #[cfg(feature = "conformance")]
    pub fn leave_multicast_group(&mut self) {
        self.mail.leave_group();
    }

    /// Ends the queue pair for datagrams with an error, as the device does if something is wrong with it.
    #[cfg(feature = "conformance")]
    pub fn fail_mail(&self) {
        self.mail.fail().expect("it can be told to fail");
    }

    /// From now on, gets no completion of the datagrams that it sends, as if the device forgot them, until there is another queue pair for datagrams.
    #[cfg(feature = "conformance")]
    pub fn forget_datagrams(&mut self) {
        self.mail.forget();
    }

    /// From now on, gets no completion of requests to a peer, as if the device forgot them.
    #[cfg(feature = "conformance")]
    pub fn forget_requests(&mut self, to: PeerId) {
        self.deaf_to = Some(to);
    }

    /// What has happened to datagrams.
    pub fn mail_counters(&self) -> MailCounters {
        self.mail.counters
    }

    fn entry(&self, peer: PeerId) -> Option<&Entry> {
        self.entries.get(peer.0 as usize)?.as_deref()
    }

    fn insert(&mut self, id: PeerId, peer: Peer) {
        let at = id.0 as usize;
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, || None);
        }
        let line = Line::new(peer.stage.area.bytes());
        self.entries[at] = Some(Box::new(Entry {
            peer,
            line,
            assembly: Assembly::default(),
            hearing: Hearing::default(),
            active: false,
            notices_due: false,
            silences: Silences::default(),
        }));
    }

    /// Replaces a queue pair for datagrams that has failed. Its number is told during the handshake, so all members have to be connected anew.
    fn renew_mail(&mut self, failure: Failure) {
        let device = &self.card.device;
        tracing::warn!(
            device = device.name,
            "the queue pair for datagrams has failed ({failure}); there will be another, and all members are met anew"
        );
        let renewed = self.mail.renew(device);
        invariant!(renewed.is_ok(), "device {} has no queue pair for datagrams for us any more: {renewed:?}", device.name);
        self.card.mail.store(self.mail.number().into(), Ordering::Relaxed);
        for at in 0..self.members.len() {
            self.give_up(self.members[at], "it knows a queue pair for datagrams that has failed");
        }
    }
}

impl Fabric for VerbsFabric {
    const ZOMBIES_REACHABLE: bool = false;

    #[inline]
    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        self.local(region).map(|(area, _)| area.memory())
    }

    fn pulse(&self, words: &[(RegionName, usize)]) -> Pulse {
        memory::pulse(words, |name| find(&self.card.own.public, name))
    }

    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        #[cfg(debug_assertions)]
        self.check_no_mixing(at, bytes.len());
        let place = self.locate(at, bytes.len(), true);
        self.post(at.peer, place, Work::Write, bytes.len(), bytes, token);
    }

    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        let target = self.local(into.region);
        invariant!(target.is_some(), "no such region of ours: {into:?}");
        let (area, lkey) = target.expect("just checked");
        invariant!(
            into.offset.is_multiple_of(8) && into.offset.checked_add(len).is_some_and(|end| end <= area.bytes()),
            "{len} bytes into {into:?}, a region of {} bytes",
            area.bytes()
        );
        let address = area.memory().as_ptr() as u64 + into.offset as u64;
        let place = self.locate(from, len, false);
        self.post(from.peer, place, Work::Read { address, lkey }, len, &[], token);
    }

    fn read_word(&mut self, from: Remote, token: Token) {
        let place = self.locate(from, 8, false);
        self.post(from.peer, place, Work::ReadWord, 8, &[], token);
    }

    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token) {
        #[cfg(debug_assertions)]
        self.swapped.insert((at.peer, at.region, at.offset));
        let place = self.locate(at, 8, true);
        self.post(at.peer, place, Work::Swap { expected, new }, 8, &[], token);
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        if self.ready.is_empty() {
            self.progress();
            // Orders what completes before whatever the caller does next.
            fence(Ordering::SeqCst);
        }
        self.ready.pop_front()
    }

    fn send(&mut self, to: PeerId, datagram: &[u8]) {
        invariant!(datagram.len() <= MAX_DATAGRAM_BYTES, "datagram of {} bytes, at most {MAX_DATAGRAM_BYTES} are allowed", datagram.len());
        if to == PeerId::SELF {
            return self.mail.send_to_self(datagram);
        }
        let members = self.identity.kind == PeerKind::Member;
        match self.entries.get(to.0 as usize).and_then(Option::as_deref) {
            Some(entry) if members && !entry.peer.gone && entry.peer.identity.kind == PeerKind::Member => {
                self.mail.send(entry, datagram);
            }
            _ => self.mail.counters.dropped += 1,
        }
    }

    fn multicast(&mut self, datagram: &[u8]) {
        invariant!(datagram.len() <= MAX_DATAGRAM_BYTES, "datagram of {} bytes, at most {MAX_DATAGRAM_BYTES} are allowed", datagram.len());
        if self.identity.kind == PeerKind::Member {
            self.mail.multicast(&self.members, &mut self.entries, datagram);
        } else {
            self.mail.counters.dropped += 1;
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId> {
        // Clients neither send nor receive datagrams.
        if self.identity.kind == PeerKind::Member
            && let Some(failure) = self.mail.broken()
        {
            self.renew_mail(failure);
        }
        self.mail.receive(into, &mut self.entries)
    }

    #[inline]
    fn event(&mut self) -> Option<PeerEvent> {
        loop {
            match self.shared.note()? {
                Note::Up(id, peer) => {
                    let (identity, told) = (peer.identity, peer.told_mail);
                    self.insert(id, *peer);
                    if identity.kind == PeerKind::Member {
                        self.members.push(id);
                        if told != self.mail.number() {
                            self.give_up(id, "it has met us with a queue pair for datagrams that has failed since");
                        }
                    }
                    return Some(PeerEvent::Up { peer: id, identity });
                }
                Note::Gone(id) => {
                    // If it has been forgotten meanwhile, the caller does not want to know.
                    if let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) {
                        entry.peer.gone = true;
                        self.end_line(id);
                        return Some(PeerEvent::Gone { peer: id, certain: false });
                    }
                }
                note @ (Note::Doubt(_) | Note::Sure(_)) => {
                    invariant!(false, "the end of a TCP connection is that of the connection: {note:?}");
                }
            }
        }
    }

    fn grant(&mut self, writer: PeerId, name: RegionName) {
        self.grant_lane(writer, name);
    }

    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token) {
        self.revoke_lane(writer, name);
        fence(Ordering::SeqCst);
        self.ready.push_back(Completion { token, result: Ok(0) });
    }

    // Endpoints of this backend are polled; none of them sleeps.
    fn nudge(&mut self, _peer: PeerId) {}

    fn forget(&mut self, peer: PeerId) {
        invariant!(peer != PeerId::SELF, "a process cannot forget itself");
        if self.entry(peer).is_some() {
            self.end_line(peer);
            self.release(peer);
        }
        let kept = self.entries.get_mut(peer.0 as usize).and_then(Option::take);
        self.members.retain(|id| *id != peer);
        self.active.retain(|id| *id != peer);
        #[cfg(debug_assertions)]
        self.swapped.retain(|(id, _, _)| *id != peer);
        self.shared.ask(Command::Forget(peer, kept.map(|entry| Box::new(entry.peer))));
    }
}

impl Drop for VerbsFabric {
    fn drop(&mut self) {
        self.shared.ask(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the bootstrap thread panicked");
        }
    }
}

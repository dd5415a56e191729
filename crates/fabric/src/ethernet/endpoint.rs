//! The endpoint: the contract's operations over the two halves.
//!
//! Operations are gathered as they are posted and are sent when the endpoint is polled, as many in a packet as fit. In each turn the endpoint serves
//! other processes, takes the responses that have arrived, and sends what is due.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::bundle::{Incoming, Outgoing};
use super::doubt::{Doubt, Step};
use super::mail;
use super::packet::{Head, Kind};
use super::peer::{self, Line, Own, Peer, find};
use super::requester::{Requester, Target, Work};
use super::seal::{Rejected, Sealer, body};
use super::serving::{BATCH, EthernetCounters, Taken};
use super::socket_filter;
use crate::contract::{
    Completion, Fabric, Identity, Local, LocalRegion, MAX_DATAGRAM_BYTES, Memory, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region,
    RegionName, Remote, Token,
};
use crate::exchange::BootstrapCounters;
use crate::host::OwnRegion;
use crate::host::memory::{self, Area};
use crate::invariant;
use crate::meeting::log_of;
use crate::meeting::tcp::shared::{Command, Note, Shared};
use crate::primitive::{Ordering, fence, load_words, store_words};
use crate::pulse::Pulse;

/// The most responses taken in one turn.
const RESPONSES: usize = 64;
/// For so many turns after a request, another one is likely.
const LATELY: u32 = 64;
/// The most consecutive turns in which only likely arrivals are looked for.
const LIKELY_TURNS: u32 = 4;
/// An owner that has changed a lane's permission this often gives up the connection to its writer, since no epoch may be used twice.
const MOST_EPOCHS: u32 = 1 << 31;

/// A connected process, and what is under way to it.
#[derive(Debug)]
pub(super) struct Entry {
    peer: Peer,
    gone: bool,
    requester: Requester,
    /// Whether it is in the list of peers to work on.
    active: bool,
    datagrams: u32,
    /// Whether it has ever answered.
    heard: bool,
    /// Present if its TCP connection has ended, so that it is being asked whether it is still there.
    doubt: Option<Doubt>,
}

/// A process's endpoint on the fabric for ordinary hosts. It can be moved to another thread; only one thread uses it at a time.
///
/// Dropping it closes all connections: the peers see `Gone`.
#[derive(Debug)]
pub struct EthernetFabric {
    identity: Identity,
    own: Arc<Own>,
    entries: Vec<Option<Box<Entry>>>,
    members: Vec<PeerId>,
    /// The peer whose responses are marked with each number.
    asking: HashMap<u32, PeerId>,
    active: Vec<PeerId>,
    ready: VecDeque<Completion>,
    line: Arc<Line>,
    /// Both sockets, and the bell.
    sources: OwnedFd,
    began: Instant,
    give_up_us: u64,
    packet: Vec<u8>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Counts of the packets that arrived as responses.
    counters: EthernetCounters,
    /// Whether packets may have been left behind that a look at the sources would not show.
    more: bool,
    /// Whether the previous turn found requests, and responses. Looking for the next packet is worth a system call only while packets follow one
    /// another.
    asked_before: bool,
    answered_before: bool,
    /// For how many more turns requests are likely, and in how many turns all sources are looked at again.
    asked_lately: u32,
    turns_to_look: u32,
    /// The peers for which something has been posted since the last turn.
    posted: Vec<PeerId>,
    /// Whether the previous call returned a completion.
    handed_out: bool,
    shared: Arc<Shared<Peer>>,
    threads: [Option<JoinHandle<()>>; 2],
    listens_at: Option<SocketAddr>,
}

const ANSWERS: u64 = 0;
const ASKS: u64 = 1;
const BELL: u64 = 2;

/// An epoll instance with everything that ends a sleep of the endpoint.
pub(super) fn sources(line: &Line) -> std::io::Result<OwnedFd> {
    let sources = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let of = |n| epoll::EventData::new_u64(n);
    epoll::add(&sources, &line.answers, of(ANSWERS), epoll::EventFlags::IN)?;
    epoll::add(&sources, &line.asks, of(ASKS), epoll::EventFlags::IN)?;
    epoll::add(&sources, &line.bell, of(BELL), epoll::EventFlags::IN)?;
    Ok(sources)
}

impl EthernetFabric {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        identity: Identity,
        own: Arc<Own>,
        line: Arc<Line>,
        sources: OwnedFd,
        give_up: Duration,
        shared: Arc<Shared<Peer>>,
        threads: [JoinHandle<()>; 2],
        listens_at: Option<SocketAddr>,
    ) -> EthernetFabric {
        EthernetFabric {
            identity,
            own,
            // No peer has the number of the process itself.
            entries: vec![None],
            members: Vec::with_capacity(64),
            asking: HashMap::new(),
            active: Vec::with_capacity(64),
            ready: VecDeque::with_capacity(1024),
            line,
            sources,
            began: Instant::now(),
            give_up_us: give_up.as_micros() as u64,
            packet: Vec::with_capacity(2048),
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            counters: EthernetCounters::default(),
            more: false,
            asked_before: false,
            answered_before: false,
            asked_lately: 0,
            turns_to_look: 0,
            posted: Vec::with_capacity(64),
            handed_out: false,
            shared,
            threads: threads.map(Some),
            listens_at,
        }
    }

    /// This process's identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where it listens for others. If the configuration said port 0, the system has chosen the port.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listens_at
    }

    /// Accepts connections from now on, if [`super::EthernetConfig::closed`] was set. Connections that came earlier have waited.
    pub fn open(&self) {
        self.shared.ask(Command::Open);
    }

    /// Asks for a connection to the member that listens at `at`, whenever it is there: now, later, and again after it has restarted (each life comes
    /// as an `Up` event with a number of its own). Returns at once.
    pub fn connect(&self, node: NodeId, at: SocketAddr) {
        self.shared.ask(Command::Connect(node, at));
    }

    /// Undoes [`EthernetFabric::connect`]. An existing connection is kept; [`Fabric::forget`] ends it.
    pub fn disconnect(&self, node: NodeId) {
        self.shared.ask(Command::Disconnect(node));
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

    /// What has become of packets that came in.
    pub fn packet_counters(&self) -> EthernetCounters {
        let served = self.line.guard().counters;
        EthernetCounters {
            taken: served.taken + self.counters.taken,
            foreign: served.foreign + self.counters.foreign,
            unknown: served.unknown + self.counters.unknown,
            repeated: served.repeated + self.counters.repeated,
            forged: served.forged + self.counters.forged,
            malformed: served.malformed + self.counters.malformed,
            dropped: served.dropped,
        }
    }

    /// A public region of ours, for other threads; `None` if it was never declared.
    pub fn own_region(&self, name: RegionName) -> Option<OwnRegion> {
        find(&self.own.public, name).map(OwnRegion::new)
    }

    /// A function that any thread can call to end this endpoint's sleep, or its next one.
    pub fn bell(&self) -> impl Fn() + Send + 'static {
        let bell = self.line.bell.clone();
        move || peer::ring(&bell)
    }

    /// A descriptor that is readable when the endpoint has something to do, so that its thread can sleep on other descriptors as well.
    pub fn sources(&self) -> BorrowedFd<'_> {
        self.sources.as_fd()
    }

    /// The thread is about to sleep where [`EthernetFabric::sources`] end its sleep, so no thread stands in for it. The caller lets a turn follow, as
    /// a last look.
    pub fn fall_asleep(&self) {
        self.line.asleep.store(true, Ordering::Release);
    }

    /// The thread is awake.
    pub fn wake_up(&self) {
        if self.line.asleep.swap(false, Ordering::AcqRel)
            && let Some(thread) = &self.threads[1]
        {
            thread.thread().unpark();
        }
    }

    /// How long the endpoint may be left alone, unless its sources become readable. `None`: without limit.
    pub fn due_in(&self) -> Option<Duration> {
        if self.more {
            return Some(Duration::ZERO);
        }
        let now = self.now();
        let of = |entry: &Entry| [entry.requester.due(), entry.doubt.as_ref().map(Doubt::due)].into_iter().flatten().min();
        let due = self.active.iter().filter_map(|id| of(self.entry(*id)?)).min()?;
        Some(Duration::from_micros(due.saturating_sub(now)))
    }

    /// Sleeps until there may be something to do, but no longer than `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let timeout = self.due_in().map_or(timeout, |due| due.min(timeout));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut found = Vec::with_capacity(4);
        // A signal ends it as well.
        let _ = epoll::wait(&self.sources, rustix::buffer::spare_capacity(&mut found), Some(&timeout));
    }

    /// Sleeps until another process asks for something, but no longer than `timeout`. A client that waits for what nodes write need not be woken by
    /// answers to its own requests: it takes those when it is awake.
    pub fn sleep_until_asked(&self, timeout: Duration) {
        let timeout = self.due_in().map_or(timeout, |due| due.min(timeout));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.line.answers, PollFlags::IN), PollFd::new(&self.line.bell, PollFlags::IN)];
        // A signal ends it as well.
        let _ = poll(&mut fds, Some(&timeout));
    }

    /// The peers that a turn looks at.
    #[cfg(test)]
    pub(super) fn active(&self) -> &[PeerId] {
        &self.active
    }

    /// Turns so far.
    #[cfg(test)]
    pub(super) fn turns(&self) -> u64 {
        self.line.polled.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn entry(&self, peer: PeerId) -> Option<&Entry> {
        self.entries.get(peer.0 as usize)?.as_deref()
    }

    fn entry_mut(&mut self, peer: PeerId) -> Option<&mut Entry> {
        self.entries.get_mut(peer.0 as usize)?.as_deref_mut()
    }

    fn insert(&mut self, id: PeerId, peer: Peer) {
        let at = id.0 as usize;
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, || None);
        }
        self.asking.insert(peer.asking, id);
        socket_filter::admit(&self.line.asks, &[Kind::Response], self.asking.keys().copied());
        let requester = Requester::new(peer.route_bytes);
        let entry = Entry { peer, gone: false, requester, active: false, datagrams: 0, heard: false, doubt: None };
        self.entries[at] = Some(Box::new(entry));
    }

    fn local(&self, region: LocalRegion) -> Option<&Area> {
        match region {
            LocalRegion::Public(name) => find(&self.own.public, name),
            LocalRegion::Lane { writer, name } => find(&self.entry(writer)?.peer.lanes.lanes, name),
        }
    }

    /// Resolves an address of a peer, or says why nothing can be done there.
    fn locate(&self, at: Remote, len: usize, changes: bool) -> Result<Target, OpError> {
        let peer = &self.entry(at.peer).ok_or(OpError::PeerLost)?.peer;
        let (lane, region) = match at.region {
            Region::Public(region) => (false, region),
            Region::Lane(region) => (true, region),
        };
        let regions = if lane { &peer.theirs } else { &peer.public };
        let place = regions.iter().position(|(name, _)| *name == region);
        invariant!(place.is_some(), "the peer offers no such region: {at:?}");
        let place = place.expect("just checked");
        check(at, len, regions[place].1);
        let epoch = if lane { peer.told.of(place) } else { 0 };
        // Even epochs mean revoked.
        if changes && (if lane { epoch.is_multiple_of(2) } else { !peer.writable || peer.owned.contains(&region) }) {
            return Err(OpError::AccessLost);
        }
        Ok(Target { lane, region, offset: at.offset, epoch })
    }

    /// The words of our own memory that an operation on ourselves addresses.
    fn own_words(&self, at: Remote, len: usize) -> &Memory {
        let Region::Public(name) = at.region else { panic!("broken invariant: no lane is kept for oneself: {at:?}") };
        let area = find(&self.own.public, name);
        invariant!(area.is_some(), "no such region of ours: {at:?}");
        let area = area.expect("just checked");
        check(at, len, area.bytes());
        &area.memory()[at.offset / 8..(at.offset + len) / 8]
    }

    fn post(&mut self, at: Remote, work: Work, len: usize, bytes: &[u8], token: Token) {
        let target = self.locate(at, len, matches!(work, Work::Write | Work::Swap { .. }));
        let Some(entry) = self.entry_mut(at.peer) else {
            self.ready.push_back(Completion { token, result: Err(OpError::PeerLost) });
            return;
        };
        entry.requester.post(token, target, work, len, bytes);
        if self.posted.last() != Some(&at.peer) {
            self.posted.push(at.peer);
        }
        self.activate(at.peer);
    }

    fn activate(&mut self, id: PeerId) {
        if let Some(entry) = self.entry_mut(id)
            && !entry.active
        {
            entry.active = true;
            self.active.push(id);
        }
    }

    /// One turn: sends what has been posted, serves others, takes responses, and sends what then has room.
    fn progress(&mut self) {
        // Only this thread stores it, and only the fact that it changes matters.
        self.line.polled.store(self.line.polled.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if !self.posted.is_empty() {
            let now = self.now();
            while let Some(id) = self.posted.pop() {
                self.send_due(id, now);
            }
        }
        let (serve, take) = self.look();
        self.more = false;
        let most = |before: bool, most: usize| if before { most } else { 1 };
        let mut asked = false;
        if serve {
            let most = most(self.asked_before, BATCH);
            // If the other thread has the guard, we look again in the next turn for what it leaves. What is left in the socket also shows in the next
            // turn.
            (asked, self.more) = match self.line.try_guard().map(|mut serving| serving.serve(&self.line, most)) {
                Some(Taken { packets, more }) => (packets > 0, more && most > 1),
                None => (true, true),
            };
        }
        self.asked_before = asked;
        self.asked_lately = if asked { LATELY } else { self.asked_lately.saturating_sub(1) };
        let most = most(std::mem::take(&mut self.answered_before), RESPONSES);
        if !take && self.active.is_empty() {
            return;
        }
        let now = self.now();
        let drained = !take || self.take(now, most);
        let mut at = 0;
        while at < self.active.len() {
            let id = self.active[at];
            self.settle(id, now, drained);
            if self.work_on(id, now) {
                at += 1;
            } else {
                self.active.swap_remove(at);
            }
        }
    }

    /// Whether to look for requests, and for responses. What is likely is looked for at its socket, since the same call also takes it. Every few
    /// turns, the system is asked about all sources at once.
    fn look(&mut self) -> (bool, bool) {
        let (serve, take) = (self.more || self.asked_lately > 0, !self.active.is_empty());
        if self.turns_to_look > 0 && (serve || take) {
            self.turns_to_look -= 1;
            return (serve, take);
        }
        self.turns_to_look = LIKELY_TURNS;
        let mut found: [std::mem::MaybeUninit<epoll::Event>; 3] = [const { std::mem::MaybeUninit::uninit() }; 3];
        let (mut serve, mut take) = (self.more, false);
        if let Ok((events, _)) = epoll::wait(&self.sources, &mut found, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            for event in events {
                match event.data.u64() {
                    ANSWERS => serve = true,
                    ASKS => take = true,
                    _ => {
                        let mut rung = [0; 8];
                        let _ = rustix::io::read(&self.line.bell, &mut rung);
                    }
                }
            }
        }
        (serve, take)
    }

    /// Takes up to `most` responses, and the rest of the last bundle. Returns whether these were all that had arrived, as far as is known.
    fn take(&mut self, now: u64, most: usize) -> bool {
        let mut incoming = std::mem::take(&mut self.incoming);
        let (mut drained, mut taken) = (false, 0);
        while taken < most {
            match incoming.receive(&self.line.asks) {
                Ok(came) => {
                    for packet in incoming.packets(came) {
                        self.take_one(packet, now);
                        taken += 1;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    drained = true;
                    break;
                }
                // Any other error of a socket concerns a single packet.
                Err(_) => taken += 1,
            }
        }
        self.incoming = incoming;
        self.answered_before = taken > 0;
        drained
    }

    fn take_one(&mut self, packet: &mut [u8], now: u64) {
        let Some(head) = Head::decode(packet).filter(|head| head.kind == Kind::Response) else {
            self.counters.foreign += 1;
            return;
        };
        let Some(id) = self.asking.get(&head.flow).copied() else {
            self.counters.unknown += 1;
            return;
        };
        let Some(mut entry) = self.entries[id.0 as usize].take() else { return };
        match entry.peer.opener.open(head, packet) {
            Ok(_) => {
                entry.heard = true;
                if let Some(doubt) = &mut entry.doubt {
                    doubt.heard(now);
                }
                self.counters.taken += 1;
                let told = &entry.peer.told;
                let land = |landed: super::requester::Landed<'_>| {
                    // A lane that has been forgotten meanwhile has no memory and no reader.
                    let own = match landed.into.region {
                        LocalRegion::Lane { writer, name } if writer == id => find(&entry.peer.lanes.lanes, name),
                        region => self.local(region),
                    };
                    if let Some(area) = own {
                        fence(Ordering::Release);
                        store_words(&area.memory()[landed.into.offset / 8..], landed.bytes);
                    }
                };
                if entry.requester.take(body(packet), now, |grants| told.note(grants), land).is_err() {
                    self.counters.malformed += 1;
                }
            }
            Err(Rejected::Repeated) => self.counters.repeated += 1,
            Err(Rejected::Forged) => self.counters.forged += 1,
        }
        self.entries[id.0 as usize] = Some(entry);
    }

    /// Asks a peer whose TCP connection has ended whether it is still there, and gives it up if it does not answer. `drained` says that no answer is
    /// left to be taken.
    fn settle(&mut self, id: PeerId, now: u64, drained: bool) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        let Entry { peer, requester, doubt: Some(doubt), .. } = entry else { return };
        match doubt.step(now, drained) {
            Step::Nothing => {}
            Step::Ask => {
                Sealer::begin(&mut self.packet);
                requester.ask(peer.epochs.iter(), &mut self.packet);
                peer.sealer.seal(Kind::Request, &mut self.packet);
                self.line.send(&self.line.asks, &self.packet, peer.answers_at);
            }
            Step::Gone => {
                entry.doubt = None;
                self.give_up(id, "its TCP connection has ended, and it does not answer");
            }
        }
    }

    /// Sends what is due to a peer and moves what is done to the completions. Returns whether there is more to do.
    fn work_on(&mut self, id: PeerId, now: u64) -> bool {
        let give_up_us = self.give_up_us;
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return false };
        let Entry { peer, requester, .. } = entry;
        let silence = requester.tick(now);
        if silence > give_up_us {
            let (lasted, at) = (silence / 1000, peer.answers_at);
            let why = match entry.heard {
                true => format!("it has not answered for {lasted} ms"),
                false => format!(
                    "nothing sent to it at {at} by UDP has been answered for {lasted} ms, while TCP gets through: a firewall may be in the way"
                ),
            };
            self.give_up(id, &why);
        } else {
            self.send_due(id, now);
        }
        self.release(id);
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return false };
        entry.active = !entry.requester.is_empty() || entry.doubt.is_some();
        entry.active
    }

    /// Sends what is due to a peer.
    fn send_due(&mut self, id: PeerId, now: u64) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        let Entry { peer: Peer { sealer, epochs, answers_at, .. }, requester, .. } = entry;
        let (line, outgoing) = (&self.line, &mut self.outgoing);
        let send = |packets: &[u8], size: usize| line.send_all(&line.asks, packets, size, *answers_at);
        requester.send(now, epochs.iter(), &mut self.packet, Sealer::begin, |packet| {
            sealer.seal(Kind::Request, packet);
            outgoing.push(packet, send);
        });
        outgoing.flush(send);
    }

    /// Moves what is done, in order, to the completions.
    fn release(&mut self, id: PeerId) {
        if let Some(entry) = self.entries[id.0 as usize].as_deref_mut() {
            while let Some(completion) = entry.requester.pop() {
                self.ready.push_back(completion);
            }
        }
    }

    /// Nothing more can be done with a peer: ends its operations and its connection.
    fn give_up(&mut self, id: PeerId, why: &str) {
        let Some(entry) = self.entry_mut(id) else { return };
        if entry.requester.is_broken() {
            return;
        }
        log_of!(warn, entry.peer.identity, id, "the connection with {} is given up: {}", why);
        entry.requester.give_up();
        self.activate(id);
        self.shared.ask(Command::Cut(id));
    }

    /// Revokes the permission on one of our lanes, or grants it again.
    fn change(&mut self, writer: PeerId, name: RegionName, granted: bool) {
        // A writer that has been forgotten has no lane, so nothing that it writes is read.
        let Some(entry) = self.entry(writer) else { return };
        let lane = entry.peer.lanes.lanes.iter().position(|(of, _)| *of == name);
        invariant!(lane.is_some(), "we keep no lane {} for {writer:?}", name.0);
        let lane = lane.expect("just checked");
        let mut serving = self.line.guard();
        // If the connection is lost, the peer can no longer write anything.
        if let Some(responder) = serving.responder(entry.peer.asked, writer) {
            let epoch = responder.change(lane, granted);
            entry.peer.epochs.set(lane, epoch);
            drop(serving);
            if epoch > MOST_EPOCHS {
                self.give_up(writer, "the permission on one of its lanes has been changed too often");
            }
        }
    }

    fn send_parts(&mut self, to: PeerId, datagram: &[u8]) {
        let Some(entry) = self.entries[to.0 as usize].as_deref_mut() else { return };
        entry.datagrams = entry.datagrams.wrapping_add(1);
        let (packet, line, peer) = (&mut self.packet, &self.line, &mut entry.peer);
        mail::parts(entry.datagrams, datagram, |head, bytes| {
            Sealer::begin(packet);
            packet.extend_from_slice(&head);
            packet.extend_from_slice(bytes);
            peer.sealer.seal(Kind::Datagram, packet);
            line.send(&line.asks, packet, peer.answers_at);
        });
    }
}

fn check(at: Remote, len: usize, bytes: usize) {
    invariant!(
        at.offset.is_multiple_of(8) && len.is_multiple_of(8) && at.offset.checked_add(len).is_some_and(|end| end <= bytes),
        "{len} bytes at {at:?}, a region of {bytes} bytes"
    );
}

impl Fabric for EthernetFabric {
    const ZOMBIES_REACHABLE: bool = false;

    #[inline]
    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        self.local(region).map(Area::memory)
    }

    fn pulse(&self, words: &[(RegionName, usize)]) -> Pulse {
        memory::pulse(words, |name| find(&self.own.public, name))
    }

    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        if at.peer == PeerId::SELF {
            fence(Ordering::Release);
            store_words(self.own_words(at, bytes.len()), bytes);
            self.ready.push_back(Completion { token, result: Ok(0) });
            return;
        }
        self.post(at, Work::Write, bytes.len(), bytes, token);
    }

    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        let target = self.local(into.region);
        invariant!(target.is_some(), "no such region of ours: {into:?}");
        let target = target.expect("just checked");
        invariant!(
            into.offset.is_multiple_of(8) && into.offset.checked_add(len).is_some_and(|end| end <= target.bytes()),
            "{len} bytes into {into:?}, a region of {} bytes",
            target.bytes()
        );
        if from.peer == PeerId::SELF {
            let mut bytes = vec![0; len];
            load_words(self.own_words(from, len), &mut bytes);
            fence(Ordering::SeqCst);
            store_words(&target.memory()[into.offset / 8..], &bytes);
            self.ready.push_back(Completion { token, result: Ok(0) });
            return;
        }
        self.post(from, Work::Read(into), len, &[], token);
    }

    fn read_word(&mut self, from: Remote, token: Token) {
        if from.peer == PeerId::SELF {
            let word = self.own_words(from, 8)[0].load(Ordering::SeqCst);
            self.ready.push_back(Completion { token, result: Ok(word) });
            return;
        }
        self.post(from, Work::ReadWord, 8, &[], token);
    }

    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token) {
        if at.peer == PeerId::SELF {
            let word = &self.own_words(at, 8)[0];
            let found = word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found);
            self.ready.push_back(Completion { token, result: Ok(found) });
            return;
        }
        self.post(at, Work::Swap { expected, new }, 8, &[], token);
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        // A caller that polls until there is nothing left thus acts on what one turn has brought before there is another turn.
        let was_last = std::mem::take(&mut self.handed_out) && self.posted.is_empty();
        if self.ready.is_empty() && !was_last {
            self.progress();
        }
        // Orders what completes before whatever the caller does next.
        fence(Ordering::SeqCst);
        let completion = self.ready.pop_front();
        self.handed_out = completion.is_some();
        completion
    }

    fn send(&mut self, to: PeerId, datagram: &[u8]) {
        invariant!(datagram.len() <= MAX_DATAGRAM_BYTES, "datagram of {} bytes, at most {MAX_DATAGRAM_BYTES} are allowed", datagram.len());
        if to == PeerId::SELF {
            return self.line.guard().deliver(to, datagram.to_vec());
        }
        // Clients neither send nor receive datagrams.
        let is_member = |entry: &Entry| !entry.gone && entry.peer.identity.kind == PeerKind::Member;
        if self.identity.kind == PeerKind::Member && self.entry(to).is_some_and(is_member) {
            self.send_parts(to, datagram);
        }
    }

    fn multicast(&mut self, datagram: &[u8]) {
        for at in 0..self.members.len() {
            self.send(self.members[at], datagram);
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId> {
        loop {
            let (from, datagram) = self.line.guard().collect()?;
            // A datagram from a process whose connection the caller has not been told of yet is treated as lost.
            if from == PeerId::SELF || self.entry(from).is_some() {
                into.clear();
                into.extend_from_slice(&datagram);
                return Some(from);
            }
        }
    }

    #[inline]
    fn event(&mut self) -> Option<PeerEvent> {
        loop {
            match self.shared.note()? {
                Note::Up(id, peer) => {
                    let identity = peer.identity;
                    self.insert(id, *peer);
                    if identity.kind == PeerKind::Member {
                        self.members.push(id);
                    }
                    return Some(PeerEvent::Up { peer: id, identity });
                }
                Note::Gone(id) => {
                    // If it has been forgotten meanwhile, the caller does not want to know.
                    if let Some(entry) = self.entry_mut(id) {
                        entry.gone = true;
                        entry.doubt = None;
                        entry.requester.give_up();
                        self.activate(id);
                        return Some(PeerEvent::Gone { peer: id, certain: false });
                    }
                }
                Note::Doubt(id) => {
                    if let Some(entry) = self.entry_mut(id) {
                        entry.doubt = Some(Doubt::new());
                        self.activate(id);
                    }
                }
                Note::Sure(id) => {
                    if let Some(entry) = self.entry_mut(id) {
                        entry.doubt = None;
                    }
                }
            }
        }
    }

    fn grant(&mut self, writer: PeerId, name: RegionName) {
        self.change(writer, name, true);
    }

    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token) {
        self.change(writer, name, false);
        fence(Ordering::SeqCst);
        self.ready.push_back(Completion { token, result: Ok(0) });
    }

    // A packet wakes a sleeping peer by itself.
    fn nudge(&mut self, _peer: PeerId) {}

    fn forget(&mut self, peer: PeerId) {
        invariant!(peer != PeerId::SELF, "a process cannot forget itself");
        self.line.guard().remove(peer);
        if let Some(entry) = self.entry_mut(peer) {
            let asking = entry.peer.asking;
            entry.requester.give_up();
            self.release(peer);
            // A later connection to the process may use the same number.
            if self.asking.get(&asking) == Some(&peer) {
                self.asking.remove(&asking);
            }
        }
        if let Some(entry) = self.entries.get_mut(peer.0 as usize) {
            *entry = None;
        }
        self.members.retain(|id| *id != peer);
        self.active.retain(|id| *id != peer);
        self.shared.ask(Command::Forget(peer, None));
    }
}

impl Drop for EthernetFabric {
    fn drop(&mut self) {
        self.shared.ask(Command::Stop);
        let stop: &AtomicBool = &self.line.stop;
        stop.store(true, Ordering::Release);
        for thread in self.threads.iter_mut().filter_map(Option::take) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread of the endpoint panicked");
            }
        }
    }
}

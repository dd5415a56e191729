//! What two processes keep for each other.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::EventfdFlags;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::bundle;
use super::mail::Assembly;
use super::offer::{Offer, secrets, share_of};
use super::packet::{Grants, MAX_PACKET};
use super::responder::{Regions, Responder};
use super::seal::{Opener, Sealer};
use super::serving::{Served, Serving};
use crate::contract::{Identity, Memory, PeerId, PeerKind, RegionName, RegionSpec};
use crate::host::memory::{self, Access, Area, Map, page};
use crate::host::plan::{LanesPlan, PublicPlan};
use crate::meeting::regions::lanes_for;
use crate::meeting::tcp::{self, Introduction};
use crate::meeting::wire::Said;
use crate::meeting::{Refusal, random};

/// A named stretch of memory.
pub(super) type Named = (RegionName, Area);

/// Regions are few: searching the list beats any table.
pub(super) fn find(regions: &[Named], name: RegionName) -> Option<&Area> {
    regions.iter().find(|(n, _)| *n == name).map(|(_, area)| area)
}

fn map(bytes: usize) -> io::Result<Arc<Map>> {
    let bytes = bytes.max(1).next_multiple_of(page());
    let fd = memory::create("martlet-ethernet", bytes)?;
    Map::new(&fd, 0, bytes, Access::ReadWrite, false)
}

/// The memory of this process that all its peers share.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) spec: RegionSpec,
    pub(super) public: Box<[Named]>,
}

impl Own {
    pub(super) fn create(spec: RegionSpec) -> io::Result<Own> {
        let plan = PublicPlan::new(&spec);
        let map = map(plan.bytes)?;
        let public = spec.public.iter().zip(&plan.offsets).map(|((name, len), at)| (*name, Area::new(&map, *at, *len))).collect();
        Ok(Own { spec, public })
    }
}

/// The lanes that we keep for one peer, and the other memory that it acts on.
#[derive(Debug)]
pub(super) struct Lanes {
    own: Arc<Own>,
    pub(super) lanes: Box<[Named]>,
    /// Whether the peer may change public regions.
    is_member: bool,
}

impl Regions for Lanes {
    fn public(&self, name: RegionName) -> Option<&Memory> {
        find(&self.own.public, name).map(Area::memory)
    }

    fn lane(&self, name: RegionName) -> Option<(usize, &Memory)> {
        let at = self.lanes.iter().position(|(of, _)| *of == name)?;
        Some((at, self.lanes[at].1.memory()))
    }

    fn may_change_public(&self, name: RegionName) -> bool {
        self.is_member && !self.own.spec.is_owned(name)
    }
}

/// The epochs of the lanes that one process keeps for another, by the lanes' places, as far as this process knows them.
#[derive(Debug)]
pub(super) struct Epochs(Box<[AtomicU32]>);

impl Epochs {
    fn new(lanes: usize) -> Epochs {
        Epochs((0..lanes).map(|_| AtomicU32::new(1)).collect())
    }

    /// Stores the epochs that a packet carries, before anything of the packet takes effect: a process that has seen what was written after a change
    /// then also sees the change.
    pub(super) fn note(&self, grants: Grants<'_>) {
        for (lane, epoch) in grants.iter() {
            if let Some(known) = self.0.get(lane) {
                known.fetch_max(epoch, Ordering::Release);
            }
        }
    }

    pub(super) fn of(&self, lane: usize) -> u32 {
        self.0[lane].load(Ordering::Acquire)
    }

    pub(super) fn set(&self, lane: usize, epoch: u32) {
        self.0[lane].store(epoch, Ordering::Release);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.0.iter().map(|epoch| epoch.load(Ordering::Acquire))
    }
}

/// What the threads of an endpoint share: its sockets, and the guarded half.
#[derive(Debug)]
pub(super) struct Line {
    /// Takes the requests of others.
    pub(super) answers: UdpSocket,
    /// Sends our requests.
    pub(super) asks: UdpSocket,
    pub(super) serving: Mutex<Serving>,
    /// Changes with each turn of the endpoint's thread.
    pub(super) polled: AtomicU64,
    /// Whether that thread sleeps in such a way that packets wake it.
    pub(super) asleep: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Whether packets go out in bundles. They do until the system refuses one.
    pub(super) bundles: AtomicBool,
    /// Ends a sleep. Other threads that ring it may hold it for longer than the line exists.
    pub(super) bell: Arc<rustix::fd::OwnedFd>,
    /// What every packet goes through in tests.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) wire: Option<Mutex<super::mangled::Wire>>,
}

/// Ends the current or the next sleep of the endpoint's thread to which this bell belongs.
pub(super) fn ring(bell: &rustix::fd::OwnedFd) {
    // This fails only if the bell has been rung often, and once is enough.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Whether the system fragments packets and heeds what it learns of the path's MTU, for each kind of address.
#[derive(Clone, Copy, Debug)]
enum Cutting {
    V4(Ipv4PathMtuDiscovery),
    V6(Ipv6PathMtuDiscovery),
}

impl Cutting {
    /// The setting for packets to that address; `None` if the system does not say.
    fn of(socket: &UdpSocket, to: SocketAddr) -> Option<Cutting> {
        // Here, an IPv4 address that is written as an IPv6 address counts as IPv4.
        match to {
            SocketAddr::V6(to) if to.ip().to_ipv4_mapped().is_none() => sockopt::ipv6_mtu_discover(socket).ok().map(Cutting::V6),
            _ => sockopt::ip_mtu_discover(socket).ok().map(Cutting::V4),
        }
    }

    /// The setting by which packets go out unfragmented, up to what the device takes.
    fn never(self) -> Cutting {
        match self {
            Cutting::V4(_) => Cutting::V4(Ipv4PathMtuDiscovery::PROBE),
            Cutting::V6(_) => Cutting::V6(Ipv6PathMtuDiscovery::PROBE),
        }
    }

    /// A system that does not support this setting fragments the packets or does not send them. They are then lost.
    fn set(self, socket: &UdpSocket) {
        let _ = match self {
            Cutting::V4(how) => sockopt::set_ip_mtu_discover(socket, how),
            Cutting::V6(how) => sockopt::set_ipv6_mtu_discover(socket, how),
        };
    }
}

/// Bytes of the headers of IPv6 and UDP; those of IPv4 are shorter.
const HEADS: usize = 48;
/// The least room for packets that have arrived but not been taken, and for outgoing ones. The system counts some 2 KiB for each packet.
const SOCKET_BYTES: usize = 4 << 20;

impl Line {
    /// Opens sockets at the listener's address, or at any address if there is no listener.
    pub(super) fn open(at: Option<SocketAddr>, fixed_port: bool) -> io::Result<Line> {
        let bind = |port: u16| match at {
            Some(at) => UdpSocket::bind((at.ip(), port)),
            // A host without IPv6 has IPv4.
            None => UdpSocket::bind(("::", port)).or_else(|_| UdpSocket::bind(("0.0.0.0", port))),
        };
        let answers = bind(at.filter(|_| fixed_port).map_or(0, |at| at.port()))?;
        let asks = bind(0)?;
        for socket in [&answers, &asks] {
            socket.set_nonblocking(true)?;
            // If more room is not allowed, fewer packets fit, and more are lost.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BYTES)
                .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(socket, SOCKET_BYTES));
            let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BYTES)
                .or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET_BYTES));
            // A system without bundles hands packets over one by one.
            let _ = bundle::take_bundles(socket);
        }
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Line {
            answers,
            asks,
            serving: Mutex::default(),
            polled: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            bundles: AtomicBool::new(true),
            bell: Arc::new(bell),
            #[cfg(any(test, feature = "conformance"))]
            wire: None,
        })
    }

    /// The guarded half. Hold it for a moment only.
    pub(super) fn guard(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guarded half, unless the other thread holds it; that thread then does what we would do.
    pub(super) fn try_guard(&self) -> Option<MutexGuard<'_, Serving>> {
        match self.serving.try_lock() {
            Ok(serving) => Some(serving),
            Err(TryLockError::Poisoned(serving)) => Some(serving.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends a packet. One that cannot be sent (a full buffer, a firewall, an unreachable network) counts as lost.
    pub(super) fn send(&self, socket: &UdpSocket, packet: &[u8], to: SocketAddr) {
        self.send_all(socket, packet, packet.len(), to);
    }

    /// Sends packets of `size` bytes each, of which the last may be shorter, like [`Line::send`].
    pub(super) fn send_all(&self, socket: &UdpSocket, packets: &[u8], size: usize, to: SocketAddr) {
        #[cfg(any(test, feature = "conformance"))]
        if let Some(wire) = &self.wire {
            let mut wire = wire.lock().unwrap_or_else(PoisonError::into_inner);
            let mut mangled = bundle::Outgoing::default();
            for packet in packets.chunks(size) {
                wire.send(packet, to, |packet, at| match at == to {
                    true => mangled.push(packet, |packets, size| self.hand_over(socket, packets, size, to)),
                    false => self.hand_over(socket, packet, packet.len(), at),
                });
            }
            return mangled.flush(|packets, size| self.hand_over(socket, packets, size, to));
        }
        self.hand_over(socket, packets, size, to);
    }

    fn hand_over(&self, socket: &UdpSocket, packets: &[u8], size: usize, to: SocketAddr) {
        if size <= MAX_PACKET {
            return self.hand_over_in_bundles(socket, packets, size, to);
        }
        // A large packet goes in one piece or not at all, whatever the system has learned of the path. Reports of what a path carries are not to be
        // trusted, and if one fragment is lost, all are. Smaller packets are fragmented if the path does not carry even those, where the system is
        // set up that way.
        let Some(before) = Cutting::of(socket, to) else { return };
        before.never().set(socket);
        self.hand_over_in_bundles(socket, packets, size, to);
        before.set(socket);
    }

    fn hand_over_in_bundles(&self, socket: &UdpSocket, packets: &[u8], size: usize, to: SocketAddr) {
        if packets.len() > size && self.bundles.load(Ordering::Relaxed) {
            let refused = [libc::EIO, libc::EINVAL, libc::EMSGSIZE, libc::EOPNOTSUPP];
            match bundle::send(socket, packets, size, to) {
                // The device no longer takes packets of that size. This says nothing about bundles.
                Err(_) if size > MAX_PACKET => return,
                // The device or the path takes no bundles. Any other error means that these packets are lost.
                Err(error) if error.raw_os_error().is_some_and(|error| refused.contains(&error)) => {
                    tracing::debug!("packets go out one by one: {error}");
                    self.bundles.store(false, Ordering::Relaxed);
                }
                _ => return,
            }
        }
        for packet in packets.chunks(size) {
            let _ = socket.send_to(packet, to);
        }
    }

    /// Ends the current or the next sleep of the endpoint's thread.
    pub(super) fn ring(&self) {
        ring(&self.bell);
    }

    /// Bytes of the longest packet that the system sends to that address in one piece, as far as the system knows.
    fn route_bytes(&self, to: SocketAddr) -> usize {
        let of = || -> io::Result<usize> {
            // The system tells this only for a connected socket.
            let at = SocketAddr::new(self.asks.local_addr()?.ip(), 0);
            let socket = UdpSocket::bind(at)?;
            socket.connect(to)?;
            let mtu = if to.is_ipv6() { sockopt::ipv6_mtu(&socket) } else { sockopt::ip_mtu(&socket) }?;
            Ok((mtu as usize).saturating_sub(HEADS))
        };
        // If the system does not say, assume the smallest.
        of().unwrap_or(MAX_PACKET)
    }

    /// An address in the form that our sockets accept.
    fn reach(&self, at: SocketAddr) -> SocketAddr {
        let ours_is_v6 = self.asks.local_addr().is_ok_and(|at| at.is_ipv6());
        let ip = match at.ip() {
            IpAddr::V4(ip) if ours_is_v6 => IpAddr::V6(ip.to_ipv6_mapped()),
            IpAddr::V6(ip) if !ours_is_v6 => IpAddr::V6(ip).to_canonical(),
            ip => ip,
        };
        SocketAddr::new(ip, at.port())
    }
}

/// A connected process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) identity: Identity,
    /// The public regions of its memory.
    pub(super) public: Box<[(RegionName, usize)]>,
    /// Those regions that only the peer itself writes.
    pub(super) owned: Box<[RegionName]>,
    pub(super) theirs: Box<[(RegionName, usize)]>,
    /// Whether we may change its public regions. A client may not.
    pub(super) writable: bool,
    /// The epochs that it has told us for the lanes that it keeps for us.
    pub(super) told: Arc<Epochs>,
    /// Our lanes for it.
    pub(super) lanes: Arc<Lanes>,
    pub(super) epochs: Epochs,
    /// The numbers with which its requests, and responses to ours, are marked.
    pub(super) asked: u32,
    pub(super) asking: u32,
    /// The corresponding numbers of the peer.
    numbers: Numbers,
    /// The connection that both ends already hold, if this handshake only gives it another socket.
    resumes: Option<PeerId>,
    pub(super) answers_at: SocketAddr,
    /// Bytes of the longest packet that the system sends there in one piece.
    pub(super) route_bytes: usize,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// Present until both have agreed.
    served: Option<Box<Served>>,
}

/// The numbers with which requests to a process, and responses to its own requests, are marked. They are random, so they identify one end of a
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    asked: u32,
    asking: u32,
}

/// An existing connection.
#[derive(Clone, Copy, Debug)]
struct Standing {
    peer: PeerId,
    identity: Identity,
    ours: Numbers,
    theirs: Numbers,
}

/// What is kept for a peer that has not yet said how it is reached.
pub(super) struct Kept {
    private: [u8; 32],
    numbers: Numbers,
    /// The existing connection to which these numbers belong, unless they are new.
    standing: Option<Standing>,
    lanes: Arc<Lanes>,
}

/// What this fabric adds to a handshake.
///
/// An end that already holds a connection to the process that it meets offers the numbers of that connection. If both ends do so, both know that both
/// hold the connection, and only the socket is new. If one end does not, the other one sees this, and gives its connection up for the new one.
pub(super) struct Carrier {
    own: Arc<Own>,
    line: Arc<Line>,
    standing: RefCell<Vec<Standing>>,
}

impl Carrier {
    pub(super) fn new(own: Arc<Own>, line: Arc<Line>) -> Carrier {
        Carrier { own, line, standing: RefCell::default() }
    }
}

impl tcp::Carrier for Carrier {
    type Kept = Kept;
    type Peer = Peer;

    const ASKS: bool = true;

    fn keep(&self, _: PeerKind, theirs: Identity, _: &RegionSpec) -> Result<Kept, Refusal> {
        let ours = lanes_for(&self.own.spec, theirs.kind);
        let plan = LanesPlan::new(ours, None);
        let map = map(plan.body).map_err(|e| format!("no memory for it ({e})"))?;
        let lanes = ours.iter().zip(&plan.offsets).map(|((name, len), at)| (*name, Area::new(&map, *at, *len))).collect();
        let standing = self.standing.borrow().iter().rfind(|standing| standing.identity == theirs).copied();
        let numbers = match standing {
            Some(standing) => standing.ours,
            None => Numbers { asked: u32::from_le_bytes(random()?), asking: u32::from_le_bytes(random()?) },
        };
        let lanes = Arc::new(Lanes { own: self.own.clone(), lanes, is_member: theirs.kind == PeerKind::Member });
        Ok(Kept { private: random()?, numbers, standing, lanes })
    }

    fn offer(&self, kept: &Kept, _: PeerKind, _: PeerId) -> Vec<u8> {
        let port = |socket: &UdpSocket| socket.local_addr().map_or(0, |at| at.port());
        let ip = self.line.answers.local_addr().ok().map(|at| at.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        let (answers_at, asks_at) = (port(&self.line.answers), port(&self.line.asks));
        let Numbers { asked, asking } = kept.numbers;
        Offer { ip, answers_at, asks_at, asked, asking, share: share_of(kept.private) }.encode()
    }

    fn connect(&self, kept: Kept, introduction: Introduction<'_>) -> Result<Peer, Refusal> {
        let Introduction { party, meeting, identity, spec, offer: said, ours, from } = introduction;
        let offer = Offer::decode(said)?;
        let dialled = meeting.target.is_some();
        let offers = if dialled { [ours, said] } else { [said, ours] }.concat();
        let said = meeting.said(&offers);
        let Said { dialer, acceptor, body } = said;
        let secrets = secrets(&party.key, Said { dialer, acceptor, body }, kept.private, offer.share)?;
        // The dialer's secrets come first.
        let (us, them) = if dialled { (0, 1) } else { (1, 0) };
        let [requests, responses] = [secrets.requests, secrets.responses];
        let theirs = Numbers { asked: offer.asked, asking: offer.asking };
        let their_lanes: Box<[_]> = lanes_for(spec, party.identity.kind).into();
        let told = Arc::new(Epochs::new(their_lanes.len()));
        let served = Served {
            opener: Opener::new(requests[them].clone()),
            sealer: Sealer::new(responses[them].clone(), offer.asking),
            responder: Responder::new(kept.lanes.lanes.len()),
            lanes: kept.lanes.clone(),
            told: told.clone(),
            asks_at: self.line.reach(offer.asks_at(from)),
            assembly: Assembly::default(),
            is_member: identity.kind == PeerKind::Member && party.identity.kind == PeerKind::Member,
        };
        let answers_at = self.line.reach(offer.answers_at(from));
        Ok(Peer {
            identity,
            public: spec.public.clone().into(),
            owned: spec.owned.clone().into(),
            theirs: their_lanes,
            writable: party.identity.kind == PeerKind::Member,
            told,
            epochs: Epochs::new(kept.lanes.lanes.len()),
            lanes: kept.lanes,
            asked: kept.numbers.asked,
            asking: kept.numbers.asking,
            numbers: theirs,
            resumes: kept.standing.filter(|standing| standing.theirs == theirs).map(|standing| standing.peer),
            answers_at,
            route_bytes: self.line.route_bytes(answers_at),
            sealer: Sealer::new(requests[us].clone(), offer.asked),
            opener: Opener::new(responses[us].clone()),
            served: Some(Box::new(served)),
        })
    }

    fn resumes(peer: &Peer) -> Option<PeerId> {
        peer.resumes
    }

    fn connected(&self, peer: PeerId, made: &mut Peer) {
        let served = made.served.take().expect("two agree once");
        let ours = Numbers { asked: made.asked, asking: made.asking };
        self.standing.borrow_mut().push(Standing { peer, identity: made.identity, ours, theirs: made.numbers });
        self.line.guard().add(&self.line, made.asked, peer, served);
    }

    fn lost(&self, peer: PeerId) {
        self.standing.borrow_mut().retain(|standing| standing.peer != peer);
        self.line.guard().remove(peer);
    }

    fn ring(&self) {
        self.line.ring();
    }
}

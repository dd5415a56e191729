//! What two processes keep for each other on their cards: what we keep for all peers, what we keep for one peer, and a connected peer's side.

use std::io;
use std::sync::Arc;

use super::device::Device;
use super::ffi::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use super::grant::Grant;
use super::mail::Keys;
use super::mailbox::QUEUE_KEY;
use super::memory::{Block, Plane, Registered};
use super::offer::{Key, Offer};
use super::queue::{Address, CompletionQueue, Destination, Patience, QueuePair, Shape, Transport};
use crate::contract::{Identity, PeerKind, RegionName, RegionSpec};
use crate::host::memory::Area;
use crate::host::plan::{LanesPlan, PublicPlan};
use crate::meeting::regions::lanes_for;
use crate::primitive::{AtomicU64, Ordering};

/// Requests that may be under way on one queue pair of a member, and of a client.
const MEMBER_REQUESTS: u32 = 64;
const CLIENT_REQUESTS: u32 = 16;
/// Room on the background queue pair for what the endpoint asks in addition to the caller's requests: notices and looks at grants.
const OWN_REQUESTS: u32 = 64;
/// Bytes set aside for requests under way to a member, and to a client. Longer requests get memory of their own.
const MEMBER_STAGE: usize = 256 * 1024;
const CLIENT_STAGE: usize = 32 * 1024;
/// How many bytes we ask a queue pair to carry in the request itself.
const INLINE: u32 = 220;

/// What the writer of a lane may do on the lane's queue pair.
pub(super) const LANE_RIGHTS: i32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC;

/// A named stretch of memory.
pub(super) type Named = (RegionName, Area);

/// Regions are few: searching the list beats any table.
pub(super) fn find(regions: &[Named], name: RegionName) -> Option<&Area> {
    regions.iter().find(|(n, _)| *n == name).map(|(_, area)| area)
}

/// The memory of this process that all its peers share.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) spec: RegionSpec,
    pub(super) public: Box<[Named]>,
    for_members: Registered,
    for_clients: Registered,
}

impl Own {
    pub(super) fn create(device: &Arc<Device>, spec: RegionSpec, huge_pages: bool) -> io::Result<Own> {
        let plan = PublicPlan::new(&spec);
        let block = Block::of_regions(plan.bytes, huge_pages)?;
        let rights = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ;
        let all = rights | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC;
        let for_members = Registered::new(device, Plane::Background, &block, all)?;
        let for_clients = Registered::new(device, Plane::Background, &block, rights)?;
        let public = spec.public.iter().zip(&plan.offsets).map(|((name, len), at)| (*name, block.area(*at, *len))).collect();
        Ok(Own { spec, public, for_members, for_clients })
    }

    /// The registration that a peer of this kind gets.
    fn key(&self, kind: PeerKind) -> Key {
        match kind {
            PeerKind::Member => Key::of(&self.for_members),
            PeerKind::Client => Key::of(&self.for_clients),
        }
    }

    /// The local key under which reads may land in public memory.
    pub(super) fn landing_key(&self) -> u32 {
        self.for_members.lkey
    }
}

/// What all connections of an endpoint are made from.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) device: Arc<Device>,
    pub(super) own: Own,
    pub(super) background: Arc<CompletionQueue>,
    pub(super) replication: Arc<CompletionQueue>,
    pub(super) patience: Patience,
    /// Whether regions are in huge pages.
    pub(super) huge_pages: bool,
    /// The number of our queue pair for datagrams. The endpoint changes it when it has to make a new one. A handshake under way may have told the
    /// peer the old number; the endpoint notices when it is told of the peer, so no memory order is needed here.
    pub(super) mail: AtomicU64,
}

impl Card {
    fn mail(&self) -> u32 {
        self.mail.load(Ordering::Relaxed) as u32
    }
}

/// Memory for requests under way to one peer: a ring, registered in both domains.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) area: Area,
    pub(super) background: Registered,
    pub(super) replication: Registered,
}

impl Stage {
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> io::Result<Stage> {
        let block = Block::new(bytes)?;
        Ok(Stage {
            area: block.area(0, bytes),
            background: Registered::new(device, Plane::Background, &block, ACCESS_LOCAL_WRITE)?,
            replication: Registered::new(device, Plane::Replication, &block, ACCESS_LOCAL_WRITE)?,
        })
    }
}

/// Memory and queue pairs for one peer, before the peer has said where its own are.
#[derive(Debug)]
pub(super) struct Kept {
    background: QueuePair,
    /// For the lanes that the peer keeps for us.
    writers: Vec<QueuePair>,
    /// For the lanes that we keep for it.
    answerers: Vec<QueuePair>,
    lanes: Box<[Named]>,
    lanes_written: Registered,
    lanes_read: Registered,
    /// The grant words of our lanes, which the peer reads.
    grants: (Area, Registered),
    /// Where the peer tells us that its grant words have changed.
    notices: (Area, Registered),
    stage: Stage,
    requests: u32,
    /// The queue pair for datagrams whose number the peer is told.
    mail: u32,
}

impl Kept {
    /// Creates what an owner keeps for a peer of kind `peer` whose regions are `theirs`.
    pub(super) fn create(card: &Card, own_kind: PeerKind, peer: PeerKind, theirs: &RegionSpec) -> io::Result<Kept> {
        let device = &card.device;
        let (requests, stage) = match (own_kind, peer) {
            (PeerKind::Member, PeerKind::Member) => (MEMBER_REQUESTS, MEMBER_STAGE),
            _ => (CLIENT_REQUESTS, CLIENT_STAGE),
        };
        let asking = Shape { sends: requests, receives: 1, inline: INLINE };
        let ours = lanes_for(&card.own.spec, peer);
        let plan = LanesPlan::new(ours, None);
        let block = Block::of_regions(plan.body, card.huge_pages)?;
        let lanes = ours.iter().zip(&plan.offsets).map(|((name, len), at)| (*name, block.area(*at, *len))).collect();
        let (grants, notices) = (Block::new(0)?, Block::new(0)?);
        let background = Shape { sends: requests + OWN_REQUESTS, ..asking };
        Ok(Kept {
            background: QueuePair::new(device, Plane::Background, &card.background, Transport::Connected, background)?,
            writers: lanes_for(theirs, own_kind)
                .iter()
                .map(|_| QueuePair::new(device, Plane::Replication, &card.replication, Transport::Connected, asking))
                .collect::<io::Result<_>>()?,
            answerers: ours.iter().map(|_| fresh_answerer(card)).collect::<io::Result<_>>()?,
            lanes,
            lanes_written: Registered::new(device, Plane::Replication, &block, LANE_RIGHTS | ACCESS_LOCAL_WRITE)?,
            lanes_read: Registered::new(device, Plane::Background, &block, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ)?,
            grants: (grants.area(0, 4096), Registered::new(device, Plane::Background, &grants, ACCESS_REMOTE_READ)?),
            notices: (
                notices.area(0, 4096),
                Registered::new(device, Plane::Background, &notices, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE)?,
            ),
            stage: Stage::new(device, stage)?,
            requests,
            mail: card.mail(),
        })
    }

    /// What the peer has to know about it. `number` is what the peer marks its datagrams to us with.
    pub(super) fn offer(&self, card: &Card, peer: PeerKind, number: u32) -> Offer {
        Offer {
            number,
            address: Address::of(&card.device.port),
            reads: card.device.limits.reads_in,
            mail: (self.mail, QUEUE_KEY),
            background: self.background.number,
            writers: self.writers.iter().map(|qp| qp.number).collect(),
            answerers: self.answerers.iter().map(|qp| qp.number).collect(),
            public: card.own.key(peer),
            lanes_written: Key::of(&self.lanes_written),
            lanes_read: Key::of(&self.lanes_read),
            grants: Key::of(&self.grants.1),
            notices: Key::of(&self.notices.1),
        }
    }

    /// Connects everything to what the peer has offered. The error says what is wrong with its offer.
    pub(super) fn connect(
        self,
        card: &Card,
        own_kind: PeerKind,
        identity: Identity,
        spec: &RegionSpec,
        offer: &Offer,
        keys: Keys,
    ) -> Result<Peer, String> {
        let theirs = lanes_for(spec, own_kind);
        if offer.answerers.len() != theirs.len() || offer.writers.len() != self.answerers.len() {
            return Err(format!(
                "its offer has {} and {} queue pairs for lanes, not {} and {}",
                offer.answerers.len(),
                offer.writers.len(),
                theirs.len(),
                self.answerers.len()
            ));
        }
        let refused = |what: &'static str| move |e: io::Error| format!("the queue pair for {what} cannot be connected ({e})");
        let rights = match identity.kind {
            PeerKind::Member => ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC,
            PeerKind::Client => ACCESS_REMOTE_READ,
        };
        let (to, reads) = (offer.address, offer.reads);
        self.background
            .answer(to, offer.background, FIRST_PSN, rights)
            .and_then(|()| self.background.send(FIRST_PSN, reads, card.patience))
            .map_err(refused("public memory"))?;
        let plan = LanesPlan::new(theirs, None);
        let mut their_lanes = Vec::with_capacity(theirs.len());
        for (at, (writer, (name, bytes))) in self.writers.into_iter().zip(theirs).enumerate() {
            let grant = Grant::first(offer.answerers[at]);
            open(&writer, to, grant, reads, card.patience).map_err(refused("a lane"))?;
            let start = offer.lanes_written.address + plan.offsets[at] as u64;
            their_lanes.push(TheirLane { name: *name, start, bytes: *bytes, writer, open: Some(grant), known: grant.epoch, notice: at });
        }
        let mut our_lanes = Vec::with_capacity(self.lanes.len());
        for (at, (answerer, (name, area))) in self.answerers.into_iter().zip(self.lanes).enumerate() {
            let grant = Grant::first(answerer.number);
            answerer.answer(to, offer.writers[at], grant.psn(), LANE_RIGHTS).map_err(refused("a lane"))?;
            self.grants.0.memory()[at].store(grant.word(), Ordering::Release);
            let (writer, grant_word) = (offer.writers[at], at);
            let spare = fresh_answerer(card).map_err(refused("a lane's next grant"))?;
            our_lanes.push(OurLane { name, area, answerer: Some(answerer), spare, writer, grant_word, notice_due: false, notices: 0 });
        }
        let public_plan = PublicPlan::new(spec);
        let regions = spec.public.iter().zip(&public_plan.offsets);
        Ok(Peer {
            identity,
            gone: false,
            writable: own_kind == PeerKind::Member,
            background: self.background,
            theirs: their_lanes,
            ours: our_lanes,
            public: regions
                .map(|((name, bytes), at)| TheirPublic {
                    name: *name,
                    start: offer.public.address + *at as u64,
                    bytes: *bytes,
                    owned: spec.is_owned(*name),
                })
                .collect(),
            destination: Arc::new(Destination::new(&card.device, to).map_err(|e| format!("it cannot be addressed ({e})"))?),
            mail: offer.mail,
            told_mail: self.mail,
            keys,
            number: offer.number,
            address: to,
            packet: to.packet_bytes(&card.device.port),
            reads,
            public_key: offer.public.rkey,
            lanes_written_key: offer.lanes_written.rkey,
            lanes_read: offer.lanes_read,
            lanes_start: offer.lanes_written.address,
            grants_there: offer.grants,
            notices_there: offer.notices,
            grants: self.grants.0,
            notices: self.notices.0,
            grants_key: self.grants.1.lkey,
            notices_key: self.notices.1.lkey,
            lanes_landing_key: self.lanes_read.lkey,
            stage: self.stage,
            requests: self.requests,
            _registered: [self.lanes_written, self.lanes_read, self.grants.1, self.notices.1],
        })
    }
}

/// The packet number that background queue pairs start with. Both ends are new, so any will do.
const FIRST_PSN: u32 = 1;

/// A queue pair that only answers: the peer writes on it.
pub(super) fn fresh_answerer(card: &Card) -> io::Result<QueuePair> {
    let shape = Shape { sends: 1, receives: 1, inline: 0 };
    QueuePair::new(&card.device, Plane::Replication, &card.replication, Transport::Connected, shape)
}

/// Connects a writer's queue pair to the one that a grant names.
pub(super) fn open(writer: &QueuePair, to: Address, grant: Grant, reads: u8, patience: Patience) -> io::Result<()> {
    writer.answer(to, grant.queue_pair, grant.psn(), 0)?;
    writer.send(grant.psn(), reads, patience)
}

/// A public region of a peer.
#[derive(Debug)]
pub(super) struct TheirPublic {
    pub(super) name: RegionName,
    pub(super) start: u64,
    pub(super) bytes: usize,
    /// Whether only the peer itself writes it.
    pub(super) owned: bool,
}

/// A lane that a peer keeps for us.
#[derive(Debug)]
pub(super) struct TheirLane {
    pub(super) name: RegionName,
    pub(super) start: u64,
    pub(super) bytes: usize,
    pub(super) writer: QueuePair,
    /// The grant under which we write; `None` once we know that it is over.
    pub(super) open: Option<Grant>,
    /// The latest epoch that we know of.
    pub(super) known: u64,
    /// The index of this lane among the peer's notices and grant words.
    pub(super) notice: usize,
}

/// A lane that we keep for a peer.
#[derive(Debug)]
pub(super) struct OurLane {
    pub(super) name: RegionName,
    pub(super) area: Area,
    /// The queue pair on which the peer writes; `None` while the peer may not write.
    pub(super) answerer: Option<QueuePair>,
    /// The queue pair of the next grant. It is made before the current one is destroyed, so that two successive grants never have the same number.
    pub(super) spare: QueuePair,
    /// The queue pair from which the peer writes.
    pub(super) writer: u32,
    pub(super) grant_word: usize,
    /// Whether the peer has yet to be told of the latest grant word.
    pub(super) notice_due: bool,
    /// Notices under way.
    pub(super) notices: u32,
}

/// A connected process. Queue pairs come first, so that they are dropped before the memory that they work on.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) background: QueuePair,
    pub(super) theirs: Vec<TheirLane>,
    pub(super) ours: Vec<OurLane>,
    pub(super) identity: Identity,
    pub(super) gone: bool,
    /// Whether we may write its public regions. A client may not.
    pub(super) writable: bool,
    pub(super) public: Box<[TheirPublic]>,
    pub(super) destination: Arc<Destination>,
    /// Its queue pair for datagrams, and the key of that queue pair.
    pub(super) mail: (u32, u32),
    /// Our queue pair to which it sends its datagrams.
    pub(super) told_mail: u32,
    /// The keys that its datagrams and ours are signed with.
    pub(super) keys: Keys,
    /// The number by which it knows us in datagrams.
    pub(super) number: u32,
    pub(super) address: Address,
    /// Bytes that one packet carries.
    pub(super) packet: u32,
    pub(super) reads: u8,
    pub(super) public_key: u32,
    pub(super) lanes_written_key: u32,
    pub(super) lanes_read: Key,
    pub(super) lanes_start: u64,
    pub(super) grants_there: Key,
    pub(super) notices_there: Key,
    pub(super) grants: Area,
    pub(super) notices: Area,
    /// The local keys of the two.
    pub(super) grants_key: u32,
    pub(super) notices_key: u32,
    /// The local key under which reads may land in our lanes.
    pub(super) lanes_landing_key: u32,
    pub(super) stage: Stage,
    pub(super) requests: u32,
    _registered: [Registered; 4],
}

impl Peer {
    /// Ourselves: operations on our own memory go through the card, as any peer's do (TRAPS 5).
    pub(super) fn ourselves(card: &Card, identity: Identity) -> Result<Peer, String> {
        let nothing = RegionSpec { public: card.own.spec.public.clone(), ..RegionSpec::default() };
        let make = || -> io::Result<Kept> {
            let mut kept = Kept::create(card, PeerKind::Member, PeerKind::Member, &nothing)?;
            // There are no lanes: a process keeps none for itself.
            kept.answerers.clear();
            kept.lanes = Box::new([]);
            Ok(kept)
        };
        let kept = make().map_err(|e| format!("no memory for operations on ourselves ({e})"))?;
        let offer = Offer { answerers: Vec::new(), ..kept.offer(card, PeerKind::Member, 0) };
        let member = Identity { kind: PeerKind::Member, ..identity };
        let mut peer = kept.connect(card, PeerKind::Member, member, &nothing, &offer, Keys::new(b"", b""))?;
        peer.identity = identity;
        Ok(peer)
    }

    pub(super) fn public(&self, name: RegionName) -> Option<&TheirPublic> {
        self.public.iter().find(|region| region.name == name)
    }
}

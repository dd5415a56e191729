//! The endpoint: the contract's operations as requests to the card.
//!
//! Operations are gathered as they are posted and handed to the card when the endpoint is polled, so that one doorbell and one completion
//! serve all that were posted together: only the last request of a short batch asks for a completion, which stands for those before it.
//!
//! # Long writes
//! They go as requests of one packet each, so that every packet is acknowledged. A device counts how often it sends again, and begins anew when it is
//! acknowledged; software RDMA asks for that at the end of a request and otherwise every 66 packets only, so that with 5 % loss half of the
//! writes of 600 KiB ran out of their six repetitions. Reads are not cut: each packet of the answer is an acknowledgement.
//!
//! # Order
//! A queue pair keeps the order of its requests but for two cases: what follows a READ or a compare-and-swap may overtake it. There the later
//! request waits here until the earlier has completed. The interface's fence would let the card wait, for as long; but software RDMA
//! can forget a fenced request for ever when packets are lost. Order between a peer's queue pairs is module `line`'s affair.
//!
//! # Revocation
//! Its owner destroys a lane's queue pair. When that call has returned, no request that came in on it is at work any more: nothing is stored,
//! and no answer has promised otherwise. Neither a change of flags nor RESET is such a fence on software RDMA (TRAPS 34, `docs/rdma.md`). The writer hears of it by a notice, and learns what became of its writes from the grant word
//! (module `grant`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::ffi::{self, SEND_INLINE, SEND_SIGNALED, SendWr, Sge, Wc};
use super::grant::Grant;
use super::line::{Channel, Line, Look, Op, State, Work};
use super::mail::{Assembly, Mail, MailCounters};
use super::peer::{self, Card, Peer, Stage, find};
use super::queue::QueuePair;
use super::shared::{Command, Note, Shared};
use crate::contract::{
    Completion, Fabric, Identity, Local, LocalRegion, MAX_DATAGRAM_BYTES, Memory, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region,
    RegionName, Remote, Token,
};
use crate::exchange::BootstrapCounters;
use crate::invariant;
use crate::meeting::describe;
use crate::primitive::{Ordering, fence};
use crate::shm::memory::Area;

/// What a request of ours is about: bits 30 and 31 of its name. The upper half of the name is the peer.
const KIND_OP: u64 = 0;
const KIND_NOTICE: u64 = 1;
const KIND_LOOK: u64 = 2;
/// The word of the notices page into which a look's answer goes; the notices are far below.
const LOOK_WORD: usize = 256;
/// Completions taken from a queue at once.
const BATCH: usize = 32;
/// One of so many requests of a batch asks for a completion, and the last: each makes room for more while those behind it are under way.
const SIGNAL_EVERY: usize = 16;

fn name_of(peer: PeerId, kind: u64, low: u32) -> u64 {
    u64::from(peer.0) << 32 | kind << 30 | u64::from(low)
}

/// A connected process, and what is under way to it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) peer: Peer,
    line: Line,
    pub(super) assembly: Assembly,
    /// Whether it is among the lines to be worked on.
    active: bool,
    notices_due: bool,
}

/// A process's endpoint on the RDMA fabric. It can be moved to another thread; only one uses it at a time.
///
/// Dropping it closes all connections: the peers see `Gone`.
#[derive(Debug)]
pub struct VerbsFabric {
    identity: Identity,
    // Peers go before the card that they are made with.
    entries: Vec<Option<Box<Entry>>>,
    members: Vec<PeerId>,
    /// Lines with operations that are not done.
    active: Vec<PeerId>,
    ready: VecDeque<Completion>,
    /// Requests under way on each plane, and how many may be.
    under_way: [u64; 2],
    most: [u64; 2],
    wrs: Vec<SendWr>,
    sges: Vec<Sge>,
    mail: Mail,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    card: Arc<Card>,
    listens_at: Option<SocketAddr>,
    #[cfg(debug_assertions)]
    swapped: std::collections::HashSet<(PeerId, Region, usize)>,
}

// SAFETY: the requests' pointers in `wrs` point into `sges` and are written anew for each batch; everything else may move by itself.
unsafe impl Send for VerbsFabric {}

/// Where an operation goes, or why it cannot.
struct Place {
    channel: Channel,
    address: u64,
    rkey: u32,
}

fn plane(channel: Channel) -> usize {
    match channel {
        Channel::Background => 0,
        Channel::Lane(_) => 1,
    }
}

impl VerbsFabric {
    pub(super) fn new(
        identity: Identity,
        card: Arc<Card>,
        mail: Mail,
        ourselves: Peer,
        shared: Arc<Shared>,
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
            #[cfg(debug_assertions)]
            swapped: std::collections::HashSet::new(),
        };
        fabric.insert(PeerId::SELF, ourselves);
        fabric
    }

    /// Who this process is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where it listens for others; the port is the system's choice if the configuration said 0.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listens_at
    }

    /// Accepts connections from now on, where [`super::VerbsConfig::closed`] was set; those that came earlier have waited.
    pub fn open(&self) {
        self.shared.ask(Command::Open);
    }

    /// Asks to be connected with a member, which listens at `at`, whenever it is there: now, later, and again after it has restarted (each life
    /// comes as an `Up` event with a number of its own). Returns at once.
    pub fn connect(&self, node: NodeId, at: SocketAddr) {
        self.shared.ask(Command::Connect(node, at));
    }

    /// Takes [`VerbsFabric::connect`] back. A connection that stands is kept; [`Fabric::forget`] ends it.
    pub fn disconnect(&self, node: NodeId) {
        self.shared.ask(Command::Disconnect(node));
    }

    /// Who a peer is, until it is forgotten. Known from its `Up` event on.
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

    /// Why the latest refused handshake was refused, by us or by the other end; names both and what they disagree about.
    pub fn last_refusal(&self) -> Option<String> {
        self.shared.last_refusal()
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
        self.entries[at] = Some(Box::new(Entry { peer, line, assembly: Assembly::default(), active: false, notices_due: false }));
    }

    /// Resolves an address, or says why nothing can be done there.
    fn locate(&self, at: Remote, len: usize, changes: bool) -> Result<Place, OpError> {
        let peer = &self.entry(at.peer).ok_or(OpError::PeerLost)?.peer;
        let within = |bytes: usize| {
            invariant!(
                at.offset.is_multiple_of(8) && len.is_multiple_of(8) && at.offset.checked_add(len).is_some_and(|end| end <= bytes),
                "{len} bytes at {at:?}, a region of {bytes} bytes"
            );
        };
        let offset = at.offset as u64;
        match at.region {
            Region::Public(name) => {
                let region = peer.public(name);
                invariant!(region.is_some(), "the peer offers no such region: {at:?}");
                let region = region.expect("just checked");
                within(region.bytes);
                if changes && !peer.writable && at.peer != PeerId::SELF {
                    return Err(OpError::AccessLost);
                }
                Ok(Place { channel: Channel::Background, address: region.start + offset, rkey: peer.public_key })
            }
            Region::Lane(name) => {
                let lane = peer.theirs.iter().position(|lane| lane.name == name);
                invariant!(lane.is_some(), "the peer keeps no such lane for us: {at:?}");
                let index = lane.expect("just checked");
                let lane = &peer.theirs[index];
                within(lane.bytes);
                let address = lane.start + offset;
                Ok(if changes {
                    Place { channel: Channel::Lane(index as u8), address, rkey: peer.lanes_written_key }
                } else {
                    let address = address - peer.lanes_start + peer.lanes_read.address;
                    Place { channel: Channel::Background, address, rkey: peer.lanes_read.rkey }
                })
            }
        }
    }

    /// Our memory, as the card addresses it for what a READ brings.
    fn local(&self, region: LocalRegion) -> Option<(&Area, u32)> {
        match region {
            LocalRegion::Public(name) => find(&self.card.own.public, name).map(|area| (area, self.card.own.landing_key())),
            LocalRegion::Lane { writer, name } => {
                let peer = &self.entry(writer)?.peer;
                peer.ours.iter().find(|lane| lane.name == name).map(|lane| (&lane.area, peer.lanes_landing_key))
            }
        }
    }

    /// Appends an operation whose bytes, if it has any, are `bytes`.
    fn post(&mut self, to: PeerId, place: Result<Place, OpError>, work: Work, len: usize, bytes: &[u8], token: Token) {
        let Some(entry) = self.entries.get_mut(to.0 as usize).and_then(Option::as_deref_mut) else {
            self.ready.push_back(Completion { token, result: Err(OpError::PeerLost) });
            return;
        };
        let place = if entry.line.broken { Err(OpError::PeerLost) } else { place };
        let staged = match work {
            Work::Read { .. } => 0,
            _ => len,
        };
        let mut op = match place {
            Err(error) => {
                let (channel, state) = (Channel::Background, State::Done(Err(error)));
                Op {
                    token,
                    work,
                    channel,
                    state,
                    remote: 0,
                    rkey: 0,
                    epoch: 0,
                    bytes: 0,
                    handed: 0,
                    until: 0,
                    at: 0,
                    staged: 0,
                    own_stage: None,
                }
            }
            Ok(Place { channel, address, rkey }) => Op {
                token,
                work,
                channel,
                state: State::Queued,
                remote: address,
                rkey,
                epoch: epoch_of(&mut entry.peer, channel),
                bytes: len as u32,
                handed: 0,
                until: 0,
                at: 0,
                staged: 0,
                own_stage: None,
            },
        };
        if matches!(op.channel, Channel::Lane(_)) && op.epoch.is_multiple_of(2) {
            op.state = State::Done(Err(OpError::AccessLost));
        }
        if op.state == State::Queued && staged > 0 {
            match entry.line.reserve(staged) {
                Some((at, need)) => (op.at, op.staged) = (at, need),
                // Much is under way, or much is to be written at once.
                None => match Stage::new(&self.card.device, staged) {
                    Ok(own) => op.own_stage = Some(Box::new(own)),
                    Err(error) => {
                        tracing::error!(%error, "no memory for an operation; its peer is given up");
                        op.state = State::Done(Err(OpError::PeerLost));
                    }
                },
            }
            let area = op.own_stage.as_ref().map_or(&entry.peer.stage.area, |own| &own.area);
            let (chunks, _) = bytes.as_chunks::<8>();
            for (word, chunk) in area.memory()[op.at as usize / 8..].iter().zip(chunks) {
                word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
            }
        }
        entry.line.append(op);
        if !entry.active {
            entry.active = true;
            self.active.push(to);
        }
    }

    /// Works on all lines once: hands over what can be, takes completions, looks at notices.
    fn progress(&mut self) {
        for at in 0..self.active.len() {
            self.hand_over(self.active[at]);
        }
        self.take_completions();
        let mut at = 0;
        while at < self.active.len() {
            let id = self.active[at];
            self.heed_notice(id);
            self.release(id);
            // What waited for another queue pair, or for room, may go now.
            self.hand_over(id);
            let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else {
                self.active.swap_remove(at);
                continue;
            };
            if entry.line.is_empty() && entry.line.look.is_none() && !entry.notices_due {
                entry.active = false;
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn take_completions(&mut self) {
        let mut wcs = [Wc::EMPTY; BATCH];
        for queue in [self.card.replication.clone(), self.card.background.clone()] {
            loop {
                let count = queue.poll(&mut wcs);
                for wc in &wcs[..count] {
                    self.completed(wc);
                }
                if count < BATCH {
                    break;
                }
            }
        }
    }

    /// Hands a line's waiting operations to the card, as far as order and room allow.
    fn hand_over(&mut self, id: PeerId) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        if entry.notices_due && !entry.line.broken {
            let told = tell(&mut entry.peer, id);
            entry.notices_due = entry.peer.ours.iter().any(|lane| lane.notice_due);
            if let Err(error) = told {
                return self.give_up(id, &format!("a notice cannot be sent ({error})"));
            }
        }
        let Entry { peer, line, .. } = entry;
        self.wrs.clear();
        self.sges.clear();
        let mut refused = None;
        while line.next < line.end() && line.look.is_none() {
            let sequence = line.next;
            if matches!(line.op(sequence).state, State::Done(_)) {
                line.advance();
                continue;
            }
            let channel = line.op(sequence).channel;
            if line.outstanding() > 0 && line.channel != channel {
                break;
            }
            let open = match channel {
                Channel::Lane(lane) => peer.theirs[usize::from(lane)].open.map(|grant| grant.epoch),
                Channel::Background => None,
            };
            if open.is_some_and(|epoch| epoch > line.op(sequence).epoch) {
                // Posted under a grant that has gone since.
                line.op_mut(sequence).state = State::Done(Err(OpError::AccessLost));
                line.advance();
                continue;
            }
            if let Channel::Lane(lane) = channel
                && open != Some(line.op(sequence).epoch)
            {
                if line.outstanding() == 0
                    && let Err(error) = look(peer, line, id, lane)
                {
                    refused = Some(error);
                }
                break;
            }
            let plane = plane(channel);
            if line.outstanding() >= u64::from(peer.requests) || self.under_way[plane] >= self.most[plane] {
                break;
            }
            let (reads, swaps) = (line.op(sequence).work.is_read(), line.op(sequence).work.is_swap());
            let (read_before, swap_before) = (line.last_read > line.settled(), line.last_swap > line.settled());
            if line.outstanding() > 0 && ((read_before && !reads) || (swap_before && !swaps)) {
                break;
            }
            line.channel = channel;
            let op = line.op(sequence);
            let stage = op.own_stage.as_deref().unwrap_or(&peer.stage);
            let (start, lkey) = match channel {
                Channel::Background => (stage.background.address, stage.background.lkey),
                Channel::Lane(_) => (stage.replication.address, stage.replication.lkey),
            };
            let inline = match channel {
                Channel::Background => peer.background.inline,
                Channel::Lane(lane) => peer.theirs[usize::from(lane)].writer.inline,
            };
            let rest = op.bytes - op.handed;
            let length = if op.work == Work::Write { rest.min(peer.packet) } else { rest };
            let mut wr = SendWr { num_sge: 1, ..SendWr::EMPTY };
            let mut sge = Sge { addr: start + u64::from(op.at + op.handed), length, lkey };
            wr.rdma(op.remote + u64::from(op.handed), op.rkey);
            match op.work {
                Work::Write => {
                    wr.opcode = ffi::WR_RDMA_WRITE;
                    if length <= inline {
                        wr.send_flags |= SEND_INLINE;
                    }
                }
                Work::ReadWord => wr.opcode = ffi::WR_RDMA_READ,
                Work::Read { address, lkey } => {
                    wr.opcode = ffi::WR_RDMA_READ;
                    sge = Sge { addr: address, length, lkey };
                }
                Work::Swap { expected, new } => {
                    wr.opcode = ffi::WR_ATOMIC_CMP_AND_SWP;
                    wr.atomic(op.remote, op.rkey, expected, new);
                }
            }
            wr.wr_id = name_of(id, KIND_OP, Line::low(line.begin(length)));
            if length == rest {
                if reads {
                    line.last_read = sequence + 1;
                }
                if swaps {
                    line.last_swap = sequence + 1;
                }
                line.advance();
            }
            self.under_way[plane] += 1;
            if self.wrs.len() % SIGNAL_EVERY == SIGNAL_EVERY - 1 {
                wr.send_flags |= SEND_SIGNALED;
            }
            self.wrs.push(wr);
            self.sges.push(sge);
        }
        if let Some(last) = self.wrs.last_mut() {
            last.send_flags |= SEND_SIGNALED;
            for (wr, sge) in self.wrs.iter_mut().zip(&mut self.sges) {
                wr.sg_list = sge;
            }
            for at in 1..self.wrs.len() {
                let next = &raw mut self.wrs[at];
                self.wrs[at - 1].next = next;
            }
            let queue_pair = queue_pair(peer, line.channel);
            // SAFETY: the list lies in `wrs` and `sges`, which stay as they are during the call. The buffers are in the stage, which keeps each
            // until its operation is done, or in our own regions, and both stay registered as long as the queue pair is open.
            if let Err(error) = unsafe { queue_pair.post(&mut self.wrs[0]) } {
                refused = Some(error);
            }
        }
        if let Some(error) = refused {
            self.give_up(id, &format!("the card takes no request ({error})"));
        }
    }

    /// A request has completed, well or not; it may be one that has been given up meanwhile.
    fn completed(&mut self, wc: &Wc) {
        let id = PeerId((wc.wr_id >> 32) as u32);
        let (kind, low) = (wc.wr_id >> 30 & 3, wc.wr_id as u32 & 0x3fff_ffff);
        let Some(entry) = self.entries.get_mut(id.0 as usize).and_then(Option::as_deref_mut) else { return };
        let Entry { peer, line, .. } = entry;
        let well = wc.status == ffi::WC_SUCCESS;
        match kind {
            KIND_OP => {
                let Some(request) = line.under_way(low) else { return };
                let plane = plane(line.channel);
                let before = line.outstanding();
                if well {
                    line.settle(request + 1, &peer.stage);
                    self.under_way[plane] -= before - line.outstanding();
                    return;
                }
                // Requests complete in order, so those before the first that failed went well.
                line.settle(request, &peer.stage);
                let lost = matches!(wc.status, ffi::WC_REM_INV_REQ_ERR | ffi::WC_REM_ACCESS_ERR);
                match line.channel {
                    Channel::Lane(lane) => {
                        tracing::debug!(peer = id.0, lane, status = wc.status, "a write into a lane has failed");
                        line.end_posted(if lost { State::Done(Err(OpError::AccessLost)) } else { State::Undecided });
                        self.under_way[plane] -= before;
                        let failed = if lost { close(&mut peer.theirs[usize::from(lane)]) } else { look(peer, line, id, lane) };
                        if let Err(error) = failed {
                            self.give_up(id, &format!("its lane cannot be examined ({error})"));
                        }
                    }
                    Channel::Background => {
                        if lost && let Some(op) = line.owner_mut(request) {
                            op.state = State::Done(Err(OpError::AccessLost));
                        }
                        line.end_posted(State::Done(Err(OpError::PeerLost)));
                        self.under_way[plane] -= before;
                        self.give_up(id, &format!("a request has failed with status {}", wc.status));
                    }
                }
            }
            KIND_LOOK if line.look.is_some_and(|look| Line::low(look.number) == low) => {
                if well {
                    self.looked(id);
                } else {
                    self.give_up(id, &format!("its grant cannot be read (status {})", wc.status));
                }
            }
            KIND_NOTICE if well => {
                if let Some(lane) = peer.ours.iter_mut().find(|lane| lane.grant_word == low as usize) {
                    lane.notices -= 1;
                }
            }
            // Requests are flushed when a connection ends; whoever ended it knows why.
            KIND_NOTICE if !well && wc.status != ffi::WC_WR_FLUSH_ERR => {
                self.give_up(id, &format!("a notice has failed with status {}", wc.status));
            }
            _ => {}
        }
    }

    /// The grant word of a lane has been read: decides what became of writes into it, and opens the lane if it is granted again.
    fn looked(&mut self, id: PeerId) {
        let entry = self.entries[id.0 as usize].as_deref_mut().expect("looked at by the caller");
        let Entry { peer, line, .. } = entry;
        let look = line.look.take().expect("looked at by the caller");
        let now = Grant::of(peer.notices.memory()[LOOK_WORD].load(Ordering::Acquire));
        let lane = &mut peer.theirs[usize::from(look.lane)];
        lane.known = lane.known.max(now.epoch);
        if line.is_undecided() {
            if lane.open == Some(now) {
                return self.give_up(id, "a lane that it still grants cannot be reached");
            }
            line.decide(OpError::AccessLost);
        }
        let outcome = close(lane).and_then(|()| {
            if !now.granted {
                line.refuse(look.lane, look.before);
                return Ok(());
            }
            lane.writer.reset()?;
            peer::open(&lane.writer, peer.address, now, peer.reads, self.card.patience)?;
            lane.open = Some(now);
            Ok(())
        });
        if let Err(error) = outcome {
            self.give_up(id, &format!("its lane cannot be opened again ({error})"));
        }
    }

    /// If the owner of the lane that is being written has told us that our grant is over, ends what is under way.
    fn heed_notice(&mut self, id: PeerId) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        let Entry { peer, line, .. } = entry;
        let Channel::Lane(index) = line.channel else { return };
        let lane = &mut peer.theirs[usize::from(index)];
        let (Some(open), true) = (lane.open, line.outstanding() > 0) else { return };
        let told = Grant::of(peer.notices.memory()[lane.notice].load(Ordering::Acquire));
        if told.epoch <= open.epoch {
            return;
        }
        let before = line.outstanding();
        line.end_posted(State::Done(Err(OpError::AccessLost)));
        self.under_way[1] -= before;
        if let Err(error) = close(lane) {
            self.give_up(id, &format!("its lane cannot be closed ({error})"));
        }
    }

    /// Moves what is done, in order, to the completions.
    fn release(&mut self, id: PeerId) {
        if let Some(entry) = self.entries[id.0 as usize].as_deref_mut() {
            while let Some(completion) = entry.line.pop() {
                self.ready.push_back(completion);
            }
        }
    }

    /// Nothing more can be done with a peer: ends its operations, and its connection.
    fn give_up(&mut self, id: PeerId, why: &str) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        if entry.line.broken {
            return;
        }
        invariant!(id != PeerId::SELF, "the card does not serve us: {why}");
        tracing::warn!(peer = id.0, "the connection with {} is given up: {why}", describe(entry.peer.identity));
        self.end_line(id);
        self.shared.ask(Command::Cut(id));
    }

    fn end_line(&mut self, id: PeerId) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        let plane = plane(entry.line.channel);
        self.under_way[plane] -= entry.line.outstanding();
        entry.line.give_up();
        entry.notices_due = false;
        // The card need not go on trying. Where this fails the queue pair has failed already.
        let _ = entry.peer.background.fail();
        for lane in &mut entry.peer.theirs {
            let _ = close(lane);
        }
        if !entry.active {
            entry.active = true;
            self.active.push(id);
        }
    }

    fn our_lane(&mut self, writer: PeerId, name: RegionName) -> Option<(&mut Peer, usize)> {
        // A writer that is forgotten has no lane, so nobody reads what it writes.
        let peer = &mut self.entries.get_mut(writer.0 as usize)?.as_deref_mut()?.peer;
        let index = peer.ours.iter().position(|lane| lane.name == name);
        invariant!(index.is_some(), "we keep no lane {} for {writer:?}", name.0);
        Some((peer, index.expect("just checked")))
    }

    /// The owner's part of a change: the word is stored, the writer is to be told.
    fn announce(&mut self, writer: PeerId, index: usize, grant: Grant) {
        let Some(entry) = self.entries[writer.0 as usize].as_deref_mut() else { return };
        let lane = &mut entry.peer.ours[index];
        entry.peer.grants.memory()[lane.grant_word].store(grant.word(), Ordering::Release);
        if entry.line.broken {
            return;
        }
        lane.notice_due = true;
        entry.notices_due = true;
        if !entry.active {
            entry.active = true;
            self.active.push(writer);
        }
        // The sooner the writer knows, the less it waits; a failure shows when the line is worked on.
        self.hand_over(writer);
    }

    /// Waits until the writer's memory holds the latest grant word of a lane: what it posts from now on is under that grant, and it can tell that
    /// from what it posted before. If it cannot be reached it is given up, in bounded time.
    fn wait_until_told(&mut self, writer: PeerId, name: RegionName) {
        while let Some(entry) = self.entry(writer)
            && !entry.line.broken
            && entry.peer.ours.iter().any(|lane| lane.name == name && (lane.notice_due || lane.notices > 0))
        {
            self.progress();
        }
    }

    #[cfg(debug_assertions)]
    fn check_no_mixing(&self, at: Remote, len: usize) {
        let mixed = (at.offset..at.offset + len).step_by(8).find(|o| self.swapped.contains(&(at.peer, at.region, *o)));
        invariant!(mixed.is_none(), "a plain write to a word that has been swapped: {at:?}, offset {mixed:?}");
    }
}

fn queue_pair(peer: &Peer, channel: Channel) -> &QueuePair {
    match channel {
        Channel::Background => &peer.background,
        Channel::Lane(lane) => &peer.theirs[usize::from(lane)].writer,
    }
}

/// The epoch of the lane as we know it, in which alone what is posted now may take effect. Odd epochs are of grants, even ones of revocations.
fn epoch_of(peer: &mut Peer, channel: Channel) -> u64 {
    let Channel::Lane(lane) = channel else { return 0 };
    let lane = &mut peer.theirs[usize::from(lane)];
    let told = Grant::of(peer.notices.memory()[lane.notice].load(Ordering::Acquire));
    lane.known = lane.known.max(told.epoch);
    lane.known
}

/// Ends what is under way on a lane that is not ours any more.
fn close(lane: &mut peer::TheirLane) -> std::io::Result<()> {
    if lane.open.take().is_some() { lane.writer.fail() } else { Ok(()) }
}

/// Posts a READ of a lane's grant word.
fn look(peer: &Peer, line: &mut Line, id: PeerId, lane: u8) -> std::io::Result<()> {
    line.looks += 1;
    line.look = Some(Look { lane, number: line.looks, before: line.end() });
    let landing = peer.notices.memory()[LOOK_WORD].as_ptr() as u64;
    let mut sge = Sge { addr: landing, length: 8, lkey: peer.notices_key };
    let mut wr = SendWr {
        wr_id: name_of(id, KIND_LOOK, Line::low(line.looks)),
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode: ffi::WR_RDMA_READ,
        send_flags: SEND_SIGNALED,
        ..SendWr::EMPTY
    };
    wr.rdma(peer.grants_there.address + 8 * peer.theirs[usize::from(lane)].notice as u64, peer.grants_there.rkey);
    // SAFETY: a single request; the word lies in memory that stays registered as long as the queue pair is open.
    unsafe { peer.background.post(&mut wr) }
}

/// Posts the notices that are due: each a WRITE of a grant word, straight from where it stands.
fn tell(peer: &mut Peer, id: PeerId) -> std::io::Result<()> {
    for lane in peer.ours.iter_mut().filter(|lane| lane.notice_due) {
        let word = peer.grants.memory()[lane.grant_word].as_ptr() as u64;
        let mut sge = Sge { addr: word, length: 8, lkey: peer.grants_key };
        let mut wr = SendWr {
            wr_id: name_of(id, KIND_NOTICE, lane.grant_word as u32),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: ffi::WR_RDMA_WRITE,
            send_flags: SEND_SIGNALED,
            ..SendWr::EMPTY
        };
        wr.rdma(peer.notices_there.address + 8 * lane.grant_word as u64, peer.notices_there.rkey);
        // SAFETY: a single request; the word lies in memory that stays registered as long as the queue pair is open. It may change before
        // the card reads it, and is then the later one, of which the peer is to be told too.
        match unsafe { peer.background.post(&mut wr) } {
            Ok(()) => {
                lane.notice_due = false;
                lane.notices += 1;
            }
            // The queue is full: later.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Fabric for VerbsFabric {
    const ZOMBIES_REACHABLE: bool = false;

    #[inline]
    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        self.local(region).map(|(area, _)| area.memory())
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
            // What completes is ordered before whatever the caller does next.
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
                self.mail.send(&entry.peer, datagram);
            }
            _ => self.mail.counters.dropped += 1,
        }
    }

    fn multicast(&mut self, datagram: &[u8]) {
        for at in 0..self.members.len() {
            let to = self.members[at];
            if !self.is_gone(to) {
                self.send(to, datagram);
            }
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId> {
        self.mail.receive(into, &mut self.entries)
    }

    #[inline]
    fn event(&mut self) -> Option<PeerEvent> {
        loop {
            match self.shared.note()? {
                Note::Up(id, peer) => {
                    let identity = peer.identity;
                    if identity.kind == PeerKind::Member {
                        self.members.push(id);
                    }
                    self.insert(id, *peer);
                    return Some(PeerEvent::Up { peer: id, identity });
                }
                Note::Gone(id) => {
                    // Forgotten meanwhile: nobody wants to know.
                    if let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) {
                        entry.peer.gone = true;
                        self.end_line(id);
                        return Some(PeerEvent::Gone { peer: id, certain: false });
                    }
                }
            }
        }
    }

    fn grant(&mut self, writer: PeerId, name: RegionName) {
        let card = self.card.clone();
        let Some((peer, index)) = self.our_lane(writer, name) else { return };
        let lane = &mut peer.ours[index];
        let now = Grant::of(peer.grants.memory()[lane.grant_word].load(Ordering::Relaxed));
        if now.granted {
            return;
        }
        let made = peer::fresh_answerer(&card).and_then(|spare| {
            let answerer = std::mem::replace(&mut lane.spare, spare);
            let grant = now.next(true, answerer.number);
            answerer.answer(peer.address, lane.writer, grant.psn(), peer::LANE_RIGHTS)?;
            lane.answerer = Some(answerer);
            Ok(grant)
        });
        match made {
            Ok(grant) => {
                self.announce(writer, index, grant);
                self.wait_until_told(writer, name);
            }
            Err(error) => self.give_up(writer, &format!("its lane cannot be granted again ({error})")),
        }
    }

    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token) {
        if let Some((peer, index)) = self.our_lane(writer, name) {
            let lane = &mut peer.ours[index];
            let now = Grant::of(peer.grants.memory()[lane.grant_word].load(Ordering::Relaxed));
            if now.granted {
                // The fence: when it is destroyed, no request that came in on it is at work any more.
                drop(lane.answerer.take());
                self.announce(writer, index, now.next(false, now.queue_pair));
            }
        }
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

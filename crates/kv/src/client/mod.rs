//! The client on the fabric: requests go into the servers' memory, and replies come into the client's.
//!
//! The client is connected to every node, and sends to the one it takes for the leader. If that one does not lead, the client learns of it from a redirection,
//! or from the notice that each new primary writes to every client. Then it sends everything that has no reply again, in order. Requests are numbered, and the
//! replies by number are replicated state, so a repeated write is not executed twice.
//!
//! The client is pure: time comes in as an argument, memory is reached through [`Fabric`], and it never waits. Only [`Client::call`] waits, in the way that its
//! caller chooses.

mod config;
mod node;
mod rehearser;
mod seeking;
mod value;

use std::collections::VecDeque;

use martlet_fabric::ring::{Record, max_payload};
use martlet_fabric::{Fabric, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind};
use martlet_protocol::basics::layout::{self, Component};
use martlet_protocol::basics::{Time, ViewNumber};

pub use self::config::{ClientConfig, Reads, RequestError};
use self::node::{Node, PROGRESS, REQUEST, token};
pub(crate) use self::rehearser::Rehearser;
pub use self::value::Value;
use crate::frontend::fabric::MAX_UNCONFIRMED;
pub use crate::frontend::fabric::UNCERTAIN;
use crate::frontend::fabric::wire::{self, Answer as Wire};

/// The most arguments of one request, its name included.
const MAX_ARGS: usize = u16::MAX as usize;
/// How many departed nodes' memory is kept at most.
const MAX_DEPARTED: usize = 8;
/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The request's number.
    pub seq: u64,
    /// The view in which it was answered.
    pub view: ViewNumber,
    /// The node that answered.
    pub node: NodeId,
    /// The reply in RESP3; see [`Value`].
    pub reply: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct Head {
    seq: u64,
    view: ViewNumber,
    node: NodeId,
}

#[derive(Debug)]
struct Outstanding {
    record: Record,
    epoch: u32,
    answered: bool,
}

/// The client. See the [module](self).
#[derive(Debug)]
pub struct Client<F> {
    fabric: F,
    config: ClientConfig,
    nodes: Vec<Node>,
    /// Nodes that are gone and whose memory is still mapped. Unmapping it takes a while, so that is not done while a reply is awaited: the node that died may
    /// be the very one that was to send it.
    departed: Vec<PeerId>,
    /// The node that is taken for the leader.
    primary: Option<NodeId>,
    /// The newest view heard of.
    view: ViewNumber,
    /// The view of the notice or redirection by which the primary was chosen.
    chosen_in: ViewNumber,
    /// Requests without a reply: consecutive numbers from `lowest` on.
    outstanding: VecDeque<Outstanding>,
    /// The number of the first outstanding request.
    lowest: u64,
    /// How many outstanding requests have been sent to the primary.
    sent: usize,
    /// No request from this number on has been sent to any node.
    ever_sent: u64,
    /// A primary has said that our session is in the replicated state. No request is sent before that. So if a client repeats a request and its session is
    /// unknown, the session has been ended, and the request must not be taken for a new one.
    established: bool,
    /// How many times everything has been sent again.
    epoch: u32,
    /// A request whose epoch is being changed.
    scratch: Vec<u8>,
    spares: Vec<Record>,
    buffer: Vec<u8>,
    /// When something was last heard, or another node was last asked.
    heard_at: Time,
    probe: usize,
    /// Where to look for the next answer.
    turn: usize,
}

impl<F: Fabric> Client<F> {
    /// A client on an endpoint whose regions are [`layout::client_regions`] with the same sizes.
    pub fn new(fabric: F, config: ClientConfig) -> Client<F> {
        Client {
            fabric,
            config: ClientConfig { max_outstanding: config.max_outstanding.clamp(1, MAX_UNCONFIRMED), ..config },
            nodes: Vec::new(),
            departed: Vec::new(),
            primary: None,
            view: ViewNumber(0),
            chosen_in: ViewNumber(0),
            outstanding: VecDeque::new(),
            lowest: 1,
            sent: 0,
            ever_sent: 1,
            established: false,
            epoch: 0,
            scratch: Vec::new(),
            spares: Vec::new(),
            buffer: Vec::new(),
            heard_at: Time(0),
            probe: 0,
            turn: 0,
        }
    }

    /// The endpoint.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The node that is taken for the leader.
    pub fn primary(&self) -> Option<NodeId> {
        self.primary
    }

    /// The newest view heard of.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// The nodes that it is connected to.
    pub fn connected(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|n| !n.broken).map(|n| n.id)
    }

    /// How many requests have no reply.
    pub fn outstanding(&self) -> usize {
        self.outstanding.iter().filter(|o| !o.answered).count()
    }

    /// The longest request, in bytes of its arguments and four for each.
    pub fn longest_request(&self) -> usize {
        max_payload(self.config.sizes.client_ring_bytes) - wire::HEADER_BYTES
    }

    /// Sends a request. Returns its number, which [`Client::poll`] will give with the answer.
    pub fn post(&mut self, args: &[&[u8]]) -> Result<u64, RequestError> {
        if self.outstanding.len() >= self.config.max_outstanding {
            return Err(RequestError::Full(self.outstanding.len()));
        }
        if args.is_empty() || args.len() > MAX_ARGS {
            return Err(RequestError::Arguments(args.len()));
        }
        let (bytes, limit) = (wire::call_bytes(args), max_payload(self.config.sizes.client_ring_bytes));
        if bytes > limit {
            return Err(RequestError::TooLong { bytes, limit });
        }
        let seq = self.lowest + self.outstanding.len() as u64;
        let mut record = self.spares.pop().unwrap_or_default();
        record.fill(|out| wire::encode_call(self.epoch, seq, self.lowest, args, out));
        self.outstanding.push_back(Outstanding { record, epoch: self.epoch, answered: false });
        self.send();
        Ok(seq)
    }

    /// Whether the request of this number may have been sent to a node. A request that has not been sent cannot have been executed. For a request that was
    /// abandoned unsent, this is right until a later one is sent.
    pub fn was_sent(&self, seq: u64) -> bool {
        seq < self.ever_sent
    }

    /// Looks for the next answer and returns it, if there is one. This also retransmits what has to be sent again, so call it while any reply is awaited.
    pub fn poll(&mut self, now: Time) -> Option<Answer<'_>> {
        let head = self.advance(now)?;
        Some(self.answer(head))
    }

    /// Sends a request and waits for its answer. Between two looks it calls `idle`, which spins or parks as the caller sees fit, and returns `false` to give
    /// up.
    pub fn call(
        &mut self,
        args: &[&[u8]],
        mut clock: impl FnMut() -> Time,
        mut idle: impl FnMut(&mut F) -> bool,
    ) -> Result<Answer<'_>, RequestError> {
        if !self.outstanding.is_empty() {
            return Err(RequestError::Busy(self.outstanding()));
        }
        self.post(args)?;
        loop {
            if let Some(head) = self.advance(clock()) {
                return Ok(self.answer(head));
            }
            if !idle(&mut self.fabric) {
                return Err(RequestError::GivenUp);
            }
        }
    }

    /// Gives up every reply that is awaited. Whether those requests take effect is unknown.
    pub fn abandon(&mut self) {
        self.lowest += self.outstanding.len() as u64;
        self.sent = 0;
        self.spares.extend(self.outstanding.drain(..).map(|o| o.record));
    }

    fn answer(&self, head: Head) -> Answer<'_> {
        Answer { seq: head.seq, view: head.view, node: head.node, reply: &self.buffer[wire::HEADER_BYTES..] }
    }

    fn advance(&mut self, now: Time) -> Option<Head> {
        while let Some(event) = self.fabric.event() {
            self.peer_event(event);
        }
        self.complete();
        if self.outstanding.is_empty() || self.departed.len() > MAX_DEPARTED {
            self.departed.drain(..).for_each(|peer| self.fabric.forget(peer));
        }
        let head = self.read(now);
        if head.is_none() && !self.outstanding.is_empty() {
            self.look_elsewhere(now);
            if self.sent < self.outstanding.len() {
                self.send();
            }
        }
        head
    }

    fn peer_event(&mut self, event: PeerEvent) {
        match event {
            PeerEvent::Up { peer, identity } if identity.kind == PeerKind::Member => {
                let mut node = Node::new(identity.node, peer, self.config.session, self.config.sizes);
                node.introduce(&mut self.fabric, &self.config, self.ever_sent, self.epoch);
                // A later life of a node replaces the earlier one.
                self.nodes.retain(|n| n.id != identity.node);
                self.nodes.push(node);
                if self.primary == Some(identity.node) {
                    self.start_over();
                }
            }
            PeerEvent::Up { .. } => {}
            PeerEvent::Gone { peer, .. } => {
                if let Some(at) = self.nodes.iter().position(|n| n.peer == peer) {
                    let node = self.nodes.swap_remove(at);
                    if self.primary == Some(node.id) {
                        self.primary = None;
                    }
                }
                self.departed.push(peer);
            }
        }
    }

    /// Handles completions; once everything posted to a node is in its memory, the node is told to look.
    fn complete(&mut self) {
        while let Some(completion) = self.fabric.poll() {
            if !Component::Application.owns(completion.token) {
                continue;
            }
            let rest = layout::token_rest(completion.token);
            let peer = PeerId((rest >> 1) as u32);
            let Some(node) = self.nodes.iter_mut().find(|n| n.peer == peer) else { continue };
            match (rest & 1, completion.result) {
                (REQUEST, Ok(_)) => {
                    node.in_flight -= 1;
                    if node.in_flight == 0 {
                        self.fabric.nudge(peer);
                    }
                }
                (PROGRESS, Ok(position)) => {
                    node.asking = false;
                    node.broken |= !node.writer.note_consumed(position);
                }
                (_, Err(_)) => node.broken = true,
                _ => {}
            }
        }
    }

    /// Sends the primary the requests that it has not been sent, as far as there is room.
    fn send(&mut self) {
        let Some(primary) = self.primary else { return };
        let Some(node) = self.nodes.iter_mut().find(|n| n.id == primary && !n.broken) else { return };
        if self.sent < self.outstanding.len() && node.told != Some(self.epoch) {
            // The hello goes ahead of everything else.
            if !node.introduce(&mut self.fabric, &self.config, self.ever_sent, self.epoch) {
                node.ask_progress(&mut self.fabric);
                return self.complete();
            }
        }
        if !self.established {
            return self.complete();
        }
        while let Some(request) = self.outstanding.get_mut(self.sent) {
            if !request.answered {
                if request.epoch != self.epoch {
                    self.scratch.clear();
                    wire::with_epoch(request.record.payload(), self.epoch, &mut self.scratch);
                    request.record.fill(|out| out.extend_from_slice(&self.scratch));
                    request.epoch = self.epoch;
                }
                match node.writer.push(&mut self.fabric, &mut request.record, token(node.peer, REQUEST)) {
                    Some(posted) => node.in_flight += posted,
                    None => {
                        node.ask_progress(&mut self.fabric);
                        break;
                    }
                }
            }
            self.sent += 1;
            self.ever_sent = self.ever_sent.max(self.lowest + self.sent as u64);
        }
        self.complete();
    }

    /// Reads records until one is the answer to a request; its bytes are then in the buffer.
    fn read(&mut self, now: Time) -> Option<Head> {
        for _ in 0..self.nodes.len() {
            self.turn = (self.turn + 1) % self.nodes.len();
            loop {
                let node = &mut self.nodes[self.turn];
                let region = LocalRegion::Lane { writer: node.peer, name: layout::CLIENT_LANE };
                let Some(memory) = self.fabric.memory(region).filter(|_| !node.broken) else { break };
                if !node.reader.next(memory, &mut self.buffer) {
                    break;
                }
                // Seldom, as each update costs the server a cache miss; but before a quarter of the ring is exceeded, so that the server always has room.
                if node.reader.unpublished() >= node.writer.capacity() / 4 {
                    node.reader.publish(memory);
                }
                let id = node.id;
                let Ok(answer) = wire::decode_answer(&self.buffer) else {
                    node.broken = true;
                    break;
                };
                if self.primary == Some(id) || matches!(answer, Wire::Notice { .. } | Wire::Welcome { .. }) {
                    self.heard_at = now;
                }
                match answer {
                    Wire::Reply { seq, view } => {
                        self.view = self.view.max(view);
                        if self.settle(seq) {
                            // The next look starts at this node: where one answer is, there are often more.
                            self.turn = (self.turn + self.nodes.len() - 1) % self.nodes.len();
                            return Some(Head { seq, view, node: id });
                        }
                    }
                    Wire::Redirect { epoch, view, node, .. } if epoch == self.epoch => self.redirected(id, view, node, now),
                    // The redirected request was sent before we started over, and has been sent again since.
                    Wire::Redirect { .. } => {}
                    Wire::Notice { view } | Wire::Welcome { view } => {
                        self.established |= matches!(answer, Wire::Welcome { .. });
                        // A notice for the view in which the node was chosen tells nothing new.
                        if view >= self.view && (self.primary != Some(id) || view > self.chosen_in) {
                            self.view = view;
                            self.follow(Some(id), view);
                        }
                    }
                }
            }
        }
        None
    }

    /// Notes an answer. Returns whether it was awaited.
    fn settle(&mut self, seq: u64) -> bool {
        let awaited = seq
            .checked_sub(self.lowest)
            .and_then(|i| self.outstanding.get_mut(usize::try_from(i).ok()?))
            .is_some_and(|o| !std::mem::replace(&mut o.answered, true));
        while self.outstanding.front().is_some_and(|o| o.answered) {
            self.spares.extend(self.outstanding.pop_front().map(|o| o.record));
            self.lowest += 1;
            self.sent = self.sent.saturating_sub(1);
        }
        awaited
    }
}

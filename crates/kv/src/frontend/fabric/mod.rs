//! Requests written into the server's memory, as in HERD: each client has a lane here that only it writes, and keeps a lane in its own memory for our replies.
//! No system call is made on the way.
//!
//! Requests are executed exactly once. A client numbers its requests, and when the primary changes, it repeats those it has no reply to. The reply to a write
//! is kept in the replicated state, in the same entry as the write's effects, so a new primary has either both or neither (TRAPS 19). When a client has a
//! reply, it says so with its next request, and the reply is forgotten.

mod lane;
pub(crate) mod wire;

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use martlet_fabric::{Completion, Fabric, LocalRegion, PeerId};
use martlet_protocol::basics::layout::{self, Component, Sizes};
use martlet_protocol::basics::{Time, ViewNumber};
use martlet_protocol::replica::{ClientEvent, MAX_PART_BYTES, MAX_TRANSFER_BUDGET_BYTES, Replica};

use self::lane::Lane;
use self::wire::{Answer, Request};
use crate::commands::{Client, ClientSlot, Shared, find, flag};
use crate::resp::{Args, Protocol, Reply, Span};
use crate::store::{Effect, Known, KvMachine, SessionId};
use crate::turn::{Released, Turn};

/// How many requests of one client are taken in one turn.
const REQUESTS_PER_LANE: usize = 64;
/// How many clients' lanes are brought into the cache before they are needed.
const EXPECTED_LANES: usize = 16;
/// How many replies are kept for one client that confirms none.
pub const MAX_UNCONFIRMED: usize = 4096;
/// How many bytes of replies are kept for such a client in all. One reply has at most a quarter of the client's ring.
pub const MAX_UNCONFIRMED_BYTES: usize = 256 << 20;

// A client's session is transferred whole, together with the session of the other number of its pair.
const _: () = assert!(
    MAX_TRANSFER_BUDGET_BYTES + 2 * (MAX_UNCONFIRMED_BYTES + (64 << 20) / 4 + 16 * MAX_UNCONFIRMED) <= MAX_PART_BYTES,
    "a part with any two sessions is one that a learner takes"
);

/// The code of the error which says that a write may have taken effect, and will not be executed now.
pub const UNCERTAIN: &str = "UNCERTAIN";
/// The reply to a write that was sent before its session was ended: the client was unreachable for longer than replies are kept.
const OUTCOME_UNKNOWN: &str =
    "UNCERTAIN your session ended while you were away: this request may have taken effect before, and is not executed now";

/// What an operation on a client's lane was for: the low bits of its token.
const REPLY: u64 = 0;
const PROGRESS: u64 = 1;

fn token(peer: PeerId, what: u64) -> martlet_fabric::Token {
    Component::Application.token(u64::from(peer.0) << 1 | what)
}

/// The front end.
#[derive(Debug)]
pub struct FabricFront {
    sizes: Sizes,
    lanes: Vec<Lane>,
    /// The index of each client's lane among the lanes.
    places: HashMap<PeerId, usize>,
    /// The client that commands see. One is enough for all, since requests over the fabric leave nothing behind on a connection.
    slot: Option<ClientSlot>,
    record: Vec<u8>,
    spans: Vec<Span>,
    /// While primary: when the sessions that no client has claimed are ended.
    orphans_end_at: Option<Time>,
    /// Sessions whose connection has ended although their client may be alive, and when each is ended unless its client comes back.
    parted: VecDeque<(Time, SessionId)>,
}

impl FabricFront {
    /// A front end without clients.
    pub fn new(sizes: Sizes) -> FabricFront {
        FabricFront {
            sizes,
            lanes: Vec::new(),
            places: HashMap::new(),
            slot: None,
            record: Vec::new(),
            spans: Vec::new(),
            orphans_end_at: None,
            parted: VecDeque::new(),
        }
    }

    /// Whether nothing is left to do until a lane changes, an operation completes or a ticket is released.
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| !lane.unfinished && !lane.is_waiting_for_room())
    }

    /// The client on whose behalf requests without a connection are executed.
    pub(crate) fn slot(&mut self, shared: &mut Shared) -> ClientSlot {
        *self.slot.get_or_insert_with(|| {
            let mut client = Client::new("fabric".to_owned(), "fabric".to_owned(), true, shared.env.started_ms);
            client.protocol = Protocol::Resp3;
            client.stateless = true;
            shared.clients.add(client)
        })
    }

    /// Takes and executes requests.
    pub(crate) fn poll<R: Replica<Machine = KvMachine>>(&mut self, turn: &mut Turn<'_, R>) {
        while let Some(event) = turn.replica.client_event() {
            self.client_event(event, turn);
        }
        if self.lanes.is_empty() && self.orphans_end_at.is_none() && self.parted.is_empty() {
            return;
        }
        let slot = self.slot(turn.shared);
        for lane in &mut self.lanes {
            serve(lane, slot, &mut self.record, &mut self.spans, turn);
        }
        self.end_orphans(turn);
        self.end_parted(turn);
    }

    fn client_event<R: Replica<Machine = KvMachine>>(&mut self, event: ClientEvent, turn: &mut Turn<'_, R>) {
        match event {
            ClientEvent::Up(peer) => {
                self.places.insert(peer, self.lanes.len());
                self.lanes.push(Lane::new(peer, self.sizes.client_ring_bytes));
            }
            ClientEvent::Gone { peer, certain } => {
                let Some(at) = self.places.remove(&peer) else { return };
                let lane = self.lanes.swap_remove(at);
                if let Some(moved) = self.lanes.get(at) {
                    self.places.insert(moved.peer, at);
                }
                match lane.session {
                    Some(session) if turn.shared.env.is_primary && certain => turn.perform(Effect::End { session }),
                    // The client may be alive, and may repeat here or elsewhere what it has no reply to. Its time runs from when it was last seen.
                    Some(session) => {
                        self.parted.retain(|(_, parted)| *parted != session);
                        self.parted.push_back((turn.replica.now().after(turn.shared.env.config.session_grace_ns), session));
                    }
                    None => {}
                }
            }
        }
        turn.shared.stats.fabric_clients = self.lanes.len() as u64;
    }

    /// Ends the sessions of clients that went away while another node led: no other node will. Clients that were seen since then have a time of their own.
    fn end_orphans<R: Replica<Machine = KvMachine>>(&mut self, turn: &mut Turn<'_, R>) {
        let now = turn.replica.now();
        if !turn.shared.env.is_primary || self.orphans_end_at.is_none_or(|at| now < at) {
            return;
        }
        self.orphans_end_at = None;
        let mut claimed = self.claimed();
        claimed.extend(self.parted.iter().map(|(_, session)| *session));
        let orphans: Vec<SessionId> = turn
            .replica
            .machine()
            .sessions()
            .from(SessionId(0))
            .map(|(id, _)| id)
            .filter(|id| id.is_clients() && !claimed.contains(id))
            .collect();
        for session in orphans {
            turn.perform(Effect::End { session });
        }
    }

    /// Ends the sessions of clients that have not come back.
    fn end_parted<R: Replica<Machine = KvMachine>>(&mut self, turn: &mut Turn<'_, R>) {
        let now = turn.replica.now();
        if self.parted.front().is_none_or(|(due, _)| now < *due) {
            return;
        }
        let claimed = self.claimed();
        while let Some(&(_, session)) = self.parted.front().filter(|(due, _)| now >= *due) {
            self.parted.pop_front();
            if turn.shared.env.is_primary && !claimed.contains(&session) {
                turn.perform(Effect::End { session });
            }
        }
    }

    /// The sessions whose clients are connected.
    fn claimed(&self) -> BTreeSet<SessionId> {
        self.lanes.iter().filter_map(|lane| lane.session).collect()
    }

    /// Sends the replies that may be sent. Returns how many were sent.
    pub(crate) fn release<R: Replica<Machine = KvMachine>>(&mut self, released: Released, replica: &mut R) -> usize {
        self.lanes.iter_mut().map(|lane| lane.send(released, replica.fabric())).sum()
    }

    /// Whether any peer has said that it is a client. A peer that only reads what nodes publish has not.
    pub(crate) fn has_clients(&self) -> bool {
        self.lanes.iter().any(|lane| lane.session.is_some())
    }

    /// A hint that this node may lead soon: brings the memory into the cache where its notices would be written.
    pub(crate) fn expect_to_lead<F: Fabric>(&self, fabric: &F) {
        self.lanes.iter().take(EXPECTED_LANES).for_each(|lane| lane.expect(fabric));
    }

    /// Handles the completion of an operation on a client's lane.
    pub(crate) fn complete<R: Replica<Machine = KvMachine>>(&mut self, replica: &mut R, completion: Completion) {
        let rest = layout::token_rest(completion.token);
        let peer = PeerId((rest >> 1) as u32);
        let Some(lane) = self.places.get(&peer).map(|at| &mut self.lanes[*at]) else { return };
        match (rest & 1, completion.result) {
            (REPLY, Ok(_)) if lane.reply_stands() => replica.fabric().nudge(peer),
            (PROGRESS, Ok(position)) => lane.progress(position),
            // An event will tell that the client is gone.
            (_, Err(error)) => {
                tracing::debug!(?peer, %error, "the connection to a client over the fabric is lost");
                lane.broken = true;
            }
            _ => {}
        }
    }

    /// This node became primary or ceased to be. Replies that wait are void. A new primary notifies its clients, so that they repeat at once what they are
    /// waiting for.
    pub(crate) fn reign_changed<R: Replica<Machine = KvMachine>>(&mut self, replica: &mut R, shared: &mut Shared) {
        // A leader ends all of them in time; a node that does not lead cannot.
        self.parted.clear();
        self.orphans_end_at = shared.env.is_primary.then(|| replica.now().after(shared.env.config.session_grace_ns));
        let elsewhere = shared.env.primary.map(|p| p.node).filter(|_| !shared.env.is_primary);
        for lane in &mut self.lanes {
            shared.stats.voided_connections += u64::from(lane.void(shared.env.view_number, elsewhere));
            if shared.env.is_primary {
                lane.answer(Answer::Notice { view: shared.env.view_number }, None, |_| {});
            }
        }
    }
}

/// Takes a client's requests, as many as there are and the turn allows.
fn serve<R: Replica<Machine = KvMachine>>(
    lane: &mut Lane,
    slot: ClientSlot,
    record: &mut Vec<u8>,
    spans: &mut Vec<Span>,
    turn: &mut Turn<'_, R>,
) {
    lane.unfinished = false;
    let region = LocalRegion::Lane { writer: lane.peer, name: layout::CLIENT_LANE };
    for _ in 0..REQUESTS_PER_LANE {
        let Some(memory) = turn.replica.fabric().memory(region) else { return };
        if lane.broken || !lane.reader.maybe(memory) {
            lane.publish(memory, false);
            return;
        }
        if !lane.has_reply_room() || !turn.takes(layout_max(lane)) {
            break;
        }
        let Some(memory) = turn.replica.fabric().memory(region) else { return };
        if !lane.reader.next(memory, record) {
            return;
        }
        lane.publish(memory, false);
        // What has arrived was sent before this.
        turn.clock.forget();
        match wire::decode_request(record, spans) {
            Ok(Request::Hello { epoch, session, next, salt, by_quorum }) => {
                if !SessionId(session).is_clients() || !lane.introduce(SessionId(session), next, salt, by_quorum) {
                    turn.shared.stats.protocol_errors += 1;
                    tracing::warn!(peer = ?lane.peer, "a client over the fabric introduced itself wrongly: its requests are ignored from now on");
                    lane.broken = true;
                } else if turn.shared.env.is_primary {
                    open_session(lane, SessionId(session), turn);
                    turn.finish_request();
                    lane.answer(Answer::Welcome { view: turn.shared.env.view_number }, Some(turn.wait(lane.by_quorum)), |_| {});
                } else {
                    let (view, node) = (turn.shared.env.view_number, turn.shared.env.primary.map(|p| p.node));
                    lane.answer(Answer::Redirect { epoch, seq: 0, view, node }, None, |_| {});
                }
            }
            Ok(Request::Call { epoch, seq, lowest }) => {
                turn.shared.stats.fabric_requests += 1;
                lane.epoch = epoch;
                call(lane, slot, seq, lowest, Args::new(record, spans), turn);
            }
            Err(error) => {
                turn.shared.stats.protocol_errors += 1;
                tracing::warn!(peer = ?lane.peer, %error, "a client over the fabric broke the protocol: its requests are ignored from now on");
                lane.broken = true;
            }
        }
    }
    lane.unfinished = true;
}

/// Makes sure that the session is in the state. A client sends no request before it has heard that its session is there. So a session that is not there is new,
/// or was ended while its client was away. In the latter case requests that the client sent elsewhere may have been executed. From here on those are settled,
/// whichever node is asked for them.
fn open_session<R: Replica<Machine = KvMachine>>(lane: &mut Lane, session: SessionId, turn: &mut Turn<'_, R>) {
    // While this node leads, no session ends while its lane is there.
    let reign = Some(turn.shared.env.reign);
    if std::mem::replace(&mut lane.opened_in, reign) != reign && !turn.replica.machine().sessions().is_known(session) {
        turn.perform(Effect::Answer { session, seq: 0, lowest: lane.fresh_from, reply: &[] });
    }
}

/// The longest request of a lane.
fn layout_max(lane: &Lane) -> usize {
    martlet_fabric::ring::max_payload(lane.capacity())
}

fn call<R: Replica<Machine = KvMachine>>(lane: &mut Lane, slot: ClientSlot, seq: u64, lowest: u64, args: Args<'_>, turn: &mut Turn<'_, R>) {
    let view: ViewNumber = turn.shared.env.view_number;
    // The client sent this before it knew of the refusal. It will send it again, after the request that was refused: a notice has told it to, or will.
    if lane.refused == Some(lane.epoch) && turn.shared.env.is_primary {
        return;
    }
    let is_write = find(args.at(0)).is_some_and(|c| c.has(flag::WRITE));
    let Some(session) = lane.session else {
        turn.shared.stats.protocol_errors += 1;
        tracing::warn!(peer = ?lane.peer, "a client over the fabric did not introduce itself: its requests are ignored from now on");
        lane.broken = true;
        return;
    };
    if is_write && turn.shared.env.is_primary {
        open_session(lane, session, turn);
        let sessions = turn.replica.machine().sessions();
        match sessions.look_up(session, seq) {
            Known::New => {}
            Known::Settled => {
                // If the client has a reply already, it ignores this one.
                turn.shared.stats.fabric_repeats += 1;
                lane.answer(Answer::Reply { seq, view }, Some(turn.wait(lane.by_quorum)), |out| {
                    Reply::new(out, Protocol::Resp3).error(OUTCOME_UNKNOWN)
                });
                turn.finish_request();
                return;
            }
            Known::Answered(reply) => {
                turn.shared.stats.fabric_repeats += 1;
                lane.open(Answer::Reply { seq, view });
                lane.buffer().extend_from_slice(reply);
                lane.close(Some(turn.wait(lane.by_quorum)));
                return;
            }
        }
        let (unconfirmed, bytes) = sessions.unconfirmed(session, lowest);
        if unconfirmed >= MAX_UNCONFIRMED || bytes >= MAX_UNCONFIRMED_BYTES {
            // If this node no longer leads, this reply is never sent: another node may have room.
            lane.answer(Answer::Reply { seq, view }, Some(turn.wait(lane.by_quorum)), |out| {
                let error = format!("ERR {unconfirmed} replies with {bytes} bytes are not confirmed yet: confirm some first");
                Reply::new(out, Protocol::Resp3).error(&error);
            });
            return;
        }
    }
    let limit = layout_max(lane) - wire::HEADER_BYTES;
    let frame = lane.open(Answer::Reply { seq, view });
    let text_at = lane.buffer().len();
    let executed = turn.execute(slot, args, lane.buffer());
    if executed.redirected {
        let node = turn.shared.env.primary.map(|p| p.node);
        let epoch = lane.epoch;
        lane.refused = Some(epoch);
        lane.reopen(frame, Answer::Redirect { epoch, seq, view, node });
        lane.close(None);
        return;
    }
    let len = lane.buffer().len() - text_at;
    // A write that was refused, for lack of memory, say, is remembered as well. Otherwise a later copy of it would be executed if there were room by then.
    let kept = is_write && turn.shared.env.is_primary;
    let limit = if kept { limit.min(turn.longest_kept_reply()) } else { limit };
    if len > limit {
        lane.buffer().truncate(text_at);
        let error = format!("ERR the request was executed, but its reply has {len} bytes, and at most {limit} can be sent or kept");
        Reply::new(lane.buffer(), Protocol::Resp3).error(&error);
    }
    if kept {
        // The reply goes into the same entry as the request's effects.
        let reply = &lane.buffer()[text_at..];
        turn.perform(Effect::Answer { session, seq, lowest, reply });
    }
    lane.close((kept || executed.data).then(|| turn.wait(lane.by_quorum)));
    turn.finish_request();
}

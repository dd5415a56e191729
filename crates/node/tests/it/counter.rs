//! A tiny application: a counter that clients increment and read. Each increment is done exactly once, however often its client repeats it.

use std::collections::{BTreeMap, VecDeque};

use martlet_fabric::ring::{Reader, Record, Writer};
use martlet_fabric::{Completion, Fabric, LocalRegion, PeerEvent, PeerId, Region, Remote, Token};
use martlet_protocol::basics::layout::{CLIENT_LANE, Component, Sizes};
use martlet_protocol::basics::{LogIndex, Time, ViewNumber};
use martlet_protocol::replica::{
    Application, ClientEvent, MadeUpClient, Replica, Standing, StateMachine, Ticket, UnreadableEntry, UnreadablePart,
};

/// A client's request. `seq` is the client's own count of its increments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub client: u64,
    pub seq: u64,
    pub add: bool,
}

impl Request {
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.client.to_le_bytes());
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.push(u8::from(self.add));
    }

    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (client, rest) = bytes.split_first_chunk::<8>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let [add] = rest else { return None };
        Some(Request { client: u64::from_le_bytes(*client), seq: u64::from_le_bytes(*seq), add: *add == 1 })
    }
}

/// The reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub seq: u64,
    pub add: bool,
    /// `None`: whether the request took effect is unknown, and another node should be asked.
    pub value: Option<u64>,
    pub view: ViewNumber,
}

impl Reply {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.push(u8::from(self.add));
        out.push(u8::from(self.value.is_some()));
        out.extend_from_slice(&self.value.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.view.0.to_le_bytes());
    }

    pub fn decode(bytes: &[u8]) -> Reply {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Reply { seq: word(0), add: bytes[8] == 1, value: (bytes[9] == 1).then(|| word(10)), view: ViewNumber(word(18)) }
    }
}

/// The state: the count, and for each client its last increment and the result.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Counter {
    value: u64,
    sessions: BTreeMap<u64, (u64, u64)>,
    /// The highest number of an increment that this build can read. `None`: it reads all.
    reads_up_to: Option<u64>,
    unreadable: Option<UnreadableEntry>,
}

impl Counter {
    /// The counter of an earlier build, which reads entries up to this number.
    pub fn that_reads_up_to(number: u64) -> Counter {
        Counter { reads_up_to: Some(number), ..Counter::default() }
    }

    /// The result of an increment, and whether it is a new one.
    fn add(&mut self, client: u64, seq: u64) -> (u64, bool) {
        match self.sessions.get(&client) {
            Some((last, result)) if *last >= seq => (*result, false),
            _ => {
                self.value += 1;
                self.sessions.insert(client, (seq, self.value));
                (self.value, true)
            }
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")))
}

impl StateMachine for Counter {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        let mut w = words(command);
        let (client, seq) = (w.next().expect("a client"), w.next().expect("a number"));
        if self.unreadable.is_some() {
            return;
        }
        if self.reads_up_to.is_some_and(|most| seq > most) {
            self.unreadable = Some(UnreadableEntry { index, why: format!("{seq} is a number of a later build") });
            return;
        }
        self.add(client, seq);
    }

    fn unreadable(&self) -> Option<&UnreadableEntry> {
        self.unreadable.as_ref()
    }

    fn transfer(&self, cursor: u64, _budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        // One session in each part, so that every join takes several parts, with commands between them. The count goes first.
        if cursor == 0 {
            out.extend_from_slice(&0u64.to_le_bytes());
            out.extend_from_slice(&self.value.to_le_bytes());
        }
        let (client, (seq, result)) = self.sessions.range(cursor..).next()?;
        for word in [1, cursor, *client, *seq, *result] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        client.checked_add(1)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        let mut w = words(part);
        while let Some(kind) = w.next() {
            let mut next = || w.next().expect("a whole part");
            if kind == 0 {
                self.value = next();
            } else {
                let (from, client, seq, result) = (next(), next(), next(), next());
                self.sessions.retain(|c, _| !(from..=client).contains(c));
                self.sessions.insert(client, (seq, result));
            }
        }
        Ok(())
    }

    fn clear(&mut self) {
        *self = Counter { reads_up_to: self.reads_up_to, ..Counter::default() };
    }

    fn digest(&self) -> u64 {
        self.sessions.iter().fold(self.value, |d, (c, (s, r))| d.wrapping_mul(31).wrapping_add(c ^ s.rotate_left(20) ^ r.rotate_left(40)))
    }
}

struct Client {
    peer: PeerId,
    reader: Reader,
    writer: Writer,
}

/// Serves the counter to clients on the fabric.
pub struct CounterApp {
    ring: usize,
    clients: Vec<Client>,
    waiting: VecDeque<(Ticket, PeerId, Reply)>,
    reign: u64,
    bytes: Vec<u8>,
    record: Record,
}

impl CounterApp {
    pub fn new(sizes: Sizes) -> CounterApp {
        CounterApp {
            ring: sizes.client_ring_bytes,
            clients: Vec::new(),
            waiting: VecDeque::new(),
            reign: 0,
            bytes: Vec::new(),
            record: Record::default(),
        }
    }

    fn send<F: Fabric>(&mut self, fabric: &mut F, to: PeerId, reply: Reply) {
        let Some(client) = self.clients.iter_mut().find(|c| c.peer == to) else { return };
        self.record.fill(|out| reply.encode(out));
        // A client of these tests has only one request under way, so there is always room once its progress is known.
        fabric.read_word(client.writer.consumed_word(), Component::Application.token(u64::from(to.0)));
        client.writer.push(fabric, &mut self.record, Component::Application.token(1 << 32));
        fabric.nudge(to);
    }
}

impl Application for CounterApp {
    type Machine = Counter;

    fn poll<R: Replica<Machine = Counter>>(&mut self, replica: &mut R) -> usize {
        while let Some(event) = replica.client_event() {
            match event {
                ClientEvent::Up(peer) => {
                    let lane = Remote { peer, region: Region::Lane(CLIENT_LANE), offset: 0 };
                    self.clients.push(Client { peer, reader: Reader::new(), writer: Writer::new(lane, self.ring) });
                }
                ClientEvent::Gone { peer, .. } => self.clients.retain(|c| c.peer != peer),
            }
        }
        if self.reign != replica.reign() {
            self.reign = replica.reign();
            for (_, peer, reply) in std::mem::take(&mut self.waiting) {
                self.send(replica.fabric(), peer, Reply { value: None, ..reply });
            }
        }
        let mut taken = 0;
        for at in 0..self.clients.len() {
            let peer = self.clients[at].peer;
            while let Some(lane) = replica.fabric().memory(LocalRegion::Lane { writer: peer, name: CLIENT_LANE }) {
                let reader = &mut self.clients[at].reader;
                if !reader.next(lane, &mut self.bytes) {
                    reader.publish(lane);
                    break;
                }
                taken += 1;
                let request = Request::decode(&self.bytes).expect("the tests' clients send nothing else");
                let view = replica.view();
                let reply = Reply { seq: request.seq, add: request.add, value: None, view };
                if replica.standing() != Standing::Primary || !replica.has_room(64) {
                    self.send(replica.fabric(), peer, reply);
                    continue;
                }
                let value = if request.add {
                    let (value, new) = replica.machine_mut().add(request.client, request.seq);
                    if new {
                        let mut effect = Vec::with_capacity(16);
                        effect.extend_from_slice(&request.client.to_le_bytes());
                        effect.extend_from_slice(&request.seq.to_le_bytes());
                        replica.propose(&effect).expect("it is primary, and has room");
                    }
                    value
                } else {
                    replica.machine().value
                };
                self.waiting.push_back((replica.ticket(), peer, Reply { value: Some(value), ..reply }));
            }
        }
        taken
    }

    fn release<R: Replica<Machine = Counter>>(&mut self, replica: &mut R) -> usize {
        let mut sent = 0;
        while let Some((ticket, peer, reply)) = self.waiting.front().copied() {
            if ticket > replica.released() || self.reign != replica.reign() {
                break;
            }
            self.waiting.pop_front();
            self.send(replica.fabric(), peer, reply);
            sent += 1;
        }
        sent
    }

    fn complete<R: Replica<Machine = Counter>>(&mut self, _replica: &mut R, completion: Completion) {
        let rest = martlet_protocol::basics::layout::token_rest(completion.token);
        if let (Ok(position), Some(client)) = (completion.result, self.clients.iter_mut().find(|c| u64::from(c.peer.0) == rest)) {
            client.writer.note_consumed(position);
        }
    }

    fn understudy(&self, sizes: Sizes) -> Option<(CounterApp, Counter)> {
        Some((CounterApp::new(sizes), Counter::default()))
    }

    fn made_up_client<F: Fabric + 'static>(&self, endpoint: F, sizes: Sizes) -> Option<Box<dyn MadeUpClient>> {
        Some(Box::new(Rehearser { endpoint, ring: sizes.client_ring_bytes, lanes: Vec::new(), adds: 0, acknowledged: 0, told: Vec::new() }))
    }
}

/// A client for rehearsals: it increments by one again and again, and asks every node.
struct Rehearser<F> {
    endpoint: F,
    ring: usize,
    lanes: Vec<Client>,
    adds: u64,
    acknowledged: u64,
    /// The nodes that it has asked for the present increment.
    told: Vec<PeerId>,
}

impl<F: Fabric> MadeUpClient for Rehearser<F> {
    fn ask(&mut self) {
        if self.adds == self.acknowledged {
            self.adds += 1;
            self.told.clear();
        }
    }

    fn poll(&mut self, _now: Time) -> bool {
        while let Some(event) = self.endpoint.event() {
            let PeerEvent::Up { peer, .. } = event else { panic!("{event:?}") };
            let lane = Remote { peer, region: Region::Lane(CLIENT_LANE), offset: 0 };
            self.lanes.push(Client { peer, reader: Reader::new(), writer: Writer::new(lane, self.ring) });
        }
        let (mut bytes, mut record) = (Vec::new(), Record::default());
        for Client { peer, reader, writer } in &mut self.lanes {
            let lane = self.endpoint.memory(LocalRegion::Lane { writer: *peer, name: CLIENT_LANE }).expect("one for each node");
            while reader.next(lane, &mut bytes) {
                let reply = Reply::decode(&bytes);
                match reply.value {
                    // In a rehearsal no other client adds, and nothing is added twice or lost.
                    Some(value) => {
                        assert_eq!((reply.seq, value), (self.adds, self.adds), "an increment of a rehearsal");
                        self.acknowledged = self.adds;
                    }
                    None => self.told.retain(|told| told != peer),
                }
            }
            reader.publish(lane);
            if self.acknowledged < self.adds && !self.told.contains(peer) {
                self.endpoint.read_word(writer.consumed_word(), Token(1));
                while let Some(done) = self.endpoint.poll() {
                    done.result.iter().filter(|_| done.token == Token(1)).for_each(|at| assert!(writer.note_consumed(*at)));
                }
                record.fill(|out| Request { client: 1, seq: self.adds, add: true }.encode(out));
                // In a rehearsal the lanes to the others are not read, and fill up.
                if writer.push(&mut self.endpoint, &mut record, Token(2)).is_some() {
                    self.told.push(*peer);
                }
                while self.endpoint.poll().is_some() {}
            }
        }
        self.acknowledged == self.adds && self.adds > 0
    }
}

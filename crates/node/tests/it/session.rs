//! A client of the counter that asks until it gets an answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use martlet_fabric::ring::{Reader, Record, Writer};
use martlet_fabric::{Fabric as _, LocalRegion, NodeId, PeerEvent, PeerId, Region, Remote, Token};
use martlet_node::client::ClientEndpoint;
use martlet_node::config::Cluster;
use martlet_protocol::basics::layout::CLIENT_LANE;

use crate::counter::{Reply, Request};

/// After this long without an answer, another node is asked too: the one asked may be paused.
const PATIENCE: Duration = Duration::from_millis(20);

struct Lanes {
    node: NodeId,
    reader: Reader,
    writer: Writer,
}

pub struct Session {
    endpoint: ClientEndpoint,
    client: u64,
    adds: u64,
    gets: u64,
    ring: usize,
    lanes: BTreeMap<PeerId, Lanes>,
    /// The node that it asks first.
    target: Option<PeerId>,
    bytes: Vec<u8>,
    record: Record,
}

impl Session {
    pub fn open(cluster: &Cluster, client: u64) -> Session {
        let endpoint = ClientEndpoint::open(cluster).expect("an endpoint");
        let ring = cluster.sizes().client_ring_bytes;
        Session {
            endpoint,
            client,
            adds: 0,
            gets: 0,
            ring,
            lanes: BTreeMap::new(),
            target: None,
            bytes: Vec::new(),
            record: Record::default(),
        }
    }

    /// Increments the counter and returns its new value.
    pub fn add(&mut self) -> u64 {
        self.adds += 1;
        self.call(Request { client: self.client, seq: self.adds, add: true }).0
    }

    /// Reads the counter.
    pub fn get(&mut self) -> u64 {
        self.gets += 1;
        self.call(Request { client: self.client, seq: self.gets, add: false }).0
    }

    /// The value, and the node that answered.
    fn call(&mut self, request: Request) -> (u64, NodeId) {
        let mut asked = Instant::now();
        let mut pending = true;
        loop {
            self.take_events();
            if self.target.is_none_or(|t| !self.lanes.contains_key(&t)) {
                self.target = self.lanes.keys().next().copied();
                pending = true;
            }
            if let Some(target) = self.target.filter(|_| pending) {
                self.send(target, request);
                (pending, asked) = (false, Instant::now());
            }
            for (from, reply) in self.replies() {
                if (reply.seq, reply.add) != (request.seq, request.add) {
                    continue; // to something that has been answered by somebody else meanwhile
                }
                match reply.value {
                    Some(value) => {
                        self.target = Some(from);
                        return (value, self.lanes[&from].node);
                    }
                    None if self.target == Some(from) => pending = self.next_target(),
                    None => {}
                }
            }
            if asked.elapsed() > PATIENCE {
                pending = self.next_target();
            }
            self.endpoint.wait(Duration::from_micros(100));
        }
    }

    /// Puts a request into one node's memory, and does not wait.
    pub fn post_to(&mut self, node: NodeId, request: Request) {
        self.take_events();
        let peer = self.endpoint.peer(node).expect("it is connected");
        self.send(peer, request);
    }

    /// Everything that one node has answered so far, to any request.
    pub fn answers_of(&mut self, node: NodeId) -> Vec<Reply> {
        self.take_events();
        let peer = self.endpoint.peer(node);
        self.replies().into_iter().filter(|(from, _)| Some(*from) == peer).map(|(_, reply)| reply).collect()
    }

    pub fn is_connected(&mut self, node: NodeId) -> bool {
        self.take_events();
        self.endpoint.peer(node).is_some()
    }

    fn next_target(&mut self) -> bool {
        let after = self.target.and_then(|t| self.lanes.range(t..).nth(1).map(|(p, _)| *p));
        self.target = after.or(self.lanes.keys().next().copied());
        true
    }

    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    let lane = Remote { peer, region: Region::Lane(CLIENT_LANE), offset: 0 };
                    self.lanes.insert(peer, Lanes { node: identity.node, reader: Reader::new(), writer: Writer::new(lane, self.ring) });
                }
                PeerEvent::Gone { peer, .. } => {
                    self.lanes.remove(&peer);
                }
            }
        }
    }

    fn send(&mut self, to: PeerId, request: Request) {
        let Some(lanes) = self.lanes.get_mut(&to) else { return };
        let fabric = self.endpoint.fabric();
        fabric.read_word(lanes.writer.consumed_word(), Token(1));
        while let Some(done) = fabric.poll() {
            if done.token == Token(1)
                && let Ok(position) = done.result
            {
                lanes.writer.note_consumed(position);
            }
        }
        self.record.fill(|out| request.encode(out));
        // A paused node's lane fills up. A client that asks again later finds room.
        if lanes.writer.push(fabric, &mut self.record, Token(2)).is_some() {
            while fabric.poll().is_some() {}
            fabric.nudge(to);
        }
    }

    fn replies(&mut self) -> Vec<(PeerId, Reply)> {
        let mut found = Vec::new();
        for (peer, lanes) in &mut self.lanes {
            let Some(lane) = self.endpoint.fabric().memory(LocalRegion::Lane { writer: *peer, name: CLIENT_LANE }) else { continue };
            while lanes.reader.next(lane, &mut self.bytes) {
                found.push((*peer, Reply::decode(&self.bytes)));
            }
            lanes.reader.publish(lane);
        }
        found
    }
}

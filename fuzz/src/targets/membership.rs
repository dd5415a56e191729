//! What peers send to the membership of a process, and what they write where it reads: datagrams, slot words, death words, heartbeats, lease words, boards.
//! Whatever these are, the membership goes on: it keeps its promises, and counts what made no sense.
//!
//! Two things are left out. They are consensus itself, which holds among processes that stop but do not lie (`docs/verification.md`): a second view of a number
//! that is decided already, and an accepted value that is not a view.

use martlet_fabric::fuzz::Input;
use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::{Identity, Incarnation, Levels, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind};
use martlet_protocol::basics::layout::{BOARD, LIFE, MAX_MEMBERS, Sizes, VIEW_RECORD_BYTES, regions};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber, sealed};
use martlet_protocol::consensus::rpc::{RpcBody, RpcReply, RpcRequest, RpcVerdict};
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Config, Core, Departed, Event, Evidence, Leases, Member, Roles, View};

use super::memory::{OwnMemory, What};

const PEERS: u32 = 3;

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut fabric = OwnMemory::default();
    for (name, bytes) in regions(Sizes { log_ring_bytes: 512, client_ring_bytes: 512 }).public {
        fabric.add(LocalRegion::Public(name), bytes);
    }
    let choice = input.u8();
    let roles = Roles::COORDINATOR.with(Roles::REPLICA);
    let leases = if choice & 1 == 0 { Leases::Primary } else { Leases::Everybody };
    let core = Core::new(Time(1), Config { leases, seed: 5, ..Config::new(process(0), roles) });
    let mut world = World { fabric, core, now: Time(1), newest: ViewNumber(0), active: ViewNumber(0), excluded: false };
    for peer in 1..=PEERS {
        world.up(peer);
    }
    if choice & 2 == 0 {
        world.core.bootstrap(world.now, &mut world.fabric);
    } else {
        world.core.join(world.now);
    }
    world.check();
    while !input.is_empty() {
        world.step(&mut input);
        world.check();
    }
}

fn process(node: u16) -> ProcessId {
    ProcessId { node: NodeId(node), incarnation: Incarnation(1) }
}

struct World {
    fabric: OwnMemory,
    core: Core,
    now: Time,
    newest: ViewNumber,
    /// The newest view that was active here.
    active: ViewNumber,
    excluded: bool,
}

impl World {
    fn up(&mut self, peer: u32) {
        let identity = Identity { node: NodeId(peer as u16), incarnation: Incarnation(1), kind: PeerKind::Member };
        self.core.handle_peer(self.now, &mut self.fabric, PeerEvent::Up { peer: PeerId(peer), identity });
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0 | 1 => {
                // Our clocks never get near the end of their range.
                self.now = self.now.after((input.number() % (1 << 20)) * 100_000);
                let progress = input.u8() != 7;
                self.core.tick(self.now, &mut self.fabric, progress);
            }
            2 => {
                let len = usize::from(input.u8());
                let bytes = input.bytes(len);
                self.datagram(input.u8(), bytes);
            }
            3 | 4 => {
                let message = self.message(input);
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                self.datagram(input.u8(), &bytes);
            }
            5 | 6 => self.complete_as_expected(),
            7 => {
                let word = if input.u8() & 1 == 0 { input.number() } else { input.u64() };
                self.complete(Ok(word), None);
            }
            8 => {
                let view = self.view(input);
                let number = if input.u8() & 1 == 0 { view.number.0 } else { input.number() };
                self.complete(Ok(number), Some(&view));
            }
            9 => {
                let error = if input.u8() & 1 == 0 { OpError::PeerLost } else { OpError::AccessLost };
                self.complete(Err(error), None);
            }
            10 => {
                let peer = u32::from(input.u8()) % PEERS + 1;
                match input.u8() % 3 {
                    0 => self.up(peer),
                    choice => {
                        let gone = PeerEvent::Gone { peer: PeerId(peer), certain: choice == 1 };
                        self.core.handle_peer(self.now, &mut self.fabric, gone);
                    }
                }
            }
            _ => {
                let (node, choice) = (u16::from(input.u8()) % 5, input.u8());
                match choice % 4 {
                    0 => self.core.promote(self.now, &mut self.fabric, process(node)),
                    1 => self.core.evict(self.now, &mut self.fabric, process(node)),
                    2 => self.core.set_lease_ns(self.now, &mut self.fabric, input.number().saturating_mul(1_000)),
                    // Writes to public memory. Death words and the board are not the others' to write, but nothing keeps them from it.
                    _ => {
                        let region = LocalRegion::Public(if choice & 4 == 0 { BOARD } else { LIFE });
                        self.fabric.scribble(region, usize::from(input.u16()), input.u64());
                    }
                }
            }
        }
    }

    /// Delivers a datagram, unless it is a lie about what is decided.
    fn datagram(&mut self, from: u8, bytes: &[u8]) {
        match Message::decode(bytes) {
            Some(Message::View(view)) if self.is_second(&view) => return,
            Some(Message::Request(request)) if matches!(&request.body, RpcBody::Accept(value) if View::decode(value).is_err()) => return,
            Some(Message::Reply(RpcReply { verdict: RpcVerdict::Promised { value, .. }, .. })) if self.is_lie(&value) => return,
            _ => {}
        }
        let from = PeerId(u32::from(from) % (PEERS + 2));
        self.core.handle_datagram(self.now, &mut self.fabric, from, bytes);
    }

    /// Whether a value that is said to have been accepted is not a view, or is a second view of its number.
    fn is_lie(&self, value: &[u8]) -> bool {
        !value.is_empty() && View::decode(value).map_or(true, |view| self.is_second(&view))
    }

    fn is_second(&self, view: &View) -> bool {
        self.core.view().is_some_and(|known| known.number == view.number && known != view)
    }

    fn complete_as_expected(&mut self) {
        let word = match self.fabric.posted.front().map(|posted| posted.what) {
            Some(What::Swap { expected }) => expected,
            _ => 0,
        };
        self.complete(Ok(word), None);
    }

    fn complete(&mut self, result: Result<u64, OpError>, record: Option<&View>) {
        let mut words = Vec::new();
        if let Some(view) = record.filter(|view| !self.is_second(view)) {
            let (mut value, mut encoded) = (Vec::new(), Vec::new());
            view.encode(&mut value);
            sealed::encode(view.number.0, 1, &value, &mut encoded);
            let memory: Vec<AtomicU64> = (0..VIEW_RECORD_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
            sealed::store(&memory, &encoded);
            words = memory.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        }
        if let Some(completion) = self.fabric.complete(result, &words) {
            self.core.handle_completion(self.now, &mut self.fabric, completion);
        }
    }

    fn message(&self, input: &mut Input<'_>) -> Message {
        let who = process(u16::from(input.u8()) % 5);
        match input.u8() % 13 {
            0 => Message::Heartbeat { view: ViewNumber(self.newest.0 + u64::from(input.u8() % 3)), heard: input.u16() },
            1 => Message::Notice { process: who, evidence: evidence(input.u8()) },
            2 => {
                let address = "x".repeat(usize::from(input.u8()) % 97);
                let reaches = (0..input.u8() % 5).map(|node| process(u16::from(node))).collect();
                let levels = levels(input.u8());
                Message::Join { view: self.newest, roles: Roles(input.u8() & 15), levels, address, reaches }
            }
            3 => Message::Promote { process: who },
            4 => Message::SetLease { lease_ns: input.number().saturating_mul(1_000) },
            5 => Message::View(self.view(input)),
            6 => Message::Vouch { process: who },
            7 => Message::Refuse { least: Incarnation(input.number()) },
            8 => Message::Frozen { view: ViewNumber(self.newest.0 + u64::from(input.u8() % 3)) },
            11 => Message::Unsuited { level: 1 + input.u8() % 3 },
            12 => Message::RaiseLevel { level: 1 + input.u8() % 3 },
            9 => {
                let (view, ballot) = (ViewNumber(self.newest.0 + u64::from(input.u8() % 3)), input.number());
                let verdict = match input.u8() % 5 {
                    0 => RpcVerdict::Accepted,
                    1 => RpcVerdict::Rejected { min: input.number() },
                    2 => RpcVerdict::NotFrozen { word: input.u64() },
                    3 => RpcVerdict::Promised { accepted: 0, value: Vec::new() },
                    _ => {
                        let mut value = Vec::new();
                        self.view(input).encode(&mut value);
                        RpcVerdict::Promised { accepted: input.number(), value }
                    }
                };
                Message::Reply(RpcReply { view, ballot, verdict })
            }
            _ => Message::Request(RpcRequest {
                view: ViewNumber(self.newest.0 + u64::from(input.u8() % 3)),
                ballot: input.number(),
                body: RpcBody::Prepare,
            }),
        }
    }

    /// Any view that decodes; most are the next.
    fn view(&self, input: &mut Input<'_>) -> View {
        let number = match input.u8() {
            255 => input.u64() % (martlet_protocol::basics::layout::LAST_VIEW + 1),
            near => self.newest.0 + u64::from(near % 4),
        };
        let mut members: Vec<Member> = Vec::new();
        for _ in 0..usize::from(input.u8()) % (MAX_MEMBERS + 1) {
            let id = ProcessId { node: NodeId(u16::from(input.u8()) % 5), incarnation: Incarnation(u64::from(input.u8()) % 3) };
            if !members.iter().any(|m| m.id == id) {
                members.push(Member { levels: levels(input.u8()), ..Member::new(id, Roles(input.u8() & 15)) });
            }
        }
        let departed =
            (0..input.u8() % 4).map(|_| Departed { id: process(u16::from(input.u8()) % 5), evidence: evidence(input.u8()) }).collect();
        let (lease_ns, fence_ns) = (input.number().saturating_mul(1_000), input.number().saturating_mul(1_000));
        View {
            number: ViewNumber(number),
            lease_ns,
            fence_ns,
            compatible: input.u8() & 1 == 0,
            level: 1 + input.u8() % 3,
            members,
            departed,
        }
    }

    fn check(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::View(view) => {
                    assert!(view.number >= self.newest, "view {} after {}", view.number, self.newest);
                    self.newest = view.number;
                }
                Event::Excluded => self.excluded = true,
                Event::Milestone(_) => {}
            }
        }
        let lease = self.core.lease();
        assert!(!self.excluded || lease.view() == ViewNumber(0), "a lease of who is excluded");
        if lease.active(lease.view(), self.now) {
            assert!(lease.view() >= self.active, "active in {} after {}", lease.view(), self.active);
            assert!(lease.view() <= self.newest, "active in {}, which nobody has heard of", lease.view());
            self.active = lease.view();
        }
    }
}

/// Most programs can work at the first level.
fn levels(choice: u8) -> Levels {
    let least = 1 + u8::from(choice % 8 == 7);
    Levels { least, most: least + choice % 3 }
}

fn evidence(code: u8) -> Evidence {
    Evidence::from_code(code % 4).expect("four kinds")
}

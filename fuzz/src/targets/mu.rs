//! What the other replicas of `mu` write into our memory, and what is read in theirs: they may be leaders, teachers or followers, and may do anything. Also
//! journals that were not written by this process. The engine goes on: a lane that makes no sense is named and read no further, entries are applied in order,
//! and what is committed stays committed.

use martlet_fabric::fuzz::Input;
use std::collections::BTreeMap;

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::ring::{self, Record, Writer, lane_bytes};
use martlet_fabric::{Fabric, LocalRegion, OpError, PeerId, Region, RegionName, Remote, Token};
use martlet_protocol::basics::layout::LOG_LANE;
use martlet_protocol::basics::{LogIndex, MAX_NUMBER, Time};
use martlet_protocol::engine::mu::layout::{
    COMMAND_HEADER_BYTES, Header, Kind, LOG, PERMISSION_LANE, STATE_LANE, WORDS, add_regions, permission, words,
};
use martlet_protocol::engine::mu::{Config, Durability, Event, Group};
use martlet_protocol::engine::{Durable as _, Engine as _, Mu};
use martlet_protocol::replica::{Execution, Standing};

use super::elected::{ME, MOST_PEERS, group, memory, outcome, process, put_commands, record, settings, spoil, view};
use super::machine::{Gaps, Machine};
use super::memory::{OwnMemory, What};

const RING_BYTES: usize = 1024;

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.u8();
    let execution = if choice & 4 == 0 { Execution::Committed } else { Execution::Speculative };
    let config = Config {
        shared: settings(RING_BYTES, execution),
        secret: 0x5ec2e7,
        durability: if choice & 8 == 0 { Durability::Memory } else { Durability::Sync },
        retry_ns: 5_000,
        leader_stays: choice & 16 != 0,
    };
    let fabric = memory(|spec| add_regions(spec, &config));
    let mut machine = Machine::new(Gaps::Allowed);
    let engine = match choice & 3 {
        0 | 1 => Mu::new(process(ME), config, Some(Group::new((0..3).map(process).collect()))),
        2 => Mu::new(process(ME), config, None),
        _ => match recover(&mut input, config, &fabric, &mut machine) {
            Some(engine) => engine,
            None => return,
        },
    };
    let mut world = World {
        fabric,
        engine,
        config,
        machine,
        lanes: BTreeMap::new(),
        tails: BTreeMap::new(),
        told: BTreeMap::new(),
        theirs: (0..lane_bytes(RING_BYTES) / 8).map(|_| AtomicU64::new(0)).collect(),
        end: 0,
        last: 0,
        now: Time(1),
        beats: 0,
        ballot: 1,
        view: 0,
        peers: 0,
        tickets: 0,
        committed: LogIndex(0),
        stuck: false,
    };
    world.up(0);
    world.up(2);
    world.turn();
    while !input.is_empty() {
        world.step(&mut input);
    }
    for _ in 0..20 {
        world.now = world.now.after(20_000);
        world.complete_all();
        world.turn();
    }
}

/// The engine as it comes back from a disk with any contents: one part of a snapshot, its last words, and a journal.
fn recover(input: &mut Input<'_>, config: Config, fabric: &OwnMemory, machine: &mut Machine) -> Option<Mu> {
    let (parts, len) = (input.u8() & 1, usize::from(input.u8()));
    let parts: Vec<Vec<u8>> = (0..parts).map(|_| input.bytes(len).to_vec()).collect();
    let last = input.number().to_le_bytes();
    let len = usize::from(input.u16());
    let journal = input.bytes(len);
    match Mu::recover(process(ME), config, &parts, &last, journal, fabric, machine) {
        Ok(engine) => Some(engine.expect("it keeps a journal")),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// The writing ends of the lanes that we keep for a peer. The input writes with them.
struct Lanes {
    log: Writer,
    state: Writer,
}

struct World {
    fabric: OwnMemory,
    engine: Mu,
    config: Config,
    machine: Machine,
    lanes: BTreeMap<u32, Lanes>,
    /// How far we have written into a lane of a peer.
    tails: BTreeMap<(PeerId, RegionName), u64>,
    /// What we last told each peer, word by word.
    told: BTreeMap<(PeerId, usize), u64>,
    /// The contents of the others' logs, where they end, and with which entry.
    theirs: Vec<AtomicU64>,
    end: u64,
    last: u64,
    now: Time,
    beats: u64,
    /// The ballot that the input takes for the current one.
    ballot: u64,
    view: u64,
    peers: u32,
    tickets: u64,
    committed: LogIndex,
    stuck: bool,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 20 {
            0..=2 => self.write_log(input),
            3 | 4 => self.write_state(input),
            5 | 6 => {
                self.now = self.now.after(u64::from(input.u8()) * 1_000);
                self.turn();
            }
            7 | 8 => {
                self.complete_all();
                self.turn();
            }
            9 => {
                for _ in 0..input.u8() % 8 {
                    self.complete_as_expected();
                }
            }
            10 => {
                let (result, words) = outcome(input);
                self.complete(result, &words);
            }
            11 => {
                // A request for our permission, which begins where the writer's tail is or elsewhere.
                let (peer, choice) = (self.peer(input), input.u8());
                let tail = self.lanes.get(&peer.0).map_or(0, |lanes| lanes.log.tail());
                let start = if choice & 1 == 0 { tail } else { input.number() };
                self.say(peer, permission::START, start);
                let request = if choice & 2 == 0 { u64::from(choice) } else { input.number() };
                self.say(peer, permission::REQUEST, request);
            }
            12 => {
                // An answer to our request.
                let (peer, choice) = (self.peer(input), input.u8());
                if choice & 1 == 0 {
                    self.say(peer, permission::LOG_SALT, 7);
                }
                let asked = self.told.get(&(peer, permission::REQUEST)).copied().unwrap_or(0);
                self.say(peer, permission::ACK, if choice & 2 == 0 { asked } else { input.number() });
            }
            13 => {
                // A request for the state.
                let (peer, choice) = (self.peer(input), input.u8());
                if choice & 1 == 0 {
                    self.say(peer, permission::STATE_SALT, 9);
                }
                self.say(peer, permission::TEACH, if choice & 2 == 0 { u64::from(choice) | 1 } else { input.number() });
            }
            14 => {
                let (peer, at) = (self.peer(input), usize::from(input.u8()) % 8);
                self.say(peer, at, input.number());
            }
            15 => self.extend_theirs(input),
            16 => {
                // The others have the same log.
                for (to, word) in self.theirs.iter().zip(self.fabric.memory(LocalRegion::Public(LOG)).expect("our log")) {
                    to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                (self.end, self.last) = (self.own(words::TAIL), self.own(words::LAST_INDEX));
            }
            17 => {
                let lane = LocalRegion::Lane { writer: self.peer(input), name: [LOG_LANE, STATE_LANE][usize::from(input.u8()) % 2] };
                self.fabric.scribble(lane, usize::from(input.u8()), input.u64());
            }
            18 => match input.u8() {
                choice @ 0..4 => self.engine.handle_peer_gone(self.peer(input), choice & 1 == 0),
                4 => self.engine.step_down(),
                5 => drop(self.engine.hand_over(None)),
                choice => self.up(u16::from(choice) % 4),
            },
            _ => self.learn_view(input),
        }
    }

    fn peer(&self, input: &mut Input<'_>) -> PeerId {
        PeerId(u32::from(input.u8()) % self.peers + 1)
    }

    /// A number of our own log, as the others see it.
    fn own(&self, word: usize) -> u64 {
        self.fabric.memory(LocalRegion::Public(WORDS)).expect("our numbers")[word].load(Ordering::Relaxed)
    }

    /// Has a peer write a word into the lane that we keep for it.
    fn say(&mut self, peer: PeerId, word: usize, value: u64) {
        self.fabric.scribble(LocalRegion::Lane { writer: peer, name: PERMISSION_LANE }, word, value);
    }

    /// Connects a process, perhaps again.
    fn up(&mut self, node: u16) {
        if self.peers == MOST_PEERS || node == ME {
            return;
        }
        self.peers += 1;
        let peer = PeerId(self.peers);
        for (name, bytes) in
            [(LOG_LANE, lane_bytes(RING_BYTES)), (PERMISSION_LANE, permission::BYTES), (STATE_LANE, lane_bytes(RING_BYTES))]
        {
            self.fabric.add(LocalRegion::Lane { writer: peer, name }, bytes);
        }
        // A member knows the salts of its lanes.
        let writer = |name, lane| {
            let at = Remote { peer, region: Region::Lane(name), offset: 0 };
            Writer::salted(at, RING_BYTES, ring::salt(self.config.secret, 2 * u64::from(peer.0) + lane))
        };
        self.lanes.insert(peer.0, Lanes { log: writer(LOG_LANE, 0), state: writer(STATE_LANE, 1) });
        self.engine.handle_peer_up(peer, process(node), &mut self.fabric);
    }

    /// A header, most of whose numbers are plausible.
    fn header(&mut self, kind: Kind, input: &mut Input<'_>) -> Header {
        let skew = input.u8();
        let last = self.engine.last().0;
        let index = match skew & 3 {
            0 => last + 1,
            1 => last,
            2 => self.committed.0,
            _ => input.number(),
        };
        match skew & 0x0c {
            0x0c => self.ballot = input.number(),
            0x08 => self.ballot = self.own(words::MIN_PROPOSAL) + 1,
            _ => {}
        }
        let committed = if skew & 0x10 == 0 { index } else { input.number() };
        let count = if skew & 0x20 == 0 { 0 } else { u32::from(input.u8()) };
        Header { kind, count, number: self.ballot, index: LogIndex(index), beside: committed }
    }

    /// The body of a record. It corrects most headers.
    fn body(&mut self, header: &mut Header, wish: u64, input: &mut Input<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        match header.kind {
            Kind::Commands => {
                put_commands(&mut header.count, input, &mut body);
                assert!(body.len() >= COMMAND_HEADER_BYTES);
            }
            Kind::Group => {
                header.count = 1;
                group(input).encode(&mut body);
            }
            Kind::Jump | Kind::Begin => {
                let position = match input.u8() {
                    0 => self.own(words::TAIL),
                    1 => self.own(words::COMMITTED_POSITION),
                    2 => input.u64(),
                    steps => u64::from(steps) * 16,
                };
                body.extend_from_slice(&position.to_le_bytes());
                if header.kind == Kind::Begin {
                    body.extend_from_slice(&wish.to_le_bytes());
                }
                group(input).encode(&mut body);
            }
            Kind::Part => {
                let len = usize::from(input.u8()) % 64;
                body.extend_from_slice(input.bytes(len));
            }
            Kind::Break => body.extend_from_slice(&wish.to_le_bytes()),
            _ => {}
        }
        spoil(&mut body, input);
        body
    }

    fn sealed(&mut self, kinds: &[Kind], wish: u64, input: &mut Input<'_>) -> Record {
        let kind = kinds[usize::from(input.u8()) % kinds.len()];
        let mut header = self.header(kind, input);
        let body = self.body(&mut header, wish, input);
        record(|out| header.encode(out), &body)
    }

    /// A leader's record.
    fn write_log(&mut self, input: &mut Input<'_>) {
        let kinds =
            [Kind::Prepare, Kind::Start, Kind::Commands, Kind::Commands, Kind::Group, Kind::Flush, Kind::Jump, Kind::Part, Kind::End];
        let (peer, record) = (self.peer(input), self.sealed(&kinds, 0, input));
        self.push(peer, LOG_LANE, record);
    }

    /// A teacher's record.
    fn write_state(&mut self, input: &mut Input<'_>) {
        let kinds = [Kind::Begin, Kind::Part, Kind::Part, Kind::End, Kind::Commands, Kind::Group, Kind::Flush, Kind::Break, Kind::Start];
        let peer = self.peer(input);
        let wish = self.told.get(&(peer, permission::TEACH)).copied().unwrap_or(0) >> 1;
        let record = self.sealed(&kinds, wish, input);
        self.push(peer, STATE_LANE, record);
    }

    fn push(&mut self, peer: PeerId, name: RegionName, mut record: Record) {
        let lane = LocalRegion::Lane { writer: peer, name };
        let Some(memory) = self.fabric.memory(lane) else { return };
        let consumed = memory[0].load(Ordering::Relaxed);
        let Some(lanes) = self.lanes.get_mut(&peer.0) else { return };
        let writer = if name == LOG_LANE { &mut lanes.log } else { &mut lanes.state };
        writer.note_consumed(consumed);
        if record.len() > ring::max_payload(RING_BYTES) {
            return;
        }
        self.fabric.written = Some(lane);
        writer.push(&mut self.fabric, &mut record, Token(0));
        self.fabric.written = None;
    }

    /// Adds a record to the others' logs.
    fn extend_theirs(&mut self, input: &mut Input<'_>) {
        let kind = if input.u8().is_multiple_of(4) { Kind::Group } else { Kind::Commands };
        let mut header = self.header(kind, input);
        let body = self.body(&mut header, 0, input);
        if input.u8() < 200 {
            header.index = LogIndex(self.last + 1);
        }
        let mut record = Record::default();
        record.fill(|out| {
            header.encode(out);
            out.extend_from_slice(&body);
        });
        if record.len() <= ring::max_payload(RING_BYTES) {
            self.end = ring::place(&self.theirs, self.end, &record);
            self.last = header.index.0.min(MAX_NUMBER) + u64::from(header.count) - 1;
        }
    }

    /// The numbers of a log like ours, or like what the input has written.
    fn numbers(&mut self) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..words::COUNT).map(|word| self.own(word)).collect();
        if self.last > numbers[words::LAST_INDEX] {
            (numbers[words::LAST_INDEX], numbers[words::TAIL]) = (self.last, self.end);
            (numbers[words::LAST_BALLOT], numbers[words::FLOOR]) = (self.ballot, 0);
            numbers[words::MIN_PROPOSAL] = numbers[words::MIN_PROPOSAL].max(self.ballot);
        }
        numbers[words::STATUS] = 1;
        numbers[words::CEILING] = u64::MAX;
        numbers
    }

    fn complete_as_expected(&mut self) {
        let (mut value, mut words) = (0, Vec::new());
        match self.fabric.posted.front().map(|posted| posted.what) {
            Some(What::Word { from }) => {
                self.beats += 1;
                value = match (from.region, from.offset / 8) {
                    (Region::Public(WORDS), words::STATUS) => 1,
                    (Region::Public(WORDS), _) => self.beats,
                    (Region::Lane(lane), _) => self.tails.get(&(from.peer, lane)).copied().unwrap_or(0),
                    _ => 0,
                };
            }
            Some(What::Read { from, len, .. }) if from.region == Region::Public(LOG) => {
                let log = &self.theirs[from.offset / 8..(from.offset + len) / 8];
                words = log.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            }
            Some(What::Read { .. }) => words = self.numbers(),
            _ => {}
        }
        self.complete(Ok(value), &words);
    }

    fn complete(&mut self, result: Result<u64, OpError>, words: &[u64]) {
        match self.fabric.posted.front().map(|posted| posted.what) {
            Some(What::Write { at: Remote { peer, region: Region::Lane(PERMISSION_LANE), offset }, word, .. }) => {
                self.told.insert((peer, offset / 8), word);
            }
            Some(What::Write { at: Remote { peer, region: Region::Lane(lane), offset }, len, .. }) if offset >= ring::HEADER_BYTES => {
                let (tail, end) = (self.tails.entry((peer, lane)).or_default(), (offset - ring::HEADER_BYTES + len) as u64);
                let lap = *tail / RING_BYTES as u64 * RING_BYTES as u64;
                *tail = if lap + end >= *tail { lap + end } else { lap + RING_BYTES as u64 + end };
            }
            // A revocation always takes effect.
            Some(What::Revoke) if result.is_err() => return self.complete(Ok(0), words),
            _ => {}
        }
        if let Some(completion) = self.fabric.complete(result, words) {
            self.engine.handle_completion(completion);
        }
    }

    fn complete_all(&mut self) {
        for _ in 0..self.fabric.posted.len() {
            self.complete_as_expected();
        }
    }

    fn learn_view(&mut self, input: &mut Input<'_>) {
        self.engine.handle_view(&view(&mut self.view, input));
    }

    fn turn(&mut self) {
        self.now = self.now.after(1_000);
        if self.engine.standing() == Standing::Primary && self.engine.has_room(30) {
            let index = self.engine.propose(&[7; 30]).expect("it leads");
            if self.config.execution == Execution::Speculative {
                self.machine.show(index);
            }
        }
        self.engine.post(self.now, &mut self.fabric, &mut self.machine);
        self.engine.advance(self.now, None, &mut self.fabric, &mut self.machine);
        if !self.engine.journal().is_empty() {
            self.tickets += 1;
            self.engine.note_taken(self.tickets);
            self.engine.handle_stable(self.tickets);
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::LaneFault { fault, stuck, .. } => {
                    assert!(!fault.to_string().is_empty());
                    assert!(!stuck || !std::mem::replace(&mut self.stuck, true), "who is stuck takes nothing more");
                }
                Event::Forget(peer) => self.fabric.forget(peer),
                _ => {}
            }
        }
        assert!(self.engine.committed() >= self.committed, "committed {} after {}", self.engine.committed(), self.committed);
        self.committed = self.engine.committed();
        assert!(self.committed <= self.engine.last(), "committed {} of {}", self.committed, self.engine.last());
        if self.engine.is_complete() {
            assert!(self.engine.applied() <= self.engine.last(), "applied {} of {}", self.engine.applied(), self.engine.last());
        }
    }
}

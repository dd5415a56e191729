//! What the other servers of `dare` write into our memory, and what is read in theirs. They may be leaders, candidates, voters, teachers or learners, and may
//! do anything. The engine goes on: a lane that makes no sense is named and read no further, entries are applied in order, what is committed stays committed,
//! and the engine's own term never falls.

use martlet_fabric::fuzz::Input;
use std::collections::BTreeMap;

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::ring::{self, Record, Writer, lane_bytes};
use martlet_fabric::{Fabric, LocalRegion, NodeId, OpError, PeerId, Region, Remote, Token};
use martlet_protocol::basics::layout::LOG_LANE;
use martlet_protocol::basics::{LogIndex, Time, sealed};
use martlet_protocol::engine::dare::Config;
use martlet_protocol::engine::dare::layout::{
    CONTROL_LANE, Determinants, Header, Kind, RUNS, Request, SNAPSHOT, WORDS, add_regions, control, lane, vote_of, words,
};
use martlet_protocol::engine::{Dare, Engine, Event};
use martlet_protocol::replica::group::Group;
use martlet_protocol::replica::{Execution, Standing};

use super::elected::{ME, MOST_PEERS, group, memory, outcome, process, put_commands, record, settings, spoil, view};
use super::machine::{Gaps, Machine};
use super::memory::{OwnMemory, What};

const RING_BYTES: usize = 2048;

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.u8();
    let execution = if choice & 4 == 0 { Execution::Committed } else { Execution::Speculative };
    let config = Config {
        shared: settings(RING_BYTES, execution),
        election_ns: 20_000,
        rank_ns: 5_000,
        places: usize::from(choice >> 3 & 3) * 2,
        zombies_ns: 0,
    };
    let fabric = memory(|spec| add_regions(spec, &config));
    let group = (choice & 3 != 3).then(|| Group::new((0..3).map(process).collect()));
    let mut world = World {
        fabric,
        engine: Dare::new(process(ME), config, group),
        config,
        machine: Machine::new(Gaps::Allowed),
        lanes: BTreeMap::new(),
        told: BTreeMap::new(),
        theirs: (0..lane_bytes(RING_BYTES) / 8).map(|_| AtomicU64::new(0)).collect(),
        end: 0,
        now: Time(1),
        beats: 0,
        view: 0,
        peers: 0,
        committed: LogIndex(0),
        term: 0,
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

struct World {
    fabric: OwnMemory,
    engine: Dare,
    config: Config,
    machine: Machine,
    /// The writing ends of the log lanes that we keep for peers. The input writes with them.
    lanes: BTreeMap<u32, Writer>,
    /// What we last told each peer, word by word.
    told: BTreeMap<(PeerId, usize), u64>,
    /// The contents of the others' snapshot rings, and where they end.
    theirs: Vec<AtomicU64>,
    end: u64,
    now: Time,
    beats: u64,
    view: u64,
    peers: u32,
    committed: LogIndex,
    term: u64,
    stuck: bool,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 20 {
            0..=2 => self.write_log(input),
            3 => self.adjust(input),
            4 | 5 => {
                self.now = self.now.after(u64::from(input.u8()) * 1_000);
                self.turn();
            }
            6 | 7 => {
                self.complete_all();
                self.turn();
            }
            8 => {
                for _ in 0..input.u8() % 8 {
                    self.complete_as_expected();
                }
            }
            9 => {
                let (result, words) = outcome(input);
                self.complete(result, &words);
            }
            10 => self.request(input),
            11 => {
                // A vote, or support: for our request, or for anything.
                let (peer, choice) = (self.peer(input), input.u8());
                let asked = self.told.get(&(peer, control::ASK)).copied().unwrap_or(0).max(vote_of(self.own(words::TERM)));
                self.say(peer, control::VOTE, if choice & 1 == 0 { asked } else { input.number() });
            }
            12 => {
                // A leader, or one that no longer reigns: of our term, a later one, or any.
                let (peer, choice) = (self.peer(input), input.u8());
                let term = if choice & 6 == 6 { input.number() } else { self.own(words::TERM) + u64::from(choice >> 1 & 3) };
                let grant = vote_of(term).wrapping_add(u64::from(choice >> 5));
                self.say(peer, control::BEAT, term << 1 | u64::from(choice & 1));
                self.say(peer, control::ASK, if choice & 8 == 0 { grant } else { input.number() });
            }
            13 => {
                let (peer, at) = (self.peer(input), usize::from(input.u8()) % (control::BYTES / 8));
                self.say(peer, at, input.number());
            }
            14 => {
                // A learner's request, and how far it has read; or a teacher's answer to ours.
                let (peer, choice) = (self.peer(input), input.u8());
                if choice & 1 == 0 {
                    self.say(peer, control::RECOVER, u64::from(choice) | 1);
                    self.say(peer, control::TAKEN, input.number());
                } else {
                    let wish = self.told.get(&(peer, control::RECOVER)).copied().unwrap_or(0) >> 1;
                    self.say(peer, control::SERVES_FROM, if choice & 2 == 0 { 0 } else { input.number() });
                    self.say(peer, control::SERVES, if choice & 4 == 0 { wish } else { input.number() });
                }
            }
            15 => self.extend_theirs(input),
            16 => {
                let name = [LOG_LANE, CONTROL_LANE][usize::from(input.u8()) % 2];
                let lane = LocalRegion::Lane { writer: self.peer(input), name };
                self.fabric.scribble(lane, usize::from(input.u8()), input.u64());
            }
            17 => {
                // A leader that finds that its log does not reach back to ours.
                let (peer, choice) = (self.peer(input), input.u8());
                let grant = if choice & 1 == 0 { self.granted() } else { input.number() };
                self.fabric.scribble(LocalRegion::Lane { writer: peer, name: LOG_LANE }, lane::OVERRUN, grant);
            }
            18 => match input.u8() {
                choice @ 0..4 => self.engine.handle_peer_gone(self.peer(input), choice & 1 == 0),
                4 => drop(self.engine.hand_over(None)),
                5 => drop(self.engine.hand_over(Some(NodeId(2)))),
                choice => self.up(u16::from(choice) % 4),
            },
            _ => self.learn_view(input),
        }
    }

    fn peer(&self, input: &mut Input<'_>) -> PeerId {
        PeerId(u32::from(input.u8()) % self.peers + 1)
    }

    /// A word that we show to the others.
    fn own(&self, word: usize) -> u64 {
        self.fabric.memory(LocalRegion::Public(WORDS)).expect("our words")[word].load(Ordering::Relaxed)
    }

    /// What we showed of our log when we last gave access to it.
    fn determinants(&self) -> Option<Determinants> {
        Determinants::read(self.fabric.memory(LocalRegion::Public(RUNS)).expect("our determinants"))
    }

    /// The grant that we gave last.
    fn granted(&self) -> u64 {
        self.determinants().map_or(0, |these| these.grant)
    }

    /// Has a peer write a word into the control lane that we keep for it.
    fn say(&mut self, peer: PeerId, word: usize, value: u64) {
        self.fabric.scribble(LocalRegion::Lane { writer: peer, name: CONTROL_LANE }, word, value);
    }

    /// Connects a process, perhaps again.
    fn up(&mut self, node: u16) {
        if self.peers == MOST_PEERS || node == ME {
            return;
        }
        self.peers += 1;
        let peer = PeerId(self.peers);
        self.fabric.add(LocalRegion::Lane { writer: peer, name: LOG_LANE }, lane_bytes(RING_BYTES));
        self.fabric.add(LocalRegion::Lane { writer: peer, name: CONTROL_LANE }, control::BYTES);
        let at = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
        self.lanes.insert(peer.0, Writer::new(at, RING_BYTES));
        self.engine.handle_peer_up(peer, process(node), &mut self.fabric);
    }

    /// A candidate's request.
    fn request(&mut self, input: &mut Input<'_>) {
        let (peer, choice) = (self.peer(input), input.u8());
        let term = if choice & 3 == 3 { input.number() } else { self.own(words::TERM) + u64::from(choice & 3) };
        let last_term = if choice & 4 == 0 { self.own(words::LAST_TERM) } else { input.number() };
        let last = if choice & 8 == 0 { self.own(words::LAST_INDEX) } else { input.number() };
        let mut bytes = Vec::new();
        Request { term, last_term, last: LogIndex(last), quorum: usize::from(choice >> 4 & 3) }.encode(&mut bytes);
        for (at, word) in bytes.chunks_exact(8).enumerate() {
            self.say(peer, control::REQUEST + at, u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
    }

    /// A leader cuts our log off, at its end or elsewhere, and begins to write.
    fn adjust(&mut self, input: &mut Input<'_>) {
        let (peer, choice) = (self.peer(input), input.u8());
        let Some(these) = self.determinants() else { return };
        let mut cut = if choice & 1 == 0 { these.tail } else { these.base };
        if choice & 2 != 0 {
            (cut.index, cut.position) = (LogIndex(input.number()), u64::from(input.u8()) * 16);
        }
        let grant = if choice & 4 == 0 { these.grant } else { input.number() };
        let committed = if choice & 8 == 0 { these.base.index.0 } else { input.number() };
        let log = LocalRegion::Lane { writer: peer, name: LOG_LANE };
        for (word, value) in [
            (lane::CUT, cut.position),
            (lane::CUT_INDEX, cut.index.0),
            (lane::TAIL, cut.position),
            (lane::COMMIT, committed),
            (lane::GRANT, grant),
        ] {
            self.fabric.scribble(log, word, value);
        }
        if let Some(writer) = self.lanes.get_mut(&peer.0) {
            writer.move_to(cut.position, these.kept.min(cut.position));
        }
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
        let number = if skew & 0x0c == 0x0c { input.number() } else { self.own(words::TERM).max(1) };
        let beside = if skew & 0x10 == 0 { self.own(words::LAST_TERM) } else { input.number() };
        let count = if skew & 0x20 == 0 { 1 } else { u32::from(input.u8()) };
        Header { kind, count, number, index: LogIndex(index), beside }
    }

    /// The body of a record. It corrects most headers.
    fn body(&mut self, header: &mut Header, wish: u64, input: &mut Input<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        match header.kind {
            Kind::Commands => {
                put_commands(&mut header.count, input, &mut body);
            }
            Kind::Group => {
                header.count = 1;
                group(input).encode(&mut body);
            }
            Kind::Head => body.extend_from_slice(&(u64::from(input.u8()) * 16).to_le_bytes()),
            Kind::Begin => {
                body.extend_from_slice(&(u64::from(input.u8()) * 16).to_le_bytes());
                body.extend_from_slice(&wish.to_le_bytes());
                group(input).encode(&mut body);
            }
            Kind::Part => {
                let len = usize::from(input.u8()) % 64;
                body.extend_from_slice(input.bytes(len));
            }
            Kind::Noop | Kind::End | Kind::Flush | Kind::Break => {}
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

    /// A leader's record and the pointers after it, mostly the right ones.
    fn write_log(&mut self, input: &mut Input<'_>) {
        let kinds = [Kind::Noop, Kind::Commands, Kind::Commands, Kind::Group, Kind::Head, Kind::Part];
        let (peer, mut record) = (self.peer(input), self.sealed(&kinds, 0, input));
        let log = LocalRegion::Lane { writer: peer, name: LOG_LANE };
        let Some(memory) = self.fabric.memory(log) else { return };
        let consumed = memory[0].load(Ordering::Relaxed);
        let Some(writer) = self.lanes.get_mut(&peer.0) else { return };
        writer.note_consumed(consumed);
        if record.len() > ring::max_payload(RING_BYTES) || !writer.fits(record.len()) {
            return;
        }
        self.fabric.written = Some(log);
        writer.push(&mut self.fabric, &mut record, Token(0));
        self.fabric.written = None;
        let (tail, choice) = (writer.tail(), input.u8());
        self.fabric.scribble(log, lane::TAIL, if choice < 250 { tail } else { input.number() });
        let committed = if choice & 1 == 0 { self.committed.0 } else { self.engine.last().0 + u64::from(choice >> 1 & 3) };
        self.fabric.scribble(log, lane::COMMIT, if choice < 245 { committed } else { input.number() });
    }

    /// Adds a record to the others' snapshot rings.
    fn extend_theirs(&mut self, input: &mut Input<'_>) {
        let kinds = [Kind::Begin, Kind::Part, Kind::Part, Kind::End, Kind::Commands, Kind::Group, Kind::Flush, Kind::Break, Kind::Noop];
        let wish = (1..=self.peers).filter_map(|peer| self.told.get(&(PeerId(peer), control::RECOVER))).max().copied().unwrap_or(0) >> 1;
        let record = self.sealed(&kinds, wish, input);
        if record.len() <= ring::max_payload(RING_BYTES) {
            self.end = ring::place(&self.theirs, self.end, &record);
        }
    }

    /// The determinants of a peer's log, as a leader asks for them: of an empty log, or of one like ours.
    fn their_determinants(&self, peer: PeerId) -> Vec<u64> {
        let asked = self.told.get(&(peer, control::ASK)).copied().unwrap_or(0);
        let grant = self
            .fabric
            .memory(LocalRegion::Lane { writer: peer, name: CONTROL_LANE })
            .map_or(asked, |lane| lane[control::VOTE].load(Ordering::Relaxed));
        let mut bytes = Vec::new();
        sealed::encode(grant, 0, [0u64, 0, 0, 0, 0, 0, 0, 1].map(u64::to_le_bytes).as_flattened(), &mut bytes);
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
    }

    fn complete_as_expected(&mut self) {
        let (mut value, mut words) = (0, Vec::new());
        match self.fabric.posted.front().map(|posted| posted.what) {
            Some(What::Word { from }) => {
                self.beats += 1;
                value = match (from.region, from.offset / 8) {
                    (Region::Public(WORDS), words::STATUS) => 1,
                    (Region::Public(WORDS), words::TERM) => self.own(words::TERM),
                    (Region::Public(WORDS), words::SNAPSHOT_TAIL) => self.end,
                    (Region::Public(WORDS), _) => self.beats,
                    (Region::Lane(LOG_LANE), 0) => self.lanes.get(&from.peer.0).map_or(0, Writer::tail),
                    _ => 0,
                };
            }
            Some(What::Read { from, len, .. }) if from.region == Region::Public(SNAPSHOT) => {
                let ring = &self.theirs[from.offset / 8..(from.offset + len) / 8];
                words = ring.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            }
            Some(What::Read { from, .. }) if from.region == Region::Public(RUNS) => words = self.their_determinants(from.peer),
            // What a peer says of itself: that it hears no leader, and has what we have.
            Some(What::Read { .. }) => words = vec![self.own(words::TERM), 0, self.own(words::LAST_TERM), self.own(words::LAST_INDEX), 1],
            _ => {}
        }
        self.complete(Ok(value), &words);
    }

    fn complete(&mut self, result: Result<u64, OpError>, words: &[u64]) {
        match self.fabric.posted.front().map(|posted| posted.what) {
            Some(What::Write { at: Remote { peer, region: Region::Lane(CONTROL_LANE), offset }, word, .. }) => {
                self.told.insert((peer, offset / 8), word);
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
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::LaneFault { fault, stuck, .. } => {
                    assert!(!fault.is_empty());
                    assert!(!stuck || !std::mem::replace(&mut self.stuck, true), "a server that is stuck takes nothing more");
                }
                Event::Forget(peer) => self.fabric.forget(peer),
                _ => {}
            }
        }
        let (committed, term) = (self.engine.committed(), self.own(words::TERM));
        assert!(committed >= self.committed, "committed {committed} after {}", self.committed);
        assert!(term >= self.term, "term {term} after {}", self.term);
        (self.committed, self.term) = (committed, term);
        assert!(committed <= self.engine.last(), "committed {committed} of {}", self.engine.last());
        if self.engine.is_complete() {
            assert!(self.engine.applied() <= self.engine.last(), "applied {} of {}", self.engine.applied(), self.engine.last());
        }
    }
}

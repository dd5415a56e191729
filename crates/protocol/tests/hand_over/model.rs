//! What one process does: a step of its production engine, as a function of its state and its memory.
//!
//! An engine cannot be copied, and in most schedules it does what it has done in others. So each of its states has a number, and the outcome of a step is
//! remembered. When a new step begins at a known state, the engine is brought there again by repeating every step that led to it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::rc::Rc;

use martlet_fabric::primitive::AtomicU64;
use martlet_fabric::{
    Completion, Fabric, Incarnation, Local, LocalRegion, Memory, NodeId, OpError, PeerId, Region, RegionName, Remote, Token,
};
use martlet_protocol::basics::{LogIndex, ProcessId, RETURN_BITS, Time};
use martlet_protocol::engine::{Engine, Event};
use martlet_protocol::replica::group::Group;
use martlet_protocol::replica::{Settings, Standing, StateMachine, UnreadablePart};

/// How many processes there are: a leader, and two others.
pub const PROCESSES: usize = 3;
pub const RING_BYTES: usize = 2048;
/// How many regions a process has, at most, with any engine: the public ones, and the lanes that it keeps for each process. Its lanes for itself are never
/// used.
pub const REGIONS: usize = 12;
/// Longer than anything lasts here, except for the one presumption of death.
pub const NEVER_NS: u64 = 1 << 40;
/// How long a read may take before the process that does not answer it is presumed dead.
pub const SILENCE_NS: u64 = 1_000_000;
pub const HEARTBEAT_NS: u64 = 1_000;

/// A fast hash of a few numbers, which no adversary chooses: the exploration does little else than hash.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    #[inline]
    fn write_u64(&mut self, n: u64) {
        let z = (self.0.rotate_left(23) ^ n).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = z ^ (z >> 29);
    }
    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x94d0_49bb_1331_11eb)
    }
}

pub type Mixed = BuildHasherDefault<Mix>;

/// The number by which one process knows another.
pub fn peer(process: usize) -> PeerId {
    PeerId(process as u32 + 1)
}

fn process(peer: PeerId) -> usize {
    peer.0 as usize - 1
}

fn id(process: usize) -> ProcessId {
    ProcessId { node: NodeId(process as u16), incarnation: Incarnation(1 << RETURN_BITS) }
}

/// An engine whose schedules are explored, and what the exploration has to know of it.
pub trait Explored: Engine {
    /// The regions that its processes offer to all.
    const PUBLIC: &[RegionName];
    /// The lanes that its processes keep for each other.
    const LANES: &[RegionName];
    /// The region that its reads land in.
    const SCRATCH: RegionName;
    /// The text that precedes, in the engine's debug output, the process that may write its log.
    const HOLDER: &str;

    /// The engine's configuration.
    fn config(settings: Settings) -> Self::Config;

    /// A founder of this group.
    fn founder(me: ProcessId, config: Self::Config, group: Group) -> Self;

    /// How many words of a region are used here.
    fn words(region: RegionName) -> usize;

    /// The number under which it leads, or led last.
    fn number(&self) -> u64;

    /// The term for which it is elected at present, or 0.
    fn elected(&self) -> u64;

    /// What an operation is about.
    fn matter(token: Token) -> Matter;

    /// What is wrong with the memories, in so far as it concerns this engine alone.
    fn check(_: &Memories<'_, Self>) -> Result<(), String> {
        Ok(())
    }
}

/// What an engine's operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// A sign of life, or what follows from one, which is not explored here.
    Sign,
    /// A write to a log. Its completion tells a process that may not write there.
    Log,
    /// How much of a lane has been read. This is out of date whenever it comes, and has no consequences here.
    OldNews,
    /// It tells the target something. Its completion has no consequences.
    Told,
    /// Anything else.
    Other,
}

pub fn public<E: Explored>(name: RegionName) -> usize {
    E::PUBLIC.iter().position(|n| *n == name).expect("a region of the engine's")
}

pub fn lane<E: Explored>(writer: usize, name: RegionName) -> usize {
    E::PUBLIC.len() + writer * E::LANES.len() + E::LANES.iter().position(|n| *n == name).expect("a lane of the engine's")
}

/// How many words a region has.
pub fn region_words<E: Explored>(region: usize) -> usize {
    match region.checked_sub(E::PUBLIC.len()) {
        None => E::words(E::PUBLIC[region]),
        Some(lane) if lane < PROCESSES * E::LANES.len() => E::words(E::LANES[lane % E::LANES.len()]),
        Some(_) => 0,
    }
}

/// The memories of all processes.
pub struct Memories<'a, E: Explored> {
    pub model: &'a Model<E>,
    pub regions: &'a [[u32; REGIONS]; PROCESSES],
}

impl<E: Explored> Memories<'_, E> {
    /// A word of the lane that `owner` keeps for `writer`.
    pub fn lane_word(&self, owner: usize, writer: usize, name: RegionName, word: usize) -> u64 {
        self.model.contents(self.regions[owner][lane::<E>(writer, name)])[word]
    }
}

/// An operation that was posted to another process, or to the process's own memory.
#[derive(Debug, PartialEq, Eq, Hash)]
pub enum Posted {
    /// Writes words into the lane that the target keeps for the poster, from the word `at` on.
    Write { token: Token, name: RegionName, at: usize, words: Vec<u64> },
    /// Reads words of a public region of the target, from the word `at` on, into the poster's scratch memory, from the word `into` on.
    Read { token: Token, region: usize, at: usize, into: usize, words: usize },
    /// Reads one word, of a public region or of the poster's own lane.
    Word { token: Token, region: usize, at: usize },
    /// Revokes a writer's permission.
    Revoke { token: Token, writer: usize },
}

impl Outcome {
    /// Whether a process that was in this state, with these regions, is still, and has done nothing.
    pub fn is_nothing(&self, state: u32, regions: &[u32; REGIONS]) -> bool {
        self.state == state && self.regions == *regions && self.posted.is_empty() && self.granted.is_empty()
    }
}

impl Posted {
    pub fn token(&self) -> Token {
        match self {
            Posted::Write { token, .. } | Posted::Read { token, .. } | Posted::Word { token, .. } | Posted::Revoke { token, .. } => *token,
        }
    }
}

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// It founds the group and meets the others.
    Start,
    /// A turn at this time. A process that leads first proposes its one entry, if it may.
    Turn { now: u64, proposes: bool },
    /// A completion comes. `None`: the permission was lost.
    Completed(Token, Option<u64>),
}

/// The outcome of a step.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub state: u32,
    pub regions: [u32; REGIONS],
    /// The operations' numbers, with their targets, in order.
    pub posted: Vec<(usize, u32)>,
    pub granted: Vec<usize>,
}

/// What can be seen of a state from outside.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub leads: bool,
    pub number: u64,
    pub elected: u64,
    /// The entries that its machine has executed, which are the committed ones.
    pub applied: Vec<Entry>,
    /// The process that may write its log, as the engine sees it: the number of another process, or its own.
    pub holder: Option<usize>,
    /// The engine's debug output, for reports.
    pub text: String,
}

/// An entry with a command: its index, and the process that proposed it.
pub type Entry = (u64, u8);

/// A machine that records its commands.
#[derive(Debug, Default)]
struct Shown(Vec<Entry>);

impl StateMachine for Shown {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        assert!(self.0.last().is_none_or(|(last, _)| index.0 > *last), "applied in order, and each once");
        self.0.push((index.0, command[0]));
    }
    fn transfer(&self, _: u64, _: usize, _: &mut Vec<u8>) -> Option<u64> {
        None
    }
    fn install(&mut self, _: &[u8]) -> Result<(), UnreadablePart> {
        Ok(())
    }
    fn clear(&mut self) {
        self.0.clear();
    }
    fn digest(&self) -> u64 {
        0
    }
}

/// A process's access to its memory and to the others, for the length of one step.
struct Endpoint<'a, E> {
    engine: PhantomData<E>,
    me: usize,
    memory: &'a [Vec<AtomicU64>],
    posted: Vec<(usize, Posted)>,
    granted: Vec<usize>,
}

impl<E: Explored> Fabric for Endpoint<'_, E> {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        Some(
            &self.memory[match region {
                LocalRegion::Public(name) => public::<E>(name),
                LocalRegion::Lane { writer, name } => lane::<E>(process(writer), name),
            }],
        )
    }
    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        let Region::Lane(name) = at.region else { unreachable!("the engine writes lanes") };
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        self.posted.push((process(at.peer), Posted::Write { token, name, at: at.offset / 8, words }));
    }
    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        let Region::Public(name) = from.region else { unreachable!("the engine reads public memory") };
        let read = Posted::Read { token, region: public::<E>(name), at: from.offset / 8, into: into.offset / 8, words: len / 8 };
        self.posted.push((process(from.peer), read));
    }
    fn read_word(&mut self, from: Remote, token: Token) {
        let region = match from.region {
            Region::Public(name) if E::PUBLIC.contains(&name) => public::<E>(name),
            // No kernel says anything here.
            Region::Public(_) => return,
            Region::Lane(name) => lane::<E>(self.me, name),
        };
        self.posted.push((process(from.peer), Posted::Word { token, region, at: from.offset / 8 }));
    }
    fn compare_and_swap(&mut self, _: Remote, _: u64, _: u64, _: Token) {
        unreachable!("the engine swaps nothing")
    }
    fn grant(&mut self, writer: PeerId, _: RegionName) {
        self.granted.push(process(writer));
    }
    fn revoke(&mut self, writer: PeerId, _: RegionName, token: Token) {
        self.posted.push((self.me, Posted::Revoke { token, writer: process(writer) }));
    }
    martlet_fabric::idle!(poll, send, multicast, receive, event, nudge, forget);
}

/// One process as it runs.
struct Process<E> {
    engine: E,
    machine: Shown,
    has_proposed: bool,
}

impl<E: Explored> Process<E> {
    fn step(&mut self, me: usize, input: Input, fabric: &mut Endpoint<'_, E>) {
        match input {
            Input::Start => {
                for other in (0..PROCESSES).filter(|other| *other != me) {
                    self.engine.handle_peer_up(peer(other), id(other), fabric);
                }
            }
            Input::Turn { now, proposes } => {
                if proposes && !self.has_proposed && self.engine.standing() == Standing::Primary {
                    self.has_proposed = true;
                    self.engine.propose(&[b'a' + me as u8; 8]).expect("it leads");
                }
                self.engine.post(Time(now), fabric, &mut self.machine);
                self.engine.advance(Time(now), None, fabric, &mut self.machine);
            }
            Input::Completed(token, result) => {
                self.engine.handle_completion(Completion { token, result: result.ok_or(OpError::AccessLost) });
            }
        }
        while let Some(event) = self.engine.poll_event() {
            assert!(!matches!(event, Event::LaneFault { .. }), "process {me}: {event:?}");
        }
    }

    /// Everything about it that can matter.
    fn text(&self) -> String {
        let mut text = String::with_capacity(16 << 10);
        write!(text, "{:?} {:?} {}", self.engine, self.machine, self.has_proposed).expect("a string takes everything");
        // Leaves out what was last encoded or read, and in which turn, since no replies of a turn are waited for here.
        for (from, to) in [("Record { bytes: [", " }"), ("buffer: [", "]"), ("turn: ", ","), ("vouched: ", ",")] {
            let mut kept = String::with_capacity(text.len());
            let mut rest = text.as_str();
            while let Some(start) = rest.find(from) {
                kept.push_str(&rest[..start]);
                rest = &rest[start..];
                rest = &rest[rest.find(to).expect("its end")..];
            }
            kept.push_str(rest);
            text = kept;
        }
        text
    }

    fn facts(&self) -> Facts {
        let text = self.text();
        let holder = text.split(E::HOLDER).nth(1).expect("a field of the engine");
        let holder = holder.strip_prefix("Some(PeerId(").map(|rest| rest[..1].parse().expect("one of few"));
        Facts {
            leads: self.engine.standing() == Standing::Primary,
            number: self.engine.number(),
            elected: self.engine.elected(),
            applied: self.machine.0.clone(),
            // 0 stands for the process itself.
            holder,
            text,
        }
    }
}

/// The states of one process that have been reached so far.
struct States<E: Explored> {
    config: E::Config,
    numbers: HashMap<u64, u32>,
    facts: Vec<Facts>,
    /// From which state, with which memory and by which input each was first reached.
    origins: Vec<Option<(u32, [u32; REGIONS], Input)>>,
    outcomes: HashMap<(u32, [u32; REGIONS], Input), Rc<Outcome>, Mixed>,
    /// Engines, by the states that they are in.
    running: HashMap<u32, Process<E>>,
}

/// Everything known of what processes do and of what their memories hold. Whatever a world refers to has a number here.
pub struct Model<E: Explored> {
    states: Vec<States<E>>,
    contents: Vec<Rc<[u64]>>,
    numbers: HashMap<Rc<[u64]>, u32>,
    operations: Vec<Rc<Posted>>,
    operation_numbers: HashMap<Rc<Posted>, u32>,
    /// The contents of a region after an operation has put something there: by the contents before, those that it read, and the operation.
    stored: HashMap<(u32, u32, u32), u32, Mixed>,
    /// How many steps engines have taken for the first time.
    pub steps: usize,
    /// The bug that is planted in engines once the exploration begins.
    #[cfg(feature = "canaries")]
    pub planted: Option<&'static str>,
}

/// The state that every process begins with.
pub const FRESH: u32 = 0;

impl<E: Explored> Model<E> {
    /// Engines with these settings, changed as `set` says.
    pub fn new(set: impl Fn(&mut E::Config)) -> Model<E> {
        let states = |_| {
            let settings = Settings {
                log_ring_bytes: RING_BYTES,
                state_ring_bytes: RING_BYTES,
                flush_idle_ns: NEVER_NS,
                nudge_records: u32::MAX,
                nudge_gap_ns: 0,
                heartbeat_interval_ns: HEARTBEAT_NS,
                background_ns: 0,
                fate_beats: u32::MAX,
                silence_ns: SILENCE_NS,
                stall_ns: NEVER_NS,
                death_interval_ns: NEVER_NS,
                teach_patience_ns: NEVER_NS,
                ..Settings::default()
            };
            let mut config = E::config(settings);
            set(&mut config);
            let mut states = States {
                config,
                numbers: HashMap::new(),
                facts: Vec::new(),
                origins: Vec::new(),
                outcomes: HashMap::default(),
                running: HashMap::new(),
            };
            states.facts.push(Facts::default());
            states.origins.push(None);
            states
        };
        Model {
            states: (0..PROCESSES).map(states).collect(),
            contents: Vec::new(),
            numbers: HashMap::new(),
            operations: Vec::new(),
            operation_numbers: HashMap::new(),
            stored: HashMap::default(),
            steps: 0,
            #[cfg(feature = "canaries")]
            planted: None,
        }
    }

    /// The number of these contents of a region.
    pub fn number(&mut self, words: Vec<u64>) -> u32 {
        if let Some(number) = self.numbers.get(words.as_slice()) {
            return *number;
        }
        let (words, number) = (Rc::<[u64]>::from(words), self.contents.len() as u32);
        self.contents.push(words.clone());
        self.numbers.insert(words, number);
        number
    }

    pub fn contents(&self, number: u32) -> &[u64] {
        &self.contents[number as usize]
    }

    fn number_of(&mut self, posted: Posted) -> u32 {
        let number = self.operations.len() as u32;
        let posted = Rc::new(posted);
        let known = *self.operation_numbers.entry(posted.clone()).or_insert(number);
        if known == number {
            self.operations.push(posted);
        }
        known
    }

    pub fn operation(&self, number: u32) -> &Rc<Posted> {
        &self.operations[number as usize]
    }

    /// The contents `target` after the operation has written what it carries, or what it has read from `source`.
    pub fn store(&mut self, target: u32, source: Option<u32>, operation: u32) -> u32 {
        let key = (target, source.unwrap_or(u32::MAX), operation);
        if let Some(number) = self.stored.get(&key) {
            return *number;
        }
        let mut contents = self.contents(target).to_vec();
        match (&*self.operations[operation as usize], source) {
            (Posted::Write { at, words, .. }, None) => contents[*at..at + words.len()].copy_from_slice(words),
            (Posted::Read { at, into, words, .. }, Some(source)) => {
                contents[*into..into + words].copy_from_slice(&self.contents(source)[*at..at + words]);
            }
            (posted, _) => unreachable!("{posted:?} puts nothing anywhere"),
        }
        let number = self.number(contents);
        self.stored.insert(key, number);
        number
    }

    pub fn facts(&self, me: usize, state: u32) -> &Facts {
        &self.states[me].facts[state as usize]
    }

    /// What a process in this state, with this memory, does next.
    pub fn step(&mut self, me: usize, state: u32, regions: [u32; REGIONS], input: Input) -> Rc<Outcome> {
        let key = (state, regions, input);
        if let Some(outcome) = self.states[me].outcomes.get(&key) {
            return outcome.clone();
        }
        self.steps += 1;
        let mut process = match self.states[me].running.remove(&state) {
            Some(process) => process,
            None => self.again(me, state),
        };
        let outcome = Rc::new(self.run(me, &mut process, key));
        let states = &mut self.states[me];
        if states.running.len() < 1000 {
            states.running.entry(outcome.state).or_insert(process);
        }
        states.outcomes.insert(key, outcome.clone());
        outcome
    }

    /// Repeats everything that led to a state.
    fn again(&mut self, me: usize, state: u32) -> Process<E> {
        let group = Group::new((0..PROCESSES).map(id).collect());
        let engine = E::founder(id(me), self.states[me].config, group);
        let mut process = Process { engine, machine: Shown::default(), has_proposed: false };
        let origins = &self.states[me].origins;
        let mut steps: Vec<_> = std::iter::successors(origins[state as usize], |(before, ..)| origins[*before as usize]).collect();
        steps.reverse();
        for step in steps {
            self.apply(me, &mut process, step.1, step.2);
        }
        process
    }

    fn apply(&self, me: usize, process: &mut Process<E>, regions: [u32; REGIONS], input: Input) -> Applied {
        let copied = |number: &u32| self.contents(*number).iter().map(|word| AtomicU64::new(*word)).collect();
        let memory: Vec<Vec<AtomicU64>> = regions.iter().map(copied).collect();
        let mut fabric = Endpoint::<E> { engine: PhantomData, me, memory: &memory, posted: Vec::new(), granted: Vec::new() };
        // Only now: the steps before the exploration are repeated at times, and must not have the bug.
        #[cfg(feature = "canaries")]
        martlet_fabric::probe::plant(self.planted.filter(|_| matches!(input, Input::Turn { proposes: true, .. })));
        process.step(me, input, &mut fabric);
        #[cfg(feature = "canaries")]
        martlet_fabric::probe::plant(None);
        let (posted, granted) = (fabric.posted, fabric.granted);
        Applied { memory, posted, granted }
    }

    fn run(&mut self, me: usize, process: &mut Process<E>, (state, regions, input): (u32, [u32; REGIONS], Input)) -> Outcome {
        let Applied { memory, posted, granted } = self.apply(me, process, regions, input);
        let mut after = regions;
        for (number, words) in after.iter_mut().zip(memory) {
            *number = self.number(words.into_iter().map(AtomicU64::into_inner).collect());
        }
        let facts = process.facts();
        let mut hasher = DefaultHasher::new();
        facts.text.hash(&mut hasher);
        let states = &mut self.states[me];
        let next = states.facts.len() as u32;
        let number = *states.numbers.entry(hasher.finish()).or_insert(next);
        if number == next {
            states.facts.push(facts);
            states.origins.push(Some((state, regions, input)));
        }
        let posted = posted.into_iter().map(|(target, posted)| (target, self.number_of(posted))).collect();
        Outcome { state: number, regions: after, posted, granted }
    }
}

/// What a step of an engine did.
struct Applied {
    memory: Vec<Vec<AtomicU64>>,
    posted: Vec<(usize, Posted)>,
    granted: Vec<usize>,
}

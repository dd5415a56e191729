//! The world of the exploration: three processes, the permissions at each, the operations under way, and every step that may come next.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use martlet_fabric::Token;

use crate::model::{
    Entry, Explored, FRESH, HEARTBEAT_NS, Input, Matter, Memories, Mix, Model, PROCESSES, Posted, REGIONS, SILENCE_NS, lane, public,
    region_words,
};

/// The old leader.
pub const OLD: usize = 0;
/// The process that presumes it dead.
pub const NEW: usize = 1;

/// For how many terms it is noted which process was elected.
const TERMS: usize = 8;
/// How much time passes at once: longer than the first waits, and shorter than any other patience.
pub const SPAN_NS: u64 = 100;

/// The assumption that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    Nothing,
    /// Revocations complete before they have taken effect.
    EarlyRevocation,
    /// Writes succeed whether or not there is a permission.
    BlindWrites,
    /// A grant has no effect.
    LostGrants,
    /// A write that is reported as done is lost.
    LostWrites,
}

/// What is checked in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// One writer at a time: once a process has been granted a log, no other process writes it.
    OneWriter,
    /// No two entries at one index, and the latest leader has all that was ever committed.
    Agreement,
    /// No two processes are elected for one term.
    OneLeader,
    /// The engine's own conditions on the memories.
    Memory,
}

/// An operation that has taken effect and has not completed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Done {
    /// The value that it read.
    Value(u64),
    /// A write to a log, begun under this permission. `None`: there was no permission.
    Log(Option<u8>),
}

/// The operations that one process has posted to one target, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    posted: Vec<u32>,
    done: Vec<(Token, Done)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    states: [u32; PROCESSES],
    memories: [[u32; REGIONS]; PROCESSES],
    /// By owner and writer: the epoch of the permission, and whether it is in force.
    granted: [[(u8, bool); PROCESSES]; PROCESSES],
    /// By poster and target.
    queues: [[Queue; PROCESSES]; PROCESSES],
    now: u64,
    broken: Broken,
    /// The processes whose operations complete as soon as they have taken effect.
    prompt: [bool; PROCESSES],
    /// How often time may still pass.
    spans: u8,
    /// How many turns each may still take.
    turns: [u8; PROCESSES],
    /// Every entry that was ever applied.
    truth: Vec<Entry>,
    /// The highest number under which a process has led.
    highest: u64,
    /// For each of the first terms, the number of the process that was elected, plus one; 0: none.
    reigned: [u8; TERMS],
    /// A term for which two processes were elected.
    contested: Option<u64>,
    /// Whether a write to a log succeeded although its writer did not hold the permission.
    intruded: bool,
}

impl World {
    /// The old leader leads the group of all three, and the next thing that the `deaf` ones do is to presume it dead. Time may pass `spans` times after that.
    pub fn new<E: Explored>(model: &mut Model<E>, broken: Broken, deaf: &[usize], prompt: &[usize], spans: u8) -> World {
        let fresh = std::array::from_fn(|region| model.number(vec![0; region_words::<E>(region)]));
        let mut world = World {
            states: [FRESH; PROCESSES],
            memories: [fresh; PROCESSES],
            granted: [[(0, true); PROCESSES]; PROCESSES],
            queues: Default::default(),
            now: HEARTBEAT_NS,
            broken: Broken::Nothing,
            prompt: [false; PROCESSES],
            spans,
            turns: [u8::MAX; PROCESSES],
            truth: Vec::new(),
            highest: 0,
            reigned: [0; TERMS],
            contested: None,
            intruded: false,
        };
        for p in 0..PROCESSES {
            world.act(model, p, Input::Start, true);
        }
        world.settle(model, &[]);
        assert!(model.facts(OLD, world.states[OLD]).leads, "the lowest id leads");
        // One more look at the others' hearts. The looks of the deaf at the old leader's are not answered.
        world.now += HEARTBEAT_NS;
        world.settle(model, deaf);
        world.now += 2 * SILENCE_NS;
        (world.broken, world.prompt) = (broken, std::array::from_fn(|p| prompt.contains(&p)));
        world
    }

    /// The same, with at most so many more turns of a process.
    pub fn with_turns(mut self, p: usize, most: u8) -> World {
        self.turns[p] = most;
        self
    }

    /// The same, after the old leader has posted its entry.
    pub fn with_entry<E: Explored>(mut self, model: &mut Model<E>) -> World {
        self.turn(model, OLD);
        self
    }

    /// Lets everything happen that can, in some order. The `deaf` processes' reads of the old leader's signs of life stay unanswered.
    fn settle<E: Explored>(&mut self, model: &mut Model<E>, deaf: &[usize]) {
        for _ in 0..20 {
            for p in 0..PROCESSES {
                self.act(model, p, Input::Turn { now: self.now, proposes: false }, true);
                for q in 0..PROCESSES {
                    if deaf.contains(&p) && q == OLD {
                        self.queues[p][q] = Queue::default();
                    }
                    while !self.queues[p][q].posted.is_empty() {
                        self.take_effect(model, p, q);
                    }
                    while !self.queues[p][q].done.is_empty() {
                        self.complete(model, p, q);
                    }
                }
            }
        }
    }

    pub fn leads<E: Explored>(&self, model: &Model<E>, p: usize) -> bool {
        model.facts(p, self.states[p]).leads
    }

    /// The entries that a process knows to be committed.
    pub fn applied<'a, E: Explored>(&self, model: &'a Model<E>, p: usize) -> &'a [Entry] {
        &model.facts(p, self.states[p]).applied
    }

    /// One step of an engine. `signs`: whether the looks for signs of life that it posts are kept.
    fn act<E: Explored>(&mut self, model: &mut Model<E>, p: usize, input: Input, signs: bool) {
        let outcome = model.step(p, self.states[p], self.memories[p], input);
        (self.states[p], self.memories[p]) = (outcome.state, outcome.regions);
        for (target, posted) in &outcome.posted {
            if signs || E::matter(model.operation(*posted).token()) != Matter::Sign {
                self.queues[p][*target].posted.push(*posted);
            }
        }
        for writer in &outcome.granted {
            let (epoch, stands) = &mut self.granted[p][*writer];
            (*epoch, *stands) = (*epoch + 1, self.broken != Broken::LostGrants);
        }
        let facts = model.facts(p, self.states[p]);
        let known = self.truth.len();
        self.truth.extend(facts.applied.iter().skip(known));
        if facts.leads {
            self.highest = self.highest.max(facts.number);
        }
        if let Some(reigned) = self.reigned.get_mut(facts.elected as usize).filter(|_| facts.elected > 0) {
            if *reigned > 0 && usize::from(*reigned) != p + 1 {
                self.contested = Some(facts.elected);
            }
            *reigned = p as u8 + 1;
        }
    }

    fn region<'a, E: Explored>(&self, model: &'a Model<E>, p: usize, region: usize) -> &'a [u64] {
        model.contents(self.memories[p][region])
    }

    /// Lets the next operation of `p` at `q` take effect.
    fn take_effect<E: Explored>(&mut self, model: &mut Model<E>, p: usize, q: usize) {
        let number = self.queues[p][q].posted.remove(0);
        let posted = model.operation(number).clone();
        let done = match &*posted {
            Posted::Write { token, name, .. } => {
                // Even without a permission: on shared memory the writer may have checked it just before it was revoked.
                let target = &mut self.memories[q][lane::<E>(p, *name)];
                if self.broken != Broken::LostWrites || E::matter(*token) != Matter::Other {
                    *target = model.store(*target, None, number);
                }
                match E::matter(*token) {
                    Matter::Log => {
                        let (epoch, stands) = self.granted[q][p];
                        Done::Log(stands.then_some(epoch))
                    }
                    Matter::Told => return,
                    _ => Done::Value(0),
                }
            }
            Posted::Read { region, .. } => {
                let source = self.memories[q][*region];
                let target = &mut self.memories[p][public::<E>(E::SCRATCH)];
                *target = model.store(*target, Some(source), number);
                Done::Value(0)
            }
            Posted::Word { region, at, .. } => Done::Value(self.region(model, q, *region)[*at]),
            Posted::Revoke { writer, .. } => {
                self.granted[p][*writer].1 = false;
                Done::Value(0)
            }
        };
        if self.is_told_early(&posted) {
            return;
        }
        self.queues[p][q].done.push((posted.token(), done));
        self.pass_over(model, p, q);
        if self.prompt[p] && !self.queues[p][q].done.is_empty() {
            self.complete(model, p, q);
        }
    }

    /// Delivers the next completion of `p` from `q`.
    fn complete<E: Explored>(&mut self, model: &mut Model<E>, p: usize, q: usize) {
        let (token, done) = self.queues[p][q].done.remove(0);
        let result = match done {
            Done::Value(value) => Some(value),
            Done::Log(_) if self.broken == Broken::BlindWrites => Some(0),
            Done::Log(begun) => begun.filter(|epoch| self.granted[q][p] == (*epoch, true)).map(|_| 0),
        };
        if E::matter(token) == Matter::Log && result.is_some() {
            let holder = model.facts(q, self.states[q]).holder;
            // Numbers of peers begin with 1.
            self.intruded |= holder != Some(p + 1);
        }
        self.act(model, p, Input::Completed(token, result), false);
        self.pass_over(model, p, q);
    }

    /// Delivers completions that say how much of a lane has been read: they are out of date whenever they come, and have no consequences here.
    fn pass_over<E: Explored>(&mut self, model: &mut Model<E>, p: usize, q: usize) {
        while self.queues[p][q].done.first().is_some_and(|(token, _)| E::matter(*token) == Matter::OldNews) {
            let (token, done) = self.queues[p][q].done.remove(0);
            let Done::Value(value) = done else { unreachable!("a word was read") };
            self.act(model, p, Input::Completed(token, Some(value)), false);
        }
    }

    /// Whether an operation completes before it has taken effect.
    fn is_told_early(&self, posted: &Posted) -> bool {
        self.broken == Broken::EarlyRevocation && matches!(posted, Posted::Revoke { .. })
    }

    /// Gives `p` a turn.
    fn turn<E: Explored>(&mut self, model: &mut Model<E>, p: usize) {
        let before = self.queues[p][p].posted.len();
        self.act(model, p, Input::Turn { now: self.now, proposes: true }, false);
        // An operation that completes early does so at once.
        let posted = self.queues[p][p].posted[before..].iter().map(|number| model.operation(*number));
        let early: Vec<Token> = posted.filter(|posted| self.is_told_early(posted)).map(|posted| posted.token()).collect();
        for token in early {
            self.act(model, p, Input::Completed(token, Some(0)), false);
        }
    }

    /// What is wrong, if anything is.
    pub fn check<E: Explored>(&self, model: &Model<E>, property: Property) -> Result<(), String> {
        match property {
            Property::OneWriter => {
                if self.intruded {
                    return Err("a write has succeeded without the owner's having granted it".into());
                }
                for (owner, writers) in self.granted.iter().enumerate() {
                    let may = (0..PROCESSES).filter(|w| *w != owner && writers[*w].1).collect::<Vec<_>>();
                    if may.len() > 1 {
                        return Err(format!("{may:?} may all write the log of {owner}"));
                    }
                }
            }
            Property::OneLeader => {
                if let Some(term) = self.contested {
                    return Err(format!("two were elected for term {term}"));
                }
            }
            Property::Memory => return <E as Explored>::check(&Memories { model, regions: &self.memories }),
            Property::Agreement => {
                for p in 0..PROCESSES {
                    let facts = model.facts(p, self.states[p]);
                    if !self.truth.starts_with(&facts.applied) {
                        return Err(format!("{p} has committed {:?}, and {:?} had been", facts.applied, self.truth));
                    }
                    if facts.leads && facts.number == self.highest && facts.applied.len() < self.truth.len() {
                        return Err(format!("{p} leads without what was committed: {:?} of {:?}", facts.applied, self.truth));
                    }
                }
            }
        }
        Ok(())
    }

    /// The highest number under which a process has led.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Whether another process leads, and the old leader neither leads nor has a record on its way, so that it can acknowledge nothing more.
    pub fn is_over<E: Explored>(&self, model: &Model<E>) -> bool {
        let is_log = |number: &u32| E::matter(model.operation(*number).token()) == Matter::Log;
        let is_silent =
            |queue: &Queue| !queue.posted.iter().any(is_log) && !queue.done.iter().any(|(token, _)| E::matter(*token) == Matter::Log);
        (0..PROCESSES).any(|p| p != OLD && self.leads(model, p)) && !self.leads(model, OLD) && self.queues[OLD].iter().all(is_silent)
    }

    /// How many of the operations that `p` has posted to `q` only tell it something, before the first one that does more.
    fn told<E: Explored>(&self, model: &Model<E>, p: usize, q: usize) -> usize {
        self.queues[p][q].posted.iter().take_while(|number| E::matter(model.operation(**number).token()) == Matter::Told).count()
    }

    /// The states that a turn of `q` leads to. What `q` is told matters to `q` alone, and only in its turns. So it arrives just before a turn, as much of it as
    /// may have come by then, or together with what was posted after it.
    fn turns<E: Explored>(&self, model: &mut Model<E>, q: usize, next: &mut Vec<World>) {
        if self.turns[q] == 0 {
            return;
        }
        let most: [usize; PROCESSES] = std::array::from_fn(|p| self.told(model, p, q));
        let choices: usize = most.iter().map(|most| most + 1).product();
        for choice in 0..choices {
            let (mut world, mut rest) = (self.clone(), choice);
            for (p, most) in most.into_iter().enumerate() {
                (0..rest % (most + 1)).for_each(|_| world.take_effect(model, p, q));
                rest /= most + 1;
            }
            let turn = Input::Turn { now: world.now, proposes: true };
            if !model.step(q, world.states[q], world.memories[q], turn).is_nothing(world.states[q], &world.memories[q]) {
                world.turn(model, q);
                if world.turns[q] < u8::MAX {
                    world.turns[q] -= 1;
                }
                next.push(world);
            }
        }
    }

    /// The states that one step, of any process, leads to.
    pub fn successors<E: Explored>(&self, model: &mut Model<E>) -> Vec<World> {
        self.successors_by(model, 0..PROCESSES)
    }

    /// The states that one step of one of these processes leads to.
    pub fn successors_by<E: Explored>(&self, model: &mut Model<E>, those: Range<usize>) -> Vec<World> {
        let mut next = Vec::new();
        if self.spans > 0 {
            next.push(World { now: self.now + SPAN_NS, spans: self.spans - 1, ..self.clone() });
        }
        for p in those {
            self.turns(model, p, &mut next);
            for q in 0..PROCESSES {
                let ahead = self.told(model, p, q);
                if self.queues[p][q].posted.len() > ahead {
                    let mut world = self.clone();
                    (0..=ahead).for_each(|_| world.take_effect(model, p, q));
                    next.push(world);
                }
                if !self.queues[p][q].done.is_empty() {
                    let mut world = self.clone();
                    world.complete(model, p, q);
                    next.push(world);
                }
            }
        }
        next
    }

    pub fn digest(&self) -> u64 {
        let mut hasher = Mix::default();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Whether the old leader leads, and has committed what it proposed.
    pub fn has_acknowledged<E: Explored>(&self, model: &Model<E>) -> bool {
        self.leads(model, OLD) && !model.facts(OLD, self.states[OLD]).applied.is_empty()
    }

    /// A description of the world, for reports.
    pub fn describe<E: Explored>(&self, model: &Model<E>) -> String {
        let mut text = String::new();
        for p in 0..PROCESSES {
            let facts = model.facts(p, self.states[p]);
            let numbers = self.region(model, p, 0);
            text += &format!(
                "{p}: leads {} under {}, shows {:?}, holder {:?}, numbers {numbers:?}\n",
                facts.leads, facts.number, facts.applied, facts.holder
            );
            text += &format!("   may write {:?}, on its way {:?}\n", self.granted[p], self.queues[p]);
        }
        text
    }
}

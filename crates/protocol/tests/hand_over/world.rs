//! The world of the exploration: three processes, the permissions at each, what is on its way, and every step that may come next.

use std::hash::{Hash, Hasher};

use martlet_fabric::Token;
use martlet_protocol::basics::layout::LOG_LANE;
use martlet_protocol::engine::mu::layout::{Op, PERMISSION_LANE, SCRATCH, WORDS, permission, words};

use crate::process::{FRESH, HEARTBEAT_NS, Input, Mix, Model, PROCESSES, Posted, REGIONS, SILENCE_NS, lane, public, region_words};

/// The leader.
pub const OLD: usize = 0;
/// The one that presumes it dead.
pub const NEW: usize = 1;

/// Which assumption does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    Nothing,
    /// Revocations complete before they have taken effect.
    EarlyRevocation,
    /// Writes succeed without a look at the permission.
    BlindWrites,
    /// What is granted is not.
    LostGrants,
}

/// What is looked at in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// One writer at a time: a log is written by nobody else once somebody has been granted it.
    OneWriter,
    /// No two entries at one index, and the latest leader has all that was ever committed.
    Agreement,
}

/// An operation that has taken effect and has not completed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Done {
    /// What it has found.
    Value(u64),
    /// A write to a log, begun under this permission; `None`: there was none.
    Log(Option<u8>),
}

/// What one process has posted to one target, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    posted: Vec<u32>,
    done: Vec<(Token, Done)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    states: [u32; PROCESSES],
    memories: [[u32; REGIONS]; PROCESSES],
    /// By owner and writer: the epoch of the permission, and whether it stands.
    granted: [[(u8, bool); PROCESSES]; PROCESSES],
    /// By poster and target.
    queues: [[Queue; PROCESSES]; PROCESSES],
    now: u64,
    broken: Broken,
    /// Those that hear of their own operations as soon as they have taken effect.
    prompt: Option<usize>,
    /// What has ever been applied at each index.
    truth: Vec<u8>,
    /// The highest number under which anybody has led.
    highest: u64,
    /// Whether a write has completed well whose writer was not the one to write.
    intruded: bool,
}

fn operation(token: Token) -> Op {
    Op::parse(token).0
}

/// A sign of life, or what follows from one; the state is not taught here.
fn is_sign(op: Op) -> bool {
    matches!(op, Op::Heartbeat | Op::Status | Op::Threads | Op::Death | Op::State | Op::StateConsumed)
}

impl World {
    /// The old leader leads the group of all three, and the next step of the second one is to presume it dead.
    pub fn new(model: &mut Model, broken: Broken, prompt: Option<usize>) -> World {
        let fresh = std::array::from_fn(|region| model.number(vec![0; region_words(region)]));
        let mut world = World {
            states: [FRESH; PROCESSES],
            memories: [fresh; PROCESSES],
            granted: [[(0, true); PROCESSES]; PROCESSES],
            queues: Default::default(),
            now: HEARTBEAT_NS,
            broken: Broken::Nothing,
            prompt: None,
            truth: Vec::new(),
            highest: 0,
            intruded: false,
        };
        for p in 0..PROCESSES {
            world.act(model, p, Input::Start, true);
        }
        world.settle(model, None);
        assert!(model.facts(OLD, world.states[OLD]).leads, "the lowest id leads");
        // One more look at the others' hearts, of which one is not answered.
        world.now += HEARTBEAT_NS;
        world.settle(model, Some(NEW));
        world.now += 2 * SILENCE_NS;
        (world.broken, world.prompt) = (broken, prompt);
        world
    }

    /// Lets everything happen that may, in some order. The reads that `deaf` makes of the old leader's signs of life stay unanswered.
    fn settle(&mut self, model: &mut Model, deaf: Option<usize>) {
        for _ in 0..20 {
            for p in 0..PROCESSES {
                self.act(model, p, Input::Turn { now: self.now, proposes: false }, true);
                for q in 0..PROCESSES {
                    if deaf == Some(p) && q == OLD {
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

    pub fn leads(&self, model: &Model, p: usize) -> bool {
        model.facts(p, self.states[p]).leads
    }

    /// What a process shows: the entries that it knows to be committed.
    pub fn applied<'a>(&self, model: &'a Model, p: usize) -> &'a [u8] {
        &model.facts(p, self.states[p]).applied
    }

    /// One step of an engine. `signs`: whether it also looks for signs of life.
    fn act(&mut self, model: &mut Model, p: usize, input: Input, signs: bool) {
        let outcome = model.step(p, self.states[p], self.memories[p], input);
        (self.states[p], self.memories[p]) = (outcome.state, outcome.regions);
        for (target, posted) in &outcome.posted {
            if signs || !is_sign(operation(model.operation(*posted).token())) {
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
            self.highest = self.highest.max(facts.ballot);
        }
    }

    fn region<'a>(&self, model: &'a Model, p: usize, region: usize) -> &'a [u64] {
        model.contents(self.memories[p][region])
    }

    /// The next operation of `p` at `q` takes effect.
    fn take_effect(&mut self, model: &mut Model, p: usize, q: usize) {
        let number = self.queues[p][q].posted.remove(0);
        let posted = model.operation(number).clone();
        let done = match &*posted {
            Posted::Write { token, name, at, .. } => {
                // Also without a permission: on shared memory it may be looked at just before it goes.
                let target = &mut self.memories[q][lane(p, *name)];
                *target = model.store(*target, None, number);
                if *name != LOG_LANE {
                    // A process that tells something learns nothing by its having been told.
                    assert!(!matches!(operation(*token), Op::Log | Op::Consumed | Op::Words | Op::CatchUp), "{posted:?}");
                    if *name == PERMISSION_LANE && *at == permission::START {
                        // Only who serves the request behind it looks there.
                        self.take_effect(model, p, q);
                    }
                    return;
                }
                let (epoch, stands) = self.granted[q][p];
                Done::Log(stands.then_some(epoch))
            }
            Posted::Read { region, .. } => {
                let source = self.memories[q][*region];
                let target = &mut self.memories[p][public(SCRATCH)];
                *target = model.store(*target, Some(source), number);
                Done::Value(0)
            }
            Posted::Word { region, at, .. } => Done::Value(self.region(model, q, *region)[*at]),
            Posted::Revoke { writer, .. } => {
                self.granted[p][*writer].1 = false;
                if self.broken == Broken::EarlyRevocation {
                    return;
                }
                Done::Value(0)
            }
        };
        self.queues[p][q].done.push((posted.token(), done));
        self.pass_over(model, p, q);
        if self.prompt == Some(p) && !self.queues[p][q].done.is_empty() {
            self.complete(model, p, q);
        }
    }

    /// The next completion of `p` from `q` comes.
    fn complete(&mut self, model: &mut Model, p: usize, q: usize) {
        let (token, done) = self.queues[p][q].done.remove(0);
        let result = match done {
            Done::Value(value) => Some(value),
            Done::Log(_) if self.broken == Broken::BlindWrites => Some(0),
            Done::Log(begun) => begun.filter(|epoch| self.granted[q][p] == (*epoch, true)).map(|_| 0),
        };
        if operation(token) == Op::Log && result.is_some() {
            let holder = model.facts(q, self.states[q]).holder;
            // Numbers of peers begin with 1.
            self.intruded |= holder != Some(p + 1);
        }
        self.act(model, p, Input::Completed(token, result), false);
        self.pass_over(model, p, q);
    }

    /// How much of a lane has been read is old news whenever it comes, and nothing follows from it here.
    fn pass_over(&mut self, model: &mut Model, p: usize, q: usize) {
        while self.queues[p][q].done.first().is_some_and(|(token, _)| operation(*token) == Op::Consumed) {
            let (token, done) = self.queues[p][q].done.remove(0);
            let Done::Value(value) = done else { unreachable!("a word was read") };
            self.act(model, p, Input::Completed(token, Some(value)), false);
        }
    }

    /// A turn of `p`.
    fn turn(&mut self, model: &mut Model, p: usize) {
        let before = self.queues[p][p].posted.len();
        self.act(model, p, Input::Turn { now: self.now, proposes: true }, false);
        if self.broken == Broken::EarlyRevocation {
            // It is told so at once.
            let tokens: Vec<Token> = self.queues[p][p].posted[before..].iter().map(|number| model.operation(*number).token()).collect();
            for token in tokens {
                self.act(model, p, Input::Completed(token, Some(0)), false);
            }
        }
    }

    /// What is wrong, if anything is.
    pub fn check(&self, model: &Model, property: Property) -> Result<(), String> {
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
            Property::Agreement => {
                for p in 0..PROCESSES {
                    let facts = model.facts(p, self.states[p]);
                    if !self.truth.starts_with(&facts.applied) {
                        return Err(format!("{p} has committed {:?}, and {:?} had been", facts.applied, self.truth));
                    }
                    if facts.leads && facts.ballot == self.highest && facts.applied.len() < self.truth.len() {
                        return Err(format!("{p} leads without what was committed: {:?} of {:?}", facts.applied, self.truth));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the new leader leads, and the old one neither does nor has a record on its way: nothing that it has acknowledged is to come.
    pub fn is_over(&self, model: &Model) -> bool {
        let is_log = |number: &u32| operation(model.operation(*number).token()) == Op::Log;
        let is_silent =
            |queue: &Queue| !queue.posted.iter().any(is_log) && !queue.done.iter().any(|(token, _)| operation(*token) == Op::Log);
        self.leads(model, NEW) && !self.leads(model, OLD) && self.queues[OLD].iter().all(is_silent)
    }

    /// The states that one step leads to.
    pub fn successors(&self, model: &mut Model) -> Vec<World> {
        let mut next = Vec::new();
        for p in 0..PROCESSES {
            let turn = Input::Turn { now: self.now, proposes: true };
            if !model.step(p, self.states[p], self.memories[p], turn).is_nothing(self.states[p], &self.memories[p]) {
                let mut world = self.clone();
                world.turn(model, p);
                next.push(world);
            }
            for q in 0..PROCESSES {
                if !self.queues[p][q].posted.is_empty() {
                    let mut world = self.clone();
                    world.take_effect(model, p, q);
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
    pub fn has_acknowledged(&self, model: &Model) -> bool {
        self.leads(model, OLD) && !model.facts(OLD, self.states[OLD]).applied.is_empty()
    }

    /// What it looks like, for reports.
    pub fn describe(&self, model: &Model) -> String {
        let mut text = String::new();
        for p in 0..PROCESSES {
            let facts = model.facts(p, self.states[p]);
            let numbers = &self.region(model, p, public(WORDS))[..words::COUNT];
            text += &format!(
                "{p}: leads {} under {}, shows {:?}, holder {:?}, numbers {numbers:?}\n",
                facts.leads, facts.ballot, facts.applied, facts.holder
            );
            text += &format!("   may write {:?}, on its way {:?}\n", self.granted[p], self.queues[p]);
        }
        text
    }
}

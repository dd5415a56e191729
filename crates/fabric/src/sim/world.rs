//! The world, as its driver sees it.

use std::cell::RefCell;
use std::rc::Rc;

use super::endpoint::Endpoint;
use super::faults::{Counts, Faults};
use super::process::DeathWords;
use super::state::State;
use crate::contract::{Identity, Memory, PeerId, RegionName, RegionSpec};
use crate::invariant;

/// A process of a world: the first one spawned is 0, the next 1. A restarted node is a new process.
pub type ProcessIndex = usize;

/// A simulated world; see the [module](super) for the parameter. A clone is another handle to the same world.
///
/// A driver spawns processes, each with its [`Endpoint`]. Then it repeatedly calls [`World::next_turn`] and lets the process that this names take one
/// turn of its duty cycle. Between turns it injects whatever faults it likes.
#[derive(Clone, Debug)]
pub struct World<const HOST: bool> {
    state: Rc<RefCell<State>>,
}

impl<const HOST: bool> World<HOST> {
    /// A world at time 0, without processes. All its randomness comes from `seed`.
    pub fn new(seed: u64, faults: Faults) -> Self {
        World { state: Rc::new(RefCell::new(State::new(seed, faults, HOST))) }
    }

    /// Virtual nanoseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.state.borrow().now
    }

    /// Operations posted so far by all processes.
    pub fn operations(&self) -> u64 {
        self.state.borrow().operations
    }

    /// Starts a process. After a while, it connects to all other processes that live, now or later; clients do not connect to clients.
    ///
    /// # Panics
    /// If there has been a process of the same identity.
    pub fn spawn(&mut self, identity: Identity, spec: &RegionSpec) -> (ProcessIndex, Endpoint<HOST>) {
        let process = self.state.borrow_mut().spawn(identity, spec.clone());
        (process as usize, Endpoint::new(self.state.clone(), process))
    }

    /// Ends a process as SIGKILL does. What it has posted may still take effect for a moment, up to some point in each queue. Then its kernel marks
    /// the death words, if it has any, and later the others are told that it is gone.
    pub fn kill(&mut self, process: ProcessIndex, death: Option<DeathWords>) {
        self.state.borrow_mut().kill(process as u32, death);
    }

    /// Ends a process together with its host: nothing more leaves it, and nobody is told. Only on a network, since on a host all processes share one
    /// host.
    pub fn crash(&mut self, process: ProcessIndex) {
        invariant!(!HOST, "process {process} shares its host with all others");
        self.state.borrow_mut().crash(process as u32);
    }

    /// Whether a process has not been killed.
    pub fn is_alive(&self, process: ProcessIndex) -> bool {
        self.state.borrow().processes[process].alive
    }

    /// Whether a process has been paused.
    pub fn is_paused(&self, process: ProcessIndex) -> bool {
        self.state.borrow().processes[process].paused
    }

    /// Stops a process as SIGSTOP does: it gets no turns, and on a host its stores stop half way.
    pub fn pause(&mut self, process: ProcessIndex) {
        self.state.borrow_mut().pause(process as u32);
    }

    /// Lets a paused process go on.
    pub fn resume(&mut self, process: ProcessIndex) {
        self.state.borrow_mut().resume(process as u32);
    }

    /// Stops everything that travels from one process to the other: requests one way, completions the other, datagrams. If it is not unblocked within
    /// [`Faults::peer_lost_after_ns`], what travels is lost, and the connection with it. On a network, the two connect anew once nothing is in the
    /// way.
    pub fn block(&mut self, from: ProcessIndex, to: ProcessIndex) {
        self.state.borrow_mut().block(from as u32, to as u32, true);
    }

    /// Undoes [`World::block`].
    pub fn unblock(&mut self, from: ProcessIndex, to: ProcessIndex) {
        self.state.borrow_mut().block(from as u32, to as u32, false);
    }

    /// Blocks both ways between all of one side and all of the other.
    pub fn partition(&mut self, one: &[ProcessIndex], other: &[ProcessIndex]) {
        for a in one {
            for b in other {
                self.block(*a, *b);
                self.block(*b, *a);
            }
        }
    }

    /// Lets everything pass again, except through dead NICs.
    pub fn heal(&mut self) {
        let blocked = self.state.borrow().blocked.clone();
        for (from, to) in blocked {
            self.state.borrow_mut().block(from, to, false);
        }
    }

    /// Breaks a process's NIC for good; the process lives on. Its operations on itself also go through the NIC, so they fail too.
    pub fn kill_nic(&mut self, process: ProcessIndex) {
        self.state.borrow_mut().processes[process].nic_dead = true;
    }

    /// Whether a process's NIC works.
    pub fn has_nic(&self, process: ProcessIndex) -> bool {
        !self.state.borrow().processes[process].nic_dead
    }

    /// Whether two living processes are connected, so that what each posts on the other takes effect as soon as nothing is in its way: neither has
    /// lost the other, and their NICs work.
    pub fn are_connected(&self, one: ProcessIndex, other: ProcessIndex) -> bool {
        let state = self.state.borrow();
        let reaches = |from: usize, to: usize| {
            let process = &state.processes[from];
            let slot = process.peer_of(to as u32).map(|peer| &process.slots[peer.0 as usize]);
            process.alive
                && !process.nic_dead
                && slot.is_some_and(|slot| !slot.gone && !slot.forgotten && !state.links[slot.link as usize].broken)
        };
        reaches(one, other) && reaches(other, one)
    }

    /// From now on, the world has these faults.
    pub fn set_faults(&mut self, faults: Faults) {
        self.state.borrow_mut().faults = faults;
    }

    /// Whether a store into a process's memory gives the process a turn, as if it polled; this is so at first. Otherwise the process sleeps until it
    /// is nudged, or until something of its own happens: a completion, a datagram, an event, or a time that it asked for.
    pub fn let_stores_wake(&mut self, wake: bool) {
        self.state.borrow_mut().stores_wake = wake;
    }

    /// Gives a process a turn soon.
    pub fn wake(&mut self, process: ProcessIndex) {
        self.state.borrow_mut().wake(process as u32);
    }

    /// Gives a process a turn soon after `at`, unless it has asked for an earlier one. That turn uses the request up.
    pub fn wake_at(&mut self, process: ProcessIndex, at: u64) {
        self.state.borrow_mut().wake_at(process as u32, at);
    }

    /// Goes on until a process has its turn, but not beyond `limit`. A process has a turn after anything that may concern it: a completion, a
    /// datagram, an event, a store into its memory, a nudge, or a time that it asked for. `None` if nothing more is due by `limit`; the time is then
    /// `limit`.
    pub fn next_turn(&mut self, limit: u64) -> Option<ProcessIndex> {
        let mut state = self.state.borrow_mut();
        while state.agenda.next_at().is_some_and(|at| at <= limit) {
            if let Some(process) = state.step() {
                return Some(process as usize);
            }
        }
        state.now = state.now.max(limit);
        None
    }

    /// Lets the next thing happen, whatever it is, if it is due by `limit`; [`World::events`] counts these. Returns the process whose turn it is, if
    /// a turn is what happens. `None` if nothing is due by `limit`; the time is then `limit`.
    pub fn next_event(&mut self, limit: u64) -> Option<Option<ProcessIndex>> {
        let mut state = self.state.borrow_mut();
        if state.agenda.next_at().is_none_or(|at| at > limit) {
            state.now = state.now.max(limit);
            return None;
        }
        Some(state.step().map(|process| process as usize))
    }

    /// How many things have happened so far: turns, effects, completions, datagrams, and so on.
    pub fn events(&self) -> u64 {
        self.state.borrow().events
    }

    /// How much harm has been done so far.
    pub fn counts(&self) -> Counts {
        self.state.borrow().counts
    }

    /// How much is on its way or waiting to be taken: operations, completions, datagrams, events, and what is due.
    pub fn held(&self) -> usize {
        let state = self.state.borrow();
        let waiting = |p: &super::process::Process| p.completions.len() + p.events.len() + p.inbox.len();
        let posted: usize = state.links.iter().map(|link| link.posted.len() + link.done.len()).sum();
        posted + state.processes.iter().map(waiting).sum::<usize>() + state.agenda.len()
    }

    /// Looks at what a process, dead or alive, holds, as no process of the world could.
    ///
    /// # Panics
    /// If the process offers no public region of that name.
    pub fn look<R>(&self, process: ProcessIndex, region: RegionName, at: impl FnOnce(&Memory) -> R) -> R {
        let memory = {
            let state = self.state.borrow();
            let found = state.processes[process].public.iter().find(|(name, _)| *name == region).map(|(_, memory)| memory.clone());
            invariant!(found.is_some(), "process {process} offers no {region:?}");
            found.expect("checked")
        };
        at(memory.words())
    }

    /// Looks at the contents of the lanes of that name that a process keeps, or kept, for another one: one lane for each of their connections. For a
    /// lane that has been forgotten, `at` gets `None`.
    pub fn look_at_lanes<R>(
        &self,
        process: ProcessIndex,
        writer: ProcessIndex,
        name: RegionName,
        mut at: impl FnMut(Option<&Memory>) -> R,
    ) -> Vec<R> {
        let memories: Vec<_> = {
            let state = self.state.borrow();
            let owner = &state.processes[process];
            let of = |peer: PeerId| owner.slots[peer.0 as usize].process as usize;
            owner.lanes.iter().filter(|lane| lane.name == name && of(lane.writer) == writer).map(|lane| lane.memory.clone()).collect()
        };
        memories.iter().map(|memory| at(Some(memory.words()).filter(|words| !words.is_empty()))).collect()
    }

    /// Goes on for this many nanoseconds; processes do not use their turns.
    pub fn run_for(&mut self, ns: u64) {
        let limit = self.now() + ns;
        while self.next_turn(limit).is_some() {}
    }

    /// A digest of everything that has happened: equal for equal lives.
    pub fn digest(&self) -> u64 {
        self.state.borrow().trace.digest()
    }

    /// Keeps the whole trace from now on; see [`World::trace`].
    pub fn keep_trace(&mut self) {
        self.state.borrow_mut().trace.keep_all();
    }

    /// Everything that has happened since [`World::keep_trace`]: for each event, a byte for its kind and three words (time, two particulars).
    pub fn trace(&self) -> Vec<u8> {
        self.state.borrow().trace.full().to_vec()
    }
}

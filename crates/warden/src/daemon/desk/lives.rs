//! Lives of applications, and their slots on the board.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use martlet_protocol::detector::wardens::Secret;

use super::super::eye::Task;
use super::marks::MarkedAs;
use super::{Desk, OUTSIDE, ProgramId};
use crate::board::{End, Evidence, MAX_SLOTS, Slot, State};
use crate::canary::Canary;
use crate::process::{has_ended, name_of, pid_of};
use crate::wire::Answer;
use crate::{AppId, Resources};

/// One life of an application, as the desk knows it.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) slot: Slot,
    pub(super) app: AppId,
    pub(super) state: State,
    pub(super) evidence: Option<Evidence>,
    pub(super) incarnation: u64,
    /// The secret that is revealed when it has certainly failed. For a life on another host it is not known before then.
    pub(super) secret: Secret,
    /// The number of its host; 0: this host.
    pub(super) host: u32,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) name: String,
    /// How marks identify its process, while it is alive.
    pub(super) marked_as: Option<MarkedAs>,
    /// The descriptor of its process, once it is alive.
    pub(super) pidfd: Option<Arc<OwnedFd>>,
    /// Whether the descriptor is watched for this life alone, because its process is not a connected program.
    pub(super) is_from_outside: bool,
    /// The program that has joined as this life.
    pub(super) program: Option<ProgramId>,
    pub(super) monitors: BTreeMap<ProgramId, Resources>,
    /// The number of the last message that it sent.
    pub(super) seq: u64,
    /// How large its messages may be.
    pub(super) pbsize: u32,
    pub(super) at_ns: u64,
}

impl Life {
    pub(super) fn awaited(slot: Slot, app: AppId) -> Life {
        Life {
            slot,
            app,
            state: State::Awaited,
            evidence: None,
            incarnation: 0,
            secret: [0; 16],
            host: 0,
            pid: 0,
            uid: 0,
            name: String::new(),
            marked_as: None,
            pidfd: None,
            is_from_outside: false,
            program: None,
            monitors: BTreeMap::new(),
            seq: 0,
            pbsize: 0,
            at_ns: 0,
        }
    }

    /// This life, with the monitors that its slot has had while the application was awaited.
    pub(super) fn monitored_as(mut self, awaited: &mut Life) -> Life {
        self.monitors = std::mem::take(&mut awaited.monitors);
        self
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Failed | State::Left)
    }

    /// How large a message its monitors have asked for.
    pub(super) fn asked_pbsize(&self) -> u32 {
        self.monitors.values().map(|want| want.pbsize).max().unwrap_or(0)
    }
}

impl Desk {
    /// The slot of an application's newest life. First checks whether that life is still alive: a new one must not be refused because of a dead one.
    pub(super) fn current(&mut self, app: AppId) -> Option<u16> {
        let index = *self.current.get(&app)?;
        self.learn(index);
        let life = self.lives.get(&index)?;
        if life.state == State::Alive && life.pidfd.as_ref().is_some_and(|pidfd| has_ended(&**pidfd)) {
            self.end(index, State::Failed, Some(Evidence::Process));
        }
        self.current.get(&app).copied()
    }

    /// A slot for a new life of an application, which becomes its current one.
    pub(super) fn new_slot(&mut self, app: AppId) -> Result<Slot, String> {
        if self.lives.len() == MAX_SLOTS {
            // If there is no room, reuses the slot of the oldest life that has ended and has no monitors.
            let over = self.lives.values().filter(|life| life.is_over() && life.monitors.is_empty());
            let oldest = over.min_by_key(|life| life.at_ns).map(|life| life.slot.index);
            let oldest = oldest.ok_or_else(|| format!("{MAX_SLOTS} applications are known, as many as there is room for"))?;
            self.free(oldest);
        }
        if let Some(before) = self.current.remove(&app) {
            self.free_if_idle(before);
        }
        let index = (0..MAX_SLOTS as u16).find(|index| !self.lives.contains_key(index)).expect("fewer than all");
        let generation = &mut self.generations[usize::from(index)];
        *generation = generation.wrapping_add(1);
        let slot = Slot { index, generation: *generation };
        self.lives.insert(index, Life::awaited(slot, app));
        self.current.insert(app, index);
        Ok(slot)
    }

    /// The slot in which a new life may begin of an application that is not alive: the one in which it is awaited, or a new one.
    pub(super) fn slot_to_begin(&mut self, app: AppId) -> Result<Slot, String> {
        match self.current(app).map(|index| &self.lives[&index]) {
            Some(life) if life.state == State::Awaited => Ok(life.slot),
            Some(life) if life.state == State::Alive && !Canary::JoinedTwice.is_planted() => Err(match life.host {
                0 => format!("application {app} is alive already: process {} ({})", life.pid, life.name),
                host => format!("application {app} is alive already, on host {host}"),
            }),
            _ => self.new_slot(app),
        }
    }

    /// From now on a process is this application, and need not know about wardens.
    pub(super) fn begin_from_outside(&mut self, slot: Slot, app: AppId, incarnation: u64, pidfd: OwnedFd) -> Result<(), String> {
        let pid = pid_of(&pidfd).map_err(|error| format!("the process cannot be watched: {error}"))?;
        // Watch first: then even a process that has ended already is noticed.
        self.watch(&pidfd, OUTSIDE | u64::from(slot.index)).map_err(|error| format!("the process cannot be watched: {error}"))?;
        let secret = martlet_fabric::host::random().map_err(|error| format!("no secret for the application: {error}"))?;
        let uid = std::fs::metadata(format!("/proc/{pid}")).map_or(0, |data| std::os::unix::fs::MetadataExt::uid(&data));
        let life = self.lives.get_mut(&slot.index).expect("its slot is taken");
        let pidfd = Some(Arc::new(pidfd));
        let begun = Life {
            state: State::Alive,
            incarnation,
            secret,
            pid,
            uid,
            name: name_of(pid),
            pidfd,
            is_from_outside: true,
            ..Life::awaited(slot, app)
        };
        *life = begun.monitored_as(life);
        self.suit_wishes(slot.index);
        self.board.begin(slot, app, 0, incarnation, pid, State::Alive);
        self.tell_others(slot.index);
        Ok(())
    }

    /// Tells other hosts of an application that has begun.
    pub(super) fn tell_others(&self, index: u16) {
        if let Some(others) = self.others.as_ref().filter(|_| self.lives[&index].app.is_chosen()) {
            others.begin(&self.lives[&index]);
        }
    }

    pub(super) fn forget_outside(&mut self, index: u16) {
        if let Some(life) = self.lives.get_mut(&index).filter(|life| life.is_from_outside) {
            life.is_from_outside = false;
            if let Some(pidfd) = life.pidfd.clone() {
                self.watch_no_more(&*pidfd);
            }
        }
    }

    /// The eye has ended a life: takes note of it.
    pub(super) fn take_end(&mut self, slot: Slot) {
        if self.lives.get(&slot.index).is_some_and(|life| life.slot == slot) {
            self.learn(slot.index);
        }
    }

    /// Takes from the board what the eye may have written there.
    fn learn(&mut self, index: u16) {
        let Some(life) = self.lives.get_mut(&index).filter(|life| life.state == State::Alive) else { return };
        if let Some(seen) = self.board.look(life.slot).filter(|seen| seen.state != State::Alive) {
            (life.state, life.evidence, life.at_ns) = (seen.state, seen.evidence, crate::now_ns());
            self.over(index);
        }
    }

    /// Ends a life, unless the eye has done so, and tells its monitors.
    pub(super) fn end(&mut self, index: u16, state: State, evidence: Option<Evidence>) {
        let Some(life) = self.lives.get_mut(&index).filter(|life| life.state == State::Alive) else { return };
        let now = crate::now_ns();
        if self.board.end(life.slot, &End { state, evidence, at_ns: now, secret: life.secret }) {
            (life.state, life.evidence, life.at_ns) = (state, evidence, now);
            self.tell_monitors(index, &Answer::Look);
            self.over(index);
        } else {
            self.learn(index);
        }
    }

    /// Neither eye nor pulse reports on this life any more.
    fn forget(&self, slot: Slot, host: u32) {
        self.eye.send(Task::Forget(slot));
        if let Some(others) = self.others.as_ref().filter(|_| host != 0) {
            others.forget(slot);
        }
    }

    pub(super) fn over(&mut self, index: u16) {
        self.suit_wishes(index);
        self.forget_outside(index);
        let Some(life) = self.lives.get_mut(&index) else { return };
        let (slot, host, program) = (life.slot, life.host, life.program.take());
        if let Some(others) = self.others.as_ref().filter(|_| life.host == 0) {
            others.end(life);
        }
        tracing::info!(app = %life.app, pid = life.pid, state = %life.state, evidence = ?life.evidence, "an application has ended");
        self.forget(slot, host);
        if let Some(program) = program.and_then(|program| self.programs.get_mut(&program)) {
            program.life = None;
        }
        self.free_if_idle(index);
    }

    /// Frees a slot that is of no interest any more: one whose application is no longer awaited, one of an earlier life, or one of a process that only its
    /// monitors knew.
    pub(super) fn free_if_idle(&mut self, index: u16) {
        let Some(life) = self.lives.get(&index).filter(|life| life.monitors.is_empty()) else { return };
        let is_current = self.current.get(&life.app) == Some(&index);
        let is_needed = match life.state {
            State::Alive => life.app.is_chosen(),
            State::Failed | State::Left => is_current && life.app.is_chosen(),
            State::Awaited | State::Free => false,
        };
        if !is_needed {
            self.free(index);
        }
    }

    pub(super) fn free(&mut self, index: u16) {
        self.forget_outside(index);
        self.unwish(index);
        if let Some(life) = self.lives.remove(&index) {
            if self.current.get(&life.app) == Some(&index) {
                self.current.remove(&life.app);
            }
            self.forget(life.slot, life.host);
            self.board.free(life.slot);
        }
    }

    /// A process that is watched without its help has ended.
    pub(super) fn outside_ended(&mut self, index: u16) {
        // The event may be about an earlier life in this slot, which has been replaced in the same turn.
        let life = self.lives.get(&index).filter(|life| life.is_from_outside);
        if life.and_then(|life| life.pidfd.as_ref()).is_some_and(|pidfd| has_ended(&**pidfd)) {
            self.end(index, State::Failed, Some(Evidence::Process));
        }
    }
}

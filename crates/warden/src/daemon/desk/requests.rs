//! What programs ask their warden.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use martlet_fabric::host::page::Page;
use martlet_protocol::detector::wardens::Secret;

use super::super::eye::Task;
use super::lives::Life;
use super::remote::OtherHosts;
use super::{Desk, Outcome, ProgramId, no};
use crate::board::State;
use crate::canary::Canary;
use crate::process::name_of;
use crate::wire::{Answer, AppStatus, Request, VERSION};
use crate::words::{MAX_ACTING, PAGE_WORDS};
use crate::{AppId, MAX_PIGGYBACK_BYTES, Resources};

const DONE: Outcome = Ok((Answer::Done, Vec::new()));
/// How many applications one answer reports at most: with its default size, a socket has room for more than four times as many messages.
const STATUS_APPS: usize = 64;

/// The ends of an application that a program has been told of.
#[derive(Clone, Copy)]
struct Heard {
    /// The life that has ended.
    after: u64,
    /// The life that is presumed to have ended.
    presumed: u64,
}

impl Heard {
    /// Whether a life has ended and the program has yet to be told of that. It is told of a life that has quit only if it had heard of an end before; otherwise it
    /// waits for the next life.
    fn misses_end_of(self, life: &Life) -> bool {
        let is_presumed = || life.incarnation == self.presumed && life.evidence.is_some_and(|evidence| !evidence.is_certain());
        match life.state {
            State::Failed => life.incarnation != self.after && !is_presumed(),
            State::Left => self.after != 0 && life.incarnation != self.after,
            State::Free | State::Awaited | State::Alive => false,
        }
    }
}

impl Desk {
    pub(super) fn handle(&mut self, id: ProgramId, number: u32, request: Request, fds: Vec<OwnedFd>) -> Outcome {
        let has_greeted = self.programs[&id].page.is_some();
        let fd = fds.into_iter().next();
        match request {
            Request::Hello { .. } if has_greeted => no("a second Hello"),
            Request::Hello { version, name } => self.greet(id, version, name, fd),
            _ if !has_greeted && !Canary::UngreetedAsks.is_planted() => no("the first message has to be a Hello"),
            Request::Join { app, incarnation, secret } => self.join(id, app, incarnation, secret),
            Request::Act { word } => self.act(id, word),
            Request::Rest { word } => self.rest(id, word),
            Request::Quit => self.quit(id),
            Request::Monitor { app, want, after, presumed, known } => {
                let heard = Heard { after, presumed };
                self.monitor(id, app, want, heard, known, fd)
            }
            Request::MonitorProcess => self.monitor_process(id, fd),
            Request::Adopt { app } => self.adopt(app, fd),
            Request::Unmonitor { slot } => {
                if self.lives.get(&slot.index).is_some_and(|life| life.slot == slot) {
                    self.unmonitor(id, slot.index);
                }
                DONE
            }
            Request::Piggyback { bytes } => self.piggyback(id, &bytes),
            Request::Status { from } => self.status(id, number, from),
        }
    }

    /// Reports what is known of some applications and, after the last application, of all other hosts.
    fn status(&self, id: ProgramId, number: u32, from: u16) -> Outcome {
        let seat = &self.programs[&id].seat;
        for life in self.lives.range(from..).map(|(_, life)| life).take(STATUS_APPS) {
            let words = life.program.and_then(|program| self.programs.get(&program)).map_or(0, |program| program.words.len());
            let status = AppStatus {
                app: life.app,
                state: life.state,
                evidence: life.evidence,
                host: life.host,
                pid: life.pid,
                uid: life.uid,
                words: words as u16,
                monitors: life.monitors.len() as u16,
                incarnation: life.incarnation,
                at_ns: life.at_ns,
                name: life.name.clone(),
            };
            seat.send(&self.board, number, &Answer::App(status), &[]);
        }
        if let Some((next, _)) = self.lives.range(from..).nth(STATUS_APPS) {
            return Ok((Answer::More { from: *next }, Vec::new()));
        }
        for host in self.others.iter().flat_map(OtherHosts::status) {
            seat.send(&self.board, number, &Answer::Host(host), &[]);
        }
        DONE
    }

    fn greet(&mut self, id: ProgramId, version: u16, name: String, page: Option<OwnedFd>) -> Outcome {
        if version != VERSION {
            return no(format!("the program speaks version {version} with its warden; allowed is {VERSION}"));
        }
        let Some(page) = page else { return no("a Hello comes without the page of the program's death words") };
        let page = match Page::open(page, PAGE_WORDS) {
            Ok(page) => page,
            Err(error) => return no(format!("the page of the program's death words is refused: {error}")),
        };
        let program = self.programs.get_mut(&id).expect("it asks");
        program.page = Some(page);
        program.name = if name.is_empty() { name_of(program.pid) } else { name };
        Ok((Answer::Welcome { life: self.board.life(), seat: program.seat.index }, Vec::new()))
    }

    fn join(&mut self, id: ProgramId, app: AppId, incarnation: u64, secret: Secret) -> Outcome {
        if !app.is_chosen() {
            return no(format!("application {app} is the warden's to give; allowed to join are 1 to {}", AppId::LAST_CHOSEN));
        }
        if let Some(own) = self.programs[&id].life.and_then(|life| self.lives.get(&life)) {
            return no(format!("the program is application {} already: it has to quit first", own.app));
        }
        let pid = self.programs[&id].pid;
        // The same process may be known as this application already: because a monitor saw it under an earlier warden, or by an earlier connection of its own
        // that it has given up.
        let known = self.current(app).filter(|index| {
            let life = &self.lives[index];
            let is_given_up = life.program.and_then(|program| self.programs.get(&program)).is_none_or(|program| !program.is_connected);
            life.state == State::Alive && is_given_up && life.pid == pid && pid != 0
        });
        let slot = match known {
            Some(index) if self.lives[&index].incarnation == incarnation => self.lives[&index].slot,
            Some(index) => {
                // It has quit while no warden was there to hear of it.
                self.end(index, State::Left, None);
                self.new_slot(app)?
            }
            None => self.slot_to_begin(app)?,
        };
        if let Some(before) = known.and_then(|index| self.lives.get_mut(&index)).and_then(|life| life.program.take()) {
            self.programs.get_mut(&before).expect("it has a life").life = None;
        }
        self.forget_outside(slot.index);
        self.unwish(slot.index);
        let program = self.programs.get_mut(&id).expect("it asks");
        program.life = Some(slot.index);
        let (pidfd, uid, name) = (Arc::clone(&program.pidfd), program.uid, program.name.clone());
        let has_our_numbers = program.has_our_numbers;
        let (page, words) = (program.page.clone().expect("it has greeted"), program.words.clone());
        let life = self.lives.get_mut(&slot.index).expect("just found");
        *life = Life {
            state: State::Alive,
            incarnation,
            secret,
            pid,
            uid,
            name,
            pidfd: Some(pidfd),
            program: Some(id),
            ..Life::awaited(slot, app)
        }
        .monitored_as(life);
        self.suit_wishes(slot.index);
        self.board.begin(slot, app, 0, incarnation, pid, State::Alive);
        self.tell_others(slot.index);
        // Nothing that the eye knew from an earlier connection counts any more.
        self.eye.send(Task::Forget(slot));
        for word in words {
            self.eye.send(Task::Watch(slot, page.clone(), word, secret, has_our_numbers));
        }
        let monitors: Vec<_> = self.lives[&slot.index].monitors.iter().map(|(monitor, want)| (*monitor, *want)).collect();
        for (monitor, want) in monitors {
            self.watch_for(&self.lives[&slot.index], &self.programs[&monitor].seat);
            self.tell_of_monitor(slot.index, monitor, want);
        }
        self.tell_monitors(slot.index, &Answer::Look);
        self.suit_pbsize(slot.index);
        DONE
    }

    fn act(&mut self, id: ProgramId, word: u16) -> Outcome {
        if word >= MAX_ACTING {
            return no(format!("death word {word}; allowed are 0 to {}", MAX_ACTING - 1));
        }
        let program = self.programs.get_mut(&id).expect("it asks");
        program.words.insert(word);
        let (page, has_our_numbers) = (program.page.clone().expect("it has greeted"), program.has_our_numbers);
        if let Some(life) = program.life.and_then(|life| self.lives.get(&life)) {
            let index = life.slot.index;
            self.eye.send(Task::Watch(life.slot, page, word, life.secret, has_our_numbers));
            self.suit_wishes(index);
        }
        DONE
    }

    fn rest(&mut self, id: ProgramId, word: u16) -> Outcome {
        let program = self.programs.get_mut(&id).expect("it asks");
        program.words.remove(&word);
        if let Some(life) = program.life.and_then(|life| self.lives.get(&life)) {
            let index = life.slot.index;
            self.eye.send(Task::Unwatch(life.slot, word));
            self.suit_wishes(index);
        }
        DONE
    }

    fn quit(&mut self, id: ProgramId) -> Outcome {
        match self.programs[&id].life {
            None => no("the program is no application: it has not joined"),
            Some(index) => {
                self.end(index, State::Left, None);
                DONE
            }
        }
    }

    fn monitor(&mut self, id: ProgramId, app: AppId, want: Resources, heard: Heard, known: u64, fd: Option<OwnedFd>) -> Outcome {
        if want.pbsize > MAX_PIGGYBACK_BYTES {
            return no(format!("messages of {} bytes are asked for; allowed are 0 to {MAX_PIGGYBACK_BYTES}", want.pbsize));
        }
        let index = match self.current(app) {
            Some(index) if heard.misses_end_of(&self.lives[&index]) => index,
            // The program may ask again about a life, to get the process's descriptor for example, and not have noticed yet that the life has ended. It must
            // not miss that end.
            Some(index) if !self.lives[&index].is_over() || self.lives[&index].monitors.contains_key(&id) => index,
            _ if !app.is_chosen() => return no(format!("application {app} is not known")),
            _ => {
                let slot = self.new_slot(app)?;
                match fd.filter(|_| known != 0) {
                    // The program saw it alive under an earlier warden. If it ends before it has registered here again, that must not go unnoticed.
                    Some(pidfd) => self.begin_from_outside(slot, app, known, pidfd).inspect_err(|_| self.free(slot.index))?,
                    None => self.board.begin(slot, app, 0, 0, 0, State::Awaited),
                }
                slot.index
            }
        };
        self.subscribe(id, index, want);
        let life = &self.lives[&index];
        // Messages are not sent between hosts.
        let pbsize = if life.host == 0 { want.pbsize } else { 0 };
        let granted = Resources { pbsize, timeout_ns: self.timeout_of(life) };
        Ok((Answer::Watching { app, slot: life.slot, granted }, self.descriptors(life)))
    }

    fn monitor_process(&mut self, id: ProgramId, fd: Option<OwnedFd>) -> Outcome {
        let Some(pidfd) = fd else { return no("no descriptor of a process comes along") };
        if self.given == AppId::MAX {
            self.given = AppId::LAST_CHOSEN;
        }
        self.given += 1;
        let app = AppId::new(i64::from(self.given)).expect("between the last chosen and the last");
        let slot = self.slot_to_begin(app)?;
        let begun = crate::random_number().map_err(|error| format!("no number for the process: {error}"));
        begun.and_then(|incarnation| self.begin_from_outside(slot, app, incarnation, pidfd)).inspect_err(|_| self.free(slot.index))?;
        self.subscribe(id, slot.index, Resources::default());
        Ok((Answer::Watching { app, slot, granted: Resources::default() }, self.descriptors(&self.lives[&slot.index])))
    }

    fn adopt(&mut self, app: AppId, fd: Option<OwnedFd>) -> Outcome {
        let Some(pidfd) = fd else { return no("no descriptor of a process comes along") };
        if !app.is_chosen() {
            return no(format!("application {app} is the warden's to give; allowed are 1 to {}", AppId::LAST_CHOSEN));
        }
        let slot = self.slot_to_begin(app)?;
        let begun = crate::random_number().map_err(|error| format!("no number for the process: {error}"));
        if let Err(why) = begun.and_then(|incarnation| self.begin_from_outside(slot, app, incarnation, pidfd)) {
            self.free_if_idle(slot.index);
            return Err(why);
        }
        self.tell_monitors(slot.index, &Answer::Look);
        Ok((Answer::Watching { app, slot, granted: Resources::default() }, self.descriptors(&self.lives[&slot.index])))
    }

    /// The descriptors by which a monitor can see the end of a life of this host itself: of its process, and of the page on which its threads have their death
    /// words.
    fn descriptors(&self, life: &Life) -> Vec<Arc<OwnedFd>> {
        let page = life.program.and_then(|program| self.programs.get(&program)?.page.as_ref());
        // If descriptors are short, the monitor does without the words.
        let words = page.and_then(|page| page.for_readers().ok()).map(Arc::new);
        life.pidfd.iter().cloned().chain(words).collect()
    }

    fn subscribe(&mut self, id: ProgramId, index: u16, want: Resources) {
        let program = self.programs.get_mut(&id).expect("it asks");
        let seat = Arc::clone(&program.seat);
        let is_new = program.monitors.insert(index);
        let before = self.lives.get_mut(&index).expect("just found").monitors.insert(id, want);
        let life = &self.lives[&index];
        if is_new && !life.is_over() {
            self.watch_for(life, &seat);
        }
        // If a monitor asks again for the same, to get the process's descriptor for example, that is no news for the application.
        if before != Some(want) {
            self.tell_of_monitor(index, id, want);
        }
        self.suit_pbsize(index);
    }

    /// Tells an application that it is monitored.
    fn tell_of_monitor(&self, index: u16, monitor: ProgramId, want: Resources) {
        let by = self.programs[&monitor].life.and_then(|life| self.lives.get(&life)).map_or(0, |life| life.app.get());
        if let Some(monitored) = self.lives[&index].program.and_then(|program| self.programs.get(&program)) {
            monitored.seat.tell(&self.board, &Answer::MonitorRequested { by, pbsize: want.pbsize });
        }
    }

    fn unmonitor(&mut self, id: ProgramId, index: u16) {
        if let Some(program) = self.programs.get_mut(&id) {
            program.monitors.remove(&index);
        }
        if let (Some(program), Some(life)) = (self.programs.get(&id), self.lives.get(&index)) {
            self.watch_no_more_for(life, program.seat.index);
        }
        if let Some(life) = self.lives.get_mut(&index) {
            life.monitors.remove(&id);
            self.suit_pbsize(index);
            self.free_if_idle(index);
        }
    }

    /// Tells an application how large its messages may be, if that has changed.
    pub(super) fn suit_pbsize(&mut self, index: u16) {
        let Some(life) = self.lives.get_mut(&index).filter(|life| life.state == State::Alive) else { return };
        let pbsize = life.asked_pbsize();
        if pbsize != life.pbsize {
            life.pbsize = pbsize;
            if let Some(program) = life.program.and_then(|program| self.programs.get(&program)) {
                program.seat.tell(&self.board, &Answer::PbsizeChanged { pbsize });
            }
        }
    }

    fn piggyback(&mut self, id: ProgramId, bytes: &[u8]) -> Outcome {
        let Some(index) = self.programs[&id].life else { return no("the program is no application: it has to join first") };
        let life = self.lives.get_mut(&index).expect("it has joined");
        if life.state != State::Alive {
            return no(format!("application {} is {}", life.app, life.state));
        }
        if bytes.len() > life.pbsize as usize && !Canary::UnaskedPiggyback.is_planted() {
            return no(format!(
                "a message of {} bytes; allowed to application {} are {}, which its monitors ask for",
                bytes.len(),
                life.app,
                life.pbsize
            ));
        }
        life.seq += 1;
        let (app, seq) = (life.app, life.seq);
        self.tell_monitors(index, &Answer::Piggybacked { app, seq, bytes: bytes.to_vec() });
        Ok((Answer::Sent { seq }, Vec::new()))
    }

    pub(super) fn tell_monitors(&self, index: u16, answer: &Answer) {
        let Some(life) = self.lives.get(&index) else { return };
        for program in life.monitors.keys().filter_map(|id| self.programs.get(id)) {
            program.seat.tell(&self.board, answer);
        }
    }
}

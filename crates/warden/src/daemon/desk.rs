//! The desk: serves programs, and watches processes by descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use martlet_fabric::host::page::Page;
use martlet_fabric::host::socket::{self, MAX_MESSAGE, Received};
use martlet_protocol::detector::wardens::Event;
use rustix::event::epoll;

use super::eye::{Task, Tasks};
use super::life::{Life, ProgramId};
use super::program::Program;
use super::remote::Around;
use super::{LIFE_WORDS, MAX_ACTING, RunError, Seat, system};
use crate::board::{Board, Evidence, MAX_SEATS, MAX_SLOTS, Slot, State};
use crate::place::Listener;
use crate::process::{has_ended, name_of, pid_of};
use crate::wire::{Answer, AppStatus, Request, VERSION};
use crate::{AppId, MAX_PIGGYBACK_BYTES, Resources};

/// What epoll names a descriptor by: the kind in the top byte, and which one below.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const HEARD: u64 = 2;
const SOCKET: u64 = 3 << 56;
const PROCESS: u64 = 4 << 56;
const OUTSIDE: u64 = 5 << 56;
const KIND: u64 = 0xff << 56;

/// What a request comes to: an answer, perhaps with a descriptor, or a reason why not.
type Outcome = Result<(Answer, Option<Arc<OwnedFd>>), String>;

pub(super) struct Desk {
    listener: Listener,
    pub(super) board: Board,
    /// Other hosts, if there are any.
    pub(super) around: Option<Around>,
    eye: Tasks,
    heard: Arc<OwnedFd>,
    epoll: OwnedFd,
    pub(super) programs: BTreeMap<ProgramId, Program>,
    next_program: ProgramId,
    free_seats: Vec<u8>,
    pub(super) lives: BTreeMap<u16, Life>,
    generations: Vec<u32>,
    /// The life of each application that counts: the newest.
    current: BTreeMap<AppId, u16>,
    /// The last number that the warden gave.
    given: u32,
}

fn no(why: impl std::fmt::Display) -> Outcome {
    Err(why.to_string())
}

const DONE: Outcome = Ok((Answer::Done, None));

impl Desk {
    pub(super) fn new(listener: Listener, board: Board, eye: Tasks, heard: Arc<OwnedFd>, around: Option<Around>) -> Result<Desk, RunError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll descriptor"))?;
        Ok(Desk {
            listener,
            board,
            around,
            eye,
            heard,
            epoll,
            programs: BTreeMap::new(),
            next_program: 1,
            free_seats: (0..MAX_SEATS).rev().map(|seat| seat as u8).collect(),
            lives: BTreeMap::new(),
            generations: vec![0; MAX_SLOTS],
            current: BTreeMap::new(),
            given: AppId::LAST_CHOSEN,
        })
    }

    fn watch(&self, fd: impl AsFd, what: u64) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(what), epoll::EventFlags::IN)
    }

    fn watch_no_more(&self, fd: impl AsFd) {
        // Programs have duplicates of descriptors of processes, so closing ours would not end the watch.
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(super) fn run(mut self, stop: BorrowedFd<'_>, ends: &Receiver<Slot>, news: &Receiver<Event>) -> Result<(), RunError> {
        for (fd, what) in [(self.listener.socket.as_fd(), LISTENER), (stop, STOP), (self.heard.as_fd(), HEARD)] {
            self.watch(fd, what).map_err(system("cannot watch a descriptor"))?;
        }
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("cannot wait for descriptors")(error)),
            }
            // Ends before requests: who joins again is told apart from its last life.
            let whats: Vec<u64> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
            if whats.contains(&STOP) {
                if let Some(around) = &self.around {
                    around.leave();
                }
                return Ok(());
            }
            if whats.contains(&HEARD) {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.heard, &mut count);
                self.take_ends(ends);
                while let Ok(event) = news.try_recv() {
                    self.take_news(event);
                }
            }
            for what in whats.iter().filter(|what| [PROCESS, OUTSIDE].contains(&(*what & KIND))) {
                match what & KIND {
                    PROCESS => self.process_ended((what & !KIND) as ProgramId),
                    _ => self.outside_ended((what & !KIND) as u16),
                }
            }
            for what in &whats {
                match what & KIND {
                    SOCKET => self.serve((what & !KIND) as ProgramId, &mut buffer),
                    0 if *what == LISTENER => self.accept(),
                    _ => {}
                }
            }
        }
    }

    fn accept(&mut self) {
        match socket::accept(&self.listener.socket) {
            Ok(Some(socket)) => self.admit(socket),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "a program cannot connect");
                // It stays readable; this is no reason to take a core for as long as descriptors are short.
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let refuse = |socket: &OwnedFd, why: String| {
            tracing::info!(why, "a program is refused");
            let _ = socket::send(socket, &Answer::Refused { why }.encode(0), &[]);
        };
        let peer = match socket::peer(&socket).and_then(|peer| Ok((peer, socket::pidfd(&socket)?))) {
            Ok(found) => found,
            Err(error) => return refuse(&socket, format!("the process at the other end cannot be watched ({error})")),
        };
        let Some(seat) = self.free_seats.pop() else {
            return refuse(&socket, format!("{MAX_SEATS} programs are registered, as many as there is room for"));
        };
        let (peer, pidfd) = peer;
        let id = self.next_program;
        self.next_program = self.next_program.wrapping_add(1).max(1);
        let program = Program {
            seat: Arc::new(Seat { socket, index: seat }),
            is_connected: true,
            pidfd: Arc::new(pidfd),
            pid: u32::try_from(peer.pid).unwrap_or(0),
            uid: peer.uid,
            name: String::new(),
            page: None,
            words: BTreeSet::new(),
            life: None,
            monitors: BTreeSet::new(),
        };
        let watched =
            self.watch(&program.seat.socket, SOCKET | u64::from(id)).and_then(|()| self.watch(&program.pidfd, PROCESS | u64::from(id)));
        match watched {
            Ok(()) => {
                self.programs.insert(id, program);
            }
            Err(error) => {
                refuse(&program.seat.socket, format!("its process cannot be watched ({error})"));
                self.free_seats.push(seat);
            }
        }
    }

    fn serve(&mut self, id: ProgramId, buffer: &mut [u8; MAX_MESSAGE]) {
        // A few messages, so that one program does not keep others waiting.
        for _ in 0..16 {
            let Some(program) = self.programs.get(&id).filter(|program| program.is_connected) else { return };
            match socket::receive(&program.seat.socket, buffer) {
                Received::Nothing => return,
                Received::End => return self.hang_up(id),
                Received::TooLong => {
                    self.answer(id, 0, no(format!("a message is longer than {MAX_MESSAGE} bytes")));
                    return self.hang_up(id);
                }
                Received::Message(len, fds) => match Request::decode(&buffer[..len]) {
                    Ok((number, request)) => {
                        let is_hello = matches!(request, Request::Hello { .. });
                        let outcome = self.handle(id, number, request, fds);
                        let is_refused = outcome.is_err();
                        if number != 0 {
                            self.answer(id, number, outcome);
                        }
                        if is_hello && is_refused {
                            return self.hang_up(id);
                        }
                    }
                    Err(why) => {
                        self.answer(id, 0, no(why));
                        return self.hang_up(id);
                    }
                },
            }
        }
    }

    fn answer(&self, id: ProgramId, number: u32, outcome: Outcome) {
        let Some(program) = self.programs.get(&id) else { return };
        let (answer, fd) = outcome.unwrap_or_else(|why| {
            tracing::info!(pid = program.pid, why, "a request is refused");
            (Answer::Refused { why }, None)
        });
        let board;
        let mut fds = Vec::new();
        if let Answer::Welcome { .. } = answer {
            match self.board.for_readers() {
                Ok(fd) => board = fd,
                Err(error) => {
                    program.seat.send(&self.board, number, &Answer::Refused { why: format!("the board cannot be opened ({error})") }, &[]);
                    return;
                }
            }
            fds.push(board.as_fd());
        }
        fds.extend(fd.iter().map(|fd| fd.as_fd()));
        program.seat.send(&self.board, number, &answer, &fds);
    }

    fn handle(&mut self, id: ProgramId, number: u32, request: Request, fds: Vec<OwnedFd>) -> Outcome {
        let has_greeted = self.programs[&id].page.is_some();
        let fd = fds.into_iter().next();
        match request {
            Request::Hello { .. } if has_greeted => no("a second Hello"),
            Request::Hello { version, name } => self.greet(id, version, name, fd),
            _ if !has_greeted => no("the first message has to be a Hello"),
            Request::Join { app, incarnation } => self.join(id, app, incarnation),
            Request::Act { word } => self.act(id, word),
            Request::Rest { word } => self.rest(id, word),
            Request::Quit => self.quit(id),
            Request::Monitor { app, want, after, known } => self.monitor(id, app, want, after, known, fd),
            Request::MonitorProcess => self.monitor_process(id, fd),
            Request::Adopt { app } => self.adopt(app, fd),
            Request::Unmonitor { slot } => {
                if self.lives.get(&slot.index).is_some_and(|life| life.slot == slot) {
                    self.unmonitor(id, slot.index);
                }
                DONE
            }
            Request::Piggyback { bytes } => self.piggyback(id, &bytes),
            Request::Status => {
                for life in self.lives.values() {
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
                    self.programs[&id].seat.send(&self.board, number, &Answer::App(status), &[]);
                }
                for host in self.around.iter().flat_map(Around::status) {
                    self.programs[&id].seat.send(&self.board, number, &Answer::Host(host), &[]);
                }
                DONE
            }
        }
    }

    fn greet(&mut self, id: ProgramId, version: u16, name: String, page: Option<OwnedFd>) -> Outcome {
        if version != VERSION {
            return no(format!("the program speaks version {version} with its warden; allowed is {VERSION}"));
        }
        let Some(page) = page else { return no("a Hello comes without the page of the program's death words") };
        let page = match Page::open(page, LIFE_WORDS, false) {
            Ok(page) => page,
            Err(error) => return no(format!("the page of the program's death words is refused: {error}")),
        };
        let program = self.programs.get_mut(&id).expect("it asks");
        program.page = Some(page);
        program.name = if name.is_empty() { name_of(program.pid) } else { name };
        Ok((Answer::Welcome { life: self.board.life(), seat: program.seat.index }, None))
    }

    /// The slot of an application's newest life, after a look whether it still lives: who comes next must not be refused for the sake of a dead one.
    pub(super) fn current(&mut self, app: AppId) -> Option<u16> {
        let index = *self.current.get(&app)?;
        self.learn(index);
        let life = self.lives.get(&index)?;
        if life.state == State::Alive && life.pidfd.as_ref().is_some_and(|pidfd| has_ended(&**pidfd)) {
            self.end(index, State::Failed, Some(Evidence::Process));
        }
        self.current.get(&app).copied()
    }

    /// A slot for a new life of an application, which counts from now on.
    fn new_slot(&mut self, app: AppId) -> Result<Slot, String> {
        if self.lives.len() == MAX_SLOTS {
            // The oldest that is over and that nobody asks for.
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

    /// The slot in which a life of an application that is not alive may begin: where it is awaited, or a new one.
    pub(super) fn slot_to_begin(&mut self, app: AppId) -> Result<Slot, String> {
        match self.current(app).map(|index| &self.lives[&index]) {
            Some(life) if life.state == State::Awaited => Ok(life.slot),
            Some(life) if life.state == State::Alive => Err(match life.host {
                0 => format!("application {app} is alive already: process {} ({})", life.pid, life.name),
                host => format!("application {app} is alive already, on host {host}"),
            }),
            _ => self.new_slot(app),
        }
    }

    fn join(&mut self, id: ProgramId, app: AppId, incarnation: u64) -> Outcome {
        if !app.is_chosen() {
            return no(format!("application {app} is the warden's to give; allowed to join are 1 to {}", AppId::LAST_CHOSEN));
        }
        if let Some(own) = self.programs[&id].life.and_then(|life| self.lives.get(&life)) {
            return no(format!("the program is application {} already: it has to quit first", own.app));
        }
        let pid = self.programs[&id].pid;
        // The same process may be known as this application already: by a monitor that saw it under an earlier warden, or by a connection that it has given up.
        let known = self.current(app).filter(|index| {
            let life = &self.lives[index];
            let is_given_up = life.program.and_then(|program| self.programs.get(&program)).is_none_or(|program| !program.is_connected);
            life.state == State::Alive && is_given_up && life.pid == pid && pid != 0
        });
        let slot = match known {
            Some(index) if self.lives[&index].incarnation == incarnation => self.lives[&index].slot,
            Some(index) => {
                // It has quit while no warden was there to be told.
                self.end(index, State::Left, None);
                self.new_slot(app)?
            }
            None => self.slot_to_begin(app)?,
        };
        if let Some(before) = known.and_then(|index| self.lives.get_mut(&index)).and_then(|life| life.program.take()) {
            self.programs.get_mut(&before).expect("it has a life").life = None;
        }
        self.forget_outside(slot.index);
        let program = self.programs.get_mut(&id).expect("it asks");
        program.life = Some(slot.index);
        let (pidfd, uid, name) = (Arc::clone(&program.pidfd), program.uid, program.name.clone());
        let (page, words) = (program.page.clone().expect("it has greeted"), program.words.clone());
        let life = self.lives.get_mut(&slot.index).expect("just found");
        *life =
            Life { state: State::Alive, incarnation, pid, uid, name, pidfd: Some(pidfd), program: Some(id), ..Life::awaited(slot, app) }
                .monitored_as(life);
        self.board.begin(slot, app, 0, incarnation, pid, State::Alive);
        self.tell_others(slot.index)?;
        // Nothing of what the eye knew of an earlier connection counts.
        self.eye.send(Task::Forget(slot));
        for word in words {
            self.eye.send(Task::Watch(slot, page.clone(), word));
        }
        let monitors: Vec<_> = self.lives[&slot.index].monitors.iter().map(|(monitor, want)| (*monitor, *want)).collect();
        for (monitor, want) in monitors {
            self.eye.send(Task::Subscribe(slot, Arc::clone(&self.programs[&monitor].seat)));
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
        let page = program.page.clone().expect("it has greeted");
        if let Some(life) = program.life.and_then(|life| self.lives.get(&life)) {
            self.eye.send(Task::Watch(life.slot, page, word));
        }
        DONE
    }

    fn rest(&mut self, id: ProgramId, word: u16) -> Outcome {
        let program = self.programs.get_mut(&id).expect("it asks");
        program.words.remove(&word);
        if let Some(life) = program.life.and_then(|life| self.lives.get(&life)) {
            self.eye.send(Task::Unwatch(life.slot, word));
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

    fn monitor(&mut self, id: ProgramId, app: AppId, want: Resources, after: u64, known: u64, fd: Option<OwnedFd>) -> Outcome {
        if want.pbsize > MAX_PIGGYBACK_BYTES {
            return no(format!("messages of {} bytes are asked for; allowed are 0 to {MAX_PIGGYBACK_BYTES}", want.pbsize));
        }
        let index = match self.current(app) {
            Some(index) if self.lives[&index].state == State::Failed && self.lives[&index].incarnation != after => index,
            Some(index) if !self.lives[&index].is_over() => index,
            _ if !app.is_chosen() => return no(format!("application {app} is not known")),
            _ => {
                let slot = self.new_slot(app)?;
                match fd.filter(|_| known != 0) {
                    // Seen alive under an earlier warden: its end must not go unseen because it has not come back yet.
                    Some(pidfd) => self.begin_from_outside(slot, app, known, pidfd)?,
                    None => self.board.begin(slot, app, 0, 0, 0, State::Awaited),
                }
                slot.index
            }
        };
        self.subscribe(id, index, want);
        let life = &self.lives[&index];
        // Messages do not cross hosts.
        let pbsize = if life.host == 0 { want.pbsize } else { 0 };
        let granted = Resources { pbsize, timeout_ns: self.timeout_of(life) };
        Ok((Answer::Watching { app, slot: life.slot, granted }, life.pidfd.clone()))
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
        Ok((Answer::Watching { app, slot, granted: Resources::default() }, self.lives[&slot.index].pidfd.clone()))
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
        Ok((Answer::Watching { app, slot, granted: Resources::default() }, self.lives[&slot.index].pidfd.clone()))
    }

    /// A process that need not know of wardens is this application from now on.
    fn begin_from_outside(&mut self, slot: Slot, app: AppId, incarnation: u64, pidfd: OwnedFd) -> Result<(), String> {
        let pid = pid_of(&pidfd).map_err(|error| format!("the process cannot be watched: {error}"))?;
        // The watch comes first: a process that has ended already is seen by it.
        self.watch(&pidfd, OUTSIDE | u64::from(slot.index)).map_err(|error| format!("the process cannot be watched: {error}"))?;
        let uid = std::fs::metadata(format!("/proc/{pid}")).map_or(0, |data| std::os::unix::fs::MetadataExt::uid(&data));
        let life = self.lives.get_mut(&slot.index).expect("its slot is taken");
        let pidfd = Some(Arc::new(pidfd));
        let begun = Life {
            state: State::Alive,
            incarnation,
            pid,
            uid,
            name: name_of(pid),
            pidfd,
            is_from_outside: true,
            ..Life::awaited(slot, app)
        };
        *life = begun.monitored_as(life);
        self.board.begin(slot, app, 0, incarnation, pid, State::Alive);
        self.tell_others(slot.index)
    }

    /// Tells other hosts of an application that has begun.
    fn tell_others(&self, index: u16) -> Result<(), String> {
        if let Some(around) = self.around.as_ref().filter(|_| self.lives[&index].app.is_chosen()) {
            let secret = martlet_fabric::host::random().map_err(|error| format!("no secret for the application: {error}"))?;
            around.begin(&self.lives[&index], secret);
        }
        Ok(())
    }

    fn forget_outside(&mut self, index: u16) {
        if let Some(life) = self.lives.get_mut(&index).filter(|life| life.is_from_outside) {
            life.is_from_outside = false;
            if let Some(pidfd) = life.pidfd.clone() {
                self.watch_no_more(&*pidfd);
            }
        }
    }

    fn subscribe(&mut self, id: ProgramId, index: u16, want: Resources) {
        let program = self.programs.get_mut(&id).expect("it asks");
        let seat = Arc::clone(&program.seat);
        let is_new = program.monitors.insert(index);
        let life = self.lives.get_mut(&index).expect("just found");
        let before = life.monitors.insert(id, want);
        if is_new && !life.is_over() {
            self.eye.send(Task::Subscribe(life.slot, seat));
        }
        // A monitor that asks again for what it has, for the process's descriptor say, is nothing new to the application.
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
            if let Some(life) = self.lives.get(&index) {
                self.eye.send(Task::Unsubscribe(life.slot, program.seat.index));
            }
        }
        if let Some(life) = self.lives.get_mut(&index) {
            life.monitors.remove(&id);
            self.suit_pbsize(index);
            self.free_if_idle(index);
        }
    }

    /// Says how large an application's messages may be, when that is not what it was.
    fn suit_pbsize(&mut self, index: u16) {
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
        if bytes.len() > life.pbsize as usize {
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
        Ok((Answer::Sent { seq }, None))
    }

    pub(super) fn tell_monitors(&self, index: u16, answer: &Answer) {
        let Some(life) = self.lives.get(&index) else { return };
        for program in life.monitors.keys().filter_map(|id| self.programs.get(id)) {
            program.seat.tell(&self.board, answer);
        }
    }

    /// Takes the lives that the eye has ended.
    fn take_ends(&mut self, ends: &Receiver<Slot>) {
        while let Ok(slot) = ends.try_recv() {
            if self.lives.get(&slot.index).is_some_and(|life| life.slot == slot) {
                self.learn(slot.index);
            }
        }
    }

    /// Takes from the board what the eye may have told there.
    fn learn(&mut self, index: u16) {
        let Some(life) = self.lives.get_mut(&index).filter(|life| life.state == State::Alive) else { return };
        if let Some(seen) = self.board.look(life.slot).filter(|seen| seen.state != State::Alive) {
            (life.state, life.evidence, life.at_ns) = (seen.state, seen.evidence, crate::now_ns());
            self.over(index);
        }
    }

    /// Ends a life, unless the eye has, and tells who monitors it.
    pub(super) fn end(&mut self, index: u16, state: State, evidence: Option<Evidence>) {
        let Some(life) = self.lives.get_mut(&index).filter(|life| life.state == State::Alive) else { return };
        let now = crate::now_ns();
        if self.board.end(life.slot, state, evidence, now) {
            (life.state, life.evidence, life.at_ns) = (state, evidence, now);
            self.tell_monitors(index, &Answer::Look);
            self.over(index);
        } else {
            self.learn(index);
        }
    }

    pub(super) fn over(&mut self, index: u16) {
        self.forget_outside(index);
        let Some(life) = self.lives.get_mut(&index) else { return };
        let (slot, program) = (life.slot, life.program.take());
        if let Some(around) = self.around.as_ref().filter(|_| life.host == 0) {
            around.end(life);
        }
        tracing::info!(app = %life.app, pid = life.pid, state = %life.state, evidence = ?life.evidence, "an application is over");
        self.eye.send(Task::Forget(slot));
        if let Some(program) = program.and_then(|program| self.programs.get_mut(&program)) {
            program.life = None;
        }
        self.free_if_idle(index);
    }

    /// Frees a slot that nobody asks for: one that is awaited by nobody any more, one of an earlier life, and a process that only its monitors knew.
    fn free_if_idle(&mut self, index: u16) {
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

    fn free(&mut self, index: u16) {
        self.forget_outside(index);
        if let Some(life) = self.lives.remove(&index) {
            if self.current.get(&life.app) == Some(&index) {
                self.current.remove(&life.app);
            }
            self.eye.send(Task::Forget(life.slot));
            self.board.free(life.slot);
        }
    }

    /// A program has closed its socket. What it joined as lives on while its process does: it has not quit. Unless another program runs there now.
    fn hang_up(&mut self, id: ProgramId) {
        let joined = self.programs.get(&id).filter(|program| program.is_connected && program.life.is_some() && program.is_another());
        if let Some(index) = joined.and_then(|program| program.life) {
            self.end(index, State::Failed, Some(Evidence::Words));
        }
        let Some(program) = self.programs.get_mut(&id).filter(|program| program.is_connected) else { return };
        program.is_connected = false;
        let (seat, monitors) = (Arc::clone(&program.seat), std::mem::take(&mut program.monitors));
        let is_done = program.life.is_none();
        self.watch_no_more(&seat.socket);
        for index in monitors {
            if let Some(life) = self.lives.get(&index) {
                self.eye.send(Task::Unsubscribe(life.slot, seat.index));
            }
            if let Some(life) = self.lives.get_mut(&index) {
                life.monitors.remove(&id);
                self.suit_pbsize(index);
                self.free_if_idle(index);
            }
        }
        if is_done {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: ProgramId) {
        if let Some(program) = self.programs.remove(&id) {
            self.watch_no_more(&*program.pidfd);
            self.free_seats.push(program.seat.index);
        }
    }

    /// The process of a program has ended.
    fn process_ended(&mut self, id: ProgramId) {
        // A Quit that it sent last is in its socket: it is taken before.
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        self.serve(id, &mut buffer);
        if let Some(index) = self.programs.get(&id).and_then(|program| program.life) {
            self.end(index, State::Failed, Some(Evidence::Process));
        }
        self.hang_up(id);
        self.remove(id);
    }

    /// A process that is watched from outside has ended.
    fn outside_ended(&mut self, index: u16) {
        // The word may be of an earlier life in this slot, which has been replaced in the same turn.
        let life = self.lives.get(&index).filter(|life| life.is_from_outside);
        if life.and_then(|life| life.pidfd.as_ref()).is_some_and(|pidfd| has_ended(&**pidfd)) {
            self.end(index, State::Failed, Some(Evidence::Process));
        }
    }
}

//! The desk: serves programs, and watches processes through their descriptors.
//!
//! | file | what it contains |
//! |---|---|
//! | `mod` | what the desk waits for; connections |
//! | `requests` | what programs ask |
//! | `lives` | lives of applications, and the board's slots |
//! | `marks` | what the kernel's programs have marked |
//! | `program` | a program that has connected |
//! | `remote` | what wardens of other hosts report |
//! | `fuzz` | what must hold whatever programs ask |

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod lives;
mod marks;
mod program;
mod remote;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use martlet_fabric::host::LULL;
use martlet_fabric::host::marks::Marker;
use martlet_fabric::host::socket::{self, MAX_MESSAGE, Received};
use martlet_protocol::detector::wardens::{Certainty, Event};
use rustix::event::epoll;

use self::lives::Life;
use self::program::Program;
pub(super) use self::remote::OtherHosts;
use super::eye::Tasks;
use super::pulse::Word;
use super::{RunError, Seat, system};
use crate::AppId;
use crate::board::{Board, Evidence, MAX_SEATS, MAX_SLOTS, Slot, State};
use crate::canary::Canary;
use crate::place::Listener;
use crate::process::numbers_of;
use crate::wire::{Answer, Request};

/// How a descriptor is identified in epoll: its kind in the top byte, and its number below.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const HEARD: u64 = 2;
const SOCKET: u64 = 3 << 56;
const PROCESS: u64 = 4 << 56;
const OUTSIDE: u64 = 5 << 56;
const KIND: u64 = 0xff << 56;

/// The number of a program that is or was connected.
type ProgramId = u32;

/// The result of a request: an answer, perhaps with descriptors, or the reason for a refusal.
type Outcome = Result<(Answer, Vec<Arc<OwnedFd>>), String>;

pub(super) struct Desk {
    listener: Listener,
    board: Board,
    /// Other hosts, if there are any.
    others: Option<OtherHosts>,
    eye: Tasks,
    heard: Arc<OwnedFd>,
    epoll: OwnedFd,
    programs: BTreeMap<ProgramId, Program>,
    next_program: ProgramId,
    free_seats: Vec<u8>,
    lives: BTreeMap<u16, Life>,
    generations: Vec<u32>,
    /// The current life of each application: the newest.
    current: BTreeMap<AppId, u16>,
    /// The last number that the warden has given to an application.
    given: u32,
    /// The marks, if there are any.
    marker: Option<Arc<Marker>>,
    /// How many more times to look at the marks without being woken for them.
    looks: u8,
}

fn no(why: impl std::fmt::Display) -> Outcome {
    Err(why.to_string())
}

impl Desk {
    pub(super) fn new(
        listener: Listener,
        board: Board,
        eye: Tasks,
        heard: Arc<OwnedFd>,
        others: Option<OtherHosts>,
        marker: Option<Arc<Marker>>,
    ) -> Result<Desk, RunError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll descriptor"))?;
        Ok(Desk {
            listener,
            board,
            others,
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
            marker,
            looks: 0,
        })
    }

    fn watch(&self, fd: impl AsFd, what: u64) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(what), epoll::EventFlags::IN)
    }

    fn watch_no_more(&self, fd: impl AsFd) {
        // Programs have duplicates of the processes' descriptors, so closing ours would not end the watch.
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(super) fn run(mut self, stop: BorrowedFd<'_>, ends: &Receiver<Slot>, news: &Receiver<Word>) -> Result<(), RunError> {
        for (fd, what) in [(self.listener.socket.as_fd(), LISTENER), (stop, STOP), (self.heard.as_fd(), HEARD)] {
            self.watch(fd, what).map_err(system("cannot watch a descriptor"))?;
        }
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let at_most = (self.looks > 0).then_some(marks::LOOKS_AFTER);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), at_most.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("cannot wait for descriptors")(error)),
            }
            // Ends before requests, so that a program which joins again is distinguished from its last life.
            let whats: Vec<u64> = events.iter().map(|event: &epoll::Event| event.data.u64()).collect();
            if whats.contains(&STOP) {
                if let Some(others) = &self.others {
                    others.leave();
                }
                return Ok(());
            }
            if whats.contains(&HEARD) {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.heard, &mut count);
                let (ended, told): (Vec<Slot>, Vec<Word>) = (ends.try_iter().collect(), news.try_iter().collect());
                let is_death = |word: &Word| matches!(word, Word::Told(Event::Failed(_, _, Certainty::Certified(_))));
                if !ended.is_empty() || told.iter().any(is_death) {
                    // Everyone who had to be told at once has been told by now.
                    std::thread::sleep(LULL);
                }
                ended.into_iter().for_each(|slot| self.take_end(slot));
                told.into_iter().for_each(|word| self.take_word(word));
            }
            self.look_at_marks(whats.contains(&HEARD));
            for what in whats.iter().filter(|what| [PROCESS, OUTSIDE].contains(&(*what & KIND))) {
                match what & KIND {
                    PROCESS => self.process_ended((what & !KIND) as ProgramId, Evidence::Process),
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
                tracing::warn!(%error, "cannot accept a program's connection");
                // The socket stays readable; do not spin on it while descriptors are short.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let refuse = |socket: &OwnedFd, why: String| {
            tracing::info!(why, "refused a program that wanted to connect");
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
            has_our_numbers: u32::try_from(peer.pid).is_ok_and(|pid| pid != 0 && numbers_of(pid) == Some(1)),
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
        // Only a few messages, so that one program does not keep the others waiting.
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
        let (answer, others) = outcome.unwrap_or_else(|why| {
            tracing::info!(pid = program.pid, why, "refused a program's request");
            (Answer::Refused { why }, Vec::new())
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
        fds.extend(others.iter().map(|fd| fd.as_fd()));
        program.seat.send(&self.board, number, &answer, &fds);
    }

    /// A program has closed its socket. The application that it joined as stays alive while its process does, since it has not quit; unless another program
    /// runs in that process now.
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
                self.watch_no_more_for(life, seat.index);
            }
            if let Some(life) = self.lives.get_mut(&index) {
                if !Canary::GoneIsTold.is_planted() {
                    life.monitors.remove(&id);
                }
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
    fn process_ended(&mut self, id: ProgramId, evidence: Evidence) {
        // If the last thing it sent was a Quit, that is still in its socket, and has to be taken first.
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        self.serve(id, &mut buffer);
        if let Some(index) = self.programs.get(&id).and_then(|program| program.life) {
            self.end(index, State::Failed, Some(evidence));
        }
        self.hang_up(id);
        self.remove(id);
    }
}

//! For the fuzz targets: what must hold of a desk, whatever programs ask of it and in whatever order.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use martlet_fabric::fuzz::Input;
use martlet_fabric::host::page::Page;
use martlet_fabric::host::socket::{self, MAX_MESSAGE, Received};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::getpid;

use super::super::eye::{Task, Tasks};
use super::{Desk, ProgramId};
use crate::board::{Board, MAX_SEATS, Marking, Slot, State};
use crate::place::Listener;
use crate::process::pidfd_of;
use crate::wire::{Answer, Request, VERSION};
use crate::words::PAGE_WORDS;
use crate::{AppId, MAX_PIGGYBACK_BYTES, Resources};

/// How many programs a script has.
const PROGRAMS: usize = 3;

/// Runs a script of messages from a few programs; most of the messages make sense.
pub(crate) fn check(script: &[u8]) {
    let (sender, tasks) = channel();
    let heard = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
    let tasks_of_eye = Tasks { sender, bell: Page::create("martlet-bell", 1).expect("memory") };
    let board = Board::create(9, 1, Marking::Nothing).expect("memory");
    let desk = Desk::new(Listener::nowhere().expect("a socket"), board, tasks_of_eye, heard, None, None).expect("descriptors");
    let page = Page::create("martlet-words", PAGE_WORDS).expect("memory");
    let mut world = World { desk, tasks, page, programs: [const { None }; PROGRAMS], slots: Vec::new(), asked_pbsize: 0, number: 0 };
    let mut input = Input(script);
    while !input.is_empty() {
        world.step(&mut input);
        world.check();
    }
}

struct World {
    desk: Desk,
    /// What the eye would be told; it is not running here.
    tasks: Receiver<Task>,
    page: Page,
    /// Each program's end of its socket, and its number at the desk.
    programs: [Option<(OwnedFd, ProgramId)>; PROGRAMS],
    /// The slots that the desk has named.
    slots: Vec<Slot>,
    /// The largest message that any program has asked for.
    asked_pbsize: u32,
    number: u32,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let (how, at) = (input.u8(), usize::from(input.u8()) % PROGRAMS);
        if self.programs[at].is_none() {
            self.connect(at);
        }
        match how % 16 {
            0 => drop(self.programs[at].take().map(|(_, id)| self.serve(id))),
            1 => {
                let len = usize::from(input.u8());
                let message = input.bytes(len).to_vec();
                self.send(at, &message, how);
            }
            2 | 3 => self.ask(at, &Request::Hello { version: VERSION, name: "x".repeat(usize::from(how >> 4)) }, 1),
            _ => {
                let request = self.request(input);
                if let Request::Monitor { want, .. } = &request {
                    self.asked_pbsize = self.asked_pbsize.max(want.pbsize);
                }
                self.ask(at, &request, input.u8());
            }
        }
        for at in 0..PROGRAMS {
            self.hear(at);
        }
        while self.tasks.try_recv().is_ok() {}
    }

    fn connect(&mut self, at: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
        let id = self.desk.next_program;
        self.desk.admit(theirs);
        self.programs[at] = Some((ours, id));
    }

    fn ask(&mut self, at: usize, request: &Request, with: u8) {
        self.number += 1;
        let message = request.encode(self.number);
        self.send(at, &message, with);
    }

    /// Sends a message, together with a page, a process's descriptor, or nothing.
    fn send(&mut self, at: usize, message: &[u8], with: u8) {
        let Some((socket, id)) = &self.programs[at] else { return };
        let fd = match with % 4 {
            1 => Some(self.page.as_fd().try_clone_to_owned().expect("a descriptor")),
            2 => Some(pidfd_of(getpid().as_raw_nonzero().get()).expect("it runs")),
            _ => None,
        };
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let _ = socket::send(socket, message, &fds);
        self.serve(*id);
    }

    fn serve(&mut self, id: ProgramId) {
        self.desk.serve(id, &mut Box::new([0; MAX_MESSAGE]));
    }

    fn request(&self, input: &mut Input<'_>) -> Request {
        let (kind, choice) = (input.u8(), input.u8());
        let app = AppId::new(i64::from(choice % 3) + 1).expect("in range");
        let app = if choice > 250 { AppId::new(0x4000_0000 + i64::from(choice)).expect("in range") } else { app };
        let small = |input: &mut Input<'_>| u64::from(input.u8() % 4);
        match kind % 12 {
            0 | 1 => Request::Join { app, incarnation: 1 + small(input), secret: [choice; 16] },
            2 => Request::Act { word: u16::from(choice) },
            3 => Request::Rest { word: u16::from(choice) },
            4 => Request::Quit,
            5 | 6 => {
                let want = Resources { pbsize: u32::from(input.u8()) * 8, timeout_ns: input.number() };
                Request::Monitor { app, want, after: small(input), presumed: small(input), known: small(input) }
            }
            7 => Request::MonitorProcess,
            8 => Request::Adopt { app },
            9 => {
                let known = self.slots.get(usize::from(choice) % self.slots.len().max(1)).copied();
                Request::Unmonitor { slot: known.unwrap_or(Slot { index: u16::from(choice), generation: u32::from(choice % 3) }) }
            }
            10 => Request::Piggyback { bytes: vec![choice; (usize::from(input.u8()) * 8).min(MAX_PIGGYBACK_BYTES as usize)] },
            _ => Request::Status { from: u16::from(choice) },
        }
    }

    /// What a program receives can be decoded, and answers what it asked.
    fn hear(&mut self, at: usize) {
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        while let Some((socket, _)) = &self.programs[at] {
            match socket::receive(socket, &mut buffer) {
                Received::Nothing => return,
                Received::End => self.programs[at] = None,
                Received::TooLong => panic!("a message that no program reads"),
                Received::Message(len, _) => match Answer::decode(&buffer[..len]) {
                    Ok((_, Answer::Watching { slot, .. })) => self.slots.push(slot),
                    Ok((_, Answer::Piggybacked { bytes, .. })) => {
                        assert!(bytes.len() <= self.asked_pbsize as usize, "{} bytes, for which nobody has asked", bytes.len());
                    }
                    Ok(_) => {}
                    Err(why) => panic!("{why}: {:?}", &buffer[..len]),
                },
            }
        }
    }

    fn check(&self) {
        let Desk { programs, lives, current, free_seats, board, .. } = &self.desk;
        let seats: BTreeSet<u8> = programs.values().map(|program| program.seat.index).chain(free_seats.iter().copied()).collect();
        assert_eq!((seats.len(), free_seats.len() + programs.len()), (MAX_SEATS, MAX_SEATS), "a seat is lost, or given twice");
        for (id, program) in programs {
            let life = program.life.map(|index| &lives[&index]);
            assert!(
                life.is_none_or(|life| life.program == Some(*id) && life.state == State::Alive),
                "a program is what it has not joined as"
            );
            assert!(program.page.is_some() || program.life.is_none() && program.monitors.is_empty(), "it has not said who it is");
            assert!(program.monitors.iter().all(|index| lives[index].monitors.contains_key(id)));
        }
        let mut alive = BTreeSet::new();
        for (index, life) in lives {
            assert_eq!(life.slot.index, *index);
            assert_eq!(board.look(life.slot).map(|seen| seen.state), Some(life.state), "the board says something else of {}", life.app);
            assert!(life.state != State::Alive || alive.insert(life.app), "application {} is alive twice", life.app);
            assert!(life.monitors.keys().all(|id| programs[id].is_connected && programs[id].monitors.contains(index)));
            assert!(life.program.is_none_or(|id| programs[&id].life == Some(*index)));
        }
        assert!(current.iter().all(|(app, index)| lives[index].app == *app));
    }
}

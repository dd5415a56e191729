//! The connection to the warden: requests and their answers, and registering again with the next warden.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use martlet_fabric::host::socket::{self, MAX_MESSAGE, Received};
use rustix::event::{PollFd, PollFlags, epoll, poll};

use super::{Error, Handler, Joined, LOOKS_EVERY, Monitored, NO_SLOT, Warden, system, timespec};
use crate::board::Board;
use crate::wire::{Answer, Request, VERSION};
use crate::words::MAX_ACTING;
use crate::{AppId, Resources};

/// How long a warden may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// A warden that this program is registered with.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) board: Board,
    pub(super) seat: u8,
    pub(super) seen_changes: u64,
    pub(super) seen_mail: u64,
}

impl Warden {
    /// Connects, and introduces this program.
    pub(super) fn link(&mut self) -> Result<(), Error> {
        let connected = crate::place::connect(&self.path);
        let socket = Arc::new(connected.map_err(|error| Error::Connect { path: self.path.clone(), error })?);
        let hello = Request::Hello { version: VERSION, name: self.name.clone() };
        let sent = socket::send(&socket, &hello.encode(1), &[self.words.page.as_fd()]);
        let mut early = VecDeque::new();
        let (answer, fds) = receive(&socket, 1, &mut early).map_err(|lost| match (lost, sent) {
            // A warden that has no room says so before it is asked, and closes the connection.
            (Lost::Gone, Err(error)) => Error::Connect { path: self.path.clone(), error },
            (lost, _) => self.lost(lost),
        })?;
        let (Answer::Welcome { life, seat }, Some(board)) = (answer, fds.into_iter().next()) else {
            return Err(self.strange("it does not begin with a welcome and its board"));
        };
        let board = Board::open(board).map_err(|error| self.strange(error))?;
        if board.life() != life {
            return Err(self.strange(format!("its board is of life {}, it says {life}", board.life())));
        }
        let watched = epoll::add(&self.epoll, &*socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        watched.map_err(system("cannot watch the socket"))?;
        self.link = Some(Link { socket: Arc::clone(&socket), board, seat, seen_changes: 0, seen_mail: 0 });
        let taken = self.words.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *self.words.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&socket));
        // Threads that begin to act from now on tell the warden themselves.
        for word in (0..MAX_ACTING).filter(|word| *taken >> word & 1 != 0) {
            let _ = socket::send(&socket, &Request::Act { word }.encode(0), &[]);
        }
        Ok(())
    }

    fn lost(&self, lost: Lost) -> Error {
        match lost {
            Lost::Gone => Error::Gone(self.path.clone()),
            Lost::Refused(why) => Error::Refused(why),
            Lost::Strange(why) => self.strange(why),
        }
    }

    pub(super) fn unlink(&mut self) {
        *self.words.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(link) = self.link.take() {
            let _ = epoll::delete(&self.epoll, &*link.socket);
        }
        self.next_look = Instant::now();
    }

    /// Looks for the next warden, and registers there.
    pub(super) fn look_for_warden(&mut self, handler: &mut dyn Handler) -> usize {
        let mut told = 0;
        if !std::mem::replace(&mut self.is_loss_told, true) {
            handler.on_warden_lost();
            told += 1;
        }
        if Instant::now() < self.next_look {
            return told;
        }
        self.next_look = Instant::now() + LOOKS_EVERY;
        match self.link() {
            Ok(()) => {
                let refused = self.register_again();
                if self.link.is_none() {
                    // It died in the meantime: there is no news.
                    return told;
                }
                self.is_loss_told = false;
                refused.iter().for_each(|error| handler.on_warden_back(Err(error)));
                if refused.is_empty() {
                    handler.on_warden_back(Ok(()));
                }
                told + refused.len().max(1)
            }
            Err(Error::Refused(why)) => {
                handler.on_warden_back(Err(&Error::Refused(why)));
                self.next_look = Instant::now() + Duration::from_secs(1);
                told + 1
            }
            Err(_) => told,
        }
    }

    /// Registers with a new warden as with the one before. Returns the errors of what it could not register.
    fn register_again(&mut self) -> Vec<Error> {
        let mut refused = Vec::new();
        if let Some(Joined { app, incarnation, secret }) = self.joined
            && let Err(error) = self.ask(&Request::Join { app, incarnation, secret }, &[])
        {
            if self.link.is_some() {
                self.joined = None;
            }
            refused.push(error);
        }
        for (app, monitored) in std::mem::take(&mut self.monitored) {
            refused.extend(self.monitor_as_before(app, monitored).err());
        }
        refused
    }

    /// Monitors an application again as before: in the same life, or in the next one if that has ended. If the warden refuses, the application is no longer
    /// monitored, unless it is a process that this program watches itself.
    pub(super) fn monitor_as_before(&mut self, app: AppId, monitored: Monitored) -> Result<(), Error> {
        let Monitored { want, incarnation, pidfd, is_process, witness, .. } = monitored;
        let fds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
        let request = match is_process {
            true => Request::MonitorProcess,
            false => self.monitor_request(app, want, incarnation),
        };
        match self.ask(&request, &fds) {
            Ok((answer, fds)) => {
                if let Some(pidfd) = &pidfd {
                    let _ = epoll::delete(&self.epoll, pidfd);
                }
                self.watching(app, want, answer, fds, is_process).map(|_| ())
            }
            Err(Error::Refused(why)) if pidfd.is_none() => Err(Error::Refused(format!("application {app} is monitored no longer: {why}"))),
            Err(error) => {
                // This program still watches it itself, or registers it with the warden after this one.
                self.monitored
                    .insert(app, Monitored { slot: NO_SLOT, want, granted: Resources::default(), incarnation, pidfd, is_process, witness });
                Err(error)
            }
        }
    }

    pub(super) fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let number = self.send(request, fds)?;
        self.answer(number)
    }

    pub(super) fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<u32, Error> {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let Some(link) = &self.link else { return Err(Error::Gone(self.path.clone())) };
        if socket::send(&link.socket, &request.encode(number), fds).is_err() {
            self.unlink();
            return Err(Error::Gone(self.path.clone()));
        }
        Ok(number)
    }

    pub(super) fn answer(&mut self, number: u32) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let Some(link) = &self.link else { return Err(Error::Gone(self.path.clone())) };
        let socket = Arc::clone(&link.socket);
        let received = receive(&socket, number, &mut self.untold);
        if !self.untold.is_empty() {
            self.stir();
        }
        received.map_err(|lost| {
            if !matches!(lost, Lost::Refused(_)) {
                self.unlink();
            }
            self.lost(lost)
        })
    }

    /// Takes the messages that the warden has sent unasked.
    pub(super) fn take_mail(&mut self) {
        let mut buffer = Box::new([0; MAX_MESSAGE]);
        while let Some(link) = &self.link {
            match socket::receive(&link.socket, &mut buffer) {
                Received::Nothing => return,
                Received::Message(len, _) => match Answer::decode(&buffer[..len]) {
                    Ok((_, answer)) => self.untold.push_back(answer),
                    Err(_) => self.unlink(),
                },
                Received::End | Received::TooLong => self.unlink(),
            }
        }
    }
}

/// Why an answer did not come.
enum Lost {
    Gone,
    Refused(String),
    Strange(String),
}

/// Waits for the answer with that number, and sets unasked messages aside meanwhile.
fn receive(socket: &OwnedFd, number: u32, untold: &mut VecDeque<Answer>) -> Result<(Answer, Vec<OwnedFd>), Lost> {
    let until = Instant::now() + ANSWERS_WITHIN;
    let mut buffer = Box::new([0; MAX_MESSAGE]);
    let mut has_broken = false;
    loop {
        match socket::receive(socket, &mut buffer) {
            // A connection that the other end has reset reports that once, before the data that had arrived.
            Received::End if !std::mem::replace(&mut has_broken, true) => {}
            Received::Message(len, fds) => match Answer::decode(&buffer[..len]) {
                Ok((of, Answer::Refused { why })) if of == number || of == 0 => return Err(Lost::Refused(why)),
                Ok((of, answer)) if of == number => return Ok((answer, fds)),
                Ok((0, answer)) => untold.push_back(answer),
                // The answer to a request that was given up.
                Ok(_) => {}
                Err(why) => return Err(Lost::Strange(why.to_string())),
            },
            Received::End => return Err(Lost::Gone),
            Received::TooLong => return Err(Lost::Strange(format!("a message is longer than {MAX_MESSAGE} bytes"))),
            Received::Nothing => {
                let left = until.saturating_duration_since(Instant::now());
                let fd = socket.as_fd();
                if left.is_zero() {
                    return Err(Lost::Gone);
                }
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timespec(left)));
            }
        }
    }
}

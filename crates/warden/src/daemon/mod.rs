//! The warden has two threads, a third where there are other hosts, and one more where it has marks.
//!
//! The *eye* sleeps on the death words of all registered threads, and tells the programs that monitor them. The *desk* serves programs: it registers them,
//! answers what they ask, and watches processes through descriptors. The *pulse* exchanges packets with the wardens of other hosts, and tells programs of
//! deaths there. The *ear* hears of [marks](martlet_fabric::host::marks) that nothing else reports in time. Neither the eye nor the pulse takes a lock that the
//! desk holds: the desk sends them what they need to know.

mod desk;
mod ear;
mod eye;
mod pulse;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use martlet_fabric::host::marks::{Marker, Refused};
use martlet_fabric::host::page::Page;
use martlet_fabric::host::socket;
use rustix::event::{EventfdFlags, eventfd};

use crate::board::{Board, Marking};
use crate::neighbours::Neighbours;
use crate::place::{self, ListenError};
use crate::wire::Answer;

#[cfg(feature = "fuzzing")]
pub(crate) use self::desk::fuzz::check as check_requests;

/// How many words the eye sleeps on at most, besides its bell. Deaths of further threads are noticed whenever the eye wakes, and at the latest when their
/// process ends.
pub const MAX_WATCHED_WORDS: usize = martlet_fabric::host::MAX_SLEEP_WORDS - 1;

/// A warden's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The socket at which programs find it.
    pub socket: PathBuf,
    /// The socket's mode, which determines the users that may connect.
    pub mode: u32,
    /// Other hosts, if there are any.
    pub party: Option<Party>,
    /// Whether the kernel is to mark deaths before its own words do, where it permits that.
    pub marks: bool,
}

/// The wardens of several hosts, and the key that they share.
#[derive(Clone)]
pub struct Party {
    /// Where they are.
    pub neighbours: Neighbours,
    /// The key.
    pub key: [u8; 32],
}

impl std::fmt::Debug for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Party").field("neighbours", &self.neighbours).finish_non_exhaustive()
    }
}

/// Why a warden ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not get its socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// It cannot listen at the address where other wardens expect it.
    #[error("cannot listen at {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// Its eye could not register its own death word.
    #[error("the warden's own death word: {0}")]
    Words(#[from] martlet_fabric::host::DeathWordsError),
}

pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RunError {
    move |error| RunError::System { what, error: error.into() }
}

/// A thread of the warden, for a caller that places it on a core or in a scheduling class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// It hears of deaths, and should run at once.
    Eye,
    /// It serves programs.
    Desk,
    /// It exchanges packets with other hosts, and must be on time.
    Pulse,
    /// It hears of marks, and should run at once.
    Ear,
}

/// A warden that has its socket, and is about to serve.
#[derive(Debug)]
pub struct Warden {
    listener: place::Listener,
    board: Board,
    party: Option<(Party, Vec<UdpSocket>)>,
    marker: Result<Marker, Option<Refused>>,
}

impl Warden {
    /// Becomes the warden of this host. From then on programs can connect; [`Warden::run`] serves them.
    ///
    /// # Errors
    /// When another warden holds the socket, or the system refuses.
    pub fn new(options: &Options) -> Result<Warden, RunError> {
        let listener = place::listen(&options.socket, options.mode)?;
        let party = options.party.as_ref().map(|party| Ok::<_, RunError>((party.clone(), pulse::bind(party)?))).transpose()?;
        let life = crate::random_number().map_err(system("cannot draw a random number"))?;
        let marker = if options.marks { Marker::load().map_err(Some) } else { Err(None) };
        let marking = match &marker {
            Ok(marker) if marker.marks_ends() => Marking::Processes,
            Ok(_) => Marking::Threads,
            Err(_) => Marking::Nothing,
        };
        let board = Board::create(life, crate::now_ns(), marking).map_err(system("cannot make the board"))?;
        Ok(Warden { listener, board, party, marker })
    }

    /// Which marks it has.
    pub fn marking(&self) -> Marking {
        self.board.marking()
    }

    /// Why it has no marks, if it was supposed to have them.
    pub fn marks_refused(&self) -> Option<&Refused> {
        self.marker.as_ref().err().and_then(Option::as_ref)
    }

    /// The warden's life.
    pub fn life(&self) -> u64 {
        self.board.life()
    }

    /// Serves until `stop` is readable. Each thread calls `begun` for itself before anything else. The calling thread becomes the desk.
    ///
    /// # Errors
    /// When the system refuses something that the warden needs.
    pub fn run(self, stop: BorrowedFd<'_>, begun: impl Fn(Thread) + Send + Sync) -> Result<(), RunError> {
        let (board, bell) = (self.board, Page::create("martlet-bell", 1).map_err(system("cannot make the eye's bell"))?);
        let heard = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("cannot make a descriptor for ends"))?;
        let (heard, reports, told, news) = (Arc::new(heard), channel(), channel(), channel());
        let over = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("cannot make a descriptor for the end"))?;
        let (over, marker) = (Arc::new(over), self.marker.ok().map(Arc::new));
        let (mut pulse, mut others) = (None, None);
        if let Some((party, sockets)) = self.party {
            let way = pulse::News { sender: news.0, stir: Arc::clone(&heard) };
            let (beating, orders) = pulse::Pulse::new(&party, sockets, board.clone(), way)?;
            others = Some((desk::OtherHosts::new(orders.clone(), party.neighbours.timeout_ns, beating.unauthenticated()), orders));
            pulse = Some(beating);
        }
        let orders = others.as_ref().map(|(_, orders)| orders.clone());
        let eye = eye::Eye::new(
            board.clone(),
            bell.clone(),
            told.1,
            eye::Reports { sender: reports.0, stir: Arc::clone(&heard) },
            orders.clone(),
            marker.as_ref().map(|marker| marker.marks().clone()),
        );
        let (started, starting) = channel();
        std::thread::scope(|scope| {
            let begun = &begun;
            let tasks = eye::Tasks { sender: told.0, bell };
            let eye = std::thread::Builder::new().name("warden-eye".into()).spawn_scoped(scope, move || {
                begun(Thread::Eye);
                eye.run(&started);
            });
            eye.map_err(system("cannot start a thread"))?;
            let ear = marker.clone().map(|marker| {
                let ear = ear::Ear { marker, eye: tasks.clone(), heard: Arc::clone(&heard), over: Arc::clone(&over) };
                std::thread::Builder::new().name("warden-ear".into()).spawn_scoped(scope, move || {
                    begun(Thread::Ear);
                    ear.run();
                })
            });
            let beats = pulse.map(|pulse| {
                std::thread::Builder::new().name("warden-pulse".into()).spawn_scoped(scope, move || {
                    begun(Thread::Pulse);
                    pulse.run();
                })
            });
            let begun_all = ear.transpose().and_then(|_| beats.transpose());
            let outcome = match (begun_all, starting.recv()) {
                (Err(error), _) => Err(system("cannot start a thread")(error)),
                (Ok(_), Ok(Ok(()))) => {
                    begun(Thread::Desk);
                    let desk = desk::Desk::new(self.listener, board, tasks.clone(), heard, others.map(|(others, _)| others), marker);
                    desk.and_then(|desk| desk.run(stop, &reports.1, &news.1))
                }
                (Ok(_), Ok(Err(error))) => Err(error.into()),
                (Ok(_), Err(_)) => unreachable!("the eye says how it began"),
            };
            tasks.send(eye::Task::End);
            let _ = rustix::io::write(&*over, &1u64.to_ne_bytes());
            if let Some(orders) = orders {
                orders.send(pulse::Order::Leave);
            }
            outcome
        })
    }
}

/// A program's socket, and its seat on the board: where to tell it something.
#[derive(Debug)]
pub(crate) struct Seat {
    socket: OwnedFd,
    index: u8,
}

impl Seat {
    /// Sends the program a message that it has not asked for. Returns whether its socket had room; if not, because the program does not read, the message is
    /// lost.
    fn tell(&self, board: &Board, answer: &Answer) -> bool {
        self.send(board, 0, answer, &[])
    }

    fn send(&self, board: &Board, number: u32, answer: &Answer, fds: &[BorrowedFd<'_>]) -> bool {
        let is_sent = socket::send(&self.socket, &answer.encode(number), fds).is_ok();
        if is_sent {
            board.count_mail(self.index);
        }
        is_sent
    }
}

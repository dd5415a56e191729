//! What a program uses a warden by: the calls of the paper's Listing 1, in the same words.
//!
//! ```no_run
//! use martlet_warden::client::{Failure, Handler, Warden};
//! use martlet_warden::{AppId, Resources};
//!
//! struct Watcher;
//!
//! impl Handler for Watcher {
//!     fn on_failure(&mut self, app: AppId, failure: Failure) {
//!         println!("{app} has failed: {}", failure.evidence);
//!     }
//! }
//!
//! let mut warden = Warden::connect(&martlet_warden::place::default_socket(), "watcher")?;
//! warden.join(AppId::new(1)?)?;
//! let _acting = warden.threads().act()?;
//! warden.monitor(AppId::new(2)?, Resources::default())?;
//! loop {
//!     warden.poll(None, &mut Watcher)?;
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is told, and when
//! Upcalls come inside [`Warden::poll`] only, on the thread that calls it. A failure is told once for each life of an application; to be told of its next life, a
//! program monitors it again. What is certain and what is presumed, the [`Evidence`](crate::board::Evidence) says.
//!
//! # When the warden dies
//! A program goes on watching by descriptors that the warden has given it, so ends of processes on its own host are still told, only later. It looks for the next
//! warden inside [`Warden::poll`], and registers there again: the same application in the same life, the same threads, the same monitors.

mod acting;
mod link;
mod upcalls;
mod witness;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::socket;
use martlet_protocol::detector::wardens::Secret;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::time::Timespec;

use self::acting::Words;
pub use self::acting::{ActError, Acting, Threads};
use self::link::Link;
pub use self::upcalls::{Failure, Handler};
use self::witness::Witness;
use crate::board::{Board, Slot, State};
use crate::process::pidfd_of;
use crate::wire::{Answer, AppStatus, HostStatus, MAX_NAME_BYTES, Request};
use crate::words::PAGE_WORDS;
use crate::{AppId, Resources};

/// How often a program looks for the next warden.
const LOOKS_EVERY: Duration = Duration::from_millis(10);
/// How often a program that polls without sleeping looks at its descriptors as well, not at memory alone: every so many times.
const DESCRIPTORS_EVERY: u32 = 256;

/// Why a call did not do what it says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no warden.
    #[error("no warden answers at {path}: {error}")]
    Connect {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The warden has died, or has not answered in time. [`Warden::poll`] looks for the next one.
    #[error("the warden at {0} is gone")]
    Gone(PathBuf),
    /// The warden refuses.
    #[error("the warden refuses: {0}")]
    Refused(String),
    /// Something else than a warden of this version answers.
    #[error("what answers at {path} is not a warden that this program understands: {why}")]
    Strange {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The process cannot be watched.
    #[error("process {pid} cannot be watched: {error}")]
    Process {
        /// Which one.
        pid: i32,
        /// What the system said.
        error: io::Error,
    },
    /// A message is longer than any can be.
    #[error("a message of {0} bytes; allowed are 0 to {most}", most = crate::MAX_PIGGYBACK_BYTES)]
    TooLong(usize),
    /// The system refuses something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

#[derive(Debug)]
struct Monitored {
    slot: Slot,
    want: Resources,
    granted: Resources,
    incarnation: u64,
    /// Of its process, when that is one of this host: watched by ourselves too.
    pidfd: Option<OwnedFd>,
    /// Watched as a process, which knows of no wardens.
    is_process: bool,
    /// Of its acting threads, when it is a program that knows of wardens, of this host.
    witness: Option<Witness>,
}

/// No life has this slot.
const NO_SLOT: Slot = Slot { index: 0, generation: 0 };

/// A life whose end has been told.
#[derive(Clone, Copy, Debug)]
struct Ended {
    incarnation: u64,
    /// It has certainly failed, and has not just quit.
    has_failed: bool,
}

/// What a program is.
#[derive(Clone, Copy, Debug)]
struct Joined {
    app: AppId,
    incarnation: u64,
    secret: Secret,
}

/// A program's registration with the warden of its host. It is used by one thread at a time.
#[derive(Debug)]
pub struct Warden {
    path: PathBuf,
    name: String,
    link: Option<Link>,
    next_look: Instant,
    /// What is readable when there is something to poll for.
    epoll: OwnedFd,
    words: Arc<Words>,
    joined: Option<Joined>,
    monitored: BTreeMap<AppId, Monitored>,
    /// The life of each application whose end has been told.
    ended: BTreeMap<AppId, Ended>,
    /// The life of each application that it has been told is presumed dead, until it is heard again.
    presumed: BTreeMap<AppId, u64>,
    untold: VecDeque<Answer>,
    /// Readable when there is something to tell of which the socket no longer says anything.
    stir: OwnedFd,
    is_stirred: bool,
    is_loss_told: bool,
    /// Whether ends are the warden's alone to see, which reveals secrets with them.
    needs_secrets: bool,
    next_number: u32,
    polls: u32,
}

impl Drop for Warden {
    fn drop(&mut self) {
        // A thread that still acts, or may begin to, has a part in the words: it is not to keep the connection open.
        *self.words.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::System { what, error: error.into() }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(time.subsec_nanos()) }
}

impl Warden {
    /// Connects to the warden whose socket that is. `name` is what people are shown; empty, it is what the system calls the process.
    ///
    /// # Errors
    /// When there is none, or it refuses.
    pub fn connect(path: &Path, name: &str) -> Result<Warden, Error> {
        let mut warden = Warden::unconnected(path, name)?;
        warden.link()?;
        Ok(warden)
    }

    /// The same, but a warden that is not there is no error: [`Warden::poll`] looks for it, as for the next one when a warden has died.
    ///
    /// # Errors
    /// When the warden that is there refuses, or the system does.
    pub fn expect(path: &Path, name: &str) -> Result<Warden, Error> {
        let mut warden = Warden::unconnected(path, name)?;
        match warden.link() {
            Ok(()) => {}
            // There was none whose loss could be told.
            Err(Error::Connect { .. } | Error::Gone(_)) => warden.is_loss_told = true,
            Err(error) => return Err(error),
        }
        Ok(warden)
    }

    fn unconnected(path: &Path, name: &str) -> Result<Warden, Error> {
        let page = Page::create("martlet-life", PAGE_WORDS).map_err(system("cannot make the page of death words"))?;
        let words = Arc::new(Words { page, taken: Mutex::new(0), socket: Mutex::new(None) });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll descriptor"))?;
        let stir = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("cannot make a descriptor"))?;
        let watched = epoll::add(&epoll, &stir, epoll::EventData::new_u64(2), epoll::EventFlags::IN);
        watched.map_err(system("cannot watch a descriptor"))?;
        let mut end = name.len().min(MAX_NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Ok(Warden {
            path: path.into(),
            name: name[..end].into(),
            link: None,
            next_look: Instant::now(),
            epoll,
            words,
            joined: None,
            monitored: BTreeMap::new(),
            ended: BTreeMap::new(),
            presumed: BTreeMap::new(),
            untold: VecDeque::new(),
            stir,
            is_stirred: false,
            is_loss_told: false,
            needs_secrets: false,
            next_number: 1,
            polls: 0,
        })
    }

    /// From now on certain failures are told with the secret of the life that is over, and not before the warden has revealed it: what this program could see by itself of a
    /// process of its host, it leaves to the warden. For a program that believes nothing else; to be called before it monitors anything. While there is no warden such ends are
    /// not told.
    pub fn need_secrets(&mut self) {
        self.needs_secrets = true;
    }

    /// By which the program's threads say that they act for it.
    pub fn threads(&self) -> Threads {
        Threads(Arc::clone(&self.words))
    }

    /// Whether there is a warden.
    pub fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// What the warden shows, while there is one.
    pub fn board(&self) -> Option<&Board> {
        self.link.as_ref().map(|link| &link.board)
    }

    /// Where an application that this program monitors stands on the board. Nowhere, while no warden watches it for this program.
    pub fn slot(&self, app: AppId) -> Option<Slot> {
        self.monitored.get(&app).map(|monitored| monitored.slot).filter(|slot| *slot != NO_SLOT)
    }

    /// A descriptor that is readable when [`Warden::poll`] has something to do, for a program that waits in a loop of its own. While there is no warden it is not
    /// readable when the next one comes: such a program polls every few milliseconds then.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The program is this application from now on, in a new life: its monitors are told when it fails. Returns the life's number.
    ///
    /// # Errors
    /// When the application is alive already, when the program has joined, and when the warden is gone.
    pub fn join(&mut self, app: AppId) -> Result<u64, Error> {
        self.join_with(app, martlet_fabric::host::random().map_err(system("cannot draw a secret"))?)
    }

    /// As [`Warden::join`], with a secret of the program's own choosing, which no other life has had: the warden reveals it to the monitors when this life has certainly failed.
    ///
    /// # Errors
    /// The same. Where the warden is gone, the program registers so with the next one.
    pub fn join_with(&mut self, app: AppId, secret: Secret) -> Result<u64, Error> {
        let incarnation = crate::random_number().map_err(system("cannot draw a random number"))?;
        let joined = Joined { app, incarnation, secret };
        match self.ask(&Request::Join { app, incarnation, secret }, &[]) {
            Ok(_) => {
                self.joined = Some(joined);
                Ok(incarnation)
            }
            Err(error @ Error::Gone(_)) if self.joined.is_none() => {
                self.joined = Some(joined);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The application that the program is, or will be with the next warden.
    pub fn joined(&self) -> Option<AppId> {
        self.joined.map(|joined| joined.app)
    }

    /// The application leaves: its end is no failure. A program that ends without quitting has failed.
    ///
    /// # Errors
    /// When it has not joined, or the warden is gone: then its end will count as a failure.
    pub fn quit(&mut self) -> Result<(), Error> {
        self.joined = None;
        self.ask(&Request::Quit, &[])?;
        Ok(())
    }

    /// Asks to be told when an application fails. One that has not joined yet is waited for. An application that has failed since this program last heard of it is
    /// told of at once, and so is one that has quit since, if it was told of an end of it before.
    ///
    /// # Errors
    /// When more is asked for than can be granted, or the warden is gone.
    pub fn monitor(&mut self, app: AppId, want: Resources) -> Result<Resources, Error> {
        if self.monitored.contains_key(&app) {
            self.unmonitor(app);
        }
        let (answer, fds) = self.ask(&self.monitor_request(app, want, 0), &[])?;
        self.watching(app, want, answer, fds, false)
    }

    /// Asks to be told when a process ends, which need not know of wardens: it is watched unchanged, as a whole. Returns the number by which it is told of.
    ///
    /// # Errors
    /// When there is no such process, or the warden is gone.
    pub fn monitor_process(&mut self, pid: i32) -> Result<AppId, Error> {
        let pidfd = pidfd_of(pid).map_err(|error| Error::Process { pid, error })?;
        let (answer, fds) = self.ask(&Request::MonitorProcess, &[pidfd.as_fd()])?;
        let Answer::Watching { app, .. } = answer else { return Err(self.strange("it answers something else")) };
        self.watching(app, Resources::default(), answer, fds, true)?;
        Ok(app)
    }

    /// Has the warden watch a process as this application, without its help. Others monitor it as any other, while this program may end.
    ///
    /// # Errors
    /// When there is no such process, when the application is alive already, or when the warden is gone.
    pub fn adopt(&mut self, app: AppId, pid: i32) -> Result<(), Error> {
        let pidfd = pidfd_of(pid).map_err(|error| Error::Process { pid, error })?;
        self.ask(&Request::Adopt { app }, &[pidfd.as_fd()])?;
        Ok(())
    }

    /// To be told of that application no more.
    pub fn unmonitor(&mut self, app: AppId) {
        if let Some(monitored) = self.monitored.remove(&app) {
            self.forget(&monitored);
        }
    }

    /// Sends a message to all who monitor this application. Returns its number. Whether it has arrived, nothing says.
    ///
    /// # Errors
    /// When it is longer than the monitors ask for, when the program has not joined, or when the warden is gone.
    pub fn piggyback(&mut self, message: &[u8]) -> Result<u64, Error> {
        if message.len() > crate::MAX_PIGGYBACK_BYTES as usize {
            return Err(Error::TooLong(message.len()));
        }
        match self.ask(&Request::Piggyback { bytes: message.into() }, &[])?.0 {
            Answer::Sent { seq } => Ok(seq),
            _ => Err(self.strange("it answers something else")),
        }
    }

    /// All applications and all other hosts that the warden knows.
    ///
    /// # Errors
    /// When the warden is gone.
    pub fn status(&mut self) -> Result<(Vec<AppStatus>, Vec<HostStatus>), Error> {
        let mut number = self.send(&Request::Status { from: 0 }, &[])?;
        let (mut apps, mut hosts) = (Vec::new(), Vec::new());
        loop {
            match self.answer(number)?.0 {
                Answer::App(app) => apps.push(app),
                Answer::Host(host) => hosts.push(host),
                Answer::More { from } => number = self.send(&Request::Status { from }, &[])?,
                Answer::Done => return Ok((apps, hosts)),
                _ => return Err(self.strange("it answers something else")),
            }
        }
    }

    /// Tells the handler what has happened. Waits for something to tell, for so long at most, `None`: without end. With a wait of zero it mostly reads memory, and
    /// makes no system call; it reads the death words of the programs that it monitors on this host as well, and so learns of an end no later than the warden. Returns how much it
    /// told. What the handler does takes time from what follows.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn poll(&mut self, at_most: Option<Duration>, handler: &mut dyn Handler) -> Result<usize, Error> {
        let until = at_most.map(|time| Instant::now() + time);
        let polls = at_most == Some(Duration::ZERO);
        let mut look_at_descriptors = !polls || self.polls.is_multiple_of(DESCRIPTORS_EVERY);
        self.polls = self.polls.wrapping_add(1);
        let mut told = 0;
        loop {
            told += self.tell(look_at_descriptors, polls, handler);
            // An end that came after the look for ends may have taken its message along with the mail: nothing would wake this program for it.
            if self.link.as_ref().is_some_and(|link| link.board.changes() != link.seen_changes) {
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if told > 0 || left == Some(Duration::ZERO) {
                return Ok(told);
            }
            // Without a warden, until it is time to look for the next.
            let wait = if self.link.is_some() { left } else { Some(left.map_or(LOOKS_EVERY, |left| left.min(LOOKS_EVERY))) };
            let fd = self.epoll.as_fd();
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], wait.map(timespec).as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("cannot wait for the warden")(error)),
            }
            look_at_descriptors = true;
        }
    }

    /// To be told of an application's next end that has not been told.
    fn monitor_request(&self, app: AppId, want: Resources, known: u64) -> Request {
        let after = self.ended.get(&app).map_or(0, |ended| ended.incarnation);
        Request::Monitor { app, want, after, presumed: self.presumed.get(&app).copied().unwrap_or(0), known }
    }

    /// There is something to tell, which the next poll must not sleep over.
    fn stir(&mut self) {
        if !std::mem::replace(&mut self.is_stirred, true) {
            let _ = rustix::io::write(&self.stir, &1u64.to_ne_bytes());
        }
    }

    /// Whether there was, since the last time.
    fn was_stirred(&mut self) -> bool {
        let was_stirred = std::mem::take(&mut self.is_stirred);
        if was_stirred {
            let _ = rustix::io::read(&self.stir, &mut [0; 8]);
        }
        was_stirred
    }

    fn forget(&mut self, monitored: &Monitored) {
        if let Some(pidfd) = &monitored.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        if let Some(link) = &self.link {
            let _ = socket::send(&link.socket, &Request::Unmonitor { slot: monitored.slot }.encode(0), &[]);
        }
    }

    fn watching(&mut self, app: AppId, want: Resources, answer: Answer, fds: Vec<OwnedFd>, is_process: bool) -> Result<Resources, Error> {
        let Answer::Watching { slot, granted, .. } = answer else { return Err(self.strange("it answers something else")) };
        // A process that is watched unchanged has no secret to wait for.
        let mut fds = fds.into_iter().filter(|_| is_process || !self.needs_secrets);
        let (fd, page) = (fds.next(), fds.next());
        // Without it the end is told as soon as the warden has seen it.
        let witness = page.and_then(|page| Witness::new(page).ok());
        let before = self.monitored.remove(&app);
        if let Some(pidfd) = before.as_ref().and_then(|before| before.pidfd.as_ref()) {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        if let Some(pidfd) = &fd {
            let watched = epoll::add(&self.epoll, pidfd, epoll::EventData::new_u64(1), epoll::EventFlags::IN);
            watched.map_err(system("cannot watch a process"))?;
        }
        let seen = self.link.as_ref().and_then(|link| link.board.look(slot));
        let incarnation = seen.map_or(0, |seen| seen.incarnation);
        match seen.map(|seen| seen.state) {
            Some(State::Alive) => self.is_alive(app),
            // Nothing more comes of it: it was over when this program asked.
            Some(State::Failed | State::Left) => self.stir(),
            _ => {}
        }
        self.monitored.insert(app, Monitored { slot, want, granted, incarnation, pidfd: fd, is_process, witness });
        Ok(granted)
    }

    /// What an application that this program monitors has been granted.
    pub fn granted(&self, app: AppId) -> Option<Resources> {
        self.monitored.get(&app).map(|monitored| monitored.granted)
    }

    /// It lives: if this is a life that was said to have quit, only its warden had; and what was presumed is withdrawn.
    fn is_alive(&mut self, app: AppId) {
        // The warden may not have seen yet what this program has.
        self.ended.retain(|one, ended| *one != app || ended.has_failed);
        self.presumed.remove(&app);
    }

    fn strange(&self, why: impl std::fmt::Display) -> Error {
        Error::Strange { path: self.path.clone(), why: why.to_string() }
    }
}

//! How a program uses a warden: the calls of the paper's Listing 1, under the same names.
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
//! # What is reported, and when
//! Upcalls happen only inside [`Warden::poll`], on the thread that calls it. A failure is reported once for each life of an application. To be told of its next
//! life, a program has to monitor it again. [`Evidence`](crate::board::Evidence) says whether a failure is certain or presumed.
//!
//! # When the warden dies
//! A program keeps watching through the descriptors that the warden has given it, so the ends of processes on its own host are still reported, only later. It
//! looks for the next warden inside [`Warden::poll`], and registers there again: the same application in the same life, the same threads, and the same
//! applications to monitor.

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
/// How often a program that polls without sleeping also looks at its descriptors, and not only at memory: once in this many polls.
const DESCRIPTORS_EVERY: u32 = 256;

/// Why a call failed.
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
    /// The warden refused.
    #[error("the warden refuses: {0}")]
    Refused(String),
    /// Something other than a warden of this version answers.
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
    /// A message is longer than any may be.
    #[error("a message of {0} bytes; allowed are 0 to {most}", most = crate::MAX_PIGGYBACK_BYTES)]
    TooLong(usize),
    /// The system refused something.
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
    /// The descriptor of its process, if that is on this host: this program watches it as well.
    pidfd: Option<OwnedFd>,
    /// It is watched as a process that does not know about wardens.
    is_process: bool,
    /// The witness of its acting threads, if it is a program of this host that knows about wardens.
    witness: Option<Witness>,
}

/// No life has this slot.
const NO_SLOT: Slot = Slot { index: 0, generation: 0 };

/// A life whose end has been reported.
#[derive(Clone, Copy, Debug)]
struct Ended {
    incarnation: u64,
    /// It has certainly failed, rather than quit.
    has_failed: bool,
}

/// The application that a program is.
#[derive(Clone, Copy, Debug)]
struct Joined {
    app: AppId,
    incarnation: u64,
    secret: Secret,
}

/// A program's registration with the warden of its host. Only one thread uses it at a time.
#[derive(Debug)]
pub struct Warden {
    path: PathBuf,
    name: String,
    link: Option<Link>,
    next_look: Instant,
    /// Readable when there is something to poll for.
    epoll: OwnedFd,
    words: Arc<Words>,
    joined: Option<Joined>,
    monitored: BTreeMap<AppId, Monitored>,
    /// For each application, the life whose end has been reported.
    ended: BTreeMap<AppId, Ended>,
    /// For each application, the life that has been reported as presumed dead, until it is heard again.
    presumed: BTreeMap<AppId, u64>,
    untold: VecDeque<Answer>,
    /// Readable when there is something to report that the socket no longer signals.
    stir: OwnedFd,
    is_stirred: bool,
    is_loss_told: bool,
    /// Whether ends are left to the warden, which reveals secrets with them.
    needs_secrets: bool,
    next_number: u32,
    polls: u32,
}

impl Drop for Warden {
    fn drop(&mut self) {
        // A thread that still acts, or may begin to, shares the words: it must not keep the connection open.
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
    /// Connects to the warden at that socket. `name` is shown to people; if it is empty, the system's name of the process is used.
    ///
    /// # Errors
    /// When there is no warden, or it refuses.
    pub fn connect(path: &Path, name: &str) -> Result<Warden, Error> {
        let mut warden = Warden::unconnected(path, name)?;
        warden.link()?;
        Ok(warden)
    }

    /// The same, but it is no error if there is no warden: [`Warden::poll`] looks for one, as it does after a warden has died.
    ///
    /// # Errors
    /// When there is a warden and it refuses, or the system does.
    pub fn expect(path: &Path, name: &str) -> Result<Warden, Error> {
        let mut warden = Warden::unconnected(path, name)?;
        match warden.link() {
            Ok(()) => {}
            // There was no warden whose loss could be reported.
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

    /// From now on certain failures are reported together with the secret of the life that is over, and not before the warden has revealed it. What this
    /// program could see for itself about a process of its host, it leaves to the warden. For a program that believes nothing else; call this before it
    /// monitors anything. While there is no warden, such ends are not reported.
    pub fn need_secrets(&mut self) {
        self.needs_secrets = true;
    }

    /// With this, the program's threads register that they act for it.
    pub fn threads(&self) -> Threads {
        Threads(Arc::clone(&self.words))
    }

    /// Whether there is a warden.
    pub fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// The warden's board, while there is one.
    pub fn board(&self) -> Option<&Board> {
        self.link.as_ref().map(|link| &link.board)
    }

    /// Where an application that this program monitors is on the board; `None` while no warden watches it for this program.
    pub fn slot(&self, app: AppId) -> Option<Slot> {
        self.monitored.get(&app).map(|monitored| monitored.slot).filter(|slot| *slot != NO_SLOT)
    }

    /// A descriptor that is readable when [`Warden::poll`] has something to do, for a program that waits in a loop of its own. While there is no warden, it
    /// does not become readable when the next one comes: such a program has to poll every few milliseconds then.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// From now on the program is this application, in a new life: its monitors are told when it fails. Returns the life's number.
    ///
    /// # Errors
    /// When the application is alive already, when the program has joined already, or when the warden is gone.
    pub fn join(&mut self, app: AppId) -> Result<u64, Error> {
        self.join_with(app, martlet_fabric::host::random().map_err(system("cannot draw a secret"))?)
    }

    /// As [`Warden::join`], with a secret that the program has chosen and that no other life has had. The warden reveals it to the monitors when this life has
    /// certainly failed.
    ///
    /// # Errors
    /// The same. If the warden is gone, the program registers with the next one in this way.
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

    /// The application leaves, so that its end is no failure. A program that ends without quitting has failed.
    ///
    /// # Errors
    /// When it has not joined, or the warden is gone. In the latter case its end will count as a failure.
    pub fn quit(&mut self) -> Result<(), Error> {
        self.joined = None;
        self.ask(&Request::Quit, &[])?;
        Ok(())
    }

    /// Asks to be told when an application fails. An application that has not joined yet is waited for. If it has failed since this program last heard of it,
    /// that is reported at once. The same holds if it has quit since, but only if an end of it had been reported to this program before.
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

    /// Asks to be told when a process ends. The process is watched unchanged and as a whole, and need not know about wardens. Returns the number that upcalls
    /// use for it.
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

    /// Lets the warden watch a process as this application, without the process's help. Others monitor it like any application, and this program may end.
    ///
    /// # Errors
    /// When there is no such process, when the application is alive already, or when the warden is gone.
    pub fn adopt(&mut self, app: AppId, pid: i32) -> Result<(), Error> {
        let pidfd = pidfd_of(pid).map_err(|error| Error::Process { pid, error })?;
        self.ask(&Request::Adopt { app }, &[pidfd.as_fd()])?;
        Ok(())
    }

    /// Asks not to be told of that application any more.
    pub fn unmonitor(&mut self, app: AppId) {
        if let Some(monitored) = self.monitored.remove(&app) {
            self.forget(&monitored);
        }
    }

    /// Sends a message to all programs that monitor this application. Returns its number. There is no acknowledgement.
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

    /// Calls the handler for everything that has happened. If nothing has, waits for up to `at_most`; `None` means without limit. With a wait of zero it mostly
    /// reads memory, and makes no system call. It then also reads the death words of the programs of this host that it monitors, and so learns of an end no
    /// later than the warden. Returns how many things it reported. Time spent in the handler delays what follows.
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
            // If an end came after the look for ends, its message may have been taken along with the mail: then nothing would wake this program for it.
            if self.link.as_ref().is_some_and(|link| link.board.changes() != link.seen_changes) {
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if told > 0 || left == Some(Duration::ZERO) {
                return Ok(told);
            }
            // Without a warden, wait only until it is time to look for the next one.
            let wait = if self.link.is_some() { left } else { Some(left.map_or(LOOKS_EVERY, |left| left.min(LOOKS_EVERY))) };
            let fd = self.epoll.as_fd();
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], wait.map(timespec).as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(system("cannot wait for the warden")(error)),
            }
            look_at_descriptors = true;
        }
    }

    /// A request to be told of an application's next end that has not been reported yet.
    fn monitor_request(&self, app: AppId, want: Resources, known: u64) -> Request {
        let after = self.ended.get(&app).map_or(0, |ended| ended.incarnation);
        Request::Monitor { app, want, after, presumed: self.presumed.get(&app).copied().unwrap_or(0), known }
    }

    /// There is something to report, so the next poll must not sleep.
    fn stir(&mut self) {
        if !std::mem::replace(&mut self.is_stirred, true) {
            let _ = rustix::io::write(&self.stir, &1u64.to_ne_bytes());
        }
    }

    /// Whether there was such a thing since the last call.
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
        // A process that is watched without its help has no secret to wait for.
        let mut fds = fds.into_iter().filter(|_| is_process || !self.needs_secrets);
        let (fd, page) = (fds.next(), fds.next());
        // Without a witness, the end is reported as soon as the warden has seen it.
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
            // No event will follow: it was over when this program asked.
            Some(State::Failed | State::Left) => self.stir(),
            _ => {}
        }
        self.monitored.insert(app, Monitored { slot, want, granted, incarnation, pidfd: fd, is_process, witness });
        Ok(granted)
    }

    /// What this program has been granted for an application that it monitors.
    pub fn granted(&self, app: AppId) -> Option<Resources> {
        self.monitored.get(&app).map(|monitored| monitored.granted)
    }

    /// The application is alive. If this life was reported to have quit, only its warden had gone; and a presumption of its death is withdrawn.
    fn is_alive(&mut self, app: AppId) {
        // The warden may not have noticed yet what this program has seen.
        self.ended.retain(|one, ended| *one != app || ended.has_failed);
        self.presumed.remove(&app);
    }

    fn strange(&self, why: impl std::fmt::Display) -> Error {
        Error::Strange { path: self.path.clone(), why: why.to_string() }
    }
}

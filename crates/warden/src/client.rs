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
//! program monitors it again. What is certain and what is presumed, the [`Evidence`] says.
//!
//! # When the warden dies
//! A program goes on watching by descriptors that the warden has given it, so ends of processes on its own host are still told, only later. It looks for the next
//! warden inside [`Warden::poll`], and registers there again: the same application in the same life, the same threads, the same monitors.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::socket::{self, MAX_MESSAGE, Received};
use martlet_fabric::host::{DeathWords, DeathWordsError};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::Timespec;

use crate::board::{Board, Evidence, Seen, Slot, State};
use crate::daemon::{LIFE_WORDS, MAX_ACTING, death_word};
use crate::process::{has_ended, pidfd_of};
use crate::wire::{Answer, AppStatus, HostStatus, MAX_NAME_BYTES, Request, VERSION};
use crate::{AppId, Resources};

/// How long a warden may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
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
    #[error("what answers at {path} is no warden that this program understands: {why}")]
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

/// Why a thread holds no death word.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// As many threads of the program hold one as can.
    #[error("{MAX_ACTING} threads of this program act already, as many as there is room for")]
    Many,
    /// The kernel, or the thread itself.
    #[error(transparent)]
    Words(#[from] DeathWordsError),
}

/// How an application failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How that is known.
    pub evidence: Evidence,
    /// When the warden of this host learned it, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Which of the application's lives it was; 0 where the warden had not said yet.
    pub incarnation: u64,
}

/// What a program is told: the upcalls of Listing 1, and those for what the paper leaves out. All but one may be left as they are.
pub trait Handler {
    /// An application that this program monitors has failed. It is monitored no longer.
    fn on_failure(&mut self, app: AppId, failure: Failure);
    /// An application that this program monitors sends a message. Numbers that are left out are messages that were lost.
    fn on_piggyback_rcv(&mut self, app: AppId, seq: u64, message: &[u8]) {
        let _ = (app, seq, message);
    }
    /// The timeout of an application that this program monitors is another one, in nanoseconds. 0: it has quit, and is monitored no longer.
    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        let _ = (app, timeout_ns);
    }
    /// This application is monitored by one more, which asks for messages of this size; by `None` that is no application itself.
    fn on_monitor_req(&mut self, by: Option<AppId>, pbsize: u32) {
        let _ = (by, pbsize);
    }
    /// How large this application's messages may be from now on.
    fn on_pbsize_changed(&mut self, pbsize: u32) {
        let _ = pbsize;
    }
    /// Of the two paths to that host one is lost: another failure of the network would be taken for its death.
    fn on_redundancy_lost(&mut self, host: u16, path: u8) {
        let _ = (host, path);
    }
    /// It is back.
    fn on_redundancy_recovered(&mut self, host: u16, path: u8) {
        let _ = (host, path);
    }
    /// The warden of this host is gone. Deaths are still told, later, of processes of this host.
    fn on_warden_lost(&mut self) {}
    /// There is a warden again, with which this program has registered; or it refuses that, and why.
    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        let _ = registered;
    }
}

/// The program's death words: on which page, and which are taken.
#[derive(Debug)]
struct Words {
    page: Page,
    taken: Mutex<u64>,
    /// Where the warden is told of them; none while there is no warden.
    socket: Mutex<Option<Arc<OwnedFd>>>,
}

impl Words {
    fn tell(&self, request: &Request) {
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // A warden that cannot be told now is gone, or will be left for not answering: the next one is told all words.
            let _ = socket::send(socket, &request.encode(0), &[]);
        }
    }
}

/// By which threads of a program say that they act for it. Any thread may have one.
#[derive(Clone, Debug)]
pub struct Threads(Arc<Words>);

/// A thread that acts for its program. Dropped, it acts no more; when the thread ends without dropping it, by SIGKILL too, it has died.
///
/// When all acting threads have died, the application has failed, which the warden knows at once.
#[must_use = "dropped, the thread acts no more"]
#[derive(Debug)]
pub struct Acting {
    words: Option<DeathWords>,
    index: u16,
    shared: Arc<Words>,
    /// The words are the thread's own.
    _thread: PhantomData<*const ()>,
}

impl Threads {
    /// Says that the calling thread acts for the program.
    ///
    /// # Errors
    /// When too many do, or when the system refuses.
    pub fn act(&self) -> Result<Acting, ActError> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.trailing_ones();
        if index >= u32::from(MAX_ACTING) {
            return Err(ActError::Many);
        }
        let words = self.0.page.register_death_words(&[death_word(index as u16)])?;
        *taken |= 1 << index;
        drop(taken);
        self.0.tell(&Request::Act { word: index as u16 });
        Ok(Acting { words: Some(words), index: index as u16, shared: Arc::clone(&self.0), _thread: PhantomData })
    }
}

impl Acting {
    /// Whether the thread acts for the program by these.
    pub fn is_by(&self, threads: &Threads) -> bool {
        Arc::ptr_eq(&self.shared, &threads.0)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        // First the word, which says by itself that this is no death.
        drop(self.words.take());
        self.shared.tell(&Request::Rest { word: self.index });
        *self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.index);
    }
}

/// A warden that this program is registered with.
#[derive(Debug)]
struct Link {
    socket: Arc<OwnedFd>,
    board: Board,
    seat: u8,
    seen_changes: u64,
    seen_mail: u64,
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
    joined: Option<(AppId, u64)>,
    monitored: BTreeMap<AppId, Monitored>,
    /// The life of each application whose end has been told.
    ended: BTreeMap<AppId, u64>,
    untold: VecDeque<Answer>,
    is_loss_told: bool,
    next_number: u32,
    polls: u32,
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
        let page = Page::create("martlet-life", LIFE_WORDS).map_err(system("cannot make the page of death words"))?;
        let words = Arc::new(Words { page, taken: Mutex::new(0), socket: Mutex::new(None) });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll descriptor"))?;
        let mut end = name.len().min(MAX_NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut warden = Warden {
            path: path.into(),
            name: name[..end].into(),
            link: None,
            next_look: Instant::now(),
            epoll,
            words,
            joined: None,
            monitored: BTreeMap::new(),
            ended: BTreeMap::new(),
            untold: VecDeque::new(),
            is_loss_told: false,
            next_number: 1,
            polls: 0,
        };
        warden.link()?;
        Ok(warden)
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

    /// Where an application that this program monitors stands on the board.
    pub fn slot(&self, app: AppId) -> Option<Slot> {
        self.monitored.get(&app).map(|monitored| monitored.slot)
    }

    /// A descriptor that is readable when [`Warden::poll`] has something to do, for a program that waits in a loop of its own. While there is no warden it is not
    /// readable when the next one comes: such a program polls every few milliseconds then.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The program is this application from now on, in a new life: who monitors it is told when it fails. Returns the life's number.
    ///
    /// # Errors
    /// When the application is alive already, when the program has joined, and when the warden is gone.
    pub fn join(&mut self, app: AppId) -> Result<u64, Error> {
        let incarnation = crate::random_number().map_err(system("cannot draw a random number"))?;
        self.ask(&Request::Join { app, incarnation }, &[])?;
        self.joined = Some((app, incarnation));
        Ok(incarnation)
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
    /// told of at once.
    ///
    /// # Errors
    /// When more is asked for than can be granted, or the warden is gone.
    pub fn monitor(&mut self, app: AppId, want: Resources) -> Result<Resources, Error> {
        if self.monitored.contains_key(&app) {
            self.unmonitor(app);
        }
        let after = self.ended.get(&app).copied().unwrap_or(0);
        let (answer, fd) = self.ask(&Request::Monitor { app, want, after, known: 0 }, &[])?;
        self.watching(app, want, answer, fd, false)
    }

    /// Asks to be told when a process ends, which need not know of wardens: it is watched unchanged, as a whole. Returns the number by which it is told of.
    ///
    /// # Errors
    /// When there is no such process, or the warden is gone.
    pub fn monitor_process(&mut self, pid: i32) -> Result<AppId, Error> {
        let pidfd = pidfd_of(pid).map_err(|error| Error::Process { pid, error })?;
        let (answer, fd) = self.ask(&Request::MonitorProcess, &[pidfd.as_fd()])?;
        let Answer::Watching { app, .. } = answer else { return Err(self.strange("it answers something else")) };
        self.watching(app, Resources::default(), answer, fd, true)?;
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
        let number = self.send(&Request::Status, &[])?;
        let (mut apps, mut hosts) = (Vec::new(), Vec::new());
        loop {
            match self.answer(number)?.0 {
                Answer::App(app) => apps.push(app),
                Answer::Host(host) => hosts.push(host),
                Answer::Done => return Ok((apps, hosts)),
                _ => return Err(self.strange("it answers something else")),
            }
        }
    }

    /// Tells the handler what has happened. Waits for something to tell, for so long at most, `None`: without end. With a wait of zero it mostly reads memory, and
    /// makes no system call. Returns how much it told. What the handler does takes time from what follows.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn poll(&mut self, at_most: Option<Duration>, handler: &mut dyn Handler) -> Result<usize, Error> {
        let until = at_most.map(|time| Instant::now() + time);
        let mut look_at_descriptors = at_most != Some(Duration::ZERO) || self.polls.is_multiple_of(DESCRIPTORS_EVERY);
        self.polls = self.polls.wrapping_add(1);
        loop {
            let told = self.tell(look_at_descriptors, handler);
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

    /// Tells what there is to tell now.
    fn tell(&mut self, look_at_descriptors: bool, handler: &mut dyn Handler) -> usize {
        let mut told = 0;
        if self.link.as_ref().is_some_and(|link| link.board.warden_died()) {
            self.unlink();
        }
        if self.link.is_none() {
            told += self.look_for_warden(handler);
        }
        // Looked at before the messages are taken and told after them: what an application sent before its end is told before it.
        let changes = self.link.as_ref().map_or(0, |link| link.board.changes());
        let has_changed = self.link.as_mut().is_some_and(|link| std::mem::replace(&mut link.seen_changes, changes) != changes);
        let over = if look_at_descriptors || has_changed { self.ends(look_at_descriptors) } else { Vec::new() };
        if let Some(link) = &mut self.link {
            let mail = link.board.mail(link.seat);
            if look_at_descriptors || mail != link.seen_mail {
                link.seen_mail = mail;
                self.take_mail();
            }
        }
        while let Some(answer) = self.untold.pop_front() {
            told += self.tell_answer(answer, handler);
        }
        if look_at_descriptors || has_changed {
            told += self.tell_ends(over, handler);
            self.fetch_pidfds();
        }
        told
    }

    fn tell_answer(&mut self, answer: Answer, handler: &mut dyn Handler) -> usize {
        match answer {
            Answer::Piggybacked { app, seq, bytes } if self.monitored.contains_key(&app) => handler.on_piggyback_rcv(app, seq, &bytes),
            Answer::TimeoutChanged { app, timeout_ns } => match self.monitored.get_mut(&app) {
                Some(monitored) => {
                    monitored.granted.timeout_ns = timeout_ns;
                    // It lives: if this is a life that was said to have quit, only its warden had.
                    self.ended.remove(&app);
                    handler.on_timeout_changed(app, timeout_ns);
                }
                None => return 0,
            },
            Answer::MonitorRequested { by, pbsize } => handler.on_monitor_req(AppId::new(i64::from(by)).ok(), pbsize),
            Answer::PbsizeChanged { pbsize } => handler.on_pbsize_changed(pbsize),
            Answer::Redundancy { host, path, is_lost: true } => handler.on_redundancy_lost(host, path),
            Answer::Redundancy { host, path, is_lost: false } => handler.on_redundancy_recovered(host, path),
            _ => return 0,
        }
        1
    }

    /// Applications that have failed, with how, or quit.
    fn ends(&mut self, look_at_descriptors: bool) -> Vec<(AppId, Option<Failure>)> {
        let mut over = Vec::new();
        for (app, monitored) in &mut self.monitored {
            // The process first: what it said to the warden before its end is on the board then.
            let has_ended = look_at_descriptors && monitored.pidfd.as_ref().is_some_and(has_ended);
            let seen = self.link.as_ref().and_then(|link| link.board.look(monitored.slot));
            if let Some(Seen { incarnation, .. }) = seen.filter(|seen| seen.incarnation != 0) {
                monitored.incarnation = incarnation;
            }
            let incarnation = monitored.incarnation;
            match seen {
                Some(Seen { state: State::Failed, evidence: Some(evidence), at_ns, .. }) => {
                    // The time is stored right after the state.
                    let at_ns = if at_ns == 0 { crate::now_ns() } else { at_ns };
                    over.push((*app, Some(Failure { evidence, at_ns, incarnation })));
                }
                Some(Seen { state: State::Left, .. }) => over.push((*app, None)),
                _ if has_ended => {
                    over.push((*app, Some(Failure { evidence: Evidence::Process, at_ns: crate::now_ns(), incarnation })));
                }
                _ => {}
            }
        }
        over
    }

    /// Tells of applications that have failed or quit.
    fn tell_ends(&mut self, over: Vec<(AppId, Option<Failure>)>, handler: &mut dyn Handler) -> usize {
        let mut told = 0;
        for (app, failure) in over {
            let monitored = self.monitored.remove(&app).expect("just seen");
            if monitored.incarnation != 0 && self.ended.get(&app) == Some(&monitored.incarnation) {
                // A warden that was restarted has heard of it anew, from another host.
                self.forget(&monitored);
                let next = Monitored { incarnation: 0, pidfd: None, ..monitored };
                if let Err(Error::Refused(why)) = self.monitor_as_before(app, next) {
                    handler.on_warden_back(Err(&Error::Refused(why)));
                    told += 1;
                }
                continue;
            }
            // A presumption may be withdrawn: then the same life is monitored again.
            if failure.is_none_or(|failure| failure.evidence.is_certain()) {
                self.ended.insert(app, monitored.incarnation);
            }
            self.forget(&monitored);
            match failure {
                Some(failure) => handler.on_failure(app, failure),
                None => handler.on_timeout_changed(app, 0),
            }
            told += 1;
        }
        told
    }

    /// Asks again for what it monitors and has no descriptor of, since the application has joined only now.
    fn fetch_pidfds(&mut self) {
        let Some(link) = &self.link else { return };
        let is_new = |monitored: &Monitored| {
            let seen = link.board.look(monitored.slot);
            monitored.pidfd.is_none() && seen.is_some_and(|seen| seen.state == State::Alive) && link.board.is_of_this_host(monitored.slot)
        };
        let new: Vec<_> = self.monitored.iter().filter(|(_, one)| is_new(one)).map(|(app, one)| (*app, one.want)).collect();
        for (app, want) in new {
            let after = self.ended.get(&app).copied().unwrap_or(0);
            if let Ok((answer, fd)) = self.ask(&Request::Monitor { app, want, after, known: 0 }, &[]) {
                let _ = self.watching(app, want, answer, fd, false);
            }
        }
    }

    fn forget(&mut self, monitored: &Monitored) {
        if let Some(pidfd) = &monitored.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        if let Some(link) = &self.link {
            let _ = socket::send(&link.socket, &Request::Unmonitor { slot: monitored.slot }.encode(0), &[]);
        }
    }

    fn watching(&mut self, app: AppId, want: Resources, answer: Answer, fd: Option<OwnedFd>, is_process: bool) -> Result<Resources, Error> {
        let Answer::Watching { slot, granted, .. } = answer else { return Err(self.strange("it answers something else")) };
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
        if seen.is_some_and(|seen| seen.state == State::Alive) {
            // As in `tell_answer`.
            self.ended.remove(&app);
        }
        self.monitored.insert(app, Monitored { slot, want, granted, incarnation, pidfd: fd, is_process });
        Ok(granted)
    }

    /// What an application that this program monitors has been granted.
    pub fn granted(&self, app: AppId) -> Option<Resources> {
        self.monitored.get(&app).map(|monitored| monitored.granted)
    }

    fn strange(&self, why: impl std::fmt::Display) -> Error {
        Error::Strange { path: self.path.clone(), why: why.to_string() }
    }

    /// Connects, and says who this is.
    fn link(&mut self) -> Result<(), Error> {
        let connected = crate::place::connect(&self.path);
        let socket = Arc::new(connected.map_err(|error| Error::Connect { path: self.path.clone(), error })?);
        let hello = Request::Hello { version: VERSION, name: self.name.clone() };
        let sent = socket::send(&socket, &hello.encode(1), &[self.words.page.as_fd()]);
        let mut early = VecDeque::new();
        let (answer, board) = receive(&socket, 1, &mut early).map_err(|lost| match (lost, sent) {
            // A warden that has no room says so before it is asked, and hangs up.
            (Lost::Gone, Err(error)) => Error::Connect { path: self.path.clone(), error },
            (lost, _) => self.lost(lost),
        })?;
        let (Answer::Welcome { life, seat }, Some(board)) = (answer, board) else {
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

    fn unlink(&mut self) {
        *self.words.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(link) = self.link.take() {
            let _ = epoll::delete(&self.epoll, &*link.socket);
        }
        self.next_look = Instant::now();
    }

    /// Looks for the next warden, and registers there.
    fn look_for_warden(&mut self, handler: &mut dyn Handler) -> usize {
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
                let registered = self.register_again();
                if let (Err(_), None) = (&registered, &self.link) {
                    // It died meanwhile: there is no news.
                    return told;
                }
                self.is_loss_told = false;
                handler.on_warden_back(registered.as_ref().copied());
                told + 1
            }
            Err(Error::Refused(why)) => {
                handler.on_warden_back(Err(&Error::Refused(why)));
                self.next_look = Instant::now() + Duration::from_secs(1);
                told + 1
            }
            Err(_) => told,
        }
    }

    /// Registers with a new warden as with the one before.
    fn register_again(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        if let Some((app, incarnation)) = self.joined
            && let Err(error) = self.ask(&Request::Join { app, incarnation }, &[])
        {
            if self.link.is_some() {
                self.joined = None;
            }
            outcome = Err(error);
        }
        for (app, monitored) in std::mem::take(&mut self.monitored) {
            outcome = outcome.and(self.monitor_as_before(app, monitored));
        }
        outcome
    }

    /// Monitors an application again as before, in the life that it was in, or in the next one if that has ended.
    fn monitor_as_before(&mut self, app: AppId, monitored: Monitored) -> Result<(), Error> {
        let Monitored { want, incarnation, pidfd, is_process, .. } = monitored;
        let after = self.ended.get(&app).copied().unwrap_or(0);
        let fds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
        let request = match is_process {
            true => Request::MonitorProcess,
            false => Request::Monitor { app, want, after, known: incarnation },
        };
        match self.ask(&request, &fds) {
            Ok((answer, fd)) => {
                if let Some(pidfd) = &pidfd {
                    let _ = epoll::delete(&self.epoll, pidfd);
                }
                self.watching(app, want, answer, fd, is_process).map(|_| ())
            }
            Err(error) => {
                // Still watched by ourselves, and to be registered with the warden after this one. No life has this slot.
                let slot = Slot { index: 0, generation: 0 };
                self.monitored.insert(app, Monitored { slot, want, granted: Resources::default(), incarnation, pidfd, is_process });
                Err(error)
            }
        }
    }

    fn ask(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Option<OwnedFd>), Error> {
        let number = self.send(request, fds)?;
        self.answer(number)
    }

    fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<u32, Error> {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1).max(1);
        let Some(link) = &self.link else { return Err(Error::Gone(self.path.clone())) };
        if socket::send(&link.socket, &request.encode(number), fds).is_err() {
            self.unlink();
            return Err(Error::Gone(self.path.clone()));
        }
        Ok(number)
    }

    fn answer(&mut self, number: u32) -> Result<(Answer, Option<OwnedFd>), Error> {
        let Some(link) = &self.link else { return Err(Error::Gone(self.path.clone())) };
        let socket = Arc::clone(&link.socket);
        receive(&socket, number, &mut self.untold).map_err(|lost| {
            if !matches!(lost, Lost::Refused(_)) {
                self.unlink();
            }
            self.lost(lost)
        })
    }

    /// Takes what the warden has told unasked.
    fn take_mail(&mut self) {
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

/// Waits for the answer of that number; what is told unasked meanwhile is put by.
fn receive(socket: &OwnedFd, number: u32, untold: &mut VecDeque<Answer>) -> Result<(Answer, Option<OwnedFd>), Lost> {
    let until = Instant::now() + ANSWERS_WITHIN;
    let mut buffer = Box::new([0; MAX_MESSAGE]);
    let mut has_broken = false;
    loop {
        match socket::receive(socket, &mut buffer) {
            // A connection that the other end has reset says so once, before what had come over it.
            Received::End if !std::mem::replace(&mut has_broken, true) => {}
            Received::Message(len, fds) => match Answer::decode(&buffer[..len]) {
                Ok((of, Answer::Refused { why })) if of == number || of == 0 => return Err(Lost::Refused(why)),
                Ok((of, answer)) if of == number => return Ok((answer, fds.into_iter().next())),
                Ok((0, answer)) => untold.push_back(answer),
                // Of a request that was given up.
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

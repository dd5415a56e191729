//! A warden in this process, and a record of what a watching program is told.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use martlet_warden::AppId;
use martlet_warden::board::State;
use martlet_warden::client::{Error, Failure, Handler, Warden};
use martlet_warden::daemon;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

pub fn app(number: i64) -> AppId {
    AppId::new(number).expect("in range")
}

/// A directory that belongs to one test.
pub fn scratch() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let dir = std::env::temp_dir().join(format!("martlet-warden-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&dir).expect("our own directory");
    dir
}

/// A warden that runs in this process until it is dropped.
pub struct World {
    pub socket: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl World {
    pub fn new() -> World {
        World::with_marks(false)
    }

    /// With marks, where the system permits them.
    pub fn with_marks(marks: bool) -> World {
        let socket = scratch().join("warden.sock");
        let warden =
            daemon::Warden::new(&daemon::Options { socket: socket.clone(), mode: 0o600, party: None, marks }).expect("the place is free");
        let (stop, stopped) = UnixStream::pair().expect("sockets");
        let thread = std::thread::spawn(move || warden.run(stopped.as_fd(), |_| ()).expect("it serves"));
        World { socket, stop: Some(stop), thread: Some(thread) }
    }

    pub fn connect(&self) -> Warden {
        Warden::connect(&self.socket, "test").expect("a warden")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().expect("once").join().expect("it ends well");
        let _ = std::fs::remove_dir_all(self.socket.parent().expect("a directory"));
    }
}

/// What a program was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Failure(AppId, Failure),
    Left(AppId),
    Message(AppId, u64, Vec<u8>),
    MonitorReq(Option<AppId>, u32),
    Pbsize(u32),
    WardenLost,
    WardenBack(Result<(), String>),
}

#[derive(Default)]
pub struct Diary(pub Vec<Told>, bool);

impl Handler for Diary {
    fn on_failure(&mut self, app: AppId, failure: Failure) {
        self.0.push(Told::Failure(app, failure));
    }
    fn on_piggyback_rcv(&mut self, app: AppId, seq: u64, message: &[u8]) {
        self.0.push(Told::Message(app, seq, message.into()));
    }
    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        assert!(timeout_ns == 0 || self.1, "on one host a timeout is none");
        if timeout_ns == 0 {
            self.0.push(Told::Left(app));
        }
    }
    fn on_monitor_req(&mut self, by: Option<AppId>, pbsize: u32) {
        self.0.push(Told::MonitorReq(by, pbsize));
    }
    fn on_pbsize_changed(&mut self, pbsize: u32) {
        self.0.push(Told::Pbsize(pbsize));
    }
    fn on_warden_lost(&mut self) {
        self.0.push(Told::WardenLost);
    }
    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        self.0.push(Told::WardenBack(registered.map_err(ToString::to_string)));
    }
}

impl Diary {
    /// For a program that hears of other hosts.
    pub fn hearing() -> Diary {
        Diary(Vec::new(), true)
    }

    /// Polls until something is told, and returns it.
    pub fn next(&mut self, warden: &mut Warden) -> Told {
        while self.0.is_empty() {
            warden.poll(Some(Duration::from_secs(1)), self).expect("it waits");
        }
        self.0.remove(0)
    }

    /// The next failure, whatever else is told before it, as long as there is a warden to tell of it.
    pub fn failure(&mut self, warden: &mut Warden) -> (AppId, Failure) {
        loop {
            match self.next(warden) {
                Told::Failure(app, failure) => return (app, failure),
                Told::WardenLost => panic!("the warden is gone"),
                _ => {}
            }
        }
    }
}

/// What the warden says of an application's state.
pub fn state(warden: &mut Warden, of: AppId) -> State {
    let (apps, _) = warden.status().expect("it answers");
    apps.iter().find(|one| one.app == of).map_or(State::Free, |one| one.state)
}

/// Whether a program that waits for the descriptor would wake up.
pub fn is_readable(warden: &Warden) -> bool {
    let fd = warden.fd();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it looks") > 0
}

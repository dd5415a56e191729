//! How a server becomes three replicas, and how a replica makes one more: by `fork`, while the server waits.
//!
//! So replicas are born with the same memory: the same hash seeds and random state and the same addresses, and no start has to be repeated. Pages are shared
//! until they are written.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use martlet_fabric::host::descriptors;
use martlet_node::config::{Cluster, ClusterConfig, Idle, Pin, Priority, ThreadsConfig};
use martlet_node::connections::keeper::{self, Keeps};
use martlet_node::{embed, warm};

use crate::board::{Board, Holder, NODES};
use crate::control::Control;
use crate::machine::{self, Machine, with_replay};
use crate::main_thread::Confined;
use crate::own::{self, Pairs};
use crate::replica::{KEEPER, REPLICAS, Replica, install, turn, uninstall, with};
use crate::socket::Poller;
use crate::sys::{complain, die};
use crate::table::{OF_CONNECTIONS, OF_LIBRARY, Table};
use crate::{clock, fault, fiber, files, heart, outside, process, sys, threads};

/// What a captured process knows from its start.
#[derive(Debug, Default)]
pub struct Run {
    /// Its name, which `martlet run` has given it.
    pub name: String,
    /// The cluster that its replicas form.
    cluster: Option<Cluster>,
    /// The server's epoll instances with captured descriptors: one, unless its threads take turns.
    pub epolls: BTreeSet<RawFd>,
    /// What else it waits for, by instance and descriptor.
    pub internal: BTreeMap<(RawFd, RawFd), libc::epoll_event>,
    /// The counters by which its threads wake each other, and their flags.
    pub counters: BTreeMap<RawFd, i32>,
    /// The descriptors that it had open, before there were replicas, under numbers that are the library's since then.
    pub inherited: BTreeSet<RawFd>,
    /// Its pairs of sockets.
    pub pairs: Pairs,
    /// The captured descriptors before the birth.
    pub early: Table,
    /// Where the server's standard output goes, and its standard error.
    output: Option<[RawFd; 2]>,
}

static RUN: Confined<RefCell<Option<Run>>> = Confined::new(RefCell::new(None));
static BORN: Confined<Cell<bool>> = Confined::new(Cell::new(false));

/// The process number that the server believes to be its own: that of the first replica.
static SHOWN_PID: AtomicI32 = AtomicI32::new(0);

/// The process number that the server believes to be its own; 0: it is not captured.
pub fn shown_pid() -> i32 {
    SHOWN_PID.load(Ordering::Relaxed)
}

/// Uses what this process knows from its start, if it is captured.
pub fn with_run<R>(use_it: impl FnOnce(&mut Run) -> R) -> Option<R> {
    RUN.get().borrow_mut().as_mut().map(use_it)
}

/// Captures this process under this name. Its replicas will form this cluster.
pub fn capture(name: String, cluster: &str) {
    let cluster = ClusterConfig::from_toml(cluster).and_then(|config| Cluster::new(config).map_err(|error| error.to_string()));
    match cluster {
        Ok(cluster) if cluster.config().nodes.len() <= NODES => {
            SHOWN_PID.store(std::process::id() as i32, Ordering::Relaxed);
            *RUN.get().borrow_mut() = Some(Run { name, cluster: Some(cluster), ..Run::default() });
        }
        Ok(_) => die(&format!("its cluster has more than {NODES} nodes")),
        Err(error) => die(&format!("its cluster's configuration is not understood: {error}")),
    }
}

/// Whether there are replicas.
pub fn is_born() -> bool {
    BORN.get().get()
}

/// Makes replicas of the server, which waits for the first time.
pub fn bear() {
    own::prepare();
    descriptors::keep_within(OF_LIBRARY);
    let board = Board::create().unwrap_or_else(|error| die(&format!("cannot make replicas: {error}")));
    let table = with_run(|run| {
        run.output = saved_output().ok();
        std::mem::take(&mut run.early)
    });
    clock::set(clock::real());
    BORN.get().set(true);
    outside::note_birth();
    files::follow();
    // The first replica starts without a node, which a fork would not inherit anyhow.
    start(0, board, table.unwrap_or_default());
    for node in 1..REPLICAS as u16 {
        if fork(node) {
            return;
        }
    }
    // Output is hidden until this replica leads, as at the others.
    show_output(false);
}

/// Forks a replica that is this node. Returns whether this process is the new one.
pub fn fork(node: u16) -> bool {
    let last = with_replay(|replay| replay.last());
    with(|replica| {
        replica.board.before_fork(node, replica.heard);
        replica.board.expect(node, last + 1, clock::monotonic_ns());
    });
    // A process that waits for the server's children must not hear of this one: so the new replica's parent is a process that ends at once.
    // SAFETY: the server waits, and all of its helpers rest; the library's own threads hold no lock that the fork takes, since it uses nothing of theirs.
    let pid = unsafe { sys::fork() };
    if pid < 0 {
        complain(&format!("a replica cannot be forked: {}", io::Error::last_os_error()));
        with(|replica| replica.board.arrived(node));
        return false;
    }
    if pid > 0 {
        let mut status = 0;
        let waited = loop {
            // SAFETY: it waits for its own child; the pointer is to a place for its status.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            // A signal for the server must not end this wait: what parent and child share has to be left alone until the child is done.
            if waited >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break waited;
            }
        };
        if waited == pid && status != 0 {
            // The child has said why it has forked nothing.
            with(|replica| replica.board.arrived(node));
        }
        return false;
    }
    // As long as the parent waits, nothing changes in what the two share.
    let listeners = |replica: &mut Replica| replica.table.listeners.keys().chain(replica.table.withdrawn.keys()).copied().collect();
    if let Err(error) = own::renew(&with(listeners).unwrap_or_default()) {
        die(&format!("a fork cannot have descriptors of its own: {error}"));
    }
    // SAFETY: as above, in a process with one thread.
    match unsafe { sys::fork() } {
        0 => {}
        // SAFETY: it ends this process, which has nothing of its own.
        _ => unsafe { libc::_exit(0) },
    }
    become_replica(node);
    true
}

/// In a fork: makes everything anew that was its parent's own.
fn become_replica(node: u16) {
    // The parent's descriptors are closed before their numbers are used again.
    let Some(Replica { board, mut table, round, wait, heard, known, children, .. }) = uninstall() else {
        die("a process was forked that belongs to no replica")
    };
    machine::OWN.get().set(0);
    with_replay(|replay| replay.fork());
    files::follow();
    keeper::HOLDS.store(false, Ordering::Relaxed);
    keeper::PIPE.store(-1, Ordering::Relaxed);
    fault::note_at(None);
    close_parents_own();
    // Otherwise clients would wait, in a takeover, for its code to be loaded on first use.
    let _ = warm::populate_code();
    table.lingering.clear();
    let slots: Vec<u32> = table.iter().map(|(slot, _)| slot).collect();
    start(node, board, table);
    with(|replica| {
        (replica.round, replica.wait, replica.is_newborn) = (round, wait, true);
        (replica.heard, replica.known, replica.children) = (heard, known, children);
        for slot in slots {
            if let Some(connection) = replica.table.get_mut(slot) {
                (connection.watched, connection.noted, connection.broken) = (0, false, false);
            }
            replica.place_placeholder(slot);
        }
    });
    show_output(false);
    // SAFETY: this process has one thread, apart from its heart, which touches nothing of the server's threads.
    unsafe { threads::start_again() };
}

/// Starts a replica in this process. Its node has its first turn when the server next gives way.
fn start(node: u16, board: Board, table: Table) {
    let pid = std::process::id() as i32;
    let started = || -> io::Result<()> {
        let own = Holder { node, pid, started: process::started(pid)? };
        let poller = Poller(descriptors::open(|| Poller::new().map(|poller| poller.0))?);
        let control = with_run(|run| Control::connect(&run.name).ok()).flatten();
        if let Some(control) = &control {
            poller.watch(control.fd(), 0, libc::EPOLLIN as u32)?;
            control.tell(&format!("hello {node} {pid}"));
        }
        keeper::HIGHEST.fetch_max(crate::table::FIRST_FD, Ordering::Relaxed);
        keeper::start(&keeper::name_of(KEEPER, own), Keeps::All)?;
        heart::start()?;
        board.begin(own);
        board.service().begin_replica();
        machine::teach_by(board, node);
        install(Replica::new(own, board, control, poller, table));
        fiber::prepare(run_node)
    };
    if let Err(error) = started() {
        die(&format!("a replica cannot be started: {error}"));
    }
}

/// The node's whole life, which it spends on its own stack.
fn run_node() {
    let ended = with(|replica| (replica.node, replica.poller.0.as_raw_fd())).ok_or_else(|| "it is no replica".to_owned()).and_then(
        |(node, poller)| {
            let cluster = with_run(|run| run.cluster.clone()).flatten().ok_or("it is not captured")?;
            let builder = embed::Replica::builder().cluster(cluster).node(node).threads(threads_config()).all_here();
            let direct = builder.direct(Machine).map_err(|error| error.to_string())?;
            // SAFETY: the replica keeps it open for as long as this process lives.
            direct.watch(unsafe { BorrowedFd::borrow_raw(poller) }).map_err(|error| error.to_string())?;
            direct.run(turn).map_err(|error| error.to_string())
        },
    );
    match ended {
        Ok(_) => die("its node has been asked to end"),
        Err(why) => die(&why),
    }
}

fn threads_config() -> ThreadsConfig {
    ThreadsConfig { pin: Pin::None, priority: Priority::Normal, idle: Idle::Park, rehearse_every_us: 0, ..ThreadsConfig::default() }
}

/// Copies of standard output and standard error, under high numbers that do not change their meaning.
fn saved_output() -> io::Result<[RawFd; 2]> {
    let copy = |fd: RawFd| {
        // SAFETY: a plain system call.
        let copied = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, OF_LIBRARY.start) };
        sys::checked(copied).map(|fd| fd as RawFd)
    };
    let [output, errors] = [copy(1)?, copy(2)?];
    sys::MESSAGES.store(errors, Ordering::Relaxed);
    Ok([output, errors])
}

/// A leader's server writes where the first server did. A follower's server writes the same, which goes nowhere.
pub fn show_output(shown: bool) {
    let Some(saved) = with_run(|run| run.output).flatten() else { return };
    for (fd, saved) in [1, 2].into_iter().zip(saved) {
        // SAFETY: plain system calls; the path ends with a zero byte.
        unsafe {
            if shown {
                libc::syscall(libc::SYS_dup3, saved, fd, 0);
            } else {
                let nowhere = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_WRONLY, 0);
                libc::syscall(libc::SYS_dup3, nowhere, fd, 0);
                libc::syscall(libc::SYS_close, nowhere);
            }
        }
    }
}

/// Closes what was the parent's own: its connections, which this process only knows of, and what the parent's library has opened. The node's fabric has taken
/// care of the parent's shared memory.
fn close_parents_own() {
    let is_servers =
        |fd: &RawFd| with_run(|run| run.inherited.contains(fd) || run.output.is_some_and(|saved| saved.contains(fd))) == Some(true);
    for fd in OF_LIBRARY.filter(|fd| !is_servers(fd)) {
        sys::close(fd);
    }
    // SAFETY: a plain system call. The server has nothing but connections under these numbers.
    unsafe { libc::syscall(libc::SYS_close_range, OF_CONNECTIONS.start, OF_CONNECTIONS.end - 1, 0) };
}

//! Keeps a process's sockets for its successor.
//!
//! The kernel closes a process's descriptors when the process dies, and so ends its connections. So a process has a second one, its *keeper*, which shares its
//! memory and its table of descriptors and does nothing else: it outlives a `kill -9` of the process, and with it both are kept. The successor asks the keeper
//! for the sockets, and dismisses it when it has no more use for it. Even a socket that was accepted just before the death is there, since nothing is copied
//! that could have been copied too early.
//!
//! The state that represents a keeper in its process is static: a process has one keeper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::time::Duration;

use martlet_fabric::host::descriptors::{duplicate, open, open_beside};
use martlet_fabric::host::process::stand_aside;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{Pid, gettid};

use super::handover::{AGAIN_MS, Came, Handover, NEWEST, SOCKETS_A_MESSAGE, is_of_service, local_port, say};
use super::{Holder, sys};

const NAME: &std::ffi::CStr = c"martlet-keeper";
const STACK_BYTES: usize = 64 << 10;
/// How often a keeper looks whether its process is still there, in milliseconds.
pub(super) const LOOK_MS: i32 = 1_000;
/// The keeper of a replica ends after so many looks without a successor: there is none.
pub const PATIENCE: u32 = 30;
/// The same for the keeper of a service's process: the store's failovers are quicker than births of replicas.
pub(super) const PATIENCE_OF_SERVICE: u32 = 5;
/// How many connections that have asked for nothing yet are kept. Each of a cluster's nodes may have one. One more replaces the oldest, whose process has died
/// or is not a node.
const MOST_SILENT: usize = 16;
/// How many spare descriptors a keeper holds, to give up for new connections when its process has no more descriptors: as many as connections may wait to be
/// accepted.
const SPARES: usize = 5;
/// How long a keeper accepts nothing when its process lives and has no more descriptors, in milliseconds. Processes that connect then need not be heard at
/// once.
const REST_MS: i32 = 50;
/// A successor's request: connections, and the memory that belongs to them.
const CONNECTIONS: u8 = b'c';
/// A newcomer's request: the listener of the service.
const LISTENER: u8 = b'l';
/// What a successor says when it has no more use for the keeper.
const DISMISSED: u8 = b'd';
/// The question of a process that ends in order: whether the keeper's process ends too, or is dead.
const ENDS: u8 = b'e';
/// What the last of a service's processes says when it ends in order: no process will ask for the connections.
const OVER: u8 = b'o';
/// The first byte of an answer that holds what was asked for.
pub(super) const GIVEN: u8 = b'+';
/// The answer when that is not given: the process lives and has not let go, or there is nothing of the kind.
const NOT_NOW: u8 = b'-';
/// How long a service's keeper waits, when it ends, before its memory is torn down, in milliseconds: the tear-down occupies a core that the successor may need.
const MOURNING_MS: i64 = 10;
/// The signal that a service's keeper is sent when its process dies. The keeper has a handler of its own for it, and blocks it except while it sleeps.
const DEATH_SIGNAL: i32 = libc::SIGUSR2;

/// The highest descriptor of a connection so far, in this process.
pub static HIGHEST: AtomicI32 = AtomicI32::new(0);

/// The read end of the pipe through which this process's output goes into Unix sockets; -1: it has none.
pub static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The memory that belongs to the connections; -1: there is none.
pub static LEDGER: AtomicI32 = AtomicI32::new(-1);

/// The listener of the service; -1: there is none.
pub static SERVICE: AtomicI32 = AtomicI32::new(-1);

/// Whether this process may hold connections.
pub static HOLDS: AtomicBool = AtomicBool::new(false);

/// Whether this process, which lives, leaves its connections alone until it has taken this back.
pub static LET_GO: AtomicBool = AtomicBool::new(false);

/// Whether a successor has all of them, since this process has let go.
pub static SUCCEEDED: AtomicBool = AtomicBool::new(false);

/// Whether this process is ending in order, and no longer takes part in the service.
pub static LEAVES: AtomicBool = AtomicBool::new(false);

/// Which descriptors a keeper keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All, and hands out those that are connections: no process waits for the end of any other descriptor of its process.
    All,
    /// Connections to the port of the [service](SERVICE). The keeper closes all other descriptors as soon as its process is dead.
    Service,
}

/// The keeper of this process; 0: there is none, or it is dead and that has been noted.
static OWN: AtomicI32 = AtomicI32::new(0);

/// What that keeper was started with; null: there has been none.
static CHARGE: AtomicPtr<Charge> = AtomicPtr::new(std::ptr::null_mut());

/// What the keeper's process is started with.
#[derive(Clone, Copy)]
struct Charge {
    /// The upper end of its stack.
    stack: *mut libc::c_void,
    listener: RawFd,
    /// More descriptors of the listener, to be given up.
    spares: [RawFd; SPARES],
    replica: libc::pid_t,
    /// The thread that has started it.
    thread: Pid,
    keeps: Keeps,
}

/// What has become of a keeper that has died while its process lives.
#[derive(Debug)]
pub enum Mended {
    /// Another keeper has taken its place.
    Replaced,
    /// No other could take its place: the connections end with the process.
    Lost(io::Error),
}

/// An abstract address. Returns its length, too.
pub fn abstract_address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros are a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays 0.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, len as libc::socklen_t)
}

/// A socket for messages, in blocking mode.
///
/// # Errors
/// As `socket`.
pub fn message_socket() -> io::Result<OwnedFd> {
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    open(|| unsafe { sys::owned(libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)) })
}

/// The name under which the keeper of a process is found; `kind` says what it keeps the sockets of.
pub fn name_of(kind: &str, holder: Holder) -> String {
    format!("martlet-{kind}-{}-{}", holder.pid, holder.started)
}

/// Gives this process a keeper, which ends with the process or, if the process leaves connections behind, when a successor has them. To be called by the thread
/// that lives longest.
///
/// # Errors
/// When the kernel refuses.
pub fn start(name: &str, keeps: Keeps) -> io::Result<()> {
    let listener = message_socket()?;
    let (address, len) = abstract_address(name);
    // SAFETY: the pointers are to an address of that length, and to memory of the size asked for; the rest are plain system calls.
    let stack = unsafe {
        sys::checked(libc::syscall(libc::SYS_bind, listener.as_raw_fd(), &address, len))?;
        sys::checked(libc::syscall(libc::SYS_listen, listener.as_raw_fd(), SPARES - 1))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        libc::mmap(std::ptr::null_mut(), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if stack == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A service's keeper has free descriptors as soon as its process is dead, because it closes all others then.
    let spare = || if keeps == Keeps::All { duplicate(&listener).map_or(-1, IntoRawFd::into_raw_fd) } else { -1 };
    let spares = [(); SPARES].map(|()| spare());
    // SAFETY: it is the end of what has just been mapped.
    let stack = unsafe { stack.byte_add(STACK_BYTES) };
    let charge =
        Charge { stack, listener: listener.as_raw_fd(), spares, replica: std::process::id() as libc::pid_t, thread: gettid(), keeps };
    let charge = Box::into_raw(Box::new(charge));
    begin(charge)?;
    CHARGE.store(charge, Ordering::Release);
    // It belongs to the keeper, and is never closed.
    std::mem::forget(listener);
    Ok(())
}

/// Starts the process of a keeper that is not running. To be called by the thread that lives longest.
fn begin(charge: *mut Charge) -> io::Result<()> {
    // SAFETY: the sets are initialised by the calls that take them; the stack is large enough for what `keep` calls and is never unmapped, nor is the charge
    // freed. `keep` argues for everything else that is shared. All signals are blocked in the keeper: a handler would run on memory that the process believes
    // to be its own.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let pid = libc::clone(keep, (*charge).stack, libc::CLONE_VM | libc::CLONE_FILES, charge.cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid < 0 {
            return Err(error);
        }
        OWN.store(pid, Ordering::Release);
    }
    Ok(())
}

/// Whether this process's keeper is dead. A keeper never ends by itself while its process lives.
fn is_dead() -> bool {
    let own = OWN.load(Ordering::Acquire);
    if own == 0 {
        return !CHARGE.load(Ordering::Acquire).is_null();
    }
    let flags = libc::WNOHANG | libc::__WALL;
    // SAFETY: a plain system call; null is allowed. It waits for a child that nothing else waits for, since that sends no signal at its end.
    let waited = unsafe { libc::syscall(libc::SYS_wait4, own, 0usize, flags, 0usize) };
    if waited == 0 || waited < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD) {
        return false;
    }
    OWN.store(0, Ordering::Release);
    true
}

/// Replaces this process's keeper, if it is dead, by another under the same name. `None`: it lives, or there has been none. To be called every now and then, by
/// the thread that [started](start) it: a keeper uses the thread-local storage of its thread, which another thread might not leave there for as long.
///
/// # Panics
/// In another thread.
pub fn mend() -> Option<Mended> {
    let charge = CHARGE.load(Ordering::Acquire);
    if charge.is_null() {
        return None;
    }
    // SAFETY: it was leaked, and has only been read since it was stored there.
    let (listener, thread) = unsafe { ((*charge).listener, (*charge).thread) };
    assert_eq!(thread, gettid(), "a keeper is replaced by the thread that started it");
    if !is_dead() {
        return None;
    }
    close_accepted(listener);
    // The spare descriptors are all still there, since a keeper gives none up while its process lives; and so is the stack.
    Some(begin(charge).map_or_else(Mended::Lost, |()| Mended::Replaced))
}

/// Closes the connections that a dead keeper has accepted: a process that asks over one of them would wait for as long as this table of descriptors exists.
/// Such processes connect again.
fn close_accepted(listener: RawFd) {
    let name = |fd: RawFd| {
        // SAFETY: all zeros are a valid value; the pointers are to a place for an address and to its length.
        unsafe {
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            let found = libc::syscall(libc::SYS_getsockname, fd, &mut address, &mut len);
            (found == 0 && i32::from(address.sun_family) == libc::AF_UNIX).then_some((address.sun_path, len))
        }
    };
    let listens = |fd: RawFd| {
        let mut listens: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the pointers are to a place for the value and to its length.
        let asked = unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, &mut listens, &mut len) };
        asked != 0 || listens != 0
    };
    let Some(own) = name(listener) else { return };
    for fd in 0..=HIGHEST.load(Ordering::Relaxed).max(listener) + NEWEST {
        if name(fd) == Some(own) && !listens(fd) {
            // SAFETY: the dead keeper has accepted it, and nothing else in this process knows of it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

/// Makes the kernel end this process's sleep when the process that started it dies.
///
/// # Safety
/// Only for a process that has signal handlers of its own, and shares no other's.
unsafe fn wake_at_death() {
    extern "C" fn woken(_: libc::c_int) {}
    // SAFETY: all zeros are a valid action. The handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = woken as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(DEATH_SIGNAL, &action, std::ptr::null_mut());
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, DEATH_SIGNAL, 0, 0, 0);
    }
}

/// The keeper's whole life.
///
/// The keeper shares its process's memory, including the thread-local storage of the thread that started it. So it calls nothing that allocates or panics; and
/// while the process lives it makes only calls that do not fail, so that it leaves no mark in that thread's errno.
extern "C" fn keep(charge: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it was leaked for this process.
    let Charge { listener, mut spares, replica, keeps, .. } = unsafe { *charge.cast::<Charge>() };
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, NAME.as_ptr(), 0, 0, 0) };
    if keeps == Keeps::Service {
        // SAFETY: it was started without CLONE_SIGHAND.
        unsafe { wake_at_death() };
    }
    // In the kernel's form: each signal is a bit.
    let asleep: u64 = match keeps {
        Keeps::All => u64::MAX,
        Keeps::Service => !(1 << (DEATH_SIGNAL - 1)),
    };
    let patience = if keeps == Keeps::Service { PATIENCE_OF_SERVICE } else { PATIENCE };
    let (mut looks, mut is_alone) = (0, false);
    // Silent connections, in the order in which they came. The keeper does not wait for any one of them alone: should that connection's process die before it
    // asks, its own keeper holds its end open until the next successor dismisses it, and that successor is waiting for an answer from this keeper.
    let mut silent = [-1; MOST_SILENT];
    // The successor that has been given the connections and has yet to say that it has them. Should it die before, its own keeper holds its end of this
    // connection open, so this keeper learns of the death only when the next successor asks.
    let mut given: RawFd = -1;
    // What that successor still lacks, and the outcome of the last attempt to send it.
    let mut handover: Option<(Handover, Came)> = None;
    // The last connection that was to be accepted found no free descriptor, and waits.
    let mut is_full = false;
    loop {
        let mut waits = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2 + MOST_SILENT];
        // A number below 0 is ignored by the call.
        waits.iter_mut().zip([listener, given].into_iter().chain(silent)).for_each(|(wait, fd)| wait.fd = fd);
        if matches!(handover, Some((_, Came::Full))) {
            waits[1].events |= libc::POLLOUT;
        }
        let rests = std::mem::take(&mut is_full);
        if rests {
            waits[0].fd = -1;
        }
        let tries_again = matches!(handover, Some((_, Came::Refused)));
        let ms = i64::from(match (tries_again, rests) {
            (true, _) => AGAIN_MS,
            (false, true) => REST_MS,
            (false, false) => LOOK_MS,
        });
        let mut time = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        // SAFETY: plain system calls on this process's own table, with pointers to live values.
        unsafe {
            // A death after this look ends the sleep.
            let came = if lives(replica) || is_alone || keeps == Keeps::All {
                libc::syscall(libc::SYS_ppoll, waits.as_mut_ptr(), waits.len(), &mut time, &asleep, size_of::<u64>())
            } else {
                -1
            };
            let lives = lives(replica);
            if !lives && keeps == Keeps::Service && !is_alone {
                is_alone = true;
                if !HOLDS.load(Ordering::SeqCst) {
                    end(keeps);
                }
                close_others(listener, &waits);
            }
            if came <= 0 {
                looks = if lives || given >= 0 { 0 } else { looks + u32::from(came == 0) };
                if looks > patience || (looks > 0 && !HOLDS.load(Ordering::Relaxed)) {
                    libc::syscall(libc::SYS_exit_group, 0);
                }
                if !tries_again {
                    continue;
                }
            }
            if waits[1].revents & !libc::POLLOUT != 0 {
                let is_dismissed = hear(given) == Some(DISMISSED);
                libc::syscall(libc::SYS_close, given);
                (given, handover) = (-1, None);
                if is_dismissed && lives {
                    SUCCEEDED.store(true, Ordering::SeqCst);
                } else if is_dismissed {
                    end(keeps);
                }
            }
            for wait in waits[2..].iter().filter(|wait| wait.revents != 0) {
                let client = wait.fd;
                silent.iter_mut().filter(|fd| **fd == client).for_each(|fd| *fd = -1);
                let said = hear(client);
                let service = SERVICE.load(Ordering::Acquire);
                let is_over = keeps == Keeps::Service && (!lives || LEAVES.load(Ordering::SeqCst));
                if said == Some(CONNECTIONS) && (!lives || LET_GO.load(Ordering::SeqCst)) {
                    // It asks because the successor before it is dead.
                    let before = std::mem::replace(&mut given, client);
                    if before >= 0 {
                        libc::syscall(libc::SYS_close, before);
                    }
                    handover = Some((Handover::new(keeps), Came::Full));
                    continue;
                } else if said == Some(LISTENER) && service >= 0 {
                    // If the kernel does not take it, the end of the connection says so, and the newcomer asks again.
                    say(client, GIVEN, &[service]);
                } else if said == Some(OVER) && is_over {
                    HOLDS.store(false, Ordering::SeqCst);
                    if !lives {
                        end(keeps);
                    }
                    say(client, GIVEN, &[]);
                } else if said == Some(ENDS) && is_over {
                    say(client, GIVEN, &[]);
                } else if said.is_some() {
                    say(client, NOT_NOW, &[]);
                }
                libc::syscall(libc::SYS_close, client);
            }
            if waits[0].revents != 0 {
                match accept(listener, replica) {
                    Ok(client) if is_ours(client) => {
                        // Should this keeper die, the process closes what it has accepted.
                        HIGHEST.fetch_max(client, Ordering::SeqCst);
                        let first = queue(&mut silent, client);
                        if first >= 0 {
                            libc::syscall(libc::SYS_close, first);
                        }
                    }
                    Ok(client) => {
                        libc::syscall(libc::SYS_close, client);
                    }
                    // It is accepted at the next attempt. Nothing is given up while the process lives: the process could take the number that is given up.
                    Err(Errno::MFILE | Errno::NFILE) => is_full = lives || !give_up_one(&mut spares, &mut silent),
                    Err(_) => {}
                }
            }
            if let Some((lacks, came)) = &mut handover {
                // The process may have taken its connections back meanwhile.
                *came = if lives && !LET_GO.load(Ordering::SeqCst) { Came::Ended } else { lacks.go_on(given) };
                if *came == Came::Ended {
                    libc::syscall(libc::SYS_close, given);
                    given = -1;
                }
                if matches!(came, Came::All | Came::Ended) {
                    handover = None;
                }
            }
        }
    }
}

/// Whether a keeper's process lives.
fn lives(replica: libc::pid_t) -> bool {
    // SAFETY: a plain system call.
    unsafe { libc::syscall(libc::SYS_getppid) == libc::c_long::from(replica) }
}

/// Accepts a connection that is waiting.
fn accept(listener: RawFd, replica: libc::pid_t) -> Result<RawFd, Errno> {
    // SAFETY: it is open for as long as its keeper lives.
    let listener = unsafe { BorrowedFd::borrow_raw(listener) };
    open_beside(|| lives(replica), || rustix::net::accept_with(listener, SocketFlags::CLOEXEC))
}

/// Closes a descriptor that is needed less than a new connection: a spare one, or else the connection that has been silent for the longest. Returns whether
/// there was one.
fn give_up_one(spares: &mut [RawFd], silent: &mut [RawFd]) -> bool {
    let Some(least) = spares.iter_mut().chain(silent).find(|fd| **fd >= 0) else { return false };
    // SAFETY: nothing else of the keeper's uses it.
    unsafe { libc::syscall(libc::SYS_close, std::mem::replace(least, -1)) };
    true
}

/// The byte that was said on a connection that has something to read; `None`: its other end is closed.
fn hear(client: RawFd) -> Option<u8> {
    let mut said = 0u8;
    // SAFETY: the pointer is to one byte.
    (unsafe { libc::syscall(libc::SYS_read, client, &mut said, 1) } == 1).then_some(said)
}

/// Puts a connection after all others. Returns the first of them if there was no room; else -1, as in each free place.
fn queue(silent: &mut [RawFd; MOST_SILENT], client: RawFd) -> RawFd {
    let mut dropped = client;
    // From the end on, each moves up one place, until one finds a free place.
    for place in silent.iter_mut().rev() {
        dropped = std::mem::replace(place, dropped);
        if dropped < 0 {
            break;
        }
    }
    dropped
}

/// Ends the keeper's process; its share of the memory goes with it.
fn end(keeps: Keeps) -> ! {
    // SAFETY: plain system calls, with pointers to live values.
    unsafe {
        if keeps == Keeps::Service {
            // No process waits for the sockets of this table any more: the successor has them.
            libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
            stand_aside();
            let time = libc::timespec { tv_sec: 0, tv_nsec: MOURNING_MS * 1_000_000 };
            libc::syscall(libc::SYS_nanosleep, &time, 0);
        }
        libc::_exit(0)
    }
}

/// The process at the other end, or, of a connection that was made to a listener, the process that listens.
fn peer(client: RawFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a place for the value and to its length.
    let asked = unsafe { libc::syscall(libc::SYS_getsockopt, client, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut peer, &mut len) };
    (asked == 0).then_some(peer)
}

/// Whether the process at the other end runs as the same user.
pub fn is_ours(client: RawFd) -> bool {
    // SAFETY: a plain system call.
    peer(client).is_some_and(|peer| libc::c_long::from(peer.uid) == unsafe { libc::syscall(libc::SYS_geteuid) })
}

/// Closes everything that is neither the service's nor the keeper's own, once the process is dead: another process may be waiting for one of these to end. The
/// listener is named, since a keeper that rests does not wait for it.
fn close_others(listener: RawFd, waits: &[libc::pollfd]) {
    let service = SERVICE.load(Ordering::Acquire);
    let port = if service >= 0 { local_port(service) } else { 0 };
    let own = [listener, service, LEDGER.load(Ordering::Acquire)];
    let is_own = |fd: RawFd| own.contains(&fd) || waits.iter().any(|wait| wait.fd == fd);
    let highest = waits.iter().map(|wait| wait.fd).chain(own).fold(HIGHEST.load(Ordering::Relaxed), RawFd::max);
    let last = highest + NEWEST;
    for fd in 0..=last {
        if !is_own(fd) && !is_of_service(fd, port) {
            // SAFETY: only this process uses the table any more.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, last + 1, u32::MAX, 0) };
}

#[repr(C, align(16))]
struct Control([u8; Control::BYTES]);

impl Control {
    const BYTES: usize = 64 + 4 * SOCKETS_A_MESSAGE;
}

/// The sockets that another process left, and its keeper, which keeps them until it is [dismissed](Left::dismiss), or until the process that holds this value
/// dies.
#[derive(Debug)]
pub struct Left {
    keeper: OwnedFd,
    /// The sockets, some of them perhaps twice; and a pipe, or the memory that belongs to them.
    pub sockets: Vec<OwnedFd>,
}

fn ask_for(name: &str, what: u8) -> io::Result<Left> {
    ask_by(connect(name)?, what)
}

fn ask_by(keeper: OwnedFd, what: u8) -> io::Result<Left> {
    // SAFETY: the pointer is to one byte.
    sys::checked(unsafe { libc::syscall(libc::SYS_sendto, keeper.as_raw_fd(), &what, 1, libc::MSG_NOSIGNAL, 0usize, 0usize) })?;
    Ok(Left { keeper, sockets: Vec::new() })
}

/// A connection to a keeper that has not been asked for anything yet. A process that may become the successor opens it in advance, and then asks with one call.
/// The keeper may have closed it, to make room for others.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects, without waiting.
    ///
    /// # Errors
    /// When the keeper has no room at the moment, and as [`ask`].
    pub fn new(name: &str) -> io::Result<Connection> {
        let socket = message_socket()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let keeper = connect_by(socket, name)?;
        rustix::io::ioctl_fionbio(&keeper, false)?;
        Ok(Connection(keeper))
    }

    /// As [`begin_to_ask`].
    ///
    /// # Errors
    /// When the keeper has closed it, or has itself ended.
    pub fn begin_to_ask(self) -> io::Result<Left> {
        ask_by(self.0, CONNECTIONS)
    }
}

/// Connects to a keeper, which must run as the same user. A keeper that is stopped keeps this process for as long as [`ANSWER`].
fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = message_socket()?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, timeout, Some(ANSWER))?;
    }
    connect_by(socket, name)
}

fn connect_by(keeper: OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let (address, len) = abstract_address(name);
    // SAFETY: the pointer is to an address of that length.
    sys::checked(unsafe { libc::syscall(libc::SYS_connect, keeper.as_raw_fd(), &address, len) })?;
    if is_ours(keeper.as_raw_fd()) { Ok(keeper) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Asks the keeper of a process that is dead, or may have let go, for its connections. `None`: the process lives, and has not let go.
///
/// # Errors
/// When there is no keeper any more: then the connections are lost. They are also lost if a process of another user has taken the keeper's name since. When the
/// keeper is stopped, so that it does not answer for [`SILENCE`].
pub fn ask(name: &str) -> io::Result<Option<Left>> {
    begin_to_ask(name)?.receive()
}

/// The first half of [`ask`]: no descriptor of the other process has arrived yet, and this process opens none of its own after it.
///
/// # Errors
/// When the process has no keeper any more, or its keeper is stopped and has no room for a connection.
pub fn begin_to_ask(name: &str) -> io::Result<Left> {
    ask_for(name, CONNECTIONS)
}

/// Asks the keeper of a process for the listener of the service. `None`: the process has none yet.
///
/// # Errors
/// When there is no such keeper any more, or it is stopped. [`io::ErrorKind::Unsupported`]: the process is in another PID namespace, so that no process here
/// could make sure of its death.
pub fn ask_for_listener(name: &str) -> io::Result<Option<OwnedFd>> {
    let keeper = connect(name)?;
    let owner = owner(name);
    if owner.is_none() || owner != peer(keeper.as_raw_fd()).map(|peer| peer.pid) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut left = ask_by(keeper, LISTENER)?;
    left.take()?;
    Ok(left.sockets.pop())
}

/// The process that a keeper's name tells of, by its number in its own PID namespace.
pub(super) fn owner(name: &str) -> Option<libc::pid_t> {
    name.rsplit('-').nth(1)?.parse().ok()
}

/// How long the keeper of a process that is dead may say nothing before it counts as one that is stopped, and the connections as lost. A keeper that waits until
/// the kernel takes its next message is silent, too.
pub const SILENCE: Duration = Duration::from_secs(5);

/// How long a keeper may leave a process that asks for something small without an answer, or its connection waiting.
const ANSWER: Duration = Duration::from_millis(200);

/// Says something to a keeper. Returns whether the keeper agrees, or has ended.
fn tell(name: &str, what: u8) -> io::Result<bool> {
    let mut left = match connect(name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(true),
        keeper => ask_by(keeper?, what)?,
    };
    match left.take() {
        Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => Ok(true),
        answer => answer.map(|(answer, _)| answer == GIVEN),
    }
}

/// Whether the keeper's process is ending in order too, or is dead. If the keeper does not answer, its process counts as one that goes on.
pub(super) fn ends(name: &str) -> bool {
    tell(name, ENDS).unwrap_or(false)
}

/// Tells a keeper that no process will ask for its connections: the keeper ends with its process, or now if that is dead. If the process lives and goes on,
/// this has no effect.
pub(super) fn is_over(name: &str) {
    let _ = tell(name, OVER);
}

/// What a keeper has said so far.
#[derive(Debug)]
pub enum Said {
    /// Everything that the process held is here.
    All(Left),
    /// The process lives, and has not let go.
    NotNow,
    /// Something is still missing, and nothing has come for as long as it was waited for.
    Less(Left),
}

impl Left {
    /// The second half of [`ask`].
    ///
    /// # Errors
    /// As for [`ask`].
    pub fn receive(self) -> io::Result<Option<Left>> {
        match self.hear(SILENCE)? {
            Said::All(left) => Ok(Some(left)),
            Said::NotNow => Ok(None),
            Said::Less(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "its keeper (martlet-keeper) does not answer, as if it were stopped"))
            }
        }
    }

    /// Takes what the keeper says, and waits for each of its messages for as long as that.
    ///
    /// # Errors
    /// When the keeper has ended, or this process may open no more descriptors.
    pub fn hear(mut self, wait: Duration) -> io::Result<Said> {
        loop {
            let mut waits = [PollFd::new(&self.keeper, PollFlags::IN)];
            let time = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
            match rustix::event::poll(&mut waits, Some(&time)) {
                Ok(0) => return Ok(Said::Less(self)),
                Err(Errno::INTR) => continue,
                came => came?,
            };
            match self.take()? {
                (GIVEN, true) => {}
                (GIVEN, false) => return Ok(Said::All(self)),
                _ => return Ok(Said::NotNow),
            }
        }
    }

    /// Takes one message. Returns its first byte, and whether it held any descriptors.
    fn take(&mut self) -> io::Result<(u8, bool)> {
        let (mut byte, mut control) = (0u8, Control([0; Control::BYTES]));
        let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: all zeros are a valid header; the pointers are to live buffers of the lengths given. What the kernel has written there is walked as it says.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut vector, 1);
            (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), Control::BYTES);
            let got = sys::checked(libc::syscall(libc::SYS_recvmsg, self.keeper.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC))?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = self.sockets.len();
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    for at in 0..count {
                        let fd = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>().add(at));
                        self.sockets.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
            if message.msg_flags & libc::MSG_CTRUNC != 0 {
                return Err(io::Error::other("this process may open no more descriptors"));
            }
            Ok((byte, self.sockets.len() > before))
        }
    }

    /// Everything that the process held is here, or is of no use: the keeper of a dead process ends, and its memory goes.
    pub fn dismiss(self) {
        // SAFETY: the pointer is to one byte.
        unsafe { libc::syscall(libc::SYS_sendto, self.keeper.as_raw_fd(), &DISMISSED, 1, libc::MSG_NOSIGNAL, 0usize, 0usize) };
    }
}

#[cfg(test)]
mod tests;

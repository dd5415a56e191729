//! The server's own descriptors that have no file behind them: pipes, socket pairs, counters, timers, epoll instances.
//!
//! A fork shares them with its parent: what one replica's server wrote there, another replica's would read. So a fork is given others, under the same numbers
//! and with the same content. A socket that connects the server to anything but a client leads nowhere at every replica: otherwise each replica would talk to
//! the peer that only one should talk to.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use crate::birth::{Run, is_born, with_run};
use crate::socket::{self, Poller};
use crate::sys::{self, complain, die};
use crate::table::{OF_CONNECTIONS, OF_LIBRARY};

/// How many socket pairs are noted before it is checked which of them still exist.
const MOST_NOTED: usize = 1024;
/// The most that is copied from a socket at once, in bytes: more than a message over a Unix socket may have, unless its buffer has been made larger.
const COPY_BYTES: usize = 1 << 20;

/// The pairs that the server has made by `socketpair`, each socket by its cookie, since a socket may have several descriptors.
#[derive(Debug, Default)]
pub struct Pairs(Vec<[u64; 2]>);

impl Pairs {
    /// The other socket of a pair.
    fn other(&self, cookie: u64) -> Option<u64> {
        self.0.iter().find_map(|[a, b]| match cookie {
            cookie if cookie == *a => Some(*b),
            cookie if cookie == *b => Some(*a),
            _ => None,
        })
    }

    fn note(&mut self, pair: [u64; 2], known: impl FnOnce() -> BTreeSet<u64>) {
        if self.0.len() >= MOST_NOTED {
            let known = known();
            self.0.retain(|pair| pair.iter().any(|cookie| known.contains(cookie)));
        }
        self.0.push(pair);
    }
}

/// The server has made a pair of sockets.
pub fn note_pair(ends: [RawFd; 2]) {
    if let [Ok(a), Ok(b)] = ends.map(socket::cookie) {
        let known = || own().unwrap_or_default().into_iter().filter_map(|(fd, _)| socket::cookie(fd).ok()).collect();
        with_run(|run| run.pairs.note([a, b], known));
    }
}

/// The server's descriptors, and what they lead to. Standard input, output and error are not among them.
fn own() -> io::Result<Vec<(RawFd, String)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        if fd <= 2 || OF_LIBRARY.contains(&fd) || OF_CONNECTIONS.contains(&fd) {
            continue;
        }
        // The descriptor of the directory itself is closed by now.
        if let Ok(what) = std::fs::read_link(entry.path()) {
            all.push((fd, what.to_string_lossy().into_owned()));
        }
    }
    Ok(all)
}

/// Before there are replicas: makes sure that there is room for connections, and that the server's sockets are its clients' or its own.
pub fn prepare() {
    let most = sys::most_descriptors();
    if most <= OF_CONNECTIONS.start as u64 {
        die(&format!(
            "the server may have {most} descriptors (RLIMIT_NOFILE): it needs more than {} in replicas, which give connections numbers from there on; raise its limit (ulimit -n)",
            OF_CONNECTIONS.start
        ));
    }
    // A successor is handed each connection under some number, and then gives it its own. The server may have asked for no more than it needs alone.
    sys::raise_most_descriptors(2 * OF_CONNECTIONS.end as u64);
    // What the server has inherited, perhaps without knowing of it.
    with_run(|run| run.inherited = OF_LIBRARY.filter(|fd| sys::is_open(*fd)).collect());
    let cut = || -> io::Result<()> {
        let listeners = with_run(|run| run.early.listeners.keys().copied().collect::<BTreeSet<_>>()).unwrap_or_default();
        for (fd, what) in own()? {
            let is_pair = || with_run(|run| socket::cookie(fd).ok().and_then(|cookie| run.pairs.other(cookie)).is_some()) == Some(true);
            if what.starts_with("socket:") && !listeners.contains(&fd) && !is_pair() {
                complain(&format!("descriptor {fd} of the server is a socket that belongs to no client: in replicas it leads nowhere"));
                replace(&unconnected(fd)?, fd)?;
            }
        }
        Ok(())
    };
    if let Err(error) = cut() {
        die(&format!("the server's descriptors cannot be prepared for replicas: {error}"));
    }
}

/// Whether a number is not available to the server: it is one of connections, or, once there are replicas, one of the library's that the server did not have
/// open before. For the library's code.
pub fn is_withheld(fd: RawFd) -> bool {
    let is_library = || OF_LIBRARY.contains(&fd) && is_born() && with_run(|run| !run.inherited.contains(&fd)) == Some(true);
    OF_CONNECTIONS.contains(&fd) || is_library()
}

/// The server has closed its descriptors with these numbers, which may be the library's from now on.
pub fn forget(closed: &RangeInclusive<RawFd>) {
    with_run(|run| {
        run.internal.retain(|(epoll, waited), _| !closed.contains(epoll) && !closed.contains(waited));
        run.epolls.retain(|epoll| !closed.contains(epoll));
        run.counters.retain(|counter, _| !closed.contains(counter));
        run.early.listeners.retain(|listener, _| !closed.contains(listener));
        run.early.interests.retain(|fd, _| !closed.contains(fd));
        run.inherited.retain(|fd| !closed.contains(fd));
    });
}

/// The parts of a range of numbers that remain without the numbers left out, which are in order.
pub fn parts_without(range: RangeInclusive<RawFd>, left_out: impl IntoIterator<Item = RawFd>) -> Vec<RangeInclusive<RawFd>> {
    let (mut parts, mut next) = (Vec::new(), *range.start());
    for number in left_out.into_iter().filter(|number| range.contains(number)) {
        parts.push(next..=number - 1);
        next = number + 1;
    }
    parts.push(next..=*range.end());
    parts.retain(|part| !part.is_empty());
    parts
}

/// In a fork beside which no other process runs: gives it descriptors of its own in place of those that it would share with its parent. `listeners` stay
/// shared.
///
/// # Errors
/// When the kernel refuses, or the content of a descriptor cannot be copied.
pub fn renew(listeners: &BTreeSet<RawFd>) -> io::Result<()> {
    let all = own()?;
    let of = |start: &str| all.iter().filter(|(_, what)| what.starts_with(start)).map(|(fd, _)| *fd).collect::<Vec<RawFd>>();
    renew_pipes(&all)?;
    renew_sockets(of("socket:").into_iter().filter(|fd| !listeners.contains(fd)).collect())?;
    renew_counters(&of("anon_inode:[eventfd]"))?;
    for timer in of("anon_inode:[timerfd]") {
        replace(&same_timer(timer)?, timer)?;
    }
    let epolls = of("anon_inode:[eventpoll]");
    for epoll in &epolls {
        let Poller(fresh) = Poller::new()?;
        replace(&fresh, *epoll)?;
    }
    with_run(|run| {
        for ((epoll, fd), event) in &run.internal {
            let mut event = *event;
            // SAFETY: the pointer is to an event.
            unsafe { libc::syscall(libc::SYS_epoll_ctl, *epoll, libc::EPOLL_CTL_ADD, *fd, &mut event) };
        }
    });
    Ok(())
}

/// Puts `fresh` under the number of a descriptor, with that descriptor's flags.
fn replace(fresh: &OwnedFd, fd: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls; what was there is closed, as is wanted.
    unsafe {
        let status = sys::checked(libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL))?;
        sys::checked(libc::syscall(libc::SYS_fcntl, fresh.as_raw_fd(), libc::F_SETFL, status))?;
        let own = sys::checked(libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD))? as i32;
        let closes = if own & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        sys::checked(libc::syscall(libc::SYS_dup3, fresh.as_raw_fd(), fd, closes)).map(drop)
    }
}

/// Renews the pipes of which the server has both ends.
fn renew_pipes(all: &[(RawFd, String)]) -> io::Result<()> {
    let mut pipes: BTreeMap<&str, [Vec<RawFd>; 2]> = BTreeMap::new();
    for (fd, what) in all.iter().filter(|(_, what)| what.starts_with("pipe:")) {
        // SAFETY: a plain system call.
        let writes = unsafe { libc::syscall(libc::SYS_fcntl, *fd, libc::F_GETFL) } as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        pipes.entry(what).or_default()[usize::from(writes)].push(*fd);
    }
    for [outs, intos] in pipes.values() {
        let (Some(out), Some(_)) = (outs.first(), intos.first()) else { continue };
        let [fresh_out, fresh_into] = same_pipe(*out)?;
        outs.iter().try_for_each(|fd| replace(&fresh_out, *fd))?;
        intos.iter().try_for_each(|fd| replace(&fresh_into, *fd))?;
    }
    Ok(())
}

/// A pipe with the capacity and the content of the one that is read there: its read end and its write end.
fn same_pipe(out: RawFd) -> io::Result<[OwnedFd; 2]> {
    let mut ends = [0i32; 2];
    // SAFETY: the pointer is to two ints; the descriptors have just been made, for the caller.
    let fresh = unsafe {
        sys::checked(libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK))?;
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    let [fresh_out, fresh_into] = &fresh;
    let content = socket::left_in_pipe(out)?;
    // SAFETY: plain system calls.
    unsafe {
        let room = sys::checked(libc::syscall(libc::SYS_fcntl, out, libc::F_GETPIPE_SZ))?;
        sys::checked(libc::syscall(libc::SYS_fcntl, fresh_into.as_raw_fd(), libc::F_SETPIPE_SZ, room))?;
        if content > 0 {
            sys::checked(libc::syscall(libc::SYS_tee, out, fresh_into.as_raw_fd(), content, libc::SPLICE_F_NONBLOCK))?;
        }
    }
    match socket::left_in_pipe(fresh_out.as_raw_fd())? {
        copied if copied == content => Ok(fresh),
        copied => Err(io::Error::other(format!("of {content} bytes in the pipe of descriptor {out} {copied} can be copied"))),
    }
}

/// Renews socket pairs, and sockets that lead nowhere.
fn renew_sockets(all: Vec<RawFd>) -> io::Result<()> {
    let mut known: BTreeMap<u64, Vec<RawFd>> = BTreeMap::new();
    for fd in all {
        known.entry(socket::cookie(fd)?).or_default().push(fd);
    }
    let pairs = with_run(|run: &mut Run| std::mem::take(&mut run.pairs)).unwrap_or_default();
    let mut fresh_pairs = Pairs::default();
    while let Some((cookie, fds)) = known.pop_first() {
        let Some(other) = pairs.other(cookie) else {
            fds.iter().try_for_each(|fd| replace(&unconnected(*fd)?, *fd))?;
            continue;
        };
        // The server may have closed that end.
        let others = known.remove(&other).unwrap_or_default();
        let fresh = same_pair(fds[0], others.first().copied())?;
        fresh_pairs.0.push([socket::cookie(fresh[0].as_raw_fd())?, socket::cookie(fresh[1].as_raw_fd())?]);
        for (fresh, fds) in fresh.iter().zip([fds, others]) {
            fds.iter().try_for_each(|fd| replace(fresh, *fd))?;
        }
    }
    with_run(|run| run.pairs = fresh_pairs);
    Ok(())
}

fn option(fd: RawFd, name: i32) -> io::Result<i32> {
    sys::socket_option(fd, libc::SOL_SOCKET, name)
}

/// A socket pair with the buffers and the content of this one. If the other end is closed, what is left is what that end had sent.
fn same_pair(one: RawFd, other: Option<RawFd>) -> io::Result<[OwnedFd; 2]> {
    let mut ends = [0i32; 2];
    let kind = option(one, libc::SO_TYPE)? | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (domain, protocol) = (option(one, libc::SO_DOMAIN)?, option(one, libc::SO_PROTOCOL)?);
    // SAFETY: the pointer is to two ints; the descriptors have just been made, for the caller.
    let fresh = unsafe {
        sys::checked(libc::syscall(libc::SYS_socketpair, domain, kind, protocol, ends.as_mut_ptr()))?;
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    let [a, b] = fresh.each_ref().map(|end| end.as_raw_fd());
    for (fresh, from) in [(a, Some(one)), (b, other)] {
        let Some(from) = from else { continue };
        // The kernel doubles what it is told.
        set_option(fresh, libc::SO_SNDBUF, option(from, libc::SO_SNDBUF)? / 2)?;
    }
    copy_unread(one, b)?;
    if let Some(other) = other {
        copy_unread(other, a)?;
    }
    Ok(fresh)
}

fn set_option(fd: RawFd, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to an int.
    sys::checked(unsafe { libc::syscall(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, name, &value, size_of::<i32>()) }).map(drop)
}

/// Sends to one socket what may be read from another, and leaves it there to be read.
fn copy_unread(from: RawFd, to: RawFd) -> io::Result<()> {
    let before = option(from, libc::SO_PEEK_OFF)?;
    set_option(from, libc::SO_PEEK_OFF, 0)?;
    let mut buffer = vec![0u8; COPY_BYTES];
    let copied = loop {
        match socket::peek(from, &mut buffer) {
            Ok(0) => break Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
            Err(error) => break Err(error),
            Ok(got) if got == COPY_BYTES && option(from, libc::SO_TYPE)? != libc::SOCK_STREAM => {
                break Err(io::Error::other(format!("a message at descriptor {from} has more than {COPY_BYTES} bytes")));
            }
            Ok(got) => match socket::send(to, &buffer[..got]) {
                Ok(sent) if sent == got => {}
                sent => break Err(io::Error::other(format!("{got} bytes at descriptor {from} cannot be copied: {sent:?}"))),
            },
        }
    };
    set_option(from, libc::SO_PEEK_OFF, before)?;
    copied
}

/// A socket of the same kind, connected to nothing.
fn unconnected(fd: RawFd) -> io::Result<OwnedFd> {
    let (domain, kind, protocol) = (option(fd, libc::SO_DOMAIN)?, option(fd, libc::SO_TYPE)?, option(fd, libc::SO_PROTOCOL)?);
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    unsafe { sys::owned(libc::syscall(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, protocol)) }
}

/// What the kernel says of an open descriptor under this name.
fn fact(fd: RawFd, name: &str) -> io::Result<Option<String>> {
    let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    Ok(facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned()))
}

fn renew_counters(all: &[RawFd]) -> io::Result<()> {
    // Several descriptors may lead to one counter. Kernels before 5.2 do not say so.
    let mut counters: BTreeMap<String, OwnedFd> = BTreeMap::new();
    for fd in all {
        let id = fact(*fd, "eventfd-id")?.unwrap_or_else(|| format!("of descriptor {fd}"));
        if !counters.contains_key(&id) {
            let flags = with_run(|run| run.counters.get(fd).copied()).flatten().unwrap_or(0);
            counters.insert(id.clone(), sys::counter(counted(*fd)?, flags | libc::EFD_CLOEXEC)?);
        }
        replace(&counters[&id], *fd)?;
    }
    Ok(())
}

/// The present value of a counter (`eventfd`) of this process.
fn counted(fd: RawFd) -> io::Result<u32> {
    let count = fact(fd, "eventfd-count")?;
    let known = count.as_deref().and_then(|count| u32::from_str_radix(count, 16).ok());
    known.ok_or_else(|| io::Error::other(format!("descriptor {fd} is no counter of less than 2^32: {count:?}")))
}

/// A timer of the same clock that expires at the same time, and as often again. A timer that has expired and was not read since expires at once.
fn same_timer(fd: RawFd) -> io::Result<OwnedFd> {
    let missing = |name: &str| io::Error::other(format!("the kernel does not say {name} of the timer of descriptor {fd}"));
    let number =
        |name: &'static str| -> io::Result<i64> { fact(fd, name)?.and_then(|value| value.parse().ok()).ok_or_else(|| missing(name)) };
    let time = |name: &'static str| -> io::Result<libc::timespec> {
        let value = fact(fd, name)?.unwrap_or_default();
        let parts = value.trim_matches(['(', ')']).split_once(", ");
        let parsed = parts.and_then(|(seconds, ns)| Some((seconds.trim().parse().ok()?, ns.trim().parse().ok()?)));
        parsed.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec }).ok_or_else(|| missing(name))
    };
    let mut timer = libc::itimerspec { it_interval: time("it_interval")?, it_value: time("it_value")? };
    if number("ticks")? > 0 {
        timer.it_value = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    }
    // SAFETY: the pointer is to a live value; the call makes a descriptor, which goes nowhere else.
    unsafe {
        let fresh = sys::owned(libc::syscall(libc::SYS_timerfd_create, number("clockid")?, libc::TFD_CLOEXEC))?;
        sys::checked(libc::syscall(libc::SYS_timerfd_settime, fresh.as_raw_fd(), 0, &timer, 0usize))?;
        Ok(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads what is there.
    fn read(fd: RawFd) -> Vec<u8> {
        let mut buffer = [0u8; 64];
        // SAFETY: the pointer is to so many bytes.
        let got = unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) };
        buffer[..usize::try_from(got).expect("something is there")].to_vec()
    }

    fn pair(kind: i32) -> [OwnedFd; 2] {
        let mut ends = [0i32; 2];
        // SAFETY: the pointer is to two ints; the descriptors are the caller's.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()), 0);
            ends.map(|end| OwnedFd::from_raw_fd(end))
        }
    }

    #[test]
    fn a_pair_of_sockets_has_the_content_of_the_other_which_keeps_it() {
        for (kind, parts) in
            [(libc::SOCK_STREAM, vec!["abcdef"]), (libc::SOCK_DGRAM, vec!["abc", "def"]), (libc::SOCK_SEQPACKET, vec!["abc", "def"])]
        {
            let old = pair(kind);
            let [one, other] = old.each_ref().map(|end| end.as_raw_fd());
            for part in [&b"abc"[..], b"def"] {
                socket::send(other, part).expect("room");
            }
            socket::send(one, b"back").expect("room");
            let fresh = same_pair(one, Some(other)).expect("a pair");
            let [a, b] = fresh.each_ref().map(|end| end.as_raw_fd());
            for (one, other) in [(one, other), (a, b)] {
                for part in &parts {
                    assert_eq!(read(one), part.as_bytes());
                }
                assert_eq!(read(other), b"back");
                assert!(socket::receive(one, &mut [0; 8]).is_err() && socket::receive(other, &mut [0; 8]).is_err(), "nothing else");
            }
        }
        // What was closed stays closed.
        let [one, other] = pair(libc::SOCK_STREAM);
        socket::send(other.as_raw_fd(), b"last").expect("room");
        drop(other);
        let [a, b] = same_pair(one.as_raw_fd(), None).expect("a pair");
        drop(b);
        assert_eq!((read(a.as_raw_fd()), read(a.as_raw_fd())), (b"last".to_vec(), vec![]));
    }

    #[test]
    fn a_pipe_has_the_content_of_the_other_which_keeps_it() {
        let old = socket::Pipe::new().expect("a pipe");
        old.fill(b"left").expect("room");
        let fresh = same_pipe(old.out.as_raw_fd()).expect("a pipe");
        assert_eq!((read(old.out.as_raw_fd()), read(fresh[0].as_raw_fd())), (b"left".to_vec(), b"left".to_vec()));
        let fresh = same_pipe(old.out.as_raw_fd()).expect("a pipe");
        assert_eq!(socket::left_in_pipe(fresh[0].as_raw_fd()).expect("a pipe"), 0);
    }

    #[test]
    fn what_a_counter_counts_is_known_and_what_is_none_is_refused() {
        for count in [0, 1, 0x1f, u32::MAX] {
            let counter = sys::counter(count, libc::EFD_NONBLOCK).expect("a counter");
            assert_eq!(counted(counter.as_raw_fd()).expect("it is one"), count);
        }
        assert!(counted(0).is_err());
    }

    #[test]
    fn a_timer_ends_when_the_other_does() {
        let set = |seconds| {
            let time = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
            let timer = libc::itimerspec { it_interval: time(7, 5), it_value: time(seconds, 1) };
            // SAFETY: the pointer is to a live value; the descriptor is the caller's.
            unsafe {
                let fd = sys::owned(libc::syscall(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC)).expect("a timer");
                assert_eq!(libc::syscall(libc::SYS_timerfd_settime, fd.as_raw_fd(), 0, &timer, 0usize), 0);
                fd
            }
        };
        let far = same_timer(set(5_000).as_raw_fd()).expect("a timer");
        assert_eq!(fact(far.as_raw_fd(), "it_interval").expect("known").as_deref(), Some("(7, 5)"));
        let left = fact(far.as_raw_fd(), "it_value").expect("known").expect("known");
        assert!(left.starts_with("(4") || left.starts_with("(5000, "), "{left}");
        let near = set(0);
        let wait = |fd: &OwnedFd| {
            let mut waits = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer is to one live value.
            unsafe { libc::syscall(libc::SYS_poll, &mut waits, 1, -1) }
        };
        assert_eq!(wait(&near), 1);
        let fresh = same_timer(near.as_raw_fd()).expect("a timer");
        assert_eq!(wait(&fresh), 1, "it has ended, too");
    }

    #[test]
    fn the_parts_of_a_range_are_what_is_left_of_it() {
        let parts = |first, last, left_out: &[RawFd]| parts_without(first..=last, left_out.iter().copied());
        assert_eq!(parts(3, 9, &[]), [3..=9]);
        assert_eq!(parts(3, 9, &[1, 3, 5, 6, 8, 12]), [4..=4, 7..=7, 9..=9]);
        assert_eq!(parts(3, 9, &[9]), [3..=8]);
        assert_eq!(parts(3, 5, &[3, 4, 5]), []);
        assert_eq!(parts(300, RawFd::MAX, &[160, 400]), [300..=399, 401..=RawFd::MAX]);
    }

    #[test]
    fn pairs_are_forgotten_when_the_server_has_closed_them() {
        let mut pairs = Pairs::default();
        (0..MOST_NOTED as u64).for_each(|at| pairs.note([2 * at, 2 * at + 1], || panic!("there are few")));
        assert_eq!((pairs.other(6), pairs.other(7), pairs.other(1 << 40)), (Some(7), Some(6), None));
        pairs.note([1 << 20, 1 << 21], || BTreeSet::from([7]));
        assert_eq!((pairs.0.len(), pairs.other(6), pairs.other(8), pairs.other(1 << 21)), (2, Some(7), None, Some(1 << 20)));
    }
}

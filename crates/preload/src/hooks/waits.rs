//! The entry points by which a server waits for its clients: `epoll`, `poll` and `select`.
//!
//! With `poll` and `select` a server says at each wait what it waits for. This is compared with what it last waited for, so the leader's poller has nothing to
//! do when it is the same.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use super::{is_captured, takes_turns};
use crate::birth::{self, with_run};
use crate::main_thread::{Confined, InLibrary, in_server};
use crate::replica::{Wait, with};
use crate::serving::Change;
use crate::sys::{complain, die, fail};
use crate::table::{Interest, OF_CONNECTIONS, POLLED};
use crate::{clock, fiber, sys, threads, turnstile};

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
    if in_server() {
        let _library = InLibrary::enter();
        // SAFETY: the caller gives an event where one is needed.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        if let Some(changed) = change_interest(epoll, operation, fd, event) {
            return changed.map_or_else(fail, |()| 0);
        }
    }
    kernel!(SYS_epoll_ctl, epoll, operation, fd, event) as c_int
}

fn change_interest(epoll: c_int, operation: c_int, fd: c_int, event: Option<libc::epoll_event>) -> Option<Result<(), c_int>> {
    if !is_captured(fd) {
        with_run(|run| match event {
            Some(event) if operation != libc::EPOLL_CTL_DEL => {
                run.internal.insert((epoll, fd), event);
            }
            _ => {
                run.internal.remove(&(epoll, fd));
            }
        });
        return None;
    }
    let mut interest = Interest { events: 0, data: 0, epoll };
    if let Some(event) = event {
        interest = Interest { events: event.events, data: event.u64, epoll };
    }
    if interest.events & libc::EPOLLONESHOT as u32 != 0 {
        die("the server waits for a connection once, which this version does not capture");
    }
    let change = match operation {
        libc::EPOLL_CTL_ADD => Change::Add(interest),
        libc::EPOLL_CTL_MOD => Change::Modify(interest),
        libc::EPOLL_CTL_DEL => Change::Delete,
        _ => return Some(Err(libc::EINVAL)),
    };
    with_run(|run| {
        run.epolls.insert(epoll);
        if run.epolls.len() > 1 && !turnstile::is_on() {
            die("the server waits for connections at two epoll instances, which this version does not capture");
        }
    });
    if let Some(changed) = with(|replica| replica.change_interest(fd, change)) {
        return Some(changed);
    }
    with_run(|run| {
        let wanted = if change == Change::Delete { None } else { Some(interest) };
        run.early.set_interest(fd, wanted);
    });
    Some(Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { epoll_pwait(epoll, events, most, timeout_ms, std::ptr::null()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    if in_server() {
        let library = InLibrary::enter();
        if turnstile::is_on() {
            let waited = turnstile::wait_at(epoll, usize::try_from(most).unwrap_or(0), timeout_ms);
            for (at, event) in waited.iter().flatten().enumerate() {
                // SAFETY: the caller gives room for `most` events, and no more are delivered.
                unsafe { events.add(at).write_unaligned(*event) };
            }
            return waited.map_or_else(fail, |waited| waited.len() as c_int);
        }
        let is_its = with_run(|run| run.epolls.contains(&epoll)) == Some(true);
        if is_its {
            with(|replica| replica.stop_polling());
        }
        let waited = if is_its { wait(usize::try_from(most).unwrap_or(0), nanoseconds_of(timeout_ms)) } else { None };
        if let Some((delivered, signals)) = waited {
            for (at, (_, event)) in delivered.iter().enumerate() {
                // SAFETY: the caller gives room for `most` events, and no more are delivered.
                unsafe { events.add(at).write_unaligned(*event) };
            }
            drop(library);
            let is_interrupted = delivered.is_empty() && !signals.is_empty();
            // SAFETY: as the caller promises.
            unsafe { raise(signals, mask) };
            return if is_interrupted { fail(libc::EINTR) } else { delivered.len() as c_int };
        }
    }
    kernel!(SYS_epoll_pwait, epoll, events, most, timeout_ms, mask, 8usize) as c_int
}

fn nanoseconds_of(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000)
}

/// Gives the server the signals that a round has reported, while the signals are blocked that the server blocks while it waits.
///
/// # Safety
/// `mask` is a pointer to a set, or null: as it is at the moment.
unsafe fn raise(signals: Vec<c_int>, mask: *const sigset_t) {
    if signals.is_empty() {
        return;
    }
    // SAFETY: plain calls, a handler is the server's; the pointers are to live sets, of which the second is written before it is read.
    unsafe {
        let mut before: sigset_t = std::mem::zeroed();
        if !mask.is_null() {
            libc::pthread_sigmask(libc::SIG_SETMASK, mask, &mut before);
        }
        for number in signals {
            libc::raise(number);
        }
        if !mask.is_null() {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
}

/// What has happened, each event with its epoll instance, or [`POLLED`].
type Events = Vec<(RawFd, libc::epoll_event)>;

/// How long a server that waits for clients for the first time is kept until its helpers rest.
const FIRST_REST: Duration = Duration::from_secs(1);
/// After how long without rest a server is ended: it has no replicas, and serves nobody.
const LAST_REST: Duration = Duration::from_secs(10);

/// When the server first wanted to wait for clients, and whether it has been said that its helpers did not rest.
static FIRST_WAIT: Confined<Cell<Option<(Instant, bool)>>> = Confined::new(Cell::new(None));

/// Whether replicas of the server can be made now: all its helpers rest.
fn can_be_born() -> bool {
    let (since, is_told) = FIRST_WAIT.get().get().unwrap_or_else(|| (Instant::now(), false));
    FIRST_WAIT.get().set(Some((since, is_told)));
    while !threads::all_rest() {
        let elapsed = since.elapsed();
        if elapsed < FIRST_REST {
            sys::sleep(1_000_000);
            continue;
        }
        let names = threads::restless().join(", ");
        if elapsed > LAST_REST {
            die(&format!(
                "the server cannot be replicated: of its threads {names} never wait for a condition, as threads have to that run beside the one for requests"
            ));
        }
        if !is_told {
            FIRST_WAIT.get().set(Some((since, true)));
            complain(&format!("the server is not replicated yet, and serves nobody: its threads {names} do not wait for a condition"));
        }
        return false;
    }
    true
}

/// Waits for captured descriptors, by giving way to the node. `None`: there are no replicas yet.
fn wait(most: usize, timeout_ns: Option<u64>) -> Option<(Events, Vec<c_int>)> {
    if !birth::is_born() {
        // A server that polls without waiting is still busy starting, and may have half-read files.
        if timeout_ns == Some(0) || !can_be_born() {
            return None;
        }
        birth::bear();
    }
    threads::await_rest();
    let until_ns = timeout_ns.map(|ns| clock::monotonic_ns().saturating_add(ns));
    with(|replica| {
        replica.come_back();
        replica.wait = Wait { most, until_ns };
    });
    loop {
        fiber::to_library();
        if let Some(node) = with(|replica| replica.fork.take()).flatten() {
            birth::fork(node);
            continue;
        }
        let has_something = with(|replica| !replica.delivery.is_empty() || !replica.signals.is_empty());
        if has_something == Some(true) || until_ns.is_some() {
            break;
        }
        // The round had nothing that the server is to hear of. The server wants to wait for as long as it takes.
        with(|replica| replica.come_back());
    }
    with(|replica| (std::mem::take(&mut replica.delivery), std::mem::take(&mut replica.signals)))
}

/// What `poll` calls input, and room for output. Each has two names.
const READS: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITES: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// What a server that polls for this is to be told of.
fn interest_of(fd: RawFd, events: i16) -> Interest {
    let bits = |wanted: i16, event: i32| if events & wanted != 0 { event as u32 } else { 0 };
    let events = bits(READS, libc::EPOLLIN) | bits(WRITES, libc::EPOLLOUT) | bits(libc::POLLRDHUP, libc::EPOLLRDHUP);
    Interest { events, data: fd as u64, epoll: POLLED }
}

/// What `poll` returns to it.
fn heard(events: u32, wanted: i16) -> i16 {
    let bits = |event: i32, told: i16| if events & event as u32 != 0 { told } else { 0 };
    let own = bits(libc::EPOLLIN, READS) | bits(libc::EPOLLOUT, WRITES) | bits(libc::EPOLLRDHUP, libc::POLLRDHUP);
    own & wanted
}

/// Waits, if there are captured descriptors among these. `None`: there are none, or there are no replicas yet.
///
/// A descriptor that was a connection and is none any more is reported at once, as the kernel does. Other descriptors that are not captured are never ready
/// here: some of the server's own are open at one replica and not at another.
///
/// # Safety
/// `mask` is a pointer to a set, or null.
unsafe fn poll_captured(polled: &mut [pollfd], timeout_ns: Option<u64>, mask: *const sigset_t) -> Option<Result<usize, c_int>> {
    if !in_server() {
        return None;
    }
    let library = InLibrary::enter();
    let mut wanted: BTreeMap<RawFd, Interest> = BTreeMap::new();
    for one in polled.iter().filter(|one| is_captured(one.fd)) {
        let interest = interest_of(one.fd, one.events);
        wanted.entry(one.fd).and_modify(|known| known.events |= interest.events).or_insert(interest);
    }
    if wanted.is_empty() {
        return None;
    }
    if turnstile::is_on() {
        // memcached's logger polls clients that watch. With this error it sends them nothing.
        return Some(Err(libc::EINVAL));
    }
    let is_bad = |fd: RawFd| OF_CONNECTIONS.contains(&fd) && !wanted.contains_key(&fd);
    polled.iter_mut().for_each(|one| one.revents = if is_bad(one.fd) { libc::POLLNVAL } else { 0 });
    let bad = polled.iter().filter(|one| one.revents != 0).count();
    let before = with(|replica| replica.wait_only_for(&wanted)).unwrap_or_default();
    if !birth::is_born() {
        let is_ready = with_run(|run| {
            // A server that has an epoll instance for these descriptors has yet to wait at that one.
            let is_other = run.early.interests.values().any(|interest| interest.epoll != POLLED);
            if !is_other {
                for (fd, interest) in run.early.changes_to(&wanted) {
                    run.early.set_interest(fd, interest);
                }
            }
            !is_other
        });
        is_ready.filter(|is_ready| *is_ready)?;
    }
    let (delivered, signals) = wait(wanted.len(), if bad > 0 { Some(0) } else { timeout_ns })?;
    if before.values().any(|interest| interest.epoll != POLLED) {
        with(|replica| replica.wait_only_for(&before));
    }
    for (_, event) in delivered.iter().filter(|(at, _)| *at == POLLED) {
        polled.iter_mut().filter(|one| one.fd as u64 == event.u64).for_each(|one| one.revents = heard(event.events, one.events));
    }
    drop(library);
    let ready = polled.iter().filter(|one| one.revents != 0).count();
    let is_interrupted = ready == 0 && !signals.is_empty();
    // SAFETY: as the caller promises.
    unsafe { raise(signals, mask) };
    Some(if is_interrupted { Err(libc::EINTR) } else { Ok(ready) })
}

/// The same for a caller in C.
///
/// # Safety
/// `descriptors` is a pointer to so many, or null; `mask` to a set, or null.
unsafe fn poll_at(descriptors: *mut pollfd, count: nfds_t, timeout_ns: Option<u64>, mask: *const sigset_t) -> Option<c_int> {
    // The kernel refuses what cannot be polled at all.
    if !in_server() || descriptors.is_null() || count > sys::most_descriptors() {
        return None;
    }
    let count = count as usize;
    // The structures need not be aligned.
    // SAFETY: as the caller promises.
    let mut polled: Vec<pollfd> = (0..count).map(|at| unsafe { descriptors.add(at).read_unaligned() }).collect();
    // SAFETY: as the caller promises.
    let ready = unsafe { poll_captured(&mut polled, timeout_ns, mask) }?;
    for (at, one) in polled.into_iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { descriptors.add(at).write_unaligned(one) };
    }
    Some(ready.map_or_else(fail, |ready| ready as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(descriptors: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { poll_at(descriptors, count, nanoseconds_of(timeout_ms), std::ptr::null()) }
        .unwrap_or_else(|| kernel!(SYS_poll, descriptors, count, timeout_ms) as c_int)
}

/// `poll`, as programs call it that are built with checks at run time (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout_ms: c_int, bytes: usize) -> c_int {
    assert!(count as usize <= bytes / size_of::<pollfd>(), "poll of {count} descriptors in {bytes} bytes");
    // memcached's logger calls this for clients that watch, and answers them only when told that there is room.
    if takes_turns().is_some() {
        return kernel!(SYS_poll, descriptors, count, timeout_ms) as c_int;
    }
    // SAFETY: as the caller promises.
    unsafe { poll(descriptors, count, timeout_ms) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: as the caller promises.
    let given = unsafe { timeout.as_ref() }.copied();
    let Some(timeout_ns) = nanoseconds(given) else { return fail(libc::EINVAL) };
    // SAFETY: as the caller promises.
    unsafe { poll_at(descriptors, count, timeout_ns, mask).unwrap_or_else(|| ppoll_kernel(descriptors, count, given, mask)) }
}

/// # Safety
/// As for `ppoll`.
unsafe fn ppoll_kernel(descriptors: *mut pollfd, count: nfds_t, timeout: Option<timespec>, mask: *const sigset_t) -> c_int {
    // The kernel writes into it what is left of the time.
    let mut left = timeout;
    let left = left.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    kernel!(SYS_ppoll, descriptors, count, left, mask, 8usize) as c_int
}

/// `ppoll`, as programs call it that are built with checks at run time (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: usize,
) -> c_int {
    assert!(count as usize <= bytes / size_of::<pollfd>(), "ppoll of {count} descriptors in {bytes} bytes");
    // As for `__poll_chk`.
    if takes_turns().is_some() {
        // SAFETY: as the caller promises.
        return unsafe { ppoll_kernel(descriptors, count, timeout.as_ref().copied(), mask) };
    }
    // SAFETY: as the caller promises.
    unsafe { ppoll(descriptors, count, timeout, mask) }
}

/// For how long a server waits; `None`: the time is invalid, which is an error.
fn nanoseconds(timeout: Option<timespec>) -> Option<Option<u64>> {
    timeout.map_or(Some(None), |time| {
        let ns = clock::nanoseconds(time.tv_sec, time.tv_nsec, 1).filter(|_| time.tv_nsec < 1_000_000_000)?;
        Some(Some(ns))
    })
}

/// The three sets of `select`.
struct Sets([*mut fd_set; 3]);

impl Sets {
    /// The equivalent for `poll`.
    ///
    /// # Safety
    /// They are pointers to sets, or null.
    unsafe fn polled(&self, count: c_int) -> Vec<pollfd> {
        let asked = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        // SAFETY: as the caller promises; a set has as many descriptors.
        let is_set = |set: *mut fd_set, fd: c_int| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
        let of = |fd: c_int| {
            let sets = self.0.into_iter().zip(asked);
            let events = sets.filter(|(set, _)| is_set(*set, fd)).fold(0, |events, (_, event)| events | event);
            (events != 0).then_some(pollfd { fd, events, revents: 0 })
        };
        // Programs ask for as many descriptors as a process may have, with sets of the usual size. The kernel, too, stops where its table ends.
        (0..count.clamp(0, libc::FD_SETSIZE as c_int)).filter_map(of).collect()
    }

    /// Writes into the sets what is ready. Returns how many descriptors that is.
    ///
    /// # Safety
    /// As above.
    unsafe fn write(&self, polled: &[pollfd]) -> c_int {
        let told = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let mut ready = 0;
        for (set, event) in self.0.into_iter().zip(told).filter(|(set, _)| !set.is_null()) {
            for one in polled {
                // SAFETY: as the caller promises; the descriptor was found in a set.
                unsafe {
                    if one.events & event != 0 && one.revents & event != 0 {
                        ready += 1;
                        libc::FD_SET(one.fd, set);
                    } else {
                        libc::FD_CLR(one.fd, set);
                    }
                }
            }
        }
        ready
    }
}

/// Waits as `select` does, if there are captured descriptors in these sets. `None`: as for [`poll_captured`].
///
/// # Safety
/// They are pointers to sets, or null, and so is `mask`.
unsafe fn select_captured(count: c_int, sets: &Sets, timeout_ns: Option<u64>, mask: *const sigset_t) -> Option<c_int> {
    if !in_server() {
        return None;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let mut polled = sets.polled(count);
        Some(match poll_captured(&mut polled, timeout_ns, mask)? {
            Ok(_) if polled.iter().any(|one| one.revents & libc::POLLNVAL != 0) => fail(libc::EBADF),
            Ok(_) => sets.write(&polled),
            Err(errno) => fail(errno),
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as the caller promises.
    let given = unsafe { timeout.as_mut() };
    let timeout_ns = given.as_ref().map(|time| clock::nanoseconds(time.tv_sec, time.tv_usec, 1_000));
    if timeout_ns == Some(None) {
        return fail(libc::EINVAL);
    }
    let timeout_ns = timeout_ns.flatten();
    let began = in_server().then(|| clock::shown().monotonic_ns);
    // SAFETY: as the caller promises.
    match unsafe { select_captured(count, &Sets([reads, writes, exceptions]), timeout_ns, std::ptr::null()) } {
        Some(ready) => {
            if let (Some(given), Some(began)) = (given, began) {
                // What is left of the time, as the kernel reports it.
                let left = timeout_ns.unwrap_or(0).saturating_sub(clock::shown().monotonic_ns.saturating_sub(began));
                (given.tv_sec, given.tv_usec) = ((left / 1_000_000_000) as i64, (left % 1_000_000_000 / 1_000) as i64);
            }
            ready
        }
        None => kernel!(SYS_select, count, reads, writes, exceptions, timeout) as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let given = unsafe { timeout.as_ref() }.copied();
    let Some(timeout_ns) = nanoseconds(given) else { return fail(libc::EINVAL) };
    // SAFETY: as the caller promises.
    unsafe { select_captured(count, &Sets([reads, writes, exceptions]), timeout_ns, mask) }.unwrap_or_else(|| {
        let mut left = given;
        let left = left.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // The kernel takes the mask together with its length.
        let mask = [mask as usize, 8];
        kernel!(SYS_pselect6, count, reads, writes, exceptions, left, mask.as_ptr()) as c_int
    })
}

//! A server's own threads, when several of them matter: they run one at a time, in the same order at every replica.
//!
//! All of them run on the captured thread, each on a stack of its own. A thread gives way only when it waits: for events, for a condition, for a lock, for a
//! time, or for another thread's end. So which thread continues follows from the log and from what the threads have done, and is the same at every replica. A
//! fork has all of them, since they are nothing but memory. The price is that they do not run in parallel.
//!
//! The threads share what the C library keeps per thread: thread-local variables, the thread's name and number, and the owner of a recursive lock. A server
//! that depends on those being separate cannot be run in this way.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use crate::birth::{self, with_run};
use crate::main_thread::{self, Confined};
use crate::replica::{Wait, with};
use crate::sys::{self, Real, die};
use crate::{clock, fiber, threads};

/// A thread's routine.
pub type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or can run.
    Ready,
    /// To be woken.
    Condition(*mut libc::pthread_cond_t),
    Lock(*mut libc::pthread_mutex_t),
    /// For its time to come, and nothing else.
    Time,
    /// For events at an epoll instance, at most so many.
    Events(RawFd, usize),
    /// For the end of another thread.
    End(usize),
    /// It has ended.
    Ended,
}

/// A thread.
struct Thread {
    /// Its state while another thread runs. It stays at its address.
    context: *mut libc::ucontext_t,
    state: State,
    /// When its wait ends at the latest, on the clock that the server sees.
    until_ns: Option<u64>,
    routine: Option<(Routine, *mut c_void)>,
    result: *mut c_void,
}

/// All threads.
struct Threads {
    all: Vec<Thread>,
    current: usize,
    /// What rounds have reported and no thread has been given yet.
    delivered: Vec<(RawFd, libc::epoll_event)>,
}

static THREADS: Confined<RefCell<Option<Threads>>> = Confined::new(RefCell::new(None));
/// Whether the first thread is to be told that a signal has interrupted it.
static IS_INTERRUPTED: Confined<Cell<bool>> = Confined::new(Cell::new(false));

static LOCK: Real = Real::versioned(c"__pthread_mutex_lock", c"GLIBC_2.2.5");
static TRY_LOCK: Real = Real::versioned(c"__pthread_mutex_trylock", c"GLIBC_2.2.5");

fn with_threads<R>(use_them: impl FnOnce(&mut Threads) -> R) -> Option<R> {
    THREADS.get().borrow_mut().as_mut().map(use_them)
}

/// From here on the server's threads take turns. The calling thread is the first.
pub fn enable() {
    let first =
        Thread { context: Box::into_raw(fiber::blank()), state: State::Ready, until_ns: None, routine: None, result: std::ptr::null_mut() };
    *THREADS.get().borrow_mut() = Some(Threads { all: vec![first], current: 0, delivered: Vec::new() });
}

/// Whether they take turns. For the captured thread.
pub fn is_on() -> bool {
    THREADS.get().borrow().is_some()
}

/// Starts a thread, which runs when the calling one waits. Returns its number.
///
/// # Errors
/// When there is no memory.
pub fn start(routine: Routine, argument: *mut c_void) -> std::io::Result<libc::pthread_t> {
    let context = Box::into_raw(fiber::context(enter)?.0);
    let thread = Thread { context, state: State::Ready, until_ns: None, routine: Some((routine, argument)), result: std::ptr::null_mut() };
    Ok(with_threads(|threads| {
        threads.all.push(thread);
        number_of(threads.all.len() - 1)
    })
    .unwrap_or_default())
}

/// A number that the C library cannot have given: its numbers are addresses.
fn number_of(at: usize) -> libc::pthread_t {
    at as libc::pthread_t
}

/// Whether this is the number of a thread that was started here.
pub fn has(number: libc::pthread_t) -> bool {
    with_threads(|threads| number > 0 && (number as usize) < threads.all.len()) == Some(true)
}

extern "C" fn enter() {
    let routine = with_threads(|threads| threads.all[threads.current].routine.take()).flatten();
    let Some((routine, argument)) = routine else { die("a thread of the server's has nothing to do") };
    main_thread::capture();
    let result = routine(argument);
    main_thread::release();
    with_threads(|threads| {
        let current = threads.current;
        threads.all[current].result = result;
    });
    block(State::Ended, None);
    die("a thread of the server's goes on after its end");
}

/// The calling thread waits for the end of another thread. Returns what that thread has returned.
pub fn join(number: libc::pthread_t) -> *mut c_void {
    let at = number as usize;
    block(State::End(at), None);
    with_threads(|threads| threads.all[at].result).unwrap_or(std::ptr::null_mut())
}

/// The time by which threads wait. It is the server's clock, which is the same at every replica.
fn now_ns() -> u64 {
    clock::shown().monotonic_ns
}

/// The calling thread waits for so long.
pub fn sleep(ns: u64) {
    block(State::Time, Some(now_ns() + ns));
}

/// # Safety
/// As for `pthread_mutex_trylock`.
unsafe fn try_lock(mutex: *mut libc::pthread_mutex_t) -> c_int {
    // SAFETY: it is the C library's function of that name and version, which has this type; the rest as the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int>(TRY_LOCK.address())(mutex) }
}

/// Takes a lock as the C library does, for calls that it would serve.
///
/// # Safety
/// As for `pthread_mutex_lock`.
pub unsafe fn real_lock(mutex: *mut libc::pthread_mutex_t) -> c_int {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int>(LOCK.address())(mutex) }
}

/// Takes a lock once the thread that holds it releases it.
///
/// # Safety
/// As for `pthread_mutex_lock`.
pub unsafe fn lock(mutex: *mut libc::pthread_mutex_t) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { try_lock(mutex) } {
        libc::EBUSY => {
            // The lock is taken for this thread before the thread continues.
            block(State::Lock(mutex), None);
            0
        }
        result => result,
    }
}

/// Waits for a condition.
///
/// # Safety
/// As for `pthread_cond_wait`.
pub unsafe fn wait_for(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { libc::pthread_mutex_unlock(mutex) };
    block(State::Condition(condition), None);
    // SAFETY: as the caller promises.
    unsafe { lock(mutex) }
}

/// Wakes one thread that waits for a condition, or all that do.
pub fn wake(condition: *mut libc::pthread_cond_t, all: bool) {
    with_threads(|threads| {
        let waiting = threads.all.iter_mut().filter(|thread| thread.state == State::Condition(condition));
        waiting.take(if all { usize::MAX } else { 1 }).for_each(|thread| thread.state = State::Ready);
    });
}

/// Waits for events at an epoll instance.
///
/// # Errors
/// The errno that says why there are none.
pub fn wait_at(epoll: RawFd, most: usize, timeout_ms: c_int) -> Result<Vec<libc::epoll_event>, c_int> {
    if timeout_ms != 0 {
        let until_ns = u64::try_from(timeout_ms).ok().map(|ms| now_ns() + ms * 1_000_000);
        block(State::Events(epoll, most), until_ns);
    }
    if with_threads(|threads| threads.current) == Some(0) && IS_INTERRUPTED.get().take() {
        return Err(libc::EINTR);
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
    let own = sys::ready_at(epoll, &mut events);
    events.truncate(own);
    with_threads(|threads| {
        threads.delivered.retain(|(at, event)| {
            let is_given = *at == epoll && events.len() < most;
            if is_given {
                events.push(*event);
            }
            !is_given
        });
    });
    Ok(events)
}

/// The calling thread waits. Returns when it is its turn again.
fn block(state: State, until_ns: Option<u64>) {
    let own = with_threads(|threads| {
        let own = threads.current;
        (threads.all[own].state, threads.all[own].until_ns) = (state, until_ns);
        own
    });
    loop {
        if let Some((from, to)) = with_threads(Threads::choose).flatten() {
            if from != to {
                // SAFETY: this thread alone reaches the contexts, which stay where they are. The context that is switched to was made for a new thread, or left
                // by this very call.
                unsafe { libc::swapcontext(from, to) };
            }
            debug_assert_eq!(with_threads(|threads| threads.current), own, "it is this one's turn");
            return;
        }
        idle();
    }
}

impl Threads {
    /// Gives the turn to the next thread after the calling one that can run. Returns the contexts of both, the calling thread's first; `None`: all wait.
    fn choose(&mut self) -> Option<(*mut libc::ucontext_t, *mut libc::ucontext_t)> {
        let count = self.all.len();
        let next = (1..=count).map(|step| (self.current + step) % count).find(|at| self.can_go_on(*at))?;
        let from = self.all[self.current].context;
        (self.all[next].state, self.all[next].until_ns) = (State::Ready, None);
        self.current = next;
        Some((from, self.all[next].context))
    }

    fn can_go_on(&self, at: usize) -> bool {
        let thread = &self.all[at];
        let is_due = || thread.until_ns.is_some_and(|until| until <= now_ns());
        match thread.state {
            State::Ready => true,
            State::Condition(_) | State::Ended => false,
            State::Time => is_due(),
            // SAFETY: the thread is in a call for that lock.
            State::Lock(mutex) => unsafe { try_lock(mutex) != libc::EBUSY },
            State::End(other) => self.all.get(other).is_none_or(|other| other.state == State::Ended),
            State::Events(epoll, _) => {
                let is_told = self.delivered.iter().any(|(at, _)| *at == epoll) || (at == 0 && IS_INTERRUPTED.get().get());
                let mut one = [libc::epoll_event { events: 0, u64: 0 }];
                is_told || is_due() || sys::ready_at(epoll, &mut one) > 0
            }
        }
    }

    /// What the server as a whole waits for.
    fn wait(&self) -> Wait {
        let most = |thread: &Thread| if let State::Events(_, most) = thread.state { Some(most) } else { None };
        Wait {
            most: self.all.iter().filter_map(most).min().unwrap_or(1),
            until_ns: self.all.iter().filter_map(|thread| thread.until_ns).min(),
        }
    }

    fn waits_at(&self, epoll: RawFd) -> bool {
        self.all.iter().any(|thread| matches!(thread.state, State::Events(at, _) if at == epoll))
    }
}

/// All threads wait: until there is a round, or, when there are no replicas yet, until the time of one of them has come.
fn idle() {
    let wait = with_threads(|threads| threads.wait()).unwrap_or_default();
    if !birth::is_born() {
        let epolls = with_run(|run| run.epolls.clone()).unwrap_or_default();
        if with_threads(|threads| epolls.iter().any(|epoll| threads.waits_at(*epoll))) == Some(true) && threads::all_rest() {
            return birth::bear();
        }
        let Some(until_ns) = wait.until_ns else { die("all threads of the server wait for each other") };
        return sys::sleep(until_ns.saturating_sub(now_ns()));
    }
    with(|replica| {
        replica.come_back();
        replica.wait = wait;
    });
    fiber::to_library();
    if let Some(node) = with(|replica| replica.fork.take()).flatten() {
        birth::fork(node);
        return;
    }
    let given = with(|replica| (std::mem::take(&mut replica.delivery), std::mem::take(&mut replica.signals)));
    let Some((delivered, signals)) = given else { return };
    // Events that no thread waits for will be reported again.
    with_threads(|threads| threads.delivered = delivered);
    for number in signals {
        main_thread::capture();
        // SAFETY: a plain call; any handler is the server's own.
        unsafe { libc::raise(number) };
        main_thread::release();
        IS_INTERRUPTED.get().set(true);
    }
}

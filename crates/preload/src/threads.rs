//! The threads that a server has beside the captured one: helpers that wait for work, and execute no requests.
//!
//! A fork has only the thread that made it. So each helper is recorded when it is started, and is started anew in a fork, with the same routine and the same
//! argument. That is right for a helper that rests, that is, waits for a condition: it holds no lock, and has begun nothing. So a replica forks only while all
//! helpers rest.
//!
//! The server may look at what a helper has got to, and act differently at each replica. So a server that is about to wait first lets its helpers finish what
//! it has given them since it last waited. It does not wait for a helper that only frees memory, because the server asks nothing about that except how much
//! memory there is.
//!
//! The server knows a thread by the id that `pthread_create` has given it. In a fork that id means the thread that was started there in its place, or none: the
//! memory that it names may be that of one of the library's own threads by then. So what the server asks for a thread by its id is asked here.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::sys::Real;

static PTHREAD_CREATE: Real = Real::new(c"pthread_create");
static PTHREAD_COND_WAIT: Real = Real::versioned(c"pthread_cond_wait", c"GLIBC_2.3.2");
static PTHREAD_COND_SIGNAL: Real = Real::versioned(c"pthread_cond_signal", c"GLIBC_2.3.2");
static PTHREAD_COND_BROADCAST: Real = Real::versioned(c"pthread_cond_broadcast", c"GLIBC_2.3.2");

/// The names that helpers give themselves that only free memory.
const FREES: [&[u8]; 1] = [b"bio_lazy_free"];
/// How often a server that is about to wait checks whether its helpers rest, in microseconds.
const REST_US: u32 = 20;

unsafe extern "C" {
    fn pthread_attr_getdetachstate(attributes: *const libc::pthread_attr_t, state: *mut c_int) -> c_int;
}

type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// A thread that the server has started.
struct Helper {
    /// The one that was started before it.
    before: AtomicPtr<Helper>,
    /// Whether the captured thread has started it, so that it is a helper. Threads that helpers start are not started again in a fork.
    is_helper: bool,
    /// Its id as the server knows it; 0 until it has one.
    id: AtomicU64,
    /// Its id in this process; 0: this process has no such thread.
    here: AtomicU64,
    /// No thread joins it: it was started so, or the server has detached it.
    is_detached: AtomicBool,
    /// Its id means nothing any more.
    is_joined: AtomicBool,
    /// The server has cancelled it. It ends, and is not started again.
    is_cancelled: AtomicBool,
    /// What its routine has returned.
    result: AtomicPtr<c_void>,
    routine: Routine,
    argument: *mut c_void,
    stack_bytes: usize,
    /// Its thread's number; 0 until it runs.
    thread: AtomicI32,
    /// The condition that it waits for, if it rests.
    waits_for: AtomicPtr<libc::pthread_cond_t>,
    /// It has been woken from that wait, and has not rested since.
    is_woken: AtomicBool,
    /// It only frees memory.
    frees: AtomicBool,
    /// Its routine has returned. Its thread may still be about to end, and hold locks of the C library.
    is_over: AtomicBool,
}

impl Helper {
    /// Whether its thread has run and is gone, by whichever way it has ended, so that nothing of it is left to be forked.
    fn is_gone(&self) -> bool {
        self.thread.load(Ordering::SeqCst) != 0 && self.signal(0) != 0
    }

    /// Sends its thread a signal, or none for 0. Returns an errno, or 0.
    fn signal(&self, signal: c_int) -> c_int {
        send(self.thread.load(Ordering::SeqCst), signal)
    }

    /// Whether a server that is about to wait waits for this helper first.
    fn is_awaited(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst) && !self.frees.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst)
    }

    /// Lets its thread, which has been cancelled, find that.
    fn end_wait(&self) {
        let condition = self.waits_for.load(Ordering::SeqCst);
        if !condition.is_null() {
            type Function = unsafe extern "C" fn(*mut libc::pthread_cond_t) -> c_int;
            // SAFETY: it is the C library's function of that name and version, which has this type. The thread waits for the condition, so it is one.
            unsafe { std::mem::transmute::<*mut c_void, Function>(PTHREAD_COND_BROADCAST.address())(condition) };
        }
    }

    /// Ends its thread, which is the calling one, if it has been cancelled.
    fn end_if_cancelled(&self) {
        if self.is_cancelled.load(Ordering::SeqCst) {
            // What `PTHREAD_CANCELED` is.
            self.result.store(std::ptr::without_provenance_mut(usize::MAX), Ordering::SeqCst);
            self.is_over.store(true, Ordering::SeqCst);
            // SAFETY: it ends this thread alone; the kernel tells the C library, so that the thread can be joined.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
    }

    fn rests(&self) -> bool {
        let is_free = || !self.is_woken.load(Ordering::SeqCst) && !self.is_cancelled.load(Ordering::SeqCst);
        !self.waits_for.load(Ordering::SeqCst).is_null() && is_free()
    }
}

// SAFETY: the routine and its argument are only handed to a thread, as the server wanted; the rest does not change or is atomic.
unsafe impl Sync for Helper {}
// SAFETY: as above.
unsafe impl Send for Helper {}

static HELPERS: Mutex<Vec<&'static Helper>> = Mutex::new(Vec::new());
/// The thread that was started last, from which all are found without a lock: the server may ask for them in a handler of signals.
static LAST: AtomicPtr<Helper> = AtomicPtr::new(std::ptr::null_mut());
/// The id of the captured thread, which is the same in every fork; 0: this process is not captured.
static CAPTURED: AtomicU64 = AtomicU64::new(0);
/// The server has faulted, and does what it does at its end.
static HAS_FAULTED: AtomicBool = AtomicBool::new(false);
/// The server has cancelled a thread of its own.
static HAS_CANCELLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SELF: Cell<Option<&'static Helper>> = const { Cell::new(None) };
    /// The server has faulted on the calling thread.
    static HAS_FAULTED_HERE: Cell<bool> = const { Cell::new(false) };
}

extern "C-unwind" fn run(helper: *mut c_void) -> *mut c_void {
    // SAFETY: it was leaked for this thread.
    let helper: &'static Helper = unsafe { &*helper.cast::<Helper>() };
    SELF.set(Some(helper));
    // SAFETY: a plain call.
    let (thread, here) = unsafe { (libc::gettid(), libc::pthread_self()) };
    helper.here.store(here, Ordering::SeqCst);
    // Unless the server has it already, from the call that has started this thread, or this is a fork.
    let _ = helper.id.compare_exchange(0, here, Ordering::SeqCst, Ordering::SeqCst);
    helper.thread.store(thread, Ordering::SeqCst);
    let result = (helper.routine)(helper.argument);
    helper.result.store(result, Ordering::SeqCst);
    helper.is_over.store(true, Ordering::SeqCst);
    result
}

/// # Safety
/// As for `pthread_create`.
unsafe fn create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t, routine: Routine, argument: *mut c_void) -> c_int {
    type Function = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Routine, *mut c_void) -> c_int;
    // SAFETY: it is the C library's function of that name, which has this type.
    let real: Function = unsafe { std::mem::transmute(PTHREAD_CREATE.address()) };
    // SAFETY: as the caller promises.
    unsafe { real(thread, attributes, routine, argument) }
}

/// Starts a thread as the server wants it, as a helper if `is_helper`. Threads of the library's own are not recorded.
///
/// # Safety
/// As for `pthread_create`.
pub unsafe fn start(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
    is_helper: bool,
) -> c_int {
    if !is_helper && are_known() && !is_servers() {
        // SAFETY: as the caller promises.
        return unsafe { create(thread, attributes, routine, argument) };
    }
    let (mut stack_bytes, mut detached) = (0, libc::PTHREAD_CREATE_JOINABLE);
    if !attributes.is_null() {
        // SAFETY: the caller's attributes are initialised.
        unsafe {
            libc::pthread_attr_getstacksize(attributes, &mut stack_bytes);
            pthread_attr_getdetachstate(attributes, &mut detached);
        }
    }
    let helper = Box::leak(Box::new(Helper {
        before: AtomicPtr::new(std::ptr::null_mut()),
        is_helper,
        id: AtomicU64::new(0),
        here: AtomicU64::new(0),
        is_detached: AtomicBool::new(detached == libc::PTHREAD_CREATE_DETACHED),
        is_joined: AtomicBool::new(false),
        is_cancelled: AtomicBool::new(false),
        result: AtomicPtr::new(std::ptr::null_mut()),
        routine,
        argument,
        stack_bytes,
        thread: AtomicI32::new(0),
        waits_for: AtomicPtr::new(std::ptr::null_mut()),
        is_woken: AtomicBool::new(false),
        frees: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    }));
    let helper: &'static Helper = helper;
    // Before it runs: it may end at once.
    if is_helper {
        HELPERS.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
    }
    record(helper);
    // SAFETY: as the caller promises; the helper lives for ever.
    let result = unsafe { create(thread, attributes, run, std::ptr::from_ref(helper).cast_mut().cast()) };
    if result == 0 {
        // SAFETY: the call has written it.
        let id = unsafe { *thread };
        helper.id.store(id, Ordering::SeqCst);
        helper.here.store(id, Ordering::SeqCst);
    } else {
        HELPERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !std::ptr::eq(*other, helper));
    }
    result
}

fn record(helper: &'static Helper) {
    let mut last = LAST.load(Ordering::SeqCst);
    loop {
        helper.before.store(last, Ordering::SeqCst);
        let own = std::ptr::from_ref(helper).cast_mut();
        match LAST.compare_exchange(last, own, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            Err(other) => last = other,
        }
    }
}

/// The threads that the server has started, the last one first.
fn all() -> impl Iterator<Item = &'static Helper> {
    // SAFETY: null, or leaked.
    let at = |place: &AtomicPtr<Helper>| unsafe { place.load(Ordering::SeqCst).as_ref() };
    std::iter::successors(at(&LAST), move |helper| at(&helper.before))
}

/// Whether the calling thread executes the server's code, and not the library's: on the captured thread, on another one of the server's, in a child, or in what
/// the server does after a fault.
fn is_servers() -> bool {
    crate::main_thread::in_server() || SELF.get().is_some() || crate::children::is_child() || HAS_FAULTED_HERE.get()
}

/// The calling thread is the captured one.
pub fn capture() {
    // SAFETY: a plain call.
    CAPTURED.store(unsafe { libc::pthread_self() }, Ordering::SeqCst);
}

/// Whether this process is captured, so that its server's threads are known.
fn are_known() -> bool {
    CAPTURED.load(Ordering::SeqCst) != 0
}

/// Whether the caller is the server, and asks for a thread by an id as it knows it. The library asks for its own threads by the C library's ids.
pub fn asks_by_own_id() -> bool {
    are_known() && is_servers()
}

/// This process is a child of the server's: it has none of the threads.
pub fn forget_all() {
    all().for_each(|helper| helper.here.store(0, Ordering::SeqCst));
}

/// The server has faulted. From here on nothing here takes a lock or waits, since the code that was interrupted may hold any lock.
pub fn fault() {
    HAS_FAULTED_HERE.set(true);
    HAS_FAULTED.store(true, Ordering::SeqCst);
}

/// Whether the server is about to end with a fault: it has faulted, or ends its other threads, as Redis does before it tests the memory of the process.
pub fn is_ending() -> bool {
    HAS_FAULTED.load(Ordering::SeqCst) || HAS_CANCELLED.load(Ordering::SeqCst)
}

/// A thread of the server's.
enum Found {
    Captured,
    Other(&'static Helper),
}

/// The thread that the server means by this id. `None`: it has no such thread.
fn find(id: libc::pthread_t) -> Option<Found> {
    // SAFETY: a plain call.
    let own = unsafe { libc::pthread_self() };
    if let Some(helper) = SELF.get().filter(|_| id == own) {
        return Some(Found::Other(helper));
    }
    if id == CAPTURED.load(Ordering::SeqCst) {
        return Some(Found::Captured);
    }
    // An id that the C library has given to several threads, one after the other, is the last one's. A thread that was started again in a fork may tell the server
    // the id that it has there. That id may be one that the server has had for another thread, and means that one then, also when that one has been joined.
    let by = |of: fn(&Helper) -> &AtomicU64| all().find(|helper| id != 0 && of(helper).load(Ordering::SeqCst) == id);
    let found = by(|helper| &helper.id).or_else(|| by(|helper| &helper.here));
    found.filter(|helper| !helper.is_joined.load(Ordering::SeqCst)).map(Found::Other)
}

/// Sends a signal, or none for 0, to a thread of this process by its number. Returns an errno, or 0.
fn send(thread: i32, signal: c_int) -> c_int {
    // SAFETY: plain system calls.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::syscall(libc::SYS_getpid), thread, signal) };
    if sent == 0 { 0 } else { crate::sys::errno_of(std::io::Error::last_os_error()) }
}

/// `pthread_kill`, for a thread of the server's.
pub fn kill(id: libc::pthread_t, signal: c_int) -> c_int {
    match find(id) {
        // SAFETY: a plain system call. The captured thread is the first of its process.
        Some(Found::Captured) => send(unsafe { libc::syscall(libc::SYS_getpid) } as i32, signal),
        Some(Found::Other(helper)) if helper.here.load(Ordering::SeqCst) != 0 => {
            // It has a number as soon as it runs.
            while helper.thread.load(Ordering::SeqCst) == 0 && !HAS_FAULTED.load(Ordering::SeqCst) {
                // SAFETY: a plain call.
                unsafe { libc::sched_yield() };
            }
            match helper.thread.load(Ordering::SeqCst) {
                0 => libc::ESRCH,
                _ => helper.signal(signal),
            }
        }
        _ => libc::ESRCH,
    }
}

/// `pthread_cancel`, for a thread of the server's, which ends where it waits for a condition. The C library would unwind the library's code, which a release
/// build does not allow. The captured thread cannot be cancelled. After a fault this has no effect: the process is about to end, and threads that were ended
/// only now could not be waited for.
pub fn cancel(id: libc::pthread_t) -> c_int {
    match find(id) {
        Some(Found::Other(helper)) => {
            let here = helper.here.load(Ordering::SeqCst);
            let is_lost = if here == 0 { !helper.is_over.load(Ordering::SeqCst) } else { helper.is_gone() };
            if is_lost && (here == 0 || helper.is_detached.load(Ordering::SeqCst)) {
                return libc::ESRCH;
            }
            helper.is_cancelled.store(true, Ordering::SeqCst);
            HAS_CANCELLED.store(true, Ordering::SeqCst);
            if here != 0 && !HAS_FAULTED.load(Ordering::SeqCst) {
                helper.end_wait();
            }
            0
        }
        Some(Found::Captured) | None => libc::ESRCH,
    }
}

/// `pthread_detach`, for a thread of the server's: `real` is given the thread's id in this process.
pub fn detach(id: libc::pthread_t, real: impl FnOnce(libc::pthread_t) -> c_int) -> c_int {
    let here = match find(id) {
        Some(Found::Captured) => id,
        Some(Found::Other(helper)) if helper.is_detached.swap(true, Ordering::SeqCst) => return libc::EINVAL,
        Some(Found::Other(helper)) => match helper.here.load(Ordering::SeqCst) {
            0 => return if helper.is_over.load(Ordering::SeqCst) { 0 } else { libc::ESRCH },
            here => here,
        },
        None => return libc::ESRCH,
    };
    if HAS_FAULTED.load(Ordering::SeqCst) { 0 } else { real(here) }
}

/// `pthread_join` and its kind, for a thread of the server's: `real` is given the thread's id in this process. A thread that had ended before this process was
/// forked has been joined with that. After a fault no thread is waited for.
///
/// # Safety
/// `result` is a place for a result, or null.
pub unsafe fn join(id: libc::pthread_t, result: *mut *mut c_void, real: impl FnOnce(libc::pthread_t) -> c_int) -> c_int {
    let helper = match find(id) {
        Some(Found::Other(helper)) => helper,
        Some(Found::Captured) if HAS_FAULTED.load(Ordering::SeqCst) => return 0,
        Some(Found::Captured) => return real(id),
        None => return libc::ESRCH,
    };
    if helper.is_detached.load(Ordering::SeqCst) {
        return libc::EINVAL;
    }
    let joined = match helper.here.load(Ordering::SeqCst) {
        _ if HAS_FAULTED.load(Ordering::SeqCst) => 0,
        0 if !helper.is_over.load(Ordering::SeqCst) => return libc::ESRCH,
        0 => {
            if !result.is_null() {
                // SAFETY: as the caller promises.
                unsafe { result.write(helper.result.load(Ordering::SeqCst)) };
            }
            0
        }
        here => {
            while helper.is_cancelled.load(Ordering::SeqCst) && !helper.is_over.load(Ordering::SeqCst) && !helper.is_gone() {
                helper.end_wait();
                // SAFETY: a plain call.
                unsafe { libc::usleep(REST_US) };
            }
            let joined = real(here);
            if joined == 0 && !result.is_null() && helper.is_cancelled.load(Ordering::SeqCst) {
                // SAFETY: as the caller promises.
                unsafe { result.write(helper.result.load(Ordering::SeqCst)) };
            }
            joined
        }
    };
    if joined == 0 {
        helper.is_joined.store(true, Ordering::SeqCst);
        helper.here.store(0, Ordering::SeqCst);
    }
    joined
}

/// `pthread_cond_wait`. A helper that calls it is noted to rest. It ends there if it is cancelled.
///
/// # Safety
/// As for `pthread_cond_wait`.
pub unsafe extern "C-unwind" fn wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*mut libc::pthread_cond_t, *mut libc::pthread_mutex_t) -> c_int;
    // SAFETY: it is the C library's function of that name and version, which has this type.
    let real: Function = unsafe { std::mem::transmute(PTHREAD_COND_WAIT.address()) };
    let helper = SELF.get();
    if let Some(helper) = helper {
        helper.is_woken.store(false, Ordering::SeqCst);
        helper.waits_for.store(condition, Ordering::SeqCst);
        helper.end_if_cancelled();
    }
    // SAFETY: as the caller promises.
    let result = unsafe { real(condition, mutex) };
    if let Some(helper) = helper {
        helper.waits_for.store(std::ptr::null_mut(), Ordering::SeqCst);
        helper.end_if_cancelled();
    }
    result
}

/// `pthread_cond_signal`, or, if `all`, `pthread_cond_broadcast`: a helper that waits for the condition does not rest any more.
///
/// # Safety
/// As for those.
pub unsafe fn wake(condition: *mut libc::pthread_cond_t, all: bool) -> c_int {
    // A child has no helpers, and its copy of the lock may have been taken when it was forked. The code that a fault has interrupted may hold it, too.
    if !crate::children::is_child() && !HAS_FAULTED.load(Ordering::SeqCst) {
        let helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = || helpers.iter().filter(|helper| helper.waits_for.load(Ordering::SeqCst) == condition && helper.rests());
        // Which of several is woken is unknown.
        if all || waiting().count() == 1 {
            waiting().for_each(|helper| helper.is_woken.store(true, Ordering::SeqCst));
        }
    }
    type Function = unsafe extern "C" fn(*mut libc::pthread_cond_t) -> c_int;
    let real = if all { &PTHREAD_COND_BROADCAST } else { &PTHREAD_COND_SIGNAL };
    // SAFETY: it is the C library's function of that name and version, which has this type; the rest as the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, Function>(real.address())(condition) }
}

/// A thread of the server's gives itself this name.
pub fn name(name: &[u8]) {
    if let Some(helper) = SELF.get() {
        helper.frees.store(FREES.contains(&name), Ordering::SeqCst);
    }
}

/// Whether the calling thread is a helper.
pub fn is_helper() -> bool {
    SELF.get().is_some_and(|helper| helper.is_helper)
}

/// Whether the server has started a helper.
pub fn has_helpers() -> bool {
    !HELPERS.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Whether all helpers rest.
pub fn all_rest() -> bool {
    let mut helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    // A fork has no use for those that have ended.
    helpers.retain(|helper| !helper.is_gone());
    helpers.iter().all(|helper| helper.rests())
}

/// The names of the helpers that do not rest.
pub fn restless() -> Vec<String> {
    let helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    let threads: Vec<i32> = helpers.iter().filter(|helper| !helper.rests()).map(|helper| helper.thread.load(Ordering::SeqCst)).collect();
    drop(helpers);
    let name = |thread: i32| std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok();
    threads.into_iter().map(|thread| name(thread).map_or_else(|| "?".into(), |name| name.trim_end().to_owned())).collect()
}

/// Returns when all helpers that the server has woken have finished, except those that only free memory.
pub fn await_rest() {
    while HELPERS.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|helper| helper.is_awaited() && !helper.is_gone()) {
        // SAFETY: a plain call.
        unsafe { libc::usleep(REST_US) };
    }
}

/// Starts the helpers anew, in a fork that was made while they rested. A condition that the old helpers had waited for still counts them as waiting, so a
/// signal would wake one of them and not the new one: so the condition is made anew, too.
///
/// # Safety
/// Only the thread that forked runs here.
pub unsafe fn start_again() {
    let helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    forget_all();
    for helper in helpers.iter() {
        helper.thread.store(0, Ordering::SeqCst);
        let condition = helper.waits_for.swap(std::ptr::null_mut(), Ordering::SeqCst);
        helper.is_woken.store(false, Ordering::SeqCst);
        if !condition.is_null() {
            // SAFETY: the helper waited for it, so it is one; no thread waits for it now.
            unsafe { condition.write(libc::PTHREAD_COND_INITIALIZER) };
        }
    }
    for helper in helpers.iter() {
        // SAFETY: the attributes are initialised by the call that takes them first; the helper lives for ever.
        let result = unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            if helper.stack_bytes > 0 {
                libc::pthread_attr_setstacksize(&mut attributes, helper.stack_bytes);
            }
            let mut thread = 0;
            let result = create(&mut thread, &attributes, run, std::ptr::from_ref(*helper).cast_mut().cast());
            helper.here.store(thread, Ordering::SeqCst);
            if result == 0 && helper.is_detached.load(Ordering::SeqCst) {
                libc::pthread_detach(thread);
            }
            libc::pthread_attr_destroy(&mut attributes);
            result
        };
        if result != 0 {
            crate::sys::die("a helper's thread cannot be started again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place<T>(std::cell::UnsafeCell<T>);

    // SAFETY: only the C library's functions use it.
    unsafe impl<T> Sync for Place<T> {}

    static MUTEX: Place<libc::pthread_mutex_t> = Place(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
    static CONDITION: Place<libc::pthread_cond_t> = Place(std::cell::UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER));

    extern "C-unwind" fn rest(_: *mut c_void) -> *mut c_void {
        // SAFETY: both are initialised. Nobody waits for the lock that a cancelled thread keeps, since each has a turn to get it first.
        unsafe {
            libc::pthread_mutex_lock(MUTEX.0.get());
            loop {
                wait(CONDITION.0.get(), MUTEX.0.get());
            }
        }
    }

    extern "C-unwind" fn of_library(_: *mut c_void) -> *mut c_void {
        loop {
            // SAFETY: a plain call.
            unsafe { libc::pause() };
        }
    }

    fn await_all_rest() {
        while !all_rest() {
            std::thread::yield_now();
        }
    }

    /// Ends all of them. Returns the first check that fails, or 0.
    fn end(ids: &[libc::pthread_t], library: libc::pthread_t) -> c_int {
        let unknown = [(kill(library, 0), 1), (detach(library, |_| 0), 2)];
        // SAFETY: there is no place for results; the lock is one.
        let checks = unsafe {
            let unknown = unknown.into_iter().chain([(cancel(library), 3), (join(library, std::ptr::null_mut(), |_| 0), 4)]);
            let unknown: Vec<_> = unknown.map(|(found, check)| (found == libc::ESRCH, check)).collect();
            let known = ids.iter().map(|id| (kill(*id, 0) == 0, 5)).collect::<Vec<_>>();
            // What has been cancelled keeps the lock, which the next one needs to end.
            let ended = ids.iter().flat_map(|id| {
                let cancelled = cancel(*id) == 0;
                let joined = join(*id, std::ptr::null_mut(), |here| libc::pthread_join(here, std::ptr::null_mut())) == 0;
                libc::pthread_mutex_unlock(MUTEX.0.get());
                let is_gone =
                    cancel(*id) == libc::ESRCH && kill(*id, 0) == libc::ESRCH && join(*id, std::ptr::null_mut(), |_| 0) == libc::ESRCH;
                [(cancelled, 6), (joined, 7), (is_gone, 8)]
            });
            unknown.into_iter().chain(known).chain(ended).collect::<Vec<_>>()
        };
        checks.into_iter().find_map(|(holds, check)| (!holds).then_some(check)).unwrap_or(0)
    }

    #[test]
    fn an_id_means_the_servers_own_thread_also_in_a_fork_and_never_one_of_the_librarys() {
        let start_one = |_| {
            let mut id = 0;
            // SAFETY: the place is live, and there are no attributes.
            assert_eq!(unsafe { start(&mut id, std::ptr::null(), rest, std::ptr::null_mut(), true) }, 0);
            id
        };
        let ids: Vec<libc::pthread_t> = (0..3).map(start_one).collect();
        await_all_rest();
        let start_librarys = || {
            let mut id = 0;
            // SAFETY: as above.
            assert_eq!(unsafe { create(&mut id, std::ptr::null(), of_library, std::ptr::null_mut()) }, 0);
            id
        };
        // SAFETY: the child runs nothing but what is below, and all helpers rest.
        let pid = unsafe { crate::sys::fork() };
        if pid == 0 {
            // It is likely to be given the memory of a thread that its parent has.
            let library = start_librarys();
            // SAFETY: only this thread is the server's.
            unsafe { start_again() };
            await_all_rest();
            // An id that the server knows is its own thread's, whichever other thread has the same id here.
            let code = end(&ids, if ids.contains(&library) { 1 } else { library });
            // What was not joined is alive.
            // SAFETY: plain calls.
            unsafe { libc::_exit(if libc::pthread_kill(library, 0) == 0 { code } else { 10 }) };
        }
        let mut status = 0;
        // SAFETY: the place is live.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "in the fork: {status:#x}");
        assert_eq!(end(&ids, start_librarys()), 0);
        await_all_rest();
        assert!(!has_helpers(), "those that were cancelled are not started again");
    }
}

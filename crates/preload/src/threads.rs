//! The threads that a server has beside the captured one: helpers that wait for work, and execute no requests.
//!
//! A fork has only the thread that made it. So each helper is recorded when it is started, and is started anew in a fork, with the same routine and the same
//! argument. That is right for a helper that rests, that is, waits for a condition: it holds no lock, and has begun nothing. So a replica forks only while all
//! helpers rest.
//!
//! The server may look at what a helper has got to, and act differently at each replica. So a server that is about to wait first lets its helpers finish what
//! it has given them since it last waited. It does not wait for a helper that only frees memory, because the server asks nothing about that except how much
//! memory there is.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use crate::sys::Real;

static PTHREAD_CREATE: Real = Real::new(c"pthread_create");
static PTHREAD_COND_WAIT: Real = Real::versioned(c"pthread_cond_wait", c"GLIBC_2.3.2");
static PTHREAD_COND_SIGNAL: Real = Real::versioned(c"pthread_cond_signal", c"GLIBC_2.3.2");
static PTHREAD_COND_BROADCAST: Real = Real::versioned(c"pthread_cond_broadcast", c"GLIBC_2.3.2");

/// The names that helpers give themselves that only free memory.
const FREES: [&[u8]; 1] = [b"bio_lazy_free"];
/// How often a server that is about to wait checks whether its helpers rest, in microseconds.
const REST_US: u32 = 20;

type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// A helper.
struct Helper {
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
    /// Whether its thread is gone, so that nothing of it is left to be forked.
    fn is_gone(&self) -> bool {
        // SAFETY: a plain system call, which sends nothing.
        let asked = || unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.thread.load(Ordering::SeqCst), 0) };
        self.is_over.load(Ordering::SeqCst) && asked() != 0
    }

    /// Whether a server that is about to wait waits for this helper first.
    fn is_awaited(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst) && !self.frees.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst)
    }

    fn rests(&self) -> bool {
        !self.waits_for.load(Ordering::SeqCst).is_null() && !self.is_woken.load(Ordering::SeqCst)
    }
}

// SAFETY: the routine and its argument are only handed to a thread, as the server wanted; the rest does not change or is atomic.
unsafe impl Sync for Helper {}
// SAFETY: as above.
unsafe impl Send for Helper {}

static HELPERS: Mutex<Vec<&'static Helper>> = Mutex::new(Vec::new());

thread_local! {
    static SELF: Cell<Option<&'static Helper>> = const { Cell::new(None) };
}

extern "C-unwind" fn run(helper: *mut c_void) -> *mut c_void {
    // SAFETY: it was leaked for this thread.
    let helper: &'static Helper = unsafe { &*helper.cast::<Helper>() };
    SELF.set(Some(helper));
    // SAFETY: a plain call.
    helper.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    let result = (helper.routine)(helper.argument);
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

/// Starts a thread as the server wants it. Records it as a helper if `is_helper`.
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
    if !is_helper {
        // SAFETY: as the caller promises.
        return unsafe { create(thread, attributes, routine, argument) };
    }
    let mut stack_bytes = 0;
    if !attributes.is_null() {
        // SAFETY: the caller's attributes are initialised.
        unsafe { libc::pthread_attr_getstacksize(attributes, &mut stack_bytes) };
    }
    let helper = Box::leak(Box::new(Helper {
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
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
    // SAFETY: as the caller promises; the helper lives for ever.
    let result = unsafe { create(thread, attributes, run, std::ptr::from_ref(helper).cast_mut().cast()) };
    if result != 0 {
        HELPERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !std::ptr::eq(*other, helper));
    }
    result
}

/// `pthread_cond_wait`. A helper that calls it is noted to rest.
///
/// # Safety
/// As for `pthread_cond_wait`.
pub unsafe fn wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*mut libc::pthread_cond_t, *mut libc::pthread_mutex_t) -> c_int;
    // SAFETY: it is the C library's function of that name and version, which has this type.
    let real: Function = unsafe { std::mem::transmute(PTHREAD_COND_WAIT.address()) };
    let helper = SELF.get();
    if let Some(helper) = helper {
        helper.is_woken.store(false, Ordering::SeqCst);
        helper.waits_for.store(condition, Ordering::SeqCst);
    }
    // SAFETY: as the caller promises.
    let result = unsafe { real(condition, mutex) };
    if let Some(helper) = helper {
        helper.waits_for.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
    result
}

/// `pthread_cond_signal`, or, if `all`, `pthread_cond_broadcast`: a helper that waits for the condition does not rest any more.
///
/// # Safety
/// As for those.
pub unsafe fn wake(condition: *mut libc::pthread_cond_t, all: bool) -> c_int {
    // A child has no helpers, and its copy of the lock may have been taken when it was forked.
    if !crate::children::is_child() {
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
    SELF.get().is_some()
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
    while HELPERS.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|helper| helper.is_awaited()) {
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
    for helper in helpers.iter() {
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
            libc::pthread_attr_destroy(&mut attributes);
            result
        };
        if result != 0 {
            crate::sys::die("a helper's thread cannot be started again");
        }
    }
}

//! The threads that a server has beside the captured one: helpers that wait for work, and execute no requests.
//!
//! A fork has only the thread that made it. So each helper is recorded when it is started, and is started anew in a fork: the same routine with the same argument. That is
//! right for a helper that rests, waiting for a condition: it holds no lock, and nothing that it had begun. So a replica forks only while all of them do.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::Real;

static PTHREAD_CREATE: Real = Real::new(c"pthread_create");
static PTHREAD_COND_WAIT: Real = Real::versioned(c"pthread_cond_wait", c"GLIBC_2.3.2");

type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// A helper.
struct Helper {
    routine: Routine,
    argument: *mut c_void,
    stack_bytes: usize,
    /// The condition that it waits for, if it rests.
    waits_for: AtomicPtr<libc::pthread_cond_t>,
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
    (helper.routine)(helper.argument)
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

/// Starts a thread as the server wants it, recorded as a helper where `is_helper`.
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
    let helper = Box::leak(Box::new(Helper { routine, argument, stack_bytes, waits_for: AtomicPtr::new(std::ptr::null_mut()) }));
    let helper: &'static Helper = helper;
    // SAFETY: as the caller promises; the helper lives for ever.
    let result = unsafe { create(thread, attributes, run, std::ptr::from_ref(helper).cast_mut().cast()) };
    if result == 0 {
        HELPERS.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
    }
    result
}

/// `pthread_cond_wait`, by which a helper is seen to rest.
///
/// # Safety
/// As for `pthread_cond_wait`.
pub unsafe fn wait(condition: *mut libc::pthread_cond_t, mutex: *mut libc::pthread_mutex_t) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*mut libc::pthread_cond_t, *mut libc::pthread_mutex_t) -> c_int;
    // SAFETY: it is the C library's function of that name and version, which has this type.
    let real: Function = unsafe { std::mem::transmute(PTHREAD_COND_WAIT.address()) };
    let helper = SELF.get();
    if let Some(helper) = helper {
        helper.waits_for.store(condition, Ordering::SeqCst);
    }
    // SAFETY: as the caller promises.
    let result = unsafe { real(condition, mutex) };
    if let Some(helper) = helper {
        helper.waits_for.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
    result
}

/// Whether all helpers rest.
pub fn all_rest() -> bool {
    let helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    helpers.iter().all(|helper| !helper.waits_for.load(Ordering::SeqCst).is_null())
}

/// Starts the helpers anew, in a fork that was made while they rested. A condition that they had waited for still counts them among those who wait, so that it would wake
/// one of them and not the new one: it is made anew, too.
///
/// # Safety
/// Only the thread that forked runs here.
pub unsafe fn start_again() {
    let helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
    for helper in helpers.iter() {
        let condition = helper.waits_for.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if !condition.is_null() {
            // SAFETY: the helper waited for it, so it is one; nobody waits for it now.
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
            crate::sys::die("a helper's thread cannot be started anew");
        }
    }
}

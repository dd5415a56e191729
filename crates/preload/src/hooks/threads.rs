//! The server's other threads: how it starts them, and what it asks for them by their ids.

use std::ffi::{c_int, c_void};

use libc::{clockid_t, pthread_t, timespec};

use super::takes_turns;
use crate::main_thread::{InLibrary, in_server};
use crate::sys::{self, Real};
use crate::{threads, turnstile};

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let is_helper = in_server();
    let _library = is_helper.then(InLibrary::enter);
    if is_helper && turnstile::is_on() {
        return match turnstile::start(routine, argument) {
            Ok(number) => {
                // SAFETY: the caller gives a place for it.
                unsafe { thread.write(number) };
                0
            }
            Err(error) => sys::errno_of(error),
        };
    }
    // SAFETY: as the caller promises.
    unsafe { threads::start(thread, attributes, routine, argument, is_helper) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_join(thread: pthread_t, result: *mut *mut c_void) -> c_int {
    static REAL: Real = Real::versioned(c"pthread_join", c"GLIBC_2.2.5");
    type Function = unsafe extern "C-unwind" fn(pthread_t, *mut *mut c_void) -> c_int;
    if let Some(_library) = takes_turns()
        && turnstile::has(thread)
    {
        let given = turnstile::join(thread);
        if !result.is_null() {
            // SAFETY: the caller gives a place for it.
            unsafe { result.write(given) };
        }
        return 0;
    }
    // SAFETY: it is the C library's function of that name and version, which has this type; the rest as the caller promises.
    let real = |thread| unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(thread, result) };
    // SAFETY: as the caller promises.
    unsafe { joined(thread, result, real) }
}

/// # Safety
/// As for `pthread_join`.
unsafe fn joined(thread: pthread_t, result: *mut *mut c_void, real: impl FnOnce(pthread_t) -> c_int) -> c_int {
    // SAFETY: as the caller promises.
    if threads::asks_by_own_id() { unsafe { threads::join(thread, result, real) } } else { real(thread) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_tryjoin_np(thread: pthread_t, result: *mut *mut c_void) -> c_int {
    static REAL: Real = Real::new(c"pthread_tryjoin_np");
    type Function = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
    // SAFETY: it is the C library's function of that name, which has this type; the rest as the caller promises.
    let real = |thread| unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(thread, result) };
    // SAFETY: as the caller promises.
    unsafe { joined(thread, result, real) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_timedjoin_np(thread: pthread_t, result: *mut *mut c_void, until: *const timespec) -> c_int {
    static REAL: Real = Real::new(c"pthread_timedjoin_np");
    type Function = unsafe extern "C" fn(pthread_t, *mut *mut c_void, *const timespec) -> c_int;
    // SAFETY: it is the C library's function of that name, which has this type; the rest as the caller promises.
    let real = |thread| unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(thread, result, until) };
    // SAFETY: as the caller promises.
    unsafe { joined(thread, result, real) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_clockjoin_np(thread: pthread_t, result: *mut *mut c_void, clock: clockid_t, until: *const timespec) -> c_int {
    static REAL: Real = Real::new(c"pthread_clockjoin_np");
    type Function = unsafe extern "C" fn(pthread_t, *mut *mut c_void, clockid_t, *const timespec) -> c_int;
    // SAFETY: it is the C library's function of that name, which has this type; the rest as the caller promises.
    let real = |thread| unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(thread, result, clock, until) };
    // SAFETY: as the caller promises.
    unsafe { joined(thread, result, real) }
}

/// Calls a function of the C library that takes a thread's id and a number.
///
/// # Safety
/// It is one, and the id is that of a thread.
unsafe fn asked(real: &Real, thread: pthread_t, number: c_int) -> c_int {
    type Function = unsafe extern "C" fn(pthread_t, c_int) -> c_int;
    // SAFETY: as the caller promises; a function that takes fewer arguments leaves the second one alone.
    unsafe { std::mem::transmute::<*mut c_void, Function>(real.address())(thread, number) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    static REAL: Real = Real::new(c"pthread_cancel");
    // SAFETY: as the caller promises.
    if threads::asks_by_own_id() { threads::cancel(thread) } else { unsafe { asked(&REAL, thread, 0) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_kill(thread: pthread_t, signal: c_int) -> c_int {
    static REAL: Real = Real::new(c"pthread_kill");
    // SAFETY: as the caller promises.
    if threads::asks_by_own_id() { threads::kill(thread, signal) } else { unsafe { asked(&REAL, thread, signal) } }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_detach(thread: pthread_t) -> c_int {
    static REAL: Real = Real::new(c"pthread_detach");
    if let Some(_library) = takes_turns()
        && turnstile::has(thread)
    {
        return 0;
    }
    // SAFETY: as the caller promises.
    let real = |thread| unsafe { asked(&REAL, thread, 0) };
    if threads::asks_by_own_id() { threads::detach(thread, real) } else { real(thread) }
}

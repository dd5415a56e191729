//! A second stack for the captured thread. The replica's node runs on it, and the server on its own.
//!
//! Both the node and the server expect to have a thread to themselves until they end. Each gives way to the other where it would wait: the server in its
//! captured calls, the node in the turn that it gives its program. So captured input is not handed from thread to thread, the server's death is the death of
//! the thread that the others watch, and a server that hangs means a node that hangs.

use std::cell::{Cell, UnsafeCell};
use std::io;

use crate::main_thread::Confined;

/// The size of the node's stack, in bytes: the usual size of a thread's.
const STACK_BYTES: usize = 8 << 20;
/// The size of the guard below it, which may not be touched, in bytes.
const GUARD_BYTES: usize = 64 << 10;

struct Contexts {
    server: UnsafeCell<Option<Box<libc::ucontext_t>>>,
    library: UnsafeCell<Option<Box<libc::ucontext_t>>>,
    body: Cell<Option<fn()>>,
    stack: Cell<*mut libc::c_void>,
}

static CONTEXTS: Confined<Contexts> = Confined::new(Contexts {
    server: UnsafeCell::new(None),
    library: UnsafeCell::new(None),
    body: Cell::new(None),
    stack: Cell::new(std::ptr::null_mut()),
});

/// A context that a switch fills.
pub fn blank() -> Box<libc::ucontext_t> {
    // SAFETY: all zeros are a valid value, which getcontext or swapcontext fills before it is used.
    Box::new(unsafe { std::mem::zeroed() })
}

/// Makes the second stack, on which `body` runs when the server next gives way. `body` must not return. An earlier stack, left from before a fork, is unmapped.
///
/// # Errors
/// When there is no memory.
pub fn prepare(body: fn()) -> io::Result<()> {
    let contexts = CONTEXTS.get();
    let (context, base) = context(enter)?;
    let old = contexts.stack.replace(base);
    if !old.is_null() {
        // SAFETY: it was mapped here, before a fork; this thread runs on the server's stack, and nothing will switch back to that one.
        unsafe { libc::munmap(old, STACK_BYTES + GUARD_BYTES) };
    }
    contexts.body.set(Some(body));
    // SAFETY: this thread alone reaches the contexts, and nothing will switch back to those that are replaced.
    unsafe {
        *contexts.library.get() = Some(context);
        *contexts.server.get() = Some(blank());
    }
    Ok(())
}

/// A context that runs `entry`, which must not return, on a stack of its own; and the start of that stack's mapping, which begins with a guard that may not be
/// touched.
///
/// # Errors
/// When there is no memory.
pub fn context(entry: extern "C" fn()) -> io::Result<(Box<libc::ucontext_t>, *mut libc::c_void)> {
    let len = STACK_BYTES + GUARD_BYTES;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses a free range.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut context = blank();
    // SAFETY: the guard is the lowest part of the range just mapped. getcontext fills the context, whose stack is the range above; makecontext has it call `entry` there. The context
    // stays in its box.
    unsafe {
        libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE);
        libc::getcontext(&mut *context);
        context.uc_stack.ss_sp = base.byte_add(GUARD_BYTES);
        context.uc_stack.ss_size = STACK_BYTES;
        context.uc_link = std::ptr::null_mut();
        libc::makecontext(&mut *context, entry, 0);
    }
    Ok((context, base))
}

extern "C" fn enter() {
    if let Some(body) = CONTEXTS.get().body.get() {
        body();
    }
    crate::sys::die("its node has come to an end");
}

fn switch(from: &UnsafeCell<Option<Box<libc::ucontext_t>>>, to: &UnsafeCell<Option<Box<libc::ucontext_t>>>) {
    // SAFETY: this thread alone reaches the contexts. They stay in their boxes until `prepare` replaces them, on the server's stack, when nothing will switch
    // back to them. `to` was filled by `prepare` or by the switch that left it.
    unsafe {
        let from: *mut libc::ucontext_t = (*from.get()).as_deref_mut().expect("prepared");
        let to: *const libc::ucontext_t = (*to.get()).as_deref().expect("prepared");
        libc::swapcontext(from, to);
    }
}

/// Switches from the server's stack to the node's. Returns when the node gives way.
pub fn to_library() {
    let contexts = CONTEXTS.get();
    switch(&contexts.server, &contexts.library);
}

/// Switches from the node's stack to the server's. Returns when the server gives way.
pub fn to_server() {
    let contexts = CONTEXTS.get();
    switch(&contexts.library, &contexts.server);
}

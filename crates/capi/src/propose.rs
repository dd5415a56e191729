//! Commands, and the sessions that make them exactly-once.

use std::ffi::c_void;

use martlet_node::embed::{CallError, SessionCommand};

use crate::bytes::{hand_out, martlet_bytes, room, slice};
use crate::replica::{given, martlet_replica};
use crate::status::martlet_status::MARTLET_OK;
use crate::status::{Failure, call, martlet_status, null, status_of};

/// The longest command. With a majority engine (mu, dare, apus) it is about a quarter of sizes.log_ring_bytes, less headers, where that is less: with the
/// default sizes it is, slightly.
pub const MARTLET_MAX_COMMAND_BYTES: usize = 1 << 20;
const _: () = assert!(MARTLET_MAX_COMMAND_BYTES == martlet_node::embed::MAX_COMMAND_BYTES, "the header says what holds");

/// A command of a session: it takes effect once, however often it is asked for, and of whichever leader.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_session_command {
    /// Which session, as martlet_open_session gave it.
    pub session: u64,
    /// The command's number in it, from 1 on. They are executed in this order; one whose turn it is not is refused.
    pub seq: u64,
    /// The client has the replies to all commands of this session up to this number: they need not be kept.
    pub confirmed: u64,
    /// The command's bytes.
    pub command: *const u8,
    /// How many.
    pub length: usize,
}

/// Told once what came of a call, on the replica's thread or, when it is refused at once, on the caller's. The reply is there while it runs,
/// and empty unless the status is MARTLET_OK. It must be quick, and make no blocking call of this library.
pub type martlet_done = Option<unsafe extern "C" fn(context: *mut c_void, status: martlet_status, reply: *const u8, length: usize)>;

/// Told once which session was opened; 0 unless the status is MARTLET_OK. Otherwise as martlet_done.
pub type martlet_opened = Option<unsafe extern "C" fn(context: *mut c_void, status: martlet_status, session: u64)>;

/// The caller's function and its context, on their way to the replica's thread.
pub(crate) struct Told<F> {
    done: F,
    context: *mut c_void,
}

// SAFETY: whoever supplied the context has promised that the function may be called with it on the replica's thread.
unsafe impl<F> Send for Told<F> {}

impl<F> Told<F> {
    pub fn new(done: Option<F>, context: *mut c_void) -> Result<Told<F>, Failure> {
        Ok(Told { done: done.ok_or_else(|| null("done"))?, context })
    }
}

impl Told<unsafe extern "C" fn(*mut c_void, martlet_status, *const u8, usize)> {
    pub fn tell(self, result: Result<Vec<u8>, CallError>) {
        let (status, reply) = match result {
            Ok(reply) => (MARTLET_OK, reply),
            Err(error) => (status_of(&error), Vec::new()),
        };
        // SAFETY: the caller's function with the caller's context, once; the reply lives until it returns.
        unsafe { (self.done)(self.context, status, reply.as_ptr(), reply.len()) };
    }
}

impl Told<unsafe extern "C" fn(*mut c_void, martlet_status, u64)> {
    fn tell_session(self, result: Result<u64, CallError>) {
        let (status, session) = match result {
            Ok(session) => (MARTLET_OK, session),
            Err(error) => (status_of(&error), 0),
        };
        // SAFETY: the caller's function with the caller's context, once.
        unsafe { (self.done)(self.context, status, session) };
    }
}

/// Proposes a command and waits for its reply, which comes when the command has taken effect and is replicated. Free the reply.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had; `command` points to `length` bytes; `reply` points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_propose(
    replica: *const martlet_replica,
    command: *const u8,
    length: usize,
    reply: *mut martlet_bytes,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, all three.
        let (replica, command, reply) = unsafe { (given(replica)?, slice(command, length, "command")?, room(reply)?) };
        *reply = hand_out(replica.replica.propose(command)?);
        Ok(())
    })
}

/// Proposes a command. `done` is called exactly once with `context` and what came of it, if the status is MARTLET_OK, and else never.
///
/// # Safety
/// As martlet_propose; and `done` may be called with `context` from another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_propose_with(
    replica: *const martlet_replica,
    command: *const u8,
    length: usize,
    done: martlet_done,
    context: *mut c_void,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, both.
        let (replica, command) = unsafe { (given(replica)?, slice(command, length, "command")?) };
        let told = Told::new(done, context)?;
        replica.replica.propose_with(command, move |result| told.tell(result));
        Ok(())
    })
}

/// Opens a session, under whose name commands can be repeated without taking effect twice.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had; `session` points to room for its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_open_session(replica: *const martlet_replica, session: *mut u64) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        if session.is_null() {
            return Err(null("session"));
        }
        let name = replica.replica.open_session()?;
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { session.write(name) };
        Ok(())
    })
}

/// Opens a session; `done` is called exactly once with `context` and its name, if the status is MARTLET_OK, and else never.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had; `done` may be called with `context` from another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_open_session_with(
    replica: *const martlet_replica,
    done: martlet_opened,
    context: *mut c_void,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        let told = Told::new(done, context)?;
        replica.replica.open_session_with(move |result| told.tell_session(result));
        Ok(())
    })
}

/// Forgets a session. One that is not known is no error.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_close_session(replica: *const martlet_replica, session: u64) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        Ok(replica.replica.close_session(session)?)
    })
}

/// Forgets a session; `done` is called as by martlet_propose_with, with an empty reply.
///
/// # Safety
/// As martlet_open_session_with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_close_session_with(
    replica: *const martlet_replica,
    session: u64,
    done: martlet_done,
    context: *mut c_void,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        let told = Told::new(done, context)?;
        replica.replica.close_session_with(session, move |result| told.tell(result.map(|()| Vec::new())));
        Ok(())
    })
}

/// What a caller's session command stands for.
///
/// # Safety
/// `command` is null or points to one, whose bytes are there during `'a`.
unsafe fn in_session<'a>(command: *const martlet_session_command) -> Result<SessionCommand<'a>, Failure> {
    // SAFETY: by the caller's promise.
    let given = unsafe { command.as_ref() }.ok_or_else(|| null("command"))?;
    // SAFETY: by the caller's promise.
    let bytes = unsafe { slice(given.command, given.length, "command->command") }?;
    Ok(SessionCommand { session: given.session, seq: given.seq, confirmed: given.confirmed, command: bytes })
}

/// Proposes a session's command and waits for its reply: the same reply, however often it is asked for. Free the reply.
///
/// # Safety
/// As martlet_propose, for the bytes of the command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_propose_once(
    replica: *const martlet_replica,
    command: *const martlet_session_command,
    reply: *mut martlet_bytes,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, all three.
        let (replica, command, reply) = unsafe { (given(replica)?, in_session(command)?, room(reply)?) };
        *reply = hand_out(replica.replica.propose_once(command)?);
        Ok(())
    })
}

/// Proposes a session's command; `done` is called as by martlet_propose_with.
///
/// # Safety
/// As martlet_propose_with, for the bytes of the command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_propose_once_with(
    replica: *const martlet_replica,
    command: *const martlet_session_command,
    done: martlet_done,
    context: *mut c_void,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, both.
        let (replica, command) = unsafe { (given(replica)?, in_session(command)?) };
        let told = Told::new(done, context)?;
        replica.replica.propose_once_with(command, move |result| told.tell(result));
        Ok(())
    })
}

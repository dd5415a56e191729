//! A replica and its calls.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use martlet_node::embed::{CallError, Replica, RoleChanges, SessionCommand};

use crate::bytes::{hand_out, martlet_bytes, slice, text};
use crate::machine::{Callbacks, martlet_machine};
use crate::status::martlet_status::{self, MARTLET_BAD_ARGUMENT, MARTLET_FAILED, MARTLET_OK};
use crate::status::{Failure, call, null, status_of};

/// The longest command. With the engine mu it is about a quarter of sizes.log_ring_bytes, less headers, where that is less: with the default sizes it is,
/// slightly.
pub const MARTLET_MAX_COMMAND_BYTES: usize = 1 << 20;
const _: () = assert!(MARTLET_MAX_COMMAND_BYTES == martlet_node::embed::MAX_COMMAND_BYTES, "the header says what holds");

/// A replica of a program's state.
pub struct martlet_replica {
    pub(crate) replica: Replica<Callbacks>,
    pub(crate) roles: RoleChanges,
}

/// How a replica is to be started. Zeroes mean that something is not set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_options {
    /// The cluster's configuration file. Must be set.
    pub cluster_file: *const c_char,
    /// Where clients of this program reach this process, as host:port: what the others tell those who ask for the leader. The program
    /// listens there itself.
    pub listen: *const c_char,
    /// The longest that a blocking call takes, in microseconds; 0: as long as it takes.
    pub timeout_us: u64,
    /// How many calls may wait at once; 0: as many as the library thinks good.
    pub max_waiting: usize,
    /// Which node of the cluster this process is.
    pub node: u16,
    /// What an acknowledged command outlives: "memory", "async" or "sync", the same for all replicas; NULL: as the cluster's file says. Beyond memory the
    /// cluster's engine has to be mu.
    pub durability: *const c_char,
    /// Where this replica keeps its data, if it keeps any on a disk: a directory of its own; NULL: as the cluster's file says.
    pub directory: *const c_char,
}

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

/// What a caller's handle stands for.
///
/// # Safety
/// `replica` is null or one that `martlet_start` gave and `martlet_stop` has not had.
pub(crate) unsafe fn given<'a>(replica: *const martlet_replica) -> Result<&'a martlet_replica, Failure> {
    // SAFETY: the caller's promise; the value is only ever shared.
    unsafe { replica.as_ref() }.ok_or_else(|| null("replica"))
}

/// Starts a replica with an empty state, and gives its handle. The options and the machine are copied; the machine's context is not. It returns
/// when the replica is on the fabric, which is before it has a part in the cluster: see martlet_next_role. When it fails, drop is called if
/// that is set, unless an argument was refused.
///
/// # Safety
/// The pointers are null or point to what their types say; the machine's callbacks may be called with its context, from another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_start(
    options: *const martlet_options,
    machine: *const martlet_machine,
    replica: *mut *mut martlet_replica,
) -> martlet_status {
    call(|| {
        if replica.is_null() {
            return Err(null("replica"));
        }
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { replica.write(std::ptr::null_mut()) };
        // SAFETY: by the caller's promise.
        let options = unsafe { options.as_ref() }.ok_or_else(|| null("options"))?;
        // SAFETY: by the caller's promise.
        let machine = unsafe { machine.as_ref() }.ok_or_else(|| null("machine"))?;
        // SAFETY: by the caller's promise.
        let file = unsafe { text(options.cluster_file, "options->cluster_file") }?.ok_or_else(|| null("options->cluster_file"))?;
        // SAFETY: by the caller's promise.
        let listen = unsafe { text(options.listen, "options->listen") }?;
        let mut builder = Replica::builder().cluster_file(file).node(options.node);
        if let Some(listen) = listen {
            builder = builder.listen(listen);
        }
        // SAFETY: by the caller's promise.
        if let Some(durability) = unsafe { text(options.durability, "options->durability") }? {
            builder = builder.durability(
                durability
                    .parse()
                    .map_err(|why: String| Failure(MARTLET_BAD_ARGUMENT, format!("the argument `options->durability`: {why}")))?,
            );
        }
        // SAFETY: by the caller's promise.
        if let Some(directory) = unsafe { text(options.directory, "options->directory") }? {
            builder = builder.directory(directory);
        }
        if options.timeout_us > 0 {
            builder = builder.timeout(Duration::from_micros(options.timeout_us));
        }
        if options.max_waiting > 0 {
            builder = builder.max_waiting(options.max_waiting);
        }
        // Last of all: dropped, it drops the program's context, which is the program's still if an argument is refused.
        let machine = Callbacks::new(machine).map_err(null)?;
        let started = builder.start(machine).map_err(|error| Failure(MARTLET_FAILED, error.to_string()))?;
        let roles = started.roles();
        // SAFETY: as above.
        unsafe { replica.write(Box::into_raw(Box::new(martlet_replica { replica: started, roles }))) };
        Ok(())
    })
}

/// Asks the replica to leave the cluster in order and end, without waiting; from any thread, in a callback, and from a signal handler. Calls that are under
/// way, and those that are made from now on, end by themselves: with MARTLET_SHUTTING_DOWN unless they were executed, and martlet_next_role with
/// MARTLET_STOPPED once it has ended. So whoever has threads in calls asks for the end first, joins them, and calls martlet_stop then. Asked for a second
/// time it ends without waiting for the others to take note. Null is allowed.
///
/// # Safety
/// `replica` is null or one that martlet_start gave and martlet_stop has not had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_request_stop(replica: *const martlet_replica) {
    // Nothing here allocates, locks or notes an error's text: this may be a signal handler.
    // SAFETY: the caller's promise; the value is only ever shared.
    if let Some(replica) = unsafe { replica.as_ref() } {
        replica.replica.request_stop();
    }
}

/// Leaves the cluster in order, waits for the end, and frees the handle, whatever the status; not from a callback: then the status is
/// MARTLET_ON_REPLICA_THREAD, and nothing has happened. What was executed is answered, and the callbacks of all calls have run. Null is allowed.
///
/// # Safety
/// `replica` is null or one that martlet_start gave, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_stop(replica: *mut martlet_replica) -> martlet_status {
    call(|| {
        if replica.is_null() {
            return Ok(());
        }
        // SAFETY: it is not null, and the caller's promise.
        if std::thread::current().id() == unsafe { &*replica }.replica.thread() {
            return Err(Failure::from(CallError::OnReplicaThread));
        }
        // SAFETY: `martlet_start` made it of a box, and by the caller's promise nobody uses it any more.
        let replica = unsafe { Box::from_raw(replica) };
        replica.replica.stop().map_err(|error| Failure(MARTLET_FAILED, error.to_string()))?;
        Ok(())
    })
}

/// Where a blocking call puts its reply: emptied first, so that it can be freed whatever happens.
///
/// # Safety
/// `reply` is null or points to room for bytes.
unsafe fn room<'a>(reply: *mut martlet_bytes) -> Result<&'a mut martlet_bytes, Failure> {
    if reply.is_null() {
        return Err(null("reply"));
    }
    // SAFETY: it is not null, and by the caller's promise there is room, for this caller alone.
    unsafe {
        reply.write(martlet_bytes { data: std::ptr::null_mut(), length: 0 });
        Ok(&mut *reply)
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

/// The caller's function and its context, on their way to the replica's thread.
struct Told {
    done: unsafe extern "C" fn(*mut c_void, martlet_status, *const u8, usize),
    context: *mut c_void,
}

// SAFETY: whoever supplied the context has promised that the function may be called with it on the replica's thread.
unsafe impl Send for Told {}

impl Told {
    fn new(done: martlet_done, context: *mut c_void) -> Result<Told, Failure> {
        Ok(Told { done: done.ok_or_else(|| null("done"))?, context })
    }

    fn tell(self, result: Result<Vec<u8>, CallError>) {
        let (status, reply) = match result {
            Ok(reply) => (MARTLET_OK, reply),
            Err(error) => (status_of(&error), Vec::new()),
        };
        // SAFETY: the caller's function with the caller's context, once; the reply lives until it returns.
        unsafe { (self.done)(self.context, status, reply.as_ptr(), reply.len()) };
    }
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

/// Asks the machine's query, linearizably: the answer is of a moment between call and return, and has every command in it that had been
/// answered before the call. It costs no message with the engine primary-backup, which holds a lease, and a word to each follower with mu. Free the reply.
///
/// # Safety
/// As martlet_propose, for the bytes of the query.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_read(
    replica: *const martlet_replica,
    query: *const u8,
    length: usize,
    reply: *mut martlet_bytes,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, all three.
        let (replica, query, reply) = unsafe { (given(replica)?, slice(query, length, "query")?, room(reply)?) };
        *reply = hand_out(replica.replica.query(query)?);
        Ok(())
    })
}

/// Hands leadership over to whoever comes next. Returns when somebody else leads, or is named as the one who does: with the engine mu this replica
/// follows then, with primary-backup it has left the cluster in order and joins it again. Calls that come meanwhile are told MARTLET_NOT_LEADER. The
/// status is MARTLET_NOT_HANDED_OVER when leadership was lost on the way and did not go to another replica; martlet_error says who leads.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_transfer_leadership(replica: *const martlet_replica) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        Ok(replica.replica.transfer_leadership()?)
    })
}

/// Hands leadership over to the replica of this node; MARTLET_NOT_HANDED_OVER when it went to another one. With the engine primary-backup the successor
/// cannot be chosen: there the status is MARTLET_NO_SUCCESSOR for any node but the one that comes next.
///
/// # Safety
/// As martlet_transfer_leadership.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_transfer_leadership_to(replica: *const martlet_replica, node: u16) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        Ok(replica.replica.transfer_leadership_to(node)?)
    })
}

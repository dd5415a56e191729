//! How calls end.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use martlet_node::config::ConfigError;
use martlet_node::embed::{CallError, StartError, StopError};
use martlet_node::{DiskError, RunError};

/// How a call ended. Only MARTLET_OUTCOME_UNKNOWN leaves open whether a command has taken effect; after any other but MARTLET_OK,
/// MARTLET_CONFIRMED and MARTLET_REPLY_TOO_LONG it has not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum martlet_status {
    /// Well.
    MARTLET_OK = 0,
    /// This replica does not lead. martlet_role says who does.
    MARTLET_NOT_LEADER = 1,
    /// The log has no room for more, and as many calls wait as may.
    MARTLET_LOG_FULL = 2,
    /// The command is longer than is allowed: than MARTLET_MAX_COMMAND_BYTES, or with a majority engine (mu, dare, apus) than about a quarter of the log where
    /// that is less; martlet_error has the limit.
    MARTLET_TOO_LONG = 3,
    /// The command may have taken effect, or may yet. A session's command can be asked for again, of whoever leads then.
    MARTLET_OUTCOME_UNKNOWN = 4,
    /// The time allowed ran out on a call that changes no state. Leadership may still be handed over after it.
    MARTLET_TIMED_OUT = 5,
    /// This replica is shutting down, or has.
    MARTLET_SHUTTING_DOWN = 6,
    /// A blocking call from a callback, which would wait for itself.
    MARTLET_ON_REPLICA_THREAD = 7,
    /// The session was never opened, or closed, or has been forgotten.
    MARTLET_SESSION_UNKNOWN = 8,
    /// A session's command whose turn it is not: commands of a session are numbered from 1 on, without a gap.
    MARTLET_OUT_OF_TURN = 9,
    /// A session's command whose reply was confirmed, and is not kept any more. It took effect once.
    MARTLET_CONFIRMED = 10,
    /// The session has as many replies that were not confirmed as are kept, or as many bytes of them.
    MARTLET_TOO_MANY_UNCONFIRMED = 11,
    /// Leadership cannot be handed over: nobody else holds the whole state, or not the one who was to have it.
    MARTLET_NO_SUCCESSOR = 12,
    /// An argument that must not be is null.
    MARTLET_NULL_ARGUMENT = 13,
    /// An argument has a value that is not allowed; martlet_error names it.
    MARTLET_BAD_ARGUMENT = 14,
    /// The replica did not start, or did not end in order, for another reason than its disk; martlet_error says why.
    MARTLET_FAILED = 15,
    /// There is nothing more, or nothing yet.
    MARTLET_NOTHING = 16,
    /// A panic inside of the library: a fault of it. Where the library was built to unwind, the process goes on; as it is usually built it ends.
    MARTLET_PANICKED = 17,
    /// Leadership was lost before it was handed over, and did not go to the successor. If no leader is known, it may still go there.
    MARTLET_NOT_HANDED_OVER = 18,
    /// Leadership is being handed over to another replica than the one asked for now.
    MARTLET_HANDING_OVER = 19,
    /// A session's command that was executed before, with a reply of more than 512 MiB, which is not kept. It took effect once.
    MARTLET_REPLY_TOO_LONG = 20,
    /// As many calls wait as may, and the replica gets on with them: ask again.
    MARTLET_BUSY = 21,
    /// The disk refuses, or what stands there is not what was written: the replica did not start, or has ended. martlet_error names the file.
    MARTLET_DISK_FAILED = 22,
}

use martlet_status::*;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// An ending with its text.
#[derive(Clone)]
pub(crate) struct Failure(pub martlet_status, pub String);

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        Failure(status_of(&error), error.to_string())
    }
}

impl Failure {
    pub fn of_start(error: StartError) -> Failure {
        let status = match &error {
            StartError::Given { call, error } => {
                // Options of a replica's thread are fields of their own here.
                let field = match &**error {
                    ConfigError::Value { key, .. } => key.strip_prefix("threads.").unwrap_or(call),
                    _ => call,
                };
                // No bad argument: the machine's context has been taken over.
                let Failure(_, text) = bad(&format!("options->{field}"), format_args!(": {error}"));
                return Failure(MARTLET_FAILED, text);
            }
            StartError::Run(error) => of_run(error),
            StartError::Panicked(_) => MARTLET_PANICKED,
            StartError::Missing { .. } | StartError::Value { .. } | StartError::Config(_) | StartError::System { .. } => MARTLET_FAILED,
        };
        Failure(status, error.to_string())
    }

    pub fn of_stop(error: StopError) -> Failure {
        let status = match &error {
            StopError::Run(error) => of_run(error),
            StopError::Panicked(_) => MARTLET_PANICKED,
            StopError::Elsewhere => MARTLET_FAILED,
        };
        Failure(status, error.to_string())
    }
}

fn of_run(error: &RunError) -> martlet_status {
    match error {
        // Chance is no disk's, though it is a disk's log that needs it.
        RunError::Disk { error: DiskError::Chance(_), .. } => MARTLET_FAILED,
        RunError::Disk { .. } => MARTLET_DISK_FAILED,
        RunError::Fabric { .. }
        | RunError::Warden { .. }
        | RunError::DeathWords { .. }
        | RunError::Limit { .. }
        | RunError::System { .. }
        | RunError::Removed { .. }
        | RunError::OnCommit { .. }
        | RunError::Cores { .. }
        | RunError::NothingHeld { .. }
        | RunError::Level { .. }
        | RunError::Build { .. }
        | RunError::Unreadable { .. } => MARTLET_FAILED,
    }
}

pub(crate) fn status_of(error: &CallError) -> martlet_status {
    match error {
        CallError::NotLeader { .. } => MARTLET_NOT_LEADER,
        CallError::LogFull { .. } => MARTLET_LOG_FULL,
        CallError::Busy { .. } => MARTLET_BUSY,
        CallError::TooLong { .. } => MARTLET_TOO_LONG,
        CallError::OutcomeUnknown => MARTLET_OUTCOME_UNKNOWN,
        CallError::TimedOut => MARTLET_TIMED_OUT,
        CallError::ShuttingDown => MARTLET_SHUTTING_DOWN,
        CallError::OnReplicaThread => MARTLET_ON_REPLICA_THREAD,
        CallError::SessionUnknown { .. } => MARTLET_SESSION_UNKNOWN,
        CallError::OutOfTurn { .. } => MARTLET_OUT_OF_TURN,
        CallError::Confirmed { .. } => MARTLET_CONFIRMED,
        CallError::TooManyUnconfirmed { .. } => MARTLET_TOO_MANY_UNCONFIRMED,
        CallError::ReplyTooLong { .. } => MARTLET_REPLY_TOO_LONG,
        CallError::NoSuccessor => MARTLET_NO_SUCCESSOR,
        CallError::HandingOver => MARTLET_HANDING_OVER,
        CallError::NotHandedOver { .. } => MARTLET_NOT_HANDED_OVER,
        CallError::Metrics(_) => MARTLET_FAILED,
    }
}

/// Refuses a null pointer by its argument's name.
pub(crate) fn null(name: &str) -> Failure {
    Failure(MARTLET_NULL_ARGUMENT, format!("the argument `{name}` is null"))
}

/// Refuses an argument by its name; `why` goes on behind it.
pub(crate) fn bad(name: &str, why: impl Display) -> Failure {
    let why = why.to_string();
    // A text of its own about the value stands behind a colon.
    let space = if why.starts_with(':') { "" } else { " " };
    Failure(MARTLET_BAD_ARGUMENT, format!("the argument `{name}`{space}{why}"))
}

/// Runs a call: its failure's text is kept for this thread, and no panic crosses.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> martlet_status {
    // Nothing that a panic has left half done is used again: calls change nothing of their own.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => MARTLET_OK,
        Ok(Err(Failure(status, text))) => {
            keep(text);
            status
        }
        Err(_) => {
            keep("the library panicked".into());
            MARTLET_PANICKED
        }
    }
}

fn keep(text: String) {
    // A text with a NUL in it ends there.
    let text = CString::new(text).unwrap_or_else(|error| {
        let end = error.nul_position();
        CString::new(&error.into_vec()[..end]).unwrap_or_default()
    });
    LAST.with(|last| *last.borrow_mut() = text);
}

/// The text of the last call on this thread that did not return MARTLET_OK; empty when there was none. It stands until the next such call on
/// this thread, or the thread's end.
#[unsafe(no_mangle)]
pub extern "C" fn martlet_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// A short text for a status; never null. `status` is an int, so that any value will do.
#[unsafe(no_mangle)]
pub extern "C" fn martlet_status_text(status: i32) -> *const c_char {
    let text: &CStr = match status {
        0 => c"success",
        1 => c"not the leader",
        2 => c"the log is full",
        3 => c"the command is too long",
        4 => c"the outcome is unknown",
        5 => c"timed out",
        6 => c"shutting down",
        7 => c"a blocking call from a callback",
        8 => c"the session is unknown",
        9 => c"the command is out of turn",
        10 => c"the reply was confirmed and is no longer kept",
        11 => c"too many unconfirmed replies",
        12 => c"no replica can take over",
        13 => c"an argument is null",
        14 => c"an argument is not allowed",
        15 => c"failed",
        16 => c"nothing yet, or nothing more",
        17 => c"the library panicked",
        18 => c"leadership was not handed over",
        19 => c"leadership is being handed over to another replica",
        20 => c"the reply was too long to keep",
        21 => c"too many calls wait",
        22 => c"the disk has failed",
        _ => c"not a status of Martlet",
    };
    text.as_ptr()
}

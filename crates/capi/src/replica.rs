//! A replica, from its start to its end.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use martlet_node::embed::{CallError, Replica, RoleChanges};

use crate::machine::{Callbacks, martlet_machine};
use crate::options::{martlet_options, sized};
use crate::status::martlet_status::MARTLET_FAILED;
use crate::status::{Failure, call, martlet_status, null};

/// A replica of a program's state.
pub struct martlet_replica {
    pub(crate) replica: Replica<Callbacks>,
    pub(crate) roles: RoleChanges,
    /// Where its thread runs, as a text of C.
    placement: CString,
    /// How it ended, for everybody who asks.
    ended: OnceLock<Result<(), Failure>>,
}

impl martlet_replica {
    pub(crate) fn runs_here(&self) -> bool {
        std::thread::current().id() == self.replica.thread()
    }

    /// Waits for the end. A thread that comes while another one waits, waits with it.
    fn join(&self) -> Result<(), Failure> {
        self.ended.get_or_init(|| self.replica.join().map(drop).map_err(Failure::of_stop)).clone()
    }
}

/// How a replica has been set up.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_setup {
    /// Which life of the node this process is: larger than that of every earlier process of this node.
    pub incarnation: u64,
    /// How far the clocks of two cores may differ, in nanoseconds; it has been subtracted from leases.
    pub skew_ns: u64,
    /// Where the replica's thread runs and how the scheduler treats it, for a log; it stands until martlet_stop.
    pub placement: *const c_char,
    /// The core that the replica's thread is bound to; -1: none.
    pub core: i32,
    /// Which node of the cluster this process is.
    pub node: u32,
    /// For versions to come; zero.
    pub reserved: [u64; 4],
}

/// The version of this library, such as "0.1.0". Those that differ in the last number alone have the same interface.
#[unsafe(no_mangle)]
pub extern "C" fn martlet_version() -> *const c_char {
    const VERSION: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("cargo knows no version with a NUL in it"),
    };
    VERSION.as_ptr()
}

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
        // SAFETY: by the caller's promise; both begin with their sizes, and are numbers and pointers, and functions that may be null.
        let (options, machine) = unsafe { (sized(options, "options")?, sized(machine, "machine")?) };
        // SAFETY: by the caller's promise.
        let wanted = unsafe { options.wanted() }?;
        // Last of all: dropped, it drops the program's context, which is the program's still if an argument is refused.
        let machine = Callbacks::new(&machine)?;
        let started = wanted.builder().and_then(|builder| builder.start(machine)).map_err(Failure::of_start)?;
        let roles = started.roles();
        let placement = CString::new(started.started().placement.to_string()).unwrap_or_default();
        let handle = martlet_replica { replica: started, roles, placement, ended: OnceLock::new() };
        // SAFETY: as above.
        unsafe { replica.write(Box::into_raw(Box::new(handle))) };
        Ok(())
    })
}

/// How the replica has been set up: which life of which node it is, and on which core its thread runs.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had; `setup` points to room for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_started(replica: *const martlet_replica, setup: *mut martlet_setup) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        if setup.is_null() {
            return Err(null("setup"));
        }
        let started = replica.replica.started();
        let answer = martlet_setup {
            incarnation: started.process.incarnation.0,
            skew_ns: started.skew_ns,
            placement: replica.placement.as_ptr(),
            core: started.placement.core.map_or(-1, i32::from),
            node: u32::from(started.process.node.0),
            reserved: [0; 4],
        };
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { setup.write(answer) };
        Ok(())
    })
}

/// 1 on the replica's own thread, on which the machine's callbacks and those of calls run, and which no blocking call may be made on; else 0.
///
/// # Safety
/// `replica` is null or one that martlet_start gave and martlet_stop has not had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_on_replica_thread(replica: *const martlet_replica) -> c_int {
    // SAFETY: by the caller's promise.
    c_int::from(unsafe { given(replica) }.is_ok_and(martlet_replica::runs_here))
}

/// Makes SIGTERM and SIGINT ask for the replica's end, as martlet_request_stop does, and SIGPIPE harmless. System calls that a signal interrupts go on; so
/// a program that waits for its end waits in martlet_join. One replica of a process can have the signals, until martlet_stop has had it: for another the
/// status is MARTLET_FAILED.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_on_signals(replica: *const martlet_replica) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        replica.replica.stop_handle().on_signals().map_err(|error| Failure(MARTLET_FAILED, error.to_string()))
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

/// Waits until the replica has ended, without asking for it, and says why: MARTLET_OK when it was asked to, MARTLET_DISK_FAILED when its disk or what stands
/// there ended it, with the file's name in martlet_error. Any number of threads may wait, and the answer stays the same. What was executed is answered
/// then, and the callbacks of all calls have run. The handle is still to be freed with martlet_stop. Not from a callback: then the status is
/// MARTLET_ON_REPLICA_THREAD.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had, nor gets before this has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_join(replica: *const martlet_replica) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        if replica.runs_here() {
            return Err(Failure::from(CallError::OnReplicaThread));
        }
        replica.join()
    })
}

/// Leaves the cluster in order, waits for the end, and frees the handle, whatever the status, which is that of martlet_join; not from a callback: then it is
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
        if unsafe { &*replica }.runs_here() {
            return Err(Failure::from(CallError::OnReplicaThread));
        }
        // SAFETY: `martlet_start` made it of a box, and by the caller's promise nobody uses it any more.
        let replica = unsafe { Box::from_raw(replica) };
        // A second request would cut an orderly end short that somebody else has asked for.
        replica.replica.stop_handle().request_once();
        replica.join()
    })
}

/// Hands leadership over to the next replica. Returns when another replica leads, or is named as the leader. With a majority engine (mu, dare, apus) this
/// replica follows then. With an engine that follows views (primary-backup, hsuc, huc) it has left the cluster in order and joins it again. Calls that come
/// meanwhile are told MARTLET_NOT_LEADER. The status is MARTLET_NOT_HANDED_OVER when leadership was lost on the way and did not go to another replica;
/// martlet_error says who leads.
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

/// Hands leadership over to the replica of this node; MARTLET_NOT_HANDED_OVER when it went to another one. With an engine that follows views (primary-backup,
/// hsuc, huc) the successor cannot be chosen: there the status is MARTLET_NO_SUCCESSOR for any node but the one that comes next. If this replica leads and is
/// named, the status is MARTLET_OK, and nothing changes.
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

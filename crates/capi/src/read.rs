//! Reads.

use std::ffi::c_void;

use martlet_node::embed::StateMachine as _;

use crate::bytes::{hand_out, martlet_bytes, room, slice};
use crate::machine::Callbacks;
use crate::propose::{Told, martlet_done};
use crate::replica::{given, martlet_replica};
use crate::status::{call, martlet_status};

/// Asks the machine what it was asked, where it is.
fn asking(query: &[u8]) -> impl FnOnce(&Callbacks) -> Vec<u8> + Send + 'static {
    let query = query.to_vec();
    move |machine| {
        let mut reply = Vec::new();
        machine.query(&query, &mut reply);
        reply
    }
}

/// Asks the machine's query, linearizably: the answer is of a moment between call and return, and has every command in it that had been
/// answered before the call. It costs no message with an engine that follows views (primary-backup, hsuc, huc), which checks the lease that it holds. With a
/// majority engine (mu, dare, apus) it costs one access to each follower's memory. Free the reply.
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
        *reply = hand_out(replica.replica.read(asking(query))?);
        Ok(())
    })
}

/// Asks the machine's query, linearizably; `done` is called as by martlet_propose_with, with the answer.
///
/// # Safety
/// As martlet_propose_with, for the bytes of the query.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_read_with(
    replica: *const martlet_replica,
    query: *const u8,
    length: usize,
    done: martlet_done,
    context: *mut c_void,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, both.
        let (replica, query) = unsafe { (given(replica)?, slice(query, length, "query")?) };
        let told = Told::new(done, context)?;
        replica.replica.read_with(asking(query), move |result| told.tell(result));
        Ok(())
    })
}

/// Asks the machine's query, linearizably and without trusting any clock. It promises what martlet_read promises. But with an engine that follows views
/// (primary-backup, hsuc, huc), too, it is a majority of the coordinators that says that no other replica can have led, and not the lease alone. They are asked
/// once the query has been answered and all that it saw is replicated. With a majority engine (mu, dare, apus) it is martlet_read. It costs a word read from
/// each coordinator, which all calls that wait share; calls executed behind it wait with it. While no majority can be reached it waits, until this replica hears
/// that it leads no more (MARTLET_NOT_LEADER) or the time allowed has passed (MARTLET_TIMED_OUT). Commands need no such thing: a leader that has been succeeded
/// acknowledges nothing that its successor has not found. Free the reply.
///
/// # Safety
/// As martlet_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_read_by_quorum(
    replica: *const martlet_replica,
    query: *const u8,
    length: usize,
    reply: *mut martlet_bytes,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, all three.
        let (replica, query, reply) = unsafe { (given(replica)?, slice(query, length, "query")?, room(reply)?) };
        *reply = hand_out(replica.replica.query_by_quorum(query)?);
        Ok(())
    })
}

/// Asks the machine's query, linearizably and by a quorum, as martlet_read_by_quorum does; `done` is called as by martlet_propose_with, with the answer.
///
/// # Safety
/// As martlet_propose_with, for the bytes of the query.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_read_by_quorum_with(
    replica: *const martlet_replica,
    query: *const u8,
    length: usize,
    done: martlet_done,
    context: *mut c_void,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, both.
        let (replica, query) = unsafe { (given(replica)?, slice(query, length, "query")?) };
        let told = Told::new(done, context)?;
        replica.replica.read_by_quorum_with(asking(query), move |result| told.tell(result));
        Ok(())
    })
}

/// Asks the query of this replica's machine as it is, whoever leads: a follower's lags behind, a replica's that joins is in parts, and a leader's may hold what
/// is not replicated yet and can be lost. Free the reply.
///
/// # Safety
/// As martlet_propose, for the bytes of the query.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_read_stale(
    replica: *const martlet_replica,
    query: *const u8,
    length: usize,
    reply: *mut martlet_bytes,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise, all three.
        let (replica, query, reply) = unsafe { (given(replica)?, slice(query, length, "query")?, room(reply)?) };
        *reply = hand_out(replica.replica.read_stale(asking(query))?);
        Ok(())
    })
}

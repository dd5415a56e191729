//! Roles and their changes.

use std::ffi::c_char;
use std::time::Duration;

use martlet_node::embed::{CallError, Role, RoleChange};

use crate::replica::{given, martlet_replica};
use crate::status::martlet_status::MARTLET_NOTHING;
use crate::status::{Failure, call, martlet_status, null};

/// The longest address of a leader, with its NUL.
pub const MARTLET_ADDRESS_BYTES: usize = 97;

/// What a replica is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum martlet_role_kind {
    /// It leads: proposals and reads are taken here.
    MARTLET_LEADER = 1,
    /// It follows, or is on its way into the cluster.
    MARTLET_FOLLOWER = 2,
    /// The others have removed it, or it handed its leadership over with an engine that follows views (primary-backup, hsuc, huc); it comes back by itself.
    MARTLET_REJOINING = 3,
    /// It has ended.
    MARTLET_STOPPED = 4,
}

/// A replica's role from some moment on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_role_change {
    /// What the replica is.
    pub role: martlet_role_kind,
    /// Of a follower: the node that leads, as far as it knows; else, and when that is not known, -1.
    pub leader: i32,
    /// Where the leader's clients reach it; empty when there is none.
    pub leader_address: [c_char; MARTLET_ADDRESS_BYTES],
    /// The newest view of the cluster that the replica knew then.
    pub view: u64,
    /// When, on the host's clock since its start, in nanoseconds.
    pub at_ns: u64,
    /// Of a leader, by which systems outside can tell it from earlier ones: whoever leads later has a larger one, whichever replica it is. 0: it does not lead.
    pub fencing_token: u64,
    /// For versions to come; zero.
    pub reserved: [u64; 4],
}

impl From<RoleChange> for martlet_role_change {
    fn from(change: RoleChange) -> Self {
        let (role, leader) = match change.role {
            Role::Leader => (martlet_role_kind::MARTLET_LEADER, None),
            Role::Follower { leader } => (martlet_role_kind::MARTLET_FOLLOWER, leader),
            Role::Rejoining => (martlet_role_kind::MARTLET_REJOINING, None),
            Role::Stopped => (martlet_role_kind::MARTLET_STOPPED, None),
        };
        let mut leader_address = [0; MARTLET_ADDRESS_BYTES];
        let address = leader.as_ref().and_then(|leader| leader.address.as_deref()).unwrap_or("");
        // Shorter than the field by what the configuration allows; the last byte stays 0 in any case.
        for (to, from) in leader_address[..MARTLET_ADDRESS_BYTES - 1].iter_mut().zip(address.bytes()) {
            *to = from as c_char;
        }
        let leader = leader.map_or(-1, |leader| i32::from(leader.node));
        let fencing_token = change.fencing_token.unwrap_or_default();
        martlet_role_change { role, leader, leader_address, view: change.view, at_ns: change.at_ns, fencing_token, reserved: [0; 4] }
    }
}

/// What the replica is just now.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had; `role` points to room for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_role(replica: *const martlet_replica, role: *mut martlet_role_change) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        if role.is_null() {
            return Err(null("role"));
        }
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { role.write(replica.replica.role().into()) };
        Ok(())
    })
}

/// The next change of the replica's role, in order; the first is what it was when it started. Waits for it for up to `timeout_us`
/// microseconds; then, and behind MARTLET_STOPPED, the status is MARTLET_NOTHING. Every change is given out once, to whichever thread asks. In a callback a
/// timeout other than 0 is refused with MARTLET_ON_REPLICA_THREAD: it is that thread which brings the changes.
///
/// # Safety
/// As martlet_role.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_next_role(
    replica: *const martlet_replica,
    timeout_us: u64,
    role: *mut martlet_role_change,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        if role.is_null() {
            return Err(null("role"));
        }
        let change = match timeout_us {
            0 => replica.roles.try_next(),
            _ if replica.runs_here() => return Err(Failure::from(CallError::OnReplicaThread)),
            _ => replica.roles.next_within(Duration::from_micros(timeout_us)),
        };
        let change = change.ok_or_else(|| Failure(MARTLET_NOTHING, "no change of role in this time".into()))?;
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { role.write(change.into()) };
        Ok(())
    })
}

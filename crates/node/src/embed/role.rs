//! What a replica is, as its program sees it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::error::Leader;

/// What a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads: proposals and reads are taken here. It may have lost that already without knowing; then nothing that it has taken is
    /// answered.
    Leader,
    /// It follows, or is on its way into the cluster.
    Follower {
        /// Who leads, as far as it knows.
        leader: Option<Leader>,
    },
    /// The others have removed it, since it was paused for too long, or it handed its leadership over with the engine `primary-backup`. It comes back by itself as a new
    /// incarnation, and is taught the state.
    Rejoining,
    /// It has ended.
    Stopped,
}

/// A change of role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// What the replica is from here on.
    pub role: Role,
    /// The newest view of the cluster that it knew then; views are numbered from 1 on.
    pub view: u64,
    /// When, on the host's monotonic clock, in nanoseconds.
    pub at_ns: u64,
}

/// The changes of a replica's role, in order; the first is what it was when this was asked for. It ends behind [`Role::Stopped`].
#[derive(Debug)]
pub struct RoleChanges(Receiver<RoleChange>);

impl RoleChanges {
    /// The next change, if there is one by now or within `timeout`.
    pub fn next_within(&self, timeout: Duration) -> Option<RoleChange> {
        self.0.recv_timeout(timeout).ok()
    }

    /// The next change, if it is there.
    pub fn try_next(&self) -> Option<RoleChange> {
        self.0.try_recv().ok()
    }
}

impl Iterator for RoleChanges {
    type Item = RoleChange;

    fn next(&mut self) -> Option<RoleChange> {
        self.0.recv().ok()
    }
}

/// The present role, and those who want to know of changes.
pub(super) struct Roles(Mutex<Inner>);

struct Inner {
    now: RoleChange,
    told: Vec<Sender<RoleChange>>,
}

impl Roles {
    pub fn new() -> Roles {
        let now = RoleChange { role: Role::Follower { leader: None }, view: 0, at_ns: crate::clock::now().0 };
        Roles(Mutex::new(Inner { now, told: Vec::new() }))
    }

    pub fn now(&self) -> RoleChange {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now.clone()
    }

    pub fn change(&self, role: Role, view: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.now.role == Role::Stopped {
            return;
        }
        let stopped = role == Role::Stopped;
        let change = RoleChange { role, view: view.max(inner.now.view), at_ns: crate::clock::now().0 };
        inner.now = change.clone();
        inner.told.retain(|told| told.send(change.clone()).is_ok());
        if stopped {
            inner.told.clear();
        }
    }

    pub fn follow(&self) -> RoleChanges {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = channel();
        // The receiver is still here.
        let _ = sender.send(inner.now.clone());
        if inner.now.role != Role::Stopped {
            inner.told.push(sender);
        }
        RoleChanges(receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_in_order_from_the_present_one_on_and_end() {
        let roles = Roles::new();
        roles.change(Role::Leader, 3);
        let mut changes = roles.follow();
        roles.change(Role::Rejoining, 4);
        roles.change(Role::Stopped, 0);
        roles.change(Role::Leader, 9);
        let seen: Vec<_> = changes.by_ref().map(|c| (c.role, c.view)).collect();
        assert_eq!(seen, [(Role::Leader, 3), (Role::Rejoining, 4), (Role::Stopped, 4)]);
        assert_eq!(roles.follow().map(|c| c.role).collect::<Vec<_>>(), [Role::Stopped]);
        assert!(changes.try_next().is_none() && changes.next_within(Duration::ZERO).is_none());
    }
}

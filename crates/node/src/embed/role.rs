//! What a replica is, as its program sees it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use super::error::Leader;

/// What a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads: proposals and reads are taken here. It may have lost leadership already without knowing it; then nothing that it has taken meanwhile is
    /// answered.
    Leader,
    /// It follows, or is joining the cluster.
    Follower {
        /// The leader, as far as this replica knows.
        leader: Option<Leader>,
    },
    /// The others have removed it, either because it was paused for too long, or because it handed its leadership over with an engine that follows views
    /// (`primary-backup`, `hsuc`, `huc`). It comes back by itself as a new incarnation, and receives the state from another replica.
    Rejoining,
    /// It has ended.
    Stopped,
}

/// A change of role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// What the replica is from now on.
    pub role: Role,
    /// The newest view of the cluster that the replica knew then. Views are numbered from 1 on.
    pub view: u64,
    /// Given by a leader: a number by which systems outside can tell this leader from earlier ones. Every later leader has a larger token, whichever replica it
    /// is. Above 0. See `docs/embedding.md`.
    pub fencing_token: Option<u64>,
    /// When the role changed: nanoseconds on the host's clock, which began when the host started.
    pub at_ns: u64,
}

/// The changes of a replica's role, in order, beginning with the role that it had when this was asked for. It ends after [`Role::Stopped`]. Several threads may
/// wait for changes at once: each change goes to one of them.
///
/// Waiting for the next change, by iteration or by [`next_within`](RoleChanges::next_within), panics on the replica's own thread, in a callback, because that
/// thread is the one that brings the changes. [`try_next`](RoleChanges::try_next) may be called there.
#[derive(Debug)]
pub struct RoleChanges {
    feed: Arc<Feed>,
    /// The thread that brings the changes, and so cannot wait for them.
    brought_by: ThreadId,
}

impl RoleChanges {
    /// The next change, if there is one already or there is one within `timeout`.
    ///
    /// # Panics
    /// On the replica's own thread.
    #[track_caller]
    pub fn next_within(&self, timeout: Duration) -> Option<RoleChange> {
        self.check_thread();
        let waits = self.feed.news.wait_timeout_while(self.feed.lock(), timeout, |queue| queue.is_silent());
        waits.unwrap_or_else(PoisonError::into_inner).0.changes.pop_front()
    }

    /// The next change, if there is one by now.
    pub fn try_next(&self) -> Option<RoleChange> {
        self.feed.lock().changes.pop_front()
    }

    /// Panics whether or not a change is there, so that a program that waits on this thread finds out the first time, and not now and then.
    #[track_caller]
    fn check_thread(&self) {
        let waits_for_itself = std::thread::current().id() == self.brought_by;
        assert!(!waits_for_itself, "waiting for a change of role on the replica's own thread, which brings it: call try_next there");
    }
}

impl Iterator for RoleChanges {
    type Item = RoleChange;

    #[track_caller]
    fn next(&mut self) -> Option<RoleChange> {
        self.check_thread();
        let waits = self.feed.news.wait_while(self.feed.lock(), |queue| queue.is_silent());
        waits.unwrap_or_else(PoisonError::into_inner).changes.pop_front()
    }
}

/// What a `RoleChanges` has not returned yet.
#[derive(Debug, Default)]
struct Feed {
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    changes: VecDeque<RoleChange>,
    ended: bool,
}

impl Queue {
    fn is_silent(&self) -> bool {
        self.changes.is_empty() && !self.ended
    }
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change, and notes whether it is the last.
    fn tell(&self, change: Option<RoleChange>, ended: bool) {
        let mut queue = self.lock();
        queue.changes.extend(change);
        queue.ended |= ended;
        self.news.notify_all();
    }
}

/// The present role, and the feeds of all that follow its changes.
pub(super) struct Roles(Mutex<Inner>);

struct Inner {
    now: RoleChange,
    told: Vec<Weak<Feed>>,
}

impl Roles {
    pub fn new() -> Roles {
        let now = RoleChange { role: Role::Follower { leader: None }, view: 0, fencing_token: None, at_ns: crate::clock::now().0 };
        Roles(Mutex::new(Inner { now, told: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> RoleChange {
        self.lock().now.clone()
    }

    pub fn change(&self, role: Role, view: u64) {
        self.tell(role, view, None);
    }

    /// The same, with a leader's fencing token.
    pub fn tell(&self, role: Role, view: u64, fencing_token: Option<u64>) {
        let mut inner = self.lock();
        if inner.now.role == Role::Stopped {
            return;
        }
        let stopped = role == Role::Stopped;
        let change = RoleChange { role, view: view.max(inner.now.view), fencing_token, at_ns: crate::clock::now().0 };
        inner.now = change.clone();
        inner.told.retain(|told| told.upgrade().inspect(|feed| feed.tell(Some(change.clone()), stopped)).is_some());
    }

    /// Follows the changes, from any thread but the one that brings them.
    pub fn follow(&self, brought_by: ThreadId) -> RoleChanges {
        let mut inner = self.lock();
        let feed = Arc::new(Feed::default());
        feed.tell(Some(inner.now.clone()), inner.now.role == Role::Stopped);
        inner.told.push(Arc::downgrade(&feed));
        RoleChanges { feed, brought_by }
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        self.lock().told.drain(..).filter_map(|told| told.upgrade()).for_each(|feed| feed.tell(None, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of a thread that runs none of these tests.
    fn another() -> ThreadId {
        std::thread::spawn(|| std::thread::current().id()).join().expect("no panic")
    }

    #[test]
    fn changes_come_in_order_from_the_present_one_on_and_end() {
        let roles = Roles::new();
        roles.tell(Role::Leader, 3, Some(7));
        let mut changes = roles.follow(another());
        roles.change(Role::Rejoining, 4);
        roles.change(Role::Stopped, 0);
        roles.tell(Role::Leader, 9, Some(8));
        let seen: Vec<_> = changes.by_ref().map(|c| (c.role, c.view, c.fencing_token)).collect();
        assert_eq!(seen, [(Role::Leader, 3, Some(7)), (Role::Rejoining, 4, None), (Role::Stopped, 4, None)]);
        assert_eq!(roles.follow(another()).map(|c| c.role).collect::<Vec<_>>(), [Role::Stopped]);
        assert!(changes.try_next().is_none() && changes.next_within(Duration::ZERO).is_none());
    }

    #[test]
    fn one_that_waits_for_a_change_keeps_nobody_else_waiting_and_all_hear_of_the_end() {
        let roles = Roles::new();
        let changes = roles.follow(another());
        assert!(changes.try_next().is_some(), "what it is now");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| changes.next_within(Duration::MAX));
            assert_eq!(changes.next_within(Duration::ZERO), None, "however long the other one waits");
            drop(roles);
            assert_eq!(waits.join().expect("no panic"), None);
        });
        assert_eq!(changes.next_within(Duration::MAX), None);
    }

    #[test]
    #[should_panic(expected = "call try_next there")]
    fn one_that_brings_the_changes_does_not_wait_for_them() {
        let mut changes = Roles::new().follow(std::thread::current().id());
        assert!(changes.try_next().is_some(), "what is there may be had");
        changes.next();
    }

    #[test]
    #[should_panic(expected = "call try_next there")]
    fn nor_for_a_while() {
        Roles::new().follow(std::thread::current().id()).next_within(Duration::ZERO);
    }
}

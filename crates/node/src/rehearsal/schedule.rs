//! When a rehearsal is due.

use martlet_protocol::basics::{ProcessId, Time};

/// For how long after a change of primaries no node rehearses, in nanoseconds. The node that has just taken over, and its clients, need the cores for about a
/// millisecond, and a new successor would otherwise build its stage just then, which takes as long. It is not much longer, because the new successor may be
/// needed soon, too. Views in which the primary stays postpone nothing.
pub(super) const SETTLE_NS: u64 = 10_000_000;

/// When the next rehearsal is due. It reads no clock.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The interval; 0: never.
    every_ns: u64,
    due: Time,
    /// The leader when `due` was set.
    primary: Option<ProcessId>,
}

impl Schedule {
    /// A rehearsal every so many nanoseconds from `now` on, or none for 0.
    pub fn new(every_ns: u64, now: Time) -> Schedule {
        Schedule { every_ns, due: now.after(every_ns), primary: None }
    }

    /// When the next rehearsal is due, if there is to be one.
    pub fn due(&self) -> Option<Time> {
        (self.every_ns > 0).then_some(self.due)
    }

    /// `primary` leads at `now`. If that is news, the cluster has to settle first, however long ago the last rehearsal was.
    pub fn note_primary(&mut self, primary: Option<ProcessId>, now: Time) {
        if primary != self.primary {
            self.primary = primary;
            self.due = now.after(self.every_ns.max(SETTLE_NS));
        }
    }

    /// A rehearsal was played until `end`.
    pub fn note_played(&mut self, end: Time) {
        self.due = end.after(self.every_ns);
    }

    /// There will be no further rehearsal.
    pub fn end(&mut self) {
        self.every_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};

    use super::*;

    const MS: u64 = 1_000_000;

    fn process(node: u16) -> Option<ProcessId> {
        Some(ProcessId { node: NodeId(node), incarnation: Incarnation(1) })
    }

    #[test]
    fn one_that_has_just_become_the_successor_rehearses_when_the_new_primary_has_settled() {
        let mut schedule = Schedule::new(5 * MS, Time(0));
        schedule.note_primary(process(0), Time(0));
        // This node has been a backup for long, and none of its rehearsals was played: the one that is due is overdue.
        schedule.note_primary(process(0), Time(900 * MS));
        assert!(schedule.due().is_some_and(|due| due < Time(900 * MS)));
        // The primary dies, another takes over, and this process comes next after that.
        schedule.note_primary(process(1), Time(1_000 * MS));
        assert_eq!(schedule.due(), Some(Time(1_000 * MS + SETTLE_NS)));
        // Looking again, in any view, does not postpone it: a primary that is killed soon after its cluster is whole again finds a successor that has
        // rehearsed.
        schedule.note_primary(process(1), Time(1_000 * MS + SETTLE_NS / 2));
        assert_eq!(schedule.due(), Some(Time(1_000 * MS + SETTLE_NS)));
        schedule.note_primary(process(2), Time(1_030 * MS));
        assert_eq!(schedule.due(), Some(Time(1_030 * MS + SETTLE_NS)), "each change has to settle");
    }

    #[test]
    fn rehearsals_follow_each_other_at_the_pace_configured() {
        let mut schedule = Schedule::new(5 * MS, Time(MS));
        assert_eq!(schedule.due(), Some(Time(6 * MS)));
        schedule.note_played(Time(100 * MS));
        assert_eq!(schedule.due(), Some(Time(105 * MS)), "from the end of the last: a long one leaves time for the rest");
        schedule.end();
        assert_eq!(schedule.due(), None);
    }

    #[test]
    fn a_pace_slower_than_primaries_settle_is_kept_after_a_change_and_none_is_none() {
        let mut slow = Schedule::new(2 * SETTLE_NS, Time(0));
        slow.note_primary(process(7), Time(MS));
        assert_eq!(slow.due(), Some(Time(MS + 2 * SETTLE_NS)));
        let mut never = Schedule::new(0, Time(0));
        never.note_primary(process(7), Time(MS));
        assert_eq!(never.due(), None);
    }
}

//! Which phase of a reconfiguration comes next (DARE section 3.4): removing a process, adding one to a group with a place for it, adding one to a full group in
//! three phases, and decreasing the number of places in two.
//!
//! Each phase is an entry, in force from the moment it is in a log; the next one begins once it is committed. A place is filled only after its vacating is
//! committed; otherwise the new process would count while the old one still does.

use super::Dare;
use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{Mark, ProcessId};
use crate::replica::ResizeError;
use crate::replica::group::{Group, Phase};

/// How a group is to change, as far as that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes<'a> {
    /// How many places an operator has asked for; 0: as many as members.
    pub wanted: u8,
    /// Members that are to leave.
    pub removing: &'a [ProcessId],
    /// Processes that are to join.
    pub adding: &'a [ProcessId],
}

/// The next phase for the leader `me`, if there is one to begin. `ready`: the process holds the state, and has the log up to what is committed.
pub(super) fn next_phase(group: &Group, me: ProcessId, wishes: &Wishes<'_>, ready: impl Fn(ProcessId) -> bool) -> Option<Group> {
    let Wishes { wanted, removing, adding } = *wishes;
    match group.phase() {
        Phase::Transitional { old, new, .. } => {
            if new.len() > old.len() { Mark::DareGrows } else { Mark::DareDecreases }.reach();
            return group.stabilised();
        }
        Phase::Extended(process) => {
            // Nothing depends on a process that takes part in nothing, so other changes go first.
            let better = adding.iter().any(|id| ready(*id)) && !ready(*process);
            if !adding.contains(process) || !removing.is_empty() || better || group.wanted() != wanted {
                Mark::DareGivesUpJoiner.reach();
                return group.stabilised();
            }
            return ready(*process).then(|| group.enlarged())?;
        }
        Phase::Stable => {}
    }
    if group.wanted() != wanted {
        Mark::DareResizes.reach();
        return Some(group.wanting(wanted));
    }
    if let Some(next) = removing.iter().find_map(|id| without(group, *id)) {
        Mark::DareShrinks.reach();
        return Some(next);
    }
    if group.has_places()
        && let Some(next) = group.decreased(wanted, me)
    {
        // The remaining processes have to suffice, or the change would never complete.
        return next.is_majority(|id| id == me || ready(id)).then_some(next);
    }
    let joiner = adding.iter().find(|id| ready(**id));
    if group.has_places() && group.members().len() < group.places() {
        // There is a place for the joiner. It counts at once, so it has to hold the state.
        let next = group.with(*joiner?)?;
        Mark::DareGrows.reach();
        return Some(next);
    }
    if group.has_places() && group.places() >= usize::from(wanted) {
        return None;
    }
    let next = group.extended(*joiner.or(adding.first())?)?;
    Mark::DareExtends.reach();
    Some(next)
}

/// The group without a process, unless the remaining members could decide nothing: then nothing is gained, and no process could join either.
fn without(group: &Group, process: ProcessId) -> Option<Group> {
    group.without(process).filter(|next| next.is_majority(|id| next.contains(id)))
}

impl Dare {
    /// An operator asks for a group of `places` places, or of as many as members if that is 0.
    ///
    /// # Errors
    /// When this process does not lead, or that many places are not allowed.
    pub(super) fn begin_resize(&mut self, places: usize) -> Result<(), ResizeError> {
        if places > MAX_MEMBERS {
            return Err(ResizeError::TooMany { places, most: MAX_MEMBERS });
        }
        if !self.is_leading() {
            return Err(ResizeError::NotLeading);
        }
        self.resizing = Some(places as u8);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_cluster::id;

    fn group(n: usize, wanted: u8) -> Group {
        Group::new((0..n).map(id).collect()).wanting(wanted)
    }

    fn wishes<'a>(wanted: u8, removing: &'a [ProcessId], adding: &'a [ProcessId]) -> Wishes<'a> {
        Wishes { wanted, removing, adding }
    }

    #[test]
    fn dare_3_4_three_operations_and_only_from_a_stable_group() {
        let extended = next_phase(&group(3, 0), id(0), &wishes(0, &[], &[id(5)]), |_| false).expect("it may recover");
        assert_eq!(extended.phase(), &Phase::Extended(id(5)));
        assert_eq!(next_phase(&extended, id(0), &wishes(0, &[], &[id(5)]), |_| false), None, "it is waited for");
        // Removing comes first, from a stable group.
        let stable = next_phase(&extended, id(0), &wishes(0, &[id(2)], &[id(5)]), |_| true).expect("something is to be done");
        assert_eq!(stable, group(3, 0));
        let both = next_phase(&extended, id(0), &wishes(0, &[], &[id(5)]), |_| true).expect("it is ready");
        let grown = next_phase(&both, id(0), &wishes(0, &[id(2)], &[]), |_| true).expect("the change ends first");
        assert_eq!((grown.members().len(), grown.phase()), (4, &Phase::Stable));
    }

    #[test]
    fn dare_3_4_a_place_is_filled_after_it_was_emptied_and_the_size_stays() {
        let two = next_phase(&group(3, 3), id(0), &wishes(3, &[id(2)], &[id(5)]), |_| true).expect("one goes");
        assert_eq!((two.members().len(), two.places()), (2, 3));
        let three = next_phase(&two, id(0), &wishes(3, &[], &[id(5)]), |_| true).expect("one comes");
        assert_eq!((three.members(), three.phase()), (&[id(0), id(1), id(5)][..], &Phase::Stable), "in a single phase");
        assert_eq!(next_phase(&three, id(0), &wishes(3, &[], &[id(6)]), |_| true), None, "there is no place, and none is wanted");
        assert_eq!(next_phase(&two, id(0), &wishes(3, &[id(1)], &[]), |_| true), None, "one of three places could decide nothing");
    }

    #[test]
    fn dare_3_4_resizes_from_three_to_five_and_back() {
        let mut group = group(3, 0);
        let adding = [id(5), id(6), id(7)];
        let mut phases = Vec::new();
        for wanted in [5, 3, 0] {
            loop {
                let adding: Vec<ProcessId> = adding.iter().copied().filter(|id| !group.contains(*id)).collect();
                let Some(next) = next_phase(&group, id(6), &wishes(wanted, &[], &adding), |_| true) else { break };
                phases.push((next.members().len(), next.places(), next.majority()));
                group = next;
                if wanted == 0 && group.wanted() == 0 && group.phase() == &Phase::Stable {
                    break;
                }
            }
        }
        let grows = [(3, 3, 2), (3, 3, 2), (4, 3, 3), (4, 4, 3), (4, 4, 3), (5, 4, 3), (5, 5, 3)];
        let shrinks = [(5, 5, 3), (5, 5, 3), (3, 3, 2), (3, 3, 2)];
        assert_eq!(phases, [&grows[..], &shrinks].concat());
        assert!(group.contains(id(6)), "the leader goes last");
    }
}

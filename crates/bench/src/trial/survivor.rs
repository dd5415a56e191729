//! The node that is left when all others are killed at once: whether it still holds what was acknowledged.

use martlet_cluster::watch::observer::{self, Sight};
use martlet_node::counters::Counter;
use martlet_protocol::basics::ProcessId;

/// What has become of the process that was to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It serves, in a view of itself alone.
    Alone,
    /// The others had cut it off before they died, since it was presumed dead. What they acknowledged after that died with them.
    CutOff,
}

/// What has become of `survivor`, once that can be told.
///
/// A view that also has the dead in it does not tell, though `survivor` leads in it: one that was kept from running may not have heard yet that the dead have decided a later view without it. A
/// view of itself alone tells, since views follow one upon the other, and a later one would stand in the memory of the dead.
pub fn fate(sights: &[Sight], survivor: ProcessId) -> Option<Fate> {
    let node = survivor.node.0;
    let sight = sights.iter().find(|sight| sight.node == node)?;
    if sight.reading.as_ref()?.get(Counter::Incarnation) != survivor.incarnation.0 {
        return Some(Fate::CutOff);
    }
    let is_alone = sight.view.as_ref()?.members.iter().all(|member| member.id == survivor);
    (is_alone && observer::is_whole(sights, &[node])).then_some(Fate::Alone)
}

#[cfg(test)]
mod tests {
    use martlet_fabric::primitive::{AtomicU64, Ordering};
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_node::counters::{Counters, Reading};
    use martlet_protocol::basics::{ViewNumber, layout};
    use martlet_protocol::membership::{Member, Roles, View};

    use super::*;

    const LEFT: ProcessId = ProcessId { node: NodeId(2), incarnation: Incarnation(7) };

    fn view(number: u64, nodes: &[u16]) -> View {
        let id = |node| ProcessId { node: NodeId(node), ..LEFT };
        let members = nodes.iter().map(|node| Member::new(id(*node), Roles::COORDINATOR.with(Roles::REPLICA))).collect();
        View { number: ViewNumber(number), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() }
    }

    /// A process that leads in the view that it shows.
    fn sight(process: ProcessId, view: View) -> Sight {
        let region: Vec<AtomicU64> = (0..layout::COUNTERS_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let mut counters = Counters::default();
        let number = view.number.0;
        let shown =
            [(Counter::Standing, 2), (Counter::Incarnation, process.incarnation.0), (Counter::View, number), (Counter::ActiveView, number)];
        shown.into_iter().for_each(|(counter, value)| counters.set(counter, value));
        counters.open(&region);
        let bytes: Vec<u8> = region.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        Sight { node: process.node.0, reading: Some(Reading::parse(&bytes).expect("just written")), view: Some(view) }
    }

    /// It led when it was stopped; meanwhile the others may have gone on without it.
    #[test]
    fn a_leader_that_has_not_run_since_the_others_died_says_nothing_yet() {
        let stopped = [sight(LEFT, view(9, &[2, 0, 1]))];
        assert!(observer::is_whole(&stopped, &[2]), "by what it shows all is well");
        assert_eq!(fate(&stopped, LEFT), None);
        assert_eq!(fate(&[], LEFT), None, "it is not connected");
        assert_eq!(fate(&[Sight { reading: None, ..stopped[0].clone() }], LEFT), None, "it cannot be read");
    }

    #[test]
    fn a_view_of_itself_alone_tells_that_nobody_has_cut_it_off() {
        let others = sight(ProcessId { node: NodeId(0), ..LEFT }, view(9, &[2, 0, 1]));
        assert_eq!(fate(&[others, sight(LEFT, view(10, &[2]))], LEFT), Some(Fate::Alone));
        let mut hurried = sight(LEFT, view(9, &[2, 0, 1]));
        hurried.view = Some(view(10, &[2]));
        assert_eq!(fate(&[hurried], LEFT), None, "it does not serve in it yet");
    }

    #[test]
    fn a_new_life_of_the_node_holds_nothing() {
        let next = ProcessId { incarnation: Incarnation(8), ..LEFT };
        assert_eq!(fate(&[sight(next, view(1, &[2]))], LEFT), Some(Fate::CutOff));
    }
}

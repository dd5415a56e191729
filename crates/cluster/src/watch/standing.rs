//! What a cluster can do without one of its nodes, and whether it already does without that node.

use martlet_node::config::{EngineKind, FabricKind};
use martlet_node::counters::Counter;
use martlet_protocol::membership::{Roles, View};

use crate::watch::observer::{self, Sight};

/// What matters when a node is to leave.
#[derive(Debug)]
pub struct Standing<'a> {
    /// The newest view.
    pub view: &'a View,
    /// Nodes that run as the processes that the view lists.
    pub live: Vec<u16>,
    /// The nodes of which a majority commits, one bit each; 0: no node has shown any.
    pub group: u64,
    /// How requests are replicated.
    pub engine: EngineKind,
    /// How memory is reached.
    pub fabric: FabricKind,
}

impl<'a> Standing<'a> {
    /// The present state. `running`: the nodes whose processes run. Returns `None` if no node shows a view.
    pub fn of(sights: &'a [Sight], running: &[u16], engine: EngineKind, fabric: FabricKind) -> Option<Standing<'a>> {
        let view = observer::newest_view(sights)?;
        let belongs = |sight: &&Sight| {
            let incarnation = sight.counter(Counter::Incarnation);
            running.contains(&sight.node) && view.members.iter().any(|m| m.id.node.0 == sight.node && m.id.incarnation.0 == incarnation)
        };
        let live = sights.iter().filter(belongs).map(|sight| sight.node).collect();
        // If nodes have committed different groups, take the group of the node that knows more.
        let latest =
            sights.iter().filter(|sight| sight.counter(Counter::Group) != 0).max_by_key(|sight| sight.counter(Counter::CommittedIndex));
        Some(Standing { view, live, group: latest.map_or(0, |sight| sight.counter(Counter::Group)), engine, fabric })
    }

    /// Why the cluster could not continue, or not with its data, if a node were gone for good; `None` if it could.
    pub fn objection(&self, node: u16) -> Option<String> {
        self.lacks(Some(node))
    }

    /// Why the cluster does not continue by itself, or not with its data; `None` if it does.
    pub fn is_stuck(&self) -> Option<String> {
        self.lacks(None)
    }

    fn lacks(&self, without: Option<u16>) -> Option<String> {
        let goes = |number: u16| without == Some(number);
        let live = |number: u16| !goes(number) && self.live.contains(&number);
        let of = |role: Roles| self.view.members.iter().filter(move |m| m.roles.has(role)).map(|m| m.id.node.0);
        let holders: Vec<u16> = of(Roles::REPLICA).filter(|number| live(*number)).collect();
        if holders.is_empty() {
            return Some(format!("none of the {} holds the data", if without.is_some() { "other running nodes" } else { "running nodes" }));
        }
        let lacks = |what: &str, rest: &[u16]| {
            let there: Vec<u16> = rest.iter().copied().filter(|number| live(*number)).collect();
            let missing = there.len() * 2 <= rest.len();
            missing.then(|| format!("it takes a majority of nodes {rest:?} to {what}, but only {there:?} are running"))
        };
        if self.engine.traits().commits_by_majority() && self.group != 0 {
            let rest: Vec<u16> = (0..64).filter(|number| !goes(*number) && self.group >> number & 1 == 1).collect();
            if let Some(why) = lacks("acknowledge requests", &rest) {
                return Some(why);
            }
        }
        let rest: Vec<u16> = of(Roles::COORDINATOR).filter(|number| !goes(*number)).collect();
        if !self.fabric.traits().memory_outlives_process {
            return lacks("decide about membership", &rest);
        }
        // The memory of dead processes is accessible as long as one process is alive that has mapped it.
        let gone = !rest.iter().any(|number| live(*number));
        gone.then(|| format!("none of the {} is a coordinator", if without.is_some() { "other running nodes" } else { "running nodes" }))
    }
}

/// Whether the newest view and the group whose majority commits have the same nodes: whatever membership has decided has been carried out.
pub fn is_settled(sights: &[Sight], engine: EngineKind) -> bool {
    let (Some(view), Some(leader)) = (observer::newest_view(sights), observer::primary(sights)) else { return false };
    let replicas = view.members.iter().filter(|m| m.roles.has(Roles::REPLICA)).fold(0, |nodes, m| nodes | 1_u64 << (m.id.node.0 % 64));
    let group = leader.counter(Counter::Group);
    !engine.traits().commits_by_majority() || group == replicas && leader.counter(Counter::GroupProcesses) == u64::from(group.count_ones())
}

/// Whether neither the newest view nor the group includes that node any more.
pub fn is_without(sights: &[Sight], node: u16, engine: EngineKind) -> bool {
    let listed = |view: &View| view.members.iter().any(|member| member.id.node.0 == node);
    observer::newest_view(sights).is_some_and(|view| !listed(view)) && is_settled(sights, engine)
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_protocol::basics::{ProcessId, ViewNumber};
    use martlet_protocol::membership::Member;

    use super::*;

    fn view(members: &[(u16, Roles)]) -> View {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let members = members.iter().map(|(node, roles)| Member::new(id(*node), *roles)).collect();
        View { number: ViewNumber(1), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() }
    }

    #[test]
    fn one_that_is_needed_does_not_go() {
        let both = Roles::COORDINATOR.with(Roles::REPLICA);
        let learns = Roles::COORDINATOR.with(Roles::LEARNER);
        let of = |members: &[(u16, Roles)], live: &[u16], group: u64, engine, fabric, node| {
            let view = view(members);
            Standing { view: &view, live: live.to_vec(), group, engine, fabric }.objection(node)
        };
        let (pb, mu, shm, verbs) = (EngineKind::PrimaryBackup, EngineKind::Mu, FabricKind::Shm, FabricKind::Verbs);
        let three = [(0, both), (1, both), (2, both)];
        for engine in [pb, mu] {
            for fabric in [shm, verbs] {
                assert_eq!(of(&three, &[0, 1, 2], 0b111, engine, fabric, 0), None);
                assert_eq!(of(&three, &[0, 1], 0b111, engine, fabric, 2), None, "it is dead");
                assert_eq!(of(&three[..2], &[0, 1], 0b11, engine, fabric, 0), None, "one goes on alone");
            }
        }
        let alone = of(&[(0, both), (1, learns)], &[0, 1], 0b1, mu, shm, 0);
        assert_eq!(alone.as_deref(), Some("none of the other running nodes holds the data"));
        let minority = of(&three, &[0, 1], 0b111, mu, shm, 0);
        assert_eq!(minority.as_deref(), Some("it takes a majority of nodes [1, 2] to acknowledge requests, but only [1] are running"));
        assert_eq!(of(&three, &[0, 1], 0, pb, shm, 0), None, "the last one goes on alone");
        let undecided = of(&three, &[0, 1], 0, pb, verbs, 0);
        assert_eq!(undecided.as_deref(), Some("it takes a majority of nodes [1, 2] to decide about membership, but only [1] are running"));
        let nobody = of(&[(0, both), (1, Roles::REPLICA)], &[0, 1], 0, pb, shm, 0);
        assert_eq!(nobody.as_deref(), Some("none of the other running nodes is a coordinator"));
    }
}

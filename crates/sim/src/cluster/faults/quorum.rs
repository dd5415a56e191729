//! Which nodes are enough to continue, whatever happens to the others. Faults always leave enough, and with enough nodes a healed cluster has to serve.

use martlet_protocol::basics::{ProcessId, ballot};
use martlet_protocol::membership::{Roles, View};

use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// A set of processes that are listed in the newest view, run, satisfy `fit` and are enough ([`Cluster::are_enough`]). `least`: the smallest such set,
    /// otherwise the largest.
    pub(in crate::cluster) fn enough(&self, least: bool, fit: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let sets = self.sets(fit);
        let sets = sets.into_iter().filter(|set| self.are_enough(set, &[]));
        if least { sets.min_by_key(Vec::len) } else { sets.max_by_key(Vec::len) }
    }

    /// The smallest set of such processes that is enough, and stays enough if a view on its way takes in a coordinator, or the engine takes a process into its
    /// group: the newcomer may be cut off before it knows. There is no such set where a group of one takes in a second process, since from then on both are
    /// needed. Nor is there one where no process of the set has learned a view yet: a process that has come back from a disk waits for one that shows it a
    /// view, or for all processes.
    pub(in crate::cluster) fn enough_with_newcomers(&self, fit: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let newest = self.oracles.views.newest()?;
        let coordinates = |node: usize| newest.coordinators().any(|c| usize::from(c.id.node.0) == node);
        let newcomers =
            (0..self.settings.roles.len()).filter(|node| self.settings.roles[*node].has(Roles::COORDINATOR) && !coordinates(*node));
        let majority = if HOST && !self.settings.worn { 1 } else { ballot::majority(newest.coordinators().count() + newcomers.count()) };
        let decide = |set: &Vec<usize>| set.iter().filter(|p| newest.coordinators().any(|c| c.id == self.name(**p))).count() >= majority;
        let knows = |set: &Vec<usize>| set.iter().filter_map(|p| self.nodes[*p].as_ref()).any(|node| node.core().view().is_some());
        let replicas = self.nodes.iter().flatten().filter(|n| self.settings.roles[usize::from(n.me().node.0)].has(Roles::REPLICA));
        let replicas: Vec<ProcessId> = replicas.map(|n| n.me()).collect();
        self.sets(fit).into_iter().filter(|set| knows(set) && decide(set) && self.are_enough(set, &replicas)).min_by_key(Vec::len)
    }

    /// Every set of processes that run, have a working NIC and satisfy `fit`.
    fn sets(&self, fit: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        let fit: Vec<usize> = self.alive().filter(|p| self.world.has_nic(*p) && fit(*p)).collect();
        let members = |set: u32| fit.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, p)| *p).collect();
        (1u32..1 << fit.len()).map(members).collect()
    }

    /// Whether these processes can continue alone: the newest view lists them, they reach each other, one of them is a replica, and enough of them are
    /// coordinators to decide another view. On a host one coordinator is enough, since the memory of the others stays readable. A majority is needed where the
    /// dead are out of reach, or where ballots are used up and acceptors have to answer by themselves. Where none of these processes has learned the newest
    /// view yet, the same holds for each view since the newest one that they know, because they find out through its coordinators. `newcomers` may be taken in
    /// at any moment.
    pub(in crate::cluster) fn are_enough(&self, set: &[usize], newcomers: &[ProcessId]) -> bool {
        let Some(newest) = self.oracles.views.newest() else { return false };
        let nodes = || set.iter().filter_map(|p| self.nodes[*p].as_ref()).filter(|n| newest.member(n.me()).is_some());
        let decides = |view: &View| {
            let is_coordinator = |id: ProcessId| view.member(id).is_some_and(|m| m.roles.has(Roles::COORDINATOR));
            let majority = if HOST && !self.settings.worn { 1 } else { ballot::majority(view.coordinators().count()) };
            nodes().filter(|n| is_coordinator(n.me())).count() >= majority
        };
        let known = nodes().map(|n| n.core().view_number().0).max().unwrap_or(0);
        // A process that has come back with its log does not count while others continue. Where all have just come back, their logs are all that is left.
        let awake = self.nodes.iter().flatten().any(|n| !n.host.dormant);
        let running = self.nodes.iter().flatten().filter(|n| !awake || !n.host.dormant);
        let running: Vec<_> = running.map(|n| (n.me(), n.engine())).collect();
        nodes().count() == set.len()
            && (known..=newest.number.0).filter_map(|number| self.oracles.views.get(number)).all(decides)
            && nodes().any(|n| newest.member(n.me()).is_some_and(|m| m.roles.has(Roles::REPLICA)))
            && E::suffice(&nodes().map(|n| (n.me(), n.engine())).collect::<Vec<_>>(), &running, newcomers)
            && set.iter().enumerate().all(|(at, one)| set[..at].iter().all(|other| self.world.are_connected(*one, *other)))
    }
}

//! Which nodes are enough to go on, whatever becomes of the others: faults leave so much, and with so much a healed cluster has to serve.

use martlet_protocol::basics::{ProcessId, ballot};
use martlet_protocol::membership::{Roles, View};

use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// The processes, of those that the newest view lists, that run, satisfy `fit` and are enough ([`Cluster::are_enough`]).
    /// `least`: the smallest such set, otherwise the largest.
    pub(in crate::cluster) fn enough(&self, least: bool, fit: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let sets = self.sets(fit);
        let sets = sets.into_iter().filter(|set| self.are_enough(set, &[]));
        if least { sets.min_by_key(Vec::len) } else { sets.max_by_key(Vec::len) }
    }

    /// The smallest set of such processes that is enough, and stays it when a view that is on its way takes in whoever does not coordinate yet, and the engine
    /// whoever is no part of its group: those may be cut off before they know. There is none where one takes in a second, since from then on both are needed. Nor where
    /// none of them has learned a view yet: who has come back from a disk waits for somebody who shows one, or for everybody.
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

    /// Every set of processes that run, have a NIC and satisfy `fit`.
    fn sets(&self, fit: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
        let fit: Vec<usize> = self.alive().filter(|p| self.world.has_nic(*p) && fit(*p)).collect();
        let members = |set: u32| fit.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, p)| *p).collect();
        (1u32..1 << fit.len()).map(members).collect()
    }

    /// Whether these processes can go on alone: the newest view lists them, they reach each other, a replica is among them, and so
    /// many coordinators that they can decide another view. On a host that is one, since the memory of the others stays; where the dead are out of
    /// reach, or ballots are used up and acceptors have to answer by themselves, it is a majority; and where none of them has learned the newest view
    /// yet, also one of the views by whose coordinators they can find out. `newcomers` may be taken in at any moment.
    pub(in crate::cluster) fn are_enough(&self, set: &[usize], newcomers: &[ProcessId]) -> bool {
        let Some(newest) = self.oracles.views.newest() else { return false };
        let nodes = || set.iter().filter_map(|p| self.nodes[*p].as_ref()).filter(|n| newest.member(n.me()).is_some());
        let decides = |view: &View| {
            let is_coordinator = |id: ProcessId| view.member(id).is_some_and(|m| m.roles.has(Roles::COORDINATOR));
            let majority = if HOST && !self.settings.worn { 1 } else { ballot::majority(view.coordinators().count()) };
            nodes().filter(|n| is_coordinator(n.me())).count() >= majority
        };
        let known = nodes().map(|n| n.core().view_number().0).max().unwrap_or(0);
        // One that has come back with its log counts for nothing while others go on. Where all have just come back, their logs are all there is.
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

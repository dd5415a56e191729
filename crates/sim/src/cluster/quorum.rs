//! Who is enough to go on, whatever becomes of the others: faults leave so much, and with so much a healed cluster has to serve.

use martlet_protocol::basics::{ProcessId, ballot};
use martlet_protocol::membership::{Roles, View};

use super::engine::Engine;
use super::life::Cluster;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// The processes, of those that the newest view lists, that run, reach each other, satisfy `fit` and are enough: a replica is among them, and so
    /// many coordinators that they can decide another view. On a host that is one, since the memory of the others stays; where the dead are out of
    /// reach, or ballots are used up and acceptors have to answer by themselves, it is a majority; and where none of them has learned the newest view
    /// yet, also one of the views by whose coordinators they can find out. `least`: the smallest such set, otherwise the largest.
    pub(super) fn enough(&self, least: bool, fit: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let newest = self.oracles.views.newest()?;
        let node = |p: usize| self.nodes[p].as_ref().filter(|n| newest.member(n.me).is_some());
        let fit: Vec<usize> = self.alive().filter(|p| node(*p).is_some() && self.world.has_nic(*p) && fit(*p)).collect();
        let sets = (1u32..1 << fit.len()).map(|set| fit.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, p)| *p));
        let running: Vec<_> = self.nodes.iter().flatten().map(|n| (n.me, &n.engine)).collect();
        let suffices = |set: &Vec<usize>| {
            let nodes = || set.iter().filter_map(|p| node(*p));
            let decides = |view: &View| {
                let is_coordinator = |id: ProcessId| view.member(id).is_some_and(|m| m.roles.has(Roles::COORDINATOR));
                let majority = if HOST && !self.settings.worn { 1 } else { ballot::majority(view.coordinators().count()) };
                nodes().filter(|n| is_coordinator(n.me)).count() >= majority
            };
            let known = nodes().map(|n| n.core.view_number().0).max().unwrap_or(0);
            (known..=newest.number.0).filter_map(|number| self.oracles.views.get(number)).all(decides)
                && nodes().any(|n| newest.member(n.me).is_some_and(|m| m.roles.has(Roles::REPLICA)))
                && E::suffice(&nodes().map(|n| (n.me, &n.engine)).collect::<Vec<_>>(), &running)
                && set.iter().enumerate().all(|(at, one)| set[..at].iter().all(|other| self.world.are_connected(*one, *other)))
        };
        let sets = sets.map(Iterator::collect::<Vec<usize>>).filter(suffices);
        if least { sets.min_by_key(Vec::len) } else { sets.max_by_key(Vec::len) }
    }
}

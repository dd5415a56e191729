//! Observes a running cluster from outside: reads what its nodes show in memory one-sidedly, so that no hot thread has to answer.

use std::time::{Duration, Instant};

use martlet_fabric::{NodeId, with_fabric};
use martlet_node::backend::Backend;
use martlet_node::client::{ClientEndpoint, OpenError};
use martlet_node::config::Cluster;
use martlet_node::counters::{Counter, Event, Reading};
use martlet_protocol::engine::EngineKind;
use martlet_protocol::membership::View;

use crate::fail::{Fail, Outcome};
use crate::interrupt::Interrupt;

/// An outside observer of a cluster.
pub struct Observer {
    endpoint: Box<dyn Looking>,
}

/// A client's endpoint on any backend: nothing here is urgent, so dynamic dispatch is fine.
trait Looking {
    fn look(&mut self) -> Vec<Sight>;

    fn wait(&mut self, timeout: Duration);

    /// Why a node has recently refused this command, if that is because their builds do not understand each other.
    fn misfit(&self) -> Option<String>;
}

impl<F: Backend> Looking for ClientEndpoint<F> {
    fn look(&mut self) -> Vec<Sight> {
        while self.event().is_some() {}
        let nodes: Vec<NodeId> = self.nodes().map(|(node, _)| node).collect();
        nodes
            .into_iter()
            .map(|node| Sight { node: node.0, reading: self.reading(node).ok(), view: self.view(node).ok().flatten() })
            .collect()
    }

    fn wait(&mut self, timeout: Duration) {
        self.wait(timeout);
    }

    fn misfit(&self) -> Option<String> {
        self.misfit(Duration::from_secs(2))
    }
}

/// What a node shows at one moment.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Its number.
    pub node: u16,
    /// Its counters and events, if it is connected and speaks our version.
    pub reading: Option<Reading>,
    /// The newest view that it knows.
    pub view: Option<View>,
}

/// A node's role, according to its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is joining.
    Joining,
    /// It follows.
    Backup,
    /// It leads.
    Primary,
    /// It says that it leads, but another node has taken over: it cannot have acknowledged anything since, and has not heard of it so far.
    Deposed,
    /// It has been excluded, and is about to start over.
    Excluded,
    /// It is leaving.
    Leaving,
}

impl Role {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Joining => "joining",
            Role::Backup => "backup",
            Role::Primary => "primary",
            Role::Deposed => "deposed",
            Role::Excluded => "excluded",
            Role::Leaving => "leaving",
        }
    }
}

impl Sight {
    /// A counter; 0 when nothing could be read.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.reading.as_ref().map_or(0, |reading| reading.get(counter))
    }

    /// The nodes that it waits for before it founds a cluster.
    pub fn awaited(&self) -> Vec<u16> {
        let nodes = self.counter(Counter::Awaited);
        (0..64).filter(|node| nodes >> node & 1 == 1).collect()
    }

    /// The node's role, as it says itself. What it says may be outdated: see [`role`].
    pub fn role(&self) -> Option<Role> {
        let reading = self.reading.as_ref()?;
        match reading.get(Counter::Standing) {
            0 => Some(Role::Joining),
            1 => Some(Role::Backup),
            2 => Some(Role::Primary),
            3 => Some(Role::Excluded),
            4 => Some(Role::Leaving),
            _ => None,
        }
    }
}

impl Observer {
    /// Begins to connect to all nodes.
    pub fn open(cluster: &Cluster) -> Outcome<Observer> {
        let open = || -> Result<Box<dyn Looking>, OpenError> {
            Ok(with_fabric!(cluster.config().fabric, F => Box::new(ClientEndpoint::<F>::open(cluster)?)))
        };
        Ok(Observer { endpoint: open().map_err(Fail::failed)? })
    }

    /// Why a node that has recently refused this command cannot be observed: their builds do not understand each other.
    pub fn misfit(&self) -> Option<String> {
        self.endpoint.misfit()
    }

    /// What every node shows now, in the order of the configuration.
    pub fn look(&mut self) -> Vec<Sight> {
        self.endpoint.look()
    }

    /// Looks again and again until `enough` is true of what it sees, but no longer than given. `Err` holds the last look.
    pub fn wait_for(
        &mut self,
        patience: Duration,
        interrupt: &Interrupt,
        mut enough: impl FnMut(&[Sight]) -> bool,
    ) -> Outcome<Result<Vec<Sight>, Vec<Sight>>> {
        let until = Instant::now() + patience;
        loop {
            interrupt.check()?;
            let sights = self.look();
            if enough(&sights) {
                return Ok(Ok(sights));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return match self.endpoint.misfit() {
                    // Nothing can be seen, and this is the reason.
                    Some(why) if sights.iter().all(|sight| sight.reading.is_none()) => Err(Fail::failed(why)),
                    _ => Ok(Err(sights)),
                };
            }
            // Connections end the wait; changes of counters do not.
            self.endpoint.wait(left.min(Duration::from_millis(5)));
        }
    }

    /// Connects to the nodes that run, for a single look. `running` are the nodes whose processes run.
    pub fn connect(&mut self, running: &[u16], interrupt: &Interrupt) -> Outcome<Vec<Sight>> {
        let connected = |sights: &[Sight]| running.iter().all(|node| sights.iter().any(|s| s.node == *node && s.reading.is_some()));
        let (Ok(sights) | Err(sights)) = self.wait_for(Duration::from_secs(2), interrupt, connected)?;
        Ok(sights)
    }
}

/// Whether the cluster is whole: all of `nodes` are in one view, every replica among them holds the state, and one of them leads in a view that it has found
/// active.
pub fn is_whole(sights: &[Sight], nodes: &[u16]) -> bool {
    let shown: Vec<&Sight> = sights.iter().filter(|sight| nodes.contains(&sight.node)).collect();
    let Some(view) = shown.first().and_then(|sight| sight.view.as_ref()) else { return false };
    let in_view = |node: u16| view.members.iter().any(|member| member.id.node.0 == node);
    shown.len() == nodes.len()
        && nodes.iter().all(|node| in_view(*node))
        && shown.iter().all(|sight| {
            let same = sight.view.as_ref().is_some_and(|other| other.number == view.number);
            let current = sight.counter(Counter::View) == view.number.0;
            // If the node has been restarted, the view must list the process that runs now.
            let alive = view.members.iter().any(|m| m.id.node.0 == sight.node && m.id.incarnation.0 == sight.counter(Counter::Incarnation));
            same && current && alive
        })
        && view.members.iter().all(|member| !member.roles.has(martlet_protocol::membership::Roles::LEARNER))
        && shown.iter().any(|sight| sight.role() == Some(Role::Primary) && sight.counter(Counter::ActiveView) == view.number.0)
}

/// Whether an engine that elects the leader itself has settled: one of `nodes` leads (the lowest, if the engine prefers that), and each of them knows it.
pub fn is_settled(sights: &[Sight], nodes: &[u16], engine: EngineKind) -> bool {
    let Some(leader) = primary(sights).map(|sight| sight.node) else { return false };
    let known = |sight: &Sight| sight.counter(Counter::Primary) == u64::from(leader) + 1;
    let stays = !engine.traits().prefers_lowest || nodes.iter().min() == Some(&leader);
    stays && sights.iter().filter(|sight| nodes.contains(&sight.node)).all(known)
}

/// The events that all nodes have recorded.
pub fn events(sights: &[Sight]) -> Vec<(u16, Vec<Event>)> {
    sights.iter().filter_map(|sight| Some((sight.node, sight.reading.as_ref()?.events.iter().map(|(_, event)| *event).collect()))).collect()
}

/// The newest view that any node shows.
pub fn newest_view(sights: &[Sight]) -> Option<&View> {
    sights.iter().filter_map(|sight| sight.view.as_ref()).max_by_key(|view| view.number)
}

/// The node that leads. Of several that say so, all but one were cut off and have not heard of their successor: it is the one in the newest view, then the one
/// that more of the others follow, then the one that has got further.
pub fn primary(sights: &[Sight]) -> Option<&Sight> {
    let followers = |leader: &Sight| {
        let follows = |other: &&Sight| other.node != leader.node && other.counter(Counter::Primary) == u64::from(leader.node) + 1;
        sights.iter().filter(follows).count()
    };
    let leads = |sight: &&Sight| sight.role() == Some(Role::Primary);
    sights.iter().filter(leads).max_by_key(|sight| (sight.counter(Counter::View), followers(sight), sight.counter(Counter::CommittedIndex)))
}

/// What a node is, for all that is seen: a node that was cut off says what it was until it hears from the others again.
pub fn role(sights: &[Sight], node: u16) -> Option<Role> {
    let sight = sights.iter().find(|sight| sight.node == node)?;
    let said = sight.role()?;
    let is_listed = |view: &View| {
        view.members.iter().any(|member| member.id.node.0 == node && member.id.incarnation.0 == sight.counter(Counter::Incarnation))
    };
    match said {
        Role::Primary if primary(sights).is_some_and(|leader| leader.node != node) => Some(Role::Deposed),
        Role::Primary | Role::Backup if newest_view(sights).is_some_and(|view| !is_listed(view)) => Some(Role::Excluded),
        said => Some(said),
    }
}

/// The error for a cluster that did not get ready: it says what was last seen of it.
pub fn not_ready(what: &str, sights: &[Sight]) -> Fail {
    let now_ns = martlet_node::clock::now().0;
    let seen: Vec<String> = sights
        .iter()
        .map(|sight| match sight.role() {
            None => format!("node {} cannot be read", sight.node),
            Some(role) => {
                // The node's own counters may be outdated, and its board newer.
                let board = sight.view.as_ref().map_or("nothing".to_owned(), |view| format!("view {}", view.number));
                let age = Duration::from_nanos(now_ns.saturating_sub(sight.counter(Counter::PublishedNs)));
                let gap = Duration::from_nanos(sight.counter(Counter::LongestGapNs));
                let awaited = sight.awaited();
                let waits = if awaited.is_empty() { String::new() } else { format!(", waiting for nodes {awaited:?}, which are not connected") };
                format!(
                    "node {} is {} in view {}{waits} (its board shows {board}; it has started over {} times; it said so {age:.1?} ago; it was kept from running for \
                     {gap:.1?} at most)",
                    sight.node,
                    role.name(),
                    sight.counter(Counter::View),
                    sight.counter(Counter::Resets),
                )
            }
        })
        .collect();
    Fail::failed(format_args!("{what}; last seen: {}", seen.join(", ")))
}

#[cfg(test)]
pub(super) mod tests {
    use martlet_fabric::Incarnation;
    use martlet_fabric::primitive::{AtomicU64, Ordering};
    use martlet_node::counters::Counters;
    use martlet_protocol::basics::{ProcessId, ViewNumber, layout};
    use martlet_protocol::membership::{Member, Roles};

    use super::*;

    /// What a node shows that has set these counters.
    pub(in crate::watch) fn sight(node: u16, values: &[(Counter, u64)]) -> Sight {
        let region: Vec<AtomicU64> = (0..layout::COUNTERS_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let mut counters = Counters::default();
        values.iter().for_each(|(counter, value)| counters.set(*counter, *value));
        counters.open(&region);
        let bytes: Vec<u8> = region.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        Sight { node, reading: Some(Reading::parse(&bytes).expect("just written")), view: None }
    }

    /// One that knows that view, whose members are of incarnation 1.
    fn member(node: u16, standing: u64, knows: u16, number: u64, members: &[u16]) -> Sight {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let members = members.iter().map(|node| Member::new(id(*node), Roles::REPLICA)).collect();
        let view =
            View { number: ViewNumber(number), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
        let values =
            [(Counter::Standing, standing), (Counter::View, number), (Counter::Incarnation, 1), (Counter::Primary, u64::from(knows) + 1)];
        Sight { view: Some(view), ..sight(node, &values) }
    }

    #[test]
    fn of_two_that_say_that_they_lead_one_is_deposed() {
        let of = |sights: &[Sight]| {
            let roles: Vec<_> = (0..3).map(|node| role(sights, node)).collect();
            (primary(sights).map(|sight| sight.node), roles)
        };
        let (leads, deposed, follows) = (Some(Role::Primary), Some(Role::Deposed), Some(Role::Backup));
        // Node 0 is cut off from node 1 only: membership has changed nothing.
        let all = [0, 1, 2];
        let sights = [member(0, 2, 0, 8, &all), member(1, 2, 1, 8, &all), member(2, 1, 1, 8, &all)];
        assert_eq!(of(&sights), (Some(1), vec![deposed, leads, follows]));
        let sights = [member(0, 2, 0, 8, &all), member(1, 2, 1, 8, &all), member(2, 1, 0, 8, &all)];
        assert_eq!(of(&sights), (Some(0), vec![leads, deposed, follows]), "whichever number it has");
        let sights = [member(0, 2, 0, 8, &all), member(1, 2, 1, 9, &[1, 2]), member(2, 1, 0, 8, &all)];
        assert_eq!(of(&sights), (Some(1), vec![deposed, leads, follows]), "a newer view decides");
        // Nobody else says so.
        assert_eq!(of(&sights[..1]).1[0], leads);
    }

    #[test]
    fn a_node_that_the_newest_view_does_not_have_is_excluded_whatever_it_says() {
        let sights = [member(0, 1, 0, 8, &[0, 1, 2]), member(1, 2, 1, 9, &[1, 2]), member(2, 1, 1, 9, &[1, 2])];
        assert_eq!((role(&sights, 0), role(&sights, 2)), (Some(Role::Excluded), Some(Role::Backup)));
        let alone = [member(0, 2, 0, 8, &[0, 1, 2]), member(2, 4, 1, 9, &[1])];
        assert_eq!((role(&alone, 2), role(&alone, 7)), (Some(Role::Leaving), None), "it says more than the view");
    }
}

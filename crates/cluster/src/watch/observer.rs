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

    /// The node's role.
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

/// The node that says itself that it leads.
pub fn primary(sights: &[Sight]) -> Option<&Sight> {
    sights.iter().filter(|sight| sight.role() == Some(Role::Primary)).max_by_key(|sight| sight.counter(Counter::View))
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

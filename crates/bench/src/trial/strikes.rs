//! What happens to the warden of a node's host.

use martlet_cluster::fail::Outcome;
use martlet_cluster::watch::observer::{self, Sight};
use martlet_fabric::NodeId;
use martlet_node::application_of;
use martlet_node::counters::Counter;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::View;
use martlet_warden::board::State;
use rustix::process::Signal;

use super::testbed::{PATIENCE, Testbed};
use super::wardens::{Wardens, until};

/// One of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL, and a new start.
    Kill,
    /// SIGTERM, and a new start.
    Restart,
    /// SIGKILL, and then another process stands in its place and says of all other nodes that they are certainly dead, which they are not.
    Forge,
    /// SIGKILL, and the node is killed while it is away.
    KillBoth,
}

impl Strike {
    /// All of them.
    pub const ALL: [Strike; 4] = [Strike::Kill, Strike::Restart, Strike::Forge, Strike::KillBoth];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Strike::Kill => "warden killed",
            Strike::Restart => "warden restarted",
            Strike::Forge => "warden forged",
            Strike::KillBoth => "both killed",
        }
    }

    /// By what the warden ends.
    pub fn signal(self) -> Signal {
        if self == Strike::Restart { Signal::TERM } else { Signal::KILL }
    }
}

/// The life of a node in the newest view.
fn life_of(sights: &[Sight], node: u16) -> Option<ProcessId> {
    let view: &View = observer::newest_view(sights)?;
    view.members.iter().map(|member| member.id).find(|id| id.node.0 == node)
}

/// Has another process stand in the place of the warden of a node's host, which has ended. By what it says all other nodes are certainly dead, with secrets that it has made up. Waits
/// until the node has heard that of each, and believed none of it: then it returns true, and false when the node was excluded meanwhile, as one that is presumed dead, and begun anew.
pub fn forge(testbed: &mut Testbed, wardens: &Wardens, node: u16) -> Outcome<bool> {
    let disbelieved = |sights: &[Sight]| {
        let sight = sights.iter().find(|sight| sight.node == node);
        sight.map_or(0, |sight| sight.counter(Counter::DisbelievedCertificates))
    };
    let sights = testbed.await_whole()?;
    let (before, life) = (disbelieved(&sights), life_of(&sights, node));
    let impostor = wardens.impostor(node)?;
    let mut looks = wardens.connect(node)?;
    let name = testbed.cluster().config().name.clone();
    let others: Vec<u16> = testbed.numbers().into_iter().filter(|number| *number != node).collect();
    let mut pretenders = Vec::new();
    for other in &others {
        let app = application_of(&name, NodeId(*other));
        pretenders.push(wardens.pretend(node, app)?);
        until("a program that pretends to be a node is not registered, or the node does not ask for it", || {
            let (apps, _) = looks.status().ok()?;
            apps.iter().any(|one| one.app == app && one.state == State::Alive && one.words > 0 && one.monitors > 0).then_some(())
        })?;
    }
    // They are killed.
    drop(pretenders);
    let wanted = before + others.len() as u64;
    let what = format!("node {node} was told of {} forged deaths, and did not count them as disbelieved", others.len());
    let is_told = |sights: &[Sight]| disbelieved(sights) >= wanted || life_of(sights, node) != life;
    let sights = testbed.await_that(PATIENCE, &what, is_told)?;
    drop(impostor);
    Ok(life_of(&sights, node) == life)
}

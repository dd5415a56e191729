//! Lives in which leadership changes at a moment that chance hardly ever finds.

use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::Roles;

use super::play;
use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;
use crate::cluster::plan::Plan;
use crate::cluster::report::Report;
use crate::cluster::settings::Settings;

/// A group of five is to have three places. At the moment at which its leader holds the entry by which both groups decide, and nobody else does, the leader and one that stays are cut off
/// from the other three: these are a majority of the group before the change, and know of no other; the two are one of the group after it.
pub(in crate::cluster) fn resize<E: Engine>(plan: &Plan) -> (Report, String) {
    const NODES: u16 = 5;
    let roles = vec![Roles::COORDINATOR.with(Roles::REPLICA); usize::from(NODES)];
    play::<E, false>(plan, Settings { nodes: NODES, roles, clients: 6, ..Settings::scripted() }, |c| {
        let Some((leader, name)) = leader(c) else { return };
        c.say("the group is to have three places");
        let taken = c.resize(leader, 3);
        c.until("the change is taken", |_| taken);
        let in_transition = |c: &Cluster<E, false>| c.nodes[leader].as_ref().is_some_and(|n| n.engine().is_in_transition());
        if !c.until("two groups decide", in_transition) {
            return;
        }
        c.say("the leader, and one that stays, are cut off from the others");
        let mut others: Vec<usize> = c.alive().filter(|p| *p != leader).collect();
        others.sort_unstable_by_key(|p| c.name(*p));
        c.world.partition(&[leader, others[0]], &others[1..]);
        c.until("another one leads", |c| c.has_other_primary(name));
        c.until_replies(10);
        c.say("the cut is mended");
        c.world.heal();
        c.until_served();
    })
}

/// The leader is killed while it has a write in its hands that its client has no reply to. The client asks the next one for the same again.
pub(in crate::cluster) fn asked_again<E: Engine>(plan: &Plan) -> (Report, String) {
    play::<E, true>(plan, Settings::scripted(), |c| {
        let Some((leader, name)) = leader(c) else { return };
        let writes = |c: &Cluster<E, true>| c.nodes[leader].as_ref().is_some_and(|n| n.engine().last() > n.engine().committed());
        if !c.until("it writes", writes) {
            return;
        }
        c.say("the leader is killed");
        c.kill(leader);
        c.until("another one leads", |c| c.has_other_primary(name));
        c.until_replies(20);
        c.start(name.node.0);
        c.until_served();
    })
}

/// The one that leads. Without one the life tests nothing, which it must not pass for.
fn leader<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) -> Option<(usize, ProcessId)> {
    c.until("one leads", |c| c.leader().is_some());
    c.leader().map(|process| (process, c.name(process)))
}

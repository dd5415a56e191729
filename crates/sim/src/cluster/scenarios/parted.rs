//! Lives in which leadership changes at a moment that randomness hardly ever hits.

use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::Roles;

use super::play;
use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;
use crate::cluster::plan::Plan;
use crate::cluster::report::Report;
use crate::cluster::settings::Settings;

/// A group of five is to have three places. At the moment at which only its leader holds the entry from which on both groups decide, the leader and one process
/// that stays are cut off from the other three. These three are a majority of the group before the change, and know of no other group. The two are a majority
/// of the group after it.
pub(in crate::cluster) fn resize<E: Engine>(plan: &Plan) -> (Report, String) {
    play::<E, false>(plan, five(), |c| {
        let Some((leader, name)) = leader(c) else { return };
        shrink(c, leader);
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

/// A group of five is to have three places. As soon as one of the processes that are to go has the entry with which the group drops it, the leader is killed,
/// and the processes that stay are stopped for a while: only those that are to go are left to stand for election. Then the others continue.
pub(in crate::cluster) fn removed<E: Engine>(plan: &Plan) -> (Report, String) {
    play::<E, true>(plan, five(), |c| {
        let Some((leader, name)) = leader(c) else { return };
        shrink(c, leader);
        if !c.until("one finds itself left out", |c| c.alive().any(|p| p != leader && goes(c, p))) {
            return;
        }
        let others: Vec<usize> = c.alive().filter(|p| *p != leader && !goes(c, *p)).collect();
        c.say("the leader is killed, and those that stay are stopped");
        others.iter().for_each(|p| c.hold(*p));
        c.kill(leader);
        c.go_on_until(c.world.now() + 4 * c.settings.heartbeat_interval_ns);
        c.say("they go on");
        others.iter().for_each(|p| c.release(*p));
        c.until("another one leads", |c| c.has_other_primary(name));
        // There are not enough places yet for all to be replicas again; that is required only once there are.
        c.until_replies(10);
        c.start(name.node.0);
    })
}

/// A group of five is to have three places. At the moment at which one of the processes that are to go has the entry with which the group drops it, the leader
/// and one process that stays are cut off from the other three. The two are a majority of the group after the change, and commit; only one of the three belongs
/// to that group.
pub(in crate::cluster) fn removal<E: Engine>(plan: &Plan) -> (Report, String) {
    play::<E, false>(plan, five(), |c| {
        let Some((leader, _)) = leader(c) else { return };
        shrink(c, leader);
        if !c.until("one finds itself left out", |c| c.alive().any(|p| p != leader && goes(c, p))) {
            return;
        }
        c.say("the leader, and one that stays, are cut off from the others");
        let in_force =
            |c: &Cluster<E, false>, process: usize| c.nodes[leader].as_ref().is_some_and(|n| !n.engine().is_leaving_out(c.name(process)));
        let stays = c.alive().find(|p| *p != leader && in_force(c, *p)).expect("two do beside the leader");
        let others: Vec<usize> = c.alive().filter(|p| *p != leader && *p != stays).collect();
        c.world.partition(&[leader, stays], &others);
        // Long enough for the others to elect a leader, if they could.
        c.go_on_until(c.world.now() + 40 * c.settings.heartbeat_interval_ns);
        c.until_replies(10);
        c.say("the cut is mended");
        c.world.heal();
        c.until_replies(10);
    })
}

/// A leader has committed all it was given. Then nothing that the others do reaches it any more, not even their answers to it, while its clients still reach
/// it. Another process becomes leader, and acknowledges a write to the only key. Then the old leader is asked for a read.
pub(in crate::cluster) fn read<E: Engine>(plan: &Plan) -> (Report, String) {
    play::<E, false>(plan, Settings { keys: 1, ..Settings::scripted() }, |c| {
        let Some((leader, name)) = leader(c) else { return };
        let is_quiet = |c: &Cluster<E, false>| c.clients.iter().all(|client| !client.is_waiting());
        c.closing = true;
        if !c.until("all requests come to an end", is_quiet) {
            return;
        }
        c.say("the others do not reach the leader any more");
        let others: Vec<usize> = c.alive().filter(|p| *p != leader).collect();
        others.iter().for_each(|p| c.world.block(*p, leader));
        if !c.until("another one leads", |c| c.has_other_primary(name)) {
            return;
        }
        for (client, node, puts) in [(1, c.name(others[0]).node.0, true), (0, name.node.0, false)] {
            c.say(if puts { "another one is asked for a write" } else { "the old one is asked for a read" });
            (c.clients[client].wanted, c.clients[client].puts, c.clients[client].target) = (vec![1], puts, node);
            c.call(client);
            // By then the effects of the cut are over as well.
            c.go_on_until(c.world.now() + 20_000);
            c.until("a server answers", is_quiet);
        }
        c.say("they reach it again");
        c.world.heal();
    })
}

/// The leader is killed while it holds a write that it has not replied to. The client repeats the same request at the next leader.
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

/// The leader. A life without one tests nothing, and must not pass.
fn leader<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) -> Option<(usize, ProcessId)> {
    c.until("one leads", |c| c.leader().is_some());
    c.leader().map(|process| (process, c.name(process)))
}

/// Asks for three places in the group.
fn shrink<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>, leader: usize) {
    c.say("the group is to have three places");
    let taken = c.resize(leader, 3);
    c.until("the change is taken", |_| taken);
}

/// Whether a process has the entry with which the group drops it.
fn goes<E: Engine, const HOST: bool>(c: &Cluster<E, HOST>, process: usize) -> bool {
    c.nodes[process].as_ref().is_some_and(|n| n.engine().is_leaving_out(n.me()))
}

/// Five nodes, and six clients.
fn five() -> Settings {
    const NODES: u16 = 5;
    let roles = vec![Roles::COORDINATOR.with(Roles::REPLICA); usize::from(NODES)];
    Settings { nodes: NODES, roles, clients: 6, ..Settings::scripted() }
}

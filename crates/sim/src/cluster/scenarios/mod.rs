//! Scenes that every reader of the code should have seen once. Their stories are in `testdata`, as they are told today.

pub(super) mod contest;
pub(super) mod parted;
mod script;
pub mod steps;

use std::path::{Path, PathBuf};

use martlet_fabric::sim::Span;
use martlet_protocol::basics::layout;
use martlet_protocol::duty::Pace;
use martlet_protocol::engine::{Mu, PrimaryBackup};
use martlet_protocol::membership::{ClockBounds, Evidence, Roles};
use martlet_protocol::replica::Execution;

use super::engine::Engine;
use super::life::{Cluster, stream};
use super::plan::Plan;
use super::report::Report;
use super::settings::Settings;
use super::storage::disk::Disks;
use crate::canaries::Careless;

/// A scene.
#[derive(Debug)]
pub struct Scenario {
    /// The name of the scene and of its file.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    play: fn(&Plan) -> (Report, String),
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "failover",
        about: "The primary is killed. The kernel's word makes its death certain, so the next view waits for nobody's lease.",
        play: |plan| play::<PrimaryBackup, true>(plan, Settings::scripted(), failover),
    },
    Scenario {
        name: "paused-primary",
        about: "The primary stops for longer than its lease, is presumed dead, and comes back: it may not act, and starts over.",
        play: |plan| play::<PrimaryBackup, true>(plan, Settings::scripted(), paused_primary),
    },
    Scenario {
        name: "join",
        about: "A node comes back as a new incarnation: a learner at first, taught while the primary serves, then a replica again.",
        play: |plan| play::<PrimaryBackup, true>(plan, Settings::scripted(), join),
    },
    Scenario {
        name: "leader-change",
        about: "The coordinator that leads stops; another one leads; the first goes on at once, and both propose the same view's number.",
        play: |plan| play::<PrimaryBackup, true>(plan, Settings::scripted(), leader_change),
    },
    Scenario {
        name: "rpc-fallback",
        about: "The ballots that fit into a slot's word are used up: views are decided by messages instead of one-sided swaps.",
        play: |plan| play::<PrimaryBackup, true>(plan, Settings { worn: true, ..Settings::scripted() }, rpc_fallback),
    },
    Scenario {
        name: "partition",
        about: "On a network the primary is cut off from the others: it stops serving when its lease ends, and they go on without it.",
        play: |plan| play::<PrimaryBackup, false>(plan, Settings::scripted(), partition),
    },
    Scenario {
        name: "mu-leader-change",
        about: "The leader stops, and the next one leads by a majority's permission, without a new view. The first goes on, leads again, and hands over.",
        play: |plan| play::<Mu, true>(plan, Settings::scripted(), permission_change),
    },
    Scenario {
        name: "lap-slept-through",
        about: "The coordinator that leads stops until its next view's slot is used for the second time, and proposes as if no time had passed.",
        play: |plan| play::<PrimaryBackup, true>(plan, Settings::scripted(), lap_slept_through),
    },
    Scenario {
        name: "mu-removed-leader",
        about: "The leader removes itself from the group: it commits that as its last record, and comes back as somebody new.",
        play: |plan| play::<Mu, true>(plan, Settings::scripted(), removed_leader),
    },
    Scenario {
        name: "mu-full-log",
        about: "Followers that stand still, and a store that never asks whether there is room: what does not fit into the log waits.",
        play: |plan| play::<Mu, true>(plan, Settings { clients: 40, keys: 16, ..Settings::scripted() }, full_log),
    },
];

/// The directory of the stories.
pub fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

impl Scenario {
    /// The name of its file in [`testdata`].
    pub fn file_name(&self) -> String {
        format!("{}.txt", self.name)
    }

    /// Plays the scene, and returns its report and its story.
    pub fn told(&self) -> (Report, String) {
        let (report, story) = (self.play)(&Plan { narrate: true, ..Plan::new(1) });
        (report, format!("{}: {}\n\n{story}", self.name, self.about))
    }
}

/// For a canary. Clocks run fast or slow by up to a tenth, leases are long, and suspicion is quick. The primary is stopped just when it has renewed its lease,
/// and the next primary acts as soon as it has waited for that lease. The only thing left to keep the two apart are the margins for clocks
/// ([`ClockBounds`](martlet_protocol::membership::ClockBounds)).
pub(super) fn stopped_after_renewal(plan: &Plan) -> (Report, String) {
    let scripted = Settings::scripted();
    let clocks = ClockBounds { drift_ppm: 100_000, ..scripted.clocks };
    play::<PrimaryBackup, true>(
        plan,
        Settings { clocks, lease_ns: 2_000_000, heartbeat_interval_ns: 4_000, idle_ns: 1_000, ..scripted },
        |c| {
            let old = c.process(0);
            let end = |c: &Cluster<PrimaryBackup, true>| c.nodes[old].as_ref().expect("it lives").core().lease().end();
            let before = end(c);
            c.until("the primary renews its lease", |c| end(c) > before);
            c.hold(old);
            let name = c.name(old);
            c.until("another one leads", |c| c.has_other_primary(name));
            c.until_replies(5);
            c.release(old);
            c.until_served();
        },
    )
}

/// For a canary. Two of three replicas are asked to end at the same moment, and disks are slow. The third can serve alone once a group without the two is on
/// enough of their disks. If one of them goes sooner, the third can never serve, nor take in another process.
pub(super) fn two_of_three_end(plan: &Plan) -> (Report, String) {
    let disks = Disks { sync: Span(20_000, 60_000), segment_bytes: 20_000, part_bytes: 2_000, dark: Span(0, 0), late: 0 };
    play::<Mu, true>(plan, Settings { disks: Some(disks), patience_ns: 2_000_000, ..Settings::scripted() }, |c| {
        c.until_replies(10);
        c.say("two of three are asked to end");
        let two = [1, 2].map(|node| c.process(node));
        two.iter().for_each(|process| c.leave(*process));
        c.until("both have ended", |c| two.iter().all(|process| c.nodes[*process].is_none()));
        c.until_replies(5);
        c.until_served();
    })
}

/// All but one of five are killed within a millisecond, in any order; as often as not the primary is among the first. The survivor continues with everything
/// that was acknowledged.
pub(super) fn all_but_one<E: Engine>(plan: &Plan, execution: Execution) -> (Report, String) {
    const NODES: u16 = 5;
    let mut chance = stream(plan.seed, "all but one", 0);
    let mut order: Vec<u16> = (0..NODES).collect();
    chance.shuffle(&mut order);
    // Some die at the same moment, as when the kernel ends them all, and some between two steps of the reaction to earlier deaths.
    let mut times: Vec<u64> = order[1..].iter().map(|_| if chance.bool() { 0 } else { chance.u64(..1_000_000) }).collect();
    times.sort_unstable();
    let roles = vec![Roles::COORDINATOR.with(Roles::REPLICA); usize::from(NODES)];
    let settings = Settings { nodes: NODES, roles, clients: 4, execution, ..Settings::scripted() };
    play::<E, true>(plan, settings, |c| {
        c.until_replies(chance.u64(1..40));
        let start = c.world.now();
        for (node, after_ns) in order[1..].iter().zip(times) {
            c.until("time goes by", |c| c.world.now() >= start + after_ns);
            c.say("one is killed");
            c.kill(c.process(*node));
        }
        c.say("one is left");
        c.until_replies(20);
        order[1..].iter().for_each(|node| c.start(*node));
        c.until_served();
    })
}

/// How a primary comes to stand still, and what its clock shows of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standstill {
    /// The clock stops for good, and nothing reveals that: outside the model.
    Unseen,
    /// The same, but the primary is asked for a write, and no node gives up the memory that the primary had access to.
    UnseenWriting,
    /// The primary's host is suspended. The clock that nodes read counts that time.
    Suspended,
    /// The clock stops, and later continues from there. It can be detected that the clock has jumped.
    Noticed,
}

/// For canaries. The primary is stopped. When it is resumed, another node leads and has acknowledged writes. The old primary takes one more read before it
/// looks at anything else, and must not answer it from what it knows. After an unseen standstill its lease still holds by its clock, so the promise is made
/// only for reads by quorum; the primary is then stopped while it asks the coordinators for one.
///
/// Or the old primary holds writes that are not acknowledged yet, and takes one more. Its successor must have found every write that it acknowledges.
pub(super) fn read_from_the_past<E: Engine>(plan: &Plan, standstill: Standstill) -> (Report, String) {
    // A single key, so every client knows what the others have written.
    let unseen = matches!(standstill, Standstill::Unseen | Standstill::UnseenWriting);
    let writes = standstill == Standstill::UnseenWriting;
    let mut settings = Settings { quorum_reads: if unseen { 1000 } else { 0 }, keys: 1, ..Settings::scripted() };
    // Until the primary is resumed, it expects requests, but turns only for requests are so short that there are none.
    (settings.pace.expects_requests_ns, settings.pace.short_turns_ns) = (50_000, 0);
    if writes {
        // Memory that is no longer needed is kept; giving it up would take the lanes away as well.
        (settings.pace.forget_after_ns, settings.pace.forget_while_busy_after_ns) = (u64::MAX / 2, u64::MAX / 2);
    }
    let clock_stops = standstill != Standstill::Suspended || Careless::MonotonicTime.is_planted();
    play::<E, false>(plan, settings, |c| {
        let old = c.process(0);
        let name = c.name(old);
        let is_ready = |c: &Cluster<E, false>| {
            let node = c.nodes[old].as_ref();
            let asks = |wants_round: bool| wants_round || standstill != Standstill::Unseen;
            // A write may be on its way to one of the others, or to both.
            node.is_some_and(|n| {
                let is_level = n.engine().committed() == n.engine().last() && n.server.inbox.is_empty();
                asks(n.engine().wants_round()) && is_level != writes
            })
        };
        if !c.until("it writes, or writes nothing and asks the coordinators", is_ready) {
            return;
        }
        c.say(if clock_stops { "the primary is stopped, and its clock" } else { "the primary's host is suspended" });
        let now = c.world.now();
        if clock_stops {
            c.nodes[old].as_mut().expect("it lives").clock.stop(now);
        }
        c.hold(old);
        c.until("another one leads", |c| c.has_other_primary(name));
        c.until_replies(10);
        c.closing = true;
        c.until("all requests come to an end", |c| c.clients.iter().all(|client| !client.is_waiting()));
        if c.oracles.violation().is_some() {
            return;
        }
        // Everything that was sent to it has arrived by then. It comes from clients that have asked another node since, so it is dropped.
        c.go_on_until(c.world.now() + 10_000);
        if let Some(node) = &mut c.nodes[old] {
            node.server.inbox.clear();
        }
        c.say(if writes { "it is asked for a write, and goes on" } else { "it is asked for a read, and goes on" });
        (c.clients[0].wanted, c.clients[0].puts, c.clients[0].target) = (vec![1], writes, 0);
        c.call(0);
        c.until("the request is there", |c| c.nodes[old].as_ref().is_none_or(|n| !n.server.inbox.is_empty()));
        // Turns only for requests, such as a busy primary takes between two whole ones.
        let short = Pace { short_turns_ns: u64::MAX / 2, expects_requests_ns: u64::MAX / 4, ..c.settings.pace };
        let now = c.world.now();
        if let Some(node) = &mut c.nodes[old] {
            node.cycle.set_pace(short);
            if !unseen {
                node.clock.go_on(now);
                node.jumped = standstill == Standstill::Noticed;
            }
        }
        c.release(old);
        c.go_on_until(c.world.now() + 20_000);
        let usual = c.settings.pace;
        if let Some(node) = &mut c.nodes[old] {
            node.cycle.set_pace(usual);
        }
        c.until("it is answered, by whomever", |c| !c.clients[0].is_waiting());
        if writes {
            c.say("what was acknowledged is read");
            (c.clients[1].wanted, c.clients[1].target) = (vec![1], 1);
            c.call(1);
            c.until("the read is answered", |c| !c.clients[1].is_waiting());
        }
    })
}

fn play<E: Engine, const HOST: bool>(plan: &Plan, settings: Settings, script: impl FnOnce(&mut Cluster<E, HOST>)) -> (Report, String) {
    let mut cluster = Cluster::new(plan, settings);
    cluster.until_served();
    if cluster.oracles.violation().is_none() {
        script(&mut cluster);
    }
    cluster.conclude();
    cluster.finish()
}

fn failover<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    c.say("the primary is killed");
    let dead = c.kill(c.process(0));
    c.until("another one leads", |c| c.has_other_primary(dead));
    c.until_replies(1);
    c.say("a client has got a reply again");
    c.until_replies(10);
    c.say("the node is started again");
    c.start(0);
    c.until_served();
}

fn paused_primary<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    let old = c.name(c.process(0));
    c.say("the primary is stopped");
    c.hold(c.process(0));
    c.until("another one leads", |c| c.has_other_primary(old));
    c.until_replies(5);
    c.say("the old primary goes on");
    c.release(c.process(0));
    c.until("it has started over", |c| c.current[0].is_none_or(|p| c.name(p) != old));
    c.until_served();
}

fn join<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    c.say("a backup is killed");
    let dead = c.kill(c.process(2));
    c.until("a view without it", |c| !c.lists(dead));
    c.until_replies(20);
    c.say("its node is started again");
    c.start(2);
    let new = c.name(c.process(2));
    c.until("a view with it", |c| c.lists(new));
    c.until_served();
}

fn leader_change<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    let (leader, next) = (c.process(0), c.process(1));
    let name = c.name(leader);
    c.say("the leader is stopped");
    c.hold(leader);
    c.until("the next coordinator suspects it", |c| {
        c.nodes[next].as_ref().is_some_and(|n| n.core().suspicion(name) == Some(Evidence::Presumed))
    });
    c.say("the leader goes on, and an operator asks it for longer leases: it proposes, too");
    c.release(leader);
    c.ask_for_leases(leader, 150_000);
    c.until_served();
}

fn lap_slept_through<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    let old = c.process(0);
    let name = c.name(old);
    c.say("the leader is stopped");
    c.hold(old);
    c.until("a view without it", |c| !c.lists(name));
    c.say("an operator asks for leases of another length, again and again");
    let first = c.oracles.views.newest().expect("there are views").number.0;
    while c.oracles.violation().is_none() {
        let newest = c.oracles.views.newest().expect("there are views");
        if newest.number.0 > first + layout::SLOTS as u64 {
            break;
        }
        let (before, lease_ns) = (newest.number, if newest.lease_ns == 90_000 { 120_000 } else { 90_000 });
        c.ask_for_leases(c.process(1), lease_ns);
        c.until("a view says so", |c| c.oracles.views.newest().is_some_and(|v| v.number > before && v.lease_ns == lease_ns));
    }
    c.say("the old leader goes on, and is asked for longer leases itself");
    c.release(old);
    c.ask_for_leases(old, 150_000);
    c.until("it has started over", |c| c.current[0].is_none_or(|p| c.name(p) != name));
    c.until_served();
}

fn removed_leader<const HOST: bool>(c: &mut Cluster<Mu, HOST>) {
    let leader = c.process(0);
    let name = c.name(leader);
    c.say("the leader removes itself");
    c.nodes[leader].as_mut().expect("it lives").host.engine.remove(name);
    c.world.wake(leader);
    c.until("another one leads", |c| c.has_other_primary(name));
    c.until_replies(10);
    c.until("it has started over", |c| c.current[0].is_none_or(|p| c.name(p) != name));
    c.until_served();
}

fn full_log<const HOST: bool>(c: &mut Cluster<Mu, HOST>) {
    let leader = c.process(0);
    c.nodes[leader].as_mut().expect("it lives").server.heedless = true;
    c.say("both followers are stopped");
    let followers = [c.process(1), c.process(2)];
    followers.iter().for_each(|p| c.hold(*p));
    c.go_on_until(c.world.now() + 1_100_000);
    c.say("they go on");
    followers.iter().for_each(|p| c.release(*p));
    c.until_served();
}

fn rpc_fallback<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    for lease_ns in [120_000, 90_000] {
        let before = c.oracles.views.count();
        c.say("an operator asks for leases of another length");
        c.ask_for_leases(c.process(0), lease_ns);
        c.until("a view says so", |c| c.oracles.views.count() > before && c.oracles.views.newest().is_some_and(|v| v.lease_ns == lease_ns));
    }
    c.until_served();
}

fn partition<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    let old = c.name(c.process(0));
    c.say("the primary is cut off from the others");
    let ways = [(0, 1), (0, 2)].map(|(a, b)| (c.process(a), c.process(b)));
    for (a, b) in ways {
        c.world.block(a, b);
        c.world.block(b, a);
    }
    c.until("another one leads", |c| c.has_other_primary(old));
    c.until_replies(5);
    c.say("the cut is mended");
    c.world.heal();
    c.until_replies(20);
}

fn permission_change<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>) {
    let old = c.name(c.process(0));
    c.say("the leader is stopped");
    c.hold(c.process(0));
    c.until("another one leads", |c| c.has_other_primary(old));
    c.until_replies(5);
    c.say("clients have got replies again; the old leader goes on");
    c.release(c.process(0));
    let doubted = |c: &Cluster<E, HOST>| c.nodes.iter().flatten().any(|n| n.core().suspicion(old).is_some());
    c.until("it leads again, and nobody doubts that it lives", |c| c.leader() == Some(c.process(0)) && !doubted(c));
    c.until_replies(5);
    c.say("an operator wants it to hand over");
    let leader = c.process(0);
    let asked = c.nodes[leader].as_mut().expect("it lives").host.engine.hand_over(None);
    asked.expect("it leads, and there are others");
    c.world.wake(leader);
    c.until("another one leads", |c| c.leader().is_some_and(|p| p != leader));
    c.until_served();
}

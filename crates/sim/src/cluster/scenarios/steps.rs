//! A crash or a pause at every single step of a phase of the protocol, one life for each step.
//!
//! A phase is a scene that runs by itself once it has begun. Everything that happens in it counts as a step: each store that lands, each completion, each
//! datagram, and each step of every node's turn, since here every turn stops after each of its steps. Life after life is the same up to step 1, 2, 3 ... There
//! a chosen node is killed, or stopped for three leases; then the life continues under all oracles.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use martlet_fabric::sim::Span;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::engine::{Dare, Mu, PrimaryBackup};
use martlet_protocol::membership::Roles;
use martlet_protocol::replica::group;

use crate::cluster::engine::Engine;
use crate::cluster::life::{Cluster, Due};
use crate::cluster::plan::Plan;
use crate::cluster::report::{Property, Report};
use crate::cluster::settings::Settings;

/// A phase of the protocol.
#[derive(Debug)]
pub struct Phase {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Runs a life that contains the phase.
    live: fn(&Phase, &Plan, Option<Blow>) -> Life,
}

/// What happens in a phase.
struct Script<E, const HOST: bool> {
    /// What comes before it.
    prepare: fn(&mut Cluster<E, HOST>),
    /// What begins it.
    begin: fn(&mut Cluster<E, HOST>),
    /// Whether it is over.
    is_over: fn(&Cluster<E, HOST>, &Before) -> bool,
}

/// The state of the cluster when a phase began.
struct Before {
    /// The first primary, before the script prepared anything.
    primary: ProcessId,
    /// How many replies clients had got.
    replies: u64,
}

/// The result of a life that contains a phase.
struct Life {
    steps: u64,
    dealt: bool,
    report: Report,
    story: String,
}

/// All of them.
pub const PHASES: &[Phase] = &[
    Phase {
        name: "failover",
        about: "the primary is killed, until another one leads",
        live: |phase, plan, blow| phase.play(plan, blow, three(), failover::<PrimaryBackup, true>()),
    },
    Phase {
        name: "takeover",
        about: "the primary is stopped and presumed dead, until another one leads",
        live: |phase, plan, blow| phase.play(plan, blow, three(), takeover::<PrimaryBackup, true>()),
    },
    Phase {
        name: "revocation",
        about: "a primary that was stopped with writes on their way goes on after another one leads, until it has started over",
        live: |phase, plan, blow| phase.play(plan, blow, three(), revocation::<PrimaryBackup, true>()),
    },
    Phase {
        name: "view-change",
        about: "an operator asks for leases of another length, until all know the view that says so",
        live: |phase, plan, blow| phase.play(plan, blow, three(), view_change::<PrimaryBackup, true>()),
    },
    Phase {
        name: "join",
        about: "a node is started again, until it is a replica",
        live: |phase, plan, blow| phase.play(plan, blow, three(), join::<PrimaryBackup, true>()),
    },
    Phase {
        name: "network-takeover",
        about: "on a network the primary is stopped and presumed dead, until another one leads",
        live: |phase, plan, blow| phase.play(plan, blow, five(), takeover::<PrimaryBackup, false>()),
    },
    Phase {
        name: "mu-leader-change",
        about: "mu's leader is stopped, and another asks for permission, until its first records have been replied to",
        live: |phase, plan, blow| phase.play(plan, blow, five(), leader_change::<true>()),
    },
    Phase {
        name: "mu-hand-over",
        about: "mu's leader is to hand over, until another one's first records have been replied to",
        live: |phase, plan, blow| phase.play(plan, blow, five(), hand_over::<true>()),
    },
    Phase {
        name: "dare-failover",
        about: "dare's leader is killed, until another one leads; the blow may strike that one",
        live: |phase, plan, blow| phase.play(plan, blow, five(), failover::<Dare, true>()),
    },
    Phase {
        name: "dare-election",
        about: "dare's leader is stopped, and another one stands, adjusts the others' logs, and replies to its first records",
        live: |phase, plan, blow| phase.play(plan, blow, five(), election::<true>()),
    },
    Phase {
        name: "dare-join",
        about: "dare's group is extended for a node that is started again, which recovers, until it is a replica",
        live: |phase, plan, blow| phase.play(plan, blow, five(), join::<Dare, true>()),
    },
    Phase {
        name: "dare-resize",
        about: "dare's group of five is to have three places, until all who stay know that it has",
        live: |phase, plan, blow| phase.play(plan, blow, five(), resize::<true>()),
    },
];

fn failover<E: Engine, const HOST: bool>() -> Script<E, HOST> {
    Script {
        prepare: |_| {},
        begin: |c| {
            c.kill(c.process(0));
            restart_later(c, 0);
        },
        is_over: |c, before| c.has_other_primary(before.primary),
    }
}

fn takeover<E: Engine, const HOST: bool>() -> Script<E, HOST> {
    Script { prepare: |_| {}, begin: |c| c.hold(c.process(0)), is_over: |c, before| c.has_other_primary(before.primary) }
}

fn revocation<E: Engine, const HOST: bool>() -> Script<E, HOST> {
    Script {
        prepare: |c| {
            let process = c.process(0);
            let old = c.name(process);
            // In the middle of a turn, with an operation posted that has not landed.
            c.until("a turn with writes on their way", |c| {
                c.nodes[process].as_ref().is_some_and(|n| n.is_mid_turn() && n.server.held() > 0) && c.world.held() > 12
            });
            c.hold(process);
            c.until("another one leads", |c| c.has_other_primary(old));
            c.until_replies(3);
        },
        begin: |c| c.release(c.process(0)),
        is_over: |c, before| c.processes.get(&before.primary).is_none_or(|p| c.nodes[*p].is_none()),
    }
}

fn view_change<E: Engine, const HOST: bool>() -> Script<E, HOST> {
    Script {
        prepare: |_| {},
        begin: |c| {
            c.ask_for_leases(c.process(0), 60_000);
        },
        is_over: |c, _| {
            let view = c.oracles.views.newest().filter(|view| view.lease_ns == 60_000);
            view.is_some_and(|view| c.nodes.iter().flatten().all(|n| n.core().view_number() >= view.number))
        },
    }
}

fn join<E: Engine, const HOST: bool>() -> Script<E, HOST> {
    Script {
        prepare: |c| {
            let dead = c.kill(c.process(2));
            c.until("a view without it", |c| !c.lists(dead));
            c.until_replies(3);
        },
        begin: |c| c.start(2),
        is_over: |c, _| {
            let view = c.oracles.views.newest();
            view.is_some_and(|view| view.with_roles(Roles::REPLICA).any(|m| m.id.node.0 == 2))
        },
    }
}

fn leader_change<const HOST: bool>() -> Script<Mu, HOST> {
    Script {
        prepare: |c| {
            let process = c.process(0);
            let old = c.name(process);
            c.hold(process);
            c.until("another one takes itself for the leader", |c| {
                c.nodes.iter().flatten().any(|n| n.me() != old && n.engine().leader() == Some(n.me()))
            });
        },
        begin: |_| {},
        is_over: others_records_are_replied_to,
    }
}

fn hand_over<const HOST: bool>() -> Script<Mu, HOST> {
    Script {
        prepare: |_| {},
        begin: |c| {
            let leader = c.process(0);
            let asked = c.nodes[leader].as_mut().expect("it lives").host.engine.hand_over(None);
            asked.expect("it leads, and all others could");
            c.world.wake(leader);
        },
        is_over: others_records_are_replied_to,
    }
}

fn election<const HOST: bool>() -> Script<Dare, HOST> {
    Script {
        prepare: |c| {
            let process = c.process(0);
            let term = c.nodes[process].as_ref().expect("it lives").engine().term();
            c.hold(process);
            c.until("another one stands", |c| c.nodes.iter().flatten().any(|n| n.engine().term() > term));
        },
        begin: |_| {},
        is_over: others_records_are_replied_to,
    }
}

fn resize<const HOST: bool>() -> Script<Dare, HOST> {
    Script {
        prepare: |_| {},
        begin: |c| {
            let leader = c.process(0);
            assert!(c.resize(leader, 3), "it leads");
        },
        is_over: |c, _| {
            let Some(leader) = c.leader() else { return false };
            let has_shrunk = |n: &Dare| n.group().is_some_and(|group| *group.phase() == group::Phase::Stable && group.places() == 3);
            let group = c.nodes[leader].as_ref().and_then(|n| n.engine().group());
            let stays = |id| group.is_some_and(|group| group.contains(id));
            c.nodes.iter().flatten().filter(|n| stays(n.me())).all(|n| has_shrunk(n.engine()))
        },
    }
}

/// Each client can have had at most one reply on its way from the old primary.
fn others_records_are_replied_to<E: Engine, const HOST: bool>(c: &Cluster<E, HOST>, before: &Before) -> bool {
    c.has_other_primary(before.primary) && c.replies > before.replies + c.settings.clients
}

/// Three nodes. Turns take longer than in other scripts, and a node that has been slow itself suspects no other.
fn three() -> Settings {
    Settings { broken_turns: 1000, break_ns: Span(0, 50), heartbeat_interval_ns: 60_000, idle_ns: 5_000, ..Settings::scripted() }
}

/// Five nodes, so that one can be killed while another is stopped where it takes a majority to continue.
fn five() -> Settings {
    let three = three();
    Settings { nodes: 5, roles: vec![three.roles[0]; 5], ..three }
}

fn restart_later<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>, node: u16) {
    let at = c.world.now() + c.settings.restart.0;
    c.enter(at, Due::Restart { node });
}

/// What is done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// SIGKILL, and a new incarnation after a while.
    Crash,
    /// SIGSTOP, for three leases.
    Pause,
}

/// What is done to which node, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blow {
    /// The node.
    pub victim: u16,
    /// What is done to it.
    pub harm: Harm,
    /// After how many steps of the phase.
    pub step: u64,
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let harm = if self.harm == Harm::Crash { "crash" } else { "pause" };
        write!(f, "n{}/{harm}/{}", self.victim, self.step)
    }
}

impl FromStr for Blow {
    type Err = String;

    fn from_str(text: &str) -> Result<Blow, String> {
        let bad =
            || format!("the blow is {text:?}; allowed is NODE/HARM/STEP as in n1/crash/57, with nodes n0 to n2 and harms crash and pause");
        let parts: Vec<&str> = text.split('/').collect();
        let [victim, harm, step] = parts[..] else { return Err(bad()) };
        let victim = victim.strip_prefix('n').and_then(|n| n.parse().ok()).filter(|n| NODES.contains(n)).ok_or_else(bad)?;
        let harm = match harm {
            "crash" => Harm::Crash,
            "pause" => Harm::Pause,
            _ => return Err(bad()),
        };
        Ok(Blow { victim, harm, step: step.parse().map_err(|_| bad())? })
    }
}

/// The nodes that are struck: in every phase the old primary, the next one, and a follower.
pub const NODES: Range<u16> = 0..3;

impl Phase {
    /// How many steps the phase has when no harm is done. Anything that goes wrong then is a violation as well.
    pub fn steps(&self, seed: u64) -> (u64, Report) {
        let life = (self.live)(self, &Plan::new(seed), None);
        (life.steps, life.report)
    }

    /// Runs one life with a blow in it. Also returns whether the blow was dealt: a node that is needed is not crashed, and a node that is stopped already is
    /// not paused.
    pub fn struck(&self, plan: &Plan, blow: Blow) -> (bool, Report, String) {
        let life = (self.live)(self, plan, Some(blow));
        (life.dealt, life.report, life.story)
    }

    fn play<E: Engine, const HOST: bool>(&self, plan: &Plan, blow: Option<Blow>, settings: Settings, script: Script<E, HOST>) -> Life {
        let mut c = Cluster::<E, HOST>::new(plan, settings);
        c.until_served();
        let primary = c.name(c.process(0));
        if c.oracles.violation().is_none() {
            (script.prepare)(&mut c);
        }
        let (mut steps, mut dealt) = (0, false);
        if c.oracles.violation().is_none() {
            let before = Before { primary, replies: c.replies };
            c.say(self.about);
            (script.begin)(&mut c);
            let end = c.world.now() + 10_000_000;
            while !(script.is_over)(&c, &before) && c.oracles.violation().is_none() {
                if blow.is_some_and(|blow| blow.step == steps) {
                    break;
                }
                if !c.advance_a_step(end) {
                    c.oracles.violated(end, Property::Recovery, format!("the phase does not end: {}", self.about));
                }
                steps += 1;
            }
            if let Some(blow) = blow.filter(|blow| blow.step == steps) {
                dealt = deal(&mut c, blow);
                // Long enough for the pause, the restart and their consequences.
                c.go_on_until(c.world.now() + 700_000);
            }
        }
        c.conclude();
        let (report, story) = c.finish();
        Life { steps, dealt, report, story }
    }
}

fn deal<E: Engine, const HOST: bool>(c: &mut Cluster<E, HOST>, blow: Blow) -> bool {
    let Some(process) = c.current[usize::from(blow.victim)] else { return false };
    match blow.harm {
        Harm::Crash => {
            if !c.is_dispensable(process) {
                return false;
            }
            c.say("the blow");
            c.kill(process);
            restart_later(c, blow.victim);
        }
        Harm::Pause => {
            if c.world.is_paused(process) {
                return false;
            }
            c.say(&format!("the blow: node {} is stopped", blow.victim));
            c.hold(process);
            c.enter(c.world.now() + 3 * c.settings.lease_ns, Due::Release { process });
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blows_are_read_as_they_are_written() {
        for harm in [Harm::Crash, Harm::Pause] {
            let blow = Blow { victim: 2, harm, step: 17 };
            assert_eq!(blow.to_string().parse(), Ok(blow));
        }
        for bad in ["n3/crash/1", "1/crash/1", "n1/kill/1", "n1/crash", "n1/crash/-1"] {
            assert!(bad.parse::<Blow>().is_err_and(|why| why.contains(bad)));
        }
    }
}

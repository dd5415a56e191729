//! Lives in which leadership is contested all the time: again and again a process is stopped at some single step of what it does.

use fastrand::Rng;
use martlet_fabric::sim::Span;
use martlet_protocol::replica::{Execution, Standing};

use crate::cluster::engine::Engine;
use crate::cluster::life::{Cluster, stream};
use crate::cluster::plan::Plan;
use crate::cluster::report::Report;
use crate::cluster::settings::Settings;

/// How often in a life a process is stopped or resumed.
const ROUNDS: u32 = 24;

/// Runs such a life on one host.
pub(in crate::cluster) fn live<E: Engine>(plan: &Plan) -> (Report, String) {
    let mut chance = stream(plan.seed, "contest", 0);
    let mut cluster = Cluster::<E, true>::new(plan, settings(&mut chance));
    cluster.until_served();
    let mut contest = Contest { chance, held: Vec::new() };
    for _ in 0..ROUNDS {
        if cluster.oracles.violation().is_some() {
            break;
        }
        contest.go_round(&mut cluster);
    }
    contest.held.into_iter().for_each(|process| cluster.release(process));
    cluster.conclude();
    cluster.finish()
}

/// Three or five nodes, with quick elections and some slow operations.
fn settings(chance: &mut Rng) -> Settings {
    let mut settings = Settings::scripted();
    settings.nodes = if chance.u8(..4) == 0 { 3 } else { 5 };
    settings.roles = vec![settings.roles[0]; usize::from(settings.nodes)];
    settings.clients = chance.u64(2..=6);
    settings.keys = chance.u64(1..=2);
    settings.think = Span(0, chance.u64(500..8_000));
    settings.resend_ns = chance.u64(40_000..200_000);
    settings.heartbeat_interval_ns = chance.u64(4_000..12_000);
    settings.broadcast_timeout_ns = chance.u64(60_000..400_000);
    settings.idle_ns = settings.heartbeat_interval_ns / 3;
    settings.execution = if chance.bool() { Execution::Committed } else { Execution::Speculative };
    settings.broken_turns = if chance.bool() { 0 } else { chance.u32(1..100) };
    settings.break_ns = Span(0, chance.u64(100..5_000));
    settings.faults.latency = Span(100, chance.u64(300..2_000));
    settings.faults.spikes = chance.u32(0..80);
    settings.faults.spike_ns = chance.u64(2_000..60_000);
    settings
}

/// Which processes are stopped, and the randomness for what comes next.
struct Contest {
    chance: Rng,
    held: Vec<usize>,
}

impl Contest {
    /// Stops one more process, or resumes one, after letting the cluster run for a while.
    fn go_round<E: Engine>(&mut self, c: &mut Cluster<E, true>) {
        self.go_on(c);
        self.held.retain(|process| c.nodes[*process].is_some());
        // A majority is always left running.
        let most = usize::from(c.settings.nodes - 1) / 2;
        if self.held.len() >= most || (!self.held.is_empty() && self.chance.u8(..3) == 0) {
            let process = self.held.swap_remove(self.chance.usize(..self.held.len()));
            c.release(process);
        } else if let Some(victim) = self.victim(c) {
            c.tell(|c| format!("{} is stopped", c.name(victim)));
            c.hold(victim);
            self.held.push(victim);
        }
    }

    /// A process that is not stopped yet: usually the leader, otherwise any.
    fn victim<E: Engine>(&mut self, c: &Cluster<E, true>) -> Option<usize> {
        let able: Vec<usize> = c.alive().filter(|p| !self.held.contains(p)).collect();
        let leads = |p: &usize| c.nodes[*p].as_ref().is_some_and(|n| n.engine().standing() == Standing::Primary);
        let leader = able.iter().copied().find(leads).filter(|_| self.chance.u8(..3) > 0);
        leader.or_else(|| (!able.is_empty()).then(|| able[self.chance.usize(..able.len())]))
    }

    /// Runs until another process leads, or until clients have got replies, or for a while; and then for a few single steps more.
    fn go_on<E: Engine>(&mut self, c: &mut Cluster<E, true>) {
        let (now, takeovers, replies) = (c.world.now(), c.oracles.takeovers, c.replies);
        match self.chance.u8(..4) {
            0 => {
                let end = now + 600_000;
                while c.oracles.takeovers == takeovers && c.oracles.violation().is_none() && c.advance_a_step(end) {}
            }
            1 => {
                let (end, wanted) = (now + 400_000, replies + self.chance.u64(1..6));
                while c.replies < wanted && c.oracles.violation().is_none() && c.advance_a_step(end) {}
            }
            2 => c.go_on_until(now + self.chance.u64(10_000..400_000)),
            _ => {}
        }
        let most = 1 << self.chance.u32(1..10);
        let end = c.world.now() + 200_000;
        for _ in 0..self.chance.u32(..most) {
            if c.oracles.violation().is_some() || !c.advance_a_step(end) {
                return;
            }
        }
    }
}

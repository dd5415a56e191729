//! The wardens of hosts, one for each node. They certify deaths to the nodes of other hosts, but possibly late, twice, or not at all, like a warden that is
//! starved or has just been restarted. And an attacker who has the key of the cluster, or of the wardens, claims that living processes are dead.

use fastrand::Rng;
use martlet_fabric::NodeId;
use martlet_protocol::detector::wardens::{Digest, Secret};
use martlet_protocol::membership::Evidence;
use martlet_protocol::membership::message::Message;

use super::engine::Engine;
use super::faults::Fault;
use super::life::{Cluster, Due, stream};

/// How long a certificate for a stopped process waits before it is delivered again, in nanoseconds.
const AGAIN_NS: u64 = 5_000;

/// What wardens are like.
#[derive(Clone, Copy, Debug)]
pub struct Wardens {
    /// How often, per thousand, a warden fails to report a death.
    pub silent: u32,
    /// How often, per thousand, a warden reports a death twice.
    pub repeated: u32,
    /// How late a report may be.
    pub late_ns: u64,
}

/// The secret that a process leaves with its warden: no other process of the life has the same one.
pub fn secret_of(seed: u64, process: usize) -> Secret {
    stream(seed, "secret of a process", process as u64).u128(..).to_le_bytes()
}

/// Stands in for SHA-256: here nothing tries to find the secret.
pub fn digest(secret: &Secret) -> Digest {
    std::array::from_fn(|byte| secret[byte % secret.len()].wrapping_mul(167).wrapping_add(byte as u8))
}

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// A process has been killed: the warden of its host hears of it, and tells the wardens of the other hosts.
    pub(super) fn certify(&mut self, node: u16, of: usize) {
        let Some(Wardens { silent, repeated, late_ns }) = self.settings.wardens else { return };
        let mut chance = stream(self.seed, "certificate", of as u64);
        for other in (0..self.settings.nodes).filter(|other| *other != node) {
            let times = if chance.u32(..1000) < silent { 0 } else { 1 + u32::from(chance.u32(..1000) < repeated) };
            for _ in 0..times {
                // Mostly at once, measured against a lease.
                let most = if chance.u8(..4) == 0 { late_ns } else { late_ns / 50 };
                let at = self.world.now() + chance.u64(..=most);
                self.enter(at, Due::Certify { node: other, of });
            }
        }
    }

    /// The warden of a node's host tells the node of a death. A stopped process gets it later.
    pub(super) fn hear_warden(&mut self, node: u16, of: usize) {
        let Some(process) = self.current[usize::from(node)] else { return };
        if self.world.is_paused(process) {
            return self.enter(self.world.now() + AGAIN_NS, Due::Certify { node, of });
        }
        let Some(dead) = self.processes.iter().find(|(_, process)| **process == of).map(|(id, _)| *id) else { return };
        self.tell(|c| format!("the warden of {} certifies the death of {dead}", c.name(process)));
        self.give_certificate(process, dead.node, secret_of(self.seed, of));
    }

    fn give_certificate(&mut self, to: usize, of: NodeId, secret: Secret) {
        let now = self.world.now();
        let node = self.nodes[to].as_mut().expect("it lives");
        node.hear_certificate(now, &mut self.chance, of, secret);
        self.look_at(to);
        self.world.wake(to);
    }

    /// An attacker claims that a living process is dead. Returns whether there was such a process, and another one to tell.
    pub(super) fn forge(&mut self, nth: u32, chance: &mut Rng) -> bool {
        let alive: Vec<usize> = self.alive().filter(|process| !self.world.is_paused(*process)).collect();
        let (Some(victim), Some(to)) = (chance.choice(self.alive().collect::<Vec<_>>()), chance.choice(alive.iter().copied())) else {
            return false;
        };
        if victim == to {
            return false;
        }
        let (name, me) = (self.name(victim), self.name(to));
        let fault = Fault::Forgery;
        // The secret of an earlier life of the same node, if there is one: that is the closest to a proof that an attacker can have.
        let earlier =
            self.processes.iter().filter(|(id, process)| id.node == name.node && **process < victim).map(|(_, process)| *process).max();
        match (chance.u8(..4), earlier) {
            (0, _) => {
                let tellers: Vec<usize> = alive.into_iter().filter(|process| ![victim, to].contains(process)).collect();
                let Some(teller) = chance.choice(tellers).map(|teller| self.name(teller)) else { return false };
                let evidence = if chance.bool() { Evidence::Certain } else { Evidence::Left };
                self.tell(|_| format!("{fault}/{nth}: {teller} tells {me} that {name} is {evidence}"));
                let now = self.world.now();
                let node = self.nodes[to].as_mut().expect("it lives");
                node.hear_message(now, &mut self.chance, teller, &Message::Notice { process: name, evidence });
                self.look_at(to);
                self.world.wake(to);
            }
            (1, _) | (_, None) => {
                self.tell(|_| format!("{fault}/{nth}: {me} is given a forged certificate of the death of {name}"));
                self.give_certificate(to, name.node, chance.u128(..).to_le_bytes());
            }
            (_, Some(earlier)) => {
                self.tell(|_| format!("{fault}/{nth}: {me} is given a certificate of an earlier life of {name}"));
                self.give_certificate(to, name.node, secret_of(self.seed, earlier));
            }
        }
        true
    }
}

//! The first part of a life: faults. Each kind has its own source of randomness, so leaving some faults out leaves the others as they are.

use std::cmp::Reverse;

use fastrand::Rng;
use martlet_fabric::NodeId;
use martlet_fabric::sim::Faults;
use martlet_protocol::basics::layout::life::OWNER_DIED;
use martlet_protocol::membership::Roles;
use martlet_protocol::replica::{HandOverError, HandOverState, Standing};

use super::Fault;
use crate::cluster::engine::Engine;
use crate::cluster::life::{Cluster, Due, LATER_BUILD, stream};
use crate::cluster::node::Node;
use crate::cluster::plan::Canary;
use crate::cluster::storage::disk::End;

/// How long a slow process stands still and how long it then runs, at most, in nanoseconds.
const DOZE: (u64, u64) = (30_000, 3_000);

/// How long the threads of a killed process can outlive its first one, in nanoseconds: less than any node takes to come back.
const LAST_THREAD_NS: u64 = 20_000;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// Schedules the first fault of each kind.
    pub(in crate::cluster) fn plan_trouble(&mut self) {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.is_event()) {
            self.plan_fault(fault, 0);
        }
        if self.settings.canary == Some(Canary::FalseCertainty) {
            self.enter(300_000, Due::DeclareDead);
        }
    }

    /// The source of randomness for a single fault.
    fn chance_of(&self, fault: Fault, nth: u32) -> Rng {
        stream(self.seed, fault.name(), u64::from(nth))
    }

    fn plan_fault(&mut self, fault: Fault, nth: u32) {
        if let Some(mean) = self.settings.every_ns(fault) {
            let at = self.world.now() + self.chance_of(fault, nth).u64(mean / 4..=mean * 7 / 4);
            self.enter(at, Due::Fault { fault, nth });
        }
    }

    /// Runs the cluster under faults until there have been enough of them.
    pub(in crate::cluster) fn suffer(&mut self) {
        const STEP_NS: u64 = 50_000;
        self.go_on_until(self.settings.trouble_ns);
        loop {
            let enough = self.requests >= self.settings.least_requests && self.faults.events() >= self.settings.least_faults;
            let now = self.world.now();
            if enough || now >= self.settings.trouble_most_ns || self.oracles.violation().is_some() {
                return;
            }
            self.go_on_until(now + STEP_NS);
        }
    }

    /// A fault is due.
    pub(in crate::cluster) fn strike(&mut self, fault: Fault, nth: u32) {
        let mut chance = self.chance_of(fault, nth);
        // The first draw decided when.
        chance.u64(..);
        self.struck.add(fault, 1);
        if !self.changes.lacks_one(fault, nth) && self.inject(fault, nth, &mut chance) {
            self.faults.add(fault, 1);
        }
        self.plan_fault(fault, nth + 1);
    }

    /// Injects the fault. Returns whether that was possible.
    fn inject(&mut self, fault: Fault, nth: u32, chance: &mut Rng) -> bool {
        let now = self.world.now();
        match fault {
            Fault::Kill => {
                // Sometimes several at once.
                let mut killed = false;
                while let Some(process) = self.dispensable(chance) {
                    self.tell(|c| format!("{fault}/{nth}: {} gets SIGKILL", c.name(process)));
                    self.kills += 1;
                    killed = true;
                    let node = self.name(process).node.0;
                    if HOST && self.settings.parted_deaths && self.nodes[process].as_ref().is_some_and(Node::dies_in_parts) && chance.bool()
                    {
                        self.nodes[process].as_mut().expect("it lives").lose_a_thread();
                        self.enter(now + chance.u64(..LAST_THREAD_NS), Due::Perish { process });
                    } else {
                        self.end(process, false);
                    }
                    self.restart_later(node, chance);
                    if chance.u8(..4) != 0 {
                        break;
                    }
                }
                killed
            }
            Fault::HostCrash => {
                let Some(process) = self.dispensable(chance) else { return false };
                self.tell(|c| format!("{fault}/{nth}: the host of {} stops", c.name(process)));
                let node = self.nodes[process].take().expect("it lives").me().node.0;
                self.world.crash(process);
                self.current[usize::from(node)] = None;
                self.end_writing(node, End::Sudden);
                self.restart_later(node, chance);
                true
            }
            Fault::Leave => {
                let Some(process) = self.dispensable(chance).filter(|p| !self.world.is_paused(*p)) else { return false };
                self.tell(|c| format!("{fault}/{nth}: {} leaves", c.name(process)));
                self.leave(process);
                true
            }
            Fault::Pause => {
                let Some(process) = self.anybody(chance) else { return false };
                let span = self.settings.pause;
                let ns = chance.u64(span.0..=span.1.max(span.0));
                self.tell(|c| format!("{fault}/{nth}: {} is paused for {ns} ns", c.name(process)));
                // Its wall clock may have been set meanwhile, for example: its own clock keeps within its bounds, but the process does not trust it.
                if stream(self.seed, "jumps", u64::from(nth)).u8(..4) == 0
                    && let Some(node) = &mut self.nodes[process]
                {
                    node.jumped = true;
                }
                self.hold(process);
                self.enter(now + ns, Due::Release { process });
                true
            }
            Fault::Slow => {
                let Some(process) = self.anybody(chance) else { return false };
                let left = chance.u32(4..40);
                self.tell(|c| format!("{fault}/{nth}: {} is slow for {left} rounds", c.name(process)));
                self.doze(process, left, false);
                true
            }
            Fault::Partition | Fault::OneWay => {
                let (one, other): (Vec<usize>, Vec<usize>) = self.alive().partition(|_| chance.bool());
                let mut pairs: Vec<(usize, usize)> = one.iter().flat_map(|a| other.iter().map(|b| (*a, *b))).collect();
                if fault == Fault::Partition {
                    pairs.extend(pairs.clone().into_iter().map(|(a, b)| (b, a)));
                }
                let span = self.settings.partition;
                let ns = chance.u64(span.0..=span.1.max(span.0));
                // Connections that a long partition severs stay severed, and if no majority were left the service would end.
                let ns = match self.outlives(&pairs) {
                    true => ns,
                    false if self.cuts.iter().all(Vec::is_empty) => ns.min(self.settings.faults.peer_lost_after_ns / 2),
                    false => return false,
                };
                self.cut(fault, nth, pairs, ns)
            }
            Fault::LostCompletion => {
                let alive: Vec<usize> = self.alive().collect();
                let (from, to) = (chance.choice(&alive).copied(), chance.choice(&alive).copied());
                let pairs: Vec<_> = from.zip(to).filter(|(from, to)| from != to).into_iter().collect();
                if !self.outlives(&pairs) {
                    return false;
                }
                // Long enough that the poster gives up on the completion that is on its way back.
                let ns = self.settings.faults.peer_lost_after_ns * 6 / 5;
                self.cut(fault, nth, pairs, ns)
            }
            Fault::Nic => {
                let Some(process) = self.dispensable(chance) else { return false };
                self.tell(|c| format!("{fault}/{nth}: the NIC of {} dies", c.name(process)));
                self.world.kill_nic(process);
                true
            }
            Fault::LeaseChange => {
                let Some(process) = self.anybody(chance) else { return false };
                let lease_ns = chance.u64(20_000..150_000);
                self.tell(|c| format!("{fault}/{nth}: an operator asks {} for leases of {lease_ns} ns", c.name(process)));
                self.ask_for_leases(process, lease_ns);
                if self.settings.upgrades > 0 {
                    self.ask_for_level(process, LATER_BUILD.most);
                }
                true
            }
            Fault::HandOver => {
                let Some(leader) = self.leader().filter(|p| !self.world.is_paused(*p)) else { return false };
                let to = chance.bool().then(|| NodeId(chance.u16(..self.settings.nodes)));
                // If a majority has died and the leader has yet to notice, no process could succeed it.
                if self.settings.zombies_ns > 0 && !self.all_members_live(leader) {
                    return false;
                }
                let engine = &mut self.nodes[leader].as_mut().expect("it lives").host.engine;
                match engine.hand_over(to) {
                    Ok(()) => {
                        let to = to.map_or("whom it likes".to_owned(), |node| node.to_string());
                        self.tell(|c| format!("{fault}/{nth}: {} is to hand over to {to}", c.name(leader)));
                    }
                    Err(HandOverError::ByLeaving) if self.is_dispensable(leader) => {
                        self.tell(|c| format!("{fault}/{nth}: {} is to hand over, and leaves", c.name(leader)));
                        self.leave(leader);
                    }
                    Err(_) => return false,
                }
                self.world.wake(leader);
                true
            }
            Fault::PowerLoss => self.lose_power(nth, chance),
            Fault::Shutdown => self.shut_down(nth, chance),
            Fault::Forgery => self.forge(nth, chance),
            Fault::Resize => {
                let Some(leader) = self.leader().filter(|p| !self.world.is_paused(*p)) else { return false };
                let wanted = chance.usize(0..=usize::from(self.settings.nodes));
                // No operator makes a group smaller while some of its members are dead, whether or not that is known.
                let members = self.nodes[leader].as_ref().expect("it lives").engine().committed_group().len();
                if !self.all_members_live(leader) && wanted < members {
                    return false;
                }
                self.tell(|c| format!("{fault}/{nth}: {} is to have {wanted} places", c.name(leader)));
                self.resize(leader, wanted)
            }
            Fault::Zombies => self.zombify(nth, chance),
            _ => unreachable!("{fault} is no single event"),
        }
    }

    /// Whether all members of the group that this process knows to be committed are alive.
    fn all_members_live(&self, process: usize) -> bool {
        let engine = self.nodes[process].as_ref().expect("it lives").engine();
        engine.committed_group().iter().all(|id| self.nodes.iter().flatten().any(|n| n.me() == *id))
    }

    /// Kills so many members at once, the leader among them, that the rest is no majority. Does so only while nothing is under way that needs a majority of
    /// living members.
    fn zombify(&mut self, nth: u32, chance: &mut Rng) -> bool {
        let Some(leader) = self.leader() else { return false };
        let engine = self.nodes[leader].as_ref().expect("it lives").engine();
        let (me, last, group) = (self.name(leader), engine.last(), engine.committed_group().to_vec());
        let rests = |p: usize| {
            let engine = self.nodes[p].as_ref().expect("it lives").engine();
            engine.is_at_rest() && engine.standing() == Standing::Backup { primary: Some(me) } && engine.committed_group() == group
        };
        let well = |p: usize| self.nodes[p].as_ref().is_some_and(|n| !n.is_leaving() && !n.dying && !n.over && n.core().is_member());
        let calm = engine.committed() == last && engine.hand_over_state().is_none_or(|state| state != HandOverState::UnderWay);
        let mut victims: Vec<usize> = self.alive().filter(|p| *p != leader && group.contains(&self.name(*p))).collect();
        let others_rest = self.alive().all(|p| well(p) && (p == leader || rests(p)));
        if group.len() < 2 || victims.len() + 1 != group.len() || !calm || !others_rest || !group.contains(&me) {
            return false;
        }
        chance.shuffle(&mut victims);
        victims.truncate(chance.usize(group.len() / 2 + group.len() % 2..group.len()));
        for victim in victims {
            let node = self.name(victim).node.0;
            self.tell(|c| format!("{}/{nth}: the processor of {} dies", Fault::Zombies, c.name(victim)));
            self.kills += 1;
            self.end(victim, false);
            self.restart_later(node, chance);
        }
        true
    }

    /// Asks the leader for another size of the group. Returns whether the leader has accepted.
    pub(in crate::cluster) fn resize(&mut self, leader: usize, places: usize) -> bool {
        let taken = self.nodes[leader].as_mut().expect("it lives").host.engine.resize(places).is_ok();
        self.world.wake(leader);
        taken
    }

    /// Asks a process to end in an orderly way.
    pub(in crate::cluster) fn leave(&mut self, process: usize) {
        let now = self.world.now();
        self.nodes[process].as_mut().expect("it lives").leave(now, &self.settings, &mut self.chance);
        self.look_at(process);
        self.world.wake(process);
    }

    /// A process that leads and is not about to leave, if there is one.
    pub(in crate::cluster) fn leader(&self) -> Option<usize> {
        self.alive().find(|p| self.nodes[*p].as_ref().is_some_and(|n| n.engine().standing() == Standing::Primary && !n.is_leaving()))
    }

    pub(in crate::cluster) fn tell(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.oracles.story.is_told() {
            let what = what(self);
            self.oracles.story.tell(self.world.now(), || what);
        }
    }

    fn restart_later(&mut self, node: u16, chance: &mut Rng) {
        let span = self.settings.restart;
        let at = self.world.now() + chance.u64(span.0..=span.1.max(span.0));
        self.enter(at, Due::Restart { node });
    }

    /// Lets nothing through between these pairs for a while.
    fn cut(&mut self, fault: Fault, nth: u32, pairs: Vec<(usize, usize)>, ns: u64) -> bool {
        if pairs.is_empty() {
            return false;
        }
        self.tell(|c| {
            let ways: Vec<String> = pairs.iter().map(|(a, b)| format!("{} -> {}", c.name(*a), c.name(*b))).collect();
            format!("{fault}/{nth}: cut for {ns} ns: {}", ways.join(", "))
        });
        for (from, to) in &pairs {
            self.world.block(*from, *to);
        }
        self.cuts.push(pairs);
        self.enter(self.world.now() + ns, Due::Mend { cut: self.cuts.len() - 1 });
        true
    }

    pub(in crate::cluster) fn mend(&mut self, cut: usize) {
        for (from, to) in std::mem::take(&mut self.cuts[cut]) {
            self.world.unblock(from, to);
        }
        self.tell(|_| "a cut is mended".to_owned());
    }

    /// Stops a process, for one more reason.
    pub(in crate::cluster) fn hold(&mut self, process: usize) {
        self.holds[process] += 1;
        self.world.pause(process);
    }

    /// Removes one of the reasons for which a process is stopped.
    pub(in crate::cluster) fn release(&mut self, process: usize) {
        self.holds[process] = self.holds[process].saturating_sub(1);
        if self.holds[process] == 0 {
            if self.nodes[process].is_some() {
                self.tell(|c| format!("{} goes on", c.name(process)));
            }
            self.world.resume(process);
        }
    }

    /// Makes a process slow: again and again it stands still for long, and then runs for a moment.
    pub(in crate::cluster) fn doze(&mut self, process: usize, left: u32, held: bool) {
        if held {
            self.holds[process] = self.holds[process].saturating_sub(1);
            if self.holds[process] == 0 {
                self.world.resume(process);
            }
        }
        if left == 0 || self.nodes[process].is_none() {
            return;
        }
        let hold = !held;
        if hold {
            self.hold(process);
        }
        let most = if hold { DOZE.0 } else { DOZE.1 };
        let at = self.world.now() + self.chance.u64(most / 10..=most);
        self.enter(at, Due::Doze { process, left: left - u32::from(hold), held: hold });
    }

    pub(in crate::cluster) fn declare_dead(&mut self) {
        let mut chance = stream(self.seed, "declare-dead", self.world.now());
        if let Some(process) = self.dispensable(&mut chance) {
            self.nodes[process].as_ref().expect("it lives").set_death_words(OWNER_DIED);
        }
        self.enter(self.world.now() + chance.u64(75_000..=525_000), Due::DeclareDead);
    }

    fn anybody(&self, chance: &mut Rng) -> Option<usize> {
        chance.choice(self.alive().collect::<Vec<_>>()).filter(|p| !self.world.is_paused(*p))
    }

    fn dispensable(&self, chance: &mut Rng) -> Option<usize> {
        chance.choice(self.alive().collect::<Vec<_>>()).filter(|victim| self.is_dispensable(*victim))
    }

    /// Whether a process may die without ending the service. The newest view has to list another replica and another coordinator that run and that no process
    /// suspects (a suspected replica may itself be on its way out when the other one dies). Also, every member that runs has to be connected with every
    /// coordinator, dead or alive: a newcomer that has not yet met the others cannot decide a view with their memory.
    pub(in crate::cluster) fn is_dispensable(&self, victim: usize) -> bool {
        let Some(view) = self.oracles.views.newest() else { return false };
        if self.nodes[victim].as_ref().is_none_or(|n| n.dying) {
            return false;
        }
        let others = || self.nodes.iter().enumerate().filter(|(p, _)| *p != victim).filter_map(|(p, n)| Some((p, n.as_ref()?)));
        let well = |p: usize, n: &Node<E, HOST>| {
            let suspected = self.nodes.iter().flatten().any(|other| other.core().suspicion(n.me()).is_some());
            !n.is_leaving() && !n.dying && !suspected && !self.world.is_paused(p)
        };
        let left = |role: Roles| others().filter(|(p, n)| view.member(n.me()).is_some_and(|m| m.roles.has(role)) && well(*p, n)).count();
        let survives = left(Roles::REPLICA) > 0 && left(Roles::COORDINATOR) > 0;
        let met = others()
            .filter(|(_, n)| view.member(n.me()).is_some())
            .all(|(_, n)| view.coordinators().all(|c| n.core().peer_of(c.id).is_some()));
        // Where memory is out of reach once its process is dead, or is accessed by RPC, a process has to be alive to answer.
        let fit = |p: usize| p != victim && self.nodes[p].as_ref().is_some_and(|n| well(p, n));
        let answers = (HOST && !self.settings.worn) || self.enough_with_newcomers(fit).is_some();
        // A process that has come back and is in no view has no part in what goes on.
        let running: Vec<_> = self.nodes.iter().flatten().filter(|n| !n.host.dormant).map(|n| (n.me(), n.engine())).collect();
        let able: Vec<_> = others().filter(|(p, n)| well(*p, n) && !n.host.dormant).map(|(_, n)| (n.me(), n.engine())).collect();
        survives && met && answers && E::can_lose(self.name(victim), &able, &running)
    }

    /// Whether enough processes to continue would be left if these pairs lost each other for good, in addition to those that are cut off from each other
    /// already.
    fn outlives(&self, pairs: &[(usize, usize)]) -> bool {
        let cut: Vec<(usize, usize)> = self.cuts.iter().flatten().chain(pairs).copied().collect();
        let apart = |a: usize, b: usize| cut.contains(&(a, b)) || cut.contains(&(b, a));
        let all: Vec<usize> = self.alive().collect();
        // One side of the cut; if the cut is between only two processes, all but one of them.
        let sides = all.iter().map(|one| all.iter().copied().filter(|other| !apart(*one, *other)).collect::<Vec<_>>());
        sides.into_iter().any(|side| self.enough_with_newcomers(|p| side.contains(&p) && !self.world.is_paused(p)).is_some())
    }

    /// Ends all trouble.
    pub(in crate::cluster) fn heal_all(&mut self) {
        self.tell(|_| "all trouble ends".to_owned());
        self.world.heal();
        self.cuts.iter_mut().for_each(Vec::clear);
        let paused: Vec<usize> = self.alive().filter(|p| self.world.is_paused(*p)).collect();
        for process in paused {
            self.holds[process] = 0;
            self.world.resume(process);
        }
        self.world.set_faults(Faults { turn: self.settings.faults.turn, ..Faults::calm() });
        self.start_over_the_deaf();
        // Whatever was scheduled is dropped, except that dead nodes restart, clients continue, and what has begun comes to its end.
        let planned: Vec<_> = self.agenda.drain().collect();
        for Reverse((at, order, due)) in planned {
            match due {
                Due::Restart { node } => self.enter(self.world.now() + 1, Due::Restart { node }),
                Due::Perish { process } => self.end(process, false),
                // A leave that has begun must come to its end, since the node does not restart before.
                Due::Leave { process } => self.enter(self.world.now() + 1, Due::Leave { process }),
                Due::Call { .. } | Due::Send { .. } | Due::Resend { .. } | Due::Arrive { .. } | Due::GiveUp { .. } => {
                    self.agenda.push(Reverse((at, order, due)));
                }
                Due::Fault { .. } | Due::Release { .. } | Due::Doze { .. } | Due::Mend { .. } | Due::DeclareDead => {}
                // A warden that would have told of a death still does so in the end.
                Due::Certify { .. } => self.agenda.push(Reverse((at, order, due))),
            }
        }
        (self.settings.broken_turns, self.settings.long_breaks) = (0, 0);
        // Clients wait long enough for anything that a healthy cluster does.
        self.settings.patience_ns = self.settings.patience_ns.max(500_000);
    }

    /// What no protocol can do: replaces dead NICs. Their nodes are restarted.
    pub(in crate::cluster) fn start_over_the_deaf(&mut self) {
        let deaf: Vec<usize> = self.alive().filter(|p| !self.world.has_nic(*p)).collect();
        for process in deaf {
            self.tell(|c| format!("{} has a dead NIC, and is restarted", c.name(process)));
            let node = self.nodes[process].take().expect("it lives").me().node.0;
            self.world.crash(process);
            self.current[usize::from(node)] = None;
            self.end_writing(node, End::Sudden);
            self.enter(self.world.now(), Due::Restart { node });
        }
    }
}

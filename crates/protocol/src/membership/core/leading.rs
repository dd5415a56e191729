//! Suspicions, and the leader's work: turning wishes into decided views.

use martlet_fabric::{Fabric, PeerId};

use super::{Core, Milestone, PUSH_DELAY_NS};
use crate::basics::{Mark, ProcessId, Time};
use crate::consensus::Outcome;
use crate::consensus::rpc::RpcReply;
use crate::detector::broadcast::largest_clique;
use crate::membership::Authority;
use crate::membership::message::Message;
use crate::membership::plan::{self, Leader, Wishes};
use crate::membership::view::{Evidence, Roles, View};

/// The approximate length of a view's record, in bytes.
const USUAL_VIEW_BYTES: usize = 256;

impl Core {
    /// This process itself considers `process` gone.
    pub(super) fn suspect<F: Fabric>(&mut self, now: Time, fabric: &mut F, process: ProcessId, evidence: Evidence) {
        self.hold_for_gone(now, fabric, process, evidence, false);
    }

    /// This process itself, or another one if `hearsay`, considers `process` gone.
    pub(super) fn hold_for_gone<F: Fabric>(&mut self, now: Time, fabric: &mut F, process: ProcessId, evidence: Evidence, hearsay: bool) {
        let news = self.peers.suspect(now, process, evidence, hearsay);
        if evidence.releases_leases() && self.handover.release(process) {
            Mark::DeathReleased.reach();
        }
        let roles = self.roles_of(process);
        // A request from its lifetime, perhaps in a datagram that came late, must not bring it back: a coordinator that is gone never votes.
        self.wishes.join.retain(|m| m.id != process);
        let Some(roles) = roles else { return };
        if self.config.authority.cuts_off(roles, evidence) {
            self.wishes.remove(process, evidence);
        }
        if news {
            self.milestone(Milestone::DeathSeen(process, evidence));
            // For the same reason as in `resend`.
            let repeats_hearsay = hearsay && evidence == Evidence::Presumed;
            if !self.is_leader() && !repeats_hearsay {
                self.tell_of_death(fabric, process, evidence);
            }
        }
        self.lead(now, fabric);
    }

    /// The roles that a process has in the newest view; `None` if the view does not list it.
    fn roles_of(&self, process: ProcessId) -> Option<Roles> {
        self.view.as_ref()?.member(process).map(|m| m.roles)
    }

    /// Whether the newest view lists a process that a presumption of its death is enough to remove.
    pub(super) fn is_cut_off_on_presumption(&self, process: ProcessId) -> bool {
        self.roles_of(process).is_some_and(|roles| self.config.authority.cuts_off(roles, Evidence::Presumed))
    }

    /// As leader, gets the next view decided if there is a reason for one.
    pub(super) fn lead<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if self.proposer.is_none() || self.excluded {
            return;
        }
        if !self.is_leader() {
            // It may have proposed only because it missed the very process that leads.
            self.take_back(now, fabric);
            return;
        }
        if now < self.backoff_until {
            return;
        }
        self.withdraw_presumptions();
        if self.wishes.is_empty() {
            self.propose_nothing(now, fabric);
            return;
        }
        let Some(view) = &self.view else { return };
        let me = self.config.me;
        self.wishes.prefer(&self.peers.reached());
        let leader = Leader {
            id: me,
            old_leases_over: now >= self.learned.after(self.config.clocks.lengthened(view.fence_ns)),
            relieved: view.coordinators().any(|m| m.id != me && !self.peers.is_suspect(m.id)),
        };
        // A process that stops asking remains for one broadcast timeout. If its last request is more than half that old, it may be gone soon, or gone
        // already.
        let fresh_ns = self.config.broadcast_timeout_ns / 2;
        let asked = |newcomer| self.peers.asked(newcomer).filter(|asked| now.since(asked.at) <= fresh_ns).map(|asked| asked.view);
        let Some(next) = plan::next(view, &self.wishes, leader, |newcomer, member| self.peers.have_met(newcomer, member), asked) else {
            // The wishes are fulfilled already, or cannot be fulfilled; a process that still wants something says so again.
            self.wishes = Wishes::default();
            if self.leaving {
                self.wishes.remove(me, Evidence::Left);
            }
            self.unfulfilled = true;
            self.propose_nothing(now, fabric);
            return;
        };
        let proposer = self.proposer.as_mut().expect("checked above");
        if !proposer.is_idle() && !proposer.is_prepared() && !proposer.is_waiting() {
            return;
        }
        let required = plan::required(view, &next);
        let mut value = Vec::with_capacity(512);
        next.encode(&mut value);
        let number = next.number;
        let first = self.proposing.replace(next).is_none() | std::mem::take(&mut self.taken_back);
        let outcome = proposer.propose_requiring(fabric, &value, required);
        if first {
            Mark::Proposed.reach();
            self.milestone(Milestone::Proposed(number));
        }
        self.handle_outcome(now, fabric, outcome);
        self.send_requests(fabric);
    }

    /// A hint that this process may soon have to get a view decided: the memory that it would write is brought into the cache, where the fabric can
    /// do so. Nothing changes.
    pub fn expect_to_propose<F: Fabric>(&self, fabric: &F) {
        let Some(proposer) = &self.proposer else { return };
        proposer.expect_to_propose(fabric, USUAL_VIEW_BYTES);
        self.expect_to_publish(fabric, proposer.view(), USUAL_VIEW_BYTES);
    }

    /// Drops wishes to remove a process that was presumed dead and turned out not to be.
    fn withdraw_presumptions(&mut self) {
        let (me, peers, apart) = (self.config.me, &self.peers, &self.apart);
        let stands = |process| process == me || apart.contains(&process) || !peers.is_trusted(process);
        self.wishes.remove.retain(|(process, evidence)| *evidence != Evidence::Presumed || stands(*process));
    }

    /// As a leader with nothing to propose: withdraws a proposal that still waits for answers, since it was made from other wishes.
    fn propose_nothing<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(proposer) = self.proposer.as_ref().filter(|p| p.is_revocable()) else {
            self.take_over_pending(now, fabric);
            return;
        };
        if proposer.by_rpc() {
            // The RPC fallback has frozen the slot, and on a frozen slot no lease is renewed: any view will do that changes nothing.
            self.wishes.renew = true;
            return;
        }
        self.take_back(now, fabric);
    }

    /// Withdraws this process's proposal, if it has not been written anywhere.
    fn take_back<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(proposer) = self.proposer.as_mut().filter(|p| p.is_revocable()) else { return };
        Mark::Withdrew.reach();
        self.taken_back = true;
        let outcome = proposer.withdraw(fabric);
        self.handle_outcome(now, fabric, outcome);
    }

    /// A leader looks for a view that its predecessor may have left half decided, or decided without telling anyone (TRAPS 1). It looks even if it
    /// has no wish of its own that could be fulfilled, since a wish may be one that only the new view can fulfil.
    fn take_over_pending<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(proposer) = self.proposer.as_mut().filter(|p| p.is_idle()) else { return };
        let outcome = proposer.prepare(fabric);
        if outcome.is_none() && proposer.is_idle() && self.decided_here != self.view.as_ref().map(|v| v.number) {
            // The proposer's ballots are used up, so it does not prepare the slot without a value. Any view will do as the value: if one was accepted
            // already, that one is decided in its place.
            self.wishes.renew = true;
        }
        self.handle_outcome(now, fabric, outcome);
    }

    pub(super) fn handle_outcome<F: Fabric>(&mut self, now: Time, fabric: &mut F, outcome: Option<Outcome>) {
        match outcome {
            None => {}
            Some(Outcome::Prepared) => {
                let proposer = self.proposer.as_mut().filter(|p| p.has_adopted());
                match proposer.map(|p| p.finish(fabric)) {
                    Some(outcome) => {
                        Mark::TookOverPending.reach();
                        self.handle_outcome(now, fabric, outcome);
                    }
                    None => self.lead(now, fabric),
                }
            }
            Some(Outcome::Decided(value)) => {
                // The view that was decided, which is not always the one that was proposed (TRAPS 1).
                match View::decode(&value) {
                    Ok(view) => {
                        if self.proposing.as_ref() != Some(&view) {
                            Mark::DecidedAnother.reach();
                        }
                        self.milestone(Milestone::Decided(view.number));
                        self.decided_here = Some(view.number);
                        self.learn(now, fabric, view);
                        if self.excluded {
                            self.push(fabric);
                        } else {
                            self.push_due = Some(now.after(PUSH_DELAY_NS));
                        }
                        self.lead(now, fabric);
                    }
                    Err(why) => martlet_fabric::invariant!(false, "a decided value is no view: {why}"),
                }
            }
            Some(Outcome::Aborted) => {
                // What was learned usually makes the next attempt succeed. A leader that keeps failing has competition, so it backs off at random.
                self.failures += 1;
                if self.failures > 2 {
                    Mark::BackedOff.reach();
                    let span = self.config.backoff_ns << (self.failures - 3).min(8);
                    self.backoff_until = now.after(self.chance.u64(1..=span.max(1)));
                }
                self.lead(now, fabric);
            }
            Some(Outcome::Superseded) => self.pull(fabric),
        }
        self.send_requests(fabric);
    }

    /// Sends consensus's RPC requests, if the fallback is in use. Our own acceptor is asked directly. Its answer is taken in the next duty cycle,
    /// because a decision may follow from it, and a decision must not be later than the time `now` with which it is reported.
    fn send_requests<F: Fabric>(&mut self, fabric: &mut F) {
        while let Some((acceptor, request)) = self.proposer.as_mut().and_then(|p| p.poll_request()) {
            match self.coordinators.get(acceptor).copied().flatten() {
                Some(PeerId::SELF) => self.own_replies.extend(self.acceptor.handle(fabric, request)),
                Some(peer) => {
                    Message::Request(request).encode(&mut self.message);
                    fabric.send(peer, &self.message);
                }
                None => {}
            }
        }
    }

    pub(super) fn handle_reply<F: Fabric>(&mut self, now: Time, fabric: &mut F, from: ProcessId, reply: RpcReply) {
        let Some(position) = self.view.as_ref().and_then(|v| v.coordinators().position(|m| m.id == from)) else { return };
        if let Some(proposer) = &mut self.proposer {
            let outcome = proposer.handle_reply(fabric, position, reply);
            self.handle_outcome(now, fabric, outcome);
        }
    }

    /// A missing coordinator is connected now, or one whose connection was lost is connected again.
    pub(super) fn connect_coordinator(&mut self, process: ProcessId, peer: PeerId) {
        let Some(position) = self.view.as_ref().and_then(|v| v.coordinators().position(|m| m.id == process)) else { return };
        if self.coordinators[position] != Some(peer) {
            self.coordinators[position] = Some(peer);
            if let Some(proposer) = &mut self.proposer {
                proposer.connect(position, peer);
            }
            // A round of questions that went out without it may never reach a majority.
            self.renewal.ask_anew();
        }
    }

    /// Reads the heartbeats of:
    /// - the next member in the ring, and the leader, on whose work everything depends. If one of them is suspected, the next in line is read in its
    ///   place: otherwise processes that stop together would be noticed only by their silence;
    /// - every member that is presumed dead, since it may come back, and a presumption is not dropped without having looked;
    /// - every member that has been silent for a while, since a process busy with something long beats but sends nothing.
    pub(super) fn monitor<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(view) = &self.view else { return };
        let me = self.config.me;
        let Some(at) = view.members.iter().position(|m| m.id == me) else { return };
        let ring: Vec<ProcessId> = view.members[at + 1..].iter().chain(&view.members[..at]).map(|m| m.id).collect();
        let leaders: Vec<ProcessId> = view.coordinators().map(|m| m.id).take_while(|id| *id != me).collect();
        let next = [ring, leaders].map(|line| line.into_iter().find(|id| !self.peers.is_suspect(*id)));
        let presumed = view.members.iter().map(|m| m.id).filter(|id| self.peers.suspicion(*id) == Some(Evidence::Presumed));
        let quiet = self.peers.quiet(now, view, self.config.broadcast_timeout_ns);
        let targets: Vec<ProcessId> = next.into_iter().flatten().chain(presumed).chain(quiet).collect();
        for target in targets {
            // `ask_heartbeat` skips a process whose heartbeat is already being read.
            self.peers.ask_heartbeat(fabric, target);
        }
    }

    /// Tells all members that this process is alive and which of them it hears; as leader, cuts off members that are not heard.
    pub(super) fn broadcast<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Some(view) = &self.view else { return };
        let timeout = self.config.broadcast_timeout_ns;
        let heard = self.peers.heard(now, view, self.learned, timeout);
        Message::Heartbeat { view: view.number, heard }.encode(&mut self.message);
        fabric.multicast(&self.message);
        let Some(me) = view.members.iter().position(|m| m.id == self.config.me) else { return };
        let everybody = ((1u32 << view.members.len()) - 1) as u16;
        let links = self.peers.links(now, view, self.learned, timeout);
        let clique = largest_clique(&links, me);
        self.apart.clear();
        if self.is_leader() {
            // Members that it could not remove when their eviction was decided, for instance for want of room in the list of departed processes.
            let decided: Vec<ProcessId> =
                view.members.iter().map(|m| m.id).filter(|p| self.peers.suspicion(*p) == Some(Evidence::Evicted)).collect();
            decided.into_iter().for_each(|process| self.wishes.remove(process, Evidence::Evicted));
        }
        if heard == everybody && clique == everybody {
            return;
        }
        let cut = |set: u16| view.members.iter().enumerate().filter(move |(i, _)| set >> i & 1 == 0).map(|(_, m)| m.id).collect::<Vec<_>>();
        // A member that is not heard here is suspected here, so that the next leader steps up. Only the leader cuts it off.
        let silent = cut(heard);
        let mut apart = if self.is_leader() { cut(clique) } else { Vec::new() };
        apart.retain(|p| self.is_cut_off_on_presumption(*p));
        self.apart.clone_from(&apart);
        for process in silent {
            Mark::Silent.reach();
            self.suspect(now, fabric, process, Evidence::Presumed);
        }
        for process in apart {
            Mark::Cut.reach();
            self.wishes.remove(process, Evidence::Presumed);
        }
        self.lead(now, fabric);
    }

    /// Repeats whatever has had no effect yet.
    pub(super) fn resend<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        self.ask_again(now, fabric);
        self.correct_levels(now, fabric);
        if let Some(proposer) = &mut self.proposer {
            let outcome = proposer.repeat();
            self.handle_outcome(now, fabric, outcome);
        }
        let unfulfilled = std::mem::take(&mut self.unfulfilled);
        if self.is_leader() {
            if self.leaving {
                // Another coordinator has to decide the removal.
                Message::Notice { process: self.config.me, evidence: Evidence::Left }.encode(&mut self.message);
                fabric.multicast(&self.message);
            }
            if unfulfilled {
                // Since the slot was prepared, a process that has died meanwhile may have had a view decided there, and that may be the very view in
                // which the wishes can be fulfilled.
                let outcome = self.proposer.as_mut().and_then(|p| p.look(fabric));
                self.handle_outcome(now, fabric, outcome);
            }
            return;
        }
        if self.wishes.renew {
            Message::Frozen { view: self.view_number() }.encode(&mut self.message);
            fabric.multicast(&self.message);
        }
        self.withdraw_presumptions();
        for (process, evidence) in self.wishes.remove.clone() {
            // The process that saw it stop repeats its own suspicion. If hearsay were repeated, the processes that have it would hear it from each
            // other for ever.
            if evidence == Evidence::Presumed && process != self.config.me && !self.peers.has_seen_stop(process) {
                continue;
            }
            self.tell_of_death(fabric, process, evidence);
        }
        // Where views determine who leads, only the primary may ask for promotions, and only for learners that it taught itself. If another process
        // repeated what it had heard from a primary, a process that already knows it as the next primary would take this for its own judgement.
        let primary = self.view.as_ref().and_then(View::primary).map(|m| m.id);
        if self.config.authority == Authority::Views && primary != Some(self.config.me) {
            return;
        }
        for process in self.wishes.promote.clone() {
            Message::Promote { process }.encode(&mut self.message);
            fabric.multicast(&self.message);
        }
    }
}

//! What drives the state machine: duty cycles, and events that arrive.

use martlet_fabric::pulse::beat;
use martlet_fabric::{Completion, Fabric, PeerEvent, PeerId, invariant};

use super::peers::Asked;
use super::{Authority, Core, Read, is_view, own_life};
use crate::basics::layout::{life, token_rest};
use crate::basics::{Mark, ProcessId, Time};
use crate::consensus::Op;
use crate::consensus::rpc::{RpcBody, RpcRequest};
use crate::membership::message::Message;
use crate::membership::plan;
use crate::membership::view::{Evidence, Member, View};

impl Core {
    /// One duty cycle. `progress` says whether the part of the process that acts under the lease is alive: it has made progress, or has nothing to
    /// do. Without progress, the lease is not renewed and the heart does not beat (TRAPS 9, fate sharing).
    pub fn tick<F: Fabric>(&mut self, now: Time, fabric: &mut F, progress: bool) {
        self.do_duties(now, fabric, progress);
        self.stalls.sleep_until(self.deadline());
    }

    fn do_duties<F: Fabric>(&mut self, now: Time, fabric: &mut F, progress: bool) {
        let late = self.stalls.tick(now);
        let stalled = late > self.config.heartbeat_interval_ns / 2;
        if stalled {
            Mark::Forgiven.reach();
            self.peers.forgive(now);
            self.next_monitor = now.after(self.config.heartbeat_interval_ns);
        }
        if progress {
            // Long work may have counted here since the last duty cycle.
            beat(&own_life(fabric)[life::HEARTBEAT]);
        }
        self.mind_patience(now, if stalled { late } else { 0 });
        if self.excluded {
            return;
        }
        if self.push_due.is_some_and(|due| now >= due) {
            self.push(fabric);
        }
        for reply in std::mem::take(&mut self.own_replies) {
            self.handle_reply(now, fabric, self.config.me, reply);
        }
        // With an interval of 0 this happens in every cycle, without consulting the clock, which may go back a little. Otherwise it is seldom, and no
        // process wakes up for it: the next heartbeat look is never far off.
        if self.config.death_interval_ns == 0 || now >= self.next_death_look {
            self.next_death_look = now.after(self.config.death_interval_ns);
            self.peers.watch(fabric);
        }
        if now >= self.next_monitor {
            self.next_monitor = now.after(self.config.heartbeat_interval_ns);
            self.monitor(now, fabric);
        }
        if now >= self.next_broadcast {
            self.next_broadcast = now.after(self.config.broadcast_interval_ns);
            self.broadcast(now, fabric);
        }
        if now >= self.next_pull {
            self.next_pull = now.after(self.config.pull_interval_ns);
            let Core { view, proposing, handover, .. } = self;
            let lists = |p| [&*view, &*proposing].into_iter().flatten().any(|v| v.member(p).is_some());
            self.peers.thin_out(|p| lists(p) || handover.awaited().any(|a| a == p));
            self.look_at_boards(fabric);
        }
        if now >= self.next_resend {
            self.next_resend = now.after(self.config.resend_interval_ns);
            self.resend(now, fabric);
        }
        if self.lease_wanted && progress {
            self.renew(now, fabric);
        }
        self.serve_leases(now, fabric);
        self.lead(now, fabric);
    }

    /// When the next duty cycle is due, for a node that would rather sleep until then.
    pub fn deadline(&self) -> Time {
        if !self.own_replies.is_empty() {
            return Time(0);
        }
        let mut next = self.next_monitor.min(self.next_broadcast).min(self.next_pull).min(self.next_resend);
        if self.lease_wanted {
            next = next.min(self.renewal_due());
        }
        for due in [self.reading_due(), self.round_due()].into_iter().flatten() {
            next = next.min(due);
        }
        // Once the back-off is over, the next step is an answer from a coordinator, or a new wish.
        if self.proposing.is_some() && self.backoff_until > self.stalls.last() {
            next = next.min(self.backoff_until);
        }
        if let Some(due) = self.push_due {
            next = next.min(due);
        }
        next
    }

    /// A peer came or went. Membership ignores clients.
    pub fn handle_peer<F: Fabric>(&mut self, now: Time, fabric: &mut F, event: PeerEvent) {
        match event {
            PeerEvent::Up { peer, identity } => {
                // Between members, a presumption that cuts off is kept after a reconnection: another process may have acted on it already.
                let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                let mends = !(self.is_member() && self.is_cut_off_on_presumption(process));
                if let Some(process) = self.peers.add(now, peer, identity, mends) {
                    self.peers.ask_threads(fabric, peer);
                    if self.config.digest.is_some() {
                        self.peers.ask_pledge(fabric, peer);
                    }
                    self.connect_coordinator(process, peer);
                    self.pull_from(fabric, peer);
                    if self.is_joining() {
                        // One more process that can vouch for this one.
                        self.ask_soon(now);
                    }
                }
            }
            PeerEvent::Gone { peer, certain } => {
                if let Some(process) = self.peers.gone(peer, certain) {
                    let evidence = if certain { Evidence::Certain } else { Evidence::Presumed };
                    self.suspect(now, fabric, process, evidence);
                }
            }
        }
    }

    /// An operation of membership has completed.
    pub fn handle_completion<F: Fabric>(&mut self, now: Time, fabric: &mut F, completion: Completion) {
        let rest = token_rest(completion.token);
        let (kind, a, b) = ((rest >> 48) as u8, (rest >> 40) as u8 as usize, rest & 0xff_ffff_ffff);
        let op = match kind {
            1 => Some(Op::Swap),
            2 => Some(Op::Write),
            3 => Some(Op::Fetch),
            4 => Some(Op::Look),
            _ => None,
        };
        if let Some(op) = op {
            if let Some(proposer) = self.proposer.as_mut().filter(|p| p.view().0 & 0xff_ffff_ffff == b) {
                let outcome = proposer.handle_completion(fabric, op, a, completion);
                self.handle_outcome(now, fabric, outcome);
            }
            return;
        }
        let peer = PeerId(b as u32);
        let result = completion.result;
        match kind {
            k if k == Read::Threads as u8 => {
                if let Some((process, evidence)) = self.peers.note_threads(peer, result) {
                    self.suspect(now, fabric, process, evidence);
                }
            }
            k if k == Read::Pledge as u8 => self.peers.note_pledge(peer, a, result),
            k if k == Read::Death as u8 => self.peers.note_death_word(fabric, peer, a, result),
            k if k == Read::Heartbeat as u8 => {
                if let Some(process) = self.peers.note_heartbeat(now, peer, result) {
                    self.suspect(now, fabric, process, Evidence::Presumed);
                }
            }
            k if k == Read::BoardNumber as u8 => self.note_board_number(fabric, peer, result),
            k if k == Read::BoardRecords as u8 => self.note_board_records(now, fabric, peer, result),
            k if k == Read::Slot as u8 => self.note_slot(now, fabric, b, result),
            k if k == Read::CacheSlot as u8 => self.note_cache_slot(now, fabric, b, result),
            k if k == Read::Cache as u8 => self.note_cache(now, fabric, b, result),
            k if k == Read::LeaseWord as u8 => self.note_lease_word(now, a, peer, result),
            _ => invariant!(false, "a completion of membership with kind {kind}"),
        }
    }

    /// A datagram has arrived.
    pub fn handle_datagram<F: Fabric>(&mut self, now: Time, fabric: &mut F, from: PeerId, bytes: &[u8]) {
        let (Some(message), Some(process)) = (Message::decode(bytes), self.peers.process(from)) else {
            self.malformed += 1;
            return;
        };
        match message {
            Message::Heartbeat { view, heard } => {
                let number = self.view_number();
                self.peers.hear(now, from, (view == number).then_some(heard));
                if self.config.authority == Authority::Engine && !self.is_cut_off_on_presumption(process) {
                    // It remains a member throughout, and few processes watch its heartbeat, so any process that hears it takes it for alive.
                    self.peers.trust(from);
                }
                if view > number {
                    self.pull_from(fabric, from);
                }
            }
            Message::Notice { process: gone, evidence } => self.hear_notice(now, fabric, process, gone, evidence),
            Message::Certificate { process: gone, secret } => self.hear_certificate(now, fabric, process, gone, secret),
            Message::Join { view, roles, levels, address, reaches } => {
                self.handle_join(now, fabric, from, Member { id: process, roles, levels, address }, Asked { at: now, view, reaches });
            }
            Message::Vouch { process: newcomer } => self.handle_vouch(now, fabric, process, newcomer),
            Message::Refuse { least } => self.handle_refusal(least),
            Message::Unsuited { level } => self.handle_unsuited(level),
            Message::Frozen { view } => {
                if view == self.view_number() && self.is_leader() {
                    self.wishes.renew = true;
                    self.lead(now, fabric);
                }
            }
            Message::Promote { process: learner } => {
                // Only the primary knows what a learner has, and only for learners that it taught itself.
                let entitled = match self.config.authority {
                    Authority::Views => self.view.as_ref().and_then(View::primary).is_some_and(|p| p.id == process),
                    Authority::Engine => true,
                };
                if entitled {
                    self.wishes.promote(learner);
                    self.lead(now, fabric);
                }
            }
            Message::SetLease { lease_ns } => {
                self.wishes.lease_ns = Some(lease_ns);
                self.lead(now, fabric);
            }
            Message::RaiseLevel { level } => {
                if self.view.as_ref().is_some_and(|v| level > v.level && plan::all_have(&v.members, level)) {
                    self.wishes.level = Some(level);
                    self.lead(now, fabric);
                }
            }
            Message::View(view) => self.learn(now, fabric, view),
            Message::Request(RpcRequest { view, body: RpcBody::Accept(value), .. }) if !is_view(view, &value) => self.contradictions += 1,
            Message::Request(request) => {
                if let Some(reply) = self.acceptor.handle(fabric, request) {
                    Message::Reply(reply).encode(&mut self.message);
                    fabric.send(from, &self.message);
                }
            }
            Message::Reply(reply) => self.handle_reply(now, fabric, process, reply),
        }
    }
}

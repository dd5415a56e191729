//! The leader's role: a replica takes it, asks for the permission that it needs, steps through its reign, and ends it.

use martlet_fabric::Fabric;

use super::follower::Follower;
use super::layout::{self, Status, permission as lane_words};
use super::leading::{self, Context, Reign};
use super::permission;
use super::{AbortReason, Event, Mu};
use crate::basics::{Mark, Time};
use crate::replica::{Execution, StateMachine};

/// How often, at most, the time between two attempts to lead is doubled.
const MOST_DOUBLINGS: u32 = 8;

impl Mu {
    /// Takes or gives up the leader's role, as the estimate says (Mu section 5.1: it determines whether to execute as leader or follower).
    pub(super) fn take_role<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) {
        let leads = self.is_to_lead(now) && !self.is_removed();
        self.mind_overrun(now, leads);
        match &self.reign {
            Some(_) if !leads || std::mem::take(&mut self.steps_down) => self.end_reign(AbortReason::NotLeader, fabric),
            None if leads && now >= self.retry => {
                self.retry = now.after(self.back_off_ns());
                self.permission.requested += 1;
                self.steps_down = false;
                self.learning = None;
                let record = std::mem::take(&mut self.spare);
                self.reign = Some(Reign::new(self.me, self.permission.requested, record, std::mem::take(&mut self.backlog)));
                self.events.push_back(Event::Asked);
            }
            _ => {}
        }
        self.ask(fabric);
        // Our own permission is requested like any other.
        if self.reign.is_some() {
            self.serve(fabric, machine);
        }
    }

    /// Notes how long this process should have led but found only better logs that do not reach back to its own. The end of an attempt in between does not
    /// reset this.
    fn mind_overrun(&mut self, now: Time, leads: bool) {
        match &self.reign {
            Some(reign) if reign.is_overrun() => {
                self.overrun_since.get_or_insert(now);
            }
            Some(reign) if reign.is_permitted() => self.overrun_since = None,
            // A heart that stopped because the attempts failed will beat again.
            _ if !leads && !self.signs.has_stopped() => self.overrun_since = None,
            _ => {}
        }
    }

    /// How long after the beginning of an attempt the next one may begin. A candidate that gets nowhere has no majority, or has rivals. The longer that lasts,
    /// the longer it waits; a member further back in the group waits longer than those before it. Two candidates may know groups in which they have the same
    /// place, or for another reason wait equally long. So a part of the wait differs between processes, and from one attempt to the next.
    pub(super) fn back_off_ns(&self) -> u64 {
        let span_ns = self.config.retry_ns << self.failures.min(MOST_DOUBLINGS);
        if self.failures == 0 {
            return span_ns;
        }
        let place = self.log.group().map_or(0, |g| g.members().iter().filter(|id| **id < self.me).count() as u64);
        let seed = u64::from(self.me.node.0) << 48 ^ u64::from(self.failures) << 32 ^ self.me.incarnation.0;
        span_ns * (place + 1) + fastrand::Rng::with_seed(seed).u64(..span_ns.max(1))
    }

    /// Asks all members of the group for their permission, and also the processes that are to be added (Mu section 4.1; growing the confirmed followers,
    /// section 4.2).
    pub(super) fn ask<F: Fabric>(&mut self, fabric: &mut F) {
        let Some(reign) = &mut self.reign else { return };
        let Some(group) = self.log.group() else { return };
        // A lost follower keeps its place in the electorate while it belongs to the group, unless it has reconnected. Others are dropped, because a long reign
        // can see many come and go.
        let is_connected = |f: &Follower| self.peers.iter().any(|p| p.process == f.process && !p.watch.dead);
        for follower in reign.drop_lost(|f| group.contains(f.process) && !is_connected(f)) {
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == follower.peer) {
                peer.writer = Some(follower.lane.into_writer());
            }
        }
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let holds = matches!(peer.watch.status, Some(Status::Follower | Status::Taught | Status::Unkept));
            let joins = reign.is_leading() && holds && self.roster.is_wished(peer.process);
            // A process may have been added to the group without our knowledge, and the other members may be gone.
            let may_belong = !reign.is_leading() && holds && self.roster.lists(peer.process);
            if peer.watch.dead || !reign.may_ask(peer.id) || !(joins || may_belong || group.contains(peer.process)) {
                continue;
            }
            let is_free = |slot: &usize| self.peers.iter().all(|p| p.slot != Some(*slot));
            let Some(slot) = peer.slot.or_else(|| (0..layout::MAX_PEERS).find(is_free)) else { continue };
            let peer = &mut self.peers[at];
            let Some(writer) = peer.writer.take() else { continue };
            peer.slot = Some(slot);
            Mark::MuAsked.reach();
            permission::tell(fabric, peer.id, lane_words::START, writer.tail());
            permission::tell(fabric, peer.id, lane_words::REQUEST, reign.round());
            self.nudges.at_once(peer.id);
            reign.ask(peer.process, peer.id, slot, writer);
        }
    }

    #[inline]
    pub(super) fn step<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool {
        let was = self.reign.as_ref().is_some_and(Reign::is_leading);
        let moved = self.with_reign(now, fabric, machine, Reign::step);
        if !was && self.reign.as_ref().is_some_and(Reign::is_leading) {
            self.reigns += 1;
            self.failures = 0;
            self.releases.break_off();
            self.published = false;
        }
        self.change_group();
        moved
    }

    #[inline]
    pub(super) fn with_reign<F: Fabric, S: StateMachine>(
        &mut self,
        now: Time,
        fabric: &mut F,
        machine: &mut S,
        act: impl FnOnce(&mut Reign, &mut Context<F, S>) -> Result<bool, AbortReason>,
    ) -> bool {
        let Some(reign) = &mut self.reign else { return false };
        let mut cx = Context {
            now,
            config: &self.config,
            log: &mut self.log,
            fabric,
            machine,
            events: &mut self.events,
            nudges: &mut self.nudges,
            buffer: &mut self.buffer,
            self_granted: self.permission.self_granted,
            outbid: self.outbid,
            stray_log: self.stray_log.map(|stray| stray.from),
            // A process that is alive and in reach has answered by then.
            hopes: self.overrun_since.is_none_or(|since| now.since(since) <= self.config.silence_ns),
        };
        match act(reign, &mut cx) {
            Ok(moved) => moved,
            Err(reason) => {
                self.end_reign(reason, fabric);
                true
            }
        }
    }

    /// Everything that let this process lead without preparing is dropped (TRAPS 11): the next reign starts from scratch.
    pub(super) fn end_reign<F: Fabric>(&mut self, reason: AbortReason, fabric: &F) {
        let Some(mut reign) = self.reign.take() else { return };
        if self.config.execution == Execution::Speculative {
            reign.keep_executed(leading::ring_of(fabric), &mut self.log, &self.config);
        }
        let mark = match reason {
            AbortReason::AccessLost(_) => Mark::MuAccessLost,
            AbortReason::Granted(_) => Mark::MuGrantedAway,
            AbortReason::NotLeader => Mark::MuStepsAside,
            AbortReason::Outbid(by) => {
                self.outbid = self.outbid.max(by);
                Mark::MuOutbid
            }
            AbortReason::CatchUp => Mark::MuCatchUpFailed,
            AbortReason::TooOld => Mark::MuTooOld,
            AbortReason::Removed => Mark::MuRemoved,
        };
        mark.reach();
        self.events.push_back(Event::Aborted { reason, led: reign.is_leading() });
        if reign.is_leading() {
            self.reigns += 1;
            self.releases.break_off();
            self.hand_over.end();
        } else {
            self.failures = self.failures.saturating_add(1);
        }
        if reason == AbortReason::TooOld {
            let own = (self.log.last_ballot(), self.log.tail().index);
            let ahead = reign.followers.iter().filter(|f| f.numbers().is_some_and(|n| n.rank() > own));
            self.ahead = ahead.map(|f| f.process).collect();
        }
        for stray in reign.on_their_way() {
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == stray) {
                peer.stray_reads += 1;
            }
        }
        self.stray_log = reign.log_on_its_way().or(self.stray_log);
        let (followers, record, backlog) = reign.into_parts();
        self.backlog = backlog;
        if reason == AbortReason::TooOld {
            self.log.void();
            self.overrun_since = None;
        }
        // The machine does not show a change of the group that found no room; that change is requested again.
        self.log.set_beyond(self.log.is_complete() && self.config.execution == Execution::Speculative && self.backlog.has_commands());
        self.check_backlog();
        self.spare = record;
        for follower in followers {
            if let Some(peer) = self.peers.iter_mut().find(|p| p.id == follower.peer) {
                peer.writer = Some(follower.lane.into_writer());
            }
        }
        self.published = false;
    }
}

//! How a process gets in. It asks every process that it is connected with, and lists those processes in its request. Each process that is asked
//! vouches for its connection. The leader takes the newcomer in once the newcomer has met *every* member. So the members of a view form a clique from
//! the start, and any member that becomes leader can use the memory of all coordinators: a newcomer that the next leader had not met yet would cost a
//! failover its majority.
//!
//! A process that will never be taken in has to come back as a new incarnation. Any process that still remembers it tells it so. If all have
//! forgotten it, and with it the connection, it notices that no process answers.

use martlet_fabric::{Fabric, Incarnation, PeerId};

use super::peers::Asked;
use super::{Config, Core, Event};
use crate::basics::{Mark, ProcessId, Time, ViewNumber};
use crate::membership::message::Message;
use crate::membership::view::{Member, Roles};

/// How many broadcast timeouts a process that knows a view asks in vain to be taken in. A member that is in its way is cut off after one timeout. The
/// newcomer starts over one timeout after it has stopped asking: until then it is still there for the processes that heard its last request.
const PATIENCE_TIMEOUTS: u64 = 4;

/// A process's patience is renewed no more once this many broadcast timeouts have passed since it first knew a view, even if it is still making
/// progress.
const RENEWED_TIMEOUTS: u64 = 4 * PATIENCE_TIMEOUTS;

/// The longest pause between two requests, as a fraction of a broadcast timeout. A request is valid for half a timeout, so some of them may be lost.
const PAUSES_A_TIMEOUT: u64 = 16;

/// The state of asking to be taken in.
#[derive(Clone, Debug, Default)]
pub(super) struct Joining {
    /// Whether this process wants to be listed, and no view has listed it yet.
    pub wanted: bool,
    /// When this process, while asking, first knew a view.
    began: Time,
    /// Since when it has been asking with knowledge of a view, without getting any nearer to being taken in.
    since: Option<Time>,
    /// The newest view that it knew at that time, and how many of that view's members it was connected with.
    reached: (ViewNumber, usize),
    /// When it asks next, and the pause before that request, in nanoseconds.
    next_ask: Time,
    pause_ns: u64,
    /// The newest incarnation of this node that others are known to have seen.
    newest: Incarnation,
}

impl Core {
    /// Asks to be taken in, again and again until a view lists this process. A replica asks to become a learner. [`Event::Excluded`] follows if this
    /// incarnation will not be taken in; the next one has to be later than [`newest_life`](Self::newest_life).
    pub fn join(&mut self, now: Time) {
        self.joining.wanted = true;
        self.ask_soon(now);
    }

    /// Something has changed: ask at once, and then as often as at first.
    pub(super) fn ask_soon(&mut self, now: Time) {
        self.next_resend = now;
        (self.joining.next_ask, self.joining.pause_ns) = (now, self.config.resend_interval_ns);
    }

    /// Asks again when it is time. While nothing changes the pauses grow, since each request makes every member send a message to all.
    pub(super) fn ask_again<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if !self.is_asking(now) || now < self.joining.next_ask {
            return;
        }
        self.joining.next_ask = now.after(self.joining.pause_ns);
        let longest_ns = self.config.broadcast_timeout_ns / PAUSES_A_TIMEOUT;
        self.joining.pause_ns = (2 * self.joining.pause_ns).min(longest_ns).max(self.config.resend_interval_ns);
        self.ask_to_join(fabric);
    }

    /// The newest incarnation of this node known to this process or, as far as it has been told, to any process in its cluster.
    pub fn newest_life(&self) -> Incarnation {
        let listed = self.view.iter().flat_map(|v| &v.members).map(|m| m.id).filter(|id| id.node == self.config.me.node);
        listed.map(|id| id.incarnation).max().unwrap_or_default().max(self.joining.newest).max(self.config.me.incarnation)
    }

    /// Whether it asks to be taken in.
    pub(super) fn is_joining(&self) -> bool {
        self.joining.wanted && !self.excluded && !self.is_member()
    }

    /// As a member whose build the view lists wrongly: says what it runs.
    pub(super) fn correct_levels<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let me = self.config.me;
        let Some(listed) = self.view.as_ref().and_then(|v| v.member(me)).map(|m| m.levels) else { return };
        if listed == self.config.levels || self.excluded {
            return;
        }
        self.wishes.note_levels(me, self.config.levels);
        if self.is_leader() { self.lead(now, fabric) } else { self.ask_to_join(fabric) }
    }

    fn ask_to_join<F: Fabric>(&mut self, fabric: &mut F) {
        Mark::AskedToJoin.reach();
        let wanted = self.config.roles;
        let roles = if wanted.has(Roles::REPLICA) { wanted.without(Roles::REPLICA).with(Roles::LEARNER) } else { wanted };
        let reaches = self.peers.reached();
        let Config { levels, ref address, .. } = self.config;
        Message::Join { view: self.view_number(), roles, levels, address: address.clone(), reaches }.encode(&mut self.message);
        fabric.multicast(&self.message);
    }

    /// Gives up on this incarnation when it has asked in vain, without getting any nearer, for too long. The `late_ns` for which this process was
    /// kept from running just now do not count. Giving up has a price: a process that starts over loses all its progress, which helps nothing where
    /// everything is slow. But a process that gives up too soon loses no more than that: it holds no state, and its next incarnation takes the place
    /// of this one.
    pub(super) fn mind_patience(&mut self, now: Time, late_ns: u64) {
        let Some(view) = self.view.as_ref().filter(|_| self.is_joining()) else { return };
        let reached = self.peers.reached();
        let reached = (view.number, view.members.iter().filter(|m| reached.contains(&m.id)).count());
        // Whether this process was still asking when it last ran, `late_ns` ago.
        let asking = self.waited(now).saturating_sub(late_ns) <= PATIENCE_TIMEOUTS * self.config.broadcast_timeout_ns;
        let timeout_ns = self.config.broadcast_timeout_ns;
        let joining = &mut self.joining;
        match &mut joining.since {
            None => (joining.began, joining.since) = (now, Some(now)),
            // Once it has stopped asking, nothing renews its patience: it remains a while longer only for the processes that have heard it ask.
            Some(since) if asking && now.since(joining.began) < RENEWED_TIMEOUTS * timeout_ns => {
                *since = if reached > joining.reached { now } else { since.after(late_ns).min(now) };
            }
            Some(_) => {}
        }
        joining.reached = joining.reached.max(reached);
        if self.waited(now) > (PATIENCE_TIMEOUTS + 1) * self.config.broadcast_timeout_ns {
            Mark::LostPatience.reach();
            self.exclude();
        }
    }

    /// Whether it still asks to be taken in, rather than only waiting for the outcome.
    pub(super) fn is_asking(&self, now: Time) -> bool {
        self.is_joining() && self.waited(now) <= PATIENCE_TIMEOUTS * self.config.broadcast_timeout_ns
    }

    /// How long it has asked, knowing a view, without getting any nearer. Most of the time for which it was kept from running is left out.
    fn waited(&self, now: Time) -> u64 {
        self.joining.since.map_or(0, |since| now.since(since))
    }

    /// `newcomer`, connected as `from`, asks to be taken in.
    pub(super) fn handle_join<F: Fabric>(&mut self, now: Time, fabric: &mut F, from: PeerId, newcomer: Member, asked: Asked) {
        let process = newcomer.id;
        if let Some(least) = self.refusal(process) {
            Mark::Refused.reach();
            Message::Refuse { least }.encode(&mut self.message);
            fabric.send(from, &self.message);
            return;
        }
        if let Some(level) = self.view.as_ref().map(|v| v.level).filter(|level| !newcomer.levels.has(*level)) {
            Mark::Unsuited.reach();
            Message::Unsuited { level }.encode(&mut self.message);
            fabric.send(from, &self.message);
            return;
        }
        // A cluster that is founded again with many members does not know what each of them runs.
        let listed = self.view.as_ref().and_then(|v| v.member(process)).map(|m| m.levels);
        if listed.is_some_and(|levels| levels != newcomer.levels) {
            self.wishes.note_levels(process, newcomer.levels);
            self.lead(now, fabric);
            return;
        }
        // Its request can arrive late: after it was taken in, or after the news of its death. A view that lists a dead process would wait for it.
        if self.view.as_ref().is_some_and(|v| v.member(process).is_some()) || self.peers.is_suspect(process) {
            return;
        }
        self.peers.note_asked(from, asked);
        self.wishes.join(newcomer);
        Mark::Vouched.reach();
        // To all processes: they may disagree on which of them leads.
        Message::Vouch { process }.encode(&mut self.message);
        fabric.multicast(&self.message);
        self.lead(now, fabric);
    }

    /// `voucher` is connected with `newcomer`.
    pub(super) fn handle_vouch<F: Fabric>(&mut self, now: Time, fabric: &mut F, voucher: ProcessId, newcomer: ProcessId) {
        self.peers.note_voucher(newcomer, voucher);
        self.lead(now, fabric);
    }

    /// The lowest incarnation with which this process's node may come back, if the process cannot be taken in as it is.
    fn refusal(&self, process: ProcessId) -> Option<Incarnation> {
        let view = self.view.as_ref().filter(|v| v.member(process).is_none())?;
        let later = view.members.iter().map(|m| m.id).filter(|id| id.node == process.node && *id > process);
        let removed = view.departed.iter().any(|d| d.id == process).then_some(process);
        let forgotten = self.peers.is_forgotten(process).then_some(process);
        let known = later.chain(self.peers.listed_since(process)).chain(removed).chain(forgotten).max()?;
        Some(Incarnation(known.incarnation.0.saturating_add(1)))
    }

    /// A member says that this incarnation will not be taken in.
    pub(super) fn handle_refusal(&mut self, least: Incarnation) {
        if self.is_joining() && least > self.config.me.incarnation {
            Mark::WasRefused.reach();
            self.joining.newest = self.joining.newest.max(Incarnation(least.0 - 1));
            self.exclude();
        }
    }

    /// This program cannot work at the view's feature level, as a member or the view itself says: no incarnation of it will ever be taken in.
    pub(super) fn handle_unsuited(&mut self, level: u8) {
        if !self.is_member() && !self.config.levels.has(level) {
            Mark::WasUnsuited.reach();
            self.unsuited = Some(level);
            self.exclude();
        }
    }

    pub(super) fn exclude(&mut self) {
        if !self.excluded {
            Mark::Excluded.reach();
            self.excluded = true;
            self.lease.drop_it();
            self.proposer = None;
            self.events.push_back(Event::Excluded);
        }
    }
}

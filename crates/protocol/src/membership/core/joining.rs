//! How a process gets in. It asks everybody it is connected with, and says who that is; whoever is asked vouches for the connection;
//! and the leader takes it in once it has met *every* member. So the members of a view are a clique from the start, and whoever comes to lead one
//! can use the memory of all its coordinators: a newcomer that the next leader has not met yet would cost a failover its majority.
//!
//! A process that will never be taken in has to come back as a new incarnation. It is told so where somebody remembers it; where everybody has
//! forgotten it, and with it the connection, it notices that nobody answers.

use martlet_fabric::{Fabric, Incarnation, PeerId};

use super::peers::Asked;
use super::{Config, Core, Event};
use crate::basics::{Mark, ProcessId, Time, ViewNumber};
use crate::membership::message::Message;
use crate::membership::view::{Member, Roles};

/// How many broadcast timeouts a process that knows a view asks in vain to be taken in. A member that is in its way is cut off after one. It starts over one
/// later: so long it is still there for whoever has heard it ask.
const PATIENCE_TIMEOUTS: u64 = 4;

/// As many broadcast timeouts after it first knew a view, its patience is not renewed any more, whatever it gets nearer.
const RENEWED_TIMEOUTS: u64 = 4 * PATIENCE_TIMEOUTS;

/// The longest time from one request to the next, as a part of a broadcast timeout: a request counts for half of one, so some of those that count may be lost.
const PAUSES_A_TIMEOUT: u64 = 16;

/// The state of asking to be taken in.
#[derive(Clone, Debug, Default)]
pub(super) struct Joining {
    /// Whether no view has listed this process yet, and it wants one to.
    pub wanted: bool,
    /// When it first knew a view while it asked.
    began: Time,
    /// Since when it asks and knows a view, and has come no nearer to being taken in.
    since: Option<Time>,
    /// The newest view it knew then, and how many of that view's members it was connected with.
    reached: (ViewNumber, usize),
    /// When it asks next, and how long after the request before, in nanoseconds.
    next_ask: Time,
    pause_ns: u64,
    /// The newest life of this node that others were heard to know.
    newest: Incarnation,
}

impl Core {
    /// Asks to be taken in, again and again until a view lists this process. A replica asks to be a learner. [`Event::Excluded`] follows if
    /// this incarnation will not be taken in; the next one has to be later than [`newest_life`](Self::newest_life).
    pub fn join(&mut self, now: Time) {
        self.joining.wanted = true;
        self.ask_soon(now);
    }

    /// Something has changed: it asks at once, and then as often as at first.
    pub(super) fn ask_soon(&mut self, now: Time) {
        self.next_resend = now;
        (self.joining.next_ask, self.joining.pause_ns) = (now, self.config.resend_interval_ns);
    }

    /// Asks again, if it is time to; ever more seldom while nothing changes, since each request makes every member say something to everybody.
    pub(super) fn ask_again<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        if !self.is_asking(now) || now < self.joining.next_ask {
            return;
        }
        self.joining.next_ask = now.after(self.joining.pause_ns);
        let longest_ns = self.config.broadcast_timeout_ns / PAUSES_A_TIMEOUT;
        self.joining.pause_ns = (2 * self.joining.pause_ns).min(longest_ns).max(self.config.resend_interval_ns);
        self.ask_to_join(fabric);
    }

    /// The newest life of this node that this process or, as far as it was told, anybody in its cluster knows.
    pub fn newest_life(&self) -> Incarnation {
        let listed = self.view.iter().flat_map(|v| &v.members).map(|m| m.id).filter(|id| id.node == self.config.me.node);
        listed.map(|id| id.incarnation).max().unwrap_or_default().max(self.joining.newest).max(self.config.me.incarnation)
    }

    /// Whether it asks to be taken in.
    pub(super) fn is_joining(&self) -> bool {
        self.joining.wanted && !self.excluded && !self.is_member()
    }

    /// As a member that the view takes for another build: says what it runs.
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

    /// Gives up on this incarnation when it has asked in vain for too long: without getting any nearer, and not counting the `late_ns` for which this process was
    /// kept from running just now. A process that starts over begins anew with all it has got to, and where everything takes its time that helps nobody. One
    /// that gives up too soon all the same loses nothing: it holds no state, and its next life takes the place of this one.
    pub(super) fn mind_patience(&mut self, now: Time, late_ns: u64) {
        let Some(view) = self.view.as_ref().filter(|_| self.is_joining()) else { return };
        let reached = self.peers.reached();
        let reached = (view.number, view.members.iter().filter(|m| reached.contains(&m.id)).count());
        // Whether it still asked when it last ran, `late_ns` ago.
        let asking = self.waited(now).saturating_sub(late_ns) <= PATIENCE_TIMEOUTS * self.config.broadcast_timeout_ns;
        let timeout_ns = self.config.broadcast_timeout_ns;
        let joining = &mut self.joining;
        match &mut joining.since {
            None => (joining.began, joining.since) = (now, Some(now)),
            // Once it asks no more nothing renews its patience: it is there a while longer only for whoever has heard it ask.
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

    /// Whether it still asks to be taken in, or only waits for what comes of it.
    pub(super) fn is_asking(&self, now: Time) -> bool {
        self.is_joining() && self.waited(now) <= PATIENCE_TIMEOUTS * self.config.broadcast_timeout_ns
    }

    /// For how long it has asked, knowing a view, and come no nearer; time in which it was kept from running mostly apart.
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
        // A cluster that is founded again of many does not know what each of them runs.
        let listed = self.view.as_ref().and_then(|v| v.member(process)).map(|m| m.levels);
        if listed.is_some_and(|levels| levels != newcomer.levels) {
            self.wishes.note_levels(process, newcomer.levels);
            self.lead(now, fabric);
            return;
        }
        // Its request can arrive late: after it was taken in, or after the news of its death. A view that lists the dead would wait for them.
        if self.view.as_ref().is_some_and(|v| v.member(process).is_some()) || self.peers.is_suspect(process) {
            return;
        }
        self.peers.note_asked(from, asked);
        self.wishes.join(newcomer);
        Mark::Vouched.reach();
        // To everybody: who leads may be a matter of opinion.
        Message::Vouch { process }.encode(&mut self.message);
        fabric.multicast(&self.message);
        self.lead(now, fabric);
    }

    /// `voucher` is connected with `newcomer`.
    pub(super) fn handle_vouch<F: Fabric>(&mut self, now: Time, fabric: &mut F, voucher: ProcessId, newcomer: ProcessId) {
        self.peers.note_voucher(newcomer, voucher);
        self.lead(now, fabric);
    }

    /// The least incarnation with which the node of this process may come back, if it can't be taken in as it is.
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

    /// The view's feature level is one that this program cannot work at, as a member says or the view itself: no life of it will ever be taken in.
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

//! uKharon Core and the coordinator, as one state machine.
//!
//! It is driven by
//! - *commands*: [`Core::bootstrap`], [`Core::join`], [`Core::leave`], [`Core::promote`], [`Core::evict`], [`Core::set_lease_ns`],
//!   [`Core::begin_round`], [`Core::pledge`];
//! - *handlers*: [`Core::handle_peer`], [`Core::handle_completion`], [`Core::handle_datagram`], [`Core::handle_evidence`], [`Core::tick`];
//! - *polls*: [`Core::poll_event`], to be called after each handler, so that milestones get the time at which they happen;
//! - *queries*: [`Core::view`], [`Core::lease`] and others.
//!
//! Rules worth knowing:
//! - View `k+1` is decided by the coordinators of view `k`. Only coordinators propose: a member that finds slot `k+1` taken does not finish the
//!   proposal itself (Algorithm 6, line 8) but asks for the view. The leader, or the process that becomes leader, finishes the proposal, because its
//!   prepare phase adopts what the slot holds.
//! - The leader is the most senior coordinator that is not suspected (section 5.3.1). Two leaders are harmless, and back off.
//! - The process that gets a view decided pushes it, and every process pulls from every other's board, so a lost datagram costs time and nothing
//!   else.

mod borrowing;
mod caching;
mod config;
mod driving;
mod evidence;
mod inquiry;
mod joining;
mod leading;
mod learning;
mod peers;
mod renewing;

use std::collections::VecDeque;

use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::{Fabric, Levels, LocalRegion, PeerId, invariant};

use super::lease::{Handover, Lease};
use super::message::Message;
use super::plan::{self, Wishes};
use super::view::{Evidence, Member, View};
use crate::basics::layout::{Component, LIFE, life};
use crate::basics::{Canary, Mark, ProcessId, Time, ViewNumber, ballot};
use crate::consensus::Proposer;
use crate::consensus::rpc::{RpcAcceptor, RpcReply};
use crate::detector::stall::StallMeter;
use crate::detector::wardens::Secret;
use borrowing::Borrowing;
use caching::Caching;
pub use config::{Authority, Config, Leases};
pub use evidence::{Disbelief, Source};
pub use inquiry::{Proof, Round};
use joining::Joining;
use peers::Peers;
use renewing::Renewal;

/// A step of a failover or of another change of views, for the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// A member is found to be gone.
    DeathSeen(ProcessId, Evidence),
    /// This process has started to propose this view.
    Proposed(ViewNumber),
    /// This process has got this view decided.
    Decided(ViewNumber),
    /// No process can hold a lease on an older view any more.
    Acknowledged(ViewNumber),
    /// This process holds a lease on this view, and may act.
    Active(ViewNumber),
}

/// What the node and the engine need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A newer view is known. Numbers only grow, and some may be skipped.
    View(View),
    /// This process is no longer a member: whatever it holds is void, and it may join as a new incarnation.
    Excluded,
    /// A step for the timeline.
    Milestone(Milestone),
}

/// Why the feature level cannot be set as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// The process belongs to no view.
    #[error("this process belongs to no view")]
    NoView,
    /// The level never falls.
    #[error("the feature level is {stands}, and never falls; asked for was {level}")]
    Lower {
        /// The level asked for.
        level: u8,
        /// The view's level.
        stands: u8,
    },
    /// A member cannot work at that level.
    #[error("{process} can work at the feature levels {levels}; asked for was {level}")]
    Unsupported {
        /// The level asked for.
        level: u8,
        /// The member.
        process: ProcessId,
        /// The levels that it can work at.
        levels: Levels,
    },
}

/// How long a decided view waits before it is pushed, in nanoseconds. A push may wake its receivers, at the cost of a system call each, so after a
/// failover the new primary answers its clients first. Meanwhile, a process that is awake finds the view on the board.
const PUSH_DELAY_NS: u64 = 100_000;

/// Kinds of operations that membership posts, in addition to a proposer's ([`Op`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Read {
    Threads = 16,
    Death = 17,
    Heartbeat = 18,
    BoardNumber = 19,
    BoardRecords = 20,
    Slot = 21,
    LeaseWord = 22,
    CacheSlot = 23,
    Cache = 24,
    Pledge = 25,
}

/// The state machine; see the [module](self).
#[derive(Clone, Debug)]
pub struct Core {
    config: Config,
    view: Option<View>,
    /// When the view became known here.
    learned: Time,
    peers: Peers,
    /// The coordinators of the view, as peers.
    coordinators: Vec<Option<PeerId>>,
    proposer: Option<Proposer>,
    acceptor: RpcAcceptor,
    /// Answers of our own acceptor, to be taken in the next duty cycle.
    own_replies: Vec<RpcReply>,
    wishes: Wishes,
    proposing: Option<View>,
    /// Whether the proposal has been withdrawn, as far as this attempt goes: an earlier attempt may have got it accepted somewhere.
    taken_back: bool,
    /// As leader: members that the last broadcast found on the other side of a cut, although this process hears them.
    apart: Vec<ProcessId>,
    /// As leader: since this was last checked, there was a wish that the current view does not allow.
    unfulfilled: bool,
    /// The last view that this process got decided.
    decided_here: Option<ViewNumber>,
    backoff_until: Time,
    failures: u32,
    chance: fastrand::Rng,
    lease: Lease,
    lease_wanted: bool,
    handover: Handover,
    renewal: Renewal,
    borrowing: Borrowing,
    caching: Caching,
    joining: Joining,
    leaving: bool,
    excluded: bool,
    /// Whether some view has listed this process as anything but a learner.
    has_counted: bool,
    unsuited: Option<u8>,
    stalls: StallMeter,
    next_monitor: Time,
    next_death_look: Time,
    next_broadcast: Time,
    next_pull: Time,
    next_resend: Time,
    /// When the view that was decided here is to be pushed.
    push_due: Option<Time>,
    events: VecDeque<Event>,
    message: Vec<u8>,
    malformed: u64,
    malformed_boards: u64,
    contradictions: u64,
    /// What this process has pledged.
    pledged: Option<Secret>,
    disbelieved: u64,
}

impl Core {
    /// A process that knows no other and belongs to no view yet.
    pub fn new(now: Time, config: Config) -> Core {
        let chance = fastrand::Rng::with_seed(config.seed);
        let peers = Peers::new(config.me, config.thresholds);
        Core {
            config,
            view: None,
            learned: now,
            peers,
            coordinators: Vec::new(),
            proposer: None,
            acceptor: RpcAcceptor::default(),
            own_replies: Vec::new(),
            wishes: Wishes::default(),
            proposing: None,
            taken_back: false,
            apart: Vec::new(),
            unfulfilled: false,
            decided_here: None,
            backoff_until: now,
            failures: 0,
            chance,
            lease: Lease::default(),
            lease_wanted: false,
            handover: Handover::default(),
            renewal: Renewal::default(),
            borrowing: Borrowing::default(),
            caching: Caching::default(),
            joining: Joining::default(),
            leaving: false,
            excluded: false,
            has_counted: false,
            unsuited: None,
            stalls: StallMeter::new(now),
            next_monitor: now,
            next_death_look: now,
            next_broadcast: now,
            next_pull: now,
            next_resend: now,
            push_due: None,
            events: VecDeque::with_capacity(64),
            message: Vec::with_capacity(4096),
            malformed: 0,
            malformed_boards: 0,
            contradictions: 0,
            pledged: None,
            disbelieved: 0,
        }
    }

    /// Founds a cluster: view 1, with this process alone. An operator orders this once in a cluster's life; all other processes join.
    pub fn bootstrap<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        let Config { me: id, roles, levels, ref address, .. } = self.config;
        let me = Member { id, roles, levels, address: address.clone() };
        self.found_again(now, fabric, ViewNumber(1), vec![me]);
    }

    /// Founds a cluster whose history was broken off: no process has a view any more, and the cluster continues from what these members keep on their
    /// disks. `number` is the number of the first view, higher than any found on those disks. The members are connected with this process, which
    /// decides alone. It need not be one of them; if it is not, it shows them the view, and then is an outsider like any other process that has heard
    /// of it.
    pub fn found_again<F: Fabric>(&mut self, now: Time, fabric: &mut F, number: ViewNumber, members: Vec<Member>) {
        invariant!(self.view.is_none(), "bootstrap of a process that knows a view already");
        invariant!(
            members.iter().any(|m| m.roles.has(super::Roles::COORDINATOR)),
            "{} founds a cluster of which nobody decides",
            self.config.me
        );
        let view = View {
            number,
            lease_ns: self.config.lease_ns,
            fence_ns: self.config.lease_ns,
            compatible: false,
            // A process that joins later may support less; the level rises only when asked for.
            level: self.config.levels.least,
            members,
            departed: Vec::new(),
        };
        Mark::Founded.reach();
        self.install(now, fabric, view);
    }

    /// Gives back the lease and asks to be removed. The caller has stopped acting. [`Event::Excluded`] follows once the process has been removed; a
    /// sole member has no other process to tell, and is out at once.
    pub fn leave<F: Fabric>(&mut self, now: Time, fabric: &mut F) {
        Mark::Left.reach();
        self.leaving = true;
        self.joining.wanted = false;
        self.lease_wanted = false;
        self.give_back(fabric);
        let me = self.config.me;
        match &self.view {
            Some(view) if view.members.len() > 1 && view.member(me).is_some() => {
                self.wishes.remove(me, Evidence::Left);
                Message::Notice { process: me, evidence: Evidence::Left }.encode(&mut self.message);
                fabric.multicast(&self.message);
                self.next_resend = now.after(self.config.resend_interval_ns);
                self.lead(now, fabric);
            }
            _ => self.exclude(),
        }
    }

    /// As primary: reports that this learner has the whole state. Repeat the call until a view says so.
    pub fn promote<F: Fabric>(&mut self, now: Time, fabric: &mut F, process: ProcessId) {
        self.wishes.promote(process);
        self.tell_leader(now, fabric, &Message::Promote { process });
    }

    /// Cuts a process off, at the request of an operator or of a primary whose learner cannot keep up. If the process leads membership, the next
    /// coordinator in line decides its removal, and that may be this process.
    pub fn evict<F: Fabric>(&mut self, now: Time, fabric: &mut F, process: ProcessId) {
        if self.view.as_ref().is_some_and(|view| view.member(process).is_some()) {
            self.suspect(now, fabric, process, Evidence::Evicted);
        } else {
            // The leader may know a newer view.
            self.wishes.remove(process, Evidence::Evicted);
            self.tell_leader(now, fabric, &Message::Notice { process, evidence: Evidence::Evicted });
        }
    }

    /// Asks for leases of another length (uKharon section 6.3).
    pub fn set_lease_ns<F: Fabric>(&mut self, now: Time, fabric: &mut F, lease_ns: u64) {
        self.wishes.lease_ns = Some(lease_ns);
        self.tell_leader(now, fabric, &Message::SetLease { lease_ns });
    }

    /// Asks for a higher feature level. The level is raised once all members can work at it; a request may get lost, and then has to be repeated.
    ///
    /// # Errors
    /// When the view is not known here, or when some member, as far as is known here, cannot work at that level: then nothing has been requested.
    pub fn raise_level<F: Fabric>(&mut self, now: Time, fabric: &mut F, level: u8) -> Result<(), LevelError> {
        let view = self.view.as_ref().filter(|_| self.is_member()).ok_or(LevelError::NoView)?;
        if level < view.level {
            return Err(LevelError::Lower { level, stands: view.level });
        }
        if !plan::all_have(&view.members, level) {
            let member = view.members.iter().find(|m| !m.levels.has(level)).expect("not all have it");
            return Err(LevelError::Unsupported { level, process: member.id, levels: member.levels });
        }
        self.wishes.level = Some(level).filter(|level| *level > view.level);
        self.tell_leader(now, fabric, &Message::RaiseLevel { level });
        Ok(())
    }

    fn tell_leader<F: Fabric>(&mut self, now: Time, fabric: &mut F, message: &Message) {
        if self.is_leader() {
            self.lead(now, fabric);
        } else {
            message.encode(&mut self.message);
            fabric.multicast(&self.message);
        }
    }

    /// The newest view known here.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// Whether some view known here has listed this process as more than a learner: from then on it has held the cluster's state.
    pub fn has_counted(&self) -> bool {
        self.has_counted
    }

    /// The feature level that everything this process writes must keep to: the view's.
    pub fn level(&self) -> u8 {
        self.view.as_ref().map_or(self.config.levels.least, |v| v.level)
    }

    /// The view's feature level, if this process has been [excluded](Event::Excluded) because its program cannot work at that level.
    pub fn unsuited(&self) -> Option<u8> {
        self.unsuited
    }

    /// The number of the newest view known here; 0 when none is known.
    pub fn view_number(&self) -> ViewNumber {
        self.view.as_ref().map_or(ViewNumber(0), |v| v.number)
    }

    /// The lease: [`Lease::active`] is the paper's `Active`. Take a copy if you query it often.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Whether another process has been seen to know the newest view, or a later one.
    pub fn is_view_shared(&self) -> bool {
        self.peers.newest_board() >= self.view_number()
    }

    /// Whether the newest view lists this process.
    pub fn is_member(&self) -> bool {
        !self.excluded && self.view.as_ref().is_some_and(|v| v.member(self.config.me).is_some())
    }

    /// Whether this process leads the membership service, as far as it can tell.
    pub fn is_leader(&self) -> bool {
        let Some(view) = &self.view else { return false };
        let leader = view.coordinators().find(|m| m.id == self.config.me || !self.peers.is_suspect(m.id));
        leader.is_some_and(|m| m.id == self.config.me)
    }

    /// The process that leads the membership service, as far as this process can tell.
    pub fn leader(&self) -> Option<ProcessId> {
        let view = self.view.as_ref()?;
        view.coordinators().find(|m| m.id == self.config.me || !self.peers.is_suspect(m.id)).map(|m| m.id)
    }

    /// Gives up the memory of a peer, unless it may still be needed: because the peer is a member, may become one, or is awaited for its lease.
    /// Returns whether the memory has been given up; the fabric may then forget the peer. A process that has been forgotten while alive comes back as
    /// another process.
    pub fn forget(&mut self, peer: PeerId) -> bool {
        let Some(process) = self.peers.process(peer) else { return true };
        // A survivor that lags behind may yet learn of a view that takes this process in.
        if self.peers.may_be_listed(process, self.stalls.last(), self.config.broadcast_timeout_ns) {
            return false;
        }
        // A proposal of ours that lists it may still be decided, and then its memory is an acceptor's.
        let views = [self.view.as_ref(), self.proposing.as_ref()];
        let needed = views.into_iter().flatten().any(|v| v.member(process).is_some()) || self.handover.awaited().any(|p| p == process);
        if !needed {
            Mark::Forgot.reach();
            self.peers.forget(peer);
            self.wishes.join.retain(|m| m.id != process);
        }
        !needed
    }

    /// The peer that a process is connected as.
    pub fn peer_of(&self, process: ProcessId) -> Option<PeerId> {
        self.peers.of(process)
    }

    /// Whether this process believes a member to be gone, and on what evidence.
    pub fn suspicion(&self, process: ProcessId) -> Option<Evidence> {
        self.peers.suspicion(process)
    }

    /// Whether the remaining members lack a majority of the view's coordinators without this process: if it ends before a view excludes it, they may
    /// have to wait until it is back. Members that this process knows to be gone for certain, or to be leaving too, are not counted among the
    /// remaining ones.
    pub fn is_needed(&self) -> bool {
        let Some(view) = &self.view else { return false };
        let stays = |id| id != self.config.me && !self.suspicion(id).is_some_and(Evidence::releases_leases);
        let (all, staying) = (view.coordinators().count(), view.coordinators().filter(|c| stays(c.id)).count());
        view.coordinators().any(|c| c.id == self.config.me) && (1..ballot::majority(all)).contains(&staying)
    }

    /// Datagrams that could not be decoded, or came from a process that is no member of this cluster.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Records on others' boards that were whole but not valid views.
    pub fn malformed_boards(&self) -> u64 {
        self.malformed_boards
    }

    /// How often another process reported a view that differs from the one known here under the same number, or a value to be decided that is not a
    /// view. As long as processes stop but do not lie, this stays 0.
    pub fn contradictions(&self) -> u64 {
        self.contradictions
    }

    /// The next event. Ask after each handler.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn milestone(&mut self, milestone: Milestone) {
        self.events.push_back(Event::Milestone(milestone));
    }

    fn give_back<F: Fabric>(&mut self, fabric: &mut F) {
        Mark::LeaseGivenBack.reach();
        if !Canary::EarlyGiveBack.is_planted() {
            self.lease.drop_it();
        }
        self.renewal.cancel();
        self.borrowing.restart();
        self.store_lease_word(fabric, ViewNumber(0));
    }

    /// Stores the lease word. The fence keeps the later reads of the slot behind it. It pairs with the proposer's CAS on that slot, which precedes the
    /// reading of the lease word by the process that takes over.
    fn store_lease_word<F: Fabric>(&mut self, fabric: &mut F, view: ViewNumber) {
        let life = own_life(fabric);
        if life[life::LEASE].load(Ordering::Relaxed) != view.0 {
            life[life::LEASE].store(view.0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }
}

/// Whether a value may be decided for the slot of this view.
fn is_view(number: ViewNumber, value: &[u8]) -> bool {
    View::decode(value).is_ok_and(|view| view.number == number)
}

fn own_life<F: Fabric>(fabric: &F) -> &martlet_fabric::Memory {
    fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life")
}

fn remote_life(peer: PeerId, word: usize) -> martlet_fabric::Remote {
    martlet_fabric::Remote { peer, region: martlet_fabric::Region::Public(LIFE), offset: word * 8 }
}

fn read_token(kind: Read, a: usize, peer: PeerId) -> martlet_fabric::Token {
    Component::Membership.token(((kind as u64) << 48) | ((a as u64) << 40) | u64::from(peer.0))
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind};

    use super::*;
    use crate::membership::Roles;

    /// Node 0, connected with all others of a view that has this many coordinators.
    fn one_of(count: u16) -> Core {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let mut core = Core::new(Time(0), Config::new(id(0), Roles::COORDINATOR));
        let members = (0..count).map(|node| Member::new(id(node), Roles::COORDINATOR)).collect();
        core.view =
            Some(View { number: ViewNumber(5), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() });
        for node in 1..count {
            let identity = Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
            core.peers.add(Time(1), PeerId(node.into()), identity, true);
        }
        core
    }

    #[test]
    fn a_coordinator_that_leaves_is_needed_while_those_who_stay_are_no_majority() {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let needed = |core: &Core| core.is_needed();
        let mut three = one_of(3);
        assert!(!needed(&three), "two stay");
        assert!(three.peers.suspect(Time(2), id(1), Evidence::Presumed, false));
        assert!(!needed(&three), "one that is only presumed dead may be back");
        assert!(three.peers.suspect(Time(2), id(1), Evidence::Certain, true));
        assert!(needed(&three), "one of three stays");
        assert!(three.peers.suspect(Time(2), id(2), Evidence::Left, true));
        assert!(!needed(&three), "nobody stays");
        assert!(needed(&one_of(2)));
        assert!(!needed(&one_of(1)));
        let mut guest = one_of(3);
        guest.view.as_mut().expect("it was just set").members.remove(0);
        assert!(!needed(&guest), "it decides nothing");
    }
}

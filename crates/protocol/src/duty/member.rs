//! A process that takes part in membership: its endpoint, and what it knows about the others. It needs no engine and no state; a lease cache, or a
//! program that only wants views, consists of nothing else.

use martlet_fabric::{Completion, Fabric, Identity, PeerEvent, PeerId, PeerKind};

use super::{Environment, Note};
use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{ProcessId, Time};
use crate::membership::{self, Core, Milestone, View};

/// What a fabric says about the process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerChange {
    /// A member's process is connected.
    MemberUp(PeerId, ProcessId),
    /// A member's process is gone, or its connection is; `certain`: its kernel says that it is dead.
    MemberGone(PeerId, bool),
    /// A client is connected.
    ClientUp(PeerId),
    /// A client is gone, or its connection is; `certain`: its kernel says that it is dead.
    ClientGone(PeerId, bool),
}

/// One process of a cluster as a member.
#[derive(Debug)]
pub struct Member<F> {
    /// This incarnation of this node.
    pub me: ProcessId,
    /// Its endpoint.
    pub fabric: F,
    /// Its membership.
    pub core: Core,
    /// What the process's clock showed when it was last read.
    pub now: Time,
    /// Connected members that are not gone.
    pub members: Vec<(PeerId, ProcessId)>,
    /// Set when the members, the view or the leader change, that is, anything that determines which deaths this process has to be told of. The code
    /// that acts on it clears it.
    pub members_changed: bool,
    /// Connected clients that are not gone.
    pub clients: Vec<PeerId>,
    /// Reads of the others' boards that have completed, for the process that founds the cluster.
    pub boards_read: Vec<Completion>,
    /// A view without this process has been decided: this incarnation is over.
    pub excluded: bool,
    datagram: Vec<u8>,
}

impl<F: Fabric> Member<F> {
    /// A process that knows no other yet, at the time `now`.
    pub fn new(me: ProcessId, fabric: F, core: Core, now: Time) -> Self {
        Member {
            me,
            fabric,
            core,
            now,
            members: Vec::with_capacity(MAX_MEMBERS),
            members_changed: false,
            clients: Vec::with_capacity(64),
            boards_read: Vec::new(),
            excluded: false,
            datagram: Vec::with_capacity(4096),
        }
    }

    /// Tells the observer about this process.
    pub fn note(&self, env: &mut impl Environment<F>, note: Note<'_>) {
        env.note(&self.fabric, self.core.view_number(), note);
    }

    /// The fabric's next event about a peer. A call of [`handle_peer`](Member::handle_peer) has to follow, after the engine has been told of the
    /// event.
    pub fn next_peer_event(&mut self, env: &mut impl Environment<F>) -> Option<(PeerEvent, PeerChange)> {
        let event = self.fabric.event()?;
        self.now = env.now();
        let change = match event {
            PeerEvent::Up { peer, identity: Identity { kind: PeerKind::Client, .. } } => {
                self.clients.push(peer);
                PeerChange::ClientUp(peer)
            }
            PeerEvent::Gone { peer, certain } if self.clients.contains(&peer) => {
                self.clients.retain(|c| *c != peer);
                PeerChange::ClientGone(peer, certain)
            }
            PeerEvent::Up { peer, identity } => {
                let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                self.members.push((peer, process));
                self.members_changed = true;
                self.note(env, Note::PeerUp(process));
                PeerChange::MemberUp(peer, process)
            }
            PeerEvent::Gone { peer, certain } => {
                self.members.retain(|(p, _)| *p != peer);
                self.members_changed = true;
                PeerChange::MemberGone(peer, certain)
            }
        };
        Some((event, change))
    }

    /// Tells membership what [`next_peer_event`](Member::next_peer_event) has returned. Membership ignores clients.
    pub fn handle_peer(&mut self, event: PeerEvent, change: PeerChange) {
        if let PeerChange::MemberUp(..) | PeerChange::MemberGone(..) = change {
            self.core.handle_peer(self.now, &mut self.fabric, event);
        }
    }

    /// Takes a datagram, if there is one. Returns whether there was.
    pub fn take_datagram(&mut self, env: &mut impl Environment<F>) -> bool {
        let Some(from) = self.fabric.receive(&mut self.datagram) else { return false };
        // Read after the datagram arrived: what it reports happened before this moment.
        self.now = env.now();
        self.core.handle_datagram(self.now, &mut self.fabric, from, &self.datagram);
        true
    }

    /// Gives up the lease, and has it requested anew, if the clock has jumped by the time `now`, which has just been read. Returns whether it has.
    #[inline]
    pub fn mind_jumps(&mut self, env: &mut impl Environment<F>) -> bool {
        let Some(by_ns) = env.clock_jumped(self.now) else { return false };
        let held = self.core.is_member() && self.core.lease().view() == self.core.view_number();
        self.core.distrust_clock(self.now);
        self.note(env, Note::ClockJumped { by_ns, held });
        true
    }

    /// Gives membership its tick. This call itself shows that the calling thread makes progress: a thread that hangs neither beats nor renews (TRAPS 9).
    /// During long work, the heart beats with what the work gets done, and the lease is renewed when the thread is back here.
    pub fn tick(&mut self) {
        self.core.tick(self.now, &mut self.fabric, true);
    }

    /// Membership's next event, after the observer has been told of it. A view is returned, for the caller to act on.
    pub fn poll_event(&mut self, env: &mut impl Environment<F>) -> Option<View> {
        loop {
            match self.core.poll_event()? {
                membership::Event::View(view) => {
                    // Which deaths this process has to be told of depends on the view.
                    self.members_changed = true;
                    self.note(env, Note::Learned(&view));
                    return Some(view);
                }
                membership::Event::Excluded => {
                    self.excluded = true;
                    self.note(env, Note::Excluded);
                }
                membership::Event::Milestone(milestone) => {
                    let note = match milestone {
                        Milestone::DeathSeen(process, evidence) => Note::DeathSeen { process, evidence, at: self.now },
                        Milestone::Proposed(view) => Note::Proposed(view),
                        Milestone::Decided(view) => Note::Decided(view),
                        Milestone::Acknowledged(view) => Note::Acknowledged(view),
                        Milestone::Active(view) => Note::Active(view),
                    };
                    self.note(env, note);
                }
            }
        }
    }

    /// The process of a peer, if the view lists it.
    pub fn process_of(&self, peer: PeerId) -> Option<ProcessId> {
        let view = self.core.view()?;
        view.members.iter().map(|m| m.id).find(|id| self.core.peer_of(*id) == Some(peer))
    }
}

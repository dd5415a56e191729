//! The application that a node serves for the program that embeds it: it takes calls, executes them, and answers them when the engine says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::{Fabric as _, LocalRegion, NodeId, invariant};
use martlet_protocol::basics::ProcessId;
use martlet_protocol::basics::layout::COUNTERS;
use martlet_protocol::membership::{Roles as MemberRoles, View};
use martlet_protocol::replica::{Application, HandOverError, HandOverState, ProposeError, Replica, Standing, Ticket};

use super::call::{Call, Calls, Done, Inbox, Proposal, ReadJob};
use super::entry::{Entry, HEADER_BYTES, MAX_COMMAND_BYTES};
use super::error::{CallError, Leader};
use super::machine::{Lent, StateMachine};
use super::role::{Role, Roles};
use super::sessions::Turn;
use crate::counters::Reading;

/// The most calls taken in one turn: behind them, what they have posted goes out and the clock is read.
const CALLS_A_TURN: usize = 128;

/// What a program's threads share with the replica's.
pub(super) struct Shared<M> {
    pub inbox: Inbox<M>,
    pub roles: Roles,
}

/// What waits for its ticket.
enum Answer<M> {
    Proposal(Done<Vec<u8>>, Result<Vec<u8>, CallError>),
    /// A session's command that had been executed before.
    Known(Done<Vec<u8>>, Vec<u8>),
    Read(Box<dyn ReadJob<M>>),
}

impl<M> Answer<M> {
    /// The reign is over before its ticket came; `leader` is the next one, if that is known. What has had no effect may be asked of that one.
    fn give_up(self, leader: Option<Leader>) {
        let elsewhere = CallError::NotLeader { leader };
        match self {
            // It was executed, here or under an earlier leader.
            Answer::Proposal(done, Ok(_) | Err(CallError::Confirmed { .. } | CallError::ReplyTooLong { .. })) | Answer::Known(done, _) => {
                done.tell(Err(CallError::OutcomeUnknown));
            }
            Answer::Proposal(done, Err(_)) => done.tell(Err(elsewhere)),
            Answer::Read(job) => job.end(Err(elsewhere)),
        }
    }
}

/// What outlives a run of the node.
pub(super) struct Served<M> {
    shared: Arc<Shared<M>>,
    calls: Receiver<Call<M>>,
    /// Calls that need no answer of the log's, and wait for nothing that others wait for.
    aside: Receiver<Call<M>>,
    /// Taken, and without room in the log so far, or among those that wait for their tickets.
    held: Option<Call<M>>,
    /// It is a proposal that finds no room in the log.
    full: bool,
    /// Executed, and not known to be replicated; in the order of their tickets.
    waiting: VecDeque<(Ticket, Answer<M>)>,
    /// Who has asked for this node to hand its leadership over, which it does by leaving.
    stepping_down: Option<(Option<NodeId>, Done<()>)>,
    /// This node has left for that, and is on its way back, where it will hear who leads.
    left: Option<(Option<NodeId>, Done<()>)>,
    /// Who has asked for it where the engine hands it over by itself.
    handing_over: Vec<(Option<NodeId>, Done<()>)>,
    node: NodeId,
    standing: Option<Standing>,
    reign: u64,
    entry: Vec<u8>,
}

impl<M: StateMachine> Served<M> {
    pub fn new(node: NodeId, shared: Arc<Shared<M>>, calls: Calls<M>) -> Self {
        Served {
            shared,
            calls: calls.in_order,
            aside: calls.aside,
            held: None,
            full: false,
            waiting: VecDeque::with_capacity(CALLS_A_TURN),
            stepping_down: None,
            left: None,
            handing_over: Vec::new(),
            node,
            standing: None,
            reign: 0,
            entry: Vec::new(),
        }
    }

    /// A run of the node is over. Nothing that waits will be released. Whether it is over because leadership was to be handed over: who asked for that is
    /// told in the next run, and that there is none when this is dropped.
    pub fn end_of_run(&mut self) -> bool {
        self.give_up_waiting(None);
        // Nobody was named so far, and nobody will be by this replica.
        self.handing_over.drain(..).for_each(|(_, done)| done.tell(Err(CallError::ShuttingDown)));
        (self.standing, self.reign) = (None, 0);
        self.left = self.stepping_down.take();
        self.left.is_some()
    }

    fn give_up_waiting(&mut self, leader: Option<Leader>) {
        self.waiting.drain(..).for_each(|(_, answer)| answer.give_up(leader.clone()));
    }

    /// Tells of a change of role, and gives up what waits when the reign is over.
    fn observe<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &R)
    where
        M: 'a,
    {
        if self.reign != replica.reign() {
            self.reign = replica.reign();
            let leader = leader_of(replica);
            self.give_up_waiting(leader);
        }
        let standing = replica.standing();
        if !self.handing_over.is_empty() {
            // In a life that knows nothing of it, nothing will come of it.
            let state = replica.hand_over_state().unwrap_or(HandOverState::Overtaken(primary_of(standing)));
            if let Some(verdict) = Verdict::of(state, standing == Standing::Primary) {
                self.handing_over.drain(..).for_each(|(to, done)| done.tell(verdict.told(to, |id| leader_named(replica, id))));
            }
        }
        let in_view = || replica.current_view().and_then(View::primary).map(|primary| primary.id);
        if let Some((to, done)) = self.left.take() {
            match Verdict::after_leaving(standing, self.node, in_view) {
                Some(verdict) => done.tell(verdict.told(to, |id| leader_named(replica, id))),
                None => self.left = Some((to, done)),
            }
        }
        if self.standing != Some(standing) {
            self.standing = Some(standing);
            let role = match standing {
                Standing::Primary => Role::Leader,
                Standing::Backup { .. } => Role::Follower { leader: leader_of(replica) },
                Standing::Excluded => Role::Rejoining,
            };
            self.shared.roles.change(role, replica.view().0);
        }
    }

    /// Takes a call; hands it back when there is no room for it now, in the log or among those that wait for their tickets.
    fn take<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R, call: Call<M>) -> Option<Call<M>>
    where
        M: 'a,
    {
        let leads = replica.standing() == Standing::Primary;
        match call {
            Call::Metrics(done) => done.tell(reading(replica)),
            Call::Read { mut job, anywhere: true } => {
                job.look(replica.machine().0.inner());
                job.end(Ok(()));
            }
            call if !leads => call.refuse(CallError::NotLeader { leader: leader_of(replica) }),
            // Without a bound a leader that has lost its quorum, and does not know yet, would take reads for as long as there is memory.
            call if self.waiting.len() >= self.shared.inbox.limit() => return Some(call),
            Call::Read { mut job, .. } => {
                job.look(replica.machine().0.inner());
                self.waiting.push_back((replica.ticket(), Answer::Read(job)));
            }
            Call::HandOver { to, done } => match replica.hand_over(to) {
                Ok(()) => self.handing_over.push((to, done)),
                Err(error) => match refused(error, || leader_of(replica)) {
                    Some(why) => done.tell(Err(why)),
                    None => self.step_down(replica, to, done),
                },
            },
            Call::Propose { proposal, done } => return self.propose(replica, proposal, done),
        }
        None
    }

    /// Leads to this replica's end, after which it joins again. Who leads next is the next in the order of the view.
    fn step_down<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &R, to: Option<NodeId>, done: Done<()>)
    where
        M: 'a,
    {
        let next = replica.current_view().and_then(|view| view.with_roles(MemberRoles::REPLICA).nth(1)).map(|member| member.id.node);
        match (next, to) {
            (None, _) => done.tell(Err(CallError::NoSuccessor)),
            (Some(next), Some(to)) if next != to => done.tell(Err(CallError::NoSuccessor)),
            _ => self.stepping_down = Some((to, done)),
        }
    }

    fn propose<'a, R: Replica<Machine = Lent<'a, M>>>(
        &mut self,
        replica: &mut R,
        proposal: Proposal,
        done: Done<Vec<u8>>,
    ) -> Option<Call<M>>
    where
        M: 'a,
    {
        let sessions = replica.machine().0.sessions();
        let (entry, known) = match &proposal {
            Proposal::Plain { command } => (Entry::Plain { command }, Ok(None)),
            Proposal::InSession { session, seq, confirmed, command } => {
                let known = match sessions.turn(*session, *seq) {
                    Ok(Turn::Done(reply)) => Ok(Some(reply.to_vec())),
                    Ok(Turn::New) => sessions.has_room(*session, *confirmed).map(|()| None),
                    Err(error) => Err(error),
                };
                (Entry::InSession { session: *session, seq: *seq, confirmed: *confirmed, command }, known)
            }
            Proposal::Open => (Entry::Open { evicted: sessions.to_evict() }, Ok(None)),
            Proposal::Close { session } => (Entry::Close { session: *session }, Ok(None)),
        };
        // What this replica knows of a session may be out of date if it leads no more: such answers, too, wait until it is known that it does.
        let answer = match known {
            Ok(Some(reply)) => Answer::Known(done, reply),
            Err(error) => Answer::Proposal(done, Err(error)),
            Ok(None) => {
                self.entry.clear();
                entry.encode(&mut self.entry);
                let allowed = replica.max_proposal_bytes();
                // What is too long at any time is not kept waiting for room.
                if self.entry.len() <= allowed && !replica.has_room(self.entry.len()) {
                    self.full = true;
                    return Some(Call::Propose { proposal, done });
                }
                // Proposed first, executed then: what the engine refuses has had no effect.
                match replica.propose(&self.entry) {
                    Ok(index) => {
                        let done = done.executed();
                        let mut reply = Vec::new();
                        replica.machine_mut().0.execute(index, entry, &mut reply);
                        Answer::Proposal(done, Ok(reply))
                    }
                    Err(ProposeError::TooLong { bytes, allowed }) => {
                        let beside = self.entry.len() - proposal.bytes();
                        let (bytes, limit) = (bytes.saturating_sub(beside), allowed.saturating_sub(beside));
                        done.tell(Err(CallError::TooLong { bytes, limit }));
                        return None;
                    }
                    Err(ProposeError::NotLeading) => {
                        done.tell(Err(CallError::NotLeader { leader: leader_of(replica) }));
                        return None;
                    }
                }
            }
        };
        self.waiting.push_back((replica.ticket(), answer));
        None
    }
}

const _: () = assert!(MAX_COMMAND_BYTES + HEADER_BYTES < 4 << 20, "the engine's backlog takes the longest command");

/// What a node runs: its program's calls, for as long as this run lasts.
pub(super) struct Serving<'a, M>(pub &'a mut Served<M>);

impl<'a, M: StateMachine> Application for Serving<'a, M> {
    type Machine = Lent<'a, M>;

    fn poll<R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) -> usize {
        let served = &mut *self.0;
        served.observe(replica);
        // Who reads the counters of this node comes as a client, and asks for nothing.
        while replica.client_event().is_some() {}
        served.shared.inbox.hush();
        let mut taken = 0;
        while taken < CALLS_A_TURN
            && let Ok(call) = served.aside.try_recv()
        {
            served.shared.inbox.took();
            let refused = served.take(replica, call);
            invariant!(refused.is_none(), "what waits for nothing is not kept waiting");
            taken += 1;
        }
        while taken < CALLS_A_TURN && served.stepping_down.is_none() {
            let call = match served.held.take() {
                Some(call) => call,
                None => match served.calls.try_recv() {
                    Ok(call) => {
                        served.shared.inbox.took();
                        call
                    }
                    Err(_) => break,
                },
            };
            served.full = false;
            served.held = served.take(replica, call);
            if served.held.is_some() {
                break;
            }
            taken += 1;
        }
        served.shared.inbox.note_full(served.full);
        taken
    }

    fn release<R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) -> usize {
        let served = &mut *self.0;
        // Standing and reign may have changed since the calls were taken.
        served.observe(replica);
        let mut sent = 0;
        while served.waiting.front().is_some_and(|(ticket, _)| *ticket <= replica.released()) {
            let Some((_, answer)) = served.waiting.pop_front() else { break };
            match answer {
                Answer::Proposal(done, result) => done.tell(result),
                Answer::Known(done, reply) => done.tell(Ok(reply)),
                Answer::Read(job) => job.end(Ok(())),
            }
            sent += 1;
        }
        sent
    }

    /// Calls that have not been taken are left for the next life, or are told that there is none.
    fn end_life<R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) {
        while replica.client_event().is_some() {}
        self.release(replica);
    }

    fn wants_end(&self) -> bool {
        self.0.stepping_down.is_some()
    }

    fn sleep(&mut self, at_most_ns: u64) -> bool {
        self.0.shared.inbox.sleep(at_most_ns)
    }

    fn is_heard_in_memory(&self) -> bool {
        false
    }
}

/// What has come of handing leadership over, whoever it was to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// To whom the engine was to hand it.
    HandedOver,
    /// It was not begun, as there is nobody any more to take over.
    SuccessorLost,
    /// Another one leads now, for whatever reason.
    Leads(ProcessId),
    /// It did not go to the successor, but to this replica again, or to nobody.
    Lost(Option<ProcessId>),
}

impl Verdict {
    /// `None`: it cannot be told yet.
    fn of(state: HandOverState, leads: bool) -> Option<Verdict> {
        Some(match state {
            HandOverState::UnderWay => return None,
            HandOverState::Done => Verdict::HandedOver,
            HandOverState::SuccessorLost => Verdict::SuccessorLost,
            HandOverState::Overtaken(Some(leader)) if !leads => Verdict::Leads(leader),
            HandOverState::Overtaken(leader) => Verdict::Lost(leader),
        })
    }

    /// The same for the node `me`, which has left to hand leadership over, and is back or on its way.
    fn after_leaving(standing: Standing, me: NodeId, in_view: impl FnOnce() -> Option<ProcessId>) -> Option<Verdict> {
        match standing {
            Standing::Primary => Some(Verdict::Lost(in_view())),
            // A view in which its own earlier life leads is an old one.
            _ => primary_of(standing).filter(|primary| primary.node != me).map(Verdict::Leads),
        }
    }

    /// What somebody hears who wanted leadership to go to this node, or to anybody.
    fn told(self, to: Option<NodeId>, named: impl Fn(ProcessId) -> Leader) -> Result<(), CallError> {
        match self {
            Verdict::HandedOver => Ok(()),
            Verdict::Leads(leader) if to.is_none_or(|node| node == leader.node) => Ok(()),
            Verdict::SuccessorLost => Err(CallError::NoSuccessor),
            Verdict::Leads(leader) => Err(CallError::NotHandedOver { leader: Some(named(leader)) }),
            Verdict::Lost(leader) => Err(CallError::NotHandedOver { leader: leader.map(named) }),
        }
    }
}

fn primary_of(standing: Standing) -> Option<ProcessId> {
    match standing {
        Standing::Backup { primary } => primary,
        Standing::Primary | Standing::Excluded => None,
    }
}

fn leader_named<R: Replica>(replica: &R, process: ProcessId) -> Leader {
    Leader { node: process.node.0, address: replica.address_of(process).map(str::to_owned) }
}

/// Who leads, as far as this replica knows.
fn leader_of<R: Replica>(replica: &R) -> Option<Leader> {
    primary_of(replica.standing()).map(|primary| leader_named(replica, primary))
}

/// The node's counters and events, as it has last published them.
fn reading<R: Replica>(replica: &mut R) -> Result<Box<Reading>, CallError> {
    let region = replica.fabric().memory(LocalRegion::Public(COUNTERS)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(region.len() * 8);
    for word in region {
        bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    fence(Ordering::Acquire);
    Reading::parse(&bytes).map(Box::new).map_err(CallError::Metrics)
}

/// Why leadership is not handed over; `None`: by an engine whose leader hands over by leaving, which is to be done.
fn refused(error: HandOverError, leader: impl FnOnce() -> Option<Leader>) -> Option<CallError> {
    match error {
        HandOverError::ByLeaving => None,
        HandOverError::NotLeading => Some(CallError::NotLeader { leader: leader() }),
        HandOverError::NoSuccessor => Some(CallError::NoSuccessor),
        HandOverError::UnderWay => Some(CallError::HandingOver),
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::Incarnation;

    use super::*;

    fn process(node: u16) -> ProcessId {
        ProcessId { node: NodeId(node), incarnation: Incarnation(7) }
    }

    fn leader(node: u16) -> Leader {
        Leader { node, address: None }
    }

    /// What is told to somebody who wanted leadership to go to node 2, and to somebody who wanted it to go to anybody; `None`: nothing yet.
    fn told(verdict: Option<Verdict>) -> Option<[Result<(), CallError>; 2]> {
        let named = |id: ProcessId| leader(id.node.0);
        verdict.map(|verdict| [Some(NodeId(2)), None].map(|to| verdict.told(to, named)))
    }

    fn elsewhere(node: Option<u16>) -> Result<(), CallError> {
        Err(CallError::NotHandedOver { leader: node.map(leader) })
    }

    #[test]
    fn what_has_been_executed_is_not_said_to_have_had_no_effect_when_the_lead_is_lost() {
        let told = |answer: fn(Done<Vec<u8>>) -> Answer<()>| {
            let (tell, told) = std::sync::mpsc::channel();
            answer(Done::new(move |result| tell.send(result).expect("it is waited for"))).give_up(Some(leader(1)));
            told.try_recv().expect("told at once")
        };
        assert_eq!(told(|done| Answer::Proposal(done, Ok(Vec::new()))), Err(CallError::OutcomeUnknown));
        assert_eq!(told(|done| Answer::Known(done, Vec::new())), Err(CallError::OutcomeUnknown));
        let confirmed = |done| Answer::Proposal(done, Err(CallError::Confirmed { session: 3, seq: 5 }));
        assert_eq!(told(confirmed), Err(CallError::OutcomeUnknown));
        let elsewhere = Err(CallError::NotLeader { leader: Some(leader(1)) });
        assert_eq!(told(|done| Answer::Proposal(done, Err(CallError::SessionUnknown { session: 3 }))), elsewhere);
    }

    #[test]
    fn leadership_is_said_to_be_handed_over_only_when_it_went_where_it_was_to_go() {
        let of = |state, leads| told(Verdict::of(state, leads));
        assert_eq!(of(HandOverState::UnderWay, true), None);
        assert_eq!(of(HandOverState::UnderWay, false), None, "that this replica leads no more says nothing");
        assert_eq!(of(HandOverState::Done, false), Some([Ok(()), Ok(())]));
        assert_eq!(of(HandOverState::SuccessorLost, true), Some([Err(CallError::NoSuccessor), Err(CallError::NoSuccessor)]));
        assert_eq!(of(HandOverState::Overtaken(Some(process(1))), false), Some([elsewhere(Some(1)), Ok(())]));
        assert_eq!(of(HandOverState::Overtaken(Some(process(0))), true), Some([elsewhere(Some(0)), elsewhere(Some(0))]), "it leads again");
        assert_eq!(of(HandOverState::Overtaken(None), false), Some([elsewhere(None), elsewhere(None)]));
    }

    #[test]
    fn that_leadership_goes_to_another_one_already_is_not_said_to_be_the_lack_of_a_successor() {
        let of = |error| refused(error, || Some(leader(1)));
        assert_eq!(of(HandOverError::UnderWay), Some(CallError::HandingOver));
        assert_eq!(of(HandOverError::NoSuccessor), Some(CallError::NoSuccessor));
        assert_eq!(of(HandOverError::NotLeading), Some(CallError::NotLeader { leader: Some(leader(1)) }));
        assert_eq!(of(HandOverError::ByLeaving), None);
    }

    #[test]
    fn who_hands_over_by_leaving_tells_what_came_of_it_when_it_is_back() {
        let of = |standing, in_view| told(Verdict::after_leaving(standing, NodeId(0), || in_view));
        assert_eq!(of(Standing::Excluded, None), None);
        assert_eq!(of(Standing::Backup { primary: None }, None), None);
        assert_eq!(of(Standing::Backup { primary: Some(process(0)) }, None), None, "of a view before it left");
        assert_eq!(of(Standing::Backup { primary: Some(process(2)) }, None), Some([Ok(()), Ok(())]));
        assert_eq!(of(Standing::Backup { primary: Some(process(1)) }, None), Some([elsewhere(Some(1)), Ok(())]));
        assert_eq!(of(Standing::Primary, Some(process(0))), Some([elsewhere(Some(0)), elsewhere(Some(0))]), "all others were lost");
    }
}

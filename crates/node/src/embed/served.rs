//! Calls on the replica's thread, whichever way they came in: how they are executed, what they wait for, and how they are answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::{Fabric as _, LocalRegion, NodeId, invariant};
use martlet_protocol::basics::layout::COUNTERS;
use martlet_protocol::membership::{Roles as MemberRoles, View};
use martlet_protocol::replica::{Execution, HandOverState, ProposeError, Replica, Service, Standing, Ticket};

use super::SessionCommand;
use super::call::{Aside, Call, Calls, DoneHere, Inbox, Proposal, ReadJob, Task};
use super::entry::{Entry, HEADER_BYTES, MAX_COMMAND_BYTES};
use super::error::{CallError, Leader};
use super::machine::{Lent, Replicated, StateMachine, Through};
use super::role::{Role, Roles};
use super::sessions::Turn as SessionTurn;
use super::verdict::{Verdict, leader_named, leader_of, primary_of, refused};
use crate::counters::Reading;

/// The most calls of other threads taken in one turn. After that many, what they have posted goes out and the clock is read.
const CALLS_A_TURN: usize = 128;

const _: () = assert!(MAX_COMMAND_BYTES + HEADER_BYTES < 4 << 20, "the engine's backlog takes the longest command");

/// What a program's threads share with the replica's.
pub(super) struct Shared<M> {
    pub inbox: Inbox<M>,
    pub roles: Roles,
}

/// A call that waits for its ticket.
struct Waiting<M> {
    ticket: Ticket,
    /// Whether the ticket is one by quorum.
    by_quorum: bool,
    answer: Answer<M>,
}

impl<M> Waiting<M> {
    fn is_released<R: Replica>(&self, replica: &R) -> bool {
        self.ticket <= if self.by_quorum { replica.released_by_quorum() } else { replica.released() }
    }
}

/// What a caller is told when its ticket comes.
enum Answer<M> {
    Proposal(DoneHere<Vec<u8>>, Result<Vec<u8>, CallError>),
    /// The answer to a command that is executed on commit: the machine holds the reply by then. If it names a session, later commands of that session wait for
    /// it.
    Applied(DoneHere<Vec<u8>>, Option<u64>),
    /// The reply to a session's command that had been executed before.
    Known(DoneHere<Vec<u8>>, Vec<u8>),
    Read(Box<dyn ReadJob<M>>),
    /// The answer to a read behind such commands, where the leader executes on commit: the machine holds what the read saw by then.
    Looked,
}

impl<M: StateMachine> Answer<M> {
    /// Answers the call, since its ticket has come.
    fn tell(self, machine: &mut Replicated<M>) {
        match self {
            Answer::Proposal(done, result) => done.tell(result),
            Answer::Applied(done, _) => {
                let reply = match machine.take_through() {
                    Some(Through::Reply(reply)) => Some(reply),
                    Some(Through::Looked(_)) | None => None,
                };
                invariant!(reply.is_some(), "a reply was released before its command was applied");
                done.tell(Ok(reply.unwrap_or_default()));
            }
            Answer::Looked => {
                let job = match machine.take_through() {
                    Some(Through::Looked(job)) => Some(job),
                    Some(Through::Reply(_)) | None => None,
                };
                invariant!(job.is_some(), "a read was released before the commands that it follows were applied");
                job.into_iter().for_each(|job| job.end(Ok(())));
            }
            Answer::Known(done, reply) => done.tell(Ok(reply)),
            Answer::Read(job) => job.end(Ok(())),
        }
    }
}

impl<M> Answer<M> {
    /// Answers the call when the reign ends before its ticket has come. `leader` is the next leader, if it is known. A call without effect may be made again
    /// there.
    fn give_up(self, leader: Option<Leader>) {
        let elsewhere = CallError::NotLeader { leader };
        match self {
            // The command was executed, here or under an earlier leader.
            Answer::Proposal(done, Ok(_) | Err(CallError::Confirmed { .. } | CallError::ReplyTooLong { .. }))
            | Answer::Applied(done, _)
            | Answer::Known(done, _) => {
                done.tell(Err(CallError::OutcomeUnknown));
            }
            Answer::Proposal(done, Err(_)) => done.tell(Err(elsewhere)),
            Answer::Read(job) => job.end(Err(elsewhere)),
            // The machine holds this read, and gives it up itself.
            Answer::Looked => {}
        }
    }
}

/// The state that outlives a run of the node. It stays on the replica's thread.
pub(super) struct Served<M> {
    pub shared: Arc<Shared<M>>,
    calls: Receiver<Call<M>>,
    /// Calls that need no answer from the log, and do not wait with the others.
    aside: Receiver<Aside<M>>,
    /// Calls that were taken and not executed so far, because there is no room in the log or among those that wait for their tickets, or because no calls are
    /// executed just now. At most one of them has come from another thread.
    behind: VecDeque<Task<M>>,
    /// Whether some of them wait for room in the log.
    full: bool,
    /// Whether no more calls are executed in this life. Calls that come now are for the next life, if there is one.
    pub closed: bool,
    /// Whether a callback has been called, after which the program may want a turn.
    pub has_told: bool,
    /// Calls that were executed, but are not yet known to be replicated, or to have been executed by the leader. In the order of their tickets.
    waiting: VecDeque<Waiting<M>>,
    /// Callbacks of calls that are refused, or for which there is nothing to do. They wait until no call is being taken, because a callback may need what its
    /// caller is borrowing at that moment.
    answered: Vec<Box<dyn FnOnce()>>,
    /// The node and the callback of a call that has this node hand its leadership over by leaving.
    stepping_down: Option<(Option<NodeId>, DoneHere<()>)>,
    /// The same after this node has left. It is on its way back, and will then learn which replica leads.
    left: Option<(Option<NodeId>, DoneHere<()>)>,
    /// The callers that have asked for a handover where the engine performs it itself.
    handing_over: Vec<(Option<NodeId>, DoneHere<()>)>,
    node: NodeId,
    /// The program's description of its service.
    pub service: Option<Service>,
    /// What the program was last told: its standing, its token, and whether it was told its leader's address.
    told: Option<(Standing, Option<u64>, bool)>,
    reign: u64,
    entry: Vec<u8>,
}

impl<M: StateMachine> Served<M> {
    pub fn new(node: NodeId, shared: Arc<Shared<M>>, calls: Calls<M>) -> Self {
        Served {
            shared,
            calls: calls.in_order,
            aside: calls.aside,
            behind: VecDeque::new(),
            full: false,
            closed: false,
            has_told: false,
            waiting: VecDeque::with_capacity(CALLS_A_TURN),
            answered: Vec::new(),
            stepping_down: None,
            left: None,
            handing_over: Vec::new(),
            node,
            service: None,
            told: None,
            reign: 0,
            entry: Vec::new(),
        }
    }

    /// Whether leadership is being handed over by leaving.
    pub fn is_stepping_down(&self) -> bool {
        self.stepping_down.is_some()
    }

    /// Ends a run of the node, after which nothing that waits will be released. Returns whether the run is over because leadership was to be handed over. The
    /// caller that asked for that is told the outcome in the next run. If there is none, it is told so when this value is dropped.
    pub fn end_of_run(&mut self) -> bool {
        self.give_up_waiting(None);
        self.tell_answered();
        // No successor has been named so far, and this replica will name none.
        self.handing_over.drain(..).for_each(|(_, done)| done.tell(Err(CallError::ShuttingDown)));
        (self.told, self.reign) = (None, 0);
        self.left = self.stepping_down.take();
        self.left.is_some()
    }

    fn give_up_waiting(&mut self, leader: Option<Leader>) {
        self.has_told |= !self.waiting.is_empty();
        self.waiting.drain(..).for_each(|waiting| waiting.answer.give_up(leader.clone()));
    }

    fn tell_answered(&mut self) {
        self.has_told |= !self.answered.is_empty();
        self.answered.drain(..).for_each(|tell| tell());
    }

    /// Reports a change of role, and gives up the calls that wait when the reign is over.
    pub fn observe<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R)
    where
        M: 'a,
    {
        if self.reign != replica.reign() {
            self.reign = replica.reign();
            let leader = leader_of(replica);
            self.give_up_waiting(leader.clone());
            for job in replica.machine_mut().0.give_up_calls() {
                job.end(Err(CallError::NotLeader { leader: leader.clone() }));
            }
        }
        let standing = replica.standing();
        if !self.handing_over.is_empty() {
            // A life of the node that knows nothing of the handover will not complete it.
            let state = replica.hand_over_state().unwrap_or(HandOverState::Overtaken(primary_of(standing)));
            if let Some(verdict) = Verdict::of(state, standing == Standing::Primary) {
                self.has_told = true;
                self.handing_over.drain(..).for_each(|(to, done)| done.tell(verdict.told(to, |id| leader_named(replica, id))));
            }
        }
        let in_view = || replica.current_view().and_then(View::primary).map(|primary| primary.id);
        if let Some((to, done)) = self.left.take() {
            match Verdict::after_leaving(standing, self.node, in_view) {
                Some(verdict) => {
                    self.has_told = true;
                    done.tell(verdict.told(to, |id| leader_named(replica, id)));
                }
                None => self.left = Some((to, done)),
            }
        }
        // A leader that has lost the lead and regained it since the last look has another token.
        // A follower may learn which replica leads before it knows a view with that replica's address.
        let placed = primary_of(standing).is_some_and(|primary| replica.address_of(primary).is_some());
        let told = (standing, replica.fencing_token(), placed);
        if self.told != Some(told) {
            self.told = Some(told);
            let role = match standing {
                Standing::Primary => Role::Leader,
                Standing::Backup { .. } => Role::Follower { leader: leader_of(replica) },
                Standing::Excluded => Role::Rejoining,
            };
            self.shared.roles.tell(role, replica.view().0, told.1);
        }
    }

    /// Takes the calls that have waited, and then those that other threads have put. Returns how many.
    pub fn take_calls<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) -> usize
    where
        M: 'a,
    {
        self.shared.inbox.bell.hush();
        let mut taken = 0;
        while taken < CALLS_A_TURN
            && let Ok(aside) = self.aside.try_recv()
        {
            self.shared.inbox.took();
            match aside {
                Aside::Metrics(done) => done.tell(reading(replica).map(Box::new)),
                Aside::Look(mut job) => {
                    job.look(replica.machine().0.inner());
                    job.end(Ok(()));
                }
            }
            taken += 1;
        }
        while taken < CALLS_A_TURN && self.stepping_down.is_none() {
            let task = match self.behind.pop_front() {
                Some(task) => task,
                None => match self.calls.try_recv() {
                    Ok(call) => {
                        self.shared.inbox.took();
                        call.into()
                    }
                    Err(_) => break,
                },
            };
            if let Some(task) = self.take(replica, task) {
                self.behind.push_front(task);
                break;
            }
            taken += 1;
        }
        taken
    }

    /// Takes a call that the program made on this thread. Returns whether it was taken; if not, it waits or is refused.
    pub fn ask<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R, task: Task<M>) -> bool
    where
        M: 'a,
    {
        let left = if self.has_to_wait() { Some(task) } else { self.take(replica, task) };
        left.map(|task| self.keep(task)).is_none()
    }

    /// The same for a proposal, whose command is copied only if it has to wait.
    pub fn ask_to_propose<'a, R: Replica<Machine = Lent<'a, M>>>(
        &mut self,
        replica: &mut R,
        proposal: Proposal<'_>,
        done: DoneHere<Vec<u8>>,
    ) -> bool
    where
        M: 'a,
    {
        if let Some(why) = proposal.too_long() {
            self.tell_soon(|| done.tell(Err(why)));
            return false;
        }
        let left = if self.has_to_wait() { Some(done) } else { self.take_proposal(replica, proposal, done) };
        left.map(|done| self.keep(Task::Propose { proposal: proposal.into(), done })).is_none()
    }

    /// Whether a command of this many bytes would be executed at once, as far as this replica knows.
    pub fn has_room<'a, R: Replica<Machine = Lent<'a, M>>>(&self, replica: &R, bytes: usize) -> bool
    where
        M: 'a,
    {
        !self.has_to_wait() && self.has_place() && replica.has_room(bytes.saturating_add(HEADER_BYTES))
    }

    /// Notes whether the log is full, as of the end of a turn, for what callers on other threads are told.
    pub fn note_full(&self) {
        self.shared.inbox.note_full(self.full);
    }

    fn has_to_wait(&self) -> bool {
        self.closed || self.stepping_down.is_some() || !self.behind.is_empty()
    }

    /// Without a bound, a leader that has lost its quorum and does not know it yet would take reads until memory runs out.
    fn has_place(&self) -> bool {
        self.waiting.len() < self.shared.inbox.limit()
    }

    fn keep(&mut self, task: Task<M>) {
        let waiting = self.behind.len();
        if waiting < self.shared.inbox.limit() {
            return self.behind.push_back(task);
        }
        let why = CallError::too_many(self.full, waiting);
        self.tell_soon(|| task.refuse(why));
    }

    fn tell_soon(&mut self, tell: impl FnOnce() + 'static) {
        self.answered.push(Box::new(tell));
    }

    /// Takes a call. Hands it back when there is no room for it now, in the log or among those that wait for their tickets.
    fn take<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R, task: Task<M>) -> Option<Task<M>>
    where
        M: 'a,
    {
        match task {
            Task::Propose { proposal, done } => {
                let done = self.take_proposal(replica, proposal.get(), done)?;
                return Some(Task::Propose { proposal, done });
            }
            task if replica.standing() != Standing::Primary => {
                let leader = leader_of(replica);
                self.tell_soon(|| task.refuse(CallError::NotLeader { leader }));
            }
            task if !self.has_place() => return Some(task),
            Task::Read { job, by_quorum } => {
                let answer = match replica.machine_mut().0.await_look(job) {
                    None => Answer::Looked,
                    Some(mut job) => {
                        job.look(replica.machine().0.inner());
                        Answer::Read(job)
                    }
                };
                let ticket = if by_quorum { replica.ticket_by_quorum() } else { replica.ticket() };
                self.waiting.push_back(Waiting { ticket, by_quorum, answer });
            }
            // This replica leads already, and goes on leading, unless it is handing leadership over.
            Task::HandOver { to: Some(to), done } if to == self.node => {
                let answer = if self.handing_over.is_empty() { Ok(()) } else { Err(CallError::HandingOver) };
                self.tell_soon(|| done.tell(answer));
            }
            Task::HandOver { to, done } => match replica.hand_over(to) {
                Ok(()) => self.handing_over.push((to, done)),
                Err(error) => match refused(error, || leader_of(replica)) {
                    Some(why) => self.tell_soon(|| done.tell(Err(why))),
                    None => self.step_down(replica, to, done),
                },
            },
        }
        None
    }

    /// Whether a command of this session has been proposed and not been answered.
    fn is_under_way(&self, session: u64) -> bool {
        self.waiting.iter().any(|waiting| matches!(waiting.answer, Answer::Applied(_, Some(of)) if of == session))
    }

    /// Hands leadership over by leaving: this replica leads until its end, and then joins again. The next leader is the next replica in the order of the view.
    fn step_down<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &R, to: Option<NodeId>, done: DoneHere<()>)
    where
        M: 'a,
    {
        let next = replica.current_view().and_then(|view| view.with_roles(MemberRoles::REPLICA).nth(1)).map(|member| member.id.node);
        match (next, to) {
            (None, _) => self.tell_soon(|| done.tell(Err(CallError::NoSuccessor))),
            (Some(next), Some(to)) if next != to => self.tell_soon(|| done.tell(Err(CallError::NoSuccessor))),
            _ => self.stepping_down = Some((to, done)),
        }
    }

    /// Executes a proposal and proposes it. Hands its callback back when there is no room for it now.
    fn take_proposal<'a, R: Replica<Machine = Lent<'a, M>>>(
        &mut self,
        replica: &mut R,
        proposal: Proposal<'_>,
        done: DoneHere<Vec<u8>>,
    ) -> Option<DoneHere<Vec<u8>>>
    where
        M: 'a,
    {
        self.full = false;
        if replica.standing() != Standing::Primary {
            let leader = leader_of(replica);
            self.tell_soon(|| done.tell(Err(CallError::NotLeader { leader })));
            return None;
        }
        let on_commit = replica.execution() == Execution::Committed;
        // Whether a session's command is new follows from which of its commands have been executed. With execution on commit, the previous one has to be
        // finished first.
        if !self.has_place() || (on_commit && proposal.session().is_some_and(|session| self.is_under_way(session))) {
            return Some(done);
        }
        let sessions = replica.machine().0.sessions();
        let (entry, known) = match proposal {
            Proposal::Plain { command } => (Entry::Plain { command }, Ok(None)),
            Proposal::InSession(SessionCommand { session, seq, confirmed, command }) => {
                let known = match sessions.turn(session, seq) {
                    Ok(SessionTurn::Done(reply)) => Ok(Some(reply.to_vec())),
                    Ok(SessionTurn::New) => sessions.has_room(session, confirmed).map(|()| None),
                    Err(error) => Err(error),
                };
                (Entry::InSession { session, seq, confirmed, command }, known)
            }
            Proposal::Open => (Entry::Open { evicted: sessions.to_evict() }, Ok(None)),
            Proposal::Close { session } => (Entry::Close { session }, Ok(None)),
        };
        // If this replica no longer leads, what it knows of a session may be out of date. So these answers, too, wait until it is known that it does lead.
        let answer = match known {
            Ok(Some(reply)) => Answer::Known(done, reply),
            Err(error) => Answer::Proposal(done, Err(error)),
            Ok(None) => {
                self.entry.clear();
                entry.encode(&mut self.entry);
                let allowed = replica.max_proposal_bytes();
                // A command that is too long at any time is not kept waiting for room: the engine refuses it below.
                if self.entry.len() <= allowed && !replica.has_room(self.entry.len()) {
                    self.full = true;
                    return Some(done);
                }
                // Proposed first and executed then, so that a command that the engine refuses has had no effect.
                match replica.propose(&self.entry) {
                    Ok(index) => {
                        let done = done.executed();
                        if on_commit {
                            replica.machine_mut().0.await_reply(index);
                            Answer::Applied(done, proposal.session())
                        } else {
                            let mut reply = Vec::new();
                            replica.machine_mut().0.execute(index, entry, &mut reply);
                            Answer::Proposal(done, Ok(reply))
                        }
                    }
                    Err(ProposeError::TooLong { bytes, allowed }) => {
                        let beside = self.entry.len() - proposal.bytes();
                        let (bytes, limit) = (bytes.saturating_sub(beside), allowed.saturating_sub(beside));
                        self.tell_soon(move || done.tell(Err(CallError::TooLong { bytes, limit })));
                        return None;
                    }
                    Err(ProposeError::NotLeading) => {
                        let leader = leader_of(replica);
                        self.tell_soon(|| done.tell(Err(CallError::NotLeader { leader })));
                        return None;
                    }
                }
            }
        };
        self.waiting.push_back(Waiting { ticket: replica.ticket(), by_quorum: false, answer });
        None
    }

    /// Answers the calls that may be answered now. Returns how many.
    pub fn answer<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) -> usize
    where
        M: 'a,
    {
        self.tell_answered();
        let mut sent = 0;
        // In order: what was executed after a read by quorum waits with it.
        while self.waiting.front().is_some_and(|waiting| waiting.is_released(replica)) {
            let Some(Waiting { answer, .. }) = self.waiting.pop_front() else { break };
            answer.tell(replica.machine_mut().0);
            sent += 1;
        }
        self.has_told |= sent > 0;
        sent
    }
}

/// The node's counters and events, as it last published them.
pub(super) fn reading<R: Replica>(replica: &mut R) -> Result<Reading, CallError> {
    let region = replica.fabric().memory(LocalRegion::Public(COUNTERS)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(region.len() * 8);
    for word in region {
        bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    fence(Ordering::Acquire);
    Reading::parse(&bytes).map_err(CallError::Metrics)
}

#[cfg(test)]
mod tests {
    use martlet_fabric::Incarnation;
    use martlet_fabric::Pulse;
    use martlet_fabric::shm::ShmFabric;
    use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
    use martlet_protocol::replica::{ClientEvent, UnreadablePart};

    use super::*;

    fn leader(node: u16) -> Leader {
        Leader { node, address: None }
    }

    #[test]
    fn what_has_been_executed_is_not_said_to_have_had_no_effect_when_the_lead_is_lost() {
        let told = |answer: fn(DoneHere<Vec<u8>>) -> Answer<()>| {
            let (tell, told) = std::sync::mpsc::channel();
            answer(DoneHere::new_here(move |result| tell.send(result).expect("it is waited for"))).give_up(Some(leader(1)));
            told.try_recv().expect("told at once")
        };
        assert_eq!(told(|done| Answer::Proposal(done, Ok(Vec::new()))), Err(CallError::OutcomeUnknown));
        assert_eq!(told(|done| Answer::Known(done, Vec::new())), Err(CallError::OutcomeUnknown));
        assert_eq!(told(|done| Answer::Applied(done, None)), Err(CallError::OutcomeUnknown), "it may be committed yet");
        let confirmed = |done| Answer::Proposal(done, Err(CallError::Confirmed { session: 3, seq: 5 }));
        assert_eq!(told(confirmed), Err(CallError::OutcomeUnknown));
        let elsewhere = Err(CallError::NotLeader { leader: Some(leader(1)) });
        assert_eq!(told(|done| Answer::Proposal(done, Err(CallError::SessionUnknown { session: 3 }))), elsewhere);
    }

    struct Nothing;

    impl StateMachine for Nothing {
        fn apply(&mut self, _: LogIndex, _: &[u8], _: &mut Vec<u8>) {}
        fn snapshot(&self, _: &mut Vec<u8>) {}
        fn restore(&mut self, _: &[u8]) -> Result<(), UnreadablePart> {
            Ok(())
        }
        fn clear(&mut self) {}
    }

    /// Follows node 0, whose address a view may give.
    struct Follows {
        address: Option<&'static str>,
        machine: Lent<'static, Nothing>,
        pulse: Pulse,
    }

    impl Replica for Follows {
        type Fabric = ShmFabric;
        type Machine = Lent<'static, Nothing>;

        fn now(&self) -> Time {
            Time(0)
        }
        fn standing(&self) -> Standing {
            Standing::Backup { primary: Some(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }) }
        }
        fn view(&self) -> ViewNumber {
            ViewNumber(1)
        }
        fn address_of(&self, _: ProcessId) -> Option<&str> {
            self.address
        }
        fn reign(&self) -> u64 {
            0
        }
        fn machine(&self) -> &Self::Machine {
            &self.machine
        }
        fn pulse(&self) -> &Pulse {
            &self.pulse
        }
        fn shows_committed(&self) -> bool {
            true
        }
        fn machine_mut(&mut self) -> &mut Self::Machine {
            &mut self.machine
        }
        fn has_room(&self, _: usize) -> bool {
            true
        }
        fn propose(&mut self, _: &[u8]) -> Result<LogIndex, ProposeError> {
            Err(ProposeError::NotLeading)
        }
        fn ticket(&self) -> Ticket {
            Ticket(1)
        }
        fn released(&self) -> Ticket {
            Ticket(0)
        }
        fn ticket_by_quorum(&mut self) -> Ticket {
            Ticket(1)
        }
        fn released_by_quorum(&self) -> Ticket {
            Ticket(0)
        }
        fn fabric(&mut self) -> &mut ShmFabric {
            unreachable!("nothing is asked of the fabric here")
        }
        fn client_event(&mut self) -> Option<ClientEvent> {
            None
        }
    }

    #[test]
    fn a_follower_that_hears_later_where_its_leader_is_says_so() {
        let (inbox, calls) = Inbox::new(1, true).expect("descriptors");
        let shared = Arc::new(Shared { inbox, roles: Roles::new() });
        let other = std::thread::spawn(|| std::thread::current().id()).join().expect("it ends");
        let roles = shared.roles.follow(other);
        let mut served = Served::new(NodeId(1), shared, calls);
        let machine = Lent(Box::leak(Box::new(Replicated::new(Nothing))));
        let mut replica = Follows { address: None, machine, pulse: Pulse::default() };
        let told = |served: &mut Served<Nothing>, replica: &mut Follows| {
            served.observe(replica);
            std::iter::from_fn(|| roles.try_next()).last().map(|change| change.role)
        };
        let follows = |address: Option<&str>| Role::Follower { leader: Some(Leader { node: 0, address: address.map(str::to_owned) }) };
        assert_eq!(told(&mut served, &mut replica), Some(follows(None)));
        replica.address = Some("10.0.0.1:7000");
        assert_eq!(told(&mut served, &mut replica), Some(follows(replica.address)), "its view has come");
        assert_eq!(told(&mut served, &mut replica), None, "that is no news");
    }
}

//! The application that a node runs for the program that embeds it: it takes other threads' calls, and gives the program its own turn where it has one on this
//! thread.

use std::cell::OnceCell;
use std::marker::PhantomData;

use martlet_protocol::basics::Time;
use martlet_protocol::replica::{Application, Replica, Service, Standing};

use super::call::{DoneHere, Proposal, Task};
use super::direct::{Body, Here, Inside, Turn};
use super::error::CallError;
use super::machine::{Lent, StateMachine};
use super::served::{Served, reading};
use crate::counters::Reading;

/// A program's own turn on the replica's thread.
pub(super) struct Program<'a, M: StateMachine> {
    pub body: &'a mut Body<'a, M>,
    /// Set before the first turn.
    pub handle: &'a OnceCell<super::Replica<M>>,
}

impl<M: StateMachine> Program<'_, M> {
    /// Gives the program its turn. Returns how many calls it made, and what the turn came to.
    fn turn<'a, R: Replica<Machine = Lent<'a, M>>>(&mut self, served: &mut Served<M>, replica: &mut R) -> (usize, Turn)
    where
        M: 'a,
    {
        let Some(handle) = self.handle.get() else { return (0, Turn::Idle) };
        let mut inside = On { served, replica, asked: 0, machine: PhantomData };
        let turn = (self.body)(&mut Here::new(&mut inside, handle));
        (inside.asked, turn)
    }
}

/// What a node runs, for the length of one run.
pub(super) struct Serving<'a, M: StateMachine> {
    served: &'a mut Served<M>,
    program: Option<Program<'a, M>>,
    /// Whether the program has had its turn in the node's present turn.
    had_turn: bool,
    /// When the program wants its next turn at the latest: at once if it has been told something since its last one.
    due: Time,
}

impl<'a, M: StateMachine> Serving<'a, M> {
    pub fn new(served: &'a mut Served<M>, program: Option<Program<'a, M>>) -> Self {
        Serving { served, program, had_turn: false, due: Time(u64::MAX) }
    }
}

impl<'a, M: StateMachine> Application for Serving<'a, M> {
    type Machine = Lent<'a, M>;

    const ON_COMMIT: bool = true;

    fn poll<R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) -> usize {
        let served = &mut *self.served;
        served.closed = false;
        served.observe(replica);
        // A process that reads this node's counters connects as a client, and makes no requests.
        while replica.client_event().is_some() {}
        let mut taken = served.take_calls(replica);
        if let Some(program) = &mut self.program {
            self.had_turn = true;
            // In this turn the program sees everything that it has been told so far.
            served.has_told = false;
            let (asked, turn) = program.turn(served, replica);
            taken += asked;
            self.due = match turn {
                Turn::Worked => {
                    taken = taken.max(1);
                    Time(u64::MAX)
                }
                Turn::Idle => Time(u64::MAX),
                Turn::IdleFor(time) => replica.now().after(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            };
        }
        served.note_full();
        taken
    }

    fn release<R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) -> usize {
        let served = &mut *self.served;
        // Standing and reign may have changed since the calls were taken.
        served.observe(replica);
        let sent = served.answer(replica);
        if !std::mem::take(&mut self.had_turn)
            && let Some(program) = &mut self.program
        {
            // This life takes no more calls. The program gets a turn to pass on what has just been answered.
            served.closed = true;
            program.turn(served, replica);
        }
        if served.has_told {
            self.due = Time(0);
        }
        sent
    }

    /// Leaves calls that have not been taken for the next life. If there is none, they are told so.
    fn end_life<R: Replica<Machine = Lent<'a, M>>>(&mut self, replica: &mut R) {
        while replica.client_event().is_some() {}
        self.had_turn = false;
        self.release(replica);
    }

    fn service(&self) -> Option<Service> {
        self.served.service
    }

    fn wants_end(&self) -> bool {
        self.served.is_stepping_down()
    }

    fn sleep(&mut self, at_most_ns: u64) -> bool {
        self.served.shared.inbox.bell.sleep(at_most_ns)
    }

    fn deadline(&self) -> Time {
        self.due
    }

    fn is_heard_in_memory(&self) -> bool {
        false
    }
}

/// A replica in the middle of a turn, and what it serves.
struct On<'t, 'a, M, R> {
    served: &'t mut Served<M>,
    replica: &'t mut R,
    /// How many of the program's calls were taken.
    asked: usize,
    machine: PhantomData<&'t Lent<'a, M>>,
}

impl<'a, M: StateMachine, R: Replica<Machine = Lent<'a, M>>> Inside<M> for On<'_, 'a, M, R> {
    fn propose(&mut self, proposal: Proposal<'_>, done: DoneHere<Vec<u8>>) {
        self.asked += usize::from(self.served.ask_to_propose(self.replica, proposal, done));
    }

    fn ask(&mut self, task: Task<M>) {
        self.asked += usize::from(self.served.ask(self.replica, task));
    }

    fn machine(&self) -> &M {
        self.replica.machine().0.inner()
    }

    fn reading(&mut self) -> Result<Reading, CallError> {
        reading(self.replica)
    }

    fn leads(&self) -> bool {
        self.replica.standing() == Standing::Primary
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.served.has_room(self.replica, bytes)
    }

    fn now(&self) -> Time {
        self.replica.now()
    }

    fn show(&mut self, service: Service) {
        self.served.service = Some(service);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use martlet_fabric::shm::ShmFabric;
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_protocol::basics::{LogIndex, ProcessId};
    use martlet_protocol::engine::PrimaryBackup;
    use martlet_protocol::replica::UnreadablePart;

    use super::super::call::Inbox;
    use super::super::machine::Replicated;
    use super::super::role::Roles;
    use super::super::served::Shared;
    use super::*;
    use crate::acting::ActingThreads;
    use crate::agent::{Agent, tests::alone};
    use crate::runner::Started;
    use crate::sched::{Class, Placement};
    use crate::stop::Stop;

    /// Counts its commands, and replies with how many there have been.
    #[derive(Default)]
    struct Count(u8);

    impl StateMachine for Count {
        fn apply(&mut self, _: LogIndex, _: &[u8], reply: &mut Vec<u8>) {
            self.0 += 1;
            reply.push(self.0);
        }
        fn snapshot(&self, out: &mut Vec<u8>) {
            out.push(self.0);
        }
        fn restore(&mut self, _: &[u8]) -> Result<(), UnreadablePart> {
            Err(UnreadablePart)
        }
        fn clear(&mut self) {
            self.0 = 0;
        }
    }

    type OfCount<'a> = Agent<ShmFabric, PrimaryBackup, Serving<'a, Count>>;

    /// Runs a node that leads and has this program, for as long as `then` takes.
    fn leads(body: &mut Body<'_, Count>, then: impl FnOnce(&mut OfCount<'_>)) {
        let (inbox, calls) = Inbox::new(10, true).expect("descriptors");
        let shared = Arc::new(Shared { inbox, roles: Roles::new() });
        let handle = OnceCell::new();
        let placement = Placement { core: None, class: Class::Normal, refused: None };
        let process = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
        let inner = super::super::Inner {
            shared: Arc::clone(&shared),
            stop: Stop::new().expect("a descriptor"),
            started: Started { process, placement, skew_ns: 0, threads: ActingThreads::default() },
            thread: Mutex::new(None),
            runs_on: std::thread::current().id(),
            timeout: None,
            spin: Duration::ZERO,
        };
        assert!(handle.set(super::super::Replica(Arc::new(inner))).is_ok());
        let mut machine = Replicated::new(Count::default());
        let mut served = Served::new(NodeId(0), shared, calls);
        let serving = Serving::new(&mut served, Some(Program { body, handle: &handle }));
        let (mut agent, _other) = alone(serving, Lent(&mut machine));
        for _ in 0..8 {
            agent.turn();
        }
        then(&mut agent);
    }

    #[test]
    fn a_proposal_is_executed_at_once_and_answered_in_the_turn_in_which_it_was_made() {
        let (asks, heard) = (Cell::new(false), Rc::new(RefCell::new(Vec::new())));
        let mut body = |here: &mut Here<'_, Count>| {
            if asks.replace(false) {
                let answers = Rc::clone(&heard);
                here.propose_with(b"", move |reply| answers.borrow_mut().push(reply));
                assert_eq!(here.machine().0, 1);
                assert!(heard.borrow().is_empty(), "nothing is told within a call");
            }
            Turn::Idle
        };
        leads(&mut body, |agent| {
            assert!(!agent.turn().worked);
            asks.set(true);
            assert!(agent.turn().worked, "calls are work, whatever the program says");
            assert_eq!(heard.take(), [Ok(vec![1])]);
        });
    }

    #[test]
    fn reads_by_quorum_are_answered_in_the_turn_in_which_they_were_made_and_share_a_round() {
        let (asks, heard) = (Cell::new(false), Rc::new(RefCell::new(Vec::new())));
        let mut body = |here: &mut Here<'_, Count>| {
            if asks.replace(false) {
                here.propose_with(b"", |reply| drop(reply.expect("it leads")));
                for _ in 0..3 {
                    let answers = Rc::clone(&heard);
                    here.read_by_quorum_with(|count| count.0, move |seen| answers.borrow_mut().push(seen));
                }
                assert!(heard.borrow().is_empty(), "nothing is told within a call");
            }
            Turn::Idle
        };
        leads(&mut body, |agent| {
            let rounds = |agent: &OfCount<'_>| agent.host.member.core.renewals_by_majority();
            // The node's clock stands still, so its lease needs no renewal.
            let before = rounds(agent);
            agent.turn();
            assert_eq!(rounds(agent), before, "nobody waits");
            asks.set(true);
            agent.turn();
            assert_eq!(heard.take(), [Ok(1), Ok(1), Ok(1)]);
            assert_eq!(rounds(agent), before + 1);
            assert!(!agent.turn().worked, "nothing is left to do");
        });
    }

    #[test]
    fn one_that_takes_no_more_calls_has_turns_all_the_same_and_keeps_what_it_is_asked_for() {
        let (turns, heard) = (Cell::new(0), Rc::new(RefCell::new(Vec::new())));
        let asks = Cell::new(false);
        let mut body = |here: &mut Here<'_, Count>| {
            turns.set(turns.get() + 1);
            if asks.replace(false) {
                for _ in 0..2 {
                    let answers = Rc::clone(&heard);
                    here.propose_with(b"", move |reply| answers.borrow_mut().push(reply));
                }
                assert!(!here.has_room(0));
            }
            Turn::Idle
        };
        leads(&mut body, |agent| {
            agent.cycle.serving = false;
            for expected in 1..4 {
                turns.set(0);
                asks.set(expected == 2);
                agent.turn();
                assert_eq!(turns.get(), 1, "one each");
            }
            assert!(heard.borrow().is_empty());
            assert_eq!(agent.host.machine.0.inner().0, 0, "nothing is executed");
            // As in the node's next life.
            agent.cycle.serving = true;
            agent.turn();
            assert_eq!(heard.take(), [Ok(vec![1]), Ok(vec![2])]);
        });
    }

    #[test]
    fn one_that_has_been_told_something_has_a_turn_before_the_thread_sleeps() {
        let asks = Cell::new(false);
        let mut body = |here: &mut Here<'_, Count>| {
            if asks.replace(false) {
                here.propose_with(&vec![0; super::super::MAX_COMMAND_BYTES + 1], |refused| drop(refused.expect_err("it is too long")));
            }
            Turn::Idle
        };
        leads(&mut body, |agent| {
            assert!(agent.deadline() > agent.turn().now);
            asks.set(true);
            let turn = agent.turn();
            assert!(!turn.worked, "nothing was taken");
            assert!(agent.deadline() <= turn.now);
            let turn = agent.turn();
            assert!(agent.deadline() > turn.now, "it has had its turn");
        });
    }

    #[test]
    fn a_program_says_whether_the_thread_may_rest_and_for_how_long() {
        let says = Cell::new(Turn::Idle);
        let mut body = |_: &mut Here<'_, Count>| says.get();
        leads(&mut body, |agent| {
            let turn = agent.turn();
            let (idle, rests_until) = (turn.worked, agent.deadline());
            assert!(!idle);
            says.set(Turn::IdleFor(Duration::from_nanos(7)));
            let turn = agent.turn();
            assert!(!turn.worked);
            assert_eq!(agent.deadline(), turn.now.after(7));
            assert!(agent.deadline() < rests_until);
            says.set(Turn::Worked);
            assert!(agent.turn().worked);
            assert!(agent.deadline() > turn.now.after(7), "it has said anew");
        });
    }
}

//! A program's own loop on its replica's thread: *direct* threading (Mu, section 7.1).
//!
//! The program lends a thread and a function, and has a turn whenever the replica has one. What it proposes there is executed there, without a queue, a wake-up
//! or another core in between. Calls of other threads come in as they do where the replica has a thread of its own.

use std::cell::OnceCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use martlet_fabric::NodeId;
use martlet_protocol::basics::Time;
use martlet_protocol::replica::Service;

use super::app::Program;
use super::bell::Waker;
use super::builder::Prepared;
use super::call::{DoneHere, FromHere, Look, Proposal, Task};
use super::error::{CallError, StopError};
use super::machine::StateMachine;
use super::role::RoleChange;
use super::{Replica, SessionCommand, session_of};
use crate::counters::Reading;
use crate::runner::Ended;
use crate::stop::Stop;

/// What a program's turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It had something to do, and may have more at once: the replica does not rest.
    Worked,
    /// It had nothing to do, and waits for a call's answer, for a descriptor that is [watched](Direct::watch), or to be [woken](Waker::wake).
    Idle,
    /// The same, but it wants another turn in so much time at the latest.
    IdleFor(Duration),
}

/// What a program lends the replica's thread.
pub(super) type Body<'a, M> = dyn FnMut(&mut Here<'_, M>) -> Turn + 'a;

/// A replica that is yet to run, on the thread that calls [`Direct::run`]. [`Builder::direct`](super::Builder::direct) makes it.
pub struct Direct<M>(pub(super) Prepared<M>);

impl<M> std::fmt::Debug for Direct<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

impl<M: StateMachine> Direct<M> {
    /// Has the program's turn come soon whenever this descriptor is readable: a socket, or an epoll instance with all of them. A thread that sleeps is woken, and
    /// does not sleep for as long as it is readable: so a turn reads until there is nothing more, or takes out of its epoll instance what it leaves unread. It is
    /// watched until all its copies are closed.
    ///
    /// # Errors
    /// What the system says: that it has no memory left, or that this is a descriptor for which nobody can wait, such as a file's.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.0.shared.inbox.bell.watch(fd.as_fd())
    }

    /// By which any other thread has the program's turn come soon.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.0.shared.inbox.bell))
    }

    /// The handle by which the replica's end can be asked for, from anywhere, signal handlers included: before it runs, too.
    pub fn stop_handle(&self) -> Stop {
        self.0.stop.clone()
    }

    /// Runs the replica on this thread until it is asked to end, and the program with it: `turn` is called in each turn of the replica's, whatever that is just
    /// then, from when it is on the fabric on. It must not block; while it runs, everything waits that waits for this replica.
    ///
    /// The thread is placed as [`Builder::threads`](super::Builder::threads) says, and stays so.
    ///
    /// When the end has been asked for, and whenever the replica is to begin anew, `turn` is still called after answers have come, so that they can be passed on;
    /// what it asks for then is answered in the next life, or is told that there is none ([`CallError::ShuttingDown`]). All callbacks have been called when
    /// this returns.
    ///
    /// # Errors
    /// [`StopError::Run`] when the replica did not start, or could not go on, and [`StopError::Panicked`] when the state machine, a callback or `turn` has
    /// panicked.
    pub fn run(self, mut turn: impl FnMut(&mut Here<'_, M>) -> Turn) -> Result<Ended, StopError> {
        let handle = Rc::new(OnceCell::new());
        let (its, on_start) = (Rc::clone(&handle), self.0.handle_maker());
        let started = Box::new(move |started: &_| {
            // It is called once.
            let _ = its.set(on_start(started));
        });
        self.0.serve(started, Some(Program { body: &mut turn, handle: &handle }))
    }
}

/// A replica in the middle of a turn, whichever engine and fabric it has.
pub(super) trait Inside<M> {
    fn propose(&mut self, proposal: Proposal<'_>, done: DoneHere<Vec<u8>>);
    fn ask(&mut self, task: Task<M>);
    fn machine(&self) -> &M;
    fn reading(&mut self) -> Result<Reading, CallError>;
    fn leads(&self) -> bool;
    fn has_room(&self, bytes: usize) -> bool;
    fn now(&self) -> Time;
    fn show(&mut self, service: Service);
}

/// The replica, on its own thread, during a turn of the program's.
///
/// Its calls promise what those of [`Replica`] do, and their callbacks hear the same. They are called on this thread, each exactly once and never within a call:
/// a refusal comes at the end of this turn, an answer when what it depends on is replicated, mostly in this turn too. Commands are executed in the order of the
/// calls.
pub struct Here<'t, M> {
    inside: &'t mut (dyn Inside<M> + 't),
    handle: &'t Replica<M>,
}

impl<M> std::fmt::Debug for Here<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Here").field("leads", &self.inside.leads()).finish_non_exhaustive()
    }
}

impl<'t, M: StateMachine> Here<'t, M> {
    pub(super) fn new(inside: &'t mut (dyn Inside<M> + 't), handle: &'t Replica<M>) -> Here<'t, M> {
        Here { inside, handle }
    }

    /// Proposes a command. It is executed before this returns, unless it has to wait or is refused; `done` is called with its reply when that is replicated.
    pub fn propose_with(&mut self, command: &[u8], done: impl FnOnce(Result<Vec<u8>, CallError>) + 'static) {
        self.inside.propose(Proposal::Plain { command }, DoneHere::new_here(done));
    }

    /// Proposes a session's command, as [`Replica::propose_once`] does.
    pub fn propose_once_with(&mut self, command: SessionCommand<'_>, done: impl FnOnce(Result<Vec<u8>, CallError>) + 'static) {
        self.inside.propose(Proposal::InSession(command), DoneHere::new_here(done));
    }

    /// Opens a session, as [`Replica::open_session`] does.
    pub fn open_session_with(&mut self, done: impl FnOnce(Result<u64, CallError>) + 'static) {
        let done = DoneHere::new_here(|result: Result<Vec<u8>, _>| done(result.map(|reply| session_of(&reply))));
        self.inside.propose(Proposal::Open, done);
    }

    /// Forgets a session, as [`Replica::close_session`] does.
    pub fn close_session_with(&mut self, session: u64, done: impl FnOnce(Result<(), CallError>) + 'static) {
        let done = DoneHere::new_here(|result: Result<Vec<u8>, _>| done(result.map(drop)));
        self.inside.propose(Proposal::Close { session }, done);
    }

    /// Reads the state, linearizably, as [`Replica::read`] does: `look` runs before this returns, unless it has to wait or is refused, and `done` is called with
    /// what it saw when nobody else can have led then.
    pub fn read_with<R: 'static>(&mut self, look: impl FnOnce(&M) -> R + 'static, done: impl FnOnce(Result<R, CallError>) + 'static) {
        self.look(look, done, false);
    }

    /// Reads the state, linearizably and by a quorum, as [`Replica::read_by_quorum`] does: `look` runs before this returns, unless it has to wait or is refused,
    /// and `done` is called with what it saw when a majority that was asked after that knew of nobody else who could lead: over shared memory mostly in
    /// this turn.
    pub fn read_by_quorum_with<R: 'static>(
        &mut self,
        look: impl FnOnce(&M) -> R + 'static,
        done: impl FnOnce(Result<R, CallError>) + 'static,
    ) {
        self.look(look, done, true);
    }

    fn look<R: 'static>(
        &mut self,
        look: impl FnOnce(&M) -> R + 'static,
        done: impl FnOnce(Result<R, CallError>) + 'static,
        by_quorum: bool,
    ) {
        let job = Box::new(Look::<_, R, FromHere<R>>::new(look, DoneHere::new_here(done)));
        self.inside.ask(Task::Read { job, by_quorum });
    }

    /// Hands leadership over, as [`Replica::transfer_leadership`] and [`Replica::transfer_leadership_to`] do: to that node, or to whoever comes next.
    pub fn transfer_leadership_with(&mut self, to: Option<u16>, done: impl FnOnce(Result<(), CallError>) + 'static) {
        self.inside.ask(Task::HandOver { to: to.map(NodeId), done: DoneHere::new_here(done) });
    }

    /// This replica's state as it is, whoever leads, as [`Replica::read_stale`] shows it.
    pub fn machine(&self) -> &M {
        self.inside.machine()
    }

    /// The replica's counters, and the events of its failovers, as it has last published them.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn metrics(&mut self) -> Result<Reading, CallError> {
        self.inside.reading()
    }

    /// Tells of the service that this replica leads: it stands among the counters from when they are next published on.
    pub fn show(&mut self, service: Service) {
        self.inside.show(service);
    }

    /// Whether this replica leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.inside.leads()
    }

    /// What the replica is just now.
    pub fn role(&self) -> RoleChange {
        self.handle.role()
    }

    /// Whether a command of so many bytes would be executed at once. Otherwise it waits, of which [`Builder::max_waiting`](super::Builder::max_waiting)
    /// calls may: a program that then leaves its clients' requests unread needs no answer to who asks too much.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.inside.has_room(bytes)
    }

    /// Watches another descriptor, as [`Direct::watch`] does: of a connection that has just come, say.
    ///
    /// # Errors
    /// As there.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.handle.0.shared.inbox.bell.watch(fd.as_fd())
    }

    /// When this turn began, on the host's clock since its start, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.inside.now().0
    }

    /// The replica as other threads see it. Its calls come to this one by a queue; those that wait are refused here ([`CallError::OnReplicaThread`]). To drop it
    /// ends nothing, and nobody can wait for the end by it but by [`Replica::roles`]: who called [`Direct::run`] does.
    pub fn replica(&self) -> Replica<M> {
        self.handle.clone()
    }
}

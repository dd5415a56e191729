//! A program's own loop on its replica's thread: *direct* threading (Mu, section 7.1).
//!
//! The program lends the replica a thread and a function, and has a turn whenever the replica has one. What it proposes in its turn is executed there, without
//! a queue, a wake-up or another core in between. Calls of other threads come in as they do where the replica has a thread of its own.

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

/// The outcome of a program's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The program had something to do, and may have more at once: the replica does not rest.
    Worked,
    /// The program had nothing to do. It waits for a call's answer, for a descriptor that is [watched](Direct::watch), or to be [woken](Waker::wake).
    Idle,
    /// The same, but the program wants another turn after this time at the latest.
    IdleFor(Duration),
}

/// The function that a program lends to the replica's thread.
pub(super) type Body<'a, M> = dyn FnMut(&mut Here<'_, M>) -> Turn + 'a;

/// A replica that does not run yet. It will run on the thread that calls [`Direct::run`]. [`Builder::direct`](super::Builder::direct) makes it.
pub struct Direct<M>(pub(super) Prepared<M>);

impl<M> std::fmt::Debug for Direct<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

impl<M: StateMachine> Direct<M> {
    /// Gives the program a turn soon whenever this descriptor is readable. It may be a socket, or an epoll instance that holds all the program's sockets. If
    /// the thread is asleep, it is woken, and it does not sleep for as long as the descriptor is readable. So a turn should read until nothing is left, or
    /// remove from its epoll instance what it leaves unread. The descriptor is watched until all its copies are closed.
    ///
    /// # Errors
    /// The system's error: it has no memory left, or this is a descriptor that cannot be waited for, such as a file's.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.0.shared.inbox.bell.watch(fd.as_fd())
    }

    /// A handle by which any other thread can give the program a turn soon.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.0.shared.inbox.bell))
    }

    /// A handle by which the replica's end can be asked for, from anywhere, signal handlers included, and even before the replica runs.
    pub fn stop_handle(&self) -> Stop {
        self.0.stop.clone()
    }

    /// Runs the replica, and the program with it, on this thread until it is asked to end. From the moment that the replica is on the fabric, `turn` is called
    /// in each of the replica's turns, whatever role it has then. `turn` must not block: while it runs, everything that depends on this replica waits.
    ///
    /// The thread is placed as [`Builder::threads`](super::Builder::threads) says, and stays so.
    ///
    /// When the end has been asked for, and whenever the replica is about to start over, `turn` is still called after answers have come, so that the program
    /// can pass them on. Calls that it makes then are answered in the replica's next life, or told that there is none ([`CallError::ShuttingDown`]). All
    /// callbacks have been called when this returns.
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

/// A replica in the middle of a turn, whichever engine and fabric it uses.
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

/// The replica, on its own thread, during a turn of the program.
///
/// Its calls promise what those of [`Replica`] do, and their callbacks are told the same. Callbacks run on this thread, each exactly once and never within a
/// call. A refusal comes at the end of this turn. An answer comes when what it depends on is replicated, mostly in this turn too. Commands are executed in the
/// order of the calls.
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

    /// Proposes a command. It is executed before this returns, unless it has to wait or is refused. `done` is called with its reply once the command is
    /// replicated.
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

    /// Reads the state, linearizably, as [`Replica::read`] does. `look` runs before this returns, unless the read has to wait or is refused. `done` is called
    /// with what `look` saw, once it is certain that no other replica can have led then.
    pub fn read_with<R: 'static>(&mut self, look: impl FnOnce(&M) -> R + 'static, done: impl FnOnce(Result<R, CallError>) + 'static) {
        self.look(look, done, false);
    }

    /// Reads the state, linearizably and by a quorum, as [`Replica::read_by_quorum`] does. `look` runs before this returns, unless the read has to wait or is
    /// refused. `done` is called with what `look` saw, once a majority that was asked afterwards knew of no other replica that could lead. Over shared memory
    /// that is mostly in this turn.
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

    /// Hands leadership over, as [`Replica::transfer_leadership`] and [`Replica::transfer_leadership_to`] do: to the given node, or to the next replica.
    pub fn transfer_leadership_with(&mut self, to: Option<u16>, done: impl FnOnce(Result<(), CallError>) + 'static) {
        self.inside.ask(Task::HandOver { to: to.map(NodeId), done: DoneHere::new_here(done) });
    }

    /// This replica's state as it is, whichever replica leads, as [`Replica::read_stale`] shows it.
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

    /// Describes the service that this replica leads. The description is among the counters from their next publication on.
    pub fn show(&mut self, service: Service) {
        self.inside.show(service);
    }

    /// Whether this replica leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.inside.leads()
    }

    /// What the replica's role is at the moment.
    pub fn role(&self) -> RoleChange {
        self.handle.role()
    }

    /// Whether a command of this many bytes would be executed at once. Otherwise it would wait, and no more calls may wait than
    /// [`Builder::max_waiting`](super::Builder::max_waiting) says. A program that stops reading its clients' requests while there is no room never has to turn
    /// a client away for asking too much.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.inside.has_room(bytes)
    }

    /// Watches another descriptor, as [`Direct::watch`] does: that of a new connection, for instance.
    ///
    /// # Errors
    /// As [`Direct::watch`].
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.handle.0.shared.inbox.bell.watch(fd.as_fd())
    }

    /// When this turn began: nanoseconds on the host's clock, which began when the host started.
    pub fn now_ns(&self) -> u64 {
        self.inside.now().0
    }

    /// The replica as other threads see it. Its calls come to this thread through a queue. On this thread its blocking calls are refused
    /// ([`CallError::OnReplicaThread`]). Dropping it ends nothing, and it cannot be used to wait for the end, except by [`Replica::roles`]: the caller of
    /// [`Direct::run`] does that.
    pub fn replica(&self) -> Replica<M> {
        self.handle.clone()
    }
}

//! Replication for a program's own state: the program supplies a [`StateMachine`], and starts a [`Replica`] of it in each of its processes.
//!
//! The state machine lives on one thread: the replica's own ([`Builder::start`]), or one that the program lends it and has its own turns on
//! ([`Builder::direct`]). Calls come to it from any thread and are answered, once what they depend on is replicated and this replica is known to lead, by a return
//! or by a callback on that thread. `docs/embedding.md` says what is promised.
//!
//! | module | what stands there |
//! |---|---|
//! | `machine` | the program's state machine, and what stands around it in the log |
//! | `plain` | a machine whose state is one value |
//! | `sessions` | what makes retries exactly-once |
//! | `entry` | what stands in an entry of the log |
//! | `call` | calls on their way to the replica's thread, and back |
//! | `bell` | what wakes that thread |
//! | `direct` | calls of a program that has its turns on that thread |
//! | `served` | the replica's side of calls, whichever way they come |
//! | `verdict` | who leads, and what has come of handing that over |
//! | `app` | what a node runs: the two ways in |
//! | `role`, `error` | what a replica is; what can go wrong |
//! | `builder` | how a replica is started |

mod app;
mod bell;
mod builder;
mod call;
mod direct;
mod entry;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod machine;
mod plain;
mod role;
#[cfg(feature = "fuzzing")]
pub(crate) mod samples;
mod served;
mod sessions;
mod verdict;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use self::call::{Aside, Call, Done, FromAnywhere, Look, Proposal, ReadJob, Wait};
use self::served::Shared;
use martlet_fabric::NodeId;

use crate::counters::Reading;
use crate::runner::{Ended, Started};
use crate::stop::Stop;

pub use self::bell::Waker;
pub use self::builder::Builder;
pub use self::direct::{Direct, Here, Turn};
pub use self::entry::MAX_COMMAND_BYTES;
pub use self::error::{CallError, Leader, StartError, StopError};
pub use self::machine::StateMachine;
pub use self::plain::{Apply, Plain, Value};
pub use self::role::{Role, RoleChange, RoleChanges};
pub use self::sessions::{MAX_KEPT_REPLY_BYTES, MAX_SESSIONS, MAX_UNCONFIRMED, MAX_UNCONFIRMED_BYTES};

/// A command of a session: it takes effect once, however often it is asked for, and of whichever leader.
///
/// The commands of a session are numbered from 1 on, and are executed in that order: a number out of turn is refused. So several may be under way
/// at once, and none overtakes another across a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCommand<'a> {
    /// Which session, as [`Replica::open_session`] returned it.
    pub session: u64,
    /// The command's number.
    pub seq: u64,
    /// The client has the replies to all commands of this session up to this number: they need not be kept for it any more.
    pub confirmed: u64,
    /// The command.
    pub command: &'a [u8],
}

/// A replica of a program's state. All clones are one; it ends when the last is dropped.
///
/// A process has one replica: it is the process's death that the others watch for. What else it changes of the
/// process is the program's choice: [`Builder::process_policy`].
pub struct Replica<M>(Arc<Inner<M>>);

impl<M> Clone for Replica<M> {
    fn clone(&self) -> Self {
        Replica(Arc::clone(&self.0))
    }
}

impl<M> std::fmt::Debug for Replica<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("started", &self.0.started).finish_non_exhaustive()
    }
}

struct Inner<M> {
    shared: Arc<Shared<M>>,
    stop: Stop,
    started: Started,
    /// `None` once somebody waits for it, and where its program lends it a thread.
    thread: Mutex<Option<JoinHandle<Result<Ended, StopError>>>>,
    /// Whose blocking calls would wait for themselves.
    runs_on: ThreadId,
    timeout: Option<Duration>,
    spin: Duration,
}

impl Replica<()> {
    /// Says how a replica is to be started.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl<M: StateMachine> Replica<M> {
    /// Proposes a command and waits for its reply, which comes when the command has taken effect and is replicated.
    ///
    /// # Errors
    /// See [`CallError`]. After [`CallError::OutcomeUnknown`] nobody can tell whether it took effect: where that matters, use a session.
    pub fn propose(&self, command: &[u8]) -> Result<Vec<u8>, CallError> {
        self.wait(|done| self.send(Proposal::Plain { command }, done), CallError::OutcomeUnknown)
    }

    /// Proposes a command. `done` is called exactly once with what came of it, on the replica's thread or, when it is refused at once, on this
    /// one. It must be quick, and make no blocking call of this replica.
    pub fn propose_with(&self, command: &[u8], done: impl FnOnce(Result<Vec<u8>, CallError>) + Send + 'static) {
        self.send(Proposal::Plain { command }, Done::new(done));
    }

    /// Opens a session, under whose name commands can be repeated without taking effect twice. Its name means the same at every replica. A
    /// session stays until it is closed, or [`MAX_SESSIONS`] others have been used since.
    ///
    /// # Errors
    /// As [`Replica::propose`]. A session whose name was not heard is forgotten like any other.
    pub fn open_session(&self) -> Result<u64, CallError> {
        let reply = self.wait(|done| self.send(Proposal::Open, done), CallError::OutcomeUnknown)?;
        Ok(session_of(&reply))
    }

    /// Opens a session and calls `done` with its name, as [`Replica::propose_with`] does.
    pub fn open_session_with(&self, done: impl FnOnce(Result<u64, CallError>) + Send + 'static) {
        self.send(Proposal::Open, Done::new(|result: Result<Vec<u8>, _>| done(result.map(|reply| session_of(&reply)))));
    }

    /// Forgets a session.
    ///
    /// # Errors
    /// As [`Replica::propose`]; a session that is not known is no error.
    pub fn close_session(&self, session: u64) -> Result<(), CallError> {
        self.wait(|done| self.send(Proposal::Close { session }, done), CallError::OutcomeUnknown).map(drop)
    }

    /// Forgets a session and calls `done` when it is forgotten, as [`Replica::propose_with`] does.
    pub fn close_session_with(&self, session: u64, done: impl FnOnce(Result<(), CallError>) + Send + 'static) {
        self.send(Proposal::Close { session }, Done::new(|result: Result<Vec<u8>, _>| done(result.map(drop))));
    }

    /// Proposes a session's command and waits for its reply: the same reply, however often it is asked for.
    ///
    /// # Errors
    /// See [`CallError`]. After [`CallError::OutcomeUnknown`] ask again, of whoever leads.
    pub fn propose_once(&self, command: SessionCommand<'_>) -> Result<Vec<u8>, CallError> {
        self.wait(|done| self.send(Proposal::InSession(command), done), CallError::OutcomeUnknown)
    }

    /// Proposes a session's command and calls `done` with its reply, as [`Replica::propose_with`] does.
    pub fn propose_once_with(&self, command: SessionCommand<'_>, done: impl FnOnce(Result<Vec<u8>, CallError>) + Send + 'static) {
        self.send(Proposal::InSession(command), Done::new(done));
    }

    /// Reads the state, linearizably: what is read was the state at a moment between call and return, with every command in it that had been
    /// answered before the call, and nothing in it that is lost later. The leader reads its own state, and what is checked after that says that nobody else
    /// can have led: with `primary-backup` the lease that it holds, which costs no message; with `mu` the permission of a majority, which costs a word
    /// written to each follower. `look` runs on the replica's thread, and must be quick.
    ///
    /// # Errors
    /// See [`CallError`]; no read leaves its outcome unknown.
    pub fn read<R: Send + 'static>(&self, look: impl FnOnce(&M) -> R + Send + 'static) -> Result<R, CallError> {
        self.wait(|done| self.put_read(job(look, done), false), CallError::TimedOut)
    }

    /// Reads the state, linearizably, and calls `done` with what was read, as [`Replica::propose_with`] does.
    pub fn read_with<R: Send + 'static>(
        &self,
        look: impl FnOnce(&M) -> R + Send + 'static,
        done: impl FnOnce(Result<R, CallError>) + Send + 'static,
    ) {
        self.put_read(job(look, Done::new(done)), false);
    }

    /// Reads the state, linearizably, for who trusts no clock: what [`Replica::read`] promises, but with `primary-backup` too it is a majority that says that nobody
    /// else can have led, and not the lease alone. When the read has been executed and all that it saw is replicated, the coordinators are asked whether the view
    /// still stands, and what was read is handed on when a majority has nothing for the next view (uKharon section 5, Algorithm 6, and appendix B). So a leader
    /// whose clock stood still while its host was suspended hands out nothing stale. With `mu`, whose reads go by a majority anyway, it is `read`.
    ///
    /// It costs a word read from each coordinator: over shared memory a load, over a network a round trip. All that wait share it, and it renews the lease. Replies
    /// come in the order of execution, so calls executed behind it wait with it.
    ///
    /// *Commands* need no such thing: a leader that has been succeeded acknowledges nothing that its successor has not found, whatever its clock says.
    ///
    /// # Errors
    /// See [`CallError`]; no read leaves its outcome unknown. While no majority of the coordinators can be reached it waits, until this replica hears that it
    /// leads no more ([`CallError::NotLeader`]) or the time allowed has passed ([`CallError::TimedOut`]).
    pub fn read_by_quorum<R: Send + 'static>(&self, look: impl FnOnce(&M) -> R + Send + 'static) -> Result<R, CallError> {
        self.wait(|done| self.put_read(job(look, done), true), CallError::TimedOut)
    }

    /// Reads the state, linearizably and by a quorum, and calls `done` with what was read, as [`Replica::propose_with`] does.
    pub fn read_by_quorum_with<R: Send + 'static>(
        &self,
        look: impl FnOnce(&M) -> R + Send + 'static,
        done: impl FnOnce(Result<R, CallError>) + Send + 'static,
    ) {
        self.put_read(job(look, Done::new(done)), true);
    }

    fn put_read(&self, job: Box<dyn ReadJob<M> + Send>, by_quorum: bool) {
        self.0.shared.inbox.put(Call::Read { job, by_quorum });
    }

    /// Asks the state machine's [`query`](StateMachine::query), linearizably.
    ///
    /// # Errors
    /// As [`Replica::read`].
    pub fn query(&self, query: &[u8]) -> Result<Vec<u8>, CallError> {
        self.read(asking(query))
    }

    /// Asks the state machine's [`query`](StateMachine::query), linearizably, as [`Replica::read_by_quorum`] reads.
    ///
    /// # Errors
    /// As there.
    pub fn query_by_quorum(&self, query: &[u8]) -> Result<Vec<u8>, CallError> {
        self.read_by_quorum(asking(query))
    }

    /// Reads this replica's state as it is, whoever leads: a follower's lags behind, a replica's that joins is in parts, and a leader's may
    /// hold what is not replicated yet and can be lost.
    ///
    /// # Errors
    /// When the replica is shutting down, too many calls wait, or the time allowed runs out.
    pub fn read_stale<R: Send + 'static>(&self, look: impl FnOnce(&M) -> R + Send + 'static) -> Result<R, CallError> {
        self.wait(|done| self.0.shared.inbox.put_aside(Aside::Look(job(look, done))), CallError::TimedOut)
    }

    /// The replica's counters, and the events of its failovers, as it has last published them: often while it works, and before it sleeps.
    ///
    /// # Errors
    /// As [`Replica::read_stale`].
    pub fn metrics(&self) -> Result<Reading, CallError> {
        self.wait(|done| self.0.shared.inbox.put_aside(Aside::Metrics(done)), CallError::TimedOut).map(|reading| *reading)
    }

    /// Hands leadership over to whoever comes next; returns when somebody else leads, or is named in what is committed as the one who does. Calls that come
    /// meanwhile wait, and are then told who leads ([`CallError::NotLeader`]); those that were taken before are answered.
    ///
    /// With the engine `mu` this replica follows from then on, and keeps its state. With `primary-backup` a leader stays until it leaves: so it answers what
    /// it has executed, leaves the cluster in order, and joins it again as a new incarnation, which is taught the state; it returns when that one knows who
    /// leads.
    ///
    /// # Errors
    /// [`CallError::NoSuccessor`] when nobody else holds the whole state; [`CallError::HandingOver`] when a call before this one asked for another
    /// successor, and it is on its way there; [`CallError::NotHandedOver`] when leadership was lost on the way, and did not
    /// go to another replica; [`CallError::ShuttingDown`] when this replica ended before; and as [`Replica::read`].
    pub fn transfer_leadership(&self) -> Result<(), CallError> {
        self.hand_over(None)
    }

    /// Hands leadership over to the replica of this node, as [`Replica::transfer_leadership`] does to whoever comes next; returns when that one leads, or is
    /// named. It leads for as long as it lives and belongs to the cluster, or until it hands leadership over itself. If this replica leads and is named, it leads on,
    /// and nothing changes.
    ///
    /// # Errors
    /// [`CallError::NotHandedOver`] when it went to somebody else, and as [`Replica::transfer_leadership`].
    /// [`CallError::NoSuccessor`] when that node does not hold the whole state, or, with `primary-backup`, is not the next in the order of joining: there the
    /// successor cannot be chosen.
    pub fn transfer_leadership_to(&self, node: u16) -> Result<(), CallError> {
        self.hand_over(Some(NodeId(node)))
    }

    fn hand_over(&self, to: Option<NodeId>) -> Result<(), CallError> {
        self.wait(|done| self.0.shared.inbox.put(Call::HandOver { to, done }), CallError::TimedOut)
    }

    /// What the replica is just now.
    pub fn role(&self) -> RoleChange {
        self.0.shared.roles.now()
    }

    /// The replica's changes of role, from the present one on.
    pub fn roles(&self) -> RoleChanges {
        self.0.shared.roles.follow(self.0.runs_on)
    }

    /// How the replica has been set up: which life of which node it is, and on which core its thread runs.
    pub fn started(&self) -> &Started {
        &self.0.started
    }

    /// The replica's own thread: the one on which the state machine is called, and callbacks.
    pub fn thread(&self) -> ThreadId {
        self.0.runs_on
    }

    /// Leaves the cluster in order, and waits for the end. What was executed is answered; what comes later is told that the replica is shutting
    /// down. On the replica's own thread, in a callback, it is refused and asks for nothing: [`Replica::stop_handle`] does there.
    ///
    /// # Errors
    /// See [`StopError`].
    pub fn stop(&self) -> Result<Ended, StopError> {
        if std::thread::current().id() == self.0.runs_on {
            return Err(StopError::Elsewhere);
        }
        self.0.stop.request_once();
        self.join()
    }

    /// Waits for the end, without asking for it.
    ///
    /// # Errors
    /// See [`StopError`].
    pub fn join(&self) -> Result<Ended, StopError> {
        self.0.join()
    }

    /// Asks for the replica's end without waiting for it, from anywhere, signal handlers included. A second request makes it end without leaving in order.
    pub fn request_stop(&self) {
        self.0.stop.request();
    }

    /// The handle by which the replica's end can be asked for, without waiting, from anywhere, signal handlers included.
    pub fn stop_handle(&self) -> Stop {
        self.0.stop.clone()
    }

    fn send(&self, proposal: Proposal<'_>, done: Done<Vec<u8>>) {
        if let Some(why) = proposal.too_long() {
            return done.tell(Err(why));
        }
        self.0.shared.inbox.put(Call::Propose { proposal: proposal.into(), done });
    }

    fn wait<T: Send + 'static>(&self, send: impl FnOnce(Done<T>), late: CallError) -> Result<T, CallError> {
        if std::thread::current().id() == self.0.runs_on {
            return Err(CallError::OnReplicaThread);
        }
        let (wait, done) = Wait::new();
        send(done);
        wait.wait(self.0.spin, self.0.timeout).unwrap_or(Err(late))
    }
}

fn job<M, R: Send + 'static>(look: impl FnOnce(&M) -> R + Send + 'static, done: Done<R>) -> Box<dyn ReadJob<M> + Send> {
    Box::new(Look::<_, R, FromAnywhere<R>>::new(look, done))
}

/// Asks the machine what it was asked, where it is.
fn asking<M: StateMachine>(query: &[u8]) -> impl FnOnce(&M) -> Vec<u8> + Send + 'static {
    let query = query.to_vec();
    move |machine| {
        let mut reply = Vec::new();
        machine.query(&query, &mut reply);
        reply
    }
}

/// The name of a session in the reply to the entry that opened it.
fn session_of(reply: &[u8]) -> u64 {
    reply.first_chunk().map_or(0, |name| u64::from_le_bytes(*name))
}

impl<M> Inner<M> {
    /// The replica has this thread for itself.
    fn adopt(&self, thread: JoinHandle<Result<Ended, StopError>>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    fn join(&self) -> Result<Ended, StopError> {
        if std::thread::current().id() == self.runs_on {
            return Err(StopError::Elsewhere);
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| Err(StopError::Panicked(builder::message(panic.as_ref())))),
            None => Err(StopError::Elsewhere),
        }
    }
}

impl<M> Drop for Inner<M> {
    fn drop(&mut self) {
        self.stop.request_once();
        match self.join() {
            // Its program has asked for the result already, or drops the last handle in a callback: then it ends by itself.
            Ok(_) | Err(StopError::Elsewhere) => {}
            Err(error) => tracing::error!(%error, "a replica did not end in order"),
        }
    }
}

//! Replication for a program's own state: the program supplies a [`StateMachine`], and starts a [`Replica`] of it in each of its processes.
//!
//! The state machine lives on one thread: the replica's own ([`Builder::start`]), or one that the program lends to the replica and on which the program has its
//! own turns ([`Builder::direct`]). Calls may be made from any thread. A call is answered once what it depends on is replicated and this replica is known to
//! lead. The answer is a return value, or a callback on the replica's thread. `docs/embedding.md` says what is promised.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | the program's state machine, and what surrounds it in the log |
//! | `plain` | a machine whose state is one value |
//! | `sessions` | what makes retries exactly-once |
//! | `entry` | the contents of a log entry |
//! | `call` | calls on their way to the replica's thread, and back |
//! | `bell` | what wakes that thread |
//! | `direct` | calls of a program that has turns on that thread |
//! | `served` | the replica's side of calls, whichever way they come |
//! | `verdict` | which replica leads, and the outcome of handing leadership over |
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

/// A command of a session. It takes effect once, however often it is asked for, and whichever replica leads.
///
/// The commands of a session are numbered from 1 on and are executed in that order; a number out of turn is refused. So several commands may be under way at
/// once, and none overtakes another across a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCommand<'a> {
    /// Which session, as [`Replica::open_session`] returned it.
    pub session: u64,
    /// The command's number.
    pub seq: u64,
    /// The client has the replies to all commands of this session up to this number, so they need not be kept for it any more.
    pub confirmed: u64,
    /// The command.
    pub command: &'a [u8],
}

/// A replica of a program's state. All clones are the same replica, which ends when the last clone is dropped.
///
/// A process has one replica, because it is the death of the process that the others watch for. The program chooses what else the replica may change of the
/// process: [`Builder::process_policy`].
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
    /// `None` once a thread waits for it, and always where the program lends the replica a thread.
    thread: Mutex<Option<JoinHandle<Result<Ended, StopError>>>>,
    /// The replica's own thread: a blocking call on it would wait for itself.
    runs_on: ThreadId,
    timeout: Option<Duration>,
    spin: Duration,
}

impl Replica<()> {
    /// Begins to say how a replica is started.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl<M: StateMachine> Replica<M> {
    /// Proposes a command and waits for its reply, which comes when the command has taken effect and is replicated.
    ///
    /// # Errors
    /// See [`CallError`]. After [`CallError::OutcomeUnknown`] there is no telling whether the command took effect: where that matters, use a session.
    pub fn propose(&self, command: &[u8]) -> Result<Vec<u8>, CallError> {
        self.wait(|done| self.send(Proposal::Plain { command }, done), CallError::OutcomeUnknown)
    }

    /// Proposes a command. `done` is called exactly once with the outcome: on the replica's thread, or, if the command is refused at once, on the calling
    /// thread. It must be quick, and must make no blocking call of this replica.
    pub fn propose_with(&self, command: &[u8], done: impl FnOnce(Result<Vec<u8>, CallError>) + Send + 'static) {
        self.send(Proposal::Plain { command }, Done::new(done));
    }

    /// Opens a session, under whose name commands can be repeated without taking effect twice. The name means the same at every replica. A session is kept
    /// until it is closed, or until [`MAX_SESSIONS`] others have been used since.
    ///
    /// # Errors
    /// As [`Replica::propose`]. If the call fails and a session was opened all the same, it is forgotten in time like any other.
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

    /// Proposes a session's command and waits for its reply. However often the command is asked for, the reply is the same.
    ///
    /// # Errors
    /// See [`CallError`]. After [`CallError::OutcomeUnknown`] ask again, whichever replica leads then.
    pub fn propose_once(&self, command: SessionCommand<'_>) -> Result<Vec<u8>, CallError> {
        self.wait(|done| self.send(Proposal::InSession(command), done), CallError::OutcomeUnknown)
    }

    /// Proposes a session's command and calls `done` with its reply, as [`Replica::propose_with`] does.
    pub fn propose_once_with(&self, command: SessionCommand<'_>, done: impl FnOnce(Result<Vec<u8>, CallError>) + Send + 'static) {
        self.send(Proposal::InSession(command), Done::new(done));
    }

    /// Reads the state, linearizably. What is read was the state at a moment between call and return: it includes every command that had been answered before
    /// the call, and nothing that is lost later. The leader reads its own state, and then checks that no other replica can have led. An engine that follows
    /// views (`primary-backup`, `hsuc`, `huc`) checks the lease that it holds, which costs no message. A majority engine (`mu`, `dare`, `apus`) makes sure of a
    /// majority, which costs one access to each follower's memory: with `mu`, a word written. `look` runs on the replica's thread, and must be quick.
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

    /// Reads the state, linearizably, without trusting any clock. It promises what [`Replica::read`] promises. But with an engine that follows views, too, it
    /// is a majority that says that no other replica can have led, and not the lease alone. When the read has been executed and all that it saw is replicated,
    /// the coordinators are asked whether the view is still the current one. What was read is handed on when a majority has nothing for the next view (uKharon
    /// section 5, Algorithm 6, and appendix B). So a leader whose clock stood still while its host was suspended returns nothing stale. With a majority engine,
    /// whose reads are confirmed by a majority anyway, this is `read`.
    ///
    /// It costs a word read from each coordinator: over shared memory a load, over a network a round trip. All waiting reads share it, and it renews the lease.
    /// Replies come in the order of execution, so calls executed after this read wait with it.
    ///
    /// *Commands* need no such call: a leader that has been succeeded acknowledges nothing that its successor has not found, whatever its clock says.
    ///
    /// # Errors
    /// See [`CallError`]; no read leaves its outcome unknown. While no majority of the coordinators can be reached, the call waits until this replica learns
    /// that it no longer leads ([`CallError::NotLeader`]), or the time allowed has passed ([`CallError::TimedOut`]).
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

    /// Asks the state machine's [`query`](StateMachine::query), linearizably and without trusting any clock, as [`Replica::read_by_quorum`] reads.
    ///
    /// # Errors
    /// As [`Replica::read_by_quorum`].
    pub fn query_by_quorum(&self, query: &[u8]) -> Result<Vec<u8>, CallError> {
        self.read_by_quorum(asking(query))
    }

    /// Reads this replica's state as it is, whichever replica leads. A follower's state lags behind, that of a replica that is joining is incomplete, and a
    /// leader's may include what is not replicated yet and can be lost.
    ///
    /// # Errors
    /// When the replica is shutting down, too many calls wait, or the time allowed runs out.
    pub fn read_stale<R: Send + 'static>(&self, look: impl FnOnce(&M) -> R + Send + 'static) -> Result<R, CallError> {
        self.wait(|done| self.0.shared.inbox.put_aside(Aside::Look(job(look, done))), CallError::TimedOut)
    }

    /// The replica's counters, and the events of its failovers, as it last published them. It publishes them often while it works, and before it sleeps.
    ///
    /// # Errors
    /// As [`Replica::read_stale`].
    pub fn metrics(&self) -> Result<Reading, CallError> {
        self.wait(|done| self.0.shared.inbox.put_aside(Aside::Metrics(done)), CallError::TimedOut).map(|reading| *reading)
    }

    /// Hands leadership over to the next replica. Returns when another replica leads, or when what is committed names another as the leader. Calls that come
    /// meanwhile wait, and are then told which replica leads ([`CallError::NotLeader`]). Calls that were taken before are answered.
    ///
    /// With a majority engine (`mu`, `dare`, `apus`) this replica becomes a follower and keeps its state. With an engine that follows views (`primary-backup`,
    /// `hsuc`, `huc`) a leader remains the leader until it leaves the cluster. So it answers what it has executed, leaves in order, and joins again as a new
    /// incarnation, which receives the state from another replica. The call returns when the new incarnation knows which replica leads.
    ///
    /// # Errors
    /// [`CallError::NoSuccessor`] when no other replica holds the whole state; [`CallError::HandingOver`] when an earlier call asked for another successor and
    /// that handover is under way; [`CallError::NotHandedOver`] when this replica lost leadership on the way, and it did not go to another replica;
    /// [`CallError::ShuttingDown`] when this replica ended before; and as [`Replica::read`].
    pub fn transfer_leadership(&self) -> Result<(), CallError> {
        self.hand_over(None)
    }

    /// Hands leadership over to the replica of the given node, as [`Replica::transfer_leadership`] does to the next one. Returns when that replica leads, or is
    /// named as the leader. It then leads for as long as it lives and belongs to the cluster, or until it hands leadership over itself. If this replica leads
    /// and is itself the one named, it goes on leading, and nothing changes.
    ///
    /// # Errors
    /// [`CallError::NoSuccessor`] when that node does not hold the whole state, or, with an engine that follows views, is not the next in the order of joining:
    /// there the successor cannot be chosen. [`CallError::NotHandedOver`] when leadership went to a third replica, and as [`Replica::transfer_leadership`].
    pub fn transfer_leadership_to(&self, node: u16) -> Result<(), CallError> {
        self.hand_over(Some(NodeId(node)))
    }

    fn hand_over(&self, to: Option<NodeId>) -> Result<(), CallError> {
        self.wait(|done| self.0.shared.inbox.put(Call::HandOver { to, done }), CallError::TimedOut)
    }

    /// What the replica's role is at the moment.
    pub fn role(&self) -> RoleChange {
        self.0.shared.roles.now()
    }

    /// The replica's changes of role, beginning with its present role.
    pub fn roles(&self) -> RoleChanges {
        self.0.shared.roles.follow(self.0.runs_on)
    }

    /// How the replica has been set up: which life of which node it is, and on which core its thread runs.
    pub fn started(&self) -> &Started {
        &self.0.started
    }

    /// The replica's own thread: the one on which the state machine and callbacks are called.
    pub fn thread(&self) -> ThreadId {
        self.0.runs_on
    }

    /// Leaves the cluster in order, and waits for the end. What was executed is answered; calls that come later are told that the replica is shutting down. On
    /// the replica's own thread, in a callback, this call is refused and has no effect: use [`Replica::stop_handle`] there.
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

    /// Waits for the replica's end, without asking for it.
    ///
    /// # Errors
    /// See [`StopError`].
    pub fn join(&self) -> Result<Ended, StopError> {
        self.0.join()
    }

    /// Asks for the replica's end without waiting for it. May be called from anywhere, signal handlers included. A second request makes it end without leaving
    /// in order.
    pub fn request_stop(&self) {
        self.0.stop.request();
    }

    /// A handle by which the replica's end can be asked for without waiting, from anywhere, signal handlers included.
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

/// Makes a read that puts this query to the machine.
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
    /// Keeps the thread that the replica runs on and has for itself.
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
            // The program has taken the result already, or it is dropping the last handle in a callback: then the replica ends by itself.
            Ok(_) | Err(StopError::Elsewhere) => {}
            Err(error) => tracing::error!(%error, "a replica has ended with an error"),
        }
    }
}

//! Calls on their way from a program's threads to the replica's, and their answers on the way back.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use martlet_fabric::NodeId;

use super::SessionCommand;
use super::bell::Bell;
use super::entry::MAX_COMMAND_BYTES;
use super::error::CallError;
use crate::counters::Reading;

/// A program's callback that may be called on any thread.
pub(super) type FromAnywhere<T> = dyn FnOnce(Result<T, CallError>) + Send;
/// A callback of a program that makes its calls on the replica's thread, and is called there.
pub(super) type FromHere<T> = dyn FnOnce(Result<T, CallError>);

/// The callback that is told the outcome of a call: exactly once, whatever happens.
pub(super) struct Done<T, F: ?Sized + FnOnce(Result<T, CallError>) = FromAnywhere<T>> {
    tell: Option<Box<F>>,
    /// Whether the call has taken effect here.
    executed: bool,
    answer: PhantomData<fn(T)>,
}

/// The same on the replica's thread, whichever kind of callback it is.
pub(super) type DoneHere<T> = Done<T, FromHere<T>>;

impl<T> Done<T> {
    pub fn new(tell: impl FnOnce(Result<T, CallError>) + Send + 'static) -> Done<T> {
        Done::of(Box::new(tell))
    }

    /// Converts it when the call has come to the replica's thread.
    pub fn here(mut self) -> DoneHere<T> {
        Done { tell: self.tell.take().map(|tell| tell as Box<FromHere<T>>), executed: self.executed, answer: PhantomData }
    }
}

impl<T> DoneHere<T> {
    pub fn new_here(tell: impl FnOnce(Result<T, CallError>) + 'static) -> DoneHere<T> {
        Done::of(Box::new(tell))
    }
}

impl<T, F: ?Sized + FnOnce(Result<T, CallError>)> Done<T, F> {
    fn of(tell: Box<F>) -> Done<T, F> {
        Done { tell: Some(tell), executed: false, answer: PhantomData }
    }

    /// Notes that the command has been executed: if the replica ends without an answer, the outcome is unknown.
    pub fn executed(mut self) -> Self {
        self.executed = true;
        self
    }

    pub fn tell(mut self, answer: Result<T, CallError>) {
        if let Some(tell) = self.tell.take() {
            tell(answer);
        }
    }
}

impl<T, F: ?Sized + FnOnce(Result<T, CallError>)> Drop for Done<T, F> {
    /// Dropped without an answer, since the replica has ended.
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(Err(if self.executed { CallError::OutcomeUnknown } else { CallError::ShuttingDown }));
        }
    }
}

/// What a program proposes.
#[derive(Clone, Copy)]
pub(super) enum Proposal<'a> {
    Plain { command: &'a [u8] },
    InSession(SessionCommand<'a>),
    Open,
    Close { session: u64 },
}

impl Proposal<'_> {
    /// The length of its command.
    pub fn bytes(&self) -> usize {
        match self {
            Proposal::Plain { command } | Proposal::InSession(SessionCommand { command, .. }) => command.len(),
            Proposal::Open | Proposal::Close { .. } => 0,
        }
    }

    /// The session that the proposal is about, if it is open already.
    pub fn session(&self) -> Option<u64> {
        match self {
            Proposal::InSession(SessionCommand { session, .. }) | Proposal::Close { session } => Some(*session),
            Proposal::Plain { .. } | Proposal::Open => None,
        }
    }

    /// The error if the command is longer than any engine accepts, whatever the size of its log.
    pub fn too_long(&self) -> Option<CallError> {
        let (bytes, limit) = (self.bytes(), MAX_COMMAND_BYTES);
        (bytes > limit).then_some(CallError::TooLong { bytes, limit })
    }
}

/// A proposal that waits, with a copy of its command.
pub(super) struct Kept {
    /// The proposal with an empty command.
    what: Proposal<'static>,
    command: Vec<u8>,
}

impl Kept {
    pub fn get(&self) -> Proposal<'_> {
        match self.what {
            Proposal::Plain { .. } => Proposal::Plain { command: &self.command },
            Proposal::InSession(of) => Proposal::InSession(SessionCommand { command: &self.command, ..of }),
            other => other,
        }
    }
}

impl From<Proposal<'_>> for Kept {
    fn from(proposal: Proposal<'_>) -> Kept {
        let (what, command) = match proposal {
            Proposal::Plain { command } => (Proposal::Plain { command: &[] }, command),
            Proposal::InSession(SessionCommand { session, seq, confirmed, command }) => {
                (Proposal::InSession(SessionCommand { session, seq, confirmed, command: &[] }), command)
            }
            Proposal::Open => (Proposal::Open, &[][..]),
            Proposal::Close { session } => (Proposal::Close { session }, &[][..]),
        };
        Kept { what, command: command.to_vec() }
    }
}

/// A read of the machine.
pub(super) trait ReadJob<M> {
    /// Reads.
    fn look(&mut self, machine: &M);
    /// Hands on what was read, or the error.
    fn end(self: Box<Self>, result: Result<(), CallError>);
}

/// A call from any thread. Calls are taken one after the other: one that waits for room keeps those behind it waiting.
pub(super) enum Call<M> {
    Propose {
        proposal: Kept,
        done: Done<Vec<u8>>,
    },
    Read {
        job: Box<dyn ReadJob<M> + Send>,
        /// Whether what is read is handed on only after a majority has been asked, whatever else says that this replica leads.
        by_quorum: bool,
    },
    /// Hands leadership over: to this node, or to the next replica.
    HandOver {
        to: Option<NodeId>,
        done: Done<()>,
    },
}

/// A call that is answered at once, even while other calls wait: its purpose may be to find out why they wait.
pub(super) enum Aside<M> {
    /// Shows this replica's state as it is, whichever replica leads.
    Look(Box<dyn ReadJob<M> + Send>),
    Metrics(Done<Box<Reading>>),
}

impl<M> Aside<M> {
    /// Ends a call that was not executed.
    fn refuse(self, why: CallError) {
        match self {
            Aside::Look(job) => job.end(Err(why)),
            Aside::Metrics(done) => done.tell(Err(why)),
        }
    }
}

/// A call on the replica's thread, whichever thread it has come from.
pub(super) enum Task<M> {
    Propose { proposal: Kept, done: DoneHere<Vec<u8>> },
    Read { job: Box<dyn ReadJob<M>>, by_quorum: bool },
    HandOver { to: Option<NodeId>, done: DoneHere<()> },
}

impl<M> From<Call<M>> for Task<M> {
    fn from(call: Call<M>) -> Task<M> {
        match call {
            Call::Propose { proposal, done } => Task::Propose { proposal, done: done.here() },
            Call::Read { job, by_quorum } => Task::Read { job, by_quorum },
            Call::HandOver { to, done } => Task::HandOver { to, done: done.here() },
        }
    }
}

impl<M> Task<M> {
    /// Ends a call that was not executed.
    pub fn refuse(self, why: CallError) {
        match self {
            Task::Propose { done, .. } => done.tell(Err(why)),
            Task::Read { job, .. } => job.end(Err(why)),
            Task::HandOver { done, .. } => done.tell(Err(why)),
        }
    }
}

/// The calls that a replica's thread takes.
pub(super) struct Calls<M> {
    pub in_order: Receiver<Call<M>>,
    pub aside: Receiver<Aside<M>>,
}

/// A typed read: `look` is called once, and what it returns goes to `done`.
pub(super) struct Look<L, R, F: ?Sized + FnOnce(Result<R, CallError>)> {
    look: Option<L>,
    seen: Option<R>,
    done: Option<Done<R, F>>,
}

impl<L, R, F: ?Sized + FnOnce(Result<R, CallError>)> Look<L, R, F> {
    pub fn new(look: L, done: Done<R, F>) -> Self {
        Look { look: Some(look), seen: None, done: Some(done) }
    }
}

impl<M, L: FnOnce(&M) -> R, R, F: ?Sized + FnOnce(Result<R, CallError>)> ReadJob<M> for Look<L, R, F> {
    fn look(&mut self, machine: &M) {
        self.seen = self.look.take().map(|look| look(machine));
    }

    fn end(mut self: Box<Self>, result: Result<(), CallError>) {
        let Some(done) = self.done.take() else { return };
        match (result, self.seen.take()) {
            (Ok(()), Some(seen)) => done.tell(Ok(seen)),
            (Err(why), _) => done.tell(Err(why)),
            (Ok(()), None) => {}
        }
    }
}

/// The queue in which calls wait for the replica's thread.
pub(super) struct Inbox<M> {
    sender: Sender<Call<M>>,
    aside: Sender<Aside<M>>,
    waiting: AtomicUsize,
    limit: usize,
    /// Whether a proposal finds no room in the log, and other calls wait behind it.
    full: AtomicBool,
    pub bell: Arc<Bell>,
}

impl<M> Inbox<M> {
    /// An inbox in which `limit` calls may wait. Its bell rings for a thread that sleeps, if that thread ever does.
    pub fn new(limit: usize, rings: bool) -> io::Result<(Inbox<M>, Calls<M>)> {
        let bell = Arc::new(Bell::new(rings)?);
        let (sender, in_order) = channel();
        let (aside, looks) = channel();
        let calls = Calls { in_order, aside: looks };
        Ok((Inbox { sender, aside, waiting: AtomicUsize::new(0), limit, full: AtomicBool::new(false), bell }, calls))
    }

    /// Hands a call to the replica's thread. The call is answered in any case.
    pub fn put(&self, call: Call<M>) {
        self.pass(&self.sender, call, |call, why| Task::from(call).refuse(why));
    }

    /// Hands over a call that is to be answered at once. It is answered in any case.
    pub fn put_aside(&self, aside: Aside<M>) {
        self.pass(&self.aside, aside, Aside::refuse);
    }

    fn pass<T>(&self, way: &Sender<T>, what: T, refuse: impl FnOnce(T, CallError)) {
        // Relaxed: a count, which orders nothing.
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= self.limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return refuse(what, CallError::too_many(self.full.load(Ordering::Relaxed), waiting));
        }
        if let Err(refused) = way.send(what) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return refuse(refused.0, CallError::ShuttingDown);
        }
        self.bell.ring();
    }

    /// How many calls may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Notes whether a proposal waits for room in the log.
    pub fn note_full(&self, full: bool) {
        // Relaxed: it only chooses an error's text. Written only when it changes, since callers read it.
        if self.full.load(Ordering::Relaxed) != full {
            self.full.store(full, Ordering::Relaxed);
        }
    }

    /// Notes that a call has been taken.
    pub fn took(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that waits for one answer.
pub(super) struct Wait<T>(Arc<Slot<T>>);

struct Slot<T> {
    answer: Mutex<Option<Result<T, CallError>>>,
    there: AtomicBool,
    thread: Thread,
}

impl<T: Send + 'static> Wait<T> {
    /// Returns the half with which the calling thread waits, and the half that is told the answer.
    pub fn new() -> (Wait<T>, Done<T>) {
        let slot = Arc::new(Slot { answer: Mutex::new(None), there: AtomicBool::new(false), thread: std::thread::current() });
        let its = Arc::clone(&slot);
        let done = Done::new(move |answer| {
            *its.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            // This release pairs with the acquire in `wait`: a thread that sees the flag sees the answer.
            its.there.store(true, Ordering::Release);
            its.thread.unpark();
        });
        (Wait(slot), done)
    }

    /// Spins for `spin`, because answers come within microseconds, and then sleeps. `None`: `timeout` has passed.
    pub fn wait(self, spin: Duration, timeout: Option<Duration>) -> Option<Result<T, CallError>> {
        let start = Instant::now();
        while !self.0.there.load(Ordering::Acquire) {
            let passed = start.elapsed();
            match timeout {
                Some(timeout) if passed >= timeout => return None,
                _ if passed < spin => std::hint::spin_loop(),
                Some(timeout) => std::thread::park_timeout(timeout - passed),
                None => std::thread::park(),
            }
        }
        self.0.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn propose(done: Done<Vec<u8>>) -> Call<()> {
        Call::Propose { proposal: Proposal::Open.into(), done }
    }

    #[test]
    fn a_call_is_answered_even_if_nobody_takes_it() {
        let (inbox, receiver) = Inbox::<()>::new(2, true).expect("descriptors");
        let (first, done) = Wait::new();
        inbox.put(propose(done));
        drop(receiver);
        assert_eq!(first.wait(Duration::ZERO, None), Some(Err(CallError::ShuttingDown)));
        let (second, done) = Wait::new();
        inbox.put(propose(done));
        assert_eq!(second.wait(Duration::ZERO, None), Some(Err(CallError::ShuttingDown)));
        let (third, done) = Wait::<Vec<u8>>::new();
        drop(done.executed());
        assert_eq!(third.wait(Duration::ZERO, None), Some(Err(CallError::OutcomeUnknown)));
    }

    #[test]
    fn more_calls_than_may_wait_are_refused() {
        let (inbox, receiver) = Inbox::<()>::new(1, false).expect("descriptors");
        let (_first, done) = Wait::new();
        inbox.put(propose(done));
        let (second, done) = Wait::new();
        inbox.put(propose(done));
        assert_eq!(second.wait(Duration::ZERO, None), Some(Err(CallError::Busy { waiting: 1 })));
        inbox.note_full(true);
        let (full, done) = Wait::new();
        inbox.put(propose(done));
        assert_eq!(full.wait(Duration::ZERO, None), Some(Err(CallError::LogFull { waiting: 1 })));
        drop(receiver.in_order.try_recv().expect("the first"));
        inbox.took();
        let (third, done) = Wait::new();
        inbox.put(propose(done));
        assert_eq!(third.wait(Duration::ZERO, Some(Duration::ZERO)), None, "it waits");
    }

    #[test]
    fn a_proposal_that_waits_is_what_it_was() {
        let command = SessionCommand { session: 3, seq: 5, confirmed: 4, command: b"ab" };
        assert!(matches!(Kept::from(Proposal::InSession(command)).get(), Proposal::InSession(kept) if kept == command));
        assert!(matches!(Kept::from(Proposal::Plain { command: b"ab" }).get(), Proposal::Plain { command: b"ab" }));
        assert!(matches!(Kept::from(Proposal::Close { session: 3 }).get(), Proposal::Close { session: 3 }));
        assert!(matches!(Kept::from(Proposal::Open).get(), Proposal::Open));
    }
}

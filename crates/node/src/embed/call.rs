//! Calls on their way from a program's threads to the replica's, and their answers on the way back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use martlet_fabric::NodeId;
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::error::CallError;
use crate::counters::Reading;

/// What a program gives to be told by.
type Callback<T> = Box<dyn FnOnce(Result<T, CallError>) + Send>;

/// Who is to be told what came of a call: exactly once, whatever happens.
pub(super) struct Done<T> {
    tell: Option<Callback<T>>,
    /// Whether it has taken effect here.
    executed: bool,
}

impl<T> Done<T> {
    pub fn new(tell: impl FnOnce(Result<T, CallError>) + Send + 'static) -> Done<T> {
        Done { tell: Some(Box::new(tell)), executed: false }
    }

    /// From here on an end without an answer leaves the outcome open.
    pub fn executed(mut self) -> Done<T> {
        self.executed = true;
        self
    }

    pub fn tell(mut self, answer: Result<T, CallError>) {
        if let Some(tell) = self.tell.take() {
            tell(answer);
        }
    }
}

impl<T> Drop for Done<T> {
    /// The replica has ended.
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(Err(if self.executed { CallError::OutcomeUnknown } else { CallError::ShuttingDown }));
        }
    }
}

/// What a program proposes.
pub(super) enum Proposal {
    Plain { command: Vec<u8> },
    InSession { session: u64, seq: u64, confirmed: u64, command: Vec<u8> },
    Open,
    Close { session: u64 },
}

/// Something read from the machine.
pub(super) trait ReadJob<M>: Send {
    /// Reads.
    fn look(&mut self, machine: &M);
    /// Hands on what was read, or why not.
    fn end(self: Box<Self>, result: Result<(), CallError>);
}

/// A call.
pub(super) enum Call<M> {
    Propose {
        proposal: Proposal,
        done: Done<Vec<u8>>,
    },
    /// A read; `anywhere`: of this replica's state as it is, whoever leads.
    Read {
        job: Box<dyn ReadJob<M>>,
        anywhere: bool,
    },
    Metrics(Done<Box<Reading>>),
    /// Leadership is to be handed over: to this node, or to whoever comes next.
    HandOver {
        to: Option<NodeId>,
        done: Done<()>,
    },
}

/// The calls that a replica's thread takes.
pub(super) struct Calls<M> {
    /// One after the other: who waits for room keeps those behind it waiting.
    pub in_order: Receiver<Call<M>>,
    /// What is answered at once, whatever waits: somebody may want to see why it does.
    pub aside: Receiver<Call<M>>,
}

impl<M> Call<M> {
    /// Whether it is answered at once, and in no order with the others.
    fn is_aside(&self) -> bool {
        matches!(self, Call::Metrics(_) | Call::Read { anywhere: true, .. })
    }

    /// The end of a call that was not executed.
    pub fn refuse(self, why: CallError) {
        match self {
            Call::Propose { done, .. } => done.tell(Err(why)),
            Call::Read { job, .. } => job.end(Err(why)),
            Call::Metrics(done) => done.tell(Err(why)),
            Call::HandOver { done, .. } => done.tell(Err(why)),
        }
    }
}

/// A typed read: `look` is called once, and what it returned goes to `done`.
pub(super) struct Look<F, R> {
    look: Option<F>,
    seen: Option<R>,
    done: Option<Done<R>>,
}

impl<F, R> Look<F, R> {
    pub fn new(look: F, done: Done<R>) -> Self {
        Look { look: Some(look), seen: None, done: Some(done) }
    }
}

impl<M, F: FnOnce(&M) -> R + Send, R: Send> ReadJob<M> for Look<F, R> {
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

/// Where calls wait for the replica's thread, and how it is woken for them.
///
/// `pending` is true from the moment somebody is about to make `bell` readable until the replica's thread has read it. So the bell is never
/// left readable while nobody knows of it, which would keep a node awake, and never silent while a call waits.
pub(super) struct Inbox<M> {
    sender: Sender<Call<M>>,
    aside: Sender<Call<M>>,
    waiting: AtomicUsize,
    limit: usize,
    /// A proposal finds no room in the log, and others wait behind it.
    full: AtomicBool,
    pending: AtomicBool,
    bell: OwnedFd,
    /// An epoll instance with the bell in it, among which a node puts descriptors of its own.
    sleep: OwnedFd,
    /// Whether the replica's thread ever sleeps.
    rings: bool,
}

/// What the bell is called among the events; the node's own have another name.
const BELL: u64 = 0;

impl<M> Inbox<M> {
    pub fn new(limit: usize, rings: bool) -> io::Result<(Inbox<M>, Calls<M>)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let sleep = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&sleep, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let (sender, in_order) = channel();
        let (aside, looks) = channel();
        let calls = Calls { in_order, aside: looks };
        let (waiting, pending) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok((Inbox { sender, aside, waiting, limit, full: AtomicBool::new(false), pending, bell, sleep, rings }, calls))
    }

    /// Hands a call to the replica's thread. It is answered in any case.
    pub fn put(&self, call: Call<M>) {
        // Relaxed: a count, which orders nothing.
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= self.limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let full = self.full.load(Ordering::Relaxed);
            return call.refuse(if full { CallError::LogFull { waiting } } else { CallError::Busy { waiting } });
        }
        let sender = if call.is_aside() { &self.aside } else { &self.sender };
        if let Err(refused) = sender.send(call) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return refused.0.refuse(CallError::ShuttingDown);
        }
        // Pairs with the exchange in `hush`: a call that was sent before finds itself looked for after.
        if self.rings && !self.pending.swap(true, Ordering::AcqRel) {
            // It fails only when the counter is full, and then it is readable as well.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// To be called by the replica's thread before it looks for calls.
    pub fn hush(&self) {
        if self.pending.load(Ordering::Relaxed) {
            let mut count = [0; 8];
            // Whoever is about to ring has not yet: then the bell is still to come, and `pending` stays.
            if rustix::io::read(&self.bell, &mut count).is_ok() {
                self.pending.swap(false, Ordering::AcqRel);
            }
        }
    }

    /// How many calls may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether a proposal waits for room in the log from now on.
    pub fn note_full(&self, full: bool) {
        // Relaxed: it only chooses what is said. Written when it changes, since callers read it.
        if self.full.load(Ordering::Relaxed) != full {
            self.full.store(full, Ordering::Relaxed);
        }
    }

    /// A call has been taken.
    pub fn took(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// What a node watches while its thread sleeps.
    pub fn events(&self) -> io::Result<OwnedFd> {
        self.sleep.as_fd().try_clone_to_owned()
    }

    /// Sleeps until a call comes, or a descriptor of the node's is readable, or so much time has passed. `false`: the kernel refuses.
    pub fn sleep(&self, at_most_ns: u64) -> bool {
        let mut found = Vec::with_capacity(4);
        let timeout = rustix::event::Timespec { tv_sec: (at_most_ns / 1_000_000_000) as i64, tv_nsec: (at_most_ns % 1_000_000_000) as i64 };
        match epoll::wait(&self.sleep, rustix::buffer::spare_capacity(&mut found), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => true,
            Err(error) => {
                tracing::error!(%error, "cannot wait for calls");
                false
            }
        }
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
    /// The calling thread waits; the other half is told.
    pub fn new() -> (Wait<T>, Done<T>) {
        let slot = Arc::new(Slot { answer: Mutex::new(None), there: AtomicBool::new(false), thread: std::thread::current() });
        let its = Arc::clone(&slot);
        let done = Done::new(move |answer| {
            *its.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            // Release pairs with the acquire in `wait`: who sees this sees the answer.
            its.there.store(true, Ordering::Release);
            its.thread.unpark();
        });
        (Wait(slot), done)
    }

    /// Spins for `spin`, as answers come within microseconds, then sleeps. `None`: `timeout` has passed.
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
        Call::Propose { proposal: Proposal::Open, done }
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
    fn the_bell_rings_for_calls_and_is_silent_when_they_were_looked_for() {
        let (inbox, _receiver) = Inbox::<()>::new(100, true).expect("descriptors");
        let rings = || {
            let mut fds = [rustix::event::PollFd::new(&inbox.sleep, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
        };
        assert!(!rings());
        for _ in 0..3 {
            for _ in 0..2 {
                inbox.put(propose(Done::new(drop)));
            }
            assert!(rings());
            inbox.hush();
            assert!(!rings());
        }
    }
}

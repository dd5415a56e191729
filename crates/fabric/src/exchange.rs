//! What an endpoint and the thread that makes its connections tell each other: notes in one direction, commands in the other, and counters.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;

use crate::host::descriptors::open;
use crate::meeting::Refusal;
use crate::meeting::wire::Code;

/// What has happened to connections since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootstrapCounters {
    /// Connections that were made.
    pub connected: u64,
    /// Connections that outlived the socket on which they were agreed, and got another one.
    pub resumed: u64,
    /// Handshakes that ended in a refusal, by us or by the other end. The endpoint's `last_refusal` says why the latest did.
    pub refused: u64,
    /// Those among them in which a member ran a build that does not understand ours.
    pub misfits: u64,
    /// Handshakes given up because the other end went silent or went away.
    pub abandoned: u64,
}

/// The two directions: notes `N` to the endpoint and commands `C` from it.
#[derive(Debug)]
pub(crate) struct Exchange<N, C> {
    inbox: Mutex<VecDeque<N>>,
    /// How many notes are in the inbox, so that looking at an empty one costs a load.
    waiting: AtomicUsize,
    outbox: Mutex<Vec<C>>,
    /// Readable when there are commands.
    pub(crate) wake: OwnedFd,
    connected: AtomicU64,
    resumed: AtomicU64,
    abandoned: AtomicU64,
    refused: AtomicU64,
    misfits: AtomicU64,
    refusals: Mutex<Refusals>,
}

/// What was refused, to be queried and logged.
#[derive(Debug, Default)]
struct Refusals {
    last: Option<String>,
    /// The latest refusal of each process that was named, and when it was last logged.
    told: HashMap<String, (String, Instant)>,
    /// The latest refusal because of a build that does not understand ours, and when it was.
    misfit: Option<(String, Instant)>,
}

/// How often the log repeats that a process keeps trying in vain. Its build differs from ours, so an operator has to act, and may look late.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// The most processes that are remembered as refused, since strangers may invent any number of them.
const MOST_TOLD: usize = 64;

impl Refusals {
    /// Whether to log this refusal.
    fn is_news(&mut self, who: &str, text: &str, again: bool, now: Instant) -> bool {
        let news = match self.told.get(who) {
            Some((known, at)) => known != text || (again && now.duration_since(*at) >= TOLD_AGAIN),
            None => true,
        };
        if news {
            if self.told.len() >= MOST_TOLD {
                self.told.clear();
            }
            self.told.insert(who.to_owned(), (text.to_owned(), now));
        }
        news
    }
}

/// The data behind our mutexes is consistent after every statement, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<N, C> Exchange<N, C> {
    pub(crate) fn new() -> io::Result<Exchange<N, C>> {
        Ok(Exchange {
            inbox: Mutex::default(),
            waiting: AtomicUsize::new(0),
            outbox: Mutex::default(),
            wake: open(|| rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?,
            connected: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            misfits: AtomicU64::new(0),
            refusals: Mutex::default(),
        })
    }

    /// For the bootstrap thread: leaves a note, without waking anyone.
    pub(crate) fn leave(&self, note: N) {
        let mut inbox = lock(&self.inbox);
        inbox.push_back(note);
        self.waiting.store(inbox.len(), Ordering::Release);
    }

    /// For the endpoint: whether there is no note. One load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// For the endpoint: the oldest note.
    #[inline]
    pub(crate) fn note(&self) -> Option<N> {
        if self.is_empty() {
            return None;
        }
        let mut inbox = lock(&self.inbox);
        let note = inbox.pop_front();
        self.waiting.store(inbox.len(), Ordering::Release);
        note
    }

    /// For the endpoint: asks the bootstrap thread for something.
    pub(crate) fn ask(&self, command: C) {
        lock(&self.outbox).push(command);
        self.stir();
    }

    /// For the endpoint: ends a wait of the bootstrap thread.
    pub(crate) fn stir(&self) {
        // This fails only if the counter is full of earlier wake-ups, and one is enough.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// For the bootstrap thread: takes all commands.
    pub(crate) fn commands(&self) -> Vec<C> {
        let mut drained = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut drained);
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// For the bootstrap thread: a connection has been made.
    pub(crate) fn count_connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    /// For the bootstrap thread: a connection has got another socket.
    pub(crate) fn count_resumed(&self) {
        self.resumed.fetch_add(1, Ordering::Relaxed);
    }

    /// For the bootstrap thread: a handshake ended in a refusal.
    pub(crate) fn report_refusal(&self, who: &str, refusal: &Refusal) {
        if refusal.code == Code::Duplicate {
            // Both ends had dialled. Nothing is wrong.
            tracing::debug!("no second connection with {who}: {}", refusal.text);
            return;
        }
        let text = format!("no connection with {who}: {}", refusal.text);
        let misfit = refusal.code == Code::Version;
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.misfits.fetch_add(u64::from(misfit), Ordering::Relaxed);
        let now = Instant::now();
        let mut refusals = lock(&self.refusals);
        // A node that keeps trying is reported once, not at each attempt.
        match (refusals.is_news(who, &text, misfit, now), misfit) {
            (false, _) => tracing::debug!("{text}"),
            (true, false) => tracing::warn!("{text}"),
            (true, true) => tracing::error!("{text}"),
        }
        if misfit {
            refusals.misfit = Some((text.clone(), now));
        }
        refusals.last = Some(text);
    }

    /// For the bootstrap thread: a handshake ended without either end having refused.
    pub(crate) fn report_abandoned(&self, who: &str, why: &str) {
        tracing::debug!("no connection with {who}: {why}");
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn last_refusal(&self) -> Option<String> {
        lock(&self.refusals).last.clone()
    }

    /// The latest refusal that was due to the builds of the two ends, if it is less than `within` old.
    pub(crate) fn misfit(&self, within: Duration) -> Option<String> {
        let refusals = lock(&self.refusals);
        refusals.misfit.as_ref().filter(|(_, at)| at.elapsed() < within).map(|(text, _)| text.clone())
    }

    pub(crate) fn counters(&self) -> BootstrapCounters {
        BootstrapCounters {
            connected: self.connected.load(Ordering::Relaxed),
            resumed: self.resumed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            misfits: self.misfits.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_that_is_refused_is_told_of_once_however_they_take_turns() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let told: Vec<bool> = (0..6).map(|n| refusals.is_news(["a", "b"][n % 2], "why", false, now)).collect();
        assert_eq!(told, [true, true, false, false, false, false]);
        assert!(refusals.is_news("a", "another reason", false, now));
        let later = now + TOLD_AGAIN;
        assert_eq!((refusals.is_news("b", "why", false, later), refusals.is_news("b", "why", true, later)), (false, true));
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        (0..10 * MOST_TOLD).for_each(|n| assert!(refusals.is_news(&n.to_string(), "why", false, now)));
        assert!(refusals.told.len() <= MOST_TOLD);
    }
}

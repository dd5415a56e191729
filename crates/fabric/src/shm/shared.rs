//! What the endpoint and its bootstrap thread share: notes one way, commands the other, counters.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::EventfdFlags;

use super::peer::{Own, Peer};
use crate::contract::{NodeId, PeerId};

/// What the bootstrap thread tells the endpoint.
#[derive(Debug)]
pub(super) enum Note {
    Up(PeerId, Box<Peer>),
    Gone { peer: PeerId, certain: bool },
}

/// What the endpoint asks of the bootstrap thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Accept connections from now on.
    Open,
    Connect(NodeId),
    Disconnect(NodeId),
    /// Close the connection and unmap what there is: unmapping takes long, so the endpoint's thread does not do it.
    Forget(PeerId, Option<Box<Peer>>),
    Stop,
}

/// What has happened at the bootstrap socket since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootstrapCounters {
    /// Connections that were made.
    pub connected: u64,
    /// Handshakes that ended in a refusal, by us or by the other end. The latest reason is [`super::ShmFabric::last_refusal`].
    pub refused: u64,
    /// Handshakes given up because the other end went silent or went away.
    pub abandoned: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    inbox: Mutex<VecDeque<Note>>,
    /// Notes in the inbox, so that looking at an empty one costs a load.
    waiting: AtomicUsize,
    outbox: Mutex<Vec<Command>>,
    /// Readable when there are commands.
    pub(super) wake: OwnedFd,
    pub(super) own: Arc<Own>,
    pub(super) connected: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) abandoned: AtomicU64,
    pub(super) last_refusal: Mutex<Option<String>>,
}

/// The data behind our mutexes is whole after every statement, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(own: Arc<Own>) -> io::Result<Shared> {
        Ok(Shared {
            inbox: Mutex::default(),
            waiting: AtomicUsize::new(0),
            outbox: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            own,
            connected: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            last_refusal: Mutex::default(),
        })
    }

    /// For the bootstrap thread: leaves a note and wakes the endpoint's thread if it is parked.
    pub(super) fn tell(&self, note: Note) {
        let mut inbox = lock(&self.inbox);
        inbox.push_back(note);
        self.waiting.store(inbox.len(), Ordering::Release);
        drop(inbox);
        // Pairs with the fence of a parking endpoint: it sees the note, or we see that it sleeps.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.own.bell.ring();
    }

    /// For the endpoint: whether there is no note. One load.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// For the endpoint: the oldest note.
    #[inline]
    pub(super) fn note(&self) -> Option<Note> {
        if self.is_empty() {
            return None;
        }
        let mut inbox = lock(&self.inbox);
        let note = inbox.pop_front();
        self.waiting.store(inbox.len(), Ordering::Release);
        note
    }

    /// For the endpoint: asks the bootstrap thread for something.
    pub(super) fn ask(&self, command: Command) {
        lock(&self.outbox).push(command);
        // It fails only when the counter is full of earlier wake-ups, and one is enough.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// For the bootstrap thread: takes all commands.
    pub(super) fn commands(&self) -> Vec<Command> {
        let mut drained = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut drained);
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// Records a refusal; `true` when it says something else than the one before.
    pub(super) fn note_refusal(&self, text: &str) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut last = lock(&self.last_refusal);
        let new = last.as_deref() != Some(text);
        if new {
            *last = Some(text.to_owned());
        }
        new
    }

    pub(super) fn last_refusal(&self) -> Option<String> {
        lock(&self.last_refusal).clone()
    }

    pub(super) fn counters(&self) -> BootstrapCounters {
        BootstrapCounters {
            connected: self.connected.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
        }
    }
}

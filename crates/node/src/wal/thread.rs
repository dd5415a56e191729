//! The log's own thread. A caller that hands something over copies it and goes on; a word that callers read shows what is stable.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::disk::Disk;
use super::error::{Operation, WalError, refused};
use super::log::Log;
use super::pace::Pace;
use super::queue::{Frame, Job, Later, Next, Queue};
use crate::clock;
use crate::sched::MakingWay;

/// What the thread is sleeping for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asleep {
    /// It is awake.
    #[default]
    No,
    /// For anything.
    Idle,
    /// For the log, or until a slice of the snapshot is due. Another part does not wake it.
    Pacing,
}

#[derive(Default)]
struct Desk {
    queue: Queue,
    asleep: Asleep,
    error: Option<WalError>,
}

#[derive(Default)]
struct Shared {
    desk: Mutex<Desk>,
    work: Condvar,
    /// How many appends are stable. The thread writes it, with release, when the sync that covers them has returned.
    stable: AtomicU64,
    /// The bytes of those.
    stable_bytes: AtomicU64,
    /// How many frames are stable: each took one sync.
    syncs: AtomicU64,
    /// How many parts of snapshots have been taken to be written, or dropped with their snapshot.
    parts: AtomicU64,
    /// How many snapshots are whole, and stable under their names.
    snapshots: AtomicU64,
    failed: AtomicBool,
}

impl Shared {
    /// While a thread holds the lock it panics only if memory runs out, and the queue is consistent between any two statements: so a poisoned lock can be used.
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand(&self, desk: &mut Desk, job: Job) {
        let dropped = desk.queue.hand(job);
        if dropped > 0 {
            self.parts.fetch_add(dropped, Ordering::Relaxed);
        }
    }
}

/// A log with its thread. When it is dropped, it writes what has been handed over, except for a snapshot without its end, and then ends.
///
/// No method here waits for the thread, not even for the lock that both take: a system that is short of processors may stop the thread for milliseconds while
/// it holds the lock. What finds the lock taken is kept on this side, and goes over with the next call, or by [`Wal::hand_over`].
pub struct Wal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// What has found the lock taken, in order.
    backlog: VecDeque<Job>,
    appends: u64,
    bytes: u64,
    parts: u64,
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal").field("appends", &self.appends).field("stable", &self.stable()).finish_non_exhaustive()
    }
}

impl Wal {
    /// Starts the thread. Snapshots are written at this `pace`. `tell` is called on the thread whenever something has become stable, parts of a snapshot have
    /// been taken, or the disk has failed.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start<D: Disk>(log: Log<D>, dir: &Path, pace: Pace, tell: impl Fn() + Send + 'static) -> Result<Wal, WalError>
    where
        Log<D>: Send,
    {
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let run = move || {
            martlet_fabric::host::process::leave_core();
            // In any process, a file that may not grow is treated like a full disk.
            crate::signals::expect_full_files();
            if let Err(error) = write(log, &its, pace, &tell) {
                its.lock().error = Some(error);
                // Pairs with the acquire in `failure`.
                its.failed.store(true, Ordering::Release);
                tell();
            }
        };
        let thread = std::thread::Builder::new().name("martlet-wal".into()).spawn(run).map_err(refused(dir, Operation::Write))?;
        Ok(Wal { shared, thread: Some(thread), backlog: VecDeque::new(), appends: 0, bytes: 0, parts: 0 })
    }

    /// Hands over some bytes, which become part of one frame as a whole. Returns how many appends there have been, including this one. Does not wait for the
    /// disk.
    pub fn append(&mut self, bytes: &[u8]) -> u64 {
        self.appends += 1;
        self.bytes += bytes.len() as u64;
        let count = self.appends;
        match Wal::desk(&self.shared, &mut self.backlog) {
            Some(mut desk) => {
                desk.queue.append(count, bytes);
                self.wake(desk, false);
            }
            None => self.backlog.push_back(Job::Append { count, bytes: bytes.to_vec() }),
        }
        count
    }

    /// Begins a snapshot here, of the state that results from everything appended so far. What is appended next must say everything that the log has to know of
    /// what came before. A snapshot whose end has not been handed over is abandoned.
    pub fn begin_snapshot(&mut self) {
        self.push(Job::Begin);
    }

    /// Hands over a part of the snapshot. It is taken out of `part`, which is left with an empty buffer.
    pub fn add_part(&mut self, part: &mut Vec<u8>) {
        self.parts += 1;
        // What has found the lock taken goes over with it, and may belong to the log.
        let alone = self.backlog.is_empty();
        match Wal::desk(&self.shared, &mut self.backlog) {
            Some(mut desk) => {
                // The thread gives buffers back, so neither side has to ask the kernel for memory, where one might have to wait for the other.
                let empty = desk.queue.spare_part();
                let part = std::mem::replace(part, empty);
                self.shared.hand(&mut desk, Job::Later(Later::Part(part)));
                self.wake(desk, alone);
            }
            None => self.backlog.push_back(Job::Later(Later::Part(std::mem::take(part)))),
        }
    }

    /// Hands over the snapshot's end. The snapshot becomes valid when everything appended before is stable as well, and it makes everything before it
    /// superfluous.
    pub fn finish_snapshot(&mut self, last: Vec<u8>) {
        self.push(Job::Later(Later::Finish(last)));
    }

    /// The snapshot that has been begun will not be finished.
    pub fn abandon_snapshot(&mut self) {
        self.push(Job::Later(Later::Abandon));
    }

    /// Hands another task for the disk to the log's thread, to be run after everything handed over so far.
    pub fn run(&mut self, errand: impl FnOnce() -> Result<(), WalError> + Send + 'static) {
        self.push(Job::Later(Later::Errand(Box::new(errand))));
    }

    fn push(&mut self, job: Job) {
        match Wal::desk(&self.shared, &mut self.backlog) {
            Some(mut desk) => {
                self.shared.hand(&mut desk, job);
                self.wake(desk, false);
            }
            None => self.backlog.push_back(job),
        }
    }

    /// Runs `meanwhile` as if the thread held the lock all that time.
    #[cfg(test)]
    pub(super) fn while_it_is_at_its_desk(&mut self, meanwhile: impl FnOnce(&mut Wal)) {
        let shared = Arc::clone(&self.shared);
        let desk = shared.lock();
        meanwhile(self);
        drop(desk);
    }

    /// Hands over what has found the lock taken. Returns whether the thread has everything now; if not, this has to be called again soon.
    pub fn hand_over(&mut self) -> bool {
        if !self.backlog.is_empty()
            && let Some(desk) = Wal::desk(&self.shared, &mut self.backlog)
        {
            self.wake(desk, false);
        }
        self.backlog.is_empty()
    }

    /// The desk, unless the thread is at it, with all of the backlog handed over.
    fn desk<'a>(shared: &'a Shared, backlog: &mut VecDeque<Job>) -> Option<MutexGuard<'a, Desk>> {
        let mut desk = match shared.desk.try_lock() {
            Ok(desk) => desk,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        backlog.drain(..).for_each(|job| shared.hand(&mut desk, job));
        Some(desk)
    }

    /// Wakes the thread, unless only a part has come, and the thread would not begin with it before it wakes anyway.
    fn wake(&self, mut desk: MutexGuard<'_, Desk>, is_part: bool) {
        let wakes = match desk.asleep {
            Asleep::No => false,
            Asleep::Idle => true,
            Asleep::Pacing => !is_part,
        };
        if wakes {
            desk.asleep = Asleep::No;
        }
        drop(desk);
        if wakes {
            self.shared.work.notify_one();
        }
    }

    /// How many appends have been handed over.
    pub fn appends(&self) -> u64 {
        self.appends
    }

    /// How many appends are stable: the first so many.
    pub fn stable(&self) -> u64 {
        // Pairs with the release in `write`.
        self.shared.stable.load(Ordering::Acquire)
    }

    /// How many bytes have been handed over and are not stable yet: what a loss of power costs.
    pub fn unstable_bytes(&self) -> u64 {
        self.bytes - self.shared.stable_bytes.load(Ordering::Acquire)
    }

    /// How often the disk has made a frame stable when asked to.
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }

    /// How many parts of snapshots have been handed over that the thread has not begun to write.
    pub fn unwritten_parts(&self) -> u64 {
        self.parts - self.shared.parts.load(Ordering::Relaxed)
    }

    /// How many snapshots have been finished and are stable.
    pub fn snapshots(&self) -> u64 {
        self.shared.snapshots.load(Ordering::Acquire)
    }

    /// Whether the disk has failed: then nothing becomes stable any more.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Why the disk has failed, once.
    pub fn take_error(&mut self) -> Option<WalError> {
        self.shared.lock().error.take()
    }

    /// Writes what has been handed over, except for a snapshot without its end, and ends.
    ///
    /// # Errors
    /// When the disk has failed.
    pub fn close(mut self) -> Result<(), WalError> {
        self.end();
        self.take_error().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let mut desk = self.shared.lock();
        self.backlog.drain(..).for_each(|job| self.shared.hand(&mut desk, job));
        desk.queue.close();
        self.wake(desk, false);
        // A panic on that thread has been printed, and what it kept from being written does not count as stable.
        let _ = thread.join();
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread does, one thing after the other. So the order between a slice of a snapshot and a frame of the log is that of this loop, whatever priority
/// the kernel gives to either.
fn write<D: Disk>(mut log: Log<D>, shared: &Shared, mut pace: Pace, tell: &impl Fn()) -> Result<(), WalError> {
    let mut stable_bytes = 0;
    let mut bytes = Vec::new();
    loop {
        match next(shared, &pace, log.staged_bytes()) {
            Next::Frame(Frame { count, pieces, .. }) => {
                bytes.clear();
                pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
                log.append(&bytes)?;
                stable_bytes += bytes.len() as u64;
                shared.syncs.fetch_add(1, Ordering::Relaxed);
                shared.stable_bytes.store(stable_bytes, Ordering::Release);
                // Pairs with the acquire in `stable`.
                shared.stable.store(count, Ordering::Release);
                tell();
                shared.lock().queue.give_back_pieces(pieces);
            }
            Next::Begin => {
                let base = log.roll()?;
                log.begin_snapshot(base)?;
            }
            Next::Slice(parts) => {
                let _making_way = MakingWay::begin();
                parts.iter().for_each(|part| log.stage_part(part));
                let (taken, staged) = (parts.len() as u64, log.staged_bytes());
                if taken > 0 {
                    shared.lock().queue.give_back_parts(parts);
                    shared.parts.fetch_add(taken, Ordering::Relaxed);
                    // The thread that takes the snapshot may be waiting for this, and can meanwhile continue with the next parts.
                    tell();
                }
                let from = clock::now();
                log.write_slice()?;
                pace.spend(from, (staged - log.staged_bytes()) as u64);
            }
            Next::Finish(last) => {
                let making_way = MakingWay::begin();
                pace.spend(clock::now(), log.staged_bytes() as u64);
                log.finish_snapshot(&last)?;
                drop(making_way);
                shared.snapshots.fetch_add(1, Ordering::Release);
                tell();
            }
            Next::Abandon => log.abandon_snapshot()?,
            Next::Errand(errand) => errand()?,
            Next::Wait(_) => {}
            Next::End => return Ok(()),
        }
    }
}

/// Waits until there is something to do.
fn next(shared: &Shared, pace: &Pace, staged: usize) -> Next {
    let mut desk = shared.lock();
    loop {
        let now = clock::now();
        match desk.queue.next(now, pace.due(), staged) {
            Next::Wait(None) => {
                desk.asleep = Asleep::Idle;
                desk = shared.work.wait(desk).unwrap_or_else(PoisonError::into_inner);
            }
            Next::Wait(Some(due)) => {
                desk.asleep = Asleep::Pacing;
                let rest = Duration::from_nanos(due.since(now));
                desk = shared.work.wait_timeout(desk, rest).unwrap_or_else(PoisonError::into_inner).0;
            }
            next => {
                desk.asleep = Asleep::No;
                return next;
            }
        }
    }
}

//! The log's own thread. Who hands something over copies it and goes on; what is stable is shown in a word that it reads.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::disk::Disk;
use super::error::{Operation, WalError, refused};
use super::log::Log;

/// A frame takes no further append beyond so many bytes.
const FRAME_BYTES: usize = 4 << 20;
/// Buffers that are kept for what comes next.
const SPARES: usize = 8;

/// What the thread has to do, in order.
enum Job {
    /// Appends handed over so far, and their bytes.
    Append {
        count: u64,
        bytes: Vec<u8>,
    },
    /// A new segment begins here, and a snapshot with it.
    Snapshot,
    Part(Vec<u8>),
    Finish(Vec<u8>),
    Abandon,
    Other(Box<dyn FnOnce() -> Result<(), WalError> + Send>),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Job::Append { .. } => "Append",
            Job::Snapshot => "Snapshot",
            Job::Part(_) => "Part",
            Job::Finish(_) => "Finish",
            Job::Abandon => "Abandon",
            Job::Other(_) => "Other",
        })
    }
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    spares: Vec<Vec<u8>>,
    asleep: bool,
    closed: bool,
    error: Option<WalError>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Appends that are stable. Written by the thread with release, when the sync that covers them has returned.
    stable: AtomicU64,
    /// Bytes of these.
    stable_bytes: AtomicU64,
    /// Frames that are: each took one sync.
    syncs: AtomicU64,
    /// Parts of snapshots that have been written.
    parts: AtomicU64,
    /// Snapshots that are whole and stable under their names.
    snapshots: AtomicU64,
    failed: AtomicBool,
}

impl Shared {
    /// No thread panics while it holds the lock but by running out of memory, and a queue is whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A log with its thread. Dropped, it writes what has been handed over, and ends.
#[derive(Debug)]
pub struct Wal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    appends: u64,
    bytes: u64,
    parts: u64,
}

impl Wal {
    /// Starts the thread. It waits for `gather` after the first append of a frame, for others to come along; `tell` is called, there, whenever
    /// something has become stable or the disk has failed.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start<D: Disk>(log: Log<D>, dir: &Path, gather: Duration, tell: impl Fn() + Send + 'static) -> Result<Wal, WalError>
    where
        Log<D>: Send,
    {
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let run = move || {
            martlet_fabric::shm::process::leave_core();
            if let Err(error) = write(log, &its, gather, &tell) {
                its.lock().error = Some(error);
                // Pairs with the acquire in `failure`.
                its.failed.store(true, Ordering::Release);
                tell();
            }
        };
        let thread = std::thread::Builder::new().name("martlet-wal".into()).spawn(run).map_err(refused(dir, Operation::Write))?;
        Ok(Wal { shared, thread: Some(thread), appends: 0, bytes: 0, parts: 0 })
    }

    /// Hands some bytes over; they become part of a frame as a whole. Returns how many appends there have been with this one. Does not wait for
    /// the disk.
    pub fn append(&mut self, bytes: &[u8]) -> u64 {
        self.appends += 1;
        self.bytes += bytes.len() as u64;
        let mut queue = self.shared.lock();
        match queue.jobs.back_mut() {
            Some(Job::Append { count, bytes: frame }) if frame.len() + bytes.len() <= FRAME_BYTES => {
                frame.extend_from_slice(bytes);
                *count = self.appends;
            }
            _ => {
                let mut frame = queue.spares.pop().unwrap_or_default();
                frame.extend_from_slice(bytes);
                queue.jobs.push_back(Job::Append { count: self.appends, bytes: frame });
            }
        }
        self.wake(queue);
        self.appends
    }

    /// Begins a snapshot here: of the state that what has been appended so far makes. What is appended next must say all that the log has to
    /// know of what came before. A snapshot that is not finished is given up.
    pub fn begin_snapshot(&mut self) {
        self.push(Job::Snapshot);
    }

    /// A part of the snapshot.
    pub fn add_part(&mut self, part: Vec<u8>) {
        self.parts += 1;
        self.push(Job::Part(part));
    }

    /// The snapshot's end. It counts when everything appended before is stable as well, and it makes all that precedes it superfluous.
    pub fn finish_snapshot(&mut self, last: Vec<u8>) {
        self.push(Job::Finish(last));
    }

    /// The snapshot that has been begun will not be finished.
    pub fn abandon_snapshot(&mut self) {
        self.push(Job::Abandon);
    }

    /// Something else that has to do with the disk, for the log's thread: after what has been handed over so far.
    pub fn run(&mut self, job: impl FnOnce() -> Result<(), WalError> + Send + 'static) {
        self.push(Job::Other(Box::new(job)));
    }

    fn push(&mut self, job: Job) {
        let mut queue = self.shared.lock();
        queue.jobs.push_back(job);
        self.wake(queue);
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.shared.work.notify_one();
        }
    }

    /// Appends handed over.
    pub fn appends(&self) -> u64 {
        self.appends
    }

    /// Appends that are stable: the first so many.
    pub fn stable(&self) -> u64 {
        // Pairs with the release in `write`.
        self.shared.stable.load(Ordering::Acquire)
    }

    /// Bytes handed over that are not stable yet: what a loss of power costs.
    pub fn unstable_bytes(&self) -> u64 {
        self.bytes - self.shared.stable_bytes.load(Ordering::Acquire)
    }

    /// How often the disk has been asked to make a frame stable, and has.
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }

    /// Parts of snapshots that have been handed over and not been written.
    pub fn unwritten_parts(&self) -> u64 {
        self.parts - self.shared.parts.load(Ordering::Relaxed)
    }

    /// Snapshots that have been finished and are stable.
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

    /// Writes what has been handed over, and ends.
    ///
    /// # Errors
    /// When the disk has failed.
    pub fn close(mut self) -> Result<(), WalError> {
        self.end();
        self.take_error().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        self.wake(queue);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and what it kept from being written shows as not stable.
            let _ = thread.join();
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread does.
fn write<D: Disk>(mut log: Log<D>, shared: &Shared, gather: Duration, tell: &impl Fn()) -> Result<(), WalError> {
    let mut stable_bytes = 0;
    loop {
        let mut queue = shared.lock();
        while queue.jobs.is_empty() {
            if queue.closed {
                return Ok(());
            }
            queue.asleep = true;
            queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if !gather.is_zero() && !queue.closed {
            // Whoever hands something over meanwhile wakes nobody.
            drop(queue);
            std::thread::sleep(gather);
            queue = shared.lock();
        }
        let Some(job) = queue.jobs.pop_front() else { continue };
        drop(queue);
        match job {
            Job::Append { count, mut bytes } => {
                log.append(&bytes)?;
                stable_bytes += bytes.len() as u64;
                shared.syncs.fetch_add(1, Ordering::Relaxed);
                shared.stable_bytes.store(stable_bytes, Ordering::Release);
                // Pairs with the acquire in `stable`.
                shared.stable.store(count, Ordering::Release);
                tell();
                bytes.clear();
                let mut queue = shared.lock();
                if queue.spares.len() < SPARES {
                    queue.spares.push(bytes);
                }
            }
            Job::Snapshot => {
                let base = log.roll()?;
                log.begin_snapshot(base)?;
            }
            Job::Part(part) => {
                log.add_part(&part)?;
                shared.parts.fetch_add(1, Ordering::Relaxed);
                // Whoever takes the snapshot may wait for this.
                tell();
            }
            Job::Finish(last) => {
                log.finish_snapshot(&last)?;
                shared.snapshots.fetch_add(1, Ordering::Release);
                tell();
            }
            Job::Abandon => log.abandon_snapshot()?,
            Job::Other(job) => job()?,
        }
    }
}

//! Wakes a replica's thread that sleeps.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use martlet_fabric::host::descriptors::{duplicate, open};
use rustix::event::{EventfdFlags, epoll, eventfd};

/// Rung when there is something for a replica's thread to do.
///
/// `pending` is true from the moment that a thread is about to make `rung` readable until the replica's thread has read it. So `rung` is never left readable
/// without `pending` being set, which would keep the node awake for ever, and it never stays silent while there is something to do.
pub(super) struct Bell {
    pending: AtomicBool,
    rung: OwnedFd,
    /// An epoll instance that holds `rung`, to which the program and the node add descriptors of their own.
    sleep: OwnedFd,
    /// Whether the replica's thread ever sleeps.
    rings: bool,
}

/// The names of the bell and of a program's descriptors among the events. The node's own descriptors have another name.
const BELL: u64 = 0;
const PROGRAMS_OWN: u64 = 1;

impl Bell {
    pub fn new(rings: bool) -> io::Result<Bell> {
        let rung = open(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        let sleep = open(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        epoll::add(&sleep, &rung, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Bell { pending: AtomicBool::new(false), rung, sleep, rings })
    }

    /// Says that there is something for the replica's thread to do. The thread looks for it in its next turn.
    pub fn ring(&self) {
        // Pairs with the exchange in `hush`: what the caller did before this one, the replica's thread sees after that one.
        if self.rings && !self.pending.swap(true, Ordering::AcqRel) {
            // The write fails only when the counter is full, and then `rung` is readable as well.
            let _ = rustix::io::write(&self.rung, &1u64.to_ne_bytes());
        }
    }

    /// The replica's thread calls this before it looks for something to do.
    pub fn hush(&self) {
        if self.pending.load(Ordering::Relaxed) {
            let mut count = [0; 8];
            // If the read fails, a thread has set `pending` but has not written yet. Its write is still to come, so `pending` stays set.
            if rustix::io::read(&self.rung, &mut count).is_ok() {
                self.pending.swap(false, Ordering::AcqRel);
            }
        }
    }

    /// From now on this descriptor, too, wakes the thread for as long as it is readable.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match epoll::add(&self.sleep, fd, epoll::EventData::new_u64(PROGRAMS_OWN), epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The descriptor that a node watches while its thread sleeps.
    pub fn events(&self) -> io::Result<OwnedFd> {
        duplicate(&self.sleep)
    }

    /// Sleeps until the bell is rung, a descriptor of the program or the node is readable, or this much time has passed. `false`: the kernel refuses to wait.
    pub fn sleep(&self, at_most_ns: u64) -> bool {
        let mut found = Vec::with_capacity(4);
        let timeout = rustix::event::Timespec { tv_sec: (at_most_ns / 1_000_000_000) as i64, tv_nsec: (at_most_ns % 1_000_000_000) as i64 };
        match epoll::wait(&self.sleep, rustix::buffer::spare_capacity(&mut found), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => true,
            Err(error) => {
                tracing::error!(%error, "cannot wait for the program's calls");
                false
            }
        }
    }
}

/// Wakes a replica's thread from any other thread, when its program has something to do there that no descriptor announces.
#[derive(Clone)]
pub struct Waker(pub(super) Arc<Bell>);

impl Waker {
    /// Gives the program a turn soon. In that turn it sees what the caller did before this call. The call costs a system call when the replica's thread may
    /// sleep and nothing has woken it since its last turn, and none otherwise.
    pub fn wake(&self) {
        self.0.ring();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn is_awake(bell: &Bell) -> bool {
        let mut fds = [rustix::event::PollFd::new(&bell.sleep, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
    }

    #[test]
    fn it_rings_until_somebody_looks() {
        let bell = Arc::new(Bell::new(true).expect("descriptors"));
        let waker = Waker(Arc::clone(&bell));
        assert!(!is_awake(&bell));
        for _ in 0..3 {
            for _ in 0..2 {
                waker.wake();
            }
            assert!(is_awake(&bell));
            bell.hush();
            assert!(!is_awake(&bell));
        }
    }

    #[test]
    fn a_descriptor_keeps_the_thread_awake_while_it_is_readable() {
        let bell = Bell::new(true).expect("descriptors");
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        bell.watch(fd.as_fd()).expect("watched");
        bell.watch(fd.as_fd()).expect("watched already");
        assert!(!is_awake(&bell));
        rustix::io::write(&fd, &1u64.to_ne_bytes()).expect("a fresh eventfd");
        bell.hush();
        assert!(is_awake(&bell), "to look for calls does not make it silent");
        rustix::io::read(&fd, &mut [0; 8]).expect("what was written");
        assert!(!is_awake(&bell));
        let file = std::fs::File::open("/proc/self/exe").expect("ourselves");
        assert!(bell.watch(file.as_fd()).is_err(), "a file is never waited for");
    }
}

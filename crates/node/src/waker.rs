//! Watches file descriptors for a thread that sleeps on its doorbell.
//!
//! A parked main thread waits on memory: its doorbell, and the death words of its peers. Nothing there changes when a socket becomes readable,
//! so a thread of its own waits for the sockets, in poll(2), and rings the bell. It does so only while the main thread is parked: an awake
//! main thread looks at its sockets itself, and a readable socket must then cost nothing beyond it.
//!
//! | main thread | waker |
//! |---|---|
//! | arms; wakes the waker if that waits for it | waits until armed |
//! | looks at its sockets once more | waits for a readable descriptor |
//! | sleeps on its bell | if still armed: disarms, rings the bell |
//! | disarms | |
//!
//! While no socket becomes readable the waker stays in poll(2) across many sleeps of the main thread, and arming is two loads and a store.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::futex;

const DISARMED: u32 = 0;
const ARMED: u32 = 1;
/// Disarmed, and the waker waits for that to change.
const AWAITED: u32 = 2;
const CLOSED: u32 = 3;

/// The thread that watches, and the main thread's handle on it. Dropping it ends the thread.
#[derive(Debug)]
pub struct Waker {
    state: Arc<AtomicU32>,
    close: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Waker {
    /// Starts watching `descriptors`. `ring` wakes the main thread, from the waker's thread.
    pub fn start(descriptors: Vec<OwnedFd>, ring: impl Fn() + Send + 'static) -> io::Result<Waker> {
        let close = eventfd(0, EventfdFlags::CLOEXEC)?;
        let closed = close.try_clone()?;
        let state = Arc::new(AtomicU32::new(DISARMED));
        let watched = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("martlet-waker".into()).spawn(move || {
            martlet_fabric::shm::process::stand_aside();
            watch(&watched, &closed, &descriptors, &ring);
        })?;
        Ok(Waker { state, close, thread: Some(thread) })
    }

    /// To be called by the main thread before it looks at its sockets for the last time and then sleeps.
    pub fn arm(&self) {
        // SeqCst: the look at the sockets that follows must not come before this (they are system calls and wouldn't; and the
        // waker's swap must be ordered against it).
        if self.state.swap(ARMED, Ordering::SeqCst) == AWAITED {
            // A lost wake-up is impossible: the waker waits only while the word is AWAITED.
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    /// To be called by the main thread when it is awake again.
    pub fn disarm(&self) {
        let _ = self.state.compare_exchange(ARMED, DISARMED, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.state.store(CLOSED, Ordering::SeqCst);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        let _ = rustix::io::write(&self.close, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the waker thread panicked");
        }
    }
}

fn watch(state: &AtomicU32, close: &OwnedFd, descriptors: &[OwnedFd], ring: &dyn Fn()) {
    loop {
        // Until armed.
        loop {
            match state.compare_exchange(DISARMED, AWAITED, Ordering::SeqCst, Ordering::SeqCst) {
                Err(CLOSED) => return,
                Err(ARMED) => break,
                // DISARMED: it has just become AWAITED. AWAITED: the wait ended for no reason.
                _ => {
                    let _ = futex::wait(state, futex::Flags::PRIVATE, AWAITED, None);
                }
            }
        }
        // Until readable. A descriptor that is at its end, or broken, counts: the main thread will find out.
        let mut fds: Vec<PollFd<'_>> = std::iter::once(close)
            .chain(descriptors)
            .map(|fd| PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(fd), PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                // Out of memory, perhaps. The main thread's own deadlines still wake it: sockets are then served late, not never.
                tracing::error!(%error, "cannot wait for sockets; they will be served with delay");
                return;
            }
        }
        // Whoever disarms owes nothing: if the main thread has done it, it is awake.
        if state.compare_exchange(ARMED, DISARMED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    fn make_readable(fd: &OwnedFd) {
        rustix::io::write(fd, &1u64.to_ne_bytes()).expect("a fresh eventfd");
    }

    fn consume(fd: &OwnedFd) {
        rustix::io::read(fd, &mut [0; 8]).expect("it was readable");
    }

    #[test]
    fn a_sleeper_is_woken_by_each_of_its_descriptors_and_an_awake_thread_is_left_alone() {
        let (a, b) = (event(), event());
        let (rang, bell) = channel();
        let both = vec![a.try_clone().expect("dup"), b.try_clone().expect("dup")];
        let waker = Waker::start(both, move || rang.send(()).expect("the test listens")).expect("a thread");
        for i in 0..1_000 {
            let fd = if i % 2 == 0 { &a } else { &b };
            // Before it is armed as well as after: no order may lose the wake-up.
            if i % 3 == 0 {
                make_readable(fd);
                waker.arm();
            } else {
                waker.arm();
                make_readable(fd);
            }
            bell.recv().expect("the bell rings");
            waker.disarm();
            consume(fd);
        }
        // Awake: readable descriptors ring nothing.
        make_readable(&a);
        drop(waker);
        assert!(bell.try_recv().is_err(), "the main thread was awake");
    }

    #[test]
    fn many_sleeps_without_traffic_and_an_end_in_either_state() {
        for armed in [false, true] {
            let fd = event();
            let (rang, bell) = channel();
            let waker = Waker::start(vec![fd], move || rang.send(()).expect("the test listens")).expect("a thread");
            for _ in 0..1_000 {
                waker.arm();
                waker.disarm();
            }
            if armed {
                waker.arm();
            }
            drop(waker);
            assert!(bell.try_recv().is_err());
        }
    }
}

//! The stand-in: a thread that serves others while the endpoint's own thread does something else for longer than a millisecond, or at a client for
//! longer than ten.
//!
//! | the endpoint's thread | which thread serves | the stand-in |
//! |---|---|---|
//! | has turns | the endpoint's, in each turn | checks now and then whether that thread still has turns |
//! | is busy, or hangs | the stand-in | waits for packets |
//! | sleeps | the endpoint's, woken by the packet | is parked |
//!
//! So a process that spends a long time applying or installing still acknowledges what is written into its memory, and its memory can be read. The
//! stand-in touches only the guarded half ([`super::serving`]): it sends no heartbeat and renews no lease.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::peer::Line;
use super::serving::BATCH;
use crate::contract::PeerKind;
use crate::host::process::come_first;

/// How long the endpoint's thread may be away before the stand-in serves.
const AFTER: Duration = Duration::from_millis(1);
/// The same at a client, where only the client itself has to wait. A host may have many clients, and each check costs a context switch.
const AFTER_CLIENT: Duration = Duration::from_millis(10);

/// How long the thread of an endpoint of that kind may be away.
pub(super) fn after(kind: PeerKind) -> Duration {
    match kind {
        PeerKind::Member => AFTER,
        PeerKind::Client => AFTER_CLIENT,
    }
}

/// Runs until the line is to stop.
pub(super) fn run(line: &Arc<Line>, after: Duration) {
    // It works for microseconds while others work for milliseconds, and it holds the guard that the endpoint's thread may wait for.
    come_first();
    let mut seen = line.polled.load(Ordering::Relaxed);
    while !line.stop.load(Ordering::Acquire) {
        if line.asleep.load(Ordering::Acquire) {
            std::thread::park();
            seen = line.polled.load(Ordering::Relaxed);
            std::thread::sleep(after);
            continue;
        }
        let polled = line.polled.load(Ordering::Relaxed);
        if polled != seen {
            seen = polled;
            std::thread::sleep(after);
            continue;
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: after.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(line.answers.as_fd(), PollFlags::IN)];
        // A signal may end it early; an early end does no harm.
        let _ = poll(&mut fds, Some(&timeout));
        if line.polled.load(Ordering::Relaxed) != seen {
            continue;
        }
        // If the endpoint's thread holds the guard, it was preempted while it served. Waiting for the guard leaves the core to that thread, and what
        // it leaves is answered at once. No thread that holds the guard waits for this one, so the wait ends.
        let mut serving = line.guard();
        if line.polled.load(Ordering::Relaxed) != seen {
            continue;
        }
        let began = Instant::now();
        let more = serving.serve(line, BATCH).more;
        drop(serving);
        if more {
            // With its priority over ordinary threads, it would keep its core for as long as a flood of packets lasts. So it rests for as long as it
            // has worked: the endpoint's thread gets at least half of the core, and in its next turn serves by itself again.
            std::thread::sleep(began.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// With priority over ordinary threads, it gets the core at once, and would keep the thread that holds the guard off it for as long as the system
    /// allows.
    #[test]
    fn it_leaves_its_core_to_the_one_that_has_the_guard_and_serves_after_that_one() {
        let line = Arc::new(Line::open(Some(([127, 0, 0, 1], 0).into()), false).expect("sockets"));
        let guard = line.guard();
        let at = line.answers.local_addr().expect("bound");
        line.asks.send_to(&[0; 48], at).expect("sent");
        let of = line.clone();
        let thread = std::thread::spawn(move || {
            run(&of, AFTER);
            clock_gettime(ClockId::ThreadCPUTime)
        });
        std::thread::sleep(300 * AFTER);
        drop(guard);
        while line.guard().counters.foreign == 0 {
            std::thread::sleep(AFTER);
        }
        line.stop.store(true, Ordering::Release);
        let used = thread.join().expect("it ends");
        assert!(used.tv_sec == 0 && used.tv_nsec < 150_000_000, "{used:?} of a core in 300 ms, with nothing to do");
    }

    /// How often this thread has given up its core voluntarily.
    fn rests() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is readable");
        let rests = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("it is there");
        rests.trim().parse().expect("a number")
    }

    /// A program may have many clients. Each has such a thread, which has priority over those that work.
    #[test]
    fn it_looks_seldom_after_a_client_that_has_turns() {
        let line = Arc::new(Line::open(Some(([127, 0, 0, 1], 0).into()), false).expect("sockets"));
        let (of, began) = (line.clone(), Instant::now());
        let thread = std::thread::spawn(move || {
            run(&of, after(PeerKind::Client));
            rests()
        });
        while began.elapsed() < 300 * AFTER {
            line.polled.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(AFTER);
        }
        line.stop.store(true, Ordering::Release);
        let looks = thread.join().expect("it ends");
        let most = began.elapsed().as_millis() as u64 / 10 + 10;
        assert!(looks <= most, "{looks} looks, at most {most} are due");
    }

    /// A flood must not keep the endpoint's thread from the core for good: with it, heartbeats and leases would end.
    #[test]
    fn it_rests_after_each_batch_of_a_flood() {
        let line = Arc::new(Line::open(Some(([127, 0, 0, 1], 0).into()), false).expect("sockets"));
        let at = line.answers.local_addr().expect("bound");
        // As many as the socket holds.
        for _ in 0..8192 {
            line.asks.send_to(&[0; 48], at).expect("sent");
        }
        let of = line.clone();
        let thread = std::thread::spawn(move || {
            run(&of, AFTER);
            rests()
        });
        while line.answers.peek(&mut [0; 48]).is_ok() {}
        line.stop.store(true, Ordering::Release);
        let rests = thread.join().expect("it ends");
        let batches = line.guard().counters.foreign / BATCH as u64;
        assert!(batches > 8, "there was a flood: {:?}", line.guard().counters);
        assert!(rests >= batches - 1, "{rests} rests in {batches} batches");
    }
}

//! The stand-in: a thread that serves others while the endpoint's own thread does something else for longer than a millisecond; at a client, ten.
//!
//! | the endpoint's thread | who serves | the stand-in |
//! |---|---|---|
//! | has turns | it, in each of them | looks now and then whether it still has |
//! | is busy, or hangs | the stand-in | waits for packets |
//! | sleeps | it, woken by the packet | is parked |
//!
//! So a process that applies or installs for long still acknowledges what is written into its memory, and its memory can be read. The stand-in touches nothing but
//! the guarded half ([`super::serving`]): no heart beats by it, and no lease is renewed.

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
/// The same at a client, which holds nobody up but itself. A host may have many of them, and each look is a change of threads.
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
    // It serves for microseconds while others work for milliseconds, and holds what the endpoint's thread may wait for.
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
        // A signal ends it early, and so may anything.
        let _ = poll(&mut fds, Some(&timeout));
        if line.polled.load(Ordering::Relaxed) != seen {
            continue;
        }
        // Where the endpoint's thread has it, that was kept from running while it served. To wait for it leaves the core to it, and what it leaves is answered at once.
        // Nobody who holds the guard waits for this thread, so the wait ends.
        let mut serving = line.guard();
        if line.polled.load(Ordering::Relaxed) != seen {
            continue;
        }
        let began = Instant::now();
        let more = serving.serve(line, BATCH).more;
        drop(serving);
        if more {
            // Before ordinary threads, it would have its core for as long as a flood of packets lasts. So it rests for as long as it has worked: the endpoint's thread gets
            // half of the core at least, and with its next turn it serves by itself again.
            std::thread::sleep(began.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    /// Before ordinary threads it comes at once, so that it would keep the one with the guard from its core for as long as the system bears that.
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

    /// How often this thread has left its core by itself.
    fn rests() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is readable");
        let rests = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("it is there");
        rests.trim().parse().expect("a number")
    }

    /// A program may have many clients, each with such a thread, which comes before those that work.
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

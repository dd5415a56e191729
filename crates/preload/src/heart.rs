//! Signs of life from a replica whose server spends long on one request.
//!
//! The node has its turns on the server's thread, and has none while the server executes. So a second thread shows the others meanwhile that this process
//! lives. It falls silent when the server has been at one round for longer than a request may take, since the server may never come back. It does not fall
//! silent when a leader's server has come back from that round, because then this server will too, nor when no request has been read in the round, because then
//! others would take as long. A process that is stopped, or gets no processor, falls silent as well.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use martlet_fabric::Pulse;

use crate::{clock, fault, sys};

/// How often the thread looks whether the server is executing a round, in nanoseconds: many times before a replica would be taken for dead.
const LOOK_NS: u64 = 200_000_000;
/// How often it gives a sign of life while the server executes, in nanoseconds. Other replicas count the looks that find none against those that find one, and
/// look as often as `martlet run` sets (`heartbeat_us`). Signs come twice as often as those looks, as a node's own do.
const BEAT_NS: u64 = 10_000_000;

/// Shows the others that the node of this process lives; null before the node runs.
static PULSE: AtomicPtr<Pulse> = AtomicPtr::new(std::ptr::null_mut());
/// Since when the server has been executing its round, on the monotonic clock; 0: it waits.
static SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// A leader's server has come back from that round.
static IS_SURVIVED: AtomicBool = AtomicBool::new(false);
/// How long a request may take, in nanoseconds.
static LONGEST_NS: AtomicU64 = AtomicU64::new(u64::MAX);

/// How long a request may take, in nanoseconds, before it is given up along with the replica that executes it.
pub fn longest_ns() -> u64 {
    LONGEST_NS.load(Ordering::Relaxed)
}

/// A request may take so long, in nanoseconds.
pub fn set_longest(ns: u64) {
    LONGEST_NS.store(ns, Ordering::Relaxed);
}

/// The node of this process shows with this pulse that it lives.
pub fn show_by(pulse: Pulse) {
    // The pulse before it is leaked: it belongs to an earlier life of the node, of which there are few, and the thread may be about to use it.
    PULSE.store(Box::into_raw(Box::new(pulse)), Ordering::Release);
}

/// The server is given a round; `is_survived` if a leader's server has come back from that round.
pub fn begin(now_ns: u64, is_survived: bool) {
    IS_SURVIVED.store(is_survived, Ordering::Relaxed);
    SINCE_NS.store(now_ns, Ordering::Release);
}

/// The server has come back from the round.
pub fn end() {
    SINCE_NS.store(0, Ordering::Release);
}

/// Whether a replica is alive whose server was given its round at `since_ns`. `ends`: the server is bound to come back from the round, or others would come
/// back no sooner.
fn lives(since_ns: u64, ends: bool, longest_ns: u64, now_ns: u64) -> bool {
    since_ns != 0 && (ends || now_ns.saturating_sub(since_ns) <= longest_ns)
}

/// Starts the thread in a process that has none. A fork has no copy of its parent's.
///
/// # Errors
/// When there can be no more threads.
pub fn start() -> io::Result<()> {
    PULSE.store(std::ptr::null_mut(), Ordering::Release);
    end();
    // Signals are meant for the server, and handled on its threads.
    // SAFETY: the sets are initialised by the calls that take them first.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = std::thread::Builder::new().name("martlet-heart".into()).stack_size(64 << 10).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.map(drop)
    }
}

fn run() {
    let mut pause_ns = LOOK_NS;
    loop {
        sys::sleep(pause_ns);
        pause_ns = LOOK_NS;
        let since_ns = SINCE_NS.load(Ordering::Acquire);
        let ends = IS_SURVIVED.load(Ordering::Relaxed) || !fault::has_requests();
        if lives(since_ns, ends, longest_ns(), clock::monotonic_ns()) {
            pause_ns = BEAT_NS;
            // SAFETY: null, or leaked, and used by no other thread.
            if let Some(pulse) = unsafe { PULSE.load(Ordering::Acquire).as_ref() } {
                pulse.lives();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_works_lives_for_as_long_as_a_request_may_take_and_until_its_end_where_that_is_known_to_come() {
        assert!(!lives(0, true, 10, 100), "it waits, and its node has turns");
        assert!(lives(100, false, 10, 110));
        assert!(!lives(100, false, 10, 111));
        assert!(lives(100, true, 10, 1_000));
    }

    /// A reply to one client says nothing of the request that was read behind it.
    #[test]
    fn a_round_with_a_request_is_limited_also_where_something_has_been_written_since() {
        fault::begin(1, 0);
        assert!(!fault::has_requests());
        fault::reads(7);
        fault::writes();
        assert!(fault::has_requests());
        fault::begin(2, 0);
        assert!(!fault::has_requests());
    }
}

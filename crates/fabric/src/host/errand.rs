//! Errands: work of a process that may have to wait for a file system, done by threads that live no longer than it takes.
//!
//! SIGKILL wakes every thread of a process, and each has to end. Threads that stood aside do so on the processors where clients run: with two helpers
//! that sleep all day beside the bootstrap thread, it takes a client on such a processor half as long again to go on after a kill (`martlet bench
//! failover`). So a node has only one thread beside its acting one, the bootstrap thread, which starts the others when there is something for them to
//! do. The acting thread only rings.
//!
//! In a process without a bootstrap thread, the caller that sends an errand starts its thread.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::process::stand_aside;

/// How long to wait before asking again for a thread that the system has refused.
const REFUSED: Duration = Duration::from_millis(100);

type Work = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone)]
struct Errand {
    name: &'static str,
    work: Work,
}

impl Errand {
    /// Starts its thread. `aside` says that other threads wait for the caller, so that the new thread has to stand aside.
    fn start(&self, aside: bool) -> bool {
        let work = Arc::clone(&self.work);
        let run = move || {
            if aside {
                stand_aside();
            }
            work();
        };
        thread::Builder::new().name(self.name.into()).spawn(run).is_ok()
    }
}

/// An errand that is repeated.
struct Repeated {
    errand: Errand,
    every: Duration,
    due: Instant,
    /// Whether it is under way: a file system can keep it for long.
    out: Arc<AtomicBool>,
    /// Expires when the errand is no longer wanted.
    wanted: Weak<()>,
}

#[derive(Default)]
struct Desk {
    /// How each bootstrap thread is woken, and its number.
    on_duty: Vec<(u64, Arc<dyn Fn() + Send + Sync>)>,
    next_duty: u64,
    waiting: Vec<Errand>,
    /// Until this time the system is not asked for threads, since it has refused one.
    refused: Option<Instant>,
    repeated: Vec<Repeated>,
}

/// The desk of a process. A forked child has its parent's desk in its memory. That one may be locked for ever, if another thread used it at the time
/// of the fork, and has no thread on duty. So the child gets its own.
struct Own {
    pid: u32,
    desk: Mutex<Desk>,
}

static OWN: AtomicPtr<Own> = AtomicPtr::new(std::ptr::null_mut());

fn desk() -> MutexGuard<'static, Desk> {
    let pid = std::process::id();
    loop {
        let found = OWN.load(Ordering::Acquire);
        // SAFETY: what is there was leaked before it was put there with release, and only its mutex ever changes.
        let own = unsafe { found.as_ref::<'static>() };
        // The parent lives while it forks, so its pid is not the child's.
        if let Some(own) = own.filter(|own| own.pid == pid) {
            return own.desk.lock().unwrap_or_else(PoisonError::into_inner);
        }
        let new = Box::into_raw(Box::new(Own { pid, desk: Mutex::default() }));
        if OWN.compare_exchange(found, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: it comes from a box. Another thread was first, so no other thread has seen this one.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

impl Desk {
    /// Wakes the threads on duty.
    fn ring(&self) {
        self.on_duty.iter().for_each(|(_, wake)| wake());
    }
}

/// Has `work` done once, by a thread of that name. If there is no bootstrap thread, the caller starts that thread, and the system may refuse it;
/// returns false in that case. If a bootstrap thread is refused a thread, it asks again later.
///
/// As long as there is a bootstrap thread, the caller does not wait for anything.
pub fn send(name: &'static str, work: Arc<dyn Fn() + Send + Sync>) -> bool {
    let errand = Errand { name, work };
    let mut desk = desk();
    if desk.on_duty.is_empty() {
        drop(desk);
        return errand.start(true);
    }
    desk.waiting.push(errand);
    desk.ring();
    true
}

/// Starts the errands that wait, from this thread. For a thread that ends the process or panics, which may be the bootstrap thread itself. Returns
/// whether the system has granted every thread.
pub fn start_waiting() -> bool {
    let mut refused = std::mem::take(&mut desk().waiting);
    refused.retain(|errand| !errand.start(true));
    let is_done = refused.is_empty();
    desk().waiting.append(&mut refused);
    is_done
}

/// Has `work` done again and again by threads of that name, each time `every` after the last one began. This goes on while the returned value lives
/// and the process has a bootstrap thread; two of these threads never run at once.
#[must_use]
pub fn repeat(name: &'static str, every: Duration, work: Arc<dyn Fn() + Send + Sync>) -> Standing {
    let wanted = Arc::new(());
    let out = Arc::new(AtomicBool::new(false));
    let back = Arc::clone(&out);
    let work = move || {
        let _back = Back(&back);
        work();
    };
    let errand = Errand { name, work: Arc::new(work) };
    let mut desk = desk();
    desk.repeated.push(Repeated { errand, every, due: Instant::now(), out, wanted: Arc::downgrade(&wanted) });
    desk.ring();
    drop(desk);
    Standing { _wanted: wanted }
}

/// An errand that is repeated as long as this lives.
#[derive(Debug)]
pub struct Standing {
    _wanted: Arc<()>,
}

struct Back<'a>(&'a AtomicBool);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// From now on, the calling thread starts errands: it has to [look](attend) after each call of `wake`, and when something is
/// [due](next_due).
pub(crate) fn on_duty(wake: Arc<dyn Fn() + Send + Sync>) -> Duty {
    let mut desk = desk();
    let number = desk.next_duty;
    desk.next_duty += 1;
    desk.on_duty.push((number, wake));
    Duty(number)
}

/// The calling thread is on duty as long as this lives.
#[derive(Debug)]
pub(crate) struct Duty(u64);

impl Drop for Duty {
    fn drop(&mut self) {
        let last = {
            let mut desk = desk();
            desk.on_duty.retain(|(number, _)| *number != self.0);
            desk.on_duty.is_empty()
        };
        if last {
            start_waiting();
        }
    }
}

/// When a thread on duty has to look again if nothing is sent before.
pub(crate) fn next_due() -> Option<Instant> {
    let desk = desk();
    // For an errand sent since this thread last looked, the ring may have come while the thread was awake.
    let waiting = (!desk.waiting.is_empty()).then(|| desk.refused.unwrap_or_else(Instant::now));
    // A repeated errand that is still under way is looked at again at its next time.
    desk.repeated.iter().map(|repeated| repeated.due).chain(waiting).min()
}

/// Starts what waits and what is due.
pub(crate) fn attend(now: Instant) {
    let mut refused = std::mem::take(&mut desk().waiting);
    refused.retain(|errand| !errand.start(false));
    let mut out = Vec::new();
    let mut desk = desk();
    desk.refused = (!refused.is_empty()).then(|| now + REFUSED);
    desk.waiting.append(&mut refused);
    desk.repeated.retain(|repeated| repeated.wanted.strong_count() > 0);
    for repeated in desk.repeated.iter_mut().filter(|repeated| repeated.due <= now) {
        repeated.due = now + repeated.every;
        if !repeated.out.swap(true, Ordering::Acquire) {
            out.push((repeated.errand.clone(), Arc::clone(&repeated.out)));
        }
    }
    drop(desk);
    for (errand, is_out) in out {
        if !errand.start(false) {
            is_out.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Other tests of this process send their errands to the same desk.
    static ALONE: Mutex<()> = Mutex::new(());

    fn serve(until: impl Fn() -> bool) {
        let (wake, woken) = std::sync::mpsc::channel();
        let duty = on_duty(Arc::new(move || wake.send(()).expect("it waits")));
        while !until() {
            match next_due() {
                Some(due) => drop(woken.recv_timeout(due.saturating_duration_since(Instant::now()))),
                None => woken.recv().expect("it is on duty"),
            }
            attend(Instant::now());
        }
        drop(duty);
    }

    #[test]
    fn what_is_sent_is_done_by_another_thread_whether_one_is_on_duty_or_not() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let done = Arc::new(AtomicUsize::new(0));
        let sender = thread::current().id();
        let send_one = || {
            let done = Arc::clone(&done);
            send(
                "errand",
                Arc::new(move || {
                    assert_eq!(thread::current().name(), Some("errand"));
                    assert_ne!(thread::current().id(), sender);
                    done.fetch_add(1, Ordering::SeqCst);
                    // Ends the wait of the thread on duty.
                    desk().ring();
                }),
            );
        };
        send_one();
        while done.load(Ordering::SeqCst) < 1 {
            thread::yield_now();
        }
        thread::scope(|scope| {
            scope.spawn(|| serve(|| done.load(Ordering::SeqCst) >= 3));
            (0..2).for_each(|_| send_one());
        });
        assert_eq!(done.load(Ordering::SeqCst), 3, "each once");
    }

    #[test]
    fn what_is_left_when_the_last_goes_off_duty_is_done_as_well() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let duty = on_duty(Arc::new(|| {}));
        let done = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&done);
        send("errand", Arc::new(move || its.store(true, Ordering::SeqCst)));
        drop(duty);
        while !done.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_fork_has_a_desk_of_its_own_whatever_its_parent_was_doing() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let duty = on_duty(Arc::new(|| {}));
        let at_the_desk = desk();
        // SAFETY: the child uses nothing that another thread may hold: it allocates, which the C library makes safe, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_empty = desk().on_duty.is_empty();
            // SAFETY: it ends this process.
            unsafe { libc::_exit(if is_empty { 7 } else { 8 }) };
        }
        assert!(child > 0, "a process");
        let mut status = 0;
        // SAFETY: it waits for its own child; the pointer is to a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        drop(at_the_desk);
        assert!(desk().on_duty.iter().any(|(number, _)| *number == duty.0), "the parent's is as it was");
    }

    #[test]
    fn what_comes_back_is_never_under_way_twice_and_ends_with_its_handle() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (times, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, within) = (Arc::clone(&times), Arc::clone(&inside));
        let work = move || {
            assert_eq!(within.fetch_add(1, Ordering::SeqCst), 0, "alone");
            // Longer than the interval after which it is due again.
            thread::sleep(Duration::from_millis(3));
            within.fetch_sub(1, Ordering::SeqCst);
            count.fetch_add(1, Ordering::SeqCst);
        };
        let standing = repeat("errand", Duration::from_millis(1), Arc::new(work));
        serve(|| times.load(Ordering::SeqCst) >= 4);
        drop(standing);
        attend(Instant::now());
        assert!(desk().repeated.is_empty(), "nobody wants it any more");
    }
}

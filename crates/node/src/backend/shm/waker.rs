//! The threads that listen for a sleeping main thread.
//!
//! A sleeping main thread waits in one place: for words in memory (its doorbell, the death words of its peers), or in epoll, for sockets. While it is in one of
//! these, another thread listens at the other, and passes on what comes:
//!
//! - **The endpoint's [`Ear`]** listens to sockets, and rings the bell. The endpoint's bootstrap thread does this, besides its own work. A backup sleeps on its
//!   words, since nothing must come between a death and its notice; so does a primary whose clients come by memory.
//! - **The crier** waits for the words, and makes an eventfd readable among the sockets. A primary whose clients come by sockets sleeps on those: each request
//!   then costs one wake-up, and the scheduler sees which thread wakes which, and lets a lone client and its server share a core. The crier is a thread of its
//!   own, and a primary whose clients come by memory lets it go: a SIGKILL wakes every thread of a process before it returns, and two or more of them on the
//!   killer's core make the killer wait until they have ended.
//!
//! Each listens only while the main thread is parked, and at the other place: an awake main thread looks at everything itself, and what comes then must cost
//! nothing more. The crier's part (the ear's is the same):
//!
//! | main thread | listener |
//! |---|---|
//! | arms; wakes the listener if that waits for it | waits until armed |
//! | looks at everything once more | waits for something to come |
//! | sleeps | disarms; passes it on |
//! | disarms | |
//!
//! While nothing comes, the listener stays in its wait across many sleeps of the main thread, and arming costs two loads and a store.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use martlet_fabric::host::descriptors::{duplicate, open};
use martlet_fabric::shm::{Ear, OwnRegions, ParkWord, ShmFabric, Vigil};
use martlet_protocol::basics::Time;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use crate::backend::enter;

/// How long an unneeded crier is kept, in nanoseconds. Starting one costs a tenth of a millisecond or more.
const CRIER_IDLE_NS: u64 = 10_000_000;

/// A listener's state is in the lowest two bits; above them is a number that changes with what it is to listen for.
const STATE: u32 = 3;
const DISARMED: u32 = 0;
const ARMED: u32 = 1;
/// Disarmed, and the listener waits for that to change.
const AWAITED: u32 = 2;
const CLOSED: u32 = 3;

/// A thread that listens. Dropping it ends the thread, once its wait is over.
#[derive(Debug)]
struct Listener {
    state: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts a thread that calls `wait` while it is armed, with its state as it was then, and `pass_on` after each wait: with `true` when it is still armed,
    /// with `false` when the main thread has disarmed it meanwhile. An error ends the thread.
    fn start(
        name: &str,
        wait: impl Fn(&AtomicU32, u32) -> io::Result<()> + Send + 'static,
        pass_on: impl Fn(bool) + Send + 'static,
    ) -> io::Result<Listener> {
        let state = Arc::new(AtomicU32::new(DISARMED));
        let its = Arc::clone(&state);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            martlet_fabric::host::process::stand_aside();
            if let Err(error) = listen(&its, &wait, &pass_on) {
                // Memory may have run out. The main thread's own deadlines still wake it: what comes is then seen late, but not never.
                tracing::error!(%error, "the thread that wakes this node has ended: the node may answer late. Restart the node");
            }
        })?;
        Ok(Listener { state, thread: Some(thread) })
    }

    /// To be called by the main thread before its last look at everything, after which it sleeps. `anew`: there is something else to listen for than before.
    fn arm(&self, anew: bool) {
        // Only this thread changes the number.
        let number = (self.state.load(Ordering::Relaxed) & !STATE).wrapping_add(if anew { STATE + 1 } else { 0 });
        // SeqCst: the look that follows must not come before this, and the listener's exchange must be ordered against it.
        let before = self.state.swap(number | ARMED, Ordering::SeqCst);
        // A wake-up cannot be lost: the listener waits on this word only while it is AWAITED; and a listener that waits for something else finds that the word
        // has changed, or is woken.
        if before & STATE == AWAITED || anew {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }

    /// To be called by the main thread when it is awake again.
    fn disarm(&self) {
        let now = self.state.load(Ordering::Relaxed);
        if now & STATE == ARMED {
            let _ = self.state.compare_exchange(now, now & !STATE | DISARMED, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whether the thread has ended, so that dropping this takes no time.
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the thread to end. It ends when its wait is over.
    fn close(&self) {
        self.state.store(CLOSED, Ordering::SeqCst);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that wakes this node panicked");
        }
    }
}

fn listen(state: &AtomicU32, wait: &dyn Fn(&AtomicU32, u32) -> io::Result<()>, pass_on: &dyn Fn(bool)) -> io::Result<()> {
    loop {
        let now = state.load(Ordering::SeqCst);
        let (number, awaited) = (now & !STATE, now & !STATE | AWAITED);
        match now & STATE {
            CLOSED => return Ok(()),
            ARMED => {
                wait(state, now)?;
                pass_on(state.compare_exchange(now, number | DISARMED, Ordering::SeqCst, Ordering::SeqCst).is_ok());
            }
            _ => {
                if now == awaited || state.compare_exchange(now, awaited, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    let _ = futex::wait(state, futex::Flags::PRIVATE, awaited, None);
                }
            }
        }
    }
}

/// Waits for words, and makes a descriptor readable.
#[derive(Debug)]
struct Crier {
    listener: Listener,
    vigil: Arc<Mutex<Option<Vigil>>>,
    /// The words for which the vigil is kept.
    words: Vec<ParkWord>,
}

impl Crier {
    /// A crier for the endpoint that these regions belong to. It makes `call` readable when something comes.
    fn start(endpoint: OwnRegions, call: OwnedFd) -> io::Result<Crier> {
        let vigil: Arc<Mutex<Option<Vigil>>> = Arc::default();
        let its = Arc::clone(&vigil);
        let wait = move |state: &AtomicU32, armed| {
            let vigil = its.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(vigil) = vigil {
                vigil.keep(state, armed);
            }
            Ok(())
        };
        let pass_on = move |armed: bool| {
            // It fails only when the counter is full, and then it is readable as well.
            let _ = rustix::io::write(&call, &1u64.to_ne_bytes());
            // For a death the kernel wakes one waiter. That may have been this thread, which was still in its wait while the main thread sleeps on its words.
            if !armed {
                endpoint.nudge();
            }
        };
        Ok(Crier { listener: Listener::start("martlet-crier", wait, pass_on)?, vigil, words: Vec::new() })
    }

    /// Listens for the endpoint's bell and these words.
    fn arm(&mut self, fabric: &ShmFabric, words: &[ParkWord]) {
        let mut vigil = self.vigil.lock().unwrap_or_else(PoisonError::into_inner);
        let anew = vigil.is_none() || self.words != words;
        if anew {
            *vigil = Some(fabric.vigil(words));
            words.clone_into(&mut self.words);
        }
        drop(vigil);
        self.listener.arm(anew);
    }
}

/// Both listeners, as far as there is something to listen for.
#[derive(Debug)]
pub struct Watch {
    ear: Ear,
    /// The eventfd among the application's sockets, if there are any, that the crier makes readable.
    called: Option<OwnedFd>,
    crier: Option<Crier>,
    /// A crier that has been told to end. It may take its time, but the main thread has none to wait for it.
    leaving: Option<Crier>,
    /// A crier could not be started.
    refused: bool,
    /// When the crier was last used, or use of it was last expected.
    crier_used: Time,
}

impl Watch {
    /// Listens for `stop` and for `sockets`, the application's epoll instance, to which the crier's descriptor is added.
    pub fn start(fabric: &ShmFabric, sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<Watch> {
        let heard = sockets.into_iter().chain([stop]).map(duplicate).collect::<io::Result<_>>()?;
        let called = match sockets {
            None => None,
            Some(sockets) => {
                let called = open(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
                for own in [called.as_fd(), stop] {
                    enter(sockets, own)?;
                }
                Some(called)
            }
        };
        let mut watch = Watch { ear: fabric.ear(heard), called, crier: None, leaving: None, refused: false, crier_used: Time(0) };
        // The crier is started now, and not when this node has just become primary and its clients wait.
        watch.start_crier(fabric);
        Ok(watch)
    }

    /// Whether the main thread can sleep in the application's epoll instance.
    pub fn has_crier(&self) -> bool {
        self.called.is_some() && !self.refused
    }

    /// To be called by the main thread before its last look at everything, after which it sleeps on its words.
    pub fn arm_waker(&self) {
        self.ear.arm();
    }

    /// To be called by the main thread before its last look at everything, after which it sleeps in the application's epoll instance.
    pub fn arm_crier(&mut self, fabric: &ShmFabric, words: &[ParkWord]) {
        if self.crier.is_none() {
            self.start_crier(fabric);
        }
        if let Some(crier) = &mut self.crier {
            crier.arm(fabric, words);
        }
    }

    fn start_crier(&mut self, fabric: &ShmFabric) {
        let Some(called) = &self.called else { return };
        match duplicate(called).and_then(|call| Crier::start(fabric.own_regions(), call)) {
            Ok(crier) => self.crier = Some(crier),
            Err(error) => {
                tracing::warn!(%error, "cannot start the thread martlet-crier: this node answers requests over sockets a little later");
                // If a sleep has begun, it ends at once, and is the last on the sockets.
                let _ = rustix::io::write(called, &1u64.to_ne_bytes());
                self.refused = true;
            }
        }
    }

    /// To be called by the main thread now and then. `expected`: as far as can be told, the next sleep may be one on the sockets. Lets the crier go once that
    /// has not been so for `CRIER_IDLE_NS`.
    pub fn tend_crier(&mut self, now: Time, expected: bool) {
        if expected {
            self.crier_used = now;
        } else if self.crier.is_some() && self.leaving.is_none() && now.since(self.crier_used) >= CRIER_IDLE_NS {
            self.leaving = self.crier.take();
            self.leaving.iter().for_each(|crier| crier.listener.close());
        }
        if self.leaving.as_ref().is_some_and(|crier| crier.listener.has_ended()) {
            self.leaving = None;
        }
    }

    /// To be called by the main thread when it is awake again.
    pub fn disarm(&self) {
        self.ear.disarm();
        if let Some(crier) = &self.crier {
            crier.listener.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use martlet_fabric::shm::ShmConfig;
    use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind, RegionName, RegionSpec};

    use rustix::event::epoll;

    use super::*;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    fn make_readable(fd: &OwnedFd) {
        rustix::io::write(fd, &1u64.to_ne_bytes()).expect("a fresh eventfd");
    }

    /// An endpoint that is connected with no other.
    fn endpoint() -> ShmFabric {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let regions = RegionSpec { public: vec![(RegionName(0), 64)], ..RegionSpec::default() };
        let cluster = format!("waker-test-{}-{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "");
        ShmFabric::start(ShmConfig::new(&cluster, &[7; 32], identity, regions.clone(), regions)).expect("an endpoint")
    }

    #[test]
    fn nobody_sleeps_through_a_nudge_or_a_socket_wherever_it_sleeps() {
        const EVENTS: u64 = 6_000;
        let mut fabric = endpoint();
        let sockets = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll instance");
        let socket = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        epoll::add(&sockets, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("added");
        let stop = event();
        let mut watch = Watch::start(&fabric, Some(sockets.as_fd()), stop.as_fd()).expect("descriptors");
        assert!(watch.has_crier());
        let ours = fabric.own_regions();
        let (nudges, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        let (nudges, seen, other) = (&nudges, &seen, &socket);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut chance = 1u64;
                for number in 0..EVENTS {
                    // Each waits until the one before it has been seen: a lost wake-up is a hang.
                    while seen.load(Ordering::SeqCst) < number {
                        std::thread::yield_now();
                    }
                    // At any point of the other thread's way into its sleep, and sometimes when it has been asleep for long.
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (0..chance >> 33 & [0xff, 0xfff, 0xffff][(number % 3) as usize]).for_each(|_| std::hint::spin_loop());
                    if chance >> 40 & 1 == 0 {
                        make_readable(other);
                    } else {
                        nudges.fetch_add(1, Ordering::SeqCst);
                        ours.nudge();
                    }
                }
            });
            let (mut taken, mut total, mut sleeps) = (0, 0, 0u64);
            while total < EVENTS {
                sleeps += 1;
                // The crier may be let go and started again between any two sleeps.
                watch.tend_crier(Time(sleeps * CRIER_IDLE_NS), sleeps % 64 != 0);
                // A while in one place, a while in the other.
                let at_sockets = sleeps / 5 % 2 == 0;
                fabric.announce();
                if at_sockets {
                    watch.arm_crier(&fabric, &[]);
                } else {
                    watch.arm_waker();
                }
                let now = nudges.load(Ordering::SeqCst);
                let mut count = [0; 8];
                let arrived = rustix::io::read(&socket, &mut count).map_or(0, |_| u64::from_ne_bytes(count));
                let new = now - std::mem::replace(&mut taken, now) + arrived;
                total += new;
                seen.store(total, Ordering::SeqCst);
                if new > 0 || at_sockets && fabric.find_work(&[]).is_some() {
                    fabric.stay_awake();
                } else if at_sockets {
                    let _ = epoll::wait(&sockets, rustix::buffer::spare_capacity(&mut Vec::with_capacity(4)), None);
                    fabric.stay_awake();
                } else {
                    fabric.sleep(&[], None);
                }
                watch.disarm();
            }
        });
    }
}

//! The threads that act for a process: those that may write into others' memory for it, or rely on its lease. Each has death words of its own, and others take
//! the process for dead only when all of these threads are dead (TRAPS 32).

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use martlet_fabric::host::{DeathWords, DeathWordsError, OWNER_DIED, OwnRegion};
use martlet_fabric::primitive::{Ordering, fence};
use martlet_protocol::basics::layout::{LIFE, MAX_ACTING_THREADS, MAX_WATCHERS, life};
use martlet_warden::client::{ActError, Acting, Threads};

const _: () = assert!(life::DEATH_STRIDE >= martlet_fabric::host::WORDS_EACH);

/// Why a thread cannot act for its process.
#[derive(Debug, thiserror::Error)]
pub enum ActingError {
    /// There is no life of the node that it could act for.
    #[error("the node has not begun, or has ended")]
    NoLife,
    /// All places are taken, or belonged to threads that have died.
    #[error("{MAX_ACTING_THREADS} threads act for this process already; more are not allowed")]
    Full,
    /// No thread acts for the process any more, so others may take it for dead, or are about to.
    #[error("no other thread acts for this process any more")]
    NobodyActs,
    /// See there.
    #[error("a thread's death words: {0}")]
    DeathWords(#[from] DeathWordsError),
    /// The words by which the warden of this host sees the thread die.
    #[error("a thread's word for the warden: {0}")]
    Warden(#[from] ActError),
}

/// The threads that act for a node's process. It can be cloned and sent to wherever a thread is to begin acting.
#[derive(Clone, Debug, Default)]
pub struct ActingThreads {
    life: Arc<Mutex<Option<Life>>>,
    /// By which each thread also tells the warden of this host that it acts, if the node has a warden.
    warden: Option<Threads>,
}

/// The present life of the node.
#[derive(Debug)]
struct Life {
    signs: OwnRegion,
    /// Whether the thread at each place acts. A thread that has died still counts as acting here.
    acting: [bool; MAX_ACTING_THREADS],
}

/// A thread that acts until it drops this value. After that it does nothing more for the process.
#[derive(Debug)]
pub struct ActingThread {
    /// `None` once given back.
    words: Option<DeathWords>,
    /// The warden's share, given back after those words.
    _for_warden: Option<Acting>,
    place: usize,
    /// The signs of life of the life that it acts for: another life has another region.
    signs: OwnRegion,
    threads: ActingThreads,
    /// Tied to its thread.
    _thread: PhantomData<*const ()>,
}

/// The death words of the thread at a place.
fn words_at(place: usize) -> Vec<usize> {
    (0..MAX_WATCHERS).map(|watcher| life::death(place, watcher)).collect()
}

impl ActingThreads {
    /// As before, and each thread has a word for a warden as well.
    pub(crate) fn watched_by(warden: Option<Threads>) -> ActingThreads {
        ActingThreads { life: Arc::default(), warden }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A life of the node begins, with the calling thread, before any other process is connected with it. `signs` is its region [`LIFE`], or `None` if it has
    /// none.
    ///
    /// # Errors
    /// When the thread's death words cannot be had.
    pub(crate) fn begin(&self, signs: Option<OwnRegion>) -> Result<ActingThread, ActingError> {
        let signs = signs.ok_or(DeathWordsError::Region(LIFE.0))?;
        let words = signs.register_death_words(&words_at(0))?;
        let for_warden = self.warden.as_ref().map(Threads::act).transpose()?;
        signs.memory()[life::THREADS].store(life::counting(0, 0), Ordering::Release);
        let mut acting = [false; MAX_ACTING_THREADS];
        acting[0] = true;
        *self.lock() = Some(Life { signs: signs.clone(), acting });
        Ok(self.thread(words, for_warden, 0, signs))
    }

    /// The calling thread acts for the process from now on, until it drops the returned value. This must be called before the thread does anything that others
    /// rely on to have ended with the process's death: before it writes into their memory, or relies on the lease.
    ///
    /// The thread acts for the present life of the node. When the node begins a new life, with another incarnation, the thread has to join again.
    ///
    /// # Errors
    /// See [`ActingError`].
    pub fn join(&self) -> Result<ActingThread, ActingError> {
        let mut life = self.lock();
        let life = life.as_mut().ok_or(ActingError::NoLife)?;
        let memory = life.signs.memory();
        let value = |place: usize, watcher| memory[life::death(place, watcher)].load(Ordering::Acquire);
        // The place of a thread that has died has to go on saying so.
        let is_free = |place: &usize| !life.acting[*place] && (0..MAX_WATCHERS).all(|watcher| value(*place, watcher) == 0);
        let place = (0..MAX_ACTING_THREADS).find(is_free).ok_or(ActingError::Full)?;
        let words = life.signs.register_death_words(&words_at(place))?;
        let for_warden = self.warden.as_ref().map(Threads::act).transpose()?;
        let count = &memory[life::THREADS];
        count.store(life::counting(count.load(Ordering::Relaxed), place), Ordering::Release);
        // Either a watcher that finds all threads of the old count dead finds this new count, or we find that one of those threads lives: `certain` has the
        // argument. The fence pairs with the order of a watcher's reads.
        fence(Ordering::SeqCst);
        let lives = |place: usize| {
            (0..MAX_WATCHERS).all(|watcher| value(place, watcher) & life::TID_MASK != 0 && value(place, watcher) & OWNER_DIED == 0)
        };
        // The kernel marks the words of a dead thread one after the other: the warden's word may be among the first.
        let is_alone_to_warden = for_warden.as_ref().is_some_and(|acting| !acting.has_company());
        if is_alone_to_warden || !(0..MAX_ACTING_THREADS).any(|other| life.acting[other] && lives(other)) {
            return Err(ActingError::NobodyActs);
        }
        life.acting[place] = true;
        let signs = life.signs.clone();
        Ok(self.thread(words, for_warden, place, signs))
    }

    fn thread(&self, words: DeathWords, for_warden: Option<Acting>, place: usize, signs: OwnRegion) -> ActingThread {
        ActingThread { words: Some(words), _for_warden: for_warden, place, signs, threads: self.clone(), _thread: PhantomData }
    }
}

impl ActingThread {
    /// The life that it acts for ends: no further thread can begin.
    pub(crate) fn end_life(self) {
        self.threads.lock().take_if(|life| life.signs.is(&self.signs));
    }
}

impl Drop for ActingThread {
    fn drop(&mut self) {
        let mut life = self.threads.lock();
        self.words = None;
        if let Some(life) = life.as_mut().filter(|life| life.signs.is(&self.signs)) {
            life.acting[self.place] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use martlet_fabric::shm::{ShmConfig, ShmFabric};
    use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind, RegionSpec, Token};
    use martlet_protocol::basics::layout::life::{TID_MASK, WAITERS};
    use martlet_protocol::detector::certain::{DeathWords as Watched, Sign};

    use super::*;

    const WATCHER: NodeId = NodeId(2);

    fn start(node: NodeId) -> ShmFabric {
        let identity = Identity { node, incarnation: Incarnation(1), kind: PeerKind::Member };
        let mut regions = RegionSpec::default();
        regions.own([(LIFE, life::WORDS * 8)]);
        let cluster = format!("acting-{}-{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "");
        ShmFabric::start(ShmConfig::new(&cluster, &[7; 32], identity, regions.clone(), regions)).expect("an endpoint")
    }

    fn up(fabric: &mut ShmFabric) -> PeerId {
        loop {
            match fabric.event() {
                Some(PeerEvent::Up { peer, .. }) => return peer,
                Some(gone) => panic!("{gone:?}"),
                None => std::thread::yield_now(),
            }
        }
    }

    /// One look by the watcher, and what it finds.
    fn look(watched: &mut Watched, peer: PeerId, fabric: &mut ShmFabric) -> Sign {
        const COUNT: Token = Token(1000);
        watched.look(peer, usize::from(WATCHER.0), fabric, COUNT, |thread| Token(thread as u64));
        let mut sign = Sign::Alive;
        while let Some(completion) = fabric.poll() {
            match completion.token {
                COUNT => sign = watched.note_count(completion.result.expect("a zombie's memory can be read")),
                Token(thread) => watched.note_word(thread as usize, completion.result.ok()),
            }
        }
        sign
    }

    fn looks(watched: &mut Watched, peer: PeerId, fabric: &mut ShmFabric) -> Sign {
        (0..5).map(|_| look(watched, peer, fabric)).find(|sign| *sign != Sign::Alive).unwrap_or(Sign::Alive)
    }

    /// A thread that does what it is told: to begin, and to end, as a death or in order.
    fn thread(threads: &ActingThreads) -> (mpsc::Sender<bool>, mpsc::Receiver<Result<(), ActingError>>, std::thread::JoinHandle<()>) {
        let (end, ending) = mpsc::channel();
        let (told, tells) = mpsc::channel();
        let threads = threads.clone();
        let handle = std::thread::spawn(move || {
            let acting = threads.join();
            let acting = match acting {
                Ok(acting) => {
                    told.send(Ok(())).expect("it listens");
                    acting
                }
                Err(error) => return told.send(Err(error)).expect("it listens"),
            };
            if ending.recv().expect("told to") {
                std::mem::forget(acting);
            }
        });
        (end, tells, handle)
    }

    #[test]
    fn a_process_is_dead_when_the_last_of_64_threads_is_that_began_after_connecting() {
        let (mut node, mut watcher) = (start(NodeId(1)), start(WATCHER));
        let threads = ActingThreads::default();
        assert!(matches!(threads.join(), Err(ActingError::NoLife)));
        let first = threads.begin(node.own_region(LIFE)).expect("its first thread");
        watcher.connect(NodeId(1));
        let peer = up(&mut watcher);
        up(&mut node);
        let mut watched = Watched::default();
        assert_eq!(looks(&mut watched, peer, &mut watcher), Sign::Alive);

        let others: Vec<_> = (1..MAX_ACTING_THREADS).map(|_| thread(&threads)).collect();
        others.iter().for_each(|(_, told, _)| told.recv().expect("it says").expect("there is a place"));
        assert!(matches!(threads.join(), Err(ActingError::Full)));
        // The watcher, which knows of one thread, sees that thread end, and then all but one of the others die.
        drop(first);
        assert_eq!(looks(&mut watched, peer, &mut watcher), Sign::Alive, "63 threads act");
        let mut others = others.into_iter();
        let (last_end, _, last) = others.next().expect("63 of them");
        for (end, _, handle) in others {
            end.send(true).expect("it listens");
            handle.join().expect("it ends");
        }
        assert_eq!(looks(&mut watched, peer, &mut watcher), Sign::Alive, "one thread acts");

        // The place that was given back is free; the others belong to the dead.
        let (again_end, told, again) = thread(&threads);
        told.recv().expect("it says").expect("there is a place");
        last_end.send(true).expect("it listens");
        last.join().expect("it ends");
        assert_eq!(looks(&mut watched, peer, &mut watcher), Sign::Alive, "one thread acts that has begun since");
        again_end.send(false).expect("it listens");
        again.join().expect("it ends");
        assert_eq!(looks(&mut watched, peer, &mut watcher), Sign::Dead);
        assert!(matches!(threads.join(), Err(ActingError::NobodyActs)), "it would act for a process that is taken for dead");
        assert_eq!(look(&mut Watched::default(), peer, &mut watcher), Sign::Alive, "whoever looks for the first time knows nothing yet");
        drop(node);
    }

    #[test]
    fn a_thread_of_an_earlier_life_frees_no_place_in_a_later_one() {
        let (one, two) = (start(NodeId(1)), start(WATCHER));
        let threads = ActingThreads::default();
        let first = threads.begin(one.own_region(LIFE)).expect("a first life");
        let second = threads.begin(two.own_region(LIFE)).expect("a second one");
        drop(first);
        let word = |fabric: &ShmFabric, place| {
            fabric.memory(LocalRegion::Public(LIFE)).expect("declared")[life::death(place, 0)].load(Ordering::Acquire)
        };
        assert_eq!(word(&one, 0), 0);
        assert_eq!(word(&two, 0) & WAITERS, WAITERS);
        let third = threads.join().expect("another place");
        assert_ne!(word(&two, 1) & TID_MASK, 0);
        drop((second, third));
        assert!(threads.join().is_err_and(|error| matches!(error, ActingError::NobodyActs)));
        let fourth = threads.begin(start(NodeId(3)).own_region(LIFE)).expect("a third life");
        fourth.end_life();
        assert!(matches!(threads.join(), Err(ActingError::NoLife)));
        assert!(threads.begin(None).expect_err("no region").to_string().contains("no public region 1"));
    }
}

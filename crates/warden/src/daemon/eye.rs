//! The eye: hears of the deaths of threads, and reports them before any other thread does anything.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use martlet_fabric::host::marks::Marks;
use martlet_fabric::host::page::Page;
use martlet_fabric::host::{DeathWordsError, Holder, Reading, sleep_on, wake_word};
use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_protocol::basics::layout::life::{OWNER_DIED, TID_MASK};
use martlet_protocol::detector::certain::{Sign, judge};
use martlet_protocol::detector::wardens::Secret;

use super::pulse::{Order, Orders};
use super::{MAX_WATCHED_WORDS, Seat};
use crate::board::{Board, End, Evidence, Slot};
use crate::wire::Answer;
use crate::words::{MAX_ACTING, death_word};

/// What the desk asks of the eye.
pub(super) enum Task {
    /// Watch a word on an application's page, because a thread acts for the application. The secret is the life's. The last field says whether the program's
    /// threads have the numbers that marks contain.
    Watch(Slot, Page, u16, Secret, bool),
    /// The thread acts no longer.
    Unwatch(Slot, u16),
    /// Tell a program of this life's end.
    Subscribe(Slot, Arc<Seat>),
    /// Stop telling it.
    Unsubscribe(Slot, u8),
    /// The life has ended, or another thread is responsible for it now.
    Forget(Slot),
    /// The warden ends.
    End,
}

/// How tasks get from the desk to the eye.
#[derive(Clone)]
pub(super) struct Tasks {
    pub(super) sender: Sender<Task>,
    pub(super) bell: Page,
}

impl Tasks {
    pub(super) fn send(&self, task: Task) {
        // If the eye is gone, the warden is ending.
        let _ = self.sender.send(task);
        self.stir();
    }

    /// Makes the eye look.
    pub(super) fn stir(&self) {
        let bell = &self.bell.words()[0];
        // Release pairs with the acquire of the eye's load, so that the eye finds the task.
        bell.fetch_add(1, Ordering::Release);
        wake_word(bell);
    }
}

/// How reports get from the eye to the desk: the lives that the eye has ended.
pub(super) struct Reports {
    pub(super) sender: Sender<Slot>,
    pub(super) stir: Arc<OwnedFd>,
}

impl Reports {
    fn send(&self, slot: Slot) {
        let _ = self.sender.send(slot);
        // This fails only when the counter is full, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }
}

struct Watched {
    page: Option<Page>,
    secret: Secret,
    is_marked: bool,
    words: Vec<u16>,
    /// One for every thread that there can be.
    holders: [Holder; MAX_ACTING as usize],
    told: Vec<Arc<Seat>>,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched {
            page: None,
            secret: Secret::default(),
            is_marked: false,
            words: Vec::new(),
            holders: [Holder::default(); MAX_ACTING as usize],
            told: Vec::new(),
        }
    }
}

impl Watched {
    fn read(&mut self, word: u16, marks: Option<&Marks>) -> Option<Reading> {
        let (page, at) = (self.page.as_ref()?, death_word(word));
        let holder = &mut self.holders[usize::from(word)];
        Some(match marks.filter(|_| self.is_marked) {
            Some(marks) => holder.read(marks, at, |word| page.load(word)),
            None => Reading { word: page.load(at), is_marked: false },
        })
    }

    fn read_all(&mut self, words: &[u16], marks: Option<&Marks>) -> Vec<Reading> {
        words.iter().filter_map(|word| self.read(*word, marks)).collect()
    }
}

fn sign(readings: &[Reading]) -> Sign {
    judge(&readings.iter().map(|reading| reading.foreseen()).collect::<Vec<_>>())
}

/// What the eye sleeps on.
#[derive(Default)]
struct Vigil {
    /// Words, and their values at the last look.
    words: Vec<(Page, u16, u64)>,
    /// Whether, according to the marks, a thread has died of a program whose other threads seem to be alive. They may be about to be marked, and nothing wakes
    /// the eye for that.
    is_partial: bool,
}

/// While that is so, how long the eye sleeps at first and at most: threads of a process may be ending one by one, or it may dump core first.
const PARTIAL: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(5));

pub(super) struct Eye {
    board: Board,
    bell: Page,
    tasks: Receiver<Task>,
    reports: Reports,
    /// For telling other hosts directly, without going through the desk.
    orders: Option<Orders>,
    /// The marks, which show deaths before the words do, where they are permitted.
    marks: Option<Marks>,
    lives: BTreeMap<Slot, Watched>,
    /// The warden is ending: this look is the last one.
    ends: bool,
}

impl Eye {
    pub(super) fn new(
        board: Board,
        bell: Page,
        tasks: Receiver<Task>,
        reports: Reports,
        orders: Option<Orders>,
        marks: Option<Marks>,
    ) -> Eye {
        Eye { board, bell, tasks, reports, orders, marks, lives: BTreeMap::new(), ends: false }
    }

    pub(super) fn run(mut self, started: &Sender<Result<(), DeathWordsError>>) {
        // It is given back when the warden ends in an orderly way, which tells programs that it did.
        let _own = match self.board.register_eye() {
            Ok(words) => words,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        let mut at_most = PARTIAL.0;
        loop {
            // The bell is read before the tasks: a later task will have moved it.
            let bell = self.bell.load(0);
            while let Ok(task) = self.tasks.try_recv() {
                self.take(task);
            }
            let vigil = self.look();
            if self.ends {
                return;
            }
            let mut words: Vec<(&AtomicU64, u32)> = vec![(self.bell.sleep_word(0), bell as u32)];
            words.extend(vigil.words.iter().map(|(page, word, value)| (page.sleep_word(death_word(*word)), *value as u32)));
            sleep_on(&words, vigil.is_partial.then_some(at_most));
            at_most = if vigil.is_partial { PARTIAL.1.min(2 * at_most) } else { PARTIAL.0 };
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Watch(slot, page, word, secret, is_marked) => {
                let life = self.lives.entry(slot).or_default();
                (life.page, life.secret, life.is_marked) = (Some(page), secret, is_marked);
                if !life.words.contains(&word) {
                    life.words.push(word);
                }
            }
            Task::Unwatch(slot, word) => {
                if let Some(life) = self.lives.get_mut(&slot) {
                    life.words.retain(|one| *one != word);
                }
            }
            Task::Subscribe(slot, seat) => self.lives.entry(slot).or_default().told.push(seat),
            Task::Unsubscribe(slot, seat) => {
                if let Some(life) = self.lives.get_mut(&slot) {
                    life.told.retain(|one| one.index != seat);
                }
            }
            Task::Forget(slot) => {
                self.lives.remove(&slot);
            }
            Task::End => self.ends = true,
        }
    }

    /// Ends the lives that have ended according to the words, or according to the marks, which are earlier.
    fn look(&mut self) -> Vigil {
        let (mut over, mut vigil) = (Vec::new(), Vigil::default());
        let all: Vec<u16> = (0..MAX_ACTING).collect();
        for (slot, life) in &mut self.lives {
            let words = std::mem::take(&mut life.words);
            let readings = life.read_all(&words, self.marks.as_ref());
            let is_marked = readings.iter().any(|reading| reading.is_marked);
            // A thread that has just begun to act already holds its word, even if the desk has not been told yet.
            if sign(&readings) == Sign::Dead && sign(&life.read_all(&all, self.marks.as_ref())) == Sign::Dead {
                over.push((*slot, if is_marked { Evidence::Marks } else { Evidence::Words }));
            } else {
                // If all threads have given their words back, the process is still watched as a whole.
                let alive = words.iter().zip(&readings).filter(|(_, one)| one.word & OWNER_DIED == 0 && one.word & TID_MASK != 0);
                let page = life.page.as_ref();
                vigil.words.extend(alive.filter_map(|(word, reading)| Some((page?.clone(), *word, reading.word))));
                vigil.is_partial |= is_marked;
            }
            life.words = words;
        }
        for (slot, evidence) in over {
            let mut life = self.lives.remove(&slot).unwrap_or_default();
            let ended = self.board.app_life(slot);
            if self.board.end(slot, &End::failure(evidence, crate::now_ns(), life.secret)) {
                // A task may have arrived meanwhile for a program that still found the application alive.
                while let Ok(task) = self.tasks.try_recv() {
                    if let Task::Subscribe(of, seat) = &task
                        && *of == slot
                    {
                        life.told.push(Arc::clone(seat));
                    }
                    self.take(task);
                }
                for seat in &life.told {
                    // If a program's socket is full, it looks at the board when it reads the socket.
                    seat.tell(&self.board, &Answer::Look);
                }
                // Other hosts come last: packets are sealed for each host and path, which takes longer than a message on this host.
                if let Some(orders) = &self.orders {
                    orders.send_at_once(Order::End(ended, true));
                }
                self.reports.send(slot);
            }
        }
        vigil.words.truncate(MAX_WATCHED_WORDS);
        vigil
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::AppId;
    use crate::board::{Marking, State};
    use crate::words::PAGE_WORDS;

    /// An eye that watches one life, and its channels.
    struct Open {
        eye: Eye,
        board: Board,
        page: Page,
        slot: Slot,
        tasks: Sender<Task>,
        reports: Receiver<Slot>,
    }

    impl Open {
        fn new() -> Open {
            let board = Board::create(1, 1, Marking::Nothing).expect("memory");
            let (page, bell) = (Page::create("test", PAGE_WORDS).expect("memory"), Page::create("test", 1).expect("memory"));
            let (tasks, told) = channel();
            let (sender, reports) = channel();
            let stir = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
            let mut eye = Eye::new(board.clone(), bell, told, Reports { sender, stir }, None, None);
            let slot = Slot { index: 0, generation: 1 };
            board.begin(slot, AppId::new(7).expect("in range"), 0, 5, 1, State::Alive);
            eye.take(Task::Watch(slot, page.clone(), 0, [4; 16], true));
            Open { eye, board, page, slot, tasks, reports }
        }
    }

    fn lose_a_thread(page: &Page) {
        let page = page.clone();
        let died = std::thread::spawn(move || std::mem::forget(page.register_death_words(&[death_word(0)]).expect("registered")));
        died.join().expect("it ends well");
    }

    #[test]
    fn a_thread_of_which_nobody_has_been_told_yet_keeps_its_application_alive() {
        let Open { mut eye, board, page, slot, reports, .. } = Open::new();
        let second = page.register_death_words(&[death_word(1)]).expect("registered");
        lose_a_thread(&page);
        eye.look();
        assert_eq!(board.look(slot).map(|seen| seen.state), Some(State::Alive));
        drop(second);
        eye.look();
        assert_eq!(board.look(slot).map(|seen| (seen.state, seen.secret)), Some((State::Failed, Some([4; 16]))));
        assert_eq!(reports.try_recv(), Ok(slot));
    }

    #[test]
    fn a_program_that_begins_to_monitor_a_life_while_it_ends_is_told() {
        let Open { mut eye, page, slot, tasks, .. } = Open::new();
        lose_a_thread(&page);
        let (socket, mut monitor) = std::os::unix::net::UnixStream::pair().expect("sockets");
        monitor.set_nonblocking(true).expect("a socket");
        tasks.send(Task::Subscribe(slot, Arc::new(Seat { socket: socket.into(), index: 0 }))).expect("the eye is there");
        // As in a turn in which the task arrived after the eye had taken all tasks.
        eye.look();
        assert!(std::io::Read::read(&mut monitor, &mut [0; 64]).expect("told") > 0);
    }
}

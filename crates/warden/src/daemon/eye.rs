//! The eye: hears the deaths of threads, and tells them on, before anybody else does anything.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::{DeathWordsError, sleep_on, wake_word};
use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_protocol::basics::layout::life::{OWNER_DIED, TID_MASK};
use martlet_protocol::detector::certain::{Sign, judge};
use martlet_protocol::detector::wardens::Secret;

use super::pulse::{Order, Orders};
use super::{MAX_WATCHED_WORDS, Seat};
use crate::board::{Board, End, Evidence, Slot};
use crate::wire::Answer;
use crate::words::{MAX_ACTING, death_word};

/// What the desk tells the eye.
pub(super) enum Task {
    /// To watch a word of an application's page: a thread acts for it. The secret is its life's.
    Watch(Slot, Page, u16, Secret),
    /// It acts no more.
    Unwatch(Slot, u16),
    /// To tell a program of this life's end.
    Subscribe(Slot, Arc<Seat>),
    /// To tell it no more.
    Unsubscribe(Slot, u8),
    /// The life is over, or another's affair.
    Forget(Slot),
    /// The warden ends.
    End,
}

/// The desk's way to the eye.
#[derive(Clone)]
pub(super) struct Tasks {
    pub(super) sender: Sender<Task>,
    pub(super) bell: Page,
}

impl Tasks {
    pub(super) fn send(&self, task: Task) {
        // An eye that is gone has ended the warden.
        let _ = self.sender.send(task);
        let bell = &self.bell.words()[0];
        // Release pairs with the acquire of the eye's load: it finds the task.
        bell.fetch_add(1, Ordering::Release);
        wake_word(bell);
    }
}

/// The eye's way to the desk: lives that it has ended.
pub(super) struct Reports {
    pub(super) sender: Sender<Slot>,
    pub(super) stir: Arc<OwnedFd>,
}

impl Reports {
    fn send(&self, slot: Slot) {
        let _ = self.sender.send(slot);
        // It fails only when the counter is full, and then it is readable as well.
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }
}

#[derive(Default)]
struct Watched {
    page: Option<Page>,
    secret: Secret,
    words: Vec<u16>,
    told: Vec<Arc<Seat>>,
}

impl Watched {
    /// Of all threads, whether or not they have been told of.
    fn all_values(&self) -> Vec<u64> {
        self.page.iter().flat_map(|page| (0..MAX_ACTING).map(|word| page.load(death_word(word)))).collect()
    }

    fn values(&self) -> Vec<u64> {
        self.page.iter().flat_map(|page| self.words.iter().map(|word| page.load(death_word(*word)))).collect()
    }
}

pub(super) struct Eye {
    board: Board,
    bell: Page,
    tasks: Receiver<Task>,
    reports: Reports,
    /// To other hosts, without the way by the desk.
    orders: Option<Orders>,
    lives: BTreeMap<Slot, Watched>,
}

impl Eye {
    pub(super) fn new(board: Board, bell: Page, tasks: Receiver<Task>, reports: Reports, orders: Option<Orders>) -> Eye {
        Eye { board, bell, tasks, reports, orders, lives: BTreeMap::new() }
    }

    pub(super) fn run(mut self, started: &Sender<Result<(), DeathWordsError>>) {
        // Given back when the warden ends in order; programs see then that it did.
        let _own = match self.board.register_eye() {
            Ok(words) => words,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        loop {
            // The bell is looked at before the tasks: one that comes later has moved it.
            let bell = self.bell.load(0);
            while let Ok(task) = self.tasks.try_recv() {
                if let Task::End = task {
                    return;
                }
                self.take(task);
            }
            let watched = self.look();
            let mut words: Vec<(&AtomicU64, u32)> = vec![(self.bell.sleep_word(0), bell as u32)];
            words.extend(watched.iter().map(|(page, word, value)| (page.sleep_word(death_word(*word)), *value as u32)));
            sleep_on(&words, None);
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Watch(slot, page, word, secret) => {
                let life = self.lives.entry(slot).or_default();
                (life.page, life.secret) = (Some(page), secret);
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
            Task::End => {}
        }
    }

    /// Ends the lives that the words say are over, and returns the words to sleep on, with what they held.
    fn look(&mut self) -> Vec<(Page, u16, u64)> {
        let mut over = Vec::new();
        let mut watched = Vec::new();
        for (slot, life) in &self.lives {
            let values = life.values();
            match judge(&values) {
                // A thread that has just begun to act holds its word already, though the desk has not been told.
                Sign::Dead if judge(&life.all_values()) == Sign::Dead => over.push(*slot),
                // Given back by all threads: the process is still watched as a whole.
                _ => {
                    let lives = life.words.iter().zip(values).filter(|(_, value)| value & OWNER_DIED == 0 && value & TID_MASK != 0);
                    let page = life.page.as_ref();
                    watched.extend(lives.filter_map(|(word, value)| Some((page?.clone(), *word, value))));
                }
            }
        }
        for slot in over {
            let life = self.lives.remove(&slot).unwrap_or_default();
            let ended = self.board.app_life(slot);
            if self.board.end(slot, &End::failure(Evidence::Words, crate::now_ns(), life.secret)) {
                if let Some(orders) = &self.orders {
                    orders.send(Order::End(ended, true));
                }
                for seat in &life.told {
                    // A program with a full socket reads the board when it reads that.
                    seat.tell(&self.board, &Answer::Look);
                }
                self.reports.send(slot);
            }
        }
        watched.truncate(MAX_WATCHED_WORDS);
        watched
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::AppId;
    use crate::board::State;
    use crate::words::PAGE_WORDS;

    #[test]
    fn a_thread_of_which_nobody_has_been_told_yet_keeps_its_application_alive() {
        let board = Board::create(1, 1).expect("memory");
        let (page, bell) = (Page::create("test", PAGE_WORDS).expect("memory"), Page::create("test", 1).expect("memory"));
        let (tasks, told) = channel();
        let (sender, reports) = channel();
        let stir = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
        let mut eye = Eye::new(board.clone(), bell, told, Reports { sender, stir }, None);
        let slot = Slot { index: 0, generation: 1 };
        board.begin(slot, AppId::new(7).expect("in range"), 0, 5, 1, State::Alive);
        drop(tasks);
        eye.take(Task::Watch(slot, page.clone(), 0, [4; 16]));
        let second = page.register_death_words(&[death_word(1)]).expect("registered");
        let first = page.clone();
        let died = std::thread::spawn(move || std::mem::forget(first.register_death_words(&[death_word(0)]).expect("registered")));
        died.join().expect("it ends well");
        eye.look();
        assert_eq!(board.look(slot).map(|seen| seen.state), Some(State::Alive));
        drop(second);
        eye.look();
        assert_eq!(board.look(slot).map(|seen| (seen.state, seen.secret)), Some((State::Failed, Some([4; 16]))));
        assert_eq!(reports.try_recv(), Ok(slot));
    }
}

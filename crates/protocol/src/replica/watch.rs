//! For replicas that judge themselves which processes live: each peer's counter is read (Mu section 5.1, pull-score), and its death words are checked. A
//! process's own heart stops when its replication makes no progress (fate sharing).

use martlet_fabric::{Fabric, PeerId, Token};

use super::patience::{Patience, discounted};
use crate::basics::{LogIndex, Time};
use crate::detector::certain::{DeathWords, Sign};
use crate::detector::heartbeat::{Score, Thresholds};
use crate::detector::stall::StallMeter;

/// What is known about one peer being alive. `S` is the role that the engine has a process publish.
#[derive(Debug)]
pub struct Watch<S> {
    score: Score,
    /// Its score fell below the failure threshold and has not recovered.
    presumed: bool,
    /// Its kernel says that it is gone, or it can no longer be reached over this connection.
    pub dead: bool,
    /// It is gone for certain.
    pub certain: bool,
    /// For a dead peer: how long to hope that it comes back as the same process. Hope ends when its death is certain, or after too much time without another
    /// connection.
    pub patience: Patience,
    /// Since when its counter is being read.
    reading: Option<Time>,
    deaths: DeathWords,
    /// Its published role; `None` until that was first read.
    pub status: Option<S>,
}

/// What a counter that has been read says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The counter has stood still for too long.
    Still,
    /// The counter moves again, which is news.
    Back,
    /// Nothing that was not known.
    Nothing,
}

impl<S> Watch<S> {
    /// Of a peer that has just come up.
    pub fn new(thresholds: Thresholds) -> Watch<S> {
        Watch {
            score: Score::new(thresholds),
            presumed: false,
            dead: false,
            certain: false,
            patience: Patience::default(),
            reading: None,
            deaths: DeathWords::default(),
            status: None,
        }
    }

    /// Whether it is taken to be alive.
    pub fn is_alive(&self) -> bool {
        !self.dead && !self.presumed
    }

    /// Whether it may still act as the same process. A process whose heart is taken to stand still may: it may only be stopped, or have no processor.
    pub fn may_go_on(&self) -> bool {
        !self.dead || !self.patience.is_over()
    }

    /// It has done something that only a living process does. If its heart was taken to stand still, that is taken back; returns whether it was.
    pub fn take_back(&mut self) -> bool {
        let back = self.presumed && self.score.is_failed();
        if back {
            self.score.take_back();
            self.presumed = false;
        }
        back
    }

    /// Whether its heart is taken to stand still.
    pub fn is_presumed(&self) -> bool {
        self.presumed
    }

    /// Its heart is taken to stand still from now on. Returns whether that is news.
    pub fn presume(&mut self) -> bool {
        !std::mem::replace(&mut self.presumed, true)
    }

    /// The peer is gone, for good if that is `certain`; otherwise perhaps only its connection. Returns whether that is news.
    pub fn note_end(&mut self, certain: bool) -> bool {
        let news = !self.dead || (certain && !self.certain);
        if certain {
            self.patience.end();
        }
        (self.dead, self.certain) = (true, self.certain || certain);
        news
    }

    /// Whether a read of its counter has been under way for longer than a silence may last.
    pub fn is_silent(&self, now: Time, silence_ns: u64) -> bool {
        !self.dead && self.reading.is_some_and(|since| now.since(since) > silence_ns)
    }

    /// This process was itself stalled for `gap_ns` until `now`, and may have been what seemed to stand still.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        self.score.forget_last();
        // Discounted, not restarted: otherwise a process that stalls every now and then would wait for ever.
        self.reading = self.reading.map(|since| discounted(since, gap_ns, now));
        self.patience.discount(gap_ns, now);
    }

    /// Whether its counter is to be read at `now`, because no read is under way. If so, one counts as under way from now on.
    pub fn begin_reading(&mut self, now: Time) -> bool {
        let due = self.reading.is_none();
        self.reading.get_or_insert(now);
        due
    }

    /// Its counter has been read.
    pub fn note_counter(&mut self, value: u64) -> Heard {
        self.reading = None;
        if self.score.observe(value) {
            Heard::Still
        } else if std::mem::take(&mut self.presumed) {
            Heard::Back
        } else {
            Heard::Nothing
        }
    }

    /// Posts the reads that show whether the peer is certainly dead: of how many acting threads it has, or of those threads' death words for this process,
    /// whose node has the number `watcher`.
    pub fn look_for_death<F: Fabric>(
        &mut self,
        peer: PeerId,
        watcher: usize,
        fabric: &mut F,
        threads: Token,
        death: impl Fn(usize) -> Token,
    ) {
        if !self.dead {
            self.deaths.look(peer, watcher, fabric, threads, death);
            // At once: there is no other occasion before the next look, and a death should become certain with this one.
            self.deaths.recount(peer, fabric, threads);
        }
    }

    /// Takes the number of acting threads that it shows. Returns whether the process is certainly dead.
    pub fn note_threads(&mut self, value: u64) -> bool {
        self.deaths.note_count(value) != Sign::Alive
    }

    /// The death word of one of its threads.
    pub fn note_death_word(&mut self, thread: usize, value: u64) {
        self.deaths.note_word(thread, Some(value));
    }
}

/// This process's own heart. It stops when the replication plane makes no progress (fate sharing).
#[derive(Debug)]
pub struct Heart {
    next: Time,
    beats: u32,
    /// What was committed at the last check.
    checked: LogIndex,
    /// The replication plane was found stuck.
    pub stopped: bool,
}

impl Default for Heart {
    fn default() -> Heart {
        Heart { next: Time(0), beats: 0, checked: LogIndex(0), stopped: false }
    }
}

impl Heart {
    /// Beats if it is due. `waiting` says whether the replication plane is inside a call to propose, and `committed` how far it has come; this is checked every
    /// `every` beats. Returns whether it beats.
    pub fn tick(&mut self, now: Time, interval_ns: u64, every: u32, waiting: bool, committed: LogIndex) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now.after(interval_ns / 2);
        if !waiting || committed != self.checked {
            (self.stopped, self.beats, self.checked) = (false, 0, committed);
        } else {
            self.beats = self.beats.saturating_add(1);
            self.stopped |= self.beats >= every;
        }
        !self.stopped
    }
}

/// When the signs of life are next due.
#[derive(Debug)]
pub struct Schedule {
    stall: StallMeter,
    /// When the others' counters are to be read.
    read: Time,
    /// When their death words are to be looked at.
    look: Time,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule { stall: StallMeter::new(Time(0)), read: Time(0), look: Time(0) }
    }
}

impl Schedule {
    /// How long this process has not run, in nanoseconds.
    pub fn gap(&mut self, now: Time) -> u64 {
        self.stall.tick(now)
    }

    /// Whether counters are to be read now, and next after `interval_ns`.
    pub fn is_reading_due(&mut self, now: Time, interval_ns: u64) -> bool {
        let due = now >= self.read;
        if due {
            self.read = now.after(interval_ns);
        }
        due
    }

    /// Whether death words are to be looked at now, and next after `interval_ns`.
    pub fn is_look_due(&mut self, now: Time, interval_ns: u64) -> bool {
        let due = now >= self.look;
        if due {
            self.look = now.after(interval_ns);
        }
        due
    }

    /// The earliest moment at which there is something to do.
    pub fn next(&self, heart: &Heart) -> Time {
        self.read.min(heart.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mu_5_1_fate_sharing_the_heart_stops_when_replication_is_stuck_inside_propose() {
        let mut heart = Heart::default();
        let mut now = Time(0);
        let mut beat = |heart: &mut Heart, waiting, committed| {
            now = now.after(50);
            heart.tick(now, 100, 3, waiting, LogIndex(committed))
        };
        assert!(beat(&mut heart, false, 7));
        assert!(beat(&mut heart, true, 7));
        assert!(beat(&mut heart, true, 7));
        assert!(!beat(&mut heart, true, 7), "three beats without progress");
        assert!(heart.stopped);
        assert!(beat(&mut heart, true, 8), "progress starts it again");
        assert!(!heart.stopped);
        for _ in 0..10 {
            assert!(beat(&mut heart, false, 8), "who has nothing to propose is not stuck");
        }
    }
}

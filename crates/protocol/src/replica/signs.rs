//! The signs of life that replicas show each other, turn by turn: when this replica's heart beats, what it reads of the others and when, and what it concludes.
//! [`watch`](super::watch) judges a single peer.

use martlet_fabric::pulse::beat;
use martlet_fabric::{Fabric, LocalRegion, OpError, PeerId, Region, RegionName, Remote};

use super::Settings;
use super::operations::token;
use super::watch::{Heard, Heart, Schedule, Watch};
use crate::basics::{LogIndex, Mark, ProcessId, Time};

/// Where the processes of an engine show their signs of life, the kinds of the operations by which it reads them, and the coverage marks that are reached.
#[derive(Debug)]
pub struct Layout {
    /// The public region in which a process shows its own state.
    pub words: RegionName,
    /// The word there that counts the beats of its owner's heart.
    pub heartbeat: usize,
    /// The word there that publishes its owner's role.
    pub status: usize,
    /// The operation that reads the former word.
    pub reads_heartbeat: u8,
    /// The operation that reads the latter.
    pub reads_status: u8,
    /// The operation that reads how many acting threads a process has.
    pub reads_threads: u8,
    /// The operation that reads a death word; its round is the thread.
    pub reads_death: u8,
    /// This process's heart stops.
    pub stopped: Mark,
    /// A peer's heart, which was taken to stand still, beats again.
    pub recovered: Mark,
    /// A peer is given up.
    pub given_up: Mark,
}

/// What a sign of life says, if that is news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The peer's heart has stood still for too long.
    Still,
    /// The peer's heart, which was taken to stand still, beats again.
    Back,
    /// The connection has timed out (Mu section 5.1, the longer timeout).
    Unreachable,
    /// The process is certainly dead.
    Dead,
}

/// This process's own heart, and when it looks at the others'.
#[derive(Debug)]
pub struct Signs {
    layout: &'static Layout,
    /// Which of the others' death words are meant for this process.
    watcher: usize,
    heart: Heart,
    schedule: Schedule,
}

impl Signs {
    /// Of the process `me`.
    pub fn new(me: ProcessId, layout: &'static Layout) -> Signs {
        Signs { layout, watcher: usize::from(me.node.0), heart: Heart::default(), schedule: Schedule::default() }
    }

    /// Whether this process's heart stands still.
    pub fn has_stopped(&self) -> bool {
        self.heart.stopped
    }

    /// The earliest moment at which there is something to do.
    pub fn next(&self) -> Time {
        self.schedule.next(&self.heart)
    }

    /// How long this process has not run, in nanoseconds, if that is so long that it may itself have been what seemed to stand still.
    pub fn stall(&mut self, now: Time, settings: &Settings) -> Option<u64> {
        Some(self.schedule.gap(now)).filter(|gap| *gap > settings.stall_ns)
    }

    /// Beats if it is due: see [`Heart::tick`]. Returns whether the heart stops now.
    pub fn beat<F: Fabric>(&mut self, now: Time, settings: &Settings, waiting: bool, committed: LogIndex, fabric: &F) -> bool {
        let stopped = self.heart.stopped;
        if self.heart.tick(now, settings.heartbeat_interval_ns, settings.fate_beats, waiting, committed)
            && let Some(own) = fabric.memory(LocalRegion::Public(self.layout.words))
        {
            beat(&own[self.layout.heartbeat]);
        }
        let stops = self.heart.stopped && !stopped;
        if stops {
            self.layout.stopped.reach();
        }
        stops
    }

    /// Reads the others' counters if it is due. Returns whether it was: then it is also known which [reads do not return](Watch::is_silent).
    pub fn read_counters<'a, F: Fabric, S: 'a>(
        &mut self,
        now: Time,
        settings: &Settings,
        peers: impl Iterator<Item = (PeerId, &'a mut Watch<S>)>,
        fabric: &mut F,
    ) -> bool {
        let due = self.schedule.is_reading_due(now, settings.heartbeat_interval_ns);
        if due {
            let Layout { words, heartbeat, status, reads_heartbeat, reads_status, .. } = *self.layout;
            for (peer, watch) in peers.filter(|(_, watch)| !watch.dead) {
                if watch.begin_reading(now) {
                    let word = |at| Remote { peer, region: Region::Public(words), offset: at * 8 };
                    fabric.read_word(word(heartbeat), token(reads_heartbeat, 0, peer));
                    fabric.read_word(word(status), token(reads_status, 0, peer));
                }
            }
        }
        due
    }

    /// Looks for certain death if it is due.
    pub fn look_for_death<'a, F: Fabric, S: 'a>(
        &mut self,
        now: Time,
        settings: &Settings,
        leads: bool,
        peers: impl Iterator<Item = (PeerId, &'a mut Watch<S>)>,
        fabric: &mut F,
    ) {
        // A leader has more urgent work in each turn; all that it misses by waiting is the death of followers, whose votes are missing anyway.
        let gap = if leads { settings.heartbeat_interval_ns } else { settings.death_interval_ns };
        if self.schedule.is_look_due(now, gap) {
            let (threads, death) = (self.layout.reads_threads, self.layout.reads_death);
            for (peer, watch) in peers {
                watch.look_for_death(peer, self.watcher, fabric, token(threads, 0, peer), |thread| token(death, thread as u64, peer));
            }
        }
    }

    /// Gives up peers that are dead or have been out of reach for too long. A connection can be lost while both processes live; then they reconnect as soon as
    /// they reach each other. Meanwhile the peer does not count, but keeps its place in the group as long as there is hope.
    pub fn give_up_lost<'a, S: 'a>(&self, now: Time, settings: &Settings, peers: impl Iterator<Item = (PeerId, &'a mut Watch<S>)>) {
        for (_, watch) in peers.filter(|(_, watch)| watch.dead) {
            if watch.patience.try_on(now, settings.patience_ns()) {
                self.layout.given_up.reach();
            }
        }
    }

    /// Takes what an operation of this kind has read of a peer's signs of life; `status` decodes the peer's role.
    pub fn take<S>(
        &self,
        kind: u8,
        round: u64,
        result: Result<u64, OpError>,
        watch: &mut Watch<S>,
        status: impl Fn(u64) -> S,
    ) -> Option<News> {
        let Ok(value) = result else { return Some(News::Unreachable) };
        let layout = self.layout;
        if kind == layout.reads_heartbeat {
            match watch.note_counter(value) {
                Heard::Still => return Some(News::Still),
                Heard::Back => {
                    layout.recovered.reach();
                    return Some(News::Back);
                }
                Heard::Nothing => {}
            }
        } else if kind == layout.reads_status {
            watch.status = Some(status(value));
        } else if kind == layout.reads_threads && watch.note_threads(value) {
            return Some(News::Dead);
        } else if kind == layout.reads_death {
            watch.note_death_word(round as usize, value);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detector::heartbeat::Thresholds;
    use martlet_fabric::{Incarnation, NodeId};

    static LAYOUT: Layout = Layout {
        words: RegionName(1),
        heartbeat: 0,
        status: 1,
        reads_heartbeat: 5,
        reads_status: 6,
        reads_threads: 7,
        reads_death: 8,
        stopped: Mark::MuHeartStopped,
        recovered: Mark::MuRecovered,
        given_up: Mark::MuGivenUp,
    };

    #[test]
    fn what_has_been_read_says_whether_a_peer_lives() {
        let signs = Signs::new(ProcessId { node: NodeId(1), incarnation: Incarnation(1) }, &LAYOUT);
        let mut watch = Watch::new(Thresholds { cap: 2, failure: 1, recovery: 2 });
        let mut take = |kind, result| signs.take(kind, 0, result, &mut watch, |word| word);
        assert_eq!(take(LAYOUT.reads_status, Ok(3)), None);
        let beats = [1, 1, 1, 2, 3].map(|count| take(LAYOUT.reads_heartbeat, Ok(count)));
        assert!(beats.contains(&Some(News::Still)), "{beats:?}");
        assert_eq!(take(LAYOUT.reads_threads, Err(OpError::PeerLost)), Some(News::Unreachable));
        assert_eq!(watch.status, Some(3));
        assert!(watch.presume() && !watch.presume(), "news once");
        assert_eq!(signs.take(LAYOUT.reads_heartbeat, 0, Ok(4), &mut watch, |word| word), Some(News::Back));
    }

    #[test]
    fn an_end_is_news_when_it_is_seen_and_when_it_becomes_certain() {
        let mut watch = Watch::<u64>::new(Thresholds::default());
        assert!(watch.begin_reading(Time(0)) && !watch.begin_reading(Time(5)));
        assert_eq!([10, 11].map(|now| watch.is_silent(Time(now), 10)), [false, true]);
        assert_eq!([false, false, true, true].map(|certain| watch.note_end(certain)), [true, false, true, false]);
        assert!(watch.patience.is_over() && !watch.is_silent(Time(99), 10), "nothing is expected of the dead");
    }
}

//! What a node holds of the cluster's data, where a majority is lost: in its memory, or on its disk.

use std::time::{Duration, SystemTime};

use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::Sight;
use martlet_node::OnDisk;
use martlet_node::counters::Counter;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::founding::Returned;

use super::known::Doing;

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the memory of its process.
    Memory,
    /// On its disk; its process does not run.
    Disk,
    /// It holds nothing, or it cannot be seen.
    Nowhere,
}

impl Place {
    /// The word for it.
    pub fn name(self) -> &'static str {
        self.known().unwrap_or("nothing")
    }

    /// The same, if there is anything.
    pub fn known(self) -> Option<&'static str> {
        match self {
            Place::Memory => Some("memory"),
            Place::Disk => Some("disk"),
            Place::Nowhere => None,
        }
    }
}

/// What a node holds.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Its number.
    pub node: u16,
    /// Where it is.
    pub place: Place,
    /// In which generation of the cluster it came about.
    pub generation: Option<u64>,
    /// The last entry.
    pub last: Option<u64>,
    /// Up to where it is known there to be committed.
    pub committed: Option<u64>,
    /// When the last of it came.
    pub as_of: Option<SystemTime>,
    /// As whom it would come back from its disk, and its log.
    pub log: Option<(ProcessId, Returned)>,
    /// What is to be said of it, if it cannot be gone on from.
    pub why: Option<String>,
    doing: Doing,
}

impl Holding {
    fn nothing(node: u16, doing: Doing, why: impl Into<String>) -> Holding {
        let why = Some(why.into());
        Holding { node, place: Place::Nowhere, generation: None, last: None, committed: None, as_of: None, log: None, why, doing }
    }

    /// Of a node whose process can be read.
    pub fn in_memory(sight: &Sight, generation: u64, activity: Option<Activity>) -> Holding {
        let doing = Doing::of(activity, true);
        let is_whole = sight.counter(Counter::Whole) == 1;
        if !is_whole {
            return Holding::nothing(sight.node, doing, "it is still receiving the state, and holds only a part of it");
        }
        let as_of = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(sight.counter(Counter::HeldAtNs)));
        Holding {
            place: Place::Memory,
            generation: Some(generation),
            last: Some(sight.counter(Counter::ProposedIndex)),
            committed: Some(sight.counter(Counter::CommittedIndex)),
            as_of,
            why: None,
            ..Holding::nothing(sight.node, doing, "")
        }
    }

    /// Of a node that shows nothing and is not known to be gone.
    pub fn unreadable(node: u16, activity: Option<Activity>) -> Holding {
        let doing = Doing::of(activity, false);
        let why = match doing {
            Doing::Stopped => format!("it is stopped by a signal; `martlet cluster kill {node} --signal CONT` resumes it"),
            Doing::Running => "it is running, but cannot be read".into(),
            Doing::Gone | Doing::Unreached | Doing::Unlisted => "it cannot be reached from here, but may be running".into(),
        };
        Holding::nothing(node, doing, why)
    }

    /// Of a node that does not run.
    pub fn on_disk(node: u16, found: Result<Option<OnDisk>, String>) -> Holding {
        let gone = Doing::Gone;
        match found {
            Err(error) => Holding::nothing(node, gone, error),
            Ok(None) => Holding::nothing(node, gone, "it is not running, and has nothing on a disk"),
            Ok(Some(OnDisk { generation, process, log, written })) => Holding {
                place: Place::Disk,
                generation: Some(generation),
                last: Some(log.last.0),
                as_of: written,
                log: Some((process, log)),
                why: None,
                ..Holding::nothing(node, gone, "")
            },
        }
    }

    /// What its process does, as far as that is known here.
    pub fn process(&self) -> &'static str {
        self.doing.name()
    }

    /// Whether it holds the whole state, of some moment.
    pub fn can_be_gone_on_from(&self) -> bool {
        self.place != Place::Nowhere && self.doing != Doing::Stopped
    }

    /// Why it cannot.
    pub fn why_not(&self) -> &str {
        self.why.as_deref().unwrap_or("it is stopped by a signal: resume it first, or end it")
    }

    /// For how long it has been so.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        Some(now.duration_since(self.as_of?).unwrap_or_default())
    }

    /// How many entries others hold, as far as they can be seen, that this one does not; `None`: it cannot be gone on from.
    pub fn loss(&self, all: &[Holding]) -> Option<u64> {
        let last = self.last.filter(|_| self.can_be_gone_on_from())?;
        let of_others = all.iter().filter(|other| other.generation >= self.generation).filter_map(|other| other.last);
        Some(of_others.max().unwrap_or(0).saturating_sub(last))
    }

    /// The same in words.
    pub fn words_of_loss(&self, all: &[Holding]) -> String {
        let Some(entries) = self.loss(all) else { return format!("not possible: {}", self.why_not()) };
        // A log that was accepted later goes before a longer one.
        let rank = |holding: &Holding| holding.log.as_ref().map(|(_, log)| (holding.generation, log.ballot));
        let later = all.iter().filter(|other| rank(other) > rank(self) && rank(self).is_some()).map(|other| other.node);
        let later: Vec<u16> = later.collect();
        let unseen = all.iter().any(|other| other.last.is_none());
        match (entries, later.is_empty(), unseen) {
            (_, false, _) => format!("everything since the change of leader that nodes {later:?} have seen and it has not"),
            (0, true, false) => "nothing that any node holds".into(),
            (0, true, true) => "nothing that can be seen".into(),
            (1, true, _) => "the last entry".into(),
            (entries, true, _) => format!("the last {entries} entries"),
        }
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_protocol::basics::{LogIndex, ViewNumber};

    use super::*;

    fn disk(node: u16, generation: u64, ballot: u64, last: u64) -> Holding {
        let process = ProcessId { node: NodeId(node), incarnation: Incarnation(1 << 16) };
        let log = Returned { ballot, last: LogIndex(last), view: ViewNumber(3), members: vec![process] };
        Holding::on_disk(node, Ok(Some(OnDisk { generation, process, log, written: None })))
    }

    #[test]
    fn what_may_be_lost_is_what_others_hold_of_the_same_generation_or_a_later_one() {
        let none = Holding::on_disk(3, Ok(None));
        let all = [disk(0, 0, 5, 90), disk(1, 0, 5, 100), disk(2, 0, 7, 80), none.clone()];
        let words = |at: usize| all[at].words_of_loss(&all);
        assert_eq!(all[0].loss(&all), Some(10));
        assert!(words(0).contains("nodes [2]"), "a later number goes before a longer log: {}", words(0));
        assert_eq!((all[2].loss(&all), all[3].loss(&all)), (Some(20), None));
        assert_eq!(words(3), "not possible: it is not running, and has nothing on a disk");
        let same = [disk(0, 0, 5, 90), disk(1, 0, 5, 91)];
        assert_eq!(
            (same[0].words_of_loss(&same), same[1].words_of_loss(&same)),
            ("the last entry".into(), "nothing that any node holds".into())
        );
        let generations = [disk(0, 0, 5, 90), disk(1, 1, 3, 10)];
        assert_eq!(generations[1].loss(&generations), Some(0), "what was given up before is no loss");
    }

    #[test]
    fn one_that_is_stopped_or_holds_nothing_is_not_gone_on_from() {
        let stopped = Holding::unreadable(1, Some(Activity::Stopped));
        assert!(!stopped.can_be_gone_on_from() && stopped.why_not().contains("--signal CONT"));
        let unreached = Holding::unreadable(1, None);
        assert_eq!((unreached.process(), unreached.can_be_gone_on_from()), ("not reached", false));
        assert_eq!(unreached.why_not(), "it cannot be reached from here, but may be running");
        assert_eq!(Holding::unreadable(1, Some(Activity::Running)).process(), "running");
        let broken = Holding::on_disk(2, Err("FILE: corrupt at byte 64".into()));
        assert_eq!((broken.can_be_gone_on_from(), broken.why_not()), (false, "FILE: corrupt at byte 64"));
    }
}

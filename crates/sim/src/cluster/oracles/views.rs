//! The views that processes have learned.

use std::collections::BTreeMap;

use martlet_protocol::basics::ViewNumber;
use martlet_protocol::membership::View;

/// All views known so far, with the true time at which each first became known.
#[derive(Debug, Default)]
pub struct Views {
    known: BTreeMap<u64, (u64, View)>,
}

impl Views {
    /// Adds a view, unless one with its number is known. Returns whether it is new.
    pub fn note(&mut self, at_ns: u64, view: &View) -> bool {
        let news = !self.known.contains_key(&view.number.0);
        if news {
            self.known.insert(view.number.0, (at_ns, view.clone()));
        }
        news
    }

    /// The view of that number.
    pub fn get(&self, number: u64) -> Option<&View> {
        self.known.get(&number).map(|(_, view)| view)
    }

    /// When the view with that number first became known.
    pub fn known_since(&self, number: u64) -> Option<u64> {
        self.known.get(&number).map(|(at, _)| *at)
    }

    /// The newest.
    pub fn newest(&self) -> Option<&View> {
        self.known.values().next_back().map(|(_, view)| view)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.known.len() as u64
    }

    /// Whether the views from one to the other differ in nothing but the length of leases: then leases carry over, and the views count as one (uKharon section
    /// 6.3).
    pub fn carries_over(&self, one: ViewNumber, other: ViewNumber) -> bool {
        let (older, newer) = (one.min(other), one.max(other));
        (older.0 + 1..=newer.0).all(|n| self.get(n).is_some_and(|v| v.compatible))
    }
}

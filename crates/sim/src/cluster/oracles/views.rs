//! The views that anybody has learned.

use std::collections::BTreeMap;

use martlet_protocol::basics::ViewNumber;
use martlet_protocol::membership::View;

/// All views known so far, with the true time at which each was known first.
#[derive(Debug, Default)]
pub struct Views {
    known: BTreeMap<u64, (u64, View)>,
}

impl Views {
    /// Adds a view, unless one of its number is known. Returns whether it was news.
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

    /// When the view of that number was known first.
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

    /// Whether the views between the two differ in nothing but the length of leases: their leases carry over, so they are one (uKharon section 6.3).
    pub fn carries_over(&self, one: ViewNumber, other: ViewNumber) -> bool {
        let (older, newer) = (one.min(other), one.max(other));
        (older.0 + 1..=newer.0).all(|n| self.get(n).is_some_and(|v| v.compatible))
    }
}

//! Processes by their place in the first view.

use std::fmt;

/// A process: its place in the first view, from 0 on. The lower it is, the earlier the process leads.
pub type Place = u8;

/// A set of processes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Places(u32);

impl Places {
    /// The first so many.
    ///
    /// # Panics
    /// With more than 32.
    pub fn first_of(count: u8) -> Places {
        (0..count).collect()
    }

    /// Whether a process is one of them.
    pub fn contains(self, place: Place) -> bool {
        self.0 & bit(place) != 0
    }

    /// Whether all of another set are.
    pub fn contains_all(self, others: Places) -> bool {
        others.0 & !self.0 == 0
    }

    /// Adds a process. Returns whether it was not there.
    pub fn insert(&mut self, place: Place) -> bool {
        let new = !self.contains(place);
        self.0 |= bit(place);
        new
    }

    /// The set without another's.
    #[must_use]
    pub fn without(self, others: Places) -> Places {
        Places(self.0 & !others.0)
    }

    /// The set without a process.
    #[must_use]
    pub fn except(self, place: Place) -> Places {
        Places(self.0 & !bit(place))
    }

    /// Both sets.
    #[must_use]
    pub fn with(self, others: Places) -> Places {
        Places(self.0 | others.0)
    }

    /// The one with the lowest place.
    pub fn first(self) -> Option<Place> {
        self.iter().next()
    }

    /// Whether it has no process.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of them, lowest first.
    pub fn iter(self) -> impl Iterator<Item = Place> {
        (0..32).filter(move |place| self.contains(*place))
    }
}

fn bit(place: Place) -> u32 {
    assert!(place < 32, "place {place}: at most 32 processes");
    1 << place
}

impl FromIterator<Place> for Places {
    fn from_iter<I: IntoIterator<Item = Place>>(places: I) -> Places {
        Places(places.into_iter().fold(0, |set, place| set | bit(place)))
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

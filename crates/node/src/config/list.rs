//! Which of two lists of a cluster's nodes is the newer one, where each host has a file of its own.

use serde::{Deserialize, Serialize};

/// How often the list of nodes has been changed. The larger one is of the newer list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListConfig {
    /// How often another host came to keep it. What a host changes that was cut off, and does not know that it keeps it no more, comes to nothing.
    pub reign: u64,
    /// How often that host has changed it.
    pub change: u64,
}

impl ListConfig {
    /// Whether a file need not say it.
    pub(super) fn is_first(&self) -> bool {
        *self == ListConfig::default()
    }

    /// That of the next list, which the same host keeps, or another one.
    #[must_use]
    pub fn next(self, same_keeper: bool) -> ListConfig {
        if same_keeper { ListConfig { change: self.change + 1, ..self } } else { ListConfig { reign: self.reign + 1, change: 0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_deposed_host_changes_is_older_than_what_its_successor_does() {
        let kept = ListConfig { reign: 0, change: 7 };
        let taken_over = kept.next(false);
        assert!(taken_over > kept && taken_over > kept.next(true).next(true));
        assert!(taken_over.next(true) > taken_over);
    }
}

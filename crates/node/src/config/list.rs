//! Which of two versions of a cluster's list of nodes is newer, if each host has a file of its own.

use serde::{Deserialize, Serialize};

/// How often the list of nodes has been changed. The larger value belongs to the newer list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListConfig {
    /// How often another host has become the list's keeper. A host may be cut off and not know that it is no longer the keeper: changes that it makes then have
    /// no effect.
    pub reign: u64,
    /// How often that host has changed it.
    pub change: u64,
}

impl ListConfig {
    /// Whether the table can be left out of a file.
    pub(super) fn is_first(&self) -> bool {
        *self == ListConfig::default()
    }

    /// The value for the next list, kept by the same host or by another.
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

//! The regions of this process, for threads that are not the endpoint's.

use std::sync::Arc;

use super::peer::Own;
use crate::contract::{Memory, RegionName};
use crate::host::memory::Area;
use crate::host::{DeathWords, DeathWordsError};
use crate::primitive::{Ordering, fence};

/// Our own public regions, for any thread, as long as it likes.
#[derive(Clone, Debug)]
pub struct OwnRegions(Arc<Own>);

impl OwnRegions {
    pub(super) fn new(own: Arc<Own>) -> OwnRegions {
        OwnRegions(own)
    }

    /// The region of that name, `None` when it was never declared.
    pub fn memory(&self, name: RegionName) -> Option<&Memory> {
        self.0.public(name).map(Area::memory)
    }

    /// Wakes the process's endpoint if it is parked, from another thread of the process. What the endpoint is to see is stored before.
    pub fn nudge(&self) {
        fence(Ordering::SeqCst);
        self.0.bell.ring();
    }
}

impl DeathWords {
    /// Registers words of one of our public regions, by index, as the calling thread's death words: one for each watcher, since the kernel
    /// wakes one waiter a word. From the return on each holds the thread's id and [`WAITERS`](crate::host::WAITERS). Nobody else may write them.
    pub fn register(regions: &OwnRegions, region: RegionName, words: &[usize]) -> Result<DeathWords, DeathWordsError> {
        let area = regions.0.public(region).ok_or(DeathWordsError::Region(region.0))?;
        DeathWords::register_in(area.clone(), words)
    }
}

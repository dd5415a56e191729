//! The regions of this process, for threads other than the endpoint's.

use std::sync::Arc;

use super::peer::Own;
use crate::contract::{Memory, RegionName};
use crate::host::OwnRegion;
use crate::host::memory::Area;
use crate::primitive::{Ordering, fence};

/// Our own public regions, for any thread, for as long as it likes.
#[derive(Clone, Debug)]
pub struct OwnRegions(Arc<Own>);

impl OwnRegions {
    pub(super) fn new(own: Arc<Own>) -> OwnRegions {
        OwnRegions(own)
    }

    /// The region of that name; `None` if it was never declared.
    pub fn memory(&self, name: RegionName) -> Option<&Memory> {
        self.0.public(name).map(Area::memory)
    }

    /// One of the regions by itself; `None` if it was never declared.
    pub fn region(&self, name: RegionName) -> Option<OwnRegion> {
        self.0.public(name).map(OwnRegion::new)
    }

    /// Wakes the process's endpoint if it is parked; called by another thread of the process, after it has stored what the endpoint is to see.
    pub fn nudge(&self) {
        fence(Ordering::SeqCst);
        self.0.bell.ring();
    }
}

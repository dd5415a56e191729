//! The layout of regions in the memory that processes hand each other.
//!
//! | memfd | how many | contents |
//! |---|---|---|
//! | public | one per process | the public regions that peers write too, each from a page's start |
//! | owned | one per process | those that only their owner writes, which no peer can map writable |
//! | bell | one per process | one page: the doorbell |
//! | lanes | one per peer | one page of grant words, one per cache line, mapped writable only by the owner; lanes, each from a page's start; members' mail |

use super::memory::page;
use crate::contract::{RegionName, RegionSpec};

/// Bytes between two grant words, so that each has a cache line of its own.
pub(crate) const GRANT_STRIDE: usize = 64;

/// Offsets of regions that are laid out one after another from `start`, and the end.
fn offsets(regions: &[(RegionName, usize)], start: usize) -> (Vec<usize>, usize) {
    let mut at = start;
    let mut out = Vec::with_capacity(regions.len());
    for (_, len) in regions {
        out.push(at);
        at += len.next_multiple_of(page());
    }
    (out, at)
}

/// The layout of public regions in one memfd.
pub(crate) struct PublicPlan {
    /// Where each region starts, in the order of declaration.
    pub(crate) offsets: Vec<usize>,
    /// The total length. It is at least a page, since nothing empty can be mapped.
    pub(crate) bytes: usize,
}

impl PublicPlan {
    /// The layout of all public regions.
    pub(crate) fn new(spec: &RegionSpec) -> PublicPlan {
        PublicPlan::of(&spec.public)
    }

    /// The layout of these regions.
    pub(crate) fn of(regions: &[(RegionName, usize)]) -> PublicPlan {
        let (offsets, end) = offsets(regions, 0);
        PublicPlan { offsets, bytes: end.max(page()) }
    }
}

/// The public regions of a declaration: those that peers write too, and those that only their owner writes.
pub(crate) fn by_writer(spec: &RegionSpec) -> [Vec<(RegionName, usize)>; 2] {
    let (owned, shared) = spec.public.iter().partition(|(name, _)| spec.is_owned(*name));
    [shared, owned]
}

/// The layout of the lanes memfd. Its first page holds the grant words; `offsets` count from the page after it.
pub(crate) struct LanesPlan {
    /// Where each lane starts, counted from the end of the first page.
    pub(crate) offsets: Vec<usize>,
    /// Between members, where the mail ring starts, counted from the end of the first page.
    pub(crate) mail: Option<usize>,
    /// The length after the first page; at least a page.
    pub(crate) body: usize,
}

impl LanesPlan {
    pub(crate) fn new(lanes: &[(RegionName, usize)], mail_bytes: Option<usize>) -> LanesPlan {
        let (offsets, end) = offsets(lanes, 0);
        let (mail, end) = (mail_bytes.map(|_| end), end + mail_bytes.unwrap_or(0).next_multiple_of(page()));
        LanesPlan { offsets, mail, body: end.max(page()) }
    }

    /// Length of the whole memfd.
    pub(crate) fn bytes(&self) -> usize {
        page() + self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meeting::regions::MAX_REGIONS;

    fn spec(public: &[(u8, usize)]) -> RegionSpec {
        RegionSpec { public: public.iter().map(|&(n, l)| (RegionName(n), l)).collect(), ..RegionSpec::default() }
    }

    #[test]
    fn every_region_starts_on_a_page() {
        let plan = PublicPlan::new(&spec(&[(1, 8), (2, page() + 8), (3, 8)]));
        assert_eq!(plan.offsets, [0, page(), 3 * page()]);
        assert_eq!(plan.bytes, 4 * page());
        let lanes = LanesPlan::new(&[], None);
        assert_eq!(lanes.bytes(), 2 * page());
        assert!(MAX_REGIONS * GRANT_STRIDE <= page(), "a grant word for each lane");
    }
}

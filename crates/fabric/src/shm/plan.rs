//! Where regions lie in the memory that processes hand each other; what a process may declare.
//!
//! | memfd | how many | contents |
//! |---|---|---|
//! | public | one a process | the public regions, each from a page's start |
//! | bell | one a process | one page: the doorbell |
//! | lanes | one for each peer | one page of grant words, one a cache line, which only the owner can map writable by our code; then the lanes, each from a page's start; then, between members, the mail ring |

use std::fmt::Write as _;

use super::mail;
use super::memory::page;
use crate::contract::{PeerKind, RegionName, RegionSpec};

/// The most regions in any list of a [`RegionSpec`].
pub(super) const MAX_REGIONS: usize = 32;
/// The largest region, in bytes.
pub(super) const MAX_REGION_BYTES: usize = 1 << 32;
/// Bytes between two grant words: a cache line each.
pub(super) const GRANT_STRIDE: usize = 64;

/// Which lanes a process of kind `owner` with this declaration keeps for a peer of kind `peer`.
pub(super) fn lanes_for(spec: &RegionSpec, peer: PeerKind) -> &[(RegionName, usize)] {
    match peer {
        PeerKind::Member => &spec.member_lanes,
        PeerKind::Client => &spec.client_lanes,
    }
}

/// Offsets of regions laid one after another from `start` on, and the end.
fn offsets(regions: &[(RegionName, usize)], start: usize) -> (Vec<usize>, usize) {
    let mut at = start;
    let mut out = Vec::with_capacity(regions.len());
    for (_, len) in regions {
        out.push(at);
        at += len.next_multiple_of(page());
    }
    (out, at)
}

/// The public memfd.
pub(super) struct PublicPlan {
    /// Where each region starts, in the order declared.
    pub(super) offsets: Vec<usize>,
    /// The whole length; at least a page, since nothing empty can be mapped.
    pub(super) bytes: usize,
}

impl PublicPlan {
    pub(super) fn new(spec: &RegionSpec) -> PublicPlan {
        let (offsets, end) = offsets(&spec.public, 0);
        PublicPlan { offsets, bytes: end.max(page()) }
    }
}

/// The lanes memfd. Its first page holds the grant words; `offsets` count from the page after it.
pub(super) struct LanesPlan {
    /// Where each lane starts behind the first page.
    pub(super) offsets: Vec<usize>,
    /// Where the mail ring starts behind the first page, between members.
    pub(super) mail: Option<usize>,
    /// Length behind the first page; at least a page.
    pub(super) body: usize,
}

impl LanesPlan {
    pub(super) fn new(lanes: &[(RegionName, usize)], with_mail: bool) -> LanesPlan {
        let (offsets, end) = offsets(lanes, 0);
        let (mail, end) = if with_mail { (Some(end), end + mail::BYTES.next_multiple_of(page())) } else { (None, end) };
        LanesPlan { offsets, mail, body: end.max(page()) }
    }

    /// Length of the whole memfd.
    pub(super) fn bytes(&self) -> usize {
        page() + self.body
    }
}

/// Says what is wrong with a declaration, if anything.
pub(super) fn check(spec: &RegionSpec) -> Result<(), String> {
    for (list, regions) in lists(spec) {
        if regions.len() > MAX_REGIONS {
            return Err(format!("{list} declares {} regions, at most {MAX_REGIONS} are allowed", regions.len()));
        }
        for (at, (name, len)) in regions.iter().enumerate() {
            if *len == 0 || !len.is_multiple_of(8) || *len > MAX_REGION_BYTES {
                return Err(format!("{list} region {} has {len} bytes; allowed are multiples of 8 from 8 to {MAX_REGION_BYTES}", name.0));
            }
            if regions[..at].iter().any(|(other, _)| other == name) {
                return Err(format!("{list} declares region {} twice", name.0));
            }
        }
    }
    Ok(())
}

/// Describes every difference between two declarations, ours first. Empty when there is none.
pub(super) fn difference(ours: &RegionSpec, theirs: &RegionSpec) -> String {
    let mut out = String::new();
    for ((list, a), (_, b)) in lists(ours).into_iter().zip(lists(theirs)) {
        if a == b {
            continue;
        }
        let same_names = a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.0 == y.0);
        if same_names {
            for ((name, x), (_, y)) in a.iter().zip(b).filter(|(x, y)| x != y) {
                let _ = write!(out, "; {list} region {} has {x} bytes here and {y} there", name.0);
            }
        } else {
            let names = |list: &[(RegionName, usize)]| list.iter().map(|(name, _)| name.0).collect::<Vec<_>>();
            let _ = write!(out, "; {list} regions are {:?} here and {:?} there", names(a), names(b));
        }
    }
    out.trim_start_matches("; ").to_owned()
}

/// The three lists with the names that errors give them.
pub(super) fn lists(spec: &RegionSpec) -> [(&'static str, &Vec<(RegionName, usize)>); 3] {
    [("public", &spec.public), ("member lane", &spec.member_lanes), ("client lane", &spec.client_lanes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(public: &[(u8, usize)]) -> RegionSpec {
        RegionSpec { public: public.iter().map(|&(n, l)| (RegionName(n), l)).collect(), ..RegionSpec::default() }
    }

    #[test]
    fn bad_declarations_are_named() {
        assert_eq!(check(&spec(&[(1, 8), (2, 4096)])), Ok(()));
        for (bad, why) in [(vec![(1, 12)], "12 bytes"), (vec![(1, 0)], "0 bytes"), (vec![(3, 8), (3, 8)], "region 3 twice")] {
            let error = check(&spec(&bad)).expect_err("bad");
            assert!(error.contains(why), "{error}");
        }
        assert!(check(&spec(&(0..33).map(|n| (n, 8)).collect::<Vec<_>>())).is_err());
    }

    #[test]
    fn differences_name_region_and_sizes() {
        let text = difference(&spec(&[(1, 8), (2, 16)]), &spec(&[(1, 8), (2, 24)]));
        assert_eq!(text, "public region 2 has 16 bytes here and 24 there");
        let text = difference(&spec(&[(1, 8)]), &spec(&[(2, 8)]));
        assert_eq!(text, "public regions are [1] here and [2] there");
        assert_eq!(difference(&spec(&[(1, 8)]), &spec(&[(1, 8)])), "");
    }

    #[test]
    fn every_region_starts_on_a_page() {
        let plan = PublicPlan::new(&spec(&[(1, 8), (2, page() + 8), (3, 8)]));
        assert_eq!(plan.offsets, [0, page(), 3 * page()]);
        assert_eq!(plan.bytes, 4 * page());
        let lanes = LanesPlan::new(&[], false);
        assert_eq!(lanes.bytes(), 2 * page());
        assert!(MAX_REGIONS * GRANT_STRIDE <= page(), "a grant word for each lane");
    }
}

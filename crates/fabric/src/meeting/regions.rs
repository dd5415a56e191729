//! What a process may declare, and whether two declarations agree.

use std::fmt::Write as _;

use crate::contract::{PeerKind, RegionName, RegionSpec};

/// The most regions in any list of a [`RegionSpec`].
pub(crate) const MAX_REGIONS: usize = 32;
/// The largest region, in bytes.
pub(crate) const MAX_REGION_BYTES: usize = 1 << 32;
/// The lanes that a process of kind `owner` with this declaration keeps for a peer of kind `peer`.
pub(crate) fn lanes_for(spec: &RegionSpec, peer: PeerKind) -> &[(RegionName, usize)] {
    match peer {
        PeerKind::Member => &spec.member_lanes,
        PeerKind::Client => &spec.client_lanes,
    }
}

/// Says what is wrong with a declaration, if anything.
pub(crate) fn check(spec: &RegionSpec) -> Result<(), String> {
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
    for (at, name) in spec.owned.iter().enumerate() {
        if !spec.public.iter().any(|(public, _)| public == name) {
            return Err(format!("region {} is declared as its owner's alone to write, and is no public region", name.0));
        }
        if spec.owned[..at].contains(name) {
            return Err(format!("region {} is declared twice as its owner's alone to write", name.0));
        }
    }
    Ok(())
}

/// Describes every difference between two declarations, ours first. Empty when there is none.
pub(crate) fn difference(ours: &RegionSpec, theirs: &RegionSpec) -> String {
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
    if ours.owned != theirs.owned {
        let names = |spec: &RegionSpec| spec.owned.iter().map(|name| name.0).collect::<Vec<_>>();
        let _ = write!(out, "; written by their owner alone are {:?} here and {:?} there", names(ours), names(theirs));
    }
    out.trim_start_matches("; ").to_owned()
}

/// The three lists, with the names used for them in errors.
pub(crate) fn lists(spec: &RegionSpec) -> [(&'static str, &Vec<(RegionName, usize)>); 3] {
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
        let owned = |names: &[u8]| RegionSpec { owned: names.iter().map(|name| RegionName(*name)).collect(), ..spec(&[(1, 8), (2, 8)]) };
        assert_eq!(check(&owned(&[2])), Ok(()));
        assert!(
            check(&owned(&[3])).expect_err("bad").contains("region 3 is declared as its owner's alone to write, and is no public region")
        );
        assert!(check(&owned(&[1, 1])).expect_err("bad").contains("region 1 is declared twice"));
        assert_eq!(difference(&owned(&[1]), &owned(&[1, 2])), "written by their owner alone are [1] here and [1, 2] there");
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
}

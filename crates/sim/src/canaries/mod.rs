//! Known bugs, planted one at a time, that default lives have to bring to light (STYLE 24).
//!
//! The bugs stand in the production crates, under their feature `canaries`: [`Canary`] in `protocol`, [`canary::Canary`] in `fabric`. A hunt
//! plants one, lives default lives from seed 0 on, and ends with the first violation. The life of that seed is then lived once more without
//! the bug and has to be clean: so it is the bug that was found.

#[cfg(feature = "canaries")]
mod hunt;

use martlet_fabric::canary;
use martlet_protocol::basics::Canary;

#[cfg(feature = "canaries")]
pub use hunt::{Found, hunt};

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug {
    /// Its name.
    pub name: &'static str,
    /// What is wrong, in words.
    pub meaning: &'static str,
    /// The kind of cluster whose lives bring it to light.
    pub kind: &'static str,
}

/// All of them.
pub fn bugs() -> Vec<Bug> {
    let bug = |name: &'static str, meaning, kind| Bug { name, meaning, kind };
    let of_engine = |name: &str| match name {
        name if name.starts_with("mu-") => "mu",
        _ => "host",
    };
    let protocol = Canary::ALL.iter().map(|canary| bug(canary.name(), canary.meaning(), of_engine(canary.name())));
    // Every engine stands on the fabric.
    let fabric = canary::Canary::ALL.iter();
    let fabric = fabric.flat_map(|canary| ["host", "mu"].map(|kind| bug(canary.name(), canary.meaning(), kind)));
    protocol.chain(fabric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_canary_is_documented_and_has_a_name_of_its_own() {
        let page = include_str!("../../../../docs/simulator.md");
        let mut names: Vec<&str> = bugs().iter().map(|bug| bug.name).collect();
        names.dedup();
        let undocumented: Vec<&&str> = names.iter().filter(|name| !page.contains(&format!("| `{name}` |"))).collect();
        assert!(undocumented.is_empty(), "docs/simulator.md has no row for {undocumented:?}");
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two canaries share a name: {names:?}");
    }
}

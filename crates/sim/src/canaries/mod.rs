//! Known bugs, planted one at a time, that lives have to bring to light: default ones, and where those cannot, scripted ones.
//!
//! The bugs stand in the production crates, under their feature `canaries`: [`Canary`] in `protocol`, [`canary::Canary`] in `fabric`; those of the
//! replicated application stand in the simulated one ([`Careless`]). A hunt
//! plants one, lives the lives of its kind from seed 0 on, and ends with the first violation. The life of that seed is then lived once more without
//! the bug and has to be clean: so it is the bug that was found.

#[cfg(feature = "canaries")]
mod hunt;

use martlet_fabric::{canaries, canary};
use martlet_protocol::basics::Canary;

#[cfg(feature = "canaries")]
pub use hunt::{Found, hunt};

canaries! {
    /// A bug of what drives the protocol, or of the application that is replicated.
    pub enum Careless {
        /// Only the primary remembers which requests it has executed: sessions are not replicated (19).
        UnreplicatedSession = "unreplicated-session",
        /// The clock that a node reads stands still while its host is suspended (8).
        MonotonicTime = "monotonic-time",
        /// Where a leader executes on commit, a request that comes again while it is under way is proposed again.
        ProposedTwice = "proposed-twice",
    }
}

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
        // It takes two who hold themselves for the leader, which a network makes many of.
        "mu-unprepared" => "mu-network",
        // In default lives something else keeps two leases apart, as a rule: a holder would have to be stopped just after it has renewed its own.
        "no-clock-margin" => "clocks",
        // Where clocks keep their bounds the lease is right, and hides what a round should have found.
        "unasked-quorum" | "early-round" => "stopped-clock",
        "lazy-revocation" => "stopped-writer",
        "monotonic-time" => "suspended-host",
        "kept-lease" => "stopped-machine",
        // Elsewhere nobody certifies anything, or hardly anybody forges it.
        "unchecked-certificate" | "pledge-of-node" | "believed-notice" => "wardens",
        // Nobody else has a disk.
        "mu-unsynced" => "mu-disks",
        // Elsewhere nobody is asked to end whom the others could not lose by SIGKILL, unless all are.
        "mu-early-farewell" => "two-end",
        // Elsewhere leaders execute ahead.
        "proposed-twice" => "mu-on-commit",
        // A founder over a network has waited for everybody, so all logs are there.
        "best-log-left-out" => "mu-disks-network",
        // Lives of `mu` find it too, after some hundred; those of `mu-network` sooner.
        "mu-unchecked-space" => "mu-network",
        name if name.starts_with("mu-") => "mu",
        // It takes a process that is stopped at the right step.
        "dare-counts-refused" | "dare-naive-adjust" | "dare-double-vote" | "dare-old-term-commit" => "dare-contest",
        // Elsewhere a group only ever follows its members, one at a time.
        "dare-extended-votes" | "dare-hasty-change" | "dare-early-config" => "dare-resize",
        // Nobody counts the dead elsewhere.
        "dare-zombie-votes" | "dare-forever-zombie" | "dare-zombie-head" => "dare-zombies",
        // It takes a group that is parted at one moment, or a leader that is lost at one.
        "dare-one-majority" => "dare-parted-resize",
        "dare-removed-leads" => "dare-parted-removal",
        // A leader has to be asked that its followers do not reach, and that does not know it.
        "dare-blind-read" => "dare-parted-read",
        name if name.starts_with("dare-") => "dare",
        // The lease hides elsewhere that a primary which others have left commits.
        "hsuc-written-is-held" => "hsuc-stopped-writer",
        // Elsewhere the state that learners are given shows all that is under way.
        "hsuc-eager-learner" | "hsuc-unheld-start" => "hsuc-on-commit",
        // It takes a connection that is lost while its process lives.
        "hsuc-suspicion-is-crash" => "hsuc-network",
        // Nothing is kept elsewhere.
        "apus-early-ack" => "apus-disks",
        name if name.starts_with("apus-") => "apus",
        _ => "host",
    };
    // What a broadcast has to promise, where leaders execute what it has brought to all.
    let of_broadcast = ["fastest-backup", "unread-lanes", "unshared-tail", "hsuc-eager-learner", "hsuc-unheld-start"];
    let protocol = Canary::ALL.iter().flat_map(|canary| {
        let also = of_broadcast.contains(&canary.name()).then_some("huc");
        std::iter::once(of_engine(canary.name())).chain(also).map(|kind| bug(canary.name(), canary.meaning(), kind))
    });
    // Every engine stands on the fabric.
    let fabric = canary::Canary::ALL.iter();
    let fabric = fabric.flat_map(|canary| ["host", "mu"].map(|kind| bug(canary.name(), canary.meaning(), kind)));
    let application = Careless::ALL.iter().flat_map(|canary| {
        let also = (*canary == Careless::UnreplicatedSession).then_some("dare-asked-again");
        std::iter::once(of_engine(canary.name())).chain(also).map(|kind| bug(canary.name(), canary.meaning(), kind))
    });
    protocol.chain(fabric).chain(application).collect()
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

//! Known bugs, planted one at a time, that lives have to bring to light: default lives, or scripted ones where those cannot.
//!
//! The bugs are in the production crates, under their feature `canaries`: [`Canary`] in `protocol`, [`canary::Canary`] in `fabric`. Bugs of the replicated
//! application are in the simulated one ([`Careless`]). A hunt plants one bug, runs the lives of its kind from seed 0 on, and ends at the first violation. It
//! then runs the life of that seed once more without the bug. That one has to be clean, so it was the bug that was found.

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
        // It takes two nodes that believe they lead, which happens often on a network.
        "mu-unprepared" => "mu-network",
        // In default lives something else usually keeps two leases apart: a holder would have to be stopped just after it has renewed its own.
        "no-clock-margin" => "clocks",
        // While clocks keep within their bounds the lease is right, and hides what a round should have found.
        "unasked-quorum" | "early-round" => "stopped-clock",
        "lazy-revocation" => "stopped-writer",
        "monotonic-time" => "suspended-host",
        "kept-lease" => "stopped-machine",
        // In other kinds there are no certificates, or they are hardly ever forged.
        "unchecked-certificate" | "pledge-of-node" | "believed-notice" => "wardens",
        // Kinds without disks have nothing to sync.
        "mu-unsynced" => "mu-disks",
        // In other kinds a node is never asked to end that the others could not lose by SIGKILL, unless all nodes are.
        "mu-early-farewell" => "two-end",
        // In other kinds leaders execute ahead of commits.
        "proposed-twice" => "mu-on-commit",
        // Over a network a founder has waited for every node, so all logs are there.
        "best-log-left-out" => "mu-disks-network",
        // Lives of `mu` find it too, after some hundred lives; those of `mu-network` find it sooner.
        "mu-unchecked-space" => "mu-network",
        name if name.starts_with("mu-") => "mu",
        // It takes a process that is stopped at exactly the right step.
        "dare-counts-refused" | "dare-naive-adjust" | "dare-double-vote" | "dare-old-term-commit" => "dare-contest",
        // In other kinds a group only ever follows its members, one at a time.
        "dare-extended-votes" | "dare-hasty-change" | "dare-early-config" => "dare-resize",
        // In other kinds the dead never count.
        "dare-zombie-votes" | "dare-forever-zombie" | "dare-zombie-head" => "dare-zombies",
        // It takes a group that is partitioned, or loses its leader, at one particular moment.
        "dare-one-majority" => "dare-parted-resize",
        "dare-removed-leads" => "dare-parted-removal",
        // It takes a read that is sent to a leader which its followers can no longer reach, and which does not know it.
        "dare-blind-read" => "dare-parted-read",
        name if name.starts_with("dare-") => "dare",
        // In other kinds the lease hides that a primary which the others have left behind still commits.
        "hsuc-written-is-held" => "hsuc-stopped-writer",
        // In other kinds the state that learners are given already includes everything that is under way.
        "hsuc-eager-learner" | "hsuc-unheld-start" => "hsuc-on-commit",
        // It takes a connection that is lost while its process is alive.
        "hsuc-suspicion-is-crash" => "hsuc-network",
        // Kinds without disks keep nothing.
        "apus-early-ack" => "apus-disks",
        name if name.starts_with("apus-") => "apus",
        _ => "host",
    };
    // What a broadcast has to promise where leaders execute only what has reached every replica.
    let of_broadcast = ["fastest-backup", "unread-lanes", "unshared-tail", "hsuc-eager-learner", "hsuc-unheld-start"];
    let protocol = Canary::ALL.iter().flat_map(|canary| {
        let also = of_broadcast.contains(&canary.name()).then_some("huc");
        std::iter::once(of_engine(canary.name())).chain(also).map(|kind| bug(canary.name(), canary.meaning(), kind))
    });
    // Every engine uses the fabric.
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

//! The counters, each with what it means.

macro_rules! counters {
    ($($name:ident $text:literal $doc:literal),+ $(,)?) => {
        /// A number that a node shows. Its place in this list is its place in the region, so new ones go to the end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(usize)]
        pub enum Counter {
            $(#[doc = $doc] $name),+
        }

        impl Counter {
            /// All of them, in order.
            pub const ALL: &[Counter] = &[$(Counter::$name),+];

            /// Its name in listings: lower case, words joined by `_`, the unit last.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$name => $text),+ }
            }

            /// What it means.
            pub const fn help(self) -> &'static str {
                match self { $(Counter::$name => $doc),+ }
            }
        }
    };
}

counters! {
    Pid "pid" "The process's number.",
    Node "node" "The node's number in the cluster.",
    Incarnation "incarnation" "The node's incarnation: another one after each start, and each time the node starts over.",
    StartedNs "started_ns" "When the process started, on the host's clock since its start.",
    PublishedNs "published_ns" "When these counters were last published, on the host's clock since its start.",
    Standing "standing" "What the node is: 0 joining, 1 backup, 2 primary, 3 excluded, 4 leaving.",
    View "view" "The newest view that the node knows.",
    ActiveView "active_view" "The newest view that the node has found active.",
    Primary "primary" "The number of the node that leads, plus 1; 0 when unknown.",
    Members "members" "How many processes the view lists.",
    Replicas "replicas" "How many of these processes are replicas; 1 means that the state is in one place only.",
    Reign "reign" "How often this process began or ceased to lead.",
    Resets "resets" "How often the node was excluded and started over as a new incarnation.",
    LeaseNs "lease_ns" "The length of a lease on the view.",
    ActiveChecks "active_checks" "How often the node checked that it may still act.",
    InactiveChecks "inactive_checks" "How often such a check said that it may not.",
    ProposedIndex "proposed_index" "The index of the last entry proposed here as primary.",
    CommittedIndex "committed_index" "The index up to which entries are known to be committed.",
    AppliedIndex "applied_index" "The index up to which entries have been applied.",
    Requests "requests" "Requests taken.",
    Replies "replies" "Replies sent.",
    Clients "clients" "Clients connected over the fabric.",
    Turns "turns" "Turns of the main thread.",
    BusyTurns "busy_turns" "Turns that found work.",
    Parks "parks" "How often the main thread slept.",
    LongestGapNs "longest_gap_ns" "The longest time between two turns of the main thread, without its sleep.",
    Stalls "stalls" "Gaps between two turns that were longer than the failure detector allows.",
    Demotions "demotions" "How often a thread was taken out of SCHED_FIFO, since it kept its core for too long.",
    CacheRenewals "cache_renewals" "How often this life of the node has renewed its lease through a lease cache.",
    Rehearsals "rehearsals" "How often this node has rehearsed a takeover, as the next to lead.",
    RehearsalsCut "rehearsals_cut" "How often a rehearsal was cut short: a node had died, or the thread lost its core for too long.",
    RehearsalNs "rehearsal_ns" "How long all rehearsals together have taken.",
    DiskPendingBytes "disk_pending_bytes" "Bytes of the log that wait for the disk: this node would lose them if the power failed.",
    DiskSyncs "disk_syncs" "How often the disk has made a part of this life's log stable.",
    DiskSnapshots "disk_snapshots" "Snapshots of this life that are stable.",
    StableIndex "stable_index" "The index up to which entries are stable on this node's disk.",
    DiskErrno "disk_errno" "The error number of the disk after which nothing more is written; 0: none.",
    Group "group" "The nodes that count for commits, a bit each, node 0 the lowest. With an engine that elects its leader a majority of them commits; with one that follows views, all of them.",
    GroupProcesses "group_processes" "How many processes count for commits: for a moment they may be two of one node.",
    Awaited "awaited" "While the node knows no view: the nodes that it waits for, a bit each, node 0 the lowest. They are not connected, but may be running.",
    Whole "whole" "Whether the node holds the whole state: 1, or 0 while it is still receiving it.",
    HeldAtNs "held_at_ns" "When the node first saw the newest entry that it holds, on the wall clock, since 1970.",
    ClockJumps "clock_jumps" "How often the clock jumped, which costs a leader its lease: after a suspension, when the wall clock was set, or when the hypervisor reports a disruption.",
    Protocol "protocol" "The version of the protocol that the node speaks: nodes of another version are refused.",
    Level "level" "The feature level of the view; 0 while the node knows no view.",
    LevelMost "level_most" "The highest feature level that the node's program can work at.",
    RefusedConnections "refused_connections" "Connections that failed because one end refused the other, in this life of the node.",
    RefusedBuilds "refused_builds" "Connections that failed because the two ends run builds that do not understand each other, in this life of the node.",
    MalformedDatagrams "malformed_datagrams" "Datagrams, or packets of them, that no node or client of Martlet sends, in this life of the node.",
    MalformedMessages "malformed_messages" "Datagrams that are not a valid message of membership, in this life of the node.",
    MalformedViews "malformed_views" "Records of views in others' memory that are complete but not valid, in this life of the node.",
    Contradictions "contradictions" "How often a peer named another view under a known number, or decided a value that is not a view, in this life of the node.",
    LaneFaults "lane_faults" "Lanes of the log that are read no further, because a peer wrote something invalid there.",
    MalformedRequests "malformed_requests" "Requests of clients that broke the protocol.",
    Warden "warden" "Whether the warden of this host watches this life of the node: 1, or 0.",
    CertifiedDeaths "certified_deaths" "Deaths that wardens of other hosts have certified to this node.",
    DisbelievedCertificates "disbelieved_certificates" "Certificates of deaths that did not fit what the process had pledged, in this life of the node.",
    ServesSinceNs "serves_since_ns" "With `martlet run`: since when this replica has led, on the host's clock since its start; 0: it does not lead.",
    Connections "connections" "With `martlet run`: clients' connections that this replica holds as the leader.",
    Takeovers "takeovers" "With `martlet run`: how often a replica has taken over from another one since the server was started, as the leader knows; 0 at followers.",
    LastTakeoverNs "last_takeover_ns" "With `martlet run`: how long the last takeover took, from the moment when the death or silence was seen until the successor served, as the leader knows; 0: unknown.",
    ReplacedReplicas "replaced_replicas" "With `martlet run`: replicas that have been started in the place of others since the server was started, as the leader knows; 0 at followers.",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_once_and_tell_their_unit_last() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(Counter::ALL.iter().enumerate().all(|(i, c)| *c as usize == i));
    }
}

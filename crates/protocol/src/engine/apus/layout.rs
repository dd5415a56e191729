//! The words and records of the engine: where each one is, which process writes it, and in which direction it may change.
//!
//! Besides the [`LOG_LANE`] that every engine has, a process offers
//!
//! | region | kind | content |
//! |---|---|---|
//! | [`WORDS`] | public | what it reports of itself, see [`words`]; written by its owner |
//! | [`CONTROL_LANE`] | lane for a member | that member's words to us, see [`control`]: among them its elements of the paper's `elect` and `reply` arrays; never revoked |
//! | [`STATE_LANE`] | lane for a member | a ring by which that member sends us the state; never revoked |
//!
//! A log belongs to its owner alone: no other process reads or writes it. A leader writes into the [`LOG_LANE`] that each backup keeps for it, and the backup
//! takes from there what it agrees with. Only that lane is ever revoked: it corresponds to the queue pair that the paper's backups close (APUS section 4.4).
//!
//! The payload of each record is a [header](crate::replica::record) and a body. The header's number is the view id under which the record was written, and its
//! last word is what the writer knew to be committed: the paper's `vs` and `last_committed` (Figure 3). The seal of the ring is the canary (section 4.2).

use martlet_fabric::{RegionName, RegionSpec, ring};

use crate::basics::layout::LOG_LANE;
use crate::basics::{MAX_NUMBER, is_number};
use crate::replica::backlog::Content;
use crate::replica::operations::operations;
use crate::replica::record::{self, RecordKind};

use super::config::Config;

/// The most peers that a leader writes to.
pub const MAX_PEERS: usize = 32;

/// What the owner says of itself.
pub const WORDS: RegionName = RegionName(48);
/// Lane for a member: its words to us.
pub const CONTROL_LANE: RegionName = RegionName(49);
/// Lane for a member: the state that it sends us.
pub const STATE_LANE: RegionName = RegionName(50);

/// Words of [`WORDS`], by index. Each one is written by the owner only.
pub mod words {
    /// The highest view id that the owner has taken part in. Only upwards.
    pub const PROMISED: usize = 0;
    /// The view id of the leader that the owner hears, possibly itself; 0 while it hears none.
    pub const HEARS: usize = 1;
    /// The view id under which the owner's log was last taken over. Only upwards.
    pub const ACCEPTED: usize = 2;
    /// The index of the last entry of that log.
    pub const LAST: usize = 3;
    /// What the owner is: a [`Status`](super::Status).
    pub const STATUS: usize = 4;
    /// How many of these a process reads before it stands.
    pub const LOOK: usize = 5;
    /// The count of the owner's heart, read by itself. It stops when replication does. Only upwards.
    pub const HEARTBEAT: usize = 15;
    /// The region's bytes: cache lines of its own.
    pub const BYTES: usize = 128;
}

/// What a process says of itself in [`words::STATUS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Status {
    /// It does not hold the whole state, or has been removed: it neither leads nor sends the state to others.
    #[default]
    Incomplete = 0,
    /// It holds the state, but nothing of it would survive a power failure, so it must not be added to the group yet.
    Unkept = 1,
    /// It holds the state and does not lead.
    Backup = 2,
    /// It leads.
    Leader = 3,
}

impl Status {
    /// The status that a word encodes; an invalid word from a peer counts as the lowest status.
    pub fn of(word: u64) -> Status {
        match word {
            1 => Status::Unkept,
            2 => Status::Backup,
            3 => Status::Leader,
            _ => Status::Incomplete,
        }
    }

    /// Whether its owner holds the state.
    pub fn is_complete(self) -> bool {
        self != Status::Incomplete
    }
}

/// Words of a [`CONTROL_LANE`], by index; each is written by the peer for which the lane is kept, and only increases unless stated otherwise.
pub mod control {
    /// The salt of the log lane that the peer keeps for us. From 0 to that, before the first [`GRANTED`].
    pub const LOG_SALT: usize = 0;
    /// The salt of the state lane that the peer keeps for us. From 0 to that, before the first [`TEACH`].
    pub const STATE_SALT: usize = 1;
    /// The peer's element of the `elect` array (APUS section 4.4): the view id under which its log was last taken over. Written before [`ELECT`].
    pub const ELECT_ACCEPTED: usize = 2;
    /// The index of its latest entry. Written before [`ELECT`].
    pub const ELECT_LAST: usize = 3;
    /// The view id that the peer proposes.
    pub const ELECT: usize = 4;
    /// The view id *of ours* to which the peer has agreed. It is written only after the peer's promise is kept.
    pub const VOTE: usize = 5;
    /// Twice the view id of the peer's latest reign, plus one while that lasts.
    pub const REIGN: usize = 6;
    /// Where in its log lane the peer's next records begin. Written before [`ASK`].
    pub const START: usize = 7;
    /// The number of the peer's latest request, as a leader, that we take its entries.
    pub const ASK: usize = 8;
    /// The last entry that the peer knew to be committed when it answered. Written before [`GRANTED`].
    pub const GRANT_INDEX: usize = 9;
    /// Where that entry ends. Written before [`GRANTED`].
    pub const GRANT_POSITION: usize = 10;
    /// Whether the peer had a log whose group it knew, so that this entry is from that log: 1 or 0. Written before [`GRANTED`].
    pub const GRANT_KNOWS: usize = 11;
    /// The latest request *of ours* that the peer has granted.
    pub const GRANTED: usize = 12;
    /// The request of ours, granted before, that the peer wants us to repeat.
    pub const RENEW: usize = 13;
    /// The peer's element of the `reply` array (APUS section 4.1): one more than the last entry of *our* log that it acknowledges; 0 for none. Entries are
    /// acknowledged without gaps, so the last one covers all before it. Upwards under one [`ACK_VIEW`].
    pub const ACK: usize = 14;
    /// The view id of ours to which [`ACK`] belongs. [`ACK`] is 0 whenever this word changes.
    pub const ACK_VIEW: usize = 15;
    /// A view id that we should know, because the peer has promised it and we lead under an earlier one.
    pub const OUTDATED: usize = 16;
    /// The peer has led, and hands over: the view id that its successor is to propose. The successor stands at once, and the others hold back for it.
    pub const STAND: usize = 17;
    /// Twice the number of the peer's latest learning request, plus one while that is open.
    pub const TEACH: usize = 18;
    /// The lane's bytes.
    pub const BYTES: usize = 192;
}

/// A leader writes here, in the unused part of its log lane's header, to learn whether the lane is still open: bytes from the lane's start.
pub const PROBE_OFFSET: usize = 16;

/// Adds what a process offers for this engine, besides the regions of [`crate::basics::layout::regions`].
pub fn add_regions(spec: &mut RegionSpec, config: &Config) {
    spec.own([(WORDS, words::BYTES)]);
    spec.member_lanes.retain(|(name, _)| *name != LOG_LANE);
    spec.member_lanes.extend([
        (LOG_LANE, ring::lane_bytes(config.log_ring_bytes)),
        (CONTROL_LANE, control::BYTES),
        (STATE_LANE, ring::lane_bytes(config.state_ring_bytes)),
    ]);
}

/// The low bits of a view id, which tell its proposers apart; the round is above them. So at most one process leads in a view.
const PROPOSER_BITS: u32 = 16;
/// How far beyond the view ids that it knows a process believes a view id: this is years of nothing but elections.
const LEAP: u64 = 1 << 54;

/// The view id that the node proposes after all that it knows; `None` when there is none left.
pub fn next_view(known: u64, node: u16) -> Option<u64> {
    let next = (((known >> PROPOSER_BITS) + 1) << PROPOSER_BITS) | u64::from(node);
    is_number(next).then_some(next)
}

/// The node that proposes under this view id.
pub fn proposer(view: u64) -> u16 {
    (view & ((1 << PROPOSER_BITS) - 1)) as u16
}

/// Whether another process's view id is plausible, given that `known` is known here. If an implausible one were believed, elections could end for good. A
/// process that knows none believes any, except those that leave no room for later ones.
pub fn is_plausible(view: u64, known: u64) -> bool {
    if known == 0 { view <= MAX_NUMBER - LEAP } else { view <= known.saturating_add(LEAP).min(MAX_NUMBER) }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `count` records with entries follow, which replace everything after the base, an entry that the reader knows to be committed. Index: the base. Body:
    /// where it ends.
    Start = 1,
    /// `count` commands, from `index` on, each preceded by its length in four bytes.
    Commands = 2,
    /// A new group: one entry that the state machine does not see. Body: see [`Group`](crate::replica::group::Group).
    Group = 3,
    /// Nothing but what is committed.
    Flush = 4,
    /// The state is sent from here on: `index` is the last entry that it shows. Body: that entry's position, the request's number, the group.
    Begin = 5,
    /// A part of the state; `count` is 1 when more fragments of the same part follow, else 0.
    Part = 6,
    /// The state has been sent as a whole.
    End = 7,
    /// Its sender cannot continue.
    Break = 8,
    /// A start whose base is committed, but perhaps not known to be at the reader: the leader's log has overrun the reader's, or the reader has none. What
    /// precedes the base has to be learned. Body: where the base ends, the group there.
    Jump = 9,
}

impl From<Content> for Kind {
    fn from(content: Content) -> Kind {
        match content {
            Content::Commands => Kind::Commands,
            Content::Group => Kind::Group,
        }
    }
}

impl RecordKind for Kind {
    const ALL: &'static [Kind] =
        &[Kind::Start, Kind::Commands, Kind::Group, Kind::Flush, Kind::Begin, Kind::Part, Kind::End, Kind::Break, Kind::Jump];

    fn is_entry(self) -> bool {
        self.content().is_some()
    }

    fn content(self) -> Option<Content> {
        match self {
            Kind::Commands => Some(Content::Commands),
            Kind::Group => Some(Content::Group),
            _ => None,
        }
    }

    fn byte(self) -> u8 {
        self as u8
    }
}

/// The header of a record.
pub type Header = record::Header<Kind>;
/// Why records make no sense although their seals hold. The reader takes nothing more from that lane.
pub type LaneFault = record::LaneFault<Kind>;

operations! {
    /// What an operation was, as its token says.
    pub enum Op {
        /// A record in a peer's log lane, a filler before one, or a probe.
        Log,
        /// What the reader of that lane has consumed.
        Consumed,
        /// A word in a peer's control lane.
        Control,
        /// The revocation of a peer's log lane.
        Revoke,
        /// A word that a peer reports of itself, read before this process stands; the round is the look and the word.
        Look,
        /// A peer's heartbeat.
        Heartbeat,
        /// A peer's status.
        Status,
        /// A peer's number of acting threads.
        Threads,
        /// A death word of a peer; the round is the thread.
        Death,
        /// A record in a peer's state lane.
        State,
        /// What the reader of that lane has consumed.
        StateConsumed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_ids_of_two_nodes_are_never_the_same_and_end_before_numbers_do() {
        let view = next_view(0, 7).expect("the first");
        assert_eq!((view, proposer(view)), (1 << 16 | 7, 7));
        assert_eq!(next_view(view, 0), Some(2 << 16));
        assert!(next_view(view, 0) > Some(view) && next_view(view, 9) != next_view(view, 7));
        assert_eq!(next_view(MAX_NUMBER, 1), None, "there is no number behind the last");
    }

    #[test]
    fn a_view_id_that_nobody_can_have_reached_is_not_believed() {
        assert!(is_plausible(1 << 60, 0) && !is_plausible(MAX_NUMBER, 0));
        assert!(is_plausible((5 << 16) + LEAP, 5 << 16) && !is_plausible((5 << 16) + LEAP + 1, 5 << 16));
        assert!(!is_plausible(MAX_NUMBER + 1, MAX_NUMBER));
    }
}

//! The words and records of the engine: where each one is, which process writes it, and in which direction it may change.
//!
//! Besides the [`LOG_LANE`] that every engine has, a process offers
//!
//! | region | kind | content |
//! |---|---|---|
//! | [`WORDS`] | public | the numbers of its log (Mu listing 1), see [`words`]; written by its owner |
//! | [`LOG`] | public | its log: a [`ring`] of sealed records that its owner keeps, for new leaders to read |
//! | [`SCRATCH`] | public | where its own reads land: words of each peer, then a copy of another process's log |
//! | [`PERMISSION_LANE`] | lane for a member | the background plane's words from that member, see [`permission`]; never revoked |
//! | [`STATE_LANE`] | lane for a member | a ring by which that member teaches us the state; never revoked |
//!
//! Only the [`LOG_LANE`] is ever revoked. A leader's records in it are those of [`Kind`]; the log holds [`Kind::Commands`] and
//! [`Kind::Group`] among them, at the same positions in every replica that has the same entries.
//!
//! The payload of each record is a [header](record) and a body. The header's number is the proposal number under which the record was written; its index, in a
//! start, is the base; next to that is the highest index that the writer knew to be committed (Mu section 4.2, commit piggybacking).

use martlet_fabric::{RegionName, RegionSpec, ring};

use crate::basics::layout::LOG_LANE;
use crate::replica::backlog::Content;
use crate::replica::electorate::MAX_FOLLOWERS;
use crate::replica::operations::operations;
use crate::replica::record::{self, RecordKind};

pub use crate::replica::backlog::{COMMAND_HEADER_BYTES, HEADER_BYTES};
pub use crate::replica::record::is_position;
pub(super) use crate::replica::record::split_position;

use super::config::Config;

/// The most peers whose words a process reads at one time.
pub const MAX_PEERS: usize = MAX_FOLLOWERS;

/// The numbers of the owner's log.
pub const WORDS: RegionName = RegionName(32);
/// The owner's log.
pub const LOG: RegionName = RegionName(33);
/// Where the owner's own reads land.
pub const SCRATCH: RegionName = RegionName(34);
/// Lane for a member: its words to us.
pub const PERMISSION_LANE: RegionName = RegionName(35);
/// Lane for a member: the state that it teaches us.
pub const STATE_LANE: RegionName = RegionName(36);

/// Words of [`WORDS`], by index. Each one is written by the owner only.
pub mod words {
    /// The smallest proposal number with which a leader may enter the accept phase here (Mu listing 1). Only upwards.
    pub const MIN_PROPOSAL: usize = 0;
    /// The proposal number under which the whole log was last accepted. Only upwards.
    pub const LAST_BALLOT: usize = 1;
    /// The index of the last entry. Falls only when a new leader's start takes effect, never below what is committed.
    pub const LAST_INDEX: usize = 2;
    /// The position after the last record. Moves with it.
    pub const TAIL: usize = 3;
    /// The last index that the owner knows to be committed: the first undecided offset less one (Mu listing 1). Only upwards.
    pub const COMMITTED: usize = 4;
    /// The position after that entry's record. Only upwards.
    pub const COMMITTED_POSITION: usize = 5;
    /// The position before which nothing is held here. Only upwards.
    pub const FLOOR: usize = 6;
    /// What the owner is: a [`Status`](super::Status).
    pub const STATUS: usize = 7;
    /// The last index that the owner's machine shows; one more than its log's last if the machine shows more than the log. Above what is committed only in a
    /// process that executes first.
    pub const EXECUTED: usize = 8;
    /// With a journal: the highest number that the owner may have promised and will remember, whatever happens to it. Only upwards.
    pub const CEILING: usize = 9;
    /// The highest number under which anything in the log was committed that was taught, not accepted, here. 0 if nothing was taught. Only upwards.
    pub const TAUGHT_BALLOT: usize = 10;
    /// How many there are of these.
    pub const COUNT: usize = 11;
    /// The count of the owner's heart, read by itself. It stops when replication does; membership's heartbeat
    /// ([`life::HEARTBEAT`](crate::basics::layout::life::HEARTBEAT)) may continue. Like that heartbeat, it also counts stretches of long work. Only upwards.
    pub const HEARTBEAT: usize = 15;
    /// The region's bytes: cache lines of its own.
    pub const BYTES: usize = 128;
}

/// A process's published status, in [`words::STATUS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Status {
    /// It does not hold the whole state, or has been removed: it neither leads nor teaches.
    #[default]
    Incomplete = 0,
    /// It holds the state and follows.
    Follower = 1,
    /// It leads.
    Leader = 2,
    /// It holds the state, as of when it was taught, but belongs to no group that it knows to be committed: it waits to be added.
    Taught = 3,
    /// The same, but nothing of it would survive a power failure, so it must not be added yet.
    Unkept = 4,
}

impl Status {
    /// The status that a word encodes; an invalid word from a peer counts as the lowest status.
    pub fn of(word: u64) -> Status {
        match word {
            1 => Status::Follower,
            2 => Status::Leader,
            3 => Status::Taught,
            4 => Status::Unkept,
            _ => Status::Incomplete,
        }
    }
}

/// Words of a [`PERMISSION_LANE`], by index. Each is written by the peer for which the lane is kept, and only increases unless stated otherwise.
pub mod permission {
    /// Where in its log lane that peer's next records begin. Written before [`REQUEST`].
    pub const START: usize = 0;
    /// The number of that peer's latest request for write permission (Mu section 5.2: the permission request array); 0 for none.
    pub const REQUEST: usize = 1;
    /// The latest request *of ours* that the peer has granted.
    pub const ACK: usize = 2;
    /// Twice the number of that peer's latest request to be taught, plus one while that is open.
    pub const TEACH: usize = 3;
    /// The salt of the log lane that the peer keeps for us. From 0 to that, before the first [`ACK`].
    pub const LOG_SALT: usize = 4;
    /// The salt of the state lane that the peer keeps for us. From 0 to that, before the first [`TEACH`].
    pub const STATE_SALT: usize = 5;
    /// With durability `sync`: the proposal number of *ours* for which the peer writes [`STABLE`]. Only upwards, and [`STABLE`] is 0 whenever this word
    /// changes.
    pub const STABLE_UNDER: usize = 6;
    /// One more than the last entry, of the log accepted under that number, that is on the peer's stable storage. Upwards, except when the number changes.
    pub const STABLE: usize = 7;
    /// The lane's bytes.
    pub const BYTES: usize = 64;
}

/// A leader writes here, in the unused part of its log lane's header, to learn whether it still may write: bytes from the lane's start.
pub const PROBE_OFFSET: usize = 16;
/// Bytes of [`SCRATCH`] for the words of all peers.
pub const SCRATCH_WORDS_BYTES: usize = MAX_PEERS * words::BYTES;

/// Adds what a process offers for this engine, besides the regions of [`crate::basics::layout::regions`].
pub fn add_regions(spec: &mut RegionSpec, config: &Config) {
    let log = ring::lane_bytes(config.log_ring_bytes);
    spec.own([(WORDS, words::BYTES), (LOG, log), (SCRATCH, SCRATCH_WORDS_BYTES + log)]);
    spec.member_lanes.retain(|(name, _)| *name != LOG_LANE);
    spec.member_lanes.push((LOG_LANE, log));
    spec.member_lanes.extend([(PERMISSION_LANE, permission::BYTES), (STATE_LANE, ring::lane_bytes(config.state_ring_bytes))]);
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A leader's proposal number, for [`words::MIN_PROPOSAL`] (Mu listing 2, line 22).
    Prepare = 1,
    /// `count` records with entries follow, which replace everything after the base; the reader knows the base to be committed.
    Start = 2,
    /// `count` commands, from `index` on, each preceded by its length in four bytes.
    Commands = 3,
    /// A new group: one entry that the state machine does not see. Body: see [`Group`](super::Group).
    Group = 4,
    /// Only the commit index.
    Flush = 5,
    /// A start whose base is committed, but perhaps not known to be at the reader: the log overran the reader, which has to be taught what precedes the base.
    /// Body: the base's position, the group at the base.
    Jump = 6,
    /// The teacher begins: `index` is the last entry that its state shows. Body: that entry's position, the request's number, the group.
    Begin = 7,
    /// A part of the state; `count` is 1 when more fragments of the same part follow, else 0.
    Part = 8,
    /// The whole state has been sent.
    End = 9,
    /// The teacher cannot continue.
    Break = 10,
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
    const ALL: &'static [Kind] = {
        use Kind::*;
        &[Prepare, Start, Commands, Group, Flush, Jump, Begin, Part, End, Break]
    };

    fn byte(self) -> u8 {
        self as u8
    }

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
}

/// The header of a record. Its number is the proposal number under which it was written; its last word is what its writer knew to be committed.
pub type Header = record::Header<Kind>;
/// Why data from another process makes no sense.
pub type LaneFault = record::LaneFault<Kind>;

/// Appends the body of a [`Kind::Jump`]: the position of its base, and the group there.
pub(super) fn jump_body(position: u64, group: &super::Group, out: &mut Vec<u8>) {
    out.extend_from_slice(&position.to_le_bytes());
    group.encode(out);
}

/// The commands of a body, in order.
pub fn commands(body: &[u8]) -> impl Iterator<Item = Result<&[u8], LaneFault>> {
    record::commands(body)
}

/// Whether a record with entries is what its header says.
///
/// # Errors
/// When it is not.
pub fn check_entries(header: &Header, body: &[u8]) -> Result<(), LaneFault> {
    record::check_entries(header, body, false)
}

operations! {
    /// The kinds of operations, as encoded in tokens.
    pub enum Op {
        /// A record in a peer's log lane, a filler before one, or a probe.
        Log,
        /// What the reader of that lane has consumed.
        Consumed,
        /// The words of a peer's log.
        Words,
        /// A piece of a peer's log.
        CatchUp,
        /// A word in a peer's permission lane.
        Permission,
        /// The revocation of a peer's permission.
        Revoke,
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

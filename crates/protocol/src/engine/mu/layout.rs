//! The words and records of the engine: what stands where, who writes it, which way it may move.
//!
//! Beside the [`LOG_LANE`] that every engine has, a process offers
//!
//! | region | kind | content |
//! |---|---|---|
//! | [`WORDS`] | public | the numbers of its log (Mu listing 1), see [`words`]; written by its owner |
//! | [`LOG`] | public | its log: a [`ring`] of sealed records that its owner keeps, for new leaders to read |
//! | [`SCRATCH`] | public | where its own reads land: words of each peer, then a copy of somebody's log |
//! | [`PERMISSION_LANE`] | lane for a member | the background plane's words from that member, see [`permission`]; never revoked |
//! | [`STATE_LANE`] | lane for a member | a ring by which that member teaches us the state; never revoked |
//!
//! Only the [`LOG_LANE`] is ever revoked. A leader's records in it are those of [`Kind`]; the log holds [`Kind::Commands`] and
//! [`Kind::Group`] among them, at the same positions in every replica that has the same entries.
//!
//! The payload of each record is a header of [`HEADER_BYTES`], four little-endian words, and then a body:
//!
//! | word | content |
//! |---|---|
//! | 0 | kind (bits 0 to 7), zero (8 to 31), count (32 to 63) |
//! | 1 | ballot: the proposal number under which it was written |
//! | 2 | index: of the first command; of a start, its base; of records without entries, the last entry before them |
//! | 3 | the highest index that the writer knew to be committed (Mu section 4.2, commit piggybacking) |

use martlet_fabric::{PeerId, RegionName, RegionSpec, Token, ring};

use crate::basics::layout::{Component, LOG_LANE, token_rest};
use crate::basics::{LogIndex, is_number};
use crate::engine::PartFault;
use crate::replica::backlog::{self, Content};

pub use crate::replica::backlog::{COMMAND_HEADER_BYTES, HEADER_BYTES};

use super::config::Config;

/// The most peers whose words a process reads at one time.
pub const MAX_PEERS: usize = 32;

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
    /// The last index that the owner's machine shows; one more than its log has when it shows more than that. Above what is committed only at
    /// those who execute first.
    pub const EXECUTED: usize = 8;
    /// With a journal: the highest number of which the owner will know, whatever happens to it, that it may have promised it. Only upwards.
    pub const CEILING: usize = 9;
    /// The highest number under which anything that stands in the log was committed without having been accepted here: it was taught. 0 if nothing was. Only upwards.
    pub const TAUGHT_BALLOT: usize = 10;
    /// How many there are of these.
    pub const COUNT: usize = 11;
    /// The count of the owner's heart, read by itself. It stops when replication does, which membership's heartbeat
    /// ([`life::HEARTBEAT`](crate::basics::layout::life::HEARTBEAT)) need not. Like that one it also counts stretches of long work. Only upwards.
    pub const HEARTBEAT: usize = 15;
    /// The region's bytes: cache lines of its own.
    pub const BYTES: usize = 128;
}

/// What a process says of itself in [`words::STATUS`].
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
    /// It holds the state, as of when it was taught, and belongs to no group that it knows to be committed: it waits to be taken in.
    Taught = 3,
    /// The same, and should the power go nothing would be left of it: it is not to be taken in yet.
    Unkept = 4,
}

impl Status {
    /// What a word says; a peer's nonsense is the least that it could mean.
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

/// Words of a [`PERMISSION_LANE`], by index; each is written by the peer that the lane is kept for, and, if nothing else is said, only moves upwards.
pub mod permission {
    /// Where in its log lane that peer's next records begin. Written before [`REQUEST`].
    pub const START: usize = 0;
    /// The number of that peer's latest request for write permission (Mu section 5.2: the permission request array); 0 for none.
    pub const REQUEST: usize = 1;
    /// The latest request *of ours* that the peer has granted.
    pub const ACK: usize = 2;
    /// Twice the number of that peer's latest wish to be taught, plus one while it still has it.
    pub const TEACH: usize = 3;
    /// The salt of the log lane that the peer keeps for us. From 0 to that, before the first [`ACK`].
    pub const LOG_SALT: usize = 4;
    /// The salt of the state lane that the peer keeps for us. From 0 to that, before the first [`TEACH`].
    pub const STATE_SALT: usize = 5;
    /// With durability `sync`: the proposal number of *ours* for which the peer writes [`STABLE`]. Only upwards, and [`STABLE`] is 0 whenever it moves.
    pub const STABLE_UNDER: usize = 6;
    /// One more than the last entry, of the log accepted under that number, that is on the peer's stable storage. Upwards, but for new numbers.
    pub const STABLE: usize = 7;
    /// The lane's bytes.
    pub const BYTES: usize = 64;
}

/// A leader writes here, in the unused part of its log lane's header, to learn whether it still may: bytes from the lane's start.
pub const PROBE_OFFSET: usize = 16;
/// Bytes of [`SCRATCH`] for the words of all peers.
pub const SCRATCH_WORDS_BYTES: usize = MAX_PEERS * words::BYTES;

/// What a process offers for this engine, beside the regions of [`crate::basics::layout::regions`].
pub fn add_regions(spec: &mut RegionSpec, config: &Config) {
    let log = ring::lane_bytes(config.log_ring_bytes);
    spec.public.extend([(WORDS, words::BYTES), (LOG, log), (SCRATCH, SCRATCH_WORDS_BYTES + log)]);
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
    /// `count` records with entries follow that replace everything behind the base, which the reader knows to be committed.
    Start = 2,
    /// `count` commands, from `index` on, each behind its length in four bytes.
    Commands = 3,
    /// A new group: one entry that the state machine does not see. Body: see [`Group`](super::Group).
    Group = 4,
    /// Nothing but what is committed.
    Flush = 5,
    /// A start whose base is committed, but perhaps not here: the log overran the reader, which has to be taught what lies before. Body: the
    /// base's position, the group at the base.
    Jump = 6,
    /// The teacher begins: `index` is the last entry that its state shows. Body: that entry's position, the wish's number, the group.
    Begin = 7,
    /// A part of the state; `count` is 1 when more fragments of the same part follow, else 0.
    Part = 8,
    /// The state has been sent as a whole.
    End = 9,
    /// The teacher cannot go on.
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

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Prepare, Start, Commands, Group, Flush, Jump, Begin, Part, End, Break].into_iter().find(|k| *k as u8 == byte)
    }

    /// Whether it is part of the log.
    pub fn is_entry(self) -> bool {
        matches!(self, Kind::Commands | Kind::Group)
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the record is.
    pub kind: Kind,
    /// See the kinds.
    pub count: u32,
    /// The writer's proposal number.
    pub ballot: u64,
    /// See the kinds.
    pub index: LogIndex,
    /// What its writer knew to be committed.
    pub committed: LogIndex,
}

impl Header {
    /// As it stands in front of a body.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        let first = u64::from(self.kind as u8) | (u64::from(self.count) << 32);
        for (word, into) in [first, self.ballot, self.index.0, self.committed.0].into_iter().zip(bytes.as_chunks_mut::<8>().0) {
            *into = word.to_le_bytes();
        }
        bytes
    }

    /// Appends the [`HEADER_BYTES`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// Splits a payload into header and body.
    pub fn decode(payload: &[u8]) -> Result<(Header, &[u8]), LaneFault> {
        let (head, body) = payload.split_at_checked(HEADER_BYTES).ok_or(LaneFault::Short(payload.len()))?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let kind = Kind::of(word(0) as u8).filter(|_| word(0) & 0xffff_ff00 == 0).ok_or(LaneFault::Kind(word(0)))?;
        let header =
            Header { kind, count: (word(0) >> 32) as u32, ballot: word(8), index: LogIndex(word(16)), committed: LogIndex(word(24)) };
        if ![header.ballot, header.index.0, header.committed.0].into_iter().all(is_number) {
            return Err(LaneFault::Range);
        }
        Ok((header, body))
    }

    /// The last index of a record with entries.
    pub fn last(&self) -> LogIndex {
        LogIndex((self.index.0 + u64::from(self.count)).saturating_sub(1))
    }
}

/// Whether a record could stand there in a log.
pub(super) fn is_position(position: u64) -> bool {
    position.is_multiple_of(16) && is_number(position)
}

/// Appends the body of a [`Kind::Jump`]: where its base stands, and the group there.
pub(super) fn jump_body(position: u64, group: &super::Group, out: &mut Vec<u8>) {
    out.extend_from_slice(&position.to_le_bytes());
    group.encode(out);
}

/// Appends the body of a [`Kind::Begin`]: where the last entry stands that the state shows, the wish's number, and the group there.
pub(super) fn begin_body(position: u64, wish: u64, group: &super::Group, out: &mut Vec<u8>) {
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(&wish.to_le_bytes());
    group.encode(out);
}

/// Splits a body into the position that it begins with and the rest.
pub(super) fn split_position(body: &[u8]) -> Result<(u64, &[u8]), LaneFault> {
    let (position, rest) = body.split_first_chunk().ok_or(LaneFault::Body)?;
    Some((u64::from_le_bytes(*position), rest)).filter(|(position, _)| is_position(*position)).ok_or(LaneFault::Body)
}

/// The commands of a body, in order.
pub fn commands(body: &[u8]) -> impl Iterator<Item = Result<&[u8], LaneFault>> {
    backlog::commands(body).map(|command| command.ok_or(LaneFault::Body))
}

/// Whether a record with entries is what its header says.
pub fn check_entries(header: &Header, body: &[u8]) -> Result<(), LaneFault> {
    let sane = match header.kind {
        Kind::Group => header.count == 1 && super::Group::decode(body).is_some(),
        Kind::Commands => header.count > 0 && commands(body).try_fold(0, |n, command| command.map(|_| n + 1)) == Ok(header.count),
        _ => false,
    };
    if sane && header.index.0 > 0 { Ok(()) } else { Err(LaneFault::Body) }
}

/// Why records whose seals hold make no sense. Their reader takes nothing more from that lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneFault {
    /// A record is shorter than its header.
    #[error("a record of {0} bytes is shorter than its header of {HEADER_BYTES}")]
    Short(usize),
    /// There is no such kind of record.
    #[error("a record's first word is {0:#x}; kinds are 1 to 10, and bits 8 to 31 zero")]
    Kind(u64),
    /// Numbers that no log reaches.
    #[error("a record's ballot, index or committed index is out of range")]
    Range,
    /// What follows the header is not what the header says.
    #[error("a record's body does not fit its header")]
    Body,
    /// A record of this kind must not stand here.
    #[error("a record of kind {0:?} out of order")]
    Order(Kind),
    /// Its ballot is not the one that this place calls for.
    #[error("a record of ballot {found} where {expected} was due")]
    Ballot {
        /// Due here.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// Its index is not the next one.
    #[error("a record of index {found} where {expected} was due")]
    Index {
        /// Due here.
        expected: LogIndex,
        /// As found.
        found: LogIndex,
    },
    /// It stands elsewhere in its ring than in ours, which is of another size.
    #[error("a record that ends at {found} where {expected} was due: its log was of another size")]
    Position {
        /// Due here.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// The log has no room for it, although its writer should have known.
    #[error("a record that the log has no room for")]
    Room,
    /// Nothing can stand there: who asks for the permission names no place in its lane.
    #[error("records are to begin at {0}, which is no place between two")]
    Start(u64),
    /// A part of the state that cannot be taken.
    #[error(transparent)]
    Part(#[from] PartFault),
}

/// What an operation was, as its token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// A record in a peer's log lane, a filler before one, or a probe.
    Log = 0,
    /// What the reader of that lane has consumed.
    Consumed = 1,
    /// The words of a peer's log.
    Words = 2,
    /// A piece of a peer's log.
    CatchUp = 3,
    /// A word in a peer's permission lane.
    Permission = 4,
    /// The revocation of a peer's permission.
    Revoke = 5,
    /// A peer's heartbeat.
    Heartbeat = 6,
    /// A peer's status.
    Status = 7,
    /// A peer's number of acting threads.
    Threads = 8,
    /// A death word of a peer; the round is the thread.
    Death = 9,
    /// A record in a peer's state lane.
    State = 10,
    /// What the reader of that lane has consumed.
    StateConsumed = 11,
}

impl Op {
    const ALL: [Op; 12] = [
        Op::Log,
        Op::Consumed,
        Op::Words,
        Op::CatchUp,
        Op::Permission,
        Op::Revoke,
        Op::Heartbeat,
        Op::Status,
        Op::Threads,
        Op::Death,
        Op::State,
        Op::StateConsumed,
    ];

    /// A token. `round` tells the uses of one kind of operation apart: its low 16 bits go along, which is enough, since operations on one
    /// peer complete in the order in which they were posted.
    pub fn token(self, round: u64, peer: PeerId) -> Token {
        Component::Engine.token(((self as u64) << 48) | ((round & 0xffff) << 32) | u64::from(peer.0))
    }

    /// What [`Op::token`] packed.
    pub fn parse(token: Token) -> (Op, u64, PeerId) {
        let rest = token_rest(token);
        (Op::ALL[(rest >> 48) as usize % Op::ALL.len()], (rest >> 32) & 0xffff, PeerId(rest as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_operation_round_and_peer() {
        for (at, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, at);
            for (round, peer) in [(0, 0), (7, 1), (0xffff, u32::MAX)] {
                let token = op.token(round, PeerId(peer));
                assert!(Component::Engine.owns(token));
                assert_eq!(Op::parse(token), (op, round, PeerId(peer)));
            }
        }
    }

    #[test]
    fn headers_come_back_as_they_went() {
        for kind in (1..=10).map(|k| Kind::of(k).expect("a kind")) {
            let header = Header { kind, count: 7, ballot: 1 << 40, index: LogIndex(9), committed: LogIndex(8) };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes.push(3);
            assert_eq!(Header::decode(&bytes), Ok((header, &[3u8][..])));
        }
    }

    #[test]
    fn hostile_bytes_are_faults_and_not_panics() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..rng.usize(0..80)).map(|_| if rng.bool() { 0 } else { rng.u8(..) }).collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 12;
            }
            if let Ok((header, body)) = Header::decode(&bytes) {
                let _ = check_entries(&header, body);
            }
        }
        let header = Header { kind: Kind::Commands, count: 1, ballot: 1, index: LogIndex(1), committed: LogIndex(0) };
        assert_eq!(check_entries(&header, &[200, 0, 0, 0, 1]), Err(LaneFault::Body), "a length beyond the body");
        assert_eq!(check_entries(&header, &[]), Err(LaneFault::Body), "fewer commands than counted");
        assert_eq!(check_entries(&header, &[1, 0, 0, 0, 1]), Ok(()));
        assert_eq!(check_entries(&Header { index: LogIndex(0), ..header }, &[1, 0, 0, 0, 1]), Err(LaneFault::Body));
    }
}

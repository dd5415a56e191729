//! The words and records of the engine: where each one is, which process writes it, and in which direction it may change (DARE section 3.1.1).
//!
//! Besides the [`LOG_LANE`] that every engine has, a process offers
//!
//! | region | kind | content |
//! |---|---|---|
//! | [`WORDS`] | public | what it reports of itself, see [`words`]; written by its owner |
//! | [`LOG`] | public | its log: a [`ring`] of sealed records that its owner keeps, at the same absolute positions in every log that has them |
//! | [`RUNS`] | public | the terms of its entries that are not known to be committed, as of its last grant: [`Determinants`] |
//! | [`SNAPSHOT`] | public | a ring with parts of its state, for one learner at a time, which reads them |
//! | [`SCRATCH`] | public | where its own reads land |
//! | [`CONTROL_LANE`] | lane for a member | that member's words to us, see [`control`]; never revoked |
//!
//! Only the [`LOG_LANE`] is ever revoked: it corresponds to the paper's log queue pair, the control lane to its control queue pair. A leader writes records
//! into the log lane at the positions that they have in its own log, and says in words of the lane's header how far they go, see [`lane`].
//!
//! The payload of each record is a [header](record) and a body. The header's number is the term in which the record was made, or, for a part of the state, the
//! term of the entry before it. The header's last word is, in a log, the term of the entry before, and in records for a learner what is known to be committed.

use martlet_fabric::{NodeId, RegionName, RegionSpec, ring};

use crate::basics::layout::{LOG_LANE, MAX_MEMBERS};
use crate::basics::sealed::{self, Sealed};
use crate::basics::{LogIndex, is_number};
use crate::replica::backlog::Content;
use crate::replica::electorate::MAX_FOLLOWERS;
use crate::replica::operations::operations;
use crate::replica::record::{self, RecordKind};

pub(super) use crate::replica::record::{is_position, split_position};

use super::config::Config;
use super::log::{Mark, Run};

/// The most peers that a process reads from at one time.
pub const MAX_PEERS: usize = MAX_FOLLOWERS;

/// What the owner reports of itself.
pub const WORDS: RegionName = RegionName(40);
/// The owner's log.
pub const LOG: RegionName = RegionName(41);
/// Where the owner's own reads land.
pub const SCRATCH: RegionName = RegionName(42);
/// The terms of those of the owner's entries that it does not know to be committed.
pub const RUNS: RegionName = RegionName(43);
/// Parts of the owner's state.
pub const SNAPSHOT: RegionName = RegionName(44);
/// Lane for a member: its words to us.
pub const CONTROL_LANE: RegionName = RegionName(45);

/// Words of [`WORDS`], by index. Each one is written by the owner only.
pub mod words {
    /// The highest term that the owner knows. Stored before any vote of that term can be seen. Only upwards.
    pub const TERM: usize = 0;
    /// The term of the leader that the owner hears; 0 while it hears none.
    pub const SUPPORTS: usize = 1;
    /// The term of the owner's last entry.
    pub const LAST_TERM: usize = 2;
    /// The index of that entry.
    pub const LAST_INDEX: usize = 3;
    /// What the owner is: a [`Status`](super::Status).
    pub const STATUS: usize = 4;
    /// How many of these are read before a vote.
    pub const LOOK: usize = 5;
    /// The position after the content of [`SNAPSHOT`](super::SNAPSHOT). Only upwards.
    pub const SNAPSHOT_TAIL: usize = 5;
    /// The count of the owner's heart, read by itself. It stops when replication does. Only upwards.
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
    /// It holds the state, and does not lead.
    Idle = 1,
    /// It leads.
    Leader = 2,
}

impl Status {
    /// The status that a word encodes; an invalid word from a peer counts as the lowest status.
    pub fn of(word: u64) -> Status {
        match word {
            1 => Status::Idle,
            2 => Status::Leader,
            _ => Status::Incomplete,
        }
    }

    /// Whether its owner holds the state.
    pub fn is_complete(self) -> bool {
        self != Status::Incomplete
    }
}

/// Words of a [`CONTROL_LANE`], by index: the paper's control data, an entry of each array. Each is written by the peer for which the lane is kept, and only
/// increases unless stated otherwise.
pub mod control {
    /// That peer's vote request (DARE section 3.2.2): a [sealed](crate::basics::sealed) record of its term, its last entry's term and
    /// index, and how many servers make a majority of its group.
    pub const REQUEST: usize = 0;
    /// Words of a request.
    pub const REQUEST_WORDS: usize = 7;
    /// The grant under which the peer gives *us* access to its log: a vote if we stand, support if we lead, and the paper's notification after a recovery.
    pub const VOTE: usize = 7;
    /// Whether the peer leads: twice its term, plus one while it reigns (the heartbeat array; the count is in [`HEARTBEAT`](super::words::HEARTBEAT)).
    pub const BEAT: usize = 8;
    /// The grant that the peer asks us for as leader.
    pub const ASK: usize = 9;
    /// The grant that the peer had given us, and has taken back.
    pub const RENEW: usize = 10;
    /// The peer's latest decision in an election: 2^16 times the term, plus one more than the number of the node that it chose (the private data array, section
    /// 3.2.3).
    pub const PRIVATE: usize = 11;
    /// The peer's term, which we should know because we lead in an earlier one (section 4.2.2).
    pub const OUTDATED: usize = 12;
    /// Twice the number of the peer's latest request to read our state, plus one while that is open.
    pub const RECOVER: usize = 13;
    /// Up to where the peer has read [`SNAPSHOT`](super::SNAPSHOT).
    pub const TAKEN: usize = 14;
    /// Where in its snapshot ring the peer begins to serve our request. Written before [`SERVES`].
    pub const SERVES_FROM: usize = 15;
    /// The number of *our* request that the peer serves.
    pub const SERVES: usize = 16;
    /// The peer has led, and hands over: 2^16 times the next term, plus one more than the number of the node that is to lead then. That node stands at once,
    /// and the others hold back for it.
    pub const STAND: usize = 17;
    /// The lane's bytes.
    pub const BYTES: usize = 192;
}

/// Words of a log lane's header, by index. The first belongs to the ring: up to where the owner has applied records, so that a leader may write up to one lap
/// further.
pub mod lane {
    /// Where the owner's log is to be cut off, as the leader found by its determinants (DARE section 3.3.1). The next three words are written with it.
    pub const CUT: usize = 2;
    /// The last entry before that.
    pub const CUT_INDEX: usize = 3;
    /// The position after the last record that counts.
    pub const TAIL: usize = 4;
    /// The last index that the leader knew to be committed: the lazy commit pointer. Upwards under one grant.
    pub const COMMIT: usize = 5;
    /// The grant under which the words before it count. Written after them.
    pub const GRANT: usize = 6;
    /// The grant under which the leader found that its log does not reach back to the owner's.
    pub const OVERRUN: usize = 7;
}

/// How many bits of a grant tell the grants of one term apart.
pub const GRANT_BITS: u32 = 16;

/// The first grant of a term: a vote.
pub const fn vote_of(term: u64) -> u64 {
    term << GRANT_BITS
}

/// A term, and the node that a server chooses to lead in it.
pub fn choice(term: u64, node: NodeId) -> u64 {
    vote_of(term) | u64::from(node.0.wrapping_add(1))
}

/// The term and the node of a [`choice`]; `None`: none was made.
pub fn choice_of(word: u64) -> Option<(u64, NodeId)> {
    let node = (word & 0xffff).checked_sub(1)?;
    Some((word >> GRANT_BITS, NodeId(node as u16)))
}

/// The term of a grant.
pub const fn term_of(grant: u64) -> u64 {
    grant >> GRANT_BITS
}

/// The highest term in which a process leads: its grants still fit the range of numbers.
pub const MAX_TERM: u64 = (1 << 45) - 1;
/// How far beyond the terms that it knows a process believes a term: each attempt takes one, so this is years of nothing but elections.
const LEAP: u64 = 1 << 40;

/// Whether another process's term is plausible, given that `known` is known here. If an implausible term were believed, elections could end for good.
pub fn is_plausible(term: u64, known: u64) -> bool {
    term <= MAX_TERM && (known == 0 || term <= known.saturating_add(LEAP))
}

/// Bytes of a peer's slot in [`SCRATCH`], which has a slot for each peer, and then a copy of a snapshot ring.
pub const SLOT_BYTES: usize = RUNS_BYTES;
/// Bytes of [`SCRATCH`] for slots.
pub const SLOTS_BYTES: usize = MAX_PEERS * SLOT_BYTES;

/// Adds what a process offers for this engine, besides the regions of [`crate::basics::layout::regions`].
pub fn add_regions(spec: &mut RegionSpec, config: &Config) {
    let (log, state) = (ring::lane_bytes(config.log_ring_bytes), ring::lane_bytes(config.state_ring_bytes));
    spec.own([(WORDS, words::BYTES), (LOG, log), (SCRATCH, SLOTS_BYTES + state), (RUNS, RUNS_BYTES), (SNAPSHOT, state)]);
    spec.member_lanes.retain(|(name, _)| *name != LOG_LANE);
    spec.member_lanes.extend([(LOG_LANE, log), (CONTROL_LANE, control::BYTES)]);
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An entry without an operation, by which a new leader commits what it has found (DARE section 3.3).
    Noop = 1,
    /// `count` commands, from `index` on, each preceded by its length in four bytes.
    Commands = 2,
    /// A new group: one entry that the state machine does not see (the paper's CONFIG). Body: see [`Group`](crate::replica::group::Group).
    Group = 3,
    /// A new head (section 3.3.2). Body: the position before which nothing is needed any longer.
    Head = 4,
    /// The owner of a snapshot begins. Body: the position after the last entry that its state shows, the request's number, the group.
    Begin = 5,
    /// A part of the state; `count` is 1 when more fragments of the same part follow, else 0.
    Part = 6,
    /// The whole state has been sent.
    End = 7,
    /// Only the commit index.
    Flush = 8,
    /// The owner of the snapshot cannot continue.
    Break = 9,
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
        &[Noop, Commands, Group, Head, Begin, Part, End, Flush, Break]
    };
    const MOST: u64 = MAX_TERM;

    fn byte(self) -> u8 {
        self as u8
    }

    fn is_entry(self) -> bool {
        matches!(self, Kind::Noop | Kind::Commands | Kind::Group | Kind::Head)
    }

    fn content(self) -> Option<Content> {
        match self {
            Kind::Commands => Some(Content::Commands),
            Kind::Group => Some(Content::Group),
            _ => None,
        }
    }
}

/// The header of a record. Its number is the term in which it was made.
pub type Header = record::Header<Kind>;
/// Why data from another process makes no sense.
pub type LaneFault = record::LaneFault<Kind>;

/// Whether a record with entries is what its header says.
///
/// # Errors
/// When it is not.
pub fn check_entries(header: &Header, body: &[u8]) -> Result<(), LaneFault> {
    let is_own = match header.kind {
        Kind::Noop => header.count == 1 && body.is_empty(),
        Kind::Head => header.count == 1 && split_position::<Kind>(body).is_ok_and(|(_, rest)| rest.is_empty()),
        _ => false,
    };
    // No server leads in term 0.
    if header.number == 0 { Err(LaneFault::Body) } else { record::check_entries(header, body, is_own) }
}

/// A vote request: the candidate's term, and its last entry (DARE section 3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// For the leadership of this term.
    pub term: u64,
    /// The term of the candidate's last entry.
    pub last_term: u64,
    /// The index of it.
    pub last: LogIndex,
    /// How many servers make a majority of the candidate's group. The voter may not know that, since its own log may be older.
    pub quorum: usize,
}

impl Request {
    /// Encodes the request into `out`, in the form used in a control lane.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let payload = [self.last.0, self.quorum as u64].map(u64::to_le_bytes);
        sealed::encode(self.term, self.last_term, payload.as_flattened(), out);
    }

    /// The request in these words, if there is a complete one that is plausible given that `term` is known here.
    pub fn read(words: &martlet_fabric::Memory, term: u64) -> Option<Request> {
        let Sealed { subject, ballot, payload } = sealed::read(words)?;
        let (&[last, quorum], []) = payload.as_chunks::<8>() else { return None };
        let (last, quorum) = (u64::from_le_bytes(last), u64::from_le_bytes(quorum));
        let sane = is_plausible(subject, term) && ballot < subject && is_number(last) && quorum <= MAX_MEMBERS as u64;
        sane.then_some(Request { term: subject, last_term: ballot, last: LogIndex(last), quorum: quorum as usize })
    }
}

/// Runs of equal terms that fit into [`RUNS`]. The owner of a log with more among its uncommitted entries, after as many failed elections, gives access to no
/// server, and starts over.
pub const MAX_RUNS: usize = 128;
const DETERMINANT_WORDS: usize = 8;
/// Bytes of [`RUNS`].
pub const RUNS_BYTES: usize = (sealed::HEADER_BYTES + (DETERMINANT_WORDS + 3 * MAX_RUNS) * 8).next_multiple_of(64);

/// What a leader has to know of a log to adjust it: not the entries themselves, but the runs of equal terms among those not known to be committed (DARE section
/// 3.3.1, "a buffer with only the index and the term").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Determinants {
    /// The grant that they belong to.
    pub grant: u64,
    /// The end of the log.
    pub tail: Mark,
    /// What is known to be committed there, and the term of that entry.
    pub base: Mark,
    /// The term of that entry.
    pub base_term: u64,
    /// Up to which entry the owner's machine shows the log; one more than the log's last if the machine shows something that is not in the log.
    pub applied: LogIndex,
    /// Up to which position the log may be overwritten.
    pub kept: u64,
    /// Whether that machine shows the whole state.
    pub complete: bool,
    /// The runs behind `base`, in order.
    pub runs: Vec<Run>,
}

impl Determinants {
    /// Puts them into `out`, as they go into [`RUNS`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = [
            self.tail.index.0,
            self.tail.position,
            self.base.index.0,
            self.base.position,
            self.base_term,
            self.applied.0,
            self.kept,
            u64::from(self.complete),
        ];
        let runs = self.runs.iter().flat_map(|run| [run.term, run.first.0, run.position]);
        let payload: Vec<u8> = head.into_iter().chain(runs).flat_map(u64::to_le_bytes).collect();
        sealed::encode(self.grant, self.runs.len() as u64, &payload, out);
    }

    /// The determinants in these words, if they are complete and make sense.
    pub fn read(words: &martlet_fabric::Memory) -> Option<Determinants> {
        let Sealed { subject: grant, ballot: count, payload } = sealed::read(words)?;
        let (words, rest) = payload.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        if !rest.is_empty() || count > MAX_RUNS as u64 || words.len() != DETERMINANT_WORDS + 3 * count as usize {
            return None;
        }
        let mark = |at| Mark { index: LogIndex(word(at)), position: word(at + 1) };
        let runs = (0..count as usize).map(|n| DETERMINANT_WORDS + 3 * n);
        let runs: Vec<Run> = runs.map(|at| Run { term: word(at), first: LogIndex(word(at + 1)), position: word(at + 2) }).collect();
        let these = Determinants {
            grant,
            tail: mark(0),
            base: mark(2),
            base_term: word(4),
            applied: LogIndex(word(5)),
            kept: word(6),
            complete: word(7) == 1,
            runs,
        };
        let ordered =
            these.base.index <= these.tail.index && these.base.position <= these.tail.position && these.kept <= these.tail.position;
        let sane = [these.tail, these.base].iter().all(|mark| is_position(mark.position) && is_number(mark.index.0));
        let rising = these.runs.iter().is_sorted_by(|a, b| a.term < b.term && a.first < b.first && a.position < b.position);
        let within = |run: &Run| is_position(run.position) && run.first > these.base.index && run.first <= these.tail.index;
        (ordered && sane && rising && these.runs.iter().all(within)).then_some(these)
    }
}

operations! {
    /// What an operation was, as its token says.
    pub enum Op {
        /// A record in a peer's log lane, a filler before one, or words of its header.
        Log,
        /// What the reader of that lane has applied.
        Consumed,
        /// The determinants of a peer's log.
        Runs,
        /// A peer's term, asked for replies that wait.
        Check,
        /// A word in a peer's control lane.
        Control,
        /// A decision in a peer's control lane.
        Private,
        /// The revocation of a peer's access.
        Revoke,
        /// What a peer says of itself, before a vote.
        Look,
        /// How far a peer's snapshot ring is filled.
        SnapshotTail,
        /// A piece of that ring.
        Snapshot,
        /// A peer's heartbeat.
        Heartbeat,
        /// A peer's status.
        Status,
        /// A peer's number of acting threads.
        Threads,
        /// A death word of a peer; the round is the thread.
        Death,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_fabric::primitive::AtomicU64;

    fn stored(encoded: &[u8]) -> Vec<AtomicU64> {
        encoded.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(u64::from_le_bytes(*word))).collect()
    }

    #[test]
    fn requests_and_determinants_come_back_as_they_went() {
        let mut bytes = Vec::new();
        let request = Request { term: 9, last_term: 8, last: LogIndex(70), quorum: 3 };
        request.encode(&mut bytes);
        assert_eq!(bytes.len(), control::REQUEST_WORDS * 8);
        assert_eq!(Request::read(&stored(&bytes), 3), Some(request));
        let mark = |index, position| Mark { index: LogIndex(index), position };
        let runs = vec![Run { term: 3, first: LogIndex(5), position: 160 }, Run { term: 7, first: LogIndex(6), position: 320 }];
        let these = Determinants {
            grant: vote_of(9),
            tail: mark(9, 640),
            base: mark(4, 160),
            base_term: 2,
            applied: LogIndex(4),
            kept: 160,
            complete: true,
            runs,
        };
        these.encode(&mut bytes);
        assert!(bytes.len() <= RUNS_BYTES);
        assert_eq!(Determinants::read(&stored(&bytes)), Some(these.clone()));
        let full = (0..MAX_RUNS as u64).map(|n| Run { term: n + 1, first: LogIndex(n + 5), position: 16 * n });
        Determinants { runs: full.collect(), tail: mark(1000, 1 << 20), ..these }.encode(&mut bytes);
        assert!(bytes.len() <= RUNS_BYTES, "as many as there may be fit");
    }

    #[test]
    fn hostile_bytes_are_faults_and_not_panics() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..5_000 {
            let mut bytes = Vec::new();
            let payload: Vec<u8> = (0..8 * rng.usize(6..20)).map(|_| if rng.u8(..4) > 0 { 0 } else { rng.u8(..64) }).collect();
            sealed::encode(rng.u64(..), rng.u64(..8), &payload, &mut bytes);
            let _ = Determinants::read(&stored(&bytes));
            let _ = Request::read(&stored(&bytes), 1);
        }
        let header = Header { kind: Kind::Commands, count: 1, number: 1, index: LogIndex(1), beside: 0 };
        assert_eq!(check_entries(&header, &[1, 0, 0, 0, 1]), Ok(()));
        assert_eq!(check_entries(&Header { kind: Kind::Noop, ..header }, &[1]), Err(LaneFault::Body), "an empty entry is empty");
        assert_eq!(
            check_entries(&Header { kind: Kind::Head, ..header }, &8u64.to_le_bytes()),
            Err(LaneFault::Body),
            "no place between two records"
        );
        assert_eq!(check_entries(&Header { number: 0, ..header }, &[1, 0, 0, 0, 1]), Err(LaneFault::Body), "nobody leads in term 0");
    }

    #[test]
    fn dare_terms_that_nobody_reaches_are_not_believed() {
        assert!(is_plausible(1 << 44, 0) && !is_plausible(1 << 46, 0), "who knows no term believes whom it joins, up to the last one");
        assert!(is_plausible(LEAP + 5, 5) && !is_plausible(LEAP + 6, 5));
        assert!(is_number(vote_of(MAX_TERM) + 1));
        assert_eq!((choice_of(choice(7, NodeId(3))), choice_of(0)), (Some((7, NodeId(3))), None));
    }
}

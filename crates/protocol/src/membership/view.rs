//! Views: which processes belong to the system, since when, and why a process no longer belongs.

use std::fmt;

use martlet_fabric::{Incarnation, Levels, NodeId};

use crate::basics::{Canary, ProcessId, ViewNumber, layout, sealed};
use crate::version;

/// What a member does. A set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Roles(pub u8);

impl Roles {
    /// Keeps consensus slots and may lead the membership service.
    pub const COORDINATOR: Roles = Roles(1);
    /// Holds the whole state: is the primary or may become it.
    pub const REPLICA: Roles = Roles(2);
    /// Receives the log and, in addition, the state: a future replica.
    pub const LEARNER: Roles = Roles(4);
    /// Renews leases for others (uKharon section 6.3).
    pub const LEASE_CACHE: Roles = Roles(8);
    /// All bits that have a meaning.
    const ALL: u8 = 15;

    /// The set with these bits, if each of them has a meaning.
    pub const fn from_bits(bits: u8) -> Option<Roles> {
        if bits & !Roles::ALL == 0 { Some(Roles(bits)) } else { None }
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Roles) -> Roles {
        Roles(self.0 | other.0)
    }

    /// This set without the other.
    #[must_use]
    pub const fn without(self, other: Roles) -> Roles {
        Roles(self.0 & !other.0)
    }

    /// Whether every role of `other` is in this set.
    pub const fn has(self, other: Roles) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Roles::COORDINATOR, "coordinator"),
            (Roles::REPLICA, "replica"),
            (Roles::LEARNER, "learner"),
            (Roles::LEASE_CACHE, "lease-cache"),
        ];
        let mut first = true;
        for (role, name) in names {
            if self.has(role) {
                write!(f, "{}{name}", if first { "" } else { "+" })?;
                first = false;
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// One process of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node and its incarnation.
    pub id: ProcessId,
    /// What it does.
    pub roles: Roles,
    /// The feature levels that its program can work at.
    pub levels: Levels,
    /// Where clients that speak the Redis protocol reach it, as `host:port`; at most [`MAX_ADDRESS_BYTES`]. Empty when it serves none.
    pub address: String,
}

impl Member {
    /// A member that runs this build and serves no clients of the Redis protocol.
    pub fn new(id: ProcessId, roles: Roles) -> Member {
        Member { id, roles, levels: version::LEVELS, address: String::new() }
    }
}

/// Bytes of a process's name in a view.
const ID_BYTES: usize = 10;

/// The longest address of a member, in bytes.
pub const MAX_ADDRESS_BYTES: usize = 96;

/// Why a process is no longer a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// It asked to leave and had stopped acting.
    Left,
    /// Its kernel says that all its acting threads are gone: it can hold no lease.
    Certain,
    /// Its signs of life stopped: it may still hold a lease.
    Presumed,
    /// An operator, or the leader's clique, cut it off: it may still hold a lease.
    Evicted,
}

impl Evidence {
    /// Its byte in a view or a message.
    pub const fn code(self) -> u8 {
        match self {
            Evidence::Left => 0,
            Evidence::Certain => 1,
            Evidence::Presumed => 2,
            Evidence::Evicted => 3,
        }
    }

    /// The evidence that a byte stands for.
    pub const fn from_code(code: u8) -> Option<Evidence> {
        Some(match code {
            0 => Evidence::Left,
            1 => Evidence::Certain,
            2 => Evidence::Presumed,
            3 => Evidence::Evicted,
            _ => return None,
        })
    }

    /// Whether a process that departed for this reason can no longer act, so that its lease need not be waited for.
    pub const fn releases_leases(self) -> bool {
        matches!(self, Evidence::Left | Evidence::Certain)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Evidence::Left => "left",
            Evidence::Certain => "dead",
            Evidence::Presumed => "presumed dead",
            Evidence::Evicted => "evicted",
        })
    }
}

/// A process that was a member and no longer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departed {
    /// The node and its incarnation.
    pub id: ProcessId,
    /// Why it is gone.
    pub evidence: Evidence,
}

/// A decided configuration of the system. Views are totally ordered by number, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its place in the order.
    pub number: ViewNumber,
    /// How long a lease on this view lasts, in nanoseconds.
    pub lease_ns: u64,
    /// The longest lease that any process may still hold on an older view, in nanoseconds. Processes whose lease cannot be seen to have been returned
    /// are waited for that long.
    pub fence_ns: u64,
    /// Whether it differs from its predecessor only in the lease's length, so that leases carry over (uKharon section 6.3).
    pub compatible: bool,
    /// The feature level, at least 1: every member can work at it, and writes nothing that a program of this level could not read. It never falls.
    pub level: u8,
    /// The members, in order of seniority: the first with role replica is the primary.
    pub members: Vec<Member>,
    /// The processes removed by this view, and those removed earlier that may still hold a lease on an older view.
    pub departed: Vec<Departed>,
}

const _: () = {
    let members = layout::MAX_MEMBERS * (ID_BYTES + 4 + MAX_ADDRESS_BYTES);
    let departed = layout::MAX_MEMBERS * (ID_BYTES + 1);
    let longest = sealed::HEADER_BYTES + 3 * 8 + 4 + members + departed;
    assert!(longest <= layout::VIEW_RECORD_BYTES, "the longest view fits its record");
};

impl View {
    /// The member with that id.
    pub fn member(&self, id: ProcessId) -> Option<&Member> {
        self.members.iter().find(|m| m.id == id || (Canary::SameLife.is_planted() && m.id.node == id.node))
    }

    /// The primary: the most senior replica.
    pub fn primary(&self) -> Option<&Member> {
        self.members.iter().find(|m| m.roles.has(Roles::REPLICA))
    }

    /// Members with all of these roles, most senior first.
    pub fn with_roles(&self, roles: Roles) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |m| m.roles.has(roles))
    }

    /// The acceptors of the next view's slot, most senior first; a proposer's position in this list is its number in ballots.
    pub fn coordinators(&self) -> impl Iterator<Item = &Member> {
        self.with_roles(Roles::COORDINATOR)
    }

    /// Appends the encoding to `out`: little-endian, no padding.
    ///
    /// `number u64, lease_ns u64, fence_ns u64, compatible u8, level u8, members u8, departed u8`, then per member `node u16, incarnation u64, roles u8,
    /// lowest level u8, highest level u8, address length u8, address`, then per departed `node u16, incarnation u64, evidence u8`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.0.to_le_bytes());
        out.extend_from_slice(&self.lease_ns.to_le_bytes());
        out.extend_from_slice(&self.fence_ns.to_le_bytes());
        out.push(u8::from(self.compatible));
        out.push(self.level);
        out.push(self.members.len() as u8);
        out.push(self.departed.len() as u8);
        for m in &self.members {
            encode_id(m.id, out);
            out.push(m.roles.0);
            out.extend([m.levels.least, m.levels.most, m.address.len() as u8]);
            out.extend_from_slice(m.address.as_bytes());
        }
        for d in &self.departed {
            encode_id(d.id, out);
            out.push(d.evidence.code());
        }
    }

    /// Reads what [`View::encode`] wrote. The bytes may come from a peer's memory: everything is checked.
    pub fn decode(bytes: &[u8]) -> Result<View, ViewError> {
        let mut r = Cursor { bytes };
        let number = r.u64()?;
        if number > layout::LAST_VIEW {
            return Err(ViewError::Field("number", number));
        }
        let number = ViewNumber(number);
        let lease_ns = r.u64()?;
        let fence_ns = r.u64()?;
        let compatible = match r.u8()? {
            0 => false,
            1 => true,
            other => return Err(ViewError::Field("compatible", u64::from(other))),
        };
        let level = r.u8()?;
        if level == 0 {
            return Err(ViewError::Field("level", 0));
        }
        let members = r.count("members")?;
        let departed = r.count("departed")?;
        let mut view = View {
            number,
            lease_ns,
            fence_ns,
            compatible,
            level,
            members: Vec::with_capacity(members),
            departed: Vec::with_capacity(departed),
        };
        for _ in 0..members {
            let id = r.id()?;
            let roles = r.u8()?;
            let roles = Roles::from_bits(roles).ok_or(ViewError::Field("roles", u64::from(roles)))?;
            let (least, most) = (r.u8()?, r.u8()?);
            let levels = Levels::of(least, most).ok_or(ViewError::Levels(least, most))?;
            let len = usize::from(r.u8()?);
            if len > MAX_ADDRESS_BYTES {
                return Err(ViewError::Field("address length", len as u64));
            }
            let address = std::str::from_utf8(r.take(len)?).map_err(|_| ViewError::Address)?.to_owned();
            if view.member(id).is_some() {
                return Err(ViewError::Twice(id));
            }
            view.members.push(Member { id, roles, levels, address });
        }
        for _ in 0..departed {
            let id = r.id()?;
            let code = r.u8()?;
            let evidence = Evidence::from_code(code).ok_or(ViewError::Field("evidence", u64::from(code)))?;
            view.departed.push(Departed { id, evidence });
        }
        if !r.bytes.is_empty() {
            return Err(ViewError::Trailing(r.bytes.len()));
        }
        Ok(view)
    }
}

fn encode_id(id: ProcessId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.node.0.to_le_bytes());
    out.extend_from_slice(&id.incarnation.0.to_le_bytes());
}

struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], ViewError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(ViewError::Short)?;
        self.bytes = tail;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, ViewError> {
        Ok(self.take(1)?[0])
    }

    fn u64(&mut self) -> Result<u64, ViewError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    fn count(&mut self, what: &'static str) -> Result<usize, ViewError> {
        let n = usize::from(self.u8()?);
        if n > layout::MAX_MEMBERS { Err(ViewError::Field(what, n as u64)) } else { Ok(n) }
    }

    fn id(&mut self) -> Result<ProcessId, ViewError> {
        let node = NodeId(u16::from_le_bytes(self.take(2)?.try_into().expect("2 bytes")));
        Ok(ProcessId { node, incarnation: Incarnation(self.u64()?) })
    }
}

/// Why bytes are not a valid view.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ViewError {
    /// The bytes end too early.
    #[error("the view ends too early")]
    Short,
    /// More bytes follow the view.
    #[error("{0} bytes follow the view")]
    Trailing(usize),
    /// A field has a value that it cannot have.
    #[error("the view's {0} is {1}, which is not allowed")]
    Field(&'static str, u64),
    /// A member's feature levels do not form a range.
    #[error("a member's feature levels in the view are {0} to {1}")]
    Levels(u8, u8),
    /// An address is not text.
    #[error("an address in the view is not UTF-8")]
    Address,
    /// A member is listed twice.
    #[error("the view lists {0} twice")]
    Twice(ProcessId),
}

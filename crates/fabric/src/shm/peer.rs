//! The memory that two processes share: what we own, what we keep for one peer, and a connected peer's side.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bell::Bell;
use super::mail;
use crate::contract::{Identity, PeerKind, RegionName, RegionSpec};
use crate::host::memory::{self, Access, Area, Map, page};
use crate::host::plan::{GRANT_STRIDE, LanesPlan, PublicPlan, by_writer};
use crate::meeting::regions::lanes_for;
use crate::primitive::Ordering;

/// A grant word is `epoch << 1 | granted`; a fresh lane is granted, in epoch 1. Only the lane's owner writes it.
const FRESH_GRANT: u64 = (1 << 1) | 1;

/// The memory of this process that all its peers share.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) spec: RegionSpec,
    public: Box<[(RegionName, Area)]>,
    pub(super) bell: Bell,
    public_fd: OwnedFd,
    public_read_only: OwnedFd,
    owned_fd: OwnedFd,
    bell_fd: OwnedFd,
}

impl Own {
    pub(super) fn create(spec: RegionSpec, prefault: bool) -> io::Result<Own> {
        let [shared, owned] = by_writer(&spec);
        let (plan, owned_plan) = (PublicPlan::of(&shared), PublicPlan::of(&owned));
        let public_fd = memory::create("martlet-public", plan.bytes)?;
        let public_read_only = memory::read_only(&public_fd)?;
        let map = Map::new(&public_fd, 0, plan.bytes, Access::ReadWrite, prefault)?;
        let (owned_fd, owned_map) = memory::create_owned("martlet-owned", owned_plan.bytes, prefault)?;
        let public = areas(&shared, &plan.offsets, &map).chain(areas(&owned, &owned_plan.offsets, &owned_map)).collect();
        let bell_fd = memory::create("martlet-bell", page())?;
        let bell = Bell::new(Area::new(&Map::new(&bell_fd, 0, page(), Access::ReadWrite, true)?, 0, 8));
        Ok(Own { spec, public, bell, public_fd, public_read_only, owned_fd, bell_fd })
    }

    pub(super) fn public(&self, name: RegionName) -> Option<&Area> {
        find(&self.public, name)
    }

    /// What a peer of this kind gets, besides its lanes.
    pub(super) fn fds(&self, peer: PeerKind) -> [BorrowedFd<'_>; 3] {
        use std::os::fd::AsFd;
        let public = match peer {
            PeerKind::Member => &self.public_fd,
            PeerKind::Client => &self.public_read_only,
        };
        [public.as_fd(), self.owned_fd.as_fd(), self.bell_fd.as_fd()]
    }
}

fn areas(regions: &[(RegionName, usize)], offsets: &[usize], map: &Arc<Map>) -> impl Iterator<Item = (RegionName, Area)> {
    regions.iter().zip(offsets).map(|((name, len), at)| (*name, Area::new(map, *at, *len)))
}

/// Regions are few: searching the list beats any table.
#[inline]
pub(super) fn find(areas: &[(RegionName, Area)], name: RegionName) -> Option<&Area> {
    areas.iter().find(|(n, _)| *n == name).map(|(_, area)| area)
}

/// A lane and its grant word, at either end.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: RegionName,
    pub(super) area: Area,
    grant: Area,
}

impl Lane {
    /// The current grant word.
    #[inline]
    pub(super) fn grant(&self) -> u64 {
        let word = self.grant.memory()[0].load(Ordering::Relaxed);
        // Together with the relaxed load, an acquire load; written this way because the writer's mapping of the word is read-only.
        crate::primitive::fence(Ordering::Acquire);
        word
    }

    /// Whether a value of the grant word allows its holder to write.
    #[inline]
    pub(super) fn allows(grant: u64) -> bool {
        grant & 1 == 1
    }

    /// For the owner, while no process writes: makes the lane as it was when it was created.
    pub(super) fn refresh(&self) {
        self.area.memory().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.grant.memory()[0].store(FRESH_GRANT, Ordering::Release);
    }

    /// For the owner: starts a new epoch in which the writer may, or may not, write. Does nothing if that is so already.
    pub(super) fn set_granted(&self, granted: bool) {
        let word = &self.grant.memory()[0];
        let now = word.load(Ordering::Relaxed);
        if Lane::allows(now) != granted {
            word.store((((now >> 1) + 1) << 1) | u64::from(granted), Ordering::Release);
        }
    }
}

/// The lanes that we keep for one peer, fresh.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) fd: OwnedFd,
    lanes: Box<[Lane]>,
    mail: Option<Area>,
}

impl Kept {
    /// Creates the lanes that an owner of kind `own_kind` keeps for a peer of kind `peer`.
    pub(super) fn create(spec: &RegionSpec, own_kind: PeerKind, peer: PeerKind, prefault: bool) -> io::Result<Kept> {
        let lanes = lanes_for(spec, peer);
        let plan = LanesPlan::new(lanes, (own_kind == PeerKind::Member && peer == PeerKind::Member).then_some(mail::BYTES));
        let fd = memory::create("martlet-lanes", plan.bytes())?;
        let grants = Map::new(&fd, 0, page(), Access::ReadWrite, true)?;
        let body = Map::new(&fd, page(), plan.body, Access::ReadWrite, prefault)?;
        let (lanes, mail) = cut(lanes, &plan, &grants, &body);
        for lane in &lanes {
            lane.grant.memory()[0].store(FRESH_GRANT, Ordering::Release);
        }
        Ok(Kept { fd, lanes, mail })
    }
}

fn cut(lanes: &[(RegionName, usize)], plan: &LanesPlan, grants: &Arc<Map>, body: &Arc<Map>) -> (Box<[Lane]>, Option<Area>) {
    let lanes = areas(lanes, &plan.offsets, body)
        .enumerate()
        .map(|(at, (name, area))| Lane { name, area, grant: Area::new(grants, at * GRANT_STRIDE, 8) })
        .collect();
    (lanes, plan.mail.map(|at| Area::new(body, at, mail::BYTES)))
}

/// A connected process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) identity: Identity,
    /// Set once the endpoint has been told that it is gone.
    pub(super) gone: bool,
    /// Its public regions, first those that we may write.
    public: Box<[(RegionName, Area)]>,
    /// How many of them we may write: none if we are a client.
    writable: usize,
    /// Lanes that it keeps for us.
    pub(super) theirs: Box<[Lane]>,
    /// The index in `theirs` of the lane of each name; [`NO_LANE`] if there is none. Every write looks it up.
    numbers: Box<[u8; 256]>,
    /// Lanes that we keep for it.
    pub(super) ours: Box<[Lane]>,
    pub(super) bell: Bell,
    pub(super) outbound: Option<mail::Sender>,
    pub(super) inbound: Option<mail::Receiver>,
}

impl Peer {
    /// Maps what a peer has offered. `spec` is what the peer declared, `ours` what we keep for it. The error says what is wrong with its offer.
    pub(super) fn map(
        identity: Identity,
        spec: &RegionSpec,
        own_kind: PeerKind,
        ours: Kept,
        offered: Vec<OwnedFd>,
        prefault: bool,
    ) -> Result<Peer, String> {
        let count = offered.len();
        let Ok([public, owned, bell, lanes]) = <[OwnedFd; 4]>::try_from(offered) else {
            return Err(format!("its offer carries {count} descriptors, not 4"));
        };
        let writable = own_kind == PeerKind::Member;
        let lane_list = lanes_for(spec, own_kind);
        let plan = LanesPlan::new(lane_list, (writable && identity.kind == PeerKind::Member).then_some(mail::BYTES));
        let [shared_list, owned_list] = by_writer(spec);
        let (public_plan, owned_plan) = (PublicPlan::of(&shared_list), PublicPlan::of(&owned_list));
        memory::check(&public, "public", public_plan.bytes)?;
        memory::check(&owned, "own", owned_plan.bytes)?;
        memory::check(&bell, "bell", page())?;
        memory::check(&lanes, "lane", plan.bytes())?;

        let map = |what: &str, fd: &OwnedFd, offset, len, access, prefault| {
            Map::new(fd, offset, len, access, prefault)
                .map_err(|e| format!("its {what} memory cannot be mapped ({e}{})", crate::limits::hint(&e)))
        };
        let access = if writable { Access::ReadWrite } else { Access::Read };
        // A client reads a few words of what may be a lot of memory, so it takes its page faults as they come.
        let public_map = map("public", &public, 0, public_plan.bytes, access, prefault && writable)?;
        let owned_map = map("own", &owned, 0, owned_plan.bytes, Access::Read, prefault && writable)?;
        let bell_map = map("bell", &bell, 0, page(), Access::ReadWrite, true)?;
        // Read-only: a stray store of ours cannot grant us anything.
        let grants = map("lane", &lanes, 0, page(), Access::Read, true)?;
        let body = map("lane", &lanes, page(), plan.body, Access::ReadWrite, prefault)?;
        let (theirs, outbound) = cut(lane_list, &plan, &grants, &body);
        Ok(Peer {
            identity,
            gone: false,
            public: areas(&shared_list, &public_plan.offsets, &public_map)
                .chain(areas(&owned_list, &owned_plan.offsets, &owned_map))
                .collect(),
            writable: if writable { shared_list.len() } else { 0 },
            numbers: numbers(&theirs),
            theirs,
            ours: ours.lanes,
            bell: Bell::new(Area::new(&bell_map, 0, 8)),
            outbound: outbound.map(mail::Sender::new),
            inbound: ours.mail.map(mail::Receiver::new),
        })
    }

    #[inline]
    pub(super) fn public(&self, name: RegionName) -> Option<&Area> {
        find(&self.public, name)
    }

    /// The public region of that name, and whether we may write it.
    #[inline]
    pub(super) fn public_to(&self, name: RegionName) -> Option<(&Area, bool)> {
        let at = self.public.iter().position(|(n, _)| *n == name)?;
        Some((&self.public[at].1, at < self.writable))
    }

    /// The lane of that name that the peer keeps for us, and its index in `theirs`.
    #[inline]
    pub(super) fn their_lane(&self, name: RegionName) -> Option<(u8, &Lane)> {
        let number = self.numbers[usize::from(name.0)];
        self.theirs.get(usize::from(number)).map(|lane| (number, lane))
    }
}

/// Stands for a lane that does not exist. It is beyond any list of lanes: their names are bytes, and not all 256 are used.
const NO_LANE: u8 = u8::MAX;

fn numbers(lanes: &[Lane]) -> Box<[u8; 256]> {
    crate::invariant!(lanes.len() <= usize::from(NO_LANE), "{} lanes for one peer, at most {NO_LANE}", lanes.len());
    let mut numbers = Box::new([NO_LANE; 256]);
    // Backwards, so that of two lanes with one name the first is found, as everywhere.
    for (number, lane) in lanes.iter().enumerate().rev() {
        numbers[usize::from(lane.name.0)] = number as u8;
    }
    numbers
}

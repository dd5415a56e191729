//! Where an operation takes effect, and how: resolves addresses, checks permissions, and stores words.

use super::ShmFabric;
use crate::contract::{Memory, OpError, PeerId, Region, RegionName, Remote, Token};
use crate::host::memory::Area;
use crate::invariant;
use crate::primitive::{Ordering, fence, store_words};
use crate::shm::peer::Lane;

/// What is known of a posted operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Done(Result<u64, OpError>),
    /// A write to the lane of this index, begun under this value of the grant word. Its result is decided when it is polled.
    Lane {
        lane: u8,
        grant: u64,
    },
    /// A write to public memory: done except for the fence.
    Public,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) token: Token,
    pub(super) peer: PeerId,
    pub(super) outcome: Outcome,
}

impl ShmFabric {
    #[inline]
    pub(super) fn post(&mut self, token: Token, peer: PeerId, outcome: Outcome) {
        self.queue.push_back(Posted { token, peer, outcome });
    }

    /// Resolves an address, or says why nothing can be done there.
    #[inline(always)]
    pub(super) fn locate(&self, at: Remote, len: usize) -> Result<Place<'_>, OpError> {
        if at.peer == PeerId::SELF {
            let Region::Public(name) = at.region else {
                panic!("broken invariant: we keep no lane for ourselves: {at:?}");
            };
            let area = self.own.public(name);
            invariant!(area.is_some(), "no such region: {at:?}");
            return Ok(Place::new(at, len, area.expect("just checked"), None, true));
        }
        let peer = self.peer(at.peer).ok_or(OpError::PeerLost)?;
        match at.region {
            Region::Public(name) => {
                let area = peer.public_to(name);
                invariant!(area.is_some(), "the peer offers no such region: {at:?}");
                let (area, writable) = area.expect("just checked");
                Ok(Place::new(at, len, area, None, writable))
            }
            Region::Lane(name) => {
                let lane = peer.their_lane(name);
                invariant!(lane.is_some(), "the peer keeps no such lane for us: {at:?}");
                let (number, lane) = lane.expect("just checked");
                let grant = lane.grant();
                Ok(Place::new(at, len, &lane.area, Some((number, grant)), Lane::allows(grant)))
            }
        }
    }

    #[inline]
    pub(super) fn write_at(&mut self, peer: PeerId, region: Region, offset: usize, bytes: &[u8], token: Token) {
        #[cfg(debug_assertions)]
        self.check_no_mixing(Remote { peer, region, offset }, bytes.len());
        let outcome = match region {
            Region::Lane(name) if peer != PeerId::SELF => self.write_lane(peer, name, offset, bytes),
            _ => match self.locate(Remote { peer, region, offset }, bytes.len()) {
                Err(error) => Outcome::Done(Err(error)),
                Ok(place) if !place.writable => Outcome::Done(Err(OpError::AccessLost)),
                Ok(place) => {
                    store(place.words, bytes);
                    place.lane.map_or(Outcome::Public, |(lane, grant)| Outcome::Lane { lane, grant })
                }
            },
        };
        self.dirty |= !matches!(outcome, Outcome::Done(_));
        self.post(token, peer, outcome);
    }

    /// The common case of a write.
    #[inline]
    fn write_lane(&self, peer: PeerId, name: RegionName, offset: usize, bytes: &[u8]) -> Outcome {
        let Some(to) = self.peer(peer) else { return Outcome::Done(Err(OpError::PeerLost)) };
        let lane = to.their_lane(name);
        invariant!(lane.is_some(), "{peer:?} keeps no lane {} for us", name.0);
        let (lane, kept) = lane.expect("just checked");
        let sane = (offset | bytes.len()).is_multiple_of(8) && offset.checked_add(bytes.len()).is_some_and(|end| end <= kept.area.bytes());
        invariant!(sane, "{} bytes at {offset} of lane {} at {peer:?}, which has {}", bytes.len(), name.0, kept.area.bytes());
        let grant = kept.grant();
        // Nothing is stored without permission, so what a lane contains after a revocation comes from writes that began before it.
        if !Lane::allows(grant) {
            return Outcome::Done(Err(OpError::AccessLost));
        }
        store(&kept.area.memory()[offset / 8..(offset + bytes.len()) / 8], bytes);
        Outcome::Lane { lane, grant }
    }

    #[cfg(debug_assertions)]
    fn check_no_mixing(&self, at: Remote, len: usize) {
        // Search the swapped words rather than check each written word: writes are long, and few words are swapped.
        let mixed = self.swapped.range((at.peer, at.region, at.offset)..(at.peer, at.region, at.offset + len)).next();
        invariant!(mixed.is_none(), "a plain write to a word that has been swapped: {at:?}, {mixed:?}");
    }
}

/// A resolved address.
pub(super) struct Place<'a> {
    pub(super) words: &'a Memory,
    /// For a lane, its index and its grant word.
    pub(super) lane: Option<(u8, u64)>,
    pub(super) writable: bool,
}

impl<'a> Place<'a> {
    #[inline]
    fn new(at: Remote, len: usize, area: &'a Area, lane: Option<(u8, u64)>, writable: bool) -> Place<'a> {
        check_range(at, len, area);
        Place { words: &area.memory()[at.offset / 8..(at.offset + len) / 8], lane, writable }
    }
}

#[inline]
pub(super) fn check_range(at: Remote, len: usize, area: &Area) {
    invariant!(
        at.offset.is_multiple_of(8) && len.is_multiple_of(8) && at.offset.checked_add(len).is_some_and(|end| end <= area.bytes()),
        "{len} bytes at {at:?}, a region of {} bytes",
        area.bytes()
    );
}

/// The stores of a write. The first word comes last: it announces a ring's record, so a reader that finds it finds the rest. Otherwise a polling
/// reader would keep seeing torn records, and a seal lets one in 2^32 of those pass. Pairs with the acquire in `Reader::maybe`.
#[inline]
fn store(words: &Memory, bytes: &[u8]) {
    fence(Ordering::Release);
    if let (Some(head), Some((first, words))) = (bytes.first_chunk::<8>(), words.split_first()) {
        // The second word by itself, so that the words after it are aligned where the first one is.
        let (second, rest) = words.split_at(words.len().min(1));
        store_words(second, &bytes[8..]);
        store_words(rest, bytes.get(16..).unwrap_or(&[]));
        first.store(u64::from_le_bytes(*head), Ordering::Release);
    }
}

/// An acquire load that may be used on read-only memory.
#[inline]
pub(super) fn load(word: &crate::primitive::AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

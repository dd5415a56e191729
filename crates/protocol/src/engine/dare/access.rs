//! Which server may write into this server's log (DARE section 3.2.1), and what was written there.
//!
//! At any time one process may: the leader that this server supports, or the candidate for which it has voted. The server takes *exclusive local access* by
//! revoking that process's lane. When that has completed, everything that the process wrote successfully is there (promise 6 of the fabric). The server then
//! reads the lane's tail for the last time, takes everything before it into its log, and never looks at that lane under that grant again. So everything that a
//! leader has counted on is in the log before another process may write, and before the server answers a vote request.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::Reader;
use martlet_fabric::{Fabric, LocalRegion, PeerId};

use super::layout::{self, Header, LOG, LaneFault, RUNS, Request, control, lane};
use super::log::Mark;
use super::peers::tell;
use super::{Dare, Event};
use crate::basics::layout::LOG_LANE;
use crate::basics::{self, Canary, LogIndex, is_number, sealed};
use crate::replica::StateMachine;

/// What exclusive access is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To stand for leader.
    Stand,
    /// To compare logs with a candidate.
    Vote { peer: PeerId, request: Request },
    /// To give access to a leader that asks for this grant.
    Support { peer: PeerId, grant: u64 },
    /// To continue from a recovered state.
    Join,
}

/// Which server may write here, and how much of what was written has been taken.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub holder: Option<PeerId>,
    /// Under which grant.
    pub grant: u64,
    /// Whether the log has been adjusted, so that the lane's records follow it.
    adjusted: bool,
    reader: Reader,
    /// The holder's access is being revoked.
    closing: bool,
    /// Revocations that have not completed.
    pub revoking: u32,
    pub purpose: Option<Purpose>,
    /// Whether the lane's content made no sense. Its writer counts on it all the same, so no other process is given access.
    pub broken: bool,
    /// Up to where this server has told the holder that it has applied.
    consumed: u64,
}

impl Access {
    /// Whether exclusive access has been obtained and not been used yet.
    pub fn is_exclusive(&self) -> bool {
        self.purpose.is_some() && self.revoking == 0 && !self.broken
    }
}

impl Dare {
    /// Requests exclusive access to the log, and gives up the purpose of an earlier request.
    pub(super) fn close_log<F: Fabric>(&mut self, purpose: Purpose, fabric: &mut F) {
        self.access.purpose = Some(purpose);
        if let Some(holder) = self.access.holder.filter(|_| !self.access.closing) {
            basics::Mark::DareRevoked.reach();
            self.access.closing = true;
            self.access.revoking += 1;
            fabric.revoke(holder, LOG_LANE, layout::Op::Revoke.token(0, holder));
        }
    }

    /// Uses exclusive access for its purpose, once it has been obtained. Returns whether anything has moved.
    pub(super) fn use_access<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> bool {
        let early = Canary::DareEarlyVote.is_planted();
        let Some(purpose) = self.access.purpose.filter(|_| (self.access.revoking == 0 || early) && !self.access.broken) else {
            return false;
        };
        self.drain(usize::MAX, fabric, machine);
        if self.access.broken {
            return true;
        }
        if let Some(holder) = self.access.holder.take() {
            // A leader has to ask again; a candidate, or a process whose reign is over, ignores this.
            tell(fabric, holder, control::RENEW, self.access.grant);
            self.nudges.at_once(holder);
        }
        self.access = Access { revoking: self.access.revoking, ..Access::default() };
        self.published = false;
        match purpose {
            Purpose::Stand => self.stand(fabric),
            Purpose::Vote { peer, request } => self.consider(peer, request, fabric),
            Purpose::Support { peer, grant } => self.support(peer, grant, fabric),
            Purpose::Join => self.join(fabric, machine),
        }
        true
    }

    /// Gives a peer access to the log, and tells it so: a vote, or support (DARE section 3.2.2). What the peer has to know of the log is in memory before that.
    pub(super) fn give_access<F: Fabric>(&mut self, peer: PeerId, grant: u64, fabric: &mut F) {
        let Some(at) = self.peers.iter().position(|p| p.id == peer && !p.watch.dead) else { return };
        let Some(determinants) = self.log.determinants(grant) else {
            self.events.push_back(Event::Unfit);
            return;
        };
        determinants.encode(&mut self.buffer);
        sealed::store(fabric.memory(LocalRegion::Public(RUNS)).expect("every process offers its determinants"), &self.buffer);
        self.publish(fabric);
        self.access.holder = Some(peer);
        self.access.grant = grant;
        self.access.consumed = 0;
        self.peers[at].granted = grant;
        self.show_consumed(fabric);
        fabric.grant(peer, LOG_LANE);
        tell(fabric, peer, control::VOTE, grant);
        self.nudges.at_once(peer);
    }

    /// Tells the holder how far its lane may be overwritten.
    pub(super) fn show_consumed<F: Fabric>(&mut self, fabric: &F) {
        let kept = if Canary::DareEarlyApply.is_planted() { self.log.tail().position } else { self.log.kept() };
        if let Some(holder) = self.access.holder.filter(|_| kept > self.access.consumed)
            && let Some(lane) = fabric.memory(LocalRegion::Lane { writer: holder, name: LOG_LANE })
        {
            self.access.consumed = kept;
            lane[0].store(kept, Ordering::Release);
        }
    }

    /// Takes up to `budget` bytes of what the holder has written. Returns whether there was anything.
    pub(super) fn drain<F: Fabric, S: StateMachine>(&mut self, budget: usize, fabric: &mut F, machine: &mut S) -> bool {
        let Some(holder) = self.access.holder.filter(|_| !self.access.broken) else { return false };
        let before = self.log.tail().index;
        match self.take(holder, budget, fabric, machine) {
            Ok(moved) => {
                if moved {
                    if self.log.tail().index > before && self.log.is_complete() {
                        self.end_search();
                    }
                    self.show_consumed(fabric);
                }
                moved
            }
            Err(fault) => {
                self.access.broken = true;
                self.events.push_back(Event::LaneFault { peer: holder, fault: fault.to_string(), stuck: true });
                true
            }
        }
    }

    fn take<F: Fabric, S: StateMachine>(
        &mut self,
        holder: PeerId,
        budget: usize,
        fabric: &mut F,
        machine: &mut S,
    ) -> Result<bool, LaneFault> {
        let Some(words) = fabric.memory(LocalRegion::Lane { writer: holder, name: LOG_LANE }) else { return Ok(false) };
        let ring = fabric.memory(LocalRegion::Public(LOG)).expect("every process offers its log");
        let Dare { access, log, buffer, .. } = self;
        // The grant first: the words that were written before it count under it.
        let word = |at: usize| words[at].load(Ordering::Acquire);
        if word(lane::GRANT) != access.grant && !(Canary::DareStaleTail.is_planted() && word(lane::GRANT) > 0) {
            return Ok(false);
        }
        let mut moved = false;
        if !access.adjusted {
            if Canary::DareHastyCommit.is_planted() {
                log.advance(ring, machine, LogIndex(word(lane::COMMIT)));
            }
            let to = Mark { index: LogIndex(word(lane::CUT_INDEX)), position: word(lane::CUT) };
            if to.index < log.tail().index {
                basics::Mark::DareCutOff.reach();
            }
            log.cut(ring, to)?;
            (access.adjusted, access.reader) = (true, Reader::at(to.position));
            moved = true;
        }
        let (tail, committed) = (word(lane::TAIL), LogIndex(word(lane::COMMIT)));
        let from = access.reader.position();
        if !is_number(tail) || tail < from || tail - from > log.capacity() {
            return Err(LaneFault::Tail(tail));
        }
        let lap = if Canary::DareCircularOffsets.is_planted() { log.capacity() } else { u64::MAX };
        while access.reader.position() % lap < tail % lap && access.reader.position() - from < budget as u64 {
            // What is committed makes room.
            log.advance(ring, machine, committed);
            if !access.reader.next(words, buffer) {
                return Err(LaneFault::Tail(tail));
            }
            let (header, body) = Header::decode(buffer)?;
            layout::check_entries(&header, body)?;
            if header.number > layout::term_of(access.grant) {
                return Err(LaneFault::Range);
            }
            log.append(ring, &header, buffer, &access.reader)?;
            moved = true;
        }
        moved |= log.advance(ring, machine, committed);
        if word(lane::OVERRUN) == access.grant && log.is_complete() && access.reader.position() == tail {
            basics::Mark::DareOverrun.reach();
            log.void();
            moved = true;
        }
        Ok(moved)
    }
}

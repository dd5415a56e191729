//! Granting and revoking lanes, at the owner and at the writer (module `grant`).

use super::posting::{KIND_LOOK, KIND_NOTICE, name_of};
use super::{Entry, VerbsFabric};
use crate::contract::{OpError, PeerId, RegionName};
use crate::invariant;
use crate::primitive::Ordering;
use crate::verbs::ffi::{self, SEND_SIGNALED, SendWr, Sge};
use crate::verbs::grant::Grant;
use crate::verbs::line::{Channel, Line, Look, State};
use crate::verbs::peer::{self, Peer};

/// The word of the notices page that receives the answer to a look. The notices are far below it.
const LOOK_WORD: usize = 256;

impl VerbsFabric {
    /// Lets a writer write a lane again, on a new queue pair.
    pub(super) fn grant_lane(&mut self, writer: PeerId, name: RegionName) {
        let card = self.card.clone();
        let Some((peer, index)) = self.our_lane(writer, name) else { return };
        let lane = &mut peer.ours[index];
        let now = Grant::of(peer.grants.memory()[lane.grant_word].load(Ordering::Relaxed));
        if now.granted {
            return;
        }
        let made = peer::fresh_answerer(&card).and_then(|spare| {
            let answerer = std::mem::replace(&mut lane.spare, spare);
            let grant = now.next(true, answerer.number);
            answerer.answer(peer.address, lane.writer, grant.psn(), peer::LANE_RIGHTS)?;
            lane.answerer = Some(answerer);
            Ok(grant)
        });
        match made {
            Ok(grant) => {
                self.announce(writer, index, grant);
                self.wait_until_told(writer, name);
            }
            Err(error) => self.give_up(writer, &format!("its lane cannot be granted again ({error})")),
        }
    }

    /// Revokes the permission on a lane. This is done when the call returns.
    pub(super) fn revoke_lane(&mut self, writer: PeerId, name: RegionName) {
        if let Some((peer, index)) = self.our_lane(writer, name) {
            let lane = &mut peer.ours[index];
            let now = Grant::of(peer.grants.memory()[lane.grant_word].load(Ordering::Relaxed));
            if now.granted {
                // The fence: once it is destroyed, no request that came in on it is at work any more.
                drop(lane.answerer.take());
                self.announce(writer, index, now.next(false, now.queue_pair));
            }
        }
    }

    /// The grant word of a lane has been read: decides what became of writes into it, and opens the lane if it is granted again.
    pub(super) fn looked(&mut self, id: PeerId) {
        let entry = self.entries[id.0 as usize].as_deref_mut().expect("looked at by the caller");
        let Entry { peer, line, .. } = entry;
        let look = line.look.take().expect("looked at by the caller");
        let now = Grant::of(peer.notices.memory()[LOOK_WORD].load(Ordering::Acquire));
        let lane = &mut peer.theirs[usize::from(look.lane)];
        lane.known = lane.known.max(now.epoch);
        if line.is_undecided() {
            if lane.open == Some(now) {
                return self.give_up(id, "a lane that it still grants cannot be reached");
            }
            line.decide(OpError::AccessLost);
        }
        let outcome = close(lane).and_then(|()| {
            if !now.granted {
                line.refuse(look.lane, look.before);
                return Ok(());
            }
            lane.writer.reset()?;
            peer::open(&lane.writer, peer.address, now, peer.reads, self.card.patience)?;
            lane.open = Some(now);
            Ok(())
        });
        if let Err(error) = outcome {
            self.give_up(id, &format!("its lane cannot be opened again ({error})"));
        }
    }

    /// If the owner of the lane that is being written has told us that our grant is over, ends what is under way.
    pub(super) fn heed_notice(&mut self, id: PeerId) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        let Entry { peer, line, .. } = entry;
        let Channel::Lane(index) = line.channel else { return };
        let lane = &mut peer.theirs[usize::from(index)];
        let (Some(open), true) = (lane.open, line.outstanding() > 0) else { return };
        let told = Grant::of(peer.notices.memory()[lane.notice].load(Ordering::Acquire));
        if told.epoch <= open.epoch {
            return;
        }
        let before = line.outstanding();
        line.end_posted(State::Done(Err(OpError::AccessLost)));
        self.under_way[1] -= before;
        if let Err(error) = close(lane) {
            self.give_up(id, &format!("its lane cannot be closed ({error})"));
        }
    }

    fn our_lane(&mut self, writer: PeerId, name: RegionName) -> Option<(&mut Peer, usize)> {
        // A writer that has been forgotten has no lane, so nothing that it writes is read.
        let peer = &mut self.entries.get_mut(writer.0 as usize)?.as_deref_mut()?.peer;
        let index = peer.ours.iter().position(|lane| lane.name == name);
        invariant!(index.is_some(), "we keep no lane {} for {writer:?}", name.0);
        Some((peer, index.expect("just checked")))
    }

    /// The owner's part of a change: stores the grant word and notes that the writer has to be told.
    fn announce(&mut self, writer: PeerId, index: usize, grant: Grant) {
        let Some(entry) = self.entries[writer.0 as usize].as_deref_mut() else { return };
        let lane = &mut entry.peer.ours[index];
        entry.peer.grants.memory()[lane.grant_word].store(grant.word(), Ordering::Release);
        if entry.line.broken {
            return;
        }
        lane.notice_due = true;
        entry.notices_due = true;
        if !entry.active {
            entry.active = true;
            self.active.push(writer);
        }
        // The sooner the writer knows, the less it waits. A failure shows when the line is worked on.
        self.hand_over(writer);
    }

    /// Waits until the writer's memory holds the latest grant word of a lane: what the writer posts from now on is under that grant, and the writer
    /// can tell it from what it posted before. A writer that cannot be reached, or whose notice the device forgets, is given up in bounded time
    /// (module `overdue`).
    fn wait_until_told(&mut self, writer: PeerId, name: RegionName) {
        while let Some(entry) = self.entry(writer)
            && !entry.line.broken
            && entry.peer.ours.iter().any(|lane| lane.name == name && (lane.notice_due || lane.notices > 0))
        {
            self.progress();
        }
    }
}

/// The epoch of the lane as we know it, the only one in which what is posted now may take effect. Odd epochs mean granted, even ones revoked.
pub(super) fn epoch_of(peer: &mut Peer, channel: Channel) -> u64 {
    let Channel::Lane(lane) = channel else { return 0 };
    let lane = &mut peer.theirs[usize::from(lane)];
    let told = Grant::of(peer.notices.memory()[lane.notice].load(Ordering::Acquire));
    lane.known = lane.known.max(told.epoch);
    lane.known
}

/// Ends what is under way on a lane that we may no longer write.
pub(super) fn close(lane: &mut peer::TheirLane) -> std::io::Result<()> {
    if lane.open.take().is_some() { lane.writer.fail() } else { Ok(()) }
}

/// Posts a READ of a lane's grant word.
pub(super) fn look(peer: &Peer, line: &mut Line, id: PeerId, lane: u8) -> std::io::Result<()> {
    line.looks += 1;
    line.look = Some(Look { lane, number: line.looks, before: line.end() });
    let landing = peer.notices.memory()[LOOK_WORD].as_ptr() as u64;
    let mut sge = Sge { addr: landing, length: 8, lkey: peer.notices_key };
    let mut wr = SendWr {
        wr_id: name_of(id, KIND_LOOK, Line::low(line.looks)),
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode: ffi::WR_RDMA_READ,
        send_flags: SEND_SIGNALED,
        ..SendWr::EMPTY
    };
    wr.rdma(peer.grants_there.address + 8 * peer.theirs[usize::from(lane)].notice as u64, peer.grants_there.rkey);
    // SAFETY: a single request; the word is in memory that stays registered as long as the queue pair is open.
    unsafe { peer.background.post(&mut wr) }
}

/// Posts the notices that are due. Each is a WRITE of a grant word, taken directly from its place in memory.
pub(super) fn tell(peer: &mut Peer, id: PeerId) -> std::io::Result<()> {
    for lane in peer.ours.iter_mut().filter(|lane| lane.notice_due) {
        let word = peer.grants.memory()[lane.grant_word].as_ptr() as u64;
        let mut sge = Sge { addr: word, length: 8, lkey: peer.grants_key };
        let mut wr = SendWr {
            wr_id: name_of(id, KIND_NOTICE, lane.grant_word as u32),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: ffi::WR_RDMA_WRITE,
            send_flags: SEND_SIGNALED,
            ..SendWr::EMPTY
        };
        wr.rdma(peer.notices_there.address + 8 * lane.grant_word as u64, peer.notices_there.rkey);
        // SAFETY: a single request; the word is in memory that stays registered as long as the queue pair is open. The word may change before the
        // card reads it; then the card reads the later word, of which the peer has to be told as well.
        match unsafe { peer.background.post(&mut wr) } {
            Ok(()) => {
                lane.notice_due = false;
                lane.notices += 1;
            }
            // The queue is full: later.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

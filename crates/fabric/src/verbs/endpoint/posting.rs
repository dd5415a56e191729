//! From a call to requests that the card has: where an operation goes, its place in the line, and how it is handed over.

use super::revocation::{epoch_of, look, tell};
use super::{Entry, VerbsFabric};
use crate::contract::{Completion, LocalRegion, OpError, PeerId, Region, Remote, Token};
use crate::host::memory::Area;
use crate::invariant;
use crate::primitive::Ordering;
use crate::verbs::ffi::{self, SEND_INLINE, SEND_SIGNALED, SendWr, Sge};
use crate::verbs::line::{Channel, Line, Op, SIGNAL_EVERY, State, Work};
use crate::verbs::peer::{Peer, Stage, find};
use crate::verbs::queue::QueuePair;

/// What a request of ours is for: bits 30 and 31 of its name. The upper half of the name is the peer.
pub(super) const KIND_OP: u64 = 0;
pub(super) const KIND_NOTICE: u64 = 1;
pub(super) const KIND_LOOK: u64 = 2;

pub(super) fn name_of(peer: PeerId, kind: u64, low: u32) -> u64 {
    u64::from(peer.0) << 32 | kind << 30 | u64::from(low)
}

/// Where an operation goes, or why it cannot.
pub(super) struct Place {
    pub(super) channel: Channel,
    pub(super) address: u64,
    pub(super) rkey: u32,
}

pub(super) fn plane_of(channel: Channel) -> usize {
    match channel {
        Channel::Background => 0,
        Channel::Lane(_) => 1,
    }
}

impl VerbsFabric {
    /// Resolves an address, or says why nothing can be done there.
    pub(super) fn locate(&self, at: Remote, len: usize, changes: bool) -> Result<Place, OpError> {
        let peer = &self.entry(at.peer).ok_or(OpError::PeerLost)?.peer;
        let within = |bytes: usize| {
            invariant!(
                at.offset.is_multiple_of(8) && len.is_multiple_of(8) && at.offset.checked_add(len).is_some_and(|end| end <= bytes),
                "{len} bytes at {at:?}, a region of {bytes} bytes"
            );
        };
        let offset = at.offset as u64;
        match at.region {
            Region::Public(name) => {
                let region = peer.public(name);
                invariant!(region.is_some(), "the peer offers no such region: {at:?}");
                let region = region.expect("just checked");
                within(region.bytes);
                if changes && (!peer.writable || region.owned) && at.peer != PeerId::SELF {
                    return Err(OpError::AccessLost);
                }
                Ok(Place { channel: Channel::Background, address: region.start + offset, rkey: peer.public_key })
            }
            Region::Lane(name) => {
                let lane = peer.theirs.iter().position(|lane| lane.name == name);
                invariant!(lane.is_some(), "the peer keeps no such lane for us: {at:?}");
                let index = lane.expect("just checked");
                let lane = &peer.theirs[index];
                within(lane.bytes);
                let address = lane.start + offset;
                Ok(if changes {
                    Place { channel: Channel::Lane(index as u8), address, rkey: peer.lanes_written_key }
                } else {
                    let address = address - peer.lanes_start + peer.lanes_read.address;
                    Place { channel: Channel::Background, address, rkey: peer.lanes_read.rkey }
                })
            }
        }
    }

    /// Our memory into which READs bring bytes, and the key by which the card addresses it.
    pub(super) fn local(&self, region: LocalRegion) -> Option<(&Area, u32)> {
        match region {
            LocalRegion::Public(name) => find(&self.card.own.public, name).map(|area| (area, self.card.own.landing_key())),
            LocalRegion::Lane { writer, name } => {
                let peer = &self.entry(writer)?.peer;
                peer.ours.iter().find(|lane| lane.name == name).map(|lane| (&lane.area, peer.lanes_landing_key))
            }
        }
    }

    /// Appends an operation whose bytes, if it has any, are `bytes`.
    pub(super) fn post(&mut self, to: PeerId, place: Result<Place, OpError>, work: Work, len: usize, bytes: &[u8], token: Token) {
        let Some(entry) = self.entries.get_mut(to.0 as usize).and_then(Option::as_deref_mut) else {
            self.ready.push_back(Completion { token, result: Err(OpError::PeerLost) });
            return;
        };
        let place = if entry.line.broken { Err(OpError::PeerLost) } else { place };
        let staged = match work {
            Work::Read { .. } => 0,
            _ => len,
        };
        let mut op = match place {
            Err(error) => {
                let (channel, state) = (Channel::Background, State::Done(Err(error)));
                Op {
                    token,
                    work,
                    channel,
                    state,
                    remote: 0,
                    rkey: 0,
                    epoch: 0,
                    bytes: 0,
                    handed: 0,
                    until: 0,
                    at: 0,
                    staged: 0,
                    own_stage: None,
                }
            }
            Ok(Place { channel, address, rkey }) => Op {
                token,
                work,
                channel,
                state: State::Queued,
                remote: address,
                rkey,
                epoch: epoch_of(&mut entry.peer, channel),
                bytes: len as u32,
                handed: 0,
                until: 0,
                at: 0,
                staged: 0,
                own_stage: None,
            },
        };
        if matches!(op.channel, Channel::Lane(_)) && op.epoch.is_multiple_of(2) {
            op.state = State::Done(Err(OpError::AccessLost));
        }
        let mut failed = None;
        if op.state == State::Queued && staged > 0 {
            match entry.line.reserve(staged) {
                Some((at, need)) => (op.at, op.staged) = (at, need),
                // Much is under way, or much is to be written at once.
                None => match Stage::new(&self.card.device, staged) {
                    Ok(own) => op.own_stage = Some(Box::new(own)),
                    Err(error) => {
                        op.state = State::Done(Err(OpError::PeerLost));
                        failed = Some(error);
                    }
                },
            }
        }
        // Not if it has no place in the stage: the bytes there belong to what is under way.
        if op.state == State::Queued {
            let area = op.own_stage.as_ref().map_or(&entry.peer.stage.area, |own| &own.area);
            let (chunks, _) = bytes.as_chunks::<8>();
            for (word, chunk) in area.memory()[op.at as usize / 8..].iter().zip(chunks) {
                word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
            }
        }
        entry.line.append(op);
        if !entry.active {
            entry.active = true;
            self.active.push(to);
        }
        if let Some(error) = failed {
            // A caller that is told that a peer is lost waits for another connection, so this one has to end.
            self.give_up(to, &format!("no memory for an operation ({error})"));
        }
    }

    /// Hands a line's waiting operations to the card, as far as order and room allow.
    pub(super) fn hand_over(&mut self, id: PeerId) {
        let Some(entry) = self.entries[id.0 as usize].as_deref_mut() else { return };
        if entry.notices_due && !entry.line.broken {
            let told = tell(&mut entry.peer, id);
            entry.notices_due = entry.peer.ours.iter().any(|lane| lane.notice_due);
            if let Err(error) = told {
                return self.give_up(id, &format!("a notice cannot be sent ({error})"));
            }
        }
        let Entry { peer, line, .. } = entry;
        self.wrs.clear();
        self.sges.clear();
        let mut refused = None;
        while line.next < line.end() && line.look.is_none() {
            let sequence = line.next;
            if matches!(line.op(sequence).state, State::Done(_)) {
                line.advance();
                continue;
            }
            let channel = line.op(sequence).channel;
            if line.outstanding() > 0 && line.channel != channel {
                break;
            }
            let open = match channel {
                Channel::Lane(lane) => peer.theirs[usize::from(lane)].open.map(|grant| grant.epoch),
                Channel::Background => None,
            };
            if open.is_some_and(|epoch| epoch > line.op(sequence).epoch) {
                // It was posted under a grant that is now over.
                line.op_mut(sequence).state = State::Done(Err(OpError::AccessLost));
                line.advance();
                continue;
            }
            if let Channel::Lane(lane) = channel
                && open != Some(line.op(sequence).epoch)
            {
                if line.outstanding() == 0
                    && let Err(error) = look(peer, line, id, lane)
                {
                    refused = Some(error);
                }
                break;
            }
            let plane = plane_of(channel);
            if line.outstanding() >= u64::from(peer.requests) || self.under_way[plane] >= self.most[plane] {
                break;
            }
            let (reads, swaps) = (line.op(sequence).work.is_read(), line.op(sequence).work.is_swap());
            let (read_before, swap_before) = (line.last_read > line.settled(), line.last_swap > line.settled());
            if line.outstanding() > 0 && ((read_before && !reads) || (swap_before && !swaps)) {
                break;
            }
            line.channel = channel;
            let op = line.op(sequence);
            let stage = op.own_stage.as_deref().unwrap_or(&peer.stage);
            let (start, lkey) = match channel {
                Channel::Background => (stage.background.address, stage.background.lkey),
                Channel::Lane(_) => (stage.replication.address, stage.replication.lkey),
            };
            let inline = match channel {
                Channel::Background => peer.background.inline,
                Channel::Lane(lane) => peer.theirs[usize::from(lane)].writer.inline,
            };
            let (length, rest) = (op.next_bytes(peer.packet), op.bytes - op.handed);
            let mut wr = SendWr { num_sge: 1, ..SendWr::EMPTY };
            let mut sge = Sge { addr: start + u64::from(op.at + op.handed), length, lkey };
            wr.rdma(op.remote + u64::from(op.handed), op.rkey);
            match op.work {
                Work::Write => {
                    wr.opcode = ffi::WR_RDMA_WRITE;
                    if length <= inline {
                        wr.send_flags |= SEND_INLINE;
                    }
                }
                Work::ReadWord => wr.opcode = ffi::WR_RDMA_READ,
                Work::Read { address, lkey } => {
                    wr.opcode = ffi::WR_RDMA_READ;
                    sge = Sge { addr: address + u64::from(op.handed), length, lkey };
                }
                Work::Swap { expected, new } => {
                    wr.opcode = ffi::WR_ATOMIC_CMP_AND_SWP;
                    wr.atomic(op.remote, op.rkey, expected, new);
                }
            }
            wr.wr_id = name_of(id, KIND_OP, Line::low(line.begin(length)));
            if length == rest {
                if reads {
                    line.last_read = sequence + 1;
                }
                if swaps {
                    line.last_swap = sequence + 1;
                }
                line.advance();
            }
            self.under_way[plane] += 1;
            if self.wrs.len() % SIGNAL_EVERY == SIGNAL_EVERY - 1 || (reads && length > peer.packet) {
                wr.send_flags |= SEND_SIGNALED;
            }
            self.wrs.push(wr);
            self.sges.push(sge);
        }
        if let Some(last) = self.wrs.last_mut() {
            last.send_flags |= SEND_SIGNALED;
            for (wr, sge) in self.wrs.iter_mut().zip(&mut self.sges) {
                wr.sg_list = sge;
            }
            for at in 1..self.wrs.len() {
                let next = &raw mut self.wrs[at];
                self.wrs[at - 1].next = next;
            }
            let queue_pair = queue_pair(peer, line.channel);
            // SAFETY: the list is in `wrs` and `sges`, which do not change during the call. The buffers are in the stage, which keeps each until its
            // operation is done, or in our own regions. Both stay registered as long as the queue pair is open.
            if let Err(error) = unsafe { queue_pair.post(&mut self.wrs[0]) } {
                refused = Some(error);
            }
        }
        if let Some(error) = refused {
            self.give_up(id, &format!("the card takes no request ({error})"));
        }
    }

    #[cfg(debug_assertions)]
    pub(super) fn check_no_mixing(&self, at: Remote, len: usize) {
        let mixed = (at.offset..at.offset + len).step_by(8).find(|o| self.swapped.contains(&(at.peer, at.region, *o)));
        invariant!(mixed.is_none(), "a plain write to a word that has been swapped: {at:?}, offset {mixed:?}");
    }
}

fn queue_pair(peer: &Peer, channel: Channel) -> &QueuePair {
    match channel {
        Channel::Background => &peer.background,
        Channel::Lane(lane) => &peer.theirs[usize::from(lane)].writer,
    }
}

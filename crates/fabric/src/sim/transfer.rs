//! How operations travel and land, and how their completions return.

use super::agenda::Due;
use super::faults::happens;
use super::link::Kind;
use super::state::State;
use crate::contract::{Completion, OpError, PeerEvent, PeerId, Token};
use crate::invariant;
use crate::primitive::Ordering;

impl State {
    /// Posts an operation, which is already filled in with what it is to do.
    pub(super) fn post(&mut self, link: u32, slot: u32) {
        self.operations += 1;
        let travel = self.faults.travel(&mut self.chance, &mut self.counts);
        let queue = &mut self.links[link as usize];
        let op = &mut self.ops[slot];
        op.arrives_at = queue.last_arrival.max(self.now + travel);
        op.lost_at = self.now + self.faults.peer_lost_after_ns;
        (op.landed, op.epoch, op.result) = (0, None, None);
        (op.first, op.down) = (0, false);
        if op.len > 1 && happens(&mut self.chance, self.faults.tears) {
            (op.first, op.down) = (self.chance.usize(..op.len), self.chance.bool());
            self.counts.tears += 1;
        }
        queue.last_arrival = op.arrives_at;
        queue.posted.push_back(slot);
        if queue.broken {
            self.lose_posted(link);
        } else if queue.posted.len() == 1 {
            self.plan(link);
        }
    }

    /// Enters the next step of the first posted operation into the agenda.
    pub(super) fn plan(&mut self, link: u32) {
        let queue = &mut self.links[link as usize];
        queue.plan += 1;
        if let Some(slot) = queue.posted.front() {
            let at = self.ops[*slot].arrives_at.max(self.now);
            self.agenda.enter(at, Due::Effect { link, plan: queue.plan });
        }
    }

    fn plan_at(&mut self, link: u32, at: u64) {
        let queue = &mut self.links[link as usize];
        queue.plan += 1;
        self.agenda.enter(at, Due::Effect { link, plan: queue.plan });
    }

    /// The first posted operation of a link makes progress at the peer.
    pub(super) fn effect(&mut self, link: u32) {
        let queue = &self.links[link as usize];
        let (from, to) = (queue.from, queue.to);
        let Some(slot) = queue.posted.front().copied() else { return };
        if self.host && self.processes[from as usize].paused {
            return; // its CPU has stopped between two stores; `resume` makes a new plan
        }
        let unreachable = self.cut_off(from, to) || (!self.host && !self.processes[to as usize].alive);
        if unreachable {
            let lost_at = self.ops[slot].lost_at;
            if self.now >= lost_at {
                self.lose_peer(link);
            } else {
                self.plan_at(link, lost_at); // `heal` makes an earlier plan
            }
            return;
        }
        if self.land(slot, to) {
            self.finish(link, slot);
            self.links[link as usize].posted.pop_front();
            self.plan(link);
        } else {
            let at = self.now + self.faults.tear_gap.draw(&mut self.chance);
            self.plan_at(link, at);
        }
    }

    /// Lands the next piece of an operation at its peer. Returns whether it was the last.
    fn land(&mut self, slot: u32, to: u32) -> bool {
        let op = &mut self.ops[slot];
        let owner = &mut self.processes[to as usize];
        let memory = op.at.as_ref().map(|block| block.words());
        let left = op.len - op.landed;
        let piece = if left > 1 && happens(&mut self.chance, self.faults.tears) { self.chance.usize(1..=left) } else { left };
        let upto = op.landed + piece;
        match op.kind {
            Kind::Write => {
                let memory = memory.expect("a write has a place");
                let permitted = match op.lane {
                    None => !op.denied,
                    Some(lane) => {
                        let lane = &owner.lanes[lane as usize];
                        if op.landed == 0 {
                            op.epoch = lane.granted.then_some(lane.epoch);
                        }
                        lane.granted && op.epoch == Some(lane.epoch)
                    }
                };
                // On a host, nothing guards the memory: a revocation has no effect but on what the writer learns at the end.
                if permitted || (self.host && op.lane.is_some()) {
                    if let Some(run) = op.run(upto) {
                        for (at, word) in memory[op.word..][run.clone()].iter().zip(&op.data[run]) {
                            at.store(*word, Ordering::Release);
                        }
                    } else {
                        for word in (op.landed..upto).map(|i| op.nth(i)) {
                            memory[op.word + word].store(op.data[word], Ordering::Release);
                        }
                    }
                    self.trace.note(self.now, b'W', (op.word as u64) << 32 | u64::from(to), op.landed as u64);
                    op.landed = upto;
                } else {
                    op.landed = op.len;
                }
                if op.landed < op.len {
                    self.touch(to);
                    return false;
                }
                op.result = Some(if permitted { Ok(0) } else { Err(OpError::AccessLost) });
                self.counts.writes_across_revocations += u64::from(!permitted && op.lane.is_some());
                self.touch(to);
            }
            Kind::Read => {
                let memory = memory.expect("a read has a place");
                if let Some(run) = op.run(upto) {
                    for (at, word) in memory[op.word..][run.clone()].iter().zip(&mut op.data[run]) {
                        *word = at.load(Ordering::Acquire);
                    }
                } else {
                    for i in op.landed..upto {
                        let word = op.nth(i);
                        op.data[word] = memory[op.word + word].load(Ordering::Acquire);
                    }
                }
                op.landed = upto;
                if op.landed < op.len {
                    return false;
                }
                op.result = Some(Ok(0));
            }
            Kind::ReadWord => {
                let memory = memory.expect("a read has a place");
                op.result = Some(Ok(memory[op.word].load(Ordering::Acquire)));
            }
            Kind::Swap { expected, new } => {
                let block = op.at.as_ref().expect("a swap has a place");
                if op.denied {
                    op.result = Some(Err(OpError::AccessLost));
                    return true;
                }
                block.note_swap(op.word);
                let word = &block.words()[op.word];
                let found = word.load(Ordering::Acquire);
                if found == expected {
                    word.store(new, Ordering::Release);
                }
                op.result = Some(Ok(found));
                self.trace.note(self.now, b'S', (op.word as u64) << 32 | u64::from(to), found);
                self.touch(to);
            }
            Kind::Revoke => {
                if let Some(lane) = op.lane {
                    let lane = &mut owner.lanes[lane as usize];
                    lane.granted = false;
                    lane.epoch += 1;
                }
                op.result = Some(Ok(0));
            }
        }
        true
    }

    /// An operation is done at the peer: its completion starts on its way.
    fn finish(&mut self, link: u32, slot: u32) {
        let travel = self.faults.travel(&mut self.chance, &mut self.counts);
        let queue = &mut self.links[link as usize];
        let at = queue.last_completion.max(self.now + travel);
        queue.last_completion = at;
        self.ops[slot].completes_at = at;
        queue.done.push_back(slot);
        self.agenda.enter(at, Due::Completion { link });
    }

    /// Hands over the completions of a link that have reached the poster.
    pub(super) fn bring_home(&mut self, link: u32) {
        let (from, to) = (self.links[link as usize].from, self.links[link as usize].to);
        let way_back = !self.cut_off(to, from);
        while let Some(slot) = self.links[link as usize].done.front().copied() {
            let op = &self.ops[slot];
            if op.completes_at > self.now {
                return;
            }
            // A lost operation's completion was never on its way back.
            let lost = op.result == Some(Err(OpError::PeerLost));
            if !way_back && !lost {
                let lost_at = op.lost_at;
                if self.now < lost_at {
                    let queue = &mut self.links[link as usize];
                    if queue.retry_at < lost_at {
                        queue.retry_at = lost_at;
                        self.agenda.enter(lost_at, Due::Completion { link });
                    }
                    return;
                }
                // It took effect, and the poster will never know. It may be a CAS, for instance.
                for done in &self.links[link as usize].done {
                    let op = &self.ops[*done];
                    let happened = u64::from(op.result.is_some_and(|result| result.is_ok()));
                    self.counts.lost_completions += happened;
                    self.counts.lost_swaps += if matches!(op.kind, Kind::Swap { .. }) { happened } else { 0 };
                    self.ops[*done].result = Some(Err(OpError::PeerLost));
                }
                self.lose_peer(link);
            }
            self.links[link as usize].done.pop_front();
            self.complete(from, slot);
        }
    }

    fn complete(&mut self, process: u32, slot: u32) {
        let op = &self.ops[slot];
        let result = op.result.expect("done");
        if let (Kind::Read, Ok(_), Some((memory, word))) = (op.kind, result, &op.into) {
            for (at, value) in memory.words()[*word..*word + op.len].iter().zip(&op.data) {
                at.store(*value, Ordering::Release);
            }
        }
        let told = match result {
            Ok(word) => word,
            Err(OpError::AccessLost) => u64::MAX - 1,
            Err(OpError::PeerLost) => u64::MAX,
        };
        self.trace.note(self.now, b'C', op.token, told);
        let poster = &mut self.processes[process as usize];
        if poster.alive {
            poster.completions.push_back(Completion { token: Token(op.token), result });
            self.wake(process);
        }
        self.free(slot);
    }

    fn free(&mut self, slot: u32) {
        let op = &mut self.ops[slot];
        (op.at, op.into) = (None, None);
        self.ops.give_back(slot);
    }

    /// A poster gives up a peer that it cannot reach. Nothing that it has posted or will post takes effect any more, and it is told that the peer is
    /// gone. The two connect anew once they can, over another connection.
    pub(super) fn lose_peer(&mut self, link: u32) {
        let queue = &mut self.links[link as usize];
        if queue.broken {
            return;
        }
        queue.broken = true;
        let (from, peer) = (queue.from, PeerId(queue.peer));
        let to = queue.to;
        self.lose_posted(link);
        if peer != PeerId::SELF {
            self.report_gone(from, peer, false);
            if !self.host && self.processes[to as usize].alive {
                let at = self.now + self.faults.gone.draw(&mut self.chance);
                self.agenda.enter(at, Due::Part { link });
            }
        }
    }

    /// Completes everything posted on a broken link as lost, in order, after what is already on its way back.
    pub(super) fn lose_posted(&mut self, link: u32) {
        invariant!(self.links[link as usize].broken, "only a broken link loses");
        self.links[link as usize].plan += 1;
        while let Some(slot) = self.links[link as usize].posted.pop_front() {
            self.ops[slot].result = Some(Err(OpError::PeerLost));
            self.finish(link, slot);
        }
    }

    /// The poster is dead, and the time for its last operations is over.
    pub(super) fn cut(&mut self, link: u32) {
        let queue = &mut self.links[link as usize];
        queue.broken = true;
        queue.plan += 1;
        while let Some(slot) = self.links[link as usize].posted.pop_front() {
            self.free(slot);
        }
    }

    pub(super) fn report_gone(&mut self, process: u32, peer: PeerId, certain: bool) {
        let told = &mut self.processes[process as usize];
        let slot = &mut told.slots[peer.0 as usize];
        if told.alive && !slot.gone && !slot.forgotten {
            slot.gone = true;
            told.events.push_back(PeerEvent::Gone { peer, certain });
            self.trace.note(self.now, b'G', u64::from(process), u64::from(peer.0));
            self.wake(process);
        }
    }
}

//! A process's access to its world.

use std::cell::RefCell;
use std::rc::Rc;

use super::link::{Kind, Op};
use super::memory::Block;
use super::state::State;
use crate::contract::{Completion, Fabric, Local, LocalRegion, Memory, PeerEvent, PeerId, Region, RegionName, Remote, Token};
use crate::invariant;

/// The endpoint of one simulated process; see the [module](super) for the parameter. Once its process has been killed, it posts nothing and receives
/// nothing.
#[derive(Debug)]
pub struct Endpoint<const HOST: bool> {
    state: Rc<RefCell<State>>,
    process: u32,
    public: Vec<(RegionName, Rc<Block>)>,
    /// Lanes by the number of their writer; empty for a writer without lanes or one that has been forgotten.
    lanes: Vec<Vec<(RegionName, Rc<Block>)>>,
}

impl<const HOST: bool> Endpoint<HOST> {
    pub(super) fn new(state: Rc<RefCell<State>>, process: u32) -> Self {
        let public = state.borrow().processes[process as usize].public.clone();
        Endpoint { state, process, public, lanes: Vec::new() }
    }

    fn local(&self, region: LocalRegion) -> Option<&Rc<Block>> {
        match region {
            LocalRegion::Public(wanted) => self.public.iter().find(|(name, _)| *name == wanted).map(|(_, block)| block),
            LocalRegion::Lane { writer, name: wanted } => {
                self.lanes.get(writer.0 as usize)?.iter().find(|(name, _)| *name == wanted).map(|(_, block)| block)
            }
        }
    }

    /// Posts an operation on `words` words at `at`, completed by `fill`.
    fn post(&mut self, kind: Kind, at: Remote, words: usize, token: Token, fill: impl FnOnce(&mut Op)) {
        invariant!(at.offset.is_multiple_of(8), "offset {} is no multiple of 8", at.offset);
        let mut state = self.state.borrow_mut();
        let State { processes, ops, .. } = &mut *state;
        let process = &processes[self.process as usize];
        if !process.alive {
            return;
        }
        let slot = process.slots.get(at.peer.0 as usize);
        invariant!(slot.is_some(), "{:?} was never up", at.peer);
        let peer = slot.expect("checked");
        let number = ops.take();
        let op = &mut ops[number];
        (op.kind, op.token, op.word, op.len) = (kind, token.0, at.offset / 8, words);
        (op.at, op.into, op.lane, op.denied) = (None, None, None, false);
        op.data.clear();
        if !peer.forgotten {
            let target = peer.targets.iter().find(|target| target.region == at.region);
            invariant!(target.is_some(), "{:?} offers no {:?}", at.peer, at.region);
            let target = target.expect("checked");
            let len = target.memory.words().len();
            invariant!(op.word + words <= len, "words {}..{} of {:?}, which has {len}", op.word, op.word + words, at.region);
            op.at = Some(target.memory.clone());
            op.lane = target.lane;
            op.denied = !target.writable && matches!(kind, Kind::Write | Kind::Swap { .. });
            if kind == Kind::Write {
                target.memory.check_plain_write(op.word, words);
            }
        }
        fill(op);
        let link = peer.link;
        state.post(link, number);
    }
}

impl<const HOST: bool> Fabric for Endpoint<HOST> {
    const ZOMBIES_REACHABLE: bool = HOST;

    fn memory(&self, region: LocalRegion) -> Option<&Memory> {
        self.local(region).map(|block| block.words())
    }

    fn write(&mut self, at: Remote, bytes: &[u8], token: Token) {
        invariant!(bytes.len().is_multiple_of(8), "a write of {} bytes, no multiple of 8", bytes.len());
        self.post(Kind::Write, at, bytes.len() / 8, token, |op| {
            op.data.extend(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))));
        });
    }

    fn read(&mut self, from: Remote, into: Local, len: usize, token: Token) {
        invariant!(len.is_multiple_of(8) && into.offset.is_multiple_of(8), "a read of {len} bytes to {}", into.offset);
        let block = self.local(into.region).cloned();
        invariant!(block.is_some(), "no region {:?} of ours", into.region);
        let (block, word, words) = (block.expect("checked"), into.offset / 8, len / 8);
        invariant!(word + words <= block.words().len(), "words {word}..{} of {:?}", word + words, into.region);
        self.post(Kind::Read, from, words, token, |op| {
            op.data.resize(words, 0);
            op.into = Some((block, word));
        });
    }

    fn read_word(&mut self, from: Remote, token: Token) {
        self.post(Kind::ReadWord, from, 1, token, |_| {});
    }

    fn compare_and_swap(&mut self, at: Remote, expected: u64, new: u64, token: Token) {
        invariant!(matches!(at.region, Region::Public(_)), "swaps are for public regions, not for {:?}", at.region);
        self.post(Kind::Swap { expected, new }, at, 1, token, |_| {});
    }

    fn poll(&mut self) -> Option<Completion> {
        self.state.borrow_mut().processes[self.process as usize].completions.pop_front()
    }

    fn send(&mut self, to: PeerId, datagram: &[u8]) {
        let mut state = self.state.borrow_mut();
        let process = &state.processes[self.process as usize];
        let slot = process.slots.get(to.0 as usize);
        invariant!(slot.is_some() && to != PeerId::SELF, "{to:?} is no peer");
        let slot = slot.expect("checked");
        if process.alive && !slot.forgotten {
            let to = slot.process;
            state.send(self.process, to, datagram);
        }
    }

    fn multicast(&mut self, datagram: &[u8]) {
        let mut state = self.state.borrow_mut();
        if !state.processes[self.process as usize].alive {
            return;
        }
        for number in 1..state.processes[self.process as usize].slots.len() {
            let slot = &state.processes[self.process as usize].slots[number];
            if slot.is_member && !slot.forgotten && !slot.gone {
                let to = slot.process;
                state.send(self.process, to, datagram);
            }
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> Option<PeerId> {
        let mut state = self.state.borrow_mut();
        loop {
            let slot = state.processes[self.process as usize].inbox.pop_front()?;
            let from = state.datagrams[slot].from;
            into.clear();
            into.extend_from_slice(&state.datagrams[slot].bytes);
            state.datagrams.give_back(slot);
            let process = &state.processes[self.process as usize];
            // The sender may have been forgotten since the datagram arrived.
            if let Some(peer) = process.peer_of(from).filter(|peer| !process.slots[peer.0 as usize].forgotten) {
                return Some(peer);
            }
        }
    }

    fn event(&mut self) -> Option<PeerEvent> {
        let mut state = self.state.borrow_mut();
        let process = &mut state.processes[self.process as usize];
        let event = process.events.pop_front()?;
        if let PeerEvent::Up { peer, .. } = event {
            let at = peer.0 as usize;
            self.lanes.resize_with(self.lanes.len().max(at + 1), Vec::new);
            self.lanes[at] = process.lanes.iter().filter(|lane| lane.writer == peer).map(|lane| (lane.name, lane.memory.clone())).collect();
        }
        Some(event)
    }

    fn grant(&mut self, writer: PeerId, name: RegionName) {
        self.state.borrow_mut().grant(self.process, writer, name);
    }

    fn revoke(&mut self, writer: PeerId, name: RegionName, token: Token) {
        let mut state = self.state.borrow_mut();
        let State { processes, ops, .. } = &mut *state;
        let process = &processes[self.process as usize];
        if !process.alive {
            return;
        }
        let lane = process.lane_of(writer, name);
        invariant!(lane.is_some(), "{writer:?} has no lane {name:?}");
        let number = ops.take();
        let op = &mut ops[number];
        (op.kind, op.token, op.word, op.len) = (Kind::Revoke, token.0, 0, 0);
        (op.at, op.into, op.lane, op.denied) = (None, None, lane, false);
        let link = process.slots[0].link;
        state.post(link, number);
    }

    fn nudge(&mut self, peer: PeerId) {
        let mut state = self.state.borrow_mut();
        let slot = &state.processes[self.process as usize].slots[peer.0 as usize];
        if !slot.forgotten {
            let to = slot.process;
            state.wake(to);
        }
    }

    fn forget(&mut self, peer: PeerId) {
        if let Some(lanes) = self.lanes.get_mut(peer.0 as usize) {
            lanes.clear();
        }
        self.state.borrow_mut().forget(self.process, peer);
    }
}

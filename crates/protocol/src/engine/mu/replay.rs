//! What a follower does: it takes into its log what the holder of its permission has written, and applies what is committed.

use martlet_fabric::ring::Reader;
use martlet_fabric::{Fabric, LocalRegion, Memory, PeerId, pulse};

use crate::basics::layout::LOG_LANE;
use crate::basics::{self, LogIndex};
use crate::engine::Engine as _;
use crate::replica::StateMachine;
use crate::replica::record::RecordKind as _;

use super::layout::{self, Header, Kind, LOG, LaneFault};
use super::log::{Log, Mark, Staged};
use super::numbers::is_plausible_choice;
use super::{Event, Group, Mu};

/// The lane of the permission's holder, as its reader sees it.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// The proposal number that was last prepared; 0 for none.
    ballot: u64,
    /// A start of that number has taken effect.
    started: bool,
    /// A start that is not yet effective.
    staging: Option<Staging>,
    /// The next record made no sense, but its writer counts on it all the same.
    pub(super) broken: bool,
}

/// Records that enter the log all at once or not at all.
#[derive(Debug)]
struct Staging {
    staged: Staged,
    due: u32,
    /// Where the log restarts, and the group there, if the start is a jump.
    jump: Option<(Mark, Group)>,
}

impl Inbound {
    /// Changes the prepared number, so that what comes next seems to come from a leader that has not prepared.
    #[cfg(test)]
    pub(super) fn mistake_ballot(&mut self) {
        self.ballot += 1;
    }

    /// Takes the record that `reader` has just taken.
    fn take<S: StateMachine>(
        &mut self,
        payload: &[u8],
        reader: &Reader,
        log: &mut Log,
        ring: &Memory,
        machine: &mut S,
    ) -> Result<(), LaneFault> {
        let (header, body) = Header::decode(payload)?;
        if header.kind == Kind::Prepare {
            if header.number <= log.min_proposal() {
                return Err(LaneFault::Number { expected: log.min_proposal() + 1, found: header.number });
            }
            if !is_plausible_choice(header.number, log.highest_ballot()) {
                return Err(LaneFault::Range);
            }
            log.promise(header.number);
            *self = Inbound { ballot: header.number, ..Inbound::default() };
            return Ok(());
        }
        if header.number != self.ballot || self.ballot == 0 {
            return Err(LaneFault::Number { expected: self.ballot, found: header.number });
        }
        // The leader has been deposed and does not know it. Its records may differ from what has been taught here, and would be appended to that.
        if log.is_succeeded(header.number) {
            return Ok(());
        }
        match (header.kind, &mut self.staging) {
            (Kind::Start | Kind::Jump, _) => {
                let jump = if header.kind == Kind::Jump { Some(parse_jump(header.index, body)?) } else { None };
                if jump.is_none() && header.index > log.committed().index {
                    return Err(LaneFault::Index { expected: log.committed().index, found: header.index });
                }
                self.staging = Some(Staging { staged: Staged::default(), due: header.count, jump });
                if header.count == 0 { self.take_effect(header.committed(), log, ring, machine) } else { Ok(()) }
            }
            (kind, Some(staging)) if kind.is_entry() => {
                // All of them together need room in the log.
                if staging.staged.bytes() + payload.len() > log.capacity() as usize {
                    return Err(LaneFault::Room);
                }
                staging.staged.push(payload);
                if staging.staged.len() == staging.due as usize {
                    self.take_effect(header.committed(), log, ring, machine)?;
                }
                Ok(())
            }
            (kind, None) if kind.is_entry() && self.started => {
                layout::check_entries(&header, body)?;
                // What the record reports as committed was in the log before it. Applying that makes room.
                log.advance(ring, machine, header.committed());
                // What a teacher has sent is not new.
                if header.last() > log.committed().index {
                    log.append(ring, &header, payload, reader)?;
                }
                // A record that arrives late may report itself as committed.
                log.advance(ring, machine, header.committed());
                Ok(())
            }
            (Kind::Flush, None) if self.started => {
                log.advance(ring, machine, header.committed());
                Ok(())
            }
            (kind, _) => Err(LaneFault::Order(kind)),
        }
    }

    fn take_effect<S: StateMachine>(
        &mut self,
        committed: LogIndex,
        log: &mut Log,
        ring: &Memory,
        machine: &mut S,
    ) -> Result<(), LaneFault> {
        let Some(Staging { staged, jump, .. }) = self.staging.take() else { return Ok(()) };
        // What has been taught here meanwhile needs no jump.
        if let Some((base, group)) = jump.filter(|(base, _)| base.index > log.committed().index) {
            if base.position <= log.committed().position {
                return Err(LaneFault::Body);
            }
            log.jump(base, group);
        }
        let before = log.tail().index;
        log.replace(ring, self.ballot, &staged)?;
        if log.tail().index < before {
            basics::Mark::MuCutOff.reach();
        }
        basics::Mark::MuStarted.reach();
        self.started = true;
        log.advance(ring, machine, committed);
        Ok(())
    }
}

fn parse_jump(index: LogIndex, body: &[u8]) -> Result<(Mark, Group), LaneFault> {
    let (position, group) = layout::split_position(body)?;
    let group = Group::decode(group).ok_or(LaneFault::Body)?;
    Ok((Mark { index, position }, group))
}

impl Mu {
    /// Takes up to `budget` bytes from the lane of `peer`, which holds the permission or held it until just now. Returns whether there were any.
    pub(super) fn drain<F: Fabric, S: StateMachine>(&mut self, peer: PeerId, budget: usize, fabric: &mut F, machine: &mut S) -> bool {
        let Some(at) = self.peers.iter().position(|p| p.id == peer) else { return false };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: peer, name: LOG_LANE }) else { return false };
        let ring = fabric.memory(LocalRegion::Public(LOG)).expect("every process offers its log");
        let mut taken = 0;
        let mut any = false;
        while taken < budget && !self.inbound.broken && self.peers[at].reader.next(lane, &mut self.buffer) {
            any = true;
            taken += self.buffer.len() + 1;
            pulse::moved(fabric, Mu::hearts(), self.buffer.len());
            if let Err(fault) = self.inbound.take(&self.buffer, &self.peers[at].reader, &mut self.log, ring, machine) {
                self.inbound.broken = true;
                self.events.push_back(Event::LaneFault { peer, fault, stuck: true });
            }
        }
        self.peers[at].reader.publish(lane);
        any
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::power::{CAPACITY, memory, record};
    use super::super::tests::world::id;
    use super::*;
    use crate::basics::MAX_NUMBER;
    use crate::engine::test_cluster::Machine;

    const BALLOT: u64 = 3;

    fn say(kind: Kind, count: u32, index: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Header { kind, count, number: BALLOT, index: LogIndex(index), beside: 0 }.encode(&mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn a_start_with_more_than_a_log_holds_is_refused() {
        let (ring, mut machine) = (memory(), Machine::default());
        let (mut log, mut inbound) = (Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)]))), Inbound::default());
        let mut take = |payload: &[u8]| inbound.take(payload, &Reader::new(), &mut log, &ring, &mut machine);
        take(&say(Kind::Prepare, 0, 0, &[])).expect("a number");
        take(&say(Kind::Start, u32::MAX, 0, &[])).expect("a start");
        let taken = (1..=CAPACITY as u64).find_map(|n| take(&record(BALLOT, LogIndex(n), LogIndex(0), n).1).err());
        assert_eq!(taken, Some(LaneFault::Room));
    }

    #[test]
    fn nothing_is_promised_behind_which_there_is_no_number() {
        let (ring, mut machine) = (memory(), Machine::default());
        let (mut log, mut inbound) = (Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)]))), Inbound::default());
        let mut prepare = |ballot, log: &mut Log| {
            let mut bytes = Vec::new();
            Header { kind: Kind::Prepare, count: 0, number: ballot, index: LogIndex(0), beside: 0 }.encode(&mut bytes);
            inbound.take(&bytes, &Reader::new(), log, &ring, &mut machine)
        };
        assert_eq!(prepare(MAX_NUMBER, &mut log), Err(LaneFault::Range));
        assert_eq!(log.min_proposal(), 0);
        // The first leader that it hears may lead a group that is that old.
        for known in [1 << 50, 1 << 58] {
            assert_eq!(prepare(known, &mut log), Ok(()));
            for ballot in [MAX_NUMBER, known + (1 << 54)] {
                assert_eq!(prepare(ballot, &mut log), Err(LaneFault::Range), "{ballot:x}");
                assert_eq!(log.min_proposal(), known);
            }
            log = Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)])));
        }
    }

    #[test]
    fn a_jump_goes_forward_in_the_ring_too() {
        for (position, taken) in [(0, Err(LaneFault::Body)), (8, Err(LaneFault::Body)), (1 << 62, Err(LaneFault::Body)), (1 << 40, Ok(()))]
        {
            let (ring, mut machine) = (memory(), Machine::default());
            let (mut log, mut inbound) = (Log::new(CAPACITY, Some(Group::new(vec![id(0), id(1)]))), Inbound::default());
            let mut take = |payload: &[u8]| inbound.take(payload, &Reader::new(), &mut log, &ring, &mut machine);
            take(&say(Kind::Prepare, 0, 0, &[])).expect("a number");
            let mut body = u64::to_le_bytes(position).to_vec();
            Group::new(vec![id(0), id(1)]).encode(&mut body);
            assert_eq!(take(&say(Kind::Jump, 0, 9, &body)), taken, "{position}");
        }
    }
}

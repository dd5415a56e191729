//! State transfer to a replica that joins: the state is sent in parts, while the primary continues.
//!
//! A part holds everything in a range: first ranges of positions in the table, then ranges of session names. Each part says under which seed keys are hashed,
//! so both ends mean the same by a range. The receiver discards what it held in the range, installs the part, and applies later commands to it like every other
//! replica.
//!
//! ```text
//! 1  keys      seed u64 u64, first u64, last u64, then per entry: key length, value length, expiry u64 (0: never), key, value
//! 2  sessions  first u64, last u64, then per session: id u64, lowest u64, replies, then per reply: seq u64, length, reply
//! ```

use super::effects::{Decoder, EffectError, put_varint};
use super::entry::Entry;
use super::hash::{POSITION_BITS, Seed};
use super::machine::KvMachine;
use super::sessions::SessionId;

/// The first byte of something that is not a part of the state.
pub(super) const NO_PART: u8 = 0;

/// Cursors from here on are about sessions: the remaining bits are a session's name without its lowest bit.
const SESSIONS: u64 = 1 << 63;

pub(super) fn transfer(machine: &KvMachine, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
    if cursor & SESSIONS == 0 { keys(machine, cursor, budget, out) } else { sessions(machine, cursor & !SESSIONS, budget, out) }
}

fn keys(machine: &KvMachine, from: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
    let start = out.len();
    let seed = machine.table.seed();
    out.push(1);
    for n in [seed.0, seed.1, from, 0] {
        out.extend_from_slice(&n.to_le_bytes());
    }
    let last_at = out.len() - 8;
    let next = machine.table.walk(from, |_, entry| {
        put_varint(out, entry.key().len() as u64);
        put_varint(out, entry.value().len() as u64);
        out.extend_from_slice(&entry.expiry().unwrap_or(0).to_le_bytes());
        out.extend_from_slice(entry.key());
        machine.pulse.stepped();
        machine.pulse.append(out, entry.value());
        out.len() - start < budget
    });
    let last = next.map_or((1 << POSITION_BITS) - 1, |next| next - 1);
    out[last_at..last_at + 8].copy_from_slice(&last.to_le_bytes());
    Some(next.unwrap_or(SESSIONS))
}

fn sessions(machine: &KvMachine, from: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
    let start = out.len();
    let first = from << 1;
    out.push(2);
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&u64::MAX.to_le_bytes());
    let last_at = out.len() - 8;
    let mut previous = None;
    for (id, session) in machine.sessions.from(SessionId(first)) {
        if out.len() - start >= budget && previous.is_some_and(|p| p != id.0 >> 1) {
            let next = id.0 >> 1;
            out[last_at..last_at + 8].copy_from_slice(&((next << 1) - 1).to_le_bytes());
            return Some(SESSIONS | next);
        }
        previous = Some(id.0 >> 1);
        out.extend_from_slice(&id.0.to_le_bytes());
        out.extend_from_slice(&session.lowest().to_le_bytes());
        put_varint(out, session.replies().count() as u64);
        for (seq, reply) in session.replies() {
            out.extend_from_slice(&seq.to_le_bytes());
            put_varint(out, reply.len() as u64);
            machine.pulse.stepped();
            machine.pulse.append(out, reply);
        }
    }
    None
}

pub(super) fn install(machine: &mut KvMachine, part: &[u8]) -> Result<(), EffectError> {
    let mut d = Decoder::new(part);
    match d.u8()? {
        1 => {
            machine.take_seed(Seed(d.u64()?, d.u64()?));
            let (first, last) = (d.u64()?, d.u64()?);
            if last >> POSITION_BITS != 0 {
                return Err(EffectError::Length(last));
            }
            if first > last {
                return Err(EffectError::Range(first, last));
            }
            clear_positions(machine, first, last);
            while !d.rest().is_empty() {
                let (key, value, expiry) = (d.length()?, d.length()?, d.u64()?);
                let entry = Entry::copied(d.bytes(key)?, d.bytes(value)?, (expiry != 0).then_some(expiry), &machine.pulse);
                machine.pulse.stepped();
                machine.adopt(entry);
            }
        }
        2 => {
            let (first, last) = (SessionId(d.u64()?), SessionId(d.u64()?));
            if first > last {
                return Err(EffectError::Range(first.0, last.0));
            }
            machine.sessions.clear_range(first, last);
            while !d.rest().is_empty() {
                let (id, lowest, count) = (SessionId(d.u64()?), d.u64()?, d.length()?);
                let mut replies = Vec::new();
                for _ in 0..count {
                    let (seq, len) = (d.u64()?, d.length()?);
                    let mut reply = Vec::new();
                    machine.pulse.append(&mut reply, d.bytes(len)?);
                    machine.pulse.stepped();
                    replies.push((seq, reply));
                }
                machine.sessions.restore(id, lowest, replies.into_iter());
            }
        }
        other => return Err(EffectError::Kind(other)),
    }
    Ok(())
}

fn clear_positions(machine: &mut KvMachine, first: u64, last: u64) {
    let mut gone = Vec::new();
    let mut from = Some(first);
    while let Some(at) = from.filter(|at| *at <= last) {
        from = machine.table.walk(at, |position, entry| {
            if position <= last {
                gone.push(entry.key().to_vec());
            }
            position < last
        });
    }
    for key in gone {
        machine.pulse.stepped();
        machine.delete(machine.keyed(&key));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use martlet_protocol::basics::LogIndex;
    use martlet_protocol::replica::StateMachine;

    use super::super::effects::tests::any_effect;
    use super::super::effects::{Effect, Effects};
    use super::*;

    fn entry(effect: Effect<'_>) -> Vec<u8> {
        let mut effects = Effects::default();
        effects.push(effect);
        effects.bytes().to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// State transfer has to leave a joining replica equal to the primary: whatever is applied between the parts, the digests agree at the end.
        #[test]
        fn a_learner_that_interleaves_parts_and_commands_ends_with_the_same_state(
            before in prop::collection::vec(any_effect(0..10), 0..400),
            meanwhile in prop::collection::vec(any_effect(0..10), 0..200),
            budget in 1usize..2000,
            pace in 0usize..8,
            seeded in any::<bool>(),
        ) {
            let (mut primary, mut learner) = (KvMachine::new(), KvMachine::new());
            if seeded {
                primary.set_seed(Seed(11, 13));
            }
            for e in &before {
                primary.perform(e.effect());
            }
            let mut meanwhile = meanwhile.iter();
            let mut cursor = Some(0);
            let mut index = 0;
            while let Some(at) = cursor {
                let mut part = Vec::new();
                cursor = primary.transfer(at, budget, &mut part);
                learner.install(&part).expect("a part");
                for e in meanwhile.by_ref().take(pace) {
                    index += 1;
                    let command = entry(e.effect());
                    primary.apply(LogIndex(index), &command);
                    learner.apply(LogIndex(index), &command);
                }
            }
            prop_assert_eq!(primary.digest(), learner.digest());
            prop_assert_eq!(primary.len(), learner.len());
            prop_assert_eq!(primary.expiring(), learner.expiring());
            prop_assert_eq!(primary.sessions.heap_bytes(), learner.sessions.heap_bytes());
        }

        #[test]
        fn no_part_makes_install_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 1u8..3) {
            let mut part = vec![kind];
            part.extend_from_slice(&bytes);
            if let Err(error) = install(&mut KvMachine::new(), &part) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn a_part_that_ends_before_it_begins_is_refused() {
        let mut machine = KvMachine::new();
        machine.perform(Effect::Answer { session: SessionId(1), seq: 1, lowest: 1, reply: b"+OK\r\n" });
        machine.perform(Effect::Put { key: b"k", value: b"v", expiry: None });
        let part = |words: &[u64], kind: u8| {
            let mut part = vec![kind];
            words.iter().for_each(|n| part.extend_from_slice(&n.to_le_bytes()));
            part
        };
        assert_eq!(install(&mut machine, &part(&[0, 0, 7, 6], 1)), Err(EffectError::Range(7, 6)));
        assert_eq!(install(&mut machine, &part(&[7, 6], 2)), Err(EffectError::Range(7, 6)));
        assert_eq!((machine.len(), machine.sessions.len()), (1, 1), "nothing of ours is thrown away for it");
    }

    #[test]
    fn a_large_state_travels_in_parts_near_the_budget() {
        let (mut primary, mut learner) = (KvMachine::new(), KvMachine::new());
        primary.set_seed(Seed(3, 4));
        for i in 0..50_000u32 {
            primary.put(primary.keyed(&i.to_le_bytes()), &[b'v'; 20], (i % 3 == 0).then_some(u64::from(i) + 1));
        }
        for i in 0..1000u64 {
            primary.perform(Effect::Answer { session: SessionId(i), seq: 1, lowest: 1, reply: b"+OK\r\n" });
        }
        // What the learner held before, under no seed, is discarded with the ranges.
        learner.put(learner.keyed(b"stale"), b"x", Some(5));
        let (mut cursor, mut parts) = (Some(0), 0);
        while let Some(at) = cursor {
            let mut part = Vec::new();
            cursor = primary.transfer(at, 4096, &mut part);
            assert!(part.len() < 4096 + 200, "a part of {} bytes", part.len());
            learner.install(&part).expect("a part");
            parts += 1;
        }
        assert!(parts > 300, "{parts} parts");
        assert_eq!(primary.digest(), learner.digest());
        assert_eq!((learner.len(), learner.expiring()), (50_000, primary.expiring()));
    }
}

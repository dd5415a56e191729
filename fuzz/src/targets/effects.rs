//! What a primary sends: entries of the log, and parts of its state. What can be decoded is encoded again to the same bytes, except for spare bytes in lengths.
//! Replicas that take the same bytes hold the same state.

use martlet_kv::store::{Decoder, Effect, Effects, KvMachine};
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::StateMachine;

/// A value of half a gigabyte is allowed, and takes the time of thousands of inputs.
const LONGEST_OFFSET: usize = 1 << 16;

pub(super) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    if choice % 2 == 0 { entries(bytes) } else { martlet_kv::fuzz::part(bytes) }
}

fn entries(bytes: &[u8]) {
    let decoded: Result<Vec<Effect<'_>>, _> = Decoder::new(bytes).collect();
    let Ok(effects) = decoded else { return };
    if effects.iter().any(|e| matches!(e, Effect::WriteAt { offset, .. } if *offset > LONGEST_OFFSET)) {
        return;
    }
    let mut again = Effects::default();
    effects.iter().for_each(|effect| again.push(*effect));
    assert!(again.bytes().len() <= bytes.len(), "nobody writes lengths longer than ours");
    assert_eq!(Decoder::new(again.bytes()).collect::<Result<Vec<_>, _>>().as_ref(), Ok(&effects), "encoded and decoded again");

    let (mut one, mut other) = (KvMachine::new(), KvMachine::new());
    one.apply(LogIndex(1), bytes);
    effects.iter().for_each(|effect| other.perform(*effect));
    assert_eq!(one.digest(), other.digest());
    assert_eq!(one.used_bytes(), other.used_bytes());
    let mut learner = KvMachine::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let mut part = Vec::new();
        cursor = one.transfer(at, usize::from(bytes.len() as u8), &mut part);
        learner.install(&part).expect("a part");
    }
    assert_eq!(one.digest(), learner.digest(), "a learner that is taught the state holds it");
    assert_eq!((one.len(), one.expiring()), (learner.len(), learner.expiring()));
}

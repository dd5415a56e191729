//! What must hold for any bytes that peers send, where that cannot be expressed outside this crate. For the fuzz targets.

use martlet_protocol::replica::StateMachine;

use crate::frontend::fabric::wire::{self, Answer, Request};
use crate::resp::Args;
use crate::store::{Effect, KvMachine, SessionId};

/// Records of client lanes, in both directions: a record that is accepted encodes to the same bytes again, and refers to nothing outside of them.
///
/// # Panics
/// When that does not hold.
pub fn lane_record(bytes: &[u8]) {
    let mut spans = Vec::new();
    let mut again = Vec::new();
    match wire::decode_request(bytes, &mut spans) {
        Ok(Request::Hello { epoch, session, next, salt, by_quorum }) => {
            wire::encode_hello(epoch, session, next, salt, by_quorum, &mut again);
            assert_eq!(wire::decode_request(&again, &mut spans), Ok(Request::Hello { epoch, session, next, salt, by_quorum }));
        }
        Ok(Request::Call { epoch, seq, lowest }) => {
            let args = Args::new(bytes, &spans);
            let parts: Vec<&[u8]> = args.from(0).collect();
            wire::encode_call(epoch, seq, lowest, &parts, &mut again);
            assert_eq!(again, bytes, "a call has one encoding");
            assert_eq!(wire::call_bytes(&parts), bytes.len());
            let mut later = Vec::new();
            wire::with_epoch(bytes, epoch.wrapping_add(1), &mut later);
            assert_eq!(wire::decode_request(&later, &mut spans), Ok(Request::Call { epoch: epoch.wrapping_add(1), seq, lowest }));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match wire::decode_answer(bytes) {
        Ok(answer) => {
            again.clear();
            wire::encode_answer(answer, &mut again);
            if matches!(answer, Answer::Reply { .. }) {
                again.extend_from_slice(&bytes[wire::HEADER_BYTES..]);
            }
            assert_eq!(again.len(), bytes.len());
            assert_eq!(wire::decode_answer(&again), Ok(answer));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A part of the state as a learner receives it: it is refused, or it leads to a state that can be transferred again.
///
/// # Panics
/// When that does not hold.
pub fn part(bytes: &[u8]) {
    let mut machine = KvMachine::new();
    // A part replaces what is in its range, so there has to be something to replace.
    for n in 0..4u64 {
        machine.perform(Effect::Put { key: &n.to_le_bytes()[..1], value: b"old", expiry: (n % 2 == 0).then_some(n + 1) });
        machine.perform(Effect::Answer { session: SessionId(n << 60), seq: n, lowest: 0, reply: b"old" });
    }
    if let Err(error) = machine.install_part(bytes) {
        assert!(!error.to_string().is_empty());
        return;
    }
    let mut learner = KvMachine::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let mut part = Vec::new();
        cursor = machine.transfer(at, 100, &mut part);
        learner.install(&part).expect("a part");
    }
    assert_eq!(machine.digest(), learner.digest(), "what was taken is taught again");
}

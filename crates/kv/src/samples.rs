//! Fixed samples of what replicas of the store, and their clients on the fabric, write for each other. Their bytes are pinned to the version of the protocol:
//! see [`martlet_protocol::version`].

use martlet_fabric::NodeId;
use martlet_protocol::basics::ViewNumber;
use martlet_protocol::replica::StateMachine as _;

use crate::frontend::fabric::wire::{self, Answer};
use crate::store::{Effect, Effects, KvMachine, Seed, SessionId};

/// A sample: its name, and its bytes.
pub type Sample = (String, Vec<u8>);

/// Effects in the log.
pub fn effects() -> Vec<Sample> {
    let (key, value, session) = (&b"key"[..], &[7; 200][..], SessionId(0x0102_0304_0506_0708));
    let each = [
        ("put", Effect::Put { key, value, expiry: None }),
        ("put that expires", Effect::Put { key, value, expiry: Some(1_700_000_000_000) }),
        ("delete", Effect::Delete { key }),
        ("expire", Effect::Expire { key, expiry: Some(1_700_000_000_000) }),
        ("persist", Effect::Expire { key, expiry: None }),
        ("append", Effect::Append { key, suffix: value }),
        ("write", Effect::WriteAt { key, offset: 70_000, bytes: value }),
        ("flush", Effect::Flush),
        ("seed", Effect::Seed(Seed(1, 2))),
        ("answer", Effect::Answer { session, seq: 9, lowest: 8, reply: b"+OK\r\n" }),
        ("end", Effect::End { session }),
    ];
    let encode = |(name, effect)| {
        let mut effects = Effects::default();
        effects.push(effect);
        (format!("kv/effect, {name}"), effects.bytes().to_vec())
    };
    each.into_iter().map(encode).collect()
}

/// Parts of the state.
pub fn parts() -> Vec<Sample> {
    let mut machine = KvMachine::new();
    machine.set_seed(Seed(1, 2));
    for (n, expiry) in [None, Some(1_700_000_000_000), None].into_iter().enumerate() {
        machine.perform(Effect::Put { key: &[n as u8; 3], value: b"value", expiry });
    }
    for (session, seq) in [(0x0102 << 1, 1), (0x0102 << 1, 2), (0x0103 << 1, 1)] {
        machine.perform(Effect::Answer { session: SessionId(session), seq, lowest: 1, reply: b"+OK\r\n" });
    }
    let (mut cursor, mut samples) = (Some(0), Vec::new());
    while let Some(at) = cursor {
        let mut part = Vec::new();
        cursor = machine.transfer(at, 1 << 20, &mut part);
        samples.push((format!("kv/part {}", samples.len() + 1), part));
    }
    samples
}

/// Records of the lanes between clients and nodes.
pub fn lane_records() -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut put = |name: &str, encode: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        samples.push((format!("kv/client record, {name}"), bytes));
    };
    let view = ViewNumber(0x1234);
    put("hello", &|out| wire::encode_hello(1, 2, 3, 4, false, out));
    put("hello of who reads by quorum", &|out| wire::encode_hello(1, 2, 3, 4, true, out));
    put("call", &|out| wire::encode_call(1, 2, 3, &[b"SET", b"key", b""], out));
    put("reply", &|out| wire::encode_answer(Answer::Reply { seq: 2, view }, out));
    put("redirect", &|out| wire::encode_answer(Answer::Redirect { epoch: 1, seq: 2, view, node: Some(NodeId(3)) }, out));
    put("redirect to nobody", &|out| wire::encode_answer(Answer::Redirect { epoch: 1, seq: 2, view, node: None }, out));
    put("notice", &|out| wire::encode_answer(Answer::Notice { view }, out));
    put("welcome", &|out| wire::encode_answer(Answer::Welcome { view }, out));
    samples
}

//! Fixed samples of what processes say before they share memory, and of the layout of records and datagrams in that memory. They are pinned to the
//! version of the handshake.

use crate::contract::{Identity, Incarnation, NodeId, PeerKind, RegionName, RegionSpec};
use crate::datagrams;
use crate::meeting::wire::{self, Code, Hello, Message, Preface, Prover, Said};
use crate::primitive::{AtomicU64, Ordering};
use crate::ring::{self, Record};
use crate::speech::{Levels, Protocol};

/// A sample: what it is of, and its bytes.
pub type Sample = (String, Vec<u8>);

/// The version of the handshake, and of the hidden parts of shared memory.
pub const VERSION: u32 = wire::VERSION;

/// All samples of this crate, each with a name of its own.
pub fn all() -> Vec<Sample> {
    let mut samples = messages();
    samples.extend(memory());
    samples.extend(crate::kind::samples());
    samples
}

fn messages() -> Vec<Sample> {
    let spec = |name| RegionSpec {
        public: vec![(RegionName(name), 4096), (RegionName(name + 3), 8)],
        owned: vec![RegionName(name + 3)],
        member_lanes: vec![(RegionName(name + 1), 64), (RegionName(name + 2), 128)],
        client_lanes: Vec::new(),
    };
    let of_kind = |kind| Preface {
        protocol: Protocol { version: 0x0102_0304, levels: Levels { least: 1, most: 2 }, build: "martlet 0.1.0".into() },
        identity: Identity { node: NodeId(0x0102), incarnation: Incarnation(0x0102_0304_0506_0708), kind },
        cluster: "blue".into(),
    };
    let hello = |kind| Hello { preface: of_kind(kind), nonce: [7; wire::PROOF], members: spec(1), clients: spec(16) }.encode();
    let (member, client) = (hello(PeerKind::Member), hello(PeerKind::Client));
    let said = Said { dialer: &client, acceptor: &member, body: b"body" };
    let proof = wire::prove(b"the cluster's key", Prover::Acceptor, said);
    let each = [
        ("hello of a member", Message::Hello(&member)),
        ("hello of a client", Message::Hello(&client)),
        ("answer", Message::Answer { proof: &proof, hello: &member }),
        ("offer", Message::Offer { proof: &proof, body: b"body" }),
        ("commit", Message::Commit),
        ("ready", Message::Ready),
        ("refusal", Message::Refuse { code: Code::Mismatch, text: "why".into() }),
        ("refusal, connected already", Message::Refuse { code: Code::Duplicate, text: "why".into() }),
        ("refusal, full", Message::Refuse { code: Code::Full, text: "why".into() }),
        ("refusal, another version", Message::Refuse { code: Code::Version, text: "why".into() }),
        ("farewell", Message::Bye),
    ];
    each.into_iter().map(|(name, message)| (format!("handshake/{name}"), message.encode())).collect()
}

/// The layout of memory that one process writes and another reads.
fn memory() -> Vec<Sample> {
    let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let bytes = |words: &[AtomicU64]| words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect::<Vec<u8>>();
    let mut record = Record::default();
    record.fill(|bytes| bytes.extend_from_slice(b"a payload of some bytes"));
    let lane = words(ring::lane_bytes(256) / 8);
    // So near the end that a filler comes first.
    ring::place(&lane, 256 * 3 + 240, &record);
    let mail = words(datagrams::ring_bytes(64) / 8);
    let mut sender = datagrams::Sender::default();
    assert!(sender.push(&mail, b"a datagram") && sender.push(&mail, b""), "there is room");
    vec![
        ("memory/a ring's record".into(), bytes(&lane)),
        ("memory/a salted record".into(), record.sealed(0x1230, 0x5a17_5a17_5a17_5a17)),
        ("memory/datagrams".into(), bytes(&mail)),
    ]
}

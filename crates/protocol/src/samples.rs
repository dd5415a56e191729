//! Fixed samples of everything that a process writes for others, or for a later life of its own. What they look like is pinned to the version of the protocol:
//! see [`version`](crate::version).
//!
//! A new encoding gets samples here; one that exists keeps its own.

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_fabric::{Incarnation, Levels, NodeId, RegionSpec};

use crate::basics::ballot::{SlotState, SlotWord};
use crate::basics::layout::{self, Sizes, life, returned};
use crate::basics::{LogIndex, ProcessId, ViewNumber, sealed};
use crate::consensus::rpc::{RpcBody, RpcReply, RpcRequest, RpcVerdict};
use crate::engine::{self, Engine, EngineKind};
use crate::founding::Returned;
use crate::membership::cache::CacheWord;
use crate::membership::message::Message;
use crate::membership::{Departed, Evidence, Member, Roles, View};
use crate::with_engine;

/// A sample: what it is of, and its bytes.
pub type Sample = (String, Vec<u8>);

/// All samples of this crate, each with a name of its own.
pub fn all() -> Vec<Sample> {
    let mut samples = words();
    samples.extend(messages().into_iter().map(|(name, message)| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        (format!("membership/{name}"), bytes)
    }));
    let mut bytes = Vec::new();
    sealed::encode(9, 2, b"a payload", &mut bytes);
    samples.push(("sealed record".into(), bytes));
    samples.extend(regions());
    samples.extend(engine::samples());
    samples
}

/// Processes of the samples.
pub(crate) fn process(node: u16) -> ProcessId {
    ProcessId { node: NodeId(node), incarnation: Incarnation(0x0102_0304_0506_0700 + u64::from(node)) }
}

/// A view with one of everything.
fn view() -> View {
    let member = |node, roles| Member { levels: Levels { least: 1, most: 2 }, ..Member::new(process(node), roles) };
    let all = Roles::COORDINATOR.with(Roles::REPLICA).with(Roles::LEASE_CACHE);
    let evidence = [Evidence::Left, Evidence::Certain, Evidence::Presumed, Evidence::Evicted];
    View {
        number: ViewNumber(0x1234),
        lease_ns: 10_000_000,
        fence_ns: 20_000_000,
        compatible: true,
        level: 1,
        members: vec![Member { address: "127.0.0.1:7711".into(), ..member(0, all) }, member(1, Roles::LEARNER)],
        departed: (2..).zip(evidence).map(|(node, evidence)| Departed { id: process(node), evidence }).collect(),
    }
}

fn messages() -> Vec<(&'static str, Message)> {
    let (view_number, ballot, process) = (ViewNumber(0x1234), 0x0001_0002_0003, process(3));
    let request = |body| Message::Request(RpcRequest { view: view_number, ballot, body });
    let reply = |verdict| Message::Reply(RpcReply { view: view_number, ballot, verdict });
    let (roles, levels) = (Roles::COORDINATOR.with(Roles::LEARNER), Levels { least: 1, most: 2 });
    vec![
        ("heartbeat", Message::Heartbeat { view: view_number, heard: 0b101 }),
        ("notice", Message::Notice { process, evidence: Evidence::Presumed }),
        ("certificate", Message::Certificate { process, secret: std::array::from_fn(|byte| byte as u8) }),
        ("join", Message::Join { view: view_number, roles, levels, address: "127.0.0.1:7711".into(), reaches: vec![process, process] }),
        ("vouch", Message::Vouch { process }),
        ("refuse", Message::Refuse { least: Incarnation(0x0102) }),
        ("unsuited", Message::Unsuited { level: 2 }),
        ("promote", Message::Promote { process }),
        ("set lease", Message::SetLease { lease_ns: 10_000_000 }),
        ("raise level", Message::RaiseLevel { level: 2 }),
        ("frozen", Message::Frozen { view: view_number }),
        ("view", Message::View(view())),
        ("request, prepare", request(RpcBody::Prepare)),
        ("request, accept", request(RpcBody::Accept(b"value".to_vec()))),
        ("reply, promised", reply(RpcVerdict::Promised { accepted: 7, value: b"value".to_vec() })),
        ("reply, accepted", reply(RpcVerdict::Accepted)),
        ("reply, rejected", reply(RpcVerdict::Rejected { min: 8 })),
        ("reply, not frozen", reply(RpcVerdict::NotFrozen { word: 9 })),
    ]
}

/// Words at fixed places, and which places those are.
fn words() -> Vec<Sample> {
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let slot = SlotWord::new(SlotState { min: 0x0102, accepted: 0x0304, value: 5 }, 0x06_0708);
    let begun = CacheWord::new(ViewNumber(7)).begun().expect("a first round");
    let places = [life::HEARTBEAT, life::LEASE, life::THREADS, life::LEFT, life::CACHE, life::DEATH, life::death(1, 2), life::WORDS];
    let region: Vec<AtomicU64> = (0..returned::WORDS).map(|_| AtomicU64::new(0)).collect();
    let log = Returned { ballot: 1 << 40, last: LogIndex(0x1234), view: ViewNumber(9), members: vec![process(1), process(2)] };
    let stored = |what: Option<&Returned>| {
        Returned::store(what, &region);
        bytes(&region.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>())
    };
    vec![
        ("words/slot".into(), bytes(&[slot.0])),
        ("words/cache".into(), bytes(&[begun.0, begun.confirmed().0])),
        ("words/life".into(), bytes(&places.map(|place| place as u64))),
        ("words/pledge".into(), bytes(&[life::PLEDGE as u64])),
        ("words/returned with nothing".into(), stored(None)),
        ("words/returned with a log".into(), stored(Some(&log))),
    ]
}

/// Which regions a process offers, and how large they are by default.
fn regions() -> Vec<Sample> {
    let list = |spec: &RegionSpec| {
        let mut bytes = Vec::new();
        for regions in [&spec.public, &spec.member_lanes, &spec.client_lanes] {
            bytes.push(regions.len() as u8);
            for (name, len) in regions {
                bytes.push(name.0);
                bytes.extend_from_slice(&(*len as u64).to_le_bytes());
            }
        }
        bytes
    };
    let sizes = Sizes::default();
    let of_engine = |kind: EngineKind| {
        let mut spec = layout::regions(sizes);
        with_engine!(kind, E => E::add_regions(&mut spec, &<E as Engine>::Config::default()));
        (format!("regions/{kind}"), list(&spec))
    };
    let mut samples: Vec<Sample> = EngineKind::ALL.into_iter().map(of_engine).collect();
    samples.push(("regions/client".into(), list(&layout::client_regions(sizes))));
    samples
}

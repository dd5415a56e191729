//! Samples of what this engine writes: see [`crate::samples`].

use super::journal::Entry;
use super::layout::{Header, Kind, Status, control, words};
use super::log::Mark;
use crate::basics::{LogIndex, ViewNumber};
use crate::replica::group::Group;
use crate::replica::record::{self, RecordKind as _};
use crate::samples::{Sample, process};

pub(crate) fn all() -> Vec<Sample> {
    let group = Group::new(vec![process(0), process(1), process(2)]).as_of(ViewNumber(9));
    let mut samples: Vec<Sample> = Vec::new();
    for kind in Kind::ALL.iter().copied() {
        let mut bytes = Header { kind, count: 3, number: 9 << 16 | 2, index: LogIndex(0x0102), beside: 0x0101 }.bytes().to_vec();
        match kind {
            Kind::Start => bytes.extend_from_slice(&0x1230u64.to_le_bytes()),
            Kind::Group => group.encode(&mut bytes),
            Kind::Begin => record::begin_body(0x1230, 7, &group, &mut bytes),
            Kind::Break => bytes.extend_from_slice(&7u64.to_le_bytes()),
            Kind::Jump => {
                bytes.extend_from_slice(&0x1230u64.to_le_bytes());
                group.encode(&mut bytes);
            }
            Kind::Commands | Kind::Flush | Kind::Part | Kind::End => {}
        }
        samples.push((format!("apus/record, {}", format!("{kind:?}").to_lowercase()), bytes));
    }
    let mark = Mark { index: LogIndex(0x0102), position: 0x1230 };
    let entries = [
        ("append", Entry::Append { committed: LogIndex(3), payload: b"record" }),
        ("start", Entry::Start { view: 9 << 16, committed: LogIndex(3), keep: mark, payloads: vec![b"one"] }),
        ("base", Entry::Base { anew: true, ring_bytes: 4096, mark, view: 8 << 16, group, payloads: vec![b"two"] }),
        ("promise", Entry::Promise(10 << 16)),
        ("shown", Entry::Shown(LogIndex(9))),
    ];
    for (name, entry) in entries {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        samples.push((format!("apus/journal, {name}"), bytes));
    }
    let places = [words::PROMISED, words::HEARS, words::ACCEPTED, words::LAST, words::STATUS, words::HEARTBEAT];
    let of_control = [
        control::LOG_SALT,
        control::STATE_SALT,
        control::ELECT_ACCEPTED,
        control::ELECT_LAST,
        control::ELECT,
        control::VOTE,
        control::REIGN,
        control::START,
        control::ASK,
        control::GRANT_INDEX,
        control::GRANT_POSITION,
        control::GRANT_KNOWS,
        control::GRANTED,
        control::RENEW,
        control::ACK,
        control::ACK_VIEW,
        control::OUTDATED,
        control::STAND,
        control::TEACH,
    ];
    let status = [Status::Incomplete, Status::Unkept, Status::Backup, Status::Leader].map(|status| status as u64 as u8);
    let bytes = |places: &[usize]| places.iter().map(|place| *place as u8).collect::<Vec<u8>>();
    samples.push(("apus/words".into(), bytes(&places)));
    samples.push(("apus/control".into(), bytes(&of_control)));
    samples.push(("apus/status".into(), status.to_vec()));
    samples
}

//! Samples of what this engine writes: see [`crate::samples`].

use super::journal::Entry;
use super::layout::{self, Header, Kind, Status, permission, words};
use super::log::Mark;
use super::{Config, Group};
use crate::basics::{LogIndex, ViewNumber};
use crate::replica::backlog::Backlog;
use crate::replica::record;
use crate::samples::{Sample, process};

pub(crate) fn all() -> Vec<Sample> {
    let group = Group::new(vec![process(0), process(1), process(2)]).as_of(ViewNumber(9)).led_by(process(1));
    let group = group.without(process(2)).expect("it is there");
    let encoded = {
        let mut bytes = Vec::new();
        group.encode(&mut bytes);
        bytes
    };
    let mut samples = vec![("mu/group".to_owned(), encoded.clone())];
    let header = |kind| Header { kind, count: 3, number: 1 << 40, index: LogIndex(0x0102), beside: 0x0101 };
    let kinds = [
        (Kind::Prepare, "prepare"),
        (Kind::Start, "start"),
        (Kind::Commands, "commands"),
        (Kind::Group, "group"),
        (Kind::Flush, "flush"),
        (Kind::Jump, "jump"),
        (Kind::Begin, "begin"),
        (Kind::Part, "part"),
        (Kind::End, "end"),
        (Kind::Break, "break"),
    ];
    for (kind, name) in kinds {
        let mut bytes = header(kind).bytes().to_vec();
        match kind {
            Kind::Jump => layout::jump_body(0x1230, &group, &mut bytes),
            Kind::Begin => record::begin_body(0x1230, 7, &group, &mut bytes),
            _ => {}
        }
        samples.push((format!("mu/record, {name}"), bytes));
    }
    let config = Config::default();
    let mut backlog = Backlog::new(config.backlog_bytes, config.batch_bytes, config.max_command_bytes());
    backlog.push(b"first", 1000);
    backlog.push(b"", 1000);
    backlog.push_group(&encoded);
    for name in ["mu/a record with commands", "mu/a record with a group"] {
        let batch = backlog.front().expect("just pushed");
        let header = Header { count: batch.count, ..header(batch.kind.into()) };
        batch.record.close(&header.bytes());
        samples.push((name.into(), batch.record.payload().to_vec()));
        backlog.pop_front();
    }
    let mark = Mark { index: LogIndex(0x0102), position: 0x1230 };
    let payloads = vec![&b"one"[..], b"two"];
    let entries = [
        ("append", Entry::Append { committed: LogIndex(7), payload: b"payload" }),
        ("start", Entry::Start { ballot: 1 << 40, taught: 5, committed: LogIndex(7), jump: None, keep: mark, payloads: payloads.clone() }),
        (
            "start after a jump",
            Entry::Start {
                ballot: 1 << 40,
                taught: 5,
                committed: LogIndex(7),
                jump: Some((mark, group.clone())),
                keep: mark,
                payloads: payloads.clone(),
            },
        ),
        ("base", Entry::Base { anew: true, ring_bytes: 1 << 22, mark, ballot: 1 << 40, taught: 5, group, payloads }),
        ("ceiling", Entry::Ceiling(1 << 50)),
        ("shown", Entry::Shown(LogIndex(8))),
    ];
    for (name, entry) in entries {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        samples.push((format!("mu/journal, {name}"), bytes));
    }
    let places = [
        words::MIN_PROPOSAL,
        words::LAST_BALLOT,
        words::LAST_INDEX,
        words::TAIL,
        words::COMMITTED,
        words::COMMITTED_POSITION,
        words::FLOOR,
        words::STATUS,
        words::EXECUTED,
        words::CEILING,
        words::TAUGHT_BALLOT,
        words::HEARTBEAT,
    ];
    let of_permission = [
        permission::START,
        permission::REQUEST,
        permission::ACK,
        permission::TEACH,
        permission::LOG_SALT,
        permission::STATE_SALT,
        permission::STABLE_UNDER,
        permission::STABLE,
        layout::PROBE_OFFSET,
    ];
    let status = [Status::Incomplete, Status::Follower, Status::Leader, Status::Taught, Status::Unkept].map(|status| status as u64 as u8);
    let bytes = |places: &[usize]| places.iter().map(|place| *place as u8).collect::<Vec<u8>>();
    samples.push(("mu/words".into(), bytes(&places)));
    samples.push(("mu/permission".into(), bytes(&of_permission)));
    samples.push(("mu/status".into(), status.to_vec()));
    samples
}

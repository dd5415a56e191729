//! Samples of what this engine writes: see [`crate::samples`].

use super::layout::{self, Determinants, Header, Kind, Request, Status, control, lane, words};
use super::log::{Mark, Run};
use crate::basics::{LogIndex, ViewNumber};
use crate::replica::group::Group;
use crate::replica::record;
use crate::samples::{Sample, process};

pub(crate) fn all() -> Vec<Sample> {
    let group = Group::new(vec![process(0), process(1), process(2)]).as_of(ViewNumber(9));
    let kinds = [
        (Kind::Noop, "noop"),
        (Kind::Commands, "commands"),
        (Kind::Group, "group"),
        (Kind::Head, "head"),
        (Kind::Begin, "begin"),
        (Kind::Part, "part"),
        (Kind::End, "end"),
        (Kind::Flush, "flush"),
        (Kind::Break, "break"),
    ];
    let mut samples: Vec<Sample> = Vec::new();
    for (kind, name) in kinds {
        let mut bytes = Header { kind, count: 3, number: 1 << 40, index: LogIndex(0x0102), beside: 0x0101 }.bytes().to_vec();
        match kind {
            Kind::Head => bytes.extend_from_slice(&0x1230u64.to_le_bytes()),
            Kind::Group => group.encode(&mut bytes),
            Kind::Begin => record::begin_body(0x1230, 7, &group, &mut bytes),
            _ => {}
        }
        samples.push((format!("dare/record, {name}"), bytes));
    }
    let mut bytes = Vec::new();
    Request { term: 9, last_term: 8, last: LogIndex(0x0102), quorum: 3 }.encode(&mut bytes);
    samples.push(("dare/request".to_owned(), bytes.clone()));
    let mark = |index, position| Mark { index: LogIndex(index), position };
    let these = Determinants {
        grant: layout::vote_of(9) | 2,
        tail: mark(9, 0x280),
        base: mark(4, 0xa0),
        base_term: 2,
        applied: LogIndex(4),
        kept: 0xa0,
        complete: true,
        runs: vec![Run { term: 3, first: LogIndex(5), position: 0xa0 }, Run { term: 7, first: LogIndex(6), position: 0x140 }],
    };
    these.encode(&mut bytes);
    samples.push(("dare/determinants".to_owned(), bytes));
    let places = [words::TERM, words::SUPPORTS, words::LAST_TERM, words::LAST_INDEX, words::STATUS, words::SNAPSHOT_TAIL, words::HEARTBEAT];
    let of_control = [
        control::REQUEST,
        control::VOTE,
        control::BEAT,
        control::ASK,
        control::RENEW,
        control::PRIVATE,
        control::OUTDATED,
        control::RECOVER,
        control::TAKEN,
        control::SERVES_FROM,
        control::SERVES,
        control::STAND,
    ];
    let of_lane = [lane::CUT, lane::CUT_INDEX, lane::TAIL, lane::COMMIT, lane::GRANT, lane::OVERRUN];
    let status = [Status::Incomplete, Status::Idle, Status::Leader].map(|status| status as u64 as u8);
    let bytes = |places: &[usize]| places.iter().map(|place| *place as u8).collect::<Vec<u8>>();
    samples.push(("dare/words".into(), bytes(&places)));
    samples.push(("dare/control".into(), bytes(&of_control)));
    samples.push(("dare/lane".into(), bytes(&of_lane)));
    samples.push(("dare/status".into(), status.to_vec()));
    samples
}

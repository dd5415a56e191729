//! Fixed samples of what a node writes: entries and parts of an embedded replica, counters, and files. Their form is pinned to versions: that of the protocol
//! ([`martlet_protocol::version`]), and those of the files' formats.

use martlet_fabric::{Incarnation, NodeId};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};

use crate::counters::{Counter, Event, EventKind};
use crate::wal::format::{FileKind, Header, Owner, encode_frame};

pub use crate::embed::samples::{entries, parts};

/// A sample: what it is of, and its bytes.
pub type Sample = (String, Vec<u8>);

/// The place of each counter, and the records of events.
pub fn counters() -> Vec<Sample> {
    let place = |(at, counter): (usize, &Counter)| (format!("counters/{}", counter.name()), vec![at as u8]);
    let process = ProcessId { node: NodeId(0x0102), incarnation: Incarnation(0x0102_0304_0506_0708) };
    let event = |kind: &EventKind| {
        let event = Event { at: Time(5), kind: *kind, view: ViewNumber(6), process: Some(process), detail: 7 };
        (format!("event/{}", kind.name()), event.bytes(8))
    };
    Counter::ALL.iter().enumerate().map(place).chain(EventKind::ALL.iter().map(event)).collect()
}

/// A file of the log, and the format in which this build writes one.
pub fn file(kind: FileKind) -> (u8, Vec<Sample>) {
    let header = Header { kind, owner: Owner { cluster: 7, node: 2 }, life: 11, segment: 3, first: 40, salt: 0x5a17 };
    let mut bytes = header.encode().to_vec();
    encode_frame(header.salt, header.first, b"a payload", &mut bytes);
    encode_frame(header.salt, header.first + 1, b"", &mut bytes);
    let name = match kind {
        FileKind::Segment => "file/segment",
        FileKind::Snapshot => "file/snapshot",
    };
    (*kind.formats().end(), vec![(name.into(), bytes)])
}

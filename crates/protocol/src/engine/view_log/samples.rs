//! Samples of what this engine writes: see [`crate::samples`].

use super::layout::{Header, Kind};
use crate::basics::{LogIndex, ViewNumber};
use crate::samples::Sample;

pub(crate) fn all() -> Vec<Sample> {
    let header = |kind| Header::new(kind, LogIndex(0x0102), ViewNumber(0x0304), LogIndex(0x0506));
    let headers = [
        ("start", Header { count: 7, ..header(Kind::Start) }),
        ("start, for a learner", Header { learner: true, ..header(Kind::Start) }),
        ("entry", header(Kind::Entry)),
        ("entry, more of it to come", Header { more: true, ..header(Kind::Entry) }),
        ("flush", header(Kind::Flush)),
        ("part", header(Kind::Part)),
        ("end", header(Kind::End)),
    ];
    let sample = |(name, header): (&str, Header)| {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        (format!("primary-backup/{name}"), bytes)
    };
    headers.into_iter().map(sample).collect()
}

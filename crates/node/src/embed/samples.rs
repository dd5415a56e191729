//! Samples of what embedded replicas write to each other: see [`crate::samples`].

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{StateMachine as _, UnreadablePart};

use super::entry::Entry;
use super::machine::{Lent, Replicated, StateMachine};
use crate::samples::Sample;

/// Stands for any program's state.
struct Fixed;

impl StateMachine for Fixed {
    fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(command);
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"the program's state");
    }
    fn restore(&mut self, _: &[u8]) -> Result<(), UnreadablePart> {
        Ok(())
    }
    fn clear(&mut self) {}
}

/// Entries of the log.
pub fn entries() -> Vec<Sample> {
    let each = [
        ("plain", Entry::Plain { command: b"command" }),
        ("in a session", Entry::InSession { session: 0x0102, seq: 3, confirmed: 2, command: b"command" }),
        ("open", Entry::Open { evicted: None }),
        ("open in place of another", Entry::Open { evicted: Some(LogIndex(0x0102)) }),
        ("close", Entry::Close { session: 0x0102 }),
    ];
    let encode = |(name, entry): (&str, Entry<'_>)| {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        (format!("embedded/entry, {name}"), bytes)
    };
    each.into_iter().map(encode).collect()
}

/// Parts of the state.
pub fn parts() -> Vec<Sample> {
    let mut machine = Replicated::new(Fixed);
    let mut reply = Vec::new();
    for (index, entry) in (1..).zip([
        Entry::Open { evicted: None },
        Entry::Open { evicted: None },
        Entry::InSession { session: 1, seq: 1, confirmed: 0, command: b"kept" },
        Entry::InSession { session: 1, seq: 2, confirmed: 0, command: b"" },
    ]) {
        machine.execute(LogIndex(index), entry, &mut reply);
    }
    let (mut cursor, mut samples) = (Some(0), Vec::new());
    while let Some(at) = cursor {
        let mut part = Vec::new();
        cursor = Lent(&mut machine).transfer(at, 1 << 20, &mut part);
        samples.push((format!("embedded/part {}", samples.len() + 1), part));
    }
    samples
}

//! The encoding of a journal's entries, for all engines. An entry is its length in four bytes, its kind in one, and a body; numbers are little-endian.

use super::entries::Mark;
use super::group::Group;
use super::record::is_position;
use crate::basics::{LogIndex, is_number};

/// Appends to `out` what `put` writes, preceded by its length.
fn put_sized(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out);
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// Appends an entry of this kind to `out`, with the body that `fill` writes.
pub fn put_entry(out: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Body<'_>)) {
    put_sized(out, |out| {
        out.push(kind);
        fill(&mut Body(out));
    });
}

/// The body of an entry that is being written.
#[derive(Debug)]
pub struct Body<'a>(&'a mut Vec<u8>);

impl Body<'_> {
    /// A number.
    pub fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// A place in the log.
    pub fn mark(&mut self, mark: Mark) {
        self.number(mark.index.0);
        self.number(mark.position);
    }

    /// Whether something is so.
    pub fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    /// A group, preceded by its length.
    pub fn group(&mut self, group: &Group) {
        put_sized(self.0, |out| group.encode(out));
    }

    /// Bytes that are the rest of the entry.
    pub fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The rest of the entry: payloads, each preceded by its length.
    pub fn payloads(&mut self, payloads: &[&[u8]]) {
        for payload in payloads {
            put_sized(self.0, |out| out.extend_from_slice(payload));
        }
    }
}

/// Bytes that are preceded by their length, and what follows them.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

/// The kind of the first entry of `bytes`, its body, and what follows it; `None` when there is none.
pub fn first_entry(bytes: &[u8]) -> Option<(u8, Fields<'_>, &[u8])> {
    let (entry, rest) = sized(bytes)?;
    let (kind, body) = entry.split_first()?;
    Some((*kind, Fields(body), rest))
}

/// The body of an entry, read from front to back. Each method returns `None` when the requested item does not come next.
#[derive(Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// A number that we wrote: none comes near the end of its range.
    pub fn number(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word)).filter(|n| is_number(*n))
    }

    /// The index of an entry of the log.
    pub fn index(&mut self) -> Option<LogIndex> {
        self.number().map(LogIndex)
    }

    /// A place in the log.
    pub fn mark(&mut self) -> Option<Mark> {
        let mark = Mark { index: self.index()?, position: self.number()? };
        is_position(mark.position).then_some(mark)
    }

    /// Whether something is so.
    pub fn flag(&mut self) -> Option<bool> {
        let (flag, rest) = self.0.split_first()?;
        self.0 = rest;
        (*flag < 2).then_some(*flag == 1)
    }

    /// A group.
    pub fn group(&mut self) -> Option<Group> {
        let (group, rest) = sized(self.0)?;
        self.0 = rest;
        Group::decode(group)
    }

    /// What is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The payloads that are left.
    pub fn payloads(&mut self) -> Option<Vec<&'a [u8]>> {
        let mut payloads = Vec::new();
        while !self.0.is_empty() {
            let (payload, rest) = sized(self.0)?;
            payloads.push(payload);
            self.0 = rest;
        }
        Some(payloads)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ProcessId;
    use martlet_fabric::{Incarnation, NodeId};

    #[test]
    fn what_was_written_is_read_again_and_nothing_else_is() {
        let group = Group::new(vec![ProcessId { node: NodeId(1), incarnation: Incarnation(7) }]);
        let mark = Mark { index: LogIndex(4), position: 64 };
        let mut bytes = Vec::new();
        put_entry(&mut bytes, 9, |body| {
            body.number(77);
            body.flag(true);
            body.mark(mark);
            body.group(&group);
            body.payloads(&[b"one", b""]);
        });
        put_entry(&mut bytes, 2, |body| body.rest(b"two"));
        let (kind, mut body, after) = first_entry(&bytes).expect("an entry");
        assert_eq!((kind, body.number(), body.flag(), body.mark(), body.group()), (9, Some(77), Some(true), Some(mark), Some(group)));
        assert_eq!((body.payloads(), body.is_empty()), (Some(vec![&b"one"[..], b""]), true));
        let (kind, mut body, after) = first_entry(after).expect("another");
        assert_eq!((kind, body.rest(), after), (2, &b"two"[..], &[][..]));
        assert_eq!((body.number(), body.flag(), body.mark(), body.group()), (None, None, None, None));
        let whole = bytes.len() - 4 - 1 - 3;
        assert!((0..whole).all(|cut| first_entry(&bytes[..cut]).is_none()), "a part of an entry is none");
        assert_eq!(Fields(&[2]).flag(), None);
        assert_eq!(Fields(&[0xff; 8]).number(), None, "no number comes near the end of its range");
        assert!(Fields(&[3, 0, 0, 0, 1]).payloads().is_none());
    }
}

//! The encoding in the lanes between clients and servers: one record for each request, and one for each reply. Numbers are little-endian.
//!
//! ```text
//! hello    1 u8, version u8, 0 u16, epoch u32, session u64, next u64, salt u64
//! hello    3 u8, the same; replies wait for a majority, and not for the lease alone
//! call     2 u8, version u8, arguments u16, epoch u32, seq u64, lowest u64, then a u32 length for each argument, then their bytes
//!
//! reply    1 u8, version u8, 0 u16, 0 u32, seq u64, view u64, then the reply in RESP3
//! redirect 2 u8, version u8, node u16, epoch u32, seq u64, view u64      node 0xffff: nobody leads
//! notice   3 u8, version u8, 0 u16, 0 u32, 0 u64, view u64               the sender leads
//! welcome  4 u8, version u8, 0 u16, 0 u32, 0 u64, view u64               the same, and the session is in the replicated state
//! ```
//!
//! The first record that a client sends on each lane is a hello. It says hello again before it repeats requests that it has sent to another node: it may have
//! sent requests below `next` on other lanes, too. It sends no request before its session is in the replicated state, so a session that is not there has been
//! ended. `salt` is the salt of the lane that the client keeps for the answers; nothing is written to that lane before the salt is known.
//!
//! `lowest` is the lowest request number that the client has no reply to: the server forgets the replies below it. The client increments its `epoch` each time
//! it sends everything again from the start. A server that has refused one request of an epoch executes none of the later requests of that epoch, even if it
//! becomes primary in between. So a client's requests take effect in the order in which it sent them.

use martlet_fabric::NodeId;
use martlet_protocol::basics::ViewNumber;

use crate::resp::Span;

/// The version spoken here.
const VERSION: u8 = 2;
/// Bytes before the arguments, and before a reply's text.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 32;
/// Stands for "nobody" in place of a node's number.
const NOBODY: u16 = u16::MAX;

/// A client's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The client's identity; the first record on each lane.
    Hello { epoch: u32, session: u64, next: u64, salt: u64, by_quorum: bool },
    /// A request. Its arguments are where [`decode_request`] said.
    Call { epoch: u32, seq: u64, lowest: u64 },
}

/// A server's record, without a reply's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The reply to a request, from that view.
    Reply { seq: u64, view: ViewNumber },
    /// That request was not executed; `node` leads, if any node does.
    Redirect { epoch: u32, seq: u64, view: ViewNumber, node: Option<NodeId> },
    /// The sender leads in that view.
    Notice { view: ViewNumber },
    /// The same, and the client's session is in the replicated state.
    Welcome { view: ViewNumber },
}

/// Why a record is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// It is too short or too long.
    #[error("the record's length of {0} does not fit its content")]
    Length(usize),
    /// It has another version, or an unknown kind.
    #[error("a record of kind {0}, version {1}")]
    Kind(u8, u8),
}

fn half_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub(crate) fn encode_hello(epoch: u32, session: u64, next: u64, salt: u64, by_quorum: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&[if by_quorum { 3 } else { 1 }, VERSION, 0, 0]);
    out.extend_from_slice(&epoch.to_le_bytes());
    [session, next, salt].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// How long the record of a call is.
pub(crate) fn call_bytes(args: &[&[u8]]) -> usize {
    HEADER_BYTES + args.iter().map(|a| 4 + a.len()).sum::<usize>()
}

/// Appends a call. The caller bounds the number and the lengths of the arguments.
pub(crate) fn encode_call(epoch: u32, seq: u64, lowest: u64, args: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(&[2, VERSION]);
    out.extend_from_slice(&(args.len() as u16).to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&lowest.to_le_bytes());
    for arg in args {
        out.extend_from_slice(&(arg.len() as u32).to_le_bytes());
    }
    for arg in args {
        out.extend_from_slice(arg);
    }
}

/// The bytes of a call, with its epoch replaced.
pub(crate) fn with_epoch(call: &[u8], epoch: u32, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(call);
    out[at + 4..at + 8].copy_from_slice(&epoch.to_le_bytes());
}

/// Reads a client's record. `spans` is cleared, and then says where in `bytes` the arguments of a call are.
pub(crate) fn decode_request(bytes: &[u8], spans: &mut Vec<Span>) -> Result<Request, WireError> {
    spans.clear();
    if bytes.len() < HEADER_BYTES {
        return Err(WireError::Length(bytes.len()));
    }
    match (bytes[0], bytes[1]) {
        (kind @ (1 | 3), VERSION) if bytes.len() == HELLO_BYTES => Ok(Request::Hello {
            epoch: half_word(bytes, 4),
            session: word(bytes, 8),
            next: word(bytes, 16),
            salt: word(bytes, 24),
            by_quorum: kind == 3,
        }),
        (1 | 3, VERSION) => Err(WireError::Length(bytes.len())),
        (2, VERSION) => {
            let count = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
            let mut at = HEADER_BYTES + 4 * count;
            let lengths = bytes.get(HEADER_BYTES..at).ok_or(WireError::Length(bytes.len()))?;
            for len in lengths.chunks_exact(4) {
                let len = u32::from_le_bytes(len.try_into().expect("4 bytes")) as usize;
                spans.push(Span::new(at, len));
                at += len;
            }
            if at != bytes.len() || count == 0 {
                return Err(WireError::Length(bytes.len()));
            }
            Ok(Request::Call { epoch: half_word(bytes, 4), seq: word(bytes, 8), lowest: word(bytes, 16) })
        }
        (kind, version) => Err(WireError::Kind(kind, version)),
    }
}

/// Appends the head of an answer; a reply's text follows it.
pub(crate) fn encode_answer(answer: Answer, out: &mut Vec<u8>) {
    let (kind, node, epoch, seq, view) = match answer {
        Answer::Reply { seq, view } => (1, 0, 0, seq, view),
        Answer::Redirect { epoch, seq, view, node } => (2, node.map_or(NOBODY, |n| n.0), epoch, seq, view),
        Answer::Notice { view } => (3, 0, 0, 0, view),
        Answer::Welcome { view } => (4, 0, 0, 0, view),
    };
    out.extend_from_slice(&[kind, VERSION]);
    out.extend_from_slice(&node.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&view.0.to_le_bytes());
}

/// Reads a server's record; a reply's text follows after [`HEADER_BYTES`].
pub(crate) fn decode_answer(bytes: &[u8]) -> Result<Answer, WireError> {
    if bytes.len() < HEADER_BYTES {
        return Err(WireError::Length(bytes.len()));
    }
    let (seq, view) = (word(bytes, 8), ViewNumber(word(bytes, 16)));
    match (bytes[0], bytes[1]) {
        (1, VERSION) => Ok(Answer::Reply { seq, view }),
        (2..=4, VERSION) if bytes.len() != HEADER_BYTES => Err(WireError::Length(bytes.len())),
        (2, VERSION) => {
            let node = u16::from_le_bytes([bytes[2], bytes[3]]);
            Ok(Answer::Redirect { epoch: half_word(bytes, 4), seq, view, node: (node != NOBODY).then_some(NodeId(node)) })
        }
        (3, VERSION) => Ok(Answer::Notice { view }),
        (4, VERSION) => Ok(Answer::Welcome { view }),
        (kind, version) => Err(WireError::Kind(kind, version)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resp::Args;

    proptest! {
        #[test]
        fn calls_come_back(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), epoch: u32, seq: u64, lowest: u64) {
            let parts: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let (mut out, mut spans) = (Vec::new(), Vec::new());
            encode_call(!epoch, seq, lowest, &parts, &mut out);
            let first = std::mem::take(&mut out);
            with_epoch(&first, epoch, &mut out);
            prop_assert_eq!(out.len(), call_bytes(&parts));
            prop_assert_eq!(decode_request(&out, &mut spans), Ok(Request::Call { epoch, seq, lowest }));
            prop_assert_eq!(Args::new(&out, &spans).from(0).collect::<Vec<_>>(), parts);
            for cut in 0..out.len() {
                prop_assert!(decode_request(&out[..cut], &mut spans).is_err());
            }
        }

        #[test]
        fn hellos_come_back(epoch: u32, session: u64, next: u64, salt: u64, by_quorum: bool) {
            let (mut out, mut spans) = (Vec::new(), Vec::new());
            encode_hello(epoch, session, next, salt, by_quorum, &mut out);
            prop_assert_eq!(decode_request(&out, &mut spans), Ok(Request::Hello { epoch, session, next, salt, by_quorum }));
            prop_assert_eq!(out.len(), HELLO_BYTES);
        }

        #[test]
        fn answers_come_back(epoch: u32, seq: u64, view: u64, node: Option<u8>) {
            let view = ViewNumber(view);
            for answer in [
                Answer::Reply { seq, view },
                Answer::Redirect { epoch, seq, view, node: node.map(|n| NodeId(n.into())) },
                Answer::Notice { view },
                Answer::Welcome { view },
            ] {
                let mut out = Vec::new();
                encode_answer(answer, &mut out);
                prop_assert_eq!(decode_answer(&out), Ok(answer));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), head in prop::option::of((1u8..5, 1u8..4))) {
            let mut bytes = bytes;
            if let (Some((kind, version)), true) = (head, bytes.len() > 1) {
                (bytes[0], bytes[1]) = (kind, version);
            }
            let mut spans = Vec::new();
            if decode_request(&bytes, &mut spans).is_ok() {
                let args = Args::new(&bytes, &spans);
                prop_assert!(args.from(0).map(<[u8]>::len).sum::<usize>() <= bytes.len());
            }
            let _ = decode_answer(&bytes);
        }
    }
}

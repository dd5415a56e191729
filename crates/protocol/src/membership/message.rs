//! The datagrams of the membership service. Each may be lost, repeated or reordered; the fabric vouches for the sender (TRAPS 29).
//!
//! A datagram is a kind byte followed by the fields, little-endian. Whatever does not decode is dropped and counted.

use martlet_fabric::{Incarnation, Levels, NodeId};

use super::view::{Evidence, MAX_ADDRESS_BYTES, Roles, View};
use crate::basics::layout::MAX_MEMBERS;
use crate::basics::{ProcessId, ViewNumber};
use crate::consensus::rpc::{RpcBody, RpcReply, RpcRequest, RpcVerdict};
use crate::detector::wardens::Secret;

/// The most processes that a `Join` names: twice the number that one view can list, since processes come and go.
const MAX_REACHED: usize = 2 * MAX_MEMBERS;

/// A datagram of the membership service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// "I am alive, and I have heard these members lately": bit `i` means member `i` of the view (uKharon section 4.2, catastrophic failures).
    Heartbeat {
        /// The sender's view.
        view: ViewNumber,
        /// The members that it hears.
        heard: u16,
    },
    /// "This process is gone": sent again until a view excludes the process (TRAPS 6). If it claims certainty about a process other than the sender,
    /// it is only a reason to look.
    Notice {
        /// The process.
        process: ProcessId,
        /// How the sender knows.
        evidence: Evidence,
    },
    /// "This process is gone, as its own host's warden certifies": a notice that proves itself, whichever process repeats it.
    Certificate {
        /// The process.
        process: ProcessId,
        /// The secret that it deposited with its warden.
        secret: Secret,
    },
    /// "Take me in": sent again until a view lists the sender.
    Join {
        /// The newest view that the sender knows; 0 for none.
        view: ViewNumber,
        /// The roles that the sender can take.
        roles: Roles,
        /// The feature levels that its program can work at.
        levels: Levels,
        /// Where clients reach it.
        address: String,
        /// The processes that it is connected with.
        reaches: Vec<ProcessId>,
    },
    /// "I am connected with this process, which asks to be taken in": sent to all after each `Join`.
    Vouch {
        /// The process that asks.
        process: ProcessId,
    },
    /// "You will never be taken in": the answer to a `Join` from a process that was a member and has been removed, or from an incarnation of a node
    /// that already has a later one.
    Refuse {
        /// The lowest incarnation with which its node may come back.
        least: Incarnation,
    },
    /// "You cannot be taken in with the program that you run": the answer to a `Join` from a process that cannot work at the view's feature level.
    /// Earlier and later builds understand this message, whatever the level.
    Unsuited {
        /// The view's level.
        level: u8,
    },
    /// "This learner has the whole state": the primary asks for it to be promoted to replica.
    Promote {
        /// The process.
        process: ProcessId,
    },
    /// "Give leases this length": a compatible view follows (uKharon section 6.3).
    SetLease {
        /// The length, in nanoseconds.
        lease_ns: u64,
    },
    /// "Raise the feature level": a view with this level follows if all members can work at it.
    RaiseLevel {
        /// The level.
        level: u8,
    },
    /// "No lease can be taken any more: the slot after this view is frozen." The primary asks for another view (uKharon appendix A.6).
    Frozen {
        /// The view whose successor's slot is frozen.
        view: ViewNumber,
    },
    /// A decided view.
    View(View),
    /// A request of consensus's RPC fallback, to an acceptor.
    Request(RpcRequest),
    /// A reply of consensus's RPC fallback, to a proposer.
    Reply(RpcReply),
}

impl Message {
    /// Puts the datagram into `out` (cleared first).
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Message::Heartbeat { view, heard } => {
                out.push(1);
                out.extend_from_slice(&view.0.to_le_bytes());
                out.extend_from_slice(&heard.to_le_bytes());
            }
            Message::Notice { process, evidence } => {
                out.push(2);
                put_process(out, *process);
                out.push(evidence.code());
            }
            Message::Certificate { process, secret } => {
                out.push(14);
                put_process(out, *process);
                out.extend_from_slice(secret);
            }
            Message::Join { view, roles, levels, address, reaches } => {
                out.push(3);
                out.extend_from_slice(&view.0.to_le_bytes());
                let reaches = &reaches[..reaches.len().min(MAX_REACHED)];
                out.extend([roles.0, levels.least, levels.most, reaches.len() as u8]);
                reaches.iter().for_each(|process| put_process(out, *process));
                out.extend_from_slice(address.as_bytes());
            }
            Message::Promote { process } => {
                out.push(4);
                put_process(out, *process);
            }
            Message::SetLease { lease_ns } => {
                out.push(5);
                out.extend_from_slice(&lease_ns.to_le_bytes());
            }
            Message::Vouch { process } => {
                out.push(9);
                put_process(out, *process);
            }
            Message::Refuse { least } => {
                out.push(10);
                out.extend_from_slice(&least.0.to_le_bytes());
            }
            Message::Frozen { view } => {
                out.push(11);
                out.extend_from_slice(&view.0.to_le_bytes());
            }
            Message::Unsuited { level } => out.extend([12, *level]),
            Message::RaiseLevel { level } => out.extend([13, *level]),
            Message::View(view) => {
                out.push(6);
                view.encode(out);
            }
            Message::Request(RpcRequest { view, ballot, body }) => {
                out.push(7);
                out.extend_from_slice(&view.0.to_le_bytes());
                out.extend_from_slice(&ballot.to_le_bytes());
                match body {
                    RpcBody::Prepare => out.push(0),
                    RpcBody::Accept(value) => {
                        out.push(1);
                        out.extend_from_slice(value);
                    }
                }
            }
            Message::Reply(RpcReply { view, ballot, verdict }) => {
                out.push(8);
                out.extend_from_slice(&view.0.to_le_bytes());
                out.extend_from_slice(&ballot.to_le_bytes());
                match verdict {
                    RpcVerdict::Promised { accepted, value } => {
                        out.push(0);
                        out.extend_from_slice(&accepted.to_le_bytes());
                        out.extend_from_slice(value);
                    }
                    RpcVerdict::Accepted => out.push(1),
                    RpcVerdict::Rejected { min } => {
                        out.push(2);
                        out.extend_from_slice(&min.to_le_bytes());
                    }
                    RpcVerdict::NotFrozen { word } => {
                        out.push(3);
                        out.extend_from_slice(&word.to_le_bytes());
                    }
                }
            }
        }
    }

    /// Reads a datagram. `None`: it is not one of ours.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (kind, mut rest) = bytes.split_first()?;
        let r = &mut rest;
        let message = match kind {
            1 => Message::Heartbeat { view: ViewNumber(u64_of(r)?), heard: u16_of(r)? },
            2 => Message::Notice { process: process_of(r)?, evidence: Evidence::from_code(u8_of(r)?)? },
            3 => {
                let (view, roles) = (ViewNumber(u64_of(r)?), Roles::from_bits(u8_of(r)?)?);
                let levels = Levels::of(u8_of(r)?, u8_of(r)?)?;
                let count = usize::from(u8_of(r)?);
                let reaches = (0..count).map(|_| process_of(r)).collect::<Option<Vec<_>>>().filter(|_| count <= MAX_REACHED)?;
                let address = std::str::from_utf8(std::mem::take(r)).ok().filter(|a| a.len() <= MAX_ADDRESS_BYTES)?;
                Message::Join { view, roles, levels, address: address.to_owned(), reaches }
            }
            4 => Message::Promote { process: process_of(r)? },
            5 => Message::SetLease { lease_ns: u64_of(r)? },
            6 => Message::View(View::decode(std::mem::take(r)).ok()?),
            7 => {
                let (view, ballot) = (ViewNumber(u64_of(r)?), u64_of(r)?);
                let body = match u8_of(r)? {
                    0 => RpcBody::Prepare,
                    1 => RpcBody::Accept(std::mem::take(r).to_vec()),
                    _ => return None,
                };
                Message::Request(RpcRequest { view, ballot, body })
            }
            8 => {
                let (view, ballot) = (ViewNumber(u64_of(r)?), u64_of(r)?);
                let verdict = match u8_of(r)? {
                    0 => RpcVerdict::Promised { accepted: u64_of(r)?, value: std::mem::take(r).to_vec() },
                    1 => RpcVerdict::Accepted,
                    2 => RpcVerdict::Rejected { min: u64_of(r)? },
                    3 => RpcVerdict::NotFrozen { word: u64_of(r)? },
                    _ => return None,
                };
                Message::Reply(RpcReply { view, ballot, verdict })
            }
            9 => Message::Vouch { process: process_of(r)? },
            10 => Message::Refuse { least: Incarnation(u64_of(r)?) },
            11 => Message::Frozen { view: ViewNumber(u64_of(r)?) },
            12 => Message::Unsuited { level: u8_of(r).filter(|level| *level > 0)? },
            13 => Message::RaiseLevel { level: u8_of(r).filter(|level| *level > 0)? },
            14 => Message::Certificate { process: process_of(r)?, secret: array_of(r)? },
            _ => return None,
        };
        r.is_empty().then_some(message)
    }
}

fn put_process(out: &mut Vec<u8>, process: ProcessId) {
    out.extend_from_slice(&process.node.0.to_le_bytes());
    out.extend_from_slice(&process.incarnation.0.to_le_bytes());
}

fn array_of<const N: usize>(r: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = r.split_first_chunk::<N>()?;
    *r = tail;
    Some(*head)
}

fn u8_of(r: &mut &[u8]) -> Option<u8> {
    array_of::<1>(r).map(|[b]| b)
}

fn u16_of(r: &mut &[u8]) -> Option<u16> {
    array_of(r).map(u16::from_le_bytes)
}

fn u64_of(r: &mut &[u8]) -> Option<u64> {
    array_of(r).map(u64::from_le_bytes)
}

fn process_of(r: &mut &[u8]) -> Option<ProcessId> {
    Some(ProcessId { node: NodeId(u16_of(r)?), incarnation: Incarnation(u64_of(r)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        let process = ProcessId { node: NodeId(3), incarnation: Incarnation(77) };
        let view = View { number: ViewNumber(9), lease_ns: 5, fence_ns: 6, compatible: true, level: 1, members: vec![], departed: vec![] };
        let (v, ballot) = (ViewNumber(4), 70_000);
        vec![
            Message::Heartbeat { view: v, heard: 0b101 },
            Message::Notice { process, evidence: Evidence::Certain },
            Message::Certificate { process, secret: [7; 16] },
            Message::Join {
                view: v,
                roles: Roles::REPLICA,
                levels: Levels { least: 1, most: 3 },
                address: "10.0.0.1:7711".into(),
                reaches: vec![process, process],
            },
            Message::Join {
                view: ViewNumber(0),
                roles: Roles::REPLICA,
                levels: Levels::only(2),
                address: String::new(),
                reaches: Vec::new(),
            },
            Message::Vouch { process },
            Message::Refuse { least: Incarnation(78) },
            Message::Frozen { view: v },
            Message::Unsuited { level: 2 },
            Message::RaiseLevel { level: 255 },
            Message::Promote { process },
            Message::SetLease { lease_ns: 1_000 },
            Message::View(view),
            Message::Request(RpcRequest { view: v, ballot, body: RpcBody::Prepare }),
            Message::Request(RpcRequest { view: v, ballot, body: RpcBody::Accept(vec![1, 2]) }),
            Message::Reply(RpcReply { view: v, ballot, verdict: RpcVerdict::Promised { accepted: 1, value: vec![7] } }),
            Message::Reply(RpcReply { view: v, ballot, verdict: RpcVerdict::Accepted }),
            Message::Reply(RpcReply { view: v, ballot, verdict: RpcVerdict::Rejected { min: 9 } }),
            Message::Reply(RpcReply { view: v, ballot, verdict: RpcVerdict::NotFrozen { word: 9 } }),
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        let mut bytes = Vec::new();
        for message in samples() {
            message.encode(&mut bytes);
            assert_eq!(Message::decode(&bytes), Some(message));
        }
    }

    #[test]
    fn hostile_bytes_are_no_message_and_no_panic() {
        let mut bytes = Vec::new();
        for message in samples() {
            message.encode(&mut bytes);
            for cut in 0..bytes.len() {
                let _ = Message::decode(&bytes[..cut]);
            }
            for at in 0..bytes.len() {
                for flip in 0..=255u8 {
                    let mut hostile = bytes.clone();
                    hostile[at] ^= flip;
                    let _ = Message::decode(&hostile);
                }
            }
        }
    }
}

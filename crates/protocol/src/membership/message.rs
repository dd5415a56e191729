//! The datagrams of the membership service. Each may be lost, repeated or reordered; the sender is vouched for by the fabric (TRAPS 29).
//!
//! A kind byte, then the fields, little-endian. Whatever does not decode is dropped and counted.

use martlet_fabric::{Incarnation, NodeId};

use super::view::{Evidence, MAX_ADDRESS_BYTES, Roles, View};
use crate::basics::{ProcessId, ViewNumber};
use crate::consensus::rpc::{RpcBody, RpcReply, RpcRequest, RpcVerdict};

/// A datagram of the membership service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// "I live, and these members I have heard lately": bit `i` stands for member `i` of the view (uKharon section 4.2, catastrophic failures).
    Heartbeat {
        /// The sender's view.
        view: ViewNumber,
        /// Whom it hears.
        heard: u16,
    },
    /// "This process is gone": sent again until a view excludes it (TRAPS 6).
    Notice {
        /// Who.
        process: ProcessId,
        /// How the sender knows.
        evidence: Evidence,
    },
    /// "Take me in": sent again until a view lists the sender.
    Join {
        /// What the sender can do.
        roles: Roles,
        /// Where clients reach it.
        address: String,
    },
    /// "This learner has the whole state": the primary asks to count it as a replica.
    Promote {
        /// Who.
        process: ProcessId,
    },
    /// "Give leases this length": a compatible view follows (uKharon section 6.3).
    SetLease {
        /// Nanoseconds.
        lease_ns: u64,
    },
    /// A decided view.
    View(View),
    /// The RPC fallback of consensus, to an acceptor.
    Request(RpcRequest),
    /// The RPC fallback of consensus, to a proposer.
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
            Message::Join { roles, address } => {
                out.push(3);
                out.push(roles.0);
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

    /// Reads a datagram. `None`: it is none of ours.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (kind, mut rest) = bytes.split_first()?;
        let r = &mut rest;
        let message = match kind {
            1 => Message::Heartbeat { view: ViewNumber(u64_of(r)?), heard: u16_of(r)? },
            2 => Message::Notice { process: process_of(r)?, evidence: Evidence::from_code(u8_of(r)?)? },
            3 => {
                let roles = Roles::from_bits(u8_of(r)?)?;
                let address = std::str::from_utf8(std::mem::take(r)).ok().filter(|a| a.len() <= MAX_ADDRESS_BYTES)?;
                Message::Join { roles, address: address.to_owned() }
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
        let view = View { number: ViewNumber(9), lease_ns: 5, fence_ns: 6, compatible: true, members: vec![], departed: vec![] };
        let (v, ballot) = (ViewNumber(4), 70_000);
        vec![
            Message::Heartbeat { view: v, heard: 0b101 },
            Message::Notice { process, evidence: Evidence::Certain },
            Message::Join { roles: Roles::REPLICA, address: "10.0.0.1:7711".into() },
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

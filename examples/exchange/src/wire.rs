//! What clients and a server of the exchange send each other over TCP.
//!
//! A frame is its length as 4 bytes, at most [`MAX_FRAME_BYTES`], and a body. A request's body is 1 byte for its kind, 8 bytes of the client's own choice,
//! which come back in the response, and then whatever its kind needs. A response's body is those 8 bytes, 1 byte for the result, and the rest. Responses to one
//! connection come in any order. All numbers are little-endian.

use crate::bytes::Bytes;
use crate::command::{Price, Symbol};

/// The longest body, in bytes.
pub const MAX_FRAME_BYTES: usize = 64 << 10;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Opens a session, under whose name orders can be repeated without taking effect twice. The response holds the name, in 8 bytes.
    Open,
    /// A command of a session, in its turn. The response holds the outcome's bytes.
    Order {
        /// Which session.
        session: u64,
        /// The command's number in the session, from 1 on.
        seq: u64,
        /// The client has the outcomes up to this number.
        confirmed: u64,
        /// The bytes of a [`Command`](crate::command::Command).
        command: &'a [u8],
    },
    /// The best prices of a symbol, linearizably: bid and ask, 8 bytes each, 0 for none.
    Best(Symbol),
    /// What this server's replica holds just now, whichever replica leads: the digest of all books and the number of accepted orders, 8 bytes each.
    Digest,
}

const OPEN: u8 = 1;
const ORDER: u8 = 2;
const BEST: u8 = 3;
const DIGEST: u8 = 4;

impl<'a> Request<'a> {
    /// Appends the frame.
    pub fn encode(&self, tag: u64, out: &mut Vec<u8>) {
        frame(out, |out| {
            let kind = match self {
                Request::Open => OPEN,
                Request::Order { .. } => ORDER,
                Request::Best(_) => BEST,
                Request::Digest => DIGEST,
            };
            out.push(kind);
            out.extend_from_slice(&tag.to_le_bytes());
            match self {
                Request::Open | Request::Digest => {}
                Request::Order { session, seq, confirmed, command } => {
                    for number in [session, seq, confirmed] {
                        out.extend_from_slice(&number.to_le_bytes());
                    }
                    out.extend_from_slice(command);
                }
                Request::Best(symbol) => out.extend_from_slice(&symbol.to_le_bytes()),
            }
        });
    }

    /// Reads the body of a frame. `None` when it is no request.
    pub fn decode(body: &'a [u8]) -> Option<(u64, Request<'a>)> {
        let mut bytes = Bytes(body);
        let (kind, tag) = (bytes.u8()?, bytes.u64()?);
        let request = match kind {
            OPEN => Request::Open,
            ORDER => {
                let (session, seq, confirmed) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
                return Some((tag, Request::Order { session, seq, confirmed, command: bytes.0 }));
            }
            BEST => Request::Best(bytes.u16()?),
            DIGEST => Request::Digest,
            _ => return None,
        };
        bytes.end((tag, request))
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// It succeeded: what was asked for.
    Done(&'a [u8]),
    /// This server does not lead: the leader's address, empty if it is not known. The request had no effect.
    NotLeader(&'a [u8]),
    /// The request may have had its effect or not: ask again, in the same session.
    Unknown,
    /// The request had no effect, for this reason.
    Refused(&'a [u8]),
}

impl<'a> Response<'a> {
    /// Appends the frame.
    pub fn encode(&self, tag: u64, out: &mut Vec<u8>) {
        let (how, rest): (u8, &[u8]) = match self {
            Response::Done(rest) => (0, rest),
            Response::NotLeader(rest) => (1, rest),
            Response::Unknown => (2, &[]),
            Response::Refused(rest) => (3, rest),
        };
        frame(out, |out| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.push(how);
            out.extend_from_slice(rest);
        });
    }

    /// Reads the body of a frame. `None` when it is no response.
    pub fn decode(body: &'a [u8]) -> Option<(u64, Response<'a>)> {
        let mut bytes = Bytes(body);
        let (tag, how) = (bytes.u64()?, bytes.u8()?);
        let response = match how {
            0 => Response::Done(bytes.0),
            1 => Response::NotLeader(bytes.0),
            2 if bytes.0.is_empty() => Response::Unknown,
            3 => Response::Refused(bytes.0),
            _ => return None,
        };
        Some((tag, response))
    }
}

/// Best prices, as the response to [`Request::Best`] holds them.
pub fn best_prices(bid: Option<Price>, ask: Option<Price>) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&bid.unwrap_or(0).to_le_bytes());
    out[8..].copy_from_slice(&ask.unwrap_or(0).to_le_bytes());
    out
}

/// Two numbers, as the responses to [`Request::Best`] and [`Request::Digest`] hold them.
pub fn two_numbers(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut bytes = Bytes(bytes);
    let numbers = (bytes.u64()?, bytes.u64()?);
    bytes.end(numbers)
}

fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let bytes = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
}

/// The peer's frames make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame has {0} bytes; allowed: up to {MAX_FRAME_BYTES}")]
pub struct TooLong(pub usize);

/// Finds the first frame in what has arrived: its body, and how many bytes the frame takes. `Ok(None)`: it is not complete yet.
///
/// # Errors
/// When it is longer than allowed.
pub fn first_frame(arrived: &[u8]) -> Result<Option<(&[u8], usize)>, TooLong> {
    let Some((length, rest)) = arrived.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(TooLong(length));
    }
    Ok(rest.get(..length).map(|body| (body, 4 + length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_and_responses_come_back_from_their_frames(
            tag: u64, numbers: (u64, u64, u64), symbol: u16, rest in prop::collection::vec(any::<u8>(), 0..100), cut in 0..200usize,
        ) {
            let (session, seq, confirmed) = numbers;
            for request in [Request::Open, Request::Digest, Request::Best(symbol), Request::Order { session, seq, confirmed, command: &rest }] {
                let mut out = Vec::new();
                request.encode(tag, &mut out);
                let (body, taken) = first_frame(&out).expect("short").expect("whole");
                prop_assert_eq!(taken, out.len());
                prop_assert_eq!(Request::decode(body), Some((tag, request)));
                if cut < out.len() {
                    prop_assert_eq!(first_frame(&out[..cut]), Ok(None));
                }
            }
            for response in [Response::Done(&rest), Response::NotLeader(&rest), Response::Unknown, Response::Refused(&rest)] {
                let mut out = Vec::new();
                response.encode(tag, &mut out);
                let (body, _) = first_frame(&out).expect("short").expect("whole");
                prop_assert_eq!(Response::decode(body), Some((tag, response)));
            }
        }
    }

    #[test]
    fn a_frame_too_long_is_refused_before_it_has_arrived() {
        let bytes = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(first_frame(&bytes), Err(TooLong(MAX_FRAME_BYTES + 1)));
        assert_eq!(first_frame(&(MAX_FRAME_BYTES as u32).to_le_bytes()), Ok(None));
    }
}

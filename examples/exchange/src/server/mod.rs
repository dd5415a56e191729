//! A replica of the market that serves the binary protocol, with either arrangement of threads.
//!
//! | module | contents |
//! |---|---|
//! | [`direct`] | clients and replica on one thread |
//! | [`handover`] | the replica on a thread of its own, and two threads for each client |

pub mod direct;
pub mod handover;

use martlet::{CallError, LogIndex, StateMachine, UnreadablePart};

use crate::command::{Side, Symbol};
use crate::market::Market;
use crate::wire::{Response, best_prices};

/// The most requests of one connection that are under way at once. Nothing more is read from a client that sends more.
const MAX_UNDER_WAY: usize = 1024;
/// The most bytes that may wait for a client to read them; beyond that its requests are not read.
const MAX_UNREAD_BYTES: usize = 4 << 20;

impl StateMachine for Market {
    fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        Market::apply(self, command, reply);
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        Market::transfer(self, 0, usize::MAX, out);
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        Market::install(self, snapshot).ok_or(UnreadablePart)
    }

    fn clear(&mut self) {
        Market::clear(self);
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        Market::transfer(self, cursor, budget, out)
    }

    fn digest(&self) -> u64 {
        Market::digest(self)
    }
}

/// The best prices of a symbol, in the form of the response.
fn best(market: &Market, symbol: Symbol) -> [u8; 16] {
    let best = |side: Side| market.book(symbol).and_then(|book| book.depth(side).next()).map(|(price, _)| price);
    best_prices(best(Side::Buy), best(Side::Sell))
}

/// The digest of all books and how many orders they have accepted, in the form of the response.
fn digest(market: &Market) -> Vec<u8> {
    [Market::digest(market).to_le_bytes(), market.accepted().to_le_bytes()].concat()
}

/// Appends the response to a request that had this result.
fn respond<T: AsRef<[u8]>>(tag: u64, result: &Result<T, CallError>, out: &mut Vec<u8>) {
    match result {
        Ok(bytes) => Response::Done(bytes.as_ref()).encode(tag, out),
        Err(CallError::NotLeader { leader }) => {
            let address = leader.as_ref().and_then(|leader| leader.address.as_deref()).unwrap_or("");
            Response::NotLeader(address.as_bytes()).encode(tag, out);
        }
        Err(CallError::OutcomeUnknown | CallError::TimedOut) => Response::Unknown.encode(tag, out),
        Err(other) => Response::Refused(other.to_string().as_bytes()).encode(tag, out),
    }
}

//! Consensus on one value per slot, with one-sided operations only (uKharon section 5, appendix A).
//!
//! [`cas`] is Algorithm 5: the proposer changes an acceptor's state with one CAS on an 8-byte word, whose content it predicts. The value
//! itself does not fit, so it is written beside the word first, into memory that is the proposer's alone; the word then names the proposer.
//! [`rpc`] is the fallback for the day when ballots run out (appendix A.6).
//!
//! The set of acceptors is a value here. Which processes they are, and what the value means, is membership's business.

pub mod cas;
pub mod rpc;
#[cfg(test)]
mod tests;

pub use cas::{Op, Outcome, Proposer, Required};

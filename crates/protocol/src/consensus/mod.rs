//! Consensus on one value per slot, with one-sided operations only (uKharon section 5, appendix A).
//!
//! [`cas`] is Algorithm 5: the proposer changes an acceptor's state with one CAS on an 8-byte word, whose content it predicts. The value itself does
//! not fit, so it is written first, next to the word, into memory that only this proposer writes; the word then names the proposer. [`rpc`] is the
//! fallback for when ballots run out (appendix A.6).
//!
//! The set of acceptors is an input here. Which processes they are, and what the value means, is decided by membership.

pub mod cas;
pub mod rpc;
#[cfg(test)]
mod tests;

pub use cas::{Op, Outcome, Proposer, Required};

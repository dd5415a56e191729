//! Everything that decides: failure detection, consensus, membership and leases, replication engines.
//!
//! Pure: nothing here reads a clock, gets randomness from the system, starts a thread or does I/O. Time and seeds are arguments; memory is reached
//! only through [`martlet_fabric::Fabric`]. So the node and the simulator run the same state machines.
//!
//! Modules depend downward only: `basics` < `detector` < `consensus` < `membership` < `founding` < `replica` < `engine` < `duty`.
//! [`version`] is below them all.

#![forbid(unsafe_code)]

pub mod basics;
pub mod consensus;
pub mod detector;
pub mod duty;
pub mod engine;
pub mod founding;
pub mod membership;
pub mod replica;
#[cfg(feature = "fuzzing")]
pub mod samples;
pub mod version;

//! The simulated backend: the contract under virtual time and one seed, in one thread.
//!
//! A [`World`] holds the clock, what is due, and all randomness. An [`Endpoint`] is one process's access to it. Nothing happens unless the world is
//! told to go on, and the same seed with the same calls gives the same trace, byte for byte.
//!
//! The type parameter says what kind of fabric is simulated:
//!
//! | | `World<true>`: shared memory of one host | `World<false>`: a network with one-sided operations |
//! |---|---|---|
//! | memory of the dead | stays | is out of reach: [`OpError::PeerLost`](crate::OpError::PeerLost) |
//! | stores of a paused process that are on their way | freeze, and land when the process resumes | land, since its NIC goes on |
//! | stores after a revocation | land, and complete with [`OpError::AccessLost`](crate::OpError::AccessLost) | do not land |
//! | death | the kernel sets its words and vouches for it | is presumed |
//!
//! Time passes between posting and effect and between effect and completion. It differs between operations, but the operations of each pair of
//! processes stay in order. Long transfers land piece by piece, starting at any word, upwards or downwards.

mod agenda;
mod endpoint;
mod faults;
mod lifecycle;
mod link;
mod memory;
mod process;
mod slab;
mod state;
mod trace;
mod transfer;
mod world;

#[cfg(test)]
mod tests;

pub use endpoint::Endpoint;
pub use faults::{Counts, Faults, Span};
pub use process::DeathWords;
pub use world::{ProcessIndex, World};

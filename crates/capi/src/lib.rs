//! The C ABI: the calls of `martlet_node::embed`, for programs in C and whatever speaks its ABI. `include/martlet.h` is generated from these
//! sources by `cargo xtask header`, and `docs/embedding.md` says what is promised.
//!
//! At this edge every pointer is checked for null, every text for being UTF-8, and no panic crosses. What cannot be checked here is the
//! caller's promise, which the header states: that a pointer points to what it says, for as long as it says.
//!
//! | module | what stands there |
//! |---|---|
//! | `status` | how calls end, and the text of the last error of a thread |
//! | `bytes` | bytes that cross the edge |
//! | `machine` | a state machine of callbacks |
//! | `options` | how a replica is to be started; structures that tell their size |
//! | `replica` | a replica, from its start to its end |
//! | `propose` | commands and sessions |
//! | `read` | reads |
//! | `role` | roles and their changes |
//! | `metrics` | counters |
//! | `fide` | failure detection by the warden of the host |

// The names are C's.
#![allow(non_camel_case_types)]

mod bytes;
mod fide;
mod machine;
mod metrics;
mod options;
mod propose;
mod read;
mod replica;
mod role;
mod status;
#[cfg(test)]
mod tests;

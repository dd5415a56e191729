//! What Martlet costs, and what it is worth: benchmarks, their reports and drawings, and clusters of our own that are made to be broken.
//!
//! | module | what stands there |
//! |---|---|
//! | [`commands`] | `martlet bench`, a file for each benchmark; `martlet model`; and the processes that benchmarks start of the same executable |
//! | [`model`] | what DARE's models say of latency and of reliability: mathematics only |
//! | [`report`] | figures, the reference figures of the machine, and drawings |
//! | [`trial`] | a cluster of our own under load, with faults, and a verdict on what its clients saw |

#![forbid(unsafe_code)]

pub mod commands;
pub mod model;
pub mod report;
pub mod trial;

pub use commands::{Arguments, Helper, run, run_helper};

//! A replicated key-value store and its two front ends: the Redis protocol, and requests written into its memory.

#![forbid(unsafe_code)]

pub mod app;
pub mod client;
pub mod commands;
pub mod config;
pub mod frontend;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod resp;
#[cfg(feature = "fuzzing")]
pub mod samples;
pub mod stats;
pub mod store;
mod turn;

pub use app::{KvApp, StartError, WallClock};
pub use commands::CpuTimes;
pub use config::{ConfigError, KvConfig};
pub use stats::KvStats;

//! A replicated key-value store and its two front ends: the Redis protocol, and requests written into its memory.

#![forbid(unsafe_code)]

pub mod commands;
pub mod config;
pub mod resp;
pub mod stats;
pub mod store;

pub use config::{ConfigError, KvConfig};
pub use stats::KvStats;

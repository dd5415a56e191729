//! The `martlet` command: clusters, demonstrations, measurements and trials on one host.
//!
//! A file for each command stands in [`commands`]; what several of them share stands beside it.

#![forbid(unsafe_code)]

pub mod caller;
pub mod clients;
pub mod commands;
pub mod directory;
pub mod fabric;
pub mod fail;
pub mod failovers;
pub mod interrupt;
pub mod known;
pub mod leftovers;
pub mod lookout;
pub mod observer;
pub mod output;
pub mod process;
pub mod redis;
pub mod report;
pub mod scratch;
pub mod standing;
pub mod testbed;
pub mod timeline;
pub mod trial;
pub mod workload;

pub use commands::run;

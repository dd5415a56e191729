//! The `martlet` command: clusters, demonstrations, measurements and trials on one host.
//!
//! A file for each command stands in [`commands`]; what several of them share stands beside it.

#![forbid(unsafe_code)]

pub mod clients;
pub mod commands;
pub mod directory;
pub mod fail;
pub mod interrupt;
pub mod log;
pub mod output;
pub mod process;
pub mod report;
pub mod scratch;
pub mod trial;
pub mod watch;

pub use commands::run;

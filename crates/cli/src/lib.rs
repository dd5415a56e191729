//! The `martlet` command: clusters, demonstrations, measurements and trials on one host.
//!
//! A file for each command stands in [`commands`]; what `top` and `metrics` share stands in [`watch`].

#![forbid(unsafe_code)]

pub mod commands;
pub mod watch;

pub use commands::run;

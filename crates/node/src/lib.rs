//! Everything that runs: threads, clocks, process watch, bootstrap, configuration, counters. What is decided, `martlet-protocol` decides.

pub mod clock;
pub mod config;
pub mod counters;
pub mod idle;
pub mod sched;
pub mod stop;
pub mod waker;

//! This host's kernel as a node meets it: clocks; cores, how soon they wake up, and scheduling classes; sleep and wake-ups; signals; and the memory of a
//! process that ends.

pub mod clock;
pub mod cpu;
pub mod idle;
pub mod latency;
pub mod sched;
pub mod signals;
pub mod stop;
pub(crate) mod undertaker;
pub mod warm;

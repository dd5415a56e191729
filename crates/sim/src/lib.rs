//! What Martlet is tested with.
//!
//! [`cluster`] runs whole clusters of the production state machines over the simulated fabric: each seed is one life.
//! [`canaries`] are known bugs that those lives have to bring to light.
//! [`coverage`] counts which transitions of the state machines those lives reach.
//! [`hunt`] runs many lives, and makes those that go wrong small.
//! [`linearizability`] judges the histories of clients, whether they come from simulated clusters, from tests with real processes or from
//! `martlet torture`.

#![forbid(unsafe_code)]

pub mod canaries;
pub mod cluster;
pub mod coverage;
pub mod hunt;
pub mod linearizability;

pub use cluster::{Report, run};

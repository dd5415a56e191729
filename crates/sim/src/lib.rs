//! What Martlet is tested against.
//!
//! [`cluster`] runs whole clusters of the production state machines over the simulated fabric, one seed a life.
//! [`linearizability`] judges the histories of clients, whether they come from simulated clusters, from tests with real processes or from
//! `martlet torture`.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod linearizability;

pub use cluster::{Report, run};

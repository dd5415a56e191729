//! What Martlet is tested against.
//!
//! [`linearizability`] judges the histories of clients, whether they come from simulated clusters, from tests with real processes or from
//! `martlet torture`.

#![forbid(unsafe_code)]

pub mod linearizability;

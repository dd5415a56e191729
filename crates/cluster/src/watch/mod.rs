//! What a cluster's nodes show to an outside observer, and what the cluster can do without one of them.

pub mod observer;
pub mod service;
pub mod standing;

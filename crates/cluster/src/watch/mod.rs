//! What a cluster's nodes show to one who looks from outside, and what it can do without one of them.

pub mod observer;
pub mod service;
pub mod standing;

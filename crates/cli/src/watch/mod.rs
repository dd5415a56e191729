//! What a cluster's nodes show to one who looks from outside: at one moment, over time, and around a failover.

pub mod failovers;
pub mod known;
pub mod lookout;
pub mod observer;
pub mod standing;
pub mod timeline;

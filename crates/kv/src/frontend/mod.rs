//! Where requests come from: sockets that speak the Redis protocol, and lanes on the fabric.

pub mod fabric;
pub mod redis;

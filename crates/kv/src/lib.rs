//! A replicated key-value store and its two front ends: the Redis protocol, and requests written into its memory.

#![forbid(unsafe_code)]

pub mod store;

//! What outlives a process: a node's disk, and lives in which the power fails everywhere.

pub mod disk;
pub mod power;

//! Configuration: what a cluster agrees on, separate from what one process does.
//!
//! Both files are TOML. A file is read into a plain value ([`ClusterConfig`], [`NodeConfig`]), which a program can also build and write. The value is validated
//! once, into [`Cluster`] or [`Settings`], which cannot be changed. Every error names the file, the key, the value, and what is allowed.

mod allowed;
mod by_name;
mod cluster;
mod durability;
mod fabric;
mod group;
mod list;
mod listing;
mod node;
mod recovery;
mod secret;
mod settings;

pub use martlet_fabric::FabricKind;
pub use martlet_protocol::engine::EngineKind;
pub use martlet_protocol::replica::Execution;
pub use martlet_settings::ConfigError;

pub use cluster::{ClusterConfig, DetectorConfig, ElectionConfig, NodeEntry, Role, SizesConfig};
pub use durability::{DurabilityConfig, DurabilityKind};
pub use fabric::*;
pub use group::GroupConfig;
pub use list::ListConfig;
pub use node::{Bytes, Idle, NodeConfig, Pin, Priority, Reads, RedisConfig, ThreadPlan, ThreadsConfig, UseWarden, WardenConfig};
pub use recovery::RecoveryConfig;
pub use secret::Secret;
pub(crate) use settings::RelistError;
pub use settings::{Cluster, Key, Settings};

#[cfg(test)]
mod tests;

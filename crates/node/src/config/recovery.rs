//! How often a cluster has been founded again from one node, after a majority was lost for good.

use martlet_settings::{Checker, ConfigError};
use serde::{Deserialize, Serialize};

/// What `martlet cluster recover` writes into the cluster's file. Processes of two generations do not meet, because each generation has a name of its own on
/// the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryConfig {
    /// Which generation this is, from 1 on.
    pub generation: u64,
    /// The node whose state it began with.
    pub from: u16,
}

impl RecoveryConfig {
    /// More than an operator will ever need; together with the longest name it fits into a name on the fabric.
    pub const MAX_GENERATION: u64 = 999_999;

    pub(super) fn validate(&self, check: &Checker<'_>) -> Result<(), ConfigError> {
        check.number("recovery.generation", self.generation)?;
        check.number("recovery.from", self.from)
    }
}

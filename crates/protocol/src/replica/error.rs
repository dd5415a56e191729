//! The error for a setting that an engine cannot work with.

/// A setting that an engine cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}; allowed is {allowed}")]
pub struct ConfigError {
    /// Which setting.
    pub key: &'static str,
    /// Its value.
    pub value: u64,
    /// What it may be.
    pub allowed: &'static str,
}

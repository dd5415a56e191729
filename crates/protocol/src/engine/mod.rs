//! Replication engines: how the effects of requests reach the other replicas, and when they are committed.
//!
//! An [`Engine`] is a pure state machine over a [`Fabric`](martlet_fabric::Fabric) and a [`StateMachine`](crate::replica::StateMachine). It owns the log lanes
//! ([`LOG_LANE`](crate::basics::layout::LOG_LANE)) and the regions of [`mu::layout`], [`dare::layout`] or [`apus::layout`] for those engines.

pub mod apus;
pub mod dare;
mod durable;
mod event;
mod gathered;
pub mod hsuc;
pub mod huc;
mod interface;
mod leaving;
pub mod mu;
pub mod primary_backup;
mod registry;
#[cfg(test)]
mod test_cluster;
pub mod view_log;

pub use crate::replica::{ConfigError, PartFault, REST_NS};
pub use apus::Apus;
pub use dare::Dare;
pub use durable::Durable;
pub use event::{DropReason, Event};
pub use gathered::Gathered;
pub use hsuc::Hsuc;
pub use huc::Huc;
pub use interface::Engine;
pub use leaving::{Leaving, LeavingPatience, LeavingStep, owes_answers};
pub use mu::Mu;
pub use primary_backup::PrimaryBackup;
pub use registry::{CommitRule, EngineKind, Leadership, Traits};

/// Samples of what the engines write: see [`samples`](crate::samples).
#[cfg(feature = "fuzzing")]
pub(crate) fn samples() -> Vec<crate::samples::Sample> {
    [view_log::samples::all(), mu::samples::all(), dare::samples::all(), apus::samples::all()].concat()
}

//! The membership service: totally ordered views, leases and `active` (uKharon sections 3, 5 and 6).
//!
//! [`Core`] is what the paper calls uKharon Core, together with the coordinator: one state machine per process that watches its peers, learns
//! views, renews its lease and, in the process whose turn it is, decides the next view.

pub mod cache;
pub mod core;
pub mod lease;
pub mod message;
pub mod plan;
pub mod view;

pub use self::core::{Authority, Config, Core, Disbelief, Event, Leases, LevelError, Milestone, Proof, Round, Source};
pub use lease::{ClockBounds, Lease};
pub use view::{Departed, Evidence, Member, Roles, View, ViewError};

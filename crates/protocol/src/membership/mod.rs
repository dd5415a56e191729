//! The membership service: totally ordered views, leases and `active` (uKharon sections 3, 5 and 6).
//!
//! [`Core`] combines what the paper calls uKharon Core with the coordinator. It is one state machine per process, which watches its peers, learns
//! views and renews its lease. In the process that leads, it also decides the next view.

pub mod cache;
pub mod core;
pub mod lease;
pub mod message;
pub mod plan;
pub mod view;

pub use self::core::{Authority, Config, Core, Disbelief, Event, Leases, LevelError, Milestone, Proof, Round, Source};
pub use lease::{ClockBounds, Lease};
pub use view::{Departed, Evidence, Member, Roles, View, ViewError};

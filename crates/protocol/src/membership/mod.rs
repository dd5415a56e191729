//! The membership service: totally ordered views, leases and `active` (uKharon sections 3, 5 and 6).

pub mod view;

pub use view::{Departed, Evidence, Member, Roles, View, ViewError};

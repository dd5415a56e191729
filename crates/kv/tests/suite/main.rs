//! The store from outside.

mod backups;
mod fabric;
mod fake;
mod info;
mod limits;
mod mistakes;
mod page;
mod redis;
mod rig;
mod side_by_side;
mod sockets;
mod unmodified;

//! The commands: a catalogue, and one small file for each family.
//!
//! A handler runs on the primary's state and appends the effects for the backups as it goes ([`Ctx`]). The table says which commands touch keys. A primary
//! executes those; other nodes answer them with a redirection. That applies to reads as well, because a backup may lag behind what was acknowledged.
//! `dispatch::is_primarys` says what a backup answers by itself nevertheless.

mod address;
pub(crate) mod bound;
mod calls;
mod catalogue;
pub mod client;
mod client_commands;
mod clock;
mod cluster;
mod connection;
mod context;
mod describe;
pub mod dispatch;
mod env;
mod errors;
mod expiry;
mod float;
mod glob;
mod info;
mod keyspace;
mod numbers;
mod server;
mod slots;
mod strings;
mod table;
mod transactions;
mod watches;

pub use calls::Calls;
pub use client::{Client, ClientSlot, Clients, ReplyMode};
pub use clock::Clock;
pub use context::{CpuClock, CpuTimes, Ctx, Shared};
pub use dispatch::{Executed, execute};
pub use env::Env;
pub use slots::key_slot;
pub use table::{Command, all, find, flag};

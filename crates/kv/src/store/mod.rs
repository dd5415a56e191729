//! The store: an extendible hash table of single-allocation entries, an index of the keys that expire, the clients' sessions, and the effects by which all of
//! this is replicated.

pub mod effects;
pub mod entry;
pub mod expiry;
pub mod hash;
pub mod machine;
mod remains;
pub mod sessions;
pub mod table;
mod transfer;

pub use effects::{Decoder, Effect, EffectError, Effects, MAX_VALUE_BYTES};
pub use entry::Entry;
pub use hash::Seed;
pub use machine::KvMachine;
pub use sessions::{Known, Session, SessionId, Sessions};
pub use table::Keyed;

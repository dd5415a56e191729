//! What every other module speaks of: time, names, regions, tokens.

pub mod ballot;
pub mod ids;
pub mod layout;
pub mod sealed;
pub mod time;

pub use ids::{LogIndex, ProcessId, ViewNumber};
pub use time::Time;

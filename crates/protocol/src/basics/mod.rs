//! What every other module speaks of: time, names, regions, tokens.

pub mod ids;
pub mod layout;
pub mod time;

pub use ids::{LogIndex, ProcessId, ViewNumber};
pub use time::Time;

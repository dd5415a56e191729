//! What every other module speaks of: time, names, regions, tokens.

pub mod ballot;
pub mod canary;
pub mod ids;
pub mod layout;
pub mod mark;
pub mod sealed;
pub mod time;

pub use canary::Canary;
pub use ids::{LogIndex, ProcessId, RETURN_BITS, ViewNumber};
pub use mark::Mark;
pub use time::Time;

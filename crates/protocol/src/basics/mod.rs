//! What all other modules use: time, names, regions, tokens.

pub mod ballot;
pub mod canary;
pub mod ids;
pub mod layout;
pub mod mark;
pub mod sealed;
pub mod time;

pub use canary::Canary;
pub use ids::{LogIndex, MAX_NUMBER, ProcessId, RETURN_BITS, ViewNumber, is_number};
pub use mark::Mark;
pub use time::Time;

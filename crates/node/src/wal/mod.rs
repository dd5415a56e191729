//! A replica's log on disk (`docs/durability.md`): checksummed segments, a snapshot below which segments are removed, and what is left of both after a crash.
//! The content of the frames is the replica's business, not the log's.
//!
//! | module | contents |
//! |---|---|
//! | [`format`](mod@format) | bytes: headers, frames, how a file ends; pure |
//! | [`disk`] | what the log needs of the system, as a trait |
//! | `log` | [`Log`]: appends, segments, snapshots |
//! | `recovery` | [`recover`]: what a crash has left |
//! | `directory` | [`Directory`]: the lives of a node |
//! | `pace` | [`Pace`]: when the next slice of a snapshot is due; pure |
//! | `queue` | what has been handed over, and which of it is next; pure |
//! | `thread` | [`Wal`]: a log with a thread of its own, so that no other thread waits for the disk |

mod directory;
pub mod disk;
mod error;
pub mod format;
mod log;
mod pace;
mod queue;
mod recovery;
#[cfg(test)]
mod tests;
mod thread;

pub use directory::Directory;
pub use error::{Operation, WalError};
pub use log::{Log, SLICE_BYTES, Style};
pub use pace::Pace;
pub use recovery::{Recovered, Snapshot, recover};
pub use thread::Wal;

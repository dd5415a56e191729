//! What can be wrong with a disk and with its content.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::format::Owner;

/// Why the log cannot be read, or cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The system refuses an operation: the disk is full or broken, or this process may not write it. Nothing more is written after that.
    #[error("{}: cannot {operation}: {error}{}", path.display(), martlet_fabric::limits::hint(error))]
    Disk {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        operation: Operation,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// An earlier operation has failed.
    #[error("{}: nothing more is written after an error", path.display())]
    Broken {
        /// The log's directory.
        path: PathBuf,
    },
    /// Something that was stable has changed. A torn tail, which a crash leaves, is not this.
    #[error("{}: corrupt at byte {offset}: {what}; replace this node's data by that of the others: start it with an empty directory", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What was found or missed.
        what: &'static str,
    },
    /// Another build has written it.
    #[error(
        "{}: written in format {found}, but this build reads {} to {}: start the build that wrote it, or start this node with an empty directory",
        path.display(), char::from(*known.start()), char::from(*known.end())
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format, a digit.
        found: char,
        /// Those that this build reads, as ASCII digits.
        known: RangeInclusive<u8>,
    },
    /// The directory holds another node's log.
    #[error("{}: it belongs to node {} of cluster {:016x}; this is node {} of {:016x}", path.display(), found.node, found.cluster, own.node, own.cluster)]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: Owner,
        /// The node that reads it.
        own: Owner,
    },
    /// Another process has the directory open.
    #[error("{}: another process uses this directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

impl WalError {
    /// What the system said, as a number; 0 when it was not the system.
    pub fn errno(&self) -> u64 {
        match self {
            WalError::Disk { error, .. } => error.raw_os_error().and_then(|number| u64::try_from(number).ok()).unwrap_or(0),
            _ => 0,
        }
    }
}

/// What was attempted on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To make a file or directory.
    Create,
    /// To write to one.
    Write,
    /// To make what was written stable.
    Sync,
    /// To cut off a torn tail.
    Shorten,
    /// To give a file its name.
    Rename,
    /// To remove one.
    Remove,
    /// To read one.
    Read,
    /// To keep other processes out.
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Create => "create it",
            Operation::Write => "write to it",
            Operation::Sync => "make it stable",
            Operation::Shorten => "cut its torn tail off",
            Operation::Rename => "give it its name",
            Operation::Remove => "remove it",
            Operation::Read => "read it",
            Operation::Lock => "lock it",
        })
    }
}

/// For `map_err`.
pub(super) fn refused(path: &Path, operation: Operation) -> impl FnOnce(io::Error) -> WalError {
    move |error| WalError::Disk { path: path.to_owned(), operation, error }
}

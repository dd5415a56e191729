//! A node and its disk (`docs/durability.md`): what it writes while it runs, and what it comes back with.
//!
//! | module | what stands there |
//! |---|---|
//! | `keeper` | [`Keeper`]: takes the engine's journal to the log's thread in each turn, and takes snapshots in steps |
//! | here | [`Store`]: a node's directory, over all its lives |

mod keeper;

use std::hash::Hasher as _;
use std::path::PathBuf;
use std::sync::Arc;

use martlet_protocol::basics::{ProcessId, RETURN_BITS};
use martlet_protocol::engine::mu::RecoverError;
use siphasher::sip::SipHasher24;

pub(crate) use keeper::Keeper;

use crate::config::{DurabilityConfig, Key, Settings};
use crate::wal::format::Owner;
use crate::wal::{Directory, Style, WalError};

/// Why a node cannot begin with its directory, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The disk, or what stands on it.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// What stands there makes no log, though every byte of it is as it was written.
    #[error("{}: {error}; {}", path.display(), advice(*error))]
    Log {
        /// The directory of the life that was to be come back as.
        path: PathBuf,
        /// What does not fit.
        #[source]
        error: RecoverError,
    },
    /// Numbers for processes that come back with one log have run out.
    #[error("{}: it has been come back with {most} times, the most that is possible; start the node with an empty directory to have it taught", path.display())]
    WornOut {
        /// The directory of the life.
        path: PathBuf,
        /// How often that can be.
        most: u64,
    },
    /// The system has no chance to give.
    #[error("no random numbers: {0}")]
    Chance(std::io::Error),
}

fn advice(error: RecoverError) -> &'static str {
    match error {
        RecoverError::Ring { .. } => {
            "set sizes.log_ring_bytes back to what it was: it cannot be changed while there are data that were written with it"
        }
        _ => "was it written by another version? Start the node with an empty directory to have it taught",
    }
}

/// Where a node's next life begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// With nothing.
    Afresh,
    /// With the log of an earlier life, as the process that it was.
    Return {
        /// That life.
        life: u64,
    },
}

/// A node's directory, over all its lives.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Arc<Directory>,
    segment_bytes: u64,
    max_pending_bytes: u64,
}

impl Store {
    /// Opens the directory; `None` where nothing is written to a disk.
    pub fn open(settings: &Settings) -> Result<Option<Store>, DiskError> {
        let Some(path) = settings.data_directory() else { return Ok(None) };
        let cluster = settings.cluster();
        let chance = u64::from_le_bytes(*Key::generate().map_err(DiskError::Chance)?.bytes().first_chunk().expect("32 bytes"));
        let DurabilityConfig { segment_bytes, max_pending_bytes, .. } = cluster.config().durability;
        let mut hasher = SipHasher24::new_with_key(cluster.key().bytes().first_chunk().expect("32 bytes"));
        hasher.write(cluster.config().name.as_bytes());
        let owner = Owner { cluster: hasher.finish(), node: settings.id().0 };
        let directory = Directory::open(&path, Style { owner, segment_bytes, chance })?;
        Ok(Some(Store { directory: Arc::new(directory), segment_bytes, max_pending_bytes }))
    }

    /// Where to begin when nobody is known to have a view.
    pub fn origin(&self) -> Result<Origin, DiskError> {
        Ok(self.directory.life_to_recover()?.map_or(Origin::Afresh, |life| Origin::Return { life }))
    }

    /// The newest life that stands there: a host's clock may have begun anew, and a fresh life has to be newer.
    pub fn newest_life(&self) -> Result<u64, DiskError> {
        Ok(self.directory.lives()?.into_iter().max().unwrap_or(0))
    }

    /// The incarnation with which to come back as that life: a number that nobody has seen.
    pub fn incarnation(&self, life: u64) -> Result<u64, DiskError> {
        let count = self.directory.count_return(life)?;
        let most = (1 << RETURN_BITS) - 1;
        if count > most {
            return Err(DiskError::WornOut { path: self.directory.life_path(life), most });
        }
        Ok(life + count)
    }

    /// The start as this process has failed before anybody was let in: its number has not been seen, and is there for the next one. A node that is
    /// started again and again with a log that is refused would use them up.
    pub fn take_back(&self, me: ProcessId) {
        let life = Store::life_of(me);
        if let Err(error) = self.directory.take_back_return(life, me.incarnation.0 - life) {
            tracing::warn!(%error, "a failed start counts as one that has come back");
        }
    }

    /// A log whose bytes are good, and which the engine cannot take.
    pub fn unfit(&self, life: u64, error: RecoverError) -> DiskError {
        DiskError::Log { path: self.directory.life_path(life), error }
    }

    /// The name of the log that this process keeps.
    pub fn life_of(me: ProcessId) -> u64 {
        me.birth().incarnation.0
    }
}

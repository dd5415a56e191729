//! A node and its disk (`docs/durability.md`): what the node writes while it runs, and what it returns with after a restart.
//!
//! | module | contents |
//! |---|---|
//! | `keeper` | [`Keeper`]: takes the engine's journal to the log's thread in each turn, and takes snapshots in steps |
//! | `inspect` | what a node that does not run has on its disk |
//! | here | [`Store`]: a node's directory, over all its lives |

mod inspect;
mod keeper;

use std::cmp::Ordering;
use std::hash::Hasher as _;
use std::path::PathBuf;
use std::sync::Arc;

use martlet_protocol::basics::{ProcessId, RETURN_BITS};
use martlet_protocol::founding::life_to_come_back_as;
use martlet_protocol::replica::journal::RecoverError;
use siphasher::sip::SipHasher24;

pub use inspect::{OnDisk, on_disk};
pub(crate) use keeper::Keeper;

use crate::config::{DurabilityConfig, Key, Settings};
use crate::wal::disk::SystemDisk;
use crate::wal::format::Owner;
use crate::wal::{Directory, Log, Recovered, Style, WalError};

/// Why a node cannot begin with its directory, or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The disk fails, or its content is wrong.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The content makes no valid log, although every byte of it is as it was written.
    #[error("{}: {error}; {}", path.display(), advice(error))]
    Log {
        /// The directory of the life as which the node was to return.
        path: PathBuf,
        /// What does not fit.
        #[source]
        error: RecoverError,
    },
    /// The numbers for processes that return with the same log are used up.
    #[error("{}: nodes have come back with it {most} times, the most that is possible; start the node with an empty directory, and the others send it the state", path.display())]
    WornOut {
        /// The directory of the life.
        path: PathBuf,
        /// How many there are.
        most: u64,
    },
    /// The system has no random numbers to give.
    #[error("no random numbers: {0}")]
    Chance(std::io::Error),
}

fn advice(error: &RecoverError) -> &'static str {
    match error {
        RecoverError::Ring { .. } => {
            "set sizes.log_ring_bytes back to what it was: it cannot be changed while there is data that was written with it"
        }
        _ => "was it written by another version? Start the node with an empty directory, and the others send it the state",
    }
}

/// Where a node's next life begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// With nothing.
    Afresh,
    /// With the log of an earlier life, as that process.
    Return {
        /// That life.
        life: u64,
    },
}

/// A node's directory, over all its lives.
#[derive(Debug)]
pub(crate) struct Store {
    directory: Arc<Directory>,
    /// The generation of the cluster. A node does not return with what was written in an earlier one.
    generation: u64,
    segment_bytes: u64,
    max_pending_bytes: u64,
    snapshot_bytes_per_s: u64,
}

impl Store {
    /// Opens the directory; `None` if nothing is written to a disk.
    pub fn open(settings: &Settings) -> Result<Option<Store>, DiskError> {
        let Some(path) = settings.data_directory() else { return Ok(None) };
        let cluster = settings.cluster();
        let chance = u64::from_le_bytes(*Key::generate().map_err(DiskError::Chance)?.bytes().first_chunk().expect("32 bytes"));
        let DurabilityConfig { segment_bytes, max_pending_bytes, snapshot_bytes_per_s, .. } = cluster.config().durability;
        let mut hasher = SipHasher24::new_with_key(cluster.key().bytes().first_chunk().expect("32 bytes"));
        hasher.write(cluster.config().name.as_bytes());
        let owner = Owner { cluster: hasher.finish(), node: settings.id().0 };
        let directory = Directory::open(&path, Style { owner, segment_bytes, chance })?;
        let generation = cluster.generation();
        Ok(Some(Store { directory: Arc::new(directory), generation, segment_bytes, max_pending_bytes, snapshot_bytes_per_s }))
    }

    /// Where to begin when no process is known to have a view. `belongs` tells, from what a life has left, whether it belongs to its group.
    pub fn origin(&self, belongs: impl Fn(u64, &Recovered) -> Result<bool, RecoverError>) -> Result<Origin, DiskError> {
        let life = self.choose(&self.lives()?, belongs)?;
        Ok(life.map_or(Origin::Afresh, |life| Origin::Return { life }))
    }

    /// The lives as which the node could return, the oldest first.
    pub fn lives(&self) -> Result<Vec<u64>, DiskError> {
        let mut lives = Vec::new();
        for life in self.directory.lives_to_recover()? {
            if self.directory.generation(life)? == self.generation {
                lives.push(life);
            }
        }
        Ok(lives)
    }

    /// From now on the cluster is in this generation.
    pub fn enter(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// When a cluster is founded again from this disk, the earlier generation's life from which it continues: one of the newest generation that has left any.
    /// `None` if this generation has begun here before, however little it has left: others may have continued from that.
    pub fn life_to_go_on_from(&self, belongs: impl Fn(u64, &Recovered) -> Result<bool, RecoverError>) -> Result<Option<u64>, DiskError> {
        for life in self.directory.lives()? {
            if self.directory.generation(life)? >= self.generation {
                return Ok(None);
            }
        }
        let lives = self.newest_generation()?;
        self.choose(&lives, &belongs)
    }

    /// The lives as which the node could return, of the newest generation that has left any, the oldest first.
    fn newest_generation(&self) -> Result<Vec<u64>, DiskError> {
        let mut newest: (u64, Vec<u64>) = (0, Vec::new());
        for life in self.directory.lives_to_recover()? {
            let generation = self.directory.generation(life)?;
            match generation.cmp(&newest.0) {
                Ordering::Less => {}
                Ordering::Equal => newest.1.push(life),
                Ordering::Greater => newest = (generation, vec![life]),
            }
        }
        Ok(newest.1)
    }

    fn choose(&self, lives: &[u64], belongs: impl Fn(u64, &Recovered) -> Result<bool, RecoverError>) -> Result<Option<u64>, DiskError> {
        life_to_come_back_as(lives, |life| {
            let (recovered, _) = self.recover(life)?;
            belongs(life, &recovered).map_err(|error| self.unfit(life, error))
        })
    }

    /// What a life has left. A torn tail has been cut off, and this is reported.
    fn recover(&self, life: u64) -> Result<(Recovered, Log<SystemDisk>), DiskError> {
        let (recovered, log) = self.directory.recover(life)?;
        if let Some((file, at)) = &recovered.torn {
            let path = self.directory.life_path(life).join(file);
            tracing::warn!(file = %path.display(), at, "the log's tail was torn, as a process that dies leaves it, and has been cut off");
        }
        Ok((recovered, log))
    }

    /// The newest life that is there. A host's clock may have been set back, and a fresh life has to be newer than this.
    pub fn newest_life(&self) -> Result<u64, DiskError> {
        Ok(self.directory.lives()?.into_iter().max().unwrap_or(0))
    }

    /// The incarnation with which to return as that life: a number that no process has seen. It has to be [counted](Self::count_return) before any does.
    pub fn incarnation(&self, life: u64) -> Result<u64, DiskError> {
        let count = self.directory.next_return(life)?;
        let most = (1 << RETURN_BITS) - 1;
        if count > most {
            return Err(DiskError::WornOut { path: self.directory.life_path(life), most });
        }
        Ok(life + count)
    }

    /// This process has returned, and others are about to hear of it: its number will not be used again. A start that ends before this, for whatever reason,
    /// uses up no number: a node may be started again and again with a log that is refused.
    pub fn count_return(&self, me: ProcessId) -> Result<(), DiskError> {
        let life = Store::life_of(me);
        Ok(self.directory.count_return(life, me.incarnation.0 - life)?)
    }

    /// The error for a log whose bytes are good, but which the engine cannot accept.
    pub fn unfit(&self, life: u64, error: RecoverError) -> DiskError {
        DiskError::Log { path: self.directory.life_path(life), error }
    }

    /// The name of the log that this process keeps.
    pub fn life_of(me: ProcessId) -> u64 {
        me.birth().incarnation.0
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};

    use super::*;
    use crate::wal::{Pace, Wal};

    fn opened(name: &str) -> (std::path::PathBuf, Store) {
        let path = std::env::temp_dir().join(format!("martlet-{name}-{}", std::process::id()));
        let style = Style { owner: Owner { cluster: 1, node: 2 }, segment_bytes: 1 << 16, chance: 3 };
        let directory = Arc::new(Directory::open(&path, style).expect("ours"));
        (path, Store { directory, generation: 0, segment_bytes: 1 << 16, max_pending_bytes: 1 << 16, snapshot_bytes_per_s: 1 << 30 })
    }

    #[test]
    fn a_start_that_nobody_hears_of_does_not_count_as_a_return_whatever_ends_it() {
        let (path, store) = opened("returns");
        let life = 3 << RETURN_BITS;
        let next = || store.incarnation(life).expect("a good disk");
        assert_eq!([next(), next(), next()], [life + 1; 3]);
        let me = ProcessId { node: NodeId(2), incarnation: Incarnation(next()) };
        store.count_return(me).expect("a good disk");
        assert_eq!([next(), next()], [life + 2; 2], "the others may know the first");
        drop(store);
        std::fs::remove_dir_all(&path).expect("ours");
    }

    #[test]
    fn a_node_comes_back_as_its_newest_life_that_the_group_has() {
        let (path, store) = opened("origin");
        let directory = Arc::clone(&store.directory);
        let origin = |members: &[u64]| store.origin(|life, _| Ok(members.contains(&life))).expect("a good disk");
        assert_eq!(origin(&[]), Origin::Afresh);
        for life in [4, 5, 6] {
            let log = directory.begin(life, 0).expect("a new life");
            let mut wal = Wal::start(log, &directory.life_path(life), Pace::unbounded(), || {}).expect("a thread");
            wal.begin_snapshot();
            wal.append(b"base");
            wal.finish_snapshot(Vec::new());
            wal.close().expect("a good disk");
        }
        drop(directory.begin(7, 0).expect("a new life"));
        let life = |life| Origin::Return { life };
        assert_eq!(origin(&[4, 5, 6, 7]), life(6), "7 has no snapshot: nobody has counted on it");
        assert_eq!(origin(&[4, 5]), life(5), "6 was on its way into the group");
        assert_eq!(origin(&[]), life(4), "nobody belongs any more: it joins anew, and is told so by the others");
        let mut store = store;
        store.enter(2);
        let go_on = |store: &Store| store.life_to_go_on_from(|life, _| Ok(life == 5)).expect("a good disk");
        assert_eq!(store.lives().expect("a good disk"), Vec::<u64>::new(), "of an earlier generation");
        assert_eq!(go_on(&store), Some(5), "for whoever is told to go on from it");
        drop(directory.begin(8, 2).expect("a new life"));
        assert_eq!(go_on(&store), None, "it has begun, and others may have gone on");
        store.enter(3);
        assert_eq!(go_on(&store), Some(5), "8 has left nothing");
        drop((store, directory));
        std::fs::remove_dir_all(&path).expect("ours");
    }
}

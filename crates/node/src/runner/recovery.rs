//! How nodes act when their cluster's file changes: it may say that the cluster is founded again from one node, having lost its majority for good
//! (`docs/membership.md`, "Founded again by an operator"), and it may list other nodes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use martlet_fabric::host::errand::{self, Standing};
use martlet_fabric::{Identity, Incarnation, PeerKind};
use martlet_protocol::basics::ProcessId;
use martlet_protocol::engine::Gathered;
use martlet_protocol::replica::{Application, StateMachine as _};

use super::RunError;
use super::disk::{Birth, belonged};
use super::life::Life;
use crate::backend::Backend;
use crate::config::{Cluster, Settings};
use crate::durable::{DiskError, Origin, Store};
use crate::engine::NodeEngine;
use crate::version;

/// How often the cluster's file is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Watches the cluster's file on threads of its own, since a file can keep its reader waiting.
#[derive(Debug)]
pub(super) struct FileWatch {
    news: Arc<News>,
    _looks: Option<Standing>,
}

/// What has been seen in the file.
#[derive(Debug, Default)]
struct News {
    /// The newest generation that it has named.
    generation: AtomicU64,
    /// Whether it has changed since its contents were last taken.
    is_changed: AtomicBool,
    /// Its contents.
    cluster: Mutex<Option<Cluster>>,
}

impl FileWatch {
    /// A cluster that a program has made has no file, so nothing is watched.
    pub fn start(settings: &Settings) -> FileWatch {
        let news = Arc::default();
        let looks = Look::at(settings, &news).map(|look| errand::repeat("martlet-file", LOOK, Arc::new(move || look.look())));
        FileWatch { news, _looks: looks }
    }

    /// What the file says of the cluster, if it has changed since the last call. Never waits.
    #[inline]
    pub fn changed(&self) -> Option<Cluster> {
        if !self.news.is_changed.load(Ordering::Relaxed) {
            return None;
        }
        let mut cluster = self.news.cluster.try_lock().ok()?;
        self.news.is_changed.store(false, Ordering::Relaxed);
        cluster.take()
    }

    /// Whether the file says that the cluster has been founded again since this one.
    #[inline]
    pub fn has_moved_on(&self, cluster: &Cluster) -> bool {
        self.news.generation.load(Ordering::Relaxed) > cluster.generation()
    }

    /// Reads the file again. `None`: it cannot be read at the moment, or does not list this node, or says what it said before. Nothing is given up in that
    /// case, until the file changes.
    pub fn read_again(&self, settings: &Settings) -> Option<Settings> {
        let read = settings.moved_on();
        let moved =
            read.inspect_err(|error| tracing::error!(%error, "the cluster has been founded again, and this node has no part in it")).ok();
        let moved = moved.filter(|moved| moved.cluster().generation() > settings.cluster().generation());
        if moved.is_none() {
            self.news.generation.store(0, Ordering::Relaxed);
        }
        moved
    }
}

/// What is needed to look at the file.
struct Look {
    file: PathBuf,
    news: Arc<News>,
    /// When the file was last changed, and how long it was, as of the last look.
    seen: Mutex<Option<(SystemTime, u64)>>,
}

impl Look {
    fn at(settings: &Settings, news: &Arc<News>) -> Option<Look> {
        let file = settings.cluster().file()?.to_owned();
        Some(Look { file, news: Arc::clone(news), seen: Mutex::default() })
    }

    fn look(&self) {
        let now = std::fs::metadata(&self.file).and_then(|about| Ok((about.modified()?, about.len()))).ok();
        let seen = std::mem::replace(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner), now);
        // A file that is missing or not valid says nothing; it is looked at again when it changes.
        if now.is_some()
            && now != seen
            && let Ok(cluster) = Cluster::load(&self.file)
        {
            self.news.generation.fetch_max(cluster.generation(), Ordering::Relaxed);
            *self.news.cluster.lock().unwrap_or_else(PoisonError::into_inner) = Some(cluster);
            self.news.is_changed.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the cluster continues from this node.
pub(super) fn goes_on_from(settings: &Settings) -> bool {
    let recovery = settings.cluster().config().recovery.as_ref();
    recovery.is_some_and(|recovery| recovery.from == settings.id().0)
}

impl<F: Backend, E: NodeEngine, A: Application> Life<F, E, A> {
    /// Loads the state of an earlier generation of the cluster from this node's disk into the machine. `None`: the disk has none from which to continue.
    pub(super) fn gather_from_disk(settings: &Settings, store: &Store, machine: &mut A::Machine) -> Result<Option<Gathered>, RunError> {
        let node = settings.id();
        let disk = |error: DiskError| RunError::Disk { node, error };
        let Some(life) = store.life_to_go_on_from(|life, left| belonged::<E>(settings, life, left)).map_err(disk)? else { return Ok(None) };
        let me = ProcessId { node, incarnation: Incarnation(store.incarnation(life).map_err(disk)?) };
        let identity = Identity { node, incarnation: me.incarnation, kind: PeerKind::Member };
        // The engine's log needs memory for this. No other process is let in.
        let mut fabric = F::start_node(settings, identity).map_err(|error| RunError::Fabric { node, error })?;
        let birth = Birth { me, disk: Some((store, Origin::Return { life })), gathered: None, has_held: false };
        let (mut engine, keeper) = Self::equip(settings.cluster(), &birth, None, machine, &fabric)?;
        let gathered = engine.gather(&mut fabric, machine);
        if let Some(entry) = machine.unreadable() {
            return Err(RunError::Unreadable { node, entry: entry.clone(), build: version::protocol() });
        }
        keeper.map_or(Ok(()), |keeper| keeper.close()).map_err(|error| disk(error.into()))?;
        gathered.map(Some).ok_or(RunError::NothingHeld { node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterConfig, Key, NodeConfig, NodeEntry, RecoveryConfig};

    #[test]
    fn a_newer_generation_in_the_file_is_seen_and_an_older_one_is_not() {
        let path = std::env::temp_dir().join(format!("martlet-file-watch-{}.toml", std::process::id()));
        let key = Key::generate().expect("randomness").to_hex();
        let write = |generation: u64| {
            let recovery = (generation > 0).then_some(RecoveryConfig { generation, from: 0 });
            let config =
                ClusterConfig { key: Some(key.clone().into()), recovery, ..ClusterConfig::new("watched", vec![NodeEntry::new(0)]) };
            let fresh = path.with_extension("new");
            std::fs::write(&fresh, config.to_toml()).and_then(|()| std::fs::rename(&fresh, &path)).expect("a temporary file");
        };
        write(1);
        let cluster = Cluster::load(&path).expect("valid");
        let settings = Settings::new(cluster, NodeConfig::new(0, "<cluster>")).expect("valid");
        let watch = FileWatch { news: Arc::default(), _looks: None };
        let look = Look::at(&settings, &watch.news).expect("there is a file");
        let until = |wanted: u64| {
            look.look();
            assert_eq!(watch.news.generation.load(Ordering::Relaxed), wanted);
        };
        assert!(watch.changed().is_none(), "nothing has been seen yet");
        until(1);
        assert!(watch.changed().is_some() && watch.changed().is_none(), "once");
        assert!(!watch.has_moved_on(settings.cluster()), "that is the one it is in");
        assert!(goes_on_from(&settings));
        std::fs::write(&path, "nonsense").expect("ours");
        until(1);
        assert!(watch.changed().is_none(), "a file that is not valid says nothing");
        write(12);
        until(12);
        assert!(watch.has_moved_on(settings.cluster()));
        assert!(watch.read_again(&settings).is_some_and(|moved| moved.cluster().generation() == 12));
        write(0);
        assert!(watch.read_again(&settings).is_none() && !watch.has_moved_on(settings.cluster()), "it has been taken back");
        drop(watch);
        write(12);
        assert_eq!(settings.relisted().expect("valid").cluster().generation(), 1, "who starts over stays where it is");
        let moved = settings.moved_on().expect("valid");
        assert_eq!((moved.cluster().generation(), moved.cluster().fabric_name().as_str()), (12, "watched~12"));
        std::fs::remove_file(&path).expect("ours");
    }
}

//! What is on a node's disk, for an operator. For a node whose process is not running.

use std::path::Path;
use std::time::SystemTime;

use martlet_fabric::Incarnation;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::founding::Returned;
use martlet_protocol::with_engine;

use super::{DiskError, Store};
use crate::config::Settings;
use crate::engine::NodeEngine;

/// What a node has on its disk.
#[derive(Clone, Debug)]
pub struct OnDisk {
    /// The generation of the cluster in which it was written.
    pub generation: u64,
    /// The process as which it would return.
    pub process: ProcessId,
    /// The log with which it would return.
    pub log: Returned,
    /// When something was last written there; `None`: the system does not say.
    pub written: Option<SystemTime>,
}

/// Looks at the disk of a node that is not running. `None`: there is nothing with which a node could return, or the cluster writes nothing to disks.
///
/// # Errors
/// When a process has the directory open, and in the cases in which the node's own process would fail: see [`DiskError`].
pub fn on_disk(settings: &Settings) -> Result<Option<OnDisk>, DiskError> {
    with_engine!(settings.cluster().config().engine, E => look::<E>(settings))
}

fn look<E: NodeEngine>(settings: &Settings) -> Result<Option<OnDisk>, DiskError> {
    if !settings.data_directory().is_some_and(|directory| directory.is_dir()) {
        return Ok(None);
    }
    let Some(store) = Store::open(settings)? else { return Ok(None) };
    let belongs = |life, left: &_| crate::runner::belonged::<E>(settings, life, left);
    let lives = store.newest_generation()?;
    let Some(life) = store.choose(&lives, belongs)? else { return Ok(None) };
    let cluster = settings.cluster();
    let (recovered, _) = store.recover(life)?;
    let me = ProcessId { node: settings.id(), incarnation: Incarnation(life) };
    let (snapshot, journal) = (recovered.snapshot.unwrap_or_default(), recovered.frames.concat());
    let log = E::written(me, &E::config(cluster, cluster.sizes(), 0), &snapshot.last, &journal);
    let log = log.map_err(|error| store.unfit(life, error))?;
    let generation = store.directory.generation(life)?;
    Ok(log.map(|log| OnDisk { generation, process: me, log, written: newest_change(&store.directory.life_path(life)) }))
}

/// When a file in that directory last changed.
fn newest_change(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).ok()?;
    entries.filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok()).max()
}

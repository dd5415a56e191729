//! How a life uses its node's disk: where it begins there, with which engine, and how it ends when the disk fails.

use martlet_fabric::Incarnation;
use martlet_protocol::basics::{ProcessId, RETURN_BITS};
use martlet_protocol::engine::Gathered;
use martlet_protocol::replica::journal::RecoverError;
use martlet_protocol::replica::{Application, StateMachine as _};

use super::RunError;
use super::life::Life;
use crate::backend::Backend;
use crate::config::{Cluster, Key, Settings};
use crate::counters::Counter;
use crate::durable::{Keeper, Origin, Store};
use crate::engine::NodeEngine;
use crate::stop::Stop;
use crate::version;
use crate::wal::{Recovered, WalError};

/// What a life is to be, and where on its disk it begins, if it has one.
pub(super) struct Birth<'a> {
    pub me: ProcessId,
    pub disk: Option<(&'a Store, Origin)>,
    /// The state that its machine already has, if the cluster is founded again from this node.
    pub gathered: Option<Gathered>,
    /// Whether an earlier life of this process has held the cluster's state.
    pub has_held: bool,
}

impl Birth<'_> {
    /// Whether it is an earlier life's process, returning with its log.
    pub fn returns(&self) -> bool {
        matches!(self.disk, Some((_, Origin::Return { .. })))
    }

    /// The earlier lives as which it could return.
    pub fn lives(&self) -> Result<Vec<u64>, RunError> {
        let lives = self.disk.map(|(store, _)| store.lives()).transpose();
        Ok(lives.map_err(|error| RunError::Disk { node: self.me.node, error })?.unwrap_or_default())
    }

    /// Must be called before any other process is let in.
    pub fn announce(&self) -> Result<(), RunError> {
        match self.disk {
            Some((store, Origin::Return { .. })) => {
                store.count_return(self.me).map_err(|error| RunError::Disk { node: self.me.node, error })
            }
            _ => Ok(()),
        }
    }
}

/// Whether the group counts that life of this node as its own, judged by what the life has left on the disk.
pub(crate) fn belonged<E: NodeEngine>(settings: &Settings, life: u64, left: &Recovered) -> Result<bool, RecoverError> {
    let cluster = settings.cluster();
    let me = ProcessId { node: settings.id(), incarnation: Incarnation(life) };
    let Some(snapshot) = &left.snapshot else { return Ok(false) };
    E::belonged(me, &E::config(cluster, cluster.sizes(), 0), &snapshot.last, &left.frames.concat())
}

/// The lowest incarnation, from the given one on, with which a log can begin: the lowest bits count how often a process has returned with that log.
pub(super) fn birth_after(incarnation: u64) -> u64 {
    incarnation.next_multiple_of(1 << RETURN_BITS)
}

impl<F: Backend, E: NodeEngine, A: Application> Life<F, E, A> {
    /// The engine with which a life begins, and its log on disk.
    pub(super) fn equip(
        cluster: &Cluster,
        birth: &Birth<'_>,
        engine: Option<E>,
        machine: &mut A::Machine,
        fabric: &F,
    ) -> Result<(E, Option<Keeper>), RunError> {
        let Birth { me, disk, gathered, .. } = *birth;
        let node = me.node;
        let failed = |error| RunError::Disk { node, error };
        let config = || {
            let random = Key::generate().map_err(|error| RunError::System { node, what: "no random numbers", error })?;
            let secret = u64::from_le_bytes(*random.bytes().first_chunk().expect("32 bytes"));
            Ok(E::config(cluster, cluster.sizes(), secret))
        };
        if let Some((store, Origin::Return { life })) = disk {
            machine.clear();
            let (recovered, keeper) = Keeper::recover(store, me, fabric.bell()).map_err(failed)?;
            let (snapshot, journal) = (recovered.snapshot.unwrap_or_default(), recovered.frames.concat());
            let back = E::recover(me, config()?, &snapshot.parts, &snapshot.last, &journal, fabric, machine)
                .map_err(|error| failed(store.unfit(life, error)))?;
            if let Some(entry) = machine.unreadable() {
                return Err(RunError::Unreadable { node, entry: entry.clone(), build: version::protocol() });
            }
            if let Some(back) = back {
                let (ballot, last, committed) = (back.returned().map_or(0, |log| log.ballot), back.last(), back.committed());
                tracing::info!(ballot, %last, %committed, "{me} starts with the log that an earlier process of this node has left on the disk");
                return Ok((back, Some(keeper)));
            }
        }
        let engine = match (engine, gathered) {
            (_, Some(gathered)) => E::go_on_from(me, config()?, &gathered),
            (None, None) => {
                machine.clear();
                E::new(me, config()?)
            }
            (Some(mut engine), None) => {
                engine.reset(me, machine);
                engine
            }
        };
        let keeper = disk.map(|(store, _)| Keeper::begin(store, me, fabric.bell())).transpose().map_err(failed)?;
        Ok((engine, keeper))
    }

    /// Whether it has returned from its disk, and those that have a view go on without it.
    pub(super) fn returns_in_vain(&self) -> bool {
        let core = &self.agent.host.member.core;
        let known = !self.founds_for_others || core.is_view_shared();
        self.returns && core.view().is_some() && known && !core.is_member()
    }

    /// The disk has failed: this replica steps aside, and the others go on without it.
    pub(super) fn step_aside(&mut self, stop: &Stop, error: &WalError) {
        tracing::error!(%error, "cannot write to the disk any more: this node ends, and the others go on without it");
        self.agent.instruments.counters.set(Counter::DiskErrno, error.errno());
        self.agent.publish();
        self.leave(stop);
    }
}

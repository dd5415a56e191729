//! One life of an application, as the desk knows it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::board::{Evidence, Slot, State};
use crate::{AppId, Resources};

/// A connected program, or one that was.
pub(super) type ProgramId = u32;

#[derive(Debug)]
pub(super) struct Life {
    pub(super) slot: Slot,
    pub(super) app: AppId,
    pub(super) state: State,
    pub(super) evidence: Option<Evidence>,
    pub(super) incarnation: u64,
    /// 0: this host.
    pub(super) host: u32,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) name: String,
    /// Of its process, once it lives.
    pub(super) pidfd: Option<Arc<OwnedFd>>,
    /// Whether the descriptor is watched for this life alone, as no program of ours is behind it.
    pub(super) is_from_outside: bool,
    /// The program that joined as it.
    pub(super) program: Option<ProgramId>,
    pub(super) monitors: BTreeMap<ProgramId, Resources>,
    /// The number of the last message that it sent.
    pub(super) seq: u64,
    /// How large these may be.
    pub(super) pbsize: u32,
    pub(super) at_ns: u64,
}

impl Life {
    pub(super) fn awaited(slot: Slot, app: AppId) -> Life {
        Life {
            slot,
            app,
            state: State::Awaited,
            evidence: None,
            incarnation: 0,
            host: 0,
            pid: 0,
            uid: 0,
            name: String::new(),
            pidfd: None,
            is_from_outside: false,
            program: None,
            monitors: BTreeMap::new(),
            seq: 0,
            pbsize: 0,
            at_ns: 0,
        }
    }

    /// With the monitors that the slot has had while it was awaited.
    pub(super) fn monitored_as(mut self, awaited: &mut Life) -> Life {
        self.monitors = std::mem::take(&mut awaited.monitors);
        self
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Failed | State::Left)
    }

    /// How large a message its monitors ask for.
    pub(super) fn asked_pbsize(&self) -> u32 {
        self.monitors.values().map(|want| want.pbsize).max().unwrap_or(0)
    }
}

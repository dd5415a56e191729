//! Asking the coordinators whether a view still stands (Algorithm 6): the next view's slot is empty at a majority.

use martlet_fabric::{Fabric, PeerId, Region, Remote};

use super::Read;
use crate::basics::layout::{Component, SLOT_WORDS};
use crate::basics::{Canary, Time, ViewNumber, ballot};

/// One round of questions at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Inquiry {
    /// Tells one round of questions from another; the low 40 bits stand in tokens.
    serial: u64,
    asked: Option<Time>,
    answered: u32,
    empty: u32,
    /// Rounds begun, ever.
    begun: u64,
    /// Rounds that found that the view stands, ever.
    won: u64,
}

/// A round of questions of one process, by its number in the order in which they began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

/// What a round of questions has found: at some moment after it had begun, a majority of the coordinators of this view held nothing for the next one. So that
/// one had not been decided when the round began, and nobody acted in it. No clock says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The round.
    pub round: Round,
    /// The view that stood. It says nothing of any other (TRAPS 3).
    pub view: ViewNumber,
}

/// What a round has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The view stood at some moment after this one, at which the round began.
    Stands(Time),
    /// It is superseded, perhaps.
    Taken,
}

impl Inquiry {
    /// An unanswered round is given up after a lease's time: too late to be of use.
    pub fn is_under_way(&self, now: Time, lease_ns: u64) -> bool {
        self.asked.is_some_and(|at| now.since(at) < lease_ns.max(1_000_000))
    }

    /// Gives up the round under way, if there is one.
    pub fn give_up(&mut self) {
        self.asked = None;
    }

    /// Forgets everything but which rounds there have been.
    pub fn restart(&mut self) {
        *self = Inquiry { serial: self.serial, begun: self.begun, won: self.won, ..Inquiry::default() };
    }

    /// The last round that has begun.
    pub fn latest(&self) -> Round {
        Round(self.begun)
    }

    /// How many rounds have found that the view stands.
    pub fn won(&self) -> u64 {
        self.won
    }

    /// Begins a round about `view`. `kind` says whose it is.
    pub fn ask<F: Fabric>(&mut self, now: Time, fabric: &mut F, kind: Read, view: ViewNumber, coordinators: &[Option<PeerId>]) {
        self.serial = (self.serial + 1) & 0xff_ffff_ffff;
        (self.asked, self.answered, self.empty) = (Some(now), 0, 0);
        self.begun += 1;
        let offset = ballot::slot_of(view.next()) * 8;
        for (i, peer) in coordinators.iter().enumerate() {
            if let Some(peer) = *peer {
                let at = Remote { peer, region: Region::Public(SLOT_WORDS), offset };
                let rest = ((kind as u64) << 48) | ((i as u64) << 40) | self.serial;
                fabric.read_word(at, Component::Membership.token(rest));
            }
        }
    }

    /// Whether an answer to the round of that serial is waited for.
    pub fn awaits(&self, serial: u64) -> bool {
        let stale = serial != self.serial && !Canary::StaleEvidence.is_planted();
        !stale && self.asked.is_some()
    }

    /// Takes an answer that was waited for: whether the slot is empty at one more coordinator, of `coordinators`.
    pub fn note(&mut self, empty: bool, coordinators: usize) -> Option<Finding> {
        let asked = self.asked?;
        self.answered += 1;
        self.empty += u32::from(empty);
        if self.answered < ballot::majority(coordinators) as u32 {
            return None;
        }
        self.asked = None;
        // The paper asks that all replies of the majority be empty. A further reply of the same round is no longer looked at.
        self.serial = (self.serial + 1) & 0xff_ffff_ffff;
        if self.empty < self.answered {
            return Some(Finding::Taken);
        }
        self.won += 1;
        Some(Finding::Stands(asked))
    }
}

//! Asking the coordinators whether a view is still current (Algorithm 6): it is if the next view's slot is empty at a majority.

use martlet_fabric::{Fabric, PeerId, Region, Remote};

use super::Read;
use crate::basics::layout::{Component, SLOT_WORDS};
use crate::basics::{Canary, Time, ViewNumber, ballot};

/// One round of questions at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Inquiry {
    /// Tells one round of questions from another; tokens carry its low 40 bits.
    serial: u64,
    asked: Option<Time>,
    answered: u32,
    empty: u32,
    /// Rounds begun, ever.
    begun: u64,
    /// Rounds that found the view current, ever.
    won: u64,
}

/// A round of questions of one process, numbered in the order in which the rounds began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

/// What a round of questions has found: at some moment after the round began, a majority of the coordinators of this view held nothing for the next
/// one. So the next view had not been decided when the round began, and no process acted in it. The proof relies on no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The round.
    pub round: Round,
    /// The view that was current. The proof says nothing about any other (TRAPS 3).
    pub view: ViewNumber,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The view was current at some moment after this time, at which the round began.
    Stands(Time),
    /// The view may have been superseded.
    Taken,
}

impl Inquiry {
    /// An unanswered round is given up after the length of one lease: its result would come too late to be of use.
    pub fn is_under_way(&self, now: Time, lease_ns: u64) -> bool {
        self.asked.is_some_and(|at| now.since(at) < lease_ns.max(1_000_000))
    }

    /// Gives up the round under way, if there is one.
    pub fn give_up(&mut self) {
        self.asked = None;
    }

    /// Forgets everything except which rounds there have been.
    pub fn restart(&mut self) {
        *self = Inquiry { serial: self.serial, begun: self.begun, won: self.won, ..Inquiry::default() };
    }

    /// The last round that has begun.
    pub fn latest(&self) -> Round {
        Round(self.begun)
    }

    /// How many rounds have found the view current.
    pub fn won(&self) -> u64 {
        self.won
    }

    /// Begins a round about `view`. `kind` says what the round is for.
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

    /// Whether an answer to the round with that serial is still awaited.
    pub fn awaits(&self, serial: u64) -> bool {
        let stale = serial != self.serial && !Canary::StaleEvidence.is_planted();
        !stale && self.asked.is_some()
    }

    /// Takes an awaited answer: whether the slot is empty at one more coordinator, out of `coordinators`.
    pub fn note(&mut self, empty: bool, coordinators: usize) -> Option<Finding> {
        let asked = self.asked?;
        self.answered += 1;
        self.empty += u32::from(empty);
        if self.answered < ballot::majority(coordinators) as u32 {
            return None;
        }
        self.asked = None;
        // The paper requires that all replies of the majority be empty. Further replies of the same round are ignored.
        self.serial = (self.serial + 1) & 0xff_ffff_ffff;
        if self.empty < self.answered {
            return Some(Finding::Taken);
        }
        self.won += 1;
        Some(Finding::Stands(asked))
    }
}

//! Whose word that a process is gone is believed, and how far.
//!
//! | source of the claim | what it is worth |
//! |---|---|
//! | the kernel of this host | certain; this process's own knowledge |
//! | the warden of the dead process's host, by a [certificate](crate::detector::certificate) | certain as well, whichever process brings it |
//! | the process itself, saying that it leaves | certain as well |
//! | a certificate that cannot be checked here | a presumption by the process that brings it |
//! | any other process, presuming it dead or asking for its eviction | a presumption or a wish for eviction |
//! | any other process, claiming that it is certainly dead or has left | a reason to look |
//!
//! So no lease is ever released merely because another member says so (TRAPS 29).

use martlet_fabric::{Fabric, NodeId};

use super::{Core, own_life};
use crate::basics::layout::life;
use crate::basics::{Canary, Mark, ProcessId, Time};
use crate::detector::certificate::{Pledge, Pledged};
use crate::detector::wardens::Secret;
use crate::membership::message::Message;
use crate::membership::view::Evidence;
use martlet_fabric::primitive::Ordering;

/// The source from which it is certain that a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel of this host has marked the death words of all its acting threads, or has ended its process.
    Kernel,
    /// The warden of its host has revealed this secret.
    Certificate(Secret),
}

/// Why a certificate proves nothing here. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disbelief {
    /// This process does not know what the process has pledged, or not yet.
    #[error("what the process has pledged is not known here")]
    Unknown,
    /// The process has pledged nothing, or something else: the certificate is forged, or belongs to another incarnation.
    #[error("the secret is not what the process has pledged")]
    Wrong,
}

impl Core {
    /// Pledges this secret, which is deposited with this host's warden: any process that shows it later proves that this process is gone. Call this
    /// before any peer is let in, once per incarnation, and with a secret that no other incarnation has pledged. Without a digest in the
    /// configuration it does nothing.
    pub fn pledge<F: Fabric>(&mut self, fabric: &F, secret: Secret) {
        let Some(digest) = self.config.digest else { return };
        for (word, value) in (life::PLEDGE..).zip(Pledge::of(&digest(&secret)).words()) {
            own_life(fabric)[word].store(value, Ordering::Release);
        }
        self.pledged = Some(secret);
    }

    /// Takes evidence that a process no longer acts: it is considered gone, and nothing waits for its lease. The evidence is passed on to the others,
    /// with the certificate if there is one, until a view excludes the process.
    ///
    /// # Errors
    /// When a certificate proves nothing here.
    pub fn handle_evidence<F: Fabric>(&mut self, now: Time, fabric: &mut F, process: ProcessId, source: Source) -> Result<(), Disbelief> {
        if let Source::Certificate(secret) = source {
            self.check(process, secret).inspect_err(|why| self.disbelieved += u64::from(*why == Disbelief::Wrong))?;
            Mark::Certified.reach();
            self.peers.note_proof(process, secret);
        }
        self.suspect(now, fabric, process, Evidence::Certain);
        Ok(())
    }

    /// Takes a certificate of a node's death from this host's warden. The warden does not know which incarnation it belongs to, so it is checked
    /// against each one that this process was connected with. Returns the incarnation.
    ///
    /// # Errors
    /// When the certificate belongs to none of them.
    pub fn handle_certificate<F: Fabric>(
        &mut self,
        now: Time,
        fabric: &mut F,
        node: NodeId,
        secret: Secret,
    ) -> Result<ProcessId, Disbelief> {
        let lives: Vec<ProcessId> = self.peers.lives_of(node).collect();
        // The incarnation that the secret fits; failing that, the newest one, for the error.
        let fits = lives.iter().copied().find(|life| self.check(*life, secret).is_ok());
        let process = fits.or(lives.into_iter().max()).ok_or(Disbelief::Unknown)?;
        self.handle_evidence(now, fabric, process, Source::Certificate(secret)).map(|()| process)
    }

    /// Certificates that did not fit what the process had pledged.
    pub fn disbelieved(&self) -> u64 {
        self.disbelieved
    }

    fn check(&self, process: ProcessId, secret: Secret) -> Result<(), Disbelief> {
        let digest = self.config.digest.ok_or(Disbelief::Unknown)?;
        match self.peers.pledged(process) {
            Pledged::This(pledge) if pledge == Pledge::of(&digest(&secret)) || Canary::UncheckedCertificate.is_planted() => Ok(()),
            Pledged::Unread => Err(Disbelief::Unknown),
            Pledged::Nothing | Pledged::This(_) => Err(Disbelief::Wrong),
        }
    }

    /// `teller` says that `process` is gone, and proves it.
    pub(super) fn hear_certificate<F: Fabric>(&mut self, now: Time, fabric: &mut F, teller: ProcessId, process: ProcessId, secret: Secret) {
        if process == self.config.me {
            // Its warden has revealed the secret although this process is alive: others release its lease, and it may have a successor already.
            if self.pledged == Some(secret) {
                Mark::CertifiedAlive.reach();
                self.exclude();
            }
        } else if self.handle_evidence(now, fabric, process, Source::Certificate(secret)) == Err(Disbelief::Unknown) {
            self.hear_notice(now, fabric, teller, process, Evidence::Presumed);
        }
    }

    /// `teller` says that `process` is gone.
    pub(super) fn hear_notice<F: Fabric>(&mut self, now: Time, fabric: &mut F, teller: ProcessId, process: ProcessId, evidence: Evidence) {
        if evidence.releases_leases() && !(evidence == Evidence::Left && teller == process) && !Canary::BelievedNotice.is_planted() {
            // This process looks for itself. If it merely presumed meanwhile what it is about to know for certain, it might act on the presumption.
            self.peers.watch(fabric);
            return;
        }
        // A process that is no member may be connected with one that a view has cut off. If its presumptions were heeded, or presumptions about it
        // were made, it would set members against each other that hear each other well.
        let is_member = |process| self.view.as_ref().is_some_and(|v| v.member(process).is_some());
        let counts = evidence != Evidence::Presumed || (is_member(teller) && is_member(self.config.me));
        // What others believe about this process is for other coordinators to decide on.
        if counts && process != self.config.me {
            self.hold_for_gone(now, fabric, process, evidence, true);
        }
    }

    /// Tells all others that a process is gone, with the proof if there is one.
    pub(super) fn tell_of_death<F: Fabric>(&mut self, fabric: &mut F, process: ProcessId, evidence: Evidence) {
        let proof = self.peers.proof(process).filter(|_| evidence == Evidence::Certain);
        let message = proof.map_or(Message::Notice { process, evidence }, |secret| Message::Certificate { process, secret });
        message.encode(&mut self.message);
        fabric.multicast(&self.message);
    }
}

//! The handshakes that are under way at a process: which makes room for which, which have taken too long, and how the others end.

use std::time::{Duration, Instant};

use super::admission::displaced;
use super::wire::Code;
use super::{Meeting, Refusal};
use crate::contract::NodeId;

/// One handshake, whatever carries it.
pub(crate) trait Handshake {
    /// What has been said.
    fn meeting(&self) -> &Meeting;

    /// Tells the other end why it is refused, if it still listens.
    fn turn_down(&mut self, refusal: &Refusal);
}

/// How a handshake fails.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(Refusal),
    /// The other end died, or gave up, or was never there.
    HungUp,
}

/// How a handshake has ended.
#[derive(Debug)]
pub(crate) enum End<P> {
    /// With a peer.
    Connected(P),
    /// With a refusal, by us or by the other end. Both know of it.
    Refused(Refusal),
    /// Without a refusal by either end, for this reason.
    Abandoned(&'static str),
}

/// The handshakes under way, in order of arrival, each with its deadline.
#[derive(Debug)]
pub(crate) struct Handshakes<H> {
    under_way: Vec<(Instant, H)>,
    /// How long one handshake may take in all.
    patience: Duration,
}

impl<H: Handshake> Handshakes<H> {
    /// None yet.
    pub(crate) fn new(patience: Duration) -> Handshakes<H> {
        Handshakes { under_way: Vec::new(), patience }
    }

    /// Makes room for an accepted connection: if there are too many, the deadline of another one becomes `now`.
    pub(crate) fn make_room(&mut self, now: Instant) {
        if let Some(at) = displaced(self.under_way.iter().map(|(_, handshake)| handshake.meeting().standing())) {
            self.under_way[at].0 = now;
        }
    }

    /// Adds one that has begun.
    pub(crate) fn add(&mut self, handshake: H, now: Instant) {
        self.under_way.push((now + self.patience, handshake));
    }

    /// Whether we are shaking hands with a node that we have dialled.
    pub(crate) fn dials(&self, node: NodeId) -> bool {
        self.under_way.iter().any(|(_, handshake)| handshake.meeting().target == Some(node))
    }

    /// All of them. [`Handshakes::advance`] identifies each by its position here.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &H> {
        self.under_way.iter().map(|(_, handshake)| handshake)
    }

    /// The earliest deadline.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.under_way.iter().map(|(end, _)| *end).min()
    }

    /// Continues the handshake at position `at`, for which something has arrived. If that ends it, it is removed, and those after it move up.
    pub(crate) fn advance<P>(&mut self, at: usize, take: impl FnOnce(&mut H) -> Result<Option<P>, Failure>) -> Option<(H, End<P>)> {
        let (_, handshake) = &mut self.under_way[at];
        let end = match take(handshake) {
            Ok(None) => return None,
            Ok(Some(peer)) => End::Connected(peer),
            Err(Failure::Refused(refusal)) => {
                handshake.turn_down(&refusal);
                End::Refused(refusal)
            }
            Err(Failure::HungUp) => End::Abandoned("it hung up, or is not there"),
        };
        Some((self.under_way.remove(at).1, end))
    }

    /// Refuses and removes those whose deadline has passed, and says why.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(H, String)> {
        let patience = self.patience;
        let late = self.under_way.extract_if(.., |(end, _)| *end <= now);
        late.map(|(_, mut handshake)| {
            let why = format!("the handshake was not over in {patience:?}, or too many were under way");
            handshake.turn_down(&Refusal::new(Code::Mismatch, why.clone()));
            (handshake, why)
        })
        .collect()
    }
}

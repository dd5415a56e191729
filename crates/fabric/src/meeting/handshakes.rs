//! The handshakes that are under way at a process: who makes room for whom, who has taken too long, and what comes of those that go on.

use std::time::{Duration, Instant};

use super::admission::displaced;
use super::wire::Code;
use super::{Meeting, Refusal};
use crate::contract::NodeId;

/// One handshake, whatever carries it.
pub(crate) trait Handshake {
    /// What has been said.
    fn meeting(&self) -> &Meeting;

    /// Tells the other end why it is turned down, as far as it listens.
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
    /// With a refusal, by us or by the other end; both know.
    Refused(Refusal),
    /// Without anybody having decided so, for this reason.
    Abandoned(&'static str),
}

/// Those under way, in order of arrival, each with the time at which patience ends.
#[derive(Debug)]
pub(crate) struct Handshakes<H> {
    under_way: Vec<(Instant, H)>,
    /// How long one may take in all.
    patience: Duration,
}

impl<H: Handshake> Handshakes<H> {
    /// None yet.
    pub(crate) fn new(patience: Duration) -> Handshakes<H> {
        Handshakes { under_way: Vec::new(), patience }
    }

    /// An accepted connection is to be added: where there are too many, the patience with another ends now.
    pub(crate) fn make_room(&mut self, now: Instant) {
        if let Some(at) = displaced(self.under_way.iter().map(|(_, handshake)| handshake.meeting().standing())) {
            self.under_way[at].0 = now;
        }
    }

    /// One has begun.
    pub(crate) fn add(&mut self, handshake: H, now: Instant) {
        self.under_way.push((now + self.patience, handshake));
    }

    /// Whether we are shaking hands with a node that we have dialled.
    pub(crate) fn dials(&self, node: NodeId) -> bool {
        self.under_way.iter().any(|(_, handshake)| handshake.meeting().target == Some(node))
    }

    /// All of them; [`Handshakes::advance`] knows each by its place here.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &H> {
        self.under_way.iter().map(|(_, handshake)| handshake)
    }

    /// When patience with one ends next.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.under_way.iter().map(|(end, _)| *end).min()
    }

    /// Goes on with the one at that place, of which something has arrived. Takes it out if it has come to an end; those behind it move up.
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

    /// Turns down and takes out those with which patience has ended, and says why.
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

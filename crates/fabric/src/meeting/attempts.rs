//! A process's attempts to connect, its own and those of others: which nodes it dials, which handshakes are under way, and when it accepts
//! connections. The attempts belong to a bootstrap thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::Refusal;
use super::dialer::Dialer;
use super::handshakes::{Handshake, Handshakes};
use super::watch::Watch;
use crate::contract::NodeId;
use crate::exchange::Exchange;

/// How long a bootstrap thread rests after an error such as a shortage of descriptors or of kernel memory.
pub(crate) const REST: Duration = Duration::from_millis(100);

/// How long handshakes and pauses last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// How long a handshake may take in all.
    pub(crate) handshake: Duration,
    /// The first and the longest pause between two attempts to reach a node.
    pub(crate) first_pause: Duration,
    pub(crate) longest_pause: Duration,
}

/// Attempts whose handshakes are `H`, at nodes with addresses `A`.
#[derive(Debug)]
pub(crate) struct Attempts<H, A> {
    pub(crate) dialer: Dialer<A>,
    pub(crate) handshakes: Handshakes<H>,
    /// Whether connections are accepted; until then they wait in the listener.
    pub(crate) open: bool,
    /// If accepting has failed, the time at which it is tried again.
    accepts_again: Option<Instant>,
}

impl<H: Handshake, A: Copy> Attempts<H, A> {
    pub(crate) fn new(times: Times, open: bool) -> Attempts<H, A> {
        Attempts {
            dialer: Dialer::new(times.first_pause, times.longest_pause),
            handshakes: Handshakes::new(times.handshake),
            open,
            accepts_again: None,
        }
    }

    /// From now on, tries to connect to a node at `at`, and accepts connections from others.
    pub(crate) fn connect(&mut self, node: NodeId, at: A) {
        self.open = true;
        self.dialer.want(node, at, Instant::now());
    }

    /// Adds to `watch` the listener, if connections are accepted now, and the times at which handshakes expire. The caller adds the handshakes'
    /// sockets.
    pub(crate) fn watch<'a, S>(&self, watch: &mut Watch<'a, S>, listener: Option<BorrowedFd<'a>>, source: S) {
        match (listener.filter(|_| self.open), self.accepts_again) {
            (Some(_), Some(when)) => watch.at_latest(when),
            (Some(listener), None) => watch.add(source, PollFd::from_borrowed_fd(listener, PollFlags::IN)),
            (None, _) => {}
        }
        if let Some(end) = self.handshakes.next_end() {
            watch.at_latest(end);
        }
    }

    /// Takes what a look at the listener has found. Makes room for the handshake of the connection that it returns.
    pub(crate) fn accepted<T>(&mut self, found: io::Result<Option<T>>) -> Option<T> {
        let now = Instant::now();
        match found {
            Ok(socket) => {
                if socket.is_some() {
                    self.handshakes.make_room(now);
                }
                socket
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept connections for now");
                self.accepts_again = Some(now + REST);
                None
            }
        }
    }

    /// An attempt has failed. If we dialled a node, the next attempt is put off.
    pub(crate) fn failed(&mut self, target: Option<NodeId>) {
        if let Some(node) = target {
            self.dialer.pause(node, Instant::now());
        }
    }

    /// A handshake ended in a refusal.
    pub(crate) fn refused<N, C>(&mut self, exchange: &Exchange<N, C>, handshake: &H, refusal: &Refusal) {
        exchange.report_refusal(&handshake.meeting().peer_name(), refusal);
        self.failed(handshake.meeting().target);
    }

    /// A handshake ended without either end having refused.
    pub(crate) fn abandoned<N, C>(&mut self, exchange: &Exchange<N, C>, handshake: &H, why: &str) {
        exchange.report_abandoned(&handshake.meeting().peer_name(), why);
        self.failed(handshake.meeting().target);
    }

    /// Ends what is over by `now`: a rest from accepting, and handshakes that took too long.
    pub(crate) fn pass_time<N, C>(&mut self, exchange: &Exchange<N, C>, now: Instant) {
        self.accepts_again = self.accepts_again.filter(|when| *when > now);
        for (handshake, why) in self.handshakes.expire(now) {
            self.abandoned(exchange, &handshake, &why);
        }
    }
}

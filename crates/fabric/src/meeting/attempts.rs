//! A process's attempts at connections, its own and those of others: whom it dials, the handshakes under way, and when it accepts. It belongs to a bootstrap thread.

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
    /// Until when they are not, after an error.
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

    /// A node is to be connected with, at `at` from now on; and whoever dials us is heard.
    pub(crate) fn connect(&mut self, node: NodeId, at: A) {
        self.open = true;
        self.dialer.want(node, at, Instant::now());
    }

    /// Waits for what is to be accepted, if anything is now, and for the ends of handshakes. The caller adds their sockets.
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

    /// What a look at the listener has found. There is room for the handshake of what it returns.
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

    /// An attempt has failed: if it was at a node, the next one is put off.
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

    /// A handshake came to nothing without anybody having decided so.
    pub(crate) fn abandoned<N, C>(&mut self, exchange: &Exchange<N, C>, handshake: &H, why: &str) {
        exchange.report_abandoned(&handshake.meeting().peer_name(), why);
        self.failed(handshake.meeting().target);
    }

    /// Ends what has lasted long enough by then: a rest from accepting, and handshakes.
    pub(crate) fn pass_time<N, C>(&mut self, exchange: &Exchange<N, C>, now: Instant) {
        self.accepts_again = self.accepts_again.filter(|when| *when > now);
        for (handshake, why) in self.handshakes.expire(now) {
            self.abandoned(exchange, &handshake, &why);
        }
    }
}

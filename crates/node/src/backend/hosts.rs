//! What fabrics between hosts have in common: nodes that meet at addresses of the configuration, and a thread that sleeps among descriptors.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use martlet_fabric::NodeId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::enter;
use crate::config::{Cluster, NodeEntry};

/// Where a node of the cluster listens.
pub(super) fn address_of(cluster: &Cluster, node: NodeId) -> SocketAddr {
    cluster.node(node).and_then(NodeEntry::meeting_point).expect("a validated cluster of several hosts has an address for each node")
}

/// The claim to found the cluster. Hosts share nothing that could be locked, so the claim belongs to the first node of the configuration that may found.
pub(super) fn claim_founding(cluster: &Cluster, me: NodeId) -> Option<()> {
    let founder = cluster.config().nodes.iter().find(|node| node.may_found());
    founder.is_some_and(|node| node.number == me.0).then_some(())
}

/// What ends a sleep of a node's thread, besides its fabric: the node's stop, and the application's sockets.
#[derive(Debug)]
pub(super) struct Sources {
    stop: OwnedFd,
    sockets: Option<OwnedFd>,
}

impl Sources {
    /// See [`super::Rest::start`].
    pub(super) fn new(sockets: Option<BorrowedFd<'_>>, stop: BorrowedFd<'_>) -> io::Result<Sources> {
        if let Some(sockets) = sockets {
            enter(sockets, stop)?;
        }
        Ok(Sources { stop: stop.try_clone_to_owned()?, sockets: sockets.map(|fd| fd.try_clone_to_owned()).transpose()? })
    }

    pub(super) fn have_sockets(&self) -> bool {
        self.sockets.is_some()
    }

    /// Sleeps until one of them, or the fabric's own descriptor, has something, or for at most so many nanoseconds.
    pub(super) fn wait(&self, fabric: Option<BorrowedFd<'_>>, at_most_ns: u64) {
        let all = [Some(self.stop.as_fd()), fabric, self.sockets.as_ref().map(|fd| fd.as_fd())];
        let mut fds: Vec<PollFd<'_>> = all.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: (at_most_ns / 1_000_000_000) as i64, tv_nsec: (at_most_ns % 1_000_000_000) as i64 };
        // An error ends the sleep as well.
        let _ = poll(&mut fds, Some(&timeout));
    }
}

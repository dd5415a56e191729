//! Who founds the cluster: decides its first view, all by itself.
//!
//! A cluster may be founded once only, or there would be two. On one host that can be made certain without asking anybody to decide: a view
//! comes from a founder or, in a chain, from a process that has one; so if no process has one, nobody can get one but by founding. A founder
//! therefore
//!
//! 1. holds a lock: an abstract socket name that one process of the host can have, and that goes with it;
//! 2. sees of every other node that it is not running (nobody holds its name, and a process takes its name before all else), or that it is
//!    connected and its board shows no view. A node that runs but is not connected, a paused one say, may have a view: wait for it;
//! 3. sees all of this twice in a row, so that no view can have moved behind its back from a node looked at later to one looked at earlier.
//!
//! When all processes of a cluster have died their state has died with them; the first to be started again founds it anew.

use std::io;
use std::os::fd::OwnedFd;

use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::shm::{self, ShmFabric};
use martlet_fabric::{NodeId, PeerId};
use martlet_protocol::basics::layout::BOARD;
use martlet_protocol::basics::{ProcessId, Time};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Between two looks, in nanoseconds.
const LOOK_INTERVAL_NS: u64 = 2_000_000;
/// How many looks in a row must find nobody with a view.
const LOOKS: u32 = 2;

/// A process that may found its cluster, as long as it knows no view.
#[derive(Debug)]
pub(crate) struct Founding {
    cluster: String,
    others: Vec<NodeId>,
    lock: Option<OwnedFd>,
    clear_looks: u32,
    next: Time,
}

impl Founding {
    pub fn new(cluster: &str, others: Vec<NodeId>) -> Founding {
        Founding { cluster: cluster.to_owned(), others, lock: None, clear_looks: 0, next: Time(0) }
    }

    /// When the next look is due.
    pub fn due(&self) -> Time {
        self.next
    }

    /// Looks around, if it is time. Returns `true` when this process is to found the cluster now; the lock is held until then and given up
    /// by dropping `self`, once the view stands on the board.
    ///
    /// # Errors
    /// When the system cannot tell who runs.
    pub fn look(&mut self, now: Time, fabric: &ShmFabric, members: &[(PeerId, ProcessId)]) -> io::Result<bool> {
        if now < self.next {
            return Ok(false);
        }
        self.next = now.after(LOOK_INTERVAL_NS);
        if self.lock.is_none() {
            self.clear_looks = 0;
            self.lock = take_lock(&self.cluster)?;
        }
        let clear = self.lock.is_some() && self.nobody_has_a_view(fabric, members)?;
        self.clear_looks = if clear { self.clear_looks + 1 } else { 0 };
        if !clear {
            // Somebody who has none of our trouble may go ahead.
            self.lock = None;
        }
        Ok(self.clear_looks >= LOOKS)
    }

    fn nobody_has_a_view(&self, fabric: &ShmFabric, members: &[(PeerId, ProcessId)]) -> io::Result<bool> {
        for node in &self.others {
            // Every connection of that node: an earlier life may still be listed while it dies.
            let mut connected = false;
            for (peer, _) in members.iter().filter(|(peer, process)| process.node == *node && !fabric.is_gone(*peer)) {
                connected = true;
                let Some(board) = fabric.peer_memory(*peer, BOARD) else { return Ok(false) };
                let number = board[0].load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if number != 0 {
                    return Ok(false);
                }
            }
            if !connected && shm::is_running(&self.cluster, *node)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn take_lock(cluster: &str) -> io::Result<Option<OwnedFd>> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let name = SocketAddrUnix::new_abstract_name(format!("martlet/{cluster}/founding").as_bytes())?;
    match rustix::net::bind(&socket, &name) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_of_a_host_has_the_lock_and_it_goes_with_it() {
        let cluster = format!("lock-test-{}", std::process::id());
        let lock = take_lock(&cluster).expect("a socket");
        assert!(lock.is_some());
        assert!(take_lock(&cluster).expect("a socket").is_none());
        assert!(take_lock(&format!("{cluster}-other")).expect("a socket").is_some());
        drop(lock);
        assert!(take_lock(&cluster).expect("a socket").is_some());
    }
}

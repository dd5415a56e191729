//! Who founds the cluster: decides its first view, all by itself.
//!
//! A cluster may be founded once only, or there would be two. That can be made certain without asking anybody to decide: a view comes from a
//! founder or, in a chain, from a process that has one; so if no process has one, nobody can get one but by founding. A founder therefore
//!
//! 1. has the claim, which one process of the cluster can have at a time: on one host a name that goes with the process; over a network
//!    the first node of the configuration that may found is the one;
//! 2. sees of every other node that it is not running (which can be known on one host only), or that it is connected and its board shows no
//!    view. A node that may be running but is not connected, a paused one say, may have a view: wait for it;
//! 3. sees all of this twice in a row, of the same processes, so that no view can have moved behind its back from a node looked at later to one
//!    looked at earlier: a process that has had a view never shows none again.
//!
//! When all processes of a cluster have died their state has died with them. On one host the first to be started again founds it anew; over a
//! network all of them have to be back, since a node that is not heard from may be alive.

use std::io;

use martlet_fabric::{Completion, NodeId, PeerId, Region, Remote};
use martlet_protocol::basics::layout::{BOARD, Component, token_rest};
use martlet_protocol::basics::{ProcessId, Time};

use crate::backend::Backend;
use crate::config::Cluster;

/// Between two looks, in nanoseconds.
const LOOK_INTERVAL_NS: u64 = 2_000_000;
/// How many looks in a row must find nobody with a view.
const LOOKS: u32 = 2;

/// A process that may found its cluster, as long as it knows no view.
#[derive(Debug)]
pub(crate) struct Founding<F: Backend> {
    me: NodeId,
    others: Vec<NodeId>,
    claim: Option<F::Claim>,
    /// Looks in a row that found nobody with a view.
    clear_looks: u32,
    next: Time,
    /// The look that is under way.
    look: Option<Look>,
    /// Whom the look before it saw.
    seen: Vec<PeerId>,
}

#[derive(Debug)]
struct Look {
    peers: Vec<PeerId>,
    /// Boards not read yet.
    pending: usize,
    clear: bool,
}

impl<F: Backend> Founding<F> {
    pub fn new(cluster: &Cluster, me: NodeId) -> Founding<F> {
        let others = cluster.config().nodes.iter().map(|n| NodeId(n.number)).filter(|n| *n != me).collect();
        Founding { me, others, claim: None, clear_looks: 0, next: Time(0), look: None, seen: Vec::new() }
    }

    /// When it has to be asked again.
    pub fn due(&self) -> Time {
        if self.look.is_some() { Time(0) } else { self.next }
    }

    /// Looks around, if it is time. Returns `true` when this process is to found the cluster now; the claim is held until then and given up
    /// by dropping `self`, once the view stands on the board.
    ///
    /// # Errors
    /// When the system cannot tell who runs.
    pub fn look(&mut self, now: Time, cluster: &Cluster, fabric: &mut F, members: &[(PeerId, ProcessId)]) -> io::Result<bool> {
        match &self.look {
            Some(look) if look.pending > 0 => return Ok(false),
            Some(_) => {}
            None if now < self.next => return Ok(false),
            None => {
                self.next = now.after(LOOK_INTERVAL_NS);
                if self.claim.is_none() {
                    self.clear_looks = 0;
                    self.claim = F::claim_founding(cluster, self.me)?;
                }
                if self.claim.is_none() {
                    return Ok(false);
                }
                self.look = Some(self.begin(cluster, fabric, members)?);
                return Ok(false);
            }
        }
        let look = self.look.take().expect("just matched");
        let same = look.peers == self.seen;
        self.clear_looks = match (look.clear, same) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.clear_looks + 1,
        };
        self.seen = look.peers;
        if !look.clear {
            // Somebody who has none of our trouble may go ahead.
            self.claim = None;
        }
        Ok(self.clear_looks >= LOOKS)
    }

    /// Begins to read the boards of all who are connected.
    fn begin(&self, cluster: &Cluster, fabric: &mut F, members: &[(PeerId, ProcessId)]) -> io::Result<Look> {
        let mut look = Look { peers: Vec::with_capacity(members.len()), pending: 0, clear: true };
        for node in &self.others {
            // Every connection of that node: an earlier life may still be listed while it dies.
            let before = look.pending;
            for (peer, _) in members.iter().filter(|(_, process)| process.node == *node) {
                look.peers.push(*peer);
                look.pending += 1;
                let board = Remote { peer: *peer, region: Region::Public(BOARD), offset: 0 };
                fabric.read_word(board, Component::Founding.token(u64::from(peer.0)));
            }
            look.clear &= look.pending > before || F::is_absent(cluster, *node)?;
        }
        Ok(look)
    }

    /// A board has been read.
    pub fn handle_completion(&mut self, completion: Completion) {
        let Some(look) = &mut self.look else { return };
        if look.peers.contains(&PeerId(token_rest(completion.token) as u32)) {
            look.pending -= 1;
            look.clear &= completion.result == Ok(0);
        }
    }
}

//! Zombies (DARE section 5): servers whose processor is dead but whose memory still answers.
//!
//! On shared memory a killed process is a zombie for as long as a peer maps its memory. The leader to which it had given access to its log continues to write
//! there, and those writes count for a majority: a dead server gives access to no other process, and votes for none. A zombie counts for nothing else. It
//! applies nothing, so it does not hold up pruning. Nothing in its lane is consumed, so at most one lap can be written. Its term is not read. And that it has
//! an entry is no reason to hand leadership over, or to remove or add a process.
//!
//! What a zombie holds is lost with its memory, and perhaps no living server has it. So it counts only as long as the living servers that have given the leader
//! access to their logs are no majority. It is removed as soon as the service does not depend on it, and after a set time it no longer counts in any case. It
//! is not removed earlier: a change of the group is in force from the moment it is in a log, so the entry that removes the zombie could not be committed.

use martlet_fabric::PeerId;

use super::Dare;
use super::follower::{Follower, Phase};
use super::leading::Reign;
use super::log::Log;
use crate::basics::{Canary, LogIndex, Mark, ProcessId, Time};
use crate::replica::group::Group;

/// What a leader knows of its zombies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Zombies {
    /// Whether there are any.
    any: bool,
    /// Whether they count, because the living servers do not suffice.
    count: bool,
}

impl Dare {
    /// The dead processes whose memory at present counts for a majority of this leader's log writes.
    pub fn counted_zombies(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let followers = self.reign.iter().flat_map(|reign| &reign.followers);
        followers.filter(|f| f.is_zombie() && f.counts && f.is_following()).map(|f| f.process)
    }

    /// A dead process for which this leader waits before it prunes its log, which it should not do.
    pub fn dead_that_is_waited_for(&self) -> Option<ProcessId> {
        let reign = self.reign.as_ref()?;
        let waits_for = |f: &&Follower| f.is_zombie() && reign.head_waits_for == Some(f.process);
        reign.followers.iter().find(waits_for).map(|f| f.process)
    }

    /// Whether this server hears a leader, and takes part in no election, neither as voter nor as candidate.
    pub fn is_at_rest(&self) -> bool {
        self.election.is_at_rest() && self.access.purpose.is_none() && self.reign.is_none()
    }

    /// Whether a server is known to be dead but a planted bug has it vote all the same.
    pub(super) fn votes_as_zombie(&self, process: ProcessId) -> bool {
        Canary::DareZombieVotes.is_planted() && self.peers.iter().any(|p| p.process == process && p.watch.certain)
    }
}

impl Reign {
    /// The process of this peer is dead for certain. If its log was being written, its memory may count for `zombies_ns` from now on; otherwise it does not
    /// count.
    pub(super) fn note_death(&mut self, peer: PeerId, now: Time, zombies_ns: u64) {
        let follower = self.followers.iter_mut().find(|f| f.peer == peer);
        let Some(follower) = follower.filter(|f| f.phase == Phase::Following && zombies_ns > 0) else { return self.lose(peer) };
        Mark::DareZombies.reach();
        self.head_waits_for = self.head_waits_for.filter(|process| *process != follower.process);
        (follower.zombie_until, follower.counts) = (Some(now.after(zombies_ns)), self.zombies.count);
        self.zombies.any = true;
        self.quorums.forget();
    }

    /// Whether it counts zombies, because the living servers do not suffice.
    pub(super) fn counts_zombies(&self) -> bool {
        self.zombies.count
    }

    /// Drops zombies whose time is over, that have left the group, or whose memory no longer answers, and determines whether the others count.
    #[inline]
    pub(super) fn mind_zombies(&mut self, now: Time, log: &Log, is_alive: impl Fn(PeerId) -> bool) {
        if self.zombies.any {
            self.count_zombies(now, log, is_alive);
        }
    }

    #[cold]
    fn count_zombies(&mut self, now: Time, log: &Log, is_alive: impl Fn(PeerId) -> bool) {
        let group = log.group();
        for at in 0..self.followers.len() {
            let follower = &self.followers[at];
            let Some(until) = follower.zombie_until else { continue };
            let is_over = now >= until && !Canary::DareForeverZombie.is_planted();
            if is_over || !follower.is_following() || !group.is_some_and(|group| group.contains(follower.process)) {
                if is_over {
                    Mark::DareZombieEnds.reach();
                }
                self.lose(follower.peer);
            }
        }
        self.zombies.any = self.followers.iter().any(Follower::is_zombie);
        let lives = |id: ProcessId| {
            id == self.me
                || self.followers.iter().any(|f| f.process == id && !f.is_zombie() && f.is_following() && f.holds && is_alive(f.peer))
        };
        let count = self.zombies.any && !group.is_some_and(|group| group.is_majority(lives));
        if count && !self.zombies.count {
            Mark::DareZombiesCount.reach();
        }
        self.zombies.count = count;
        for follower in self.followers.iter_mut() {
            follower.counts = count || !follower.is_zombie();
        }
        self.quorums.forget();
    }

    /// Whether a member may be removed. It may unless it is a zombie on which the service may depend, because the up-to-date servers, living ones and other
    /// zombies, do not suffice without it.
    pub(super) fn may_remove(&self, process: ProcessId, group: &Group, committed: LogIndex, is_alive: impl Fn(PeerId) -> bool) -> bool {
        if !self.followers.iter().any(|f| f.process == process && f.is_zombie()) {
            return true;
        }
        let is_level = |f: &Follower| (f.is_zombie() || is_alive(f.peer)) && f.held().is_some_and(|held| held >= committed);
        let stays = |id: ProcessId| id == self.me || self.followers.iter().any(|f| f.process == id && is_level(f));
        // A change that is under way completes first.
        let stable = group.stabilised();
        stable.as_ref().unwrap_or(group).without(process).is_some_and(|next| next.is_majority(stays))
    }
}

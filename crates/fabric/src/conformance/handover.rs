//! Promise 6 once more: every order in which two writers write while their owner takes the permission from one and gives it to the other.

use super::Harness;
use super::cluster::{Cluster, LANE, LANE_BYTES, bytes_of, words_of};
use crate::contract::{Fabric, LocalRegion, OpError, Remote, Token};

/// Words of one record.
const WORDS: usize = 4;
/// Places for records in a lane.
const PLACES: u64 = (LANE_BYTES / 8 / WORDS) as u64;
/// The process that owns the lanes; the others write.
const OWNER: usize = 2;

/// Something that one of the processes does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// A writer posts a record.
    Write(usize),
    /// A writer waits for what it has posted.
    Finish(usize),
    /// The owner posts the revocation of the permission that is granted.
    Revoke,
    /// The owner waits for that revocation, and reads the lane.
    Take,
    /// The owner lets the other writer write.
    Grant,
}

const ACTS: [Act; 7] = [Act::Write(0), Act::Write(1), Act::Finish(0), Act::Finish(1), Act::Revoke, Act::Take, Act::Grant];

/// Which process may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    Held(usize),
    /// Its revocation has been posted.
    Going(usize, Token),
    /// No process may write; this one was the last.
    Gone(usize),
}

/// A record on its way.
struct Posted {
    token: Token,
    serial: u64,
    /// Whether it may still succeed: it was not missing when the owner took its lane.
    hopeful: bool,
    /// Whether its writer held the permission when it was posted.
    held: bool,
    /// Whether its writer was losing the permission at that time.
    losing: bool,
    /// How often its writer had then been given the permission, and how often it had lost it.
    grants: u32,
    revocations: u32,
}

struct World<H: Harness> {
    cluster: Cluster<H>,
    permission: Permission,
    /// Numbers every record. Numbers never repeat, so the contents of a place say which record they belong to.
    serial: u64,
    /// Posted and not finished, by writer.
    posted: [Vec<Posted>; 2],
    /// By writer.
    grants: [u32; 2],
    revocations: [u32; 2],
    /// Records whose writers were told, since the lane was last taken, that they succeeded.
    succeeded: [Vec<u64>; 2],
    /// Makes what a writer is told out of the real result. A canary changes it.
    told: fn(Result<u64, OpError>) -> Result<u64, OpError>,
}

impl<H: Harness> World<H> {
    fn new(round: u64, told: fn(Result<u64, OpError>) -> Result<u64, OpError>) -> World<H> {
        let cluster = Cluster::connected(round, 3);
        let mut world = World {
            cluster,
            permission: Permission::Held(1),
            serial: 0,
            posted: Default::default(),
            grants: [0; 2],
            revocations: [0; 2],
            succeeded: Default::default(),
            told,
        };
        // Both fresh lanes are granted, which is one too many.
        world.act(Act::Revoke);
        world.act(Act::Take);
        world.act(Act::Grant);
        world
    }

    /// Whether this act is possible now.
    fn may(&self, act: Act) -> bool {
        match act {
            Act::Write(writer) => self.posted[writer].len() < 3,
            Act::Finish(writer) => !self.posted[writer].is_empty(),
            Act::Revoke => matches!(self.permission, Permission::Held(_)),
            Act::Take => matches!(self.permission, Permission::Going(..)),
            Act::Grant => matches!(self.permission, Permission::Gone(_)),
        }
    }

    fn act(&mut self, act: Act) {
        match (act, self.permission) {
            (Act::Write(writer), _) => {
                self.serial += 1;
                let place = (self.serial % PLACES) as usize * WORDS;
                let at: Remote = self.cluster.lane(writer, OWNER, place);
                let token = self.cluster.token();
                self.cluster.harness.fabric(writer).write(at, &bytes_of(&[self.serial; WORDS]), token);
                let (held, losing) = (self.permission == Permission::Held(writer), self.going(writer));
                let (grants, revocations) = (self.grants[writer], self.revocations[writer]);
                self.posted[writer].push(Posted { token, serial: self.serial, hopeful: true, held, losing, grants, revocations });
            }
            (Act::Finish(writer), _) => {
                for posted in std::mem::take(&mut self.posted[writer]) {
                    let serial = posted.serial;
                    match (self.told)(self.cluster.complete(writer, posted.token)) {
                        Ok(_) => {
                            assert!(
                                posted.hopeful,
                                "record {serial} of writer {writer} was not there when its lane was taken, and completed Ok"
                            );
                            let ever = posted.held || posted.losing || self.grants[writer] > posted.grants;
                            assert!(ever, "record {serial} of writer {writer}, which had no permission, completed Ok");
                            self.succeeded[writer].push(serial);
                        }
                        Err(error) => {
                            assert_eq!(error, OpError::AccessLost);
                            let throughout = posted.held && self.revocations[writer] == posted.revocations;
                            assert!(!throughout, "record {serial} of writer {writer} failed, which held the permission throughout");
                        }
                    }
                }
            }
            (Act::Revoke, Permission::Held(writer)) => {
                let (peer, token) = (self.cluster.peer(OWNER, writer), self.cluster.token());
                self.cluster.harness.fabric(OWNER).revoke(peer, LANE, token);
                self.revocations[writer] += 1;
                self.permission = Permission::Going(writer, token);
            }
            (Act::Take, Permission::Going(writer, token)) => {
                assert_eq!(self.cluster.complete(OWNER, token), Ok(0));
                self.take(writer);
                self.permission = Permission::Gone(writer);
            }
            (Act::Grant, Permission::Gone(writer)) => {
                let next = 1 - writer;
                let peer = self.cluster.peer(OWNER, next);
                self.cluster.harness.fabric(OWNER).grant(peer, LANE);
                // The writer relies on the grant once it sees what the owner did after it.
                let word = self.cluster.public(OWNER, next, 0);
                assert_eq!(self.cluster.write(OWNER, word, &[self.serial]), Ok(0));
                self.grants[next] += 1;
                self.permission = Permission::Held(next);
            }
            (act, permission) => unreachable!("{act:?} while {permission:?}"),
        }
    }

    /// Whether that writer's permission is being revoked: it may or may not still have it.
    fn going(&self, writer: usize) -> bool {
        matches!(self.permission, Permission::Going(w, _) if w == writer)
    }

    /// The owner reads the lane that it has just taken. All that succeeded is there, and what is not completely there can no longer succeed.
    fn take(&mut self, writer: usize) {
        let peer = self.cluster.peer(OWNER, writer);
        let words = words_of(self.cluster.memory(OWNER, LocalRegion::Lane { writer: peer, name: LANE }));
        let is_whole = |serial: u64| {
            let place = (serial % PLACES) as usize * WORDS;
            words[place..place + WORDS].iter().all(|word| *word == serial)
        };
        for serial in self.succeeded[writer].drain(..) {
            assert!(is_whole(serial), "record {serial} of writer {writer} completed Ok, and is not there when the lane is taken");
        }
        for posted in &mut self.posted[writer] {
            posted.hopeful &= is_whole(posted.serial);
        }
    }

    /// Ends everything that is under way and restores the initial permission.
    fn settle(&mut self) {
        (0..2).filter(|w| !self.posted[*w].is_empty()).collect::<Vec<_>>().into_iter().for_each(|w| self.act(Act::Finish(w)));
        loop {
            match self.permission {
                Permission::Held(0) => return,
                Permission::Held(_) => self.act(Act::Revoke),
                Permission::Going(..) => self.act(Act::Take),
                Permission::Gone(_) => self.act(Act::Grant),
            }
        }
    }
}

/// Every order of at most [`Harness::hand_over_acts`] acts (five, in random rounds): two writers that post and finish records, and their owner that
/// hands the permission over. What completes `Ok` was in the lane, whole, when the owner took it. What was not there then fails, even if its writer
/// gets the permission back before it looks. A writer that holds the permission throughout loses nothing.
pub fn no_order_of_writes_and_hand_overs_loses_what_succeeded<H: Harness>(round: u64) {
    every_order_of_hand_overs::<H>(round, |result| result);
}

/// The same, but writers are told what `told` makes of the truth: for canaries.
pub fn every_order_of_hand_overs<H: Harness>(round: u64, told: fn(Result<u64, OpError>) -> Result<u64, OpError>) {
    let mut world = World::<H>::new(round, told);
    let longest = if round == 0 { H::hand_over_acts() } else { 5 };
    let mut order: Vec<usize> = Vec::new();
    let mut orders = 0u64;
    // Depth first over all orders. Each is run from a settled start, since a real fabric cannot be copied.
    loop {
        let possible = order.iter().all(|&act| {
            let possible = world.may(ACTS[act]);
            if possible {
                world.act(ACTS[act]);
            }
            possible
        });
        world.settle();
        orders += u64::from(possible && order.len() == longest);
        if possible && order.len() < longest {
            order.push(0);
            continue;
        }
        loop {
            match order.last_mut() {
                None => {
                    assert!(orders > 100, "{orders} orders are no exploration");
                    return;
                }
                Some(last) if *last + 1 < ACTS.len() => {
                    *last += 1;
                    break;
                }
                Some(_) => {
                    order.pop();
                }
            }
        }
    }
}

//! How a replica teaches others the state (Mu section 5.4: a follower does, so that the leader does not pause): see
//! [`state_transfer`](crate::replica::state_transfer).

use martlet_fabric::Fabric;

use crate::basics::{self, Time};
use crate::replica::StateMachine;
use crate::replica::part::{Oversized, REST_NS};
use crate::replica::state_transfer::{Sender, Source, TransferKind};

use super::layout::{Header, Kind, Op, permission};
use super::leading::ring_of;
use super::log::Log;
use super::permission::word_from;
use super::{Event, Mu};

impl TransferKind for Kind {
    const BEGIN: Kind = Kind::Begin;
    const PART: Kind = Kind::Part;
    const END: Kind = Kind::End;
    const FLUSH: Kind = Kind::Flush;
    const BREAK: Kind = Kind::Break;
    const CONTINUES: bool = true;
}

impl Source for Log {
    type Kind = Kind;
    const MARKS: [basics::Mark; 2] = [basics::Mark::MuTeaches, basics::Mark::MuTeachingBroken];

    fn number(&self, _: &Header) -> u64 {
        self.known_ballot()
    }

    fn entry_at<F: Fabric>(&self, fabric: &F, position: u64, into: &mut Vec<u8>) -> Option<(Header, u64)> {
        self.read(ring_of(fabric), position, into)
    }
}

impl Mu {
    /// Teaches the learners that have asked. Returns whether anything was sent.
    ///
    /// A state with a part that is too long for any learner is taught to no process, and not tried again for a while. A learner that has asked for it gets no
    /// answer before that, and asks another process when its patience is over.
    ///
    /// With a journal, a process teaches only if it could itself recover if the power failed now. Otherwise a learner might recover with the log of a group
    /// from which no other process can recover.
    pub(super) fn teach<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &S) -> bool {
        self.unteachable_since = self.unteachable_since.filter(|since| now.since(*since) <= REST_NS);
        if !self.is_kept() || self.unteachable_since.is_some() {
            return false;
        }
        let is_exact = !self.is_ahead_of_log();
        let Mu { peers, log, config, teaching_record, buffer, nudges, events, unteachable_since, .. } = self;
        let mut sender = Sender { log, is_exact, settings: config, buffer };
        let mut any = false;
        for peer in peers.iter_mut().filter(|p| !p.watch.dead) {
            let id = peer.id;
            let (asked, salt) = (word_from(fabric, id, permission::TEACH), |fabric: &F| word_from(fabric, id, permission::STATE_SALT));
            let tokens = [Op::State, Op::StateConsumed].map(|op| op.token(0, id));
            match peer.state_lane.send(asked, salt, tokens, &mut sender, teaching_record, fabric, machine) {
                Ok(true) => {
                    any = true;
                    nudges.at_once(id);
                }
                Ok(false) => {}
                Err(Oversized(bytes)) => {
                    *unteachable_since = Some(now);
                    events.push_back(Event::Unteachable { process: peer.process, bytes });
                }
            }
        }
        any
    }
}

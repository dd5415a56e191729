//! Handing leadership over: the leader ends its reign and has a replica of its choice try to lead at once. This module keeps the request and its outcome.

use martlet_fabric::NodeId;

use super::patience::Patience;
use super::{HandOverError, HandOverState};
use crate::basics::{ProcessId, Time};

/// A leader's request to hand over, and the outcome of the last one.
#[derive(Debug, Default)]
pub struct HandOver {
    /// The requested successor, as long as this process leads.
    wish: Option<ProcessId>,
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    to: ProcessId,
    /// How long the outcome is waited for once this process no longer leads.
    patience: Patience,
    outcome: Option<HandOverState>,
}

impl HandOver {
    /// Hands over to the candidate of this node, or to the one with the longest log (each candidate comes with its log's length); among equals, to the lowest
    /// id.
    ///
    /// # Errors
    /// When there is no such candidate, or a hand-over to another one is under way.
    pub fn begin<L: Ord + Copy>(
        &mut self,
        to: Option<NodeId>,
        candidates: impl Iterator<Item = (ProcessId, L)>,
    ) -> Result<(), HandOverError> {
        let able = candidates.filter(|(id, _)| to.is_none_or(|node| id.node == node));
        let best = able.max_by_key(|(id, log)| (*log, std::cmp::Reverse(*id)));
        let Some((to, _)) = best else { return Err(HandOverError::NoSuccessor) };
        if self.wish.is_some_and(|other| other != to) {
            return Err(HandOverError::UnderWay);
        }
        *self = HandOver { wish: Some(to), asked: Some(Asked { to, patience: Patience::default(), outcome: None }) };
        Ok(())
    }

    /// The process to which leadership is being handed over.
    pub fn wish(&self) -> Option<ProcessId> {
        self.wish
    }

    /// Whether no further proposals are to be accepted.
    pub fn yields(&self) -> bool {
        self.wish.is_some()
    }

    /// The reign is over, or the successor is lost.
    pub fn end(&mut self) {
        self.wish = None;
    }

    /// This process was itself stalled for `gap_ns`, which does not count as waiting.
    pub fn discount(&mut self, gap_ns: u64, now: Time) {
        if let Some(asked) = &mut self.asked {
            asked.patience.discount(gap_ns, now);
        }
    }

    /// Determines the outcome of the last hand-over. `me` is this process, if it leads; otherwise `leader` is the process that it takes for the leader. A
    /// process that overtook it is reported under the name by which it is `listed_as`.
    pub fn judge(
        &mut self,
        now: Time,
        patience_ns: u64,
        me: Option<ProcessId>,
        leader: Option<ProcessId>,
        listed_as: impl Fn(ProcessId) -> ProcessId,
    ) {
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.outcome.is_none()) else { return };
        asked.outcome = match (me, leader) {
            (Some(_), _) if self.wish.is_some() => None,
            // It has led again since.
            (Some(me), _) if asked.patience.is_tried() => Some(HandOverState::Overtaken(Some(listed_as(me)))),
            (Some(_), _) => Some(HandOverState::SuccessorLost),
            (None, Some(leader)) if leader == asked.to => Some(HandOverState::Done),
            (None, Some(leader)) => Some(HandOverState::Overtaken(Some(listed_as(leader)))),
            (None, None) => asked.patience.try_on(now, patience_ns).then_some(HandOverState::Overtaken(None)),
        };
    }

    /// The state of the last hand-over that was not refused; `None` if there was none in this life.
    pub fn state(&self) -> Option<HandOverState> {
        Some(self.asked?.outcome.unwrap_or(HandOverState::UnderWay))
    }
}

/// The successor for which a replica holds back, because a leader has ended its reign and named it as the next leader. So a successor that lives but gets no
/// processor for a while is not overtaken by the others; otherwise a hand-over on a busy host would be a matter of luck.
#[derive(Debug, Default)]
pub struct Deference {
    /// Up to which term or view the replica holds back, and which node is to lead in it.
    number: u64,
    to: Option<NodeId>,
    /// The latest time until which the replica holds back.
    until: Time,
}

impl Deference {
    /// A leader has named its successor for this term or view. Only the first report of it counts; the same word is reported each time that it is read.
    pub fn begin(&mut self, number: u64, to: NodeId, until: Time) {
        if number > self.number {
            *self = Deference { number, to: Some(to), until };
        }
    }

    /// A replica leads, which ends the deference.
    pub fn end(&mut self) {
        self.to = None;
    }

    /// This process was itself stalled for `gap_ns`, which does not count as waiting.
    pub fn discount(&mut self, gap_ns: u64) {
        self.until = self.until.after(gap_ns);
    }

    /// Until when the replica holds back in the term or view `number`, provided that the successor `lives`.
    pub fn until(&self, number: u64, lives: impl FnOnce(NodeId) -> bool) -> Option<Time> {
        self.to.filter(|to| number <= self.number && lives(*to)).map(|_| self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_fabric::Incarnation;

    const PATIENCE_NS: u64 = 1_000;

    fn id(n: u16) -> ProcessId {
        ProcessId { node: NodeId(n), incarnation: Incarnation(1) }
    }

    /// The reported state of a hand-over from process 0 to process 1, after these looks: whether process 0 leads, and which process it takes for the leader
    /// otherwise.
    fn judged(ends: bool, looks: &[(bool, Option<ProcessId>)]) -> Option<HandOverState> {
        let mut hand_over = HandOver::default();
        hand_over.begin(None, [(id(1), 3)].into_iter()).expect("it is able");
        if ends {
            hand_over.end();
        }
        let mut now = Time(0);
        for (leads, leader) in looks {
            now = now.after(PATIENCE_NS);
            hand_over.judge(now, PATIENCE_NS, leads.then_some(id(0)), *leader, |id| id);
        }
        hand_over.state()
    }

    #[test]
    fn leadership_goes_to_whom_it_was_asked_for_or_to_the_one_that_has_come_the_furthest() {
        let candidates = || [(id(3), 7), (id(1), 5), (id(2), 7)].into_iter();
        let mut hand_over = HandOver::default();
        assert_eq!(hand_over.begin(Some(NodeId(9)), candidates()), Err(HandOverError::NoSuccessor));
        assert_eq!((hand_over.yields(), hand_over.state()), (false, None));
        assert_eq!(hand_over.begin(None, candidates()), Ok(()));
        assert_eq!(hand_over.wish(), Some(id(2)));
        assert_eq!(hand_over.begin(Some(NodeId(1)), candidates()), Err(HandOverError::UnderWay));
        assert_eq!(hand_over.begin(Some(NodeId(2)), candidates()), Ok(()));
    }

    #[test]
    fn what_comes_of_a_hand_over_is_told_once_it_is_known() {
        assert_eq!(judged(false, &[(true, None)]), Some(HandOverState::UnderWay), "it goes on");
        assert_eq!(judged(true, &[(true, None)]), Some(HandOverState::SuccessorLost));
        assert_eq!(judged(true, &[(false, Some(id(1))), (false, Some(id(2)))]), Some(HandOverState::Done));
        assert_eq!(judged(true, &[(false, Some(id(2)))]), Some(HandOverState::Overtaken(Some(id(2)))));
        assert_eq!(judged(true, &[(false, None), (true, None)]), Some(HandOverState::Overtaken(Some(id(0)))), "it leads anew");
        assert_eq!(judged(true, &[(false, None), (false, None)]), Some(HandOverState::UnderWay));
        assert_eq!(judged(true, &[(false, None); 3]), Some(HandOverState::Overtaken(None)), "nobody was seen to lead for too long");
    }

    #[test]
    fn a_replica_holds_back_for_a_named_successor_while_it_lives_and_until_somebody_leads() {
        let mut deference = Deference::default();
        assert_eq!(deference.until(0, |_| true), None);
        deference.begin(5, NodeId(2), Time(100));
        deference.begin(5, NodeId(2), Time(900));
        assert_eq!(deference.until(4, |node| node == NodeId(2)), Some(Time(100)), "what is read again is no news");
        assert_eq!(deference.until(5, |_| true), Some(Time(100)), "nor does a vote for the successor end it");
        assert_eq!(deference.until(6, |_| true), None, "a later term is another matter");
        assert_eq!(deference.until(5, |_| false), None);
        deference.discount(50);
        assert_eq!(deference.until(5, |_| true), Some(Time(150)));
        deference.end();
        assert_eq!(deference.until(5, |_| true), None);
        deference.begin(5, NodeId(2), Time(900));
        assert_eq!(deference.until(5, |_| true), None, "the old word stays where it stands");
    }
}

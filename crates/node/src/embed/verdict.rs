//! Which replica leads, and the outcome of handing leadership over.

use martlet_fabric::NodeId;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::replica::{HandOverError, HandOverState, Replica, Standing};

use super::error::{CallError, Leader};

/// The outcome of handing leadership over, whichever replica it was to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Leadership went to the replica that the engine was handing it to.
    HandedOver,
    /// The handover was not begun, because the successor was lost.
    SuccessorLost,
    /// Another replica leads now, for whatever reason.
    Leads(ProcessId),
    /// Leadership did not go to the successor, but back to this replica, or to none.
    Lost(Option<ProcessId>),
}

impl Verdict {
    /// `None`: the outcome is not known yet.
    pub fn of(state: HandOverState, leads: bool) -> Option<Verdict> {
        Some(match state {
            HandOverState::UnderWay => return None,
            HandOverState::Done => Verdict::HandedOver,
            HandOverState::SuccessorLost => Verdict::SuccessorLost,
            HandOverState::Overtaken(Some(leader)) if !leads => Verdict::Leads(leader),
            HandOverState::Overtaken(leader) => Verdict::Lost(leader),
        })
    }

    /// The same for the node `me`, which left to hand leadership over and is now back or on its way back.
    pub fn after_leaving(standing: Standing, me: NodeId, in_view: impl FnOnce() -> Option<ProcessId>) -> Option<Verdict> {
        match standing {
            Standing::Primary => Some(Verdict::Lost(in_view())),
            // A view in which the node's own earlier life leads is an old view.
            _ => primary_of(standing).filter(|primary| primary.node != me).map(Verdict::Leads),
        }
    }

    /// What a caller is told that asked for leadership to go to this node, or to any.
    pub fn told(self, to: Option<NodeId>, named: impl Fn(ProcessId) -> Leader) -> Result<(), CallError> {
        match self {
            Verdict::HandedOver => Ok(()),
            Verdict::Leads(leader) if to.is_none_or(|node| node == leader.node) => Ok(()),
            Verdict::SuccessorLost => Err(CallError::NoSuccessor),
            Verdict::Leads(leader) => Err(CallError::NotHandedOver { leader: Some(named(leader)) }),
            Verdict::Lost(leader) => Err(CallError::NotHandedOver { leader: leader.map(named) }),
        }
    }
}

pub(super) fn primary_of(standing: Standing) -> Option<ProcessId> {
    match standing {
        Standing::Backup { primary } => primary,
        Standing::Primary | Standing::Excluded => None,
    }
}

pub(super) fn leader_named<R: Replica>(replica: &R, process: ProcessId) -> Leader {
    Leader { node: process.node.0, address: replica.address_of(process).map(str::to_owned) }
}

/// The leader, as far as this replica knows.
pub(super) fn leader_of<R: Replica>(replica: &R) -> Option<Leader> {
    primary_of(replica.standing()).map(|primary| leader_named(replica, primary))
}

/// Why leadership is not handed over. `None`: the engine's leader hands leadership over by leaving, which is still to be done.
pub(super) fn refused(error: HandOverError, leader: impl FnOnce() -> Option<Leader>) -> Option<CallError> {
    match error {
        HandOverError::ByLeaving => None,
        HandOverError::NotLeading => Some(CallError::NotLeader { leader: leader() }),
        HandOverError::NoSuccessor => Some(CallError::NoSuccessor),
        HandOverError::UnderWay => Some(CallError::HandingOver),
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::Incarnation;

    use super::*;

    fn process(node: u16) -> ProcessId {
        ProcessId { node: NodeId(node), incarnation: Incarnation(7) }
    }

    fn leader(node: u16) -> Leader {
        Leader { node, address: None }
    }

    /// What is told to a caller that wanted leadership to go to node 2, and to a caller that wanted it to go to any node. `None`: nothing yet.
    fn told(verdict: Option<Verdict>) -> Option<[Result<(), CallError>; 2]> {
        let named = |id: ProcessId| leader(id.node.0);
        verdict.map(|verdict| [Some(NodeId(2)), None].map(|to| verdict.told(to, named)))
    }

    fn elsewhere(node: Option<u16>) -> Result<(), CallError> {
        Err(CallError::NotHandedOver { leader: node.map(leader) })
    }

    #[test]
    fn leadership_is_said_to_be_handed_over_only_when_it_went_where_it_was_to_go() {
        let of = |state, leads| told(Verdict::of(state, leads));
        assert_eq!(of(HandOverState::UnderWay, true), None);
        assert_eq!(of(HandOverState::UnderWay, false), None, "that this replica leads no more says nothing");
        assert_eq!(of(HandOverState::Done, false), Some([Ok(()), Ok(())]));
        assert_eq!(of(HandOverState::SuccessorLost, true), Some([Err(CallError::NoSuccessor), Err(CallError::NoSuccessor)]));
        assert_eq!(of(HandOverState::Overtaken(Some(process(1))), false), Some([elsewhere(Some(1)), Ok(())]));
        assert_eq!(of(HandOverState::Overtaken(Some(process(0))), true), Some([elsewhere(Some(0)), elsewhere(Some(0))]), "it leads again");
        assert_eq!(of(HandOverState::Overtaken(None), false), Some([elsewhere(None), elsewhere(None)]));
    }

    #[test]
    fn that_leadership_goes_to_another_one_already_is_not_said_to_be_the_lack_of_a_successor() {
        let of = |error| refused(error, || Some(leader(1)));
        assert_eq!(of(HandOverError::UnderWay), Some(CallError::HandingOver));
        assert_eq!(of(HandOverError::NoSuccessor), Some(CallError::NoSuccessor));
        assert_eq!(of(HandOverError::NotLeading), Some(CallError::NotLeader { leader: Some(leader(1)) }));
        assert_eq!(of(HandOverError::ByLeaving), None);
    }

    #[test]
    fn one_that_hands_over_by_leaving_tells_what_came_of_it_when_it_is_back() {
        let of = |standing, in_view| told(Verdict::after_leaving(standing, NodeId(0), || in_view));
        assert_eq!(of(Standing::Excluded, None), None);
        assert_eq!(of(Standing::Backup { primary: None }, None), None);
        assert_eq!(of(Standing::Backup { primary: Some(process(0)) }, None), None, "of a view before it left");
        assert_eq!(of(Standing::Backup { primary: Some(process(2)) }, None), Some([Ok(()), Ok(())]));
        assert_eq!(of(Standing::Backup { primary: Some(process(1)) }, None), Some([elsewhere(Some(1)), Ok(())]));
        assert_eq!(of(Standing::Primary, Some(process(0))), Some([elsewhere(Some(0)), elsewhere(Some(0))]), "all others were lost");
    }
}

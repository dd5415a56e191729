//! Hand-over of leadership by its holder.

use martlet_fabric::NodeId;

use super::world::{Cluster, id, tiny_but};
use crate::basics::LogIndex;
use crate::engine::Engine as _;
use crate::engine::mu::{AbortReason, Group};
use crate::replica::Execution;
use crate::replica::{HandOverError, HandOverState};

fn led<const HOST: bool>() -> Cluster<HOST> {
    let mut c = Cluster::new(3, tiny_but(|config| config.execution = Execution::Speculative));
    c.until_led_by(0);
    for _ in 0..5 {
        c.write_through(0);
    }
    c.until("all are level", |c| c.is_level());
    c
}

/// The processes that know the name in the log to be committed.
fn heard<const HOST: bool>(c: &Cluster<HOST>, n: usize) -> bool {
    c.nodes[n].engine.log.committed_group().is_some_and(|(_, group)| group.first().is_some())
}

fn goes_to_whom_it_is_handed<const HOST: bool>() {
    let mut c = led::<HOST>();
    let mut written: Vec<LogIndex> = (0..5).filter_map(|_| c.write(0)).collect();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    // As many as are taken until it no longer leads, and those of the next leader.
    c.until("the other leads", |c| {
        written.extend(c.write(0));
        c.leads(2)
    });
    c.until("the first knows", |c| !c.leads(0));
    assert_eq!(c.nodes[0].engine.hand_over_state(), Some(HandOverState::Done));
    assert!(written.len() > 5, "the leader went on until its successor was level");
    let lost: Vec<&LogIndex> = written.iter().filter(|index| !c.acknowledged.contains_key(index)).collect();
    assert!(lost.is_empty(), "taken, and not answered: {lost:?} of {written:?}");
    let reigns = c.nodes[2].engine.reign();
    c.write_through(2);
    c.run(3_000_000);
    assert_eq!((c.leads(2), c.nodes[2].engine.reign()), (true, reigns), "a lower id that lives is no reason to step aside");
    assert!(c.nodes[0].engine.is_complete(), "nobody has to be taught for it");
    // Its name goes with it.
    c.kill(2);
    c.until_led_by(0);
    c.write_through(0);
}

#[test]
fn leadership_goes_to_whom_it_is_handed_and_nothing_that_was_taken_is_lost() {
    goes_to_whom_it_is_handed::<true>();
    goes_to_whom_it_is_handed::<false>();
}

#[test]
fn one_that_is_not_asked_for_somebody_hands_over_to_the_lowest_that_holds_the_state() {
    let mut c = led::<true>();
    c.kill(1);
    c.until("the death is seen", |c| !c.nodes[0].engine.could_lead(c.nodes[1].id));
    c.nodes[0].engine.hand_over(None).expect("there is one");
    c.until_led_by(2);
}

/// Two found a group, and one with a lower id joins.
fn joined(leader_stays: bool) -> Cluster<true> {
    let mut c: Cluster<true> = Cluster::new(0, tiny_but(|config| config.leader_stays = leader_stays));
    let founders = Group::new(vec![id(1), id(2)]);
    for group in [None, Some(&founders), Some(&founders)] {
        c.spawn(group.cloned());
    }
    c.until_led_by(1);
    c.write_through(1);
    c.nodes[1].engine.add(id(0));
    c.until("it joins", |c| c.nodes[0].engine.log.committed_group().is_some_and(|(_, group)| group.contains(id(0))));
    c
}

/// Such a leader's proposals are committed only together with its name, so no process with a lower id deposes it afterwards.
#[test]
fn a_leader_that_is_to_stay_is_told_that_it_leads_only_when_its_log_names_it() {
    let mut c: Cluster<true> = Cluster::new(3, tiny_but(|config| config.leader_stays = true));
    for leader in [0, 1] {
        c.until("somebody leads", |c| {
            let group = c.nodes[leader].engine.log.group();
            let is_named = group.is_some_and(|group| group.first() == Some(c.nodes[leader].id));
            assert!(is_named || !c.leads(leader), "{leader} leads and is not named");
            c.leads(leader)
        });
        c.write_through(leader);
        c.kill(leader);
    }
}

#[test]
fn a_leader_that_is_to_stay_leads_on_when_a_lower_id_joins_and_can_hand_over() {
    joined(false).until_led_by(0);
    let mut c = joined(true);
    let reign = c.nodes[1].engine.reign();
    c.run(3_000_000);
    c.write_through(1);
    assert_eq!((c.leads(0), c.leads(1), c.nodes[1].engine.reign()), (false, true, reign));
    c.until("all are level", |c| c.is_level());
    c.nodes[1].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    c.until_led_by(2);
    c.write_through(2);
    c.kill(2);
    c.until_led_by(0);
    c.write_through(0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut c = led::<true>();
    assert_eq!(c.nodes[1].engine.hand_over(None), Err(HandOverError::NotLeading));
    assert_eq!(c.nodes[0].engine.hand_over(Some(NodeId(0))), Err(HandOverError::NoSuccessor), "it leads already");
    assert_eq!(c.nodes[0].engine.hand_over(Some(NodeId(7))), Err(HandOverError::NoSuccessor));
    assert!(!c.nodes[0].engine.is_handing_over());
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    assert_eq!(c.nodes[0].engine.hand_over(Some(NodeId(1))), Err(HandOverError::UnderWay));
    assert_eq!(c.nodes[0].engine.hand_over(Some(NodeId(2))), Ok(()), "as asked for");
    c.until_led_by(2);
}

#[test]
fn a_leader_whose_successor_is_lost_goes_on() {
    let mut c = led::<true>();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    c.world.pause(2);
    c.until("it takes the other for gone", |c| !c.nodes[0].engine.is_handing_over());
    c.write_through(0);
    // The name is in the log: the named process leads when it is back.
    c.world.resume(2);
    c.until_led_by(2);
    c.write_through(2);
}

#[test]
fn a_leader_that_goes_on_as_its_successor_died_says_so() {
    let mut c = led::<true>();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    c.kill(2);
    assert_eq!(what_came_of_it(&mut c), Some(HandOverState::SuccessorLost));
    assert!(c.leads(0));
    c.write_through(0);
}

#[test]
fn one_that_is_named_and_has_not_heard_of_it_is_not_waited_for_without_end() {
    let mut c = led::<true>();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    // It holds the name from here on, but has not read that it is committed.
    c.until("the name is in the log", |c| c.nodes[0].engine.hand_over.yields());
    c.world.pause(2);
    c.until("the name is committed", |c| heard(c, 0));
    // The reign ends before any other process is told.
    let node = &mut c.nodes[0];
    node.engine.end_reign(AbortReason::NotLeader, &node.fabric);
    assert!(!c.leads(0) && !heard(&c, 2), "the case that this test is about");
    assert_eq!(c.nodes[0].engine.hand_over_state(), Some(HandOverState::Done), "who is named by what is committed will lead");
    c.world.resume(2);
    c.until("somebody leads", |c| c.leader().is_some());
    c.until_led_by(2);
    c.write_through(2);
}

#[test]
fn a_member_that_has_not_been_seen_to_follow_yet_is_waited_for() {
    let mut c = led::<true>();
    let n = c.spawn(None);
    c.nodes[0].engine.add(id(n));
    c.until("it was taken in a moment ago", |c| {
        let leader = &c.nodes[0].engine;
        leader.log.committed_group().is_some_and(|(_, group)| group.contains(id(n))) && !leader.could_lead(id(n))
    });
    c.nodes[0].engine.hand_over(Some(NodeId(n as u16))).expect("it holds the state");
    c.until_led_by(n);
    c.write_through(n);
}

/// Runs until the first node knows the outcome, and returns that.
fn what_came_of_it<const HOST: bool>(c: &mut Cluster<HOST>) -> Option<HandOverState> {
    c.until("it can be told", |c| c.nodes[0].engine.hand_over_state() != Some(HandOverState::UnderWay));
    c.nodes[0].engine.hand_over_state()
}

#[test]
fn a_reign_that_is_lost_before_anybody_is_named_has_not_been_handed_over() {
    let mut c = led::<true>();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    let node = &mut c.nodes[0];
    node.engine.end_reign(AbortReason::NotLeader, &node.fabric);
    assert!(!c.leads(0), "the case that this test is about");
    assert_eq!(c.nodes[0].engine.hand_over_state(), Some(HandOverState::UnderWay), "who comes next is not known");
    assert_eq!(what_came_of_it(&mut c), Some(HandOverState::Overtaken(Some(id(0)))), "the lowest id leads again");
    assert!(c.leads(0));
}

#[test]
fn a_leader_that_is_deposed_while_it_hands_over_says_who_leads() {
    let mut c = led::<true>();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    // It is paused before it has named a successor, and learns of its successor when it is back.
    c.world.pause(0);
    c.until_led_by(1);
    c.write_through(1);
    c.world.resume(0);
    c.until("it knows", |c| !c.leads(0));
    let end = what_came_of_it(&mut c);
    assert!(matches!(end, Some(HandOverState::Overtaken(Some(leader))) if leader != id(2)), "{end:?}");
}

#[test]
fn a_deposed_leader_does_not_wait_without_end_for_somebody_to_lead() {
    let mut c = led::<true>();
    c.nodes[0].engine.hand_over(Some(NodeId(2))).expect("it holds everything");
    c.kill(1);
    c.kill(2);
    let node = &mut c.nodes[0];
    node.engine.end_reign(AbortReason::NotLeader, &node.fabric);
    assert_eq!(what_came_of_it(&mut c), Some(HandOverState::Overtaken(None)), "nobody is left to lead");
}

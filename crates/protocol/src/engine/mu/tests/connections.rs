//! Connections that are lost while both ends live, on a network.

use super::world::{Cluster, id, tiny};
use crate::basics::{Time, ViewNumber};
use crate::engine::Engine as _;
use crate::engine::mu::layout::MAX_PEERS;
use crate::engine::mu::leading::Stage;
use crate::engine::mu::{AbortReason, Event, Group};
use crate::membership::{Member, Roles, View};

/// The second view, of so many replicas and, after them, so many learners.
fn view_of(replicas: usize, learners: usize) -> View {
    let role = |n: usize| if n < replicas { Roles::REPLICA } else { Roles::LEARNER };
    let members = (0..replicas + learners).map(|n| Member::new(id(n), role(n)));
    View { number: ViewNumber(2), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members: members.collect(), departed: Vec::new() }
}

fn show(c: &mut Cluster<false>, view: &View) {
    c.nodes.iter_mut().for_each(|n| n.engine.handle_view(view));
}

/// A cluster of three with some entries, led by 0, whose connection with 2 both ends have lost.
fn parted() -> Cluster<false> {
    let mut c = Cluster::<false>::new(3, tiny());
    c.until_led_by(0);
    show(&mut c, &view_of(3, 0));
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.world.partition(&[0], &[2]);
    c.until("both know", |c| lost(c, 0, 2) && lost(c, 2, 0));
    c
}

fn lost(c: &Cluster<false>, n: usize, of: usize) -> bool {
    c.nodes[n].engine.peers.iter().rev().find(|p| p.process == id(of)).is_some_and(|p| p.watch.dead)
}

fn group_changes(c: &Cluster<false>, n: usize) -> usize {
    c.events(n, |e| matches!(e, Event::GroupChanged { .. }))
}

/// What a later reign reads from one process must not be overwritten by what an earlier reign requested from another.
#[test]
fn numbers_that_come_home_after_their_reign_land_where_nobody_elses_are_read() {
    let mut c = Cluster::<false>::new(3, tiny());
    c.until_led_by(0);
    c.write_through(0);
    let reign = |c: &Cluster<false>| c.nodes[0].engine.reign.as_ref().map(|r| r.round());
    let stray = |c: &Cluster<false>| c.nodes[0].engine.peers.iter().map(|p| p.stray_reads).collect::<Vec<_>>();
    let slots = |c: &Cluster<false>| {
        let followers = c.nodes[0].engine.reign.iter().flat_map(|r| &r.followers);
        followers.map(|f| (f.process, f.slot)).collect::<std::collections::BTreeMap<_, _>>()
    };
    c.nodes[0].engine.step_down();
    c.until("the numbers of 2 are on their way", |c| {
        let peer = c.nodes[0].engine.peers.iter().find(|p| p.process == id(2)).map(|p| p.id);
        c.nodes[0].engine.reign.as_ref().is_some_and(|r| r.on_their_way().any(|p| Some(p) == peer))
    });
    let (before, places) = (reign(&c), slots(&c));
    c.world.block(2, 0);
    c.nodes[0].engine.step_down();
    c.until("another reign has begun", |c| reign(c).is_some() && reign(c) != before && slots(c).len() == 2);
    assert_eq!(stray(&c).iter().sum::<u32>(), 1, "they are on their way still");
    assert_eq!(slots(&c), places, "everybody has the place that it had");
    assert_ne!(places[&id(1)], places[&id(2)]);
    c.world.unblock(2, 0);
    c.until("they come home", |c| stray(c).iter().all(|n| *n == 0));
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
}

/// Of three processes, 0 was stopped while the others continued. It tries to lead again, and is reading the log of one of them, whose number is returned. No
/// further answer from that one arrives.
fn reading_a_log() -> (Cluster<false>, usize) {
    let mut c = Cluster::<false>::new(3, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.world.pause(0);
    c.until_led_by(1);
    c.write_through(1);
    let tail = |c: &Cluster<false>, n: usize| c.nodes[n].engine.last();
    c.until("2 has as much", |c| tail(c, 2) == tail(c, 1));
    c.world.resume(0);
    c.until("it reads a log", |c| owner_of_log(c).is_some());
    let owner = owner_of_log(&c).expect("one of the two");
    c.world.block(owner, 0);
    (c, owner)
}

/// Whose log 0 reads, if it reads one.
fn owner_of_log(c: &Cluster<false>) -> Option<usize> {
    match c.nodes[0].engine.reign.as_ref()?.stage {
        Stage::CatchingUp { from, .. } => {
            let process = c.nodes[0].engine.peers.iter().find(|p| p.id == from)?.process;
            (1..3).find(|n| process == id(*n))
        }
        _ => None,
    }
}

#[test]
fn a_log_whose_owner_is_lost_while_it_is_read_keeps_nobody_from_reading_another() {
    let (mut c, owner) = reading_a_log();
    c.kill(owner);
    c.until_led_by(0);
    assert!(c.nodes[0].engine.stray_log.is_none());
    c.write_through(0);
    c.until("both are level", |c| c.is_level());
}

/// The two would land in the same place.
#[test]
fn a_log_is_not_read_while_an_earlier_reign_s_reading_of_another_is_on_its_way() {
    let (mut c, owner) = reading_a_log();
    let other = id(3 - owner);
    c.nodes[0].engine.step_down();
    c.until("another reign knows of the other's log, as good and in reach", |c| {
        assert_eq!(owner_of_log(c).filter(|_| c.nodes[0].engine.stray_log.is_some()), None);
        // It would back off for longer than that reading can take.
        c.nodes[0].engine.retry = Time(0);
        let reign = c.nodes[0].engine.reign.as_ref();
        c.nodes[0].engine.stray_log.is_some()
            && reign.is_some_and(|r| r.followers.iter().any(|f| f.process == other && f.numbers().is_some()))
    });
    assert_eq!(owner_of_log(&c), None, "it waits");
    c.world.unblock(owner, 0);
    c.until_led_by(0);
    assert!(c.nodes[0].engine.stray_log.is_none());
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
}

#[test]
fn a_connection_that_is_made_anew_costs_nobody_its_place() {
    let mut c = parted();
    // 2 takes 1 for the leader meanwhile, which does not.
    c.run(tiny().silence_ns);
    c.world.heal();
    c.until("they meet anew", |c| !lost(c, 0, 2) && !lost(c, 2, 0));
    c.until("0 leads, alone", |c| c.leads(0) && !c.leads(1) && !c.leads(2));
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.assert_level();
    assert_eq!((0..3).map(|n| group_changes(&c, n)).sum::<usize>(), 0, "nobody has left the group");
    assert_eq!(c.nodes[2].engine.leader(), Some(id(0)), "by its latest connection");
    let connections = |c: &Cluster<false>, n: usize| c.nodes[n].engine.peers.len();
    c.until("the old connections are let go of", |c| connections(c, 0) == 2 && connections(c, 2) == 2);

    // The vote of 2 counts again, once: with 1 gone it is needed, and with 2 gone as well nothing is committed.
    c.kill(1);
    c.write_through(0);
    c.kill(2);
    let acknowledged = c.acknowledged.len();
    c.write(0);
    c.run(tiny().silence_ns);
    assert_eq!(c.acknowledged.len(), acknowledged);
}

#[test]
fn one_that_stays_out_of_reach_loses_its_place() {
    let mut c = parted();
    // It takes nothing from 1 either, so that 0 leads the two of them in peace.
    c.world.partition(&[1], &[2]);
    c.until("0 leads", |c| c.leads(0) && !c.leads(1) && lost(c, 1, 2));
    assert!(c.nodes[0].engine.group().is_some_and(|g| g.contains(id(2))), "one can hope");
    c.write_through(0);
    let from = c.world.now();
    c.until("it is removed", |c| c.nodes[0].engine.group().is_some_and(|g| !g.contains(id(2))));
    assert!(c.world.now() - from < 2 * tiny().patience_ns());
    c.write_through(0);
}

/// A view that adds a process may be decided long after it was proposed. By then the added process may be gone, and only membership's old leader knew of it.
#[test]
fn one_that_is_listed_and_was_forgotten_before_is_given_up() {
    let mut c = Cluster::<false>::new(2, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.spawn(None);
    let known = |c: &Cluster<false>, n: usize| c.nodes[n].engine.peers.iter().any(|p| p.process == id(2));
    c.until("they meet", |c| known(c, 0) && known(c, 1));
    c.kill(2);
    c.until("it is forgotten", |c| !known(c, 0) && !known(c, 1));
    show(&mut c, &view_of(2, 1));
    let from = c.world.now();
    c.until("membership is told", |c| c.events(0, |e| *e == Event::Drop(id(2))) > 0);
    assert!(c.world.now() - from > tiny().patience_ns(), "it might still have come");
    assert_eq!(c.events(1, |e| *e == Event::Drop(id(2))), 0, "by one voice");
    c.write_through(0);
}

/// A leader whose followers die, one after the other, can add their replacements for as long as it leads.
#[test]
fn any_number_of_followers_is_outlived_in_one_reign() {
    let mut c = Cluster::<false>::new(3, tiny());
    c.until_led_by(0);
    let reign = c.nodes[0].engine.reign();
    for next in 3..3 + 2 * MAX_PEERS {
        c.kill(next - 1);
        c.spawn(None);
        let member = |n: usize, roles| Member::new(id(n), roles);
        let members = vec![member(0, Roles::REPLICA), member(1, Roles::REPLICA), member(next, Roles::LEARNER)];
        let view = View { number: ViewNumber(next as u64), members, ..view_of(0, 0) };
        show(&mut c, &view);
        c.until("it belongs", |c| c.nodes[next].engine.log.committed_group().is_some_and(|(_, g)| g.contains(id(next))));
        c.write_through(0);
    }
    assert_eq!(c.nodes[0].engine.reign(), reign);
    assert!(c.nodes[0].engine.peers.len() < 6, "the dead are forgotten");
    // Two of three do, namely those that live.
    c.kill(1);
    c.write_through(0);
}

/// On a busy host a process is stalled every now and then.
#[test]
fn one_that_is_often_stalled_gives_up_the_lost_all_the_same() {
    let mut c = parted();
    let patience = tiny().patience_ns();
    let given_up = |c: &Cluster<false>| c.nodes[0].engine.peers.iter().any(|p| p.process == id(2) && p.watch.patience.is_over());
    let (from, stall) = (c.world.now(), 2 * tiny().stall_ns);
    while !given_up(&c) {
        assert!(c.world.now() - from < 4 * patience, "half of the time it takes no turns");
        c.world.pause(0);
        c.run(stall);
        c.world.resume(0);
        c.run(stall);
    }
    assert!(c.world.now() - from > patience, "what it did not see counts for nothing");
}

/// A leader that keeps losing and reconnecting to a follower never runs out of room for another connection.
#[test]
fn any_number_of_lost_connections_is_outlived() {
    let mut c = parted();
    for _ in 0..2 * MAX_PEERS {
        c.world.heal();
        c.until("they meet anew", |c| !lost(c, 0, 2) && !lost(c, 2, 0));
        c.until("all are level", |c| c.leads(0) && c.is_level());
        c.write_through(0);
        c.until("all are level", |c| c.leads(0) && c.is_level());
        c.world.partition(&[0], &[2]);
        c.until("both know", |c| lost(c, 0, 2) && lost(c, 2, 0));
    }
    c.world.heal();
    c.until("all are level", |c| c.leads(0) && c.is_level());
    c.assert_level();
}

/// 1 is away while 2 is added, and its old majority, 0 and itself, no longer exists when it comes back.
#[test]
fn one_that_missed_that_the_group_grew_finds_it_out_from_who_was_taken_in() {
    let mut c = Cluster::<false>::new(2, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.until("both are level", |c| c.is_level());
    c.spawn(None);
    c.world.partition(&[0], &[1]);
    c.until("both know", |c| lost(c, 0, 1) && lost(c, 1, 0));
    c.world.pause(1);
    show(&mut c, &view_of(2, 1));
    let belongs = |c: &Cluster<false>| c.nodes[2].engine.log.committed_group().is_some_and(|(_, g)| g.contains(id(2)) && g.contains(id(1)));
    c.until("2 belongs, and knows it", |c| belongs(c));
    assert!(c.nodes[1].engine.group().is_some_and(|g| !g.contains(id(2))));
    c.kill(0);
    c.world.resume(1);
    c.until_led_by(1);
    c.write_through(1);
}

/// 1 is away while 3, which is dead, is removed. When 0 dies too, 1 can find no majority of the four that it knows.
#[test]
fn one_that_missed_that_the_dead_were_removed_finds_it_out_from_the_others() {
    let mut c = Cluster::<false>::new(4, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.until("all are level", |c| c.is_level());
    c.world.partition(&[0], &[1]);
    c.until("both know", |c| lost(c, 0, 1) && lost(c, 1, 0));
    c.world.pause(1);
    c.kill(3);
    c.nodes[0].engine.remove(id(3));
    let removed = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.group().is_some_and(|g| !g.contains(id(3)) && g.contains(id(1)));
    c.until("2 knows that 3 is removed", |c| removed(c, 2));
    assert!(!removed(&c, 1));
    c.kill(0);
    c.world.resume(1);
    c.until_led_by(1);
    c.write_through(1);
}

/// The founder adds 1 and then 2, and dies before either knows that it belongs, and before 1 knows of the second change.
#[test]
fn of_those_taken_in_who_have_not_heard_that_they_belong_one_leads_when_nobody_else_can() {
    let mut c = Cluster::<false>::new(1, tiny());
    c.until_led_by(0);
    c.write_through(0);
    c.spawn(None);
    c.spawn(None);
    let role = |n: usize| if n < 1 { Roles::REPLICA } else { Roles::LEARNER };
    let view = |number, members: std::ops::Range<usize>| View {
        number: ViewNumber(number),
        lease_ns: 1,
        fence_ns: 1,
        compatible: false,
        level: 1,
        members: members.map(|n| Member::new(id(n), role(n))).collect(),
        departed: Vec::new(),
    };
    let holds = |c: &Cluster<false>, n: usize, of: usize| c.nodes[n].engine.group().is_some_and(|g| g.contains(id(of)));
    let knows = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.committed_group().is_some_and(|(_, g)| g.contains(id(n)));
    c.nodes.iter_mut().for_each(|n| n.engine.handle_view(&view(2, 0..2)));
    c.until("the group of two is committed", |c| c.nodes[0].engine.log.committed_group().is_some_and(|(_, g)| g.contains(id(1))));
    c.world.partition(&[0], &[1]);
    c.nodes.iter_mut().for_each(|n| n.engine.handle_view(&view(3, 0..3)));
    c.until("2 holds the group of three", |c| holds(c, 2, 2));
    c.kill(0);
    assert!(!knows(&c, 1) && !knows(&c, 2) && !holds(&c, 1, 2));
    c.until("1 has taken what stands in its lane", |c| holds(c, 1, 1));
    c.until("one of them leads", |c| c.leads(1) || c.leads(2));
    c.until("both know that they belong", |c| knows(c, 1) && knows(c, 2));
    c.until_led_by(1);
    c.write_through(1);
    c.run(tiny().silence_ns);
    assert!(c.leads(1) && !c.leads(2), "the lower id leads, and stays");
}

/// A leaving process learns of the view without it, and of none after that. If by then it leads a group of a later view, it still has to remove itself: the
/// others follow it, and have no majority once it has ended.
#[test]
fn a_leader_that_has_left_takes_itself_out_of_a_group_of_a_later_view() {
    let mut c = Cluster::<false>::new(3, tiny());
    c.until_led_by(0);
    c.write_through(0);
    let view = |number, members: &[usize]| View {
        number: ViewNumber(number),
        lease_ns: 1,
        fence_ns: 1,
        compatible: false,
        level: 1,
        members: members.iter().map(|n| Member::new(id(*n), Roles::REPLICA)).collect(),
        departed: Vec::new(),
    };
    c.nodes.iter_mut().for_each(|n| n.engine.handle_view(&view(2, &[0, 1, 2])));
    c.nodes[1].engine.handle_view(&view(3, &[0, 2]));
    let group = |c: &Cluster<false>, n: usize| c.nodes[n].engine.log.committed_group().map(|(_, g)| g.members().to_vec());
    // 0 leaves right after, and removes itself first, since groups change by one process at a time.
    for n in [0, 2] {
        c.nodes[n].engine.handle_view(&view(4, &[2]));
    }
    c.until("0 is out of the group", |c| group(c, 1) == Some(vec![id(1), id(2)]));
    assert_eq!(c.nodes[1].engine.view(), ViewNumber(3));
    c.until_led_by(1);
    c.kill(0);
    c.until("1 is not needed any more", |c| !c.nodes[1].engine.is_needed());
    c.kill(1);
    c.until_led_by(2);
    c.write_through(2);
    assert_eq!(group(&c, 2), Some(vec![id(2)]));
}

/// A group of one has a majority before any other process has answered. Of all that it knows, only the number that outbid it outlives the reign.
#[test]
fn a_leader_that_is_a_majority_alone_is_outbid_once_by_a_process_outside_its_group() {
    let mut c = Cluster::<false>::new(1, tiny());
    let other = c.spawn(Some(Group::new(vec![id(0), id(1)])));
    // The hundredth number of node 1.
    c.nodes[other].engine.log.promise((100 << 16) | 1);
    show(&mut c, &view_of(2, 0));
    c.until("it has taken the other in", |c| c.leads(0) && c.nodes[0].engine.log.committed_group().is_some_and(|(_, g)| g.contains(id(1))));
    c.write_through(0);
    assert_eq!(c.events(0, |event| matches!(event, Event::Aborted { reason: AbortReason::Outbid(_), .. })), 1);
}

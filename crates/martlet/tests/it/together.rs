//! Three replicas in this process: what followers say, and how leadership is handed over.

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::time::Duration;

use martlet::config::{Cluster, EngineKind};
use martlet::counters::Counter;
use martlet::{CallError, Leader, Replica, Role, SessionCommand, StopError};

use crate::cluster::{Text, Way, cluster, cluster_that, in_every_way, threads};

in_every_way!(
    a_follower_names_the_leader_and_leadership_is_handed_over_without_loss,
    a_handover_under_load_fails_nothing_but_what_it_tells_to_go_elsewhere,
    one_that_leads_later_has_a_larger_fencing_token,
);

fn start(cluster: &Cluster, node: u16) -> Replica<Text> {
    let address = format!("127.0.0.{}:7000", node + 1);
    Replica::builder().cluster(cluster.clone()).node(node).listen(address).threads(threads()).start(Text::default()).expect("it starts")
}

/// Three replicas, and which of them leads.
fn three(cluster: &Cluster) -> (Vec<Replica<Text>>, usize) {
    let replicas: Vec<_> = (0..3).map(|node| start(cluster, node)).collect();
    // The first replica to be there leads, except that an engine with its own election lets the lowest number take over.
    let elects = cluster.config().engine.traits().prefers_lowest;
    let first = settled(&replicas, |leader| !elects || leader == 0);
    (replicas, first)
}

/// Waits until a replica leads for which `right` holds and all replicas hold the whole state, and returns which one leads.
fn settled(replicas: &[Replica<Text>], right: impl Fn(usize) -> bool) -> usize {
    loop {
        let leader = replicas.iter().position(|r| r.role().role == Role::Leader).filter(|leader| right(*leader));
        let whole = |r: &Replica<Text>| r.metrics().is_ok_and(|m| m.get(Counter::Replicas) == replicas.len() as u64);
        if let Some(leader) = leader.filter(|_| replicas.iter().all(whole)) {
            return leader;
        }
        replicas[0].roles().next_within(Duration::from_millis(1));
        std::thread::yield_now();
    }
}

/// Hands leadership over to `to`, or to any other replica. A successor that gets no processor time can be overtaken, even by the replica that hands over, or be
/// removed and have to receive the state again. The caller is told so, and asks again. Returns whether leadership went to the intended replica, and not to a
/// third one.
fn hand_over(leader: &Replica<Text>, to: Option<u16>) -> bool {
    loop {
        let done = to.map_or_else(|| leader.transfer_leadership(), |to| leader.transfer_leadership_to(to));
        match done {
            Ok(()) => return true,
            Err(CallError::NotHandedOver { .. } | CallError::NoSuccessor) if leader.role().role == Role::Leader => std::thread::yield_now(),
            Err(CallError::NotHandedOver { .. } | CallError::NoSuccessor | CallError::NotLeader { .. }) => return false,
            Err(other) => panic!("{other}"),
        }
    }
}

fn a_follower_names_the_leader_and_leadership_is_handed_over_without_loss(way: Way) {
    let (replicas, first) = three(&cluster_that("together", way, 3));
    let session = replicas[first].open_session().expect("it leads");
    let once = |at: usize, seq, command| replicas[at].propose_once(SessionCommand { session, seq, confirmed: 0, command });
    assert_eq!(once(first, 1, b"ab").as_deref(), Ok(&b"2"[..]));

    let follower = (first + 1) % 3;
    let named = Some(Leader { node: first as u16, address: Some(format!("127.0.0.{}:7000", first + 1)) });
    // A replica that says that it follows this leader has heard of it.
    assert!(replicas[follower].roles().any(|change| change.role == Role::Follower { leader: named.clone() }));
    assert_eq!(replicas[follower].propose(b"x"), Err(CallError::NotLeader { leader: named.clone() }));
    assert_eq!(replicas[follower].read(|_| ()), Err(CallError::NotLeader { leader: named.clone() }));
    assert_eq!(replicas[follower].read_by_quorum(|_| ()), Err(CallError::NotLeader { leader: named.clone() }));
    assert_eq!(replicas[first].query_by_quorum(b"").as_deref(), Ok(&b"ab"[..]));
    assert_eq!(replicas[follower].role().role, Role::Follower { leader: named });

    let roles = replicas[first].roles();
    hand_over(&replicas[first], None);
    let second = settled(&replicas, |leader| leader != first);
    // The old leader left and came back, or, where the engine allows it, only stepped aside.
    let seen: Vec<Role> = std::iter::from_fn(|| roles.try_next()).map(|change| change.role).collect();
    assert_eq!(seen[0], Role::Leader);
    assert!(matches!(seen.last(), Some(Role::Follower { .. })), "{seen:?}");
    assert_eq!(seen.contains(&Role::Rejoining), !way.engine.traits().elects(), "{seen:?}");
    // The new leader knows the repeated command, and nothing is lost.
    assert_eq!(once(second, 1, b"ab").as_deref(), Ok(&b"2"[..]));
    assert_eq!(once(second, 2, b"c").as_deref(), Ok(&b"3"[..]));
    assert_eq!(replicas[second].query(b"").as_deref(), Ok(&b"abc"[..]));
    assert_eq!(replicas[second].query_by_quorum(b"").as_deref(), Ok(&b"abc"[..]));

    // The old leader received the state, and catches up completely.
    while replicas[first].read_stale(|text| text.0.clone()).as_deref() != Ok(&b"abc"[..]) {
        std::thread::yield_now();
    }
    // A replica that ends in order leaves the rest to the others.
    replicas[second].stop().expect("in order");
    let rest: Vec<_> = replicas.iter().enumerate().filter(|(at, _)| *at != second).map(|(_, r)| r.clone()).collect();
    let third = settled(&rest, |_| true);
    let reply = rest[third].propose_once(SessionCommand { session, seq: 2, confirmed: 0, command: b"c" });
    assert_eq!(reply.as_deref(), Ok(&b"3"[..]));
}

fn a_handover_under_load_fails_nothing_but_what_it_tells_to_go_elsewhere(way: Way) {
    let (replicas, first) = three(&cluster_that("load", way, 3));
    // An election while they were starting may have made any of them the leader.
    let to = (first + 2) % 3;
    let (sender, answers) = channel();
    let mut handover: Option<std::thread::JoinHandle<_>> = None;
    let (mut under_way, mut taken, mut refused) = (VecDeque::new(), 0u64, 0u64);
    let mut went_there = None;
    // Until some calls have been refused after leadership was handed over.
    while refused < 100 || went_there.is_none() {
        if let Some(done) = handover.take_if(|thread| thread.is_finished()) {
            went_there = Some(done.join().expect("no panic"));
        }
        while under_way.len() < 32 {
            let told = sender.clone();
            under_way.push_back(());
            replicas[first].propose_with(b"x", move |reply| told.send(reply).expect("awaited"));
        }
        let answer = answers.recv().expect("every call is answered");
        under_way.pop_front();
        match answer {
            Ok(_) => taken += 1,
            Err(CallError::NotLeader { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        if taken == 500 && handover.is_none() && went_there.is_none() {
            let leader = replicas[first].clone();
            handover = Some(std::thread::spawn(move || hand_over(&leader, way.engine.traits().hands_over_by_name.then_some(to as u16))));
        }
    }
    for answer in answers.iter().take(under_way.len()) {
        match answer {
            Ok(_) => taken += 1,
            Err(CallError::NotLeader { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let second = settled(&replicas, |leader| leader != first);
    let by_name = way.engine.traits().hands_over_by_name;
    assert!(!by_name || went_there != Some(true) || second == to, "it was to go to {to}, and {second} leads");
    assert_eq!(replicas[second].read(|text| text.0.len() as u64), Ok(taken), "what was answered, and nothing else");
}

fn one_that_leads_later_has_a_larger_fencing_token(way: Way) {
    let (replicas, mut leader) = three(&cluster_that("token", way, 3));
    let token = |leader: usize| replicas[leader].role().fencing_token.expect("it leads");
    let mut tokens = vec![token(leader)];
    assert!(tokens[0] > 0);
    // Leadership is handed over as often as there are replicas, so one of them leads for a second time.
    for _ in 0..replicas.len() {
        let before = leader;
        hand_over(&replicas[before], None);
        leader = settled(&replicas, |leader| leader != before);
        assert_eq!(replicas[before].role().fencing_token, None, "who leads no more has none");
        tokens.push(token(leader));
    }
    // It ends without telling the others, who notice that it is gone.
    replicas[leader].propose_with(b"x", |_| panic!("as it was told"));
    assert!(matches!(replicas[leader].join(), Err(StopError::Panicked(_))));
    let rest: Vec<_> = replicas.iter().enumerate().filter(|(at, _)| *at != leader).map(|(_, r)| r.clone()).collect();
    let next = settled(&rest, |_| true);
    tokens.push(rest[next].role().fencing_token.expect("it leads"));
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// Cases in which leadership cannot be handed over.
#[test]
fn a_successor_that_cannot_be_is_refused() {
    let (replicas, first) = three(&cluster("nowhere", EngineKind::Mu, 3));
    assert_eq!(replicas[first].transfer_leadership_to(9), Err(CallError::NoSuccessor));
    assert_eq!(replicas[first].transfer_leadership_to(first as u16), Ok(()), "it leads already");
    assert!(matches!(replicas[1].transfer_leadership_to(2), Err(CallError::NotLeader { .. })));
    assert_eq!(replicas[first].role().role, Role::Leader);
    let (replicas, first) = three(&cluster("nowhere", EngineKind::PrimaryBackup, 3));
    assert_eq!(replicas[first].transfer_leadership_to(9), Err(CallError::NoSuccessor), "who is not next in the view's order");
    assert_eq!(replicas[first].transfer_leadership_to(first as u16), Ok(()), "it leads already");
    assert_eq!(replicas[first].role().role, Role::Leader);
}

//! Three replicas in this process: what followers say, and how leadership is handed over.

use std::time::Duration;

use martlet::config::Cluster;
use martlet::counters::Counter;
use martlet::{CallError, Leader, Replica, Role, SessionCommand};

use crate::cluster::{Text, cluster, threads};

fn start(cluster: &Cluster, node: u16) -> Replica<Text> {
    let address = format!("127.0.0.{}:7000", node + 1);
    Replica::builder().cluster(cluster.clone()).node(node).listen(address).threads(threads()).start(Text::default()).expect("it starts")
}

/// Waits until some replica leads and all of them hold the whole state, and returns who leads.
fn settled(replicas: &[Replica<Text>]) -> usize {
    loop {
        let leader = replicas.iter().position(|r| r.role().role == Role::Leader);
        let whole = |r: &Replica<Text>| r.metrics().is_ok_and(|m| m.get(Counter::Replicas) == replicas.len() as u64);
        if let Some(leader) = leader.filter(|_| replicas.iter().all(whole)) {
            return leader;
        }
        replicas[0].roles().next_within(Duration::from_millis(1));
        std::thread::yield_now();
    }
}

#[test]
fn a_follower_names_the_leader_and_leadership_is_handed_over_without_loss() {
    let cluster = cluster("together", 3);
    let replicas: Vec<_> = (0..3).map(|node| start(&cluster, node)).collect();
    let first = settled(&replicas);
    let session = replicas[first].open_session().expect("it leads");
    let once = |at: usize, seq, command| replicas[at].propose_once(SessionCommand { session, seq, confirmed: 0, command });
    assert_eq!(once(first, 1, b"ab").as_deref(), Ok(&b"2"[..]));

    let follower = (first + 1) % 3;
    let named = Some(Leader { node: first as u16, address: Some(format!("127.0.0.{}:7000", first + 1)) });
    assert_eq!(replicas[follower].propose(b"x"), Err(CallError::NotLeader { leader: named.clone() }));
    assert_eq!(replicas[follower].read(|_| ()), Err(CallError::NotLeader { leader: named.clone() }));
    assert_eq!(replicas[follower].role().role, Role::Follower { leader: named });

    let roles = replicas[first].roles();
    replicas[first].transfer_leadership().expect("others hold the state");
    let second = settled(&replicas);
    assert_ne!(second, first);
    // The old leader went out and came back.
    let seen: Vec<Role> = std::iter::from_fn(|| roles.try_next()).map(|change| change.role).collect();
    assert_eq!(seen[0], Role::Leader);
    assert!(seen.contains(&Role::Rejoining) && matches!(seen.last(), Some(Role::Follower { .. })), "{seen:?}");
    // A repeated command is known there, and nothing is lost.
    assert_eq!(once(second, 1, b"ab").as_deref(), Ok(&b"2"[..]));
    assert_eq!(once(second, 2, b"c").as_deref(), Ok(&b"3"[..]));
    assert_eq!(replicas[second].query(b"").as_deref(), Ok(&b"abc"[..]));

    // The old leader was taught the state, and gets it all.
    while replicas[first].read_stale(|text| text.0.clone()).as_deref() != Ok(&b"abc"[..]) {
        std::thread::yield_now();
    }
    // Who ends in order leaves the rest to the others.
    replicas[second].stop().expect("in order");
    let rest: Vec<_> = replicas.iter().enumerate().filter(|(at, _)| *at != second).map(|(_, r)| r.clone()).collect();
    let third = settled(&rest);
    let reply = rest[third].propose_once(SessionCommand { session, seq: 2, confirmed: 0, command: b"c" });
    assert_eq!(reply.as_deref(), Ok(&b"3"[..]));
}

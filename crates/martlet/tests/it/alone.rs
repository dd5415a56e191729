//! A cluster of one: every call, and every way in which one is refused.

use std::sync::mpsc::channel;

use martlet::config::{DurabilityKind, EngineKind, ThreadsConfig};
use martlet::counters::Counter;
use martlet::{CallError, MAX_COMMAND_BYTES, Replica, Role, SessionCommand, StartError, StopError};

use crate::cluster::{Text, Way, cluster, cluster_that, in_every_way, threads};

in_every_way!(
    a_command_takes_effect_and_is_read,
    a_read_by_quorum_sees_what_was_acknowledged_and_keeps_its_place_among_calls,
    a_sessions_command_takes_effect_once_and_in_its_turn,
    what_cannot_be_is_refused_with_a_reason,
    the_longest_command_takes_effect_and_a_longer_one_is_refused_with_the_limit,
    a_machine_that_panics_ends_its_replica_and_leaves_the_outcome_open,
    a_callback_that_waits_for_a_change_of_role_is_told_why_that_cannot_be,
    a_call_that_comes_while_a_replica_ends_is_told_so,
    reads_that_wait_are_as_few_as_calls_may_wait,
);

fn leading(name: &str, way: Way) -> Replica<Text> {
    let replica =
        Replica::builder().cluster(cluster_that(name, way, 1)).node(0).threads(threads()).start(Text::default()).expect("it starts");
    assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
    replica
}

fn a_command_takes_effect_and_is_read(way: Way) {
    let replica = leading("calls", way);
    assert_eq!(replica.propose(b"ab").as_deref(), Ok(&b"2"[..]));
    let (sender, receiver) = channel();
    let told = sender.clone();
    replica.propose_with(b"c", move |reply| told.send(reply).expect("awaited"));
    assert_eq!(receiver.recv().expect("told"), Ok(b"3".to_vec()));
    assert_eq!(replica.query(b"? ").as_deref(), Ok(&b"? abc"[..]));
    assert_eq!(replica.read(|text| text.0.clone()).as_deref(), Ok(&b"abc"[..]));
    assert_eq!(replica.read_stale(|text| text.0.len()), Ok(3));
    replica.read_with(|text| text.0.clone(), move |seen| sender.send(seen).expect("awaited"));
    assert_eq!(receiver.recv().expect("told"), Ok(b"abc".to_vec()));
}

fn a_read_by_quorum_sees_what_was_acknowledged_and_keeps_its_place_among_calls(way: Way) {
    let replica = leading("quorum", way);
    assert_eq!(replica.propose(b"ab").as_deref(), Ok(&b"2"[..]));
    assert_eq!(replica.read_by_quorum(|text| text.0.clone()).as_deref(), Ok(&b"ab"[..]));
    assert_eq!(replica.query_by_quorum(b"? ").as_deref(), Ok(&b"? ab"[..]));
    let (sender, receiver) = channel();
    for call in 0..30 {
        let told = sender.clone();
        let note = move |result: Result<Vec<u8>, CallError>| told.send((call, result.expect("it leads").len())).expect("awaited");
        match call % 3 {
            0 => replica.propose_with(b"x", note),
            1 => replica.read_by_quorum_with(|text| text.0.clone(), note),
            _ => replica.read_with(|text| text.0.clone(), note),
        }
    }
    for call in 0..30 {
        let (told, length) = receiver.recv().expect("told");
        assert_eq!(told, call, "in the order of execution, whatever each waited for");
        assert!(call % 3 == 0 || length == 3 + call / 3, "{length} bytes in call {call}");
    }
    replica.stop().expect("in order");
    assert_eq!(replica.read_by_quorum(|_| ()), Err(CallError::ShuttingDown));
}

fn a_sessions_command_takes_effect_once_and_in_its_turn(way: Way) {
    let replica = leading("session", way);
    let session = replica.open_session().expect("opened");
    let once = |seq, confirmed, command| replica.propose_once(SessionCommand { session, seq, confirmed, command });
    for _ in 0..3 {
        assert_eq!(once(1, 0, b"ab").as_deref(), Ok(&b"2"[..]));
    }
    assert_eq!(once(3, 0, b"x"), Err(CallError::OutOfTurn { session, seq: 3, next: 2 }));
    assert_eq!(once(2, 1, b"c").as_deref(), Ok(&b"3"[..]));
    assert_eq!(once(1, 1, b"ab"), Err(CallError::Confirmed { session, seq: 1 }));
    let (sender, receiver) = channel();
    replica.open_session_with(move |name| sender.send(name).expect("awaited"));
    let other = receiver.recv().expect("told").expect("opened");
    assert_ne!(other, session);
    replica.close_session(session).expect("closed");
    assert_eq!(once(3, 2, b"d"), Err(CallError::SessionUnknown { session }));
    let (sender, receiver) = channel();
    replica.close_session_with(other, move |closed| sender.send(closed).expect("awaited"));
    assert_eq!(receiver.recv().expect("told"), Ok(()));
    let in_other = SessionCommand { session: other, seq: 1, confirmed: 0, command: b"e" };
    assert_eq!(replica.propose_once(in_other), Err(CallError::SessionUnknown { session: other }));
    assert_eq!(replica.query(b"").as_deref(), Ok(&b"abc"[..]));
}

fn what_cannot_be_is_refused_with_a_reason(way: Way) {
    let replica = leading("refused", way);
    let long = vec![0; MAX_COMMAND_BYTES + 1];
    assert_eq!(replica.propose(&long), Err(CallError::TooLong { bytes: MAX_COMMAND_BYTES + 1, limit: MAX_COMMAND_BYTES }));
    assert_eq!(replica.transfer_leadership(), Err(CallError::NoSuccessor));
    // A blocking call from a callback would wait for itself.
    let (sender, receiver) = channel();
    let its = replica.clone();
    replica.propose_with(b"x", move |_| sender.send((its.propose(b"y"), its.stop().err().map(|e| e.to_string()))).expect("awaited"));
    let (refused, stop) = receiver.recv().expect("told");
    assert_eq!(refused, Err(CallError::OnReplicaThread));
    assert!(stop.is_some_and(|text| text.contains("or this is the replica's own thread")));
    // The refused calls have ended nothing.
    assert!(replica.propose(b"y").is_ok());
    assert!(replica.metrics().expect("counters").get(Counter::Pid) == u64::from(std::process::id()));
    replica.stop().expect("it ends in order");
    assert_eq!(replica.propose(b"z"), Err(CallError::ShuttingDown));
    assert_eq!(replica.read(|_| ()), Err(CallError::ShuttingDown));
    assert_eq!(replica.roles().map(|change| change.role).collect::<Vec<_>>(), [Role::Stopped]);
    assert!(matches!(replica.join(), Err(StopError::Elsewhere)));
}

fn the_longest_command_takes_effect_and_a_longer_one_is_refused_with_the_limit(way: Way) {
    let replica = leading("long", way);
    // One engine's limit can be lower than the general one.
    let limit = match replica.propose(&[0; MAX_COMMAND_BYTES]) {
        Err(CallError::TooLong { bytes: MAX_COMMAND_BYTES, limit }) => {
            assert_eq!(replica.propose(&vec![0; limit + 1]), Err(CallError::TooLong { bytes: limit + 1, limit }));
            assert_eq!(replica.propose(&vec![1; limit]), Ok(limit.to_string().into_bytes()), "what was refused had no effect");
            limit
        }
        other => {
            assert_eq!(other, Ok(MAX_COMMAND_BYTES.to_string().into_bytes()));
            MAX_COMMAND_BYTES
        }
    };
    assert_eq!(limit < MAX_COMMAND_BYTES, way.engine.traits().elects(), "a quarter of its log is less");
    assert_eq!(replica.read(|text| text.0.len()), Ok(limit));
}

fn a_machine_that_panics_ends_its_replica_and_leaves_the_outcome_open(way: Way) {
    let replica = leading("panic", way);
    assert_eq!(replica.propose(b"panic"), Err(CallError::OutcomeUnknown));
    assert!(matches!(replica.join(), Err(StopError::Panicked(text)) if text.contains("as it was told")));
    assert_eq!(replica.propose(b"x"), Err(CallError::ShuttingDown));
}

fn a_callback_that_waits_for_a_change_of_role_is_told_why_that_cannot_be(way: Way) {
    let replica = leading("waits", way);
    let mut changes = replica.roles();
    replica.propose_with(b"ab", move |_| while changes.next().is_some() {});
    assert!(matches!(replica.join(), Err(StopError::Panicked(text)) if text.contains("call try_next there")));
}

#[test]
fn a_builder_names_what_it_lacks() {
    let start = |builder: martlet::Builder| builder.start(Text::default()).expect_err("it lacks something").to_string();
    assert_eq!(start(Replica::builder()), "the cluster is not set: call `cluster_file` on the builder");
    assert_eq!(
        start(Replica::builder().cluster(cluster("lack", EngineKind::PrimaryBackup, 1))),
        "the node's number is not set: call `node` on the builder"
    );
    let builder = || Replica::builder().cluster(cluster("lack", EngineKind::PrimaryBackup, 1));
    let refused = |call: &str, why: &str| format!("what the call `{call}` on the builder was given is refused: {why}");
    assert_eq!(start(builder().node(7)), refused("node", "number is 7; allowed: the cluster's nodes: 0"));
    let bad = start(builder().node(0).listen("here"));
    assert!(bad.starts_with(&refused("listen", "node[0].redis is \"here\"; allowed: host:port")), "{bad}");
    let of_engine = |engine| builder().node(0).engine(engine).durability(DurabilityKind::Sync);
    for bad in [start(builder().node(0).durability(DurabilityKind::Sync)), start(of_engine(EngineKind::Dare))] {
        assert!(bad.starts_with(&refused("durability", "durability.mode is \"sync\"")), "{bad}");
    }
    let bad = start(builder().node(0).threads(ThreadsConfig { spin_us: u64::MAX, ..threads() }));
    assert!(bad.starts_with(&refused("threads", "threads.spin_us is 18446744073709551615; allowed: ")), "{bad}");
    let none = Replica::builder().cluster(cluster("lack", EngineKind::PrimaryBackup, 1)).node(0).max_waiting(0).start(Text::default());
    assert!(matches!(none, Err(StartError::Value { key: "max_waiting", .. })));
}

fn a_call_that_comes_while_a_replica_ends_is_told_so(way: Way) {
    let replica = leading("ends", way);
    let (sender, receiver) = channel();
    let its = replica.clone();
    // Posted from the replica's own thread, which takes this call after it has been asked to end, or never.
    replica.propose_with(b"ab", move |_| {
        its.request_stop();
        its.propose_with(b"c", move |reply| sender.send(reply).expect("awaited"));
    });
    assert_eq!(receiver.recv().expect("told"), Err(CallError::ShuttingDown));
    replica.stop().expect("in order");
}

fn reads_that_wait_are_as_few_as_calls_may_wait(way: Way) {
    let cluster = cluster_that("reads", way, 1);
    let replica = Replica::builder().cluster(cluster).node(0).threads(threads()).max_waiting(2).start(Text::default()).expect("it starts");
    assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
    let (sender, receiver) = channel();
    let its = replica.clone();
    // The replica's thread is busy here, so it takes none of these calls.
    replica.propose_with(b"ab", move |_| {
        for _ in 0..3 {
            let sender = sender.clone();
            its.read_with(|text| text.0.len(), move |seen| sender.send(seen).expect("awaited"));
        }
    });
    assert_eq!(receiver.recv().expect("told"), Err(CallError::Busy { waiting: 2 }), "the third, and the log has room");
    assert_eq!([receiver.recv().expect("told"), receiver.recv().expect("told")], [Ok(2), Ok(2)]);
}

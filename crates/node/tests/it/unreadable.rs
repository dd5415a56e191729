//! A replica that finds an unreadable entry in its log steps aside, and the leader goes on without it.

use martlet_fabric::NodeId;
use martlet_node::config::EngineKind;
use martlet_node::counters::Counter;
use martlet_protocol::membership::Roles;

use crate::cluster::Nodes;
use crate::session::Session;

fn older_builds_step_aside(name: &str, engine: EngineKind) {
    let mut nodes = Nodes::start_with(
        name,
        3,
        |config| {
            Nodes::patient(config);
            // A learner asks a leader for the state once it has seen about seven beats of that leader's heart.
            config.detector.heartbeat_us = 500_000;
            config.engine = engine;
        },
        |_| {},
    );
    nodes.settle();
    let leader = nodes.primary();
    let others: Vec<u16> = (0..3).filter(|node| *node != leader).collect();
    for other in &others {
        let before = nodes.reading(*other).expect("connected").get(Counter::Incarnation);
        nodes.kill(*other);
        nodes.spawn_that_reads_up_to(*other, 10);
        nodes.until("the earlier build is a replica", |nodes| {
            let view = nodes.view(leader)?;
            let mut replicas = view.with_roles(Roles::REPLICA);
            replicas.any(|member| member.id.node == NodeId(*other) && member.id.incarnation.0 > before).then_some(())
        });
    }
    let mut session = Session::open(&nodes.cluster, 1);
    for expected in 1..=10 {
        assert_eq!(session.add(), expected);
    }
    // The first entry that the others cannot read, and those after it.
    for expected in 11..=20 {
        assert_eq!(session.add(), expected, "the leader goes on");
    }
    for other in others {
        assert_eq!(nodes.reap(other).code(), Some(1), "it ends with an error, and by nothing else");
        let error = nodes.error_of(other);
        assert!(error.contains("11 is a number of a later build: another build has written it"), "{error}");
        assert!(error.starts_with(&format!("node n{other}: entry ")), "{error}");
    }
    assert_eq!(nodes.primary(), leader);
    assert_eq!((session.add(), session.get()), (21, 21));
    nodes.settle();
}

#[test]
fn older_builds_of_a_cluster_with_a_primary_step_aside_from_an_entry_that_they_cannot_read() {
    older_builds_step_aside("unreadable", EngineKind::PrimaryBackup);
}

#[test]
fn older_builds_of_mu_step_aside_from_an_entry_that_they_cannot_read() {
    older_builds_step_aside("unreadable-mu", EngineKind::Mu);
}

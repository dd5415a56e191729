//! Rehearsed takeovers: which node rehearses, how far it gets, and that the cluster is unaffected.

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{NodeId, RegionName};
use martlet_node::counters::Counter;
use martlet_protocol::basics::layout::{BOARD, PROPOSALS, SLOT_WORDS};

use crate::cluster::Nodes;
use crate::session::Session;

/// How often each node has rehearsed to the end, which is when the made-up client has its reply. A node whose rehearsal gets no further ends.
fn rehearsals(nodes: &mut Nodes) -> Vec<u64> {
    (0..3).map(|number| nodes.reading(number).map_or(0, |r| r.get(Counter::Rehearsals))).collect()
}

/// The memory of all nodes that belongs to consensus and membership.
fn decisions(nodes: &mut Nodes) -> Vec<Vec<u64>> {
    let mut found = Vec::new();
    for number in 0..3 {
        for name in [SLOT_WORDS, PROPOSALS, BOARD] as [RegionName; 3] {
            let peer = nodes.watcher.peer(NodeId(number)).expect("it is connected");
            let memory = nodes.watcher.fabric().peer_memory(peer, name).expect("every node has it");
            found.push(memory.iter().map(|word| word.load(Ordering::Relaxed)).collect());
        }
    }
    found
}

#[test]
fn the_successor_rehearses_nobody_else_does_and_the_cluster_does_not_notice() {
    let mut nodes = Nodes::start_with("rehearse", 3, Nodes::patient, |node| node.threads.rehearse_every_us = 500);
    nodes.settle();
    let mut session = Session::open(&nodes.cluster, 1);
    assert_eq!(session.add(), 1);
    let mut expected = 1;
    for _ in 0..3 {
        nodes.settle();
        let primary = nodes.primary();
        let view = nodes.view(primary).expect("it has settled");
        let [leads, successor, third] = [0, 1, 2].map(|place| view.members[place].id.node.0);
        assert_eq!(leads, primary);
        let (before, start) = (decisions(&mut nodes), rehearsals(&mut nodes));
        let end = nodes.until("there have been 100 rehearsals", |nodes| {
            let now = rehearsals(nodes);
            (now[usize::from(successor)] >= start[usize::from(successor)] + 100).then_some(now)
        });
        for other in [primary, third] {
            assert_eq!(end[usize::from(other)], start[usize::from(other)], "node {other} is not the successor");
        }
        assert_eq!(nodes.view(primary).map(|v| v.number), Some(view.number), "the same view");
        assert!(decisions(&mut nodes) == before, "what is played is not written into the cluster's memory");
        assert_eq!(session.get(), expected, "nor does its client count");

        // Now a real takeover.
        nodes.kill(primary);
        expected += 1;
        assert_eq!(session.add(), expected);
        assert_eq!(nodes.primary(), successor);
        nodes.spawn(primary);
    }
}

#[test]
fn a_node_that_is_told_not_to_rehearse_does_not() {
    let mut nodes = Nodes::start_with("unrehearsed", 3, Nodes::patient, |node| node.threads.rehearse_every_us = 0);
    nodes.settle();
    let mut session = Session::open(&nodes.cluster, 1);
    let parks = |nodes: &mut Nodes| (0..3).filter_map(|n| Some(nodes.reading(n)?.get(Counter::Parks))).min().unwrap_or(0);
    let start = parks(&mut nodes);
    nodes.until("everybody has slept often", |nodes| (parks(nodes) >= start + 100).then_some(()));
    assert_eq!(session.add(), 1);
    assert_eq!(rehearsals(&mut nodes), [0, 0, 0]);
}

//! A network's file. Either it is refused, with a name for what is wrong, or there is a plan, or a reason why there is none. A plan stays within what was asked
//! for and what the network holds: no tree shares a switch with another of its request, no queue is overfull, and no timeout is shorter than a period plus the
//! latest arrival. The same holds after any one failure.

use std::collections::BTreeSet;
use std::path::Path;

use martlet_cluster::plan::topology::{OVERHEAD_BYTES, Topology};
use martlet_cluster::plan::{Plan, Planned, map};

pub(super) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Topology::parse(Path::new("net.toml"), text) {
        Ok(topology) => {
            check(&topology);
            for node in 0..topology.nodes.len().min(4) {
                if let Ok(without) = topology.clone().without(topology.name(node)) {
                    check(&without);
                }
            }
        }
        Err(error) => assert!(error.to_string().starts_with("net.toml"), "{error}"),
    }
}

fn check(topology: &Topology) {
    let arcs = &topology.arcs;
    assert!(arcs.iter().all(|arc| arc.shared_mbit_per_s < arc.mbit_per_s), "others take the whole of a link");
    match Plan::new(topology) {
        Ok(plan) => {
            assert_eq!(plan.planned.len(), topology.requests.len());
            plan.planned.iter().for_each(|planned| check_request(topology, planned));
            for load in &plan.loads {
                assert!(load.room_bytes.is_none_or(|room| load.queued_bytes <= room), "a queue is overfull");
                assert!(load.share <= 100 * topology.bandwidth_percent, "{} of a link", load.share);
            }
            assert!(map::svg(topology, &plan).ends_with("</svg>\n"));
        }
        Err(error) => assert!(error.to_string().starts_with("net.toml"), "{error}"),
    }
}

fn check_request(topology: &Topology, planned: &Planned) {
    let asked = &planned.request;
    assert!((OVERHEAD_BYTES..=asked.packet_bytes).contains(&planned.packet_bytes) && planned.period_ns >= asked.period_ns);
    assert_eq!(planned.trees.len(), asked.trees);
    let mut switches = BTreeSet::new();
    for tree in &planned.trees {
        let mut reached = BTreeSet::from([asked.sender]);
        for arc in tree.arcs.iter().map(|arc| &topology.arcs[*arc]) {
            assert!(reached.contains(&arc.from) && reached.insert(arc.to), "a tree has no link that hangs in the air, and none too many");
            let to = &topology.nodes[arc.to];
            assert!(to.is_host() || switches.insert(arc.to), "two trees share {}", to.name);
        }
        assert!(asked.receivers.iter().all(|receiver| reached.contains(receiver)), "a tree leaves a receiver out");
    }
    for receiver in 0..asked.receivers.len() {
        let latest = planned.paths[receiver].iter().map(|path| path.latest_ns()).max().expect("one tree at least");
        assert!(planned.timeout_ns(receiver) >= planned.period_ns + latest, "a heartbeat comes too late");
        assert!(planned.paths[receiver].iter().all(|path| planned.period_ns >= path.jitter_ns), "a packet meets the one before");
    }
}

//! Real processes on shared memory: a node as users run it, with a tiny application, killed, paused and restarted.

mod clocks;
mod cluster;
mod counter;
mod failover;
mod rehearsal;
mod session;
mod unreadable;

/// Not a test of its own: what the tests' child processes run.
#[test]
fn node_process() {
    let Ok(config) = std::env::var(cluster::CONFIG) else { return };
    cluster::be_a_node(std::path::Path::new(&config));
}

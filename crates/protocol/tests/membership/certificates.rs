//! Certificates of deaths: which process's word releases a lease, and which one's does not.

use martlet_fabric::sim::{Faults, Span};
use martlet_protocol::basics::Time;
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{Disbelief, Evidence, Leases, Source};

use super::cluster::{Cluster, LEASE_NS, secret_of};

/// A cluster of three in which no kernel reports a death in time, as between hosts.
fn apart(seed: u64) -> Cluster {
    let never = Span(1 << 40, 1 << 40);
    Cluster::three(seed, Faults { death_words: never, gone: never, ..Faults::calm() }, Leases::Primary)
}

/// Has the warden of a node's host give the node evidence.
fn give(c: &mut Cluster, at: usize, of: usize, secret_from: usize) -> Result<(), Disbelief> {
    let (now, process, secret) = (Time(c.world.now()), c.nodes[of].id, secret_of(c.nodes[secret_from].id));
    let node = &mut c.nodes[at];
    node.core.handle_evidence(now, &mut node.fabric, process, Source::Certificate(secret))
}

#[test]
fn a_certificate_releases_the_lease_of_a_primary_on_another_host_at_once() {
    let mut c = apart(51);
    let [first, second, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    c.kill(first);
    c.run(LEASE_NS / 20);
    assert_eq!(c.newest().primary().map(|m| m.id), Some(c.nodes[first].id), "nobody knows");
    // Its warden reports to one host only, whose node does not lead.
    assert_eq!(give(&mut c, third, first, first), Ok(()));
    c.run(LEASE_NS / 20);
    assert_eq!(c.active(), [(c.nodes[second].id, c.newest().number)], "well within the lease of the dead");
    assert_eq!(c.nodes[second].core.suspicion(c.nodes[first].id), Some(Evidence::Certain), "it has heard it from the third");
}

#[test]
fn a_certificate_that_comes_after_the_view_releases_the_lease_all_the_same() {
    let mut c = apart(52);
    let [first, second, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    c.kill(first);
    c.hear(second, third, &Message::Notice { process: c.nodes[first].id, evidence: Evidence::Presumed });
    c.run(LEASE_NS / 20);
    let newest = c.newest().clone();
    assert!(newest.departed.iter().any(|d| d.id == c.nodes[first].id && d.evidence == Evidence::Presumed), "{newest:?}");
    assert_eq!(c.active(), [], "the dead one's lease is waited for");
    assert_eq!(give(&mut c, second, first, first), Ok(()));
    c.run(LEASE_NS / 20);
    assert_eq!(c.active(), [(c.nodes[second].id, newest.number)]);
}

#[test]
fn trap_29_a_notice_that_another_is_certainly_dead_or_has_left_proves_nothing() {
    for evidence in [Evidence::Certain, Evidence::Left] {
        let mut c = apart(53);
        let [first, second, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
        c.hear(second, third, &Message::Notice { process: c.nodes[first].id, evidence });
        assert_eq!(c.nodes[second].core.suspicion(c.nodes[first].id), None, "told that it is {evidence}");
        // A process may say this of itself.
        c.hear(second, first, &Message::Notice { process: c.nodes[first].id, evidence: Evidence::Left });
        assert_eq!(c.nodes[second].core.suspicion(c.nodes[first].id), Some(Evidence::Left));
    }
}

#[test]
fn trap_29_a_forged_certificate_proves_nothing_whoever_brings_it() {
    let mut c = apart(54);
    let [first, second, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    let before = c.newest().number;
    assert_eq!(give(&mut c, second, first, third), Err(Disbelief::Wrong));
    c.hear(second, third, &Message::Certificate { process: c.nodes[first].id, secret: [7; 16] });
    assert_eq!(c.nodes[second].core.suspicion(c.nodes[first].id), None);
    assert_eq!(c.nodes[second].core.disbelieved(), 2);
    c.run(LEASE_NS);
    assert_eq!(c.newest().number, before);
}

#[test]
fn trap_28_a_certificate_of_an_earlier_life_proves_nothing_of_the_next_one() {
    let mut c = apart(55);
    let [first, second, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    c.kill(third);
    assert_eq!(give(&mut c, second, third, third), Ok(()));
    c.run(LEASE_NS);
    let again = c.start(c.nodes[third].id.node.0, 2, false);
    c.run(5_000_000);
    assert!(c.newest().member(c.nodes[again].id).is_some());
    for at in [first, second] {
        assert_eq!(give(&mut c, at, again, third), Err(Disbelief::Wrong));
        assert_eq!(c.nodes[at].core.suspicion(c.nodes[again].id), None);
    }
    assert_eq!(give(&mut c, second, again, again), Ok(()), "that would be its own");
}

#[test]
fn a_process_that_hears_its_own_certificate_stops_at_once() {
    let mut c = apart(56);
    let [first, _, third] = c.seniority()[..] else { panic!("{:?}", c.newest()) };
    c.hear(first, third, &Message::Certificate { process: c.nodes[first].id, secret: [7; 16] });
    assert!(c.nodes[first].core.lease().active(c.newest().number, Time(c.world.now())), "that is none of its own");
    // Its warden has lied, and other members may have released its lease.
    let secret = secret_of(c.nodes[first].id);
    c.hear(first, third, &Message::Certificate { process: c.nodes[first].id, secret });
    let lease = c.nodes[first].core.lease();
    assert!(!lease.active(lease.view(), Time(c.world.now())));
    c.run(LEASE_NS / 20);
    assert!(c.nodes[first].excluded);
}

//! Lease caches (uKharon section 6.3).

use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::Faults;
use martlet_fabric::{Fabric, LocalRegion};
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout::{LIFE, life};
use martlet_protocol::membership::cache::CacheWord;
use martlet_protocol::membership::{ClockBounds, Leases, Roles};

use crate::cluster::{Cluster, DUTY_NS, LEASE_NS};

/// Three members that coordinate and take leases, and a lease cache that does nothing else. Returns the cluster and the cache's number.
fn three_and_a_cache(seed: u64) -> (Cluster, usize) {
    let mut c = Cluster::three(seed, Faults::calm(), Leases::Everybody);
    let cache = c.start_as(Roles::LEASE_CACHE, 3, 1, false);
    // All of them have met and hold leases on the view that lists the cache.
    c.run(4 * LEASE_NS);
    assert_eq!((c.newest().members.len(), c.active().len()), (4, 4), "the cache is a member like others, and takes its own lease");
    (c, cache)
}

fn word_of(c: &Cluster, cache: usize) -> CacheWord {
    let life = c.nodes[cache].fabric.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
    CacheWord(life[life::CACHE].load(Ordering::SeqCst))
}

#[test]
fn section_6_3_members_renew_through_a_lease_cache_and_leave_the_coordinators_alone() {
    let (mut c, cache) = three_and_a_cache(41);
    let counts = |c: &Cluster| [0, 1, 2].map(|n| (c.nodes[n].core.renewals_by_majority(), c.nodes[n].core.renewals_through_cache()));
    let before = counts(&c);
    assert!((0..3).all(|n| c.nodes[n].core.lease_cache() == Some(c.nodes[cache].id)));
    for _ in 0..400 {
        c.run(LEASE_NS / 20);
        assert_eq!(c.active().len(), 4, "nobody's lease lapses");
    }
    for (before, after) in before.iter().zip(counts(&c)) {
        assert_eq!(after.0, before.0, "the coordinators are not asked");
        assert!(after.1 - before.1 >= 60, "20 leases' time: {} renewals", after.1 - before.1);
    }
}

#[test]
fn section_6_3_a_lease_through_a_cache_lasts_from_before_the_cache_asked() {
    let (mut c, cache) = three_and_a_cache(42);
    let usable = ClockBounds::default().shortened(LEASE_NS);
    let (mut begun, mut confirmed_since) = (c.world.now(), None);
    let (mut word, mut renewed) = (word_of(&c, cache), 0);
    for _ in 0..4000 {
        let before = [0, 1, 2].map(|n| c.nodes[n].core.renewals_through_cache());
        c.run(DUTY_NS / 10);
        let now = word_of(&c, cache);
        if now != word {
            // At least one round has begun since we last looked. The last one that can be confirmed began no later than now.
            if now.0 & 1 == 1 || now.0 > word.0 + 1 {
                begun = c.world.now();
            }
            if now.0 & 1 == 0 {
                confirmed_since = Some(begun);
            }
            word = now;
        }
        for (node, before) in c.nodes.iter().zip(before) {
            if node.core.renewals_through_cache() > before
                && let Some(asked) = confirmed_since
            {
                renewed += 1;
                let from = node.core.lease().end().0 - usable;
                assert!(from <= asked, "a lease from {from}, and the coordinators were asked at {asked} at the latest");
            }
        }
    }
    assert!(renewed > 20, "{renewed} renewals");
}

#[test]
fn section_7_2_a_lease_cache_that_fails_interrupts_nobody() {
    let (mut c, cache) = three_and_a_cache(43);
    let view = c.newest().number;
    c.world.pause(c.nodes[cache].index);
    let before = [0, 1, 2].map(|n| c.nodes[n].core.renewals_by_majority());
    let mut looked = 0;
    while c.newest().number == view && looked < 400 {
        // The cache's own lease runs out; the others ask the coordinators in time.
        let active = c.active();
        assert_eq!((0..3).filter(|n| active.contains(&(c.nodes[*n].id, view))).count(), 3, "after {looked} looks");
        looked += 1;
        c.run(LEASE_NS / 20);
    }
    assert!(looked > 20, "longer than a lease: {looked} looks");
    assert!((0..3).all(|n| c.nodes[n].core.renewals_by_majority() > before[n]));
    c.run(10 * LEASE_NS);
    assert!(c.newest().member(c.nodes[cache].id).is_none(), "it has been cut off meanwhile");
    assert_eq!(c.active().len(), 3);
    assert!((0..3).all(|n| c.nodes[n].core.lease_cache().is_none()));
}

#[test]
fn a_failover_waits_for_no_lease_cache() {
    let (mut c, cache) = three_and_a_cache(44);
    // The paper's caches lengthen a failover by their own lease. Here, a cache that is paused at the wrong moment delays no member that asks.
    let view = c.newest().number;
    c.kill(0);
    let mut waited = 0;
    while !c.active().iter().any(|(p, v)| *v > view && *p == c.nodes[1].id) {
        c.run(DUTY_NS);
        waited += DUTY_NS;
        assert!(waited < LEASE_NS / 2, "well within a lease");
    }
    assert!(c.newest().member(c.nodes[cache].id).is_some());
    let now = Time(c.world.now());
    assert!(c.nodes[1].core.lease().active(c.newest().number, now));
}

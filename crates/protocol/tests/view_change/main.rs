//! Every schedule of a view change at a small size: an old primary that takes and renews its lease, a coordinator that takes its place, and a third one that is
//! only memory. The production [`Core`]s run against a fabric on which each operation takes effect, and each completion arrives, at any moment that the
//! contract allows. Time passes at any moment. A process that is not scheduled is paused. The old primary dies, is presumed dead, or leaves, at any moment.
//!
//! Checked in every state (uKharon Theorem B.1, with DESIGN section 5's release of leases): once a view is active, no older one is, and views of one number are
//! the same. Each canary breaks one assumption; the exploration has to find what follows from that.

mod fabric;
mod world;

use std::collections::HashSet;

use martlet_fabric::primitive::Ordering;
use martlet_protocol::basics::layout::life;

use crate::fabric::Order;
use crate::world::{Broken, FIRST, Faults, NEW, OLD, START, World};

/// What an exploration has seen.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    /// States in which the new primary is active, and the earliest unit of time in which it was.
    taken_over: usize,
    earliest: u64,
    /// Those of them in which the old primary lives and has not given its lease back.
    waited: usize,
    /// States in which the old primary is active although the next view is decided: the case for which there are leases.
    overlap: usize,
    violation: Option<String>,
}

/// Visits every reachable state until a violation is found.
fn explore(world: World, units: u64) -> Seen {
    let (faults, broken, order) = (world.faults, world.broken, world.order);
    let mut seen = HashSet::from([world.digest()]);
    let mut stack = vec![world];
    let mut result = Seen { earliest: u64::MAX, ..Seen::default() };
    while let Some(world) = stack.pop() {
        for mut next in world.successors(START + units) {
            if let Err(why) = next.check() {
                result.violation = Some(why);
                return result;
            }
            if seen.insert(next.digest()) {
                result.states += 1;
                if next.is_active(NEW) {
                    result.taken_over += 1;
                    result.earliest = result.earliest.min(next.now - START);
                    let word = next.memories[OLD].life[life::LEASE].load(Ordering::Relaxed);
                    result.waited += usize::from(next.alive && word == FIRST.0);
                }
                result.overlap += usize::from(next.is_active(OLD) && next.decided.contains_key(&FIRST.next().0));
                stack.push(next);
            }
        }
    }
    println!("{faults:?} {broken:?} {order:?} {units} units: {result:?}");
    result
}

const KILLED: Faults = Faults { killed: true, presumed: false, leaves: false };
const PRESUMED: Faults = Faults { killed: false, presumed: true, leaves: false };
const LEAVES: Faults = Faults { killed: false, presumed: false, leaves: true };
const ALL: Faults = Faults { killed: true, presumed: true, leaves: true };

#[test]
fn design_5_certain_death_lets_the_next_view_be_active_at_once_and_never_too_early() {
    for order in [Order::Posted, Order::Contract] {
        let seen = explore(World::new(KILLED, Broken::Nothing, order), 2);
        assert_eq!(seen.violation, None);
        assert!(seen.taken_over > 0 && seen.earliest < 2, "within the dead one's lease: {seen:?}");
    }
}

#[test]
fn theorem_b_1_a_presumption_waits_for_the_lease_of_who_may_live() {
    let seen = explore(World::new(PRESUMED, Broken::Nothing, Order::Posted).with_turns(1), 3);
    assert_eq!(seen.violation, None);
    assert!(seen.waited > 0 && seen.overlap > 0, "{seen:?}");
}

#[test]
fn design_5_a_lease_that_is_given_back_is_not_waited_for() {
    let seen = explore(World::new(PRESUMED, Broken::Nothing, Order::Posted), 1);
    assert_eq!(seen.violation, None);
    assert!(seen.taken_over > 0 && seen.waited == 0 && seen.overlap > 0, "{seen:?}");
}

#[test]
fn design_5_a_primary_that_leaves_gives_its_lease_back_first() {
    let seen = explore(World::new(LEAVES, Broken::Nothing, Order::Posted), 2);
    assert_eq!(seen.violation, None);
    assert!(seen.taken_over > 0 && seen.earliest < 2, "nobody waits for it: {seen:?}");
}

#[test]
#[ignore = "takes long: cargo test --release -p martlet-protocol --test view_change -- --ignored"]
fn theorem_b_1_a_presumption_in_any_order_that_the_contract_allows() {
    let seen = explore(World::new(PRESUMED, Broken::Nothing, Order::Contract), 3);
    assert_eq!(seen.violation, None);
    assert!(seen.taken_over > 0 && seen.overlap > 0, "{seen:?}");
}

#[test]
#[ignore = "takes long: cargo test --release -p martlet-protocol --test view_change -- --ignored"]
fn theorem_b_1_with_every_fault_at_any_moment() {
    let seen = explore(World::new(ALL, Broken::Nothing, Order::Posted), 4);
    assert_eq!(seen.violation, None);
    assert!(seen.taken_over > 0 && seen.overlap > 0, "{seen:?}");
}

#[test]
fn canary_a_false_certainty_is_found() {
    assert!(explore(World::leased(PRESUMED, Broken::FalseCertainty, Order::Posted), 1).violation.is_some());
}

#[test]
fn canary_a_lease_word_stored_behind_the_read_of_the_slot_is_found() {
    assert!(explore(World::new(PRESUMED, Broken::LateLeaseWord, Order::Posted), 1).violation.is_some());
}

#[test]
fn canary_a_clock_beyond_its_bounds_is_found() {
    assert!(explore(World::leased(PRESUMED, Broken::SlowClock, Order::Posted), 3).violation.is_some());
}

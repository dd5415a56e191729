//! The hand-over of `mu`'s permission to write. A leader has one entry to commit. Another replica presumes it dead and leads in its place, with another entry.
//! A third replica grants its permission to one of them and then to the other.
//!
//! Checked in every state: one writer at a time (`docs/mu.md`); what is committed stays committed, and any later leader has it. Checked at every end: some
//! replica leads. Each canary breaks one assumption, or plants a bug; the exploration has to find what follows from that.

use std::collections::HashSet;

use martlet_fabric::{RegionName, Token, ring};
use martlet_protocol::basics::ProcessId;
use martlet_protocol::basics::layout::LOG_LANE;
use martlet_protocol::engine::mu::layout::{LOG, Op, PERMISSION_LANE, SCRATCH, SCRATCH_WORDS_BYTES, STATE_LANE, WORDS, permission, words};
use martlet_protocol::engine::mu::{Config, Mu};
use martlet_protocol::replica::Settings;
use martlet_protocol::replica::group::Group;

use crate::model::{Explored, Matter, Mixed, Model, NEVER_NS, PROCESSES, RING_BYTES};
use crate::world::{Broken, NEW, OLD, Property, World};

impl Explored for Mu {
    const PUBLIC: &[RegionName] = &[WORDS, LOG, SCRATCH];
    const LANES: &[RegionName] = &[LOG_LANE, PERMISSION_LANE, STATE_LANE];
    const SCRATCH: RegionName = SCRATCH;
    const HOLDER: &str = "permission: Permission { holder: ";

    fn config(shared: Settings) -> Config {
        Config { shared, ..Config::default() }
    }

    fn founder(me: ProcessId, config: Config, group: Group) -> Mu {
        Mu::new(me, config, Some(group))
    }

    fn words(region: RegionName) -> usize {
        let log = ring::lane_bytes(RING_BYTES) / 8;
        match region {
            WORDS => words::BYTES / 8,
            SCRATCH => SCRATCH_WORDS_BYTES / 8 + log,
            PERMISSION_LANE => permission::BYTES / 8,
            _ => log,
        }
    }

    fn number(&self) -> u64 {
        self.ballot()
    }

    /// Always 0: there are no votes.
    fn elected(&self) -> u64 {
        0
    }

    fn matter(token: Token) -> Matter {
        match Op::parse(token).0 {
            Op::Heartbeat | Op::Status | Op::Threads | Op::Death | Op::State | Op::StateConsumed => Matter::Sign,
            Op::Log => Matter::Log,
            Op::Consumed => Matter::OldNews,
            Op::Words | Op::CatchUp | Op::Revoke => Matter::Other,
            _ => Matter::Told,
        }
    }
}

/// How much is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The completions of the new leader's own operations come at once: if one could come late, the leader could as well have posted late. And nothing is
    /// followed further once the hand-over is over.
    HandOver,
    /// Without these restrictions. Also, an old leader that has lost the permission asks for it once more.
    Retry,
}

/// What an exploration has seen.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    /// States in which the new leader leads while the old one still takes itself for the leader.
    both: usize,
    /// Those of them in which the old leader has acknowledged its entry.
    inherited: usize,
    /// States in which the old leader's entry is lost, and another has its place.
    replaced: usize,
    /// Ends of schedules (`ends`), and those in which no process leads (`leaderless`).
    ends: usize,
    leaderless: usize,
    /// How many different steps engines took.
    steps: usize,
    violation: Option<String>,
}

/// `retries`: whether a leader that has lost its role asks for it once more.
fn model(retries: bool) -> Model<Mu> {
    Model::new(|config: &mut Config| config.retry_ns = if retries { 1 } else { NEVER_NS })
}

/// Visits every reachable state until a violation is found.
fn explore(broken: Broken, bound: Bound, properties: &[Property]) -> Seen {
    explore_with(&mut model(bound == Bound::Retry), broken, bound, properties)
}

fn explore_with(model: &mut Model<Mu>, broken: Broken, bound: Bound, properties: &[Property]) -> Seen {
    let prompt: &[usize] = if bound == Bound::HandOver { &[NEW] } else { &[] };
    let world = World::new(model, broken, &[NEW], prompt, 0);
    let mut seen: HashSet<u64, Mixed> = HashSet::from_iter([world.digest()]);
    let mut stack = vec![world];
    let mut result = Seen::default();
    'schedules: while let Some(world) = stack.pop() {
        let over = bound == Bound::HandOver && world.is_over(model);
        let next = if over { Vec::new() } else { world.successors(model) };
        if next.is_empty() {
            result.ends += 1;
            result.leaderless += usize::from(!(0..PROCESSES).any(|p| world.leads(model, p)));
        }
        for next in next {
            if !seen.insert(next.digest()) {
                continue;
            }
            result.states += 1;
            if let Some(why) = properties.iter().find_map(|property| next.check(model, *property).err()) {
                result.violation = Some(format!("{why}\n{}", next.describe(model)));
                break 'schedules;
            }
            if next.leads(model, NEW) && next.leads(model, OLD) {
                result.both += 1;
                result.inherited += usize::from(next.has_acknowledged(model));
            }
            result.replaced += usize::from(next.applied(model, NEW) == [(1, b'b')]);
            stack.push(next);
        }
    }
    result.steps = model.steps;
    println!("{broken:?} {bound:?} {properties:?}: {result:?}");
    result
}

const ALL: [Property; 2] = [Property::OneWriter, Property::Agreement];

#[test]
fn mu_5_2_one_writer_at_a_time_and_what_is_committed_is_handed_over() {
    let seen = explore(Broken::Nothing, Bound::HandOver, &ALL);
    assert_eq!(seen.violation, None);
    assert!(seen.states > 100_000 && seen.inherited > 0 && seen.both > seen.inherited && seen.replaced > 0, "{seen:?}");
    assert!(seen.ends > 0 && seen.leaderless == 0, "a schedule ends without a leader: {seen:?}");
}

#[test]
#[ignore = "takes long: cargo test --release -p martlet-protocol --test hand_over -- --ignored"]
fn mu_5_2_with_an_old_leader_that_asks_once_more() {
    let seen = explore(Broken::Nothing, Bound::Retry, &ALL);
    assert_eq!(seen.violation, None);
    assert!(seen.states > 1_000_000 && seen.inherited > 0 && seen.replaced > 0, "{seen:?}");
    assert!(seen.ends > seen.leaderless, "no schedule ends with a leader: {seen:?}");
}

#[test]
fn canary_a_revocation_that_completes_before_it_has_taken_effect_is_found() {
    for property in ALL {
        assert!(explore(Broken::EarlyRevocation, Bound::HandOver, &[property]).violation.is_some(), "{property:?}");
    }
}

#[test]
fn canary_a_write_that_succeeds_without_a_permission_is_found() {
    for property in ALL {
        assert!(explore(Broken::BlindWrites, Bound::HandOver, &[property]).violation.is_some(), "{property:?}");
    }
}

#[test]
fn canary_a_grant_that_never_comes_is_found() {
    let seen = explore(Broken::LostGrants, Bound::HandOver, &ALL);
    assert_eq!((seen.violation, seen.leaderless > 0), (None, true));
}

/// Bugs planted in the engine itself: `cargo test -p martlet-protocol --features canaries --test hand_over`.
#[cfg(feature = "canaries")]
mod planted {
    use martlet_protocol::basics::Canary;

    use super::*;

    fn violates(canary: Canary, property: Property) -> bool {
        let mut model = model(false);
        model.planted = Some(canary.name());
        explore_with(&mut model, Broken::Nothing, Bound::HandOver, &[property]).violation.is_some()
    }

    #[test]
    fn canary_an_early_grant_is_found() {
        assert!(violates(Canary::MuEarlyGrant, Property::OneWriter), "two may write");
        assert!(violates(Canary::MuEarlyGrant, Property::Agreement), "what was acknowledged is lost");
    }

    #[test]
    fn canary_a_new_leader_that_does_not_catch_up_is_found() {
        assert!(violates(Canary::MuNoCatchUp, Property::Agreement));
    }
}

//! Elections of `dare` among three servers (DARE section 3.2): a leader with one entry to commit, and two servers that presume it dead. Either of the two may
//! become a candidate, as often as time passes, and adds an entry of its own once it leads. The old leader goes on at any moment.
//!
//! Checked in every state: one server is elected for a term; a vote, also a candidate's own, is in the memory of a majority before it is answered or asked for;
//! a log has one writer at a time; what is committed stays committed, and any later leader has it. Checked over all schedules: each of the two gets to lead.

use std::collections::HashSet;

use martlet_fabric::{RegionName, Token, ring};
use martlet_protocol::basics::ProcessId;
use martlet_protocol::basics::layout::LOG_LANE;
use martlet_protocol::engine::Engine as _;
use martlet_protocol::engine::dare::layout::{
    CONTROL_LANE, LOG, Op, RUNS, SCRATCH, SLOT_BYTES, SNAPSHOT, WORDS, choice_of, control, term_of, vote_of, words,
};
use martlet_protocol::engine::dare::{Config, Dare};
use martlet_protocol::replica::Settings;
use martlet_protocol::replica::group::Group;

use crate::model::{Explored, Matter, Memories, Mixed, Model, PROCESSES, RING_BYTES};
use crate::world::{Broken, OLD, Property, World};

impl Explored for Dare {
    const PUBLIC: &[RegionName] = &[WORDS, LOG, SCRATCH, RUNS, SNAPSHOT];
    const LANES: &[RegionName] = &[LOG_LANE, CONTROL_LANE];
    const SCRATCH: RegionName = SCRATCH;
    const HOLDER: &str = "access: Access { holder: ";

    /// After time passes once, candidates and voters have lost patience, and a server whose turn comes later has its turn.
    fn config(shared: Settings) -> Config {
        Config { shared, election_ns: 20, rank_ns: 1, ..Config::default() }
    }

    fn founder(me: ProcessId, config: Config, group: Group) -> Dare {
        Dare::new(me, config, Some(group))
    }

    fn words(region: RegionName) -> usize {
        match region {
            WORDS => words::BYTES / 8,
            // A slot for each of the others; no server recovers here.
            SCRATCH => (PROCESSES - 1) * SLOT_BYTES / 8,
            RUNS => SLOT_BYTES / 8,
            CONTROL_LANE => control::BYTES / 8,
            SNAPSHOT => 1,
            _ => ring::lane_bytes(RING_BYTES) / 8,
        }
    }

    fn number(&self) -> u64 {
        self.fencing_token().unwrap_or(0)
    }

    fn elected(&self) -> u64 {
        let text = self.in_words();
        let reign = text.rsplit_once("reign ").expect("it says how it reigns").1;
        match reign.split_once(" of term ") {
            Some((stage, term)) if !stage.contains("Electing") => {
                term.split(':').next().and_then(|term| term.parse().ok()).expect("a number")
            }
            _ => 0,
        }
    }

    fn matter(token: Token) -> Matter {
        match Op::parse(token).0 {
            Op::Heartbeat | Op::Status | Op::Threads | Op::Death => Matter::Sign,
            Op::Log => Matter::Log,
            Op::Consumed => Matter::OldNews,
            Op::Control => Matter::Told,
            _ => Matter::Other,
        }
    }

    /// DARE section 3.2.3: a majority has the decision in memory before a vote is answered, and before one is asked for. It may have been replaced by a later
    /// decision.
    fn check(memories: &Memories<'_, Dare>) -> Result<(), String> {
        let word = |owner, writer, word| memories.lane_word(owner, writer, CONTROL_LANE, word);
        for by in 0..PROCESSES {
            let others = (0..PROCESSES).filter(|other| *other != by);
            let decided = |term: u64, node: usize| {
                // One more makes a majority, since the server itself knows.
                others
                    .clone()
                    .filter_map(|at| choice_of(word(at, by, control::PRIVATE)))
                    .any(|(decided, choice)| decided > term || (decided == term && usize::from(choice.0) == node))
            };
            for at in others.clone() {
                let (vote, asked) = (word(at, by, control::VOTE), word(at, by, control::REQUEST));
                if vote > 0 && vote == vote_of(term_of(vote)) && !decided(term_of(vote), at) {
                    return Err(format!("{by} has voted for {at} in term {}, and nobody knows", term_of(vote)));
                }
                if asked > 0 && !decided(asked, by) {
                    return Err(format!("{by} stands in term {asked}, and nobody knows how it has voted"));
                }
            }
        }
        Ok(())
    }
}

const ALL: [Property; 4] = [Property::OneLeader, Property::Memory, Property::OneWriter, Property::Agreement];

/// How much is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    /// How often time passes. Each time, candidates and voters have waited for long enough, and stand again.
    spans: u8,
    /// How many turns the old leader takes before another one leads.
    turns: u8,
}

/// Time does not pass, and the old leader takes no turns. Only its operations go on; once it is succeeded, it acknowledges what it may.
const ONE_ATTEMPT: Bound = Bound { spans: 0, turns: 0 };

/// What an exploration has seen.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    /// In how many of them each process leads.
    led: [usize; PROCESSES],
    /// In how many the old leader and another one both lead.
    both: usize,
    /// In how many of these the old leader has acknowledged its entry.
    inherited: usize,
    /// The highest term for which a server was elected.
    highest: u64,
    steps: usize,
    violation: Option<String>,
}

/// Visits every state that can be reached within a bound, until it finds a violation. Once another server leads, only the old leader goes on.
fn explore(model: &mut Model<Dare>, broken: Broken, bound: Bound, properties: &[Property]) -> Seen {
    let world = World::new(model, broken, &[1, 2], &[0, 1, 2], bound.spans).with_entry(model).with_turns(OLD, bound.turns);
    let mut seen: HashSet<u64, Mixed> = HashSet::from_iter([world.digest()]);
    let mut stack = vec![(world, false)];
    let mut result = Seen::default();
    'schedules: while let Some((world, succeeded)) = stack.pop() {
        let next = if succeeded { world.successors_by(model, OLD..OLD + 1) } else { world.successors(model) };
        for mut next in next {
            let leads: [bool; PROCESSES] = std::array::from_fn(|p| next.leads(model, p));
            let is_succeeded = leads[1] || leads[2];
            if is_succeeded && !succeeded {
                // Enough turns to learn everything and to act on it.
                next = next.with_turns(OLD, 2);
            }
            if !seen.insert(next.digest()) {
                continue;
            }
            result.states += 1;
            if let Some(why) = properties.iter().find_map(|property| next.check(model, *property).err()) {
                result.violation = Some(format!("{why}\n{}", next.describe(model)));
                break 'schedules;
            }
            for (count, leads) in result.led.iter_mut().zip(leads) {
                *count += usize::from(leads);
            }
            result.both += usize::from(leads[OLD] && is_succeeded);
            result.inherited += usize::from(is_succeeded && next.has_acknowledged(model));
            result.highest = result.highest.max(next.highest());
            stack.push((next, is_succeeded || succeeded));
        }
    }
    result.steps = model.steps;
    println!("{broken:?} {bound:?} {properties:?}: {result:?}");
    result
}

/// Explores production engines.
fn explored(broken: Broken, bound: Bound, properties: &[Property]) -> Seen {
    explore(&mut Model::new(|_: &mut Config| {}), broken, bound, properties)
}

#[test]
fn dare_3_2_one_leader_a_term_durable_votes_and_nothing_committed_is_lost() {
    let seen = explored(Broken::Nothing, ONE_ATTEMPT, &ALL);
    assert_eq!(seen.violation, None);
    assert!(seen.led.iter().all(|led| *led > 0) && seen.both > 0 && seen.inherited > 0, "{seen:?}");
}

#[test]
#[ignore = "takes long: cargo test --release -p martlet-protocol --test hand_over -- --ignored"]
fn dare_3_2_with_an_old_leader_that_takes_a_turn() {
    let seen = explored(Broken::Nothing, Bound { turns: 1, ..ONE_ATTEMPT }, &ALL);
    assert_eq!(seen.violation, None);
    assert!(seen.states > 1_000_000 && seen.inherited > 0, "{seen:?}");
}

#[test]
#[ignore = "takes long: cargo test --release -p martlet-protocol --test hand_over -- --ignored"]
fn dare_3_2_2_with_candidates_that_start_again() {
    let seen = explored(Broken::Nothing, Bound { spans: 1, ..ONE_ATTEMPT }, &ALL);
    assert_eq!(seen.violation, None);
    assert!(seen.states > 1_000_000 && seen.inherited > 0, "{seen:?}");
}

#[test]
fn canary_a_decision_that_is_said_to_stand_and_does_not_is_found() {
    assert!(explored(Broken::LostWrites, ONE_ATTEMPT, &[Property::Memory]).violation.is_some());
}

#[test]
fn canary_a_revocation_of_a_log_that_completes_before_it_has_taken_effect_is_found() {
    for property in [Property::OneWriter, Property::Agreement] {
        assert!(explored(Broken::EarlyRevocation, ONE_ATTEMPT, &[property]).violation.is_some(), "{property:?}");
    }
}

/// Bugs planted in the engine itself: `cargo test -p martlet-protocol --features canaries --test hand_over`.
#[cfg(feature = "canaries")]
mod planted {
    use martlet_protocol::basics::Canary;

    use super::*;

    fn violates(canary: Canary, property: Property) -> bool {
        let mut model = Model::new(|_: &mut Config| {});
        model.planted = Some(canary.name());
        explore(&mut model, Broken::Nothing, ONE_ATTEMPT, &[property]).violation.is_some()
    }

    #[test]
    fn canary_an_early_vote_is_found() {
        assert!(violates(Canary::DareEarlyVote, Property::OneWriter), "the old leader may still write");
        assert!(violates(Canary::DareEarlyVote, Property::Agreement), "what was acknowledged is lost");
    }

    #[test]
    fn canary_a_vote_for_an_older_log_is_found() {
        assert!(violates(Canary::DareOldLog, Property::Agreement));
    }
}

//! Every known bug that can be planted has to be found by the lives of its kind: `cargo xtask sim --canaries [NAME[@KIND]]...`.
//!
//! With `--known-first`, which is what a CI run can afford, the bugs that take longest begin with the life that last exposed them.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use martlet_sim::canaries::{Bug, bugs, hunt};
use martlet_sim::cluster::Kind;
use rustix::time::{ClockId, clock_gettime};

/// How long it may take to find a bug, in time that its thread has run, so that other work on the machine does not count. Most take a second.
const MOST: Duration = Duration::from_secs(60);
/// The bugs that take longest to find, each with the first seed that exposed it when this was last checked. They are looked for first, so that no core waits
/// for one of them at the end. A bug that is missing here, or is no longer exposed by its seed, costs time and nothing else.
const LONGEST: [(&str, &str, u64); 12] = [
    ("early-promotion", "host", 2537),
    ("dare-extended-votes", "dare-resize", 1146),
    ("best-log-left-out", "mu-disks-network", 1440),
    ("torn-view", "host", 1226),
    ("dare-fastest-follower", "dare", 773),
    ("dare-early-apply", "dare", 596),
    ("dare-short-log", "dare", 307),
    ("superseded-start", "host", 420),
    ("reused-lane", "host", 408),
    ("dare-hasty-change", "dare-resize", 194),
    ("threads-fixed", "host", 392),
    ("wrapped-ballot", "host", 238),
];
const KNOWN_FIRST: &str = "--known-first";

/// The bug's place in [`LONGEST`], and its known seed.
fn known(bug: &Bug) -> Option<(usize, u64)> {
    let place = LONGEST.iter().position(|(name, kind, _)| (*name, *kind) == (bug.name, bug.kind))?;
    Some((place, LONGEST[place].2))
}

/// Looks for each bug, on every core. A bug is planted in one thread, and the other threads do not have it. Returns the names of the bugs that were not found
/// in time.
fn look_for(chosen: &[Bug], known_first: bool) -> Vec<&'static str> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut missed = Vec::new();
        while let Some(bug) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let first = known(bug).filter(|_| known_first).map(|(_, seed)| seed);
            if !is_found(*bug, first) {
                missed.push(bug.name);
            }
        }
        missed
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a hunt ends by itself, or has said above why not")).collect()
    })
}

/// Whether the bug is found in time, from this seed on and then from 0.
fn is_found(bug: Bug, first: Option<u64>) -> bool {
    let start = run_time();
    let mut lives = 0u64;
    let in_time = |_: &u64| run_time() - start <= MOST;
    let found = hunt(bug, first.into_iter().chain(0..).take_while(in_time).inspect(|_| lives += 1));
    // Includes the life that exposes it, and the same life without the bug.
    let took = run_time() - start;
    let verdict = match &found {
        Some(found) if took <= MOST => found.violation.property.name().to_owned(),
        Some(found) => format!("TOO LATE: {}", found.violation.property),
        None => format!("NOT FOUND: {}", bug.meaning.trim()),
    };
    let seed = found.as_ref().map_or("-".to_owned(), |found| found.seed.to_string());
    let stale = first.filter(|first| found.as_ref().is_some_and(|found| found.seed != *first));
    let stale = stale.map_or(String::new(), |first| format!(" (no longer in the life of seed {first})"));
    println!("{:20} {:13} {seed:>6} {lives:>6} {:>8.2}  {verdict}{stale}", bug.name, bug.kind, took.as_secs_f64());
    found.is_some() && took <= MOST
}

/// How long this thread has run.
fn run_time() -> Duration {
    let run = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(run.tv_sec as u64, run.tv_nsec as u32)
}

fn main() -> ExitCode {
    let there_are = bugs();
    let mut chosen: Vec<Bug> = Vec::new();
    let mut known_first = false;
    for argument in std::env::args().skip(1) {
        if argument == KNOWN_FIRST {
            known_first = true;
            continue;
        }
        let (name, kind) = argument.split_once('@').map_or((argument.as_str(), None), |(name, kind)| (name, Some(kind)));
        let elsewhere = match kind.map(|kind| Kind::named(kind).ok_or(kind)) {
            Some(Err(kind)) => {
                eprintln!("canaries: {kind:?} is no kind of cluster; there are {}", Kind::names());
                return ExitCode::from(2);
            }
            Some(Ok(kind)) => Some(kind.name),
            None => None,
        };
        if !there_are.iter().any(|bug| bug.name == name) {
            let names: Vec<&str> = there_are.iter().map(|bug| bug.name).collect();
            eprintln!("canaries: {name:?} is no canary; there are {}", names.join(", "));
            return ExitCode::from(2);
        }
        match elsewhere {
            Some(kind) => chosen.extend(there_are.iter().find(|bug| bug.name == name).map(|bug| Bug { kind, ..*bug })),
            None => chosen.extend(there_are.iter().filter(|bug| bug.name == name)),
        }
    }
    if chosen.is_empty() {
        chosen = there_are;
    }
    chosen.sort_by_key(|bug| known(bug).map_or(LONGEST.len(), |(place, _)| place));
    let started = Instant::now();
    println!("{:20} {:13} {:>6} {:>6} {:>8}  found by", "canary", "cluster", "seed", "lives", "seconds");
    let missed = look_for(&chosen, known_first);
    println!("{} of {} found in {:.1} seconds", chosen.len() - missed.len(), chosen.len(), started.elapsed().as_secs_f64());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

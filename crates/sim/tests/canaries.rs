//! Every known bug that is planted has to be found by the lives of its kind: `cargo xtask sim --canaries [NAME[@KIND]]...`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use martlet_sim::canaries::{Bug, bugs, hunt};
use martlet_sim::cluster::Kind;

/// Lives that a bug may take. Most take a few dozen.
const LIVES: u64 = 4_000;

/// Looks for each, on every core: a bug is planted in a thread, and the others do not have it. Returns the names of those that were not found.
fn look_for(chosen: &[Bug]) -> Vec<&'static str> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut missed = Vec::new();
        while let Some(bug) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_found(*bug) {
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

fn is_found(bug: Bug) -> bool {
    let start = Instant::now();
    let found = hunt(bug, LIVES);
    let seconds = start.elapsed().as_secs_f64();
    match &found {
        Some(found) => {
            println!("{:20} {:8} {:>6} {:>6} {seconds:>8.2}  {}", bug.name, bug.kind, found.seed, found.seed + 1, found.violation.property)
        }
        None => println!("{:20} {:8} {:>6} {LIVES:>6} {seconds:>8.2}  NOT FOUND: {}", bug.name, bug.kind, "-", bug.meaning.trim()),
    }
    found.is_some()
}

fn main() -> ExitCode {
    let known = bugs();
    let mut chosen: Vec<Bug> = Vec::new();
    for argument in std::env::args().skip(1) {
        let (name, kind) = argument.split_once('@').map_or((argument.as_str(), None), |(name, kind)| (name, Some(kind)));
        let elsewhere = match kind.map(|kind| Kind::named(kind).ok_or(kind)) {
            Some(Err(kind)) => {
                eprintln!("canaries: {kind:?} is no kind of cluster; there are {}", Kind::names());
                return ExitCode::from(2);
            }
            Some(Ok(kind)) => Some(kind.name),
            None => None,
        };
        if !known.iter().any(|bug| bug.name == name) {
            let names: Vec<&str> = known.iter().map(|bug| bug.name).collect();
            eprintln!("canaries: {name:?} is no canary; there are {}", names.join(", "));
            return ExitCode::from(2);
        }
        match elsewhere {
            Some(kind) => chosen.extend(known.iter().find(|bug| bug.name == name).map(|bug| Bug { kind, ..*bug })),
            None => chosen.extend(known.iter().filter(|bug| bug.name == name)),
        }
    }
    if chosen.is_empty() {
        chosen = known;
    }
    let started = Instant::now();
    println!("{:20} {:8} {:>6} {:>6} {:>8}  found by", "canary", "cluster", "seed", "lives", "seconds");
    let missed = look_for(&chosen);
    println!("{} of {} found in {:.1} seconds", chosen.len() - missed.len(), chosen.len(), started.elapsed().as_secs_f64());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Every known bug that is planted has to be found by default lives: `cargo xtask sim --canaries [NAME]...`.

use std::process::ExitCode;
use std::time::Instant;

use martlet_sim::canaries::{Bug, bugs, hunt};

/// Default lives that a bug may take. Most take a few dozen.
const LIVES: u64 = 4_000;

fn main() -> ExitCode {
    let known = bugs();
    let mut chosen: Vec<Bug> = Vec::new();
    for name in std::env::args().skip(1) {
        if !known.iter().any(|bug| bug.name == name) {
            let names: Vec<&str> = known.iter().map(|bug| bug.name).collect();
            eprintln!("canaries: {name:?} is no canary; there are {}", names.join(", "));
            return ExitCode::from(2);
        }
        chosen.extend(known.iter().filter(|bug| bug.name == name));
    }
    if chosen.is_empty() {
        chosen = known;
    }
    let started = Instant::now();
    let mut missed = Vec::new();
    println!("{:20} {:8} {:>6} {:>6} {:>8}  found by", "canary", "cluster", "seed", "lives", "seconds");
    for bug in &chosen {
        let start = Instant::now();
        let found = hunt(*bug, LIVES);
        let seconds = start.elapsed().as_secs_f64();
        match found {
            Some(found) => println!(
                "{:20} {:8} {:>6} {:>6} {seconds:>8.2}  {}",
                bug.name,
                bug.kind,
                found.seed,
                found.seed + 1,
                found.violation.property
            ),
            None => {
                println!("{:20} {:8} {:>6} {LIVES:>6} {seconds:>8.2}  NOT FOUND: {}", bug.name, bug.kind, "-", bug.meaning.trim());
                missed.push(bug.name);
            }
        }
    }
    println!("{} of {} found in {:.1} seconds", chosen.len() - missed.len(), chosen.len(), started.elapsed().as_secs_f64());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Lives of simulated clusters, one seed after the other: `martlet-sim [--seeds N] [--seed S] [--network] [--verbose] [--tell]`.

#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use martlet_sim::cluster::Ground;

const USAGE: &str = "\
Usage: martlet-sim [--seeds N] [--seed S] [--network] [--verbose] [--tell]

  --seeds N   how many lives to run [default: 1000]
  --seed S    the seed of the first [default: 0]
  --network   on a network instead of one host
  --verbose   a line for each life
  --tell      the story of each life";

fn main() -> ExitCode {
    let (mut seeds, mut first, mut ground, mut verbose, mut tell) = (1000, 0, Ground::Host, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().unwrap_or_default();
            value.parse::<u64>().map_err(|_| format!("{arg} is {value:?}; allowed is a whole number"))
        };
        let parsed = match arg.as_str() {
            "--seeds" => number().map(|n| seeds = n),
            "--seed" => number().map(|n| first = n),
            "--verbose" => {
                verbose = true;
                Ok(())
            }
            "--network" => {
                ground = Ground::Network;
                Ok(())
            }
            "--tell" => {
                tell = true;
                Ok(())
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other => Err(format!("{other:?} is not an option of martlet-sim")),
        };
        if let Err(why) = parsed {
            eprintln!("martlet-sim: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    }
    lives(first, seeds, ground, verbose, tell)
}

fn lives(first: u64, seeds: u64, ground: Ground, verbose: bool, tell: bool) -> ExitCode {
    let started = Instant::now();
    let progress = !verbose && !tell && std::io::stderr().is_terminal();
    let (mut operations, mut views, mut kills, mut virtual_ns, mut replies, mut ended, mut stalled) = (0, 0, 0, 0, 0, 0, 0);
    for seed in first..first.saturating_add(seeds) {
        // A broken invariant panics: the seed has to be known by then.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| eprintln!("\nseed {seed}: {info}")));
        let (report, story) = martlet_sim::cluster::tell(ground, seed, tell);
        std::panic::set_hook(hook);
        print!("{story}");
        operations += report.operations;
        views += report.views;
        kills += report.kills;
        replies += report.replies;
        ended += u64::from(report.ended);
        stalled += u64::from(report.stalled);
        virtual_ns += report.length_ns;
        if verbose {
            println!(
                "seed {seed}: {} us, {} operations, {} views, {} takeovers, {} kills, {} replies, {} unknown, digest {:016x}",
                report.length_ns / 1000,
                report.operations,
                report.views,
                report.takeovers,
                report.kills,
                report.replies,
                report.unknown,
                report.digest
            );
        }
        if let Some(violation) = report.violation {
            eprintln!("\nseed {seed}: {violation}\nagain: martlet-sim --seeds 1 --seed {seed}");
            return ExitCode::FAILURE;
        }
        if progress && (seed - first).is_multiple_of(16) {
            let done = seed - first + 1;
            let _ = write!(std::io::stderr(), "\r{done} of {seeds} lives, {} a second ", per_second(done, started));
        }
    }
    if progress {
        eprintln!();
    }
    println!(
        "{seeds} lives, {} ms of virtual time, {operations} operations, {views} views, {kills} kills, {replies} replies, {ended} ended early, {stalled} stalled, {} lives a second: nothing violated",
        virtual_ns / 1_000_000,
        per_second(seeds, started)
    );
    ExitCode::SUCCESS
}

fn per_second(done: u64, since: Instant) -> u64 {
    (done as f64 / since.elapsed().as_secs_f64()) as u64
}

//! Runs the lives of simulated clusters, one seed after another; `--help` says more.

#![forbid(unsafe_code)]

mod args;
mod progress;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{eprintln, println};
use anstyle::{AnsiColor, Style};
use clap::Parser;
use martlet_sim::cluster::{Plan, SCENARIOS, testdata};
use martlet_sim::hunt::{self, Failure, Hunt, Summary, Told};

use args::{Args, again};
use progress::Progress;

/// Something that is wrong.
const BAD: Style = AnsiColor::Red.on_default().bold();
/// Something that is right.
const GOOD: Style = AnsiColor::Green.on_default().bold();

fn main() -> ExitCode {
    let args = Args::parse();
    let stop = Arc::new(AtomicBool::new(false));
    // The first Ctrl-C ends the run with its summary; a second one ends it at once.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let registered = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        if let Err(why) = registered {
            eprintln!("martlet-sim: Ctrl-C will end the run without a summary: {why}");
        }
    }
    if args.bless {
        bless()
    } else if !args.every_step().is_empty() {
        walk(&args, &stop)
    } else if args.trace {
        trace(&args, &stop)
    } else {
        search(&args, &stop)
    }
}

/// Strikes at every step of some phases.
fn walk(args: &Args, stop: &AtomicBool) -> ExitCode {
    let seed = args.seeds().start;
    let mut code = ExitCode::SUCCESS;
    for phase in args.every_step() {
        let name = phase.name;
        if let Some(blow) = args.blow {
            let (violation, story) = hunt::tell_blow(phase, seed, blow);
            print_story(&story, usize::MAX);
            match violation {
                None => println!("{GOOD}nothing violated{GOOD:#}"),
                Some(violation) => {
                    println!("{BAD}{violation}{BAD:#}");
                    code = ExitCode::FAILURE;
                }
            }
            continue;
        }
        let walk = hunt::every_step(phase, seed, args.stride, args.jobs(), stop);
        println!("{name}: {} steps, {} lives, {} crashes and pauses", walk.steps, walk.lives, walk.dealt);
        if let Some((blow, violation)) = walk.failure {
            println!("{BAD}{name}, {blow}:{BAD:#} {violation}");
            println!("again: cargo xtask sim --every-step {name} --seed {seed} --blow {blow}");
            print_story(&hunt::tell_blow(phase, seed, blow).1, args.lines);
            code = ExitCode::FAILURE;
        } else if stop.load(Ordering::Relaxed) {
            println!("interrupted");
            return ExitCode::from(130);
        } else {
            println!("{GOOD}nothing violated{GOOD:#}");
        }
    }
    code
}

/// Writes the stories of the scenes again.
fn bless() -> ExitCode {
    for scenario in SCENARIOS {
        let (report, told) = scenario.told();
        if let Some(violation) = report.violation {
            eprintln!("{BAD}{}:{BAD:#} {violation}", scenario.name);
            return ExitCode::FAILURE;
        }
        let file = testdata().join(scenario.file_name());
        let before = std::fs::read_to_string(&file).unwrap_or_default();
        if before == told {
            continue;
        }
        if let Err(why) = std::fs::write(&file, told) {
            eprintln!("martlet-sim: cannot write {}: {why}", file.display());
            return ExitCode::FAILURE;
        }
        println!("{} has changed and is written again", scenario.name);
    }
    ExitCode::SUCCESS
}

/// Runs each life, and tells its story.
fn trace(args: &Args, stop: &AtomicBool) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for seed in args.seeds() {
        for kind in args.cast().of(seed) {
            if stop.load(Ordering::Relaxed) {
                return ExitCode::from(130);
            }
            let plan = Plan { narrate: true, changes: args.changes(), canary: args.canary(), ..Plan::new(seed) };
            let Told { report, story } = hunt::attempt(kind, &plan);
            println!("seed {seed} on {kind}");
            print_story(&story, usize::MAX);
            match report.violation {
                None => {
                    println!("{GOOD}nothing violated{GOOD:#}; {} requests, digest {:016x}", report.replies + report.unknown, report.digest)
                }
                Some(violation) => {
                    println!("{BAD}{violation}{BAD:#}{}", out_of_model(args.out_of_model));
                    code = failure(args);
                }
            }
        }
    }
    code
}

/// Runs all lives and reports.
fn search(args: &Args, stop: &AtomicBool) -> ExitCode {
    let seeds = args.seeds();
    let hunt = Hunt {
        cast: args.cast(),
        first: seeds.start,
        seeds: seeds.end - seeds.start,
        most: args.most(),
        jobs: args.jobs(),
        changes: args.changes(),
        canary: args.canary(),
    };
    let mut progress = Progress::new(!args.verbose);
    let summary = hunt::hunt(
        &hunt,
        stop,
        |kind, report| {
            if args.verbose {
                println!(
                    "{kind} seed {}: {:?}, {} us, {} operations, {} views, {} takeovers, {} faults, {} replies, {} unknown, footprint {}, digest {:016x}",
                    report.seed,
                    report.temper,
                    report.length_ns / 1000,
                    report.operations,
                    report.views,
                    report.takeovers,
                    report.faults.events(),
                    report.replies,
                    report.unknown,
                    report.footprint,
                    report.digest
                );
            }
        },
        |summary| progress.show(summary),
    );
    progress.clear();
    if let Some(failure) = &summary.failure {
        explain(args, failure, stop);
    }
    finish(args, &summary)
}

fn finish(args: &Args, summary: &Summary) -> ExitCode {
    if args.json {
        println!("{}", summary.json());
    } else {
        println!("{summary}");
        match &summary.failure {
            None if summary.interrupted => println!("interrupted; {GOOD}nothing violated so far{GOOD:#}"),
            None => println!("{GOOD}nothing violated{GOOD:#}"),
            Some(failure) => println!(
                "{BAD}{} violated{BAD:#} by seed {} on {}{}",
                failure.violation.property,
                failure.plan.seed,
                failure.kind,
                out_of_model(args.out_of_model)
            ),
        }
    }
    match (&summary.failure, summary.interrupted) {
        (Some(_), _) => failure(args),
        (None, true) => ExitCode::from(130),
        (None, false) => ExitCode::SUCCESS,
    }
}

/// Outside the model nothing is promised, so nothing has failed.
fn failure(args: &Args) -> ExitCode {
    if args.out_of_model { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn out_of_model(is: bool) -> &'static str {
    if is { " (out of model: clocks beyond their bounds)" } else { "" }
}

/// Says what went wrong, and shows how: tells the smallest life found in which it does.
fn explain(args: &Args, failure: &Failure, stop: &AtomicBool) {
    let Failure { kind, plan, violation } = failure;
    eprintln!("{BAD}seed {} on {kind}:{BAD:#} {violation}", plan.seed);
    eprintln!("again:    {}", again(kind, plan));
    let lives = if args.no_shrink { 0 } else { args.shrink_lives };
    let shrunk = hunt::shrink(kind, plan, lives, stop);
    if lives > 0 {
        let (report, size) = (&shrunk.report, shrunk.report.replies + shrunk.report.unknown);
        eprintln!("smallest: {}", again(kind, &shrunk.plan));
        eprintln!(
            "          {} single faults, {size} requests, {} us; found among {} lives",
            report.faults.events(),
            report.length_ns / 1000,
            shrunk.lives
        );
    }
    print_story(&shrunk.story, args.lines);
}

/// Prints the last `lines` lines of a story.
fn print_story(story: &str, lines: usize) {
    let all: Vec<&str> = story.lines().collect();
    let skipped = all.len().saturating_sub(lines);
    let mut out = anstream::stdout().lock();
    if skipped > 0 {
        let _ = writeln!(out, "  ... {skipped} lines before; `--trace` shows all");
    }
    for line in &all[skipped..] {
        let style = if line.contains("VIOLATED") { BAD } else { Style::new() };
        // If the pipe is closed, the reader wants no more.
        if writeln!(out, "  {style}{line}{style:#}").is_err() {
            return;
        }
    }
}

//! `martlet bench`, a file for each benchmark.

mod active;
mod alone;
mod dare_figures;
mod detect;
mod endpoint;
mod fabric;
mod failover;
mod fide;
mod foreign;
mod join;
mod kv;
mod lane_reader;
pub mod model;
mod operations;
mod put;
pub(crate) mod raise;
mod redis_server;
mod replicate;
mod run;
mod stream;
mod threads;
mod turns;
pub mod victim;

use clap::{Args, Subcommand};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output::Format;

use crate::report::{Report, reference};

/// Run a benchmark, beside reference figures of the same run.
///
/// Each figure has p50, p90, p99, p99.9, max and the number of samples. Machines differ, so compare ratios to the reference figures: the
/// cross-core round trip, a raw write with its fence, a raw CAS, a reading of the clock, and the bare death probe. If a hypervisor keeps the
/// cores from this machine, the report says how much of their time it took (stolen_percent), and warns from 2 % on.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Leave the reference figures out: on an emulated machine they take minutes.
    #[arg(long, global = true)]
    no_reference: bool,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Active(active::Arguments),
    #[command(name = "dare")]
    DareFigures(dare_figures::Arguments),
    Detect(detect::Arguments),
    Fabric(fabric::Arguments),
    Failover(failover::Arguments),
    Fide(fide::Arguments),
    Join(join::Arguments),
    Kv(kv::Arguments),
    Put(put::Arguments),
    Replicate(replicate::Arguments),
    Run(run::Arguments),
    Turns(turns::Arguments),
    /// Measure the machine itself: only the reference figures.
    Reference,
}

/// Kills of the bare death probe in each run.
const PROBES: u32 = 100;

/// Measures what the arguments name, and reports it.
///
/// # Errors
/// When it cannot be measured, or something was wrong that no figure may hide.
pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let mut report = Report::new(format);
    if !arguments.no_reference {
        let progress = report.progress("reference figures", 2);
        reference::measure()?.into_iter().for_each(|figure| report.add(figure));
        progress.step();
        report.add(reference::death_probe(PROBES)?);
    }
    match &arguments.bench {
        Bench::Active(arguments) => active::run(arguments, &mut report, &interrupt)?,
        Bench::DareFigures(arguments) => dare_figures::run(arguments, &mut report, &interrupt)?,
        Bench::Detect(arguments) => detect::run(arguments, &mut report, &interrupt)?,
        Bench::Fabric(arguments) => fabric::run(arguments, &mut report, &interrupt)?,
        Bench::Failover(arguments) => failover::run(arguments, &mut report, &interrupt)?,
        Bench::Fide(arguments) => fide::run(arguments, &mut report, &interrupt)?,
        Bench::Join(arguments) => join::run(arguments, &mut report, &interrupt)?,
        Bench::Put(arguments) => put::run(arguments, &mut report, &interrupt)?,
        Bench::Kv(arguments) => kv::run(arguments, &mut report, &interrupt)?,
        Bench::Replicate(arguments) => replicate::run(arguments, &mut report, &interrupt)?,
        Bench::Run(arguments) => run::run(arguments, &mut report, &interrupt)?,
        Bench::Turns(arguments) => turns::run(arguments, &mut report, &interrupt)?,
        Bench::Reference => {}
    }
    report.finish();
    Ok(())
}

/// What benchmarks start of their own executable, by these commands. They are not for people, so they are hidden.
#[derive(Debug, Subcommand)]
pub enum Helper {
    /// Wait to be killed.
    Victim(victim::Arguments),
    /// Be a replica of an application whose requests are measured.
    AttachedNode(replicate::attached::node::Arguments),
    /// Live on through what is no death.
    LivesOn(fide::ends::program::Arguments),
    /// Sleep on a core, and work when told to.
    Sleeper(turns::Sleeper),
}

/// Runs one of them.
///
/// # Errors
/// As the command says.
pub fn run_helper(helper: &Helper) -> Outcome {
    match helper {
        Helper::Victim(arguments) => victim::run(arguments),
        Helper::AttachedNode(arguments) => replicate::attached::node::run(arguments),
        Helper::LivesOn(arguments) => fide::ends::program::run(arguments),
        Helper::Sleeper(arguments) => turns::sleep(arguments),
    }
}

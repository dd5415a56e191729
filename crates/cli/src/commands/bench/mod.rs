//! `martlet bench`

mod active;
mod alone;
mod detect;
mod endpoint;
mod fabric;
mod failover;
mod kv;
pub mod pauses;
mod raise;
mod redis_server;
pub mod replicate;
mod threads;

use clap::{Args, Subcommand};

use crate::fail::{Context as _, Outcome};
use crate::interrupt::Interrupt;
use crate::output::Format;
use crate::report::{Report, reference};

/// Measure, beside reference figures of the same run.
///
/// Each figure has p50, p90, p99, p99.9, max and the number of samples. Machines differ, so compare ratios to the reference figures: the
/// cross-core round trip, a raw write with its fence, a raw CAS, a reading of the clock, and the bare death probe. Where a hypervisor keeps the
/// cores from this machine the report says how much of their time (stolen_percent), and warns from 2 % on.
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
    Detect(detect::Arguments),
    Fabric(fabric::Arguments),
    Failover(failover::Arguments),
    Kv(kv::Arguments),
    Pauses(pauses::Arguments),
    Replicate(replicate::Arguments),
    /// The machine itself: only the reference figures.
    Reference,
}

/// Kills of the bare death probe in each run.
const PROBES: u32 = 100;

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let mut report = Report::new(format);
    if !arguments.no_reference {
        for figure in reference::measure()? {
            report.add(figure);
        }
        report.add(reference::death_probe(PROBES)?);
    }
    match &arguments.bench {
        Bench::Active(arguments) => active::run(arguments, &mut report, &interrupt)?,
        Bench::Detect(arguments) => detect::run(arguments, &mut report, &interrupt)?,
        Bench::Fabric(arguments) => fabric::run(arguments, &mut report, &interrupt)?,
        Bench::Failover(arguments) => failover::run(arguments, &mut report, &interrupt)?,
        Bench::Kv(arguments) => kv::run(arguments, &mut report, &interrupt)?,
        Bench::Pauses(arguments) => pauses::run(arguments, &mut report, &interrupt)?,
        Bench::Replicate(arguments) => replicate::run(arguments, &mut report, &interrupt)?,
        Bench::Reference => {}
    }
    report.finish();
    Ok(())
}

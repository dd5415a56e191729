//! `martlet bench`

use clap::{Args, Subcommand};

use crate::fail::Outcome;
use crate::output::Format;
use crate::report::{Report, reference};

/// Measure, beside reference figures of the same run.
///
/// Each figure has p50, p90, p99, p99.9, max and the number of samples. Machines differ, so compare ratios to the reference figures: the
/// cross-core round trip, a raw write with its fence, a raw CAS, a reading of the clock, and the bare death probe.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The machine itself: only the reference figures.
    Reference,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let mut report = Report::new(format);
    for figure in reference::measure()? {
        report.add(figure);
    }
    match arguments.bench {
        Bench::Reference => {}
    }
    report.finish();
    Ok(())
}

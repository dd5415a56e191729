//! `martlet bench fide`: the figures of FiDe's evaluation, beside the paper's values.

mod accuracy;
mod detection;
pub mod ends;
mod hogs;
mod marks;
mod paper;
mod set;
mod stability;
mod table2;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_warden::client::{Failure, Handler, Warden};
use martlet_warden::{AppId, now_ns};

use crate::report::Report;
use crate::trial::wardens::PATIENCE;

/// Measure the figures of FiDe's evaluation (section 6), beside the paper's values.
///
/// They show how soon and how accurately wardens tell of failures, how stable the heartbeats are that they rely on, and what replication by FiDe's consensus
/// costs. Figure 8 and the frequencies of Table 3 are computed by `martlet plan ccf`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    figure: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    Table2(table2::Arguments),
    Figure3(stability::Arguments),
    Figure4(accuracy::Arguments),
    Figure5(detection::Arguments),
    Figure6(set::Arguments),
    Ends(ends::Arguments),
    Marks(marks::Arguments),
}

/// The host of the monitor, where its victims are on another one.
const NEAR: u16 = 0;
/// The host of the victims.
const FAR: u16 = 1;

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    match &arguments.figure {
        Which::Table2(arguments) => table2::run(arguments, report, interrupt),
        Which::Figure3(arguments) => stability::run(arguments, report, interrupt),
        Which::Figure4(arguments) => accuracy::run(arguments, report, interrupt),
        Which::Figure5(arguments) => detection::run(arguments, report, interrupt),
        Which::Figure6(arguments) => set::run(arguments, report, interrupt),
        Which::Ends(arguments) => ends::run(arguments, report, interrupt),
        Which::Marks(arguments) => marks::run(arguments, report, interrupt),
    }
}

/// The last failure that was told of, and when.
#[derive(Default)]
struct Seen(Option<(u64, Failure)>);

impl Handler for Seen {
    fn on_failure(&mut self, _: AppId, failure: Failure) {
        self.0 = Some((now_ns(), failure));
    }
}

/// Applications in turn, without end: each program is one of its own, so that none is taken for the one before it.
fn apps_in_turn() -> impl Iterator<Item = AppId> {
    (1..=i64::from(AppId::LAST_CHOSEN)).cycle().map(|number| AppId::new(number).expect("in range"))
}

/// Waits for a failure, asleep or polling memory. Returns when it was told, and what.
fn failure(warden: &mut Warden, polls: bool) -> Outcome<(u64, Failure)> {
    let (mut seen, end) = (Seen::default(), Instant::now() + PATIENCE);
    let wait = if polls { Duration::ZERO } else { Duration::from_secs(1) };
    while seen.0.is_none() {
        warden.poll(Some(wait), &mut seen).map_err(Fail::failed)?;
        if Instant::now() > end {
            return Err(Fail::failed(format_args!("a failure was not reported within {} s", PATIENCE.as_secs())));
        }
    }
    Ok(seen.0.expect("just told"))
}

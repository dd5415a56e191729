//! Figure 5: how detection times are distributed.

use std::path::PathBuf;

use clap::Args;
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::scratch::Scratch;

use super::table2::{Blow, Way, kill_one};
use super::{FAR, NEAR, apps_in_turn, paper};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::reference::{Probe, Victim};
use crate::report::{Figure, Report, Unit};
use crate::trial::wardens::{Beat, Wardens};

/// Figure 5: how the times from a kill to the upcall are distributed.
///
/// Victims that spin are killed in turn, one for each way to hear of it: a monitor on their host that sleeps, one that polls memory, one of a program that is
/// watched unchanged, and one on another host. One more is killed for the bare death probe. Each point is a kill. The paper draws 10^7 points from the product
/// of its measurements of three separate steps, since its servers have no common clock.
///
/// Example: martlet bench fide figure5 --kills 10000 --plot density.svg --plot-cumulative cumulative.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of kills of each kind.
    #[arg(long, default_value_t = 200, value_parser = number::<u32>(1..))]
    kills: u32,
    /// Also draw the densities into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also draw the cumulative distributions into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot_cumulative: Option<PathBuf>,
}

/// How wardens hear each other: with timeouts so long that silence is not taken for a death while one is awaited.
const BEAT: Beat = Beat { interval_us: 1_000, jitter_us: 500_000 };
/// Bins of the densities.
const BINS: f64 = 60.0;

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let dir = Scratch::new("bench-detection").context("cannot make a directory")?;
    let mut wardens = Wardens::prepare(dir.path(), 2, BEAT)?;
    wardens.start()?;
    let (mut near, mut far) = (wardens.connect(NEAR)?, wardens.connect(FAR)?);
    let mut samples: Vec<(&str, Vec<u64>)> = Way::ALL.iter().map(|way| (way.name(), Vec::new())).collect();
    samples.push(("bare probe", Vec::new()));
    let mut probe = Probe::new()?;
    let progress = report.progress("kills", u64::from(arguments.kills) * samples.len() as u64);
    let mut apps = apps_in_turn();
    for _ in 0..arguments.kills {
        interrupt.check()?;
        // In turn, so that the machine's mood is the same for all.
        for (at, way) in Way::ALL.into_iter().enumerate() {
            let app = apps.next().expect("without end");
            let warden = if way == Way::Across { &mut near } else { &mut far };
            let [whole, ..] = kill_one(warden, &wardens.socket(FAR), app, Victim::SPINNING, way, Blow::Kill)?;
            samples[at].1.push(whole);
            progress.step();
        }
        samples[Way::ALL.len()].1.push(probe.kill_one(Victim::SPINNING)?);
        progress.step();
    }
    drop(progress);
    let mut cumulative =
        Plot::new("Detected by then (FiDe, Figure 5, right)", Axis::log("us after the kill"), Axis::linear("% of the kills"));
    let mut shown = Vec::new();
    for (name, of) in samples {
        let mut figure = Figure::new("fide", format!("kill to upcall, {name}"), Unit::Microseconds)
            .with("paper_average_us", paper::APPLICATION_AVERAGE_US)
            .with("paper_max_us", paper::APPLICATION_MOST_US);
        of.iter().for_each(|ns| figure.record(*ns));
        let mut us: Vec<f64> = of.iter().map(|ns| *ns as f64 / 1e3).collect();
        us.sort_by(f64::total_cmp);
        let mut series = Series::trace(name);
        us.iter().enumerate().for_each(|(at, us)| series.push(*us, (at + 1) as f64 * 100.0 / of.len() as f64));
        cumulative = cumulative.with(series);
        shown.push((name, us, figure.percentile(99.0)));
        report.add(figure);
    }
    // What is slower than nearly all would leave no width to the others; the cumulative drawing has it.
    let most = shown.iter().map(|(.., p99)| *p99).fold(0.0, f64::max);
    let bin = (most / BINS).max(1.0).ceil();
    let title = format!("Kills detected in each {bin} us, up to {most:.0} us (FiDe, Figure 5, left)");
    let mut density = Plot::new(title, Axis::linear("us after the kill"), Axis::linear("kills"));
    for (name, mut us, _) in shown {
        us.retain(|us| *us <= most);
        density = density.with(Series::histogram(name, &us, bin));
    }
    for plot in [&mut density, &mut cumulative] {
        for (us, what) in [
            (paper::APPLICATION_AVERAGE_US, "paper: FiDe, average"),
            (paper::APPLICATION_MOST_US, "paper: FiDe, longest"),
            (paper::UKHARON_AVERAGE_US, "paper: uKharon, average"),
            (paper::UKHARON_MOST_US, "paper: uKharon, longest"),
        ] {
            plot.mark(us, what);
        }
    }
    report.draw_and_save(density, arguments.plot.as_deref())?;
    report.draw_and_save(cumulative, arguments.plot_cumulative.as_deref())
}

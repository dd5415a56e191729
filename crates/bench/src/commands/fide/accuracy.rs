//! Figure 4: how often a host that lives is presumed dead, by the timeout.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::scratch::Scratch;
use martlet_warden::board::{Evidence, State};
use martlet_warden::client::Warden;
use martlet_warden::{AppId, Resources};

use super::hogs::Hogs;
use super::{FAR, NEAR, Seen, paper};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};
use crate::trial::wardens::{Beat, Wardens, until};

/// Figure 4: how often a host that lives is presumed dead, by the timeout.
///
/// Two wardens hear each other over two paths of the loopback device. A program monitors an application of the other host, which lives all the time, and counts
/// how often it is told that the application failed. That is done for each timeout, with idle cores, and with one thread for each core that never sleeps. Time
/// does not count while the host is presumed dead. The command fails if a failure is reported as certain, since there is none.
///
/// Example: martlet bench fide figure4 --seconds 60 --plot accuracy.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// How long to watch each timeout, idle and busy, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = number::<u64>(1..=86_400))]
    seconds: u64,
    /// The timeouts, in microseconds, separated by commas [default: 13 from 1.1 to 50 times the interval].
    #[arg(long, value_name = "US", value_delimiter = ',', value_parser = number::<u64>(1..=10_000_000))]
    timeouts_us: Vec<u64>,
    /// Time between two heartbeats, in microseconds; the timeouts are longer than this.
    #[arg(long, value_name = "US", default_value_t = 1_000, value_parser = number::<u64>(100..=20_000))]
    interval_us: u64,
    /// Also draw it into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The usual timeouts, in hundredths of the interval.
const TIMEOUTS: [u64; 13] = [110, 120, 140, 160, 200, 250, 300, 400, 600, 1_000, 2_000, 3_500, 5_000];
/// Over which false positives are counted.
const SLICE: Duration = Duration::from_secs(1);

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let mut plot =
        Plot::new("False positives by timeout (FiDe, Figure 4)", Axis::log("timeout, us"), Axis::linear("false positives a minute"));
    let mut timeouts = arguments.timeouts_us.clone();
    if timeouts.is_empty() {
        timeouts.extend(TIMEOUTS.map(|percent| arguments.interval_us * percent / 100));
    }
    timeouts.sort_unstable();
    if let Some(short) = timeouts.iter().find(|timeout| **timeout <= arguments.interval_us) {
        let interval = arguments.interval_us;
        return Err(Fail::usage(format_args!(
            "--timeouts-us has {short}, but --interval-us is {interval}; allowed are timeouts longer than the interval"
        )));
    }
    let progress = report.progress("timeouts", 2 * timeouts.len() as u64);
    for is_busy in [false, true] {
        let kind = if is_busy { "busy cores" } else { "idle cores" };
        let mut series = Series::line(kind);
        // From there on none was seen with this timeout or a longer one.
        let mut accurate_us = None;
        for timeout_us in &timeouts {
            // The interval, and twice this.
            let jitter_us = (timeout_us - arguments.interval_us) / 2;
            let timeout_us = arguments.interval_us + 2 * jitter_us;
            let hogs = is_busy.then(Hogs::start).transpose()?;
            let counts = watch(arguments, jitter_us, interrupt)?;
            drop(hogs);
            let mut figure = Figure::new("fide", format!("false positives, timeout {timeout_us} us, {kind}"), Unit::PerMinute)
                .with("timeout_us", timeout_us)
                .with("interval_us", arguments.interval_us)
                .with("paper_none_above_us", paper::ACCURATE_US)
                .with("paper_others_none_above_us", paper::OTHERS_ACCURATE_US);
            counts.iter().for_each(|count| figure.record(count * 60));
            let sum: u64 = counts.iter().sum();
            accurate_us = if sum == 0 { accurate_us.or(Some(timeout_us)) } else { None };
            series.push(timeout_us as f64, (sum * 60) as f64 / counts.len() as f64);
            report.add(figure);
            progress.step();
        }
        plot = plot.with(series);
        let name = format!("none_above_us_{}", if is_busy { "busy" } else { "idle" });
        report.set(&name, accurate_us);
        let found = accurate_us.map_or_else(|| "more than all of them".to_owned(), |us| format!("{us} us"));
        report.format().say(format_args!("{kind}: the least timeout without a false positive: {found}"));
    }
    drop(progress);
    plot.mark(paper::ACCURATE_US, "paper: FiDe has none above this");
    plot.mark(paper::OTHERS_ACCURATE_US, "paper: uKharon and X-Lane have none above this");
    report.draw_and_save(plot, arguments.plot.as_deref())
}

/// Watches an application that lives. Returns how often its failure was told of, in each slice of time.
fn watch(arguments: &Arguments, jitter_us: u64, interrupt: &Interrupt) -> Outcome<Vec<u64>> {
    let dir = Scratch::new("bench-accuracy").context("cannot make a directory")?;
    let mut wardens = Wardens::prepare(dir.path(), 2, Beat { interval_us: arguments.interval_us, jitter_us })?;
    wardens.start()?;
    let (mut near, mut far) = (wardens.connect(NEAR)?, wardens.connect(FAR)?);
    let app = AppId::new(1).expect("in range");
    far.join(app).map_err(Fail::failed)?;
    let mut counts = Vec::new();
    monitor(&mut near, app)?;
    for _ in 0..arguments.seconds {
        interrupt.check()?;
        let (mut count, mut left) = (0, SLICE);
        while !left.is_zero() {
            let (began, mut seen) = (Instant::now(), Seen::default());
            near.poll(Some(left), &mut seen).map_err(Fail::failed)?;
            left = left.saturating_sub(began.elapsed());
            if let Some((_, failure)) = seen.0 {
                if failure.evidence != Evidence::Silence {
                    return Err(Fail::wrong(format_args!("an application that lives was reported as failed, by {}", failure.evidence)));
                }
                count += 1;
                monitor(&mut near, app)?;
            }
        }
        counts.push(count);
    }
    Ok(counts)
}

/// Monitors an application, and waits until it is known to live.
fn monitor(warden: &mut Warden, app: AppId) -> Outcome {
    warden.monitor(app, Resources::default()).map_err(Fail::failed)?;
    until("the host is not heard again", || {
        let (apps, _) = warden.status().ok()?;
        apps.iter().any(|one| one.app == app && one.state == State::Alive).then_some(())
    })
}

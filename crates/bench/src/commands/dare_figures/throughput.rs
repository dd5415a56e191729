//! Figures 8b and 8c: replies a second of a group of three servers, by the number of clients, sampled in intervals of 10 ms.

use std::ops::ControlFlow;
use std::time::Duration;

use martlet_cluster::fail::Outcome;
use martlet_node::config::EngineKind;

use super::{KEY_BYTES, Subject, end, paper};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};
use crate::trial::crowd::{Crowd, Load};

/// Servers of the group.
const SERVERS: u16 = 3;
/// Over which replies are counted (section 6).
const INTERVAL: Duration = Duration::from_millis(10);
const BYTES: usize = 64;
/// The size at which the paper gives the most bytes a second.
const LARGE_BYTES: usize = 2048;

/// A figure: which loads it has.
pub struct Shown {
    title: &'static str,
    loads: &'static [Kind],
}

/// A load: its name, how many of a hundred requests read, and what the paper has of it with [`paper::CLIENTS`].
struct Kind {
    name: &'static str,
    reads: u8,
    paper_per_s: Option<f64>,
    /// The most bytes a second at [`LARGE_BYTES`], in MiB.
    paper_mib_per_s: Option<f64>,
}

/// Figure 8b.
pub const PURE: Shown = Shown {
    title: "Throughput by clients, three servers, 64 B (DARE, Figure 8b)",
    loads: &[
        Kind { name: "reads", reads: 100, paper_per_s: Some(paper::READS_PER_S), paper_mib_per_s: Some(paper::READ_MIB_PER_S) },
        Kind { name: "writes", reads: 0, paper_per_s: Some(paper::WRITES_PER_S), paper_mib_per_s: Some(paper::WRITE_MIB_PER_S) },
    ],
};

/// Figure 8c.
pub const MIXED: Shown = Shown {
    title: "Throughput by clients, three servers, 64 B, mixed loads (DARE, Figure 8c)",
    loads: &[
        Kind { name: "95 % reads", reads: 95, paper_per_s: None, paper_mib_per_s: None },
        Kind { name: "50 % reads", reads: 50, paper_per_s: None, paper_mib_per_s: None },
    ],
};

/// How many clients there are at a time.
fn steps(most: u16) -> Vec<u16> {
    (1..=most).filter(|count| *count == 1 || *count == most || count % 2 == 1).collect()
}

/// Measures all engines, one after the other.
pub fn measure(subject: &Subject<'_>, shown: &Shown, report: &mut Report) -> Outcome<Plot> {
    let most = subject.arguments.clients;
    let mut plot = Plot::new(shown.title, Axis::linear("clients"), Axis::linear("replies a second"));
    for kind in shown.loads {
        if let Some(per_s) = kind.paper_per_s {
            let mut series = Series::line(format!("paper: {}, at least", kind.name));
            series.push(f64::from(paper::CLIENTS), per_s);
            plot = plot.with(series);
        }
    }
    let progress = report.progress("clusters", subject.engines.len() as u64);
    for engine in &subject.engines {
        let testbed = subject.start(*engine, SERVERS)?;
        let on_core = subject.enter_client_core()?;
        let mut crowd = Crowd::open(testbed.cluster(), testbed.running().len(), most, KEY_BYTES)?;
        for kind in shown.loads {
            let mut series = Series::line(format!("{engine}: {}", kind.name));
            for clients in steps(most) {
                let mut figure = one(subject, &mut crowd, clients, BYTES, *engine, kind)?;
                series.push(f64::from(clients), figure.percentile(50.0));
                if let Some(per_s) = kind.paper_per_s.filter(|_| clients == paper::CLIENTS) {
                    figure = figure.with("paper_per_s", per_s);
                }
                report.add(figure);
            }
            plot = plot.with(series);
            if let Some(mib_per_s) = kind.paper_mib_per_s {
                let figure = one(subject, &mut crowd, most, LARGE_BYTES, *engine, kind)?;
                let own = figure.percentile(50.0) * LARGE_BYTES as f64 / f64::from(1 << 20);
                report.add(figure.with("mib_per_s", own.round()).with("paper_mib_per_s", mib_per_s));
            }
        }
        drop((crowd, on_core));
        end(testbed)?;
        progress.step();
    }
    Ok(plot)
}

/// One load, with so many clients.
fn one(subject: &Subject<'_>, crowd: &mut Crowd, clients: u16, bytes: usize, engine: EngineKind, kind: &Kind) -> Outcome<Figure> {
    subject.interrupt.check()?;
    let crowd_of = if clients == 1 { "one client".to_owned() } else { format!("{clients} clients") };
    let metric = format!("{engine}: {} of {bytes} B, {crowd_of}, {SERVERS} servers", kind.name);
    let mut figure = Figure::new("dare", metric, Unit::PerSecond).with("clients", clients).with("reads_percent", kind.reads);
    let warm_up = subject.arguments.intervals.div_ceil(10);
    let mut interval = 0;
    crowd.run(clients, Load { reads: kind.reads, value_bytes: bytes }, INTERVAL, |_, replies| {
        interval += 1;
        // The first tenth warms up.
        if interval > warm_up {
            figure.record(replies * 1_000 / INTERVAL.as_millis() as u64);
        }
        if interval == warm_up + subject.arguments.intervals { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_number_of_clients_is_one_of_the_steps() {
        assert_eq!(steps(paper::CLIENTS), [1, 3, 5, 7, 9]);
        assert_eq!(steps(4), [1, 3, 4]);
        assert_eq!(steps(1), [1]);
    }
}

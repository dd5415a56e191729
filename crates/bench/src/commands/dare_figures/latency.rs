//! Figure 8a: one client reads and writes objects of varying size, from and to a group of five servers.

use std::time::Duration;

use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_fabric::with_fabric;
use martlet_node::clock;
use martlet_node::config::EngineKind;

use super::super::endpoint::Place;
use super::super::operations;
use super::{KEY_BYTES, Subject, end, paper};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};

/// Servers of the group.
pub const SERVERS: u16 = 5;
/// Bytes of an object.
pub const SIZES: [usize; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Write,
    Read,
}

impl Request {
    pub const ALL: [Request; 2] = [Request::Write, Request::Read];

    pub fn name(self) -> &'static str {
        match self {
            Request::Write => "write",
            Request::Read => "read",
        }
    }

    fn paper_us(self) -> f64 {
        match self {
            Request::Write => paper::WRITE_US,
            Request::Read => paper::READ_US,
        }
    }
}

/// What one engine, or another application, took, by size and request.
pub struct Measured {
    pub name: String,
    figures: Vec<(Request, usize, Figure)>,
}

impl Measured {
    pub fn new(name: impl Into<String>) -> Measured {
        let name = name.into();
        let figure = |request: Request, size: usize| {
            let metric = format!("{name}: {} of {size} B, {SERVERS} servers", request.name());
            (request, size, Figure::new("dare", metric, Unit::Microseconds))
        };
        // A read finds what the writes before it left: an object of that size.
        let figures = SIZES.into_iter().flat_map(|size| Request::ALL.map(|request| figure(request, size))).collect();
        Measured { name, figures }
    }

    pub fn median(&self, request: Request, size: usize) -> f64 {
        let found = self.figures.iter().find(|(r, s, _)| (*r, *s) == (request, size));
        found.map_or(0.0, |(_, _, figure)| figure.percentile(50.0))
    }

    /// Times all requests once more. `ask` makes one, of an object that is written, or was.
    pub fn time(&mut self, subject: &Subject<'_>, mut ask: impl FnMut(Request, &[u8]) -> Outcome) -> Outcome {
        let (samples, object) = (subject.arguments.samples, [b'v'; SIZES[SIZES.len() - 1]]);
        for (request, size, figure) in &mut self.figures {
            for sample in 0..samples + samples / 10 {
                if sample % 1024 == 0 {
                    subject.interrupt.check()?;
                }
                let start = clock::now();
                ask(*request, &object[..*size])?;
                let took = clock::now().since(start);
                // The first tenth warms up.
                if sample >= samples / 10 {
                    figure.record(took);
                }
            }
        }
        Ok(())
    }

    /// A line for each kind of request.
    pub fn series(&self) -> [Series; 2] {
        Request::ALL.map(|request| {
            let mut series = Series::line(format!("{}: {}", self.name, request.name()));
            SIZES.iter().for_each(|size| series.push(*size as f64, self.median(request, *size)));
            series
        })
    }

    /// Adds what was measured to the report. `paper_us`: what the paper has for such requests.
    pub fn report(self, paper_us: impl Fn(Request) -> Option<f64>, report: &mut Report) {
        let (writes, reads): (Vec<_>, Vec<_>) = self.figures.into_iter().partition(|(request, ..)| *request == Request::Write);
        for (request, _, mut figure) in writes.into_iter().chain(reads) {
            if let Some(us) = paper_us(request) {
                figure = figure.with("paper_us", us);
            }
            let (p2, p98) = (figure.percentile(2.0), figure.percentile(98.0));
            report.add(figure.with("p2", p2).with("p98", p98));
        }
    }
}

/// Measures all engines in turn, some rounds of them.
pub fn of_engines(subject: &Subject<'_>, report: &Report) -> Outcome<Vec<Measured>> {
    let mut measured: Vec<Measured> = subject.engines.iter().map(|engine| Measured::new(engine.to_string())).collect();
    let rounds = subject.arguments.rounds;
    let progress = report.progress("rounds of clusters", u64::from(rounds) * measured.len() as u64);
    for _ in 0..rounds {
        for (engine, measured) in subject.engines.iter().zip(&mut measured) {
            subject.interrupt.check()?;
            one_cluster(subject, *engine, measured)?;
            progress.step();
        }
    }
    Ok(measured)
}

/// A new cluster of that engine, and all requests to it once.
fn one_cluster(subject: &Subject<'_>, engine: EngineKind, measured: &mut Measured) -> Outcome {
    let testbed = subject.start(engine, SERVERS)?;
    let on_core = subject.enter_client_core()?;
    let mut client = FabricClient::open(testbed.cluster(), Waiting::SPINNING, PATIENCE)?;
    client.await_nodes(usize::from(SERVERS))?;
    let key = vec![b'k'; KEY_BYTES];
    measured.time(subject, |request, object| {
        let args: &[&[u8]] = match request {
            Request::Write => &[b"SET", &key, object],
            Request::Read => &[b"GET", &key],
        };
        match client.request(args, |answer| !answer.reply.starts_with(b"-"))? {
            Some(true) => Ok(()),
            Some(false) => Err(Fail::failed(format_args!("{engine} refused a {}", request.name()))),
            None => Err(Fail::failed(format_args!("no reply within {} s", PATIENCE.as_secs()))),
        }
    })?;
    drop((client, on_core));
    end(testbed)
}

/// Measures all engines, and the raw writes beside.
pub fn measure(subject: &Subject<'_>, report: &mut Report) -> Outcome<Plot> {
    let measured = of_engines(subject, report)?;
    let mut raw = Vec::new();
    let place = Place::new("bench-dare-raw", &subject.fabric, SERVERS)?;
    with_fabric!(subject.fabric.kind, F => operations::among::<F, _>(&place, SERVERS - 1, |prober| {
        for size in SIZES {
            subject.interrupt.check()?;
            raw.push((size, prober.time_writes_to_all(size, subject.arguments.samples)?));
        }
        Ok(())
    }))?;
    Ok(conclude(measured, raw, report))
}

fn conclude(measured: Vec<Measured>, raw: Vec<(usize, operations::Samples)>, report: &mut Report) -> Plot {
    let mut plot =
        Plot::new("Latency by size, one client, five servers (DARE, Figure 8a)", Axis::log("bytes of an object"), Axis::log("latency, us"));
    for (request, name) in [(Request::Write, "paper: write"), (Request::Read, "paper: read, below this")] {
        let mut series = Series::trace(name);
        SIZES.iter().for_each(|size| series.push(*size as f64, request.paper_us()));
        plot = plot.with(series);
    }
    for series in measured.iter().flat_map(Measured::series) {
        plot = plot.with(series);
    }
    let mut series = Series::line("raw writes to four peers");
    for (size, samples) in raw {
        let mut figure = Figure::new("dare", format!("raw writes of {size} B to {} peers", SERVERS - 1), Unit::Microseconds);
        samples.0.iter().for_each(|ns| figure.record(*ns as u64));
        series.push(size as f64, figure.percentile(50.0));
        report.add(figure);
    }
    // What the engines differ by, in one run.
    for engine in &measured[1..] {
        for request in Request::ALL {
            let ratio = measured[0].median(request, 64) / engine.median(request, 64);
            report.set(&format!("p50_{}_64B_{}_to_{}", request.name(), measured[0].name, engine.name), format!("{ratio:.2}"));
        }
    }
    measured.into_iter().for_each(|engine| engine.report(|request| Some(request.paper_us()), report));
    plot.with(series)
}

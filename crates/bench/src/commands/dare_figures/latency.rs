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
const SERVERS: u16 = 5;
/// Bytes of an object.
const SIZES: [usize; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];
const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Write,
    Read,
}

impl Request {
    const ALL: [Request; 2] = [Request::Write, Request::Read];

    fn name(self) -> &'static str {
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

/// What one engine took, by request and size.
struct Measured {
    engine: EngineKind,
    figures: Vec<(Request, usize, Figure)>,
}

impl Measured {
    fn new(engine: EngineKind) -> Measured {
        let figure = |request: Request, size: usize| {
            let metric = format!("{engine}: {} of {size} B, {SERVERS} servers", request.name());
            Figure::new("dare", metric, Unit::Microseconds).with("paper_us", request.paper_us())
        };
        let all = Request::ALL.into_iter().flat_map(|request| SIZES.map(|size| (request, size)));
        Measured { engine, figures: all.map(|(request, size)| (request, size, figure(request, size))).collect() }
    }

    fn median(&self, request: Request, size: usize) -> f64 {
        let found = self.figures.iter().find(|(r, s, _)| (*r, *s) == (request, size));
        found.map_or(0.0, |(_, _, figure)| figure.percentile(50.0))
    }
}

/// Measures all engines in turn, some rounds of them, and the raw writes beside.
pub fn measure(subject: &Subject<'_>, report: &mut Report) -> Outcome<Plot> {
    let mut measured: Vec<Measured> = subject.engines.iter().copied().map(Measured::new).collect();
    let rounds = subject.arguments.rounds;
    let progress = report.progress("rounds of clusters", u64::from(rounds) * measured.len() as u64);
    let mut raw = Vec::new();
    for _ in 0..rounds {
        for engine in &mut measured {
            subject.interrupt.check()?;
            one_cluster(subject, engine)?;
            progress.step();
        }
    }
    drop(progress);
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

/// A new cluster of that engine, and all requests to it once.
fn one_cluster(subject: &Subject<'_>, measured: &mut Measured) -> Outcome {
    let testbed = subject.start(measured.engine, SERVERS)?;
    let on_core = subject.enter_client_core()?;
    let mut client = FabricClient::open(testbed.cluster(), Waiting::SPINNING, PATIENCE)?;
    client.await_nodes(usize::from(SERVERS))?;
    let key = vec![b'k'; KEY_BYTES];
    let samples = subject.arguments.samples;
    for size in SIZES {
        let value = vec![b'v'; size];
        for (request, _, figure) in measured.figures.iter_mut().filter(|(_, of, _)| *of == size) {
            let args: &[&[u8]] = match request {
                Request::Write => &[b"SET", &key, &value],
                Request::Read => &[b"GET", &key],
            };
            for sample in 0..samples + samples / 10 {
                if sample % 1024 == 0 {
                    subject.interrupt.check()?;
                }
                let start = clock::now();
                let reply = client.request(args, |answer| !answer.reply.starts_with(b"-"))?;
                let took = clock::now().since(start);
                match reply {
                    Some(true) if sample >= samples / 10 => figure.record(took),
                    // The first tenth warms up.
                    Some(true) => {}
                    Some(false) => return Err(Fail::failed(format_args!("{} refused a {}", measured.engine, request.name()))),
                    None => return Err(Fail::failed(format_args!("no reply within {} s", PATIENCE.as_secs()))),
                }
            }
        }
    }
    drop((client, on_core));
    end(testbed)
}

fn conclude(measured: Vec<Measured>, raw: Vec<(usize, operations::Samples)>, report: &mut Report) -> Plot {
    let mut plot =
        Plot::new("Latency by size, one client, five servers (DARE, Figure 8a)", Axis::log("bytes of an object"), Axis::log("latency, us"));
    for (request, name) in [(Request::Write, "paper: write"), (Request::Read, "paper: read, below this")] {
        let mut series = Series::trace(name);
        SIZES.iter().for_each(|size| series.push(*size as f64, request.paper_us()));
        plot = plot.with(series);
    }
    for engine in &measured {
        for request in Request::ALL {
            let mut series = Series::line(format!("{}: {}", engine.engine, request.name()));
            SIZES.iter().for_each(|size| series.push(*size as f64, engine.median(request, *size)));
            plot = plot.with(series);
        }
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
            report.set(&format!("p50_{}_64B_{}_to_{}", request.name(), measured[0].engine, engine.engine), format!("{ratio:.2}"));
        }
    }
    for (_, _, figure) in measured.into_iter().flat_map(|engine| engine.figures) {
        let (p2, p98) = (figure.percentile(2.0), figure.percentile(98.0));
        report.add(figure.with("p2", p2).with("p98", p98));
    }
    plot.with(series)
}

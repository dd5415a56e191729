//! `martlet bench replicate`: what it costs to replicate a request, standing alone (Mu, Figures 3 and 7), and of an application (Figure 3, attached).

pub mod attached;
mod pipeline;
mod raw;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use martlet_cluster::directory::FabricFlags;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::{durability, engine};
use martlet_cluster::number::number;
use martlet_cluster::scratch::Scratch;
use martlet_fabric::with_fabric;
use martlet_node::clock;
use martlet_node::config::{DurabilityKind, EngineKind, FabricKind};
use martlet_node::sched::OnCore;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::engine::Traits;
use martlet_protocol::with_engine;

use super::alone::{self, Alone, NODES, Replica};
use super::endpoint::{Endpoint, Place};
use super::lane_reader::{Assignment, Reader};
use crate::report::echo;
use crate::report::placement::two_cores;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};

/// Measure what it costs to replicate a request three ways, by itself and with an application.
///
/// First single requests (Mu, Figure 3): a request is proposed when the one before is committed. The leader runs on one core, its two followers share the
/// other. Beside each size stand raw writes to the same followers, fenced and completed: of as many bytes, and of as many as the request's record has with its
/// headers, which may be a packet more. The latter are also measured while the followers read what is written, as they read a log. The settings say how many
/// one-sided operations to both followers have completed when a request of that size is committed, as the median. Between ordinary hosts, bare UDP echoes of 64
/// bytes are measured before, by one thread and by two, of which the first answer counts.
///
/// Then batches (Figure 7): as many requests as one record carries, and several records on their way at once. Then requests to two applications, with a process
/// for each replica: the key-value store's state, and an order matching engine. Beside each stands how long its execution takes alone. The application runs on
/// the replica's thread (direct), or on a thread of its own that waits for the answer (handover). All three are drawn.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Replication engine: mu, whose requests are committed when one follower holds them, or primary-backup, which waits for both, in a view that is always
    /// active. With --figure 3 it may be several, separated by commas. Each is then measured in turn beside raw writes of its own, and the settings compare the
    /// first to the others.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = [EngineKind::first_with(Traits::commits_by_majority)], value_parser = engine())]
    engine: Vec<EngineKind>,
    /// What a committed request outlives. async and sync need --engine mu or apus. Logs go below TMPDIR: its disk is what is measured.
    #[arg(long, default_value_t, value_parser = durability())]
    durability: DurabilityKind,
    /// Number of samples of each figure.
    #[arg(long, default_value_t = 100_000, value_parser = number::<u32>(100..))]
    samples: u32,
    /// Measure only this figure of Mu's paper: 3, latency by size; 7, throughput against latency; attached, what Figure 3 shows of applications.
    #[arg(long, value_enum)]
    figure: Option<Shown>,
    /// Also draw the figure into this file, as SVG.
    #[arg(long, value_name = "FILE", requires = "figure")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// Latency by size.
    #[value(name = "3")]
    Sizes,
    /// Throughput against latency.
    #[value(name = "7")]
    Batches,
    /// Latency of requests to applications.
    Attached,
}

/// The payloads, as in Mu's Figure 3 and beyond.
const PAYLOADS: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 4096];

/// The payload that bare echoes stand beside, between ordinary hosts.
const ECHO: usize = 64;

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let engines = arguments.engine.iter().map(ToString::to_string).collect::<Vec<_>>();
    for (at, engine) in arguments.engine.iter().enumerate() {
        martlet_cluster::directory::check_durability(arguments.durability, *engine)?;
        if arguments.engine[..at].contains(engine) {
            return Err(Fail::usage(format_args!("--engine names {engine} twice; allowed is each engine once")));
        }
    }
    if engines.len() > 1 && arguments.figure != Some(Shown::Sizes) {
        let why = format_args!("--engine is {}; allowed is one engine, or several with --figure 3", engines.join(","));
        return Err(Fail::usage(why));
    }
    let plan = arguments.fabric.plan(None)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    report.set("engine", engines.join(","));
    report.set("durability", arguments.durability.name());
    report.set("replicas", NODES);
    for engine in arguments.engine.iter().copied() {
        if arguments.figure != Some(Shown::Attached) {
            let place = Place::new("bench-replicate", &plan, NODES)?;
            with_fabric!(arguments.fabric.kind(), F => {
                with_engine!(engine, E => run_on::<F, E>(arguments, &place, report, interrupt))
            })?;
        }
        if arguments.figure.is_none_or(|figure| figure == Shown::Attached) {
            let (durability, samples) = (arguments.durability, arguments.samples);
            let subject = attached::Subject { engine, durability, fabric: plan.clone(), samples };
            let plot = attached::measure(&subject, report, interrupt)?;
            report.draw_and_save(plot, arguments.plot.as_deref())?;
        }
    }
    compare(&engines, report);
    Ok(())
}

/// Notes how long the first engine's requests take, as multiples of those of each other one.
fn compare(engines: &[String], report: &mut Report) {
    let Some((first, others)) = engines.split_first() else { return };
    for (other, payload) in others.iter().flat_map(|other| PAYLOADS.map(|payload| (other, payload))) {
        let p50 = |engine: &str| report.figure(&proposed(&prefix(engine, engines.len()), payload)).map(|figure| figure.percentile(50.0));
        if let (Some(own), Some(theirs)) = (p50(first), p50(other)) {
            report.set(&format!("ratio_p50_{payload}B_{first}_to_{other}"), format!("{:.2}", own / theirs.max(1.0)));
        }
    }
}

/// What the name of a figure or a setting of an engine begins with, where so many take part.
fn prefix(engine: &str, engines: usize) -> String {
    if engines > 1 { format!("{engine} ") } else { String::new() }
}

/// The figure of requests of so many bytes.
fn proposed(prefix: &str, payload: usize) -> String {
    format!("{prefix}{payload} B proposed and committed")
}

fn run_on<F: Endpoint, E: Alone + Send>(arguments: &Arguments, place: &Place, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    if arguments.figure == Some(Shown::Batches) && !E::BATCHES {
        let why = format_args!(
            "--figure is 7, but --engine is {}, which makes a record of each request; allowed are 3 and attached",
            E::TRAITS.name
        );
        return Err(Fail::usage(why));
    }
    let samples = u64::from(arguments.samples);
    let shows = |shown| arguments.figure.is_none_or(|figure| figure == shown);
    // Before the followers share the other core.
    let echoes = if arguments.fabric.kind() == FabricKind::between_ordinary_hosts() && shows(Shown::Sizes) {
        let cores = two_cores();
        let _here = cores.map(|(here, _)| OnCore::enter(here)).transpose().context("cannot bind the measuring thread")?;
        let there = cores.map(|(_, there)| there);
        vec![
            ("echo", echo::measure(ECHO, samples, there, interrupt)?),
            ("echo_of_two", echo::measure_two(ECHO, samples, there, interrupt)?),
        ]
    } else {
        Vec::new()
    };
    let scratch = Scratch::new("bench-replicate").context("cannot make a temporary directory")?;
    let data = (arguments.durability, scratch.path());
    let assignment = Assignment::default();
    let mut readers: Vec<Reader> = (1..NODES).map(|_| Reader::default()).collect();
    // The first that a follower is connected with is not always the leader: it looks at the lanes of both.
    let reads = |nth: usize, follower: &Replica<F, E>| {
        follower.peers.iter().for_each(|peer| readers[nth].read(&assignment, &follower.fabric, *peer));
    };
    alone::among(place, NODES, data, reads, |replica| {
        let mut leader =
            Leader { replica, lost: 0, assignment: &assignment, series: 0, prefix: prefix(E::TRAITS.name, arguments.engine.len()) };
        let mut plots = Vec::new();
        if shows(Shown::Sizes) {
            plots.push(leader.sizes(samples, echoes, report, interrupt)?);
        }
        if E::BATCHES && shows(Shown::Batches) {
            plots.push(leader.pipelines(samples, report, interrupt)?);
        }
        // Each by a follower that took the leader for dead, mostly since the kernel had taken its core away.
        report.set(&format!("{}leads_lost", leader.prefix), leader.lost);
        // Of several engines the first is saved: a file has one drawing.
        let is_first = arguments.engine.first().is_some_and(|first| first.traits().name == E::TRAITS.name);
        plots.into_iter().try_for_each(|plot| report.draw_and_save(plot, arguments.plot.as_deref().filter(|_| is_first)))
    })
}

/// The replica that proposes.
struct Leader<'a, F, E> {
    replica: Replica<F, E>,
    /// How often the lead was lost in the middle of a sample.
    lost: u64,
    /// Which raw writes the followers are to read.
    assignment: &'a Assignment,
    /// The number of the last series of raw writes.
    series: u64,
    /// What the names of its figures begin with.
    prefix: String,
}

impl<F: Endpoint, E: Alone> Leader<'_, F, E> {
    /// Figure 3: one request at a time, by size, beside the raw write.
    fn sizes(&mut self, samples: u64, mut echoes: Vec<(&str, Figure)>, report: &mut Report, interrupt: &Interrupt) -> Outcome<Plot> {
        let mut proposed = [Series::line("committed, p50"), Series::line("committed, p99")];
        let mut raw = Series::line("raw write, p50");
        let progress = report.progress("payloads", PAYLOADS.len() as u64);
        for payload in PAYLOADS {
            interrupt.check()?;
            let write = self.raw(payload, false, "", samples);
            let as_record = format!(", as a record of {payload} B");
            let of_record = self.raw(E::record_bytes(payload), false, &as_record, samples);
            let read = self.raw(E::record_bytes(payload), true, &as_record, samples);
            let (figure, operations) = self.replicate(payload, samples, interrupt)?;
            let name = |what: &str| format!("{}{what}", self.prefix);
            report.set(&name(&format!("operations_{payload}B")), operations);
            raw.push(payload as f64, write.percentile(50.0));
            for (series, percent) in proposed.iter_mut().zip([50.0, 99.0]) {
                series.push(payload as f64, figure.percentile(percent));
            }
            let ratio = |percent, to: &Figure| format!("{:.2}", figure.percentile(percent) / to.percentile(percent).max(1.0));
            for (of, echo) in echoes.drain(..if payload == ECHO { echoes.len() } else { 0 }) {
                report.set(&name(&format!("ratio_p50_{payload}B_{of}")), ratio(50.0, &echo));
                report.set(&name(&format!("ratio_p99_{payload}B_{of}")), ratio(99.0, &echo));
                report.add(echo);
            }
            report.set(&name(&format!("ratio_p50_{payload}B")), ratio(50.0, &write));
            report.set(&name(&format!("ratio_p50_{payload}B_as_record")), ratio(50.0, &of_record));
            report.add(write);
            report.set(&name(&format!("ratio_p50_{payload}B_as_record_read")), ratio(50.0, &read));
            report.add(of_record);
            report.add(read);
            report.add(figure);
            progress.step();
        }
        let (x, y) = (Axis::log("payload, bytes"), Axis::log("latency, ns"));
        let [p50, p99] = proposed;
        Ok(Plot::new(format!("{}Replication latency by payload (Mu, Figure 3)", self.prefix), x, y).with(p50).with(p99).with(raw))
    }

    /// How long requests of so many bytes take, and how many operations complete meanwhile, as the median.
    fn replicate(&mut self, payload: usize, samples: u64, interrupt: &Interrupt) -> Outcome<(Figure, u64)> {
        let mut figure = Figure::new("replicate", proposed(&self.prefix, payload), Unit::Nanoseconds);
        let (request, mut operations) = (vec![9u8; payload], Vec::new());
        for sample in 0..samples + samples / 10 {
            if sample % 1024 == 0 {
                interrupt.check()?;
            }
            let (took, completed) = self.commit(&request)?;
            if sample >= samples / 10 {
                figure.record(took);
                operations.push(completed);
            }
        }
        operations.sort_unstable();
        Ok((figure, operations.get(operations.len() / 2).copied().unwrap_or(0)))
    }

    /// Takes a request until it is committed. Returns how long that took, in nanoseconds, and how many operations have completed meanwhile. Where the lead is
    /// lost on the way, it waits until it has it again, and begins anew.
    fn commit(&mut self, request: &[u8]) -> Outcome<(u64, u64)> {
        loop {
            // Between two requests, so that it is not in the way of one: beats, and whatever else is due.
            self.replica.turn();
            self.replica.until("it leads, and has room", |leader| leader.engine.has_room(request.len()))?;
            let reign = self.replica.engine.reign();
            let before = self.replica.completed;
            let took = self.commit_in(reign, request);
            if self.replica.engine.reign() == reign {
                return Ok((took, self.replica.completed - before));
            }
            self.lost += 1;
        }
    }

    fn commit_in(&mut self, reign: u64, request: &[u8]) -> u64 {
        let Replica { engine, fabric, machine, .. } = &mut self.replica;
        let start = clock::now();
        let last: LogIndex = engine.propose(request).expect("it leads, and has room");
        engine.post(start, fabric, machine);
        self.replica.conclude(start);
        while self.replica.engine.committed() < last && self.replica.engine.reign() == reign {
            self.replica.turn();
        }
        clock::now().since(start)
    }
}

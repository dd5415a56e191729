//! Figure 6: what a SET costs, by how many failures are tolerated.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::Plan;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::engine;
use martlet_cluster::number::number;
use martlet_cluster::watch::observer::Role;
use martlet_node::clock;
use martlet_node::config::EngineKind;
use martlet_node::counters::Counter;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::basics::{ProcessId, Time};

use super::super::redis_server::{self, Load, RedisServer, Sets};
use super::super::run::cpu_ns;
use super::super::run::service::Service;
use super::paper;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};
use crate::trial::testbed::{PATIENCE, Testbed};

/// How often it is looked whether a node has said how it is.
const LOOK: Duration = Duration::from_millis(1);

/// Figure 6: throughput and latency of SET, by how many failures are tolerated.
///
/// The load is redis-benchmark with 50 clients, as in the paper, and all requests go to the leader. First a plain redis-server is measured, then the replicated
/// store with each engine: with f + 1 nodes if one has to live, and 2 f + 1 if a majority has to. With --unmodified, redis-server in three replicas follows, by
/// `martlet run`, with each engine that can. The CPU time is that of all nodes together: they share this machine's cores with the clients, while each node of
/// the paper had a server. Compare engines by their ratios. The paper says that its HUC has 1.22 times the throughput of RedisRaft on average, and 1.7 at most.
///
/// Example: martlet bench fide figure6 --failures 5 --requests 1000000 --plot throughput.svg --plot-latency latency.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// Engines to measure, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = engine())]
    engines: Vec<EngineKind>,
    /// The largest number of failures to tolerate.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u16>(0..=7))]
    failures: u16,
    /// Number of requests in a run of redis-benchmark; the paper has 1,000,000.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = number::<u32>(1_000..))]
    requests: u32,
    /// Number of runs of each kind, each with new processes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u32>(1..=1_000))]
    repeats: u32,
    /// Also measure an unmodified redis-server in three replicas.
    #[arg(long)]
    unmodified: bool,
    /// First port of the Redis protocol.
    #[arg(long, value_name = "PORT", default_value_t = 29711, value_parser = number::<u16>(1..=65000))]
    redis_port: u16,
    /// Also draw the throughput into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also draw the latency into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot_latency: Option<PathBuf>,
    /// The library to load into an unmodified server, as for `martlet run`.
    #[arg(long, value_name = "FILE", requires = "unmodified")]
    preload: Option<PathBuf>,
}

/// Bytes of a value: redis-benchmark's own.
const VALUE_BYTES: u32 = 3;

/// How many nodes tolerate so many failures.
fn nodes(engine: EngineKind, failures: u16) -> u16 {
    if engine.traits().commits_by_majority() { 2 * failures + 1 } else { failures + 1 }
}

/// Whether `martlet run` takes it.
fn can_run(engine: EngineKind) -> bool {
    engine.traits().executes_on_commit
}

/// What the runs of one kind came to.
struct Measured {
    rate: Figure,
    /// Averages of runs.
    latency: Figure,
    cpu: Figure,
}

impl Measured {
    fn new(subject: &str) -> Measured {
        let figure = |what: &str, unit| {
            Figure::new("fide", format!("{what}, {subject}"), unit).with("clients", paper::CLIENTS).with("paper_requests", paper::REQUESTS)
        };
        Measured {
            rate: figure("SET a second", Unit::PerSecond)
                .with("paper_huc_to_raft", paper::HUC_TO_RAFT)
                .with("paper_huc_to_raft_most", paper::HUC_TO_RAFT_MOST),
            latency: figure("average latency of SET", Unit::Microseconds)
                .with("paper_hsuc_us", paper::HSUC_SET_US)
                .with("paper_huc_us", paper::HUC_SET_US),
            cpu: figure("CPU time of a SET", Unit::Microseconds),
        }
    }

    /// One run, of these processes.
    fn run(&mut self, load: Load, address: SocketAddr, pids: &[u32]) -> Outcome {
        let cpu = || pids.iter().map(|pid| cpu_ns(*pid)).sum::<Outcome<u64>>();
        let before = cpu()?;
        let Sets { rate, average_us } = load.run_sets(address)?;
        let taken = cpu()?.saturating_sub(before);
        self.rate.record(rate as u64);
        self.latency.record((average_us * 1e3) as u64);
        self.cpu.record(taken / u64::from(load.requests));
        Ok(())
    }

    fn report(self, report: &mut Report) {
        [self.rate, self.latency, self.cpu].into_iter().for_each(|figure| report.add(figure));
    }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    if !redis_server::has_benchmark() {
        report.format().say("skipped: redis-benchmark is not installed (Debian's redis-tools)");
        return Ok(());
    }
    let engines = if arguments.engines.is_empty() { EngineKind::ALL.to_vec() } else { arguments.engines.clone() };
    if let Some(engine) = engines.iter().find(|engine| usize::from(nodes(**engine, arguments.failures)) > MAX_MEMBERS) {
        let (failures, wanted) = (arguments.failures, nodes(*engine, arguments.failures));
        return Err(Fail::usage(format_args!(
            "--failures is {failures}, for which {engine} needs {wanted} nodes; allowed are {MAX_MEMBERS}"
        )));
    }
    let load = Load { requests: arguments.requests, clients: paper::CLIENTS, pipeline: 1, value_bytes: VALUE_BYTES };
    report.set("requests", arguments.requests);
    let mut throughput = Plot::new("SET a second (FiDe, Figure 6a)", Axis::linear("failures tolerated"), Axis::linear("SET a second"));
    let mut latency = Plot::new("Average latency of SET (FiDe, Figure 6b)", Axis::linear("failures tolerated"), Axis::linear("us"));
    let unmodified = if arguments.unmodified { engines.iter().filter(|engine| can_run(**engine)).count() } else { 0 };
    let kinds = 1 + engines.len() * (usize::from(arguments.failures) + 1) + unmodified;
    let progress = report.progress("runs of redis-benchmark", u64::from(arguments.repeats) * kinds as u64);
    let mut plain = Measured::new("redis-server alone");
    for _ in 0..arguments.repeats {
        interrupt.check()?;
        if let Some(server) = RedisServer::start(arguments.redis_port)? {
            plain.run(load, server.address(), &[server.pid()])?;
        } else {
            report.format().say("skipped: redis-server is not installed (Debian's redis-server)");
        }
        progress.step();
    }
    if plain.rate.n() > 0 {
        for (plot, figure) in [(&mut throughput, &plain.rate), (&mut latency, &plain.latency)] {
            let mut series = Series::line("redis-server alone");
            (0..=arguments.failures).for_each(|failures| series.push(f64::from(failures), figure.percentile(50.0)));
            *plot = plot.clone().with(series);
        }
        plain.report(report);
    }
    for engine in &engines {
        let (mut rates, mut latencies) = (Series::line(engine.name()), Series::line(engine.name()));
        for failures in 0..=arguments.failures {
            let nodes = nodes(*engine, failures);
            let mut measured = Measured::new(&format!("{engine}, {failures} failures tolerated, {nodes} nodes"));
            for _ in 0..arguments.repeats {
                interrupt.check()?;
                of_store(&mut measured, load, *engine, nodes, arguments, interrupt)?;
                progress.step();
            }
            rates.push(f64::from(failures), measured.rate.percentile(50.0));
            latencies.push(f64::from(failures), measured.latency.percentile(50.0));
            measured.report(report);
        }
        (throughput, latency) = (throughput.with(rates), latency.with(latencies));
    }
    for engine in engines.iter().filter(|engine| arguments.unmodified && can_run(**engine)) {
        let failures = if engine.traits().commits_by_majority() { 1 } else { 2 };
        let mut measured = Measured::new(&format!("redis-server unmodified, {engine}, {failures} failures tolerated, 3 replicas"));
        for _ in 0..arguments.repeats {
            let service = Service::start(arguments.redis_port, Some(*engine), arguments.preload.as_deref(), interrupt)?;
            let address = SocketAddr::from(([127, 0, 0, 1], arguments.redis_port));
            measured.run(load, address, &service.replicas())?;
            let left = service.end()?;
            if !left.is_empty() {
                return Err(Fail::wrong(format_args!("left behind: {}", left.join(", "))));
            }
            progress.step();
        }
        for (plot, figure) in [(&mut throughput, &measured.rate), (&mut latency, &measured.latency)] {
            let mut series = Series::line(format!("unmodified, {engine}"));
            series.push(f64::from(failures), figure.percentile(50.0));
            *plot = plot.clone().with(series);
        }
        measured.report(report);
    }
    drop(progress);
    report.draw_and_save(throughput, arguments.plot.as_deref())?;
    report.draw_and_save(latency, arguments.plot_latency.as_deref())
}

/// A new cluster, and one run.
fn of_store(measured: &mut Measured, load: Load, engine: EngineKind, nodes: u16, arguments: &Arguments, interrupt: &Interrupt) -> Outcome {
    let plan = Plan { redis_port: Some(arguments.redis_port), engine, ..Plan::new(format!("bench-set-{engine}"), nodes) };
    let mut testbed = Testbed::start(&plan, interrupt)?;
    loop {
        let (primary, reign) = leader(&mut testbed, clock::now(), interrupt)?;
        let address = testbed.cluster().config().nodes.iter().find(|node| node.number == primary.node.0).map(|node| node.redis.clone());
        let address = address.unwrap_or_default().parse().context("the leader's address")?;
        let pids = testbed.running().into_iter().map(|number| testbed.pid(number)).collect::<Outcome<Vec<u32>>>()?;
        match measured.run(load, address, &pids) {
            // Its clients were told that it does not lead. Another one does since, or did: with an election a leader that was slow for a moment soon leads again.
            Err(_) if leader(&mut testbed, clock::now(), interrupt)? != (primary, reign) => {}
            ran => break ran?,
        }
    }
    let left = testbed.end()?;
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// The process that leads, and how often it has begun and ceased to, as it says itself after `since`.
fn leader(testbed: &mut Testbed, since: Time, interrupt: &Interrupt) -> Outcome<(ProcessId, u64)> {
    let until = Instant::now() + PATIENCE;
    loop {
        interrupt.check()?;
        let (primary, _) = testbed.primary()?;
        let sights = testbed.look()?;
        let says = sights.iter().find(|sight| sight.node == primary.node.0 && sight.counter(Counter::PublishedNs) >= since.0);
        if let Some(reign) = says.filter(|sight| sight.role() == Some(Role::Primary)).map(|sight| sight.counter(Counter::Reign)) {
            return Ok((primary, reign));
        }
        if Instant::now() > until {
            return Err(Fail::failed(format_args!("no node has said for {} s that it leads", PATIENCE.as_secs())));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_left_is_enough_where_all_hold_what_is_committed() {
        let of = |engine| [0, 1, 5].map(|failures| nodes(engine, failures));
        assert_eq!(of(EngineKind::Hsuc), [1, 2, 6]);
        assert_eq!(of(EngineKind::Huc), [1, 2, 6]);
        assert_eq!(of(EngineKind::Mu), [1, 3, 11]);
    }
}

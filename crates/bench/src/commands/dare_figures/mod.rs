//! `martlet bench dare`: the figures of DARE's evaluation, of all engines, beside the paper's values.

mod applications;
mod etcd;
mod latency;
mod paper;
mod reconfiguration;
mod throughput;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use martlet_cluster::directory::{FabricFlags, FabricPlan, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::engine;
use martlet_cluster::number::number;
use martlet_node::config::{EngineKind, Pin};
use martlet_node::sched::OnCore;

use super::threads::Threads;
use crate::report::Report;
use crate::report::placement::two_cores;
use crate::trial::clients;
use crate::trial::testbed::Testbed;

/// Measure the figures of DARE's evaluation (section 6), with all engines.
///
/// The paper's values stand beside them. 8a: latency of reads and writes by size, one client and five servers, beside raw writes of as many bytes to four
/// peers. 8b: replies a second by the number of clients, with three servers, reads only and writes only, of 64 B and at the last of 2048 B. 8c: the same where
/// 95 and 50 of 100 requests read. 9a: writes a second over time while servers join, fail and are removed, including the leader, with the first engine (dare,
/// if none is named), and the longest gap without a reply for each kind of step. 9b: as 8a, beside other systems over TCP, if they are installed: five servers
/// of etcd, with their files in memory, and a redis-server with four replicas, two of which acknowledge each write. Each server is a process; each key has 64
/// bytes. Clients share one thread, each with one request under way. The paper had a machine for each server and InfiniBand between them: compare its values by
/// their shape, and engines by their ratios.
///
/// Example: martlet bench dare --figure 8a --plot latency.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only this figure of the paper.
    #[arg(long, value_enum)]
    figure: Option<Shown>,
    /// Engines to measure, one after the other, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = engine())]
    engines: Vec<EngineKind>,
    /// For 8a and 9b: number of requests of each size and kind in each round.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = number::<u32>(100..=1_000_000))]
    samples: u32,
    /// For 8a and 9b: how often the engines take turns, each time as new clusters.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u32>(1..=100))]
    rounds: u32,
    /// For 8b and 8c: the largest number of clients. For 9a: the number of clients.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = number::<u16>(1..=64))]
    clients: u16,
    /// For 8b and 8c: the number of intervals of 10 ms in which replies are counted, for each kind and number of clients.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = number::<u32>(5..=100_000))]
    intervals: u32,
    /// For 9b: the first of fifteen ports for the servers of other systems.
    #[arg(long, value_name = "PORT", default_value_t = 29811, value_parser = number::<u16>(1..=65_000))]
    port: u16,
    /// Also draw the figure into this file, as SVG.
    #[arg(long, value_name = "FILE", requires = "figure")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    fabric: FabricFlags,
    #[command(flatten)]
    threads: Threads,
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// Latency by size.
    #[value(name = "8a")]
    Latency,
    /// Throughput by clients, of reads and of writes.
    #[value(name = "8b")]
    Throughput,
    /// Throughput by clients, of mixed loads.
    #[value(name = "8c")]
    Workloads,
    /// Throughput over time, while servers join, fail and are removed.
    #[value(name = "9a")]
    Reconfiguration,
    /// Latency by size, beside other applications.
    #[value(name = "9b")]
    Applications,
}

/// Bytes of a key (section 6).
const KEY_BYTES: usize = 64;

/// What is measured, and how its clusters are made.
struct Subject<'a> {
    arguments: &'a Arguments,
    engines: Vec<EngineKind>,
    fabric: FabricPlan,
    interrupt: &'a Interrupt,
}

impl Subject<'_> {
    /// A cluster of so many servers with that engine.
    fn start(&self, engine: EngineKind, servers: u16) -> Outcome<Testbed> {
        let plan = Plan {
            engine,
            threads: self.arguments.threads.config(),
            fabric: self.fabric.clone(),
            ..Plan::new(format!("bench-dare-{engine}"), servers)
        };
        Testbed::start(&plan, self.interrupt)
    }

    /// The core that is left to clients, where nodes are bound to others.
    fn enter_client_core(&self) -> Outcome<Option<OnCore>> {
        let cores = two_cores().filter(|_| self.arguments.threads.config().pin == Pin::Auto);
        cores.map(|(first, _)| OnCore::enter(first)).transpose().context("cannot bind the clients' thread")
    }
}

/// Ends a cluster in order.
fn end(testbed: Testbed) -> Outcome {
    let left = testbed.end()?;
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let engines = if arguments.engines.is_empty() { EngineKind::ALL.to_vec() } else { arguments.engines.clone() };
    report.set("fabric", arguments.fabric.kind().to_string());
    report.set("threads", arguments.threads.describe());
    report.set("client thread", clients::hurry()?);
    let subject = Subject { arguments, engines, fabric: arguments.fabric.plan(None)?, interrupt };
    for figure in [Shown::Latency, Shown::Throughput, Shown::Workloads, Shown::Reconfiguration, Shown::Applications] {
        if arguments.figure.is_some_and(|only| only != figure) {
            continue;
        }
        let plot = match figure {
            Shown::Latency => latency::measure(&subject, report)?,
            Shown::Throughput => throughput::measure(&subject, &throughput::PURE, report)?,
            Shown::Workloads => throughput::measure(&subject, &throughput::MIXED, report)?,
            Shown::Reconfiguration => reconfiguration::measure(&subject, report)?,
            Shown::Applications => applications::measure(&subject, report)?,
        };
        report.draw_and_save(plot, arguments.plot.as_deref())?;
    }
    Ok(())
}

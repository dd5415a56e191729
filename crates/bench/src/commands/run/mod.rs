//! `martlet bench run`: an unmodified redis-server under `martlet run`, beside a plain one, and through kills.

mod kills;
mod load;
pub(super) mod service;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::server_engine;
use martlet_cluster::number::number;
use martlet_node::config::EngineKind;

use self::load::{Load, Measured};
use self::service::Service;
use super::redis_server::{self, RedisGroup, RedisServer};
use crate::report::{Figure, Report, Unit};
use crate::trial::clients;

/// Measure an unmodified redis-server under `martlet run`, with kills.
///
/// First three servers take turns, on any cores, under 50 clients (half SET, half GET): a plain redis-server, one with two replicas of Redis' own kind, which
/// it does not wait for, and one in three replicas under `martlet run`. They get as many requests as they answer, and then all of them half of what the last
/// could answer, at random moments, with the CPU time of the process that answers.
///
/// Then the leader is killed again and again: while one client counts, up to the next byte on its connection, beside a bare death probe each time; while 50
/// clients count; and while redis-benchmark counts with 50 clients, which has to end without an error and with the sockets that it began with. All counts have
/// to be exact, and nothing may be left behind; otherwise the command fails. No server keeps anything on disk.
///
/// Example: martlet bench run --kills 100 --json
#[derive(Debug, Args)]
pub struct Arguments {
    /// How often the servers take turns under load; 0: never.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number::<u32>(..))]
    turns: u32,
    /// Length of a turn, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = number::<u64>(100..=600_000))]
    turn_ms: u64,
    /// Number of clients under load.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = number::<u16>(1..=1_000))]
    clients: u16,
    /// How often the leader is killed while one client counts; 0: never.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number::<u32>(..))]
    kills: u32,
    /// How often the leader is killed while many clients count; 0: never.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number::<u32>(..))]
    counted_kills: u32,
    /// How often the leader is killed while redis-benchmark counts; 0: never.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = number::<u32>(..))]
    benchmark_kills: u32,
    /// Number of requests in a run of redis-benchmark. Runs are repeated as long as there are kills to make.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = number::<u32>(10_000..))]
    benchmark_requests: u32,
    /// Replication engine, as for `martlet run`.
    #[arg(long, value_name = "NAME", value_parser = server_engine())]
    engine: Option<EngineKind>,
    /// The library to load into the server, as for `martlet run`.
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Port of the replicated server; the others listen on the next four.
    #[arg(long, value_name = "PORT", default_value_t = 27711, value_parser = number::<u16>(1..=65000))]
    port: u16,
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let address = SocketAddr::from(([127, 0, 0, 1], arguments.port));
    let skipped = || {
        report.format().say("skipped: redis-server is not installed (Debian's redis-server)");
        Ok(())
    };
    let Some(plain) = RedisServer::start(arguments.port + 1)? else { return skipped() };
    let copied = if arguments.turns > 0 {
        let Some(copied) = RedisGroup::start(arguments.port + 2, COPIES)? else { return skipped() };
        Some(copied)
    } else {
        None
    };
    let mut service = Service::start(arguments.port, arguments.engine, arguments.preload.as_deref(), interrupt)?;
    report.set("clients", arguments.clients);
    report.set("value_bytes", load::VALUE_BYTES as u64);
    report.set("client thread", clients::hurry()?);
    if let Some(copied) = &copied {
        under_load(arguments, (&plain, copied), &service, address, report, interrupt)?;
    }
    // They would take time from those that are killed.
    drop((plain, copied));
    if arguments.kills > 0 {
        kills::to_the_next_byte(arguments.kills, &mut service, address, report)?;
    }
    if arguments.counted_kills > 0 {
        kills::while_clients_count(arguments.counted_kills, arguments.clients, &mut service, address, report, interrupt)?;
    }
    if arguments.benchmark_kills > 0 {
        if redis_server::has_benchmark() {
            service.await_whole()?;
            let (kills, requests) = (arguments.benchmark_kills, arguments.benchmark_requests);
            kills::under_redis_benchmark(kills, requests, &mut service, address, report, interrupt)?;
        } else {
            report.format().say("skipped: kills under redis-benchmark, which is not installed (Debian's redis-tools)");
        }
    }
    let left = service.end()?;
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// Replicas of Redis' own kind beside the one that clients talk to.
const COPIES: u16 = 2;

/// One of those that take turns.
struct Side {
    name: &'static str,
    /// The process that answers.
    pid: u32,
    load: Load,
    /// As many requests as it answers.
    most: Figure,
    /// At the rate that both have.
    latency: Figure,
    cpu: Figure,
}

impl Side {
    fn open(name: &'static str, pid: u32, address: SocketAddr, clients: u16) -> Outcome<Side> {
        let figure = |metric: &str, unit| Figure::new("run", format!("{metric}, {name}"), unit);
        Ok(Side {
            name,
            pid,
            load: Load::open(address, clients)?,
            most: figure("requests at saturation", Unit::PerSecond),
            latency: figure("SET and GET at half load", Unit::Microseconds),
            cpu: figure("CPU time of a request at half load", Unit::Nanoseconds),
        })
    }
}

/// All in turn: at saturation, and at half of what the replicated one could.
fn under_load(
    arguments: &Arguments,
    (plain, copied): (&RedisServer, &RedisGroup),
    service: &Service,
    address: SocketAddr,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    let leader = service.leader()?.as_raw_nonzero().get().unsigned_abs();
    let mut sides = [
        Side::open("redis-server alone", plain.pid(), plain.address(), arguments.clients)?,
        Side::open("redis-server with replicas of its own", copied.primary().pid(), copied.primary().address(), arguments.clients)?,
        Side::open("under martlet run", leader, address, arguments.clients)?,
    ];
    let turn = Duration::from_millis(arguments.turn_ms);
    let progress = report.progress("turns under load", 2 * sides.len() as u64 * u64::from(arguments.turns));
    for round in 0..=arguments.turns {
        for side in &mut sides {
            let Measured { latencies, ns } = side.load.run(None, turn, interrupt)?;
            // The first warms up.
            if round > 0 {
                side.most.record((latencies.len() as f64 * 1e9 / ns as f64) as u64);
                progress.step();
            }
        }
    }
    let rate = sides[2].most.percentile(50.0) / 2.0;
    for _ in 0..arguments.turns {
        for side in &mut sides {
            let before = cpu_ns(side.pid)?;
            let Measured { latencies, .. } = side.load.run(Some(rate), turn, interrupt)?;
            let taken = cpu_ns(side.pid)?.saturating_sub(before);
            side.cpu.record(taken / latencies.len().max(1));
            side.latency.merge(&latencies);
            progress.step();
        }
    }
    drop(progress);
    report.set("half_load_per_second", rate as u64);
    let [alone, copied, replicated] = &sides;
    for (side, prefix) in [(replicated, ""), (copied, "own_replicas_")] {
        for (name, (figure, plain), percent) in [
            ("ratio_at_saturation", (&side.most, &alone.most), 50.0),
            ("ratio_p50", (&side.latency, &alone.latency), 50.0),
            ("ratio_p99", (&side.latency, &alone.latency), 99.0),
            ("ratio_cpu", (&side.cpu, &alone.cpu), 50.0),
        ] {
            let ratio = figure.percentile(percent) / plain.percentile(percent);
            report.set(&format!("{prefix}{name}"), (ratio * 1e3).round() / 1e3);
            report.format().say(format_args!("{prefix}{name}: {ratio:.3} ({} to {})", side.name, alone.name));
        }
    }
    for side in sides {
        [side.most, side.latency, side.cpu].into_iter().for_each(|figure| report.add(figure));
    }
    Ok(())
}

/// The CPU time that the threads of a process have had, in nanoseconds. One that has ended, maybe since they were listed, counts no more.
pub(super) fn cpu_ns(pid: u32) -> Outcome<u64> {
    let place = format!("/proc/{pid}/task");
    let mut sum = 0;
    for thread in fs::read_dir(&place).context(format_args!("cannot look at process {pid}"))? {
        let file = thread.context(&place)?.path().join("schedstat");
        let text = match fs::read_to_string(&file) {
            // The second: it ended between opening and reading.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
            {
                continue;
            }
            text => text.context(file.display())?,
        };
        let first: Option<u64> = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
        sum += first.ok_or_else(|| Fail::failed(format_args!("{} says {text:?}", file.display())))?;
    }
    Ok(sum)
}

//! `martlet judge`

use std::time::{Duration, Instant};

use clap::Args;
use martlet_bench::report::Report;
use martlet_bench::trial::clients::{self, Via};
use martlet_bench::trial::judged::Judged;
use martlet_bench::trial::workload::Mix;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, GOOD, styled};
use martlet_cluster::watch::observer::{self, Observer};
use serde_json::json;

use super::Which;

/// Put a running cluster under load while you break it, and check what clients see.
///
/// Clients write and read keys of their own, in rounds. After each round their history is checked for linearizability, and the keys are removed. The command
/// itself does nothing to the cluster: meanwhile, kill its nodes, stop its machines, or pull its cables. A round in which no node answers is reported, but is
/// no failure. Exit code 4 when a check fails.
///
/// Example: martlet judge --dir /var/lib/martlet/shop --seconds 600
#[derive(Debug, Args)]
pub struct Arguments {
    /// How long to run, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = number::<u64>(1..=2_592_000))]
    seconds: u64,
    /// Length of a round, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = number::<u64>(1..=60))]
    round_seconds: u64,
    /// Number of clients on the fabric.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u16>(0..=64))]
    clients: u16,
    /// Number of clients that speak the Redis protocol. The nodes must not need a password.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u16>(0..=64))]
    redis_clients: u16,
    /// Number of clients that speak the Redis protocol and only read. They soon find a node that still answers although it has been replaced. Clients that
    /// also write wait there for their first write.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u16>(0..=64))]
    redis_readers: u16,
    /// Pause of each client between two requests, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1000, value_parser = number::<u64>(0..=1_000_000))]
    rest_us: u64,
    /// Seed of the random load [default: a new one each time].
    #[arg(long, value_parser = number::<u64>(..))]
    seed: Option<u64>,
    #[command(flatten)]
    which: Which,
}

/// How long to wait for the first sight of the cluster.
const PATIENCE: Duration = Duration::from_secs(5);
/// From where on rounds are numbered, at random: keys bear the number, and nobody else has such keys.
const FIRST_ROUNDS: std::ops::Range<u64> = 1 << 48..1 << 52;

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    if arguments.clients + arguments.redis_clients == 0 {
        return Err(Fail::usage("--clients and --redis-clients are both 0; without clients that write, nothing is checked"));
    }
    let directory = Directory::new(&arguments.which.dir);
    let cluster = directory.existing_cluster()?;
    directory.refuse_a_service("`martlet bench run` kills leaders of such a service under load, and checks every reply")?;
    for (option, count) in [("--redis-clients", arguments.redis_clients), ("--redis-readers", arguments.redis_readers)] {
        if count > 0 && clients::redis_addresses(&cluster).is_empty() {
            let place = directory.path().display();
            return Err(Fail::usage(format_args!("{option} is {count}, and no node in {place} serves the Redis protocol; allowed is 0")));
        }
    }
    let mut observer = Observer::open(&cluster)?;
    if observer.wait_for(PATIENCE, &interrupt, |sights| observer::primary(sights).is_some())?.is_err() {
        return Err(Fail::absent(format_args!("no node of the cluster in {} leads; is it running?", directory.path().display())));
    }
    let mut callers = clients::open(&cluster, arguments.clients, Via::Fabric)?;
    callers.extend(clients::open(&cluster, arguments.redis_clients + arguments.redis_readers, Via::Redis)?);
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    let readers = usize::from(arguments.redis_readers);
    let mix = Mix { keys: 24, reads: 50, readers, pause: Duration::from_micros(arguments.rest_us), value_bytes: 32 };
    let first = fastrand::u64(FIRST_ROUNDS);
    let mut load = Judged::new(callers, mix, seed, first);
    let began = Instant::now();
    let (lasting, lasts) = (Duration::from_secs(arguments.seconds), Duration::from_secs(arguments.round_seconds));
    let mut slowest = Duration::ZERO;
    while began.elapsed() < lasting {
        let number = load.next_round() - first + 1;
        let leader = observer::primary(&observer.look()).map(|sight| sight.node);
        let who = leader.map_or("no node leads".to_owned(), |node| format!("node {node} leads"));
        // At its begin, so that a program that breaks things knows what to break.
        format.print(format_args!("round {number}: {who}"), || json!({"event": "round", "number": number, "leader": leader}));
        let judged = load.round(|_| interrupt.sleep(lasts.min(lasting.saturating_sub(began.elapsed()))));
        if judged.is_ok() || interrupt.is_raised() {
            load.remove_keys();
        }
        let (seen, ()) = judged?;
        slowest = slowest.max(seen.slowest());
        let slowest_ms = seen.slowest().as_secs_f64() * 1e3;
        format.print(
            format_args!(
                "  {} requests, {} without a reply, the slowest took {slowest_ms:.1} ms: linearizable",
                seen.operations, seen.unknown
            ),
            || json!({"event": "judged", "number": number, "operations": seen.operations, "unknown": seen.unknown, "slowest_ms": slowest_ms}),
        );
    }
    let totals = load.end();
    if totals.operations == totals.unknown {
        return Err(Fail::failed(format_args!("no request had a reply within {} s: nothing was judged", arguments.seconds)));
    }
    let mut report = Report::new(format);
    report.set("seed", seed);
    report.set("clients", arguments.clients);
    report.set("redis_clients", arguments.redis_clients);
    report.set("redis_readers", arguments.redis_readers);
    totals.add_to(&mut report, "judge", ["GET", "change"]);
    report.finish();
    let (operations, unknown, slowest_ms) = (totals.operations, totals.unknown, slowest.as_secs_f64() * 1e3);
    let (refused, refused_text) = (totals.refused.0, totals.refusals());
    format.print(
        format_args!(
            "\n{} {operations} requests, {unknown} without a reply{refused_text}, the slowest took {slowest_ms:.1} ms; all linearizable, {:.0} s",
            styled(GOOD, "passed:"),
            began.elapsed().as_secs_f64()
        ),
        || json!({"event": "passed", "operations": operations, "unknown": unknown, "refused": refused, "slowest_ms": slowest_ms, "seed": seed}),
    );
    Ok(())
}

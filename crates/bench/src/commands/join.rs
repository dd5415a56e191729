//! `martlet bench join`: what it takes a node to join that needs all of a large state, and what clients notice of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::directory::{FabricFlags, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::engine;
use martlet_cluster::number::number;
use martlet_node::config::EngineKind;

use super::raise::Raise;
use super::stream;
use super::threads::Threads;
use crate::report::{Figure, Report, Unit};
use crate::trial::clients;
use crate::trial::crowd::Crowd;
use crate::trial::testbed::Testbed;

/// Measure how a node joins that needs all of a large state, and what a client notices.
///
/// A client fills a cluster of three, and one node leaves for good. Then one client sets a small key over and over, first for a few seconds, then while a node
/// without data joins in the place of the one that left. The report compares the bytes per second that the new node receives, from the start of its process
/// until it holds the state, with what one plain TCP connection carries on the loopback device. It also compares the client's times with those of before.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Replication engine.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// Size of the state, in megabytes. Each of the three nodes holds it in memory [default: 1000, or an eighth of the available memory].
    #[arg(long, value_name = "MB", value_parser = number::<u32>(1..=64_000))]
    state_mb: Option<u32>,
    /// Number of nodes that join, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u32>(1..))]
    joins: u32,
    #[command(flatten)]
    fabric: FabricFlags,
    #[command(flatten)]
    threads: Threads,
}

/// Bytes of the state's values.
const VALUE_BYTES: usize = 32 << 10;
/// How many of them are on their way at once.
const OUTSTANDING: usize = 8;
/// Bytes of the values that are set while a node joins, and of their keys.
const PAYLOAD: usize = 64;
const KEY_BYTES: usize = 16;
/// How long they are set before that.
const BEFORE: Duration = Duration::from_secs(3);
/// How long a request may take before something is broken, and how long a join.
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_JOIN: Duration = Duration::from_secs(600);
/// What the state has by default where there is memory for it.
const USUAL_MB: u32 = 1000;

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let state_mb = arguments.state_mb.map_or_else(affordable_mb, Ok)?;
    report.set("state_mb", state_mb);
    report.set("engine", arguments.engine.to_string());
    report.set("fabric", arguments.fabric.kind().to_string());
    report.set("threads", arguments.threads.describe());
    let fabric = arguments.fabric.plan(None)?;
    let tcp = stream::tcp(None, interrupt)?;
    let plan = Plan { engine: arguments.engine, threads: arguments.threads.config(), fabric, ..Plan::new("bench-join", 3) };
    let mut testbed = Testbed::start(&plan, interrupt)?;
    report.set("client thread", clients::hurry()?);
    let state_bytes = fill(&testbed, state_mb, report, interrupt)?;
    let mut crowd = Crowd::open(testbed.cluster(), testbed.running().len(), 1, KEY_BYTES)?;
    let timed = |when| Figure::new("join", format!("SET of {PAYLOAD} B, one client, {when}"), Unit::Microseconds);
    let (mut before, mut meanwhile) = (timed("before"), timed("while a node joins"));
    let mut transfer = Figure::new("join", "bytes of state a second, to a node that joins", Unit::PerSecond);
    let progress = report.progress("joins", u64::from(arguments.joins));
    for _ in 0..arguments.joins {
        leave(&mut testbed)?;
        let began = Instant::now();
        set(&mut crowd, &mut before, interrupt, || began.elapsed() < BEFORE)?;
        let took = join(&mut testbed, &mut crowd, &mut meanwhile, interrupt)?;
        transfer.record((state_bytes as f64 / took.as_secs_f64()) as u64);
        progress.step();
    }
    drop((progress, crowd));
    let ratio = |of: f64, to: f64| format!("{:.2}", of / to.max(f64::MIN_POSITIVE));
    report.set("ratio_transfer_tcp", ratio(transfer.percentile(50.0), tcp.percentile(50.0)));
    report.set("ratio_p50_while_before", ratio(meanwhile.percentile(50.0), before.percentile(50.0)));
    report.set("ratio_p99_while_before", ratio(meanwhile.percentile(99.0), before.percentile(99.0)));
    [tcp, transfer, before, meanwhile].into_iter().for_each(|figure| report.add(figure));
    let left = testbed.end()?;
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// What the state may have where each of three nodes holds it, and a fourth process may be on its way out.
fn affordable_mb() -> Outcome<u32> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot see how much memory is available")?;
    let kib = available_kib(&text).ok_or_else(|| Fail::failed("/proc/meminfo does not say how much memory is available"))?;
    Ok(u32::try_from(kib / 8 / 1000).unwrap_or(USUAL_MB).clamp(1, USUAL_MB))
}

fn available_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Sets keys until their values have so many megabytes. Returns how many bytes these are.
fn fill(testbed: &Testbed, state_mb: u32, report: &Report, interrupt: &Interrupt) -> Outcome<usize> {
    let mut client = FabricClient::open(testbed.cluster(), Waiting::PATIENT, PATIENCE)?;
    client.await_nodes(testbed.running().len())?;
    let keys = (state_mb as usize * 1_000_000).div_ceil(VALUE_BYTES);
    let value = vec![b'v'; VALUE_BYTES];
    let progress = report.progress("values of the state", keys as u64);
    let (mut sent, mut taken, mut heard) = (0, 0, Instant::now());
    while taken < keys {
        if sent < keys && sent - taken < OUTSTANDING {
            client.send(&[b"SET", format!("state:{sent}").as_bytes(), &value])?;
            sent += 1;
        } else if client.receive()? {
            taken += 1;
            heard = Instant::now();
            progress.step();
        } else if heard.elapsed() > PATIENCE {
            return Err(Fail::failed(format_args!("no reply within {} s", PATIENCE.as_secs())));
        } else {
            interrupt.check()?;
            std::thread::yield_now();
        }
    }
    Ok(keys * VALUE_BYTES)
}

/// A node that does not lead leaves for good.
fn leave(testbed: &mut Testbed) -> Outcome {
    let (leader, _) = testbed.primary()?;
    let number = testbed.running().into_iter().rfind(|number| *number != leader.node.0);
    testbed.set_aside(number.ok_or_else(|| Fail::failed("no node runs but the leader"))?)
}

/// A node joins while the client sets. How long that took.
fn join(testbed: &mut Testbed, crowd: &mut Crowd, figure: &mut Figure, interrupt: &Interrupt) -> Outcome<Duration> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let setting = scope.spawn(|| {
            clients::hurry()?;
            set(crowd, figure, interrupt, || !stop.load(Ordering::Relaxed))
        });
        let joined = {
            // However it ends, so does the client.
            let _stop = Raise(&stop);
            let began = Instant::now();
            testbed.take_in_within(LONGEST_JOIN).map(|()| began.elapsed())
        };
        setting.join().map_err(|_| Fail::failed("the client's thread panicked"))??;
        joined
    })
}

/// One request after the other, for as long as is said.
fn set(crowd: &mut Crowd, figure: &mut Figure, interrupt: &Interrupt, mut goes_on: impl FnMut() -> bool) -> Outcome {
    let value = [b'v'; PAYLOAD];
    while goes_on() {
        interrupt.check()?;
        figure.record(crowd.put(&value)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found_among_the_rest() {
        assert_eq!(available_kib("MemTotal:  24 kB\nMemFree: 5 kB\nMemAvailable:   17 kB\n"), Some(17));
        assert_eq!(available_kib("MemTotal:  24 kB\n"), None);
        assert!((1..=USUAL_MB).contains(&affordable_mb().expect("it says so here")));
    }
}

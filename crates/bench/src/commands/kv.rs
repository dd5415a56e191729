//! `martlet bench kv`: what the store costs, beside an unreplicated one and beside redis-server.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use clap::Args;
use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::directory::{FabricFlags, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::engine;
use martlet_cluster::number::number;
use martlet_node::clock;
use martlet_node::config::EngineKind;
use martlet_node::config::Pin;
use martlet_node::sched::OnCore;

use super::redis_server::{self, Load, RedisServer};
use super::threads::Threads;
use crate::report::placement::two_cores;
use crate::report::{Figure, Report, Unit};
use crate::trial::clients;
use crate::trial::testbed::Testbed;

/// Measure what the store costs, beside an unreplicated one and beside redis-server.
///
/// On the fabric, a cluster of one node and one of three take turns. Over the Redis protocol, the cluster of three and an unreplicated
/// redis-server without persistence take turns, on the same cores. Measured are latency with one client, throughput with 50 (redis-benchmark),
/// and the memory that a key takes, on servers that were started for it. Comparisons with programs that are not installed are skipped, and the report says so.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Replication engine.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// Number of requests of each kind. With pipelines of 16, redis-benchmark makes four times as many.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = number::<u32>(100..=100_000_000))]
    requests: u32,
    /// Size of a value, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = number::<u32>(1..=60_000))]
    value_bytes: u32,
    /// Number of outstanding requests on the fabric in the throughput figure.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number::<u32>(1..=256))]
    outstanding: u32,
    /// Number of runs of redis-benchmark of each kind; 0: none.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number::<u32>(..))]
    repeats: u32,
    /// Number of keys to set in order to see how much memory one takes: 100000 or more; 0: do not measure it.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = number::<u32>(..))]
    memory_keys: u32,
    /// First port of the Redis protocol; redis-server listens on the fourth.
    #[arg(long, value_name = "PORT", default_value_t = 29711, value_parser = number::<u16>(1..=65000))]
    redis_port: u16,
    /// How long a client on the fabric spins for a reply before it leaves its core to others, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = number::<u64>(..))]
    client_spin_us: u64,
    #[command(flatten)]
    fabric: FabricFlags,
    #[command(flatten)]
    threads: Threads,
}

const PATIENCE: Duration = Duration::from_secs(60);
/// The most requests to one side before it is the other's turn.
const TURN: u32 = 500;
/// From so many keys on the memory that one takes is seen: a node that has just started has a megabyte to spare, which a quarter of them fill.
const LEAST_MEMORY_KEYS: u32 = 100_000;

/// How many requests there are in each turn. The turns are equally long but for one request, so that no rate is that of a few requests.
fn turns(requests: u32) -> impl ExactSizeIterator<Item = u32> + Clone {
    let turns = requests.div_ceil(TURN);
    (0..turns).map(move |turn| requests / turns + u32::from(turn < requests % turns))
}

/// The turns to warm up, a tenth of all, and then those that count.
fn warm_turns(requests: u32) -> impl Iterator<Item = (bool, u32)> {
    let all = turns(requests);
    all.clone().take(all.len().div_ceil(10)).map(|requests| (false, requests)).chain(all.map(|requests| (true, requests)))
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    if (1..LEAST_MEMORY_KEYS).contains(&arguments.memory_keys) {
        let keys = arguments.memory_keys;
        return Err(Fail::usage(format_args!(
            "--memory-keys is {keys}: a server has memory for so few before it asks the system for more; allowed are 0 and {LEAST_MEMORY_KEYS} or more"
        )));
    }
    report.set("requests", arguments.requests);
    report.set("value_bytes", arguments.value_bytes);
    report.set("threads", arguments.threads.describe());
    report.set("client_spin_us", arguments.client_spin_us);
    let fabric_plan = arguments.fabric.plan(None)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    let plan = |purpose, nodes, redis_port| Plan {
        redis_port,
        engine: arguments.engine,
        threads: arguments.threads.config(),
        fabric: fabric_plan.clone(),
        ..Plan::new(purpose, nodes)
    };
    let mut replicated = Testbed::start(&plan("bench-kv", 3, Some(arguments.redis_port)), interrupt)?;
    let alone = Testbed::start(&plan("bench-kv-alone", 1, None), interrupt)?;
    report.set("client thread", clients::hurry()?);
    fabric(arguments, &alone, &replicated, report, interrupt)?;
    ended(alone)?;
    over_redis(arguments, &mut replicated, report, interrupt)?;
    ended(replicated)?;
    if arguments.memory_keys == 0 {
        return Ok(());
    }
    let mut fresh = Testbed::start(&plan("bench-kv-memory", 3, Some(arguments.redis_port)), interrupt)?;
    let server = RedisServer::start(arguments.redis_port + 3)?;
    let mut sides = sides(arguments, &mut fresh, server.as_ref())?;
    memory(arguments, &mut sides, report, interrupt)?;
    drop(sides);
    ended(fresh)
}

fn ended(testbed: Testbed) -> Outcome {
    let left = testbed.end()?;
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// Latency and throughput on the fabric: one client, in turn of either cluster.
fn fabric(arguments: &Arguments, alone: &Testbed, replicated: &Testbed, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let waiting = Waiting { spin: Duration::from_micros(arguments.client_spin_us) };
    let mut sides = [("unreplicated", alone), ("replicated three ways", replicated)]
        .into_iter()
        .map(|(name, testbed)| Ok((name, FabricClient::open(testbed.cluster(), waiting, PATIENCE)?)))
        .collect::<Outcome<Vec<_>>>()?;
    let value = vec![b'v'; arguments.value_bytes as usize];
    for (verb, args) in [("PUT", &[b"SET", b"key".as_slice(), &value][..]), ("GET", &[b"GET", b"key"])] {
        let name = |side| format!("{verb} on the fabric, {side}");
        let mut latencies: Vec<Figure> = sides.iter().map(|(side, _)| Figure::new("kv", name(side), Unit::Microseconds)).collect();
        let mut rates: Vec<Figure> = sides
            .iter()
            .map(|(side, _)| {
                let metric = format!("{}, {} outstanding", name(side), arguments.outstanding);
                Figure::new("kv", metric, Unit::PerSecond).with("outstanding", arguments.outstanding)
            })
            .collect();
        let progress = report.progress(&format!("{verb} on the fabric"), warm_turns(arguments.requests).count() as u64);
        for (counts, requests) in warm_turns(arguments.requests) {
            interrupt.check()?;
            progress.step();
            for (side, (_, client)) in sides.iter_mut().enumerate() {
                for _ in 0..requests {
                    let start = clock::now();
                    acknowledged(client.request(args, |answer| !answer.reply.starts_with(b"-"))?)?;
                    if counts {
                        latencies[side].record(clock::now().since(start));
                    }
                }
                let start = clock::now();
                client.pipelined(args, arguments.outstanding, requests)?;
                let took = clock::now().since(start).max(1);
                if counts {
                    rates[side].record(u64::from(requests) * 1_000_000_000 / took);
                }
            }
        }
        drop(progress);
        latencies.into_iter().chain(rates).for_each(|figure| report.add(figure));
    }
    Ok(())
}

fn acknowledged(reply: Option<bool>) -> Outcome {
    match reply {
        Some(true) => Ok(()),
        Some(false) => Err(Fail::failed("a node refused a request")),
        None => Err(Fail::failed(format_args!("no reply within {} s", PATIENCE.as_secs()))),
    }
}

/// One of the two that take turns over the Redis protocol.
struct Side {
    name: &'static str,
    address: SocketAddr,
    pid: u32,
    connection: Connection,
}

/// The cluster's primary and the redis-server, if there is one.
fn sides(arguments: &Arguments, testbed: &mut Testbed, server: Option<&RedisServer>) -> Outcome<Vec<Side>> {
    let (primary, _) = testbed.primary()?;
    let at = SocketAddr::from(([127, 0, 0, 1], arguments.redis_port + primary.node.0));
    let pid = testbed.process(primary.node.0)?.map_or(0, |process| process.pid);
    let side = |name, address, pid| -> Outcome<Side> {
        let connection = Connection::open(address, PATIENCE).context(format_args!("cannot connect with {address}"))?;
        Ok(Side { name, address, pid, connection })
    };
    let ours = side("martlet, replicated three ways", at, pid)?;
    let theirs = server.map(|server| side("redis-server, unreplicated", server.address(), server.pid())).transpose()?;
    Ok([ours].into_iter().chain(theirs).collect())
}

fn over_redis(arguments: &Arguments, testbed: &mut Testbed, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    // Both on the same cores: the servers where nodes are bound to, the clients on the core that is left to them. Where nodes are not bound,
    // nobody is.
    let cores = two_cores().filter(|_| arguments.threads.config().pin == Pin::Auto);
    report.set("cores over TCP", cores.map_or("any".to_owned(), |(clients, servers)| format!("servers {servers}, clients {clients}")));
    let on = |core: Option<u16>| core.map(OnCore::enter).transpose();
    let server = {
        let _servers = on(cores.map(|(_, second)| second)).context("cannot bind redis-server")?;
        RedisServer::start(arguments.redis_port + 3)?
    };
    if server.is_none() {
        report.format().say("skipped: the comparison with redis-server, which is not installed (Debian's redis-server)");
    }
    let mut sides = sides(arguments, testbed, server.as_ref())?;
    let _clients = on(cores.map(|(first, _)| first)).context("cannot bind the clients")?;
    latency(arguments, &mut sides, report, interrupt)?;
    throughput(arguments, &sides, report, interrupt)
}

/// One client, one request at a time.
fn latency(arguments: &Arguments, sides: &mut [Side], report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let value = vec![b'v'; arguments.value_bytes as usize];
    for (verb, args) in [("SET", &[b"SET", b"key".as_slice(), &value][..]), ("GET", &[b"GET", b"key"])] {
        let figure =
            |side: &Side| Figure::new("kv", format!("{verb} over TCP, one client, {}", side.name), Unit::Microseconds).with("clients", 1);
        let mut figures: Vec<Figure> = sides.iter().map(figure).collect();
        let progress = report.progress(&format!("{verb} over TCP"), warm_turns(arguments.requests).count() as u64);
        for (counts, requests) in warm_turns(arguments.requests) {
            interrupt.check()?;
            progress.step();
            for (side, figure) in sides.iter_mut().zip(&mut figures) {
                for _ in 0..requests {
                    let start = clock::now();
                    match side.connection.command(args).context(side.name)? {
                        Value::Error(error) => return Err(Fail::failed(format_args!("{}: {error}", side.name))),
                        _ if counts => figure.record(clock::now().since(start)),
                        _ => {}
                    }
                }
            }
        }
        drop(progress);
        figures.into_iter().for_each(|figure| report.add(figure));
    }
    Ok(())
}

/// Fifty clients, by redis-benchmark.
fn throughput(arguments: &Arguments, sides: &[Side], report: &mut Report, interrupt: &Interrupt) -> Outcome {
    if arguments.repeats == 0 {
        return Ok(());
    }
    if !redis_server::has_benchmark() {
        report.format().say("skipped: throughput over TCP; redis-benchmark is not installed (Debian's redis-tools)");
        return Ok(());
    }
    for pipeline in [1, 16] {
        let load = Load { requests: arguments.requests * pipeline.min(4), clients: 50, pipeline, value_bytes: arguments.value_bytes };
        let figure = |verb, side: &Side| {
            let metric = format!("{verb} over TCP, 50 clients, pipeline {pipeline}, {}", side.name);
            Figure::new("kv", metric, Unit::PerSecond).with("clients", 50).with("pipeline", pipeline).with("requests", load.requests)
        };
        let mut sets: Vec<Figure> = sides.iter().map(|side| figure("SET", side)).collect();
        let mut gets: Vec<Figure> = sides.iter().map(|side| figure("GET", side)).collect();
        let progress = report.progress("runs of redis-benchmark", u64::from(arguments.repeats) * sides.len() as u64);
        for _ in 0..arguments.repeats {
            for (at, side) in sides.iter().enumerate() {
                interrupt.check()?;
                let rates = load.run(side.address)?;
                sets[at].record(rates.set as u64);
                gets[at].record(rates.get as u64);
                progress.step();
            }
        }
        drop(progress);
        sets.into_iter().chain(gets).for_each(|figure| report.add(figure));
    }
    Ok(())
}

/// How much resident memory a process gains a key, once it has a quarter of the keys. The first keys come to lie in memory that a process has anyway. A quarter,
/// because both servers double their tables: at both ends, a table is as full.
fn memory(arguments: &Arguments, sides: &mut [Side], report: &mut Report, interrupt: &Interrupt) -> Outcome {
    const BATCH: u32 = 100;
    let (first, all) = (arguments.memory_keys / 4, arguments.memory_keys);
    let value = vec![b'v'; arguments.value_bytes as usize];
    for side in sides {
        let progress = report.progress("keys", u64::from(all));
        let mut set = |keys: Range<u32>| {
            for from in keys.clone().step_by(BATCH as usize) {
                interrupt.check()?;
                let to = keys.end.min(from + BATCH);
                let keys: Vec<String> = (from..to).map(|key| format!("key:{key:012}")).collect();
                let mut words: Vec<&[u8]> = vec![b"MSET"];
                keys.iter().for_each(|key| words.extend([key.as_bytes(), &value]));
                if let Value::Error(error) = side.connection.command(&words).context(side.name)? {
                    return Err(Fail::failed(format_args!("{}: {error}", side.name)));
                }
                (from..to).for_each(|_| progress.step());
            }
            resident_bytes(side.pid)
        };
        let before = set(0..first)?;
        let gained = set(first..all)?.saturating_sub(before);
        drop(progress);
        let mut figure = Figure::new("kv", format!("memory of a key, {}", side.name), Unit::Bytes).with("keys", all);
        figure.record(gained / u64::from(all - first));
        report.add(figure);
    }
    Ok(())
}

/// The resident memory of a process, in bytes.
fn resident_bytes(pid: u32) -> Outcome<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context(format_args!("cannot look at process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Fail::failed(format_args!("process {pid} shows no resident memory")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_make_as_many_requests_as_were_asked_for() {
        for requests in [100, 499, 500, 501, 1_000, 12_345, 50_000] {
            let counted: Vec<u32> = warm_turns(requests).filter(|(counts, _)| *counts).map(|(_, requests)| requests).collect();
            assert_eq!(counted.iter().sum::<u32>(), requests);
            let (shortest, longest) = (counted.iter().min().expect("one"), counted.iter().max().expect("one"));
            assert!(*longest <= TURN && longest - shortest <= 1, "{requests}: {counted:?}");
            let warm = warm_turns(requests).count() - counted.len();
            assert_eq!(warm, counted.len().div_ceil(10), "{requests}");
        }
    }
}

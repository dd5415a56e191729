//! `martlet bench failover`: from SIGKILL of the primary to the next acknowledged write.

use std::time::Duration;

use clap::Args;
use martlet_node::clock;
use martlet_node::config::EngineKind;
use martlet_node::sched::OnCore;
use martlet_protocol::basics::Time;
use rustix::process::Signal;

use super::threads::Threads;
use crate::clients::{self, FabricClient, Waiting};
use crate::fabric::FabricFlags;
use crate::fail::{Context as _, Fail, Outcome};
use crate::interrupt::Interrupt;
use crate::observer;
use crate::redis::ClusterClient;
use crate::report::placement::two_cores;
use crate::report::reference::{self, Victim};
use crate::report::{Figure, Report, Unit};
use crate::testbed::{Shape, Testbed};
use crate::timeline::Timeline;

/// From SIGKILL of the primary to the next acknowledged write, and where each microsecond went.
///
/// A client writes, kills the primary and writes on; the clock stops at the first reply from another primary, told apart by its view (over
/// the Redis protocol: by who replied). That client is one of a Redis cluster: when its connection ends it tries the other nodes as CLUSTER
/// SLOTS has listed them, and follows redirections. Each failover is followed by one bare death probe, so that both see the same machine.
///
/// Example: martlet bench failover --failovers 200 --json
#[derive(Debug, Args)]
pub struct Arguments {
    /// How requests are replicated: primary-backup or mu.
    #[arg(long, default_value_t)]
    engine: EngineKind,
    /// How many failovers.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    failovers: u32,
    /// Write through the Redis protocol instead of the fabric.
    #[arg(long)]
    redis: bool,
    /// The first port of the Redis protocol.
    #[arg(long, value_name = "PORT", default_value_t = 28711, value_parser = clap::value_parser!(u16).range(1..=65000))]
    redis_port: u16,
    /// For how long the client spins for a reply before it leaves its core to others, in microseconds. On the fabric only.
    #[arg(long, value_name = "US", default_value_t = 1_000_000)]
    client_spin_us: u64,
    /// From one write to the next before the kill, in microseconds; 0: as fast as replies come. A client that leaves no pause keeps the backups
    /// so busy that on two cores the primary is often not running when it is killed, and a process that waits for its core dies late.
    #[arg(long, value_name = "US", default_value_t = 20)]
    pace_us: u64,
    /// Print the timeline of every failover.
    #[arg(long)]
    timelines: bool,
    #[command(flatten)]
    fabric: FabricFlags,
    #[command(flatten)]
    threads: Threads,
}

/// How long a write may take before something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// The moments whose time since the kill is reported, in the order in which they come.
const MOMENTS: [&str; 7] =
    ["death seen", "view proposed", "view decided", "view acknowledged", "view active", "took over", "first reply sent"];

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    report.set("threads", arguments.threads.describe());
    report.set("pace_us", arguments.pace_us);
    report.set("client", if arguments.redis { "redis".into() } else { format!("fabric, spins {} us", arguments.client_spin_us) });
    let fabric = arguments.fabric.plan(None)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    let redis_port = arguments.redis.then_some(arguments.redis_port);
    let shape =
        Shape { purpose: "bench-failover", nodes: 3, redis_port, engine: arguments.engine, threads: arguments.threads.config(), fabric };
    let mut testbed = Testbed::start(&shape, interrupt)?;
    report.set("client thread", clients::hurry()?);
    let mut writer = if arguments.redis {
        let client = ClusterClient::new(&testbed.addresses(), PATIENCE).map_err(Fail::failed)?;
        Writer::Redis(client)
    } else {
        let waiting = Waiting { spin: Duration::from_micros(arguments.client_spin_us) };
        Writer::Fabric(Box::new(FabricClient::open(testbed.cluster(), waiting, PATIENCE)?))
    };
    let mut figures: Vec<Figure> =
        MOMENTS.iter().map(|moment| Figure::new("failover", format!("kill to {moment}"), Unit::Microseconds)).collect();
    let mut returned = Figure::new("failover", "kill to return of the killing system call", Unit::Microseconds);
    let mut turned = Figure::new("failover", "kill to client turned to the next primary", Unit::Microseconds);
    let mut total = Figure::new("failover", "kill to next acknowledged write", Unit::Microseconds);
    let mut bare = Figure::new("failover", "bare death probe, in turn", Unit::Microseconds);
    let mut probe = reference::Probe::new()?;
    let mut rng = fastrand::Rng::new();
    for number in 1..=arguments.failovers {
        interrupt.check()?;
        let (primary, _) = testbed.primary()?;
        writer.await_nodes(testbed.numbers().len())?;
        let node = primary.node.0;
        // The core that is left to clients; nodes take the others.
        let on_core = two_cores().map(|(first, _)| OnCore::enter(first)).transpose().context("cannot bind the client")?;
        writer.learn_order()?;
        // At any moment of its work.
        let load = clock::now().after(rng.u64(2_000_000..6_000_000));
        while clock::now() < load {
            let next = clock::now().after(arguments.pace_us * 1_000);
            writer.write()?;
            while clock::now() < next {
                std::hint::spin_loop();
            }
        }
        let killed = testbed.signal(node, Signal::KILL)?;
        let free = clock::now();
        let answered = writer.write_elsewhere(node)?;
        drop(on_core);
        testbed.await_end(node)?;
        let sights = testbed.await_whole()?;
        let mut timeline = Timeline::new(primary, killed, &observer::events(&sights));
        timeline.add_reply(answered.since(killed));
        if arguments.timelines {
            report.format().print(&timeline, || timeline.json(number as usize));
        }
        for (figure, moment) in figures.iter_mut().zip(MOMENTS) {
            timeline.first(moment).into_iter().for_each(|ns| figure.record(ns));
        }
        returned.record(free.since(killed));
        writer.turned_at().into_iter().for_each(|at| turned.record(at.since(killed)));
        total.record(answered.since(killed));
        testbed.spawn(node)?;
        testbed.await_whole()?;
        bare.record(probe.kill_one(Victim::SPINNING)?);
    }
    let left = testbed.end()?;
    figures.into_iter().for_each(|figure| report.add(figure));
    report.add(returned);
    if turned.n() > 0 {
        report.add(turned);
    }
    report.add(total);
    report.add(bare);
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// A client that writes.
enum Writer {
    Fabric(Box<FabricClient>),
    Redis(ClusterClient),
}

impl Writer {
    /// One acknowledged write. Returns who acknowledged it.
    fn write(&mut self) -> Outcome<u16> {
        const ARGS: [&[u8]; 3] = [b"SET", b"failover", &[b'v'; 64]];
        match self {
            Writer::Fabric(client) => {
                let acknowledged = client.request(&ARGS, |answer| (answer.reply.starts_with(b"+"), answer.node.0))?;
                match acknowledged {
                    Some((true, node)) => Ok(node),
                    Some((false, node)) => Err(Fail::failed(format_args!("node {node} refused a write"))),
                    None => Err(Fail::failed(format_args!("no reply to a write within {} s", PATIENCE.as_secs()))),
                }
            }
            Writer::Redis(client) => client.acknowledged(&ARGS).map_err(Fail::failed),
        }
    }

    /// A client that has not met the next primary yet would measure how long it takes to meet. One of the Redis protocol meets nodes as it
    /// needs them.
    fn await_nodes(&mut self, count: usize) -> Outcome {
        match self {
            Writer::Fabric(client) => client.await_nodes(count),
            Writer::Redis(_) => Ok(()),
        }
    }

    /// When it turned to the primary that acknowledged its latest write, where it can tell.
    fn turned_at(&mut self) -> Option<Time> {
        match self {
            Writer::Fabric(client) => Some(client.turned_at()),
            Writer::Redis(_) => None,
        }
    }

    /// Learns whom to try next should the primary die, where clients of the kind do so.
    fn learn_order(&mut self) -> Outcome {
        match self {
            // The fabric tells it.
            Writer::Fabric(_) => Ok(()),
            Writer::Redis(client) => client.learn_order().context("cannot ask for the cluster's nodes"),
        }
    }

    /// Writes until one is acknowledged by another node than this one. Returns when that was.
    fn write_elsewhere(&mut self, dead: u16) -> Outcome<Time> {
        loop {
            let node = self.write()?;
            // A reply of the dead may still have been on its way. The survivors number their views upwards, and a dead node answers in
            // none of them.
            if node != dead {
                return Ok(clock::now());
            }
        }
    }
}

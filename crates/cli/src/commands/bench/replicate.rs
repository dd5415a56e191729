//! `martlet bench replicate`: what it costs to replicate a request, standing alone (Mu, Figures 3 and 7).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use martlet_fabric::shm::ShmFabric;
use martlet_fabric::verbs::VerbsFabric;
use martlet_fabric::{Incarnation, NodeId, PeerEvent, PeerId, Region, Remote, ring};
use martlet_node::config::FabricKind;
use martlet_node::{clock, sched};
use martlet_protocol::basics::layout;
use martlet_protocol::basics::{LogIndex, ProcessId};
use martlet_protocol::engine::Mu;
use martlet_protocol::engine::mu::{self, Execution, Group};
use martlet_protocol::replica::{Standing, StateMachine};

use super::endpoint::{self, Endpoint, Place};
use super::raise::Raise;
use crate::fabric::FabricFlags;
use crate::fail::{Context as _, Fail, Outcome};
use crate::interrupt::Interrupt;
use crate::report::placement::two_cores;
use crate::report::{Figure, Report, Unit};

/// What it costs to replicate a request three ways, standing alone.
///
/// A request is proposed when the one before is committed; the leader runs on one core, its two followers share the other. Beside each size
/// stands a raw write of the same bytes to the same followers, fenced and completed. Then batches: as many requests as one record carries.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The replication engine.
    #[arg(long, value_enum, default_value_t = Engine::Mu)]
    engine: Engine,
    /// How many samples of each figure.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    samples: u32,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// Engines that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// One write to a majority.
    Mu,
}

/// The payloads, as in Mu's Figure 3 and beyond.
const PAYLOADS: [usize; 6] = [16, 64, 256, 512, 1024, 4096];
/// Requests of 64 bytes in a record, as in Mu's Figure 7.
const BATCHES: [usize; 5] = [1, 8, 32, 64, 128];
const BATCHED_PAYLOAD: usize = 64;
const NODES: u16 = 3;
/// How long things may take that have no reason to take long.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let Engine::Mu = arguments.engine;
    let place = Place::new("bench-replicate", &arguments.fabric.plan(None)?, NODES)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    match arguments.fabric.kind() {
        FabricKind::Shm => run_on::<ShmFabric>(arguments, &place, report, interrupt),
        FabricKind::Verbs => run_on::<VerbsFabric>(arguments, &place, report, interrupt),
    }
}

fn run_on<F: Endpoint>(arguments: &Arguments, place: &Place, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    report.set("engine", "mu");
    report.set("replicas", NODES);
    let samples = u64::from(arguments.samples);
    let cores = two_cores();
    if let Some((here, _)) = cores {
        sched::pin_current_thread(here).context("cannot bind the measuring thread")?;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The followers end with us, however we end.
        let _stop = Raise(&stop);
        let mut followers = [Replica::<F>::start(place, 1)?, Replica::<F>::start(place, 2)?];
        let stopped = &stop;
        scope.spawn(move || {
            if let Some((_, there)) = cores {
                // Without it the figures are worse, and still true.
                let _ = sched::pin_current_thread(there);
            }
            while !stopped.load(Ordering::Relaxed) {
                followers.iter_mut().for_each(Replica::turn);
                if cores.is_none() {
                    std::thread::yield_now();
                }
            }
        });
        let mut leader = Replica::<F>::start(place, 0)?;
        leader.until("somebody leads", |leader| leader.engine.standing() == Standing::Primary)?;
        leader.until("all are connected", |leader| leader.peers.len() + 1 == usize::from(NODES))?;
        for payload in PAYLOADS {
            interrupt.check()?;
            let raw = leader.raw(payload, samples)?;
            let replicated = leader.replicate(payload, samples, interrupt)?;
            let ratio = replicated.percentile(50.0) / raw.percentile(50.0).max(1.0);
            report.set(&format!("ratio_p50_{payload}B"), format!("{ratio:.2}"));
            report.add(raw);
            report.add(replicated);
        }
        for batch in BATCHES {
            leader.replicate_batches(batch, samples / batch as u64 + 100, report, interrupt)?;
        }
        // Each by a follower that took the leader for dead, mostly since the kernel had taken its core away.
        report.set("leads_lost", leader.lost);
        Ok(())
    })
}

/// A machine that has nothing to do: only replication is measured.
#[derive(Debug, Default)]
struct Idle {
    commands: u64,
}

impl StateMachine for Idle {
    fn apply(&mut self, _: LogIndex, _: &[u8]) {
        self.commands += 1;
    }

    fn transfer(&self, _: u64, _: usize, out: &mut Vec<u8>) -> Option<u64> {
        out.extend_from_slice(&self.commands.to_le_bytes());
        None
    }

    fn install(&mut self, part: &[u8]) {
        self.commands = part.try_into().map_or(0, u64::from_le_bytes);
    }

    fn clear(&mut self) {
        self.commands = 0;
    }

    fn digest(&self) -> u64 {
        self.commands
    }
}

/// One replica, on an endpoint of its own.
struct Replica<F> {
    engine: Mu,
    fabric: F,
    machine: Idle,
    peers: Vec<PeerId>,
    config: mu::Config,
    /// How often the lead was lost in the middle of a sample.
    lost: u64,
}

impl<F: Endpoint> Replica<F> {
    fn start(place: &Place, node: u16) -> Outcome<Replica<F>> {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        // Nothing is executed, before or after.
        let config = mu::Config { execution: Execution::Speculative, ..mu::Config::default() };
        let mut regions = endpoint::regions();
        mu::layout::add_regions(&mut regions, &config);
        let fabric = F::start(place, node, regions)?;
        (0..NODES).filter(|other| *other != node).for_each(|other| fabric.connect(place, other));
        let engine = Mu::new(id(node), config, Some(Group::new((0..NODES).map(id).collect())));
        Ok(Replica { engine, fabric, machine: Idle::default(), peers: Vec::new(), config, lost: 0 })
    }

    fn turn(&mut self) {
        while let Some(event) = self.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
                    self.engine.handle_peer_up(peer, process, &mut self.fabric);
                    self.peers.push(peer);
                }
                PeerEvent::Gone { peer, certain } => self.engine.handle_peer_gone(peer, certain),
            }
        }
        let now = clock::now();
        self.engine.post(now, &mut self.fabric, &mut self.machine);
        self.conclude(now);
        while self.engine.poll_event().is_some() {}
    }

    fn conclude(&mut self, now: martlet_protocol::basics::Time) {
        while let Some(completion) = self.fabric.poll() {
            self.engine.handle_completion(completion);
        }
        self.engine.advance(now, &mut self.fabric, &mut self.machine);
    }

    fn until(&mut self, what: &str, done: impl Fn(&Replica<F>) -> bool) -> Outcome {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            self.turn();
            if Instant::now() > until {
                return Err(Fail::failed(format_args!("not within {} s: {what}", PATIENCE.as_secs())));
            }
        }
        Ok(())
    }

    /// Writes of `payload` bytes to both followers, into memory that their programs do not look at.
    fn raw(&mut self, payload: usize, samples: u64) -> Outcome<Figure> {
        let mut figure = Figure::new("replicate", format!("raw write of {payload} B to two followers"), Unit::Nanoseconds);
        let bytes = vec![7u8; payload];
        let room = (self.config.state_ring_bytes / payload) as u64;
        let token = layout::Component::Application.token(0);
        for sample in 0..samples + samples / 10 {
            // From place to place, as a log goes on.
            let offset = ring::HEADER_BYTES + (sample % room) as usize * payload;
            self.turn();
            let start = clock::now();
            for peer in &self.peers {
                self.fabric.write(Remote { peer: *peer, region: Region::Lane(mu::layout::STATE_LANE), offset }, &bytes, token);
            }
            let mut left = self.peers.len();
            while left > 0 {
                match self.fabric.poll() {
                    Some(completion) if completion.token == token => left -= 1,
                    // The engine's own, of the turn before.
                    Some(completion) => self.engine.handle_completion(completion),
                    None => {}
                }
            }
            let took = clock::now().since(start);
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                figure.record(took);
            }
        }
        Ok(figure)
    }

    /// Takes requests of `payload` bytes, `batch` at a time, until they are committed. Returns how long that took, in nanoseconds. Where the lead
    /// is lost on the way, it waits until it has it again, and begins anew.
    fn commit(&mut self, request: &[u8], batch: usize) -> Outcome<u64> {
        loop {
            // Between two requests, so that it is not in the way of one: beats, and whatever else is due.
            self.turn();
            self.until("it leads, and has room", |leader| leader.engine.has_room((request.len() + 4) * batch))?;
            let reign = self.engine.reign();
            let took = self.commit_in(reign, request, batch);
            if self.engine.reign() == reign {
                return Ok(took);
            }
            self.lost += 1;
        }
    }

    fn commit_in(&mut self, reign: u64, request: &[u8], batch: usize) -> u64 {
        let start = clock::now();
        let mut last = LogIndex(0);
        for _ in 0..batch {
            last = self.engine.propose(request).expect("it leads, and has room");
        }
        self.engine.post(start, &mut self.fabric, &mut self.machine);
        self.conclude(start);
        while self.engine.committed() < last && self.engine.reign() == reign {
            self.turn();
        }
        clock::now().since(start)
    }

    fn replicate(&mut self, payload: usize, samples: u64, interrupt: &Interrupt) -> Outcome<Figure> {
        let mut figure = Figure::new("replicate", format!("{payload} B proposed and committed"), Unit::Nanoseconds);
        let request = vec![9u8; payload];
        for sample in 0..samples + samples / 10 {
            if sample % 1024 == 0 {
                interrupt.check()?;
            }
            let took = self.commit(&request, 1)?;
            if sample >= samples / 10 {
                figure.record(took);
            }
        }
        Ok(figure)
    }

    fn replicate_batches(&mut self, batch: usize, samples: u64, report: &mut Report, interrupt: &Interrupt) -> Outcome {
        let name = |what: &str| format!("{batch} x {BATCHED_PAYLOAD} B in one record, {what}");
        let mut latency = Figure::new("replicate", name("committed"), Unit::Nanoseconds).with("batch", batch);
        let mut rate = Figure::new("replicate", name("requests"), Unit::PerSecond).with("batch", batch);
        let request = vec![9u8; BATCHED_PAYLOAD];
        for sample in 0..samples + samples / 10 {
            if sample % 1024 == 0 {
                interrupt.check()?;
            }
            let start = clock::now();
            let took = self.commit(&request, batch)?;
            let whole = clock::now().since(start);
            if sample >= samples / 10 {
                latency.record(took);
                rate.record(batch as u64 * 1_000_000_000 / whole.max(1));
            }
        }
        report.add(latency);
        report.add(rate);
        Ok(())
    }
}

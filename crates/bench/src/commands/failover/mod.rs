//! `martlet bench failover`: from SIGKILL or SIGSTOP of the primary to the next acknowledged write.

mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::directory::{FabricFlags, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::engine;
use martlet_cluster::number::number;
use martlet_cluster::scratch::Scratch;
use martlet_cluster::watch::observer;
use martlet_node::clock;
use martlet_node::config::{ElectionConfig, EngineKind, Priority};
use martlet_node::sched::OnCore;
use martlet_protocol::engine::Leadership;
use rustix::process::Signal;

use super::threads::Threads;
use crate::report::placement::two_cores;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::reference::{self, Victim};
use crate::report::{Figure, Report, Unit};
use crate::trial::clients::{self, Foremost};
use crate::trial::redis::ClusterClient;
use crate::trial::service;
use crate::trial::testbed::Testbed;
use crate::trial::timeline::Timeline;
use crate::trial::wardens::{Beat, Wardens};
use writer::{PATIENCE, ServiceWriter, Writer};

/// Measure failovers, from the end of the primary to the next acknowledged write.
///
/// The primary is ended by SIGKILL, SIGSTOP or a core dump, and the report shows where each microsecond went. A client writes, strikes the primary and writes
/// on. The clock stops at the first reply from another primary, told apart by its view, or over the Redis protocol by the node that replied. With --redis, the
/// client is one of a Redis Cluster: when its connection ends, it tries the other nodes in the order of CLUSTER SLOTS, and follows redirections. With
/// --service, it writes at the cluster's one address, and its connection stays.
///
/// Just before the signal, the benchmark looks whether the primary sleeps, since the kernel then has to wake it first to die. The two kinds are also reported
/// apart. Each failover is followed by a bare death probe, so that both see the same machine, and by a bare succession: a process dies, and a process that
/// sleeps on its core is woken by that and says so, with nothing to decide. With `mu`, detection and the switch of permission are shown apart, and drawn (Mu,
/// Figure 6).
///
/// Example: martlet bench failover --failovers 200 --json
#[derive(Debug, Args)]
pub struct Arguments {
    /// Replication engine.
    #[arg(long, default_value_t, value_parser = engine())]
    engine: EngineKind,
    /// What happens to the primary. A paused one is resumed once another has acknowledged a write.
    #[arg(long, value_enum, default_value_t = How::Killed)]
    how: How,
    /// With `mu`: how often followers read their leader's heartbeat, in microseconds. After five reads without a new heartbeat they replace the leader. By
    /// default they follow the detector, which takes 125 ms. The paper's is about 100. The time has to be longer than the host keeps nodes from running.
    #[arg(long, value_name = "US", value_parser = number::<u64>(10..=60_000_000))]
    election_us: Option<u64>,
    /// Number of failovers.
    #[arg(long, default_value_t = 200, value_parser = number::<u32>(1..))]
    failovers: u32,
    /// Write through the Redis protocol instead of the fabric.
    #[arg(long)]
    redis: bool,
    /// Write at the cluster's one address, on a connection that is opened once and outlives each primary. Only with --fabric shm.
    #[arg(long, conflicts_with = "redis")]
    service: bool,
    /// First port of the Redis protocol.
    #[arg(long, value_name = "PORT", default_value_t = 28711, value_parser = number::<u16>(1..=65000))]
    redis_port: u16,
    /// How long the client spins for a reply before it leaves its core to others, in microseconds. Only on the fabric. With 0 and `--priority fifo` it comes
    /// first after the kill, as the nodes do.
    #[arg(long, value_name = "US", default_value_t = 1_000_000, value_parser = number::<u64>(..))]
    client_spin_us: u64,
    /// Time from one write to the next before the kill, in microseconds; 0: as fast as replies come. A client that leaves no pause keeps the backups
    /// so busy that on two cores the primary is often not running when it is killed, and a process that waits for its core dies late.
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = number::<u64>(..))]
    pace_us: u64,
    /// Print the timeline of every failover.
    #[arg(long)]
    timelines: bool,
    /// Also draw how long failovers took into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Take each node to be on a host of its own, with a warden, and end the wardens for every other five failovers. On shm all nodes share one warden.
    #[arg(long)]
    wardens: bool,
    /// Run the wardens without marks.
    #[arg(long, requires = "wardens")]
    unmarked: bool,
    #[command(flatten)]
    fabric: FabricFlags,
    #[command(flatten)]
    threads: Threads,
}

impl Arguments {
    /// Whether the client is scheduled as the nodes are while it waits for the next primary. One that spins would keep all others off its core.
    fn client_comes_first(&self) -> bool {
        self.threads.config().priority == Priority::Fifo && self.client_spin_us == 0
    }
}

/// Nodes of the cluster.
const NODES: u16 = 3;
/// How many failovers in a row are made with wardens, or without.
const ROUND: u32 = 5;
/// How the wardens hear each other. Nodes learn nothing from heartbeats, and all hosts share the cores here: more of them would be in the way.
const BEAT: Beat = Beat { interval_us: 10_000, jitter_us: 50_000 };

/// What happens to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// SIGKILL.
    Killed,
    /// SIGSTOP, as Mu's authors delayed their leader.
    Paused,
    /// SIGABRT, with a core dump first, although nodes turn that off for themselves.
    Dumped,
}

impl How {
    fn signal(self) -> Signal {
        match self {
            How::Killed => Signal::KILL,
            How::Paused => Signal::STOP,
            How::Dumped => Signal::ABORT,
        }
    }

    /// The word for it in the figures' names.
    fn noun(self) -> &'static str {
        match self {
            How::Killed => "kill",
            How::Paused => "pause",
            How::Dumped => "core dump",
        }
    }
}

/// The moments whose time since the signal is reported, in the order in which they come.
fn moments(engine: EngineKind) -> &'static [&'static str] {
    match engine.traits().leadership {
        Leadership::Views => {
            &["death seen", "view proposed", "view decided", "view acknowledged", "view active", "took over", "first reply sent"]
        }
        Leadership::Election => &["death seen", "permission asked", "permission held", "took over", "first reply sent"],
    }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    report.set("engine", arguments.engine.name());
    report.set("threads", arguments.threads.describe());
    report.set("pace_us", arguments.pace_us);
    let client = match (arguments.redis, arguments.service) {
        (true, _) => "redis".into(),
        (_, true) => "one connection to the cluster's address".into(),
        _ => format!("fabric, spins {} us", arguments.client_spin_us),
    };
    report.set("client", client);
    let fabric = arguments.fabric.plan(None)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    let redis_port = arguments.redis.then_some(arguments.redis_port);
    let election = arguments.election_us.map(|heartbeat_us| ElectionConfig { heartbeat_us, ..ElectionConfig::QUICK });
    let scratch = Scratch::new("bench-wardens").context("cannot make a directory")?;
    // Where deaths are certain without wardens, all nodes are on one host.
    let prepare = || match arguments.fabric.kind().traits().certain_deaths {
        true => Wardens::prepare(scratch.path(), 1, BEAT)?.shared_by(NODES),
        false => Wardens::prepare(scratch.path(), NODES, BEAT),
    };
    let wardens = arguments.wardens.then(prepare).transpose()?.map(|wardens| wardens.with_marks(!arguments.unmarked));
    report.set("marks", arguments.wardens && !arguments.unmarked);
    let home = std::env::current_dir().context("cannot tell the directory")?;
    if arguments.how == How::Dumped {
        // Where nodes leave their cores, unless the system has a place of its own.
        std::env::set_current_dir(scratch.path()).context("cannot enter a directory")?;
    }
    let plan = Plan {
        redis_port,
        service_port: arguments.service.then_some(0),
        engine: arguments.engine,
        election,
        threads: arguments.threads.config(),
        fabric,
        wardens: arguments.wardens.then(|| scratch.path().to_owned()),
        ..Plan::new("bench-failover", NODES)
    };
    let testbed = Testbed::start(&plan, interrupt)?;
    report.set("client thread", clients::hurry()?);
    report.set("client asks to come first after the kill", arguments.client_comes_first());
    let writer = if arguments.redis {
        let client = ClusterClient::new(&clients::redis_addresses(testbed.cluster()), PATIENCE).map_err(Fail::failed)?;
        Writer::Redis(client)
    } else if arguments.service {
        Writer::Service(ServiceWriter::open(service::address(testbed.cluster())?)?)
    } else {
        let waiting = Waiting { spin: Duration::from_micros(arguments.client_spin_us) };
        Writer::Fabric(Box::new(FabricClient::open(testbed.cluster(), waiting, PATIENCE)?))
    };
    // Without wardens, and with them.
    let mut figures = [Figures::new(arguments, false), Figures::new(arguments, true)];
    let mut striker = Striker { arguments, testbed, writer, wardens, rng: fastrand::Rng::new() };
    let mut probe = reference::Probe::new()?;
    let (mut number, mut in_vain) = (0, 0u32);
    let progress = report.progress("failovers", u64::from(arguments.failovers));
    while number < arguments.failovers {
        interrupt.check()?;
        let is_watched = striker.wardens.is_some() && number / ROUND % 2 == 1;
        striker.suit_wardens(is_watched)?;
        let failover = striker.strike()?;
        if failover.timeline.first("took over").is_none() {
            // Another had taken the lead just before, or took it without need.
            in_vain += 1;
            continue;
        }
        number += 1;
        if arguments.how == How::Dumped {
            remove_cores(scratch.path())?;
        }
        if arguments.timelines {
            progress.above(|| report.format().print(&failover.timeline, || failover.timeline.json(number as usize)));
        }
        let figures = &mut figures[usize::from(is_watched)];
        figures.record(&failover);
        figures.bare.record(probe.kill_one(Victim::SPINNING)?);
        figures.succession.record(probe.succeed_one()?);
        progress.step();
    }
    drop(progress);
    report.set("struck_who_did_not_lead", in_vain);
    drop(striker.writer);
    let left = striker.testbed.end()?;
    let [without, with] = figures;
    std::env::set_current_dir(home).context("cannot go back to the directory")?;
    let plot = if arguments.wardens { &with } else { &without }.plot(arguments);
    for figures in [without, with] {
        figures.report(report);
    }
    report.draw_and_save(plot, arguments.plot.as_deref())?;
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// Each is as large as a node.
fn remove_cores(dir: &Path) -> Outcome {
    for entry in std::fs::read_dir(dir).context("cannot look for cores")?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("core") {
            std::fs::remove_file(entry.path()).context("cannot remove a core")?;
        }
    }
    Ok(())
}

/// One failover, in nanoseconds since the signal. If nobody took over after it, there was none.
struct Failover {
    timeline: Timeline,
    /// The primary slept just before.
    asleep: bool,
    /// The system call that sent the signal returned.
    returned: u64,
    /// The client turned to the next primary.
    turned: Option<u64>,
    /// It had its first reply from there.
    answered: u64,
}

/// Makes failovers, one after the other.
struct Striker<'a> {
    arguments: &'a Arguments,
    testbed: Testbed,
    writer: Writer,
    /// Of the nodes' hosts, where they are to have any.
    wardens: Option<Wardens>,
    rng: fastrand::Rng,
}

impl Striker<'_> {
    /// Has the hosts' wardens run or not, and waits until all nodes are registered there.
    fn suit_wardens(&mut self, is_watched: bool) -> Outcome {
        let Striker { testbed, wardens, .. } = self;
        let Some(wardens) = wardens else { return Ok(()) };
        match (wardens.run(), is_watched) {
            (false, true) => wardens.start()?,
            (true, false) => wardens.end()?,
            _ => {}
        }
        if is_watched {
            testbed.await_whole()?;
            wardens.await_nodes(&testbed.cluster().config().name, &testbed.running())?;
        }
        Ok(())
    }

    /// Writes, strikes the primary, writes on, and mends the cluster.
    fn strike(&mut self) -> Outcome<Failover> {
        let Striker { arguments, testbed, writer, rng, .. } = self;
        testbed.await_whole()?;
        let (primary, _) = testbed.primary()?;
        writer.await_nodes(testbed.numbers().len())?;
        let node = primary.node.0;
        let pulse = testbed.pulse(node)?;
        // The core that is left to clients; nodes take the others.
        let on_core = two_cores().map(|(first, _)| OnCore::enter(first)).transpose().context("cannot bind the client")?;
        writer.learn_order()?;
        // At any moment of its work, once it has settled in its role: a helper that nobody needs is let go 10 ms after.
        let load = clock::now().after(rng.u64(20_000_000..24_000_000));
        while clock::now() < load {
            let next = clock::now().after(arguments.pace_us * 1_000);
            writer.write()?;
            while clock::now() < next {
                std::hint::spin_loop();
            }
        }
        let asleep = pulse.is_asleep()?;
        if arguments.how == How::Dumped {
            testbed.let_dump(node)?;
        }
        let foremost = arguments.client_comes_first().then(Foremost::begin);
        let struck = testbed.signal(node, arguments.how.signal())?;
        let free = clock::now();
        let answered = writer.write_elsewhere(node)?;
        drop((foremost, on_core));
        let sights = match arguments.how {
            How::Killed | How::Dumped => {
                testbed.await_end(node)?;
                testbed.await_whole()?
            }
            // Before it goes on: what it then does is another story.
            How::Paused => testbed.look()?,
        };
        let mut timeline = Timeline::new(primary, struck, &observer::events(&sights));
        match arguments.how {
            How::Killed | How::Dumped => testbed.spawn(node)?,
            How::Paused => {
                timeline = timeline.of_a_pause();
                testbed.signal(node, Signal::CONT)?;
            }
        }
        testbed.await_whole()?;
        timeline.add_reply(answered.since(struck));
        let turned = writer.turned_at().map(|at| at.since(struck));
        Ok(Failover { timeline, asleep, returned: free.since(struck), turned, answered: answered.since(struck) })
    }
}

/// What has been measured.
struct Figures {
    moments: Vec<(&'static str, Figure)>,
    returned: Figure,
    turned: Figure,
    /// With an engine that elects: from the signal to the request for permission, and from there to a majority's permission.
    detection: Figure,
    switch: Figure,
    total: Figure,
    /// The same, by what the primary was doing: running, and sleeping.
    running: Figure,
    sleeping: Figure,
    bare: Figure,
    succession: Figure,
    /// `detection`, `switch` and `total` again, in microseconds, for the drawing.
    samples: [Vec<f64>; 3],
}

impl Figures {
    fn new(arguments: &Arguments, is_watched: bool) -> Figures {
        let noun = arguments.how.noun();
        let which = match (arguments.wardens, is_watched) {
            (false, _) => "",
            (true, false) => ", without wardens",
            (true, true) => ", with wardens",
        };
        let figure = |name: String| Figure::new("failover", name + which, Unit::Microseconds).with("how", noun);
        Figures {
            moments: moments(arguments.engine).iter().map(|moment| (*moment, figure(format!("{noun} to {moment}")))).collect(),
            returned: figure(format!("{noun} to return of the system call")),
            turned: figure(format!("{noun} to client turned to the next primary")),
            detection: figure("detection".into()),
            switch: figure("permission switch".into()),
            total: figure(format!("{noun} to next acknowledged write")),
            running: figure(format!("{noun} to next acknowledged write, of a running primary")),
            sleeping: figure(format!("{noun} to next acknowledged write, of a sleeping primary")),
            bare: figure("bare death probe, in turn".into()),
            succession: figure("bare succession, in turn".into()),
            samples: Default::default(),
        }
    }

    fn record(&mut self, failover: &Failover) {
        let timeline = &failover.timeline;
        for (moment, figure) in &mut self.moments {
            timeline.first(moment).into_iter().for_each(|ns| figure.record(ns));
        }
        self.returned.record(failover.returned);
        failover.turned.into_iter().for_each(|ns| self.turned.record(ns));
        self.total.record(failover.answered);
        let of_its_kind = if failover.asleep { &mut self.sleeping } else { &mut self.running };
        of_its_kind.record(failover.answered);
        let us = |ns: u64| ns as f64 / 1e3;
        if let (Some(asked), Some(held)) = (timeline.first("permission asked"), timeline.first("permission held")) {
            self.detection.record(asked);
            self.switch.record(held.saturating_sub(asked));
            self.samples[0].push(us(asked));
            self.samples[1].push(us(held.saturating_sub(asked)));
        }
        self.samples[2].push(us(failover.answered));
    }

    /// Figure 6: how long failovers took, and their parts where the engine has them.
    fn plot(&self, arguments: &Arguments) -> Plot {
        /// Bins between the fastest and the 99th percentile; what is slower is left out of the drawing, and said.
        const BINS: f64 = 60.0;
        let most = self.total.percentile(99.0);
        let bin = (most / BINS).max(1.0).ceil();
        let beyond = self.samples[2].iter().filter(|us| **us > most).count();
        let title = format!(
            "Fail-over time, {}, leader {} {} times; {beyond} beyond the drawing (Mu, Figure 6)",
            arguments.engine,
            match arguments.how {
                How::Killed => "killed",
                How::Paused => "paused",
                How::Dumped => "dumped",
            },
            arguments.failovers
        );
        let mut plot = Plot::new(title, Axis::linear("us"), Axis::linear(format!("failovers in each {bin} us")));
        for (name, samples) in ["detection", "permission switch", "to the next acknowledged write"].into_iter().zip(&self.samples) {
            let shown: Vec<f64> = samples.iter().copied().filter(|us| *us <= most).collect();
            if !shown.is_empty() {
                plot = plot.with(Series::histogram(name, &shown, bin));
            }
        }
        plot
    }

    fn report(self, report: &mut Report) {
        if self.total.n() == 0 {
            return;
        }
        self.moments.into_iter().map(|(_, figure)| figure).filter(|figure| figure.n() > 0).for_each(|figure| report.add(figure));
        report.add(self.returned);
        for figure in [self.turned, self.detection, self.switch] {
            if figure.n() > 0 {
                report.add(figure);
            }
        }
        report.add(self.total);
        [self.running, self.sleeping].into_iter().filter(|figure| figure.n() > 0).for_each(|figure| report.add(figure));
        report.add(self.bare);
        report.add(self.succession);
    }
}

//! `martlet bench pauses`: whether the leader ever stands still while its log is recycled, its state goes to a disk, a replica is added, or a follower is slow.

mod account;
mod app;
mod cluster;
mod machine;
pub mod node;
mod record;
mod reference;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_node::config::{Bytes, DurabilityKind, EngineKind};
use martlet_node::counters::Counter;
use martlet_node::{clock, sched};
use martlet_protocol::engine::Traits;
use rustix::process::Signal;

use self::account::Gap;
use self::cluster::{Cores, LEADER, NEWCOMER, Nodes};
use self::record::{Record, Span};
use super::raise::Raise;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};

/// Whether the leader ever stands still: while its log goes round, its state goes to a disk, a replica is added, or a follower is slow.
///
/// Three nodes, each a process, hold a state of the size given. The leader has a core of its own where there are two; everybody else has the
/// others. It proposes at a steady pace, and a proposal's time counts from the moment at which it was due. With --durability a snapshot of the whole state is
/// written to its disk first. After an undisturbed phase the commands are large, so that the log goes round many times; then a fourth replica is added, which is taught the whole state; then a follower is stopped
/// (SIGSTOP), and let go on, when it has to be taught anew. Each phase has the proposals' latency and the gaps between two turns of the leader's thread. Beside
/// that thread, and before it in rank, another one sleeps and looks at the clock: when it is late, or when the kernel says that the leader was ready
/// and not let run, the gap is the machine's, and is counted apart. All is drawn over time.
///
/// Example: martlet bench pauses --plot pauses.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// How requests are replicated: primary-backup, mu or dare.
    #[arg(long, default_value_t = EngineKind::first_with(Traits::commits_by_majority))]
    engine: EngineKind,
    /// What a proposal outlives: memory, async or sync; the last two with --engine mu. Logs and snapshots go below TMPDIR, four of each, and are removed.
    #[arg(long, default_value_t)]
    durability: DurabilityKind,
    /// How large the state is: bytes, or a text such as 256mb or 1gb. Each of the four replicas takes so much memory.
    #[arg(long, value_name = "BYTES", default_value = "1gb", value_parser = bytes)]
    state: u64,
    /// From one proposal to the next, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = number::<u64>(5..=100_000))]
    pace_us: u64,
    /// For how long each phase lasts that has no end of its own, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = number::<u64>(1..=60))]
    phase_s: u64,
    /// For how long the follower is stopped, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = number::<u64>(1..=60))]
    stopped_s: u64,
    /// Draw the latencies over time into this file too, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn bytes(text: &str) -> Result<u64, String> {
    let allowed = 1 << 16..=1u64 << 34;
    let parsed = Bytes::parse(text).map(|bytes| bytes.0);
    parsed.filter(|bytes| allowed.contains(bytes)).ok_or_else(|| "allowed are 64kb to 16gb, such as 256mb".into())
}

/// A proposal of the usual size, in bytes; and one that makes the log go round.
const SMALL: usize = 64;
const LARGE: usize = 1024;
/// What the leader must not pause for, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000;
/// Of what the drawing shows the worst, in nanoseconds.
const BUCKET_NS: u64 = 25_000_000;

/// A stretch of the run.
struct Phase {
    name: &'static str,
    from: u64,
    to: u64,
}

impl Phase {
    fn has(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    martlet_cluster::directory::check_durability(arguments.durability, arguments.engine)?;
    let allowed = sched::allowed_cores().context("cannot tell the cores")?;
    let cores = match allowed[..] {
        [] => Cores { leader: None, others: Vec::new() },
        [only] => Cores { leader: Some(only), others: vec![only] },
        [ref others @ .., leader] => Cores { leader: Some(leader), others: others.to_vec() },
    };
    report.set("engine", arguments.engine.name());
    report.set("durability", arguments.durability.name());
    report.set("state_bytes", arguments.state);
    report.set("pace_us", arguments.pace_us);
    report.set("leader_core", cores.leader);
    report.set("others_cores", cores.others.clone());
    let ours = cores.others.first().map(|core| sched::OnCore::enter(*core)).transpose().context("cannot bind this thread")?;
    let (stop, seen) = (AtomicBool::new(false), Mutex::new(None));
    let (phases, record, left) = std::thread::scope(|scope| {
        let nodes = Nodes::start(arguments.engine, arguments.durability, cores.clone(), arguments.state, interrupt)?;
        let _stop = Raise(&stop);
        scope.spawn(|| reference::watch(cores.leader, &stop, &seen));
        go_through(nodes, arguments, report, interrupt)
    })?;
    drop(ours);
    let seen = seen.into_inner().ok().flatten();
    let seen = seen.ok_or_else(|| Fail::failed("the reference thread has seen nothing"))?.context("cannot bind the reference thread")?;
    report.set("reference_thread", seen.placement.to_string());
    if record.overflowed {
        return Err(Fail::usage("the run is longer than what is kept of it: --pace-us has to be longer, or the phases shorter"));
    }
    let trace = Trace::new(record, &seen.late);
    trace.tell(&phases, report);
    let plot = trace.plot(&phases, arguments);
    if let Some(file) = &arguments.plot {
        plot.save(file)?;
    }
    report.draw(plot);
    if left.is_empty() { Ok(()) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

/// The phases, one after another.
fn go_through(
    mut nodes: Nodes,
    arguments: &Arguments,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome<(Vec<Phase>, Record, Vec<String>)> {
    let phase = Duration::from_secs(arguments.phase_s);
    let settle = Duration::from_secs(1);
    nodes.order(&format!("fill {}", arguments.state))?;
    let entries = nodes.counter(LEADER, Counter::CommittedIndex)? + arguments.state.div_ceil(app::GROWTH as u64);
    nodes.until("the state was not filled", |sights| {
        sights.iter().filter(|sight| sight.node < NEWCOMER).all(|sight| sight.counter(Counter::AppliedIndex) >= entries)
    })?;
    let load = |payload| format!("load {} {payload}", arguments.pace_us * 1_000);
    nodes.order(&load(SMALL))?;
    interrupt.sleep(settle)?;
    let reign = nodes.reign()?;
    let mut phases = Vec::new();
    let progress = report.progress("phases", 5 + u64::from(arguments.durability != DurabilityKind::Memory));
    let mut through = |name, nodes: &mut Nodes, act: &mut dyn FnMut(&mut Nodes) -> Outcome| -> Outcome {
        let from = clock::now().0;
        act(nodes)?;
        phases.push(Phase { name, from, to: clock::now().0 });
        progress.step();
        match nodes.reign()? {
            now if now == reign => Ok(()),
            _ => Err(Fail::failed(format_args!("node {LEADER} lost the lead in the phase \"{name}\""))),
        }
    };
    if arguments.durability != DurabilityKind::Memory {
        // Due when the log on disk is long enough: large commands get it there, and the next one is far away then.
        let written = nodes.counter(LEADER, Counter::DiskSnapshots)?;
        through("snapshot on disk", &mut nodes, &mut |nodes| {
            nodes.order(&load(LARGE))?;
            nodes.until("the leader's state was not on its disk", |sights| {
                cluster::counter_of(sights, LEADER, Counter::DiskSnapshots) > written
            })?;
            nodes.order(&load(SMALL))?;
            interrupt.sleep(settle)
        })?;
    }
    through("undisturbed", &mut nodes, &mut |_| interrupt.sleep(phase))?;
    let first = nodes.counter(LEADER, Counter::CommittedIndex)?;
    through("log going round", &mut nodes, &mut |nodes| {
        nodes.order(&load(LARGE))?;
        interrupt.sleep(phase)?;
        nodes.order(&load(SMALL))
    })?;
    let rounds = (nodes.counter(LEADER, Counter::CommittedIndex)? - first) * LARGE as u64 / nodes.log_bytes();
    report.set("rounds_of_the_log", rounds);
    through("replica added", &mut nodes, &mut |nodes| {
        nodes.spawn(NEWCOMER)?;
        nodes.await_whole("the new replica did not hold the state")?;
        interrupt.sleep(settle)
    })?;
    // It is told what is wanted when it is there.
    nodes.order(&load(SMALL))?;
    // Not the teacher that the newcomer has just had.
    let slow = 1;
    through("follower stopped", &mut nodes, &mut |nodes| {
        nodes.signal(slow, Signal::STOP)?;
        interrupt.sleep(Duration::from_secs(arguments.stopped_s))
    })?;
    through("follower back", &mut nodes, &mut |nodes| {
        nodes.signal(slow, Signal::CONT)?;
        nodes.await_level(slow)?;
        interrupt.sleep(settle)
    })?;
    let (record, left) = nodes.end()?;
    Ok((phases, record, left))
}

/// What was seen in the run.
struct Trace {
    proposals: Vec<Span>,
    /// How much of each proposal's time is not the machine's.
    own: Vec<u64>,
    gaps: Vec<Gap>,
    late: Vec<Span>,
}

impl Trace {
    fn new(record: Record, late: &[Span]) -> Trace {
        let gaps = account::attribute(&record.gaps, late);
        let own = account::own_times(&record.proposals, &gaps);
        Trace { proposals: record.proposals, own, gaps, late: late.to_vec() }
    }

    /// The figures of each phase, and how many pauses there were.
    fn tell(&self, phases: &[Phase], report: &mut Report) {
        for phase in phases {
            let mut figures = [
                "proposed and released",
                "the same without the machine's share",
                "gap of the leader's thread",
                "gap without the machine's share",
            ]
            .map(|what| Figure::new("pauses", format!("{}: {what}", phase.name), Unit::Microseconds));
            let mut pauses = [0u64; 2];
            for (proposal, own) in self.proposals.iter().zip(&self.own).filter(|(proposal, _)| phase.has(proposal.at)) {
                figures[0].record(proposal.ns);
                figures[1].record(*own);
            }
            for gap in self.gaps.iter().filter(|gap| phase.has(gap.span.at)) {
                figures[2].record(gap.span.ns);
                figures[3].record(gap.own_ns);
                for (count, ns) in pauses.iter_mut().zip([gap.span.ns, gap.own_ns]) {
                    *count += u64::from(ns > PAUSE_NS);
                }
            }
            let mut reference = Figure::new("pauses", format!("{}: reference thread late", phase.name), Unit::Microseconds);
            self.late.iter().filter(|late| phase.has(late.at)).for_each(|late| reference.record(late.ns));
            let key = phase.name.replace(' ', "_");
            report.set(
                &format!("gaps_over_1ms_{key}"),
                format!("{} of the leader, {} of them the machine's", pauses[0], pauses[0] - pauses[1]),
            );
            figures.into_iter().chain([reference]).filter(|figure| figure.n() > 0).for_each(|figure| report.add(figure));
        }
    }

    /// The worst of every moment, over time.
    fn plot(&self, phases: &[Phase], arguments: &Arguments) -> Plot {
        let (Some(first), Some(last)) = (phases.first(), phases.last()) else { return Plot::new("", Axis::linear(""), Axis::log("")) };
        let (from, to) = (first.from, last.to);
        let worst = |name: &str, samples: &mut dyn Iterator<Item = (u64, u64)>| {
            let mut buckets = vec![0u64; ((to - from) / BUCKET_NS) as usize + 1];
            for (at, ns) in samples.filter(|(at, _)| (from..to).contains(at)) {
                let bucket = &mut buckets[((at - from) / BUCKET_NS) as usize];
                *bucket = ns.max(*bucket);
            }
            let mut series = Series::trace(name);
            for (number, ns) in buckets.into_iter().enumerate().filter(|(_, ns)| *ns > 0) {
                series.push((number as u64 * BUCKET_NS) as f64 / 1e9, ns as f64 / 1e3);
            }
            series
        };
        let title = format!(
            "Leader's pauses, {}, durability {}, state of {} MiB: the worst of every {} ms",
            arguments.engine,
            arguments.durability,
            arguments.state >> 20,
            BUCKET_NS / 1_000_000
        );
        let proposed = worst("proposed and released", &mut self.proposals.iter().map(|p| (p.at, p.ns)));
        let own = worst("without the machine's share", &mut self.proposals.iter().zip(&self.own).map(|(p, own)| (p.at, *own)));
        let late = worst("reference thread late", &mut self.late.iter().map(|l| (l.at, l.ns)));
        let mut plot = Plot::new(title, Axis::linear("seconds"), Axis::log("us")).with(proposed).with(own).with(late);
        phases.iter().for_each(|phase| plot.mark((phase.from - from) as f64 / 1e9, phase.name));
        plot
    }
}

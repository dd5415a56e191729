//! Table 2: from the crash of an application to the upcall, and the silence of a whole host.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::scratch::Scratch;
use martlet_node::sched::OnCore;
use martlet_warden::board::{Evidence, State};
use martlet_warden::client::Warden;
use martlet_warden::wire::HostStatus;
use martlet_warden::{AppId, Resources, now_ns};
use rustix::process::Signal;

use super::{FAR, NEAR, Seen, apps_in_turn, failure, paper};
use crate::report::placement::two_cores;
use crate::report::reference::{Probe, Victim};
use crate::report::{Figure, Report, Unit};
use crate::trial::wardens::{Beat, Process, Wardens, until};

/// Table 2: time from a crash, or a host's silence, to the upcall.
///
/// Two wardens run as processes, and hear each other over two paths of the loopback device: both hosts share the cores here, and no wire lies between them.
/// Victims are killed by SIGKILL. The application that monitors them sleeps until it is told, or polls memory; the parts say when its own warden knew. A host
/// falls silent when its warden is stopped (SIGSTOP). Beside them stand the bare death probe of the same minutes, and what the paper measured on its own
/// hardware: a dedicated core in the kernel, XDP, 10 Gbit/s.
///
/// Example: martlet bench fide table2 --kills 1000 --json
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of kills of each kind.
    #[arg(long, default_value_t = 200, value_parser = number::<u32>(1..))]
    kills: u32,
    /// Number of times that a host falls silent.
    #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..))]
    silences: u32,
    /// Time between two heartbeats, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1_000, value_parser = number::<u64>(100..=1_000_000))]
    interval_us: u64,
    /// How late a heartbeat may be, in microseconds: delta. The timeout is the interval plus twice this.
    #[arg(long, value_name = "US", default_value_t = 5_000, value_parser = number::<u64>(0..=1_000_000))]
    jitter_us: u64,
}

/// How a failure is heard of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// On the victim's host, asleep.
    Asleep,
    /// On the victim's host, by polling memory.
    Polling,
    /// On the victim's host, of a program that knows of no wardens.
    Unchanged,
    /// On another host, asleep.
    Across,
}

impl Way {
    pub(super) const ALL: [Way; 4] = [Way::Asleep, Way::Polling, Way::Unchanged, Way::Across];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Asleep => "monitor asleep",
            Way::Polling => "monitor polls memory",
            Way::Unchanged => "monitor asleep, program watched unchanged",
            Way::Across => "monitor asleep on another host",
        }
    }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    report.set("kills", arguments.kills);
    let dir = Scratch::new("bench-fide").context("cannot make a directory")?;
    let beat = Beat { interval_us: arguments.interval_us, jitter_us: arguments.jitter_us };
    let mut wardens = Wardens::prepare(dir.path(), 2, beat)?;
    wardens.start()?;
    let (mut near, mut far) = (wardens.connect(NEAR)?, wardens.connect(FAR)?);
    let victims = [Victim::SPINNING, Victim::ASLEEP, Victim::WORKING, Victim::LARGE];
    let steps = victims.len() as u64 * (Way::ALL.len() as u64 + 1) * u64::from(arguments.kills) + u64::from(arguments.silences);
    let progress = report.progress("failures", steps);
    let mut apps = apps_in_turn();
    for plan in victims {
        let name = plan.name();
        let mut bare = Figure::new("fide", format!("bare probe, victim {name}"), Unit::Microseconds);
        let mut told: Vec<[Figure; 3]> = Way::ALL.iter().map(|way| figures(*way, name)).collect();
        let mut probe = Probe::new()?;
        for _ in 0..arguments.kills {
            interrupt.check()?;
            // In turn, so that the machine's mood is the same for all.
            bare.record(probe.kill_one(plan)?);
            progress.step();
            for (way, figures) in Way::ALL.into_iter().zip(&mut told) {
                let app = apps.next().expect("without end");
                let warden = if way == Way::Across { &mut near } else { &mut far };
                let [all, known, delivered] = kill_one(warden, &wardens.socket(FAR), app, plan, way, Blow::Kill)?;
                figures[0].record(all);
                figures[1].record(known);
                figures[2].record(delivered);
                progress.step();
            }
        }
        report.add(bare);
        told.into_iter().flatten().for_each(|figure| report.add(figure));
    }
    let timeout_us = arguments.interval_us + 2 * arguments.jitter_us;
    let mut silent = Figure::new("fide", "silence of a host until it is presumed dead", Unit::Microseconds)
        .with("planned_timeout_us", timeout_us)
        .with("interval_us", arguments.interval_us)
        .with("paper_timeout_us", paper::HOST_US);
    for _ in 0..arguments.silences {
        interrupt.check()?;
        silent.record(silence_one(&mut near, &mut far, &wardens, apps.next().expect("without end"))?);
        progress.step();
    }
    report.add(silent);
    Ok(())
}

/// The whole way, and its two parts.
fn figures(way: Way, victim: &str) -> [Figure; 3] {
    let figure = |part: &str| Figure::new("fide", format!("{part}, {}, victim {victim}", way.name()), Unit::Microseconds);
    let whole =
        figure("kill to upcall").with("paper_average_us", paper::APPLICATION_AVERAGE_US).with("paper_max_us", paper::APPLICATION_MOST_US);
    [whole, figure("  kill to the monitor's warden"), figure("  from there to the upcall")]
}

/// By what a victim dies.
#[derive(Clone, Copy)]
pub(super) enum Blow<'a> {
    /// SIGKILL.
    Kill,
    /// A signal by which it dumps core, into this directory unless the system has a place of its own.
    Dump(&'a Path),
}

/// Starts a victim.
fn start(socket: &Path, app: AppId, plan: Victim, joins: bool, blow: Blow<'_>) -> Outcome<Process> {
    let mut command = own_command()?;
    command.args(["victim", "--kind", if joins { "application" } else { "unregistered" }]);
    command.args(["--cluster", &socket.display().to_string(), "--incarnation", &app.to_string()]);
    plan.arguments(&mut command);
    if let Blow::Dump(dir) = blow {
        command.arg("--dumps").current_dir(dir);
    }
    Ok(Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a victim")?))
}

/// Waits until a victim that registers nowhere has its memory, and is about to do what it is for.
fn await_ready(victim: &mut Process) -> Outcome {
    let mut line = String::new();
    let says = victim.0.stdout.take().expect("piped");
    BufReader::new(says).read_line(&mut line).context("cannot hear the victim")?;
    if line.is_empty() { Err(Fail::failed("the victim ended before it was killed")) } else { Ok(()) }
}

/// Kills one victim on a host. Returns the nanoseconds until it was told, until the monitor's warden knew, and between these.
pub(super) fn kill_one(warden: &mut Warden, socket: &Path, app: AppId, plan: Victim, way: Way, blow: Blow<'_>) -> Outcome<[u64; 3]> {
    let mut victim = start(socket, app, plan, way != Way::Unchanged, blow)?;
    if way == Way::Unchanged {
        let pid = i32::try_from(victim.0.id()).map_err(Fail::failed)?;
        warden.monitor_process(pid).map_err(Fail::failed)?;
        await_ready(&mut victim)?;
    } else {
        warden.monitor(app, Resources::default()).map_err(Fail::failed)?;
        until("a victim joins", || {
            let (apps, _) = warden.status().ok()?;
            let alive = apps.iter().any(|one| one.app == app && one.state == State::Alive && (one.words == 1 || way == Way::Across));
            (alive || victim.0.try_wait().is_ok_and(|status| status.is_some())).then_some(())
        })?;
        // Now it has by what it sees the end itself, as one that has monitored for a while. Else it would ask its warden for that between the kill and the upcall.
        let mut seen = Seen::default();
        warden.poll(Some(Duration::ZERO), &mut seen).map_err(Fail::failed)?;
        if let Some((_, failure)) = seen.0 {
            return Err(Fail::wrong(format_args!("a victim that was not killed was reported by {}", failure.evidence)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(status) = victim.0.try_wait().context("cannot look at the victim")? {
        return Err(Fail::failed(format_args!("the victim ended before it was killed: {status}")));
    }
    // Apart from the victim, which is bound to the second core.
    let on_core = two_cores().map(|(first, _)| OnCore::enter(first)).transpose().context("cannot bind the monitor")?;
    let killed = now_ns();
    victim.signal(match blow {
        Blow::Kill => Signal::KILL,
        Blow::Dump(_) => Signal::ABORT,
    })?;
    let (told, failure) = failure(warden, way == Way::Polling)?;
    drop(on_core);
    let wrong = match way {
        Way::Across => failure.evidence != Evidence::Certificate,
        Way::Asleep | Way::Polling => !matches!(failure.evidence, Evidence::Words | Evidence::Marks | Evidence::Process),
        Way::Unchanged => !matches!(failure.evidence, Evidence::Marks | Evidence::Process),
    };
    if wrong {
        return Err(Fail::wrong(format_args!("a killed victim, {}, was reported by {}", way.name(), failure.evidence)));
    }
    Ok([told.saturating_sub(killed), failure.at_ns.saturating_sub(killed), told.saturating_sub(failure.at_ns)])
}

/// Stops the warden of a host, and lets it go on. Returns the nanoseconds until its application was presumed dead.
fn silence_one(near: &mut Warden, far: &mut Warden, wardens: &Wardens, app: AppId) -> Outcome<u64> {
    far.join(app).map_err(Fail::failed)?;
    near.monitor(app, Resources::default()).map_err(Fail::failed)?;
    let is_alive = |warden: &mut Warden| {
        let (apps, hosts) = warden.status().ok()?;
        let alive = apps.iter().any(|one| one.app == app && one.state == State::Alive) && hosts.iter().all(HostStatus::is_heard);
        alive.then_some(())
    };
    until("an application is heard of", || is_alive(near))?;
    let stopped = now_ns();
    wardens.signal(FAR, Signal::STOP)?;
    let outcome = failure(near, false);
    wardens.signal(FAR, Signal::CONT)?;
    let (told, failure) = outcome?;
    if failure.evidence != Evidence::Silence {
        return Err(Fail::wrong(format_args!("a host that was stopped was reported by {}", failure.evidence)));
    }
    until("the host is heard again", || is_alive(near))?;
    far.quit().map_err(Fail::failed)?;
    Ok(told.saturating_sub(stopped))
}

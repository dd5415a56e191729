//! What marks are worth: how soon a warden with them tells of a death, and one without.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::Args;
use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::scratch::Scratch;
use martlet_warden::board::Marking;
use martlet_warden::client::Warden;

use super::apps_in_turn;
use super::table2::{Blow, Way, kill_one};
use crate::report::reference::{Probe, Victim};
use crate::report::{Figure, Report, Unit};
use crate::trial::wardens::{Process, until};

/// Measure how soon a warden tells of a death with the kernel's marks, and without.
///
/// Two wardens run as processes on this host, one with marks and one without. Victims register with one and the other in turn, or are watched unchanged. They
/// are killed by SIGKILL, or by SIGABRT, so that they dump 64 MiB of core. Needs CAP_BPF and CAP_PERFMON.
///
/// Example: martlet bench fide marks --kills 100 --json
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of kills of each kind.
    #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..))]
    kills: u32,
}

/// A warden of this host alone.
pub(super) struct Lone {
    _process: Process,
    pub(super) socket: PathBuf,
    pub(super) warden: Warden,
}

impl Lone {
    pub(super) fn start(dir: &Path, marks: &str) -> Outcome<Lone> {
        let socket = dir.join(format!("{marks}.sock"));
        let mut command = own_command()?;
        command.args(["warden", "run", "--fifo", "--die-with-parent", "--marks", marks, "--socket"]).arg(&socket);
        let child = command.env("RUST_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let process = Process(child.context("cannot start a warden")?);
        let warden = until("a warden", || Warden::connect(&socket, "bench").ok())?;
        Ok(Lone { _process: process, socket, warden })
    }

    /// What it has marked, if anything.
    pub(super) fn marks(&self) -> Option<Marking> {
        self.warden.board().map(|board| board.marking()).filter(|marking| *marking != Marking::Nothing)
    }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    report.set("kills", arguments.kills);
    let dir = Scratch::new("bench-marks").context("cannot make a directory")?;
    let mut wardens = [("without marks", Lone::start(dir.path(), "off")?), ("with marks", Lone::start(dir.path(), "auto")?)];
    match wardens[1].1.marks() {
        Some(marking) => report.set("marks", format!("{marking:?}").to_lowercase()),
        None => return Err(Fail::failed("the kernel refuses marks; `martlet warden run` says why")),
    }
    let cores = dir.path().join("cores");
    let victims = [
        (Victim::SPINNING, Blow::Kill),
        (Victim::ASLEEP, Blow::Kill),
        (Victim::WORKING, Blow::Kill),
        (Victim::LARGE, Blow::Kill),
        (Victim::DUMPING, Blow::Dump(&cores)),
    ];
    let ways = [Way::Asleep, Way::Unchanged];
    let progress = report.progress("failures", victims.len() as u64 * 5 * u64::from(arguments.kills));
    let mut apps = apps_in_turn();
    for (plan, blow) in victims {
        let (name, verb) = (plan.name(), if let Blow::Kill = blow { "kill" } else { "core dump" });
        let mut bare = Figure::new("fide", format!("bare probe, victim {name}"), Unit::Microseconds);
        let figure = |way: Way, with: &str| {
            Figure::new("fide", format!("{verb} to upcall, {}, victim {name}, {with}", way.name()), Unit::Microseconds)
        };
        let mut told: Vec<_> = ways.iter().flat_map(|way| wardens.iter().map(|(with, _)| figure(*way, with))).collect();
        let mut probe = Probe::new()?;
        for _ in 0..arguments.kills {
            interrupt.check()?;
            // In turn, so that the machine's mood is the same for all.
            bare.record(probe.kill_one(plan)?);
            progress.step();
            let mut figures = told.iter_mut();
            for way in ways {
                for (_, lone) in &mut wardens {
                    let app = apps.next().expect("without end");
                    std::fs::create_dir_all(&cores).context("cannot make a directory")?;
                    let [all, ..] = kill_one(&mut lone.warden, &lone.socket, app, plan, way, blow)?;
                    std::fs::remove_dir_all(&cores).context("cannot remove cores")?;
                    figures.next().expect("one for each").record(all);
                    progress.step();
                }
            }
        }
        report.add(bare);
        told.into_iter().for_each(|figure| report.add(figure));
    }
    Ok(())
}

//! Ends that are no deaths: whether a warden tells of one as a failure.

pub mod program;

use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{GOOD, styled};
use martlet_cluster::scratch::Scratch;
use martlet_fabric::host::tracer::Tracer;
use martlet_warden::client::Warden;
use martlet_warden::{AppId, Resources, now_ns};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::marks::Lone;
use super::{Seen, apps_in_turn, failure};
use crate::report::{Figure, Report, Unit};
use crate::trial::wardens::Process;

/// Check that a warden never takes a living program for dead.
///
/// Programs go through what may look like a death: a signal that they handle, the end of one of their threads, a stop and a resume, a signal that a tracer
/// takes away, and exec. They are registered with acting threads or without, or are watched unchanged. After at most 50 of these each program is killed. If a
/// failure is reported before, or a kill is not reported, the command ends with exit code 4. Wardens with marks and without take turns, each for the whole
/// number. Marks need CAP_BPF and CAP_PERFMON.
///
/// Example: martlet bench fide ends --count 100000
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of ends that are no deaths, over all kinds, for each of the two wardens.
    #[arg(long, default_value_t = 10_000, value_parser = number::<u64>(1..))]
    count: u64,
    /// Go through an end that is a death instead, which has to be found.
    #[arg(long, hide = true)]
    canary: bool,
}

/// What a program lives on through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGTERM, with a handler.
    Handled,
    /// Of one thread; other threads go on.
    Thread,
    /// SIGSTOP, and SIGCONT.
    Stop,
    /// SIGTERM, which a tracer takes away.
    TakenAway,
    /// Of the program, which another one follows in the same process.
    Exec,
    /// The same by another thread than the first, whose number it gets.
    ExecByAnother,
}

/// How a program is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// It has joined, and its first thread acts.
    Acting,
    /// It has joined.
    Joined,
    /// It knows of no wardens.
    Unchanged,
}

/// A program that acts has failed when it calls exec, so that is no such end of it.
const KINDS: [(End, Watched); 14] = [
    (End::Handled, Watched::Acting),
    (End::Handled, Watched::Joined),
    (End::Handled, Watched::Unchanged),
    (End::Thread, Watched::Acting),
    (End::Thread, Watched::Joined),
    (End::Thread, Watched::Unchanged),
    (End::Stop, Watched::Acting),
    (End::Stop, Watched::Joined),
    (End::Stop, Watched::Unchanged),
    (End::TakenAway, Watched::Acting),
    (End::TakenAway, Watched::Joined),
    (End::TakenAway, Watched::Unchanged),
    (End::Exec, Watched::Unchanged),
    (End::ExecByAnother, Watched::Unchanged),
];
/// It is told of as a failure, and rightly so.
const CANARY: [(End, Watched); 1] = [(End::Exec, Watched::Acting)];
/// How many ends a program lives through before it is killed. Of a thread that acts and dies the word is not used again, and a program has 64.
const ENDS_EACH: u64 = 50;

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Handled => "a signal that is handled",
            End::Thread => "the end of one thread",
            End::Stop => "stopped and continued",
            End::TakenAway => "a signal that a tracer takes away",
            End::Exec => "exec",
            End::ExecByAnother => "exec by a later thread",
        })
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Watched::Acting => "registered, threads act",
            Watched::Joined => "registered, no threads act",
            Watched::Unchanged => "watched unchanged",
        })
    }
}

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    report.set("ends", arguments.count);
    let dir = Scratch::new("bench-ends").context("cannot make a directory")?;
    let mut wardens = vec![("without marks", Lone::start(dir.path(), "off")?)];
    let marked = Lone::start(dir.path(), "auto")?;
    match marked.marks() {
        Some(_) => wardens.push(("with marks", marked)),
        None => report.format().say("the kernel refuses marks (`martlet warden run` says why): only a warden without marks is checked"),
    }
    let all: &[(End, Watched)] = if arguments.canary { &CANARY } else { &KINDS };
    let shares = all.len() as u64;
    let mut kinds: Vec<(End, Watched, u64, Vec<Figure>)> = Vec::new();
    for (at, (end, watched)) in (0..).zip(all.iter().copied()) {
        let count = arguments.count / shares + u64::from(at < arguments.count % shares);
        let figure = |(with, _): &(&str, Lone)| {
            Figure::new("fide", format!("kill to upcall after {end}, {watched}, {with}"), Unit::Microseconds).with("ends_before", count)
        };
        kinds.push((end, watched, count, wardens.iter().map(figure).collect()));
    }
    let progress = report.progress("programs killed", kinds.iter().map(|(.., count, _)| count.div_ceil(ENDS_EACH)).sum());
    let mut apps = apps_in_turn().filter(|app| *app != bystander());
    let lives = kinds.iter().map(|(.., count, _)| count.div_ceil(ENDS_EACH)).max().unwrap_or(0);
    for life in 0..lives {
        for (end, watched, count, figures) in &mut kinds {
            // In turn, so that all kinds meet what the machine goes through.
            let ends = count.saturating_sub(life * ENDS_EACH).min(ENDS_EACH);
            if ends == 0 {
                continue;
            }
            for ((with, lone), figure) in wardens.iter_mut().zip(figures) {
                interrupt.check()?;
                let app = apps.next().expect("without end");
                let mut program = Program::start(&lone.socket, app, *end, *watched)?;
                figure.record(live_through(&mut lone.warden, &mut program, app, ends, with)?);
            }
            progress.step();
        }
    }
    drop(progress);
    let kills: u64 = kinds.iter().flat_map(|(.., figures)| figures).map(Figure::n).sum();
    for figure in kinds.into_iter().flat_map(|(.., figures)| figures) {
        report.add(figure);
    }
    let with: Vec<&str> = wardens.iter().map(|(with, _)| *with).collect();
    report.format().print(
        format_args!(
            "{} {} ends that are no deaths, {}: none was reported as a failure; {kills} kills, each was reported\n",
            styled(GOOD, "passed:"),
            arguments.count,
            with.join(" and as many "),
        ),
        || serde_json::json!({"event": "passed", "ends": arguments.count, "wardens": with, "kills": kills}),
    );
    Ok(())
}

/// An application that is never there.
fn bystander() -> AppId {
    AppId::new(i64::from(AppId::LAST_CHOSEN)).expect("in range")
}

/// Has a program live through so many ends, and kills it. Returns the nanoseconds from there to the upcall.
fn live_through(warden: &mut Warden, program: &mut Program, app: AppId, ends: u64, with: &str) -> Outcome<u64> {
    let (end, watched) = (program.end, program.watched);
    let app = match program.watched {
        Watched::Unchanged => warden.monitor_process(program.pid().as_raw_nonzero().get()).map_err(Fail::failed)?,
        Watched::Acting | Watched::Joined => {
            warden.monitor(app, Resources::default()).map_err(Fail::failed)?;
            app
        }
    };
    let tracer = (program.end == End::TakenAway).then(|| Tracer::seize(program.pid())).transpose().context("cannot trace a program")?;
    let told_falsely = |done: u64, failure: &martlet_warden::client::Failure| {
        let by = failure.evidence;
        Fail::wrong(format_args!(
            "a program that lived was reported as failed, by {by}, after {done} of {ends} times {end}; {watched}, {with}"
        ))
    };
    for done in 1..=ends {
        program.live_through_one(tracer.as_ref())?;
        let mut seen = Seen::default();
        warden.poll(Some(Duration::ZERO), &mut seen).map_err(Fail::failed)?;
        if let Some((_, failure)) = seen.0 {
            return Err(told_falsely(done, &failure));
        }
    }
    // The warden looks at all that it watches, whether or not something has woken it before.
    warden.monitor(bystander(), Resources::default()).map_err(Fail::failed)?;
    warden.unmonitor(bystander());
    warden.status().map_err(Fail::failed)?;
    let killed = now_ns();
    program.process.signal(Signal::KILL)?;
    let (told, failure) = failure(warden, false)?;
    if failure.at_ns < killed {
        return Err(told_falsely(ends, &failure));
    }
    if !failure.evidence.is_certain() {
        let by = failure.evidence;
        return Err(Fail::wrong(format_args!("a program of this host was killed and is reported by {by}; {end}, {watched}, {with}")));
    }
    warden.unmonitor(app);
    Ok(told.saturating_sub(killed))
}

/// A program that obeys.
struct Program {
    process: Process,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
    end: End,
    watched: Watched,
}

impl Program {
    fn start(socket: &Path, app: AppId, end: End, watched: Watched) -> Outcome<Program> {
        let mut command = own_command()?;
        command.arg("lives-on");
        if watched != Watched::Unchanged {
            command.arg("--socket").arg(socket).args(["--app", &app.to_string()]);
        }
        if watched == Watched::Acting {
            command.arg("--acts");
        }
        if end == End::Handled {
            command.arg("--handles");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a program")?;
        let mut process = Process(child);
        let (orders, says) = (process.0.stdin.take().expect("piped"), process.0.stdout.take().expect("piped"));
        let mut program = Program { process, orders, says: BufReader::new(says), end, watched };
        program.hear(program::READY)?;
        Ok(program)
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.process.0.id()).ok().and_then(Pid::from_raw).expect("a process has a number")
    }

    fn hear(&mut self, wanted: &str) -> Outcome {
        let mut line = String::new();
        self.says.read_line(&mut line).context("cannot hear a program")?;
        match line.trim_end() {
            said if said == wanted => Ok(()),
            "" => Err(Fail::failed("a program that was to live on has ended")),
            said => Err(Fail::failed(format_args!("a program says `{said}` in place of `{wanted}`"))),
        }
    }

    /// Has the program do something, and waits until it is done.
    fn order(&mut self, what: &str, then: &str) -> Outcome {
        self.orders.write_all(format!("{what}\n").as_bytes()).context("a program does not listen")?;
        self.hear(then)
    }

    /// Has it live through one end.
    fn live_through_one(&mut self, tracer: Option<&Tracer>) -> Outcome {
        match self.end {
            End::Handled => {
                self.process.signal(Signal::TERM)?;
                self.order(program::HANDLE, program::DONE)
            }
            End::Thread => self.order(program::END_THREAD, program::DONE),
            End::Stop => {
                self.process.signal(Signal::STOP)?;
                let (_, status) =
                    waitpid(Some(self.pid()), WaitOptions::UNTRACED).context("cannot wait for a program")?.expect("it blocks");
                if !status.stopped() {
                    return Err(Fail::failed(format_args!("a program that was to stop has ended: {status:?}")));
                }
                self.process.signal(Signal::CONT)?;
                self.order(program::ANSWER, program::DONE)
            }
            End::TakenAway => {
                tracer.expect("begun for this end").take_away(Signal::TERM).context("cannot take a signal away from a program")?;
                self.order(program::ANSWER, program::DONE)
            }
            End::Exec => self.order(program::EXEC, program::READY),
            End::ExecByAnother => self.order(program::EXEC_BY_ANOTHER, program::READY),
        }
    }
}

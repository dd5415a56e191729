//! `martlet bench turns`: what it costs a request that its server's core belongs to others too.

use std::hint::spin_loop;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_node::{clock, sched};
use rustix::process::Signal;

use super::raise::Raise;
use crate::report::placement::two_cores;
use crate::report::{Figure, Report, Unit};
use crate::trial::clients;

/// Measure what it costs a request that its server shares a core with others.
///
/// This is the machine's own tail latency, with which that of a replicated PUT is to be compared. A thread on one core asks, over one cache line, a thread on
/// the other, which works for a moment and answers. Then the same is measured while the answering thread now and then wakes two processes that sleep on its
/// core, work for a while and sleep again, as backups do on a host with fewer cores than nodes. Nothing of Martlet takes part but its way of scheduling
/// threads.
///
/// Example: martlet bench turns --every-us 100,500 --work-us 0,25
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of requests of each kind.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = number::<u32>(100..))]
    requests: u32,
    /// How long the server works on a request, in nanoseconds. With the way there and back, the default takes about as long as a PUT.
    #[arg(long, value_name = "NS", default_value_t = 600, value_parser = number::<u64>(..=1_000_000))]
    request_ns: u64,
    /// Time between two wakes of the two processes, in microseconds; may be several, separated by commas.
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "100,500", value_parser = number::<u64>(1..=1_000_000))]
    every_us: Vec<u64>,
    /// How long each of them then works, in microseconds; may be several, separated by commas.
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "0,25", value_parser = number::<u64>(..=1_000_000))]
    work_us: Vec<u64>,
}

/// Sleep on the server's core, and work when told to.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Sleeper {
    /// The core.
    #[arg(long, value_parser = number::<u16>(..))]
    core: u16,
    /// For how long it works when a byte comes, in microseconds.
    #[arg(long, value_parser = number::<u64>(..))]
    work_us: u64,
}

/// Processes that take turns with the server.
const SLEEPERS: usize = 2;
/// How long a request may take before something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let Some((here, there)) = two_cores() else {
        return Err(Fail::failed("this process may use one core only; requests go from one core to another"));
    };
    report.set("request_ns", arguments.request_ns);
    report.set("client core", here);
    report.set("server core", there);
    let _here = sched::OnCore::enter(here).context("cannot bind the asking thread")?;
    report.set("client thread", clients::hurry()?);
    let progress = report.progress("kinds of requests", 1 + (arguments.every_us.len() * arguments.work_us.len()) as u64);
    report.add(measure(arguments, there, None, interrupt)?);
    progress.step();
    for every_us in &arguments.every_us {
        for work_us in &arguments.work_us {
            report.add(measure(arguments, there, Some((*every_us, *work_us)), interrupt)?);
            progress.step();
        }
    }
    Ok(())
}

/// A cache line.
#[repr(align(64))]
struct Line(AtomicU64);

/// Requests, one at a time. `turns`: how often the server wakes the others, and how long those work then, in microseconds.
fn measure(arguments: &Arguments, there: u16, turns: Option<(u64, u64)>, interrupt: &Interrupt) -> Outcome<Figure> {
    let mut figure = match turns {
        None => Figure::new("turns", "request to a server that has its core alone", Unit::Microseconds),
        Some((every_us, work_us)) => {
            let what = format!(
                "request to a server that wakes {SLEEPERS} processes on its core every {every_us} us, for {work_us} us of work each"
            );
            Figure::new("turns", what, Unit::Microseconds).with("every_us", every_us).with("work_us", work_us)
        }
    };
    let mut sleepers = Vec::new();
    if let Some((_, work_us)) = turns {
        for _ in 0..SLEEPERS {
            sleepers.push(Slept::start(there, work_us)?);
        }
    }
    let bells = sleepers.iter_mut().map(Slept::bell).collect::<Outcome<Vec<_>>>()?;
    let (line, stop, placed) = (Line(AtomicU64::new(0)), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Raise(&stop);
        let serving = scope.spawn(|| {
            sched::pin_current_thread(there).context("cannot bind the answering thread")?;
            clients::hurry()?;
            placed.store(true, Ordering::Release);
            serve(arguments.request_ns, turns.map(|(every_us, _)| every_us * 1_000), bells, &line, &stop)
        });
        while !placed.load(Ordering::Acquire) && !serving.is_finished() {
            std::thread::yield_now();
        }
        // Odd numbers are questions, even ones answers.
        let mut number = 0;
        let requests = u64::from(arguments.requests);
        'asking: for sample in 0..requests + requests / 10 {
            if sample % 1024 == 0 {
                interrupt.check()?;
            }
            let start = clock::now();
            line.0.store(number + 1, Ordering::Release);
            number += 2;
            let mut turns = 0u32;
            while line.0.load(Ordering::Acquire) != number {
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(1 << 20) {
                    if serving.is_finished() {
                        // It says why.
                        break 'asking;
                    }
                    if clock::now().since(start) > PATIENCE.as_nanos() as u64 {
                        return Err(Fail::failed(format_args!("no answer within {} s", PATIENCE.as_secs())));
                    }
                }
                spin_loop();
            }
            // The first tenth warms up.
            if sample >= requests / 10 {
                figure.record(clock::now().since(start));
            }
        }
        stop.store(true, Ordering::Relaxed);
        serving.join().map_err(|_| Fail::failed("the answering thread panicked"))?
    })?;
    sleepers.into_iter().try_for_each(Slept::end)?;
    Ok(figure)
}

/// Answers, and rings now and then, behind an answer.
fn serve(request_ns: u64, every_ns: Option<u64>, mut bells: Vec<ChildStdin>, line: &Line, stop: &AtomicBool) -> Outcome {
    let mut rung = clock::now();
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        if line.0.load(Ordering::Acquire) != answered + 1 {
            spin_loop();
            continue;
        }
        let now = clock::now();
        while clock::now().since(now) < request_ns {
            spin_loop();
        }
        answered += 2;
        line.0.store(answered, Ordering::Release);
        if every_ns.is_some_and(|every_ns| now.since(rung) >= every_ns) {
            rung = now;
            bells.iter_mut().try_for_each(|bell| bell.write_all(b".")).context("cannot wake a process")?;
        }
    }
    Ok(())
}

/// A process that sleeps until it is rung for.
struct Slept(Child);

impl Slept {
    fn start(core: u16, work_us: u64) -> Outcome<Slept> {
        let mut command = own_command()?;
        command.args(["sleeper", "--core", &core.to_string(), "--work-us", &work_us.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a process that sleeps")?;
        let mut sleeper = Slept(child);
        let mut ready = [0];
        let out = sleeper.0.stdout.as_mut().ok_or_else(|| Fail::failed("a process that sleeps says nothing"))?;
        out.read_exact(&mut ready).context("a process that sleeps did not get ready")?;
        Ok(sleeper)
    }

    fn bell(&mut self) -> Outcome<ChildStdin> {
        self.0.stdin.take().ok_or_else(|| Fail::failed("a process that sleeps cannot be woken"))
    }

    /// Its bell is gone, so it ends.
    fn end(mut self) -> Outcome {
        let status = self.0.wait().context("cannot wait for a process that sleeps")?;
        if status.success() { Ok(()) } else { Err(Fail::failed(format_args!("a process that sleeps ended with {status}"))) }
    }
}

impl Drop for Slept {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Is such a process, until nobody can ring any more.
pub fn sleep(arguments: &Sleeper) -> Outcome {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie this process to its parent")?;
    sched::pin_current_thread(arguments.core).context("cannot bind this process")?;
    clients::hurry()?;
    let (mut bell, mut out) = (std::io::stdin().lock(), std::io::stdout());
    out.write_all(b".").and_then(|()| out.flush()).context("cannot say that it is ready")?;
    let mut byte = [0];
    while bell.read_exact(&mut byte).is_ok() {
        let start = clock::now();
        while clock::now().since(start) < arguments.work_us * 1_000 {
            spin_loop();
        }
    }
    Ok(())
}

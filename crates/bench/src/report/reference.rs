//! Reference figures: what the machine itself takes, measured in the run that they are quoted in, since machines differ and drift.
//!
//! Where one operation is shorter than a reading of the clock, a sample is the mean of a batch, and the figure says so.

use std::hint::{black_box, spin_loop};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_fabric::host::probe::{self, DeathProbe, Pastime};
use martlet_node::config::{Idle, Priority};
use martlet_node::{clock, sched};

use super::placement::two_cores;
use super::{Figure, Unit};

/// Operations in a batch.
const BATCH: u64 = 32;
/// Samples of each figure.
const SAMPLES: u64 = 20_000;
/// Bytes in the rings that the raw write goes through: more than the nearest caches hold, as in a log.
const RING_WORDS: usize = (1 << 20) / 8;

/// Measures all of them but the death probe.
pub fn measure() -> Outcome<Vec<Figure>> {
    let cores = two_cores();
    let mut figures = vec![clock_read(), raw_cas(), raw_write(cores.map(|(_, other)| other))?];
    if let Some((here, there)) = cores {
        figures.push(round_trip(here, there)?);
    }
    Ok(figures)
}

fn batched(metric: &str, mut operation: impl FnMut(u64)) -> Figure {
    let mut figure = Figure::new("reference", metric, Unit::Nanoseconds).with("batch", BATCH);
    let mut number = 0;
    for sample in 0..SAMPLES + SAMPLES / 10 {
        let start = clock::now();
        for _ in 0..BATCH {
            operation(number);
            number += 1;
        }
        let took = clock::now().since(start);
        // The first tenth warms the caches.
        if sample >= SAMPLES / 10 {
            figure.record(took / BATCH);
        }
    }
    figure
}

/// One reading of the clock that the nodes use.
fn clock_read() -> Figure {
    batched("clock read", |_| {
        black_box(clock::now());
    })
}

/// 64 bytes stored into the lanes of two followers that another core reads, and one full fence: what replicating a small request three ways
/// costs at least.
fn raw_write(reader: Option<u16>) -> Outcome<Figure> {
    let lanes: [Vec<AtomicU64>; 2] = std::array::from_fn(|_| (0..RING_WORDS).map(|_| AtomicU64::new(0)).collect());
    let done = AtomicBool::new(false);
    let (figure, read) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            reader.map_or(Ok(()), sched::pin_current_thread)?;
            let mut next = 1;
            while !done.load(Ordering::Relaxed) {
                let at = place(next);
                // The last word of the second lane is written last.
                if lanes[1][at + 7].load(Ordering::Acquire) >= next {
                    black_box(lanes.iter().flat_map(|lane| &lane[at..at + 8]).map(|word| word.load(Ordering::Relaxed)).max());
                    next += 1;
                }
                spin_loop();
            }
            std::io::Result::Ok(())
        });
        let mut number = 0;
        let figure = batched("raw write of 64 B to two lanes, with its fence", |_| {
            number += 1;
            for lane in &lanes {
                for word in &lane[place(number)..place(number) + 8] {
                    word.store(number, Ordering::Release);
                }
            }
            fence(Ordering::SeqCst);
        });
        done.store(true, Ordering::Relaxed);
        (figure, reading.join().expect("it does not panic"))
    });
    read.context("cannot bind the thread that reads the lanes")?;
    Ok(figure)
}

/// Where the record of that number lies in its lane.
fn place(number: u64) -> usize {
    (number as usize * 8) % RING_WORDS
}

/// One compare-and-swap of a word that nobody else touches.
fn raw_cas() -> Figure {
    let word = AtomicU64::new(0);
    batched("raw CAS", |number| {
        // Failing is as good as succeeding here; it always succeeds.
        let _ = black_box(word.compare_exchange(number, number + 1, Ordering::SeqCst, Ordering::SeqCst));
    })
}

/// A cache line.
#[repr(align(64))]
struct Line(AtomicU64);

/// A word goes to another core and comes back, over one cache line.
fn round_trip(here: u16, there: u16) -> Outcome<Figure> {
    const END: u64 = u64::MAX;
    let line = Line(AtomicU64::new(0));
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let pinned = sched::pin_current_thread(there);
            if pinned.is_err() {
                failed.store(1, Ordering::Release);
            }
            // Odd numbers are questions, even ones answers.
            let mut last = 0;
            while pinned.is_ok() {
                let now = line.0.load(Ordering::Acquire);
                if now == END {
                    break;
                }
                if now == last + 1 {
                    last += 2;
                    line.0.store(last, Ordering::Release);
                }
                spin_loop();
            }
            pinned
        });
        let asking = scope.spawn(|| {
            let pinned = sched::pin_current_thread(here);
            let mut value = 0;
            let mut figure = batched("cross-core round trip", |_| {
                if pinned.is_err() {
                    return;
                }
                line.0.store(value + 1, Ordering::Release);
                value += 2;
                while line.0.load(Ordering::Acquire) != value && failed.load(Ordering::Relaxed) == 0 {
                    spin_loop();
                }
            });
            line.0.store(END, Ordering::Release);
            figure = figure.with("between cores", vec![here, there]);
            pinned.map(|()| figure)
        });
        let answered = answering.join().expect("it does not panic");
        let figure = asking.join().expect("it does not panic");
        answered.and(figure).context("cannot bind the threads that measure the cross-core round trip")
    })
}

/// What a victim does until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pastime: Pastime,
    resident_mib: usize,
}

impl Victim {
    /// It spins.
    pub const SPINNING: Victim = Victim { pastime: Pastime::Spin, resident_mib: 0 };
    /// It sleeps.
    pub const ASLEEP: Victim = Victim { pastime: Pastime::Sleep, resident_mib: 0 };
    /// It spins, and the kernel has much memory to tear down.
    pub const LARGE: Victim = Victim { pastime: Pastime::Spin, resident_mib: 512 };
    /// It works: its core's caches hold what it works on, and nothing of the kernel's code for its end.
    pub const WORKING: Victim = Victim { pastime: Pastime::Walk, resident_mib: 4 };

    /// It sleeps, and there is something to dump.
    pub const DUMPING: Victim = Victim { pastime: Pastime::Sleep, resident_mib: 64 };

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Victim { pastime: Pastime::Walk, .. } => "working",
            Victim { pastime: Pastime::Sleep, resident_mib: 1.. } => "with 64 MiB",
            Victim { resident_mib: 1.., .. } => "with 512 MiB",
            Victim { pastime: Pastime::Spin, .. } => "spinning",
            Victim { pastime: Pastime::Sleep, .. } => "asleep",
        }
    }

    /// The flags by which `martlet victim` becomes it. It runs on the second core, away from whoever measures on the first.
    pub fn arguments(self, command: &mut Command) {
        match self.pastime {
            Pastime::Sleep => {}
            Pastime::Spin => {
                command.arg("--spin");
            }
            Pastime::Walk => {
                command.arg("--walk");
            }
        }
        if self.resident_mib > 0 {
            command.args(["--resident", &self.resident_mib.to_string()]);
        }
        if let Some((_, core)) = two_cores() {
            command.args(["--core", &core.to_string()]);
        }
    }
}

/// The bare death probe: how soon this machine tells of a death at all. Two processes, one robust futex word, nothing else.
#[derive(Debug)]
pub struct Probe(DeathProbe);

impl Probe {
    /// Makes the word.
    pub fn new() -> Outcome<Probe> {
        DeathProbe::new().map(Probe).context("cannot make a death probe")
    }

    /// Kills one victim and returns the nanoseconds until its death was seen.
    pub fn kill_one(&mut self, plan: Victim) -> Outcome<u64> {
        let victim = self.spawn(plan)?;
        // It has just been started: let it reach its loop.
        std::thread::sleep(Duration::from_millis(1));
        // Apart from the victim, which is bound to the second core.
        let _apart = two_cores().map(|(first, _)| sched::OnCore::enter(first)).transpose().context("cannot bind the prober")?;
        let timing = victim.kill().context("the death probe failed")?;
        Ok(timing.seen_ns)
    }

    /// Kills one victim that spins, and returns the nanoseconds until a thread that sleeps on its core, scheduled as a backup is, had been woken by its death and had said so to
    /// who polls for that on the other core: what a failover takes at least where the successor shares the primary's core. On one core alone it is what the death probe is.
    pub fn succeed_one(&mut self) -> Outcome<u64> {
        let victim = self.spawn(Victim::SPINNING)?;
        let cores = two_cores();
        let _apart = cores.map(|(first, _)| sched::OnCore::enter(first)).transpose().context("cannot bind the prober")?;
        let place = || sched::place_current_thread(cores.map(|(_, second)| second), Priority::Slice, Idle::Park).map(drop);
        victim.kill_before_heir(place).context("the bare succession failed")
    }

    fn spawn(&mut self, plan: Victim) -> Outcome<probe::Victim<'_>> {
        let mut command = own_command()?;
        command.args(["victim", "--kind", "bare", "--fd", &self.0.fd_number().to_string()]);
        plan.arguments(&mut command);
        self.0.spawn(command.stdin(Stdio::null())).context("cannot start the victim of a death probe")
    }
}

/// The bare death probe, `kills` times, with a spinning victim.
pub fn death_probe(kills: u32) -> Outcome<Figure> {
    let mut figure = Figure::new("reference", "bare death probe", Unit::Microseconds);
    let mut probe = Probe::new()?;
    for _ in 0..kills {
        figure.record(probe.kill_one(Victim::SPINNING)?);
    }
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_all_its_samples() {
        for figure in measure().expect("measured") {
            assert_eq!(figure.n(), SAMPLES, "{}", figure.metric);
        }
    }
}

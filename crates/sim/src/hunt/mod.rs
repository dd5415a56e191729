//! Runs many lives, one after another and in parallel, and deals with the first one that goes wrong.

mod attempt;
mod shrink;
mod steps;
mod summary;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::{Canary, Changes, Kind, Plan, Report};
use crate::coverage::Coverage;
pub use attempt::{Told, attempt};
pub use shrink::{Shrunk, shrink};
pub use steps::{Walk, every_step, tell_blow};
pub use summary::{Failure, Summary};

/// Which kinds of cluster live a seed's life.
#[derive(Clone, Debug)]
pub enum Cast {
    /// The kind that the seed selects ([`Kind::of`]).
    Dealt,
    /// Each of these kinds.
    Each(Vec<&'static Kind>),
}

impl Cast {
    /// The kinds that live this seed's life.
    pub fn of(&self, seed: u64) -> Vec<&'static Kind> {
        match self {
            Cast::Dealt => vec![Kind::of(seed)],
            Cast::Each(kinds) => kinds.clone(),
        }
    }

    /// How many lives a seed has.
    fn lives_a_seed(&self) -> u64 {
        match self {
            Cast::Dealt => 1,
            Cast::Each(kinds) => kinds.len() as u64,
        }
    }
}

/// Which lives to run.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The kinds of cluster that live them.
    pub cast: Cast,
    /// The first seed.
    pub first: u64,
    /// How many seeds; the hunt may end earlier.
    pub seeds: u64,
    /// How long it may last.
    pub most: Option<Duration>,
    /// Threads; each runs one life at a time.
    pub jobs: usize,
    /// What differs in all of the lives from what their seeds say.
    pub changes: Changes,
    /// A deliberate mistake in all of the lives.
    pub canary: Option<Canary>,
}

/// Runs all lives, until one goes wrong, time is up, or `stop` is set. `ended` is called for each life, on the thread that ran it; `look` is called from time
/// to time with the summary so far.
pub fn hunt(hunt: &Hunt, stop: &AtomicBool, ended: impl Fn(&'static Kind, &Report) + Sync, mut look: impl FnMut(&Summary)) -> Summary {
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let running = AtomicU64::new(hunt.jobs as u64);
    let summary = Mutex::new(Summary::new(hunt));
    let kinds = hunt.cast.lives_a_seed();
    std::thread::scope(|scope| {
        for _ in 0..hunt.jobs {
            scope.spawn(|| {
                let late = || hunt.most.is_some_and(|most| started.elapsed() >= most);
                while !stop.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) && !late() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(seed) = hunt.first.checked_add(number / kinds).filter(|_| number / kinds < hunt.seeds) else { break };
                    let kind = hunt.cast.of(seed)[(number % kinds) as usize];
                    let plan = Plan { changes: hunt.changes.clone(), canary: hunt.canary, ..Plan::new(seed) };
                    let begun = Instant::now();
                    let Told { report, .. } = attempt(kind, &plan);
                    let took = begun.elapsed();
                    let coverage = Coverage::take();
                    ended(kind, &report);
                    if report.violation.is_some() {
                        over.store(true, Ordering::Relaxed);
                    }
                    let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                    summary.add(kind, plan, &report, took);
                    summary.coverage += coverage;
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        while running.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(50));
            let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
            summary.elapsed = started.elapsed();
            look(&summary);
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.elapsed = started.elapsed();
    summary.interrupted = stop.load(Ordering::Relaxed);
    summary
}

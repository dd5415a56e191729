//! Many lives, one after the other and side by side; and what to do with the one that went wrong.

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

/// Which kinds of cluster live a seed.
#[derive(Clone, Debug)]
pub enum Cast {
    /// The one that the seed says ([`Kind::of`]).
    Dealt,
    /// Each of these.
    Each(Vec<&'static Kind>),
}

impl Cast {
    /// Those that live this seed.
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

/// Which lives to live.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The clusters that live them.
    pub cast: Cast,
    /// The first seed.
    pub first: u64,
    /// How many; the hunt may end earlier.
    pub seeds: u64,
    /// How long it may last.
    pub most: Option<Duration>,
    /// Threads, each with one life at a time.
    pub jobs: usize,
    /// What is different in all of them.
    pub changes: Changes,
    /// A mistake in all of them.
    pub canary: Option<Canary>,
}

/// Lives all lives, until one goes wrong, time is over, or `stop` is set. `ended` hears of each, from whichever thread lived it; `look` is called now
/// and then with what there is so far.
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

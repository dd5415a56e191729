//! Rounds of load, each judged by itself, and what was seen in all of them.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hdrhistogram::Histogram;
use martlet_cluster::fail::Outcome;

use crate::report::{Figure, Report, Unit};

use super::caller::AnyCaller;
use super::workload::{self, Mix, Recording};

/// Clients that load a cluster in rounds.
pub struct Judged {
    callers: Vec<AnyCaller>,
    mix: Mix,
    seed: u64,
    next: u64,
    totals: Totals,
}

/// What has been seen so far.
#[derive(Debug)]
pub struct Totals {
    /// Operations that were judged.
    pub operations: usize,
    /// Those of them without a reply.
    pub unknown: usize,
    /// Requests that were refused, and the last reason.
    pub refused: (u64, Option<String>),
    /// Latencies of reads, in nanoseconds.
    pub reads: Histogram<u64>,
    /// Latencies of changes, in nanoseconds.
    pub changes: Histogram<u64>,
}

impl Totals {
    /// Adds the latencies of reads and of changes to a benchmark's report, under these names.
    pub fn add_to(&self, report: &mut Report, bench: &'static str, [reads, changes]: [&'static str; 2]) {
        for (metric, samples) in [(reads, &self.reads), (changes, &self.changes)] {
            let mut figure = Figure::new(bench, metric, Unit::Microseconds);
            figure.merge(samples);
            report.add(figure);
        }
    }

    /// What is said of the requests that were refused, behind other counts: nothing if none was.
    pub fn refusals(&self) -> String {
        let (count, why) = &self.refused;
        why.as_ref().map_or_else(String::new, |why| format!(", {count} refused (the last one: {why})"))
    }
}

/// What was seen in a round, which an order explains.
#[derive(Debug)]
pub struct Seen {
    /// Of each client, and of the one that has read all keys at the end.
    pub recordings: Vec<Recording>,
    /// Operations that were judged.
    pub operations: usize,
    /// Those of them without a reply.
    pub unknown: usize,
}

impl Seen {
    /// How long the slowest request with a reply took.
    pub fn slowest(&self) -> Duration {
        let longest = self.recordings.iter().map(|recording| recording.reads.max().max(recording.changes.max())).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }
}

impl Judged {
    /// With these clients; the rounds are numbered from `first` on, and each has keys of its own, which bear its number.
    pub fn new(callers: Vec<AnyCaller>, mix: Mix, seed: u64, first: u64) -> Judged {
        let histogram = || Histogram::new(3).expect("three digits are supported");
        let totals = Totals { operations: 0, unknown: 0, refused: (0, None), reads: histogram(), changes: histogram() };
        Judged { callers, mix, seed, next: first, totals }
    }

    /// The number of the next round.
    pub fn next_round(&self) -> u64 {
        self.next
    }

    /// The number, among the clients, of the one that looks through the keys.
    fn auditor(&self) -> u64 {
        self.callers.len() as u64 + 1
    }

    /// Where the load gets its chance from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Loads the cluster while `meanwhile` runs, which is told how many requests have been acknowledged; and judges.
    ///
    /// # Errors
    /// That of `meanwhile`, or that no order explains what the clients saw.
    pub fn round<T>(&mut self, meanwhile: impl FnOnce(&AtomicU64) -> Outcome<T>) -> Outcome<(Seen, T)> {
        let number = self.next;
        self.next += 1;
        let (mut recordings, told) = workload::round(&mut self.callers, number, self.mix, self.seed, meanwhile)?;
        let auditor = self.auditor();
        recordings.push(workload::audit(&mut self.callers[0], auditor, number, self.mix));
        let operations = workload::judge(&recordings, self.seed)?;
        let unknown = recordings.iter().map(Recording::unknown).sum();
        self.note(&recordings, operations, unknown);
        Ok((Seen { recordings, operations, unknown }, told))
    }

    /// Removes the keys of the last round.
    pub fn remove_keys(&mut self) {
        let auditor = self.auditor();
        workload::remove(&mut self.callers[0], auditor, self.next - 1, self.mix);
    }

    fn note(&mut self, recordings: &[Recording], operations: usize, unknown: usize) {
        self.totals.operations += operations;
        self.totals.unknown += unknown;
        for recording in recordings {
            self.totals.reads.add(&recording.reads).expect("auto-resizing");
            self.totals.changes.add(&recording.changes).expect("auto-resizing");
            self.totals.refused.0 += recording.refused.0;
            if recording.refused.1.is_some() {
                self.totals.refused.1.clone_from(&recording.refused.1);
            }
        }
    }

    /// What was seen in all rounds. The clients are gone.
    pub fn end(self) -> Totals {
        self.totals
    }
}

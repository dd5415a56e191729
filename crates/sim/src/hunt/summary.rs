//! The combined results of many lives.

use std::fmt;
use std::time::Duration;

use martlet_protocol::basics::Mark;

use super::Hunt;
use crate::cluster::{Canary, Fault, FaultCounts, Kind, Plan, Report, Temper, Violation};
use crate::coverage::Coverage;

/// The first life that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of cluster.
    pub kind: &'static Kind,
    /// Its plan.
    pub plan: Plan,
    /// What went wrong.
    pub violation: Violation,
}

/// The results of many lives, added up.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How many lives there were.
    pub lives: u64,
    /// How many lives were asked for, if that is known.
    pub wanted: Option<u64>,
    /// How long it took.
    pub elapsed: Duration,
    /// Threads.
    pub jobs: usize,
    /// Whether the user ended it early.
    pub interrupted: bool,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Operations on the fabric.
    pub operations: u64,
    /// Views decided.
    pub views: u64,
    /// Views whose decision was found in the acceptors' memory.
    pub decisions_seen: u64,
    /// Times that a replica became primary.
    pub takeovers: u64,
    /// Requests with a reply.
    pub replies: u64,
    /// Requests without one.
    pub unknown: u64,
    /// Faults injected.
    pub faults: FaultCounts,
    /// Lives in which too little was left to recover; see [`Report::ended`].
    pub ended: u64,
    /// See [`Report::served_alone`].
    pub served_alone: u64,
    /// See [`Report::lost_completions`].
    pub lost_completions: u64,
    /// See [`Report::lost_swaps`].
    pub lost_swaps: u64,
    /// See [`Report::writes_across_revocations`].
    pub writes_across_revocations: u64,
    /// See [`Report::undecided`].
    pub undecided: u64,
    /// The most that a node held when all was quiet; see [`Report::footprint`].
    pub footprint: usize,
    /// Which transitions of the state machines the lives reached.
    pub coverage: Coverage,
    /// The first life that went wrong.
    pub failure: Option<Failure>,
    /// For each life: how many microseconds it took.
    took_us: Vec<u32>,
    /// For each life: how many requests its clients made.
    requests: Vec<u32>,
    /// For each life in hell: how many single faults happened.
    faults_in_hell: Vec<u32>,
}

impl Summary {
    pub(super) fn new(hunt: &Hunt) -> Summary {
        let wanted = hunt.seeds.checked_mul(hunt.cast.lives_a_seed()).filter(|_| hunt.most.is_none());
        Summary { wanted, jobs: hunt.jobs, ..Summary::default() }
    }

    pub(super) fn add(&mut self, kind: &'static Kind, plan: Plan, report: &Report, took: Duration) {
        self.lives += 1;
        self.virtual_ns += report.length_ns;
        self.operations += report.operations;
        self.views += report.views;
        self.decisions_seen += report.decisions_seen;
        self.takeovers += report.takeovers;
        self.replies += report.replies;
        self.unknown += report.unknown;
        self.faults += report.faults;
        self.ended += u64::from(report.ended);
        self.served_alone += u64::from(report.served_alone);
        self.lost_completions += report.lost_completions;
        self.lost_swaps += report.lost_swaps;
        self.writes_across_revocations += report.writes_across_revocations;
        self.undecided += u64::from(report.undecided);
        self.footprint = self.footprint.max(report.footprint);
        self.took_us.push(took.as_micros() as u32);
        self.requests.push((report.replies + report.unknown) as u32);
        if report.temper == Temper::Hell {
            self.faults_in_hell.push(report.faults.events() as u32);
        }
        if let Some(violation) = &report.violation
            && self.failure.is_none()
        {
            self.failure = Some(Failure { kind, plan, violation: violation.clone() });
        }
    }

    /// Lives per second of real time.
    pub fn lives_a_second(&self) -> f64 {
        self.lives as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Hours of virtual time.
    pub fn virtual_hours(&self) -> f64 {
        self.virtual_ns as f64 / 3.6e12
    }

    /// How many milliseconds a life takes on its thread: that many per thousand of the lives take no longer.
    pub fn millis_a_life(&self, per_thousand: usize) -> f64 {
        f64::from(quantile(&self.took_us, per_thousand)) / 1e3
    }

    /// The median number of requests per life: half of the lives make no more.
    pub fn requests_a_life(&self) -> u32 {
        quantile(&self.requests, 500)
    }

    /// The median number of single faults per life in hell: half of those lives have no more.
    pub fn faults_a_life_in_hell(&self) -> u32 {
        quantile(&self.faults_in_hell, 500)
    }

    /// The names of marks that were never reached.
    pub fn never_reached(&self) -> Vec<&'static str> {
        self.coverage.missed().into_iter().map(Mark::name).collect()
    }

    /// One line of JSON.
    pub fn json(&self) -> serde_json::Value {
        let faults: serde_json::Map<String, serde_json::Value> =
            Fault::ALL.iter().map(|fault| (fault.name().to_owned(), self.faults.of(*fault).into())).collect();
        let failure = self.failure.as_ref().map(|failure| {
            serde_json::json!({
                "seed": failure.plan.seed,
                "cluster": failure.kind.name,
                "property": failure.violation.property.name(),
                "at_ns": failure.violation.at_ns,
                "out_of_model": failure.plan.canary == Some(Canary::WildClocks),
                "what": failure.violation.what,
            })
        });
        serde_json::json!({
            "lives": self.lives,
            "seconds": self.elapsed.as_secs_f64(),
            "jobs": self.jobs,
            "interrupted": self.interrupted,
            "lives_per_second": self.lives_a_second(),
            "milliseconds_per_life": { "p50": self.millis_a_life(500), "p90": self.millis_a_life(900), "p99": self.millis_a_life(990) },
            "requests_per_life_p50": self.requests_a_life(),
            "single_faults_per_hell_life_p50": self.faults_a_life_in_hell(),
            "virtual_hours": self.virtual_hours(),
            "fabric_operations": self.operations,
            "views": self.views,
            "decisions_seen": self.decisions_seen,
            "takeovers": self.takeovers,
            "replies": self.replies,
            "without_reply": self.unknown,
            "faults": faults,
            "ended": self.ended,
            "served_alone": self.served_alone,
            "lost_completions": { "all": self.lost_completions, "swaps": self.lost_swaps },
            "writes_across_revocations": self.writes_across_revocations,
            "undecided": self.undecided,
            "largest_footprint": self.footprint,
            "marks": Coverage::MEASURED.then(|| serde_json::json!({
                "hit": self.coverage.hit(),
                "of": Mark::ALL.len(),
                "never": self.never_reached(),
            })),
            "violation": failure,
        })
    }
}

/// The smallest of `values` that this many per thousand of them do not exceed; 0 if there are none.
fn quantile(values: &[u32], per_thousand: usize) -> u32 {
    let mut values = values.to_vec();
    let at = (values.len() * per_thousand / 1000).min(values.len().saturating_sub(1));
    if values.is_empty() { 0 } else { *values.select_nth_unstable(at).1 }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} lives in {:.1} s, {:.0} a second; a life took {:.1} ms (p50), {:.1} ms (p99); {:.4} hours of virtual time",
            self.lives,
            self.elapsed.as_secs_f64(),
            self.lives_a_second(),
            self.millis_a_life(500),
            self.millis_a_life(990),
            self.virtual_hours()
        )?;
        writeln!(
            f,
            "{} requests ({} a life), {} without a reply; {} views, {} takeovers, {} operations on the fabric",
            self.replies + self.unknown,
            self.requests_a_life(),
            self.unknown,
            self.views,
            self.takeovers,
            self.operations
        )?;
        let kinds = |events: bool| {
            let such = Fault::ALL.iter().filter(|fault| fault.is_event() == events && self.faults.of(**fault) > 0);
            such.map(|fault| format!("{} {fault}", self.faults.of(*fault))).collect::<Vec<String>>().join(", ")
        };
        writeln!(f, "{} faults ({} a life in hell): {}", self.faults.events(), self.faults_a_life_in_hell(), kinds(true))?;
        writeln!(f, "beside them: {}", kinds(false))?;
        writeln!(
            f,
            "{} operations took effect unknown to their posters, {} of them swaps; {} writes met a revocation on their way",
            self.lost_completions, self.lost_swaps, self.writes_across_revocations
        )?;
        write!(
            f,
            "{} times a majority had to serve alone, and did; {} ended early, {} histories undecided",
            self.served_alone, self.ended, self.undecided
        )?;
        if Coverage::MEASURED {
            write!(f, "\nmarks hit {}/{}", self.coverage.hit(), Mark::ALL.len())?;
            let never = self.never_reached();
            if !never.is_empty() {
                write!(f, "; never: {}", never.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_values_that_were_there() {
        assert_eq!(quantile(&[], 500), 0);
        assert_eq!(quantile(&[7], 990), 7);
        assert_eq!(quantile(&[5, 1, 4, 2, 3], 500), 3);
        assert_eq!(quantile(&[5, 1, 4, 2, 3], 1000), 5);
    }
}

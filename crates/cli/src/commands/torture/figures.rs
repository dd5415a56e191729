//! What a run shows: a line for each fault, and figures at the end.

use std::time::Instant;

use martlet_bench::report::{Figure, Report, Unit};
use martlet_bench::trial::judged::Totals;
use martlet_bench::trial::strikes::Strike;
use martlet_bench::trial::{Fault, Round};
use martlet_cluster::output::{Format, GOOD, styled};
use serde_json::json;

use super::Arguments;

/// A fault that has been caused.
pub struct Struck {
    pub fault: Fault,
    /// The node that it struck, or the one that it left.
    pub node: u16,
    pub is_primary: bool,
}

/// A run that has passed.
pub struct Ended<'a> {
    pub arguments: &'a Arguments,
    pub seed: u64,
    pub totals: Totals,
    /// How many connections outlived all faults.
    pub stand: usize,
    /// How many nodes stood still and were killed by their successors.
    pub replaced: u32,
}

/// What has been measured so far.
pub struct Figures {
    format: Format,
    start: Instant,
    failover: Figure,
    alone: Figure,
    kills: Figure,
    faults: usize,
    forged: u32,
    disbelieved: u32,
}

impl Figures {
    pub fn begin(format: Format) -> Figures {
        let figure = |metric| Figure::new("torture", metric, Unit::Microseconds);
        Figures {
            format,
            start: Instant::now(),
            failover: figure("kill of the primary to the next acknowledged request"),
            alone: figure("first of all kills but one, the primary's among them, to the next acknowledged request"),
            kills: figure("first to last of all kills but one"),
            faults: 0,
            forged: 0,
            disbelieved: 0,
        }
    }

    /// Adds and shows what a round with this fault has brought. `[number, count]`: which of how many it is.
    pub fn add(&mut self, [number, count]: [usize; 2], Struck { fault, node, is_primary }: &Struck, round: &Round) {
        self.faults += 1;
        self.forged += u32::from(*fault == Fault::Warden(Strike::Forge));
        self.disbelieved += u32::from(round.has_disbelieved);
        let took = round.timeline.as_ref().and_then(|timeline| timeline.first("first reply received"));
        let figure = if *fault == Fault::AllButOne { &mut self.alone } else { &mut self.failover };
        took.into_iter().for_each(|ns| figure.record(ns));
        round.kills_ns.into_iter().for_each(|ns| self.kills.record(ns));
        let role = if *is_primary { "the primary" } else { "a backup" };
        let whom = match fault {
            Fault::PowerLoss => "all nodes".to_owned(),
            Fault::AllButOne => format!("within {:.0} us; node {node} is left ({role})", round.kills_ns.unwrap_or(0) as f64 / 1e3),
            _ => format!("node {node} ({role})"),
        };
        let took_text = took.map_or_else(String::new, |ns| format!(", answered after {:.1} us", ns as f64 / 1e3));
        let (name, Round { operations, unknown, .. }) = (fault.name(), round);
        self.format.print(
            format_args!(
                "{number:>5}/{count} {name:<10} {whom}: {operations} requests, {unknown} without a reply, linearizable{took_text}"
            ),
            || {
                json!({
                    "event": "fault",
                    "number": number,
                    "fault": name,
                    "node": (*fault != Fault::PowerLoss).then_some(node),
                    "primary": *fault == Fault::PowerLoss || *is_primary,
                    "operations": operations,
                    "unknown": unknown,
                    "answered_after_us": took.map(|ns| ns as f64 / 1e3),
                })
            },
        );
    }

    /// Shows the figures, and that the run has passed.
    pub fn end(self, Ended { arguments, seed, totals, stand, replaced }: &Ended) {
        let Figures { format, start, faults, forged, disbelieved, .. } = self;
        let kept = arguments.kept_connections();
        let mut report = Report::new(format);
        report.set("seed", *seed);
        report.set("clients", arguments.clients);
        report.set("redis_clients", arguments.redis_clients);
        report.set("connections", kept);
        [self.failover, self.alone, self.kills].into_iter().filter(|figure| figure.n() > 0).for_each(|figure| report.add(figure));
        totals.add_to(&mut report, "torture", ["GET under faults", "change under faults"]);
        report.finish();
        let (operations, unknown) = (totals.operations, totals.unknown);
        let (refused, refused_text) = (totals.refused.0, totals.refusals());
        let replaced_text = match replaced {
            0 => String::new(),
            _ => format!("{replaced} nodes that stood still were killed by their successors, "),
        };
        let kept_text = if kept > 0 { format!("{stand} of {kept} connections kept, {replaced_text}") } else { String::new() };
        let forged_text = match forged {
            0 => String::new(),
            _ => format!("{disbelieved} of {forged} forged wardens heard to the end and not believed, "),
        };
        format.print(
            format_args!(
                "\n{} {faults} faults, {operations} requests, {unknown} without a reply{refused_text}; all linearizable, {kept_text}{forged_text}nothing left behind, {:.0} s",
                styled(GOOD, "passed:"),
                start.elapsed().as_secs_f64()
            ),
            || json!({"event": "passed", "faults": faults, "operations": operations, "unknown": unknown, "refused": refused, "connections_kept": stand, "replaced": replaced, "forged": forged, "disbelieved": disbelieved, "seed": seed}),
        );
    }
}

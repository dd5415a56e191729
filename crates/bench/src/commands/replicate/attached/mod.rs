//! Requests to an application that is replicated, instead of to nothing (Mu, Figure 3, attached): the key-value store's state and an order matching engine, each
//! with its thread and the replica's being one (direct), and two (handover).

mod application;
mod cluster;
pub mod node;
mod series;

use martlet_cluster::directory::{FabricPlan, Plan};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_node::config::{DurabilityKind, EngineKind};

use self::application::Application;
use self::cluster::{Cores, Task};
use self::node::Threading;
use self::series::{Measured, Series};
use super::super::alone::NODES;
use crate::report::plot::{self, Axis, Plot};
use crate::report::{Figure, Report, Unit};

/// How many clusters are tried for a figure.
const TRIES: u32 = 10;

/// What is measured of.
pub struct Subject {
    pub engine: EngineKind,
    pub durability: DurabilityKind,
    pub fabric: FabricPlan,
    pub samples: u32,
}

/// Measures all of it, and draws it.
pub fn measure(subject: &Subject, report: &mut Report, interrupt: &Interrupt) -> Outcome<Plot> {
    let cores = Cores::of_host();
    report.set("attached_cores", cores.describe());
    let plan = Plan {
        engine: subject.engine,
        durability: subject.durability,
        fabric: subject.fabric.clone(),
        ..Plan::new("bench-attached", NODES)
    };
    let (x, y) = (Axis::log("payload, bytes"), Axis::log("latency, ns"));
    let mut drawn = Plot::new("Latency of requests to replicated applications (Mu, Figure 3, attached)", x, y);
    let (mut lost, mut anew) = (0, 0);
    let progress = report.progress("clusters of replicated applications", (Application::ALL.len() * Threading::ALL.len()) as u64);
    for application in Application::ALL {
        for threading in Threading::ALL {
            interrupt.check()?;
            let task = Task { application, threading, samples: subject.samples, cores };
            let Measured { placement, alone, replicated, .. } = undisturbed(&plan, &task, &mut anew, interrupt)?;
            if threading == Threading::ALL[0] {
                for series in &alone {
                    report.add(figure(application, "executed alone", series));
                }
            }
            let mut line = plot::Series::line(format!("{}, {}, p50", application.name(), threading.name()));
            for series in &replicated {
                let figure = figure(application, &format!("replicated, {}", threading.name()), series)
                    .with("threading", threading.name())
                    .with("placement", placement.clone())
                    .with("per_second", series.samples.len() as u64 * 1_000_000_000 / series.elapsed_ns.max(1));
                line.push(series.payload as f64, figure.percentile(50.0));
                lost += series.lost;
                note_ratio(report, application, threading, series.payload, &figure);
                report.add(figure);
            }
            drawn = drawn.with(line);
            progress.step();
        }
    }
    report.set("attached_requests_lost", lost);
    report.set("attached_begun_anew", anew);
    Ok(drawn)
}

/// With `primary-backup` a leader that is kept from running for as long as a lease loses the lead for good: the same is measured of another cluster then.
fn undisturbed(plan: &Plan, task: &Task, anew: &mut u32, interrupt: &Interrupt) -> Outcome<Measured> {
    for _ in 0..TRIES {
        let measured = cluster::measure(plan, task, interrupt)?;
        if !measured.deposed {
            return Ok(measured);
        }
        *anew += 1;
    }
    let (application, threading) = (task.application.name(), task.threading.name());
    Err(Fail::failed(format_args!(
        "{application}, {threading}: the leader lost the lead in each of {TRIES} clusters: it is kept from running"
    )))
}

fn figure(application: Application, how: &str, series: &Series) -> Figure {
    let of = if application.payloads().len() > 1 { "" } else { "at most " };
    let metric = format!("{of}{} B to the {}, {how}", series.payload, application.name());
    let figure =
        Figure::new("replicate", metric, Unit::Nanoseconds).with("application", application.name()).with("payload", series.payload);
    series.samples.iter().fold(figure, |mut figure, sample| {
        figure.record(*sample);
        figure
    })
}

/// Beside the same engine standing alone, if that was measured in this run.
fn note_ratio(report: &mut Report, application: Application, threading: Threading, payload: u64, figure: &Figure) {
    let standing_alone = report.figure(&format!("{payload} B proposed and committed")).map(|alone| alone.percentile(50.0));
    if let Some(alone) = standing_alone {
        let ratio = format!("{:.2}", figure.percentile(50.0) / alone.max(1.0));
        report.set(&format!("ratio_p50_{payload}B_{}_{}_to_standalone", application.flag(), threading.name()), ratio);
    }
}

//! `martlet bench active`: what it costs to ask whether a view is still active.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::FabricFlags;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_fabric::{Incarnation, NodeId, with_fabric};
use martlet_node::{clock, sched};
use martlet_protocol::basics::layout::Component;
use martlet_protocol::basics::{ProcessId, ViewNumber};
use martlet_protocol::membership::{Config, Core, Roles};

use super::endpoint::{self, Endpoint, Place};
use crate::report::placement::two_cores;
use crate::report::{Figure, Report, Unit};

/// Measure what it costs to ask `active` inside a lease, beside a reading of the clock.
///
/// A member holds a lease on its view, renewed in the background on the same thread, as in a node. A sample is the mean of a batch, and
/// batches of both kinds take turns, so the two columns can be compared digit by digit.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of samples of each kind.
    #[arg(long, default_value_t = 50_000, value_parser = number::<u32>(100..))]
    samples: u32,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// Questions in a batch.
const BATCH: u32 = 32;
/// How long a member that is alone may take to get its lease before something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let place = Place::new("bench-active", &arguments.fabric.plan(None)?, 1)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    with_fabric!(arguments.fabric.kind(), F => run_on::<F>(arguments, &place, report, interrupt))
}

fn run_on<F: Endpoint>(arguments: &Arguments, place: &Place, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    if let Some((here, _)) = two_cores() {
        sched::pin_current_thread(here).context("cannot bind the measuring thread")?;
    }
    let mut member = Member::<F>::found(place)?;
    let view = member.await_lease()?;
    report.set("lease_ns", member.lease_ns);
    let mut read = Figure::new("active", "clock read, in turn", Unit::Nanoseconds).with("batch", BATCH);
    let mut active = Figure::new("active", "active, inside a lease", Unit::Nanoseconds).with("batch", BATCH);
    let mut outside = 0u64;
    for sample in 0..arguments.samples + arguments.samples / 10 {
        if sample % 1024 == 0 {
            interrupt.check()?;
        }
        member.turn();
        let lease = member.core.lease();
        let start = clock::now();
        for _ in 0..BATCH {
            black_box(clock::now());
        }
        let middle = clock::now();
        let mut all = true;
        for _ in 0..BATCH {
            all &= black_box(lease.active(view, clock::now()));
        }
        let end = clock::now();
        // The first tenth warms the caches. A lease that ran out while this thread did not run says nothing about asking inside one.
        if !all {
            outside += 1;
            member.await_lease()?;
        } else if sample >= arguments.samples / 10 {
            read.record(middle.since(start) / u64::from(BATCH));
            active.record(end.since(middle) / u64::from(BATCH));
        }
    }
    report.add(read);
    report.add(active.with("batches outside of a lease", outside));
    Ok(())
}

/// A coordinator that is alone with itself: the whole machinery of leases, and nobody to wait for.
struct Member<F> {
    fabric: F,
    core: Core,
    lease_ns: u64,
}

impl<F: Endpoint> Member<F> {
    fn found(place: &Place) -> Outcome<Member<F>> {
        let mut fabric = F::start(place, 0, endpoint::regions())?;
        let itself = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
        let config = Config::new(itself, Roles::COORDINATOR.with(Roles::REPLICA));
        let lease_ns = config.lease_ns;
        let now = clock::now();
        let mut core = Core::new(now, config);
        core.bootstrap(now, &mut fabric);
        Ok(Member { fabric, core, lease_ns })
    }

    fn turn(&mut self) {
        self.core.tick(clock::now(), &mut self.fabric, true);
        while let Some(completion) = self.fabric.poll() {
            if Component::Membership.owns(completion.token) {
                self.core.handle_completion(clock::now(), &mut self.fabric, completion);
            }
        }
        while self.core.poll_event().is_some() {}
    }

    fn await_lease(&mut self) -> Outcome<ViewNumber> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.turn();
            let view = self.core.view_number();
            if self.core.lease().active(view, clock::now()) {
                return Ok(view);
            }
            if Instant::now() > until {
                return Err(Fail::failed(format_args!("no lease was granted within {} s", PATIENCE.as_secs())));
            }
        }
    }
}

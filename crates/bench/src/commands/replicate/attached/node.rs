//! `martlet attached-node`: a replica of an application, of which the one that leads measures its requests. Not for people, so it is hidden.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::number::number;
use martlet_exchange::market::Market;
use martlet_fabric::host::process::end_with_parent;
use martlet_node::config::{Idle, NodeConfig, Pin, Settings};
use martlet_node::counters::{Counter, Reading};
use martlet_node::embed::{Builder, CallError, Here, Replica, Role, Turn};
use martlet_node::{ProcessPolicy, clock, sched};
use martlet_protocol::basics::LogIndex;

use super::super::super::alone::NODES;
use super::super::super::threads::idle;
use super::application::{Application, Attached, Requests, Store};
use super::series::{Measured, Series};

/// How an application's thread and its replica's go together (Mu, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Threading {
    /// They are one.
    Direct,
    /// The application's hands its requests to the replica's.
    Handover,
}

impl Threading {
    pub const ALL: [Threading; 2] = [Threading::Direct, Threading::Handover];

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Threading::Direct => "direct",
            Threading::Handover => "handover",
        }
    }
}

/// Be a replica of an application whose requests are measured.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Arguments {
    /// The node's TOML file, which names the cluster's.
    #[arg(long)]
    config: PathBuf,
    /// What is replicated.
    #[arg(long)]
    application: Application,
    /// The core that the replica's thread runs on.
    #[arg(long, value_parser = number::<u16>(..))]
    core: Option<u16>,
    /// What the replica's thread does without work.
    #[arg(long, value_parser = idle())]
    idle: Idle,
    /// Measure, once all replicas hold the state, and end.
    #[arg(long, requires = "record")]
    measure: Option<Threading>,
    /// With handover, the core that the application's thread runs on.
    #[arg(long, value_parser = number::<u16>(..))]
    caller_core: Option<u16>,
    /// How many samples of each figure.
    #[arg(long, default_value_t = 0, value_parser = number::<u32>(..))]
    samples: u32,
    /// Where it leaves what it has measured.
    #[arg(long)]
    record: Option<PathBuf>,
}

/// For how long the application's thread looks for an answer before it sleeps, in microseconds: longer than any takes that is no accident.
const CALLER_SPIN_US: u64 = 10_000;
/// How often somebody looks who waits for the cluster, or for the lead.
const LOOK: Duration = Duration::from_millis(1);

pub fn run(arguments: &Arguments) -> Outcome {
    end_with_parent().context("cannot tie this process to its parent")?;
    martlet_cluster::log::start()?;
    let settings = Settings::load(&arguments.config).map_err(Fail::usage)?;
    let mut node: NodeConfig = settings.node().clone();
    node.threads.pin = arguments.core.map_or(Pin::None, |core| Pin::Cores(vec![core]));
    node.threads.idle = arguments.idle;
    if arguments.measure.is_some() {
        node.threads.spin_us = CALLER_SPIN_US;
    }
    // The benchmark starts all of them here.
    let settings = Settings::new(settings.cluster().clone(), node).map_err(Fail::usage)?.with_all_here(true);
    let lead = Lead { own: settings.id().0, comes_back: settings.cluster().config().engine.traits().prefers_lowest };
    let builder = Replica::builder().settings(settings).process_policy(ProcessPolicy::OWN);
    match arguments.application {
        Application::Store => attached::<Store>(arguments, builder, lead),
        Application::Exchange => attached::<Market>(arguments, builder, lead),
    }
}

/// What there is to know about who leads.
#[derive(Clone, Copy)]
struct Lead {
    /// This node's number.
    own: u16,
    /// Whether a replica that has lost the lead gets it again, as the lowest that lives.
    comes_back: bool,
}

impl Lead {
    /// Whether this node will not lead any more.
    fn is_lost(&self, role: &Role) -> bool {
        !self.comes_back && matches!(role, Role::Follower { leader: Some(leader) } if leader.node != self.own)
    }
}

fn attached<M: Attached>(arguments: &Arguments, builder: Builder, lead: Lead) -> Outcome {
    let Some(threading) = arguments.measure else { return follow(builder, M::default()) };
    let payloads = arguments.application.payloads();
    let samples = arguments.samples as usize;
    let alone = payloads.iter().map(|payload| alone::<M>(*payload, samples)).collect();
    let meters = payloads.iter().map(|payload| Meter::<M::Requests>::new(*payload, samples)).collect();
    let Replicated { placement, deposed, series } = match threading {
        Threading::Direct => direct(builder, M::default(), meters, lead)?,
        Threading::Handover => handover(builder, M::default(), meters, lead, arguments.caller_core)?,
    };
    let record = arguments.record.as_deref().ok_or_else(|| Fail::usage("--measure needs --record"))?;
    let measured = Measured { placement, deposed, alone, replicated: series };
    measured.save(record).context(format_args!("cannot write {}", record.display()))
}

/// What a leader has measured.
struct Replicated {
    placement: String,
    deposed: bool,
    series: Vec<Series>,
}

/// Only takes in what another one replicates.
fn follow<M: Attached>(builder: Builder, machine: M) -> Outcome {
    let direct = builder.direct(machine).map_err(Fail::failed)?;
    direct.stop_handle().on_signals().context("cannot take SIGTERM and SIGINT")?;
    direct.run(|_| Turn::Idle).map(drop).map_err(Fail::failed)
}

/// Requests of one length, and how long they have taken so far.
struct Meter<Q> {
    requests: Q,
    request: Vec<u8>,
    series: Series,
    /// How many are yet to come that do not count.
    warm: usize,
    samples: usize,
    begun_ns: u64,
}

impl<Q: Requests> Meter<Q> {
    fn new(payload: usize, samples: usize) -> Meter<Q> {
        let series = Series { payload: payload as u64, samples: Vec::with_capacity(samples), ..Series::default() };
        Meter { requests: Q::new(payload), request: Vec::new(), series, warm: samples / 10, samples, begun_ns: clock::now().0 }
    }

    fn is_done(&self) -> bool {
        self.series.samples.len() >= self.samples
    }

    fn prepare(&mut self) -> &[u8] {
        if self.series.samples.is_empty() {
            self.begun_ns = clock::now().0;
        }
        self.requests.next(&mut self.request);
        &self.request
    }

    /// What came of it. An error: it was not for the loss of the lead that it came to nothing.
    fn note(&mut self, took_ns: u64, reply: Result<&[u8], CallError>) -> Outcome {
        match reply {
            Ok(reply) => {
                self.requests.note(reply);
                if self.warm > 0 {
                    self.warm -= 1;
                } else {
                    self.series.samples.push(took_ns);
                    self.series.elapsed_ns = clock::now().0.saturating_sub(self.begun_ns);
                }
                Ok(())
            }
            Err(CallError::NotLeader { .. } | CallError::OutcomeUnknown) => {
                self.series.lost += 1;
                Ok(())
            }
            Err(other) => Err(Fail::failed(other)),
        }
    }
}

/// The application's state, without any replica around it.
fn alone<M: Attached>(payload: usize, samples: usize) -> Series {
    let (mut machine, mut meter, mut reply) = (M::default(), Meter::<M::Requests>::new(payload, samples), Vec::new());
    let mut index = 0;
    while !meter.is_done() {
        index += 1;
        reply.clear();
        meter.prepare();
        let start = clock::now();
        machine.apply(LogIndex(index), &meter.request, &mut reply);
        let took = clock::now().since(start);
        if meter.note(took, Ok(&reply)).is_err() {
            break;
        }
    }
    meter.series
}

/// Whether all replicas hold the state.
fn is_whole(counters: &Result<Reading, CallError>) -> bool {
    counters.as_ref().is_ok_and(|counters| counters.get(Counter::Replicas) == u64::from(NODES))
}

/// The requests' thread is the replica's.
fn direct<M: Attached>(builder: Builder, machine: M, meters: Vec<Meter<M::Requests>>, lead: Lead) -> Outcome<Replicated> {
    struct State<Q> {
        meter: Option<Meter<Q>>,
        under_way: bool,
        failure: Option<Fail>,
    }
    let direct = builder.direct(machine).map_err(Fail::failed)?;
    let stop = direct.stop_handle();
    let state = Rc::new(RefCell::new(State { meter: None, under_way: false, failure: None }));
    let (mut meters, mut series) = (meters.into_iter(), Vec::new());
    let (mut placement, mut whole, mut deposed) = (None, false, false);
    let ended = direct.run(|here: &mut Here<'_, M>| {
        placement.get_or_insert_with(|| here.replica().started().placement.to_string());
        if !here.leads() || !whole {
            whole = here.leads() && is_whole(&here.metrics());
            deposed = lead.is_lost(&here.role().role);
            if deposed {
                stop.request_once();
            }
            return Turn::IdleFor(LOOK);
        }
        let mut now = state.borrow_mut();
        if now.under_way {
            return Turn::Worked;
        }
        if now.meter.as_ref().is_none_or(Meter::is_done) {
            series.extend(now.meter.take().map(|meter| meter.series));
            now.meter = meters.next();
        }
        let failed = now.failure.is_some();
        let Some(meter) = now.meter.as_mut().filter(|_| !failed) else {
            stop.request_once();
            return Turn::Idle;
        };
        let told = Rc::clone(&state);
        let request = meter.prepare();
        let start = clock::now();
        here.propose_with(request, move |reply| {
            let took = clock::now().since(start);
            let mut now = told.borrow_mut();
            now.under_way = false;
            let noted = now.meter.as_mut().map_or(Ok(()), |meter| meter.note(took, reply.as_deref().map_err(Clone::clone)));
            now.failure = noted.err();
        });
        now.under_way = true;
        Turn::Worked
    });
    ended.map_err(Fail::failed)?;
    let failure = state.borrow_mut().failure.take();
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Replicated { placement: placement.unwrap_or_default(), deposed, series }),
    }
}

/// The requests' thread is this one, which hands them to the replica's.
fn handover<M: Attached>(
    builder: Builder,
    machine: M,
    meters: Vec<Meter<M::Requests>>,
    lead: Lead,
    core: Option<u16>,
) -> Outcome<Replicated> {
    let replica = builder.start(machine).map_err(Fail::failed)?;
    if let Some(core) = core {
        sched::pin_current_thread(core).context("cannot bind the application's thread")?;
    }
    // Waits until it leads. `false`: it will not.
    let leads = || loop {
        match replica.role().role {
            Role::Leader => return true,
            other if lead.is_lost(&other) => return false,
            _ => std::thread::sleep(LOOK),
        }
    };
    while leads() && !is_whole(&replica.metrics()) {
        std::thread::sleep(LOOK);
    }
    let placement = replica.started().placement.to_string();
    let mut series = Vec::new();
    for mut meter in meters {
        while !meter.is_done() && leads() {
            let request = meter.prepare();
            let start = clock::now();
            let reply = replica.propose(request);
            let took = clock::now().since(start);
            meter.note(took, reply.as_deref().map_err(Clone::clone))?;
        }
        series.push(meter.series);
    }
    let deposed = !leads();
    replica.stop().map_err(Fail::failed)?;
    Ok(Replicated { placement, deposed, series })
}

#[cfg(test)]
mod tests {
    use martlet_node::embed::Leader;

    use super::*;

    #[test]
    fn the_lead_is_lost_for_good_to_another_one_that_stays() {
        let follows = |node| Role::Follower { leader: Some(Leader { node, address: None }) };
        let (stays, comes_back) = (Lead { own: 0, comes_back: false }, Lead { own: 0, comes_back: true });
        assert!(stays.is_lost(&follows(1)) && !comes_back.is_lost(&follows(1)));
        // Of a view before it led, or of none so far.
        for role in [follows(0), Role::Follower { leader: None }, Role::Rejoining, Role::Leader] {
            assert!(!stays.is_lost(&role), "{role:?}");
        }
    }
}

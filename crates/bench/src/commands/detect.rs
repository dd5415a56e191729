//! `martlet bench detect`: from SIGKILL to another process's certainty.

use std::io;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::{FabricFlags, own_command};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::process::ProcessName;
use martlet_fabric::primitive::{Ordering, fence};
use martlet_fabric::shm::{ParkWord, ShmFabric};
use martlet_fabric::{Fabric as _, PeerEvent, PeerId, Region, Remote};
use martlet_node::clock;
use martlet_node::config::FabricKind;
use martlet_node::sched::OnCore;
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout::{LIFE, life};
use martlet_protocol::detector::certain::{Sign, judge};
use rustix::process::Signal;

use crate::commands::victim::{self, VICTIM_NODE};
use crate::report::placement::two_cores;
use crate::report::reference::{self, Victim};
use crate::report::{Figure, Report, Unit};

/// Measure how soon the death of a process is seen, beside the bare probe.
///
/// The victim is a member on the fabric whose acting thread spins, sleeps, works (it walks through 4 MiB, so that the kernel's code for its end is in no
/// cache), or has 512 MiB resident. The watcher judges its death words as nodes do, by polling them or sleeping on them. All of it is on shared memory: on
/// other fabrics no death is certain.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of kills of each kind.
    #[arg(long, default_value_t = 500, value_parser = number::<u32>(1..))]
    kills: u32,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// How long a death may take to be seen before something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    if !arguments.fabric.kind().traits().certain_deaths {
        let (kind, allowed) = (arguments.fabric.kind(), FabricKind::names_with(|traits| traits.certain_deaths));
        return Err(Fail::usage(format_args!(
            "--fabric is {kind}: no death is certain there (docs/rdma.md), so there is nothing to measure; allowed is {allowed}, and how soon a death is presumed \
             is part of `martlet bench failover --fabric {kind}`"
        )));
    }
    // It refuses flags that only another fabric has.
    arguments.fabric.plan(None)?;
    report.set("kills", arguments.kills);
    let cluster = format!("bench-detect-{}", std::process::id());
    let mut watcher = victim::bench_fabric(&cluster, martlet_fabric::NodeId(0), 1)?;
    watcher.connect(VICTIM_NODE);
    let mut incarnation = 1;
    let victims = [Victim::SPINNING, Victim::ASLEEP, Victim::WORKING, Victim::LARGE];
    let progress = report.progress("victims killed", victims.len() as u64 * 3 * u64::from(arguments.kills));
    for plan in victims {
        let mut bare = Figure::new("detect", format!("bare probe, victim {}", plan.name()), Unit::Microseconds);
        let mut polled = Figure::new("detect", format!("death seen by polling, victim {}", plan.name()), Unit::Microseconds);
        let mut slept = Figure::new("detect", format!("death seen out of sleep, victim {}", plan.name()), Unit::Microseconds);
        let mut probe = reference::Probe::new()?;
        for _ in 0..arguments.kills {
            interrupt.check()?;
            // In turn, so that the machine's mood is the same for all.
            bare.record(probe.kill_one(plan)?);
            progress.step();
            for (figure, sleeping) in [(&mut polled, false), (&mut slept, true)] {
                incarnation += 1;
                figure.record(kill_one(&mut watcher, &cluster, incarnation, plan, sleeping)?);
                progress.step();
            }
        }
        report.add(bare);
        report.add(polled);
        report.add(slept);
    }
    Ok(())
}

/// Kills one member and returns the nanoseconds until its death was certain here.
fn kill_one(watcher: &mut ShmFabric, cluster: &str, incarnation: u64, plan: Victim, sleeping: bool) -> Outcome<u64> {
    let mut command = own_command()?;
    command.args(["victim", "--kind", "member", "--cluster", cluster, "--incarnation", &incarnation.to_string()]);
    plan.arguments(&mut command);
    let mut child = Reaped(command.stdin(Stdio::null()).spawn().context("cannot start a victim")?);
    let peer = ready(watcher, incarnation, &mut child)?;
    let name = ProcessName::of(child.0.id()).context("cannot look at the victim")?;
    let handle = name.open().context("cannot reach the victim")?.ok_or_else(|| Fail::failed("the victim ended by itself"))?;
    // It has just been started: let it reach its loop.
    std::thread::sleep(Duration::from_millis(1));

    // Apart from the victim, which is bound to the second core.
    let on_core = two_cores().map(|(first, _)| OnCore::enter(first)).transpose().context("cannot bind the watching thread")?;
    let killed = clock::now();
    handle.signal(Signal::KILL).context("cannot kill the victim")?;
    let seen = if sleeping { sleep_on(watcher, peer) } else { poll(watcher, peer) }?;
    drop(on_core);
    child.end()?;
    while watcher.peer_identity(peer).is_some() {
        if let Some(PeerEvent::Gone { peer, .. }) = watcher.event() {
            watcher.forget(peer);
        }
        std::thread::yield_now();
    }
    Ok(seen.since(killed))
}

/// Waits until the victim of that life is connected and has registered its words.
fn ready(watcher: &mut ShmFabric, incarnation: u64, child: &mut Reaped) -> Outcome<PeerId> {
    let until = Instant::now() + PATIENCE;
    let mut found = None;
    loop {
        while let Some(event) = watcher.event() {
            match event {
                PeerEvent::Up { peer, identity } if identity.incarnation.0 == incarnation => found = Some(peer),
                PeerEvent::Up { .. } => {}
                PeerEvent::Gone { peer, .. } => watcher.forget(peer),
            }
        }
        if let Some(peer) = found
            && watcher.peer_memory(peer, LIFE).is_some_and(|signs| signs[life::THREADS].load(Ordering::Acquire) == life::counting(0, 0))
        {
            return Ok(peer);
        }
        if let Some(status) = child.0.try_wait().context("cannot look at the victim")? {
            return Err(Fail::failed(format_args!("the victim ended before it was ready: {status}")));
        }
        if Instant::now() > until {
            return Err(Fail::failed("the victim did not get ready"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn sign(watcher: &ShmFabric, peer: PeerId) -> Option<Sign> {
    let word = watcher.peer_memory(peer, LIFE)?[life::death(0, 0)].load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    Some(judge(&[word]))
}

fn poll(watcher: &ShmFabric, peer: PeerId) -> Outcome<Time> {
    let until = Instant::now() + PATIENCE;
    let mut turns = 0u32;
    while sign(watcher, peer) != Some(Sign::Dead) {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 20) && Instant::now() > until {
            return Err(unseen());
        }
        std::hint::spin_loop();
    }
    Ok(clock::now())
}

fn sleep_on(watcher: &mut ShmFabric, peer: PeerId) -> Outcome<Time> {
    let until = Instant::now() + PATIENCE;
    let at = Remote { peer, region: Region::Public(LIFE), offset: life::death(0, 0) * 8 };
    while sign(watcher, peer) != Some(Sign::Dead) {
        let expected = watcher.peer_memory(peer, LIFE).map_or(0, |signs| signs[life::death(0, 0)].load(Ordering::Relaxed)) as u32;
        watcher.park(&[ParkWord { at, expected }], Some(Duration::from_secs(1)), |watcher| sign(watcher, peer) == Some(Sign::Dead));
        if Instant::now() > until {
            return Err(unseen());
        }
    }
    Ok(clock::now())
}

fn unseen() -> Fail {
    Fail::failed(format_args!("a death was not seen within {} s", PATIENCE.as_secs()))
}

/// A child that does not outlive its name here.
struct Reaped(Child);

impl Reaped {
    fn end(mut self) -> Outcome {
        self.0.wait().map(|_| ()).context("cannot wait for the victim")
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // It may be gone already.
        let _: io::Result<()> = self.0.kill();
        let _ = self.0.wait();
    }
}

//! `martlet doctor`

mod peers;

use std::path::PathBuf;
use std::time::Duration;

use anstyle::Style;
use clap::Args;
use martlet_bench::commands::victim::BENCH_KEY;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{BAD, Format, GOOD, styled};
use martlet_fabric::devices::{self, DeviceChoice, Fence};
use martlet_fabric::standalone::{Endpoint, Standalone};
use martlet_fabric::{FabricKind, Identity, Incarnation, NodeId, PeerKind, RegionSpec, with_fabric};
use martlet_node::clock::discipline::{self, CRYSTAL_PPM, KERNEL_PPM};
use martlet_node::config::{ClusterConfig, DetectorConfig};
use martlet_node::{clock, sched};
use serde_json::json;

/// Check what this host can do: its scheduling delays, clock and fabrics.
///
/// The command measures for how long the host keeps threads from running, and proposes timeouts that outlast that. It also shows how the clock is corrected,
/// and which fabrics the host has. Run it under the load that the host will have: an idle host keeps no thread waiting.
///
/// With --peers it looks at the running nodes of a cluster of several hosts instead: how long they take to answer this host, how regularly their hearts beat,
/// and which timeouts outlast that.
///
/// Example: martlet doctor --seconds 10
#[derive(Debug, Args)]
pub struct Arguments {
    /// How long to watch each core, in seconds [default: 2]. With --peers: how long to watch the nodes, all at once [default: 60].
    #[arg(long, value_name = "SECONDS", value_parser = number::<u64>(1..=3600))]
    seconds: Option<u64>,
    /// Look at the nodes of the cluster in --dir, and propose lease_us, heartbeat_us, how many heartbeats may be missed, and broadcast_timeout_us.
    #[arg(long, requires = "dir")]
    peers: bool,
    /// How often to try, on each RDMA device, each way to take a writer's permission away while it writes. Use some hundreds for a new card.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number::<u32>(1..=10_000))]
    fence_trials: u32,
    /// The directory of a cluster whose `clock_drift_ppm` to compare this host's clock with. Without it, the usual bound over a network.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What kept a thread from running on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Jitter {
    /// The longest time between two of its looks at the clock, while it never slept.
    longest_gap_ns: u64,
    /// Of such gaps, those longer than 100 us.
    gaps: u64,
    /// How much longer than it wished its longest sleep of 1 ms was.
    longest_late_ns: u64,
}

/// Gaps that count: shorter ones are interrupts.
const GAP_NS: u64 = 100_000;
const SLEEP: Duration = Duration::from_millis(1);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    if let (true, Some(dir)) = (arguments.peers, &arguments.dir) {
        return peers::run(&Directory::new(dir).existing_cluster()?, arguments.seconds.unwrap_or(60), format, &interrupt);
    }
    let drift = match &arguments.dir {
        Some(dir) => {
            let directory = Directory::new(dir);
            let config = directory.existing_cluster()?.config().clone();
            Drift {
                allowed_ppm: config.clock_drift_ppm(),
                spans_hosts: config.fabric.traits().spans_hosts,
                of: directory.cluster_file().display().to_string(),
            }
        }
        None => Drift { allowed_ppm: ClusterConfig::HOSTS_DRIFT_PPM, spans_hosts: true, of: "the usual one over a network".into() },
    };
    let cores = sched::allowed_cores().context("cannot tell the cores")?;
    let mut worst = Jitter::default();
    for core in &cores {
        let jitter = watch(*core, arguments.seconds.unwrap_or(2) * 1_000_000_000, &interrupt)?;
        format.print(
            format_args!(
                "core {core}: a running thread was stopped for {} us at most, {} times for more than {} us; a sleeping one woke {} us late at most",
                jitter.longest_gap_ns / 1_000,
                jitter.gaps,
                GAP_NS / 1_000,
                jitter.longest_late_ns / 1_000
            ),
            || json!({"event": "jitter", "core": core, "longest_gap_us": jitter.longest_gap_ns / 1_000, "gaps": jitter.gaps, "longest_late_us": jitter.longest_late_ns / 1_000}),
        );
        worst.longest_gap_ns = worst.longest_gap_ns.max(jitter.longest_gap_ns);
        worst.longest_late_ns = worst.longest_late_ns.max(jitter.longest_late_ns);
    }
    let (lease_us, detector) = propose(worst);
    format.print(
        format_args!(
            "\ntimeouts for cluster.toml that outlast this, none shorter than the default:\n  lease_us = {lease_us}\n  [detector]\n  heartbeat_us = {}\n  broadcast_timeout_us = {}\n",
            detector.heartbeat_us, detector.broadcast_timeout_us
        ),
        || json!({"event": "timeouts", "lease_us": lease_us, "heartbeat_us": detector.heartbeat_us, "broadcast_timeout_us": detector.broadcast_timeout_us}),
    );
    clocks(format, &drift);
    for kind in FabricKind::ALL {
        if kind.traits().has_devices {
            devices_of(kind, format, arguments.fence_trials, &interrupt)?;
        } else {
            say(format, kind.name(), with_fabric!(kind, F => begins::<F>(None)).map(|()| kind.traits().proves.into()));
        }
    }
    Ok(())
}

fn say(format: Format, fabric: &str, found: Result<String, String>) {
    let (mark, text) = match &found {
        Ok(text) => (styled(GOOD, "yes"), text),
        Err(text) => (styled(BAD, "no"), text),
    };
    format.print(
        format_args!("fabric {fabric}: {mark}, {text}"),
        || json!({"event": "fabric", "fabric": fabric, "usable": found.is_ok(), "detail": text}),
    );
}

/// Runs on one core for so long, half of the time without a pause, and half of it sleeping again and again.
fn watch(core: u16, ns: u64, interrupt: &Interrupt) -> Outcome<Jitter> {
    sched::pin_current_thread(core).context(format_args!("cannot run on core {core}"))?;
    let mut jitter = Jitter::default();
    let start = clock::now();
    let mut last = start;
    while last.since(start) < ns / 2 {
        let now = clock::now();
        let gap = now.since(last);
        jitter.longest_gap_ns = jitter.longest_gap_ns.max(gap);
        jitter.gaps += u64::from(gap > GAP_NS);
        last = now;
    }
    while last.since(start) < ns {
        interrupt.check()?;
        let before = clock::now();
        std::thread::sleep(SLEEP);
        last = clock::now();
        jitter.longest_late_ns = jitter.longest_late_ns.max(last.since(before).saturating_sub(SLEEP.as_nanos() as u64));
    }
    Ok(jitter)
}

/// Timeouts that a thread which is kept from running as long as that does not miss. A lease is renewed well before it ends, and a node
/// distrusts what it saw when it stood still for half a heartbeat.
fn propose(worst: Jitter) -> (u64, DetectorConfig) {
    let usual = ClusterConfig::new("doctor", Vec::new());
    let pause_us = worst.longest_gap_ns.max(worst.longest_late_ns).div_ceil(1_000);
    let whole_ms = |us: u64| us.div_ceil(1_000) * 1_000;
    let mut detector = usual.detector;
    detector.heartbeat_us = detector.heartbeat_us.max(whole_ms(3 * pause_us));
    detector.broadcast_timeout_us = detector.broadcast_timeout_us.max(whole_ms(10 * pause_us));
    (usual.lease_us.max(whole_ms(3 * pause_us)), detector)
}

/// The bound that a cluster has for its clocks.
struct Drift {
    allowed_ppm: u64,
    spans_hosts: bool,
    /// Whose it is.
    of: String,
}

/// Says how this host's clock is corrected, and whether a cluster allows for it.
fn clocks(format: Format, drift: &Drift) {
    let corrected_ppm = match discipline::rate() {
        Ok(rate) => {
            let told = if rate.synchronized { "takes it for synchronized" } else { "has not been told that it is synchronized" };
            format.print(
                format_args!("the clock is corrected by {:+.1} ppm at the moment; the kernel {told}", rate.corrected_ppm),
                || json!({"event": "clock", "corrected_ppm": rate.corrected_ppm, "synchronized": rate.synchronized}),
            );
            rate.corrected_ppm.abs().ceil() as u64
        }
        Err(error) => {
            format.print(
                format_args!("cannot tell how the clock is corrected: {error}"),
                || json!({"event": "clock", "corrected_ppm": null, "error": error.to_string()}),
            );
            0
        }
    };
    let correctors = discipline::correctors();
    for corrector in &correctors {
        format.print(
            format_args!("  {} may run it fast or slow by {} ppm ({})", corrector.name, corrector.slews_ppm, corrector.by),
            || json!({"event": "corrector", "name": corrector.name, "slews_ppm": corrector.slews_ppm, "by": corrector.by}),
        );
    }
    if correctors.is_empty() {
        format.print(
            format_args!("  no daemon that corrects it can be seen from here; a hidden one, outside of a container for example, can correct it by {KERNEL_PPM} ppm at most"),
            || json!({"event": "corrector", "name": null, "slews_ppm": 0, "hidden_slews_ppm": KERNEL_PPM, "by": "none is seen"}),
        );
    }
    let needed = needed_ppm(corrected_ppm, correctors.iter().map(|corrector| corrector.slews_ppm));
    // On one host all processes read the same clock.
    let holds = !drift.spans_hosts || needed <= drift.allowed_ppm;
    let mark = if holds { styled(GOOD, "enough") } else { styled(BAD, "NOT ENOUGH") };
    let advice = match (drift.spans_hosts, holds) {
        (false, _) => "all its processes read one clock".to_owned(),
        (true, true) => format!("this host needs {needed}"),
        (true, false) => {
            format!("this host needs {needed}, or leases may overlap: raise it on all nodes, or have the clock corrected more slowly")
        }
    };
    format.print(
        format_args!("  clock_drift_ppm = {} ({}): {mark}, {advice}\n", drift.allowed_ppm, drift.of),
        || json!({"event": "clock_drift", "allowed_ppm": drift.allowed_ppm, "needed_ppm": needed, "of": drift.of, "spans_hosts": drift.spans_hosts, "holds": holds}),
    );
}

/// By how much a clock may be off that is corrected by so much now, and by daemons that each correct by so much at most: it may be wrong by itself in the same direction.
fn needed_ppm(now_ppm: u64, slews_ppm: impl Iterator<Item = u64>) -> u64 {
    CRYSTAL_PPM + slews_ppm.fold(now_ppm, u64::max)
}

fn identity() -> Identity {
    Identity { node: NodeId(0), incarnation: Incarnation(u64::from(std::process::id())), kind: PeerKind::Client }
}

/// Starts an endpoint: what every process of that fabric begins with.
fn begins<F: Standalone>(device: Option<String>) -> Result<(), String> {
    let none = RegionSpec::default();
    let endpoint =
        Endpoint { cluster: "doctor", key: BENCH_KEY, identity: identity(), members: none.clone(), clients: none, listen: None, device };
    F::start_alone(endpoint).map(|_| ()).map_err(|error| error.to_string())
}

/// The devices that a fabric may use: whether memory can be registered with each and a queue pair connected with itself, and what takes permissions away there.
fn devices_of(kind: FabricKind, format: Format, rounds: u32, interrupt: &Interrupt) -> Outcome {
    match devices::names() {
        Ok(names) if !names.is_empty() => {
            for name in names {
                interrupt.check()?;
                let found = with_fabric!(kind, F => begins::<F>(Some(name.clone())));
                let usable = found.is_ok();
                let found = found.map(|()| kind.traits().proves.into());
                say(format, &format!("{kind}, device {name}"), found);
                if usable {
                    if kind.traits().has_multicast {
                        multicast(format, &name);
                    }
                    fences(kind, format, &name, rounds);
                }
            }
        }
        Ok(_) => say(format, kind.name(), Err("this host has no RDMA device".into())),
        Err(error) => say(format, kind.name(), Err(error.to_string())),
    }
    Ok(())
}

/// Tries whether a device takes part in multicast. It is for those who want it: nothing else depends on it.
fn multicast(format: Format, name: &str) {
    let choice = DeviceChoice { name: Some(name.to_owned()), ..DeviceChoice::default() };
    let found = match devices::try_multicast(&choice) {
        Ok(trial) if trial.heard.is_ok() => Ok(trial.to_string()),
        Ok(trial) => Err(trial.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let mark = if found.is_ok() { styled(GOOD, "yes") } else { styled(Style::new(), "no") };
    let text = found.as_ref().unwrap_or_else(|why| why);
    format.print(
        format_args!("  multicast on {name}: {mark}, {text}"),
        || json!({"event": "multicast", "device": name, "usable": found.is_ok(), "detail": text}),
    );
}

/// Tries what could take a writer's permission away on a device, and says what is chosen, and on what evidence.
fn fences(kind: FabricKind, format: Format, name: &str, rounds: u32) {
    let choice = DeviceChoice { name: Some(name.to_owned()), ..DeviceChoice::default() };
    let trials = match devices::try_fences(&choice, &choice, rounds) {
        Ok(trials) => trials,
        Err(error) => return say(format, &format!("{kind}, device {name}, fences"), Err(error.to_string())),
    };
    for trial in trials {
        let chosen = trial.fence == Fence::CHOSEN;
        let mark = match (trial.held(), chosen) {
            (true, true) => styled(GOOD, "chosen"),
            (false, true) => styled(BAD, "DO NOT USE THIS DEVICE"),
            (_, false) => styled(Style::new(), "not used"),
        };
        format.print(
            format_args!("  what revokes on {name}: {mark}, {trial}"),
            || json!({"event": "fence", "device": name, "fence": trial.fence.to_string(), "chosen": chosen, "rounds": trial.rounds, "late": trial.late, "refused": trial.refused.as_ref().map(ToString::to_string)}),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_allows_is_within_the_usual_bound_between_hosts() {
        assert_eq!(needed_ppm(0, [].into_iter()), CRYSTAL_PPM);
        assert_eq!(needed_ppm(20, [500, 83_334].into_iter()), 83_534, "they do not add up: each sets the one rate");
        assert_eq!(needed_ppm(1_300, [500].into_iter()), 1_500, "whatever daemon has done that, it is done");
        assert!(needed_ppm(0, [KERNEL_PPM].into_iter()) <= ClusterConfig::HOSTS_DRIFT_PPM);
    }

    #[test]
    fn a_quiet_host_gets_the_usual_and_a_busy_one_what_outlasts_its_pauses() {
        let usual = ClusterConfig::new("doctor", Vec::new());
        assert_eq!(propose(Jitter::default()), (usual.lease_us, usual.detector.clone()));
        let (lease_us, detector) = propose(Jitter { longest_gap_ns: 40_000_100, gaps: 1, longest_late_ns: 7 });
        assert_eq!((lease_us, detector.heartbeat_us), (121_000, 121_000));
        assert_eq!(detector.broadcast_timeout_us, usual.detector.broadcast_timeout_us);
        let (_, detector) = propose(Jitter { longest_late_ns: 900_000_000, ..Jitter::default() });
        assert_eq!(detector.broadcast_timeout_us, 9_000_000);
    }
}

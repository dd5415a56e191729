//! `martlet doctor --peers`: how long the cluster's nodes take to answer this host, how regularly their hearts beat as it sees them, and the settings that outlast that.
//!
//! It reads a word of each node's memory once a millisecond, as a client of the fabric, while the cluster runs and whatever it does. What keeps a node's thread
//! from running shows as a heart that stands still.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output::{BAD, Format, GOOD, styled};
use martlet_fabric::{NodeId, PeerEvent, PeerId, Region, Remote, Token, with_fabric};
use martlet_node::backend::Backend;
use martlet_node::client::ClientEndpoint;
use martlet_node::config::{Cluster, NodeEntry};
use martlet_protocol::basics::layout::{LIFE, life};
use serde_json::json;

/// How often each node is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long nodes have to be met.
const MEETING: Duration = Duration::from_secs(3);
/// How long a refusal that names a node is waited for: nodes are dialled several times a second.
const REFUSAL: Duration = Duration::from_secs(1);
/// Later than this, a look says something about this host and not about the node.
const OWN_STALL: Duration = Duration::from_millis(2);
/// The shortest proposals: a node wakes up for each beat, and below 10 ms its thread is scheduled as one that is watched closely.
const LEAST_HEARTBEAT_US: u64 = 10_000;
const LEAST_LEASE_US: u64 = 20_000;

/// A node as it is seen from here.
struct Node {
    number: u16,
    round_trips_us: Histogram<u64>,
    /// Between two looks that found a beat.
    beats_us: Histogram<u64>,
    /// The one under way, and when it was asked.
    asked: Option<Instant>,
    /// The heart as it was last read, and when it was first seen so.
    heart: Option<(u64, Instant)>,
    unanswered: u64,
}

impl Node {
    fn new(number: u16) -> Node {
        let empty = || Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("good bounds");
        Node { number, round_trips_us: empty(), beats_us: empty(), asked: None, heart: None, unanswered: 0 }
    }

    /// A look has found the heart at this count, or was not answered. `ours`: this process stood still meanwhile.
    fn note(&mut self, found: Option<u64>, now: Instant, ours: bool) {
        let Some(asked) = self.asked.take() else { return };
        let Some(count) = found else {
            self.unanswered += 1;
            self.heart = None;
            return;
        };
        if ours {
            self.heart = None;
        } else {
            self.round_trips_us.saturating_record(us(now - asked));
        }
        match self.heart {
            Some((last, _)) if last == count => {}
            Some((_, since)) => {
                self.beats_us.saturating_record(us(now - since));
                self.heart = Some((count, now));
            }
            None => self.heart = Some((count, now)),
        }
    }

    fn forget_beats(&mut self) {
        self.heart = None;
    }

    /// What has been going on is over: a heart that stands still has done so until now.
    fn end(&mut self, now: Instant) {
        if let Some((_, since)) = self.heart.take() {
            let longest = us(now - since);
            if longest > self.beats_us.max() {
                self.beats_us.saturating_record(longest);
            }
        }
    }

    /// By how much a beat came later than usual, at worst.
    fn latest_us(&self) -> u64 {
        self.beats_us.max().saturating_sub(self.beats_us.value_at_quantile(0.5))
    }
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// Looks at all nodes for so long. The nodes, each with the reason why it could not be looked at, and for how long this process was kept from running at most.
#[allow(clippy::type_complexity)]
fn watch<F: Backend>(cluster: &Cluster, time: Duration, interrupt: &Interrupt) -> Outcome<(Vec<(Node, Option<String>)>, Duration)> {
    let mut endpoint = ClientEndpoint::<F>::open(cluster).map_err(Fail::failed)?;
    let began = Instant::now();
    while endpoint.nodes().any(|(_, peer)| peer.is_none()) && began.elapsed() < MEETING {
        interrupt.check()?;
        while endpoint.event().is_some() {}
        endpoint.wait(Duration::from_millis(10));
    }
    let mut nodes: Vec<Node> = cluster.config().nodes.iter().map(|node| Node::new(node.number)).collect();
    let (end, mut due, mut own) = (Instant::now() + time, Instant::now(), Duration::ZERO);
    loop {
        interrupt.check()?;
        let now = Instant::now();
        let late = now.saturating_duration_since(due);
        let ours = late > OWN_STALL;
        own = own.max(late);
        if now >= end {
            nodes.iter_mut().for_each(|node| node.end(now));
            break;
        }
        while let Some(event) = endpoint.event() {
            if let PeerEvent::Up { identity, .. } = event {
                nodes.iter_mut().filter(|node| node.number == identity.node.0).for_each(Node::forget_beats);
            }
        }
        let peers: Vec<Option<PeerId>> = endpoint.nodes().map(|(_, peer)| peer).collect();
        let fabric = endpoint.fabric();
        while let Some(completion) = fabric.poll() {
            if let Some(node) = nodes.get_mut(completion.token.0 as usize) {
                node.note(completion.result.ok(), Instant::now(), ours);
            }
        }
        if now >= due {
            for (at, (node, peer)) in nodes.iter_mut().zip(&peers).enumerate() {
                if let (None, Some(peer)) = (node.asked, *peer) {
                    let heart = Remote { peer, region: Region::Public(LIFE), offset: 8 * life::HEARTBEAT };
                    node.asked = Some(Instant::now());
                    fabric.read_word(heart, Token(at as u64));
                }
            }
            due = now + LOOK;
            // It sends what has been posted.
            continue;
        }
        endpoint.wait(due - now);
    }
    let nodes = nodes.into_iter().map(|node| {
        let why = node.round_trips_us.is_empty().then(|| why_not(&mut endpoint, cluster, &node));
        (node, why)
    });
    Ok((nodes.collect(), own))
}

/// Why nothing was heard of a node.
fn why_not<F: Backend>(endpoint: &mut ClientEndpoint<F>, cluster: &Cluster, node: &Node) -> String {
    let entry = cluster.node(NodeId(node.number));
    let Some(at) = entry.and_then(NodeEntry::meeting_point) else { return "it has no address".into() };
    // The fabric tells the latest refusal only, and each node that refuses is tried again and again.
    let (named, began) = (format!("member {} ", NodeId(node.number)), Instant::now());
    while began.elapsed() < REFUSAL {
        while endpoint.event().is_some() {}
        if let Some(refusal) = endpoint.fabric().last_refusal().filter(|refusal| refusal.contains(&named)) {
            return refusal;
        }
        endpoint.wait(Duration::from_millis(20));
    }
    if node.unanswered > 0 || endpoint.peer(NodeId(node.number)).is_some() {
        return format!("UDP port {} does not get through, while TCP does: a firewall may be in the way", at.port());
    }
    match TcpStream::connect_timeout(&at, Duration::from_secs(1)) {
        Ok(_) => "it takes TCP connections but does not introduce itself: its process hangs, or is not a node of this cluster".into(),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => "nothing listens there: is its node running?".into(),
        Err(error) => format!("TCP port {} cannot be reached ({error}): is the host up, and does its firewall let TCP by?", at.port()),
    }
}

/// What was seen at its worst, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Worst {
    /// How much later than usual a beat came, of a node, or a turn of this process.
    late: u64,
    round_trip: u64,
}

impl Worst {
    /// For how long a node that lives may have been silent.
    fn silence(self) -> u64 {
        self.late + self.round_trip
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    heartbeat_us: u64,
    lease_us: u64,
    broadcast_timeout_us: u64,
}

/// Settings under which twice the worst that was seen has no consequences: some minutes do not show the worst.
fn propose(worst: Worst, missed: u64, broadcast_us: u64) -> Settings {
    let silence = 2 * worst.silence();
    let whole_ms = |us: u64| us.div_ceil(1_000) * 1_000;
    Settings {
        heartbeat_us: whole_ms(silence.div_ceil(missed)).max(LEAST_HEARTBEAT_US),
        // A leader that asks for its lease in time bears a stall of 45 hundredths of it.
        lease_us: whole_ms((silence * 100).div_ceil(45)).max(LEAST_LEASE_US),
        // Broadcasts may be lost besides, some in a row.
        broadcast_timeout_us: whole_ms((5 * silence).max(10 * broadcast_us)),
    }
}

pub fn run(cluster: &Cluster, seconds: u64, format: Format, interrupt: &Interrupt) -> Outcome {
    let config = cluster.config();
    if !config.fabric.traits().spans_hosts {
        return Err(Fail::usage(format_args!(
            "--peers is for clusters whose nodes run on several hosts; all nodes of {:?} run on one host, over {}",
            config.name, config.fabric
        )));
    }
    let time = Duration::from_secs(seconds);
    format.say(format_args!("watching {} nodes for {seconds} s; the longest delays show only under load", config.nodes.len()));
    let (nodes, own) = with_fabric!(config.fabric, F => watch::<F>(cluster, time, interrupt)?);
    let mut worst = Worst { late: us(own), ..Worst::default() };
    let mut missing = Vec::new();
    for (node, why) in &nodes {
        let address = cluster.node(NodeId(node.number)).map_or("", |entry| entry.address.as_str());
        let number = node.number;
        if let Some(why) = why {
            format.print(
                format_args!("node {number} at {address}: {}, {why}", styled(BAD, "no")),
                || json!({"event": "peer", "node": number, "address": address, "measured": false, "detail": why}),
            );
            missing.push(number);
            continue;
        }
        let (trips, beats) = (&node.round_trips_us, &node.beats_us);
        let [p50, p99] = [0.5, 0.99].map(|quantile| trips.value_at_quantile(quantile));
        let [beat50, beat99] = [0.5, 0.99].map(|quantile| beats.value_at_quantile(quantile));
        format.print(
            format_args!(
                "node {number} at {address}: {}, round trip {p50} us (p50), {p99} (p99), {} at most; a beat seen each {:.1} ms (p50), {:.1} (p99), {:.1} at most; {} of {} looks unanswered",
                styled(GOOD, "yes"),
                trips.max(),
                beat50 as f64 / 1e3,
                beat99 as f64 / 1e3,
                beats.max() as f64 / 1e3,
                node.unanswered,
                trips.len() + node.unanswered
            ),
            || {
                json!({"event": "peer", "node": number, "address": address, "measured": true, "looks": trips.len() + node.unanswered, "unanswered": node.unanswered,
                    "round_trip_us": {"p50": p50, "p99": p99, "max": trips.max()}, "beat_us": {"p50": beat50, "p99": beat99, "max": beats.max()}})
            },
        );
        worst.round_trip = worst.round_trip.max(trips.max());
        worst.late = worst.late.max(node.latest_us());
    }
    format.print(
        format_args!("this command was kept from running for {:.1} ms at most", us(own) as f64 / 1e3),
        || json!({"event": "own", "late_us": us(own)}),
    );
    if missing.len() < nodes.len() {
        tell(cluster, worst, format);
    }
    match &missing[..] {
        [] => Ok(()),
        missing => Err(Fail::failed(format_args!("not measured: nodes {missing:?}"))),
    }
}

/// Says what follows, why, and what the cluster has now.
fn tell(cluster: &Cluster, worst: Worst, format: Format) {
    let (config, detector) = (cluster.config(), &cluster.config().detector);
    let missed = u64::from(detector.cap - detector.failure);
    let Settings { heartbeat_us, lease_us, broadcast_timeout_us } = propose(worst, missed, detector.broadcast_us);
    let ms = |us: u64| us as f64 / 1e3;
    format.print(
        format_args!(
            "\nsettings for cluster.toml that outlast twice the longest silence seen ({:.1} ms: a turn {:.1} ms late, an answer {:.1} ms under way):\n  \
             lease_us = {lease_us}   # now {}; a leader bears a stall of {:.1} ms\n  [detector]\n  \
             heartbeat_us = {heartbeat_us}   # now {}; with {missed} missed (cap - failure, as now), a node is presumed dead after {:.1} ms\n  \
             broadcast_timeout_us = {broadcast_timeout_us}   # now {}; that many without a broadcast, of which one is sent each {:.0} ms\n\
             this is what this host has seen: run the command on each host, and take the largest value of each setting",
            ms(worst.silence()),
            ms(worst.late),
            ms(worst.round_trip),
            config.lease_us,
            ms(lease_us) * 0.45,
            detector.heartbeat_us,
            ms(heartbeat_us * missed),
            detector.broadcast_timeout_us,
            ms(detector.broadcast_us)
        ),
        || {
            json!({"event": "settings", "late_us": worst.late, "round_trip_us": worst.round_trip,
                "lease_us": lease_us, "heartbeat_us": heartbeat_us, "missed": missed, "broadcast_timeout_us": broadcast_timeout_us,
                "now": {"lease_us": config.lease_us, "heartbeat_us": detector.heartbeat_us, "missed": missed, "broadcast_timeout_us": detector.broadcast_timeout_us}})
        },
    );
}

#[cfg(test)]
mod tests {
    use martlet_node::config::{ClusterConfig, Key};

    use super::*;

    #[test]
    fn a_beat_counts_from_the_look_that_first_found_the_one_before() {
        let mut node = Node::new(3);
        let start = Instant::now();
        let mut look = |at_ms: u64, found, ours| {
            let now = start + Duration::from_millis(at_ms);
            node.asked = Some(now - Duration::from_micros(300));
            node.note(found, now, ours);
        };
        for (at, count) in [(1, 7), (2, 7), (3, 8), (4, 8), (24, 9)] {
            look(at, Some(count), false);
        }
        // What we missed ourselves says nothing of it, nor does a silence of both.
        look(500, Some(10), true);
        look(501, Some(11), false);
        look(900, None, false);
        look(950, Some(12), false);
        node.end(start + Duration::from_millis(951));
        assert_eq!((node.beats_us.len(), node.unanswered), (3, 1));
        assert_eq!((node.round_trips_us.len(), node.round_trips_us.max()), (7, 300));
        assert!((20_990..=21_010).contains(&node.beats_us.max()), "{}", node.beats_us.max());
    }

    #[test]
    fn a_heart_that_stands_still_to_the_end_has_stood_still() {
        let mut node = Node::new(3);
        let start = Instant::now();
        node.asked = Some(start);
        node.note(Some(7), start, false);
        node.end(start + Duration::from_secs(4));
        assert!(node.beats_us.max() >= 3_990_000);
    }

    #[test]
    fn what_is_proposed_outlasts_twice_what_was_seen_and_a_cluster_takes_it() {
        let mut config = ClusterConfig::new("doctor", vec![NodeEntry::new(0)]);
        config.key = Some(Key::new([7; 32]).to_hex().into());
        let usual = Cluster::new(config).expect("the usual");
        let (missed, broadcast_us) = (5, usual.config().detector.broadcast_us);
        let of = |late, round_trip| propose(Worst { late, round_trip }, missed, broadcast_us);
        let quiet = of(100, 80);
        assert_eq!((quiet.heartbeat_us, quiet.lease_us), (LEAST_HEARTBEAT_US, LEAST_LEASE_US));
        for settings in [quiet, of(30_000, 4_000), of(2_000_000, 100_000)] {
            let changed = usual.with(|config| {
                config.lease_us = settings.lease_us;
                config.detector.heartbeat_us = settings.heartbeat_us;
                config.detector.broadcast_timeout_us = settings.broadcast_timeout_us;
            });
            assert!(changed.is_ok(), "{settings:?}: {changed:?}");
        }
        let busy = of(30_000, 4_000);
        assert!(busy.heartbeat_us * missed >= 68_000 && busy.lease_us * 45 / 100 >= 68_000, "{busy:?}");
        assert!(busy.heartbeat_us * missed < 75_000, "and no more than that: {busy:?}");
    }
}

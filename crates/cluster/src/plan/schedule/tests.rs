//! Compares the parameters of small networks with results computed by hand, and those of larger ones with simulated packets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;

use super::*;
use crate::plan::fat_tree;

/// Two hosts, two switches between them. A byte takes 8 ns.
fn pair(limits: &str, more: &str, requests: &[(&str, &str, u64, u64)]) -> String {
    let mut text = format!("[limits]\nframe_bytes = 0\n{limits}\n");
    for host in ["h1", "h2"] {
        text += &format!("[[host]]\nname = \"{host}\"\nlatency_ns = 100\njitter_ns = 10\n");
    }
    for (switch, latency) in [("s1", 1000), ("s2", 3000)] {
        text += &format!("[[switch]]\nname = \"{switch}\"\nlatency_ns = {latency}\njitter_ns = 500\nqueue_bytes = 3000\n");
        for host in ["h1", "h2"] {
            text += &format!("[[link]]\nbetween = [\"{host}\", \"{switch}\"]\nmbit_per_s = 1000\nlatency_ns = 20\njitter_ns = 1\n");
        }
    }
    for (sender, receiver, payload, period) in requests {
        text +=
            &format!("[[request]]\nsender = \"{sender}\"\nreceivers = [\"{receiver}\"]\npayload_bytes = {payload}\nperiod_ns = {period}\n");
    }
    text + more
}

fn plan(text: &str) -> Result<(Topology, Plan), String> {
    let topology = Topology::parse(Path::new("net.toml"), text).map_err(|error| error.to_string())?;
    let plan = Plan::new(&topology).map_err(|error| error.to_string())?;
    Ok((topology, plan))
}

#[test]
fn bounds_and_timeout_add_up_as_the_paper_says() {
    let (_, plan) = plan(&pair("", "", &[("h1", "h2", 880, 100_000)])).expect("a plan");
    let one = &plan.planned[0];
    assert_eq!((one.payload_bytes(), one.packet_bytes, one.period_ns), (880, 1000, 100_000), "what was asked for");
    // Both hosts, two links with 120 bytes at 8 ns each, and the switch.
    let latency = |switch: u64| 2 * 100 + 2 * (20 + 960) + switch;
    // Both hosts, two links, the switch, and 880 bytes more on each link.
    let jitter = 2 * 10 + 2 + 500 + 2 * 880 * 8;
    let mut paths = one.paths[0].clone();
    paths.sort();
    assert_eq!(
        paths,
        [PathBounds { latency_ns: latency(1000), jitter_ns: jitter }, PathBounds { latency_ns: latency(3000), jitter_ns: jitter }]
    );
    // The slower tree's latest arrival, measured from the faster tree's earliest.
    assert_eq!(one.bounds(0), PathBounds { latency_ns: latency(1000), jitter_ns: jitter + 2000 });
    assert_eq!(one.timeout_ns(0), 100_000 + latency(1000) + 2 * (jitter + 2000));
}

#[test]
fn other_traffic_in_the_queue_makes_packets_wait() {
    let alone = plan(&pair("", "", &[("h1", "h2", 0, 100_000)])).expect("a plan").1;
    let shared = "[[shared]]\nfrom = \"s1\"\nto = \"h2\"\nburst_bytes = 1000\nmbit_per_s = 500\n";
    let beside = plan(&pair("", shared, &[("h1", "h2", 0, 100_000)])).expect("a plan").1;
    let largest = |plan: &Plan| plan.planned[0].paths[0].iter().map(|path| path.jitter_ns).max().expect("trees");
    // A thousand bytes at the remaining half of the bandwidth.
    assert_eq!(largest(&beside), largest(&alone) + 16_000);
    let frame = plan(&pair("", "", &[("h1", "h2", 0, 100_000)]).replace("frame_bytes = 0", "frame_bytes = 1500")).expect("a plan").1;
    assert_eq!(largest(&frame), largest(&alone) + 2 * 12_000, "a frame of lower priority at each of two links");
}

#[test]
fn packets_are_cut_to_what_the_queue_holds() {
    let requests = [("h1", "h2", 1200, 1_000_000)];
    let limits = "queue_percent = 20";
    let (_, plan) = plan(&pair(limits, "", &requests)).expect("a plan");
    assert_eq!(plan.planned[0].packet_bytes, 600, "a fifth of 3000");
    assert!(plan.loads.iter().all(|load| load.room_bytes.is_none_or(|room| load.queued_bytes <= room)));
}

/// Three senders share a port: a later request takes something away from the earlier ones.
#[test]
fn a_later_request_takes_from_an_earlier_one() {
    let network = |senders: usize, queue: u64, rate: u64, payload: u64| {
        let mut text = String::from("[limits]\nframe_bytes = 0\n[[host]]\nname = \"to\"\n");
        for switch in ["s1", "s2"] {
            text += &format!("[[switch]]\nname = \"{switch}\"\nlatency_ns = 1\nqueue_bytes = {queue}\n");
            text += &format!("[[link]]\nbetween = [\"{switch}\", \"to\"]\nmbit_per_s = {rate}\n");
        }
        for sender in 0..senders {
            text += &format!("[[host]]\nname = \"from{sender}\"\n");
            for switch in ["s1", "s2"] {
                text += &format!("[[link]]\nbetween = [\"{switch}\", \"from{sender}\"]\nmbit_per_s = 10000\n");
            }
            text +=
                &format!("[[request]]\nsender = \"from{sender}\"\nreceivers = [\"to\"]\npayload_bytes = {payload}\nperiod_ns = 20000\n");
        }
        plan(&text)
    };
    let (_, one) = network(1, 1_300, 10_000, 880).expect("a plan");
    assert_eq!((one.planned[0].packet_bytes, one.planned[0].period_ns), (1000, 20_000));
    let (_, two) = network(2, 1_300, 10_000, 880).expect("a plan");
    assert_eq!(two.planned.iter().map(|one| one.packet_bytes).collect::<Vec<_>>(), [650, 650], "half of the queue each");
    assert!(two.planned[0].timeout_ns(0) > one.planned[0].timeout_ns(0) - 350 * 8, "and it waits for the other's packet");
    // A thousand bytes every 20 us are 400 Mbit/s; three times that is 1200, and there are 1000.
    let (topology, three) = network(3, 100_000, 1_000, 880).expect("a plan");
    for one in &three.planned {
        // 24 us because of the bandwidth; behind two other packets a packet may be 16 us late, which is less.
        assert_eq!(one.period_ns, 24_000);
    }
    let busiest = three.loads.iter().max_by_key(|load| load.share).expect("loads");
    assert_eq!((busiest.share, topology.name(topology.arcs[busiest.arc].to)), (10_000, "to"));
    let error = network(3, 300, 10_000, 0).expect_err("no room for three headers");
    assert_eq!(
        error,
        "net.toml: the queue from s1 to to has 300 bytes for 3 trees; allowed is at least 120 bytes for each (queue_bytes, limits.queue_percent, shared)"
    );
}

#[test]
fn no_packet_follows_one_that_may_still_be_under_way() {
    let (_, plan) = plan(&pair("", "", &[("h1", "h2", 880, 1_000)])).expect("a plan");
    let one = &plan.planned[0];
    let jitter = one.paths[0].iter().map(|path| path.jitter_ns).max().expect("trees");
    assert_eq!(one.period_ns, jitter.max(8_000), "eight microseconds are a thousand bytes at the link's rate");
}

#[test]
fn what_cannot_be_planned_is_said_with_what_is_allowed() {
    let base = pair("", "", &[("h1", "h2", 880, 100_000)]);
    let error = plan(&(base.clone() + "trees = 3\n")).expect_err("refused");
    assert!(error.starts_with("net.toml: request 1, trees is 3; allowed: at most 2"), "{error}");
    let narrow = base.replace("frame_bytes = 0", "bandwidth_percent = 40\nframe_bytes = 0");
    let error = plan(&(narrow + "[[shared]]\nfrom = \"h1\"\nto = \"s1\"\nburst_bytes = 1\nmbit_per_s = 400\n")).expect_err("refused");
    assert!(error.starts_with("net.toml") && error.contains("has no bandwidth left for the plan: 400 of 1000 Mbit/s"), "{error}");
}

#[test]
fn a_failure_is_planned_around_or_said_to_leave_too_little() {
    let file = fat_tree::file(2, 3);
    let topology = Topology::parse(Path::new("net.toml"), &file).expect("a topology");
    let whole = Plan::new(&topology).expect("a plan");
    assert!(whole.planned.iter().all(|one| one.search == Search::Regular));
    // A link between a rack's switch and the top: each of the other trees still has a path.
    let cut = topology.clone().without("edge1a:aggregationa").expect("a link");
    let mended = Plan::new(&cut).expect("another pair of trees");
    assert_eq!(mended.planned.len(), 3);
    for one in &mended.planned {
        for arc in one.trees.iter().flat_map(|tree| &tree.arcs).map(|&arc| &cut.arcs[arc]) {
            let ends = [cut.name(arc.from), cut.name(arc.to)];
            assert!(!(ends.contains(&"edge1a") && ends.contains(&"aggregationa")), "{ends:?}");
        }
    }
    let error = Plan::new(&topology.clone().without("aggregationa").expect("a switch")).expect_err("one top switch is left").to_string();
    assert!(error.contains("request 1, trees is 2; allowed: at most 1"), "{error}");
    let error = topology.without("edge9a").expect_err("no such switch");
    assert_eq!(error, "net.toml has no host and no switch \"edge9a\"; allowed is a NAME of one, or NAME:NAME for a link");
}

#[test]
fn the_trees_of_fat_trees_have_as_many_links_as_the_estimate_counts() {
    for height in 1..=3 {
        for hosts in 2..=4 {
            let (topology, plan) = plan(&fat_tree::file(height, hosts)).expect("a plan");
            for one in &plan.planned {
                assert_eq!(one.links(&topology), [Links::of_fat_tree(height, hosts); 2], "height {height}, {hosts} hosts");
            }
        }
    }
}

/// Sends packets over all trees of a plan, at random phases, with random delays and random sizes, past random frames of lower priority. Each packet arrives
/// within its bounds, and no queue overflows.
#[test]
fn every_packet_arrives_within_its_bounds() {
    for seed in 0..40 {
        let text = fat_tree::file(1 + seed % 3, 2 + seed % 4)
            .replace("queue_bytes = 65536", "queue_bytes = 4000")
            .replace("period_ns = 100000", "period_ns = 3000");
        let (topology, plan) = plan(&text).expect("a plan");
        let (packets, late) = send(&topology, &plan, seed);
        assert!(packets > 100, "{packets} packets");
        // Some packet uses most of its allowance, so the bounds are not merely large.
        assert!(late > 0.3, "seed {seed}: the latest packet used {late} of its jitter");
    }
}

/// Sends packets and checks them. Returns how many arrived, and what fraction of its jitter the latest one used.
fn send(topology: &Topology, plan: &Plan, seed: u64) -> (u64, f64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    // (when, a number that makes it unique) -> (request, tree, sent, bytes, at node)
    let mut events = BinaryHeap::new();
    let mut number = 0u64;
    for (at, one) in plan.planned.iter().enumerate() {
        let phase = rng.u64(0..one.period_ns);
        for tree in 0..one.trees.len() {
            for beat in 0..30 {
                let sent = phase + beat * one.period_ns;
                let host = &topology.nodes[one.request.sender];
                let leaves = sent + host.latency_ns + rng.u64(0..=host.jitter_ns);
                let bytes = if rng.bool() { one.packet_bytes } else { rng.u64(OVERHEAD_BYTES..=one.packet_bytes) };
                number += 1;
                events.push(Reverse((leaves, number, at, tree, sent, bytes, one.request.sender)));
            }
        }
    }
    // When each arc is free, and for each packet that waits for it: when it will be gone, and its size.
    let mut free: BTreeMap<usize, u64> = BTreeMap::new();
    let mut waiting: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    let (mut arrived, mut latest) = (0, 0.0f64);
    while let Some(Reverse((now, _, at, tree, sent, bytes, node))) = events.pop() {
        let one = &plan.planned[at];
        if let Some(receiver) = one.request.receivers.iter().position(|&receiver| receiver == node) {
            let bounds = one.paths[receiver][tree];
            let took = now - sent;
            assert!((bounds.latency_ns..=bounds.latest_ns()).contains(&took), "seed {seed}: {took} ns, allowed {bounds:?}");
            latest = latest.max((took - bounds.latency_ns) as f64 / bounds.jitter_ns as f64);
            arrived += 1;
            continue;
        }
        for &arc in one.trees[tree].arcs.iter().filter(|&&arc| topology.arcs[arc].from == node) {
            let queue = waiting.entry(arc).or_default();
            queue.retain(|(gone, _)| *gone > now);
            let busy = free.get(&arc).copied().unwrap_or(0);
            // If none of our packets was being sent, a frame of lower priority may have begun just before.
            let begins = if busy > now { busy } else { now + topology.transmission_ns(arc, rng.u64(0..=topology.frame_bytes)) };
            let gone = begins + topology.transmission_ns(arc, bytes);
            queue.push((gone, bytes));
            let held: u64 = queue.iter().map(|(_, bytes)| bytes).sum();
            if let Some(room) = plan.loads.iter().find(|load| load.arc == arc).and_then(|load| load.room_bytes) {
                assert!(held <= room, "seed {seed}: {held} bytes in a queue with room for {room}");
            }
            free.insert(arc, gone);
            let (link, next) = (&topology.arcs[arc], topology.arcs[arc].to);
            let through = &topology.nodes[next];
            let there = gone + link.latency_ns + rng.u64(0..=link.jitter_ns) + through.latency_ns + rng.u64(0..=through.jitter_ns);
            number += 1;
            events.push(Reverse((there, number, at, tree, sent, bytes, next)));
        }
    }
    (arrived, latest)
}

/// The file that the page shows is valid, and its plan is the one that the page shows.
#[test]
fn the_network_of_the_page_is_planned_as_the_page_says() {
    let page = include_str!("../../../../../docs/fide.md");
    let file = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a network on the page");
    let (_, plan) = plan(file).expect("a plan");
    let said = |what: String| assert!(page.contains(&what), "the page does not say: {what}");
    let one = &plan.planned[0];
    said(format!("packets of up to {} bytes every {} us", one.payload_bytes(), one.period_ns / 1000));
    said(format!("a timeout of {:.1} us", one.timeout_ns(0) as f64 / 1e3));
}

/// Files with lines lost, doubled and swapped, and with other numbers, including the largest allowed ones. Each is refused with a reason, or has a plan whose
/// timeouts agree with the paper. None makes the planner panic.
#[test]
fn any_file_is_planned_or_refused() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut planned, mut refused) = (0, 0);
    for _ in 0..1500 {
        let file = fat_tree::file(rng.u64(1..=3), rng.u64(2..=3))
            + "\n[[shared]]\nfrom = \"edgea\"\nto = \"h1\"\nburst_bytes = 10\nmbit_per_s = 10\n";
        let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
        for _ in 0..rng.usize(0..4) {
            let (at, other) = (rng.usize(0..lines.len()), rng.usize(0..lines.len()));
            match rng.u8(0..5) {
                0 => drop(lines.remove(at)),
                1 => lines.insert(other, lines[at].clone()),
                2 => lines.swap(at, other),
                _ => {
                    let number = [
                        "0",
                        "1",
                        "7",
                        "1418",
                        "10000",
                        "10000000",
                        "1000000000",
                        "1000000000000",
                        "9223372036854775807",
                        "-1",
                        "0.5",
                        "\"x\"",
                    ];
                    if let Some((key, _)) = lines[at].clone().split_once(" = ") {
                        lines[at] = format!("{key} = {}", number[rng.usize(0..number.len())]);
                    }
                }
            }
        }
        let text = lines.join("\n");
        match plan(&text) {
            Err(error) => {
                assert!(error.starts_with("net.toml"), "{error}");
                refused += 1;
            }
            Ok((_, plan)) => {
                planned += 1;
                for one in &plan.planned {
                    for receiver in 0..one.request.receivers.len() {
                        let PathBounds { latency_ns, jitter_ns } = one.bounds(receiver);
                        assert_eq!(one.timeout_ns(receiver), one.period_ns + latency_ns + 2 * jitter_ns);
                        assert!(one.period_ns >= one.request.period_ns && one.packet_bytes <= one.request.packet_bytes);
                    }
                }
            }
        }
    }
    assert!(planned > 50 && refused > 200, "{planned} planned, {refused} refused");
}

//! The network of the paper's examples (Figure 8): a fat tree with several roots, as a topology file.

use std::fmt::Write as _;

/// The text of a topology file: a fat tree of this height (half its diameter, 1 to 3), with this many hosts, which are as far from each other as they can be.
/// Every host, and every switch below the top, has two links upward, and each host asks for two trees to all others.
///
/// Latencies and sizes are those of a small network of 10 Gbit/s, to be replaced by measured ones.
///
/// # Panics
/// When the height is another one, or there are fewer than two hosts.
pub fn file(height: u64, hosts: u64) -> String {
    assert!((1..=3).contains(&height) && hosts >= 2, "a fat tree of height {height} with {hosts} hosts");
    let mut out = format!("# A fat tree of height {height} with {hosts} hosts (martlet plan example --height {height} --hosts {hosts}).\n");
    out += "# Times are in nanoseconds, sizes in bytes. docs/fide.md explains every key.\n";
    for host in 1..=hosts {
        let _ = write!(out, "\n[[host]]\nname = \"h{host}\"\nlatency_ns = 1000\njitter_ns = 2000\n");
    }
    let mut links = Vec::new();
    let mut switches = Vec::new();
    let mut top: Vec<(String, Vec<String>)> = (1..=hosts).map(|host| (format!("{host}"), vec![format!("h{host}")])).collect();
    for level in 1..=height {
        let names = ["edge", "aggregation", "core"];
        let (name, kind) = (names[level as usize - 1], if level == 3 { "core" } else { "trunk" });
        // At the top one pair of switches joins all hosts; below it, each host has a pair of its own.
        let groups: Vec<(String, Vec<String>)> = match level == height {
            true => vec![(String::new(), top.iter().flat_map(|(_, below)| below.clone()).collect())],
            false => top.clone(),
        };
        top = groups
            .into_iter()
            .map(|(group, below)| {
                let pair: Vec<String> = ["a", "b"].iter().map(|side| format!("{name}{group}{side}")).collect();
                for switch in &pair {
                    switches.push(switch.clone());
                    below.iter().for_each(|node| links.push((node.clone(), switch.clone(), kind)));
                }
                (group, pair)
            })
            .collect();
    }
    for switch in &switches {
        let _ = write!(out, "\n[[switch]]\nname = \"{switch}\"\nlatency_ns = 500\njitter_ns = 300\nqueue_bytes = 65536\n");
    }
    for (a, b, kind) in &links {
        let _ = write!(out, "\n[[link]]\nbetween = [\"{a}\", \"{b}\"]\nmbit_per_s = 10000\nlatency_ns = 50\nkind = \"{kind}\"\n");
    }
    for host in 1..=hosts {
        let receivers: Vec<String> = (1..=hosts).filter(|other| *other != host).map(|other| format!("\"h{other}\"")).collect();
        let _ = write!(
            out,
            "\n[[request]]\nsender = \"h{host}\"\nreceivers = [{}]\npayload_bytes = 1418\nperiod_ns = 100000\n",
            receivers.join(", ")
        );
    }
    out
}

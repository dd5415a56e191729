//! Each mistake in a network's file, with the whole message.

use super::*;

const FILE: &str = r#"[limits]
queue_percent = 50
[failures]
trunk = 0.1
[[host]]
name = "h1"
latency_ns = 10
[[host]]
name = "h2"
[[switch]]
name = "s1"
latency_ns = 10
queue_bytes = 3000
[[link]]
between = ["h1", "s1"]
mbit_per_s = 1000
[[link]]
between = ["h2", "s1"]
mbit_per_s = 1000
kind = "core"
[[shared]]
from = "h1"
to = "s1"
burst_bytes = 1
mbit_per_s = 999
[[request]]
sender = "h1"
receivers = ["h2"]
payload_bytes = 880
period_ns = 100000
trees = 1
"#;

fn said(text: &str) -> String {
    Topology::parse(Path::new("net.toml"), text).map_or_else(|error| error.to_string(), |_| "nothing".into())
}

#[test]
fn each_mistake_is_named_with_its_line_its_value_and_what_is_allowed() {
    assert_eq!(said(FILE), "nothing");
    let number = "a whole number from";
    let name = "1 to 64 letters, digits, '-', '_' or '.', in quotes";
    let (any, host) = ("the name of a [[host]] or a [[switch]], in quotes", "the name of a [[host]], in quotes");
    let two = "a list of two names, each of a [[host]] or a [[switch]], such as [\"h1\", \"s1\"]";
    let many = "a list of 1 to 64 names of a [[host]], such as [\"h1\", \"h2\"]";
    for (from, to, line, why) in [
        // Numbers outside of their ranges.
        ("percent = 50", "percent = 0", 2, "limits.queue_percent is 0; allowed: 1 to 100".into()),
        ("percent = 50", "percent = -1", 2, format!("limits.queue_percent is -1; allowed: {number} 1 to 100")),
        ("trunk = 0.1", "trunk = 1.5", 4, "failures.trunk is 1.5; allowed: a probability, from 0 to 1".into()),
        ("latency_ns = 10", "latency_ns = 1000000000001", 7, "host[0].latency_ns is 1000000000001; allowed: 0 to 1000000000000".into()),
        ("queue_bytes = 3000", "queue_bytes = 0", 13, "switch[0].queue_bytes is 0; allowed: 1 to 1000000000".into()),
        ("mbit_per_s = 1000", "mbit_per_s = 0", 16, "link[0].mbit_per_s is 0; allowed: 1 to 10000000".into()),
        ("mbit_per_s = 999", "mbit_per_s = 1000", 25, "shared[0].mbit_per_s is 1000; allowed: 0 to 999".into()),
        ("payload_bytes = 880", "payload_bytes = 1419", 29, "request[0].payload_bytes is 1419; allowed: 0 to 1418".into()),
        ("period_ns = 100000", "period_ns = 0", 30, "request[0].period_ns is 0; allowed: 1 to 1000000000000".into()),
        ("trees = 1", "trees = 9", 31, "request[0].trees is 9; allowed: 1 to 8".into()),
        // Values of a wrong type.
        ("[limits]", "[[limits]]", 1, "limits is a list; allowed: a table that begins with [limits]".into()),
        ("percent = 50", "percent = \"half\"", 2, format!("limits.queue_percent is \"half\"; allowed: {number} 1 to 100")),
        ("trunk = 0.1", "trunk = \"often\"", 4, "failures.trunk is \"often\"; allowed: a probability, from 0 to 1".into()),
        ("name = \"h2\"", "name = 2", 9, format!("host[1].name is 2; allowed: {name}")),
        ("queue_bytes = 3000", "queue_bytes = 1.5", 13, format!("switch[0].queue_bytes is 1.5; allowed: {number} 1 to 1000000000")),
        ("[\"h1\", \"s1\"]", "[\"h1\"]", 15, format!("link[0].between is [\"h1\"]; allowed: {two}")),
        ("[\"h1\", \"s1\"]", "\"h1\"", 15, format!("link[0].between is \"h1\"; allowed: {two}")),
        ("kind = \"core\"", "kind = \"trunc\"", 20, "link[1].kind is \"trunc\"; allowed: \"trunk\" or \"core\"".into()),
        ("kind = \"core\"", "usable = 1", 20, "link[1].usable is 1; allowed: true or false".into()),
        ("mbit_per_s = 999", "mbit_per_s = -1", 25, "shared[0].mbit_per_s is -1; allowed: a whole number from 0 to less than the link's mbit_per_s".into()),
        ("[\"h2\"]", "\"h2\"", 28, format!("request[0].receivers is \"h2\"; allowed: {many}")),
        ("[\"h2\"]", "[]", 28, format!("request[0].receivers is a list of 0; allowed: {many}")),
        ("trees = 1", "trees = true", 31, format!("request[0].trees is true; allowed: {number} 1 to 8")),
        // Names that are none, and links that lead nowhere.
        ("name = \"h2\"", "name = \"h 2\"", 9, format!("host[1].name is \"h 2\"; allowed: {name}")),
        ("[\"h1\", \"s1\"]", "[\"h1\", \"s9\"]", 15, format!("link[0].between is \"s9\"; allowed: {any}")),
        ("[\"h1\", \"s1\"]", "[\"h1\", \"h1\"]", 15, "link[0].between is [\"h1\", \"h1\"]; allowed: two different nodes".into()),
        (
            "[\"h1\", \"s1\"]",
            "[\"h1\", \"h2\"]",
            15,
            "link[0].between is [\"h1\", \"h2\"]; allowed: a host and a switch, or two switches: between two hosts there is nothing to plan".into(),
        ),
        ("from = \"h1\"", "from = \"h9\"", 22, format!("shared[0].from is \"h9\"; allowed: {any}")),
        ("to = \"s1\"", "to = \"h2\"", 23, "shared[0].to is \"h2\"; allowed: a node that a [[link]] joins with from, which is \"h1\"".into()),
        ("sender = \"h1\"", "sender = \"s1\"", 27, format!("request[0].sender is \"s1\"; allowed: {host}")),
        ("[\"h2\"]", "[\"h2\", \"s1\"]", 28, format!("request[0].receivers is \"s1\"; allowed: {host}")),
        ("[\"h2\"]", "[\"h1\"]", 28, "request[0].receivers is \"h1\"; allowed: hosts other than the sender, each once".into()),
        // What is there twice.
        ("name = \"h2\"", "name = \"h1\"", 9, "host[1].name is \"h1\"; allowed: a name that no other [[host]] or [[switch]] has".into()),
        ("name = \"s1\"", "name = \"h2\"", 11, "switch[0].name is \"h2\"; allowed: a name that no other [[host]] or [[switch]] has".into()),
        ("[\"h2\", \"s1\"]", "[\"s1\", \"h1\"]", 18, "link[1].between is [\"s1\", \"h1\"]; allowed: two nodes that no other [[link]] joins".into()),
        ("[\"h2\"]", "[\"h2\", \"h2\"]", 28, "request[0].receivers is \"h2\"; allowed: hosts other than the sender, each once".into()),
        ("trees = 1", "trees = 1\ntrees = 2", 32, "request[0].trees is given twice; allowed: once".into()),
        // Keys that are unknown or missing.
        ("trees = 1", "tree = 3", 31, "request[0].tree is an unknown key; allowed: sender, receivers, payload_bytes, period_ns, trees".into()),
        ("[limits]", "[limit]", 1, "limit is an unknown key; allowed: limits, failures, host, switch, link, shared, request".into()),
        ("trunk = 0.1", "trunc = 0.1", 4, "failures.trunc is an unknown key; allowed: trunk, core, group".into()),
        ("queue_bytes = 3000\n", "\n", 10, format!("switch[0].queue_bytes is missing; allowed: {number} 1 to 1000000000")),
        ("between = [\"h2\", \"s1\"]\n", "\n", 17, format!("link[1].between is missing; allowed: {two}")),
        ("sender = \"h1\"\n", "\n", 26, format!("request[0].sender is missing; allowed: {host}")),
        // No TOML.
        ("trees = 1", "trees", 31, "\"trees\" is not TOML: key with no value, expected `=`".into()),
    ] {
        assert!(FILE.contains(from), "{from}");
        assert_eq!(said(&FILE.replacen(from, to, 1)), format!("net.toml, line {line}: {why}"));
    }
}

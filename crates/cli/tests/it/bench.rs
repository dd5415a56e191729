//! The benchmarks run, and report everything that they should. How fast they are is not tested.

use serde_json::Value;

use crate::martlet::{Ran, fabric, free_ports, on_fabric, run};

/// How often to try a benchmark that other tests, or anything else on the machine, may disturb. A disturbed one notices it soon and says so.
const TRIES: u32 = 20;

/// Runs a benchmark and returns the metrics that it measured. Leaves out the reference figures, which are the same with all benchmarks and take seconds.
#[track_caller]
fn bench(arguments: &[&str]) -> Vec<String> {
    measured(arguments[0], run(&[&["bench", "--json", "--no-reference"], arguments].concat()))
}

/// The same on the fabric that these tests run on.
#[track_caller]
fn bench_on_fabric(arguments: &[&str]) -> Vec<String> {
    measured(arguments[0], run(&on_fabric(&[&["bench", "--json", "--no-reference"], arguments].concat())))
}

/// What a benchmark has measured, and nothing else.
#[track_caller]
fn measured(name: &str, ran: Ran) -> Vec<String> {
    let (reference, own) = figures(name, ran);
    assert_eq!(reference, Vec::<String>::new());
    own
}

/// Runs a benchmark with the reference figures, and returns its own metrics.
#[track_caller]
fn bench_with_reference(arguments: &[&str]) -> Vec<String> {
    let (reference, own) = figures(arguments[0], run(&[&["bench", "--json"], arguments].concat()));
    for wanted in ["clock read", "raw CAS", "raw write of 64 B to two lanes, with its fence", "bare death probe"] {
        assert!(reference.iter().any(|metric| metric == wanted), "{wanted} is missing among {reference:?}");
    }
    own
}

/// The reference figures that a benchmark has measured, and its own metrics.
#[track_caller]
fn figures(name: &str, ran: Ran) -> (Vec<String>, Vec<String>) {
    let objects = ran.ok().objects();
    let mut reference = Vec::new();
    let mut own = Vec::new();
    // All but the verdict of a benchmark that is judged, which is not a figure.
    for object in objects.iter().filter(|object| object["event"] != "passed") {
        let number = |key: &str| object[key].as_f64().unwrap_or_else(|| panic!("{key} is missing: {object}"));
        let ordered = [number("p50"), number("p90"), number("p99"), number("p999"), number("max")];
        assert!(ordered.is_sorted(), "{object}");
        assert!(number("n") > 0.0, "{object}");
        assert!(["ns", "us", "1/s", "1/min", "B"].contains(&object["unit"].as_str().expect("a unit")), "{object}");
        assert!(object["settings"]["cores"].is_array() && object["settings"]["build"].is_string(), "where it ran: {object}");
        let metric = object["metric"].as_str().expect("a metric").to_owned();
        match &object["bench"] {
            Value::String(bench) if bench == "reference" => reference.push(metric),
            Value::String(bench) => {
                assert_eq!(bench, name, "{object}");
                own.push(metric);
            }
            other => panic!("no bench: {other}"),
        }
    }
    (reference, own)
}

#[test]
fn the_machine_itself() {
    assert_eq!(bench_with_reference(&["reference"]), Vec::<String>::new());
}

#[test]
fn one_sided_operations() {
    let metrics = bench_on_fabric(&["fabric", "--samples", "200"]);
    let wanted = [
        "record written to two peers",
        "read of a word",
        "compare-and-swap",
        "write of ",
        "bytes a second, WRITEs of ",
        "round trip of records",
    ];
    for (metric, wanted) in metrics.iter().zip(wanted) {
        assert!(metric.starts_with(wanted), "{metric} in the place of {wanted}: {metrics:?}");
    }
    assert_eq!(metrics.len(), wanted.len(), "{metrics:?}");
}

#[test]
fn replicating_a_request() {
    let metrics = bench(&["replicate", "--engine", "mu", "--samples", "200"]);
    let attached = [
        "64 B to the store, executed alone",
        "4096 B to the store, replicated, direct",
        "64 B to the store, replicated, handover",
        "at most 24 B to the matching engine, replicated, direct",
        "at most 24 B to the matching engine, replicated, handover",
    ];
    let alone = ["64 B proposed and committed", "raw write of 64 B to two followers", "128 x 64 B in one record, 8 outstanding, requests"];
    for wanted in alone.into_iter().chain(attached) {
        assert!(metrics.iter().any(|metric| metric == wanted), "{wanted} is missing: {metrics:?}");
    }
    // Not in a test of its own, which would compete for the same cores at the same time.
    let metrics = bench(&["replicate", "--engine", "primary-backup", "--samples", "200"]);
    for wanted in ["64 B proposed and committed", "raw write of 64 B to two followers"].into_iter().chain(attached) {
        assert!(metrics.iter().any(|metric| metric == wanted), "{wanted} is missing: {metrics:?}");
    }
    assert!(!metrics.iter().any(|metric| metric.contains("outstanding")), "{metrics:?}");
    let why = run(&["bench", "--no-reference", "replicate", "--engine", "primary-backup", "--figure", "7"]).code(2).err;
    assert!(why.contains("--figure is 7") && why.contains("allowed are 3 and attached"), "{why}");
}

#[test]
fn requests_of_several_engines_in_one_run() {
    let ran = run(&["bench", "--json", "--no-reference", "replicate", "--engine", "dare,mu", "--samples", "200", "--figure", "3"]).ok();
    let objects = ran.objects();
    let figure = |metric: &str| {
        objects.iter().find(|object| object["metric"] == metric).unwrap_or_else(|| panic!("{metric} is missing: {objects:?}"))
    };
    // To each follower, of which one may not be there yet, go an entry and its pointers, or a record that contains its own proof that it is whole.
    for (engine, allowed) in [("dare", [2, 4]), ("mu", [1, 2])] {
        let settings = &figure(&format!("{engine} 64 B proposed and committed"))["settings"];
        let operations = settings[format!("{engine} operations_64B")].as_u64().expect("a number");
        assert!(allowed.contains(&operations), "{engine}: {operations}");
    }
    for (engines, figure, why) in [("mu,mu", "3", "--engine names mu twice"), ("dare,mu", "7", "--engine is dare,mu")] {
        let err = run(&["bench", "--no-reference", "replicate", "--engine", engines, "--figure", figure]).code(2).err;
        assert!(err.contains(why), "{err}");
    }
}

#[test]
fn a_figure_of_the_paper_is_drawn() {
    let file = std::env::temp_dir().join(format!("martlet-figure-{}.svg", std::process::id()));
    let path = file.to_str().expect("a path in UTF-8");
    let arguments = ["bench", "--no-reference", "replicate", "--engine", "mu", "--samples", "200", "--figure", "3", "--plot", path];
    let ran = run(&on_fabric(&arguments)).ok();
    assert!(ran.out.contains("raw write, p50") && !ran.out.contains("outstanding"), "{}", ran.out);
    let svg = std::fs::read_to_string(&file).expect("drawn");
    std::fs::remove_file(&file).expect("there");
    assert!(svg.starts_with("<svg ") && svg.contains("<polyline"), "{svg}");
}

#[test]
fn the_figures_of_dare() {
    let few = ["--samples", "100", "--rounds", "1", "--intervals", "5"];
    for (figure, clients, wanted) in [
        ("8a", "1", &["dare: write of 64 B, 5 servers", "mu: read of 2048 B, 5 servers", "raw writes of 64 B to 4 peers"][..]),
        ("8b", "3", &["dare: reads of 64 B, one client, 3 servers", "mu: writes of 2048 B, 3 clients, 3 servers"]),
        ("8c", "3", &["dare: 95 % reads of 64 B, 3 clients, 3 servers", "mu: 50 % reads of 64 B, one client, 3 servers"]),
        // With one client, a core that seven servers share has some time left for servers that join.
        ("9a", "1", &["dare: longest gap without a reply, leader fails", "dare: longest gap without a reply, leader removed"]),
    ] {
        let metrics = bench_on_fabric(&[&["dare", "--figure", figure, "--engines", "dare,mu", "--clients", clients], &few[..]].concat());
        for wanted in wanted {
            assert!(metrics.iter().any(|metric| metric == wanted), "{figure}: {wanted} is missing: {metrics:?}");
        }
    }
}

#[test]
fn the_figures_of_fide() {
    let port = free_ports(3).to_string();
    for (arguments, wanted) in [
        (&["figure3", "--beats", "200"][..], &["heartbeat, one way, ordinary class, busy cores"][..]),
        (
            &["figure4", "--seconds", "1", "--timeouts-us", "1001000"],
            &["false positives, timeout 1001000 us, busy cores", "false positives, timeout 1001000 us, idle cores"],
        ),
        (
            &["ends", "--count", "28"],
            &[
                "kill to upcall after the end of one thread, registered, threads act, without marks",
                "kill to upcall after exec, watched unchanged, without marks",
            ],
        ),
        (&["figure5", "--kills", "1"], &["kill to upcall, monitor asleep on another host", "kill to upcall, bare probe"]),
        (
            &["figure6", "--engines", "hsuc", "--failures", "1", "--requests", "1000", "--redis-port", &port],
            &["SET a second, hsuc, 1 failures tolerated, 2 nodes", "CPU time of a SET, hsuc, 1 failures tolerated, 2 nodes"],
        ),
    ] {
        // Where there is no Redis, the benchmark has said so.
        let metrics = bench(&[&["fide"], arguments].concat());
        for wanted in wanted {
            assert!(
                metrics.iter().any(|metric| metric == wanted) || arguments[0] == "figure6" && metrics.is_empty(),
                "{wanted} is missing: {metrics:?}"
            );
        }
    }
}

/// A registered program whose acting thread calls exec has failed.
#[test]
fn an_end_that_is_told_of_as_a_failure_ends_the_search_for_one_with_exit_code_4() {
    let why = run(&["bench", "--no-reference", "fide", "ends", "--count", "2", "--canary"]).code(4).err;
    let wanted = "a program that lived was reported as failed, by words, after 1 of 2 times exec; registered, threads act, without marks";
    assert!(why.contains(wanted), "{why}");
}

#[test]
fn the_models_of_dare() {
    let objects = run(&["model", "--json", "reliability"]).ok().objects();
    let group = |servers: u64| objects.iter().find(|object| object["servers"] == servers).expect("a group of that size");
    assert_eq!(group(7)["beats"][0], "RAID-5");
    assert_eq!(group(11)["beats"][1], "RAID-6");
    assert!(objects.iter().any(|object| object["component"] == "DRAM" && object["paper_mttf_hours"] == 22_177.0), "{objects:?}");
    let why = run(&["model", "reliability", "--memory-afr", "0"]).code(2).err;
    assert!(why.contains("--memory-afr") && why.contains("above 0, up to 10"), "{why}");
    let file = std::env::temp_dir().join(format!("martlet-model-{}.svg", std::process::id()));
    let path = file.to_str().expect("a path in UTF-8");
    let arguments = ["model", "--json", "latency", "--samples", "50", "--servers", "3", "--plot-requests", path];
    let objects = run(&on_fabric(&arguments)).ok().objects();
    for operation in ["write", "read", "datagram"] {
        let found = objects.iter().find(|object| object["operation"] == operation).expect("each kind of operation");
        assert!(found["points"].as_array().is_some_and(|points| points.len() >= 10) && found["r2"].is_number(), "{found}");
    }
    let write = objects.iter().find(|object| object["request"] == "write of 2048 B").expect("each size");
    assert!(write["p50_ns"].as_f64() > Some(0.0) && write["operations"] == 4 && write["fitted"] == false, "{write}");
    let svg = std::fs::read_to_string(&file).expect("drawn");
    std::fs::remove_file(&file).expect("there");
    assert!(svg.starts_with("<svg ") && svg.contains("<polyline"), "{svg}");
}

#[test]
fn taking_turns_on_a_core() {
    let metrics = bench(&["turns", "--requests", "2000", "--every-us", "100", "--work-us", "0,5"]);
    assert_eq!(metrics.len(), 3, "{metrics:?}");
    assert!(metrics[0].ends_with("has its core alone") && metrics[2].ends_with("every 100 us, for 5 us of work each"), "{metrics:?}");
}

#[test]
fn asking_for_a_lease() {
    let (active, own) = (["active", "--samples", "200"], ["clock read, in turn", "active, inside a lease"]);
    assert_eq!(bench_on_fabric(&active), own);
    // On a fabric that needs a virtual machine, the reference figures would take minutes.
    if fabric().is_empty() {
        assert_eq!(bench_with_reference(&active), own);
    }
}

#[test]
fn joining_a_cluster_with_a_state() {
    for (fabric, engine) in [("ethernet", "mu"), ("shm", "primary-backup")] {
        let arguments = ["--json", "--no-reference", "join", "--fabric", fabric, "--engine", engine, "--state-mb", "5", "--joins", "2"];
        let (reference, metrics) = figures("join", run(&[&["bench"], &arguments[..]].concat()));
        assert_eq!(reference, ["bytes a second over plain TCP"]);
        let set = ["before", "while a node joins"].map(|when| format!("SET of 64 B, one client, {when}"));
        assert_eq!(metrics, [&["bytes of state a second, to a node that joins".to_owned()], &set[..]].concat());
    }
}

#[test]
fn seeing_a_death() {
    let metrics = bench(&["detect", "--kills", "2"]);
    for victim in ["spinning", "asleep", "working", "with 512 MiB"] {
        for how in ["bare probe", "death seen by polling", "death seen out of sleep"] {
            let wanted = format!("{how}, victim {victim}");
            assert!(metrics.contains(&wanted), "{wanted} is missing: {metrics:?}");
        }
    }
    let why = run(&["bench", "--no-reference", "detect", "--fabric", "verbs"]).code(2).err;
    assert!(why.contains("--fabric is verbs") && why.contains("no death is certain") && why.contains("allowed is shm"), "{why}");
}

#[test]
fn failing_over() {
    let metrics = bench(&["failover", "--failovers", "2"]);
    assert!(metrics.iter().any(|metric| metric == "bare succession, in turn"), "{metrics:?}");
    assert!(metrics.contains(&"kill to next acknowledged write".to_owned()), "{metrics:?}");
    let port = crate::martlet::free_ports(3).to_string();
    let metrics = bench(&["failover", "--failovers", "2", "--redis", "--redis-port", &port]);
    assert!(metrics.contains(&"kill to took over".to_owned()), "{metrics:?}");
}

#[test]
fn failing_over_between_hosts_with_wardens_and_without() {
    let metrics = bench(&["failover", "--fabric", "ethernet", "--wardens", "--failovers", "6"]);
    for wanted in ["kill to next acknowledged write, without wardens", "kill to next acknowledged write, with wardens"] {
        assert!(metrics.iter().any(|metric| metric == wanted), "{wanted} is missing: {metrics:?}");
    }
    // Only a certain death counts as seen.
    assert!(metrics.iter().any(|metric| metric == "kill to death seen, with wardens"), "{metrics:?}");
    assert!(!metrics.iter().any(|metric| metric == "kill to death seen, without wardens"), "{metrics:?}");
}

#[test]
fn failing_over_on_one_host_while_the_primary_dumps_core_with_a_warden_and_without() {
    let metrics = bench(&["failover", "--wardens", "--how", "dumped", "--failovers", "6"]);
    for wanted in ["core dump to next acknowledged write, without wardens", "core dump to next acknowledged write, with wardens"] {
        assert!(metrics.iter().any(|metric| metric == wanted), "{metrics:?}");
    }
    let refused = run(&["bench", "--no-reference", "failover", "--unmarked", "--failovers", "1"]).code(2);
    assert!(refused.err.contains("--wardens"), "{}", refused.err);
}

#[test]
fn failing_over_with_an_election() {
    let metrics = bench(&["failover", "--engine", "mu", "--failovers", "2"]);
    for wanted in ["detection", "permission switch", "kill to took over", "kill to next acknowledged write"] {
        assert!(metrics.iter().any(|metric| metric == wanted), "{wanted} is missing: {metrics:?}");
    }
    let file = std::env::temp_dir().join(format!("martlet-failovers-{}.svg", std::process::id()));
    let path = file.to_str().expect("a path in UTF-8");
    let ran = run(&[
        "bench",
        "--no-reference",
        "failover",
        "--engine",
        "mu",
        "--how",
        "paused",
        "--election-us",
        "5000",
        "--failovers",
        "2",
        "--plot",
        path,
    ])
    .ok();
    assert!(ran.out.contains("pause to next acknowledged write") && ran.out.contains("leader paused 2 times"), "{}", ran.out);
    let svg = std::fs::read_to_string(&file).expect("drawn");
    std::fs::remove_file(&file).expect("there");
    assert!(svg.contains("permission switch") && svg.contains("<polyline"), "{svg}");
}

#[test]
fn the_store_beside_others() {
    for engine in ["primary-backup", "mu"] {
        let port = crate::martlet::free_ports(4).to_string();
        let size = ["--requests", "1001", "--repeats", "1", "--memory-keys", "100000"];
        let compare =
            || run(&[&["bench", "--json", "--no-reference", "kv", "--engine", engine, "--redis-port", &port], &size[..]].concat());
        // As above: a node that loses the lead closes its clients' connections, and redis-benchmark ends.
        let lost = |ran: &Ran| ran.code == Some(1) && ran.err.contains("Server closed the connection");
        let undisturbed = (0..TRIES).map(|_| compare()).find(|ran| !lost(ran)).expect("a leader that is left in peace once");
        for figure in undisturbed.objects() {
            let metric = figure["metric"].as_str().expect("a metric");
            assert_eq!(figure["settings"]["requests"], if metric.contains("pipeline 16") { 4004 } else { 1001 }, "{figure}");
            if figure["unit"] == "us" {
                assert_eq!(figure["n"], 1001, "{figure}");
            }
            if metric.starts_with("memory of a key") {
                // A key of 16 bytes and a value of 64 take at least those.
                assert!(figure["p50"].as_f64() >= Some(80.0), "{figure}");
            }
        }
        let metrics = measured("kv", undisturbed);
        for wanted in [
            "memory of a key, martlet, replicated three ways",
            "PUT on the fabric, unreplicated",
            "GET on the fabric, replicated three ways",
            "SET over TCP, one client, martlet, replicated three ways",
        ] {
            assert!(metrics.iter().any(|metric| metric == wanted), "{engine}: {wanted} is missing: {metrics:?}");
        }
    }
    let why = run(&["bench", "kv", "--memory-keys", "99999"]).code(2).err;
    assert!(why.contains("--memory-keys is 99999") && why.contains("allowed are 0 and 100000 or more"), "{why}");
}

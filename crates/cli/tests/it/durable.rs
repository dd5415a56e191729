//! Data on disk outlives all processes: the store keeps its data over an orderly end and over a crash of all nodes, and reports what is wrong with a disk.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Cluster;
use crate::martlet::{Ran, TempDir, await_mourners, command, free_ports, processes_about, ran};
use crate::nodes::{Load, ROOM, nothing_is_lost};

fn up(cluster: &Cluster, more: &[&str]) -> Ran {
    let usual = ["cluster", "up", "--engine", "mu", "--redis-port", &cluster.port.to_string(), "--patience", "120"];
    let sync: &[&str] = if more.contains(&"--durability") { &[] } else { &["--durability", "sync"] };
    cluster.run(&[&usual, sync, more].concat())
}

#[test]
fn the_store_keeps_its_data_over_an_end_and_over_a_crash_of_all() {
    let cluster = Cluster::new();
    up(&cluster, &[]).ok();
    cluster.run(&["set", "first", "kept"]).ok();
    let down = cluster.run(&["cluster", "down"]).ok().objects();
    assert!(down.iter().all(|object| object["event"] == "stopped"), "the data is on the disks: {down:?}");
    up(&cluster, &[]).ok();
    assert_eq!(cluster.run(&["get", "first"]).ok().objects()[0]["value"], "kept");
    cluster.run(&["set", "second", "kept too"]).ok();
    for node in ["0", "1", "2"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    up(&cluster, &[]).ok();
    for (key, value) in [("first", "kept"), ("second", "kept too")] {
        assert_eq!(cluster.run(&["get", key]).ok().objects()[0]["value"], value);
    }
    assert_eq!(cluster.members().len(), 3);
    let objects = cluster.run(&["status"]).ok().objects();
    let stable = objects.iter().filter_map(|node| node["counters"]["stable_index"].as_u64()).filter(|index| *index > 0).count();
    assert!(stable >= 2, "a majority has it on disk: {objects:?}");
    cluster.run(&["cluster", "down", "--purge"]).ok();
    assert!(!std::path::Path::new(&cluster.dir).exists(), "the data go with --purge");
}

/// Sends SIGTERM to these nodes, all at once, as a service manager does, and waits until they have ended.
fn end(cluster: &Cluster, nodes: &[u64]) {
    let pid = |node: &u64| cluster.nodes()[node].1.map(|pid| pid.to_string());
    let pids: Vec<String> = nodes.iter().filter_map(pid).collect();
    assert_eq!(pids.len(), nodes.len(), "all of them run");
    assert!(Command::new("kill").arg("-TERM").args(&pids).status().expect("there is a kill").success());
    while nodes.iter().any(|node| cluster.nodes()[node].1.is_some()) {}
}

/// Under load, all nodes end in order, or all but one, in each way that an operator and a service manager have. Then those that do not run are started again.
/// Writers go on throughout, and everything that was acknowledged to them is there.
fn is_ended_in_order_again_and_again(durability: &str) {
    let cluster = Cluster::with_room_for(ROOM);
    up(&cluster, &["--durability", durability]).ok();
    let load = Load::start(&cluster);
    for round in 0..6 {
        load.goes_on();
        match round % 3 {
            0 => end(&cluster, &[2, 0, 1]),
            1 => drop(cluster.run(&["cluster", "down"]).ok()),
            // The third node serves alone.
            _ => {
                end(&cluster, if round == 2 { &[0, 1] } else { &[1, 2] });
                load.goes_on();
            }
        }
        cluster.up_again().ok();
    }
    load.goes_on();
    nothing_is_lost(&cluster, &load.end());
}

#[test]
fn the_store_goes_on_after_orderly_ends_of_all_nodes_or_two_with_sync() {
    is_ended_in_order_again_and_again("sync");
}

#[test]
fn the_store_goes_on_after_orderly_ends_of_all_nodes_or_two_with_async() {
    is_ended_in_order_again_and_again("async");
}

#[test]
fn a_cluster_that_loses_its_power_shows_every_client_what_it_had_been_told() {
    let temp = TempDir::new();
    let port = free_ports(3).to_string();
    let arguments = ["torture", "--engine", "mu", "--durability", "sync", "--power-losses", "3", "--kills", "1", "--pauses", "0"];
    let more = ["--restarts", "1", "--redis-port", &port, "--seed", "11", "--json"];
    let mut command = command(&[&arguments[..], &more].concat());
    let objects = ran(command.env("TMPDIR", temp.path()).output().expect("the command is built")).ok().objects();
    assert_eq!(objects.iter().filter(|object| object["fault"] == "power loss").count(), 3);
    assert_eq!(objects.last().expect("a verdict")["event"], "passed");
    assert_eq!(processes_about(temp.path()), Vec::<u32>::new());
    await_mourners(temp.path());
}

/// The newest segment of a node.
fn segment(cluster: &Cluster, node: u16) -> PathBuf {
    let data = PathBuf::from(&cluster.dir).join(format!("data/node-{node}"));
    let entries = |path: &PathBuf| fs::read_dir(path).expect("there").map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>();
    let named = |path: &PathBuf, prefix: &str| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
    let life = entries(&data).into_iter().filter(|path| named(path, "life-")).max().expect("a life");
    entries(&life).into_iter().filter(|path| named(path, "segment-")).max().expect("a segment")
}

#[test]
fn a_torn_tail_is_cut_and_said_and_a_corruption_is_refused_by_file_and_byte() {
    let cluster = Cluster::new();
    up(&cluster, &[]).ok();
    let write = |numbers: std::ops::Range<u32>| numbers.for_each(|n| drop(cluster.run(&["set", "key", &format!("value {n}")]).ok()));
    write(0..10);
    // A node that dies while others live is removed from the group. The one whose data will be damaged dies first, so that it is not needed for a majority.
    cluster.run(&["cluster", "kill", "2"]).ok();
    cluster.await_members(2);
    write(10..20);
    for node in ["0", "1"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    // Half a frame after the last one, and a flipped bit in a frame that others follow.
    let torn = segment(&cluster, 1);
    let mut bytes = fs::read(&torn).expect("there");
    bytes.extend_from_slice(b"half a frame");
    fs::write(&torn, bytes).expect("written");
    let corrupt = segment(&cluster, 2);
    let mut bytes = fs::read(&corrupt).expect("there");
    bytes[64 + 16 + 5] ^= 1;
    fs::write(&corrupt, bytes).expect("written");

    let refused = up(&cluster, &[]);
    assert_ne!(refused.code, Some(0), "node 2 must not start:\n{}", refused.out);
    let log = |node: u16| fs::read_to_string(PathBuf::from(&cluster.dir).join(format!("node-{node}.log"))).expect("a log");
    let said = log(2);
    let wanted = format!("{}: corrupt at byte 64", corrupt.display());
    assert!(said.contains(&wanted), "{wanted:?} is not in\n{said}");
    // The other two are a majority and go on. Node 2 starts with an empty directory, and receives the state.
    fs::remove_dir_all(PathBuf::from(&cluster.dir).join("data/node-2")).expect("removed");
    up(&cluster, &[]).ok();
    assert_eq!(cluster.run(&["get", "key"]).ok().objects()[0]["value"], "value 19");
    assert!(log(1).contains("tail was torn"), "{}", log(1));
}

/// The power is lost after a node that has joined anew has been taken in, and before its earlier life has been removed from its disk.
#[test]
fn a_node_comes_back_as_what_it_was_last_though_what_it_was_before_still_stands_there() {
    let cluster = Cluster::new();
    up(&cluster, &[]).ok();
    let data = |node: u16| PathBuf::from(&cluster.dir).join(format!("data/node-{node}"));
    let lives = || {
        let entries = fs::read_dir(data(2)).expect("there").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("life-"))).collect::<Vec<_>>()
    };
    cluster.await_members(3);
    cluster.run(&["cluster", "kill", "2"]).ok();
    cluster.await_members(2);
    let before = lives();
    let [earlier] = &before[..] else { panic!("one life: {before:?}") };
    let kept = PathBuf::from(&cluster.dir).join("earlier");
    let copy = |from: &PathBuf, to: &PathBuf| {
        fs::create_dir_all(to).expect("made");
        for entry in fs::read_dir(from).expect("there").map(|entry| entry.expect("an entry")) {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    };
    copy(earlier, &kept);
    up(&cluster, &[]).ok();
    cluster.await_members(3);
    // When it removes its earlier life, it has been taken in, and its disk says so.
    while lives().iter().any(|life| life == earlier) {}
    cluster.run(&["set", "key", "value"]).ok();
    for node in ["0", "1", "2"] {
        cluster.run(&["cluster", "kill", node]).ok();
    }
    copy(&kept, earlier);
    // Another disk is lost, so node 2 is needed.
    fs::remove_dir_all(data(0)).expect("removed");
    up(&cluster, &[]).ok();
    assert_eq!(cluster.run(&["get", "key"]).ok().objects()[0]["value"], "value");
}

/// How this process can mount something for itself and its children, if it is allowed to.
fn namespaces() -> Option<Vec<&'static str>> {
    let ways: [&[&str]; 2] = [&["-m"], &["-rm"]];
    let works = |way: &&[&str]| {
        Command::new("unshare").args(*way).args(["mount", "-t", "tmpfs", "none", "/mnt"]).output().is_ok_and(|ran| ran.status.success())
    };
    ways.into_iter().find(works).map(<[&str]>::to_vec)
}

/// A node whose disk has room for a megabyte leaves, with an error; the others go on.
fn a_full_disk_takes_its_node_out(node: u16) {
    let Some(way) = namespaces() else {
        eprintln!("SKIPPED: a disk that fills up; this needs the right to mount a small file system (unshare -m, or -rm)");
        return;
    };
    let cluster = Cluster::new();
    let small = PathBuf::from(&cluster.dir).join(format!("data/node-{node}"));
    fs::create_dir_all(&small).expect("made");
    let port = cluster.port.to_string();
    let script = "mount -t tmpfs -o size=1m none \"$0\" && exec \"$@\"";
    let up = ["cluster", "up", "--engine", "mu", "--durability", "sync", "--redis-port", &port, "--patience", "120", "--dir", &cluster.dir];
    let mut inside = Command::new("unshare");
    inside.args(way).args(["sh", "-c", script]).arg(&small).arg(env!("CARGO_BIN_EXE_martlet")).args(up);
    ran(inside.output().expect("it has just worked")).ok();

    // On a machine with time for it, the lowest number leads. Each value goes to the leader of the moment. A value whose outcome is unknown is not counted.
    let value = "v".repeat(16 << 10);
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if cluster.nodes()[&u64::from(node)].0 == "gone" {
            break;
        }
        let key = format!("k{number}");
        if cluster.run(&["set", &key, &value]).code == Some(0) {
            acknowledged.push(key);
        }
    }
    let log = fs::read_to_string(PathBuf::from(&cluster.dir).join(format!("node-{node}.log"))).expect("a log");
    for words in [
        "cannot write to the disk any more: this node ends",
        small.to_str().expect("UTF-8"),
        "cannot write to it",
        "No space left on device",
    ] {
        assert!(log.contains(words), "{words:?} is not in\n{log}");
    }
    assert!(acknowledged.len() > 20, "{} values", acknowledged.len());
    cluster.run(&["set", "after", "all"]).ok();
    for key in acknowledged.iter().step_by(9).chain(acknowledged.last()) {
        assert_eq!(cluster.run(&["get", key]).ok().objects()[0]["value"].as_str().map(str::len), Some(value.len()), "{key}");
    }
    // Outside of the mount its directory is another one, and empty. It receives the state, and is a member again.
    self::up(&cluster, &[]).ok();
    assert_eq!(cluster.run(&["get", "after"]).ok().objects()[0]["value"], "all");
}

#[test]
fn a_full_disk_takes_the_leader_out_loudly_and_the_others_go_on() {
    a_full_disk_takes_its_node_out(0);
}

#[test]
fn a_full_disk_takes_a_follower_out_loudly_and_the_others_go_on() {
    a_full_disk_takes_its_node_out(2);
}

#[test]
fn durability_without_a_journal_is_refused_with_what_is_allowed() {
    let cluster = Cluster::new();
    let refused = cluster.run(&["cluster", "up", "--durability", "sync"]).code(2);
    assert!(refused.err.contains("--durability is sync; with --engine primary-backup"), "{}", refused.err);
    let refused = cluster.run(&["cluster", "up", "--durability", "disk"]).code(2);
    assert!(refused.err.contains("allowed are memory, async, sync"), "{}", refused.err);
}

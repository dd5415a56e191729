//! The demonstration and the trials, at a small size, and that they leave nothing behind, however they end.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::martlet::{Ran, TempDir, await_mourners, command, every_process_about, free_ports, is_mourner, processes_about, ran};

fn run_in(temp: &TempDir, arguments: &[&str]) -> Ran {
    let mut command = command(arguments);
    ran(command.env("TMPDIR", temp.path()).output().expect("the command is built"))
}

fn nothing_left(temp: &TempDir) {
    assert_eq!(processes_about(temp.path()), Vec::<u32>::new());
    await_mourners(temp.path());
    let files: Vec<_> = std::fs::read_dir(temp.path()).expect("there").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(files, Vec::<std::path::PathBuf>::new());
}

#[test]
fn the_demonstration_shows_a_failover_and_proves_that_nothing_was_lost() {
    let temp = TempDir::new();
    let objects = run_in(&temp, &["demo", "--kills", "1", "--json"]).ok().objects();
    let of = |event: &str| objects.iter().filter(|object| object["event"] == event).collect::<Vec<_>>();
    assert_eq!(of("started").len(), 3);
    let [failover] = of("failover")[..] else { panic!("one failover: {objects:?}") };
    let moments = failover["moments"].as_array().expect("moments");
    let steps: Vec<&str> = moments.iter().filter_map(|moment| moment["what"].as_str()).collect();
    for step in [
        "death seen",
        "view proposed",
        "view decided",
        "view acknowledged",
        "view active",
        "took over",
        "first reply sent",
        "first reply received",
    ] {
        assert!(steps.contains(&step), "{step} is missing: {steps:?}");
    }
    assert_eq!(of("checked")[0]["linearizable"], Value::Bool(true));
    assert!(of("checked")[0]["operations"].as_u64() > Some(100));
    assert!(of("checked")[0]["connections_kept"].is_u64(), "{objects:?}");
    assert_eq!(of("done")[0]["left_behind"], 0);
    nothing_left(&temp);
}

/// Its nodes have no address in common, which clients could stay connected to, and a death costs a lease.
#[test]
fn the_demonstration_shows_a_failover_over_udp() {
    let temp = TempDir::new();
    let objects = run_in(&temp, &["demo", "--fabric", "ethernet", "--kills", "1", "--json"]).ok().objects();
    let of = |event: &str| objects.iter().filter(|object| object["event"] == event).collect::<Vec<_>>();
    assert_eq!(of("failover").len(), 1, "{objects:?}");
    assert_eq!((&of("checked")[0]["linearizable"], &of("checked")[0]["connections_kept"]), (&Value::Bool(true), &Value::Null));
    assert_eq!(of("done")[0]["left_behind"], 0);
    nothing_left(&temp);
}

/// Kills, pauses and restarts under load. The command judges what its clients saw.
fn a_trial_strikes_in_every_way(engine: &str, fabric: &str) {
    let temp = TempDir::new();
    let port = free_ports(4).to_string();
    let counts = ["--kills", "3", "--pauses", "2", "--restarts", "2", "--changes", "2"];
    let arguments = [&["torture", "--engine", engine, "--fabric", fabric, "--redis-port", &port], &counts[..]].concat();
    let objects = run_in(&temp, &[&arguments[..], &["--seed", "7", "--json"]].concat()).ok().objects();
    let struck = |fault: &str| objects.iter().filter(|object| object["fault"] == fault).count();
    assert_eq!([struck("kill"), struck("pause"), struck("restart"), struck("change")], [3, 2, 2, 2]);
    let passed = objects.last().expect("a verdict");
    assert_eq!((&passed["event"], &passed["seed"]), (&Value::from("passed"), &Value::from(7)));
    assert!(passed["connections_kept"].is_u64());
    nothing_left(&temp);
}

#[test]
fn a_trial_strikes_a_primary_and_its_backups_in_every_way() {
    a_trial_strikes_in_every_way("primary-backup", "shm");
}

#[test]
fn a_trial_strikes_replicas_of_mu_in_every_way() {
    a_trial_strikes_in_every_way("mu", "shm");
}

/// The node that is left serves alone, and takes the others in again.
#[test]
fn a_trial_kills_all_but_one_at_once() {
    let none = ["--kills", "0", "--pauses", "0", "--restarts", "0", "--json"];
    // On a busy host the node that should be left may itself be taken for dead. Then nothing can be shown, and the command says so.
    loop {
        let temp = TempDir::new();
        let port = free_ports(5).to_string();
        let arguments = ["torture", "--engine", "hsuc", "--nodes", "5", "--all-but-one", "1", "--redis-port", &port];
        let ran = run_in(&temp, &[&arguments[..], &none].concat());
        nothing_left(&temp);
        if ran.err.contains("use a host that is less busy") {
            continue;
        }
        let objects = ran.ok().objects();
        assert_eq!(objects.iter().filter(|object| object["fault"] == "all but one").count(), 1);
        assert_eq!(objects.last().expect("a verdict")["event"], "passed");
        break;
    }
    for (engine, fabric, wanted) in [
        (
            "mu",
            "shm",
            "--all-but-one is 1, but with --engine mu a majority of the replicas has to live; allowed are primary-backup, hsuc, huc",
        ),
        ("hsuc", "ethernet", "--all-but-one is 1, but with --fabric ethernet a majority of the coordinators has to live; allowed are shm"),
    ] {
        let why = run_in(&TempDir::new(), &["torture", "--engine", engine, "--fabric", fabric, "--all-but-one", "1"]).code(2).err;
        assert!(why.contains(wanted), "{why}");
    }
}

/// Nodes that reach each other by packets only, as if each were on its own host.
#[test]
fn a_trial_over_udp_strikes_a_primary_and_its_backups_in_every_way() {
    a_trial_strikes_in_every_way("primary-backup", "ethernet");
}

#[test]
fn a_trial_over_udp_strikes_replicas_of_mu_in_every_way() {
    a_trial_strikes_in_every_way("mu", "ethernet");
}

#[test]
fn a_trial_over_udp_strikes_replicas_of_dare_in_every_way() {
    a_trial_strikes_in_every_way("dare", "ethernet");
}

/// Wardens are killed, restarted, killed with their nodes, and forged: no node believes what is forged, and no client sees anything wrong.
#[test]
fn a_trial_strikes_the_wardens_of_the_nodes_hosts_in_every_way() {
    let temp = TempDir::new();
    let port = free_ports(3).to_string();
    let none = ["--kills", "0", "--pauses", "0", "--restarts", "0", "--json"];
    let arguments = ["torture", "--fabric", "ethernet", "--wardens", "4", "--redis-port", &port];
    let objects = run_in(&temp, &[&arguments[..], &none].concat()).ok().objects();
    let struck = |fault: &str| objects.iter().filter(|object| object["fault"] == fault).count();
    assert_eq!(["warden killed", "warden restarted", "warden forged", "both killed"].map(struck), [1; 4]);
    let passed = objects.last().expect("a verdict");
    assert_eq!((&passed["event"], &passed["forged"]), (&Value::from("passed"), &Value::from(1)));
    nothing_left(&temp);
    let why = run_in(&temp, &["torture", "--wardens", "1"]).code(2).err;
    assert!(why.contains("--wardens is 1, but with --fabric shm") && why.contains("allowed are"), "{why}");
}

/// A demonstration that has got to its load.
fn begun(temp: &TempDir) -> Child {
    let mut child = command(&["demo", "--kills", "1000", "--json"])
        .env("TMPDIR", temp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command is built");
    let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    for _ in 0..3 {
        let line = lines.next().expect("a line").expect("UTF-8");
        assert!(line.contains("started"), "{line}");
    }
    assert_eq!(processes_about(temp.path()).len(), 3);
    child
}

#[test]
fn ctrl_c_ends_it_and_leaves_nothing() {
    let temp = TempDir::new();
    let mut child = begun(&temp);
    let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(told.success());
    // It prints until it notices the signal. The output is read here, or it could wait for us.
    let output = child.stdout.take().map(|out| BufReader::new(out).lines().count());
    assert!(output.is_some());
    assert_eq!(child.wait().expect("ours").code(), Some(130));
    // The processes that have nothing open any more end next.
    let keepers = every_process_about(temp.path()).filter(|pid| is_mourner(*pid));
    let keeping: Vec<u32> =
        keepers.filter(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut open| open.next().is_some())).collect();
    assert_eq!(keeping, Vec::<u32>::new(), "nobody is left to go on with connections");
    nothing_left(&temp);
}

/// The second signal comes long before the work after the first is done.
#[test]
fn a_second_signal_has_it_hurry_and_nothing_is_left_all_the_same() {
    let port = free_ports(3).to_string();
    for arguments in [
        &["demo", "--kills", "1000"][..],
        &["torture", "--kills", "1000", "--redis-port", &port],
        &["torture", "--fabric", "ethernet", "--wardens", "1000", "--redis-port", &port],
        &["bench", "--no-reference", "failover", "--failovers", "1000"],
    ] {
        let temp = TempDir::new();
        let mut child = command(arguments)
            .env("TMPDIR", temp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command is built");
        while processes_about(temp.path()).len() < 3 {
            assert!(child.try_wait().expect("ours").is_none(), "{arguments:?} goes on");
            std::thread::yield_now();
        }
        let pid = Pid::from_raw(child.id() as i32).expect("a number");
        // Of two pending signals of one kind the kernel makes one.
        [Signal::INT, Signal::TERM].into_iter().for_each(|signal| kill_process(pid, signal).expect("ours"));
        assert_eq!(child.wait().expect("ours").code(), Some(130), "{arguments:?}");
        nothing_left(&temp);
    }
}

#[test]
fn no_node_outlives_a_demonstration_that_is_killed() {
    let temp = TempDir::new();
    let mut child = begun(&temp);
    child.kill().expect("ours");
    child.wait().expect("ours");
    // The kernel ends them with their parent, which takes a moment.
    while !processes_about(temp.path()).is_empty() {
        std::thread::yield_now();
    }
    await_mourners(temp.path());
}

#[test]
fn no_warden_outlives_a_trial_that_is_killed() {
    let temp = TempDir::new();
    let port = free_ports(3).to_string();
    // There are so many pauses, and with this seed they come first, so that no process is being started just then.
    let arguments = ["torture", "--fabric", "ethernet", "--wardens", "1", "--pauses", "1000", "--kills", "0", "--restarts", "0"];
    let mut child = command(&[&arguments[..], &["--seed", "1", "--redis-port", &port, "--json"]].concat())
        .env("TMPDIR", temp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command is built");
    let line = BufReader::new(child.stdout.as_mut().expect("piped")).lines().next().expect("a line").expect("UTF-8");
    assert!(line.contains("\"begin\""), "{line}");
    assert_eq!(processes_about(temp.path()).len(), 6, "a node and a warden on each of three hosts");
    child.kill().expect("ours");
    child.wait().expect("ours");
    while !processes_about(temp.path()).is_empty() {
        std::thread::yield_now();
    }
    await_mourners(temp.path());
}

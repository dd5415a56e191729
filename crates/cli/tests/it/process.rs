//! What the system does to a node's process: signals, limits, and the end of its second process.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::Cluster;
use crate::martlet::{await_mourners, command, fabric, is_mourner, run};

fn kill(pid: u64, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a number");
    kill_process(pid, signal).expect("a process of ours");
}

fn pid_of(cluster: &Cluster, node: u64) -> u64 {
    cluster.nodes()[&node].1.expect("it runs")
}

#[track_caller]
fn set(cluster: &Cluster, value: &str) {
    cluster.run(&["set", "key", value, "--timeout", "120000"]).ok();
}

#[test]
fn signals_that_mean_nothing_to_a_node_do_nothing() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let before = cluster.nodes();
    let named = [
        Signal::HUP,
        Signal::PIPE,
        Signal::XFSZ,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::POWER,
        Signal::STKFLT,
        Signal::XCPU,
    ];
    for signal in named.map(Signal::as_raw).into_iter().chain(34..=64) {
        let pids: Vec<String> = before.values().map(|(_, pid)| pid.expect("it runs").to_string()).collect();
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{signal} {}", pids.join(" "))).status().expect("a shell");
        assert!(sent.success(), "{signal}");
        set(&cluster, "value");
        assert_eq!(cluster.nodes(), before, "{signal}");
    }
    assert!(cluster.run(&["members"]).ok().out.contains("\"view\":"));
}

#[test]
fn a_node_that_a_signal_ends_says_by_which() {
    let cluster = alone(&[]);
    for (signal, name) in [
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::SYS, "SIGSYS"),
    ] {
        let mut node = limited(&cluster, &[]).stderr(Stdio::piped()).spawn().expect("a shell");
        let mut log = BufReader::new(node.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("node n0 starts") {
            assert!(log.read_line(&mut said).expect("UTF-8") > 0, "{said}");
        }
        kill(node.id().into(), signal);
        log.read_to_string(&mut said).expect("UTF-8");
        assert_eq!(node.wait().expect("ours").signal(), Some(signal.as_raw()), "{said}");
        let ends = format!("martlet: process {} ends by {name}, which process {} has sent\n", node.id(), std::process::id());
        assert!(said.contains(&ends), "{said}");
    }
}

/// A node that runs in the foreground under limits: `ulimit` with these arguments.
fn limited(cluster: &Cluster, limits: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    let limits: String = limits.iter().map(|limit| format!("ulimit {limit} && ")).collect();
    let node = command(&["node", "--config", &format!("{}/node-0.toml", cluster.dir)]);
    shell.arg("-c").arg(format!("{limits}exec \"$0\" \"$@\"")).arg(node.get_program()).args(node.get_args());
    shell.stdin(Stdio::null()).env_remove("RUST_LOG");
    shell
}

fn alone(more: &[&str]) -> Cluster {
    let cluster = Cluster::new();
    cluster.up_with(&[&["--replicas", "1", "--coordinators", "1"], more].concat()).ok();
    set(&cluster, "value");
    cluster.run(&["cluster", "down"]).ok();
    cluster
}

#[test]
fn a_limit_that_a_node_cannot_run_with_is_named_at_its_start() {
    if !fabric().is_empty() {
        eprintln!("SKIPPED: how much memory there is to be depends on the fabric");
        return;
    }
    let cluster = alone(&["--engine", "mu", "--durability", "sync"]);
    let refused = |limit: &str, named: &str| {
        let mut node = limited(&cluster, &[limit]).stderr(Stdio::piped()).spawn().expect("a shell");
        let mut log = BufReader::new(node.stderr.take().expect("piped"));
        let mut said = String::new();
        while log.read_line(&mut said).expect("UTF-8") > 0 {
            if said.contains("node n0 starts") {
                node.kill().expect("ours");
            }
        }
        assert_eq!(node.wait().expect("ours").code(), Some(1), "{limit}: {said}");
        assert!(said.contains("error: ") && said.contains(named), "{limit}: {said}");
    };
    refused("-n 30", "the limit of file descriptors (ulimit -n) is 30; a node in a cluster of 1 needs at least 64");
    refused("-s 128", "the limit of the stack (ulimit -s) is 131072 bytes; allowed are 524288 at least");
    refused("-f 100", "(ulimit -f) is 51200 bytes; shared memory is a file to the system");
    refused("-f 65000", "(ulimit -f) is 33280000 bytes; a file of the log on disk takes 67108864 (durability.segment_bytes)");
    // Far more than the rest of the process could use.
    let file = format!("{}/cluster.toml", cluster.dir);
    let text = fs::read_to_string(&file).expect("its file");
    fs::write(&file, text.replace("log_ring_bytes = 4194304", "log_ring_bytes = 536870912")).expect("ours");
    refused("-v 400000", "the limit of address space (ulimit -v) is 409600000 bytes; this node maps");
}

#[test]
fn a_core_that_a_node_may_not_use_is_a_wrong_setting() {
    let cluster = alone(&[]);
    let file = format!("{}/node-0.toml", cluster.dir);
    let text = fs::read_to_string(&file).expect("its file");
    let allowed: Vec<String> = martlet_node::sched::allowed_cores().expect("a process may ask").iter().map(u16::to_string).collect();
    // Below the highest number that can be named, and above what any host that runs tests has.
    for named in ["[1022]", &format!("[{}, 1022]", allowed[0])] {
        fs::write(&file, text.replace("pin = \"auto\"", &format!("pin = {named}"))).expect("ours");
        let said = run(&["node", "--config", &file]).code(2).err;
        let wanted = format!(
            "{file}: node n0: threads.pin is {named}; allowed: \"none\", \"auto\", or a list of cores that this process may use: {}",
            allowed.join(", ")
        );
        assert!(said.contains(&wanted), "{said}\nwanted: {wanted}");
    }
    let said = run(&["bench", "kv", "--pin", "1022"]).code(2).err;
    assert!(said.contains("--pin") && said.contains("1022") && said.contains(&allowed.join(", ")), "{said}");
}

/// As `prlimit --fsize` does to a running process.
#[test]
fn a_log_on_disk_that_may_not_grow_is_a_full_disk() {
    let cluster = Cluster::new();
    cluster.up_with(&["--engine", "mu", "--durability", "sync"]).ok();
    set(&cluster, "first");
    let backup = cluster.nodes().into_keys().map(|node| node.to_string()).find(|node| *node != cluster.primary()).expect("three nodes");
    let pid = pid_of(&cluster, backup.parse().expect("a number"));
    let limited = Command::new("prlimit").args(["--fsize=4096:4096", "--pid", &pid.to_string()]).status().expect("prlimit is there");
    assert!(limited.success());
    // It serves, and what it cannot write is not missed.
    while cluster.nodes()[&backup.parse().expect("a number")].0 != "gone" {
        set(&cluster, &"x".repeat(10_000));
    }
    set(&cluster, "last");
    assert_eq!(cluster.run(&["get", "key", "--timeout", "120000"]).ok().objects()[0]["value"], "last");
    let log = fs::read_to_string(format!("{}/node-{backup}.log", cluster.dir)).expect("its log");
    let why = "cannot write to it: File too large (os error 27); the limit of a file's size (ulimit -f) is 4096 bytes";
    assert!(log.contains(why) && log.contains("cannot write to the disk any more: this node ends"), "{log}");
}

#[test]
fn a_node_whose_processor_time_is_used_up_leaves_in_order() {
    let cluster = alone(&[]);
    let file = format!("{}/node-0.toml", cluster.dir);
    let text = fs::read_to_string(&file).expect("its file");
    fs::write(&file, text.replace("[threads]", "[threads]\nidle = \"spin\"").replace("idle = \"adaptive\"\n", "")).expect("ours");
    let out = limited(&cluster, &["-t 3"]).stderr(Stdio::piped()).spawn().and_then(Child::wait_with_output).expect("a shell");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("the limit of processor time (ulimit -t) is 3 s: this node leaves when it has used 2 s"), "{said}");
    assert!(said.contains("the processor time that this process may use (ulimit -t) is used up"), "{said}");
}

/// Each further thread costs the clients about 30 us after a kill: docs/failover-time.md.
#[test]
fn a_node_keeps_one_helper_beside_the_one_that_listens_for_its_sockets() {
    if !fabric().is_empty() {
        eprintln!("SKIPPED: on other fabrics there are other helpers");
        return;
    }
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    set(&cluster, "value");
    for (_, pid) in cluster.nodes().values() {
        let pid = pid.expect("it runs");
        // Threads that write what it logs and read its files end by themselves.
        let mut looks = 0;
        let names = loop {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"))
                .expect("it runs")
                .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
            let mut names: Vec<String> = tasks.map(|name| name.trim_end().to_owned()).filter(|name| name != "martlet-crier").collect();
            names.sort();
            // A thread has its parent's name until it takes its own.
            let is_calm = !names.iter().any(|name| ["martlet-log", "martlet-file"].contains(&name.as_str()));
            if is_calm && names.iter().filter(|name| *name == "martlet-boot").count() == 1 {
                break names;
            }
            looks += 1;
            assert!(looks < 1_000_000, "{names:?} stay");
            std::thread::yield_now();
        };
        assert_eq!(names, ["martlet", "martlet-boot"]);
    }
}

#[test]
fn a_second_process_that_dies_is_replaced() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let pid = pid_of(&cluster, 0);
    let second = || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("a kernel that tells");
        children.split_whitespace().map(|child| child.parse::<u32>().expect("a number")).find(|child| is_mourner(*child))
    };
    let mut killed = Vec::new();
    for _ in 0..3 {
        let next = loop {
            match second() {
                Some(next) if !killed.contains(&next) => break next,
                _ => std::thread::yield_now(),
            }
        };
        kill(next.into(), Signal::KILL);
        killed.push(next);
    }
    set(&cluster, "value");
    let last = loop {
        match second() {
            Some(next) if !killed.contains(&next) => break next,
            _ => std::thread::yield_now(),
        }
    };
    // The second process does what it is for, and ends after the node.
    cluster.run(&["cluster", "kill", "0"]).ok();
    while is_mourner(last) {
        std::thread::yield_now();
    }
    await_mourners(cluster.temp.path().join("c/node-0.toml").as_path());
    set(&cluster, "another");
}

#[test]
fn nothing_listens_beyond_this_host_without_a_password_unless_it_is_told_to() {
    let cluster = alone(&[]);
    let file = format!("{}/node-0.toml", cluster.dir);
    let text = fs::read_to_string(&file).expect("its file");
    let with = |lines: &str| {
        fs::write(&file, text.replace("listen = \"127.0.0.1\"\n", lines).replace("protected_mode = true\n", "")).expect("ours")
    };
    let refused = |lines: &str, more: &[&str]| {
        with(lines);
        let ran = run(&[&["node", "--config", &file], more].concat()).code(2);
        assert!(
            ran.err.contains("beyond this host, and redis.requirepass is not set") && ran.err.contains("--protected-mode false"),
            "{}",
            ran.err
        );
    };
    let serves = |lines: &str, more: &[&str]| {
        with(lines);
        let mut node = command(&[&["node", "--config", &file], more].concat()).stderr(Stdio::piped()).spawn().expect("built");
        let mut log = BufReader::new(node.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("serving the Redis protocol") {
            assert!(log.read_line(&mut said).expect("UTF-8") > 0, "{said}");
        }
        node.kill().and_then(|()| node.wait()).expect("ours");
    };
    refused("listen = \"0.0.0.0\"\n", &[]);
    refused("listen = \"::\"\n", &[]);
    refused("listen = \"0.0.0.0\"\nprotected_mode = false\n", &["--protected-mode", "true"]);
    serves("listen = \"0.0.0.0\"\nrequirepass = \"open sesame\"\n", &[]);
    serves("listen = \"0.0.0.0\"\nprotected_mode = false\n", &[]);
    serves("listen = \"0.0.0.0\"\n", &["--protected-mode", "false"]);
    serves("listen = \"127.0.0.1\"\n", &[]);

    let listen = |address: &str, more: &[&str]| run(&[&["metrics", "--dir", &cluster.dir, "--listen", address], more].concat());
    let refused = listen("0.0.0.0:0", &[]).code(2).err;
    assert!(refused.contains("--listen is 0.0.0.0:0, beyond this host") && refused.contains("--protected-mode false"), "{refused}");
    listen("[::ffff:10.0.0.1]:0", &[]).code(2);
}

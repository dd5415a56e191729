//! The processes that watch over a server are killed: the keeper of a replica, and `martlet run` itself.

use std::io::BufRead as _;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Service, is_there};
use crate::martlet::run;

/// Kills the second process of the leader, and then the leader.
#[test]
fn a_keeper_that_is_killed_alone_is_replaced_and_connections_outlive_the_leader_all_the_same() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    let mut killed = Vec::new();
    for round in 1..=3 {
        // The leader's, and then that of its successor.
        for _ in 0..2 {
            let leader = service.leader;
            let keeper = loop {
                let children = std::fs::read_to_string(format!("/proc/{leader}/task/{leader}/children")).expect("the kernel lists them");
                let is_keeper =
                    |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "martlet-keeper\n");
                let keeper = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).find(is_keeper);
                if let Some(keeper) = keeper.filter(|pid| !killed.contains(pid)) {
                    break keeper;
                }
            };
            kill_process(Pid::from_raw(keeper).expect("a process"), Signal::KILL).expect("it lives");
            killed.push(keeper);
            loop {
                let event = service.event();
                if event["event"] == "keeper" {
                    assert_eq!(event["replaced"], true, "{event}");
                    break;
                }
            }
            assert_eq!(client.ask("INCR shared").len(), 4, "it serves");
        }
        assert_eq!(service.kill_leader(), 1, "the connection has outlived the leader");
        assert_eq!(client.ask("INCR kills"), format!(":{round}\r\n"));
        service.await_replicas();
    }
    assert_eq!(client.ask("GET shared"), "$1\r\n");
    assert_eq!(client.line(), "6\r\n");
    service.stop();
}

#[test]
fn servers_whose_martlet_run_is_killed_outlive_one_more_and_leave_nothing() {
    let directory = std::env::temp_dir().join(format!("martlet-run-orphans-{}", std::process::id()));
    let path = directory.to_str().expect("Unicode");
    let Some(mut service) = Service::start_as(&["--dir", path], &[]) else { return };
    let mut client = service.connect();
    let kill = |pid| kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("it lives");
    let runner = || {
        let line = run(&["status", "--dir", path, "--json"]).ok().out;
        let server: Value = line.lines().next().and_then(|line| serde_json::from_str(line).ok()).expect("an object");
        server["runner"].clone()
    };
    let pid = service.command.id();
    assert_eq!(runner(), serde_json::json!({"pid": pid, "state": "running", "lacks": null}));
    kill(pid as i32);
    service.command.wait().expect("it ends");
    assert_eq!((&runner()["pid"], &runner()["state"]), (&pid.into(), &"gone".into()));
    let lack = format!("martlet run (process {pid}) has ended: no replica is started any more in the place of one that dies");
    for shown in [run(&["status", "--dir", path]).ok().out, run(&["top", "--once", "--dir", path]).ok().out] {
        assert!(shown.contains(&lack), "{shown}");
    }
    assert_eq!(client.ask("INCR shared"), ":1\r\n");
    kill(service.leader);
    assert_eq!(client.ask("INCR shared"), ":2\r\n");
    kill(*service.replicas.iter().find(|pid| **pid != service.leader).expect("three were there"));
    // The rest has no majority and will never have one, so it ends. But if it leads, and had given up the first dead one before the second died, it goes on
    // alone.
    client.send(b"INCR shared\r\n");
    let answer = std::thread::spawn(move || {
        let mut line = String::new();
        // Nothing comes once all are dead.
        let _ = client.0.read_line(&mut line);
        line
    });
    let mut goes_on = true;
    while !service.processes().is_empty() {
        if answer.is_finished() && std::mem::take(&mut goes_on) {
            service.replicas.iter().filter(|pid| is_there(**pid)).for_each(|pid| kill(*pid));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let answer = answer.join().expect("it reads");
    assert!(answer.is_empty() || answer == ":3\r\n", "{answer}");
    let left = run(&["cluster", "down", "--dir", path]).code(2).err;
    assert!(left.contains("It is not running any more; --purge removes what is left here"), "{left}");
    run(&["cluster", "down", "--purge", "--dir", path]).ok();
    assert!(!directory.exists());
}

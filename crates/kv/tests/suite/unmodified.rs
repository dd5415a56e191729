//! Unmodified programs of the Redis family.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use martlet_kv::KvConfig;

use crate::rig::Rig;

/// Runs a program of the Redis family against the node, which keeps turning meanwhile. `None` when there is no such program.
fn run_against(rig: &mut Rig, program: &str, args: &[&str]) -> Option<String> {
    let port = rig.app.address().expect("it listens").port().to_string();
    let child = Command::new(program).args(["-p", &port]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("SKIPPED: {program} could not be started: {error}");
            return None;
        }
    };
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break status;
        }
        rig.turn();
    };
    let mut output = String::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        output.push_str(&line.expect("text"));
        output.push('\n');
    }
    assert!(status.success(), "{program} {args:?} failed: {output}");
    Some(output)
}

#[test]
fn redis_cli_works_unchanged() {
    let mut rig = Rig::new(KvConfig::default());
    for (args, expected) in [
        (&["SET", "k", "a value"][..], "OK\n"),
        (&["GET", "k"], "a value\n"),
        (&["-3", "GET", "nope"], "\n"),
        (&["DEL", "k"], "1\n"),
        (&["--scan"], ""),
    ] {
        let Some(output) = run_against(&mut rig, "redis-cli", args) else { return };
        assert_eq!(output, expected, "{args:?}");
    }
}

#[test]
fn redis_benchmark_works_unchanged() {
    let mut rig = Rig::new(KvConfig::default());
    for args in
        [&["-n", "20000", "-c", "50", "-P", "16", "-t", "set,get,incr,mset", "-q"][..], &["-n", "3000", "-c", "50", "-t", "set,get", "-q"]]
    {
        let Some(output) = run_against(&mut rig, "redis-benchmark", args) else { return };
        assert!(output.contains("SET") && output.contains("GET") && !output.contains("rror"), "{output}");
    }
    rig.check_backup();
}

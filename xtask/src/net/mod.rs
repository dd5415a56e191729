//! A cluster of three hosts that are network namespaces on the Ethernet fabric, its nodes killed and its links cut one after another.
//!
//! | file | what stands there |
//! |---|---|
//! | `rig` | the namespaces and all that runs in them, which go with the command |
//! | `cluster` | a cluster of Martlet in them |

pub mod cluster;
pub mod rig;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::ci;
use cluster::{Cluster, NODES};
use rig::Rig;

const USAGE: &str = "\
Usage: cargo xtask net [--engine NAME] [--rounds N] [-- COMMAND]

A cluster of three hosts, each a network namespace of its own, on the fabric `ethernet`. Each round resets a host's TCP connections ten times, which may change no
view, kills its node and starts it again, then cuts its link and mends it; a write has to be acknowledged after each, and nothing that was acknowledged may be
lost. Behind `--`: a command that runs on the first host instead, with the cluster's directory in MARTLET_DIR.
";

/// How often a host's TCP connections are reset in a row.
const RESETS: usize = 10;

/// What is wanted.
struct Wanted {
    engine: String,
    rounds: usize,
    command: Vec<String>,
}

impl Wanted {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
        let mut wanted = Wanted { engine: "mu".into(), rounds: 3, command: Vec::new() };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} takes a value\n\n{USAGE}"));
            match arg.as_str() {
                "--engine" => wanted.engine = value()?,
                "--rounds" => {
                    let rounds = value()?;
                    wanted.rounds = rounds.parse().map_err(|_| format!("--rounds is {rounds:?}; allowed is a number\n\n{USAGE}"))?;
                }
                "--" => wanted.command = args.by_ref().collect(),
                other => return Err(format!("unknown argument {other:?}\n\n{USAGE}")),
            }
        }
        Ok(wanted)
    }
}

/// The command.
///
/// # Errors
/// What did not hold, or could not be had.
pub fn run(root: &Path, args: impl Iterator<Item = String>) -> Result<(), String> {
    let mut args = args.peekable();
    if args.peek().is_some_and(|first| first == "--help") {
        print!("{USAGE}");
        return Ok(());
    }
    let wanted = Wanted::parse(args)?;
    let built = ci::cargo(root).args(["build", "--quiet", "--package", "martlet-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("`martlet` does not build".into());
    }
    let rig = Rig::make(root, NODES)?;
    let mut hosts = Cluster::make(&rig, &ci::target_directory(root).join("debug/martlet"), "cluster", &wanted.engine)?;
    let began = Instant::now();
    hosts.start_all()?;
    println!("three hosts serve after {} ms", began.elapsed().as_millis());
    if !wanted.command.is_empty() {
        let status = rig.on(0, &wanted.command[0]).args(&wanted.command[1..]).env("MARTLET_DIR", hosts.directory()).status();
        let status = status.map_err(|e| format!("{:?} does not run: {e}", wanted.command[0]))?;
        return if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) };
    }
    for round in 0..wanted.rounds {
        let (victim, witness) = (round % NODES, (round + 1) % NODES);
        hosts.wait_until_whole(witness)?;
        let (before, mut longest) = (hosts.view(witness)?, Duration::ZERO);
        for _ in 0..RESETS {
            hosts.reset(victim)?;
            longest = longest.max(hosts.write(witness)?);
        }
        hosts.wait_until_whole(witness)?;
        let after = hosts.view(witness)?;
        if after != before {
            return Err(format!("the TCP connections of node {victim} were reset, and view {before} was followed by view {after}"));
        }
        println!(
            "the TCP connections of node {victim} reset {RESETS} times: view {before} goes on, a write takes {} ms at most",
            longest.as_millis()
        );
        hosts.kill(victim);
        let waited = hosts.write(witness)?;
        println!("node {victim} killed: the next write is acknowledged after {} ms", waited.as_millis());
        hosts.start(victim)?;
        hosts.wait_until_whole(witness)?;
        println!("node {victim} is back");
        rig.namespaces.link(victim, 0, "down")?;
        let waited = hosts.write(witness)?;
        println!("the link of node {victim} cut: the next write is acknowledged after {} ms", waited.as_millis());
        rig.namespaces.link(victim, 0, "up")?;
        hosts.wait_until_whole(witness)?;
        println!("node {victim} is back");
        hosts.check(victim)?;
    }
    println!("all {} keys are there", hosts.written());
    Ok(())
}

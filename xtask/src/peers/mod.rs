//! How long clients wait for a write: to a Martlet cluster, and to others between the same hosts, in turn.
//!
//! | file | contents |
//! |---|---|
//! | `systems` | what is measured: the servers, and the programs that ask them |
//! | `bare` | servers that only pass packets on |
//! | `figures` | the results: medians, and ratios within a round |
//!
//! The others' servers and clients are one program, `xtask/peers`. It is written in Go, as they are: `go.mod` names etcd (Apache-2.0), hashicorp/raft (MPL-2.0)
//! and what they need. cargo-deny does not see these. They are a tool for measuring that is built where it runs; nothing of them is shipped.

mod bare;
mod figures;
mod systems;

use std::path::{Path, PathBuf};
use std::process::Command;

use figures::Figures;
use systems::{Programs, SYSTEMS};

use crate::ci::{self, Outcome, on_path, target_directory};
use crate::net::cluster::NODES;
use crate::net::rig::Rig;
use crate::number::number;

const USAGE: &str = "\
Usage: cargo xtask peers [--rounds N] [--seconds S] [--clients N,...] [--bytes N] [--json]

How long clients wait for a write, to Martlet (engine `mu` on the fabric `ethernet`, durability in memory), etcd, and a key-value store on hashicorp/raft. Three hosts
that are network namespaces have the servers, a fourth one the clients; each client has one request under way, and asks the leader. Each round starts the systems one
after the other and measures each with one client and with 50, or with the numbers of --clients, for two seconds, or --seconds. The values have 64 bytes, or --bytes;
one of 64 keys is set, by chance. Beside them, in the same way, servers that keep, check and encrypt nothing: the first passes the request on to two others, and replies
at the first answer, which is the system's part in all of it. Ratios are of the same round, and the medians of three rounds, or --rounds, are shown. It needs the right to make namespaces, and
`ip`; and Go, and a network at the first run, for all but Martlet.
";

/// The host with the clients.
const CLIENTS: usize = NODES;

/// The options of the command.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    rounds: u32,
    seconds: u32,
    clients: Vec<u32>,
    bytes: u32,
    json: bool,
}

impl Wanted {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
        let mut wanted = Wanted { rounds: 3, seconds: 2, clients: vec![1, 50], bytes: 64, json: false };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} takes a value\n\n{USAGE}"));
            match arg.as_str() {
                "--rounds" => wanted.rounds = number(&arg, &value()?, 100, USAGE)?,
                "--seconds" => wanted.seconds = number(&arg, &value()?, 600, USAGE)?,
                // As many as `martlet bench put` allows.
                "--clients" => wanted.clients = value()?.split(',').map(|one| number(&arg, one, 64, USAGE)).collect::<Result<_, _>>()?,
                "--bytes" => wanted.bytes = number(&arg, &value()?, 60_000, USAGE)?,
                "--json" => wanted.json = true,
                other => return Err(format!("unknown argument {other:?}\n\n{USAGE}")),
            }
        }
        Ok(wanted)
    }
}

/// Runs the command.
///
/// # Errors
/// What could not be measured, unless it is merely absent.
pub fn run(root: &Path, args: impl Iterator<Item = String>) -> Result<(), String> {
    let mut args = args.peekable();
    if args.peek().is_some_and(|first| first == "--help") {
        print!("{USAGE}");
        return Ok(());
    }
    // This is what the command itself starts on the hosts.
    if args.next_if(|first| first == "--bare").is_some() {
        return bare::serve(&args.collect::<Vec<_>>());
    }
    let wanted = Wanted::parse(args)?;
    // Before anything is built, which takes minutes: without hosts nothing can be measured.
    let rig = Rig::make(root, NODES + 1).map_err(|why| format!("nothing can be measured: network namespaces cannot be made: {why}"))?;
    let built = ci::cargo(root).args(["build", "--quiet", "--release", "--package", "martlet-cli"]).status();
    // If Ctrl-C has ended the build as well, the build has not failed.
    rig.family.check()?;
    if !built.is_ok_and(|status| status.success()) {
        return Err("`martlet` does not build".into());
    }
    let mut figures = Figures::new(SYSTEMS.iter().flat_map(|system| system.asked).map(|asked| asked.name));
    let peers = build(root);
    rig.family.check()?;
    let peers = peers.inspect_err(|why| figures.skip("all but PUT to Martlet by its own client", why)).ok();
    let programs = Programs { martlet: target_directory(root).join("release/martlet"), peers };
    figures.name_disk(systems::file_system(&rig.directory));
    let outcome = measure(&rig, &programs, &wanted, &mut figures);
    // Prints also what was measured before an error, or before Ctrl-C.
    figures.print(&wanted);
    outcome
}

fn measure(rig: &Rig, programs: &Programs, wanted: &Wanted, figures: &mut Figures) -> Result<(), String> {
    for round in 0..wanted.rounds {
        // In turn, so that none always comes first.
        for turn in 0..SYSTEMS.len() {
            let system = &SYSTEMS[(turn + round as usize) % SYSTEMS.len()];
            rig.family.check()?;
            if system.needs_peers && programs.peers.is_none() {
                continue;
            }
            eprintln!("round {}: {}", round + 1, system.name);
            match system.start(rig, programs, round) {
                Ok(running) => running.measure(rig, programs, wanted, round, figures)?,
                Err(systems::Trouble::Absent(why)) => figures.skip(system.name, &why),
                Err(systems::Trouble::Failed(why)) => return Err(format!("{}: {why}", system.name)),
            }
        }
    }
    Ok(())
}

/// Builds the others' servers and clients.
fn build(root: &Path) -> Result<PathBuf, String> {
    if !on_path("go") {
        return Err("go is not installed (Debian's golang-go; https://go.dev/dl)".into());
    }
    let program = target_directory(root).join("peers");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg(".").current_dir(root.join("xtask/peers"));
    match ci::finish(&mut command) {
        Outcome::Passed => Ok(program),
        Outcome::Failed(why) | Outcome::Skipped(why) | Outcome::Partly(why) => {
            Err(format!("the others could not be built, for which Go needs a network at the first run: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Wanted, String> {
        Wanted::parse(args.iter().map(|&arg| arg.to_owned()))
    }

    #[test]
    fn what_is_wanted_is_understood_and_else_refused_with_what_is_allowed() {
        let wanted = parse(&["--rounds", "5", "--seconds", "1", "--clients", "1,8,64", "--bytes", "1000", "--json"]);
        assert_eq!(wanted, Ok(Wanted { rounds: 5, seconds: 1, clients: vec![1, 8, 64], bytes: 1000, json: true }));
        for (bad, why) in [
            (["--clients", "1,65"], "--clients is \"65\"; allowed are 1 to 64"),
            (["--rounds", "0"], "--rounds is \"0\"; allowed are 1 to 100"),
            (["--bytes", "many"], "--bytes is \"many\"; allowed are 1 to 60000"),
            (["--keys", "1"], "unknown argument \"--keys\""),
        ] {
            let said = parse(&bad).expect_err("it is refused");
            assert!(said.starts_with(why), "{said}");
        }
        assert!(parse(&["--rounds"]).is_err());
    }
}

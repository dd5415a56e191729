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

pub mod bare;
mod figures;
mod systems;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use figures::Figures;
use systems::{Programs, SYSTEMS};

use crate::ci::{self, Outcome, on_path, target_directory};
use crate::net::cluster::NODES;
use crate::net::rig::Rig;
use crate::number::number;

/// The host with the clients.
const CLIENTS: usize = NODES;

/// How long clients wait for a write to Martlet, etcd and hashicorp/raft, between the same namespaces.
///
/// Martlet has the engine `mu` on the fabric `ethernet`, and durability in memory; with hashicorp/raft it is a key-value store. Three hosts that are network
/// namespaces have the servers, a fourth one the clients; each client has one request under way, and asks the leader. One of 64 keys is set, by chance. Each round
/// starts the systems one after the other and measures each with every number of clients.
///
/// Beside them, in the same way, servers that keep, check and encrypt nothing: the first passes the request on to two others, and replies at the first answer,
/// which is the system's part in all of it. Ratios are of the same round, and the medians of the rounds are shown. It needs the right to make namespaces, and `ip`;
/// and Go, and a network at the first run, for all but Martlet.
#[derive(Debug, PartialEq, Eq, Args)]
pub struct Wanted {
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u32>(1..=100))]
    rounds: u32,
    /// For how many seconds each is measured.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = number::<u32>(1..=600))]
    seconds: u32,
    /// Numbers of clients, separated by commas.
    // As many as `martlet bench put` allows.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,50", value_parser = number::<u32>(1..=64))]
    clients: Vec<u32>,
    /// Length of the values.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number::<u32>(1..=60_000))]
    bytes: u32,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// What could not be measured, unless it is merely absent.
pub fn run(root: &Path, wanted: &Wanted) -> Result<(), String> {
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
    let outcome = measure(&rig, &programs, wanted, &mut figures);
    // Prints also what was measured before an error, or before Ctrl-C.
    figures.print(wanted);
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

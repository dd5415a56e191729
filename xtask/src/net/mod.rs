//! A cluster of hosts that are network namespaces on the Ethernet fabric. Its nodes are killed and its links cut one after another, also over a bad wire.
//!
//! | file | contents |
//! |---|---|
//! | `rig` | the namespaces and everything that runs in them, which are removed with the command |
//! | `cluster` | a Martlet cluster in them |
//! | `faults` | the faults that hit it |
//! | `flood` | packets from a host that has no key |
//! | `loopback` | the same on one host's loopback device, as many as a core can send |
//! | `mangling`, `relay` | what a bad wire does to packets, and how packets get onto it |
//! | `wanted` | the command line |

pub mod cluster;
mod faults;
mod flood;
mod loopback;
mod mangling;
mod relay;
pub mod rig;
mod wanted;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::ci;
use cluster::{Cluster, NODES};
use flood::Flood;
use rig::Rig;
pub use wanted::Wanted;

/// Runs the command.
///
/// # Errors
/// What did not hold, or could not be had.
pub fn run(root: &Path, wanted: &Wanted) -> Result<(), String> {
    let (profile, directory) = if wanted.release { ("release", "release") } else { ("dev", "debug") };
    let built = ci::cargo(root).args(["build", "--quiet", "--package", "martlet-cli", "--profile", profile]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("`martlet` does not build".into());
    }
    let martlet = ci::target_directory(root).join(directory).join("martlet");
    if wanted.torture {
        return torture(root, &martlet, wanted);
    }
    if wanted.one_host {
        let rig = one_host(root, wanted)?;
        let flood = wanted.flood.map(|per_s| loopback::Flood::start(&rig.namespaces, 0, per_s, wanted.seed));
        let outcome = finish(rig.on(0, &wanted.command[0]).args(&wanted.command[1..]), &wanted.command[0]);
        if let Some(flood) = flood {
            println!("{}", flood.end()?);
        }
        return outcome;
    }
    // The last host has no key.
    let mut rig = Rig::make(root, NODES + usize::from(wanted.flood.is_some()))?;
    if let Some(mangling) = wanted.mangling() {
        rig.mangle(mangling, wanted.seed)?;
        println!("the wire: {mangling}, seed {}", wanted.seed);
    }
    let mut hosts = Cluster::make(&rig, &martlet, "cluster", &wanted.engine)?;
    let began = Instant::now();
    hosts.start_all()?;
    println!("three hosts serve after {} ms", began.elapsed().as_millis());
    let flood = wanted.flood.map(|per_s| Flood::start(&rig.namespaces, NODES, hosts.addresses(), per_s, wanted.seed)).transpose()?;
    let outcome = befall(&rig, &mut hosts, wanted);
    if let Some(flood) = flood {
        println!("{}", flood.end());
    }
    outcome
}

fn befall(rig: &Rig, hosts: &mut Cluster<'_>, wanted: &Wanted) -> Result<(), String> {
    if !wanted.command.is_empty() {
        let mut command = rig.on(0, &wanted.command[0]);
        return finish(command.args(&wanted.command[1..]).env("MARTLET_DIR", hosts.directory()), &wanted.command[0]);
    }
    match wanted.rejoins {
        Some(count) => faults::rejoins(rig, hosts, count),
        None => faults::rounds(rig, hosts, wanted.rounds, wanted.lasting),
    }
}

fn finish(command: &mut Command, name: &str) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{name:?} does not run: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name:?} ended with {status}")) }
}

/// A host all of whose packets take the wire. Under a flood a good wire is left out, because it would limit the flood.
fn one_host(root: &Path, wanted: &Wanted) -> Result<Rig, String> {
    let mut rig = Rig::make(root, 1)?;
    if wanted.flood.is_some() && wanted.mangling().is_none() {
        return Ok(rig);
    }
    let mangling = wanted.mangling().unwrap_or_default();
    rig.mangle_within(0, mangling, wanted.seed)?;
    println!("the wire: {mangling}, seed {}", wanted.seed);
    Ok(rig)
}

/// Runs `martlet torture` on one host, all of whose packets take the bad wire, again and again for as long as is wanted.
fn torture(root: &Path, martlet: &Path, wanted: &Wanted) -> Result<(), String> {
    const FAULTS: [&str; 8] = ["--kills", "12", "--pauses", "6", "--restarts", "3", "--changes", "3"];
    let rig = one_host(root, wanted)?;
    let (began, mut runs) = (Instant::now(), 0);
    while runs == 0 || wanted.lasting.is_some_and(|lasting| began.elapsed() < lasting) {
        let mut command = rig.on(0, martlet);
        command.args(["torture", "--fabric", "ethernet", "--engine", &wanted.engine]).args(FAULTS).stdin(Stdio::null());
        command.args(["--seed", &wanted.seed.wrapping_add(runs).to_string()]);
        let status = command.status().map_err(|e| format!("`martlet torture` does not run: {e}"))?;
        // If Ctrl-C has ended the child as well, the child has not failed.
        rig.family.check()?;
        runs += 1;
        if !status.success() {
            return Err(format!("run {runs} of `martlet torture` ended with {status}"));
        }
    }
    println!("{runs} runs of `martlet torture` passed in {} s: linearizable, nothing lost, nothing left behind", began.elapsed().as_secs());
    Ok(())
}

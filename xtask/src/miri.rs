//! Runs Miri on the parts with `unsafe` code that it can run, and on what they rest on: the edge of the C ABI, simulated memory, and rings and records over
//! plain memory. Miri can map no memory and knows no futex and no RDMA, so the backends' own `unsafe` is out of its reach.

use std::path::Path;
use std::process::Command;

use crate::ci::{Outcome, cargo};

/// Packages, and those of their tests that need neither the kernel nor minutes.
const PARTS: [(&str, &[&str]); 3] = [
    ("martlet-capi", &["tests::"]),
    (
        "martlet-fabric",
        &[
            // `unsafe` in `sim::memory`: every region of a simulated process.
            "sim::tests::faults::a_swap",
            "sim::tests::faults::a_client",
            "sim::tests::onlookers::the_end",
            "ring::tests::sizes",
            "ring::tests::a_filler",
            "ring::tests::a_record_copied",
            "datagrams::tests::positions",
        ],
    ),
    ("martlet-protocol", &["basics::sealed"]),
];

/// The commands that run it, or the outcome if something is missing.
pub fn check(root: &Path) -> Result<Vec<Command>, Outcome> {
    let has = |mut command: Command| command.args(["miri", "--version"]).output().is_ok_and(|output| output.status.success());
    let mut nightly = Command::new("cargo");
    nightly.arg("+nightly");
    let toolchain = if has(cargo(root)) {
        None
    } else if has(nightly) {
        Some("+nightly")
    } else {
        return Err(Outcome::Skipped(
            "NOT CHECKED: the component `miri` is on no installed toolchain (`rustup component add miri rust-src --toolchain nightly`)"
                .into(),
        ));
    };
    let of_package = |(package, tests): (&str, &[&str])| {
        let mut command = if toolchain.is_some() { Command::new("cargo") } else { cargo(root) };
        command.current_dir(root).args(toolchain).args(["miri", "test", "--package", package, "--lib", "--"]).args(tests);
        // Code that asks for a file that does not exist has to learn that from the host.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        command
    };
    Ok(PARTS.map(of_package).into())
}

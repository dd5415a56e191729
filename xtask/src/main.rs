//! Developers' commands. `cargo xtask ci` is what has to pass before a change lands; `cargo xtask tidy` is its part that reads the sources.

#![forbid(unsafe_code)]

mod ci;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  ci             Everything that has to hold before a change lands: format, lints, docs, tidiness, licences, tests
  tidy           Dependency direction, purity of `protocol`, unsafe code, leftovers, file sizes, licences
  bench [ARG]... `martlet bench ARG...`, built for release
  sim [ARG]...   Lives of simulated clusters, built for release; `cargo xtask sim --help` says more
  loom           The memory orders of shared memory, in every execution that the memory model allows
";

fn main() -> ExitCode {
    let root = workspace_root();
    let mut args = std::env::args().skip(1);
    let rest: Vec<String>;
    match args.next().as_deref() {
        Some("ci") => ci::run(&root),
        Some("tidy") => tidy::run(&root),
        Some("bench") => {
            rest = args.collect();
            exit_of(ci::cargo(&root).args(["run", "--release", "--package", "martlet-cli", "--", "bench"]).args(&rest))
        }
        Some("sim") => {
            rest = args.collect();
            exit_of(ci::cargo(&root).args(["run", "--release", "--package", "martlet-sim", "--"]).args(&rest))
        }
        Some("loom") => exit_of(&mut ci::loom(&root)),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Some(other) => {
            eprintln!("xtask: unknown command `{other}`\n\n{USAGE}");
            ExitCode::from(2)
        }
        None => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace").to_path_buf()
}

fn exit_of(command: &mut Command) -> ExitCode {
    let status = command.status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

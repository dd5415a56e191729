//! Developers' commands. `cargo xtask ci` has to pass before a change lands; `cargo xtask tidy` is the part of it that reads the sources.

#![forbid(unsafe_code)]

mod apt;
mod beside;
mod chosen;
mod ci;
mod deb;
mod deny;
mod failed;
mod family;
mod fuzz;
mod guests;
mod header;
mod hosts;
mod limit;
mod miri;
mod namespaces;
mod net;
mod number;
mod peers;
mod redis;
mod step;
mod tidy;
mod tools;
mod upgrade;
mod vm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  ci             Everything that has to hold before a change lands: format, tidiness, header, lints, docs, dependencies, loom, fuzzing,
                 canaries, coverage, tests, the Debian package, the upgrade from the last release, RDMA, Miri
  tidy           Dependency direction, purity of `protocol`, unsafe code, leftovers, file sizes, licences, engines and fabrics that too many
                 files name
  encodings [--record]
                 Compares the samples of all encodings with what is recorded of their versions, as a test does; or records them, after a version
                 was raised or samples were added
  bench [ARG]... `martlet bench ARG...`, built for release
  sim [ARG]...   Lives of simulated clusters, built to be fast; `cargo xtask sim --help` says more
  sim --canaries [NAME]...
                 Known bugs planted one at a time, all or those named: each has to be found
  net [OPTION]... [-- COMMAND]
                 Three hosts that are network namespaces, with a cluster on the Ethernet fabric; `cargo xtask net --help` says more
  peers [OPTION]...
                 How long clients wait for a write to Martlet, etcd and hashicorp/raft, between the same namespaces; `cargo xtask peers --help` says more
  hosts up|down  Hosts to try wardens on by hand: network namespaces with two switches; `cargo xtask hosts --help` says more
  vm [OPTION]... -- COMMAND
                 A command in a virtual machine with two software RDMA devices; `cargo xtask vm --help` says more
  guests [OPTION]...
                 Three hosts that are virtual machines, with a kernel and a clock each; `cargo xtask guests --help` says more
  fuzz [TARGET] [--seconds N]
                 Arbitrary bytes for every parser and every record that a peer can write, a minute each; one target, or all
  header         Writes the header of the C ABI, crates/capi/include/martlet.h
  miri           Undefined behaviour in the parts that Miri can run, where its component is installed
  rdma           The tests that need RDMA devices, in that machine, on a good link and on bad ones
  redis-suite [OPTION]...
                 Redis' own test suite against a plain server and against `martlet run`; `cargo xtask redis-suite --help` says more
  clients [OPTION]...
                 Programs with well-known client libraries against `martlet run`, through kills; `cargo xtask clients --help` says more
  upgrade [FROM] Clusters that are upgraded to this build from the last release, which is built from its tag; or from another revision, or the
                 `martlet` command at a path
  deb [--profile NAME]
                 The Debian package, built for release or with that profile; and installed, used and removed in a fresh root, where that can be made
  loom           The memory orders of shared memory, in every execution that the memory model allows
";

fn main() -> ExitCode {
    let root = workspace_root();
    let mut args = std::env::args().skip(1);
    let rest: Vec<String>;
    match args.next().as_deref() {
        Some("ci") => ci::run(),
        // Parts of `ci`, see `step`.
        Some("step") => step::keep(&args.collect::<Vec<_>>()),
        Some("work") => step::work(&root, ci::steps(), &args.collect::<Vec<_>>()),
        Some("tidy") => tidy::run(&root),
        Some("encodings") => {
            rest = args.collect();
            exit_of(ci::cargo(&root).args(["run", "--quiet", "--package", "martlet-fuzz", "--bin", "encodings", "--"]).args(&rest))
        }
        Some("bench") => {
            rest = args.collect();
            exit_of(ci::cargo(&root).args(["run", "--release", "--package", "martlet-cli", "--", "bench"]).args(&rest))
        }
        Some("sim") => {
            rest = args.collect();
            match rest.split_first() {
                Some((first, names)) if first == "--canaries" => exit_of(ci::canaries(&root).args(names)),
                _ => exit_of(
                    ci::cargo(&root).args(["run", "--profile", "sim", "--package", "martlet-sim", "--features", "marks", "--"]).args(&rest),
                ),
            }
        }
        Some("vm") => vm::run(&root, args),
        Some("guests") => guests::run(&root, args),
        Some("rdma") => vm::check::command(&root),
        Some("net") => exit_with(net::run(&root, args)),
        Some("peers") => exit_with(peers::run(&root, args)),
        Some("hosts") => {
            rest = args.collect();
            exit_with(hosts::run(&root, &rest.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        Some("redis-suite") => exit_with(redis::suite::run(&root, args)),
        Some("clients") => exit_with(redis::clients::run(&root, args)),
        Some("fuzz") => exit_with(fuzz::Wanted::parse(args).and_then(|wanted| fuzz::run(&root, &wanted)).map(drop)),
        Some("miri") => tell(ci::one_by_one(miri::check(&root), chosen::finish)),
        Some("header") => exit_with(header::write(&root)),
        Some("deb") => {
            rest = args.collect();
            tell(match &rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                [] => deb::run(&root, deb::Programs::Build("release")),
                ["--profile", profile] => deb::run(&root, deb::Programs::Build(profile)),
                other => ci::Outcome::Failed(format!("`deb {}`: allowed is `--profile NAME`", other.join(" "))),
            })
        }
        Some("upgrade") => tell(upgrade::run(&root, args.next().as_deref())),
        Some("loom") => tell(ci::one_by_one(Ok(ci::loom(&root).into()), ci::finish)),
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

/// Reports the outcome of a step that was run by itself.
fn tell(outcome: ci::Outcome) -> ExitCode {
    match outcome {
        ci::Outcome::Passed => ExitCode::SUCCESS,
        ci::Outcome::Failed(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
        ci::Outcome::Skipped(why) | ci::Outcome::Partly(why) => {
            println!("skipped: {why}");
            ExitCode::SUCCESS
        }
    }
}

/// Reports the outcome of a command that says why it failed.
fn exit_with(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
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

//! Runs the fuzz targets of `fuzz/`: guided by coverage where there is a C++ compiler for libFuzzer, otherwise by mutation alone, with a message that says so.
//!
//! The flags that count coverage belong to the stable compiler, so neither cargo-fuzz nor a nightly toolchain is needed. No sanitizer is used: the parsers are
//! safe Rust, so all there is to find are panics, hangs, and use of memory beyond the limit.
//!
//! `cargo xtask ci` runs them by mutation, with what the tests are built of: to build all that they reach with counters takes two minutes of both cores.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::number::number;

/// What libFuzzer needs to see where an input goes: a counter for each edge, and the operands of comparisons.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on -Coverflow-checks=on";
/// The most seconds that an input may take. Inputs take microseconds, but the machine may be busy.
const INPUT_SECONDS: u32 = 100;
/// The most memory that a target may use, in MiB.
const MEMORY_MIB: u32 = 1024;
/// How many targets run at a time on two cores; on more cores, proportionally more. The eighteen targets then take two rounds: each has a minute by default,
/// of which it gets 13 seconds of processor time. If all ran at once, each would get seven seconds, of which the seeds alone may take a good part.
const AT_A_TIME: usize = 9;
/// libFuzzer's compiler.
const COMPILER: &str = "c++";
/// The program that mutates seeds without a guide.
const BLIND: &str = "fuzz-blind";

/// Arbitrary bytes for every parser and every record that a peer can write.
#[derive(Debug, Args)]
pub struct Wanted {
    /// One target; by default all.
    pub target: Option<String>,
    /// For how many seconds to run each.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = number::<u32>(1..=u32::MAX))]
    pub seconds: u32,
}

/// Runs targets. `Err` names those that failed.
pub fn run(root: &Path, wanted: &Wanted) -> Result<(), String> {
    let targets = targets(root, wanted.target.as_deref())?;
    Driver::choose(root)?.run(root, &targets, wanted.seconds)
}

/// Runs every target for ten seconds, always over the same mutations: whether a change lands must not depend on chance.
pub fn landing(root: &Path) -> Result<(), String> {
    let targets = targets(root, None)?;
    Driver { binary: crate::ci::target_directory(root).join("debug").join(BLIND), kind: Kind::Landing }.run(root, &targets, 10)
}

/// The targets: the directories of seeds.
fn targets(root: &Path, only: Option<&str>) -> Result<Vec<String>, String> {
    let corpus = root.join("fuzz/corpus");
    let entries = fs::read_dir(&corpus).map_err(|error| format!("cannot list {}: {error}", corpus.display()))?;
    let mut names: Vec<String> = entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    match only {
        None => Ok(names),
        Some(only) if names.iter().any(|name| name == only) => Ok(vec![only.to_owned()]),
        Some(only) => Err(format!("target `{only}`: allowed are {}", names.join(", "))),
    }
}

/// The program that runs a target.
struct Driver {
    binary: PathBuf,
    kind: Kind,
}

#[derive(PartialEq, Eq)]
enum Kind {
    /// Guided by coverage, and built for this platform.
    Guided(String),
    /// Mutations alone, others each time.
    Blind,
    /// Mutations alone, always the same.
    Landing,
}

impl Driver {
    /// Chooses the better of the two drivers that can be built here. Says so if it is the lesser one.
    fn choose(root: &Path) -> Result<Driver, String> {
        let target = crate::ci::target_directory(root);
        if crate::ci::on_path(COMPILER) {
            let host = host(root)?;
            let binary = target.join("fuzz").join(&host).join("release/fuzz-guided");
            return Ok(Driver { binary, kind: Kind::Guided(host) });
        }
        println!(
            "!! `{COMPILER}` is not installed (Debian's g++), so this fuzzing is blind: mutations of the seeds, not guided by coverage"
        );
        Ok(Driver { binary: target.join("release").join(BLIND), kind: Kind::Blind })
    }

    fn build(&self, root: &Path) -> Command {
        let mut command = crate::ci::cargo(root);
        command.arg("build");
        match &self.kind {
            // Flags that apply to everything need a separate directory. Naming the target keeps them away from build scripts and macros.
            Kind::Guided(host) => command
                .args(["--package", "martlet-fuzz", "--bin", "fuzz-guided", "--release", "--features", "guided", "--target", host])
                .env("RUSTFLAGS", COVERAGE)
                .env("CARGO_TARGET_DIR", crate::ci::target_directory(root).join("fuzz"))
                .env("CARGO_PROFILE_RELEASE_LTO", "off"),
            Kind::Blind => command.args(["--package", "martlet-fuzz", "--bin", BLIND, "--release"]),
            // As the tests have been built. In other company its dependencies would have other features, and be built again.
            Kind::Landing => command.args(["--workspace", "--all-targets"]),
        };
        command
    }

    /// Builds the program, and runs these targets with it for so many seconds each.
    fn run(&self, root: &Path, targets: &[String], seconds: u32) -> Result<(), String> {
        let scratch = crate::ci::Scratch::new("fuzz").map_err(|error| format!("cannot make a directory for inputs: {error}"))?;
        build(&mut self.build(root))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let at_a_time = AT_A_TIME.max(AT_A_TIME * cores / 2);
        let mut waiting: VecDeque<&String> = targets.iter().collect();
        let mut running: Vec<Running> = Vec::new();
        let mut failed = Vec::new();
        while !waiting.is_empty() || !running.is_empty() {
            while running.len() < at_a_time
                && let Some(target) = waiting.pop_front()
            {
                running.push(self.start(root, target, seconds, scratch.path())?);
            }
            // Waits for the one that was started first. The others run for as long, so this delays none.
            let first = running.remove(0);
            let target = first.target.clone();
            if let Err(why) = first.finish() {
                println!("   FAILED   {target}: {why}");
                failed.push(target);
            }
        }
        match failed.as_slice() {
            [] => Ok(()),
            failed => Err(format!("a property does not hold in {}", failed.join(", "))),
        }
    }

    fn start(&self, root: &Path, target: &str, seconds: u32, scratch: &Path) -> Result<Running, String> {
        let found = scratch.join(target);
        fs::create_dir_all(&found).map_err(|error| format!("cannot make {}: {error}", found.display()))?;
        let artifacts = crate::ci::target_directory(root).join("fuzz-failures");
        fs::create_dir_all(&artifacts).map_err(|error| format!("cannot make {}: {error}", artifacts.display()))?;
        // Endless recursion should run into the limit of memory, whose input libFuzzer keeps, and not into the end of the stack.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -s unlimited 2>/dev/null; exec \"$0\" \"$@\""]).arg(&self.binary);
        command.env("TMPDIR", &artifacts);
        let guided = matches!(self.kind, Kind::Guided(_));
        if guided {
            command
                .env("MARTLET_FUZZ_TARGET", target)
                .args([format!("-max_total_time={seconds}"), format!("-timeout={INPUT_SECONDS}"), format!("-rss_limit_mb={MEMORY_MIB}")])
                .args(["-max_len=4096", "-print_final_stats=1", "-verbosity=1", "-reload=0", "-report_slow_units=1000"])
                .arg(format!("-artifact_prefix={}/{target}-", artifacts.display()))
                // New inputs go to the first directory; the committed seeds are only read.
                .arg(&found)
                .arg(root.join("fuzz/corpus").join(target));
        } else {
            command.args([target, &seconds.to_string()]);
            if self.kind == Kind::Landing {
                command.arg("1");
            }
        }
        let log = found.with_extension("log");
        let output = fs::File::create(&log).map_err(|error| format!("cannot make {}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| format!("cannot share {}: {error}", log.display()))?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let child = child.map_err(|error| format!("cannot run {}: {error}", self.binary.display()))?;
        Ok(Running { target: target.to_owned(), child, log, start: Instant::now(), guided })
    }
}

fn build(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the driver cannot be built: {status}")),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

/// The platform of this machine, as the compiler names it.
fn host(root: &Path) -> Result<String, String> {
    let output = Command::new("rustc").current_dir(root).args(["--print", "host-tuple"]).output();
    let output = output.map_err(|error| format!("cannot run rustc: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !text.is_empty() { Ok(text) } else { Err("rustc does not say which machine this is".into()) }
}

/// A target under way.
struct Running {
    target: String,
    child: Child,
    log: PathBuf,
    start: Instant,
    guided: bool,
}

impl Running {
    /// Waits for its end, and prints a line about it, or its whole output if a property does not hold.
    fn finish(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| format!("cannot wait for it: {error}"))?;
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let seconds = self.start.elapsed().as_secs();
        if !status.success() {
            let tail: Vec<&str> = said.lines().rev().take(60).collect();
            tail.iter().rev().for_each(|line| println!("{line}"));
            return Err(format!("{status} after {seconds} s; the input is named above"));
        }
        let line =
            if self.guided { guided_summary(&said) } else { said.trim().trim_start_matches(&format!("{}: ", self.target)).to_owned() };
        println!("   {}: {line} ({seconds} s)", self.target);
        Ok(())
    }
}

/// The number of inputs, the edges reached and the inputs kept, from libFuzzer's output.
fn guided_summary(said: &str) -> String {
    let inputs = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")).unwrap_or("?").trim();
    let last = said.lines().rev().find(|line| line.contains("cov:")).unwrap_or("");
    let after = |word: &str| last.split_whitespace().skip_while(|w| *w != word).nth(1).unwrap_or("?").to_owned();
    format!("{inputs} inputs, {} edges reached, {} inputs worth keeping", after("cov:"), after("corp:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzers_words_are_understood() {
        let said = "#2\tINITED cov: 10 ft: 11 corp: 2/9b\n#500 DONE   cov: 313 ft: 900 corp: 41/3Kb exec/s: 5\nstat::number_of_executed_units: 500\n";
        assert_eq!(guided_summary(said), "500 inputs, 313 edges reached, 41/3Kb inputs worth keeping");
    }
}

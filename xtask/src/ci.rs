//! Everything that has to hold before a change lands, the quick checks first. What cannot be checked here is listed with the reason.
//!
//! The machine with RDMA devices waits most of the time: others go on beside it ([`crate::beside`]), to whose outcome time means nothing, and stand back. Not beside
//! the tests: a leader of real processes loses the lead when something else has its core, stand back as it may. What is beside others builds into directories of
//! its own, so that nobody waits for cargo's locks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::beside::{Beside, Check, Ended};
use crate::failed::{self, Failed};

/// What came of a step.
pub enum Outcome {
    /// It holds.
    Passed,
    /// It holds as far as it could be checked here, which is not all of it.
    Partly(String),
    /// It does not hold.
    Failed(String),
    /// It was not checked, for this reason.
    Skipped(String),
}

/// One thing to check about the workspace at the given root.
type Step<'a> = &'a dyn Fn(&Path) -> Outcome;

/// The cargo that runs us, in the workspace.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// The model checker for shared memory: its primitives, and records at fixed places. Its flag changes how everything is built, so it builds into a directory of
/// its own.
pub fn loom(root: &Path) -> [Command; 2] {
    // One bug that can be planted is a canary of its own there.
    let packages: [&[&str]; 2] = [&["martlet-fabric"], &["martlet-protocol", "--features=canaries"]];
    packages.map(|package| {
        let mut command = cargo(root);
        command.args(["test", "--test", "loom", "--package"]).args(package);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_directory(root).join("loom"));
        command
    })
}

/// The features under which the simulator's probes are there.
const PROBED: &str = "--features=canaries,marks";

/// Tests with probes. Optimised, and tests so that panics are caught. The engines are named whether or not their tests are wanted: so all is built once for all.
fn probed<'a>(root: &Path, tests: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--profile", "probed", "--package", "martlet-sim", "--package", "martlet-protocol"]);
    command.arg("--features=martlet-sim/canaries,martlet-sim/marks,martlet-protocol/canaries");
    for test in tests {
        command.args(["--test", test]);
    }
    command
}

/// Known bugs planted one at a time, which default lives have to find.
pub fn canaries(root: &Path) -> Command {
    let mut command = probed(root, ["canaries"]);
    command.arg("--");
    command
}

/// What goes on beside the steps after the tests of real processes: rows of checks. A check of the second row uses one core, one of the first both.
fn rows_beside(root: &Path) -> [Vec<Check>; 2] {
    let mut all = probed(root, ["canaries", "coverage", "hand_over"]);
    all.arg("--no-run");
    // Known bugs planted in the engines whose hand-overs of the permission are explored in every order.
    let mut hand_overs = probed(root, ["hand_over"]);
    hand_overs.arg("planted");
    [
        vec![
            Check { name: "fuzz, built", work: crate::fuzz::build_command(root).map(|build| vec![build]).map_err(Outcome::Failed) },
            Check { name: "canaries", work: Ok(vec![all, canaries(root)]) },
            Check { name: "canaries, in every order", work: Ok(vec![hand_overs]) },
            Check { name: "coverage", work: Ok(vec![probed(root, ["coverage"])]) },
        ],
        vec![Check { name: "loom", work: Ok(loom(root).into()) }, Check { name: "miri", work: crate::miri::check(root) }],
    ]
}

/// Runs every step, even after one has failed: one run shows all that is wrong.
pub fn run(root: &Path) -> ExitCode {
    let under_way = Cell::new(None);
    let failed = RefCell::new(Vec::new());
    let tests = |root: &Path| {
        let (outcome, tests) = tests(root);
        failed.replace(tests);
        outcome
    };
    let deny = |root: &Path| {
        let (outcome, advisories) = crate::deny::check(root);
        under_way.set(advisories);
        outcome
    };
    // The network is not waited for before everything else is done.
    let advisories = |_: &Path| match under_way.take() {
        Some(advisories) => advisories.finish(),
        None => Outcome::Skipped("cargo-deny could not be run, see above".into()),
    };
    let steps: [(&str, Step); 14] = [
        ("format", &|root| finish(cargo(root).args(["fmt", "--all", "--check"]))),
        ("tidy", &|root| match crate::tidy::run(root) {
            code if code == ExitCode::SUCCESS => Outcome::Passed,
            _ => Outcome::Failed("see above".into()),
        }),
        ("header", &crate::header::check),
        ("lints", &|root| finish(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))),
        // Not among all targets, as it is not run with them.
        ("lints, of tests on RDMA", &|root| {
            finish(cargo(root).args(["clippy", "--workspace", "--test", "verbs", "--", "--deny", "warnings"]))
        }),
        ("lints, with probes", &|root| {
            finish(cargo(root).args(["clippy", "--package", "martlet-sim", "--all-targets", PROBED, "--", "--deny", "warnings"]))
        }),
        ("docs", &|root| finish(cargo(root).args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))),
        ("deny", &deny),
        ("tests", &tests),
        // Before others build beside.
        ("package", &|root| crate::deb::run(root, crate::deb::Programs::Debug)),
        ("upgrade", &|root| crate::upgrade::run(root, None)),
        ("fuzz", &fuzz),
        ("rdma", &crate::vm::check::run),
        ("advisories", &advisories),
    ];
    let scratch = match Scratch::new("beside") {
        Ok(scratch) => scratch,
        Err(error) => {
            eprintln!("cannot make a directory for what checks print: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut beside = None;
    let mut summary = Summary::default();
    for (name, step) in steps {
        println!("== {name}");
        let start = Instant::now();
        let outcome = step(root);
        summary.add(name, outcome, start.elapsed().as_secs_f64());
        // What follows does not hang on time as clusters of real processes do.
        if name == "upgrade" {
            let rows = rows_beside(root);
            let names: Vec<&str> = rows.iter().flatten().map(|check| check.name).collect();
            println!("== beside what follows, shown when they have ended: {}", names.join("; "));
            beside = Some(Beside::start(rows, scratch.path()));
        }
        // Not in the midst of what a step prints.
        beside.iter().flat_map(Beside::ended).for_each(|ended| summary.add_shown(ended));
    }
    beside.into_iter().flat_map(Beside::rest).for_each(|ended| summary.add_shown(ended));
    let failed = failed.take();
    if !failed.is_empty() {
        println!("== what tests that failed have said");
        failed.iter().for_each(Failed::show);
    }
    println!("== summary");
    for line in summary.lines {
        println!("{line}");
    }
    if summary.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What came of the steps.
#[derive(Default)]
struct Summary {
    lines: Vec<String>,
    failed: bool,
}

impl Summary {
    fn add(&mut self, name: &str, outcome: Outcome, seconds: f64) {
        self.lines.push(match outcome {
            Outcome::Passed => format!("   passed   {name} ({seconds:.0} s)"),
            Outcome::Partly(what) => format!("   PARTLY   {name} ({seconds:.0} s): {what}"),
            Outcome::Failed(why) => {
                self.failed = true;
                format!("   FAILED   {name} ({seconds:.0} s): {why}")
            }
            Outcome::Skipped(why) => format!("   skipped  {name}: {why}"),
        });
    }

    /// One that has gone on beside others: what it has printed is shown now.
    fn add_shown(&mut self, ended: Ended) {
        println!("== {}, beside others", ended.name);
        ended.show();
        self.add(ended.name, ended.outcome, ended.seconds);
    }
}

/// Runs commands one by one until one fails.
pub fn one_by_one(commands: Result<Vec<Command>, Outcome>) -> Outcome {
    match commands {
        Ok(commands) => {
            let mut outcomes = commands.into_iter().map(|mut command| finish(&mut command));
            outcomes.find(|outcome| !matches!(outcome, Outcome::Passed)).unwrap_or(Outcome::Passed)
        }
        Err(known) => known,
    }
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(format!("cannot run {}: {error}", command.get_program().display())),
    }
}

/// Every fuzz target for ten seconds. Always from the same beginning: whether a change lands is not to hang on chance. `cargo xtask fuzz` looks elsewhere each
/// time.
fn fuzz(root: &Path) -> Outcome {
    match crate::fuzz::run(root, &crate::fuzz::Wanted { target: None, seconds: 10, seed: Some(1) }) {
        Ok(None) => Outcome::Passed,
        Ok(Some(complaint)) => Outcome::Partly(complaint),
        Err(why) => Outcome::Failed(why),
    }
}

/// The tests, with a directory of their own for temporary files, so that what they leave behind is seen; and what failed ones have said.
fn tests(root: &Path) -> (Outcome, Vec<Failed>) {
    let scratch = match Scratch::new("ci") {
        Ok(scratch) => scratch,
        Err(error) => return (Outcome::Failed(format!("cannot make a directory for temporary files: {error}")), Vec::new()),
    };
    for (tool, package) in [("redis-server", "redis-server"), ("redis-cli", "redis-tools"), ("redis-benchmark", "redis-tools")] {
        if !on_path(tool) {
            println!("   {tool} is not installed (Debian's {package}): tests that need it say so and pass over it");
        }
    }
    if !on_path("cc") {
        println!("   cc is not installed (Debian's gcc): the test of the C ABI says so and passes over it");
    }
    // The command's tests start the real binary; it has to be there before them. So has the library for C. With the tests among what is built, dependencies
    // have the features that tests ask for, and are built once.
    let built = finish(cargo(root).args(["build", "--workspace", "--all-targets"]));
    if !matches!(built, Outcome::Passed) {
        return (built, Vec::new());
    }
    let target = target_directory(root);
    let directories = [target.join("debug"), target.join("tmp")];
    let before = processes_from(&directories);
    let mut test = cargo(root);
    // What tests have built besides is part of a whole that stands already.
    test.args(["test", "--workspace", "--no-fail-fast"]).env("TMPDIR", scratch.path()).env("MARTLET_BUILT_WORKSPACE", "1");
    let (outcome, failed) = failed::run(&mut test);
    let mut left: Vec<String> =
        processes_from(&directories).difference(&before).map(|(pid, exe)| format!("process {pid} ({})", exe.display())).collect();
    left.extend(scratch.entries().into_iter().map(|path| format!("file {}", path.display())));
    if left.is_empty() {
        return (outcome, failed);
    }
    for thing in &left {
        println!("   left behind: {thing}");
    }
    let outcome = match outcome {
        Outcome::Passed => Outcome::Failed(format!("the tests left {} thing(s) behind", left.len())),
        other => other,
    };
    (outcome, failed)
}

/// Whether the shell would find this program.
pub fn on_path(tool: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()))
}

/// A directory that goes away with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty directory for `what`.
    pub fn new(what: &str) -> std::io::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("martlet-{what}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn entries(&self) -> Vec<PathBuf> {
        // Doc tests are compiled in directories of rustdoc's own making, which it does not always remove.
        fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rustdoctest")))
            .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing better can be done about a directory that will not go away, and the tests' verdict stands without it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where cargo builds.
pub fn target_directory(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    fs::canonicalize(&target).unwrap_or(target)
}

/// The running processes whose executable stands under one of these directories, ourselves excepted.
fn processes_from(directories: &[PathBuf]) -> BTreeSet<(u32, PathBuf)> {
    let own = std::process::id();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| pid != own)
        .filter_map(|pid| Some((pid, fs::read_link(format!("/proc/{pid}/exe")).ok()?)))
        .filter(|(_, exe)| directories.iter().any(|directory| exe.starts_with(directory)))
        .collect()
}

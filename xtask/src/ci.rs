//! Everything that has to pass before a change lands, the quick checks first. What cannot be checked here is listed with the reason.
//!
//! Tests of real processes, and the machine with RDMA devices, wait for much of their time. So other steps run beside them ([`crate::beside`]): steps whose
//! outcome does not depend on time, and which run at a lower priority. Steps that build for minutes do not run beside the tests: a leader of real processes
//! loses the lead when another process has its core, whatever the priorities. Steps that run beside others build into separate directories, so that none waits
//! for cargo's locks. Each step has a time limit ([`crate::step`]), so that a test that waits for ever costs only its step.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::beside::Beside;
use crate::chosen;
use crate::failed::Failed;
use crate::step::{Ended, Step};

/// The outcome of a step.
pub enum Outcome {
    /// It passed.
    Passed,
    /// It passed as far as it could be checked here, which is not completely.
    Partly(String),
    /// It failed.
    Failed(String),
    /// It was not checked, for this reason.
    Skipped(String),
}

/// Checks one thing about the workspace at the given root.
pub type Work = fn(&Path) -> Outcome;

impl Outcome {
    /// Writes it to a file that another process reads.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let (word, rest) = match self {
            Outcome::Passed => ("passed", ""),
            Outcome::Partly(what) => ("partly", &**what),
            Outcome::Failed(why) => ("failed", &**why),
            Outcome::Skipped(why) => ("skipped", &**why),
        };
        fs::write(file, format!("{word} {rest}"))
    }

    /// The outcome in a file, if one was written.
    pub fn read(file: &Path) -> Option<Outcome> {
        let text = fs::read_to_string(file).ok()?;
        let (word, rest) = text.split_once(' ')?;
        match word {
            "passed" => Some(Outcome::Passed),
            "partly" => Some(Outcome::Partly(rest.into())),
            "failed" => Some(Outcome::Failed(rest.into())),
            "skipped" => Some(Outcome::Skipped(rest.into())),
            _ => None,
        }
    }
}

/// The cargo that runs this program, in the workspace.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Runs the model checker on shared memory: its primitives, and records at fixed places. Its flag changes how everything is built, so it builds into a separate
/// directory.
pub fn loom(root: &Path) -> [Command; 2] {
    // There, one of the bugs that can be planted is a canary.
    let packages: [&[&str]; 2] = [&["martlet-fabric"], &["martlet-protocol", "--features=canaries"]];
    packages.map(|package| {
        let mut command = cargo(root);
        command.args(["test", "--test", "loom", "--package"]).args(package);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_directory(root).join("loom"));
        command
    })
}

/// The features that include the simulator's probes.
const PROBED: &str = "--features=canaries,marks";
/// The packages that contain probes.
const PLANTED: [&str; 6] = ["--package", "martlet-fabric", "--package", "martlet-protocol", "--package", "martlet-sim"];

/// Tests with probes, optimised, and as tests, so that panics are caught. The engines are named whether or not their tests are wanted, so that one build serves
/// all.
fn probed<'a>(root: &Path, tests: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = cargo(root);
    command.args(["test", "--profile", "probed", "--package", "martlet-sim", "--package", "martlet-protocol"]);
    command.arg("--features=martlet-sim/canaries,martlet-sim/marks,martlet-protocol/canaries");
    for test in tests {
        command.args(["--test", test]);
    }
    command
}

/// Plants known bugs one at a time; default lives have to find them.
pub fn canaries(root: &Path) -> Command {
    let mut command = probed(root, ["canaries"]);
    command.arg("--");
    command
}

/// Builds, once, everything that takes long and has known bugs planted.
fn build_probed(root: &Path) -> Outcome {
    finish(probed(root, ["canaries", "coverage", "hand_over"]).arg("--no-run"))
}

/// Plants known bugs in the engines for which hand-overs of the permission are explored in every order.
fn planted_hand_overs(root: &Path) -> Outcome {
    chosen::finish(probed(root, ["hand_over"]).arg("planted"))
}

/// Plants known bugs in the two halves of a flow of the fabric `ethernet`; its model and its scenes of loss have to find them.
fn planted_flows(root: &Path) -> Outcome {
    each_canary_of(root, "martlet-fabric")
}

/// Plants known bugs in what a warden reads and in what it concludes from packets; its fuzz target has to find them.
fn planted_wardens(root: &Path) -> Outcome {
    each_canary_of(root, "martlet-warden")
}

fn each_canary_of(root: &Path, package: &str) -> Outcome {
    let mut command = cargo(root);
    command.args(["test", "--profile", "probed", "--package", package, "--lib", "--features=canaries"]);
    chosen::finish(command.args(["--", "each_canary_is_found"]))
}

const fn step(name: &'static str, usual: u32, work: Work) -> Step {
    Step { name, usual, work }
}

fn clippy(root: &Path, what: &[&str]) -> Outcome {
    finish(cargo(root).arg("clippy").args(what).args(["--", "--deny", "warnings"]))
}

fn tidy(root: &Path) -> Outcome {
    match crate::tidy::run(root) {
        code if code == ExitCode::SUCCESS => Outcome::Passed,
        _ => Outcome::Failed("see above".into()),
    }
}

/// These run one after another.
const BEFORE: [Step; 8] = [
    step("format", 1, |root| finish(cargo(root).args(["fmt", "--all", "--check"]))),
    step("tidy", 50, tidy),
    step("header", 1, crate::header::check),
    step("lints", 50, |root| clippy(root, &["--workspace", "--all-targets"])),
    // Not part of `--all-targets` above, because it is not run with them.
    step("lints, of tests on RDMA", 1, |root| clippy(root, &["--workspace", "--test", "verbs"])),
    step("lints, with probes", 10, |root| clippy(root, &[&PLANTED[..], &["--all-targets", PROBED]].concat())),
    step("docs", 20, |root| finish(cargo(root).args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))),
    step("deny", 40, crate::deny::check),
];
/// These run one after another, while no other step builds for long, because clusters of real processes depend on time.
const TESTS: [Step; 3] = [
    step("tests", 900, tests),
    step("package", 40, |root| crate::deb::run(root, crate::deb::Programs::Debug)),
    // This builds the last release, and tests real processes.
    step("upgrade", 400, |root| crate::upgrade::run(root, None)),
];
/// These run one after another, beside the rows: they do not depend on time as clusters of real processes do.
const AFTER: [Step; 2] = [
    step("fuzz", 25, |root| crate::fuzz::landing(root).map_or_else(Outcome::Failed, |()| Outcome::Passed)),
    // Each machine has a time limit of its own, whose message says more.
    step("rdma", 500, crate::vm::check::landing),
];
/// Planted bugs, and how far the simulator reaches. Building these takes both cores.
const CANARIES: [Step; 6] = [
    step("canaries, built", 200, build_probed),
    step("canaries", 60, |root| finish(canaries(root).arg("--known-first"))),
    step("canaries, in every order", 10, planted_hand_overs),
    step("canaries, of ethernet", 30, planted_flows),
    step("canaries, of wardens", 60, planted_wardens),
    step("coverage", 60, |root| finish(&mut probed(root, ["coverage"]))),
];
/// These build little, and execute for long on one core.
const CHECKERS: [Step; 2] = [
    step("loom", 130, |root| one_by_one(Ok(loom(root).into()), finish)),
    step("miri", 300, |root| one_by_one(crate::miri::check(root), chosen::finish)),
];
/// This waits for the network.
const ADVISORIES: [Step; 1] = [step("advisories", 60, crate::deny::advisories)];
/// The rows that run beside the tests, which leave a core free now and then, and those that run beside what comes after. The steps of a row run one by one.
const BESIDE_TESTS: &[&[Step]] = &[&CHECKERS, &ADVISORIES];
const BESIDE_AFTER: &[&[Step]] = &[&CANARIES];

/// All steps.
pub fn steps() -> impl Iterator<Item = Step> {
    let beside = BESIDE_TESTS.iter().chain(BESIDE_AFTER).copied().flatten().copied();
    BEFORE.into_iter().chain(TESTS).chain(AFTER).chain(beside)
}

/// Runs every step, even after one has failed, so that one run shows everything that is wrong.
pub fn run() -> ExitCode {
    let scratch = match Scratch::new("steps") {
        Ok(scratch) => scratch,
        Err(error) => {
            eprintln!("cannot make a directory for what steps print: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut summary = Summary::default();
    let next = |summary: &mut Summary, step: Step| {
        println!("== {}", step.name);
        summary.add(step.run(scratch.path()));
    };
    BEFORE.into_iter().for_each(|step| next(&mut summary, step));
    let mut beside = Vec::new();
    let mut start = |rows: &[&[Step]]| {
        let names: Vec<&str> = rows.iter().copied().flatten().map(|step| step.name).collect();
        println!("== beside what follows, shown when they have ended: {}", names.join("; "));
        beside.push(Beside::start(rows.iter().copied(), scratch.path()));
    };
    start(BESIDE_TESTS);
    TESTS.into_iter().for_each(|step| next(&mut summary, step));
    start(BESIDE_AFTER);
    for step in AFTER {
        next(&mut summary, step);
        // Only here, and not in the middle of a step's output.
        beside.iter().flat_map(Beside::ended).for_each(|ended| summary.add_shown(ended));
    }
    beside.into_iter().flat_map(Beside::rest).for_each(|ended| summary.add_shown(ended));
    if !summary.tests.is_empty() {
        println!("== what tests that failed have said");
        summary.tests.iter().for_each(Failed::show);
    }
    println!("== summary");
    for line in summary.lines {
        println!("{line}");
    }
    if summary.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The outcomes of the steps.
#[derive(Default)]
struct Summary {
    lines: Vec<String>,
    failed: bool,
    /// Tests that failed.
    tests: Vec<Failed>,
}

impl Summary {
    fn add(&mut self, ended: Ended) {
        let Ended { name, outcome, seconds, failed, .. } = ended;
        self.tests.extend(failed);
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

    /// Adds a step that ran beside others, and shows its output now.
    fn add_shown(&mut self, ended: Ended) {
        println!("== {}, beside others", ended.name);
        // If the output cannot be shown, the reader still has the summary.
        let _ = io::stdout().write_all(&ended.said);
        self.add(ended);
    }
}

/// Runs commands one by one, each by `run`, until one does not pass.
pub fn one_by_one(commands: Result<Vec<Command>, Outcome>, run: impl Fn(&mut Command) -> Outcome) -> Outcome {
    match commands {
        Ok(commands) => {
            let mut outcomes = commands.into_iter().map(|mut command| run(&mut command));
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

/// Runs the tests with a separate directory for temporary files, so that files that they leave behind are noticed.
fn tests(root: &Path) -> Outcome {
    let scratch = match Scratch::new("ci") {
        Ok(scratch) => scratch,
        Err(error) => return Outcome::Failed(format!("cannot make a directory for temporary files: {error}")),
    };
    for (tool, package) in [("redis-server", "redis-server"), ("redis-cli", "redis-tools"), ("redis-benchmark", "redis-tools")] {
        if !on_path(tool) {
            println!("   {tool} is not installed (Debian's {package}): tests that need it say so and pass over it");
        }
    }
    if !on_path("cc") {
        println!("   cc is not installed (Debian's gcc): the test of the C ABI says so and passes over it");
    }
    // The command's tests start the real binary, which has to be built before them; so does the library for C. Building the tests here, too, gives dependencies
    // the features that tests ask for, so that they are built only once.
    let built = finish(cargo(root).args(["build", "--workspace", "--all-targets"]));
    if !matches!(built, Outcome::Passed) {
        return built;
    }
    let target = target_directory(root);
    let directories = [target.join("debug"), target.join("tmp")];
    let before = processes_from(&directories);
    let mut test = cargo(root);
    // What tests build themselves is part of the workspace, which is built already.
    test.args(["test", "--workspace", "--no-fail-fast"]).env("TMPDIR", scratch.path()).env("MARTLET_BUILT_WORKSPACE", "1");
    // The longest tests are those of real processes, which wait for much of their time: for ends, for time-outs, for each other.
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        test.env("RUST_TEST_THREADS", (cores + cores.div_ceil(2)).to_string());
    }
    let outcome = finish(&mut test);
    let mut left: Vec<String> =
        processes_from(&directories).difference(&before).map(|(pid, exe)| format!("process {pid} ({})", exe.display())).collect();
    left.extend(scratch.entries().into_iter().map(|path| format!("file {}", path.display())));
    if left.is_empty() {
        return outcome;
    }
    for thing in &left {
        println!("   left behind: {thing}");
    }
    match outcome {
        Outcome::Passed => Outcome::Failed(format!("the tests left {} thing(s) behind", left.len())),
        other => other,
    }
}

/// Whether the shell would find this program.
pub fn on_path(tool: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()))
}

/// A directory that is deleted when the value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty directory for `what`.
    pub fn new(what: &str) -> std::io::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("martlet-{what}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn entries(&self) -> Vec<PathBuf> {
        // Doc tests are compiled in directories that rustdoc makes and does not always remove.
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
        // If the directory cannot be removed, nothing better can be done, and the tests' verdict holds without that.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The directory that cargo builds into.
pub fn target_directory(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    fs::canonicalize(&target).unwrap_or(target)
}

/// The running processes whose executable is below one of these directories, except this process.
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

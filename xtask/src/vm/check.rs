//! The tests that need RDMA devices, in part as `cargo xtask ci` runs them and in full as `cargo xtask rdma` does: the backend's tests, and trials of clusters,
//! in the virtual machine, on a good link and on bad ones.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use super::image::Image;
use super::machine::quoted;
use super::options::Options;
use super::{UNAVAILABLE, boot_from, ready};
use crate::ci::{Outcome, cargo};

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Everything.
    Full,
    /// What has to pass before a change lands: nothing is left out altogether but benchmarks beyond one, but what chance decides is tried less often.
    Landing,
}

/// What is run on one link, in one machine, because booting takes as long as many tests.
struct Run {
    what: &'static str,
    /// The beginning of each line of its output.
    label: &'static str,
    /// Packet loss, in thousandths of a per cent.
    loss: Option<u32>,
    delay: Option<Duration>,
    /// Whether the devices have IPv6 addresses, which are named to the tests instead of being found.
    ipv6: bool,
    tests: Tests,
    /// Tests of the command, which run it over RDMA.
    command: &'static [&'static str],
    /// More of them, with [`Effort::Full`].
    command_in_full: &'static [&'static str],
    trials: &'static [Trial],
}

/// A run of the backend's tests.
struct Tests {
    /// How often the test of revocation revokes. On a bad link, each revocation takes long.
    revocations: u32,
    /// How often the self-test of revocation revokes, in all its ways together.
    fence_trials: u32,
    /// The number of acts in each order of hand-overs. One more makes four times as many orders, and on a bad link each takes long.
    hand_over_acts: u32,
    /// How many tests run at once. On a bad link they mostly wait.
    threads: u32,
    /// Parts of the names of those that run. If there are none, all run.
    only: &'static [&'static str],
    /// Tests that only run alone and when they are asked for. If there are none, the other tests run.
    alone: &'static [&'static str],
}

/// A trial of a cluster: three nodes on both devices, and clients on the fabric and over the Redis protocol. Nodes are killed and started again, and one is
/// removed while another is added.
struct Trial {
    engine: &'static str,
    kills: u32,
    pauses: u32,
    changes: u32,
    /// Whether its nodes have a multicast group.
    multicast: &'static str,
}

const RUNS: [Run; 4] = [
    Run {
        what: "a good link",
        label: "good  | ",
        loss: None,
        delay: None,
        ipv6: false,
        tests: Tests { revocations: 2800, fence_trials: 320, hand_over_acts: 5, threads: 2, only: &[], alone: &[] },
        // Figures mean nothing here. But benchmarks have to run, and the doctor has to find the devices.
        command: &[
            "bench::one_sided_operations",
            "cluster::a_cluster_outlives_its_primary_and_all_steps_may_be_repeated",
            "cluster::leadership_is_handed_to_the_node_that_is_named",
            "command::the_doctor_says_what_this_host_can_do",
        ],
        command_in_full: &["bench::a_figure_of_the_paper_is_drawn", "bench::asking_for_a_lease"],
        trials: &[
            Trial { engine: "primary-backup", kills: 3, pauses: 1, changes: 1, multicast: "on" },
            Trial { engine: "mu", kills: 3, pauses: 1, changes: 1, multicast: "off" },
        ],
    },
    Run {
        what: "5 % loss and 2 ms delay each way",
        label: "lossy | ",
        loss: Some(5000),
        delay: Some(Duration::from_millis(2)),
        ipv6: false,
        tests: Tests { revocations: 20, fence_trials: 40, hand_over_acts: 4, threads: 4, only: &[], alone: &[] },
        command: &[],
        command_in_full: &[],
        // One kill and restart with `mu`, since each fault takes half a minute here.
        trials: &[
            Trial { engine: "primary-backup", kills: 3, pauses: 0, changes: 0, multicast: "on" },
            Trial { engine: "mu", kills: 1, pauses: 0, changes: 0, multicast: "off" },
        ],
    },
    Run {
        what: "a link that falls silent, or goes down, and comes back",
        label: "silent| ",
        loss: None,
        delay: None,
        ipv6: false,
        tests: Tests {
            revocations: 0,
            fence_trials: 0,
            hand_over_acts: 0,
            threads: 1,
            only: &[],
            // They run in the order of their names, and the last one has to be last, because a link that has been down has lost its routes.
            alone: &[
                "datagrams::forgetting_a_peer_takes_datagrams_from_nobody_else",
                "silence::everything_ends_when_the_link_is_silent_and_goes_on_when_it_is_back",
                "silence::the_log_says_that_a_port_is_down_and_that_it_is_up",
            ],
        },
        command: &[],
        command_in_full: &[],
        trials: &[],
    },
    Run {
        what: "IPv6",
        label: "ipv6  | ",
        loss: None,
        delay: None,
        ipv6: true,
        // Everything in which addresses play a part. A peer that was met at one address is reached at another.
        tests: Tests {
            revocations: 20,
            fence_trials: 8,
            hand_over_acts: 0,
            threads: 4,
            only: &["datagrams::", "endpoint::", "multicast::"],
            alone: &[],
        },
        command: &[],
        command_in_full: &[],
        trials: &[],
    },
];
/// With this seed, every trial kills both primaries and backups.
const SEED: u32 = 7;
/// After how long a run is given up as one that hangs. Under emulation, with other work beside it, a run took up to ten minutes. A machine with ten times more
/// to do than it has cores must not make it end.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// `cargo xtask rdma`.
pub fn command(root: &Path) -> ExitCode {
    match run(root, Effort::Full) {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Failed(why) => {
            eprintln!("rdma: {why}");
            ExitCode::FAILURE
        }
        Outcome::Skipped(why) | Outcome::Partly(why) => {
            eprintln!("rdma: skipped: {why}");
            ExitCode::from(UNAVAILABLE)
        }
    }
}

/// What `cargo xtask ci` runs.
pub fn landing(root: &Path) -> Outcome {
    run(root, Effort::Landing)
}

/// Builds the tests and runs them in the machine.
fn run(root: &Path, effort: Effort) -> Outcome {
    let built = match build(root).and_then(|built| built.check().map(|()| built)) {
        Ok(built) => built,
        Err(why) => return Outcome::Failed(why),
    };
    println!("   on two software RDMA devices");
    let Some(image) = ready(root) else {
        return Outcome::Skipped("no virtual machine can be had here (see above); the RDMA backend was NOT tested".into());
    };
    // On a bad link hardly anything happens, so there is time for another machine meanwhile.
    let [good, lossy, silent, ipv6] = RUNS;
    let work = Work { image: &image, built: &built, effort };
    let ends = std::thread::scope(|scope| {
        let bad = scope.spawn(|| [&lossy, &silent, &ipv6].into_iter().find_map(|run| work.run(run)));
        [work.run(&good), bad.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
    });
    let failures: Vec<String> = ends.into_iter().flatten().collect();
    if failures.is_empty() { Outcome::Passed } else { Outcome::Failed(failures.join("; ")) }
}

/// What is run, wherever it is.
struct Work<'a> {
    image: &'a Image,
    built: &'a Built,
    effort: Effort,
}

impl Work<'_> {
    /// The reason why a run failed, unless it passed.
    fn run(&self, run: &Run) -> Option<String> {
        println!("   {}{}", run.label, run.what);
        let mut parts = vec![run.tests.command(&self.built.tests, run.ipv6, self.effort)];
        let more = if self.effort == Effort::Full { run.command_in_full } else { &[] };
        let command = [run.command, more].concat();
        if !command.is_empty() {
            parts.push(over_rdma(&self.built.command_tests, &command));
        }
        parts.extend(run.trials.iter().map(|trial| trial.command(&self.built.martlet)));
        let options = Options {
            command: one_by_one(&parts),
            loss: run.loss,
            delay: run.delay,
            ipv6: run.ipv6,
            timeout: TIMEOUT,
            label: run.label,
            ..Options::default()
        };
        let start = Instant::now();
        let status = boot_from(self.image, &options);
        println!("   {}{} s in all", run.label, start.elapsed().as_secs());
        (status != 0).then(|| format!("with {}: status {status}", run.what))
    }
}

/// A shell command that runs these until one fails, and prints how long each takes.
fn one_by_one(parts: &[Vec<String>]) -> Vec<String> {
    let timed = |part: &Vec<String>| {
        let words: Vec<String> = part.iter().map(|word| quoted(word)).collect();
        format!("s=$(date +%s); {} || exit; echo \"   that took $(($(date +%s) - s)) s\"", words.join(" "))
    };
    vec!["sh".into(), "-c".into(), parts.iter().map(timed).collect::<Vec<_>>().join("\n")]
}

impl Tests {
    fn command(&self, binary: &Path, ipv6: bool, effort: Effort) -> Vec<String> {
        let (revocations, fence_trials, hand_over_acts) = match effort {
            Effort::Full => (self.revocations, self.fence_trials, self.hand_over_acts),
            Effort::Landing => (self.revocations.min(800), self.fence_trials.min(160), self.hand_over_acts.min(4)),
        };
        let mut settings = vec![
            format!("MARTLET_REVOCATIONS={revocations}"),
            format!("MARTLET_FENCE_TRIALS={fence_trials}"),
            format!("MARTLET_HAND_OVER_ACTS={hand_over_acts}"),
        ];
        if ipv6 {
            // Index 0 is the device's own address.
            settings.push("MARTLET_GID_INDEX=1".into());
        }
        let threads = ["--test-threads".into(), self.threads.to_string()];
        let mut command: Vec<String> =
            ["env".into()].into_iter().chain(settings).chain([binary.display().to_string()]).chain(threads).collect();
        command.extend(self.only.iter().map(|word| (*word).to_owned()));
        if !self.alone.is_empty() {
            command.extend(["--ignored", "--exact"].iter().chain(self.alone).map(|word| (*word).to_owned()));
        }
        command
    }
}

/// The commands that run tests of the command on both devices.
fn over_rdma(binary: &Path, tests: &[&str]) -> Vec<String> {
    let binary = binary.to_str().expect("a path that cargo has printed");
    let fabric = ["env", "MARTLET_TEST_FABRIC=verbs", "MARTLET_TEST_DEVICES=rxe0,rxe1"];
    let threads = [binary, "--test-threads", "2", "--exact"];
    fabric.iter().chain(&threads).chain(tests).map(|word| (*word).to_owned()).collect()
}

impl Trial {
    /// `martlet torture`: nothing acknowledged is lost, whichever node is killed or removed, and nodes that are started or added join.
    fn command(&self, martlet: &Path) -> Vec<String> {
        let counts = [self.kills, self.pauses, self.changes].map(|count| count.to_string());
        let ([kills, pauses, changes], seed) = (&counts, SEED.to_string());
        let flags = ["torture", "--engine", self.engine, "--fabric", "verbs", "--devices", "rxe0,rxe1", "--multicast", self.multicast];
        let load = ["--clients", "1", "--redis-clients", "1"];
        let faults = ["--kills", kills, "--pauses", pauses, "--restarts", "1", "--changes", changes, "--seed", &seed];
        let martlet = martlet.to_str().expect("a path that cargo has printed");
        [martlet].into_iter().chain(flags).chain(load).chain(faults).map(str::to_owned).collect()
    }
}

/// The paths of what runs in the machine.
struct Built {
    /// The backend's tests.
    tests: PathBuf,
    /// The command.
    martlet: PathBuf,
    /// Its tests.
    command_tests: PathBuf,
}

impl Built {
    /// Checks that the tests that [`RUNS`] names exist: otherwise a test that does not exist would pass.
    fn check(&self) -> Result<(), String> {
        for (binary, named) in [
            (&self.tests, RUNS.iter().flat_map(|run| run.tests.alone).copied().collect::<Vec<_>>()),
            (&self.command_tests, RUNS.iter().flat_map(|run| [run.command, run.command_in_full].concat()).collect()),
        ] {
            let output = Command::new(binary).args(["--list", "--format", "terse"]).output();
            let output = output.map_err(|e| format!("cannot run {}: {e}", binary.display()))?;
            let listed = String::from_utf8_lossy(&output.stdout);
            let only = RUNS.iter().flat_map(|run| run.tests.only);
            if let Some(none) = only.filter(|_| binary == &self.tests).find(|part| !listed.contains(*part)) {
                return Err(format!("{} has no tests {none}", binary.display()));
            }
            if let Some(missing) = named.iter().find(|test| !listed.lines().any(|line| line.strip_suffix(": test") == Some(test))) {
                return Err(format!("{} has no test {missing}", binary.display()));
            }
        }
        Ok(())
    }
}

/// Builds everything, with the features that the workspace's tests use: after those, nearly all of it has been built already. It builds every program, though
/// only one is needed: some packages are used both by macros and by programs, and would otherwise be built once more without the programs' features, and so
/// would everything that uses macros.
fn build(root: &Path) -> Result<Built, String> {
    let mut command = cargo(root);
    command.args(["build", "--workspace", "--test", "verbs", "--test", "it", "--bins", "--message-format", "json"]);
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("the tests and the command cannot be built: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = |package: &str, target: &str| {
        executable(&messages, &root.join(package), target).ok_or_else(|| format!("cargo names no executable of {target} in {package}"))
    };
    Ok(Built {
        tests: built("crates/fabric", "verbs")?,
        martlet: built("crates/cli", "martlet")?,
        command_tests: built("crates/cli", "it")?,
    })
}

/// The executable of a package's target, as cargo's messages name it. Several packages may have a target of that name.
fn executable(messages: &str, package: &Path, target: &str) -> Option<PathBuf> {
    let manifest = package.join("Cargo.toml");
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == target && message["manifest_path"].as_str().map(Path::new) == Some(&manifest))
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_one_by_one_until_one_fails() {
        let part = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let command = one_by_one(&[part(&["echo", "a b"]), part(&["sh", "-c", "exit 3"]), part(&["echo", "never"])]);
        // The shell itself decides.
        let ran = std::process::Command::new(&command[0]).args(&command[1..]).output().expect("a shell");
        assert_eq!(ran.status.code(), Some(3));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(said.starts_with("a b\n   that took ") && !said.contains("never"), "{said}");
    }

    #[test]
    fn the_test_binary_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/node/Cargo.toml","target":{"name":"martlet_node"},"executable":null}
not json
{"reason":"compiler-artifact","manifest_path":"/w/node/Cargo.toml","target":{"name":"it"},"executable":"/t/debug/deps/it-1"}
{"reason":"compiler-artifact","manifest_path":"/w/cli/Cargo.toml","target":{"name":"it"},"executable":"/t/debug/deps/it-2"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, Path::new("/w/cli"), "it"), Some(PathBuf::from("/t/debug/deps/it-2")));
        assert_eq!(executable(messages, Path::new("/w/node"), "martlet_node"), None);
        assert_eq!(executable("{}", Path::new("/w/cli"), "it"), None);
    }
}

//! The tests that need RDMA devices, as `cargo xtask ci` runs them: in the virtual machine, on a good link and on bad ones.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::options::Options;
use super::{UNAVAILABLE, boot};
use crate::ci::{Outcome, cargo};

/// A run of the tests.
struct Run {
    what: &'static str,
    /// Thousandths of a per cent.
    loss: Option<u32>,
    delay: Option<Duration>,
    /// How often the test of revocation revokes. On a bad link each time takes long.
    revocations: u32,
    /// How many tests go on at once: on a bad link they mostly wait.
    threads: u32,
    /// A test that only runs when it is asked for, alone; else all the others.
    alone: Option<&'static str>,
}

const RUNS: [Run; 3] = [
    Run { what: "a good link", loss: None, delay: None, revocations: 1000, threads: 2, alone: None },
    Run {
        what: "5 % loss and 2 ms delay each way",
        loss: Some(5000),
        delay: Some(Duration::from_millis(2)),
        revocations: 20,
        threads: 4,
        alone: None,
    },
    Run {
        what: "a link that falls silent and comes back",
        loss: None,
        delay: None,
        revocations: 0,
        threads: 1,
        alone: Some("silence::everything_ends_when_the_link_is_silent_and_goes_on_when_it_is_back"),
    },
];
/// A trial of clusters: three nodes on both devices, clients on the fabric and over the Redis protocol, nodes killed and started again.
struct Trial {
    what: &'static str,
    loss: Option<u32>,
    delay: Option<Duration>,
    kills: u32,
    pauses: u32,
}

const TRIALS: [Trial; 2] = [
    Trial { what: "a good link", loss: None, delay: None, kills: 4, pauses: 1 },
    Trial { what: "5 % loss and 2 ms delay each way", loss: Some(5000), delay: Some(Duration::from_millis(2)), kills: 3, pauses: 0 },
];
/// With it both trials kill primaries and backups.
const SEED: u32 = 7;
/// Tens of thousands of orders of events: they pass, but emulated they take as long as all the rest (`docs/rdma.md`). They are for a machine with KVM, or
/// with a card.
const TOO_LONG: &str = "no_order_of_writes_and_hand_overs_loses_what_succeeded";
/// When a run is given up, as one that hangs. It takes one to two minutes under emulation on a quiet machine; one that has ten times more to do than cores must not
/// end it.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// `cargo xtask rdma`.
pub fn command(root: &Path) -> ExitCode {
    match run(root) {
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

/// Builds the tests and runs them in the machine.
pub fn run(root: &Path) -> Outcome {
    let tests = match build(root) {
        Ok(tests) => tests,
        Err(why) => return Outcome::Failed(why),
    };
    let martlet = match martlet(root) {
        Ok(martlet) => martlet,
        Err(why) => return Outcome::Failed(why),
    };
    for run in RUNS {
        println!("   on two software RDMA devices with {}", run.what);
        let mut command = vec![
            "env".into(),
            format!("MARTLET_REVOCATIONS={}", run.revocations),
            tests.display().to_string(),
            "--test-threads".into(),
            run.threads.to_string(),
        ];
        match run.alone {
            Some(test) => command.extend(["--ignored", "--exact", test].map(str::to_owned)),
            None => {
                println!("   without {TOO_LONG}: it takes too long under emulation");
                command.extend(["--skip", TOO_LONG].map(str::to_owned));
            }
        }
        let options = Options { command, loss: run.loss, delay: run.delay, timeout: TIMEOUT, ..Options::default() };
        if let Some(end) = in_machine(root, &options, run.what) {
            return end;
        }
    }
    for trial in TRIALS {
        println!("   a cluster of three nodes on two software RDMA devices, killed again and again, with {}", trial.what);
        let options =
            Options { command: torture(&martlet, &trial), loss: trial.loss, delay: trial.delay, timeout: TIMEOUT, ..Options::default() };
        if let Some(end) = in_machine(root, &options, trial.what) {
            return end;
        }
    }
    Outcome::Passed
}

/// Runs a command there. What came of it, unless it passed.
fn in_machine(root: &Path, options: &Options, what: &str) -> Option<Outcome> {
    match boot(root, options) {
        0 => None,
        UNAVAILABLE => Some(Outcome::Skipped("no virtual machine can be had here (see above); the RDMA backend was NOT tested".into())),
        status => Some(Outcome::Failed(format!("with {what}: status {status}"))),
    }
}

/// `martlet torture`: nothing acknowledged is lost, whoever is killed, and who is started again joins.
fn torture(martlet: &Path, trial: &Trial) -> Vec<String> {
    let kills = trial.kills.to_string();
    let pauses = trial.pauses.to_string();
    let seed = SEED.to_string();
    let flags = ["torture", "--fabric", "verbs", "--devices", "rxe0,rxe1", "--clients", "1", "--redis-clients", "1"];
    let faults = ["--kills", &kills, "--pauses", &pauses, "--restarts", "1", "--seed", &seed];
    [martlet.to_str().expect("a path that cargo has printed")].into_iter().chain(flags).chain(faults).map(str::to_owned).collect()
}

/// Builds the test binary; where it is.
fn build(root: &Path) -> Result<PathBuf, String> {
    built(root, &["test", "--package", "martlet-fabric", "--features", "rdma-tests", "--test", "verbs", "--no-run"], "verbs")
}

/// Builds the command; where it is.
fn martlet(root: &Path) -> Result<PathBuf, String> {
    built(root, &["build", "--package", "martlet-cli", "--bin", "martlet"], "martlet")
}

fn built(root: &Path, arguments: &[&str], target: &str) -> Result<PathBuf, String> {
    let mut command = cargo(root);
    command.args(arguments).args(["--message-format", "json"]);
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("{target} cannot be built: {}", output.status));
    }
    executable(&String::from_utf8_lossy(&output.stdout), target).ok_or_else(|| format!("cargo names no executable of {target}"))
}

/// The executable of a target that cargo's messages name.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == target)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_binary_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"martlet_fabric"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"verbs"},"executable":"/t/debug/deps/verbs-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "verbs"), Some(PathBuf::from("/t/debug/deps/verbs-1")));
        assert_eq!(executable("{}", "verbs"), None);
    }
}

//! Our checker and porcupine, an established one, agree on histories of simulated lives, and on those histories with a mistake in them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fastrand::Rng;
use martlet_sim::cluster::{KINDS, Plan};
use martlet_sim::linearizability::kv::{Action, Bytes, Input, Output, Store};
use martlet_sim::linearizability::{Operation, Outcome, Verdict, check_within};
use serde_json::{Value, json};

type History = Vec<Operation<Input, Output>>;

/// How many operations of a history both get. Each operation without a reply doubles porcupine's time.
const OPERATIONS: usize = 40;
/// How many operations may be without a reply.
const WITHOUT_REPLY: usize = 3;

#[test]
fn porcupine_and_our_checker_agree() {
    let Some(porcupine) = build() else { return };
    let mut chance = Rng::with_seed(7);
    let mut histories: Vec<History> = Vec::new();
    for seed in 0..60 {
        let plan = Plan { keep_history: true, ..Plan::new(3_000 + seed) };
        let whole = KINDS[0].live(&plan).0.history;
        for start in [0, whole.len() / 2] {
            let history = excerpt(&whole, start);
            histories.extend((0..2).map(|_| broken(&history, &mut chance)));
            histories.push(history);
        }
    }
    let ours = histories.iter().map(|history| match check_within(&Store, history, 3_000_000) {
        Verdict::Linearizable => "yes",
        Verdict::Violation(_) => "no",
        Verdict::Undecided { .. } => "unknown",
    });
    let ours: Vec<&str> = ours.collect();
    let theirs = ask(&porcupine, &histories);
    assert_eq!(theirs.len(), histories.len());
    let mut counts = [0, 0];
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        if *ours == "unknown" || theirs == "unknown" {
            continue;
        }
        assert_eq!(ours, theirs, "history {at}: {}", lines(&histories[at..=at]));
        counts[usize::from(*ours == "yes")] += 1;
    }
    assert!(counts[0] >= 100 && counts[1] >= 60, "{} wrong and {} right histories decided by both", counts[0], counts[1]);
}

/// Some operations of a history, from one on in the order of their calls, with few that have no reply. The operations before it are missing, so a part from the
/// middle reads values that were never written; both checkers have to say so.
fn excerpt(whole: &History, start: usize) -> History {
    let mut history = whole.clone();
    history.sort_by_key(|operation| operation.called_ns);
    let mut without_reply = 0;
    let few = move |operation: &Operation<Input, Output>| {
        let unknown = operation.outcome == Outcome::Unknown;
        without_reply += usize::from(unknown);
        !unknown || without_reply <= WITHOUT_REPLY
    };
    history.into_iter().skip(start).filter(few).take(OPERATIONS).collect()
}

/// The same, with one reply altered or two operations' values exchanged.
fn broken(history: &History, chance: &mut Rng) -> History {
    let mut history = history.clone();
    let values: Vec<Option<Bytes>> = history
        .iter()
        .filter_map(|operation| match &operation.outcome {
            Outcome::Returned { output: Output::Value(value), .. } => Some(value.clone()),
            _ => None,
        })
        .collect();
    for _ in 0..100 {
        let at = chance.usize(..history.len());
        let called_ns = history[at].called_ns;
        let Outcome::Returned { output, at_ns } = &mut history[at].outcome else { continue };
        match output {
            Output::Value(value) => {
                let other = chance.choice(&values).cloned().flatten();
                if other == *value {
                    continue;
                }
                *value = other;
            }
            Output::Changed(changed) => *changed = !*changed,
            // A write that is said to have ended long before it was requested.
            _ => *at_ns = called_ns,
        }
        return history;
    }
    history
}

fn text(bytes: &Bytes) -> String {
    bytes.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn lines(histories: &[History]) -> String {
    let operation = |op: &Operation<Input, Output>| -> Value {
        let (action, value, expected) = match &op.input.action {
            Action::Get => ("get", None, None),
            Action::Put(value) => ("put", Some(value), None),
            Action::Delete => ("delete", None, None),
            Action::CompareAndSwap { expected, new } => ("swap", Some(new), expected.as_ref()),
            other => unreachable!("no simulated client asks for {other:?}"),
        };
        let (at, seen, changed) = match &op.outcome {
            Outcome::Unknown => (None, None, None),
            Outcome::Returned { at_ns, output } => match output {
                Output::Value(value) => (Some(*at_ns), value.as_ref(), None),
                Output::Changed(changed) => (Some(*at_ns), None, Some(*changed)),
                _ => (Some(*at_ns), None, None),
            },
        };
        json!({
            "client": op.client, "call": op.called_ns, "return": at, "key": text(&op.input.key), "action": action,
            "value": value.map(text), "expected": expected.map(text), "seen": seen.map(text), "changed": changed,
        })
    };
    histories.iter().map(|history| format!("{}\n", Value::Array(history.iter().map(operation).collect()))).collect()
}

fn ask(porcupine: &Path, histories: &[History]) -> Vec<String> {
    let mut child = Command::new(porcupine).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("porcupine starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let text = lines(histories);
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("porcupine ends");
    writer.join().expect("no panic").expect("porcupine reads");
    assert!(output.status.success(), "porcupine: {}", output.status);
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// Builds the Go program, if this machine can.
fn build() -> Option<PathBuf> {
    let skip = |why: &str| {
        // Printed past the test's captured output: a check that was not made should be seen.
        let line = format!("\nSKIPPED: our checker was not compared with porcupine: {why}\n\n");
        std::io::stderr().write_all(line.as_bytes()).expect("standard error");
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/porcupine");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine");
    let go = |args: &[&str]| Command::new("go").args(args).current_dir(&source).env("GOFLAGS", "-mod=readonly").output();
    match go(&["version"]) {
        Err(why) => {
            skip(&format!("`go` cannot be run: {why}"));
            return None;
        }
        Ok(output) if !output.status.success() => {
            skip("`go version` fails");
            return None;
        }
        Ok(_) => {}
    }
    let module = go(&["mod", "download"]).expect("go runs");
    if !module.status.success() {
        skip(&format!("its Go module cannot be had: {}", String::from_utf8_lossy(&module.stderr).trim()));
        return None;
    }
    let built = go(&["build", "-o", binary.to_str().expect("a path in Unicode"), "."]).expect("go runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(binary)
}

//! Rules about single files.

use super::Problem;
use super::lexer::{self, Line};

/// A longer file is too much for a reader: split it by concept.
const MAX_LINES: usize = 900;

/// Crates that may contain unsafe code, each block with its argument. All others forbid it.
const MAY_BE_UNSAFE: [&str; 4] = ["fabric", "node", "preload", "capi"];

/// Modules of `protocol`, lowest first: each may use only those before it.
const PROTOCOL_MODULES: [&str; 8] = ["basics", "detector", "consensus", "membership", "founding", "replica", "engine", "duty"];

/// What `protocol` must not use, and what to use instead. It must behave the same in a node and under the simulator's single seed.
const IMPURE: [(&str, &str); 17] = [
    ("std::time", "take `now: Time` as an argument"),
    ("Instant", "take `now: Time` as an argument"),
    ("SystemTime", "take `now: Time` as an argument"),
    ("std::thread", "return to the caller and let the node's duty cycle come back"),
    ("thread_local", "keep the state in the value"),
    ("std::net", "go through the `Fabric`"),
    ("std::fs", "hand the bytes to the caller"),
    ("std::io", "hand the bytes to the caller"),
    ("std::env", "take the setting as an argument"),
    ("std::process", "return an error, or use `invariant!`"),
    ("std::sync", "a state machine belongs to one thread; memory is reached through the `Fabric`"),
    ("getrandom", "take the seed as an argument"),
    ("fastrand::Rng::new", "take the seed as an argument: `fastrand::Rng::with_seed`"),
    ("HashMap", "use `BTreeMap` or a sorted `Vec`: its order of iteration is chance"),
    ("HashSet", "use `BTreeSet` or a sorted `Vec`: its order of iteration is chance"),
    ("RandomState", "use an ordered collection"),
    ("async fn", "post an operation and take its completion as an argument"),
];

/// Functions of `fastrand` that draw from the thread's own generator, which the system seeds.
const GLOBAL_CHANCE: &str = "fastrand::";

/// Checks one file. `path` is relative to the workspace's root.
pub fn check(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    leftovers(path, text, &mut problems);
    if !path.ends_with(".rs") {
        return problems;
    }
    let mut lines = lexer::lines(text);
    // Modules of tests in files of their own: their `#[cfg(test)]` is where they are declared.
    if path.ends_with("/tests.rs") || path.contains("/tests/") {
        lines.iter_mut().for_each(|line| line.test = true);
    }
    let count = text.lines().count();
    if count > MAX_LINES {
        problems.push(Problem::new(path, 0, format!("{count} lines; at most {MAX_LINES}: split it by concept")));
    }
    forbids_unsafe(path, text, &mut problems);
    argued_unsafe(path, &lines, &mut problems);
    debug_code(path, &lines, &mut problems);
    named_subjects(path, &lines, &mut problems);
    if path.starts_with("crates/protocol/src/") {
        purity(path, &lines, &mut problems);
        module_order(path, &lines, &mut problems);
    }
    problems
}

/// The crate's directory name, for files below `crates/`.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// Finds marks that something was left for later. They are put together here so that this file does not object to itself.
fn leftovers(path: &str, text: &str, problems: &mut Vec<Problem>) {
    for mark in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")] {
        for (number, line) in (1..).zip(text.lines()) {
            if word(line, mark) {
                problems.push(Problem::new(path, number, format!("`{mark}`: do it, or describe it in an issue")));
            }
        }
    }
    for (number, line) in (1..).zip(text.lines()) {
        if line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ") {
            problems.push(Problem::new(path, number, "a merge conflict was left behind"));
        }
    }
}

fn forbids_unsafe(path: &str, text: &str, problems: &mut Vec<Problem>) {
    let parts: Vec<&str> = path.split('/').collect();
    let root = match parts.as_slice() {
        ["crates", name, "src", "lib.rs" | "main.rs"] => !MAY_BE_UNSAFE.contains(name),
        ["examples", _, "src", "lib.rs" | "main.rs"] | ["xtask", "src", "main.rs"] | ["fuzz", "src", "lib.rs"] => true,
        _ => false,
    };
    if root && !text.contains("#![forbid(unsafe_code)]") {
        problems.push(Problem::new(path, 0, "add `#![forbid(unsafe_code)]`; unsafe code stands in crates fabric, node, preload and capi"));
    }
}

/// Checks that every unsafe block and implementation carries the argument why it is sound, directly above it or on its line.
fn argued_unsafe(path: &str, lines: &[Line], problems: &mut Vec<Problem>) {
    for (at, line) in lines.iter().enumerate() {
        let code = line.code.replace(' ', "");
        let block = code.contains("unsafe{") || (code.ends_with("unsafe") && lines.get(at + 1).is_some_and(|l| l.code.trim() == "{"));
        let implementation = code.starts_with("unsafeimpl");
        if !(block || implementation) || line.comment.contains("SAFETY:") {
            continue;
        }
        let argued = lines[..at]
            .iter()
            .rev()
            .take_while(|above| {
                let code = above.code.trim();
                code.is_empty() || !code.ends_with([';', '{', '}'])
            })
            .any(|above| above.comment.contains("SAFETY:"));
        if !argued {
            problems.push(Problem::new(path, at + 1, "`unsafe` without a `// SAFETY:` comment above it that argues why it is sound"));
        }
    }
}

/// Finds debug code that must not stay, and macros that panic when standard output or standard error cannot be written: a node must not end because of that,
/// and a command has to end with a plain error. Developers' commands and tests may use them.
fn debug_code(path: &str, lines: &[Line], problems: &mut Vec<Problem>) {
    let prints = path.starts_with("xtask/")
        || path.starts_with("fuzz/")
        // A build script tells cargo by printing what it has found.
        || path.ends_with("/build.rs")
        || ["/tests/", "/examples/", "/src/bin/"].iter().any(|part| path.contains(part));
    for (at, line) in lines.iter().enumerate() {
        for name in ["dbg!", "todo!", "unimplemented!"] {
            if word(&line.code, name) {
                problems.push(Problem::new(path, at + 1, format!("`{name}` is for the bench, not for main")));
            }
        }
        if prints || line.test {
            continue;
        }
        let instead = match crate_of(path) {
            Some("cli" | "bench") => "print with `Format`, complain with `output::complain`",
            Some(_) => "return it, or log it with `tracing`",
            None => "`writeln!`, and look at what comes of it",
        };
        for name in ["println!", "eprintln!", "print!", "eprint!"] {
            if word(&line.code, name) {
                problems.push(Problem::new(path, at + 1, format!("`{name}` panics when nothing can be written: {instead}")));
            }
        }
    }
}

/// A comment must name its subject: a sentence that begins with "Who" leaves open whether a process, a thread or a person is meant. Questions may begin so.
fn named_subjects(path: &str, lines: &[Line], problems: &mut Vec<Problem>) {
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.comment.contains('?')) {
        let text = line.comment.trim_start().trim_start_matches(['/', '!']).trim_start();
        for subject in ["Who", "Whoever"] {
            let begins = text.strip_prefix(subject).is_some_and(|rest| rest.starts_with(' '));
            if begins || text.contains(&format!(". {subject} ")) {
                let message = format!("a sentence begins with `{subject}`: name the subject (`a replica that ...`, `the leader`)");
                problems.push(Problem::new(path, at + 1, message));
            }
        }
    }
}

fn purity(path: &str, lines: &[Line], problems: &mut Vec<Problem>) {
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
        for (banned, instead) in IMPURE {
            if word(&line.code, banned) {
                problems.push(Problem::new(path, at + 1, format!("`{banned}` in the pure crate: {instead}")));
            }
        }
        for (start, _) in line.code.match_indices(GLOBAL_CHANCE) {
            let rest = &line.code[start + GLOBAL_CHANCE.len()..];
            if !rest.starts_with("Rng") {
                problems.push(Problem::new(path, at + 1, "`fastrand`'s own generator in the pure crate: take the seed as an argument"));
            }
        }
    }
}

/// Checks that modules depend downward only.
fn module_order(path: &str, lines: &[Line], problems: &mut Vec<Problem>) {
    let module = |name: &str| PROTOCOL_MODULES.iter().position(|&m| m == name);
    let below = path.trim_start_matches("crates/protocol/src/");
    let Some(own) = below.split(['/', '.']).next().and_then(module) else { return };
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
        for (start, prefix) in line.code.match_indices("crate::") {
            let name: String = line.code[start + prefix.len()..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if module(&name).is_some_and(|used| used > own) {
                let message =
                    format!("`{}` uses `{name}`, which stands above it ({})", PROTOCOL_MODULES[own], PROTOCOL_MODULES.join(" < "));
                problems.push(Problem::new(path, at + 1, message));
            }
        }
    }
}

/// Whether `text` contains `what` as a whole name.
fn word(text: &str, what: &str) -> bool {
    let part_of_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let name_ends = part_of_name(what.chars().last());
    text.match_indices(what).any(|(at, _)| {
        let before = part_of_name(text[..at].chars().last());
        let after = name_ends && part_of_name(text[at + what.len()..].chars().next());
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_pure_crate_reads_no_clock() {
        let found = messages("crates/protocol/src/membership/lease.rs", "use std::time::Instant;\n");
        assert_eq!(
            found,
            [
                "crates/protocol/src/membership/lease.rs:1: `std::time` in the pure crate: take `now: Time` as an argument",
                "crates/protocol/src/membership/lease.rs:1: `Instant` in the pure crate: take `now: Time` as an argument",
            ]
        );
    }

    #[test]
    fn purity_binds_neither_tests_nor_comments_nor_other_crates() {
        assert!(messages("crates/protocol/src/basics/time.rs", "// not an Instant\n").is_empty());
        assert!(
            messages("crates/protocol/src/basics/time.rs", "#[cfg(test)]\nmod tests {\n    use std::collections::HashMap;\n}\n").is_empty()
        );
        assert!(messages("crates/protocol/src/engine/tests/random.rs", "use std::thread;\n").is_empty());
        assert!(messages("crates/node/src/os/clock.rs", "use std::time::Instant;\n").is_empty());
        assert!(messages("crates/protocol/src/basics/time.rs", "struct InstantNoodle;\n").is_empty());
    }

    #[test]
    fn chance_needs_a_seed() {
        let path = "crates/protocol/src/consensus/backoff.rs";
        assert!(messages(path, "let rng = fastrand::Rng::with_seed(seed);\n").is_empty());
        assert_eq!(messages(path, "let rng = fastrand::Rng::new();\n").len(), 1);
        assert_eq!(messages(path, "let wait = fastrand::u64(1..9);\n").len(), 1);
    }

    #[test]
    fn modules_of_the_protocol_depend_downward() {
        let found = messages("crates/protocol/src/consensus/paxos.rs", "use crate::basics::Time;\nuse crate::membership::View;\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains(":2: `consensus` uses `membership`"), "{found:?}");
    }

    #[test]
    fn comments_name_their_subject() {
        let path = "crates/node/src/agent.rs";
        for text in ["/// Who leads may go on.\n", "//! Each asks. Whoever answers is heard.\n", "fn f() {} // Who comes first.\n"] {
            assert_eq!(messages(path, text).len(), 1, "{text}");
        }
        assert!(messages(path, "/// Whole views. Whom it asks is chance. The one who leads. Who leads?\n").is_empty());
    }

    #[test]
    fn unsafe_needs_an_argument() {
        let path = "crates/fabric/src/shm/map.rs";
        assert_eq!(messages(path, "fn f() {\n    unsafe { g() }\n}\n").len(), 1);
        assert!(messages(path, "fn f() {\n    // SAFETY: g asks for nothing.\n    unsafe { g() }\n}\n").is_empty());
        assert!(messages(path, "fn f() {\n    // SAFETY: g asks for nothing.\n    let x =\n        unsafe { g() };\n}\n").is_empty());
        assert_eq!(messages(path, "// SAFETY: of f.\nfn f() {\n    unsafe { g() }\n}\n").len(), 1);
        assert_eq!(messages(path, "unsafe impl Send for X {}\n").len(), 1);
        assert!(messages(path, "// SAFETY: X owns all it points to.\nunsafe impl Send for X {}\n").is_empty());
    }

    #[test]
    fn crates_without_need_forbid_unsafe_code() {
        assert_eq!(messages("crates/kv/src/lib.rs", "//! KV.\n").len(), 1);
        assert!(messages("crates/kv/src/lib.rs", "#![forbid(unsafe_code)]\n").is_empty());
        assert!(messages("crates/fabric/src/lib.rs", "//! Memory.\n").is_empty());
        assert!(messages("crates/kv/src/store.rs", "//! Store.\n").is_empty());
    }

    #[test]
    fn nothing_is_left_for_later() {
        let mark = concat!("TO", "DO");
        assert_eq!(messages("docs/leases.md", &format!("{mark}: write this\n")).len(), 1);
        assert_eq!(messages("crates/kv/src/store.rs", &format!("// {mark} later\n")).len(), 1);
        assert!(messages("docs/leases.md", "a to-do list\n").is_empty());
    }

    #[test]
    fn nothing_prints_that_must_not_end_of_it() {
        assert_eq!(messages("crates/kv/src/store.rs", "fn f() { println!(\"x\"); }\n").len(), 1);
        assert_eq!(messages("crates/cli/src/demo.rs", "fn f() { dbg!(1); }\n").len(), 1);
        assert_eq!(messages("crates/cli/src/demo.rs", "fn f() { anstream::eprintln!(\"x\"); }\n").len(), 1);
        assert_eq!(messages("examples/exchange/src/main.rs", "#![forbid(unsafe_code)]\nfn f() { println!(\"x\"); }\n").len(), 1);
        assert!(messages("crates/cli/src/demo.rs", "#[cfg(test)]\nmod tests { fn f() { println!(\"x\"); } }\n").is_empty());
        assert!(messages("crates/martlet/examples/counter.rs", "fn f() { println!(\"x\"); }\n").is_empty());
        assert!(messages("crates/sim/src/bin/sim.rs", "fn f() { println!(\"x\"); }\n").is_empty());
        assert!(messages("crates/kv/src/store.rs", "fn f() { g(\"println!\"); }\n").is_empty());
        assert!(messages("crates/kv/build.rs", "fn main() { println!(\"x\"); }\n").is_empty());
    }

    #[test]
    fn long_files_are_refused() {
        let text = "//\n".repeat(MAX_LINES + 1);
        assert_eq!(messages("crates/kv/src/store.rs", &text).len(), 1);
        assert!(messages("crates/kv/src/store.rs", &text[3..]).is_empty());
    }
}

//! Reads the suite's output about its tests, line by line, and finds where two runs differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How many lines are shown of a test's complaint.
const LINES: usize = 4;
/// The name of whatever ends a unit, or a block of its tests.
const OUTSIDE: &str = "(outside of its tests)";

/// The outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Ok,
    /// It failed.
    Err,
    /// The suite itself left it out.
    LeftOut,
    /// The suite says nothing about it.
    Absent,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Ok => "ok",
            Verdict::Err => "err",
            Verdict::LeftOut => "left out",
            Verdict::Absent => "not reached",
        })
    }
}

/// The verdicts of one unit. If several tests have one name, they are numbered from the second one on.
#[derive(Debug, Default)]
pub struct Verdicts {
    of: BTreeMap<String, Verdict>,
    /// The tests in order.
    order: Vec<String>,
    complaints: BTreeMap<String, Vec<String>>,
    /// Whether the suite says that it has come to the unit's end, or why it has not.
    pub concluded: bool,
}

impl Verdicts {
    /// Reads the suite's output.
    pub fn read(printed: &str) -> Verdicts {
        let mut verdicts = Verdicts::default();
        let mut failed: Option<String> = None;
        for line in printed.lines() {
            let Some((status, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) else {
                // The suite's summary follows an empty line.
                if line.is_empty() {
                    failed = None;
                }
                if let Some(name) = &failed {
                    verdicts.complaints.entry(name.clone()).or_default().push(line.into());
                }
                continue;
            };
            failed = None;
            verdicts.concluded |= status.ends_with(" done") || ["exception", "TIMEOUT"].contains(&status);
            match status {
                // `NAME (MILLISECONDS ms)`
                "ok" => drop(verdicts.note(rest.rsplit_once(" (").map_or(rest, |(name, _)| name), Verdict::Ok)),
                // `NAME in FILE`. Without a name, this ended a block of tests.
                "err" | "exception" | "TIMEOUT" => {
                    failed = Some(match rest.rsplit_once(" in tests/") {
                        Some((name, _)) if status == "err" => verdicts.note(name, Verdict::Err),
                        _ => {
                            let name = verdicts.note(OUTSIDE, Verdict::Err);
                            verdicts.complaints.insert(name.clone(), vec![rest.into()]);
                            name
                        }
                    });
                }
                "skip" => drop(verdicts.note(rest, Verdict::LeftOut)),
                // `NAME: REASON`
                "ignore" => drop(verdicts.note(rest.rsplit_once(": ").map_or(rest, |(name, _)| name), Verdict::LeftOut)),
                _ => {}
            }
        }
        verdicts
    }

    /// Adds a problem of the run as a whole, which counts as a test that fails.
    pub fn add_trouble(&mut self, name: &str, complaint: impl IntoIterator<Item = String>) {
        let name = self.note(name, Verdict::Err);
        self.complaints.insert(name, complaint.into_iter().collect());
    }

    fn note(&mut self, name: &str, verdict: Verdict) -> String {
        let mut unique = name.to_owned();
        let mut number = 1;
        while self.of.contains_key(&unique) {
            number += 1;
            unique = format!("{name} #{number}");
        }
        self.of.insert(unique.clone(), verdict);
        self.order.push(unique.clone());
        unique
    }

    /// The outcome of a test.
    pub fn verdict(&self, name: &str) -> Verdict {
        self.of.get(name).copied().unwrap_or(Verdict::Absent)
    }

    /// How many tests there are.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// How many tests had this outcome.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.of.values().filter(|found| **found == verdict).count()
    }
}

/// A test whose outcomes with the two servers differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub test: String,
    /// Its outcome with a plain server, and with replicas.
    pub verdicts: (Verdict, Verdict),
    /// Its complaint.
    pub complaint: Vec<String>,
}

/// All differences, in the order of the suite.
pub fn differences(plain: &Verdicts, replicas: &Verdicts) -> Vec<Difference> {
    let mut seen = BTreeSet::new();
    let names = plain.order.iter().chain(&replicas.order).filter(|name| seen.insert(*name));
    names
        .filter_map(|name| {
            let verdicts = (plain.verdict(name), replicas.verdict(name));
            let complaint = || {
                let of = |run: &Verdicts| run.complaints.get(name).map(|lines| lines.iter().take(LINES).cloned().collect());
                of(replicas).or_else(|| of(plain)).unwrap_or_default()
            };
            (verdicts.0 != verdicts.1).then(|| Difference { test: name.clone(), verdicts, complaint: complaint() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "[ready]: 4711\nTesting unit/dump\n[ok]: DUMP (RESTORE) works (3 ms)\n[err]: A: colon in tests/unit/dump.tcl\nExpected 1\nto be 2\n\
        [ok]: twice (0 ms)\n[ok]: twice (1 ms)\n[ignore]: MIGRATE: deletes keys: Not supported on external server\n[skip]: left\n\
        [1/1 done]: unit/dump (15 seconds)\n\n                   The End\n\n*** [err]: A: colon in tests/unit/dump.tcl\n";

    #[test]
    fn each_test_has_a_verdict_and_a_failed_one_its_complaint() {
        let read = Verdicts::read(PRINTED);
        let found: Vec<_> = read.order.iter().map(|name| (&**name, read.verdict(name))).collect();
        let expected = [
            ("DUMP (RESTORE) works", Verdict::Ok),
            ("A: colon", Verdict::Err),
            ("twice", Verdict::Ok),
            ("twice #2", Verdict::Ok),
            ("MIGRATE: deletes keys", Verdict::LeftOut),
            ("left", Verdict::LeftOut),
        ];
        assert_eq!(found, expected);
        assert_eq!(read.complaints["A: colon"], ["Expected 1", "to be 2"]);
        let cut = PRINTED.split("[1/1").next().expect("its beginning");
        assert!(read.concluded && !Verdicts::read(cut).concluded);
    }

    #[test]
    fn what_ends_a_unit_and_what_is_not_reached_differs_as_well_as_what_fails() {
        let plain = Verdicts::read("[ok]: first (1 ms)\n[ok]: second (1 ms)\n[err]: both in tests/unit/x.tcl\n[ok]: last (1 ms)\n");
        let mut replicas = Verdicts::read(
            "[ok]: first (1 ms)\n[err]: second in tests/unit/x.tcl\nwhy\n[err]: both in tests/unit/x.tcl\n[err]: I/O error\n[exception]: end\n",
        );
        replicas.add_trouble("(the service ends)", ["exit code 1".to_owned()]);
        let found: Vec<_> = differences(&plain, &replicas).into_iter().map(|it| (it.test, it.verdicts, it.complaint.join("|"))).collect();
        let expected = [
            ("second", (Verdict::Ok, Verdict::Err), "why"),
            ("last", (Verdict::Ok, Verdict::Absent), ""),
            (OUTSIDE, (Verdict::Absent, Verdict::Err), "I/O error"),
            ("(outside of its tests) #2", (Verdict::Absent, Verdict::Err), "end"),
            ("(the service ends)", (Verdict::Absent, Verdict::Err), "exit code 1"),
        ];
        assert_eq!(found, expected.map(|(test, verdicts, complaint)| (test.to_owned(), verdicts, complaint.to_owned())));
        assert_eq!(differences(&plain, &plain), []);
    }
}

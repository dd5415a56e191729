//! Reads the output of tests. It keeps the output of failed ones, which is what a reader looks for, and which thousands of lines may follow. It also notes
//! which tests have ended.

use std::collections::BTreeSet;

/// How many lines of a test's output are shown. The panic is among the last, after the output of the test's processes.
const LINES: usize = 60;

/// A failed test and its output.
pub struct Failed {
    /// Its name, as the test binary prints it.
    pub name: String,
    /// Its output, line by line.
    pub said: Vec<String>,
}

impl Failed {
    /// Prints its name and the last lines of its output.
    pub fn show(&self) {
        println!("---- {}", self.name);
        let left_out = self.said.len().saturating_sub(LINES);
        if left_out > 0 {
            println!("({left_out} lines before)");
        }
        self.said[left_out..].iter().for_each(|line| println!("{line}"));
    }
}

/// Finds failed tests in libtest's output: `---- NAME stdout ----`, the test's output, then the next test, or a list of their names after `failures:`.
#[derive(Default)]
pub struct Listener {
    /// The failed tests of all test binaries so far.
    pub failed: Vec<Failed>,
    /// The tests of the running test binary that have ended.
    pub over: BTreeSet<String>,
    /// Whether lines belong to the last test of the list.
    in_midst: bool,
}

impl Listener {
    /// Takes the next line.
    pub fn hear(&mut self, line: &str) {
        self.hear_of_an_end(line);
        let name = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = name {
            self.failed.push(Failed { name: name.into(), said: Vec::new() });
            self.in_midst = true;
        } else if line == "failures:" {
            self.in_midst = false;
        } else if self.in_midst
            && let Some(last) = self.failed.last_mut()
        {
            last.said.push(line.into());
        }
    }

    /// Reads `test NAME ... ok`; some have ` - should panic` before the dots.
    fn hear_of_an_end(&mut self, line: &str) {
        if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") {
            self.over.clear();
        } else if let Some((name, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            self.over.insert(name.strip_suffix(" - should panic").unwrap_or(name).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_said_is_kept_apart_from_the_rest() {
        let printed = "test a ... FAILED\ntest b ... ok\n\nfailures:\n\n---- a stdout ----\none\ntwo\n---- c::d stdout ----\nthree\n\nfailures:\n    a\n    c::d\n\nrest";
        let mut listener = Listener::default();
        printed.lines().for_each(|line| listener.hear(line));
        let said: Vec<(&str, String)> = listener.failed.iter().map(|failed| (&*failed.name, failed.said.join("|"))).collect();
        assert_eq!(said, [("a", "one|two".to_string()), ("c::d", "three|".to_string())]);
    }

    #[test]
    fn what_has_ended_of_the_binary_that_runs_is_known() {
        let mut listener = Listener::default();
        let mut over = |printed: &str| {
            printed.lines().for_each(|line| listener.hear(line));
            listener.over.iter().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(over("running 3 tests\ntest a::b ... ok\ntest c - should panic ... ok"), "a::b c");
        assert_eq!(over("test d has been running for over 60 seconds\ntest d ... FAILED"), "a::b c d");
        assert_eq!(over("running 1 test\ntest e ... ignored, for a reason"), "e");
    }
}

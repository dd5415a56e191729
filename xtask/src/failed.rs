//! Listens to what tests print: keeps what failed ones have said, since thousands of lines may follow it, and it is what a reader looks for; and which have ended.

use std::collections::BTreeSet;

/// Lines shown of what one test has said; the panic is among the last, behind what the test's processes said.
const LINES: usize = 60;

/// What a test that failed has said.
pub struct Failed {
    /// Its name, as the test binary prints it.
    pub name: String,
    /// What it printed, line by line.
    pub said: Vec<String>,
}

impl Failed {
    /// Prints its name and the last lines of what it said.
    pub fn show(&self) {
        println!("---- {}", self.name);
        let left_out = self.said.len().saturating_sub(LINES);
        if left_out > 0 {
            println!("({left_out} lines before)");
        }
        self.said[left_out..].iter().for_each(|line| println!("{line}"));
    }
}

/// Finds failed tests in what libtest prints: `---- NAME stdout ----`, what the test said, then the next one or a list of their names below `failures:`.
#[derive(Default)]
pub struct Listener {
    /// Those that failed, of all test binaries so far.
    pub failed: Vec<Failed>,
    /// Those that have ended, of the test binary that runs.
    pub over: BTreeSet<String>,
    /// Lines belong to the last test of the list.
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

    /// `test NAME ... ok`, with ` - should panic` before the dots of some.
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

//! Runs tests, shows what they print, and keeps what failed ones have said: thousands of lines may follow it, and it is what a reader looks for.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::ci::Outcome;

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

/// Runs a test command to its end and shows its standard output as it comes.
pub fn run(command: &mut Command) -> (Outcome, Vec<Failed>) {
    let program = command.get_program().to_owned();
    let cannot_run = |error: io::Error| Outcome::Failed(format!("cannot run {}: {error}", program.display()));
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return (cannot_run(error), Vec::new()),
    };
    let mut failed = Listener::default();
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = Vec::new();
    // What is printed need not be UTF-8. An end that cannot be read any more is seen by the status.
    while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
        // A reader that cannot be shown it has the summary still.
        let _ = io::stdout().write_all(&line);
        failed.hear(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
    let outcome = match child.wait() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => cannot_run(error),
    };
    (outcome, failed.failed)
}

/// Finds failed tests in what libtest prints: `---- NAME stdout ----`, what the test said, then the next one or a list of their names below `failures:`.
#[derive(Default)]
struct Listener {
    failed: Vec<Failed>,
    /// Lines belong to the last test of the list.
    in_midst: bool,
}

impl Listener {
    fn hear(&mut self, line: &str) {
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
    fn what_comes_of_a_test_command_is_told() {
        let (outcome, failed) = run(Command::new("sh").args(["-c", "exit 101"]));
        assert!(matches!(outcome, Outcome::Failed(why) if why.contains("101")) && failed.is_empty());
        assert!(matches!(run(&mut Command::new("true")).0, Outcome::Passed));
    }
}

//! Runs tests that are chosen by a part of their name, and demands that there is at least one. For libtest it is a success if no test was run, so a test that
//! was renamed would never be run again.

use std::io::{self, BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::ci::Outcome;

/// Runs a command of `cargo test` to its end, and shows its output as it comes.
pub fn finish(command: &mut Command) -> Outcome {
    match run(command) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(format!("cannot run {}: {error}", command.get_program().display())),
    }
}

fn run(command: &mut Command) -> io::Result<Outcome> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    let (mut line, mut ran) = (Vec::new(), 0);
    while said.read_until(b'\n', &mut line)? > 0 {
        // If the output cannot be shown, the reader still has the summary.
        let _ = io::stdout().write_all(&line);
        ran += tests_run(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(match child.wait()? {
        status if !status.success() => Outcome::Failed(status.to_string()),
        _ if ran == 0 => {
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            Outcome::Failed(format!("no test was run, since none has such a name: {}", words.join(" ")))
        }
        _ => Outcome::Passed,
    })
}

/// How many tests a binary has run, if this is the last line that it prints: `test result: ok. 13 passed; 0 failed; 1 ignored; ...`.
fn tests_run(line: &str) -> u64 {
    let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else { return 0 };
    let count = |count: &str| count.trim().strip_suffix(" passed").or(count.trim().strip_suffix(" failed"))?.parse::<u64>().ok();
    counts.split(';').filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(printed: &str, code: u8) -> Outcome {
        finish(Command::new("sh").args(["-c", &format!("printf '%b' '{printed}'; exit {code}")]))
    }

    #[test]
    fn what_was_run_is_read_from_what_the_binaries_print_last() {
        assert_eq!(tests_run("test result: ok. 13 passed; 0 failed; 1 ignored; 0 measured; 475 filtered out; finished in 0.42s\n"), 13);
        assert_eq!(tests_run("test result: FAILED. 16 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.42s"), 17);
        assert_eq!(tests_run("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 492 filtered out; finished in 0.00s"), 0);
        for other in ["running 13 tests", "test a::passed ... ok", "test result: ", ""] {
            assert_eq!(tests_run(other), 0, "{other:?}");
        }
    }

    #[test]
    fn a_success_of_no_test_is_none() {
        let result = |passed: u32| format!("running {passed} tests\\n\\ntest result: ok. {passed} passed; 0 failed; 0 ignored\\n");
        assert!(matches!(finished(&[result(0), result(1)].concat(), 0), Outcome::Passed));
        assert!(matches!(finished(&[result(0), result(0)].concat(), 0), Outcome::Failed(why) if why.starts_with("no test was run")));
        assert!(matches!(finished("", 0), Outcome::Failed(why) if why.starts_with("no test was run")));
        assert!(matches!(finished(&result(3), 1), Outcome::Failed(why) if why.contains("exit status")));
    }
}

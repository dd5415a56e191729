//! Checks that go on beside others, which need the machine only now and then: a virtual machine with a bad link waits nearly always. They stand back behind what
//! they go on beside, and what they say is kept until somebody asks for it.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use crate::ci::{Outcome, finish};

/// How far they stand back. With ten they have a ninth of what somebody else has who wants the same core; a core that nobody wants is theirs.
const NICENESS: &str = "10";

/// A check: commands that run one by one until one fails, or what is known without them.
pub struct Check {
    /// Its name in the summary.
    pub name: &'static str,
    /// What it takes.
    pub work: Result<Vec<Command>, Outcome>,
}

/// What came of a check.
pub struct Ended {
    /// Its name.
    pub name: &'static str,
    /// Whether it holds.
    pub outcome: Outcome,
    /// From its first command to the end of its last, in seconds.
    pub seconds: f64,
    /// All that its commands have printed.
    said: Vec<u8>,
}

/// Checks under way.
pub struct Beside {
    ended: Receiver<Ended>,
}

impl Beside {
    /// Begins with the first check of each row; the others of a row follow one by one. What they print stands in `scratch` meanwhile.
    pub fn start(rows: impl IntoIterator<Item = Vec<Check>>, scratch: &Path) -> Beside {
        let (tell, ended) = mpsc::channel();
        for (number, row) in rows.into_iter().enumerate() {
            let tell = tell.clone();
            let said = scratch.join(number.to_string());
            thread::spawn(move || {
                for check in row {
                    // Nobody may be left who wants to know.
                    let _ = tell.send(check.run(&said));
                }
            });
        }
        Beside { ended }
    }

    /// Those that have ended since somebody asked.
    pub fn ended(&self) -> impl Iterator<Item = Ended> + '_ {
        self.ended.try_iter()
    }

    /// The others, as they end.
    pub fn rest(self) -> impl Iterator<Item = Ended> {
        self.ended.into_iter()
    }
}

impl Check {
    /// Runs it to its end.
    fn run(self, said: &Path) -> Ended {
        let start = Instant::now();
        let mut ended = Ended { name: self.name, outcome: Outcome::Passed, seconds: 0.0, said: Vec::new() };
        match self.work {
            Err(known) => ended.outcome = known,
            Ok(commands) => {
                for command in commands {
                    ended.outcome = quietly(&command, said, &mut ended.said);
                    if !matches!(ended.outcome, Outcome::Passed) {
                        break;
                    }
                }
            }
        }
        ended.seconds = start.elapsed().as_secs_f64();
        ended
    }
}

impl Ended {
    /// Prints what its commands have printed.
    pub fn show(&self) {
        // A reader that cannot be shown it has the summary still.
        let _ = io::stdout().write_all(&self.said);
    }
}

/// Runs a command that stands back, and adds what it prints to `said`.
fn quietly(command: &Command, file: &Path, said: &mut Vec<u8>) -> Outcome {
    let mut run = || -> io::Result<Outcome> {
        let output = fs::File::create(file)?;
        let errors = output.try_clone()?;
        let outcome = finish(standing_back(command).stdin(Stdio::null()).stdout(output).stderr(errors));
        said.extend(fs::read(file)?);
        Ok(outcome)
    };
    run().unwrap_or_else(|error| Outcome::Failed(format!("cannot keep what it prints in {}: {error}", file.display())))
}

/// The same command at a lower priority.
fn standing_back(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", NICENESS]).arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        nice.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::Scratch;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn checks_of_a_row_go_one_by_one_and_their_words_are_kept_apart() {
        let scratch = Scratch::new("beside").expect("a directory");
        let mut surroundings = shell("echo $WORD in $(pwd); nice");
        surroundings.env("WORD", "here").current_dir("/");
        let rows = [
            vec![
                Check { name: "fails", work: Ok(vec![shell("echo one; echo two >&2"), shell("exit 3"), shell("echo never")]) },
                Check { name: "holds", work: Ok(vec![surroundings]) },
            ],
            vec![Check { name: "skipped", work: Err(Outcome::Skipped("for a reason".into())) }],
        ];
        let mut ended: Vec<Ended> = Beside::start(rows, scratch.path()).rest().collect();
        ended.sort_by_key(|ended| ended.name);
        let [fails, holds, skipped] = &ended[..] else { panic!("{} have ended", ended.len()) };
        assert!(matches!(&fails.outcome, Outcome::Failed(why) if why.contains('3')));
        assert_eq!(String::from_utf8_lossy(&fails.said), "one\ntwo\n");
        assert!(matches!(holds.outcome, Outcome::Passed));
        // The process that runs these tests may have low priority already.
        let said = String::from_utf8_lossy(&holds.said).into_owned();
        let own: i32 = String::from_utf8_lossy(&shell("nice").output().expect("a shell").stdout).trim().parse().expect("a number");
        assert_eq!(said, format!("here in /\n{}\n", (own + 10).min(19)));
        assert!(matches!(&skipped.outcome, Outcome::Skipped(why) if why == "for a reason") && skipped.said.is_empty());
    }
}

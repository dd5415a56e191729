//! `cargo xtask clients`: programs that use well-known Redis client libraries, while the leader of a server in replicas is killed again and again.
//!
//! The programs are in `xtask/clients`, one directory for each language, and name the versions of the libraries. Each takes a port and the number of seconds to
//! work for, gives up at the first error, sends nothing twice, and checks its own counts at the end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::server::{LOOK, Server};
use super::{Programs, duration, trouble};
use crate::ci::on_path;
use crate::family::Family;

/// How much longer than its time a program may take: the last of its work may wait for a server whose leader was just killed.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many lines are shown of a program that fails.
const LINES: usize = 12;

/// A language, and the programs in it.
struct Language {
    name: &'static str,
    /// The programs that it needs, and Debian's packages that contain them.
    needs: &'static [(&'static str, &'static str)],
    /// The commands that fetch and build what its programs need, in a directory with copies of them.
    install: fn(&Path) -> Vec<Command>,
    programs: &'static [Program],
}

struct Program {
    name: &'static str,
    /// The command that runs it in that directory, without its port and its time.
    run: fn(&Path) -> Command,
}

const LANGUAGES: [Language; 4] = [
    Language {
        name: "python",
        needs: &[("python3", "python3-venv")],
        install: |directory| {
            vec![
                command("python3", ["-m", "venv", "environment"]),
                command(
                    directory.join("environment/bin/pip"),
                    ["install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"],
                ),
            ]
        },
        programs: &[
            Program { name: "redis-py's Lock", run: |directory| python(directory, "locks.py") },
            Program { name: "RQ", run: |directory| python(directory, "jobs.py") },
            Program { name: "redis-py, keyspace events", run: |directory| python(directory, "events.py") },
        ],
    },
    Language {
        name: "node",
        needs: &[("node", "nodejs"), ("npm", "npm")],
        install: |_| vec![command("npm", ["ci", "--silent", "--no-fund", "--no-audit"])],
        programs: &[Program { name: "BullMQ", run: |_| command("node", ["jobs.js"]) }],
    },
    Language {
        name: "go",
        needs: &[("go", "golang-go")],
        install: |directory| {
            let mut build = command("go", ["build", "-modcacherw", "-o", "clients", "."]);
            build.env("GOPATH", directory.join("path"));
            vec![build]
        },
        programs: &[Program { name: "go-redis", run: |directory| command(directory.join("clients"), [""; 0]) }],
    },
    Language {
        name: "java",
        needs: &[("java", "default-jdk-headless"), ("mvn", "maven")],
        install: |directory| {
            let mut build = command("mvn", ["--quiet", "--batch-mode", "package"]);
            build.arg(format!("-Dmaven.repo.local={}", directory.join("repository").display()));
            vec![build]
        },
        programs: &[Program { name: "Jedis", run: |_| command("java", ["-cp", "target/clients.jar:target/dependency/*", "Clients"]) }],
    },
];

fn command<const N: usize>(program: impl AsRef<std::ffi::OsStr>, arguments: [&str; N]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn python(directory: &Path, file: &str) -> Command {
    command(directory.join("environment/bin/python"), ["-u", file])
}

/// Programs with well-known client libraries against `martlet run -- redis-server`, through kills of the leader.
///
/// redis-py, RQ, BullMQ, go-redis and Jedis work all at once against one server. None of their programs may see an error, and all counts have to be exact. Their
/// own package managers fetch the libraries into target/clients.
#[derive(Debug, PartialEq, Eq, Args)]
pub struct Wanted {
    /// Languages, separated by commas; by default all. One that is not installed is named and passed over.
    #[arg(long, value_name = "A,B", value_delimiter = ',', hide_default_value = true, default_values = LANGUAGES.map(|language| language.name))]
    #[arg(value_parser = PossibleValuesParser::new(LANGUAGES.map(|language| language.name)))]
    languages: Vec<String>,
    /// For how long the programs work.
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = duration)]
    lasting: Duration,
    /// How often the leader is killed.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    kill_every: Duration,
    /// Options of `martlet run`.
    #[arg(last = true, value_name = "OPTION")]
    own: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What did not hold, or could not be had.
pub fn run(root: &Path, wanted: &Wanted) -> Result<(), String> {
    if !on_path("redis-server") {
        return Err("redis-server is not installed (Debian's redis-server)".into());
    }
    let programs = Programs::build(root)?;
    let family = Family::found()?;
    let directory = root.join("target/clients");
    let mut ready = Vec::new();
    for language in LANGUAGES.iter().filter(|language| wanted.languages.iter().any(|wanted| wanted == language.name)) {
        if let Some((tool, package)) = language.needs.iter().find(|(tool, _)| !on_path(tool)) {
            println!("SKIPPED: {}: {tool} is not installed (Debian's {package})", language.name);
            continue;
        }
        family.check()?;
        let place = directory.join(language.name);
        println!("{}: what its programs need", language.name);
        prepare(language, &root.join("xtask/clients").join(language.name), &place)?;
        ready.push((language, place));
    }
    let logs = directory.join("logs");
    let began = Instant::now();
    let mut server = Server::start(Some((&programs, &*wanted.own)), &["--save", ""], &logs, &family)?;
    let mut running = Vec::new();
    for (language, place) in &ready {
        for program in language.programs {
            running.push(Running::start(program, place, &logs, server.port, wanted.lasting)?);
        }
    }
    println!("the server serves; {} programs work for {} s", running.len(), wanted.lasting.as_secs_f64());
    let failed = attend(&mut server, &mut running, wanted, &family)?;
    let (kills, lost, ended) = (server.kills(), server.lost().to_vec(), server.has_ended());
    let left = server.stop(&family)?;
    println!("the leader was killed {kills} times in {} s", began.elapsed().as_secs());
    for line in lost.iter().map(|how| format!("lost, and not killed: {how}")).chain(left.iter().map(|what| format!("left behind: {what}")))
    {
        println!("{line}");
    }
    if ended || failed > 0 || !lost.is_empty() || !left.is_empty() {
        let server = if ended { "; the server has ended" } else { "" };
        return Err(format!("{failed} programs of {} have failed{server}; what was said is in {}", running.len(), logs.display()));
    }
    if kills == 0 {
        return Err("the leader was never killed: give it more time with --for".into());
    }
    fs::remove_dir_all(&logs).map_err(trouble(&logs))
}

/// Copies a language's programs to where they run, and fetches what they need.
fn prepare(language: &Language, from: &Path, place: &Path) -> Result<(), String> {
    copy(from, place).map_err(|e| format!("{} cannot be copied to {}: {e}", from.display(), place.display()))?;
    for mut command in (language.install)(place) {
        let name = command.get_program().display().to_string();
        let status = command.current_dir(place).stdin(Stdio::null()).status().map_err(|e| format!("{name} does not run: {e}"))?;
        if !status.success() {
            return Err(format!("{}: {name} has failed ({status})", language.name));
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), place)?;
        }
    }
    Ok(())
}

/// A program that is running.
struct Running {
    name: &'static str,
    process: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Running {
    fn start(program: &Program, place: &Path, logs: &Path, port: u16, lasting: Duration) -> Result<Running, String> {
        let name = program.name;
        let log = logs.join(format!("{name}.log"));
        let trouble = |e: std::io::Error| format!("{name} does not run: {e}");
        let output = File::create(&log).map_err(trouble)?;
        let mut command = (program.run)(place);
        command.args([port.to_string(), lasting.as_secs_f64().to_string()]).current_dir(place).stdin(Stdio::null());
        let process = command.stdout(output.try_clone().map_err(trouble)?).stderr(output).spawn().map_err(trouble)?;
        Ok(Running { name, process, log, ended: None })
    }

    /// Reports how it has ended. Returns whether it ended well.
    fn tell(&self, status: ExitStatus) -> bool {
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        if status.success() {
            println!("{}: {}", self.name, lines.last().unwrap_or(&"it has said nothing"));
        } else {
            println!("FAILED: {} ({status}):", self.name);
            lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| println!("   {line}"));
        }
        status.success()
    }
}

/// Kills leaders until all programs have ended. Returns how many programs have failed.
fn attend(server: &mut Server, running: &mut [Running], wanted: &Wanted, family: &Family) -> Result<usize, String> {
    let end = Instant::now() + wanted.lasting + PATIENCE;
    let mut kill_at = Instant::now() + wanted.kill_every;
    let mut failed = 0;
    while running.iter().any(|program| program.ended.is_none()) {
        family.check()?;
        if Instant::now() >= kill_at && server.kill_leader() {
            kill_at = Instant::now() + wanted.kill_every;
        }
        for program in running.iter_mut().filter(|program| program.ended.is_none()) {
            if let Some(status) = program.process.try_wait().map_err(|e| format!("{}: {e}", program.name))? {
                program.ended = Some(status);
                failed += usize::from(!program.tell(status));
            }
        }
        if Instant::now() >= end {
            for program in running.iter().filter(|program| program.ended.is_none()) {
                println!("FAILED: {} has not ended {} s after its time", program.name, PATIENCE.as_secs());
                failed += 1;
            }
            return Ok(failed);
        }
        thread::sleep(LOOK);
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::tests::words;

    #[test]
    fn all_languages_are_wanted_unless_some_are_named() {
        let parse = |line: &str| match words(line) {
            Command::Clients(wanted) => wanted,
            other => panic!("{other:?}"),
        };
        assert_eq!(parse("clients").languages, ["python", "node", "go", "java"]);
        let found = parse("clients --languages go,java --for 1m --kill-every 500ms -- --engine dare");
        let (lasting, kill_every) = (Duration::from_secs(60), Duration::from_millis(500));
        let own = vec!["--engine".into(), "dare".into()];
        assert_eq!(found, Wanted { languages: vec!["go".into(), "java".into()], lasting, kill_every, own });
    }

    #[test]
    fn each_language_has_its_directory() {
        for language in &LANGUAGES {
            let directory = crate::workspace_root().join("xtask/clients").join(language.name);
            assert!(directory.is_dir(), "{}", directory.display());
        }
    }
}

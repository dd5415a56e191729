//! `cargo xtask redis-suite`: compares Redis's own test suite on a plain redis-server with the suite on a server in replicas, test by test.
//!
//! Each unit has servers of its own, so that what one unit leaves behind does not affect the next, and a service that ends costs one unit. Tests that fail do
//! not end their unit (`--durable`), because the tests after them are compared too.

mod known;
mod sources;
mod verdicts;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::server::{LOOK, Server};
use super::{Programs, duration, trouble};
use crate::family::Family;
use known::Known;
use verdicts::{Difference, Verdict, Verdicts, differences};

/// The servers' arguments: the suite's tests of persistence save by themselves, and many tests use `DEBUG` and set what only an administrator may set.
const ARGUMENTS: [&str; 8] = ["--save", "", "--loglevel", "notice", "--enable-debug-command", "yes", "--enable-protected-configs", "yes"];
/// As Redis's developers run the suite against a running server: the slowest tests are left out. So are tests that read a replication stream, since `SYNC` is
/// refused.
const TAGS: &str = "-slow -needs:repl";

/// How many lines are shown of a unit that has not come to its end.
const LAST_WORDS: usize = 4;

/// Redis' own test suite against a plain server and against `martlet run`.
///
/// It is the suite of the redis-server that is installed, in its external mode. The verdicts are compared test by test, but for the differences that are listed in
/// xtask/src/redis/suite/known.toml. What a unit printed that differs, and what its servers said, is kept in target/redis-suite/logs. The sources of the suite
/// come from Debian, once.
#[derive(Debug, PartialEq, Eq, Args)]
pub struct Wanted {
    /// Units, separated by commas, as in `unit/dump,unit/expire`; by default all.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    units: Option<Vec<String>>,
    /// Kill the leader of the replicas this often, as soon as the others hold the state; by default never.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    kill_every: Option<Duration>,
    /// How long a unit may take with each of the servers before it is ended.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    limit: Duration,
    /// Options of `martlet run`.
    #[arg(last = true, value_name = "OPTION")]
    own: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What differs and is not listed, or could not be had.
pub fn run(root: &Path, wanted: &Wanted) -> Result<(), String> {
    let known = Known::read()?;
    let directory = root.join("target/redis-suite");
    let logs = directory.join("logs");
    if logs.exists() {
        fs::remove_dir_all(&logs).map_err(trouble(&logs))?;
    }
    fs::create_dir_all(&logs).map_err(trouble(&logs))?;
    let sources = sources::fetch(&directory)?;
    let all = sources::units(&sources)?;
    if let [stranger, ..] = known.strangers(&all)[..] {
        return Err(format!("the list of known differences names {stranger:?}, which is no unit of the suite"));
    }
    let units = match &wanted.units {
        None => &all,
        Some(units) => match units.iter().find(|unit| !all.contains(unit)) {
            Some(unit) => return Err(format!("--units names {unit:?}; allowed are {}", all.join(", "))),
            None => units,
        },
    };
    let programs = Programs::build(root)?;
    let family = Family::found()?;
    let suite = Suite { wanted, known: &known, programs: &programs, sources, logs, family: &family };
    let mut sum = Sum::default();
    for (number, unit) in (1..).zip(units) {
        print!("[{number}/{}] {unit}: ", units.len());
        // A reader may be waiting for this line.
        let _ = std::io::stdout().flush();
        suite.compare(unit, &mut sum)?;
    }
    sum.tell(&suite.logs)
}

/// The outcome of all units so far.
#[derive(Default)]
struct Sum {
    same: usize,
    known: usize,
    kills: usize,
    unknown: Vec<String>,
    gone: Vec<String>,
}

impl Sum {
    fn tell(&self, logs: &Path) -> Result<(), String> {
        println!("{} verdicts are the same, {} differ as listed; leaders killed: {}", self.same, self.known, self.kills);
        for test in &self.gone {
            println!("listed, and the same: {test}: remove it from xtask/src/redis/suite/known.toml");
        }
        self.unknown.iter().for_each(|difference| println!("NOT LISTED: {difference}"));
        match self.unknown.len() {
            0 => Ok(()),
            count => Err(format!("{count} verdicts differ and are not listed; what was said is in {}", logs.display())),
        }
    }
}

struct Suite<'a> {
    wanted: &'a Wanted,
    known: &'a Known,
    programs: &'a Programs,
    sources: PathBuf,
    logs: PathBuf,
    family: &'a Family,
}

impl Suite<'_> {
    /// Runs one unit with both servers.
    fn compare(&self, unit: &str, sum: &mut Sum) -> Result<(), String> {
        let logs = self.logs.join(unit.replace('/', "-"));
        let (plain, _) = self.take(unit, &logs.join("plain"), None)?;
        if plain.count(Verdict::Ok) + plain.count(Verdict::Err) == 0 {
            println!("the suite leaves all of it out ({} tests)", plain.count(Verdict::LeftOut));
            return forget(&logs);
        }
        print!("{} ok, {} err, {} left out; ", plain.count(Verdict::Ok), plain.count(Verdict::Err), plain.count(Verdict::LeftOut));
        let _ = std::io::stdout().flush();
        let (replicas, kills) = self.take(unit, &logs.join("replicas"), Some(self.programs))?;
        let with_kills = self.wanted.kill_every.is_some();
        let differ = differences(&plain, &replicas);
        let (listed, new): (Vec<&Difference>, Vec<&Difference>) =
            differ.iter().partition(|difference| self.known.has(unit, &difference.test, with_kills));
        let names: Vec<&str> = differ.iter().map(|difference| &*difference.test).collect();
        println!(
            "in replicas {} ok, {} err{}: {} differ as listed, {} otherwise",
            replicas.count(Verdict::Ok),
            replicas.count(Verdict::Err),
            if with_kills { format!(", leaders killed: {kills}") } else { String::new() },
            listed.len(),
            new.len()
        );
        for difference in new {
            let Difference { test, verdicts: (plain, replicas), complaint } = difference;
            let said = format!("{unit}: {test}: {plain} with a plain server, {replicas} in replicas");
            println!("   {said}");
            complaint.iter().for_each(|line| println!("      {line}"));
            sum.unknown.push(said);
        }
        sum.gone.extend(self.known.gone(unit, &names, with_kills).iter().map(|test| format!("{unit}: {test}")));
        sum.same += plain.len() - names.iter().filter(|name| plain.verdict(name) != Verdict::Absent).count();
        sum.known += listed.len();
        sum.kills += kills;
        if differ.is_empty() { forget(&logs) } else { Ok(()) }
    }

    /// Runs one unit with one server. Also returns how often the leader was killed.
    fn take(&self, unit: &str, logs: &Path, programs: Option<&Programs>) -> Result<(Verdicts, usize), String> {
        let own = &*self.wanted.own;
        let mut server = Server::start(programs.map(|programs| (programs, own)), &ARGUMENTS, logs, self.family)?;
        let log = logs.join("suite.log");
        let output = File::create(&log).map_err(trouble(&log))?;
        let mut command = Command::new("tclsh");
        command.args(["tests/test_helper.tcl", "--host", "127.0.0.1", "--port", &server.port.to_string(), "--durable", "--tags", TAGS]);
        command.args(["--single", unit, "--baseport", &base_port().to_string()]).current_dir(&self.sources).stdin(Stdio::null());
        if programs.is_some() {
            self.known.skipped(unit, self.wanted.kill_every.is_some()).for_each(|test| {
                command.args(["--skiptest", test]);
            });
        }
        // The suite colours its output on terminals that it knows.
        command.env("TERM", "dumb").stdout(output.try_clone().map_err(trouble(&log))?).stderr(output);
        let mut test = command.spawn().map_err(|e| format!("tclsh does not run: {e}"))?;
        let began = Instant::now();
        let mut kill_at = self.wanted.kill_every.map(|every| began + every);
        let mut late = None;
        while let Ok(None) = test.try_wait() {
            self.family.check()?;
            if began.elapsed() >= self.wanted.limit {
                late = Some(self.family.describe());
                break;
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) && server.kill_leader() {
                kill_at = self.wanted.kill_every.map(|every| Instant::now() + every);
            }
            thread::sleep(LOOK);
        }
        let said = fs::read(&log).map_err(trouble(&log))?;
        let mut verdicts = Verdicts::read(&String::from_utf8_lossy(&said));
        server.look();
        if !verdicts.concluded && late.is_none() {
            let lines: Vec<String> = String::from_utf8_lossy(&said).lines().rev().take(LAST_WORDS).map(str::to_owned).collect();
            if programs.is_none() {
                return Err(format!("{unit} does not come to its end with a plain server: {}", lines.join(" / ")));
            }
            verdicts.add_trouble("(it does not come to its end)", lines.into_iter().rev());
        }
        if !server.lost().is_empty() {
            verdicts.add_trouble("(a replica is lost that was not killed)", server.lost().to_vec());
        }
        if server.has_ended() {
            verdicts.add_trouble("(the server ends)", None);
        }
        if let Some(processes) = late {
            verdicts.add_trouble(&format!("(it does not end in {} s)", self.wanted.limit.as_secs()), processes);
            self.family.end();
        }
        let kills = server.kills();
        let left = server.stop(self.family)?;
        if !left.is_empty() {
            verdicts.add_trouble("(processes are left)", left);
        }
        let data = logs.join("data");
        fs::remove_dir_all(&data).map_err(trouble(&data))?;
        Ok((verdicts, kills))
    }
}

/// The first port that the suite's own processes try to meet at: another one than that of a run beside this one.
fn base_port() -> u32 {
    21_000 + std::process::id() % 250 * 40
}

/// Removes what is not worth reading.
fn forget(logs: &Path) -> Result<(), String> {
    fs::remove_dir_all(logs).map_err(trouble(logs))
}

//! Runs a step of `cargo xtask ci` in separate processes, so that it can be ended with everything that it has started.
//!
//! | process | what it does |
//! |---|---|
//! | `xtask ci` | shows the step's output, and ends the step when its time is up |
//! | `xtask step NAME FILE` | adopts the orphans below it, and ends what is left when the work is done |
//! | `xtask work NAME FILE` | does the work, and writes the outcome to FILE |

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, WaitOptions};

use crate::ci::{self, Outcome, Work};
use crate::failed::{Failed, Listener};
use crate::limit::{self, End};

/// Every step may take this long, whatever it usually takes: machines are slow at times.
const LEAST: Duration = Duration::from_secs(15 * 60);
/// How many times its usual time a step may take.
const GENEROSITY: u32 = 3;
/// How long to wait for the last output of a step that has ended.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The most lines in the summary about the processes of a late step, and the longest such line.
const NAMED: usize = 40;
const NAMED_CHARACTERS: usize = 160;
/// The niceness of a step that runs beside others. With ten, it gets a ninth of the time of another process that wants the same core. It gets all of a core
/// that no other process wants.
const NICENESS: i32 = 10;
/// The environment variable that tells a step to lower its priority.
const STANDS_BACK: &str = "MARTLET_XTASK_STANDS_BACK";
/// This program, even if its file has been rebuilt since.
const OURSELVES: &str = "/proc/self/exe";

/// One thing to check about the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its name in the summary.
    pub name: &'static str,
    /// About how many seconds it takes on two free cores.
    pub usual: u32,
    /// The work, done on the workspace at the given root.
    pub work: Work,
}

/// A step that has ended.
pub struct Ended {
    /// Its name.
    pub name: &'static str,
    /// Its outcome.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// Its tests that failed.
    pub failed: Vec<Failed>,
    /// Its output, unless that was shown as it came.
    pub said: Vec<u8>,
}

impl Step {
    fn limit(&self) -> Duration {
        LEAST.max(Duration::from_secs(self.usual.into()) * GENEROSITY)
    }

    /// Runs it, and shows its output as it comes.
    pub fn run(&self, scratch: &Path) -> Ended {
        self.take(
            |listener| {
                let mut child = self.command(scratch).stdout(Stdio::piped()).spawn()?;
                let said = child.stdout.take().expect("piped");
                let (done, is_done) = mpsc::channel();
                let heard = listener.clone();
                thread::spawn(move || {
                    let _ = hear(BufReader::new(said), &heard);
                    let _ = done.send(());
                });
                let end = self.watch(&mut child, || lock(listener).over.clone());
                // A process that cannot be ended may keep the pipe open.
                let _ = is_done.recv_timeout(LAST_WORDS);
                Ok((end?, None))
            },
            scratch,
        )
    }

    /// Runs it at a lower priority, and keeps its output.
    pub fn run_quietly(&self, scratch: &Path) -> Ended {
        self.take(
            |listener| {
                let path = scratch.join(format!("{}.said", self.name));
                let output = File::create(&path)?;
                let errors = output.try_clone()?;
                let mut child = self.command(scratch).env(STANDS_BACK, "1").stdin(Stdio::null()).stdout(output).stderr(errors).spawn()?;
                let listen = || {
                    let mut listener = Listener::default();
                    let said = fs::read(&path).unwrap_or_default();
                    String::from_utf8_lossy(&said).lines().for_each(|line| listener.hear(line));
                    (listener, said)
                };
                let end = self.watch(&mut child, || listen().0.over)?;
                let (heard, said) = listen();
                *lock(listener) = heard;
                Ok((end, Some(said)))
            },
            scratch,
        )
    }

    fn command(&self, scratch: &Path) -> Command {
        let mut command = Command::new(OURSELVES);
        command.args(["step", self.name]).arg(self.file(scratch));
        command
    }

    /// The file that its outcome is written to.
    fn file(&self, scratch: &Path) -> PathBuf {
        scratch.join(self.name)
    }

    fn watch(&self, child: &mut Child, over: impl Fn() -> BTreeSet<String>) -> io::Result<End> {
        let end = Instant::now() + self.limit();
        limit::watch(child, || Instant::now() >= end, over)
    }

    /// Its outcome, and how long it takes.
    fn take(&self, run: impl FnOnce(&Arc<Mutex<Listener>>) -> io::Result<(End, Option<Vec<u8>>)>, scratch: &Path) -> Ended {
        let start = Instant::now();
        let listener = Arc::default();
        let (outcome, said) = match run(&listener) {
            Err(error) => (Outcome::Failed(format!("cannot run it: {error}")), None),
            Ok((End::Ended(status), said)) => (
                Outcome::read(&self.file(scratch)).unwrap_or_else(|| Outcome::Failed(format!("it ended without a result: {status}"))),
                said,
            ),
            Ok((End::Late { tests, processes, pids }, mut said)) => {
                remove_files_of(&pids);
                let mut word = format!("== {} was ended after {} s, with all its processes:\n", self.name, start.elapsed().as_secs());
                processes.iter().for_each(|line| word.push_str(&format!("   {line}\n")));
                tests.iter().for_each(|test| word.push_str(&format!("   in the midst of test {test}\n")));
                match &mut said {
                    None => print!("{word}"),
                    Some(said) => said.extend_from_slice(word.as_bytes()),
                }
                (late(self.limit(), &tests, &processes), said)
            }
        };
        let failed = std::mem::take(&mut lock(&listener).failed);
        Ended { name: self.name, outcome, seconds: start.elapsed().as_secs_f64(), failed, said: said.unwrap_or_default() }
    }
}

/// Removes the temporary directories of processes that were ended before they could do so.
fn remove_files_of(pids: &[u32]) {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // `martlet-WHAT-PID` of `Scratch`, and `martlet-vm-PID-THREAD`.
        if name.starts_with("martlet-") && name.split('-').skip(2).any(|word| word.parse().is_ok_and(|pid| pids.contains(&pid))) {
            // If the directory cannot be removed, nothing better can be done.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// The outcome of a step that has not ended in time. Its processes are named in the summary too, because often only the end of the output is kept.
fn late(limit: Duration, tests: &[String], processes: &[String]) -> Outcome {
    let midst = if tests.is_empty() { "no test".into() } else { tests.join(", ") };
    let mut why = format!("it has not ended in {} minutes, in the midst of {midst}", limit.as_secs() / 60);
    for line in processes.iter().take(NAMED) {
        why.push_str(&format!("\n              {}", line.chars().take(NAMED_CHARACTERS).collect::<String>()));
    }
    if processes.len() > NAMED {
        why.push_str(&format!("\n              and {} lines more, above", processes.len() - NAMED));
    }
    Outcome::Failed(why)
}

fn lock(listener: &Mutex<Listener>) -> MutexGuard<'_, Listener> {
    listener.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows output line by line, and passes it to the listener. The output need not be UTF-8.
fn hear(mut lines: impl io::BufRead, listener: &Mutex<Listener>) -> io::Result<()> {
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        // If the output cannot be shown, the reader still has the summary.
        let _ = io::stdout().write_all(&line);
        lock(listener).hear(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
    Ok(())
}

/// The arguments of `xtask step` and `xtask work`, which `xtask ci` starts.
#[derive(Args, Debug)]
pub struct Part {
    /// The name of a step of `ci`.
    #[arg(value_parser = named)]
    step: Step,
    /// The file to write its outcome to.
    file: PathBuf,
}

fn named(name: &str) -> Result<Step, String> {
    ci::steps().find(|step| step.name == name).ok_or_else(|| "allowed is the name of a step of `ci`; `cargo xtask ci` runs it".into())
}

/// `xtask step NAME FILE`.
pub fn keep(part: &Part) -> ExitCode {
    match keeper(part) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: cannot run the step {:?}: {error}", part.step.name);
            ExitCode::FAILURE
        }
    }
}

fn keeper(part: &Part) -> io::Result<ExitCode> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    if std::env::var_os(STANDS_BACK).is_some() {
        rustix::process::nice(NICENESS)?;
    }
    let work = Command::new(OURSELVES).args(["work", part.step.name]).arg(&part.file).spawn()?;
    let work = Pid::from_child(&work);
    // Orphans are reaped at once as well: some tests wait until a process is gone.
    let status = loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == work => break status,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let root = std::process::id();
    let left = limit::below(root);
    if !left.is_empty() {
        println!("   left behind by the step, and ended now:");
        left.iter().flat_map(limit::Process::describe).for_each(|line| println!("   {line}"));
        limit::end_below(root);
    }
    Ok(if status.exit_status() == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `xtask work NAME FILE`.
pub fn work(root: &Path, part: &Part) -> ExitCode {
    match (part.step.work)(root).write(&part.file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: cannot write {}: {error}", part.file.display());
            ExitCode::FAILURE
        }
    }
}

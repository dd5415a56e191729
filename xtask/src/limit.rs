//! Processes that do not end: finds out which they are and which tests they are running, and ends them with everything that they have started.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How often to look whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How often to check whether killed processes are gone, and for how long. A process that waits for a broken disk is never gone.
const DEATH: Duration = Duration::from_millis(50);
const DEATHS: usize = 400;
/// Characters shown of a command line.
const COMMAND: usize = 240;
/// Bytes that the kernel keeps of a thread's name.
const THREAD_NAME: usize = 15;

/// How a process ended.
#[derive(Debug)]
pub enum End {
    /// By itself.
    Ended(ExitStatus),
    /// It was late, and was ended with all processes below it.
    Late {
        /// The tests that were running in it.
        tests: Vec<String>,
        /// Its processes and their threads.
        processes: Vec<String>,
        /// The process ids.
        pids: Vec<u32>,
    },
}

/// Waits until a child has ended, or until `is_late` returns true. Such a child must be one that adopts the orphans below it. `over` then returns which tests
/// have ended, of the test binary that has printed last.
pub fn watch(child: &mut Child, mut is_late: impl FnMut() -> bool, over: impl Fn() -> BTreeSet<String>) -> io::Result<End> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Ended(status));
        }
        if is_late() {
            let below = below(child.id());
            let tests = below.iter().flat_map(|process| process.tests(&over())).collect();
            let processes = below.iter().flat_map(Process::describe).collect();
            let pids = below.iter().map(|process| process.pid).collect();
            // Stopped, it neither goes on to something else nor ends and leaves its orphans to others, but it still adopts them.
            signal(child.id(), Signal::STOP);
            end_below(child.id());
            child.kill()?;
            child.wait()?;
            return Ok(End::Late { tests, processes, pids });
        }
        thread::sleep(LOOK);
    }
}

/// A live process.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    parent: u32,
}

/// The live processes below this one: its children, theirs, and so on.
pub fn below(root: u32) -> Vec<Process> {
    let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    for process in entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<Process> = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// Kills all processes below this one, which must adopt orphans. Returns whether they are gone.
pub fn end_below(root: u32) -> bool {
    for _ in 0..DEATHS {
        let left = below(root);
        if left.is_empty() {
            return true;
        }
        left.iter().for_each(|process| signal(process.pid, Signal::KILL));
        thread::sleep(DEATH);
    }
    false
}

/// Sends a signal. It does not matter if the process is gone already.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Process {
    /// `None` if it has ended.
    fn read(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses, and may contain anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        // Leaves out dead ones of whose end the parent has yet to be told, if it ever is.
        (!matches!(state, "Z" | "X")).then_some(Process { pid, parent })
    }

    /// The command line, and what each thread waits for.
    pub fn describe(&self) -> Vec<String> {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let command: String = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ").chars().take(COMMAND).collect();
        let mut lines = vec![format!("process {}, of {}: {command}", self.pid, self.parent)];
        for (thread, name) in self.threads() {
            let of_thread = |what: &str| fs::read_to_string(format!("/proc/{}/task/{thread}/{what}", self.pid)).unwrap_or_default();
            // Only root may read the kernel's stack.
            let stack = of_thread("stack");
            let frames: Vec<&str> = stack.lines().filter_map(|line| line.split_once("] ")?.1.split('+').next()).take(4).collect();
            let place = if frames.is_empty() { of_thread("wchan") } else { frames.join(" < ") };
            lines.push(format!("    thread {thread} {name:?} in {place}"));
        }
        lines
    }

    /// The threads' ids and names.
    fn threads(&self) -> Vec<(u32, String)> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().filter_map(Result::ok);
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let name = |thread: u32| fs::read(format!("/proc/{}/task/{thread}/comm", self.pid)).ok();
        numbers.filter_map(|thread| Some((thread, String::from_utf8_lossy(&name(thread)?).trim_end_matches('\n').to_owned()))).collect()
    }

    /// If this is a test binary, the tests that are running in it. Each has a thread of its name, of which the kernel keeps the beginning.
    fn tests(&self, over: &BTreeSet<String>) -> Vec<String> {
        let exe = format!("/proc/{}/exe", self.pid);
        // Only test binaries are asked: what other programs would do with this argument is unknown.
        let is_built = fs::read_link(&exe).is_ok_and(|path| path.parent().is_some_and(|parent| parent.ends_with("deps")));
        if !is_built {
            return Vec::new();
        }
        let listed = Command::new(&exe)
            .args(["--list", "--format", "terse", "--include-ignored"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        let threads: BTreeSet<String> = self.threads().into_iter().map(|(_, name)| name).collect();
        let has_thread = |test: &str| threads.contains(&*String::from_utf8_lossy(&test.as_bytes()[..test.len().min(THREAD_NAME)]));
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.filter(|test| has_thread(test) && !over.contains(*test)).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::ci::Scratch;

    /// Names the file to which `NEVER_ENDS` writes an orphan's process id.
    const ORPHAN: &str = "MARTLET_XTASK_ORPHAN";
    const NEVER_ENDS: &str = "limit::tests::part_of_the_test_below_which_never_ends";

    /// Not run as a test: the test that starts it ends it.
    #[test]
    #[ignore = "only the test below runs it"]
    fn part_of_the_test_below_which_never_ends() {
        let orphan = std::env::var_os(ORPHAN).expect("only the test below runs it");
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("our own attribute");
        // In a session of its own, ignoring all signals that can be ignored, and without its parent.
        let script = r#"(trap '' HUP INT TERM; setsid sh -c 'trap "" TERM; echo $$ >"$1.new"; mv "$1.new" "$1"; while :; do sleep 1000; done' sh "$1" &)"#;
        let status = Command::new("sh").args(["-c", script, "sh"]).arg(orphan).status().expect("a shell");
        assert!(status.success());
        loop {
            thread::park();
        }
    }

    fn start(orphan: &Path) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("ourselves"));
        command.args(["--ignored", "--exact", NEVER_ENDS, "--test-threads", "2"]).env(ORPHAN, orphan).stdout(Stdio::null());
        command.spawn().expect("a test binary runs")
    }

    #[test]
    fn what_never_ends_is_named_and_ended_with_its_orphans() {
        let scratch = Scratch::new("limit").expect("a directory");
        let orphan: PathBuf = scratch.path().join("orphan");
        let mut child = start(&orphan);
        let pid = child.id();
        // It counts as late as soon as there is something to end.
        let end = watch(&mut child, || orphan.exists(), BTreeSet::new).expect("children can be waited for");
        let End::Late { tests, processes, pids } = end else { panic!("{end:?}") };
        let orphan: u32 = fs::read_to_string(&orphan).expect("written").trim().parse().expect("a number");
        let is_named = |line: &String| line.starts_with(&format!("process {orphan}, of ")) && line.contains(": sh -c");
        assert!(processes.iter().any(is_named), "{processes:?}");
        for pid in [pid, orphan] {
            assert!(Process::read(pid).is_none(), "process {pid} goes on");
        }
        assert!(pids.contains(&orphan), "{pids:?}");
        assert_eq!(tests, Vec::<String>::new(), "the binary itself is not below itself");
    }

    #[test]
    fn tests_that_go_on_are_named_unless_they_have_been_told_of() {
        let scratch = Scratch::new("midst").expect("a directory");
        let orphan: PathBuf = scratch.path().join("orphan");
        let mut child = start(&orphan);
        while !orphan.exists() {
            assert!(child.try_wait().expect("it is ours").is_none(), "it has ended");
            thread::sleep(LOOK);
        }
        let process = Process::read(child.id()).expect("it never ends");
        let begins_like_it = |tests: Vec<String>| tests.iter().filter(|test| *test == NEVER_ENDS).count();
        assert_eq!(begins_like_it(process.tests(&BTreeSet::new())), 1);
        assert_eq!(begins_like_it(process.tests(&BTreeSet::from([NEVER_ENDS.to_owned()]))), 0);
        signal(child.id(), Signal::STOP);
        assert!(end_below(child.id()));
        child.kill().and_then(|()| child.wait()).expect("it is ours");
    }

    #[test]
    fn what_ends_by_itself_is_left_alone() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().expect("a shell");
        let end = watch(&mut child, || false, BTreeSet::new).expect("children can be waited for");
        assert!(matches!(end, End::Ended(status) if status.code() == Some(3)), "{end:?}");
    }
}

//! Runs the command.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// The outcome of a run of the command.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Checks that it worked, and complained about nothing.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Checks that it ended with that code.
    #[track_caller]
    pub fn code(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Its output as objects: one on each line, and nothing else.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let objects: Vec<Value> = self.out.lines().map(parse).collect();
        assert!(objects.iter().all(Value::is_object), "objects only:\n{}", self.out);
        objects
    }
}

/// The command, without those parts of the caller's environment that it looks at.
pub fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["MARTLET_DIR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// The flags for the fabric that those tests use that can run on any: shared memory, unless `MARTLET_TEST_FABRIC` says `ethernet`, or `verbs` with the devices
/// in `MARTLET_TEST_DEVICES`. So `cargo xtask rdma` runs them over RDMA.
pub fn fabric() -> Vec<String> {
    let of = |variable| std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"));
    match std::env::var("MARTLET_TEST_FABRIC").as_deref() {
        Err(_) | Ok("shm") => Vec::new(),
        Ok("verbs") => ["--fabric", "verbs", "--devices", &of("MARTLET_TEST_DEVICES")].map(str::to_owned).into(),
        Ok("ethernet") => ["--fabric", "ethernet"].map(str::to_owned).into(),
        Ok(other) => panic!("MARTLET_TEST_FABRIC: `{other}`; allowed are shm, verbs and ethernet"),
    }
}

/// These arguments, and the flags for the fabric.
pub fn on_fabric(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).chain(fabric()).collect()
}

/// Runs the command to its end.
pub fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    ran(command(arguments).output().expect("the command is built"))
}

pub fn ran(output: Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A directory that is deleted when the value is dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("martlet-it-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a fresh directory");
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A port with enough free ones after it. Another process may still take it; nodes then say so.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Tests of one process take turns, and processes differ by their process ids. The ports are below those that the kernel hands out by itself.
        let number = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() * 7;
        let first = 10_000 + (number % 1_000) as u16 * 16;
        let free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (first..first + count).all(free) {
            return first;
        }
    }
}

/// The processes whose command line names that path, except those that only keep a node's memory until its connections have ended.
pub fn processes_about(path: &Path) -> Vec<u32> {
    every_process_about(path).filter(|pid| !is_mourner(*pid)).collect()
}

/// Waits for the processes that keep the memory and the connections of dead nodes: they end by themselves a moment later.
pub fn await_mourners(path: &Path) {
    while every_process_about(path).any(is_mourner) {
        std::thread::yield_now();
    }
}

pub fn is_mourner(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| matches!(name.trim_end(), "martlet-mourner" | "martlet-keeper"))
}

pub fn every_process_about(path: &Path) -> impl Iterator<Item = u32> {
    let needle = path.to_str().expect("UTF-8").as_bytes();
    let pids = std::fs::read_dir("/proc").expect("there").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(move |pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(needle.len()).any(|window| window == needle)
    })
}

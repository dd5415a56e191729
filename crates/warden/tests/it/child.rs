//! The test's executable when a test starts it as a process of its own: a program that registers, one that knows of no warden, or a warden.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use martlet_warden::AppId;
use martlet_warden::client::Warden;
use martlet_warden::daemon;

use crate::hosts::party;

const ROLE: &str = "MARTLET_TEST_ROLE";
const SOCKET: &str = "MARTLET_TEST_SOCKET";

/// Held while a process is started. Until it executes its program, that process has copies of all descriptors of this one.
static STARTING: Mutex<()> = Mutex::new(());

/// Keeps every test from starting a process. What is closed meanwhile is closed: no copy of it keeps its port or its lock.
pub fn without_starts() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process, and returns when it executes its program.
pub fn spawn(command: &mut Command) -> Child {
    let _starting = without_starts();
    command.spawn().expect("it starts")
}

/// A process that a test started. It is killed when the test is over.
pub struct Process {
    child: Child,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process, and waits until it says that it is ready.
    pub fn start(role: &str, socket: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this executable"));
        command.args(["--exact", "child::plays_its_role", "--nocapture", "--test-threads=1"]).env(ROLE, role).env(SOCKET, socket);
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let orders = child.stdin.take().expect("piped");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = Process { child, orders, says };
        process.await_line("ready");
        process
    }

    pub fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.says.read_line(&mut line).expect("it speaks text");
            assert!(len > 0, "it ended before it said `{wanted}`");
            if line.trim_end().ends_with(wanted) {
                return;
            }
        }
    }

    pub fn order(&mut self, what: &str) {
        writeln!(self.orders, "{what}").expect("it listens");
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// Stops all its threads. The signal itself stops only the thread that handles it first, and that thread stops the others.
    pub fn stop(&self) {
        use rustix::process::{WaitOptions, waitpid};
        self.signal(rustix::process::Signal::STOP);
        let pid = rustix::process::Pid::from_raw(self.pid());
        let (_, status) = waitpid(pid, WaitOptions::UNTRACED).expect("it is ours").expect("it was waited for");
        assert!(status.stopped(), "{status:?}");
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    pub fn await_end(mut self) {
        self.child.wait().expect("it is ours");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ready() {
    // Below the test harness's own line.
    println!("\nready");
}

#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket = std::env::var(SOCKET).expect("set with the role");
    let socket = Path::new(&socket);
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["plain"] => {
            ready();
            obey(socket, None);
        }
        ["joins", app] => {
            let mut warden = Warden::connect(socket, "child").expect("a warden");
            warden.join(AppId::new(app.parse().expect("a number")).expect("in range")).expect("free");
            let _acting = warden.threads().act().expect("a word");
            ready();
            obey(socket, Some(&mut warden));
        }
        ["joins-without-words", app] => {
            let mut warden = Warden::connect(socket, "child").expect("a warden");
            warden.join(AppId::new(app.parse().expect("a number")).expect("in range")).expect("free");
            ready();
            obey(socket, Some(&mut warden));
        }
        ["warden"] => serve(socket, None, false),
        ["warden-with-marks"] => serve(socket, None, true),
        ["warden-of-second", own, also_own, other, also_other] => {
            let addresses = |texts: [&str; 2]| texts.map(|text| text.parse().expect("an address")).to_vec();
            serve(socket, Some(party(1, addresses([own, also_own]), addresses([other, also_other]), [7; 32], 1_000_000)), false);
        }
        _ => panic!("no such role: {role}"),
    }
}

/// Runs as a warden until it is killed; with marks, where the system permits them.
fn serve(socket: &Path, party: Option<daemon::Party>, marks: bool) {
    let warden = daemon::Warden::new(&daemon::Options { socket: socket.into(), mode: 0o600, party, marks });
    let warden = warden.expect("the place is free");
    ready();
    let (never, _end) = std::os::unix::net::UnixStream::pair().expect("sockets");
    warden.run(std::os::fd::AsFd::as_fd(&never), |_| ()).expect("it serves");
}

/// Carries out commands, line by line, until it is told to end.
fn obey(socket: &Path, mut warden: Option<&mut Warden>) {
    let mut second = None;
    let mut memory = Vec::new();
    for line in std::io::stdin().lines() {
        match line.expect("text").as_str() {
            "exit" => std::process::exit(0),
            "quit" => warden.as_mut().expect("registered").quit().expect("it has joined"),
            "grow" => memory.resize(256 << 20, 1u8),
            order @ ("segfault" | "dump") => {
                let most = if order == "dump" { None } else { Some(0) };
                let _ =
                    rustix::process::setrlimit(rustix::process::Resource::Core, rustix::process::Rlimit { current: most, maximum: most });
                // The core file goes there, unless the system has a place of its own.
                let _ = std::env::set_current_dir(socket.parent().expect("a directory"));
                let memory = vec![1u8; if order == "dump" { 64 << 20 } else { 0 }];
                // The runtime's handler takes the first signal, which comes from no memory access, and leaves the next to the system. Two that are under way at
                // once count as one.
                loop {
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV).expect("our own");
                    std::hint::black_box(&memory);
                    std::thread::yield_now();
                }
            }
            "exec" => {
                let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("1000"));
                panic!("no sleep: {error}");
            }
            "second thread" => {
                let threads = warden.as_ref().expect("registered").threads();
                let (orders, told) = std::sync::mpsc::channel::<()>();
                let (acts, acting) = std::sync::mpsc::channel();
                let thread = std::thread::spawn(move || {
                    let held = threads.act().expect("a word");
                    acts.send(()).expect("awaited");
                    told.recv().expect("told to end");
                    std::mem::forget(held);
                });
                acting.recv().expect("it acts");
                second = Some((orders, thread));
            }
            "end second thread" => {
                let (orders, thread) = second.take().expect("there is one");
                orders.send(()).expect("it waits");
                thread.join().expect("it ends well");
            }
            other => {
                let message = other.strip_prefix("send ").unwrap_or_else(|| panic!("no such order: {other}"));
                let warden = warden.as_mut().expect("registered");
                warden.piggyback(message.as_bytes()).expect("allowed");
            }
        }
        println!("done");
    }
    std::hint::black_box(memory);
}

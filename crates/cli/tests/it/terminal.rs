//! What commands do with a terminal: it is the test's own, which reads it or does not.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{Action, LocalModes, Winsize};

use crate::cluster::Cluster;
use crate::martlet::command;

/// After how long a command counts as hanging.
const GUARD: Duration = Duration::from_secs(120);

/// A terminal.
struct Terminal {
    /// The side of the user.
    user: File,
    /// The side of programs.
    program: File,
}

impl Terminal {
    fn new() -> Terminal {
        let user = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        rustix::pty::grantpt(&user).expect("ours");
        rustix::pty::unlockpt(&user).expect("ours");
        let name = rustix::pty::ptsname(&user, Vec::new()).expect("it has one");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK;
        let program = rustix::fs::open(name, flags, Mode::empty()).expect("unlocked");
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&user, size).expect("a terminal");
        Terminal { user: user.into(), program: program.into() }
    }

    /// Writes to it until it takes no more, and stops it as Ctrl-S does: where the kernel passes on what it has taken, there would otherwise be room for some
    /// bytes again.
    fn fill(&self) {
        while (&self.program).write(&[b'.'; 512]).is_ok() {}
        rustix::termios::tcflow(&self.program, Action::OOff).expect("a terminal");
    }

    /// Whether it gives programs whole lines, as at first, and not single keys.
    fn is_as_it_was(&self) -> bool {
        rustix::termios::tcgetattr(&self.program).expect("a terminal").local_modes.contains(LocalModes::ICANON | LocalModes::ISIG)
    }

    /// Runs a command on it, with no other terminal in reach. The command opens its own description of it, by its name.
    fn run(&self, arguments: &[&str]) -> Running {
        let side = || -> Stdio {
            let name = rustix::pty::ptsname(&self.user, Vec::new()).expect("it has one");
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("unlocked").into()
        };
        let mut command = command(arguments);
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(side()).stdout(side()).stderr(side());
        Running(command.process_group(0).spawn().expect("the command is built"))
    }

    /// What has been written to it up to now.
    fn read(&self) -> String {
        rustix::io::ioctl_fionbio(&self.user, true).expect("a terminal");
        let mut seen = Vec::new();
        let mut some = [0; 4096];
        while let Ok(read @ 1..) = (&self.user).read(&mut some) {
            seen.extend_from_slice(&some[..read]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }
}

struct Running(Child);

impl Running {
    /// How it ends, while `meanwhile` is called again and again. `None`: it does not end.
    fn ended(&mut self, mut meanwhile: impl FnMut()) -> Option<ExitStatus> {
        let until = Instant::now() + GUARD;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().expect("ours") {
                return Some(status);
            }
            meanwhile();
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn top_ends_and_puts_the_terminal_back_also_where_nobody_reads_what_it_draws() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    for drained in [false, true] {
        for how in ["q", "-TERM", "-QUIT", "-USR1"] {
            let terminal = Terminal::new();
            if !drained {
                terminal.fill();
            }
            let mut top = terminal.run(&["top", "--dir", &cluster.dir]);
            let until = Instant::now() + GUARD;
            while terminal.is_as_it_was() {
                assert!(Instant::now() < until && top.0.try_wait().expect("ours").is_none(), "it never took the terminal");
                std::thread::sleep(Duration::from_millis(1));
            }
            match how.strip_prefix('-') {
                Some(_) => top.signal(how),
                None => (&terminal.user).write_all(how.as_bytes()).expect("it listens"),
            }
            let mut seen = String::new();
            let status = top.ended(|| {
                if drained {
                    seen += &terminal.read();
                }
            });
            assert!(status.is_some_and(|status| status.success()), "{how}, drained {drained}: {status:?}");
            assert!(terminal.is_as_it_was(), "{how}, drained {drained}");
            seen += &terminal.read();
            assert!(!drained || seen.ends_with("\u{1b}[?1049l\u{1b}[?25h"), "{how}: {seen:?}");
        }
    }
}

#[test]
fn a_long_benchmark_shows_at_a_terminal_how_far_it_is_and_nowhere_else() {
    let detect = ["bench", "detect", "--kills", "1", "--no-reference"];
    let seen = |arguments: &[&str]| {
        let terminal = Terminal::new();
        let mut running = terminal.run(arguments);
        let mut seen = String::new();
        let status = running.ended(|| seen += &terminal.read());
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {seen}");
        seen + &terminal.read()
    };
    let shown = seen(&detect);
    assert!(shown.contains("victims killed [") && shown.contains(" of 12, "), "{shown:?}");
    let last = shown.rfind("victims killed").expect("shown");
    assert!(shown[last..].contains("death seen by polling"), "the bar has gone before the table: {shown:?}");

    let shown = seen(&["model", "latency", "--samples", "50", "--servers", "3"]);
    let first = shown.find("kinds of operations and requests [").unwrap_or_else(|| panic!("no bar: {shown:?}"));
    assert!(shown[..first].trim().len() < 20 && shown.contains(" of 45, "), "{shown:?}");

    let for_programs = seen(&[&detect[..], &["--json"]].concat());
    assert!(!for_programs.contains("victims killed") && for_programs.contains("death seen by polling"), "{for_programs:?}");
    let elsewhere = crate::martlet::run(&detect).ok();
    assert_eq!(elsewhere.err, "");
    assert!(!elsewhere.out.contains("victims killed"), "{}", elsewhere.out);
}

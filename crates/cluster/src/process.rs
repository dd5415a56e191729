//! Other processes, named so that another process with a reused number is never taken for the earlier one.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use martlet_fabric::host::stat::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process of this host: its number, its start time, and the boot of the host that this time counts from. No two processes share all three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessName {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the host's boot.
    started: u64,
    /// The kernel's name for the host's boot.
    boot: String,
}

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It runs, or is able to.
    Running,
    /// It is stopped by a signal.
    Stopped,
    /// It is gone, or waits only to be reaped.
    Gone,
}

impl ProcessName {
    /// The name of the process that has this number now.
    pub fn of(pid: u32) -> io::Result<ProcessName> {
        let stat = Stat::of(pid)?;
        Ok(ProcessName { pid, started: stat.started, boot: boot()? })
    }

    /// The process of ours that runs this program with these arguments followed by that file, whatever path was given for the file.
    pub fn of_command(arguments: &[&str], file: &Path) -> io::Result<Option<ProcessName>> {
        let Ok(wanted) = file.canonicalize() else { return Ok(None) };
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // If a process ends meanwhile, or we may not look at it, it is not the one. A node's second processes have the same command line, but other names.
            let about = |what: &str| fs::read(entry.path().join(what)).unwrap_or_default();
            let line = about("cmdline");
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let is_it = words.iter().skip(1).zip(arguments).all(|(word, argument)| *word == argument.as_bytes());
            let Some(given) = words.get(arguments.len() + 1).filter(|given| is_it && !given.is_empty()) else { continue };
            if matches!(about("comm").trim_ascii(), b"martlet-mourner" | b"martlet-keeper") {
                continue;
            }
            let given = Path::new(OsStr::from_bytes(given));
            let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            if cwd.join(given).canonicalize().is_ok_and(|path| path == wanted) {
                let name = ProcessName::of(pid);
                return Ok(name.ok().filter(|name| name.activity() != Activity::Gone));
            }
        }
        Ok(None)
    }

    /// The existing files and directories that its command line names. `None`: the command line cannot be read.
    pub fn files_named(&self) -> Option<Vec<PathBuf>> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).ok().filter(|line| !line.is_empty())?;
        let cwd = fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?;
        let words = line.split(|byte| *byte == 0).skip(1).filter(|word| !word.is_empty());
        let files = words.map(|word| cwd.join(OsStr::from_bytes(word))).filter(|path| path.exists());
        Some(files.collect())
    }

    /// Reads what [`ProcessName::write`] wrote. Returns `None` when there is no such file, or its content makes no sense: then a crash cut it short, and the
    /// command that wrote it never came to rely on it.
    pub fn read(file: &Path) -> io::Result<Option<ProcessName>> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut words = text.split_whitespace();
        let name = (|| {
            let (pid, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(ProcessName { pid, started, boot: words.next()?.to_owned() })
        })();
        Ok(name)
    }

    /// Writes it in such a way that a reader finds either the whole of it or the previous file.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let fresh = file.with_extension("pid.new");
        fs::write(&fresh, format!("{} {} {}\n", self.pid, self.started, self.boot))?;
        fs::rename(fresh, file)
    }

    /// What it is doing.
    pub fn activity(&self) -> Activity {
        match (Stat::of(self.pid), boot()) {
            (Ok(stat), Ok(boot)) if stat.started == self.started && boot == self.boot => match stat {
                _ if stat.has_ended() => Activity::Gone,
                _ if stat.is_stopped() => Activity::Stopped,
                _ => Activity::Running,
            },
            _ => Activity::Gone,
        }
    }

    /// Waits until the kernel has taken back everything that the process held, but no longer than `patience`. Returns whether it has. A process counts as gone
    /// as soon as its first thread is, but its ports are free only when its last thread is gone.
    pub fn await_release(&self, patience: Duration) -> io::Result<bool> {
        let Some(fd) = self.pidfd()? else { return Ok(true) };
        let is_it = matches!((Stat::of(self.pid), boot()), (Ok(stat), Ok(boot)) if stat.started == self.started && boot == self.boot);
        if is_it { Handle { fd }.wait_gone(patience) } else { Ok(true) }
    }

    /// A descriptor of the process that has the number now, if one has.
    fn pidfd(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(fd)),
            // INVAL comes when the number no longer belongs to a process, but still to a group of processes: a node's second process is in the node's group,
            // and may outlive the node for a moment. NOENT comes when the number is a thread's now.
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A handle on the process, or `None` when it is gone.
    pub fn open(&self) -> io::Result<Option<Handle>> {
        let Some(fd) = self.pidfd()? else { return Ok(None) };
        // Only now: the handle is on the process that has the number, whichever that is, and this checks that it is the right one.
        Ok((self.activity() != Activity::Gone).then_some(Handle { fd }))
    }
}

/// A process that can be signalled and waited for without a race.
#[derive(Debug)]
pub struct Handle {
    fd: OwnedFd,
}

impl Handle {
    /// Sends it a signal. Returns `false` if it is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it is gone, but no longer than `patience`. Returns whether it is.
    pub fn wait_gone(&self, patience: Duration) -> io::Result<bool> {
        let until = std::time::Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(n) => return Ok(n > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Kills this process's children, and the children that they leave behind, until there are none. It only waits until each is dead, and does not reap it: other
/// threads may be waiting for that.
pub(crate) fn end_children() {
    // So what a child leaves behind becomes this process's child. It would otherwise live on, since a node's second process is meant to outlive the node.
    let _ = rustix::process::set_child_subreaper(Pid::from_raw(1));
    let mut ended = 0;
    loop {
        let living = children();
        if living.is_empty() || ended > MOST_CHILDREN {
            return;
        }
        for child in living {
            let _ = child.signal(Signal::KILL);
            // If the kernel does not manage to end it, it is left to the kernel.
            let _ = child.wait_gone(DEATH);
            ended += 1;
        }
    }
}

/// More children than any command has. If something creates new ones faster than they can be ended, this gives up.
const MOST_CHILDREN: u32 = 10_000;
/// How long a killed process may take to be dead.
const DEATH: Duration = Duration::from_secs(2);

/// This process's living children.
fn children() -> Vec<Handle> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |pid: u32| Stat::of(pid).is_ok_and(|stat| stat.parent == own);
    let handles = pids.filter(|pid| is_ours(*pid)).filter_map(|pid| {
        let fd = pidfd_open(i32::try_from(pid).ok().and_then(Pid::from_raw)?, PidfdFlags::empty()).ok()?;
        // Another thread may have reaped it meanwhile, and its number may have been reused.
        is_ours(pid).then_some(Handle { fd })
    });
    handles.filter(|child| !child.wait_gone(Duration::ZERO).unwrap_or(true)).collect()
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The signals that a node may be sent.
const NAMED: [(&str, Signal); 10] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("SEGV", Signal::SEGV),
    ("TERM", Signal::TERM),
    ("STOP", Signal::STOP),
    ("CONT", Signal::CONT),
    ("BUS", Signal::BUS),
];

/// Finds a signal by its name, with or without `SIG`, or its number.
pub fn signal_by_name(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMED.iter().find(|(named, signal)| *named == name || signal.as_raw().to_string() == name);
    named
        .map(|(_, signal)| *signal)
        .ok_or_else(|| format!("unknown signal; allowed are {} and their numbers", signal_names().collect::<Vec<_>>().join(", ")))
}

/// The names of the signals that can be sent, without `SIG`.
pub fn signal_names() -> impl Iterator<Item = &'static str> {
    NAMED.iter().map(|(name, _)| *name)
}

/// A signal's name, with `SIG`.
pub fn signal_name(signal: Signal) -> String {
    let named = NAMED.iter().find(|(_, named)| *named == signal);
    named.map_or_else(|| format!("signal {}", signal.as_raw()), |(name, _)| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself_and_not_its_predecessor() {
        let own = ProcessName::of(std::process::id()).expect("we run");
        assert_eq!(own.activity(), Activity::Running);
        assert!(own.open().expect("may be opened").is_some());
        let before = ProcessName { started: own.started - 1, ..own.clone() };
        assert_eq!(before.activity(), Activity::Gone, "the same number, started earlier");
        assert!(before.open().expect("may be opened").is_none());
        let other_boot = ProcessName { boot: "another".into(), ..own };
        assert_eq!(other_boot.activity(), Activity::Gone);
    }

    #[test]
    fn a_name_survives_its_file_and_half_a_file_is_none() {
        let dir = crate::scratch::Scratch::new("pid").expect("a directory");
        let file = dir.path().join("node-1.pid");
        assert_eq!(ProcessName::read(&file).expect("no file is fine"), None);
        let own = ProcessName::of(std::process::id()).expect("we run");
        own.write(&file).expect("written");
        assert_eq!(ProcessName::read(&file).expect("there"), Some(own));
        for half in ["", "12", "12 34", "x 34 b"] {
            fs::write(&file, half).expect("written");
            assert_eq!(ProcessName::read(&file).expect("there"), None, "{half:?}");
        }
    }

    #[test]
    fn a_process_is_found_by_its_command_whatever_path_it_was_given() {
        let scratch = crate::scratch::Scratch::new("command").expect("a directory");
        let file = scratch.path().join("node.toml");
        fs::write(&file, "").expect("written");
        let find = || ProcessName::of_command(&["-f", "/dev/null"], &file).expect("it can be told");
        assert_eq!(find(), None);
        let other = scratch.path().join("other.toml");
        fs::write(&other, "").expect("written");
        for (name, found) in [("./other.toml", false), ("./node.toml", true)] {
            let mut child = std::process::Command::new("tail")
                .args(["-f", "/dev/null", name])
                .current_dir(scratch.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("tail is there");
            // Its command line appears a moment after it has started.
            while fs::read(format!("/proc/{}/cmdline", child.id())).is_ok_and(|line| line.is_empty()) {
                std::thread::yield_now();
            }
            let pid = find().map(|name| name.pid);
            child.kill().and_then(|()| child.wait().map(|_| ())).expect("it is ours");
            assert_eq!(pid, found.then_some(child.id()), "{name}");
        }
        assert_eq!(find(), None, "it is gone");
    }

    #[test]
    fn a_stopped_and_a_dead_process_are_told_apart() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep is there");
        let name = ProcessName::of(child.id()).expect("it runs");
        let handle = name.open().expect("may be opened").expect("it runs");
        assert!(handle.signal(Signal::STOP).expect("may be signalled"));
        while name.activity() == Activity::Running {
            std::thread::yield_now();
        }
        assert_eq!(name.activity(), Activity::Stopped);
        assert!(handle.signal(Signal::KILL).expect("may be signalled"));
        assert!(handle.wait_gone(Duration::from_secs(600)).expect("may be waited for"));
        assert_eq!(name.activity(), Activity::Gone, "a zombie counts as gone");
        assert!(name.await_release(Duration::from_secs(600)).expect("may be waited for"));
        child.wait().expect("it is ours");
        assert!(!handle.signal(Signal::KILL).expect("may be asked"));
    }

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal_by_name("kill"), Ok(Signal::KILL));
        assert_eq!(signal_by_name("SIGSTOP"), Ok(Signal::STOP));
        assert_eq!(signal_by_name("15"), Ok(Signal::TERM));
        assert!(signal_by_name("nope").is_err_and(|e| e.contains("KILL")));
        assert_eq!(signal_name(Signal::KILL), "SIGKILL");
    }
}

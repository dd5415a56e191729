//! Debian's packages, fetched for a command: without root, with separate lists and caches, and without installing anything.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The keys that Debian's archive is signed with.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with separate lists and caches, so that it needs no root and does not touch the system's.
pub struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// Uses the system's archives.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn new(state: &Path) -> Result<Apt, String> {
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = state.join(part);
            fs::create_dir_all(&part).map_err(|e| format!("cannot make {}: {e}", part.display()))?;
        }
        let state = state.display();
        let options = [
            format!("Dir::State={state}"),
            format!("Dir::State::Lists={state}/lists"),
            format!("Dir::Cache={state}/cache"),
            // Packages that are installed here need not be fetched.
            "Dir::State::status=/var/lib/dpkg/status".into(),
            "Acquire::Languages=none".into(),
            "APT::Architecture=amd64".into(),
            // As root, apt would otherwise switch to a user that may not write below `state`.
            "APT::Sandbox::User=root".into(),
        ];
        let mut apt = Apt { options: Vec::new() };
        options.into_iter().for_each(|option| apt.set(option));
        Ok(apt)
    }

    /// Uses the archive of sources of this release of Debian, and no other.
    ///
    /// # Errors
    /// When its files cannot be made, or this is not a release of Debian.
    pub fn of_sources(state: &Path) -> Result<Apt, String> {
        let mut apt = Apt::new(state)?;
        let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let release = about
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
            .ok_or("/etc/os-release names no release of Debian (VERSION_CODENAME)")?;
        let keys = if Path::new(KEYS).exists() { format!("[signed-by={KEYS}] ") } else { String::new() };
        let archives = [("debian", release.to_owned()), ("debian-security", format!("{release}-security"))]
            .map(|(archive, suite)| format!("deb-src {keys}http://deb.debian.org/{archive} {suite} main\n"));
        let list = state.join("sources.list");
        fs::write(&list, archives.concat()).map_err(|e| format!("{}: {e}", list.display()))?;
        apt.set(format!("Dir::Etc::sourcelist={}", list.display()));
        apt.set("Dir::Etc::sourceparts=/dev/null".into());
        Ok(apt)
    }

    fn set(&mut self, option: String) {
        self.options.extend(["-o".to_owned(), option]);
    }

    /// One of apt's programs, with the paths of all its files.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Runs one of apt's programs, and returns what it prints.
    ///
    /// # Errors
    /// See [`run`].
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Result<String, String> {
        run(self.command(program).args(args)).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it is not there or fails: what it printed.
pub fn run(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("{name} is not installed: this needs Debian or a relative of it"),
        _ => format!("cannot run {name}: {e}"),
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).filter(|arg| !arg.contains('=') && arg != "-o").collect();
    Err(format!("{name} {} failed ({}): {}", args.join(" "), output.status, said.trim()))
}

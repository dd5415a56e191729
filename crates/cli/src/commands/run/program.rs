//! The program that is to be run: which file it is, and whether it can be captured.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use martlet_cluster::fail::{Context as _, Fail, Outcome};

/// The most of a program that is looked through for what the Go linker writes, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// The file that a shell would run for this name.
pub fn find(name: &str) -> Outcome<PathBuf> {
    let is_program = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    if name.contains('/') {
        let path = PathBuf::from(name);
        return if is_program(&path) { Ok(path) } else { Err(Fail::absent(format_args!("{name} is not a program that may be run"))) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| is_program(path));
    found.ok_or_else(|| Fail::absent(format_args!("there is no program {name:?} in PATH")))
}

/// Refuses what cannot be captured, before anything is started.
pub fn check(path: &Path) -> Outcome {
    let name = path.display();
    let meta = fs::metadata(path).context(format_args!("cannot look at {name}"))?;
    if meta.permissions().mode() & 0o6000 != 0 {
        return Err(Fail::failed(format_args!(
            "{name} cannot be captured: it is setuid or setgid, so the system loads no library into it"
        )));
    }
    if meta.len() > MOST_BYTES {
        return Err(Fail::failed(format_args!("{name} cannot be captured: it has {} bytes; allowed are {MOST_BYTES}", meta.len())));
    }
    let bytes = fs::read(path).context(format_args!("cannot read {name}"))?;
    match why_not(&bytes) {
        Some(why) => Err(Fail::failed(format_args!("{name} cannot be captured: {why}"))),
        None => Ok(()),
    }
}

/// Why a program of these bytes cannot be captured.
fn why_not(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"#!") {
        return Some("it is a script; name the server that it starts");
    }
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Some("it is not a 64-bit ELF program");
    }
    // A builder of Go programs leaves this mark; they call the kernel themselves.
    if bytes.windows(14).any(|window| window == b"\xff Go buildinf:") {
        return Some("it is a Go program, which calls the kernel without the C library");
    }
    if bytes.windows(11).any(|window| window == b"liburing.so") {
        return Some("it uses io_uring, which reaches the kernel without the C library; run a build without it");
    }
    let Some(interpreter) = interpreter(bytes) else {
        return Some("it is linked statically, or broken; run its dynamically linked build for glibc");
    };
    if !interpreter.windows(8).any(|window| window == b"ld-linux") {
        return Some("it is not linked with glibc; run its build for glibc");
    }
    None
}

/// What loads it: the text of its PT_INTERP.
fn interpreter(bytes: &[u8]) -> Option<&[u8]> {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, len: usize| -> Option<u64> {
        let part = bytes.get(at..at.checked_add(len)?)?;
        Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    (0..count).find_map(|entry| {
        let at = usize::try_from(table.checked_add(entry * size)?).ok()?;
        if number(at, 4)? != u64::from(PT_INTERP) {
            return None;
        }
        let (from, len) = (usize::try_from(number(at.checked_add(8)?, 8)?).ok()?, usize::try_from(number(at.checked_add(32)?, 8)?).ok()?);
        bytes.get(from..from.checked_add(len)?)
    })
}

/// What is known of a server's ways.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Arguments that it is given behind the user's.
    pub arguments: &'static [&'static str],
    /// What they change, for people.
    pub says: &'static str,
    /// Refuses the user's arguments where they ask for what cannot be captured. Returns the file in which the service's process is to be noted, if they name one.
    pub check: fn(&Path, &[String]) -> Outcome<Option<PathBuf>>,
    /// Which requests are refused while it serves, as the library reads it; `None`: it does not speak the protocol of Redis.
    pub refused: Option<fn() -> String>,
    /// How its output is known in which replicas differ, such as how much memory is in use: a client is sent the leader's, by whichever replica.
    pub wording: Option<Wording>,
    /// Whether its threads are to run one at a time, in one order: one of them executes requests, and others matter to it.
    pub takes_turns: bool,
    /// For how long a request may have it, in seconds, where the user does not say.
    pub longest_request: u32,
}

/// How output is known in which replicas differ.
#[derive(Clone, Copy, Debug)]
pub struct Wording {
    /// The requests that ask for it, by name.
    pub asking: &'static [&'static str],
    /// The texts of which one stands in it.
    pub marks: &'static [&'static str],
}

impl Wording {
    /// As the library reads it.
    pub fn lines(&self) -> String {
        format!("{}\n{}", self.asking.join(" "), self.marks.join("\n"))
    }
}

/// Of a program of this name.
pub fn profile(path: &Path) -> Option<Profile> {
    let name = path.file_name()?.to_str()?;
    match name {
        "redis-server" | "valkey-server" => Some(super::redis::PROFILE),
        "nginx" => Some(super::nginx::PROFILE),
        "memcached" => Some(super::memcached::PROFILE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_captured_is_told_apart() {
        let says = |bytes: &[u8], text: &str| assert!(why_not(bytes).is_some_and(|why| why.contains(text)), "{:?}", why_not(bytes));
        says(b"#!/bin/sh\n", "a script");
        says(b"MZ", "not a 64-bit ELF");
        says(b"\x7fELF\x02\x01", "statically");
        says(b"\x7fELF\x02\x01 .... \xff Go buildinf: ...", "Go program");
        says(b"\x7fELF\x02\x01 .... liburing.so.2 ...", "io_uring");
        let mut program = vec![0; 200];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (program[32], program[54], program[56]) = (64, 56, 1);
        says(&program, "statically");
        (program[64], program[72], program[96]) = (3, 150, 20);
        says(&program, "not linked with glibc");
        program[150..170].copy_from_slice(b"/lib64/ld-linux.so.2");
        assert_eq!(why_not(&program), None);
        // Nothing that stands there may lead out of the file.
        for at in 32..104 {
            let mut broken = program.clone();
            broken[at] = 0xff;
            let _ = why_not(&broken);
        }
    }

    #[test]
    fn this_program_itself_is_linked_dynamically() {
        let own = fs::read("/proc/self/exe").expect("readable");
        let interpreter = interpreter(&own).expect("it is linked dynamically");
        assert!(interpreter.starts_with(b"/"), "{:?}", String::from_utf8_lossy(interpreter));
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert!(find("sh").expect("there is a shell").ends_with("sh"));
        assert!(find("no-such-program-anywhere").is_err());
        assert!(find("/etc/passwd").is_err(), "no program");
    }
}

//! The limits that the system sets for a process (`ulimit`), and which of them may have caused an error.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A limit, and its name.
struct Limit {
    resource: Resource,
    what: &'static str,
    flag: &'static str,
    unit: &'static str,
}

const ADDRESS_SPACE: Limit = Limit { resource: Resource::As, what: "the limit of address space", flag: "ulimit -v", unit: "bytes" };
const DATA: Limit = Limit { resource: Resource::Data, what: "the limit of data", flag: "ulimit -d", unit: "bytes" };
const LOCKED: Limit = Limit { resource: Resource::Memlock, what: "the limit of locked memory", flag: "ulimit -l", unit: "bytes" };
const DESCRIPTORS: Limit = Limit { resource: Resource::Nofile, what: "the limit of file descriptors", flag: "ulimit -n", unit: "" };
const PROCESSES: Limit = Limit { resource: Resource::Nproc, what: "the limit of processes and threads", flag: "ulimit -u", unit: "" };
const FILE_SIZE: Limit = Limit { resource: Resource::Fsize, what: "the limit of a file's size", flag: "ulimit -f", unit: "bytes" };

impl Limit {
    fn text(&self) -> Option<String> {
        let current = getrlimit(self.resource).current?;
        let Limit { what, flag, unit, .. } = self;
        let space = if unit.is_empty() { "" } else { " " };
        Some(format!("{what} ({flag}) is {current}{space}{unit}"))
    }
}

/// What to append to an error from the system: the limits of this process that may have caused it, as `; the limit ... (ulimit ...) is ...`. Empty if
/// there are none.
pub fn hint(error: &io::Error) -> String {
    let suspects: &[Limit] = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => &[ADDRESS_SPACE, DATA, LOCKED],
        Some(Errno::MFILE) => &[DESCRIPTORS],
        // A thread for whose stack there is no room is refused with the same error as one thread too many.
        Some(Errno::AGAIN) => &[PROCESSES, ADDRESS_SPACE],
        Some(Errno::FBIG) => &[FILE_SIZE],
        _ => &[],
    };
    suspects.iter().filter_map(Limit::text).map(|limit| format!("; {limit}")).collect()
}

/// Checks that files may become this large. If they may not, code that makes a file larger gets a signal, SIGXFSZ, which ends a process that does not
/// expect it.
///
/// # Errors
/// When they may not; [`hint`] names the limit.
pub fn check_file_size(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if most < bytes => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// The smallest stack of its first thread with which a program that contains a node runs. Threads that it starts have a size of their own.
pub const STACK_BYTES: u64 = 512 << 10;

/// Checks that the first thread's stack may grow to [`STACK_BYTES`].
///
/// # Errors
/// When the limit is too low: names the limit, its value and what is needed.
pub fn check_stack() -> Result<(), String> {
    match getrlimit(Resource::Stack).current {
        Some(stack) if stack < STACK_BYTES => {
            Err(format!("the limit of the stack (ulimit -s) is {stack} bytes; allowed are {STACK_BYTES} at least"))
        }
        _ => Ok(()),
    }
}

/// Checks that the process may have this many more bytes of address space.
///
/// # Errors
/// When it may not; [`hint`] names the limit.
pub fn check_address_space(more: u64) -> io::Result<()> {
    let Some(most) = getrlimit(Resource::As).current else { return Ok(()) };
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let has = pages.saturating_mul(rustix::param::page_size() as u64);
    if has.saturating_add(more) > most { Err(Errno::NOMEM.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_limit_that_it_may_come_of() {
        let of = |errno: Errno| hint(&errno.into());
        let descriptors = getrlimit(Resource::Nofile).current.expect("every system has one");
        assert_eq!(of(Errno::MFILE), format!("; the limit of file descriptors (ulimit -n) is {descriptors}"));
        assert_eq!(of(Errno::NOENT), "");
        assert_eq!(hint(&io::Error::other("of ours")), "");
        check_file_size(0).and_then(|()| check_address_space(0)).expect("it runs");
    }
}

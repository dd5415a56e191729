//! What the kernel says of a process or of a thread in /proc/PID/stat.

use std::io;

/// Flags of a thread that executes nothing of its program any more: it is ending (PF_EXITING), or a signal has killed it (PF_SIGNALED).
const OVER: u64 = 0x4 | 0x400;

/// A process, or one of its threads. For a process, state and flags are those of its first thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The state, as a letter: `R` and `S` for example run and sleep, `T` is stopped, `Z` has ended and waits for its parent to notice.
    pub state: char,
    /// The number of the process's parent.
    pub parent: u32,
    flags: u64,
    /// When it started, in clock ticks since the host did. Together with the process's number this identifies a process beyond doubt.
    pub started: u64,
}

impl Stat {
    /// Looks at a process.
    ///
    /// # Errors
    /// When there is none of that number ([`is_gone`]), or the kernel cannot be asked.
    pub fn of(pid: impl std::fmt::Display) -> io::Result<Stat> {
        Stat::read(&format!("/proc/{pid}/stat"))
    }

    /// Looks at a thread of a process.
    ///
    /// # Errors
    /// As [`Stat::of`].
    pub fn of_thread(pid: u32, thread: &str) -> io::Result<Stat> {
        Stat::read(&format!("/proc/{pid}/task/{thread}/stat"))
    }

    fn read(path: &str) -> io::Result<Stat> {
        let text = std::fs::read_to_string(path)?;
        Stat::parse(&text).ok_or_else(|| io::Error::other(format!("{path} is not understood: {text:?}")))
    }

    /// Reads such a line. Its second field is the program's name in parentheses, which may itself contain spaces and parentheses.
    pub fn parse(text: &str) -> Option<Stat> {
        // The kernel counts fields from 1, and the first of these is 3.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let flags = fields.nth(4)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        Some(Stat { state, parent, flags, started })
    }

    /// Whether it has ended, though its parent may not have noticed yet.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether it executes nothing of its program any more: it has ended, is ending, or was killed.
    pub fn is_over(&self) -> bool {
        self.has_ended() || self.flags & OVER != 0
    }

    /// Whether it is stopped, for example by SIGSTOP or by a debugger.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Whether a failed look means that the process does not exist. It may vanish between the opening of the file and its reading.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_is_at_is_what_the_kernel_says_behind_any_name() {
        let stat = |state: &str, flags: u64| {
            let line = format!("17 (a) T (name) of 3 words) {state} 1 17 17 0 -1 {flags} 0 0 0 0 9 9 0 0 20 0 4 0 12345 0");
            Stat::parse(&line).expect("it is complete")
        };
        let asleep = stat("S", 0x40_0100);
        assert_eq!(asleep, Stat { state: 'S', parent: 1, flags: 0x40_0100, started: 12345 });
        assert!(!asleep.has_ended() && !asleep.is_over() && !asleep.is_stopped());
        assert!(stat("T", 0x40_0100).is_stopped() && stat("t", 0x40_0100).is_stopped());
        let [ending, killed] = [stat("R", 0x40_0104), stat("R", 0x40_0500)];
        assert!(ending.is_over() && killed.is_over() && !ending.has_ended() && !killed.has_ended());
        assert!(stat("Z", 0x40_0100).has_ended() && stat("Z", 0x40_0100).is_over());
        for partial in ["", "17 (name", "17 (name)", "17 (name) S 1 17 17 0 -1 256 0 0 0 0 9 9 0 0 20 0 4 0", "17 (name) S x"] {
            assert_eq!(Stat::parse(partial), None, "{partial}");
        }
    }

    #[test]
    fn a_process_finds_itself_and_no_process_is_gone() {
        let own = Stat::of("self").expect("we run");
        assert_eq!(Stat::of(std::process::id()).expect("we run").started, own.started);
        assert_eq!((own.parent, own.is_over()), (std::os::unix::process::parent_id(), false));
        let threads = std::fs::read_dir("/proc/self/task").expect("threads").count();
        assert!(threads > 0 && is_gone(&Stat::of_thread(std::process::id(), "1").expect_err("init is no thread of ours")));
        assert!(is_gone(&Stat::of(i32::MAX).expect_err("no process has that number")));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(!is_gone(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
    }
}

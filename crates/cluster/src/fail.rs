//! How a command ends when it fails.

use std::any::Any;
use std::fmt;
use std::io;
use std::process::ExitCode;

use martlet_fabric::limits;

/// Why a command ends, and with which exit code.
#[derive(Debug)]
pub struct Fail {
    kind: Kind,
    message: String,
    /// The exit code, if it is not that of the kind.
    own_code: Option<u8>,
}

/// What kind of failure it is; a script recognises it by the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something failed.
    Failed = 1,
    /// The command was used wrongly. clap's own errors have this code too.
    Usage = 2,
    /// Something that was asked for does not exist: a key, a node, a cluster.
    Absent = 3,
    /// A check found the store to be wrong.
    Wrong = 4,
    /// The user interrupted it.
    Interrupted = 130,
}

/// The codes, for help texts.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    it worked
  1    it failed
  2    wrong usage
  3    what was asked for is not there: a key, a node, a running cluster
  4    a check found the store to be wrong
  130  interrupted by Ctrl-C, except for commands that watch or serve until then; or cut short because nothing reads its output any more";

impl Fail {
    fn of(kind: Kind, message: impl fmt::Display) -> Fail {
        Fail { kind, message: message.to_string(), own_code: None }
    }

    /// A program that was run for the user has ended with this exit code, which becomes the command's.
    pub fn ended(code: u8, message: impl fmt::Display) -> Fail {
        Fail { own_code: Some(code), ..Fail::of(Kind::Failed, message) }
    }

    /// Something failed.
    pub fn failed(message: impl fmt::Display) -> Fail {
        Fail::of(Kind::Failed, message)
    }

    /// The command was used wrongly.
    pub fn usage(message: impl fmt::Display) -> Fail {
        Fail::of(Kind::Usage, message)
    }

    /// Something that was asked for does not exist.
    pub fn absent(message: impl fmt::Display) -> Fail {
        Fail::of(Kind::Absent, message)
    }

    /// A check found the store to be wrong.
    pub fn wrong(message: impl fmt::Display) -> Fail {
        Fail::of(Kind::Wrong, message)
    }

    /// The user interrupted it.
    pub fn interrupted() -> Fail {
        Fail::of(Kind::Interrupted, "interrupted")
    }

    /// The kind of failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The code that the process ends with.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.own_code.unwrap_or(self.kind as u8))
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fail {}

/// What a command returns.
pub type Outcome<T = ()> = Result<T, Fail>;

/// Adds to an error what was being done.
pub trait Context<T> {
    /// Puts `doing` before the error's own text, and after it any limits of this process that may be the cause.
    fn context(self, doing: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display + 'static> Context<T> for Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| {
            let hint = (&error as &dyn Any).downcast_ref::<io::Error>().map(limits::hint).unwrap_or_default();
            Fail::failed(format_args!("{doing}: {error}{hint}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_names_the_limit_that_it_may_come_of() {
        let error =
            |errno: rustix::io::Errno| Err::<(), io::Error>(errno.into()).context("cannot open it").expect_err("it failed").to_string();
        let said = error(rustix::io::Errno::MFILE);
        assert!(
            said.starts_with("cannot open it: Too many open files (os error 24); the limit of file descriptors (ulimit -n) is "),
            "{said}"
        );
        assert_eq!(error(rustix::io::Errno::NOENT), "cannot open it: No such file or directory (os error 2)");
    }
}

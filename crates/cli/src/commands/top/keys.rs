//! Keys, as bytes of the terminal in raw mode.
//!
//! Read here and not by crossterm, which goes on reading for ever from a terminal that has been closed, deaf to signals.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What somebody at the terminal wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Press {
    /// To leave: q, Esc or Ctrl-C, or the terminal is gone.
    End,
    /// Nothing that is known here.
    Other,
}

/// The terminal's keys.
pub struct Keys(OwnedFd);

impl Keys {
    /// Those of the terminal at the input, or of the one that controls the process.
    ///
    /// # Errors
    /// When there is neither.
    pub fn open() -> io::Result<Keys> {
        let stdin = io::stdin();
        let fd = if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()? } else { File::open("/dev/tty")?.into() };
        Ok(Keys(fd))
    }

    /// Waits for a key, at most so long; a signal ends the wait.
    ///
    /// # Errors
    /// When the terminal cannot be waited for.
    pub fn pressed(&self, patience: Duration) -> io::Result<Press> {
        let timeout = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Press::Other),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 256];
        match rustix::io::read(&self.0, &mut bytes) {
            // What reads as ended, or not at all, is no terminal any more.
            Ok(0) | Err(rustix::io::Errno::IO) => Ok(Press::End),
            Ok(n) => Ok(meant(&bytes[..n])),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Press::Other),
            Err(error) => Err(error.into()),
        }
    }
}

/// What the keys mean that were pressed together. Those that have no character of their own come as an escape and what follows it.
fn meant(bytes: &[u8]) -> Press {
    const ESCAPE: u8 = 0x1b;
    const CONTROL_C: u8 = 3;
    let mut rest = bytes;
    loop {
        rest = match rest {
            [] => return Press::Other,
            [b'q' | CONTROL_C, ..] | [ESCAPE] | [ESCAPE, ESCAPE, ..] => return Press::End,
            [ESCAPE, b'[' | b'O', sequence @ ..] => {
                let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
                end.map_or(&[], |end| &sequence[end + 1..])
            }
            [ESCAPE, _, more @ ..] | [_, more @ ..] => more,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_keys_end_it_and_no_part_of_another_key_does() {
        for bytes in [&b"q"[..], b"\x1b", b"\x03", b"xq", b"\x1b[Aq", b"\x1b\x1b"] {
            assert_eq!(meant(bytes), Press::End, "{bytes:?}");
        }
        // Arrows, function keys, Alt-q, a paste's beginning, letters beyond ASCII, a sequence that is cut off.
        for bytes in [&b"\x1b[A"[..], b"\x1bOq", b"\x1b[15~", b"\x1bq", b"\x1b[200~", "ä".as_bytes(), b"x", b"\x1b[1", b""] {
            assert_eq!(meant(bytes), Press::Other, "{bytes:?}");
        }
    }

    #[test]
    fn a_terminal_that_is_gone_is_an_end() {
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        let keys = Keys(ours);
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::Other, "nobody has pressed anything");
        rustix::io::write(&theirs, b"q").expect("there is room");
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End);
        drop(theirs);
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End);
    }
}

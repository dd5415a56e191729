//! Keys, as bytes of the terminal in raw mode.
//!
//! Read here and not by crossterm, which goes on reading for ever from a terminal that has been closed, deaf to signals.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// How long the rest of a key may be behind its first byte. Keys that have no character of their own come as an escape and what follows it, and the two may be read
/// apart, over a network say; an escape that stays alone is the key Esc.
const REST_OF_A_KEY: Duration = Duration::from_millis(100);
/// The longest sequence of one key that is waited for, in bytes.
const LONGEST: usize = 64;

/// The terminal's keys.
pub struct Keys {
    terminal: OwnedFd,
    /// The beginning of a key whose rest has not come.
    begun: RefCell<Vec<u8>>,
}

impl Keys {
    /// Those of the terminal at the input, or of the one that controls the process.
    ///
    /// # Errors
    /// When there is neither.
    pub fn open() -> io::Result<Keys> {
        let stdin = io::stdin();
        let fd = if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()? } else { File::open("/dev/tty")?.into() };
        Ok(Keys::of(fd))
    }

    fn of(terminal: OwnedFd) -> Keys {
        Keys { terminal, begun: RefCell::new(Vec::new()) }
    }

    /// Waits for a key, at most so long, or as long as the rest of one may take; a signal ends the wait.
    ///
    /// # Errors
    /// When the terminal cannot be waited for.
    pub fn pressed(&self, patience: Duration) -> io::Result<Press> {
        let mut begun = self.begun.borrow_mut();
        let alone = begun[..] == [ESCAPE];
        let patience = if alone { REST_OF_A_KEY } else { patience };
        let timeout = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if alone => return Ok(Press::End),
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Press::Other),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 256];
        match rustix::io::read(&self.terminal, &mut bytes) {
            // What reads as ended, or not at all, is no terminal any more.
            Ok(0) | Err(rustix::io::Errno::IO) => Ok(Press::End),
            Ok(n) => {
                begun.extend_from_slice(&bytes[..n]);
                let (press, rest) = meant(&begun);
                let rest = if rest.len() > LONGEST { Vec::new() } else { rest.to_vec() };
                *begun = rest;
                Ok(press)
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Press::Other),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Keys {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

const ESCAPE: u8 = 0x1b;
const CONTROL_C: u8 = 3;

/// What the keys mean that were pressed together, and the beginning of one whose rest has not come.
fn meant(bytes: &[u8]) -> (Press, &[u8]) {
    let mut rest = bytes;
    loop {
        rest = match rest {
            [] | [ESCAPE] | [ESCAPE, b'O'] => return (Press::Other, rest),
            [b'q' | CONTROL_C, ..] | [ESCAPE, ESCAPE, ..] => return (Press::End, &[]),
            // One byte after it, as programs ask for it.
            [ESCAPE, b'O', _, more @ ..] => more,
            [ESCAPE, b'[', sequence @ ..] => match sequence.iter().position(|byte| (0x40..=0x7e).contains(byte)) {
                Some(end) => &sequence[end + 1..],
                None => return (Press::Other, rest),
            },
            [ESCAPE, _, more @ ..] | [_, more @ ..] => more,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_keys_end_it_and_no_part_of_another_key_does() {
        for bytes in [&b"q"[..], b"\x03", b"xq", b"\x1b[Aq", b"\x1b\x1b"] {
            assert_eq!(meant(bytes).0, Press::End, "{bytes:?}");
        }
        // Arrows, function keys, Alt-q, a paste's beginning, letters beyond ASCII.
        for bytes in [&b"\x1b[A"[..], b"\x1bOq", b"\x1b[15~", b"\x1bq", b"\x1b[200~", "ä".as_bytes(), b"x", b""] {
            assert_eq!(meant(bytes), (Press::Other, &b""[..]), "{bytes:?}");
        }
        for (bytes, begun) in [(&b"x\x1b"[..], &b"\x1b"[..]), (b"\x1b[1", b"\x1b[1"), (b"\x1b[A\x1bO", b"\x1bO")] {
            assert_eq!(meant(bytes), (Press::Other, begun), "{bytes:?}");
        }
    }

    /// A terminal in name: what is written at the other end has been typed.
    fn keyboard() -> (Keys, OwnedFd) {
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        (Keys::of(ours), theirs)
    }

    fn type_in(keyboard: &OwnedFd, bytes: &[u8]) {
        assert_eq!(rustix::io::write(keyboard, bytes), Ok(bytes.len()), "there is room");
    }

    #[test]
    fn a_key_whose_bytes_come_apart_is_one_key() {
        for key in [&b"\x1b[A"[..], b"\x1bOq", b"\x1b[1;5q", b"\x1bq"] {
            let (keys, keyboard) = keyboard();
            for byte in key {
                type_in(&keyboard, &[*byte]);
                assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::Other, "{key:?}");
            }
            assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::Other, "{key:?} is over");
            type_in(&keyboard, b"q");
            assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End, "after {key:?}");
        }
    }

    #[test]
    fn an_escape_that_stays_alone_is_an_end() {
        let (keys, keyboard) = keyboard();
        type_in(&keyboard, b"\x1b");
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::Other, "more may come");
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End);
    }

    #[test]
    fn a_sequence_without_an_end_is_not_kept() {
        let (keys, keyboard) = keyboard();
        type_in(&keyboard, b"\x1b[");
        for _ in 0..10 {
            type_in(&keyboard, &[b'1'; 200]);
            assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::Other);
            assert!(keys.begun.borrow().len() <= LONGEST);
        }
        type_in(&keyboard, b"q");
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End);
    }

    #[test]
    fn a_terminal_that_is_gone_is_an_end() {
        let (keys, keyboard) = keyboard();
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::Other, "nobody has pressed anything");
        type_in(&keyboard, b"q");
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End);
        drop(keyboard);
        assert_eq!(keys.pressed(Duration::ZERO).expect("readable"), Press::End);
    }
}

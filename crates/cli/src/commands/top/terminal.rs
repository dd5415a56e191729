//! The terminal that is drawn on: written to as far as it takes anything, so that a key or a signal ends the command also where nobody reads what it draws.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use martlet_cluster::interrupt::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::keys::{Keys, Press};

/// Signals are looked for so often.
const GLANCE: Duration = Duration::from_millis(100);

/// Opens the terminal at standard output anew: a description of its own can be made not to block without doing so to others' that share it.
///
/// # Errors
/// When it cannot be opened, nor the one that controls this process.
pub fn open() -> io::Result<File> {
    let nonblocking = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let open = |path| OpenOptions::new().write(true).custom_flags(nonblocking).open(path);
    open("/proc/self/fd/1").or_else(|_| open("/dev/tty"))
}

/// Waits until the terminal takes something, or a key is pressed, at most so long.
fn wait(terminal: &File, keys: Option<&Keys>, patience: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    let mut fds = vec![PollFd::new(terminal, PollFlags::OUT)];
    fds.extend(keys.map(|keys| PollFd::new(keys, PollFlags::IN)));
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes as much as the terminal takes within that time: for what puts it back, which must not keep the process from ending.
pub fn write_within(terminal: &File, mut bytes: &[u8], patience: Duration) {
    let until = Instant::now() + patience;
    while !bytes.is_empty() {
        let mut terminal = terminal;
        match terminal.write(bytes) {
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || wait(terminal, None, left).is_err() {
                    return;
                }
            }
            // A terminal that is gone need not be put back.
            Err(_) => return,
        }
    }
}

/// Why nothing more is written.
#[derive(Debug, Default)]
pub struct Ended(Cell<bool>);

impl Ended {
    /// Whether a key has ended the command while it was writing.
    pub fn by_key(&self) -> bool {
        self.0.get()
    }
}

/// Writes to the terminal, as long as that takes, and gives up once the user wants to end.
pub struct Patient {
    /// The terminal, opened not to block.
    pub terminal: File,
    /// What may end it.
    pub keys: Rc<Keys>,
    /// What may end it too.
    pub interrupt: Interrupt,
    /// That it was ended by a key.
    pub ended: Rc<Ended>,
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            if self.interrupt.is_raised() || self.ended.by_key() {
                return Err(io::Error::other("told to end"));
            }
            match self.terminal.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
            wait(&self.terminal, Some(&self.keys), GLANCE)?;
            if self.keys.pressed(Duration::ZERO)? == Press::End {
                self.ended.0.set(true);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

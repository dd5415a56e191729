//! Waiting for several descriptors and deadlines at once.

use std::io;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::time::Timespec;

use crate::host::errand;

/// What to wait for: descriptors, each with the source that it belongs to, and deadlines.
pub(crate) struct Watch<'a, S> {
    sources: Vec<S>,
    fds: Vec<PollFd<'a>>,
    due: Option<Instant>,
}

impl<'a, S> Watch<'a, S> {
    pub(crate) fn new() -> Watch<'a, S> {
        Watch { sources: Vec::new(), fds: Vec::new(), due: None }
    }

    /// Waits for a descriptor too.
    pub(crate) fn add(&mut self, source: S, fd: PollFd<'a>) {
        self.sources.push(source);
        self.fds.push(fd);
    }

    /// Waits no longer than until `when`.
    pub(crate) fn at_latest(&mut self, when: Instant) {
        self.due = Some(self.due.map_or(when, |due| due.min(when)));
    }

    /// Sleeps until a descriptor is ready, a deadline has passed, or a signal has arrived. Returns the sources that are ready. Starts this process's
    /// [errands](crate::host::errand) when they are due.
    pub(crate) fn wait(mut self) -> io::Result<Vec<S>> {
        if let Some(due) = errand::next_due() {
            self.at_latest(due);
        }
        let timeout = self.due.map(|when| {
            let left = when.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match rustix::event::poll(&mut self.fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        errand::attend(Instant::now());
        Ok(self.sources.into_iter().zip(&self.fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(source, _)| source).collect())
    }
}

//! A connected program, as the desk knows it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use martlet_fabric::host::page::Page;
use martlet_protocol::basics::layout::life::{OWNER_DIED, TID_MASK};

use super::super::Seat;
use crate::words::death_word;

#[derive(Debug)]
pub(super) struct Program {
    pub(super) seat: Arc<Seat>,
    /// Whether its end of the socket is still open.
    pub(super) is_connected: bool,
    pub(super) pidfd: Arc<OwnedFd>,
    pub(super) pid: u32,
    /// Whether its threads have the same numbers for themselves as here: it is in our PID namespace, and in none below.
    pub(super) has_our_numbers: bool,
    pub(super) uid: u32,
    pub(super) name: String,
    /// The page that came with its Hello. Before that, it may ask nothing.
    pub(super) page: Option<Page>,
    /// The words on its page that threads hold.
    pub(super) words: BTreeSet<u16>,
    /// The slot of the life that it has joined as.
    pub(super) life: Option<u16>,
    /// The slots of the lives that it monitors.
    pub(super) monitors: BTreeSet<u16>,
}

impl Program {
    /// Whether none of the threads whose words it holds belongs to its process any more: since an exec, another program runs there.
    ///
    /// The kernel marks the words of all threads that an exec ends. But the thread that calls exec takes over the number of the process before its words are
    /// walked. Where that is not its number already, the words seem to belong to another thread, and are left as they were.
    pub(super) fn is_another(&self) -> bool {
        let Some(page) = &self.page else { return false };
        if !self.has_our_numbers {
            return false;
        }
        let values = self.words.iter().map(|word| page.load(death_word(*word)));
        let held: Vec<u64> = values.filter(|value| value & (TID_MASK | OWNER_DIED) != 0).collect();
        let is_gone = |value: &u64| {
            let thread = format!("/proc/{}/task/{}", self.pid, value & TID_MASK);
            value & OWNER_DIED != 0 || std::fs::metadata(thread).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        !held.is_empty() && held.iter().all(is_gone)
    }
}

//! Marks: what small programs inside the kernel note about threads that end, in memory that no process can write. They do so microseconds before the
//! kernel's own death words say it.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | reading marks |
//! | `marker` | making the kernel set marks, which takes CAP_BPF and CAP_PERFMON |
//! | `program` | the programs |
//! | `bpf` | bpf(2) |
//!
//! # What a mark says
//! A mark says that a thread with this number has run its last instruction of its program; the thread meant is the present one, or one that had the
//! number before. Whatever it stored is visible to anyone who sees the mark. A mark can be missing for ever: the kernel skips a program that would
//! interrupt itself, and a later thread may have been marked in the same place. So nothing waits for a mark, and the absence of a mark means nothing.
//!
//! # Numbers are reused
//! Marks are numbered in their order, by a counter beside them. A reader that has found a thread alive reads the counter afterwards ([`Marks::now`]),
//! and heeds only later marks ([`Marks::has_died`]).
//!
//! Why this is right: an earlier thread with the same number was marked, if at all, before it released the number. That was before the present thread
//! got the number and could be found alive, and so before the reader read the counter. And a thread with that number that is marked later is either
//! the one that was found alive, or one that could get the number only after that one's end.
//!
//! The numbers are those of the first PID namespace: marks say nothing about a process that sees itself under another number.

mod bpf;
mod marker;
mod program;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use self::marker::{Marker, Wish, drop_capabilities};
use super::memory::{Access, Area, Map, page};
use crate::primitive::{Ordering, fence};

/// Where in the array things are, in words: the counter, a table of threads, one of processes.
const ORDER: usize = 0;
const THREADS: usize = 8;
const PROCESSES: usize = THREADS + TABLE;
const WORDS: usize = PROCESSES + TABLE;
/// Places of a table. The low bits of a number are its place; the bits above them are in the mark.
const TABLE: usize = 1 << 16;
/// Numbers have 22 bits at most (PID_MAX_LIMIT).
const HIGH_BITS: u32 = 6;
const HIGH_MASK: u64 = (1 << HIGH_BITS) - 1;
/// Places of the table of processes for which the ring is to become readable. If two processes share a place, there is at worst one look too many.
const WANTED: usize = 1 << 12;
/// The high half counts those that want it for the end of a process, the low half those that want it for any reason.
const END_SHIFT: u32 = 32;

/// Why there are no marks.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The kernel refuses.
    #[error("the kernel refuses {what}: {error}{}", if error.kind() == io::ErrorKind::PermissionDenied { "; it takes CAP_BPF and CAP_PERFMON" } else { "" })]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// Programs in the kernel see other numbers than this process does.
    #[error("this process is in a PID namespace of its own, and marks bear the numbers of the first one")]
    Namespace,
}

impl Refused {
    fn system(what: &'static str, error: io::Error) -> Refused {
        Refused::System { what, error }
    }
}

/// A moment in the order of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// The mark of a number at a place in the order, which counts from 1.
fn mark_of(number: u32, order: u64) -> u64 {
    order << HIGH_BITS | u64::from(number) >> TABLE.trailing_zeros()
}

/// The marks of this host, read-only. All clones are the same marks.
#[derive(Clone, Debug)]
pub struct Marks {
    fd: Arc<OwnedFd>,
    area: Area,
}

fn invalid(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

impl Marks {
    /// Maps marks that another process of this host has made ([`Marker`]) and handed out.
    ///
    /// # Errors
    /// When it is not an array of marks, or is one that processes may write: `InvalidData`, with the reason. Also when the system refuses to map it.
    pub fn open(fd: OwnedFd) -> io::Result<Marks> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        for (field, wanted) in [("map_type", bpf::MAP_TYPE_ARRAY), ("value_size", WORDS as u32 * 8), ("max_entries", 1), ("frozen", 1)] {
            let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":")).map(str::trim);
            if found != Some(wanted.to_string().as_str()) {
                return Err(invalid(format_args!("these are no marks: {field} is {}, not {wanted}", found.unwrap_or("nothing"))));
            }
        }
        Marks::map(fd)
    }

    fn map(fd: OwnedFd) -> io::Result<Marks> {
        let map = Map::new(&fd, 0, (WORDS * 8).next_multiple_of(page()), Access::Read, true)?;
        Ok(Marks { fd: Arc::new(fd), area: Area::new(&map, 0, WORDS * 8) })
    }

    fn load(&self, word: usize) -> u64 {
        // On a read-only mapping, a relaxed load followed by a fence serves as an acquire load.
        let value = self.area.memory()[word].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// The moment after all marks so far. Ask for it only after a thread has been found alive by a load that is at least acquire.
    pub fn now(&self) -> Moment {
        Moment(self.load(ORDER) + 1)
    }

    fn is_marked(&self, table: usize, number: u32, since: Moment) -> bool {
        let mark = self.load(table + number as usize % TABLE);
        mark & HIGH_MASK == mark_of(number, 0) && mark >> HIGH_BITS >= since.0
    }

    /// Whether the thread that was alive and had this number before that moment executes no further instruction of its program.
    pub fn has_died(&self, thread: u32, since: Moment) -> bool {
        self.is_marked(THREADS, thread, since)
    }

    /// Whether the process that was alive and had this number before that moment has ended, with all its threads. An exec is not an end.
    pub fn has_ended(&self, process: u32, since: Moment) -> bool {
        self.is_marked(PROCESSES, process, since)
    }
}

impl AsFd for Marks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

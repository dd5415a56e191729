//! Marks: what small programs inside the kernel note of threads that end, microseconds before the kernel's own words say so, in memory that no process can write.
//!
//! | file | what stands there |
//! |---|---|
//! | `mod` | reading marks |
//! | `marker` | having the kernel make them, which takes CAP_BPF and CAP_PERFMON |
//! | `program` | the programs |
//! | `bpf` | bpf(2) |
//!
//! # What a mark says
//! That what a thread of that number ran is over: this thread, or another one that had the number before, executes no further instruction of its program, and what it has stored
//! is seen by all who see the mark. A mark can be missing for ever: the kernel skips a program that would interrupt itself, and a later thread may have been marked in the same
//! place. So nothing waits for one, and that there is none means nothing.
//!
//! # Numbers are used again
//! Marks are numbered in their order, by a counter beside them. A reader that has found a thread alive looks at the counter afterwards ([`Marks::now`]), and lets only such marks count
//! as are later ([`Marks::has_died`]). Another thread that had the number earlier has been marked, as far as it has been, before it gave the number away; so before the
//! present one got it and could be found alive; so before the reader looked at the counter. And a thread of that number which is marked later is the one that was found alive, or had to wait
//! for its end to get the number.
//!
//! Numbers are those of the first PID namespace: marks say nothing of a process that has another number for itself.

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

/// Words of the array: the counter, a table of threads, one of processes.
const ORDER: usize = 0;
const THREADS: usize = 8;
const PROCESSES: usize = THREADS + TABLE;
const WORDS: usize = PROCESSES + TABLE;
/// Places of a table: the low bits of a number say which; the bits above them are in the mark.
const TABLE: usize = 1 << 16;
/// Numbers have 22 bits at most (PID_MAX_LIMIT).
const HIGH_BITS: u32 = 6;
const HIGH_MASK: u64 = (1 << HIGH_BITS) - 1;
/// Places of the table of processes for which the ring is to become readable. Two that share one cause a look too many.
const WANTED: usize = 1 << 12;
/// In the high half, how many want it for the end of a process; in the low one for any reason.
const END_SHIFT: u32 = 32;

/// Why there are no marks.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The kernel says no.
    #[error("the kernel refuses {what}: {error}{}", if error.kind() == io::ErrorKind::PermissionDenied { "; it takes CAP_BPF and CAP_PERFMON" } else { "" })]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The numbers that programs see are not those that this process sees.
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

/// The mark of a number at a place in the order, from 1 on.
fn mark_of(number: u32, order: u64) -> u64 {
    order << HIGH_BITS | u64::from(number) >> TABLE.trailing_zeros()
}

/// The marks of this host, for reading. All clones are one.
#[derive(Clone, Debug)]
pub struct Marks {
    fd: Arc<OwnedFd>,
    area: Area,
}

fn invalid(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

impl Marks {
    /// Maps what a process of this host has handed out, which made it ([`Marker`]).
    ///
    /// # Errors
    /// When it is no array of marks, or one that processes may write: `InvalidData`, with the reason. And when the system refuses to map it.
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
        // On a read-only mapping a relaxed load and a fence behind it stand for a load with acquire.
        let value = self.area.memory()[word].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// The moment after all marks so far. To be asked for once a thread has been found alive, by a load with acquire at least.
    pub fn now(&self) -> Moment {
        Moment(self.load(ORDER) + 1)
    }

    fn is_marked(&self, table: usize, number: u32, since: Moment) -> bool {
        let mark = self.load(table + number as usize % TABLE);
        mark & HIGH_MASK == mark_of(number, 0) && mark >> HIGH_BITS >= since.0
    }

    /// Whether what a thread ran is over that was alive, and had this number, before that moment.
    pub fn has_died(&self, thread: u32, since: Moment) -> bool {
        self.is_marked(THREADS, thread, since)
    }

    /// Whether a process has ended, with all its threads, that had not, and had this number, before that moment. An exec is no end.
    pub fn has_ended(&self, process: u32, since: Moment) -> bool {
        self.is_marked(PROCESSES, process, since)
    }
}

impl AsFd for Marks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

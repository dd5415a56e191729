//! Makes the kernel set marks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::program::{self, Maps};
use super::{END_SHIFT, Marks, Refused, WANTED, WORDS, bpf};
use crate::host::memory::{Access, Area, Map, page};
use crate::primitive::Ordering;

/// The PID namespace that the kernel begins with (PROC_PID_INIT_INO).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// The reasons for which [`Marker::bell`] can ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A thread of the process dies by a signal that makes it dump core, or by another signal that is not SIGKILL, or the process executes another
    /// program. The kernel marks its own death words only after the dump has been written.
    Dump,
    /// The process ends.
    End,
}

impl Wish {
    fn unit(self) -> u64 {
        match self {
            Wish::Dump => 1,
            Wish::End => 1 << END_SHIFT,
        }
    }
}

/// The programs, which run as long as this or a copy of its descriptors is open.
#[derive(Debug)]
pub struct Marker {
    marks: Marks,
    links: Vec<OwnedFd>,
    marks_ends: bool,
    wanted: Area,
    ring: OwnedFd,
    consumed: Area,
    produced: Area,
}

fn mapped(fd: &OwnedFd, offset: usize, bytes: usize, access: Access) -> Result<Area, Refused> {
    let map = Map::new(fd, offset, bytes.next_multiple_of(page()), access, true);
    map.map(|map| Area::new(&map, 0, bytes)).map_err(|error| Refused::system("to map what programs share with us", error))
}

impl Marker {
    /// Has the kernel run the programs.
    ///
    /// # Errors
    /// When the kernel does not let this process do so.
    pub fn load() -> Result<Marker, Refused> {
        if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() != FIRST_NAMESPACE) {
            return Err(Refused::Namespace);
        }
        let marks = bpf::array(WORDS as u32 * 8)?;
        bpf::freeze(&marks)?;
        let (wanted, ring) = (bpf::array(WANTED as u32 * 8)?, bpf::ring(page() as u32)?);
        let maps = Maps::new(&marks, &wanted, &ring);
        let deliver = bpf::load("martlet_signal", &program::signal_deliver(maps))?;
        let exec = bpf::load("martlet_exec", &program::sched_process_exec(maps))?;
        let exit = |says_whether_last| {
            let exit = bpf::load("martlet_exit", &program::sched_process_exit(maps, says_whether_last))?;
            bpf::attach(c"sched_process_exit", exit)
        };
        // The kernel does not attach a program that takes more arguments than there are.
        let (exit, marks_ends) = match exit(true) {
            Ok(exit) => (exit, true),
            Err(Refused::System { error, .. }) if error.kind() == std::io::ErrorKind::InvalidInput => (exit(false)?, false),
            Err(refused) => return Err(refused),
        };
        let links = vec![bpf::attach(c"signal_deliver", deliver)?, exit, bpf::attach(c"sched_process_exec", exec)?];
        let marks = Marks::map(marks).map_err(|error| Refused::system("to map the marks", error))?;
        let (consumed, produced) = (mapped(&ring, 0, 8, Access::ReadWrite)?, mapped(&ring, page(), 8, Access::Read)?);
        Ok(Marker { marks, links, marks_ends, wanted: mapped(&wanted, 0, WANTED * 8, Access::ReadWrite)?, ring, consumed, produced })
    }

    /// The marks.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Whether the ends of whole processes are marked, too. They are from Linux 6.16 on.
    pub fn marks_ends(&self) -> bool {
        self.marks_ends
    }

    /// The descriptors that keep the programs running, for processes that need marks even after this one has died.
    pub fn links(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().map(AsFd::as_fd)
    }

    /// Makes the bell ring for a process. Each wish is [taken back](Marker::unwish) once.
    pub fn wish(&self, process: u32, wish: Wish) {
        self.wanted.memory()[process as usize % WANTED].fetch_add(wish.unit(), Ordering::Relaxed);
    }

    /// Takes a wish back.
    pub fn unwish(&self, process: u32, wish: Wish) {
        self.wanted.memory()[process as usize % WANTED].fetch_sub(wish.unit(), Ordering::Relaxed);
    }

    /// A descriptor that becomes readable when marks that were wished for have been made, or sometimes others.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Clears what has made the bell readable. Marks that are made from now on ring again.
    pub fn hush(&self) {
        // The ring's contents are not read: everyone who hears the bell looks at the marks.
        let produced = self.produced.memory()[0].load(Ordering::Relaxed);
        self.consumed.memory()[0].store(produced, Ordering::SeqCst);
    }
}

/// Gives up the capabilities that it takes to make the kernel set marks, for ever, on this thread and those that it starts from now on.
///
/// # Errors
/// When the system refuses, which it has no reason to do.
pub fn drop_capabilities() -> std::io::Result<()> {
    let mut own = capabilities(None)?;
    for set in [&mut own.effective, &mut own.permitted, &mut own.inheritable] {
        set.remove(CapabilitySet::BPF | CapabilitySet::PERFMON);
    }
    Ok(set_capabilities(None, own)?)
}

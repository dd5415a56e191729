//! Memory that the card may touch.

use std::io;
use std::sync::Arc;

use super::device::Device;
use super::ffi;
use crate::host::memory::{self, Access, Area, HUGE_PAGE, Map, page};

/// Which protection domain a registration belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plane {
    /// Public memory, and reading everywhere.
    Background,
    /// Writing into lanes.
    Replication,
}

impl Plane {
    pub(super) fn domain(self, device: &Device) -> *mut ffi::Opaque {
        match self {
            Plane::Background => device.background,
            Plane::Replication => device.lanes,
        }
    }
}

/// A stretch of locked memory, initially zeroed.
#[derive(Debug)]
pub(super) struct Block {
    map: Arc<Map>,
    bytes: usize,
}

impl Block {
    /// Makes a block of at least `bytes`, or of a page if that is 0.
    pub(super) fn new(bytes: usize) -> io::Result<Block> {
        let bytes = bytes.max(1).next_multiple_of(page());
        let fd = memory::create("martlet-verbs", bytes)?;
        Ok(Block { map: Map::new(&fd, 0, bytes, Access::ReadWrite, false)?, bytes })
    }

    /// The same for regions. With `huge_pages`, blocks of at least one huge page are in huge pages.
    ///
    /// # Errors
    /// Usually that there are not enough huge pages; the error says what to set.
    pub(super) fn of_regions(bytes: usize, huge_pages: bool) -> io::Result<Block> {
        if !huge_pages || bytes < HUGE_PAGE {
            return Block::new(bytes);
        }
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let mapped = memory::create_huge("martlet-verbs", bytes).and_then(|fd| Map::new(&fd, 0, bytes, Access::ReadWrite, false));
        let map = mapped.map_err(|error| {
            let (count, kind) = (bytes / HUGE_PAGE, error.kind());
            let advice = "raise it with `sysctl vm.nr_hugepages=N`, or leave `huge_pages` out of the configuration";
            io::Error::new(kind, format!("{count} huge pages of {HUGE_PAGE} bytes are not to be had ({error}); {}: {advice}", pool()))
        })?;
        Ok(Block { map, bytes })
    }

    /// Words of it.
    pub(super) fn area(&self, offset: usize, bytes: usize) -> Area {
        Area::new(&self.map, offset, bytes)
    }

    fn whole(&self) -> Area {
        self.area(0, self.bytes)
    }
}

/// A registration, which ends when it is dropped. As long as it exists, the memory's pages are locked.
#[derive(Debug)]
pub(super) struct Registered {
    mr: *mut ffi::Mr,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    /// The address by which a peer names the first byte.
    pub(super) address: u64,
    device: Arc<Device>,
    _memory: Area,
}

// SAFETY: a registration belongs to the process; libibverbs accepts it from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; it never changes once made.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers a whole block with these rights.
    ///
    /// # Errors
    /// Usually that of the limit on locked memory, which the error then names.
    pub(super) fn new(device: &Arc<Device>, plane: Plane, block: &Block, rights: i32) -> io::Result<Registered> {
        let memory = block.whole();
        let start = memory.memory().as_ptr().cast_mut().cast();
        // SAFETY: the memory is mapped, and stays mapped until the registration is gone, since it is kept below. Others are meant to change it
        // meanwhile, and all our code accesses it as atomics.
        let mr = unsafe { (device.library.reg_mr)(plane.domain(device), start, block.bytes, rights) };
        if mr.is_null() {
            return Err(describe(io::Error::last_os_error(), block.bytes));
        }
        // SAFETY: not null, so it is a registration, whose keys do not change.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(Registered { mr, lkey, rkey, address: start as u64, device: device.clone(), _memory: memory })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: made by `reg_mr`, and deregistered once.
        let status = unsafe { (self.device.library.dereg_mr)(self.mr) };
        crate::invariant!(status == 0, "a registration cannot be given back: {}", io::Error::from_raw_os_error(status));
    }
}

/// How many huge pages the system has set aside.
fn pool() -> String {
    let count = |what: &str| std::fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{what}", HUGE_PAGE / 1024));
    match (count("nr_hugepages"), count("free_hugepages")) {
        (Ok(all), Ok(free)) => format!("the system keeps {}, of which {} are free", all.trim(), free.trim()),
        _ => "the system keeps none of this size".into(),
    }
}

/// If the limit on locked memory is the cause, adds what the limit is.
fn describe(error: io::Error, bytes: usize) -> io::Error {
    if !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM)) {
        return error;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |limit| format!("{limit} bytes"));
    io::Error::new(
        error.kind(),
        format!(
            "{bytes} bytes cannot be locked ({error}); locked memory is limited to {limit} (RLIMIT_MEMLOCK): raise it with `ulimit -l`, \
             LimitMEMLOCK= of the service, or CAP_IPC_LOCK"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_locked_memory_is_named() {
        let text = describe(io::Error::from_raw_os_error(libc::ENOMEM), 12345).to_string();
        assert!(text.contains("12345 bytes cannot be locked") && text.contains("RLIMIT_MEMLOCK"), "{text}");
        let other = describe(io::Error::from_raw_os_error(libc::EINVAL), 1);
        assert_eq!(other.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn blocks_are_whole_zeroed_pages() {
        let block = Block::new(10).expect("memory");
        assert_eq!(block.bytes, page());
        assert!(block.whole().memory().iter().all(|word| word.load(crate::primitive::Ordering::Relaxed) == 0));
    }

    #[test]
    fn regions_are_in_huge_pages_or_it_is_said_what_to_set() {
        let small = Block::of_regions(10, true).expect("a page is no matter");
        assert_eq!(small.bytes, page());
        match Block::of_regions(HUGE_PAGE + 8, true) {
            Ok(block) => {
                assert_eq!(block.bytes, 2 * HUGE_PAGE);
                assert!(block.area(HUGE_PAGE, 8).memory().iter().all(|word| word.load(crate::primitive::Ordering::Relaxed) == 0));
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("2 huge pages of 2097152 bytes are not to be had") && text.contains("vm.nr_hugepages"), "{text}");
            }
        }
    }
}

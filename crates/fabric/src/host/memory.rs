//! Memory that disappears with its last user: sealed memfds and their mappings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::contract::{Memory, RegionName};
use crate::host::descriptors::open;
use crate::invariant;
use crate::primitive::AtomicU64;
use crate::pulse::{OwnWord, Pulse};

/// The unit in which memory is mapped.
pub(crate) fn page() -> usize {
    rustix::param::page_size()
}

/// The seals that keep a peer from taking memory away from us while we use it (SIGBUS). The last one makes the others permanent.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A new, zeroed memfd of `len` bytes that nobody can shrink or grow.
pub(crate) fn create(name: &str, len: usize) -> io::Result<OwnedFd> {
    create_of(name, len, MemfdFlags::empty())
}

/// The same, mapped here as a whole. From then on no process can map it writable, through any descriptor: only its maker can write it.
pub(crate) fn create_owned(name: &str, len: usize, prefault: bool) -> io::Result<(OwnedFd, Arc<Map>)> {
    let fd = create_unsealed(name, len, MemfdFlags::empty())?;
    let map = Map::new(&fd, 0, len, Access::ReadWrite, prefault)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS.union(SealFlags::FUTURE_WRITE))?;
    Ok((fd, map))
}

/// Bytes of a huge page, of the size that every x86-64 has.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The same in huge pages; `len` is a multiple of [`HUGE_PAGE`]. Whether there are enough huge pages shows only when it is mapped.
pub(crate) fn create_huge(name: &str, len: usize) -> io::Result<OwnedFd> {
    create_of(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
}

fn create_of(name: &str, len: usize, kind: MemfdFlags) -> io::Result<OwnedFd> {
    let fd = create_unsealed(name, len, kind)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

fn create_unsealed(name: &str, len: usize, kind: MemfdFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
    let fd = open(|| match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // A kernel before 6.3 does not know the flag.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    })?;
    crate::limits::check_file_size(len as u64)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

/// The same memory, opened read-only: it cannot be mapped writable through this descriptor.
///
/// It guards against mistakes, not against malice: a process of the same user can reopen it or trace us.
pub(crate) fn read_only(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(|| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
}

/// Checks a descriptor that came from a peer: it must be memory of exactly this length that can neither shrink nor grow.
pub(crate) fn check(fd: &OwnedFd, what: &str, len: usize) -> Result<(), String> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| format!("its {what} memory is no memfd ({e})"))?;
    if !seals.contains(SEALS) {
        return Err(format!("its {what} memory is not sealed against shrinking and growing"));
    }
    let stat = rustix::fs::fstat(fd).map_err(|e| format!("its {what} memory cannot be examined ({e})"))?;
    if u64::try_from(stat.st_size) != Ok(len as u64) {
        return Err(format!("its {what} memory has {} bytes, {len} were agreed", stat.st_size));
    }
    Ok(())
}

/// How a mapping may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// A shared mapping; unmapped when dropped. Child processes do not inherit it: what a child stored there would be taken for this process's, and as
/// long as the child lived, the memory of a dead process would not be given back.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and its contents are accessed only as atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes of `fd` from `offset` on, both multiples of a page. With `prefault`, later accesses take no page fault.
    pub(crate) fn new(fd: impl AsFd, offset: usize, len: usize, access: Access, prefault: bool) -> io::Result<Arc<Map>> {
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = if prefault { MapFlags::SHARED | MapFlags::POPULATE } else { MapFlags::SHARED };
        // SAFETY: the kernel chooses a free range, so that no existing mapping is touched.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset as u64)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
        let map = Map { base, len };
        // SAFETY: the range is the mapping that has just been made; its contents and its mapping here do not change.
        unsafe { rustix::mm::madvise(map.base.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontFork)? };
        Ok(Arc::new(map))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is ours alone, and every `Area` in it holds this mapping by an `Arc`, so nothing points into it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        invariant!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

/// A range of words in a mapping, which the range keeps alive.
///
/// When the mapping is read-only, only relaxed loads are allowed (an acquire fence may follow).
#[derive(Clone, Debug)]
pub(crate) struct Area {
    words: NonNull<AtomicU64>,
    len: usize,
    _map: Arc<Map>,
}

// SAFETY: it is a pointer to atomics in memory that `_map` keeps mapped; any thread may use it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// The words at `offset..offset + len` bytes of `map`.
    pub(crate) fn new(map: &Arc<Map>, offset: usize, len: usize) -> Area {
        invariant!(offset.is_multiple_of(8) && len.is_multiple_of(8), "area {offset}+{len} is not made of words");
        invariant!(offset.checked_add(len).is_some_and(|end| end <= map.len), "area {offset}+{len} in a mapping of {}", map.len);
        // SAFETY: just checked to lie within the mapping.
        let words = unsafe { map.base.add(offset) }.cast::<AtomicU64>();
        Area { words, len: len / 8, _map: map.clone() }
    }

    /// The words. On a read-only mapping they may only be loaded, and only relaxed.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        // SAFETY: `words` is aligned (mappings to a page, offsets to 8) and points to `len` words in a mapping that lives as long as `self`.
        // Shrinking is sealed off, so the pages stay. Any bits are a valid AtomicU64, and all code, in this process and in others, accesses them as
        // atomics.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.len * 8
    }
}

/// A public region of this process, for any of its threads, for as long as they like: it stays mapped.
#[derive(Clone, Debug)]
pub struct OwnRegion(pub(super) Area);

impl OwnRegion {
    pub(crate) fn new(area: &Area) -> OwnRegion {
        OwnRegion(area.clone())
    }

    /// Its words.
    pub fn memory(&self) -> &Memory {
        self.0.memory()
    }

    /// Whether the two are the same region.
    pub fn is(&self, other: &OwnRegion) -> bool {
        self.0.words == other.0.words
    }
}

/// One word of a region of our own.
#[derive(Debug)]
struct AreaWord {
    area: Area,
    at: usize,
}

/// A pulse that beats in these words of our regions; `area` finds a region by its name.
pub(crate) fn pulse<'a>(words: &[(RegionName, usize)], area: impl Fn(RegionName) -> Option<&'a Area>) -> Pulse {
    let word = |&(name, at): &(RegionName, usize)| -> Box<dyn OwnWord> {
        let area = area(name).filter(|area| at < area.len);
        invariant!(area.is_some(), "a pulse in word {at} of region {}, which this process does not have", name.0);
        Box::new(AreaWord { area: area.expect("just checked").clone(), at })
    };
    Pulse::new(words.iter().map(word).collect())
}

impl OwnWord for AreaWord {
    fn word(&self) -> &AtomicU64 {
        &self.area.memory()[self.at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn memory_cannot_change_its_size() {
        let fd = create("martlet-test", 8192).expect("memfd");
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert!(rustix::fs::ftruncate(&fd, 16384).is_err());
        assert_eq!(check(&fd, "test", 8192), Ok(()));
        let wrong = check(&fd, "test", 4096).expect_err("size");
        assert!(wrong.contains("8192") && wrong.contains("4096"), "{wrong}");
    }

    #[test]
    fn memory_of_its_maker_s_alone_cannot_be_mapped_writable() {
        let (fd, map) = create_owned("martlet-test", 4096, true).expect("memfd");
        assert_eq!(check(&fd, "test", 4096), Ok(()));
        let reopened = rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::RDWR, Mode::empty()).expect("by its own user");
        for fd in [&fd, &reopened] {
            assert_eq!(Map::new(fd, 0, 4096, Access::ReadWrite, false).expect_err("sealed").raw_os_error(), Some(libc::EPERM));
            assert!(rustix::io::pwrite(fd, &[1], 0).is_err());
        }
        let theirs = Map::new(&fd, 0, 4096, Access::Read, false).expect("readable");
        // SAFETY: it asks for another protection of a mapping; even if that were granted, nothing would be written.
        assert_ne!(unsafe { libc::mprotect(theirs.base.as_ptr().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        Area::new(&map, 8, 8).memory()[0].store(7, Ordering::Release);
        assert_eq!(Area::new(&theirs, 8, 8).memory()[0].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let fd = rustix::fs::memfd_create("martlet-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&fd, 4096).expect("size");
        assert!(check(&fd, "test", 4096).expect_err("seals").contains("not sealed"));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        assert!(check(&socket.into(), "test", 4096).expect_err("kind").contains("no memfd"));
    }

    #[test]
    fn a_child_does_not_have_the_memory() {
        let fd = create("martlet-test", 4096).expect("memfd");
        let map = Map::new(&fd, 0, 4096, Access::ReadWrite, false).expect("mapped");
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let (_, ours) = maps.split_once(&format!("{:x}-", map.base.addr())).expect("it is mapped");
        let flags = ours.lines().find_map(|line| line.strip_prefix("VmFlags:")).expect("flags");
        // "dc": do not copy the area on fork.
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }

    #[test]
    fn a_read_only_descriptor_maps_for_reading_only() {
        let fd = create("martlet-test", 4096).expect("memfd");
        let reader = read_only(&fd).expect("reopened");
        assert!(Map::new(&reader, 0, 4096, Access::ReadWrite, false).is_err());
        let theirs = Area::new(&Map::new(&reader, 0, 4096, Access::Read, false).expect("readable"), 0, 4096);
        let ours = Area::new(&Map::new(&fd, 0, 4096, Access::ReadWrite, true).expect("writable"), 8, 8);
        ours.memory()[0].store(7, Ordering::Release);
        assert_eq!(theirs.memory()[1].load(Ordering::Relaxed), 7);
        assert_eq!(check(&reader, "test", 4096), Ok(()), "a read-only descriptor shows its seals");
    }
}

//! What a hypervisor tells its guest about time, in a page of memory (`include/uapi/linux/vmclock-abi.h`, Linux 6.13).
//!
//! When the virtual machine was migrated, or started from a snapshot, a word there changes to a value that it has never had. The hypervisor writes it before
//! the guest runs again, so a process that looks at it after reading its clock knows whether that reading is still valid.

use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The device maps exactly one page.
const PAGE_BYTES: usize = 4096;
const MAGIC: u32 = u32::from_le_bytes(*b"VCLK");
const VERSION: u16 = 1;
/// The page is at least as long as this: up to the end of the marker.
const LEAST_BYTES: u32 = 24;

/// The beginning of the page.
#[repr(C)]
struct Page {
    magic: AtomicU32,
    size: AtomicU32,
    /// The version is in the low half.
    version: AtomicU32,
    updates: AtomicU32,
    marker: AtomicU64,
}

/// The page, and the marker's last value.
#[derive(Debug)]
pub(super) struct VmClock {
    page: NonNull<Page>,
    marker: u64,
}

// SAFETY: the pointer is to a mapping that only this value unmaps, and that is read through atomics only.
unsafe impl Send for VmClock {}

impl VmClock {
    /// Maps the device.
    ///
    /// # Errors
    /// When there is no such device, it may not be read, it cannot be mapped, or it holds something else.
    pub fn open(device: &Path) -> io::Result<VmClock> {
        let file = File::open(device)?;
        let flags = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice, of which nothing else in this process knows.
        let mapped = unsafe { mmap(std::ptr::null_mut(), PAGE_BYTES, flags.0, flags.1, &file, 0) }?;
        let page = NonNull::new(mapped.cast::<Page>()).ok_or_else(|| io::Error::other("it was mapped at address 0"))?;
        let mut clock = VmClock { page, marker: 0 };
        let this = clock.page();
        let (magic, size) = (u32::from_le(this.magic.load(Ordering::Relaxed)), u32::from_le(this.size.load(Ordering::Relaxed)));
        let version = u32::from_le(this.version.load(Ordering::Relaxed)) as u16;
        if magic != MAGIC || size < LEAST_BYTES || version != VERSION {
            return Err(io::Error::other(format!(
                "{} holds no clock of version {VERSION}: it begins with {magic:#x}, says that it has {size} bytes, and version {version}",
                device.display()
            )));
        }
        clock.marker = clock.read();
        Ok(clock)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is a whole page, which a `Page` fits into, aligned to one, and stays until this value is dropped. The hypervisor may write
        // there at any time, so all fields are atomics; they are read by relaxed loads of at most a word, which read-only memory allows.
        unsafe { self.page.as_ref() }
    }

    fn read(&self) -> u64 {
        let marker = self.page().marker.load(Ordering::Relaxed);
        // What is decided because of it comes after it.
        fence(Ordering::Acquire);
        marker
    }

    /// Whether time was disrupted since this was last asked.
    #[inline]
    pub fn has_changed(&mut self) -> bool {
        let marker = self.read();
        std::mem::replace(&mut self.marker, marker) != marker
    }
}

impl Drop for VmClock {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `open`, is this long, and nothing refers to it any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// A page as a hypervisor would show it: the machines that tests run on need not have one.
    fn shown(magic: &[u8; 4], version: u16) -> (File, std::path::PathBuf) {
        let file = File::from(memfd_create("vmclock", MemfdFlags::CLOEXEC).expect("a memfd"));
        file.set_len(PAGE_BYTES as u64).expect("a page");
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(magic);
        bytes[4..8].copy_from_slice(&4096_u32.to_le_bytes());
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        (bytes[10], bytes[16]) = (1, 77);
        file.write_all_at(&bytes, 0).expect("written");
        let path = std::os::fd::AsRawFd::as_raw_fd(&file);
        (file, format!("/proc/self/fd/{path}").into())
    }

    #[test]
    fn a_marker_that_changes_is_told_once() {
        let (file, path) = shown(b"VCLK", 1);
        let mut clock = VmClock::open(&path).expect("a page");
        assert!(!clock.has_changed());
        // A change of the update count or of the flags is no disruption.
        file.write_all_at(&2_u32.to_le_bytes(), 12).expect("written");
        assert!(!clock.has_changed());
        file.write_all_at(&78_u64.to_le_bytes(), 16).expect("written");
        assert!(clock.has_changed());
        assert!(!clock.has_changed());
    }

    #[test]
    fn what_is_no_such_clock_is_refused() {
        for (magic, version) in [(b"VCLX", 1), (b"VCLK", 2)] {
            let (_file, path) = shown(magic, version);
            let error = VmClock::open(&path).expect_err("something else").to_string();
            assert!(error.contains("holds no clock of version 1"), "{error}");
        }
        assert!(VmClock::open(Path::new("/nonexistent/vmclock0")).is_err());
    }
}

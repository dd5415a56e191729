//! What a node does in advance so that a failover does not wait for the kernel.
//!
//! A takeover runs code that this process has never run, and allocates where it has not allocated for long. Each page that is touched for the first time costs
//! a fault, which takes one to several microseconds in a virtual machine, and there are a dozen of them on the way.

use std::io;

use rustix::mm::Advice;

/// How much of the heap is kept ready, in bytes.
const HEAP_BYTES: usize = 2 << 20;
/// From which size on an allocation goes to the kernel instead of the heap, in bytes.
const LARGE_BYTES: usize = 32 << 20;

/// Maps all code and constant data of the program into its page tables, as far as it is in memory or can be read. Returns how many bytes.
///
/// # Errors
/// When the kernel does not say what is mapped. It is no error that it cannot populate (before Linux 5.14): the pages are then mapped when they are touched.
pub fn populate_code() -> io::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut populated = 0;
    for (start, len) in maps.lines().filter_map(file_mapping) {
        // SAFETY: populating reads pages in and changes neither what is mapped nor its content. Should the mapping be gone by now, the call fails.
        let done = unsafe { rustix::mm::madvise(std::ptr::without_provenance_mut(start), len, Advice::LinuxPopulateRead) };
        populated += if done.is_ok() { len } else { 0 };
    }
    Ok(populated)
}

/// Address and length of a read-only private mapping of a file, from a line of /proc/self/maps.
fn file_mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let path = fields.nth(3)?;
    let wanted = matches!(permissions, "r-xp" | "r--p") && path.starts_with('/');
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    (wanted && end > start).then_some((start, end - start))
}

/// Keeps the calling thread's heap from shrinking, and touches enough of it that usual allocations find it mapped.
pub fn keep_heap() {
    #[cfg(target_env = "gnu")]
    {
        // Memory that the allocator gives back to the kernel would have to be requested again.
        // SAFETY: mallopt only sets numbers; with ones that it does not take it changes nothing.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES as i32);
        }
    }
    let mut touched: Vec<u8> = Vec::with_capacity(HEAP_BYTES);
    touched.resize(HEAP_BYTES, 1);
    std::hint::black_box(&touched);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_constants_of_files_are_populated() {
        let line = |permissions: &str, path: &str| format!("5581e0a01000-5581e0a03000 {permissions} 00001000 fe:00 1234   {path}");
        assert_eq!(file_mapping(&line("r-xp", "/usr/bin/node with spaces")), Some((0x5581_e0a0_1000, 0x2000)));
        assert_eq!(file_mapping(&line("r--p", "/lib/libc.so.6")), Some((0x5581_e0a0_1000, 0x2000)));
        for (permissions, path) in
            [("rw-p", "/usr/bin/node"), ("rw-s", "/memfd:martlet"), ("r--s", "/memfd:martlet"), ("r-xp", "[vdso]"), ("r--p", "")]
        {
            assert_eq!(file_mapping(&line(permissions, path)), None, "{permissions} {path}");
        }
        assert_eq!(file_mapping("nonsense"), None);
    }

    #[test]
    fn the_program_itself_is_populated() {
        // The program has code, and the kernels that we run on can populate it.
        assert!(populate_code().expect("Linux") > 0);
        keep_heap();
    }
}

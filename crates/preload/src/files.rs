//! The files that a server reads and writes. There is one of each, where the server's settings say: the leader writes it, and every other replica knows how
//! far.
//!
//! A follower executes only what the leader's server has come back from, so whatever its own server would do to a file has been done. The follower is told how
//! that ended, and its descriptor leads nowhere. A successor opens the files, and writes at the positions where the log has it write: it overwrites what a dead
//! leader had written with the same bytes.
//!
//! What is appended goes to the end that the file then has, which others may have moved. So before it appends, the leader says where the file ends. A successor
//! compares that with where it ends now, and so knows what a dead leader has written.
//!
//! The leader reads for all replicas what the system makes up when it is read, and small files that are read by streams of the C library. By the time that a
//! follower got to such a file, the leader might have rewritten it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::sys::{self, complain, die};
use crate::table::OF_LIBRARY;

/// What a descriptor of the server's leads to.
#[derive(Clone, Debug)]
enum Kept {
    /// A file that it writes.
    Written(Written),
    /// Something that the leader reads, and that the others are told: what the system makes up, such as a file of /proc; what a child has to say; or a small
    /// file that may have been replaced by the time that they read it.
    Told(ReadByLeader),
}

/// A file that the server writes.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its absolute path; `None`: it has none any more.
    path: Option<CString>,
    /// Where the next write goes, in bytes.
    pub at: u64,
    /// Whether it has positions. What has none is written as it comes.
    pub has_places: bool,
    /// Whether each write goes to the end that the file then has.
    pub appends: bool,
    /// The access that it was opened for.
    access: i32,
}

/// What the leader reads for all replicas.
#[derive(Clone, Debug)]
pub struct ReadByLeader {
    /// Its absolute path; `None`: it has none, and no positions.
    path: Option<CString>,
    /// Where the next read begins, in bytes.
    pub at: u64,
}

impl ReadByLeader {
    /// Its path; `None`: each replica has one of its own.
    pub fn path(&self) -> Option<&CStr> {
        self.path.as_deref()
    }

    /// Whether each replica has one of its own, such as a pipe.
    pub fn is_own(&self) -> bool {
        self.path.is_none()
    }
}

/// Removes from a pipe or timer of this replica what the leader has read from its own, as far as it is there: this replica's server may have written it itself.
pub fn take_out(fd: RawFd, mut bytes: usize) {
    let mut waste = [0u8; 4096];
    while bytes > 0 {
        let mut waits = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointers are to one live value, and to so many bytes. What is readable is read without waiting.
        let got = unsafe {
            if libc::syscall(libc::SYS_poll, &mut waits, 1, 0) != 1 || waits.revents & libc::POLLIN == 0 {
                return;
            }
            libc::syscall(libc::SYS_read, fd, waste.as_mut_ptr(), bytes.min(waste.len()))
        };
        match usize::try_from(got) {
            Ok(got @ 1..) => bytes -= got,
            _ => return,
        }
    }
}

/// Which file it is, and which version of its content, as far as the kernel tells without a read: device, number, length, and when it was written.
pub fn identity(status: &libc::stat) -> [u64; 5] {
    [status.st_dev, status.st_ino, status.st_size as u64, status.st_mtime as u64, status.st_mtime_nsec as u64]
}

static KEPT: Mutex<BTreeMap<RawFd, Kept>> = Mutex::new(BTreeMap::new());

/// How many threads may sync files to disk at once.
const MOST_SYNCS: u32 = 2;
static SYNCS: AtomicU32 = AtomicU32::new(0);

/// Whether this process writes the files: the server before it has replicas, or a replica that leads.
static WRITES: AtomicBool = AtomicBool::new(true);

fn kept<R>(use_it: impl FnOnce(&mut BTreeMap<RawFd, Kept>) -> R) -> R {
    use_it(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A path that means the same whatever this process's working directory is.
pub fn absolute(path: &CStr) -> CString {
    if path.to_bytes().starts_with(b"/") {
        return path.to_owned();
    }
    let mut whole =
        std::env::current_dir().map(|here| std::os::unix::ffi::OsStringExt::into_vec(here.into_os_string())).unwrap_or_default();
    whole.push(b'/');
    whole.extend_from_slice(path.to_bytes());
    CString::new(whole).unwrap_or_else(|_| path.to_owned())
}

/// Whether the file there is made up by the system when it is read.
pub fn is_made_up(path: &CStr) -> bool {
    let path = path.to_bytes();
    [&b"/proc/"[..], b"/sys/", b"/dev/random", b"/dev/urandom", b"/dev/hwrng"].iter().any(|start| path.starts_with(start))
}

/// A descriptor that leads nowhere, in place of a leader's that leads to a file.
pub fn placeholder() -> io::Result<RawFd> {
    // SAFETY: the name ends with a zero byte.
    sys::open(|| unsafe { libc::syscall(libc::SYS_memfd_create, c"placeholder".as_ptr(), libc::MFD_CLOEXEC) })
}

/// Opens a file as the system does.
///
/// It is not given a number that may be a connection's or the library's: if the server has so many files open, it is given one above those.
pub fn open(path: &CStr, flags: i32, mode: u32) -> io::Result<RawFd> {
    // SAFETY: the path ends with a zero byte.
    let open = || unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_LARGEFILE, mode) };
    if waits_for_another(path, flags) {
        // If the library's threads were kept from opening anything meanwhile, they would wait as long as this call does.
        return sys::numbered(sys::checked(open())? as RawFd);
    }
    sys::open(open)
}

/// Whether opening this path waits until another process opens it too: it is one end of a pipe.
fn waits_for_another(path: &CStr, flags: i32) -> bool {
    flags & (libc::O_NONBLOCK | libc::O_PATH) == 0
        && flags & libc::O_ACCMODE != libc::O_RDWR
        && status_of(libc::AT_FDCWD, path, 0).is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// What the kernel says of an open file.
pub fn status(fd: RawFd) -> io::Result<libc::stat> {
    status_of(fd, c"", libc::AT_EMPTY_PATH)
}

fn status_of(directory: RawFd, path: &CStr, flags: i32) -> io::Result<libc::stat> {
    // SAFETY: all zeros are a valid value; the pointers are to it, and to a path that ends with a zero byte.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        sys::checked(libc::syscall(libc::SYS_newfstatat, directory, path.as_ptr(), &mut status, flags))?;
        Ok(status)
    }
}

/// Whether an open file has positions to write at, and where its next write goes when it was opened with these flags.
pub fn place(fd: RawFd, flags: i32) -> (bool, u64) {
    let Ok(status) = status(fd) else { return (false, 0) };
    let has_places = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    let at = if has_places && flags & libc::O_APPEND != 0 { status.st_size as u64 } else { 0 };
    (has_places, at)
}

/// From here on the server has this file open for writing.
pub fn keep_written(fd: RawFd, path: &CStr, flags: i32, (has_places, at): (bool, u64)) {
    let appends = has_places && flags & libc::O_APPEND != 0;
    let written = Written { path: Some(absolute(path)), at, has_places, appends, access: flags & libc::O_ACCMODE };
    kept(|kept| kept.insert(fd, Kept::Written(written)));
}

/// From here on the server has something open that the leader reads for all replicas: the file at `path`, or, without a path, what comes through a pipe.
pub fn keep_told(fd: RawFd, path: Option<&CStr>) {
    kept(|kept| kept.insert(fd, Kept::Told(ReadByLeader { path: path.map(absolute), at: 0 })));
}

/// The server has closed this descriptor.
pub fn forget(fd: RawFd) {
    kept(|kept| kept.remove(&fd));
}

/// The server has closed the descriptors with these numbers.
pub fn forget_all(closed: &RangeInclusive<RawFd>) {
    kept(|kept| kept.retain(|fd, _| !closed.contains(fd)));
}

/// The file that the server writes there, if there is one.
pub fn written(fd: RawFd) -> Option<Written> {
    kept(|kept| match kept.get(&fd) {
        Some(Kept::Written(written)) => Some(written.clone()),
        _ => None,
    })
}

/// What the server reads there, if the leader reads it for all replicas.
pub fn told(fd: RawFd) -> Option<ReadByLeader> {
    kept(|kept| match kept.get(&fd) {
        Some(Kept::Told(told)) => Some(told.clone()),
        _ => None,
    })
}

/// Where the next read or write begins. `None`: the file has no position, or is not kept.
pub fn at(fd: RawFd) -> Option<u64> {
    kept(|kept| match kept.get(&fd)? {
        Kept::Written(written) => written.has_places.then_some(written.at),
        Kept::Told(told) => told.path.as_ref().map(|_| told.at),
    })
}

/// The next read or write begins there.
pub fn move_to(fd: RawFd, place: u64) {
    kept(|kept| match kept.get_mut(&fd) {
        Some(Kept::Written(written)) => written.at = place,
        Some(Kept::Told(told)) => told.at = place,
        None => {}
    });
}

/// Moves the kernel's own position there, too. A file without positions is left as it is.
pub fn seek(fd: RawFd, place: u64) {
    // SAFETY: a plain system call.
    unsafe { libc::syscall(libc::SYS_lseek, fd, place, libc::SEEK_SET) };
}

/// A file has another name.
pub fn rename(old: &CStr, new: &CStr) {
    let (old, new) = (absolute(old), absolute(new));
    kept(|kept| {
        for file in kept.values_mut() {
            let Kept::Written(Written { path: path @ Some(_), .. }) = file else { continue };
            if path.as_ref() == Some(&old) {
                *path = Some(new.clone());
            } else if path.as_ref() == Some(&new) {
                *path = None;
            }
        }
    });
}

/// A name has been removed.
pub fn unlink(name: &CStr) {
    let name = absolute(name);
    kept(|kept| {
        for file in kept.values_mut() {
            if let Kept::Written(Written { path, .. }) = file {
                path.take_if(|path| *path == name);
            }
        }
    });
}

/// From here on this replica reads and writes files: opens them, under the descriptors that its server has for them.
pub fn open_all() {
    WRITES.store(true, Ordering::Relaxed);
    let all: Vec<(RawFd, Kept)> = kept(|kept| kept.iter().map(|(fd, file)| (*fd, file.clone())).collect());
    for (fd, file) in all {
        let (path, flags, at) = match file {
            Kept::Written(Written { path: Some(path), access, appends, .. }) => {
                (path, access | libc::O_CREAT | if appends { libc::O_APPEND } else { 0 }, None)
            }
            Kept::Told(ReadByLeader { path: Some(path), at }) => (path, libc::O_RDONLY, Some(at)),
            _ => continue,
        };
        let opened = open(&path, flags | libc::O_CLOEXEC, 0o644);
        // SAFETY: `dup3` takes what has just been opened, and closes the descriptor that led nowhere.
        let placed = opened.and_then(|opened| sys::move_to(unsafe { std::os::fd::FromRawFd::from_raw_fd(opened) }, fd));
        match (placed, at) {
            (Ok(_), Some(at)) => seek(fd, at),
            (Ok(_), None) => {}
            // It has gone since, and no replica can go on reading it.
            (Err(error), Some(_)) => complain(&format!("it cannot go on reading {}: {error}", path.to_string_lossy())),
            (Err(error), None) => die(&format!("it cannot go on writing {}: {error}", path.to_string_lossy())),
        }
    }
}

/// Syncs a file to its disk, in a thread of its own, if this replica writes the file. When the disk is so slow that `MOST_SYNCS` of those are running
/// already, waits for one.
pub fn sync_later(fd: RawFd) {
    if !WRITES.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the call makes a descriptor, which goes nowhere else.
    let copy: io::Result<OwnedFd> = unsafe { sys::owned(libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, OF_LIBRARY.start)) };
    let Ok(copy) = copy else { return };
    let sync = move || {
        // SAFETY: a plain system call.
        if let Err(error) = sys::checked(unsafe { libc::syscall(libc::SYS_fdatasync, copy.as_raw_fd()) }) {
            complain(&format!("what the server has written may not be on its disk: {error}"));
        }
        SYNCS.fetch_sub(1, Ordering::Relaxed);
    };
    if SYNCS.fetch_add(1, Ordering::Relaxed) >= MOST_SYNCS {
        return sync();
    }
    if let Err(error) = std::thread::Builder::new().spawn(sync) {
        SYNCS.fetch_sub(1, Ordering::Relaxed);
        complain(&format!("what the server has written may not be on its disk: {error}"));
    }
}

/// From here on this process is a replica that does not write yet, and it has no threads that sync.
pub fn follow() {
    WRITES.store(false, Ordering::Relaxed);
    SYNCS.store(0, Ordering::Relaxed);
}

/// Where an open file ends.
pub fn end(fd: RawFd) -> io::Result<u64> {
    status(fd).map(|status| status.st_size as u64)
}

/// Writes at the file's end or at a position, or, without positions, as it comes.
pub fn write(fd: RawFd, written: &Written, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer is to so many bytes.
    let done = unsafe {
        if written.has_places && !written.appends {
            libc::syscall(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), written.at)
        } else {
            libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len())
        }
    };
    sys::checked(done).map(|done| done as usize)
}

/// Writes, after a leader that died before it could say what it had written. Returns how many of these bytes are written, by either.
pub fn finish_write(fd: RawFd, written: &Written, bytes: &[u8]) -> io::Result<usize> {
    // If the file is shorter than when the leader looked, it has been truncated or replaced since.
    let done = if written.appends { end(fd)?.saturating_sub(written.at).min(bytes.len() as u64) as usize } else { 0 };
    match bytes.split_at(done) {
        (_, []) => Ok(done),
        (done, rest) => write(fd, written, rest).map(|more| done.len() + more).or_else(|error| match done.len() {
            0 => Err(error),
            some => Ok(some),
        }),
    }
}

/// Writes what a dead leader has written, in case this replica has opened or truncated the file again, and it is not there any more.
pub fn write_again(fd: RawFd, written: &Written, bytes: &[u8]) {
    // If the file ends after where this was appended, it is there. If it ends before that, the file has been truncated or replaced by others since.
    if !written.has_places || written.appends && end(fd).is_ok_and(|end| end != written.at) {
        return;
    }
    if let Err(error) = write(fd, written, bytes) {
        complain(&format!("it cannot write again what a dead leader has written: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd as _;

    use super::*;

    #[test]
    fn only_an_end_of_a_pipe_with_a_name_waits_for_another_process() {
        let pipe = std::env::temp_dir().join(format!("martlet-files-pipe-{}", std::process::id()));
        let name = CString::new(pipe.to_str().expect("Unicode")).expect("no zero byte");
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(waits_for_another(&name, libc::O_RDONLY) && waits_for_another(&name, libc::O_WRONLY | libc::O_CLOEXEC));
        assert!(!waits_for_another(&name, libc::O_RDWR) && !waits_for_another(&name, libc::O_RDONLY | libc::O_NONBLOCK));
        std::fs::remove_file(&pipe).expect("there");
        assert!(!waits_for_another(&name, libc::O_RDONLY) && !waits_for_another(c"/dev/null", libc::O_RDONLY));
    }

    #[test]
    fn a_file_that_is_renamed_is_opened_under_its_new_name_and_written_where_the_log_says() {
        let path = |name: &str| std::env::temp_dir().join(format!("martlet-files-{name}-{}", std::process::id()));
        let (old, new) = (path("old"), path("new"));
        let c = |path: &std::path::Path| CString::new(path.to_str().expect("Unicode")).expect("no zero byte");
        std::fs::write(&new, "12345 as the dead leader left it").expect("a file");
        let fd = placeholder().expect("a descriptor");
        keep_written(fd, &c(&old), libc::O_WRONLY, (true, 0));
        move_to(fd, 5);
        rename(&c(&old), &c(&new));
        open_all();
        let file = written(fd).expect("it is open");
        assert_eq!(write(fd, &file, b"67").expect("it is written"), 2);
        assert_eq!(std::fs::read(&new).expect("there"), b"1234567s the dead leader left it");
        // A file that has no name any more is written by no replica.
        unlink(&c(&new));
        std::fs::remove_file(&new).expect("there");
        open_all();
        assert!(!new.exists());
        forget(fd);
        assert!(written(fd).is_none());
        // SAFETY: it is this test's own.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }

    #[test]
    fn one_that_is_read_for_everyone_is_read_on_by_a_successor_where_the_dead_leader_stopped() {
        let path = std::env::temp_dir().join(format!("martlet-files-read-{}", std::process::id()));
        std::fs::write(&path, "12345").expect("a file");
        let name = CString::new(path.to_str().expect("Unicode")).expect("no zero byte");
        let (fd, pipe) = (placeholder().expect("a descriptor"), placeholder().expect("a descriptor"));
        keep_told(fd, Some(&name));
        keep_told(pipe, None);
        move_to(fd, 3);
        assert_eq!((at(fd), at(pipe), told(fd).map(|told| told.at)), (Some(3), None, Some(3)));
        open_all();
        let mut file = std::mem::ManuallyDrop::new(file_of(fd));
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut *file, &mut rest).expect("it is open");
        assert_eq!(rest, "45");
        // That a file has gone since ends no replica.
        std::fs::remove_file(&path).expect("there");
        open_all();
        for fd in [fd, pipe] {
            forget(fd);
            assert!(told(fd).is_none() && at(fd).is_none());
            sys::close(fd);
        }
    }

    fn file_of(fd: RawFd) -> std::fs::File {
        // SAFETY: it is the test's own, which does not have it closed by this.
        unsafe { std::fs::File::from_raw_fd(fd) }
    }

    /// A file of the test's with this content, opened to be appended to.
    fn appended(name: &str, content: &str) -> (std::path::PathBuf, RawFd, Written) {
        let path = std::env::temp_dir().join(format!("martlet-files-{name}-{}", std::process::id()));
        std::fs::write(&path, content).expect("a file");
        let (name, flags) = (CString::new(path.to_str().expect("Unicode")).expect("no zero byte"), libc::O_WRONLY | libc::O_APPEND);
        let fd = open(&name, flags, 0).expect("it opens");
        let at = content.len() as u64;
        assert_eq!(place(fd, flags), (true, at));
        let written = Written { path: None, at, has_places: true, appends: true, access: libc::O_WRONLY };
        (path, fd, written)
    }

    #[test]
    fn one_that_is_appended_to_goes_on_where_it_ends_also_if_others_have_moved_the_end() {
        let (path, fd, file) = appended("append", "1234");
        let content = || std::fs::read_to_string(&path).expect("there");
        assert_eq!(write(fd, &file, b"xy").expect("it is written"), 2);
        assert_eq!(content(), "1234xy");
        for (end, left) in [(1, "1z"), (0, "z")] {
            std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(end)).expect("it is truncated");
            assert_eq!(write(fd, &file, b"z").expect("it is written"), 1);
            assert_eq!(content(), left);
        }
        std::fs::write(&path, "longer than it was").expect("there");
        assert_eq!(write(fd, &file, b"!").expect("it is written"), 1);
        assert_eq!(content(), "longer than it was!");
        std::fs::remove_file(&path).expect("there");
        sys::close(fd);
    }

    #[test]
    fn a_successor_appends_only_what_a_dead_leader_has_not_appended() {
        // The leader said that the file ended after four bytes, and died before it said how much it had written.
        for (found, left) in [("1234", "1234xyz"), ("1234x", "1234xyz"), ("1234xyz", "1234xyz"), ("12", "12xyz"), ("", "xyz")] {
            let (path, fd, file) = appended("finish", found);
            assert_eq!(finish_write(fd, &Written { at: 4, ..file }, b"xyz").expect("it is written"), 3, "{found}");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), left);
            std::fs::remove_file(&path).expect("there");
            sys::close(fd);
        }
        // The leader said how much it had written, too. Only in a file that this replica has made or truncated again does it write that again.
        for (found, left) in [("1234", "1234xyz"), ("1234xyz", "1234xyz"), ("1234xyz and more", "1234xyz and more"), ("12", "12"), ("", "")]
        {
            let (path, fd, file) = appended("again", found);
            write_again(fd, &Written { at: 4, ..file }, b"xyz");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), left);
            std::fs::remove_file(&path).expect("there");
            sys::close(fd);
        }
    }

    #[test]
    fn a_successor_overwrites_at_a_position_what_a_dead_leader_has_written_there() {
        let (path, fd, file) = appended("overwrite", "1234");
        // SAFETY: a plain system call.
        unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, 0) };
        let file = Written { appends: false, at: 1, ..file };
        assert_eq!(finish_write(fd, &file, b"xy").expect("it is written"), 2);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "1xy4");
        write_again(fd, &file, b"z");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "1zy4");
        std::fs::remove_file(&path).expect("there");
        sys::close(fd);
    }

    #[test]
    fn one_that_is_appended_to_is_appended_to_by_a_successor_under_its_name() {
        let (path, fd, _) = appended("successor", "1234");
        let name = CString::new(path.to_str().expect("Unicode")).expect("no zero byte");
        sys::close(fd);
        let fd = placeholder().expect("a descriptor");
        keep_written(fd, &name, libc::O_WRONLY | libc::O_APPEND, (true, 4));
        // It has been moved away.
        std::fs::remove_file(&path).expect("there");
        open_all();
        let file = written(fd).expect("it is open");
        assert_eq!(write(fd, &file, b"first").expect("it is written"), 5);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "first");
        forget(fd);
        std::fs::remove_file(&path).expect("there");
        sys::close(fd);
    }

    #[test]
    fn what_the_system_makes_up_is_told_apart() {
        assert!(is_made_up(c"/proc/self/stat") && is_made_up(c"/dev/urandom"));
        assert!(!is_made_up(c"/var/lib/redis/dump.rdb") && !is_made_up(c"proc/x"));
        assert_eq!(absolute(c"/a").as_bytes(), b"/a");
        assert!(absolute(c"a").to_bytes().ends_with(b"/a") && absolute(c"a").to_bytes().starts_with(b"/"));
    }
}

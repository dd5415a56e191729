//! Files.
//!
//! `open` and its like take a mode after their flags, but only when a file may be made. In C they have a variable number of arguments; on the machines that
//! this is for, those are passed as others are.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::{Mutex, PoisonError};

use libc::{FILE, mode_t, off_t, size_t, ssize_t, stat as Stat};

use super::descriptors::{alone, number_ends, numbered};
use super::processes::{replicated, returned};
use crate::answers::{Asks, Call};
use crate::birth;
use crate::files;
use crate::main_thread::{InLibrary, in_server};
use crate::sys::{Real, checked, errno_of, fail};
use crate::threads;

/// The path that the server means. The server believes that it is the process with the number that it was shown: of that process's files in /proc it means its
/// own.
///
/// # Safety
/// `path` is a text that ends with a zero byte.
unsafe fn meant(path: *const c_char) -> CString {
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    let own = format!("/proc/{}/", birth::shown_pid());
    match path.to_bytes().strip_prefix(own.as_bytes()) {
        Some(rest) if in_server() => CString::new([b"/proc/self/", rest].concat()).unwrap_or_else(|_| path.to_owned()),
        _ => path.to_owned(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    if !in_server() {
        return kernel!(SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { meant(path) };
    if let Some(opened) = replicated(|replica| replica.open(&path, flags, mode)) {
        return opened.unwrap_or_else(fail);
    }
    let _library = InLibrary::enter();
    match files::open(&path, flags, mode) {
        Ok(fd) => {
            files::forget(fd);
            let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
            let (has_places, at) = if writes { files::place(fd, flags) } else { (false, 0) };
            // What is no file, such as a terminal, is the same for every replica.
            if has_places {
                files::keep_written(fd, &path, flags, (true, at));
            }
            fd
        }
        Err(error) => fail(errno_of(error)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { open(path, flags | libc::O_LARGEFILE, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

/// Each replica opens for itself what is opened by this.
#[unsafe(no_mangle)]
unsafe extern "C" fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    numbered(|| kernel!(SYS_openat, directory, path, flags, mode) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { openat(directory, path, flags | libc::O_LARGEFILE, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
    static REAL: Real = Real::new(c"mkostemp");
    let made = replicated(|replica| {
        // SAFETY: the caller gives a text that ends with a zero byte, to be written over.
        let template = unsafe { std::slice::from_raw_parts_mut(template.cast::<u8>(), CStr::from_ptr(template).count_bytes()) };
        replica.make_temporary(template, flags)
    });
    made.map_or_else(
        || {
            type Function = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
            // SAFETY: it is the C library's function of that name, which has this type; the rest as the caller promises.
            unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(template, flags) }
        },
        |made| made.unwrap_or_else(fail),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { mkostemp(template, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemp(template: *mut c_char) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { mkostemp(template, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkstemp64(template: *mut c_char) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { mkostemp(template, 0) }
}

/// Reads what the leader reads for all replicas. `None`: this is not such a descriptor, or there are no replicas.
///
/// # Safety
/// `buffer` is a pointer to so many bytes.
pub unsafe fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> Option<ssize_t> {
    if !in_server() || files::told(fd).is_none() || buffer.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let into = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    replicated(|replica| replica.read_told(fd, into)).flatten().map(|got| returned(got) as ssize_t)
}

/// Writes a file that is kept. `None`: this is not one.
pub fn write(fd: c_int, bytes: &[u8]) -> Option<ssize_t> {
    if !in_server() {
        return None;
    }
    let mut written = files::written(fd)?;
    if let Some(done) = replicated(|replica| replica.write_file(fd, bytes)) {
        return done.map(|done| returned(done) as ssize_t);
    }
    // The file's position is known from the start.
    let _library = InLibrary::enter();
    if written.appends {
        written.at = files::end(fd).unwrap_or(written.at);
    }
    Some(match files::write(fd, &written, bytes) {
        Ok(done) => {
            files::move_to(fd, written.at + done as u64);
            done as ssize_t
        }
        Err(error) => fail(errno_of(error)) as ssize_t,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    if in_server() && files::at(fd).is_some() {
        if let Some(Some(place)) = replicated(|replica| replica.seek(fd, offset, whence)) {
            return returned(place);
        }
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => files::written(fd).map_or(0, |written| written.at as i64),
            _ => files::status(fd).map_or(0, |status| status.st_size),
        };
        files::move_to(fd, (from + offset).max(0) as u64);
        return (from + offset).max(0);
    }
    kernel!(SYS_lseek, fd, offset, whence)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: as the caller promises.
    unsafe { lseek(fd, offset, whence) }
}

/// A call for a file that is kept, which the leader makes.
fn on_file(fd: c_int, call: Call, act: impl Fn() -> io::Result<i64>) -> c_int {
    if in_server()
        && files::written(fd).is_some()
        && let Some(done) = replicated(|replica| replica.act(call, |_| act()))
    {
        return returned(done) as c_int;
    }
    act().map_or_else(|error| fail(errno_of(error)), |done| done as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, len: off_t) -> c_int {
    on_file(fd, Call::Truncate, || checked(kernel!(SYS_ftruncate, fd, len)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, len: off_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ftruncate(fd, len) }
}

/// Syncs a file to its disk. When a helper does it, the server goes on meanwhile; so it does here too, although the server waits for its helpers.
fn sync(fd: c_int, sync: impl Fn() -> i64) -> c_int {
    if threads::is_helper() && files::written(fd).is_some() {
        files::sync_later(fd);
        return 0;
    }
    on_file(fd, Call::Sync, || checked(sync()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd, || kernel!(SYS_fsync, fd))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd, || kernel!(SYS_fdatasync, fd))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int {
    on_file(fd, Call::Sync, || checked(kernel!(SYS_sync_file_range, fd, offset, len, flags)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    on_file(fd, Call::ChangeMode, || checked(kernel!(SYS_fchmod, fd, mode)))
}

/// A call for a name, which the leader makes. A successor may find it done already: `is_done` says whether an error means that.
fn on_name(call: Call, act: impl Fn() -> i64, is_done: impl Fn(i32) -> bool) -> c_int {
    let acted = replicated(|replica| {
        replica.act(call, |asks| match checked(act()) {
            Err(error) if asks == Asks::Succeeds && error.raw_os_error().is_some_and(&is_done) => Ok(0),
            acted => acted,
        })
    });
    acted.map_or_else(|| act() as c_int, |acted| returned(acted) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(old: *const c_char, new: *const c_char) -> c_int {
    let exists = |path: *const c_char| kernel!(SYS_faccessat, libc::AT_FDCWD, path, libc::F_OK) == 0;
    let renamed = on_name(Call::Rename, || kernel!(SYS_rename, old, new), |errno| errno == libc::ENOENT && exists(new));
    if renamed == 0 && in_server() {
        let _library = InLibrary::enter();
        // SAFETY: as the caller promises.
        unsafe { files::rename(CStr::from_ptr(old), CStr::from_ptr(new)) };
    }
    renamed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let unlinked = on_name(Call::Unlink, || kernel!(SYS_unlink, path), |errno| errno == libc::ENOENT);
    if unlinked == 0 && in_server() {
        let _library = InLibrary::enter();
        // SAFETY: as the caller promises.
        unsafe { files::unlink(CStr::from_ptr(path)) };
    }
    unlinked
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    on_name(Call::MakeDirectory, || kernel!(SYS_mkdir, path, mode), |errno| errno == libc::EEXIST)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    on_name(Call::RemoveDirectory, || kernel!(SYS_rmdir, path), |errno| errno == libc::ENOENT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    on_name(Call::ChangeMode, || kernel!(SYS_chmod, path, mode), |_| false)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate(path: *const c_char, len: off_t) -> c_int {
    on_name(Call::Truncate, || kernel!(SYS_truncate, path, len), |_| false)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate64(path: *const c_char, len: off_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { truncate(path, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    on_name(Call::Access, || kernel!(SYS_faccessat, libc::AT_FDCWD, path, mode), |_| false)
}

/// Each replica changes to the directory where the leader is.
#[unsafe(no_mangle)]
unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    let gone = checked(kernel!(SYS_chdir, path)).map_err(errno_of);
    let told = replicated(|replica| replica.act(Call::ChangeDirectory, |_| gone.map_err(io::Error::from_raw_os_error)));
    returned(told.unwrap_or(gone)) as c_int
}

fn look(into: *mut Stat, fill: impl Fn(*mut Stat) -> i64) -> c_int {
    let looked = replicated(|replica| {
        // SAFETY: the caller gives a place for the value, which is plain data.
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), size_of::<Stat>()) };
        replica.look(Call::Status, into, |bytes| checked(fill(bytes.as_mut_ptr().cast())))
    });
    looked.map_or_else(|| fill(into) as c_int, |looked| returned(looked) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, into: *mut Stat) -> c_int {
    look(into, |into| kernel!(SYS_newfstatat, libc::AT_FDCWD, path, into, 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, into: *mut Stat) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { stat(path, into) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat(path: *const c_char, into: *mut Stat) -> c_int {
    look(into, |into| kernel!(SYS_newfstatat, libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat64(path: *const c_char, into: *mut Stat) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { lstat(path, into) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, into: *mut Stat) -> c_int {
    let fill = |into: *mut Stat| kernel!(SYS_newfstatat, fd, c"".as_ptr(), into, libc::AT_EMPTY_PATH);
    if in_server() && (files::written(fd).is_some() || files::told(fd).is_some()) { look(into, fill) } else { fill(into) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, into: *mut Stat) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { fstat(fd, into) }
}

/// A pipe is a server's own, but what is read from one may come from a child, of which there is only one.
#[unsafe(no_mangle)]
unsafe extern "C" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    let made = alone(|| kernel!(SYS_pipe2, ends, flags) as c_int);
    if made != 0 || !in_server() {
        return made;
    }
    // SAFETY: the caller gives room for two, which the kernel has filled.
    match unsafe { number_ends(ends) } {
        Ok([out, into]) => {
            if birth::is_born() {
                files::forget(into);
                files::keep_told(out, None);
            }
            0
        }
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { pipe2(ends, 0) }
}

// For streams of the C library, this library makes the reads and writes itself, because the C library's own are not seen here.

#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The descriptors of those streams.
static STREAMS: Mutex<BTreeMap<usize, c_int>> = Mutex::new(BTreeMap::new());

fn streams<R>(use_it: impl FnOnce(&mut BTreeMap<usize, c_int>) -> R) -> R {
    use_it(&mut STREAMS.lock().unwrap_or_else(PoisonError::into_inner))
}

unsafe extern "C" fn read_stream(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library gives so many bytes to be written.
    unsafe { super::read(cookie as usize as c_int, buffer.cast(), len) }
}

unsafe extern "C" fn write_stream(cookie: *mut c_void, bytes: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library gives so many bytes.
    let bytes = unsafe { super::bytes(bytes.cast(), len) };
    let fd = cookie as usize as c_int;
    // The C library takes 0 for an error.
    write(fd, bytes).unwrap_or_else(|| kernel!(SYS_write, fd, bytes.as_ptr(), bytes.len()) as ssize_t).max(0)
}

unsafe extern "C" fn seek_stream(cookie: *mut c_void, place: *mut i64, whence: c_int) -> c_int {
    // SAFETY: the C library gives a number to be written over.
    unsafe {
        *place = lseek(cookie as usize as c_int, *place, whence);
        if *place < 0 { -1 } else { 0 }
    }
}

unsafe extern "C" fn close_stream(cookie: *mut c_void) -> c_int {
    // SAFETY: the stream's own.
    unsafe { super::close(cookie as usize as c_int) }
}

/// The flags of `open` for a mode of `fopen`, if that mode writes.
fn flags_of(mode: &CStr) -> Option<c_int> {
    let mode = mode.to_bytes();
    let access = if mode.contains(&b'+') { libc::O_RDWR } else { libc::O_WRONLY };
    let made = match mode.first()? {
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        b'r' if access == libc::O_RDWR => 0,
        _ => return None,
    };
    let rest = [(b'x', libc::O_EXCL), (b'e', libc::O_CLOEXEC)];
    Some(rest.into_iter().filter(|(letter, _)| mode.contains(letter)).fold(access | made, |flags, (_, flag)| flags | flag))
}

static FOPEN: Real = Real::new(c"fopen");

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
    // SAFETY: it is the C library's function of that name, which has this type.
    let real: Function = unsafe { std::mem::transmute(FOPEN.address()) };
    // A server that finds its memory by this list at its end writes all over it, as Redis does to test it. The library's threads use that memory until the very
    // end, and clients wait until that end.
    // SAFETY: as the caller promises: a text that ends with a zero byte.
    if threads::is_ending() && unsafe { CStr::from_ptr(path) } == c"/proc/self/maps" {
        fail(libc::ENOENT);
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    let (path, flags) = unsafe { (meant(path), flags_of(CStr::from_ptr(mode))) };
    let opened = match flags {
        Some(flags) => replicated(|replica| replica.open(&path, flags, 0o666).map(|fd| (fd, true))),
        // SAFETY: as the caller promises: a text that ends with a zero byte.
        None if unsafe { *mode } == b'r' as c_char => replicated(|replica| replica.open_as(&path, libc::O_RDONLY, 0, true)),
        // The C library knows no such mode.
        None => None,
    };
    match opened {
        // SAFETY: as the caller promises.
        None => unsafe { real(path.as_ptr(), mode) },
        Some(Err(errno)) => {
            fail(errno);
            std::ptr::null_mut()
        }
        // SAFETY: the descriptor has just been opened, as the caller wants it.
        Some(Ok((fd, false))) => unsafe { libc::fdopen(fd, mode) },
        Some(Ok((fd, true))) => {
            let functions = Functions {
                read: if flags.is_none() { Some(read_stream) } else { None },
                write: Some(write_stream),
                seek: Some(seek_stream),
                close: Some(close_stream),
            };
            // SAFETY: the cookie is a descriptor, and the functions use it as one.
            let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
            streams(|streams| streams.insert(stream as usize, fd));
            stream
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the caller promises.
    unsafe { fopen(path, mode) }
}

/// What the C library reads, writes and closes for such a stream is not seen here.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    static REAL: Real = Real::new(c"fdopen");
    type Function = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
    super::refuse(fd, "fdopen");
    // SAFETY: it is the C library's function of that name, which has this type; the rest as the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(fd, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fileno(stream: *mut FILE) -> c_int {
    static REAL: Real = Real::new(c"fileno");
    type Function = unsafe extern "C" fn(*mut FILE) -> c_int;
    let known = if in_server() { streams(|streams| streams.get(&(stream as usize)).copied()) } else { None };
    // SAFETY: it is the C library's function of that name, which has this type; the stream is the caller's.
    known.unwrap_or_else(|| unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    static REAL: Real = Real::new(c"fclose");
    type Function = unsafe extern "C" fn(*mut FILE) -> c_int;
    if in_server() {
        streams(|streams| streams.remove(&(stream as usize)));
    }
    // SAFETY: it is the C library's function of that name, which has this type; the stream is the caller's.
    unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.address())(stream) }
}

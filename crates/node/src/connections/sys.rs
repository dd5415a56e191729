//! System calls as results. What is asked here goes to the kernel by `syscall`, so that a library that interposes the C library's functions can use it.

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// Makes an error of a system call's -1.
///
/// # Errors
/// The calling thread's errno.
pub fn checked(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes a descriptor that a system call has just made.
///
/// # Errors
/// As [`checked`].
pub fn owned(result: c_long) -> io::Result<OwnedFd> {
    let fd = checked(result)? as RawFd;
    // SAFETY: the kernel has just made it for the caller, which gives it to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An option of a socket that is a plain value: `T` is an integer, or an array of bytes.
///
/// # Errors
/// As `getsockopt`.
pub fn socket_option<T: Copy>(fd: RawFd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are to a place for the value and to its length. `T` is plain data, as the caller chooses it for the option.
    checked(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &mut len) })?;
    // SAFETY: zeros and what the kernel wrote are a value of plain data.
    Ok(unsafe { value.assume_init() })
}

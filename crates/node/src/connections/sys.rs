//! System calls as results. Calls made here go to the kernel by `syscall`, so that a library that interposes the C library's functions can use them.

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
///
/// # Safety
/// `result` is the result of a system call that makes a descriptor, and the caller gives that descriptor to nothing else.
pub unsafe fn owned(result: c_long) -> io::Result<OwnedFd> {
    let fd = checked(result)? as RawFd;
    // SAFETY: the caller promises that nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What an option of a socket can be: any bytes are a valid value.
pub trait Plain: Copy + sealed::Sealed {}

impl Plain for i32 {}
impl Plain for u64 {}
impl<const N: usize> Plain for [u8; N] {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u64 {}
    impl<const N: usize> Sealed for [u8; N] {}
}

/// An option of a socket that is a plain value.
///
/// # Errors
/// As `getsockopt`.
pub fn socket_option<T: Plain>(fd: RawFd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are to a place for the value and to its length. `T` is plain data.
    checked(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &mut len) })?;
    // SAFETY: zeros and what the kernel wrote are a value of plain data.
    Ok(unsafe { value.assume_init() })
}

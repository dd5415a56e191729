//! Bytes that cross the edge.

use std::ffi::{CStr, c_char};

use crate::status::{Failure, call, martlet_status, null};

/// Bytes that the library hands out; free them with martlet_bytes_free.
#[repr(C)]
pub struct martlet_bytes {
    /// The first of them; null when there are none.
    pub data: *mut u8,
    /// How many.
    pub length: usize,
}

/// Where a callback puts bytes, with martlet_put; the library's own, and the callback's for as long as it runs.
pub struct martlet_buffer {
    /// What has been put there.
    pub(crate) bytes: Vec<u8>,
}

/// Frees bytes that the library has handed out, and sets them to none. Null, and bytes freed before, are allowed.
///
/// # Safety
/// `bytes` is null or points to bytes that this library has filled, or to zeroes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_bytes_free(bytes: *mut martlet_bytes) {
    call(|| {
        // SAFETY: by the caller's promise it is null or points to a `martlet_bytes`, which nobody else uses meanwhile.
        let Some(bytes) = (unsafe { bytes.as_mut() }) else { return Ok(()) };
        let (data, length) = (std::mem::replace(&mut bytes.data, std::ptr::null_mut()), std::mem::take(&mut bytes.length));
        if !data.is_null() {
            // SAFETY: `hand_out` made it of a boxed slice of this length, and it is freed once, since the pointer has just been taken.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, length)) });
        }
        Ok(())
    });
}

/// Appends bytes to a buffer, in a callback.
///
/// # Safety
/// `buffer` is the one that the callback was given; `data` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_put(buffer: *mut martlet_buffer, data: *const u8, length: usize) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise it is null or the buffer of the callback that runs, which the library does not touch meanwhile.
        let buffer = unsafe { buffer.as_mut() }.ok_or_else(|| null("buffer"))?;
        // SAFETY: by the caller's promise.
        buffer.bytes.extend_from_slice(unsafe { slice(data, length, "data") }?);
        Ok(())
    })
}

/// What a caller's pointer and length stand for. No bytes may be null.
///
/// # Safety
/// If `length` is not 0, `data` is null or points to so many bytes that nobody changes during `'a`.
pub(crate) unsafe fn slice<'a>(data: *const u8, length: usize, name: &str) -> Result<&'a [u8], Failure> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        (false, _) if length > isize::MAX as usize => Err(Failure(
            martlet_status::MARTLET_BAD_ARGUMENT,
            format!("the argument `{name}` has a length of {length} bytes; allowed: up to {}", isize::MAX),
        )),
        // SAFETY: it is not null, and the length is one that a slice may have; the rest is the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data, length) }),
    }
}

/// A caller's text. `None` for null.
///
/// # Safety
/// `text` is null or points to a text that ends with a NUL and does not change during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let wrong = |_| Failure(martlet_status::MARTLET_BAD_ARGUMENT, format!("the argument `{name}` is not UTF-8"));
    text.to_str().map(Some).map_err(wrong)
}

/// Hands bytes to the caller, who frees them.
pub(crate) fn hand_out(bytes: Vec<u8>) -> martlet_bytes {
    if bytes.is_empty() {
        return martlet_bytes { data: std::ptr::null_mut(), length: 0 };
    }
    let length = bytes.len();
    martlet_bytes { data: Box::into_raw(bytes.into_boxed_slice()).cast(), length }
}

/// Where a blocking call puts its reply: emptied first, so that it can be freed whatever happens.
///
/// # Safety
/// `reply` is null or points to room for bytes.
pub(crate) unsafe fn room<'a>(reply: *mut martlet_bytes) -> Result<&'a mut martlet_bytes, Failure> {
    if reply.is_null() {
        return Err(null("reply"));
    }
    // SAFETY: it is not null, and by the caller's promise there is room, for this caller alone.
    unsafe {
        reply.write(martlet_bytes { data: std::ptr::null_mut(), length: 0 });
        Ok(&mut *reply)
    }
}

//! Counters.

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use martlet_node::counters::Counter;

use crate::bytes::text;
use crate::replica::{given, martlet_replica};
use crate::status::martlet_status::MARTLET_BAD_ARGUMENT;
use crate::status::{Failure, call, martlet_status, null};

fn names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    NAMES.get_or_init(|| Counter::ALL.iter().map(|counter| CString::new(counter.name()).unwrap_or_default()).collect())
}

/// The name of a counter, numbered from 0 on; null behind the last.
#[unsafe(no_mangle)]
pub extern "C" fn martlet_metric_name(number: usize) -> *const c_char {
    names().get(number).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// The value of a counter, as the replica has last published it: often while it works, and before it sleeps.
///
/// # Safety
/// `replica` is one that martlet_start gave and martlet_stop has not had; `name` is a text that ends with a NUL; `value` points to room for the
/// answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_metric(replica: *const martlet_replica, name: *const c_char, value: *mut u64) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise.
        let replica = unsafe { given(replica) }?;
        // SAFETY: by the caller's promise.
        let name = unsafe { text(name, "name") }?.ok_or_else(|| null("name"))?;
        if value.is_null() {
            return Err(null("value"));
        }
        let counter = Counter::ALL.iter().find(|counter| counter.name() == name);
        let counter = counter.ok_or_else(|| {
            let text = format!("the argument `name` is {name:?}; allowed are the names that martlet_metric_name gives");
            Failure(MARTLET_BAD_ARGUMENT, text)
        })?;
        let read = replica.replica.metrics()?.get(*counter);
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { value.write(read) };
        Ok(())
    })
}

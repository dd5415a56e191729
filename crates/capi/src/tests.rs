//! What is refused at the edge; what works is tested from C.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use crate::bytes::*;
use crate::machine::*;
use crate::metrics::*;
use crate::replica::*;
use crate::role::*;
use crate::status::martlet_status::*;
use crate::status::*;

fn error() -> String {
    // SAFETY: the text stands until the next call on this thread.
    unsafe { CStr::from_ptr(martlet_error()) }.to_str().expect("UTF-8").to_owned()
}

unsafe extern "C" fn apply(_: *mut c_void, _: u64, _: *const u8, _: usize, _: *mut martlet_buffer) {}
unsafe extern "C" fn transfer(_: *const c_void, _: u64, _: usize, _: *mut martlet_buffer) -> u64 {
    MARTLET_END
}
unsafe extern "C" fn install(_: *mut c_void, _: *const u8, _: usize) {}
unsafe extern "C" fn clear(_: *mut c_void) {}
unsafe extern "C" fn done(_: *mut c_void, _: martlet_status, _: *const u8, _: usize) {}

fn machine() -> martlet_machine {
    martlet_machine {
        context: null_mut(),
        apply: Some(apply),
        query: None,
        transfer: Some(transfer),
        install: Some(install),
        clear: Some(clear),
        drop: None,
    }
}

fn options() -> martlet_options {
    martlet_options {
        cluster_file: c"/nowhere/cluster.toml".as_ptr(),
        listen: null(),
        timeout_us: 0,
        max_waiting: 0,
        node: 0,
        durability: null(),
        directory: null(),
    }
}

#[test]
fn a_null_handle_is_refused_by_every_call() {
    let mut reply = martlet_bytes { data: null_mut(), length: 0 };
    let command = martlet_session_command { session: 1, seq: 1, confirmed: 0, command: null(), length: 0 };
    let (mut session, mut role) = (0, std::mem::MaybeUninit::uninit());
    // SAFETY: null is allowed to be passed, and everything else points to what it says.
    let refused = unsafe {
        [
            martlet_propose(null(), null(), 0, &mut reply),
            martlet_propose_with(null(), null(), 0, Some(done), null_mut()),
            martlet_open_session(null(), &mut session),
            martlet_close_session(null(), 1),
            martlet_propose_once(null(), &command, &mut reply),
            martlet_propose_once_with(null(), &command, Some(done), null_mut()),
            martlet_read(null(), null(), 0, &mut reply),
            martlet_transfer_leadership(null()),
            martlet_transfer_leadership_to(null(), 1),
            martlet_role(null(), role.as_mut_ptr()),
            martlet_next_role(null(), 0, role.as_mut_ptr()),
            martlet_metric(null(), c"pid".as_ptr(), &mut session),
        ]
    };
    assert!(refused.iter().all(|status| *status == MARTLET_NULL_ARGUMENT), "{refused:?}");
    assert_eq!(error(), "the argument `replica` is null");
    // SAFETY: null is allowed.
    assert_eq!(unsafe { martlet_stop(null_mut()) }, MARTLET_OK);
}

#[test]
fn a_start_names_what_is_missing() {
    let mut replica = null_mut();
    let refuse = |change: &dyn Fn(&mut martlet_options, &mut martlet_machine)| {
        let (mut options, mut machine) = (options(), machine());
        change(&mut options, &mut machine);
        let mut replica = null_mut();
        // SAFETY: everything points to what it says.
        let status = unsafe { martlet_start(&options, &machine, &mut replica) };
        assert!(replica.is_null());
        (status, error())
    };
    for (what, change) in [
        ("options->cluster_file", &(|o: &mut martlet_options, _: &mut martlet_machine| o.cluster_file = null()) as &dyn Fn(&mut _, &mut _)),
        ("machine->apply", &|_, m: &mut martlet_machine| m.apply = None),
        ("machine->transfer", &|_, m: &mut martlet_machine| m.transfer = None),
        ("machine->install", &|_, m: &mut martlet_machine| m.install = None),
        ("machine->clear", &|_, m: &mut martlet_machine| m.clear = None),
    ] {
        assert_eq!(refuse(change), (MARTLET_NULL_ARGUMENT, format!("the argument `{what}` is null")));
    }
    let (status, text) = refuse(&|_, _| {});
    assert_eq!(status, MARTLET_FAILED);
    assert!(text.contains("/nowhere/cluster.toml"), "{text}");
    let (status, text) = refuse(&|o, _| o.listen = c"\xff".as_ptr());
    assert_eq!((status, text.as_str()), (MARTLET_BAD_ARGUMENT, "the argument `options->listen` is not UTF-8"));
    let (status, text) = refuse(&|o, _| o.durability = c"disk".as_ptr());
    let wanted = "the argument `options->durability`: the durability is \"disk\"; allowed are memory, async, sync";
    assert_eq!((status, text.as_str()), (MARTLET_BAD_ARGUMENT, wanted));
    // SAFETY: null is allowed to be passed.
    unsafe {
        assert_eq!(martlet_start(null(), &machine(), &mut replica), MARTLET_NULL_ARGUMENT);
        assert_eq!(martlet_start(&options(), null(), &mut replica), MARTLET_NULL_ARGUMENT);
        assert_eq!(martlet_start(&options(), &machine(), null_mut()), MARTLET_NULL_ARGUMENT);
    }
}

#[test]
fn bytes_are_put_and_freed() {
    let mut buffer = martlet_buffer { bytes: Vec::new() };
    // SAFETY: everything is null or points to what it says.
    unsafe {
        assert_eq!(martlet_put(&mut buffer, b"abc".as_ptr(), 3), MARTLET_OK);
        assert_eq!(martlet_put(&mut buffer, null(), 0), MARTLET_OK);
        assert_eq!(martlet_put(&mut buffer, null(), 1), MARTLET_NULL_ARGUMENT);
        assert_eq!(martlet_put(&mut buffer, b"x".as_ptr(), usize::MAX), MARTLET_BAD_ARGUMENT);
        assert_eq!(martlet_put(null_mut(), b"abc".as_ptr(), 3), MARTLET_NULL_ARGUMENT);
    }
    assert_eq!(buffer.bytes, b"abc");
    let mut bytes = hand_out(buffer.bytes);
    assert_eq!(bytes.length, 3);
    for _ in 0..2 {
        // SAFETY: ours, and freed once.
        unsafe { martlet_bytes_free(&mut bytes) };
        assert!(bytes.data.is_null() && bytes.length == 0);
    }
    // SAFETY: null is allowed.
    unsafe { martlet_bytes_free(null_mut()) };
}

#[test]
fn no_panic_crosses_and_every_status_has_a_text() {
    assert_eq!(call(|| panic!("inside")), MARTLET_PANICKED);
    assert_eq!(error(), "a panic inside of the library");
    let mut texts: Vec<&CStr> = (-1..=20)
        .map(|status| {
            // SAFETY: a static text.
            unsafe { CStr::from_ptr(martlet_status_text(status)) }
        })
        .collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), MARTLET_HANDING_OVER as usize + 2, "one each, and one for all others");
    assert!(!martlet_metric_name(0).is_null() && martlet_metric_name(usize::MAX).is_null());
}

//! What is refused at the edge; what works is tested from C.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::rc::Rc;

use martlet_node::config::ConfigError;
use martlet_node::embed::{Leader, Role, RoleChange, StartError, StateMachine};
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::UnreadablePart;

use crate::bytes::*;
use crate::machine::*;
use crate::metrics::*;
use crate::options::*;
use crate::propose::*;
use crate::read::*;
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
unsafe extern "C" fn install(_: *mut c_void, _: *const u8, _: usize) -> c_int {
    0
}
unsafe extern "C" fn clear(_: *mut c_void) {}
unsafe extern "C" fn done(_: *mut c_void, _: martlet_status, _: *const u8, _: usize) {}
unsafe extern "C" fn opened(_: *mut c_void, _: martlet_status, _: u64) {}

fn machine() -> martlet_machine {
    martlet_machine {
        size: size_of::<martlet_machine>(),
        context: null_mut(),
        apply: Some(apply),
        query: None,
        transfer: Some(transfer),
        install: Some(install),
        clear: Some(clear),
        drop: None,
        plain_bytes: 0,
    }
}

fn options() -> martlet_options {
    martlet_options {
        size: size_of::<martlet_options>(),
        cluster_file: c"/nowhere/cluster.toml".as_ptr(),
        node_file: null(),
        listen: null(),
        engine: null(),
        durability: null(),
        directory: null(),
        idle: null(),
        pin: null(),
        priority: null(),
        timeout_us: 0,
        max_waiting: 0,
        node: 0,
        spin_us: 0,
        all_here: 0,
        owns_process: 0,
    }
}

#[test]
fn a_null_handle_is_refused_by_every_call() {
    let mut reply = martlet_bytes { data: null_mut(), length: 0 };
    let command = martlet_session_command { session: 1, seq: 1, confirmed: 0, command: null(), length: 0 };
    let (mut session, mut role, mut setup) = (0, MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: null is allowed to be passed, and everything else points to what it says.
    let refused = unsafe {
        [
            martlet_propose(null(), null(), 0, &mut reply),
            martlet_propose_with(null(), null(), 0, Some(done), null_mut()),
            martlet_open_session(null(), &mut session),
            martlet_open_session_with(null(), Some(opened), null_mut()),
            martlet_close_session(null(), 1),
            martlet_close_session_with(null(), 1, Some(done), null_mut()),
            martlet_propose_once(null(), &command, &mut reply),
            martlet_propose_once_with(null(), &command, Some(done), null_mut()),
            martlet_read(null(), null(), 0, &mut reply),
            martlet_read_with(null(), null(), 0, Some(done), null_mut()),
            martlet_read_by_quorum(null(), null(), 0, &mut reply),
            martlet_read_by_quorum_with(null(), null(), 0, Some(done), null_mut()),
            martlet_read_stale(null(), null(), 0, &mut reply),
            martlet_started(null(), setup.as_mut_ptr()),
            martlet_on_signals(null()),
            martlet_join(null()),
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
    assert_eq!(unsafe { (martlet_stop(null_mut()), martlet_on_replica_thread(null())) }, (MARTLET_OK, 0));
    // SAFETY: as above.
    unsafe { martlet_request_stop(null()) };
}

#[test]
fn a_start_names_what_is_missing() {
    unsafe extern "C" fn count(dropped: *mut c_void) {
        // SAFETY: the test's own cell, which outlives every machine of it.
        let dropped = unsafe { &*dropped.cast::<Cell<u32>>() };
        dropped.set(dropped.get() + 1);
    }
    let dropped = Cell::new(0u32);
    let mut replica = null_mut();
    let refuse = |change: &dyn Fn(&mut martlet_options, &mut martlet_machine)| {
        let counted = martlet_machine { context: (&raw const dropped).cast_mut().cast(), drop: Some(count), ..machine() };
        let (mut options, mut machine) = (options(), counted);
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
        ("machine->context", &|_, m: &mut martlet_machine| {
            (m.plain_bytes, m.context, m.transfer, m.install, m.clear) = (8, null_mut(), None, None, None);
        }),
    ] {
        assert_eq!(refuse(change), (MARTLET_NULL_ARGUMENT, format!("the argument `{what}` is null")));
    }
    assert_eq!(dropped.get(), 0, "the context of a machine that is refused is its program's");
    let (status, text) = refuse(&|_, _| {});
    assert_eq!(status, MARTLET_FAILED);
    assert!(text.contains("/nowhere/cluster.toml"), "{text}");
    assert_eq!(dropped.replace(0), 1, "no argument was refused");
    let (status, text) = refuse(&|o, _| (o.cluster_file, o.node_file) = (null(), c"/nowhere/node.toml".as_ptr()));
    assert_eq!(status, MARTLET_FAILED);
    assert!(text.contains("/nowhere/node.toml"), "{text}");
    assert_eq!(dropped.replace(0), 1, "nor here");
    let (least, most) = (size_of::<martlet_options>(), size_of::<martlet_machine>());
    type Change = fn(&mut martlet_options, &mut martlet_machine);
    for (wanted, change) in [
        ("`options->listen` is not UTF-8", (|o, _| o.listen = c"\xff".as_ptr()) as Change),
        ("`options->directory` is not UTF-8", |o, _| o.directory = c"\xff".as_ptr()),
        ("`options->durability`: the durability is \"disk\"; allowed are memory, async, sync", |o, _| o.durability = c"disk".as_ptr()),
        ("`options->engine`: the engine is \"raft\"; allowed are primary-backup, mu, dare, apus, hsuc, huc", |o, _| {
            o.engine = c"raft".as_ptr()
        }),
        ("`options->idle`: what a thread does without work is \"nap\"; allowed are", |o, _| o.idle = c"nap".as_ptr()),
        ("`options->pin`: the cores are \"0;1\"; allowed are", |o, _| o.pin = c"0;1".as_ptr()),
        ("`options->priority`: the priority is \"high\"; allowed are", |o, _| o.priority = c"high".as_ptr()),
        ("`options->node` is 65536; allowed are 0 to 15", |o, _| o.node = 65536),
        ("`options->node_file` is set, and so is options->cluster_file", |o, _| o.node_file = c"node.toml".as_ptr()),
        ("`options->node` is 3; with options->node_file", |o, _| {
            (o.cluster_file, o.node_file, o.node) = (null(), c"node.toml".as_ptr(), 3);
        }),
        ("`machine->plain_bytes` is 8, and machine->install is set: set one of them", |_, m| (m.plain_bytes, m.transfer) = (8, None)),
        ("`machine->plain_bytes` is 18446744073709551615; allowed are up to 1073741824", |_, m| {
            (m.plain_bytes, m.transfer, m.install, m.clear) = (usize::MAX, None, None, None);
        }),
        (&format!("`options->size` is 0; set it to the sizeof of its type, which is {least} here"), |o, _| o.size = 0),
        (&format!("`machine->size` is 4097; set it to the sizeof of its type, which is {most} here"), |_, m| m.size = 4097),
    ] {
        let (status, text) = refuse(&change);
        assert_eq!(status, MARTLET_BAD_ARGUMENT, "{text}");
        assert!(text.starts_with("the argument ") && text.contains(wanted), "{text}");
    }
    assert_eq!(dropped.get(), 0);
    // SAFETY: null is allowed to be passed.
    unsafe {
        assert_eq!(martlet_start(null(), &machine(), &mut replica), MARTLET_NULL_ARGUMENT);
        assert_eq!(martlet_start(&options(), null(), &mut replica), MARTLET_NULL_ARGUMENT);
        assert_eq!(martlet_start(&options(), &machine(), null_mut()), MARTLET_NULL_ARGUMENT);
    }
}

#[test]
fn a_structure_of_another_version_is_taken_as_far_as_both_know_it() {
    /// As it will be, or as a program has it that was compiled later.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Newer {
        size: usize,
        old: u64,
        new: u64,
    }
    impl Grows for Newer {
        const LEAST_BYTES: usize = std::mem::offset_of!(Newer, new);
    }
    /// As it was first.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Older {
        size: usize,
        old: u64,
    }
    impl Grows for Older {
        const LEAST_BYTES: usize = size_of::<Older>();
    }
    let newer = |new| Newer { size: size_of::<Newer>(), old: 7, new };
    // An older program, and what its memory holds behind what it knows.
    let older = Newer { size: size_of::<Older>(), ..newer(9) };
    // SAFETY: each points to as many bytes as it says.
    let (unknown, unset, refused) = unsafe {
        let (unset, set) = (newer(0), newer(9));
        (sized::<Newer>(&older, "n"), sized::<Older>((&raw const unset).cast(), "n"), sized::<Older>((&raw const set).cast(), "n"))
    };
    assert!(unknown.is_ok_and(|n| (n.old, n.new) == (7, 0)), "what it does not know is not set");
    assert!(unset.is_ok_and(|n| n.old == 7), "a newer program that sets nothing new");
    let text = refused.err().map(|Failure(_, text)| text).unwrap_or_default();
    assert!(text.contains("`n` has a field set that this library, version 0.") && text.ends_with("does not know"), "{text}");
}

/// The state of the machine below: whatever it was told, one after the other.
#[derive(Default)]
struct Told {
    bytes: Vec<u8>,
    dropped: Rc<Cell<u32>>,
}

/// The machine's state, within a callback.
fn told<'a>(context: *const c_void) -> &'a mut Told {
    // SAFETY: every callback below is given what `told_machine` made, which lives until it is dropped, and they are called one at a time.
    unsafe { &mut *context.cast::<Told>().cast_mut() }
}

unsafe extern "C" fn told_apply(context: *mut c_void, index: u64, command: *const u8, length: usize, reply: *mut martlet_buffer) {
    // SAFETY: the library's promise to its callbacks.
    let command = unsafe { slice(command, length, "command") }.unwrap_or_default();
    told(context).bytes.extend_from_slice(command);
    // SAFETY: as above.
    unsafe { martlet_put(reply, index.to_le_bytes().as_ptr(), 8) };
}
unsafe extern "C" fn told_query(context: *const c_void, query: *const u8, length: usize, reply: *mut martlet_buffer) {
    // SAFETY: as above.
    let query = unsafe { slice(query, length, "query") }.unwrap_or_default();
    let count = told(context).bytes.iter().filter(|byte| query.contains(byte)).count() as u8;
    // SAFETY: as above.
    unsafe { martlet_put(reply, &raw const count, 1) };
}
unsafe extern "C" fn told_transfer(context: *const c_void, cursor: u64, budget: usize, part: *mut martlet_buffer) -> u64 {
    let rest = &told(context).bytes[cursor as usize..];
    let sent = rest.len().min(budget);
    // SAFETY: as above.
    unsafe { martlet_put(part, rest.as_ptr(), sent) };
    if sent == rest.len() { MARTLET_END } else { cursor + sent as u64 }
}
unsafe extern "C" fn told_install(context: *mut c_void, part: *const u8, length: usize) -> c_int {
    // SAFETY: as above.
    let part = unsafe { slice(part, length, "part") }.unwrap_or_default();
    if part.first() == Some(&0) {
        return -1;
    }
    told(context).bytes.extend_from_slice(part);
    0
}
unsafe extern "C" fn told_clear(context: *mut c_void) {
    told(context).bytes.clear();
}
unsafe extern "C" fn told_drop(context: *mut c_void) {
    // SAFETY: `told_machine` made it of a box, and this is called once.
    let told = unsafe { Box::from_raw(context.cast::<Told>()) };
    told.dropped.set(told.dropped.get() + 1);
}

fn told_machine(dropped: &Rc<Cell<u32>>) -> Callbacks {
    let context = Box::into_raw(Box::new(Told { dropped: dropped.clone(), ..Told::default() })).cast();
    let machine = martlet_machine {
        size: size_of::<martlet_machine>(),
        context,
        apply: Some(told_apply),
        query: Some(told_query),
        transfer: Some(told_transfer),
        install: Some(told_install),
        clear: Some(told_clear),
        drop: Some(told_drop),
        plain_bytes: 0,
    };
    Callbacks::new(&machine).ok().expect("all callbacks are there")
}

#[test]
fn a_machine_of_callbacks_is_one() {
    let dropped = Rc::default();
    let (mut machine, mut other) = (told_machine(&dropped), told_machine(&dropped));
    let mut out = Vec::new();
    machine.apply(LogIndex(7), b"abca", &mut out);
    machine.apply(LogIndex(8), b"", &mut out);
    assert_eq!(out, [7u64.to_le_bytes(), 8u64.to_le_bytes()].concat(), "replies are appended");
    out.clear();
    machine.query(b"ax", &mut out);
    assert_eq!(out, [2]);
    let (mut cursor, mut parts) = (Some(0), 0);
    while let Some(at) = cursor {
        out.clear();
        cursor = machine.transfer(at, 3, &mut out);
        assert_eq!(other.install(&out), Ok(()));
        parts += 1;
    }
    assert_eq!(parts, 2);
    let snapshot = |machine: &Callbacks| {
        let mut out = Vec::new();
        machine.snapshot(&mut out);
        out
    };
    assert_eq!((snapshot(&other), snapshot(&machine)), (b"abca".to_vec(), b"abca".to_vec()));
    other.clear();
    assert_eq!(snapshot(&other), b"");
    assert_eq!(other.install(&[0]), Err(UnreadablePart), "what the program refuses");
    assert_eq!(other.restore(b"again"), Ok(()));
    assert_eq!(snapshot(&other), b"again");
    drop((machine, other));
    assert_eq!(dropped.get(), 2);
}

unsafe extern "C" fn plain_apply(context: *mut c_void, _: u64, command: *const u8, length: usize, reply: *mut martlet_buffer) {
    // SAFETY: the library's promise to its callbacks, and the test's own number.
    let (command, count) = unsafe { (slice(command, length, "command").unwrap_or_default(), &mut *context.cast::<u64>()) };
    *count += command.len() as u64;
    // SAFETY: as above.
    unsafe { martlet_put(reply, context.cast(), 8) };
}

#[test]
fn plain_memory_is_a_state() {
    let plain = |count: &mut u64| {
        let context = (&raw mut *count).cast();
        let machine =
            martlet_machine { context, apply: Some(plain_apply), transfer: None, install: None, clear: None, plain_bytes: 8, ..machine() };
        Callbacks::new(&machine).ok().expect("nothing is missing")
    };
    let (mut count, mut copy) = (5, 7);
    let (mut machine, mut other) = (plain(&mut count), plain(&mut copy));
    let (mut reply, mut out) = (Vec::new(), Vec::new());
    machine.query(b"", &mut reply);
    assert_eq!(reply, 0u64.to_ne_bytes(), "it begins with nothing");
    reply.clear();
    machine.apply(LogIndex(1), b"abc", &mut reply);
    machine.snapshot(&mut out);
    assert_eq!((&reply, &out), (&3u64.to_ne_bytes().to_vec(), &3u64.to_ne_bytes().to_vec()));
    for length in (0..64).filter(|length| *length != 8) {
        assert_eq!(other.install(&vec![0xff; length]), Err(UnreadablePart), "{length} bytes");
    }
    assert_eq!(other.restore(&out), Ok(()));
    reply.clear();
    other.query(b"whatever", &mut reply);
    assert_eq!(reply, out);
    machine.clear();
    drop((machine, other));
    assert_eq!((count, copy), (0, 3));
}

#[test]
fn a_role_has_room_for_the_longest_address() {
    let longest = "x".repeat(MARTLET_ADDRESS_BYTES - 1);
    for (address, wanted) in [(None, ""), (Some("host:7"), "host:7"), (Some(longest.as_str()), longest.as_str())] {
        let leader = Leader { node: 3, address: address.map(str::to_owned) };
        let change: martlet_role_change =
            RoleChange { role: Role::Follower { leader: Some(leader) }, view: 2, fencing_token: None, at_ns: 9 }.into();
        // SAFETY: the field ends with a NUL.
        let text = unsafe { CStr::from_ptr(change.leader_address.as_ptr()) };
        assert_eq!((text.to_str(), change.leader, change.view, change.at_ns, change.fencing_token), (Ok(wanted), 3, 2, 9, 0));
    }
    let change: martlet_role_change = RoleChange { role: Role::Leader, view: 2, fencing_token: Some(7), at_ns: 9 }.into();
    assert_eq!((change.role, change.leader, change.fencing_token), (martlet_role_kind::MARTLET_LEADER, -1, 7));
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
    assert_eq!(error(), "the library panicked");
    // As the header has them: a line each, such as `MARTLET_OK = 0,`.
    let header = include_str!("../include/martlet.h");
    let (_, rest) = header.split_once("typedef enum martlet_status {").expect("the statuses");
    let (statuses, _) = rest.split_once("} martlet_status;").expect("their end");
    let numbers = statuses.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = ")?.1.parse().ok());
    let numbers: Vec<i32> = numbers.collect();
    assert!(numbers.contains(&(MARTLET_DISK_FAILED as i32)) && numbers.contains(&0), "{numbers:?}");
    let mut texts: Vec<&CStr> = std::iter::once(-1)
        .chain(numbers.iter().copied())
        .map(|status| {
            // SAFETY: a static text.
            unsafe { CStr::from_ptr(martlet_status_text(status)) }
        })
        .collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), numbers.len() + 1, "one each, and one for all others: {texts:?}");
    assert!(!martlet_metric_name(0).is_null() && martlet_metric_name(usize::MAX).is_null());
}

#[test]
fn a_start_that_fails_for_an_option_names_it() {
    for (call, key, option) in [("listen", "node[0].redis", "listen"), ("threads", "threads.spin_us", "spin_us")] {
        let (key, value, allowed) = (key.to_owned(), "x".to_owned(), "y".to_owned());
        let error = ConfigError::Value { file: PathBuf::new(), line: None, key: key.clone(), value, allowed };
        let Failure(status, text) = Failure::of_start(StartError::Given { call, error: Box::new(error) });
        assert_eq!((status, text), (MARTLET_FAILED, format!("the argument `options->{option}`: {key} is x; allowed: y")));
    }
}

//! bpf(2), as far as marks need it: maps, programs, raw tracepoints. It is called directly, without a compiler or a library.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use super::Refused;

const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const MAP_FREEZE: libc::c_int = 22;

pub(super) const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// BPF_F_MMAPABLE: processes can map the array's memory.
const MMAPABLE: u32 = 1 << 10;

/// Room for what the kernel says about a program that it refuses.
const LOG_BYTES: usize = 64 << 10;

/// One instruction, in the kernel's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// The destination in the low half, the source in the high one.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct TracepointOpen {
    name: u64,
    program: u32,
    padding: u32,
}

#[repr(C)]
struct MapFreeze {
    map: u32,
}

/// # Safety
/// `T` is what the kernel reads for this command. Everything that it points to lives, and may be read, or written in the case of the log.
unsafe fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live value; the rest is the caller's responsibility.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

fn owned(what: &'static str, made: io::Result<RawFd>) -> Result<OwnedFd, Refused> {
    // SAFETY: the kernel has just made this descriptor for us; no other code knows it.
    made.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }).map_err(|error| Refused::system(what, error))
}

fn create(what: &'static str, attributes: &MapCreate) -> Result<OwnedFd, Refused> {
    // SAFETY: these are the attributes of the command, and they point to nothing.
    owned(what, unsafe { call(MAP_CREATE, attributes) })
}

/// An array of one value, whose memory processes can map.
pub(super) fn array(bytes: u32) -> Result<OwnedFd, Refused> {
    let attributes = MapCreate { map_type: MAP_TYPE_ARRAY, key_size: 4, value_size: bytes, max_entries: 1, map_flags: MMAPABLE };
    create("to make an array", &attributes)
}

/// A ring whose descriptor becomes readable when a program puts something into it.
pub(super) fn ring(bytes: u32) -> Result<OwnedFd, Refused> {
    create("to make a ring", &MapCreate { map_type: MAP_TYPE_RINGBUF, key_size: 0, value_size: 0, max_entries: bytes, map_flags: 0 })
}

/// From now on no process can write the map, neither by a call nor through a mapping. Programs still can.
pub(super) fn freeze(map: impl AsFd) -> Result<(), Refused> {
    let attributes = MapFreeze { map: map.as_fd().as_raw_fd() as u32 };
    // SAFETY: these are the attributes of the command, and they point to nothing.
    unsafe { call(MAP_FREEZE, &attributes) }.map(|_| ()).map_err(|error| Refused::system("to freeze an array", error))
}

/// Loads a program for a raw tracepoint.
pub(super) fn load(name: &str, instructions: &[Instruction]) -> Result<OwnedFd, Refused> {
    let mut short = [0; 16];
    let len = name.len().min(short.len() - 1);
    short[..len].copy_from_slice(&name.as_bytes()[..len]);
    let mut log: Vec<u8> = Vec::new();
    // The kernel reads and writes through these numbers, so the memory that they point to is exposed.
    loop {
        let attributes = ProgramLoad {
            program_type: PROG_TYPE_RAW_TRACEPOINT,
            instructions_len: instructions.len() as u32,
            instructions: instructions.as_ptr().expose_provenance() as u64,
            // Some of the helpers that our programs call are only for programs under this licence.
            license: c"GPL".as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            kernel_version: 0,
            flags: 0,
            name: short,
        };
        // SAFETY: these are the attributes of the command. The instructions, the licence, which ends with a zero byte, and the log, which the kernel
        // writes up to its size, live until the call returns.
        match (unsafe { call(PROG_LOAD, &attributes) }, log.is_empty()) {
            (Err(error), true) if error.raw_os_error() != Some(libc::EPERM) => log = vec![0u8; LOG_BYTES],
            (Err(error), false) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let said = String::from_utf8_lossy(&log[..end]);
                let why = said.lines().rev().find(|line| !line.starts_with("processed ")).unwrap_or_default();
                return Err(Refused::system("to load a program", io::Error::new(error.kind(), format!("{error}: {name}: {why}"))));
            }
            (made, _) => return owned("to load a program", made),
        }
    }
}

/// Has the kernel run a program at a raw tracepoint, as long as the returned descriptor is open somewhere.
pub(super) fn attach(tracepoint: &CStr, program: impl AsFd) -> Result<OwnedFd, Refused> {
    let program = program.as_fd().as_raw_fd() as u32;
    let attributes = TracepointOpen { name: tracepoint.as_ptr().expose_provenance() as u64, program, padding: 0 };
    // SAFETY: these are the attributes of the command; the name ends with a zero byte and outlives the call.
    owned("to attach a program", unsafe { call(RAW_TRACEPOINT_OPEN, &attributes) })
}

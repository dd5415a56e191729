//! A state machine of callbacks.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use martlet_node::embed::StateMachine;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::UnreadablePart;

use crate::bytes::martlet_buffer;
use crate::options::Grows;

/// What transfer returns behind the last part of the state.
pub const MARTLET_END: u64 = u64::MAX;

/// The state that is replicated, as callbacks. All are called on the replica's own thread, one at a time, with `context` as their first
/// argument. They must be deterministic and quick, call no blocking function of this library, and neither throw nor jump out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_machine {
    /// sizeof(martlet_machine): by it a library knows which of the callbacks below the program was compiled with. Must be set.
    pub size: usize,
    /// Whatever the callbacks need; the library does not look at it. It must be usable from another thread than the one that started the
    /// replica, and live until drop has been called, or martlet_stop has returned.
    pub context: *mut c_void,
    /// Executes one command and puts its reply. `index` is its place in the log, the same on every replica, and growing. Any bytes must do.
    pub apply:
        Option<unsafe extern "C" fn(context: *mut c_void, index: u64, command: *const u8, length: usize, reply: *mut martlet_buffer)>,
    /// Answers a question without changing anything. May be null: then the answers are empty.
    pub query: Option<unsafe extern "C" fn(context: *const c_void, query: *const u8, length: usize, reply: *mut martlet_buffer)>,
    /// Puts the part of the state from `cursor` on (0 at the start), about `budget` bytes of it, and returns the cursor after it, below 2^63,
    /// or MARTLET_END. A part of more than a gigabyte is taken by nobody. Between two parts commands are executed, here and where the parts are installed: what they do there to a part not yet
    /// installed is void, and they must do to an installed part what they do here. A small state goes in one part.
    pub transfer: Option<unsafe extern "C" fn(context: *const c_void, cursor: u64, budget: usize, part: *mut martlet_buffer) -> u64>,
    /// Takes a part in place of whatever it covers, and returns 0. Anything else: the bytes are no part, as a replica with another program may send them, and clear is called
    /// before anything else. Any bytes must do.
    pub install: Option<unsafe extern "C" fn(context: *mut c_void, part: *const u8, length: usize) -> c_int>,
    /// Forgets everything.
    pub clear: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// The replica needs the context no more. May be null.
    pub drop: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

impl Grows for martlet_machine {
    const LEAST_BYTES: usize = offset_of!(martlet_machine, drop) + size_of::<*const ()>();
}
const _: () = assert!(martlet_machine::LEAST_BYTES == size_of::<martlet_machine>(), "no padding at the end");

/// A machine whose callbacks are all there.
pub(crate) struct Callbacks {
    context: *mut c_void,
    apply: unsafe extern "C" fn(*mut c_void, u64, *const u8, usize, *mut martlet_buffer),
    query: Option<unsafe extern "C" fn(*const c_void, *const u8, usize, *mut martlet_buffer)>,
    transfer: unsafe extern "C" fn(*const c_void, u64, usize, *mut martlet_buffer) -> u64,
    install: unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_int,
    clear: unsafe extern "C" fn(*mut c_void),
    drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: whoever supplied the context has promised that it can be used from the replica's thread, and it is used from one thread at a time: the
// value is moved to that thread and never shared.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// `Err`: the callback of that name is null.
    pub fn new(machine: &martlet_machine) -> Result<Callbacks, &'static str> {
        Ok(Callbacks {
            context: machine.context,
            apply: machine.apply.ok_or("machine->apply")?,
            query: machine.query,
            transfer: machine.transfer.ok_or("machine->transfer")?,
            install: machine.install.ok_or("machine->install")?,
            clear: machine.clear.ok_or("machine->clear")?,
            drop: machine.drop,
        })
    }
}

/// Lets a callback append to `out`.
fn filled<T>(out: &mut Vec<u8>, callback: impl FnOnce(*mut martlet_buffer) -> T) -> T {
    let mut buffer = martlet_buffer { bytes: std::mem::take(out) };
    let result = callback(&raw mut buffer);
    *out = buffer.bytes;
    result
}

impl StateMachine for Callbacks {
    fn apply(&mut self, index: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        // SAFETY: the callback was supplied with this context for these arguments; they live until it returns.
        filled(reply, |reply| unsafe { (self.apply)(self.context, index.0, command.as_ptr(), command.len(), reply) });
    }

    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        if let Some(callback) = self.query {
            // SAFETY: as in `apply`.
            filled(reply, |reply| unsafe { callback(self.context, query.as_ptr(), query.len(), reply) });
        }
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = self.transfer(at, usize::MAX, out);
        }
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        self.install(snapshot)
    }

    fn clear(&mut self) {
        // SAFETY: as in `apply`.
        unsafe { (self.clear)(self.context) };
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        // SAFETY: as in `apply`.
        let next = filled(out, |out| unsafe { (self.transfer)(self.context, cursor, budget, out) });
        (next != MARTLET_END).then_some(next)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        // SAFETY: as in `apply`.
        let refused = unsafe { (self.install)(self.context, part.as_ptr(), part.len()) };
        if refused == 0 { Ok(()) } else { Err(UnreadablePart) }
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(callback) = self.drop {
            // SAFETY: nobody calls this machine any more, so this is the last use of its context.
            unsafe { callback(self.context) };
        }
    }
}

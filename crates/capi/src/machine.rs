//! A state machine of callbacks.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use martlet_node::embed::StateMachine;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{MAX_PART_BYTES, UnreadablePart};

use crate::bytes::martlet_buffer;
use crate::options::Grows;
use crate::status::{Failure, bad, null};

/// What transfer returns behind the last part of the state.
pub const MARTLET_END: u64 = u64::MAX;

/// The state that is replicated, as callbacks. All are called on the replica's own thread, one at a time, with `context` as their first
/// argument. They must be deterministic and quick, call no blocking function of this library, and neither throw nor jump out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_machine {
    /// sizeof(martlet_machine): by it a library knows which of the callbacks below the program was compiled with. Must be set.
    pub size: usize,
    /// Whatever the callbacks need; the library does not look at it, unless plain_bytes is set. It must be usable from another thread than the one that started the
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
    /// For a small state that is plain memory: how many bytes it has from `context` on. They are the whole state, so there are no pointers in them; they are zeroed at the
    /// start, and to forget everything, and go to other replicas as they are. Then transfer, install and clear are null, and a null query answers with the bytes. 0: the callbacks do all that.
    pub plain_bytes: usize,
}

impl Grows for martlet_machine {
    const LEAST_BYTES: usize = offset_of!(martlet_machine, plain_bytes) + size_of::<usize>();
}
const _: () = assert!(martlet_machine::LEAST_BYTES == size_of::<martlet_machine>(), "no padding at the end");

/// How the state comes and goes.
#[derive(Clone, Copy)]
enum State {
    Callbacks {
        transfer: unsafe extern "C" fn(*const c_void, u64, usize, *mut martlet_buffer) -> u64,
        install: unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_int,
        clear: unsafe extern "C" fn(*mut c_void),
    },
    /// It is so many bytes at the context.
    Plain { bytes: usize },
}

/// A machine whose callbacks are all there.
pub(crate) struct Callbacks {
    context: *mut c_void,
    apply: unsafe extern "C" fn(*mut c_void, u64, *const u8, usize, *mut martlet_buffer),
    query: Option<unsafe extern "C" fn(*const c_void, *const u8, usize, *mut martlet_buffer)>,
    state: State,
    drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: whoever supplied the context has promised that it can be used from the replica's thread, and it is used from one thread at a time: the
// value is moved to that thread and never shared.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// `Err`: something is missing, or there twice.
    pub fn new(machine: &martlet_machine) -> Result<Callbacks, Failure> {
        let apply = machine.apply.ok_or_else(|| null("machine->apply"))?;
        let state = match machine.plain_bytes {
            0 => State::Callbacks {
                transfer: machine.transfer.ok_or_else(|| null("machine->transfer"))?,
                install: machine.install.ok_or_else(|| null("machine->install"))?,
                clear: machine.clear.ok_or_else(|| null("machine->clear"))?,
            },
            bytes => {
                let set =
                    [("transfer", machine.transfer.is_some()), ("install", machine.install.is_some()), ("clear", machine.clear.is_some())];
                if let Some((name, _)) = set.into_iter().find(|(_, set)| *set) {
                    return Err(bad("machine->plain_bytes", format_args!("is {bytes}, and machine->{name} is set: set one of them")));
                }
                if bytes > MAX_PART_BYTES {
                    return Err(bad("machine->plain_bytes", format_args!("is {bytes}; allowed are up to {MAX_PART_BYTES}")));
                }
                if machine.context.is_null() {
                    return Err(null("machine->context"));
                }
                State::Plain { bytes }
            }
        };
        let mut callbacks = Callbacks { context: machine.context, apply, query: machine.query, state, drop: machine.drop };
        if let State::Plain { .. } = state {
            // Whatever the program has left there, the others and this one's next life know nothing of it.
            callbacks.clear();
        }
        Ok(callbacks)
    }

    /// The state, where it is plain memory.
    fn plain(&self) -> Option<&[u8]> {
        match self.state {
            State::Callbacks { .. } => None,
            // SAFETY: the program has said that so many bytes stand there, and that they are the state: nobody else changes them while the machine has them.
            State::Plain { bytes } => Some(unsafe { std::slice::from_raw_parts(self.context.cast(), bytes) }),
        }
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
        match self.query {
            // SAFETY: as in `apply`.
            Some(callback) => filled(reply, |reply| unsafe { callback(self.context, query.as_ptr(), query.len(), reply) }),
            None => reply.extend_from_slice(self.plain().unwrap_or_default()),
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
        match self.state {
            // SAFETY: as in `apply`.
            State::Callbacks { clear, .. } => unsafe { clear(self.context) },
            // SAFETY: as in `plain`; nothing refers to the bytes now.
            State::Plain { bytes } => unsafe { self.context.cast::<u8>().write_bytes(0, bytes) },
        }
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        match self.state {
            State::Callbacks { transfer, .. } => {
                // SAFETY: as in `apply`.
                let next = filled(out, |out| unsafe { transfer(self.context, cursor, budget, out) });
                (next != MARTLET_END).then_some(next)
            }
            State::Plain { .. } => {
                out.extend_from_slice(self.plain().unwrap_or_default());
                None
            }
        }
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        match self.state {
            State::Callbacks { install, .. } => {
                // SAFETY: as in `apply`.
                let refused = unsafe { install(self.context, part.as_ptr(), part.len()) };
                if refused == 0 { Ok(()) } else { Err(UnreadablePart) }
            }
            State::Plain { bytes } if part.len() == bytes => {
                // SAFETY: as in `clear`, and there are as many bytes here.
                unsafe { self.context.cast::<u8>().copy_from_nonoverlapping(part.as_ptr(), bytes) };
                Ok(())
            }
            State::Plain { .. } => Err(UnreadablePart),
        }
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

//! A tracer, which takes signals away from a child before they are delivered. To a warden this must not look like a death, so tests and benchmarks
//! use one.

use std::io;
use std::marker::PhantomData;

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

/// Traces a child of this process until the child ends. Only the thread that began may go on.
#[derive(Debug)]
pub struct Tracer {
    pid: Pid,
    /// To the kernel, one thread is the tracer.
    _thread: PhantomData<*const ()>,
}

impl Tracer {
    /// Begins to trace the first thread of a child, which keeps running.
    ///
    /// # Errors
    /// When the system refuses, or another process traces it.
    pub fn seize(pid: Pid) -> io::Result<Tracer> {
        request(libc::PTRACE_SEIZE, pid)?;
        Ok(Tracer { pid, _thread: PhantomData })
    }

    /// Sends the child a signal, and takes it away once the child has stopped for it.
    ///
    /// # Errors
    /// When the child has ended, or does something other than stop for this signal.
    pub fn take_away(&self, signal: Signal) -> io::Result<()> {
        let pid = self.pid.as_raw_nonzero().get();
        // Sent to the traced thread: a signal sent to the process may go to another of its threads.
        // SAFETY: a plain system call without memory.
        if unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, signal.as_raw()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match waitpid(Some(self.pid), WaitOptions::empty())? {
            Some((_, status)) if status.stopping_signal() == Some(signal.as_raw()) => request(libc::PTRACE_CONT, self.pid),
            other => Err(io::Error::other(format!("the process does not stop for signal {}: {other:?}", signal.as_raw()))),
        }
    }
}

fn request(what: libc::c_uint, pid: Pid) -> io::Result<()> {
    let (nothing, pid) = (std::ptr::null_mut::<libc::c_void>(), pid.as_raw_nonzero().get());
    // SAFETY: neither request takes memory of ours: their last arguments are the options and the signal to deliver, both none.
    match unsafe { libc::ptrace(what, pid, nothing, nothing) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

//! A tracer: it takes signals away from a child before they are delivered. To a warden that must look like no death; so tests and benchmarks have one.

use std::io;
use std::marker::PhantomData;

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

/// Traces a child of this process, until that ends. Only the thread that began may go on.
#[derive(Debug)]
pub struct Tracer {
    pid: Pid,
    /// The kernel takes one thread for the tracer.
    _thread: PhantomData<*const ()>,
}

impl Tracer {
    /// Begins to trace the first thread of a child, which runs on.
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
    /// When the child has ended, or does something else than stop for this signal.
    pub fn take_away(&self, signal: Signal) -> io::Result<()> {
        let pid = self.pid.as_raw_nonzero().get();
        // To the thread that is traced: of a process's signals another thread may be given one.
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
    // SAFETY: both requests take no memory of ours: their last arguments are the options and the signal to deliver, none.
    match unsafe { libc::ptrace(what, pid, nothing, nothing) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

//! What a process that others depend on sets for itself at its start.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Turns core dumps off for this process and its children. A dump delays every sign of a death by the time that it takes to write the dump (TRAPS
/// 33): 155 ms for 64 MiB.
///
/// The limit is set to one byte, not to zero. Both are too little for a core file, but if cores are piped to a collector, the kernel ignores any
/// limit but one byte. The process stays dumpable in the sense of prctl, since that also governs which processes may look at it through /proc.
pub fn disable_core_dumps() -> io::Result<()> {
    let maximum = getrlimit(Resource::Core).maximum;
    let current = Some(maximum.map_or(1, |most| most.min(1)));
    Ok(setrlimit(Resource::Core, Rlimit { current, maximum })?)
}

/// Binds the calling thread to one processor, counted from 0.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        let most = CpuSet::MAX_CPU - 1;
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("processor {cpu}; allowed are 0 to {most}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread out of the way: it runs on every processor but the one that it has been bound to, if there is another, and preempts no
/// thread of ordinary priority. It is not starved either: even on a busy host, connections must be made within milliseconds.
///
/// This is for helpers of a process whose acting thread is bound to a processor, since they inherit that binding. SIGKILL wakes all threads of a
/// process at once. A helper on the acting thread's processor could end before the acting thread, whose death would then be seen that much later; or
/// before the successor that the death has woken there. The scheduler prefers the thread that has had less time, whatever its priority.
pub fn stand_aside() {
    leave_core();
    let _ = rustix::process::nice(10);
    let no_priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one `sched_param`, which outlives it; 0 names the calling thread. SCHED_BATCH threads preempt no other thread when they
    // wake, yet get their share; the time slice is reset to the usual one.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &no_priority) };
}

/// The variable by which a command tells processes that it starts, and that are to end with it, its own number.
pub const PARENT: &str = "MARTLET_PARENT";

/// From here on this process ends with the thread that has started it.
///
/// # Errors
/// When the kernel refuses. When that process has ended already: the kernel tells nothing of a death before this call.
pub fn end_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent in another PID namespace has no number here.
    let (parent, now) = (std::env::var(PARENT).ok().and_then(|number| number.parse().ok()), getppid().map(Pid::as_raw_nonzero));
    match (parent, now) {
        (Some(parent), Some(now)) if now.get() != parent => {
            Err(io::Error::other(format!("its parent, process {parent}, has ended already")))
        }
        _ => Ok(()),
    }
}

/// Makes the calling thread run before ordinary ones as soon as it has something to do, if that is allowed. For helpers that work for microseconds at
/// a time while others wait for them.
pub fn come_first() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters outlive the call, which changes the class of the calling thread and nothing else.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) } != 0;
    if refused {
        tracing::debug!(thread = std::thread::current().name(), "it runs as an ordinary one: real-time scheduling is not allowed");
    }
}

/// Lets the calling thread run on every processor but the one that it has been bound to, if there is another. This is the first half of [`stand_aside`], for a
/// helper that the acting thread waits for.
pub fn leave_core() {
    let mut everywhere = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| everywhere.set(cpu));
    let bound = sched_getaffinity(None).ok().filter(|cpus| cpus.count() == 1);
    let core = bound.and_then(|bound| (0..CpuSet::MAX_CPU).find(|cpu| bound.is_set(*cpu)));
    let mut elsewhere = everywhere;
    if let Some(core) = core {
        elsewhere.unset(core);
    }
    // A thread may always widen its set of processors or lower its priority. If this fails, it works all the same, only less politely. The kernel
    // refuses a set without a processor that this process may use.
    let _ = sched_setaffinity(None, &elsewhere).or_else(|_| sched_setaffinity(None, &everywhere));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_dumps_can_be_turned_off() {
        disable_core_dumps().expect("lowering a limit is always allowed");
        assert!(getrlimit(Resource::Core).current.is_some_and(|limit| limit <= 1));
        disable_core_dumps().expect("and again");
    }

    #[test]
    fn a_process_whose_parent_has_ended_already_does_not_begin() {
        const TEST: &str = "host::process::tests::a_process_whose_parent_has_ended_already_does_not_begin";
        const CHILD: &str = "MARTLET_TEST_TIED";
        if std::env::var_os(CHILD).is_some() {
            return println!("tied: {:?}", end_with_parent().map_err(|error| error.to_string()));
        }
        let child_of = |parent: u32| {
            let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
            child.args(["--exact", TEST, "--nocapture"]).env(CHILD, "").env(PARENT, parent.to_string());
            String::from_utf8(child.output().expect("it runs").stdout).expect("text")
        };
        let own = std::process::id();
        assert!(child_of(own).contains("tied: Ok(())"));
        let other = child_of(own + 1);
        assert!(other.contains(&format!("its parent, process {}, has ended already", own + 1)), "{other}");
    }

    #[test]
    fn a_helper_is_off_its_starter_s_core_where_there_is_another() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).expect("of this thread");
            let core = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("it runs somewhere");
            pin_to_cpu(core).expect("allowed");
            leave_core();
            assert_eq!(sched_getaffinity(None).expect("of this thread").is_set(core), allowed.count() == 1);
        })
        .join()
        .expect("the thread ends well");
    }

    #[test]
    fn a_processor_beyond_all_is_an_error() {
        assert!(pin_to_cpu(1 << 20).is_err());
    }
}

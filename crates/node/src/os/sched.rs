//! Which core a thread runs on and how the scheduler treats it.
//!
//! On a host with at least as many runnable threads as cores, the scheduler decides the failover time: a thread that is woken by a death has to get a core at
//! once. A thread of the class SCHED_FIFO does; a thread of the normal class with a short time slice usually does (EEVDF: a shorter slice is an earlier virtual
//! deadline). A runaway SCHED_FIFO thread could freeze the machine, so RLIMIT_RTTIME guards against it: a thread that has run for [`RT_BUDGET_US`] without
//! sleeping is put back into the normal class, and returns when it next parks.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::config::{Idle, Pin, Priority};

/// The highest core that can be named.
pub const MAX_CORE: u16 = CpuSet::MAX_CPU as u16 - 1;
/// The time slice asked for, in nanoseconds: the shortest that the kernel grants.
pub const SLICE_NS: u64 = 100_000;
/// By how much the kernel may prolong a sleep with a deadline in order to save itself an interrupt, in nanoseconds.
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1_000);
/// Asks for the kernel's usual slice, some milliseconds.
const USUAL_SLICE: u64 = 0;
/// How long a SCHED_FIFO thread may run without sleeping, in microseconds. Under steady load a node never parks; it then runs in the normal class, where it
/// needs no preference.
pub const RT_BUDGET_US: u64 = 20_000;
/// The lowest real-time priority: above every normal thread, and below everything else that is real-time on purpose.
const FIFO_PRIORITY: u32 = 1;

/// The cores that this thread may run on, in order.
pub fn allowed_cores() -> io::Result<Vec<u16>> {
    let set = sched_getaffinity(None)?;
    Ok((0..=MAX_CORE).filter(|core| set.is_set(usize::from(*core))).collect())
}

/// Binds the calling thread to one core.
pub fn pin_current_thread(core: u16) -> io::Result<()> {
    martlet_fabric::host::process::pin_to_cpu(usize::from(core))
}

/// Binds the calling thread to one core for as long as this value lives; after that the thread may run where it could before. For measurements: processes that
/// the thread starts meanwhile inherit the binding.
#[derive(Debug)]
pub struct OnCore {
    before: CpuSet,
    /// A thread's affinity is its own.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl OnCore {
    /// Binds the calling thread.
    ///
    /// # Errors
    /// When the thread may not run there.
    pub fn enter(core: u16) -> io::Result<OnCore> {
        let before = sched_getaffinity(None)?;
        pin_current_thread(core)?;
        Ok(OnCore { before, _not_send: std::marker::PhantomData })
    }
}

impl Drop for OnCore {
    fn drop(&mut self) {
        // The old cores were allowed before. If they have been taken away meanwhile, the thread stays where it is.
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}

/// The core for a node's acting thread `thread`, given the node's `position` among the cluster's nodes and the cores that the process may use.
/// `None`: the scheduler decides.
pub fn choose_core(pin: &Pin, position: usize, thread: usize, allowed: &[u16]) -> Option<u16> {
    match pin {
        Pin::None => None,
        Pin::Auto if allowed.is_empty() => None,
        // The first core is left to clients; the others are for nodes, from the last one on. With two cores the nodes of a cluster share one, which suits them:
        // only the primary has work there, and a node that waits for its death is woken on the core where it died.
        Pin::Auto => {
            let for_nodes = (allowed.len() - 1).max(1);
            Some(allowed[allowed.len() - 1 - (position + thread) % for_nodes])
        }
        Pin::Cores(cores) => Some(cores[thread % cores.len()]),
    }
}

/// The cores that the nodes of a cluster run on, as far as one of them, at `position` of `nodes`, can tell from its own settings; its own core first. What the
/// others' files bind them to is not known: when cores are named, or none are, the others may be on any allowed core, and up to `most` of those are taken,
/// spread evenly.
pub fn cores_of_nodes(pin: &Pin, position: usize, nodes: usize, allowed: &[u16], most: usize) -> Vec<u16> {
    let own = choose_core(pin, position, 0, allowed);
    let others: Vec<u16> = match pin {
        Pin::Auto => (0..nodes).filter_map(|other| choose_core(pin, other, 0, allowed)).collect(),
        Pin::None | Pin::Cores(_) => {
            let most = most.max(1);
            (0..allowed.len().min(most)).map(|at| allowed[at * allowed.len() / allowed.len().min(most)]).collect()
        }
    };
    let mut cores: Vec<u16> = Vec::new();
    for core in own.into_iter().chain(others) {
        if cores.len() < most && !cores.contains(&core) {
            cores.push(core);
        }
    }
    cores
}

/// Whether a core is named that the process may not use, perhaps because the host does not have it.
pub fn names_others(pin: &Pin, allowed: &[u16]) -> bool {
    matches!(pin, Pin::Cores(cores) if cores.iter().any(|core| !allowed.contains(core)))
}

/// Which cores may be named, in words.
pub fn allowed_pins(allowed: &[u16]) -> String {
    let cores: Vec<String> = allowed.iter().map(u16::to_string).collect();
    format!("\"none\", \"auto\", or a list of cores that this process may use: {}", cores.join(", "))
}

/// The class that a thread got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// SCHED_FIFO, guarded by RLIMIT_RTTIME.
    Fifo,
    /// The normal class with a short slice.
    Slice,
    /// The normal class.
    Normal,
}

/// What was done for a thread. To be printed, because a measurement means little without the placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The core it is bound to.
    pub core: Option<u16>,
    /// Its class.
    pub class: Class,
    /// What was asked for and could not be had, and why.
    pub refused: Option<String>,
}

impl Placement {
    /// The placement of a thread that stays as it is.
    pub const UNCHANGED: Placement = Placement { core: None, class: Class::Normal, refused: None };
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.core {
            Some(core) => write!(f, "core {core}, ")?,
            None => f.write_str("any core, ")?,
        }
        match self.class {
            Class::Fifo => write!(f, "SCHED_FIFO {FIFO_PRIORITY}, at most {RT_BUDGET_US} us at a stretch")?,
            Class::Slice => write!(f, "normal class, slice {} us", SLICE_NS / 1_000)?,
            Class::Normal => f.write_str("normal class")?,
        }
        match &self.refused {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

/// Places the calling thread as configured. What cannot be had is left out and named in the result, since a node on the wrong core still serves. Only a named
/// core that does not exist is an error.
///
/// # Errors
/// When the thread cannot be bound to its core.
pub fn place_current_thread(core: Option<u16>, priority: Priority, idle: Idle) -> io::Result<Placement> {
    if let Some(core) = core {
        pin_current_thread(core).map_err(|e| {
            let allowed = allowed_cores().map(|cores| format!("{cores:?}")).unwrap_or_default();
            io::Error::new(e.kind(), format!("threads.pin: core {core}: {e}; allowed: {allowed}"))
        })?;
    }
    // A thread that sleeps until a deadline is to be awake then, and not up to 50 us later. The kernel allows this to any thread.
    let _ = rustix::thread::set_current_timer_slack(TIMER_SLACK_NS);
    let parks = matches!(idle, Idle::Park | Idle::Adaptive);
    let mut refused = None;
    let class = match priority {
        Priority::Normal => Class::Normal,
        Priority::Fifo if parks => match enter_fifo() {
            Ok(()) => Class::Fifo,
            Err(e) => {
                refused = Some(format!("SCHED_FIFO refused: {e}"));
                slice_or_normal(&mut refused)
            }
        },
        Priority::Fifo | Priority::Auto | Priority::Slice => slice_or_normal(&mut refused),
    };
    Ok(Placement { core, class, refused })
}

fn slice_or_normal(refused: &mut Option<String>) -> Class {
    match set_attributes(0, &Attributes::normal_with_slice(SLICE_NS)) {
        Ok(()) => Class::Slice,
        Err(e) => {
            let why = format!("time slice refused: {e}");
            *refused = Some(match refused.take() {
                Some(before) => format!("{before}; {why}"),
                None => why,
            });
            Class::Normal
        }
    }
}

/// `struct sched_attr` of sched_setattr(2), first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Attributes {
    const fn new(policy: u32, priority: u32, runtime: u64) -> Attributes {
        Attributes {
            size: size_of::<Attributes>() as u32,
            policy,
            // Threads and processes started by this one do not inherit its class.
            flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            nice: 0,
            priority,
            runtime,
            deadline: 0,
            period: 0,
        }
    }

    const fn fifo() -> Attributes {
        Attributes::new(libc::SCHED_FIFO as u32, FIFO_PRIORITY, 0)
    }

    const fn normal_with_slice(slice_ns: u64) -> Attributes {
        Attributes::new(libc::SCHED_OTHER as u32, 0, slice_ns)
    }
}

/// sched_setattr(2) for a thread, 0 for the caller.
fn set_attributes(tid: i32, attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the pointer is to a live, initialised sched_attr whose size field is its size; the kernel only reads it.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, std::ptr::from_ref(attributes), 0) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Adapts the calling thread, which got `class`, to its role: a leader (`leads`) is to be preempted at once by the threads that wait for its death.
///
/// A leader that dies goes on running in the kernel for hundreds of microseconds, giving up its memory, and its successor is woken on the same processor. With
/// a longer slice than the successor's (and never in SCHED_FIFO, where threads of equal priority do not preempt each other) the dying leader makes way.
/// `watched`: the others watch its heartbeat closely, so it must not wait for a core for longer than they wait: if it shared a core with them, they would take
/// it for dead.
///
/// # Errors
/// When the kernel refuses. The thread then stays as it is, which only costs time at a failover.
pub fn suit_role(class: Class, leads: bool, watched: bool) -> io::Result<()> {
    match (class, leads) {
        (Class::Normal, _) => Ok(()),
        (Class::Slice | Class::Fifo, true) => {
            let slice = if watched { SLICE_NS } else { USUAL_SLICE };
            set_attributes(0, &Attributes::normal_with_slice(slice))
        }
        (Class::Slice, false) => set_attributes(0, &Attributes::normal_with_slice(SLICE_NS)),
        (Class::Fifo, false) => set_attributes(0, &Attributes::fifo()),
    }
}

/// While this lives, the calling thread of the normal class makes way for others: it preempts no other thread when it wakes, and the disk serves its reads and
/// writes last. What the kernel does not grant is left out.
///
/// Its I/O is in the last level of the usual class, and not in the idle class. A file system's commit waits for the data of all files in it, so a write that
/// the disk puts off until no other thread wants anything holds up the very syncs that were to go first, of this process and of all others. Nor does it use a
/// lower `nice` priority: to get that back takes a privilege, and what the thread does next may be urgent.
#[derive(Debug)]
pub struct MakingWay {
    /// A thread's priority is its own.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl MakingWay {
    /// The thread makes way from here on.
    pub fn begin() -> MakingWay {
        set_policy(libc::SCHED_BATCH);
        set_io_priority(IO_LAST);
        MakingWay { _not_send: std::marker::PhantomData }
    }
}

impl Drop for MakingWay {
    fn drop(&mut self) {
        set_policy(libc::SCHED_OTHER);
        set_io_priority(IO_UNSET);
    }
}

/// `IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7)`: the last level of the class that all threads are in by default.
const IO_LAST: libc::c_int = (2 << 13) | 7;
/// No I/O priority of its own: it follows from the thread's `nice`.
const IO_UNSET: libc::c_int = 0;

/// Puts the calling thread into this policy of the normal class, with its present `nice` and slice.
fn set_policy(policy: libc::c_int) {
    let no_priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one `sched_param`, which outlives it; 0 names the calling thread.
    let _ = unsafe { libc::sched_setscheduler(0, policy, &no_priority) };
}

fn set_io_priority(priority: libc::c_int) {
    const WHO_PROCESS: libc::c_int = 1;
    // SAFETY: the call takes numbers only; 0 names the calling thread.
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority) };
}

/// Threads in SCHED_FIFO, by thread id; 0: free. Read by the signal handler.
static FIFO_THREADS: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];
/// How often the guard has stepped in.
static DEMOTIONS: AtomicU64 = AtomicU64::new(0);

/// RLIMIT_RTTIME ran out: a thread of ours has had a core for too long. All of ours go back to the normal class. Called in a signal handler: atomics and system
/// calls only.
pub(super) fn end_budget() {
    for slot in &FIFO_THREADS {
        let tid = slot.load(Ordering::Relaxed);
        if tid != 0 {
            let _ = set_attributes(tid, &Attributes::normal_with_slice(SLICE_NS));
        }
    }
    DEMOTIONS.fetch_add(1, Ordering::Relaxed);
}

fn enter_fifo() -> io::Result<()> {
    super::signals::expect_processor_time()?;
    set_budget()?;
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let free = FIFO_THREADS.iter().find(|slot| slot.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok());
    let Some(slot) = free else {
        return Err(io::Error::other(format!("{} threads have that class already, the most that are guarded", FIFO_THREADS.len())));
    };
    set_attributes(0, &Attributes::fifo()).inspect_err(|_| slot.store(0, Ordering::Relaxed))
}

/// Sets the soft limit, which raises the signal. The hard limit would kill, so it is left alone.
fn set_budget() -> io::Result<()> {
    let (_, hard) = limits(libc::RLIMIT_RTTIME)?;
    set_limit(libc::RLIMIT_RTTIME, RT_BUDGET_US.min(hard), hard)
}

/// Notices that the guard has demoted a thread, so that the thread can return to its class before it parks.
#[derive(Debug)]
pub struct FifoWatch {
    seen: u64,
}

impl Default for FifoWatch {
    fn default() -> Self {
        FifoWatch { seen: DEMOTIONS.load(Ordering::Relaxed) }
    }
}

impl FifoWatch {
    /// To be called by a thread of class [`Class::Fifo`] that is about to sleep: puts it back into its class if the guard has demoted it. Returns whether the
    /// guard had.
    pub fn before_sleep(&mut self) -> bool {
        let now = DEMOTIONS.load(Ordering::Relaxed);
        if now == self.seen {
            return false;
        }
        self.seen = now;
        // With each signal the kernel raises the soft limit by a second, so it has to be set again.
        if let Err(error) = set_budget().and_then(|()| set_attributes(0, &Attributes::fifo())) {
            tracing::warn!(%error, "cannot return to SCHED_FIFO");
        }
        true
    }
}

fn limits(resource: libc::__rlimit_resource_t) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit, which the kernel fills.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((limit.rlim_cur, limit.rlim_max))
}

fn set_limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the pointer is to a live rlimit, which the kernel only reads.
    if unsafe { libc::setrlimit(resource, &limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Raises the soft limit on file descriptors to the hard one. Returns how many the process may then have.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = limits(libc::RLIMIT_NOFILE)?;
    if soft < hard {
        set_limit(libc::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_over_the_cores_and_lists_are_taken_in_order() {
        assert_eq!(choose_core(&Pin::None, 1, 0, &[0, 1]), None);
        assert_eq!(choose_core(&Pin::Auto, 2, 0, &[4, 6]), Some(6));
        assert_eq!(choose_core(&Pin::Auto, 1, 0, &[4, 5, 6]), Some(5));
        assert_eq!(choose_core(&Pin::Auto, 2, 0, &[4, 5, 6]), Some(6));
        assert_eq!(choose_core(&Pin::Auto, 2, 0, &[3]), Some(3));
        assert_eq!(choose_core(&Pin::Auto, 2, 1, &[]), None);
        assert_eq!(choose_core(&Pin::Cores(vec![3, 5]), 2, 0, &[0]), Some(3));
        assert_eq!(choose_core(&Pin::Cores(vec![3, 5]), 2, 3, &[0]), Some(5));
    }

    #[test]
    fn clocks_are_compared_between_the_cores_that_nodes_are_bound_to() {
        // Three nodes share the second of two cores, so there is nothing to compare; the first is the clients'.
        assert_eq!(cores_of_nodes(&Pin::Auto, 1, 3, &[0, 1], 8), [1]);
        // From the last core on, with its own first.
        assert_eq!(cores_of_nodes(&Pin::Auto, 1, 3, &[0, 1, 2, 3, 4, 5], 8), [4, 5, 3]);
        assert_eq!(cores_of_nodes(&Pin::Auto, 7, 16, &[0, 1, 2], 8), [1, 2]);
        // Where the others run is not known.
        assert_eq!(cores_of_nodes(&Pin::Cores(vec![7]), 1, 3, &[0, 1, 7], 8), [7, 0, 1]);
        let many: Vec<u16> = (0..128).collect();
        assert_eq!(cores_of_nodes(&Pin::None, 1, 3, &many, 4), [0, 32, 64, 96], "of both sockets");
        assert_eq!(cores_of_nodes(&Pin::None, 0, 1, &[], 4), [0; 0]);
    }

    #[test]
    fn each_core_of_a_list_has_to_be_one_that_may_be_used() {
        let others = |pin: &Pin| names_others(pin, &[0, 2]);
        assert!(!others(&Pin::None) && !others(&Pin::Auto) && !others(&Pin::Cores(vec![2, 0])));
        assert!(others(&Pin::Cores(vec![99])) && others(&Pin::Cores(vec![0, 1])), "the host may have it, and the process not");
        assert_eq!(allowed_pins(&[0, 2]), "\"none\", \"auto\", or a list of cores that this process may use: 0, 2");
    }

    #[test]
    fn a_core_that_is_not_there_is_refused_by_name() {
        let error = place_current_thread(Some(MAX_CORE), Priority::Normal, Idle::Spin).expect_err("no such core").to_string();
        assert!(error.contains(&format!("threads.pin: core {MAX_CORE}")) && error.contains("allowed: [0"), "{error}");
    }

    /// The class of this thread, as the kernel has it.
    fn class() -> i32 {
        // SAFETY: a plain system call about the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_spinning_thread_never_becomes_real_time_and_a_short_slice_needs_no_privilege() {
        std::thread::spawn(|| {
            for idle in [Idle::Spin, Idle::Yield] {
                let placement = place_current_thread(None, Priority::Fifo, idle).expect("no core was named");
                assert_ne!(placement.class, Class::Fifo);
            }
            let placement = place_current_thread(None, Priority::Slice, Idle::Spin).expect("no core was named");
            assert_eq!((placement.class, placement.refused.clone()), (Class::Slice, None));
            assert_eq!(placement.to_string(), "any core, normal class, slice 100 us");
        })
        .join()
        .expect("the thread ends well");
    }

    #[test]
    fn one_that_makes_way_is_as_before_afterwards_and_its_writes_are_not_of_the_idle_class() {
        std::thread::spawn(|| {
            // SAFETY: a plain system call about the calling thread.
            let io = || unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
            let before = (class(), io());
            for _ in 0..2 {
                let making_way = MakingWay::begin();
                assert_eq!((class(), io()), (libc::SCHED_BATCH, i64::from(IO_LAST)));
                drop(making_way);
                assert_eq!((class(), io()), before);
            }
        })
        .join()
        .expect("the thread ends well");
    }

    #[test]
    fn the_guard_puts_a_runaway_thread_back_and_it_returns_before_it_sleeps() {
        std::thread::spawn(|| {
            let mut watch = FifoWatch::default();
            let placement = place_current_thread(None, Priority::Fifo, Idle::Park).expect("no core was named");
            if placement.class != Class::Fifo {
                let why = placement.refused.expect("a reason");
                assert!(why.contains("SCHED_FIFO refused"), "{why}");
                return; // without the privilege there is nothing to guard
            }
            let fifo = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
            assert_eq!(class(), fifo);
            for _ in 0..3 {
                assert!(!watch.before_sleep());
                // A runaway: it ends only when the guard steps in.
                while class() == fifo {
                    std::hint::spin_loop();
                }
                assert!(watch.before_sleep());
                assert_eq!(class(), fifo);
                // The sleep that begins a new budget: so long that the thread is off its core before the timer goes off.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        })
        .join()
        .expect("the thread ends well");
    }
}

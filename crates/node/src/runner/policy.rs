//! What a node may change of the process that it runs in.

use std::io;

use martlet_fabric::host::process;
use martlet_fabric::limits;
use martlet_protocol::basics::Time;
use rustix::process::{Resource, getrlimit};

use super::RunError;
use crate::backend::Backend;
use crate::config::Settings;
use crate::stop::Stop;
use crate::undertaker::Undertaker;
use crate::{sched, signals, warm};

/// What a node may change in the process that it runs in. A process that is a node and nothing else allows [everything](ProcessPolicy::OWN). In another
/// program's process the node changes [nothing](ProcessPolicy::GUEST) unless that program asks for it.
///
/// Nothing that the node promises depends on the policy, only how fast a failover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessPolicy {
    /// Core dumps are turned off. Otherwise others see a death only when the core has been written: 155 ms for 64 MiB.
    pub core_dumps_off: bool,
    /// The limit on file descriptors is raised as far as allowed.
    pub raise_descriptor_limit: bool,
    /// SIGTERM, SIGINT and the approach of the limit on processor time (SIGXCPU) make the node leave in order; SIGHUP and others that mean nothing to a node
    /// are ignored, unless something else has set them.
    pub signals: bool,
    /// The allocator gives no memory back, and the program's code is mapped at the start, so that a takeover meets no page fault.
    pub keep_memory: bool,
    /// A second process (`martlet-mourner`) shares the memory, so that the connections of a process that was killed end at once.
    pub second_process: bool,
    /// The calling thread is bound to a core and scheduled as `threads` says.
    pub place_thread: bool,
}

impl ProcessPolicy {
    /// The process belongs to the node.
    pub const OWN: ProcessPolicy = ProcessPolicy {
        core_dumps_off: true,
        raise_descriptor_limit: true,
        signals: true,
        keep_memory: true,
        second_process: true,
        place_thread: true,
    };

    /// The process belongs to another program, which has asked for nothing.
    pub const GUEST: ProcessPolicy = ProcessPolicy {
        core_dumps_off: false,
        raise_descriptor_limit: false,
        signals: false,
        keep_memory: false,
        second_process: false,
        place_thread: false,
    };

    /// What comes first. Also checks the limits, whatever the policy.
    pub(super) fn begin<F: Backend>(&self, settings: &Settings, stop: &Stop) -> Result<(), RunError> {
        let node = settings.id();
        let system = |what| move |error| RunError::System { node, what, error };
        if self.signals {
            signals::take(stop).map_err(system("cannot take the signals"))?;
            leave_before_the_time_is_up().map_err(system("cannot set the limit of processor time"))?;
        }
        if self.core_dumps_off {
            process::disable_core_dumps().map_err(system("cannot turn core dumps off"))?;
        }
        if self.raise_descriptor_limit {
            sched::raise_descriptor_limit().map_err(system("cannot raise the limit of descriptors"))?;
        }
        check_limits::<F>(settings).map_err(|why| RunError::Limit { node, why })
    }

    /// What comes after the thread is placed. Returns how many bytes of code were mapped.
    pub(super) fn keep_memory(&self) -> io::Result<usize> {
        if !self.keep_memory {
            return Ok(0);
        }
        let populated = warm::populate_code()?;
        warm::keep_heap();
        Ok(populated)
    }
}

/// The fewest descriptors with which a node of a cluster of `nodes` nodes starts, not counting those of its clients.
pub fn descriptors_needed(nodes: usize) -> u64 {
    48 + 16 * nodes as u64
}

/// Reports at the start, and by its name, a limit that a node cannot run with.
fn check_limits<F: Backend>(settings: &Settings) -> Result<(), String> {
    let current = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
    let nodes = settings.cluster().config().nodes.len();
    let (descriptors, needed) = (current(Resource::Nofile), descriptors_needed(nodes));
    if descriptors < needed {
        return Err(format!(
            "the limit of file descriptors (ulimit -n) is {descriptors}; a node in a cluster of {nodes} needs at least {needed}, and one more for each client"
        ));
    }
    limits::check_stack()?;
    let memory = F::memory_need(settings);
    let file_size = current(Resource::Fsize);
    if limits::check_file_size(memory.largest_bytes).is_err() {
        return Err(format!(
            "the limit of a file's size (ulimit -f) is {file_size} bytes; shared memory is a file to the system, and this cluster's `sizes` need one of {} bytes",
            memory.largest_bytes
        ));
    }
    let config = settings.cluster().config();
    if config.durability.writes() && file_size < config.durability.segment_bytes {
        return Err(format!(
            "the limit of a file's size (ulimit -f) is {file_size} bytes; a file of the log on disk takes {} (durability.segment_bytes)",
            config.durability.segment_bytes
        ));
    }
    if limits::check_address_space(memory.all_bytes).is_err() {
        return Err(format!(
            "the limit of address space (ulimit -v) is {} bytes; this node maps {} for a cluster of {nodes} (`sizes`), beside what its state takes",
            current(Resource::As),
            memory.all_bytes
        ));
    }
    // Limits that would end the process later: an allocation cannot fail, and the system kills.
    for (resource, what) in [(Resource::As, "the limit of address space (ulimit -v)"), (Resource::Data, "the limit of data (ulimit -d)")] {
        if let Some(most) = getrlimit(resource).current {
            tracing::warn!("{what} is {most} bytes: a node that reaches it ends; keep redis.maxmemory well below it");
        }
    }
    if config.durability.writes() && file_size < u64::MAX {
        tracing::warn!("the limit of a file's size (ulimit -f) is {file_size} bytes: a larger snapshot fails as on a full disk");
    }
    Ok(())
}

/// If the processor time of this process is limited, arranges to be told of the limit early enough to leave in order: at the hard limit the process is killed.
fn leave_before_the_time_is_up() -> io::Result<()> {
    let limit = getrlimit(Resource::Cpu);
    let Some(least) = limit.current.into_iter().chain(limit.maximum).min() else { return Ok(()) };
    let early = least - (least / 4).clamp(1, 10).min(least);
    tracing::warn!("the limit of processor time (ulimit -t) is {least} s: this node leaves when it has used {early} s");
    signals::end_after(early.max(1))
}

/// How often a node looks whether its second process lives.
const LOOK_FOR_UNDERTAKER_NS: u64 = 500_000_000;

/// The second process, if the policy allows one. It is replaced when it has died.
pub(super) struct SecondProcess {
    undertaker: Option<Undertaker>,
    next_look: Time,
}

impl SecondProcess {
    pub(super) fn start(policy: &ProcessPolicy) -> SecondProcess {
        let undertaker = policy.second_process.then(Self::undertaker).flatten();
        SecondProcess { undertaker, next_look: Time(0) }
    }

    /// Everything works without it, but then connections of clients end only after the memory of a dead node has been torn down.
    fn undertaker() -> Option<Undertaker> {
        Undertaker::start()
            .inspect_err(
                |error| tracing::warn!(%error, "cannot start the second process (martlet-mourner): if this node dies, its clients' connections end later"),
            )
            .ok()
    }

    /// Must be called now and then, when there is nothing else to do. If it could not be started at first, it is not tried again.
    pub(super) fn tend(&mut self, now: Time) {
        if now < self.next_look {
            return;
        }
        self.next_look = now.after(LOOK_FOR_UNDERTAKER_NS);
        if self.undertaker.as_ref().is_some_and(Undertaker::has_ended) {
            tracing::warn!("the second process (martlet-mourner) has ended; another one is started");
            // The old one's stack is unmapped first.
            self.undertaker = None;
            self.undertaker = Self::undertaker();
        }
    }
}

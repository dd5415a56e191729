//! What a program says of how a replica is to be started.

use std::ffi::c_char;
use std::fmt::Display;
use std::mem::{MaybeUninit, offset_of};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use martlet_node::ProcessPolicy;
use martlet_node::config::{Idle, Pin, Priority, Settings, ThreadsConfig};
use martlet_node::embed::{Builder, Replica, StartError};

use crate::bytes::text;
use crate::status::{Failure, bad, null};

/// How a replica is to be started. Zeroes mean that something is not set, but for the size and a node's number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_options {
    /// sizeof(martlet_options): by it a library knows which of the fields below the program was compiled with. Must be set.
    pub size: usize,
    /// The cluster's configuration file. Must be set, or node_file.
    pub cluster_file: *const c_char,
    /// The node's own configuration file, which names the cluster's: instead of cluster_file and node. What is set here goes before what it says.
    pub node_file: *const c_char,
    /// Where clients of this program reach this process, as host:port: what the others tell those who ask for the leader. The program
    /// listens there itself. NULL: the address in the cluster's file.
    pub listen: *const c_char,
    /// How commands are replicated: "primary-backup", "mu", "dare", "apus", "hsuc" or "huc", the same for all replicas; NULL: as the cluster's file says.
    pub engine: *const c_char,
    /// What an acknowledged command outlives: "memory", "async" or "sync", the same for all replicas; NULL: as the cluster's file says. Beyond memory the
    /// engine has to be mu or apus.
    pub durability: *const c_char,
    /// Where this replica keeps its data, if it keeps any on a disk: a directory of its own; NULL: as the configuration says.
    pub directory: *const c_char,
    /// What the replica's thread does without work: "spin", "yield", "park" or "adaptive"; NULL: as the node's file says, or "adaptive".
    pub idle: *const c_char,
    /// On which core the replica's thread runs: "none", "auto", or a list of cores such as "0,1"; NULL: as the node's file says, or "auto".
    pub pin: *const c_char,
    /// How the scheduler treats the replica's thread: "auto", "fifo", "slice" or "normal"; NULL: as the node's file says, or "auto".
    pub priority: *const c_char,
    /// The longest that a blocking call takes, in microseconds; 0: as long as it takes.
    pub timeout_us: u64,
    /// How many calls may wait at once; 0: as many as the library thinks good.
    pub max_waiting: usize,
    /// Which node of the cluster this process is. Not to be set with node_file.
    pub node: u32,
    /// For how long the replica's thread spins after the last work before it sleeps, with "adaptive", in microseconds; 0: as the node's file says, or 50.
    pub spin_us: u32,
    /// Not 0: every process of the cluster runs where this one sees it, in this network namespace or with the same rendezvous directory, so that a replica that is
    /// not seen does not run, and the cluster may be founded without it. 0: it is founded when all of them are there.
    pub all_here: u64,
    /// 1: this process is a replica and nothing else, which may turn core dumps off, raise the limit of descriptors, take signals (as martlet_on_signals does, and
    /// ignore those that mean nothing to it), keep memory at hand, and start a second process that makes connections of a killed one end at once. 0: it is a
    /// program with a replica in it, and nothing of that is done.
    pub owns_process: u64,
}

/// Structures that a program fills in and that begin with their size, by which they can grow.
pub(crate) trait Grows: Copy {
    /// How long it was when it first told its size.
    const LEAST_BYTES: usize;
}

impl Grows for martlet_options {
    const LEAST_BYTES: usize = offset_of!(martlet_options, spin_us) + size_of::<u32>();
}

// A field that is added stands where a program that does not know it has nothing: not in padding, which may hold anything.
const _: () = assert!(offset_of!(martlet_options, all_here) == martlet_options::LEAST_BYTES, "no padding before what was added");
const _: () =
    assert!(offset_of!(martlet_options, owns_process) == offset_of!(martlet_options, all_here) + size_of::<u64>(), "no padding between");
const _: () =
    assert!(offset_of!(martlet_options, owns_process) + size_of::<u64>() == size_of::<martlet_options>(), "no padding at the end");

/// More than any structure of ours will ever take: a larger size is one that was never set.
const MOST_BYTES: usize = 4096;

/// A structure that begins with its size, as a program has it that was compiled with an older or a newer header: what an older one lacks is zero, and a
/// newer one may hold nothing that is not known here.
///
/// # Safety
/// `T` is `repr(C)`, begins with its size as a `usize`, and may be all zeroes; `given` is null or points to as many bytes as it says itself.
pub(crate) unsafe fn sized<T: Grows>(given: *const T, name: &str) -> Result<T, Failure> {
    if given.is_null() {
        return Err(null(name));
    }
    // SAFETY: it is not null, and by the caller's promise begins with its size.
    let size = unsafe { given.cast::<usize>().read() };
    if !(T::LEAST_BYTES..=MOST_BYTES).contains(&size) {
        return Err(bad(
            &format!("{name}->size"),
            format_args!("is {size}; set it to the sizeof of its type, which is {} here", size_of::<T>()),
        ));
    }
    let bytes = given.cast::<u8>();
    // SAFETY: by the caller's promise there are so many bytes, and they lie behind those that are known here.
    let has_more = (size_of::<T>()..size).any(|at| unsafe { bytes.add(at).read() } != 0);
    if has_more {
        return Err(bad(name, format_args!("has a field set that this library, version {}, does not know", env!("CARGO_PKG_VERSION"))));
    }
    let mut known = MaybeUninit::<T>::zeroed();
    // SAFETY: as many bytes as both have; zeroes are a value, and so is what the program has set.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes, known.as_mut_ptr().cast(), size.min(size_of::<T>()));
        Ok(known.assume_init())
    }
}

/// An option that is a text with a meaning.
///
/// # Safety
/// As [`text`].
unsafe fn parsed<T: FromStr<Err: Display>>(given: *const c_char, name: &str) -> Result<Option<T>, Failure> {
    // SAFETY: the caller's promise.
    let Some(text) = (unsafe { text(given, name) })? else { return Ok(None) };
    text.parse().map(Some).map_err(|why: T::Err| bad(name, format_args!(": {why}")))
}

/// What the options say, read as far as arguments go.
pub(crate) struct Wanted<'a> {
    builder: Builder,
    node_file: Option<&'a Path>,
    idle: Option<Idle>,
    pin: Option<Pin>,
    priority: Option<Priority>,
    spin_us: Option<u64>,
}

impl martlet_options {
    /// What they say.
    ///
    /// # Safety
    /// Every text is null or ends with a NUL, and does not change during `'a`.
    pub(crate) unsafe fn wanted<'a>(&self) -> Result<Wanted<'a>, Failure> {
        // SAFETY: the caller's promise, for all of them.
        let (cluster, node, listen, directory) = unsafe {
            (
                text(self.cluster_file, "options->cluster_file")?,
                text(self.node_file, "options->node_file")?.map(Path::new),
                text(self.listen, "options->listen")?,
                text(self.directory, "options->directory")?,
            )
        };
        let mut builder = Replica::builder();
        match (cluster, node) {
            (Some(_), Some(_)) => return Err(bad("options->node_file", "is set, and so is options->cluster_file: set one of them")),
            (Some(cluster), None) => {
                let number =
                    u16::try_from(self.node).map_err(|_| bad("options->node", format_args!("is {}; allowed are 0 to 15", self.node)))?;
                builder = builder.cluster_file(cluster).node(number);
            }
            (None, Some(_)) if self.node != 0 => {
                return Err(bad(
                    "options->node",
                    format_args!("is {}; with options->node_file, which says the node, leave it 0", self.node),
                ));
            }
            (None, Some(_)) => {}
            (None, None) => return Err(null("options->cluster_file")),
        }
        if let Some(listen) = listen {
            builder = builder.listen(listen);
        }
        if let Some(directory) = directory {
            builder = builder.directory(directory);
        }
        match self.owns_process {
            0 => {}
            1 => builder = builder.process_policy(ProcessPolicy::OWN),
            other => return Err(bad("options->owns_process", format_args!("is {other}; allowed are 0 and 1"))),
        }
        if self.timeout_us > 0 {
            builder = builder.timeout(Duration::from_micros(self.timeout_us));
        }
        if self.all_here != 0 {
            builder = builder.all_here();
        }
        if self.max_waiting > 0 {
            builder = builder.max_waiting(self.max_waiting);
        }
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            if let Some(engine) = parsed(self.engine, "options->engine")? {
                builder = builder.engine(engine);
            }
            if let Some(durability) = parsed(self.durability, "options->durability")? {
                builder = builder.durability(durability);
            }
            Ok(Wanted {
                builder,
                node_file: node,
                idle: parsed(self.idle, "options->idle")?,
                pin: parsed(self.pin, "options->pin")?,
                priority: parsed(self.priority, "options->priority")?,
                spin_us: (self.spin_us > 0).then_some(u64::from(self.spin_us)),
            })
        }
    }
}

impl Wanted<'_> {
    /// With what the node's file says, where there is one.
    pub fn builder(self) -> Result<Builder, StartError> {
        let settings = self.node_file.map(Settings::load).transpose()?;
        let threads = settings.as_ref().map(|settings| settings.node().threads.clone()).unwrap_or_default();
        let threads = ThreadsConfig {
            idle: self.idle.unwrap_or(threads.idle),
            pin: self.pin.unwrap_or(threads.pin),
            priority: self.priority.unwrap_or(threads.priority),
            spin_us: self.spin_us.unwrap_or(threads.spin_us),
            ..threads
        };
        let builder = self.builder.threads(threads);
        Ok(match settings {
            Some(settings) => builder.settings(settings),
            None => builder,
        })
    }
}

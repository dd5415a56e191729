//! What one process does.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use martlet_settings::{Checker, ConfigError};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Secret;
use super::fabric::NodeVerbsConfig;

/// What one process does. The same node may be given another file at its next start; the cluster does not notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Which node of the cluster it is.
    pub number: u16,
    /// The cluster's file; relative to this file's directory.
    pub cluster: PathBuf,
    /// Where this node keeps its data, if not where the cluster's file says; relative to this file's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Whether this process answers other hosts, at the TCP port after that of its `address`: hosts that join with an invitation, and hosts of the cluster that
    /// ask for the list of its nodes (`martlet host`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers_hosts: bool,
    /// The front end for clients that speak the Redis protocol.
    #[serde(default)]
    pub redis: RedisConfig,
    /// The core on which each thread runs, and what it does when there is no work.
    #[serde(default)]
    pub threads: ThreadsConfig,
    /// How this process uses RDMA, if not as the cluster's file says.
    #[serde(default, skip_serializing_if = "NodeVerbsConfig::is_empty")]
    pub verbs: NodeVerbsConfig,
    /// The warden of this host.
    #[serde(default, skip_serializing_if = "WardenConfig::is_default")]
    pub warden: WardenConfig,
}

/// How a node uses the warden of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WardenConfig {
    /// Whether the node registers there.
    #[serde(rename = "use")]
    pub usage: UseWarden,
    /// The warden's socket; relative to this file's directory. Absent: where wardens are usually found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

impl WardenConfig {
    fn is_default(&self) -> bool {
        *self == WardenConfig::default()
    }
}

/// Whether a node registers with the warden of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UseWarden {
    /// With the warden that is there, or with one that comes, if the fabric shows no certain deaths by itself, or a socket is named.
    #[default]
    Auto,
    /// The node does not start without one.
    On,
    /// With none.
    Off,
}

/// What the replies to Redis clients rely on if they say something about keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// On a majority if nodes can be on several hosts, each with a clock of its own, and on the lease otherwise.
    #[default]
    Auto,
    /// On the primary's lease, and so on its clock.
    Lease,
    /// On a majority, which is asked after the command was executed.
    Quorum,
}

/// The front end for clients that speak the Redis protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedisConfig {
    /// The address to listen on.
    pub listen: String,
    /// The TCP port to listen on. Absent: the port of this node's `redis` address in the cluster's file; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// A Unix socket to listen on as well; relative to this file's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix_socket: Option<PathBuf>,
    /// Whether to speak as a Redis Cluster does: a node that does not lead answers `-MOVED`, which cluster clients follow. Otherwise it answers
    /// `-READONLY` and names the primary.
    pub cluster: bool,
    /// What replies rely on for a client that has not chosen by READ QUORUM, READ LEASE or READONLY.
    pub reads: Reads,
    /// The password that clients must give with AUTH. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirepass: Option<Secret>,
    /// Whether a node refuses to start if it would listen beyond this host without a password.
    pub protected_mode: bool,
    /// How much memory keys and values may take; 0: no limit. A number of bytes, or a text such as "256mb".
    pub maxmemory: Bytes,
    /// How many clients may be connected at once.
    pub maxclients: u32,
}

impl Default for RedisConfig {
    fn default() -> Self {
        RedisConfig {
            listen: "127.0.0.1".to_owned(),
            port: None,
            unix_socket: None,
            cluster: true,
            reads: Reads::Auto,
            requirepass: None,
            protected_mode: true,
            maxmemory: Bytes(0),
            maxclients: 10_000,
        }
    }
}

/// The core on which each thread runs, and what it does when there is no work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ThreadsConfig {
    /// Which part runs on which thread.
    pub plan: ThreadPlan,
    /// Which cores the acting threads are bound to.
    pub pin: Pin,
    /// What an acting thread does when there is no work.
    pub idle: Idle,
    /// With `adaptive`: for how long a primary spins after the last work before it parks, in microseconds. A backup parks at once, since the core may be the
    /// primary's.
    pub spin_us: u64,
    /// How the scheduler treats the acting threads.
    pub priority: Priority,
    /// How often the backup that would succeed the primary plays a takeover through, on memory of its own, so that a real takeover finds its code in the
    /// caches, in microseconds; 0: never. Each rehearsal takes a few tens of microseconds, of the primary's core if the two share one.
    pub rehearse_every_us: u64,
    /// How long a core of this host may take to wake up while the node runs, in microseconds, as a request to the kernel; 0: cores do not halt, which costs
    /// power. `None`: the kernel decides. This needs a privilege; without it the node says so and goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_latency_us: Option<u32>,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        ThreadsConfig {
            plan: ThreadPlan::Shared,
            pin: Pin::Auto,
            idle: Idle::Adaptive,
            spin_us: 50,
            priority: Priority::Auto,
            rehearse_every_us: 5_000,
            wake_latency_us: None,
        }
    }
}

/// Which part of a node runs on which thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPlan {
    /// One thread for everything.
    Shared,
    /// Membership and leases have a thread of their own. This version refuses it.
    Dedicated,
}

/// What an acting thread does when there is no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Looks again at once. For a thread that has a core of its own.
    Spin,
    /// Lets others run, then looks again.
    Yield,
    /// Sleeps until it is nudged or a deadline comes.
    Park,
    /// Spins for a while after the last work, then parks.
    Adaptive,
}

/// How the scheduler treats the acting threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// The best that the process may have and that cannot freeze the machine.
    Auto,
    /// SCHED_FIFO, with a limit on the time that the thread may run without sleeping. For threads that park; needs a privilege.
    Fifo,
    /// The normal class with a short time slice, so that a thread that wakes up gets the core soon.
    Slice,
    /// Nothing is changed.
    Normal,
}

/// Which cores the acting threads are bound to: `"none"`, `"auto"`, or a list of cores, taken in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The scheduler decides.
    None,
    /// The first core is left to clients; nodes take the others, from the last one on, by their place in the cluster's list, and share them if there are too
    /// few. On a fabric whose nodes wait for each other's turns: none, as [`Settings::pin`](super::Settings::pin) says.
    Auto,
    /// The first acting thread is bound to the first core of the list, and so on, starting over when the list ends.
    Cores(Vec<u16>),
}

impl Idle {
    /// All variants.
    pub const ALL: [Idle; 4] = [Idle::Spin, Idle::Yield, Idle::Park, Idle::Adaptive];

    /// Its name in files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Idle::Spin => "spin",
            Idle::Yield => "yield",
            Idle::Park => "park",
            Idle::Adaptive => "adaptive",
        }
    }
}

impl FromStr for Idle {
    type Err = String;

    fn from_str(name: &str) -> Result<Idle, String> {
        Idle::ALL.into_iter().find(|idle| idle.name() == name).ok_or_else(|| {
            let names = Idle::ALL.map(Idle::name).join(", ");
            format!("what a thread does without work is {name:?}; allowed are {names}")
        })
    }
}

impl Priority {
    /// All variants.
    pub const ALL: [Priority; 4] = [Priority::Auto, Priority::Fifo, Priority::Slice, Priority::Normal];

    /// Its name in files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Auto => "auto",
            Priority::Fifo => "fifo",
            Priority::Slice => "slice",
            Priority::Normal => "normal",
        }
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(name: &str) -> Result<Priority, String> {
        Priority::ALL.into_iter().find(|priority| priority.name() == name).ok_or_else(|| {
            let names = Priority::ALL.map(Priority::name).join(", ");
            format!("the priority is {name:?}; allowed are {names}")
        })
    }
}

/// On a command line, or wherever else there are no lists: `none`, `auto`, or cores with commas between them.
impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Pin, String> {
        match text {
            "none" => Ok(Pin::None),
            "auto" => Ok(Pin::Auto),
            list => {
                let cores: Result<Vec<u16>, _> = list.split(',').map(str::parse).collect();
                cores.map(Pin::Cores).map_err(|_| format!("the cores are {text:?}; allowed are none, auto, or a list of cores such as 0,1"))
            }
        }
    }
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Pin::None => s.serialize_str("none"),
            Pin::Auto => s.serialize_str("auto"),
            Pin::Cores(cores) => cores.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Pin {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct PinVisitor;
        impl<'de> Visitor<'de> for PinVisitor {
            type Value = Pin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"auto\" or a list of cores such as [0, 1]")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pin, E> {
                match text {
                    "none" => Ok(Pin::None),
                    "auto" => Ok(Pin::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Pin, A::Error> {
                let mut cores = Vec::new();
                while let Some(core) = seq.next_element()? {
                    cores.push(core);
                }
                Ok(Pin::Cores(cores))
            }
        }
        d.deserialize_any(PinVisitor)
    }
}

/// A number of bytes. In a file: a number, or a text with one of Redis's units (`k` and `kb`, `m` and `mb`, `g` and `gb`; the ones that end
/// in `b` count in powers of 1024).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// A number, with or without a unit; `None` if the text is not one.
    pub fn parse(text: &str) -> Option<Bytes> {
        let text = text.trim().to_ascii_lowercase();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().ok()?;
        let unit: u64 = match &text[digits..] {
            "" | "b" => 1,
            "k" => 1_000,
            "kb" => 1 << 10,
            "m" => 1_000_000,
            "mb" => 1 << 20,
            "g" => 1_000_000_000,
            "gb" => 1 << 30,
            _ => return None,
        };
        number.checked_mul(unit).map(Bytes)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        // TOML's integers are signed.
        match i64::try_from(self.0) {
            Ok(n) => s.serialize_i64(n),
            Err(_) => s.serialize_str(&self.0.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a text such as \"256mb\" or \"2gb\"")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Bytes, E> {
                u64::try_from(n).map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Bytes, E> {
                Ok(Bytes(n))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                Bytes::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        d.deserialize_any(BytesVisitor)
    }
}

/// The longest path that a Unix socket can have, in bytes, without its terminating zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;

impl NodeConfig {
    /// Node `number` of the cluster in that file, with defaults for everything else.
    pub fn new(number: u16, cluster: impl Into<PathBuf>) -> NodeConfig {
        NodeConfig {
            number,
            cluster: cluster.into(),
            directory: None,
            redis: RedisConfig::default(),
            threads: ThreadsConfig::default(),
            answers_hosts: false,
            verbs: NodeVerbsConfig::default(),
            warden: WardenConfig::default(),
        }
    }

    pub(super) const ALLOWED_MEMORY: &'static str =
        "0 for no limit, or at least 1mb: a number of bytes, or a text such as \"256mb\" or \"2gb\"";
    pub(super) const ALLOWED_PLAN: &'static str = "\"shared\", the only plan of this version";
    pub(super) const ALLOWED_REHEARSALS: &'static str = "0 for never, or 200 to 10000000";

    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_toml(text: &str) -> Result<NodeConfig, String> {
        martlet_settings::read(Path::new(""), text).map_err(|error| error.to_string())
    }

    /// The file's text. Reading it gives an equal value.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain tables of numbers and texts have a TOML form")
    }

    pub(super) fn validate(&self, file: &Path) -> Result<(), ConfigError> {
        let check = Checker::of::<NodeConfig>(file);
        if self.redis.listen.parse::<std::net::IpAddr>().is_err() {
            return Err(check.refuse(
                "redis.listen",
                format_args!("{:?}", self.redis.listen),
                "an IPv4 or IPv6 address, such as \"127.0.0.1\"",
            ));
        }
        if let Some(socket) = &self.redis.unix_socket {
            let bytes = socket.as_os_str().len();
            if bytes == 0 || bytes > MAX_SOCKET_PATH_BYTES {
                return Err(check.refuse(
                    "redis.unix_socket",
                    format_args!("{:?}", socket.display().to_string()),
                    format_args!("a path of 1 to {MAX_SOCKET_PATH_BYTES} bytes"),
                ));
            }
        }
        if let Some(socket) = &self.warden.socket {
            let bytes = socket.as_os_str().len();
            if bytes == 0 || bytes > MAX_SOCKET_PATH_BYTES {
                return Err(check.refuse(
                    "warden.socket",
                    format_args!("{:?}", socket.display().to_string()),
                    format_args!("a path of 1 to {MAX_SOCKET_PATH_BYTES} bytes"),
                ));
            }
        }
        if let Some(Secret(password)) = &self.redis.requirepass
            && (password.is_empty() || password.len() > 512)
        {
            // The password itself is not repeated, since messages end up in logs.
            return Err(check.refuse(
                "redis.requirepass",
                format_args!("a text of {} bytes", password.len()),
                "1 to 512 bytes; leave the key out for no password",
            ));
        }
        check.number("redis.maxclients", self.redis.maxclients)?;
        if self.redis.maxmemory.0 != 0 && self.redis.maxmemory.0 < 1 << 20 {
            return Err(check.refuse("redis.maxmemory", self.redis.maxmemory, Self::ALLOWED_MEMORY));
        }
        self.verbs.validate(&check)?;
        if self.threads.plan == ThreadPlan::Dedicated {
            return Err(check.refuse("threads.plan", "\"dedicated\"", Self::ALLOWED_PLAN));
        }
        check.number("threads.spin_us", self.threads.spin_us)?;
        let every_us = self.threads.rehearse_every_us;
        if every_us != 0 && !(200..=10_000_000).contains(&every_us) {
            return Err(check.refuse("threads.rehearse_every_us", every_us, Self::ALLOWED_REHEARSALS));
        }
        if let Some(us) = self.threads.wake_latency_us {
            check.number("threads.wake_latency_us", us)?;
        }
        if let Pin::Cores(cores) = &self.threads.pin {
            let highest = crate::sched::MAX_CORE;
            if cores.is_empty() || cores.iter().any(|c| *c > highest) {
                return Err(check.refuse(
                    "threads.pin",
                    format_args!("{cores:?}"),
                    format_args!("\"none\", \"auto\", or a list of at least one core from 0 to {highest}"),
                ));
            }
        }
        if self.threads.priority == Priority::Fifo && self.threads.idle != Idle::Park && self.threads.idle != Idle::Adaptive {
            return Err(check.refuse(
                "threads.priority",
                "\"fifo\"",
                "\"auto\", \"slice\" or \"normal\" where threads.idle is \"spin\" or \"yield\": a spinning thread of that class keeps the core from all other threads",
            ));
        }
        Ok(())
    }
}

//! What all processes of a cluster agree on.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use martlet_fabric::FabricKind;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::basics::layout::{MAX_MEMBERS, Sizes};
use martlet_protocol::engine::EngineKind;
use martlet_protocol::membership::view::MAX_ADDRESS_BYTES;
use martlet_protocol::membership::{self, Roles};
use martlet_protocol::replica::Execution;
use martlet_settings::{Checker, ConfigError};
use serde::{Deserialize, Serialize};

use super::Secret;
use super::durability::DurabilityConfig;
use super::fabric::{EthernetConfig, VerbsConfig};
use super::group::GroupConfig;
use super::list::ListConfig;
use super::recovery::RecoveryConfig;

/// What all processes of a cluster agree on: each of them has the same file, or a file with the same content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Tells clusters on one host apart: 1 to 48 letters, digits, `-`, `_` or `.`.
    pub name: String,
    /// The secret that admits a process to the cluster: 64 hexadecimal digits. This or `key_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
    /// A file that holds nothing but the key and is readable by its owner only; relative to this file's directory. This or `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// How the processes reach each other's memory.
    #[serde(default, with = "super::by_name")]
    pub fabric: FabricKind,
    /// A directory in which the processes of one host meet, if `fabric` is `"shm"`; relative to this file's directory. It must exist, on a file system of this
    /// host that all of them mount. Absent: they meet under names that the processes of one network namespace see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<PathBuf>,
    /// How long a lease lasts, in microseconds. A member that stops without dying (SIGSTOP, a hang) costs a failover at least this long; a member that dies
    /// does not. A lease must last longer than the scheduler may withhold a core from a thread, or the primary pauses each time.
    #[serde(default = "ClusterConfig::default_lease_us")]
    pub lease_us: u64,
    /// By how much a host's clock may run fast or slow, in parts per million. A lease's holder uses that much less of it, and others wait that much longer. A
    /// host whose clock is corrected faster than that breaks leases; `martlet doctor` compares. Absent: see [`clock_drift_ppm`](Self::clock_drift_ppm()).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_drift_ppm: Option<u64>,
    /// When a silent process is presumed dead.
    #[serde(default)]
    pub detector: DetectorConfig,
    /// When followers take a leader that makes no progress for dead, if the engine elects by itself; by default when the detector would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub election: Option<ElectionConfig>,
    /// How large the rings are.
    #[serde(default)]
    pub sizes: SizesConfig,
    /// How RDMA is used, if `fabric` is `"verbs"`.
    #[serde(default)]
    pub verbs: VerbsConfig,
    /// How ordinary hosts reach each other, if `fabric` is `"ethernet"`.
    #[serde(default)]
    pub ethernet: EthernetConfig,
    /// How requests are replicated.
    #[serde(default, with = "super::by_name")]
    pub engine: EngineKind,
    /// When a leader executes a command: `"speculative"`, before it is replicated, or `"committed"`, once it is committed.
    #[serde(default, with = "super::by_name", skip_serializing_if = "is_speculative")]
    pub execution: Execution,
    /// One address for clients of the Redis protocol, as an IP address and a port, which the node that leads serves. Only if all nodes run on one host. Its
    /// connections outlive each of the nodes. Absent: clients follow the leader from one node's address to the next one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<SocketAddr>,
    /// What survives a loss of power at all nodes at once.
    #[serde(default, skip_serializing_if = "DurabilityConfig::is_default")]
    pub durability: DurabilityConfig,
    /// How large the group of replicas is, and which replicas count in it, with engines that leave that to the cluster.
    #[serde(default, skip_serializing_if = "GroupConfig::is_default")]
    pub group: GroupConfig,
    /// How it was last founded again from one node, if it ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryConfig>,
    /// Which version of the list of nodes this is, if each host has a file of its own.
    #[serde(default, skip_serializing_if = "ListConfig::is_first")]
    pub list: ListConfig,
    /// The nodes, senior first: the first replica that is up leads.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeEntry>,
}

/// Whether the key can be left out of a file.
fn is_speculative(execution: &Execution) -> bool {
    *execution == Execution::Speculative
}

/// When the followers of an engine that elects by itself (`mu`) take their leader for dead, and when for alive again (Mu section 5.1). A mistake only costs two
/// changes of leaders, so the bounds can be far below those of the [detector](DetectorConfig), on whose word a process is cut off. But on a host where nodes
/// are kept from running for longer than the bounds allow, leaders change all the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElectionConfig {
    /// How often a process reads the others' heartbeats, in microseconds; its own heart beats twice in that time. A node wakes up for each beat. A node that
    /// did not run for twice as long as this distrusts what it saw.
    pub heartbeat_us: u64,
    /// The highest score, and the first: a read that finds that the heart has beaten adds 1, any other read subtracts 1.
    pub cap: u8,
    /// The score at which a process is taken for dead: after `cap - failure` reads that found no new heartbeat.
    pub failure: u8,
    /// The score at which it may lead again.
    pub recovery: u8,
    /// With `mu`: a leader goes on leading even if a replica with a lower number joins. Otherwise the lowest number leads.
    #[serde(default)]
    pub leader_stays: bool,
}

impl ElectionConfig {
    /// A leader is taken for dead after half a millisecond, as in the paper. Five reads decide, and not fifteen, since on two cores nodes sleep between reads.
    /// For shared memory, and for hosts that leave nodes their cores.
    pub const QUICK: ElectionConfig = ElectionConfig { heartbeat_us: 100, cap: 6, failure: 1, recovery: 4, leader_stays: false };

    /// The bounds of this detector.
    pub fn of(detector: &DetectorConfig) -> ElectionConfig {
        let DetectorConfig { heartbeat_us, cap, failure, recovery, .. } = *detector;
        ElectionConfig { heartbeat_us, cap, failure, recovery, leader_stays: false }
    }
}

/// When a process that shows no sign of life is presumed dead (uKharon section 4.2). This does not affect the detection of certain death, which has no timeout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DetectorConfig {
    /// How often a process reads the heartbeat of the one it monitors, in microseconds. It must be longer than a healthy node ever goes without a turn: a node
    /// that finds itself stalled for half of it distrusts what it saw.
    pub heartbeat_us: u64,
    /// The highest score of a heartbeat, and the first: a read that finds it advanced adds 1, any other read subtracts 1.
    pub cap: u8,
    /// The score at which its process is presumed dead.
    pub failure: u8,
    /// The score at which a process presumed dead is alive again.
    pub recovery: u8,
    /// How often a process broadcasts that it lives, in microseconds.
    pub broadcast_us: u64,
    /// After how long without a broadcast a process is presumed dead, in microseconds.
    pub broadcast_timeout_us: u64,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        // Membership's own defaults, which are for a busy host with few cores.
        let core = membership::Config::new(ProcessId::default(), Roles::default());
        DetectorConfig {
            heartbeat_us: core.heartbeat_interval_ns / 1_000,
            cap: core.thresholds.cap,
            failure: core.thresholds.failure,
            recovery: core.thresholds.recovery,
            broadcast_us: core.broadcast_interval_ns / 1_000,
            broadcast_timeout_us: core.broadcast_timeout_ns / 1_000,
        }
    }
}

/// How large the rings are. Memory is taken only as it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SizesConfig {
    /// Data bytes of each log lane: a power of two.
    pub log_ring_bytes: u64,
    /// Data bytes of each client lane: a power of two.
    pub client_ring_bytes: u64,
}

impl Default for SizesConfig {
    fn default() -> Self {
        let sizes = Sizes::default();
        SizesConfig { log_ring_bytes: sizes.log_ring_bytes as u64, client_ring_bytes: sizes.client_ring_bytes as u64 }
    }
}

/// One node as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Its number, unique in the cluster, below 16.
    pub number: u16,
    /// Where clients that speak the Redis protocol reach it, as `host:port`. Empty or absent: nowhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub redis: String,
    /// Where its process listens for the others and for clients of the fabric, as an IP address and a port, if `fabric` spans hosts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// What it does. When absent: coordinator and replica.
    #[serde(default = "NodeEntry::default_roles")]
    pub roles: Vec<Role>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Keeps consensus slots and may lead the membership service.
    Coordinator,
    /// Holds the state: may be or become primary.
    Replica,
    /// Asks the coordinators whether the view is still in force, on behalf of others that take leases. Worth it with many of them: `docs/membership.md`.
    LeaseCache,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Coordinator => "coordinator",
            Role::Replica => "replica",
            Role::LeaseCache => "lease-cache",
        })
    }
}

impl NodeEntry {
    /// A node that is coordinator and replica, and has no address.
    pub fn new(number: u16) -> NodeEntry {
        NodeEntry { number, redis: String::new(), address: String::new(), roles: Self::default_roles() }
    }

    fn default_roles() -> Vec<Role> {
        vec![Role::Coordinator, Role::Replica]
    }

    /// Whether it may found the cluster.
    pub fn may_found(&self) -> bool {
        self.role_set().has(Roles::COORDINATOR.with(Roles::REPLICA))
    }

    /// The roles as a view writes them.
    pub fn role_set(&self) -> Roles {
        self.roles.iter().fold(Roles::default(), |set, role| {
            set.with(match role {
                Role::Coordinator => Roles::COORDINATOR,
                Role::Replica => Roles::REPLICA,
                Role::LeaseCache => Roles::LEASE_CACHE,
            })
        })
    }

    /// Where it meets the others over a network, if it has an address and the address is well-formed.
    pub fn meeting_point(&self) -> Option<SocketAddr> {
        self.address.parse().ok().filter(|address: &SocketAddr| address.port() != 0 && !address.ip().is_unspecified())
    }

    /// Host and port of the Redis address, if there is one and it is well-formed.
    pub fn redis_host_port(&self) -> Option<(&str, u16)> {
        let (host, port) = self.redis.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        (!host.is_empty() && port != 0).then_some((host, port))
    }
}

/// Whether a process that listens at `service` and one that listens at this host and port would collide.
fn is_same_place(service: std::net::SocketAddr, host: &str, port: u16) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    // Names are not looked up here: only this one is certain.
    let ip = ip.ok().or_else(|| (host == "localhost").then_some(std::net::Ipv4Addr::LOCALHOST.into()));
    service.port() == port && ip.is_some_and(|ip| ip == service.ip() || ip.is_unspecified() || service.ip().is_unspecified())
}

impl ClusterConfig {
    /// The longest name of a cluster, in bytes.
    pub const MAX_NAME_BYTES: usize = 48;
    /// How far clocks may be off if all processes read the same one, in parts per million: in truth, not at all.
    pub const ONE_CLOCK_DRIFT_PPM: u64 = 200;
    /// How far each of several hosts' clocks may be off, in parts per million. Linux lets no daemon correct a clock by more than 101,000 (`tick` 100,000,
    /// `freq` 500, `adjtime` 500: adjtimex(2)); 200 more are for the crystal. So chrony's usual 83,333 is within the limit.
    pub const HOSTS_DRIFT_PPM: u64 = 101_200;

    fn default_lease_us() -> u64 {
        membership::Config::new(ProcessId::default(), Roles::default()).lease_ns / 1_000
    }

    /// A cluster of these nodes, with defaults for everything else. It still lacks a key.
    pub fn new(name: impl Into<String>, nodes: Vec<NodeEntry>) -> ClusterConfig {
        ClusterConfig {
            name: name.into(),
            key: None,
            key_file: None,
            fabric: FabricKind::default(),
            rendezvous: None,
            lease_us: Self::default_lease_us(),
            clock_drift_ppm: None,
            detector: DetectorConfig::default(),
            election: None,
            sizes: SizesConfig::default(),
            verbs: VerbsConfig::default(),
            ethernet: EthernetConfig::default(),
            engine: EngineKind::default(),
            execution: Execution::default(),
            service: None,
            durability: DurabilityConfig::default(),
            group: GroupConfig::default(),
            recovery: None,
            list: ListConfig::default(),
            nodes,
        }
    }

    /// By how much a host's clock may run fast or slow, in parts per million: the file's value, or [`ONE_CLOCK_DRIFT_PPM`](Self::ONE_CLOCK_DRIFT_PPM) or
    /// [`HOSTS_DRIFT_PPM`](Self::HOSTS_DRIFT_PPM).
    pub fn clock_drift_ppm(&self) -> u64 {
        let usual = if self.fabric.traits().spans_hosts { Self::HOSTS_DRIFT_PPM } else { Self::ONE_CLOCK_DRIFT_PPM };
        self.clock_drift_ppm.unwrap_or(usual)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_toml(text: &str) -> Result<ClusterConfig, String> {
        martlet_settings::read(Path::new(""), text).map_err(|error| error.to_string())
    }

    /// The file's text. Reading it gives an equal value.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain tables of numbers and texts have a TOML form")
    }

    /// Ring sizes as the layout takes them. Only after validation.
    pub(super) fn layout_sizes(&self) -> Sizes {
        Sizes { log_ring_bytes: self.sizes.log_ring_bytes as usize, client_ring_bytes: self.sizes.client_ring_bytes as usize }
    }

    /// Everything but the key, which [`super::Cluster`] reads.
    pub(super) fn validate(&self, file: &Path) -> Result<(), ConfigError> {
        let check = Checker::of::<ClusterConfig>(file);
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > Self::MAX_NAME_BYTES || !self.name.chars().all(good) {
            return Err(check.refuse(
                "name",
                format_args!("{:?}", self.name),
                format_args!("1 to {} letters, digits, '-', '_' or '.'", Self::MAX_NAME_BYTES),
            ));
        }
        if let Some(rendezvous) = self.rendezvous.as_ref().filter(|_| self.fabric.traits().spans_hosts) {
            let value = format!("{:?}", rendezvous.display().to_string());
            let allowed =
                format_args!("none where fabric is \"{}\", since nodes meet at their addresses there: leave the key out", self.fabric);
            return Err(check.refuse("rendezvous", value, allowed));
        }
        if let Some(service) = self.service.filter(|service| self.fabric.traits().spans_hosts || service.port() == 0) {
            let allowed = if service.port() == 0 {
                "an IP address and a port from 1 to 65535".to_owned()
            } else {
                format!(
                    "none where fabric is \"{}\", since only the processes of one host can share connections: leave the key out",
                    self.fabric
                )
            };
            return Err(check.refuse("service", format_args!("\"{service}\""), allowed));
        }
        check.number("lease_us", self.lease_us)?;
        // No two crystals agree to within less than some tens. On a clock that may be off by half, half of a lease is usable.
        check.range(
            "clock_drift_ppm",
            self.clock_drift_ppm(),
            if self.fabric.traits().spans_hosts { 50..=500_000 } else { 0..=500_000 },
        )?;
        let detector = &self.detector;
        check.number("detector.heartbeat_us", detector.heartbeat_us)?;
        check.number("detector.cap", detector.cap)?;
        check.range("detector.failure", detector.failure.into(), 0..=u64::from(detector.cap) - 2)?;
        check.range("detector.recovery", detector.recovery.into(), u64::from(detector.failure) + 1..=detector.cap.into())?;
        check.number("detector.broadcast_us", detector.broadcast_us)?;
        check.range("detector.broadcast_timeout_us", detector.broadcast_timeout_us, detector.broadcast_us * 3..=600_000_000)?;
        if let Some(election) = &self.election {
            check.number("election.heartbeat_us", election.heartbeat_us)?;
            check.number("election.cap", election.cap)?;
            check.range("election.failure", election.failure.into(), 0..=u64::from(election.cap) - 2)?;
            check.range("election.recovery", election.recovery.into(), u64::from(election.failure) + 1..=election.cap.into())?;
        }
        for (key, value, range) in [
            ("sizes.log_ring_bytes", self.sizes.log_ring_bytes, (64 << 10)..=(1 << 30)),
            ("sizes.client_ring_bytes", self.sizes.client_ring_bytes, (4 << 10)..=(64 << 20)),
        ] {
            if !value.is_power_of_two() || !range.contains(&value) {
                return Err(check.refuse(key, value, format_args!("a power of two from {} to {}", range.start(), range.end())));
            }
        }
        if self.execution == Execution::Committed && !self.engine.traits().executes_on_commit {
            let allowed = format_args!(
                "\"{}\" with the engine {:?}; \"committed\" with {}",
                Execution::Speculative,
                self.engine.name(),
                EngineKind::names_with(|traits| traits.executes_on_commit)
            );
            return Err(check.refuse("execution", format_args!("\"{}\"", self.execution), allowed));
        }
        self.durability.validate(self.engine, &check)?;
        self.group.validate(self.engine, self.fabric, &check)?;
        self.verbs.validate(&check)?;
        self.ethernet.validate(&check)?;
        self.recovery.iter().try_for_each(|recovery| recovery.validate(&check))?;
        self.validate_nodes(&check)
    }

    fn validate_nodes(&self, check: &Checker<'_>) -> Result<(), ConfigError> {
        if self.nodes.is_empty() || self.nodes.len() > MAX_MEMBERS {
            return Err(check.refuse(
                "node",
                format_args!("a list of {}", self.nodes.len()),
                format_args!("1 to {MAX_MEMBERS} [[node]] tables"),
            ));
        }
        let mut numbers = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        let mut meeting_points = BTreeSet::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let highest = MAX_MEMBERS as u16 - 1;
            if node.number > highest || !numbers.insert(node.number) {
                return Err(check.refuse(
                    format_args!("node[{i}].number"),
                    node.number,
                    format_args!("0 to {highest}, each number once in the cluster"),
                ));
            }
            let address_ok = node.redis.is_empty()
                || (node.redis.len() <= MAX_ADDRESS_BYTES && node.redis_host_port().is_some() && addresses.insert(node.redis.as_str()));
            if !address_ok {
                return Err(check.refuse(
                    format_args!("node[{i}].redis"),
                    format_args!("{:?}", node.redis),
                    format_args!(
                        "host:port with a port from 1 to 65535, at most {MAX_ADDRESS_BYTES} bytes, each address once in the cluster"
                    ),
                ));
            }
            if let (Some(service), Some((host, port))) = (self.service, node.redis_host_port())
                && is_same_place(service, host, port)
            {
                return Err(check.refuse(
                    "service",
                    format_args!("\"{service}\""),
                    format_args!("an address of its own, but node {} has {:?} (node[{i}].redis)", node.number, node.redis),
                ));
            }
            let needed = self.fabric.traits().needs_address || !node.address.is_empty();
            if needed && !node.meeting_point().is_some_and(|address| meeting_points.insert(address)) {
                return Err(check.refuse(
                    format_args!("node[{i}].address"),
                    format_args!("{:?}", node.address),
                    format_args!(
                        "an IP address of its own and a port from 1 to 65535, such as \"10.0.0.1:7600\", each once in the cluster; every \
                         node needs one where fabric is {}",
                        FabricKind::names_with(|traits| traits.needs_address)
                    ),
                ));
            }
            let distinct: BTreeSet<_> = node.roles.iter().collect();
            if node.roles.is_empty() || distinct.len() != node.roles.len() {
                let roles: Vec<String> = node.roles.iter().map(|r| format!("{:?}", r.to_string())).collect();
                return Err(check.refuse(
                    format_args!("node[{i}].roles"),
                    format_args!("[{}]", roles.join(", ")),
                    "\"coordinator\", \"replica\" and \"lease-cache\", at least one of them, each once",
                ));
            }
        }
        // The node that founds a cluster decides its first view, as coordinator, and leads it, as replica.
        if !self.nodes.iter().any(NodeEntry::may_found) {
            return Err(check.refuse(
                "node[..].roles",
                "never both \"coordinator\" and \"replica\"",
                "at least one node with both roles, which founds the cluster",
            ));
        }
        Ok(())
    }
}

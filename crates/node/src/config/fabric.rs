//! Which fabric a cluster runs on, and how.

use std::net::SocketAddr;
use std::time::Duration;

use martlet_fabric::ethernet::DEFAULT_GIVE_UP;
use martlet_fabric::verbs::{DeviceChoice, Multicast, Patience};
use martlet_settings::Allowed::{self, Number, Table, Truth, Words};
use martlet_settings::{Checker, ConfigError, Setting};
use serde::{Deserialize, Serialize};

use super::{ClusterConfig, NodeConfig, Settings};

/// What a device's name may be.
const DEVICE: Allowed = Words("1 to 63 letters, digits, '-', '_' or '.', as `ibv_devices` shows it");

/// What the keys about fabrics in a cluster's file may be.
pub(super) const CLUSTER_KEYS: &[Setting] = &[
    ("verbs", Table("[verbs]")),
    ("verbs.timeout", Number(1, 20)),
    ("verbs.retries", Number(1, 6)),
    ("verbs.nap_us", Number(1, 20_000)),
    ("verbs.huge_pages", Truth),
    ("verbs.multicast", Words(Multicast::ALLOWED)),
    ("verbs.device", DEVICE),
    ("verbs.port", Number(1, 255)),
    ("verbs.gid_index", Number(0, 255)),
    ("ethernet", Table("[ethernet]")),
    ("ethernet.give_up_us", Number(50_000, 60_000_000)),
];

/// The same for a node's file.
pub(super) const NODE_KEYS: &[Setting] = &[
    ("verbs", Table("[verbs]")),
    ("verbs.listen", Words("an IP address and a port from 1 to 65535, such as \"0.0.0.0:7600\"")),
    ("verbs.device", DEVICE),
    ("verbs.port", Number(1, 255)),
    ("verbs.gid_index", Number(0, 255)),
];

/// How RDMA is used. It is the same for all processes, except the device, for which a node's own file may say something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VerbsConfig {
    /// The wait before an unanswered request is sent again: 4.096 us * 2^timeout.
    pub timeout: u8,
    /// How often a request is sent again before its peer is given up.
    pub retries: u8,
    /// How long a node that has nothing to do sleeps between two looks at its memory, in microseconds: nothing wakes it.
    pub nap_us: u64,
    /// Whether large regions and lanes use huge pages of 2 MiB, which the system has to reserve (`sysctl vm.nr_hugepages`).
    pub huge_pages: bool,
    /// Whether what a node tells all members goes to a multicast group of the network: `off`, `on`, or the group's address.
    pub multicast: String,
    /// The device's name, as `ibv_devices` shows it. Absent: the first with an active port. This key and the two below are for clients, and for nodes whose own
    /// file says nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its port. Absent: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// The index of the address in the port's table. Absent: RoCE v2 over IPv4 is preferred to RoCE v2 over IPv6; on InfiniBand, the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        let patience = Patience::default();
        VerbsConfig {
            timeout: patience.timeout,
            retries: patience.retries,
            nap_us: 50,
            huge_pages: false,
            multicast: Multicast::Off.to_string(),
            device: None,
            port: None,
            gid_index: None,
        }
    }
}

/// The kernel's limit, IB_DEVICE_NAME_MAX, without the terminating zero.
const MAX_DEVICE_BYTES: usize = 63;

impl VerbsConfig {
    /// How long requests wait for an answer.
    pub fn patience(&self) -> Patience {
        Patience { timeout: self.timeout, retries: self.retries }
    }

    pub(super) fn validate(&self, check: &Checker<'_>) -> Result<(), ConfigError> {
        // Four seconds, six times: a process that waits for a card for longer than that waits for ever.
        check.number("verbs.timeout", self.timeout)?;
        check.number("verbs.retries", self.retries)?;
        check.number("verbs.nap_us", self.nap_us)?;
        if let Err(allowed) = self.multicast.parse::<Multicast>() {
            return Err(check.refuse("verbs.multicast", format_args!("{:?}", self.multicast), allowed));
        }
        check_device(check, self.device.as_deref(), self.port)
    }

    /// Where the messages of a node to all members go. Validated before.
    pub fn multicast(&self) -> Multicast {
        self.multicast.parse().expect("validated")
    }

    /// What clients use of their hosts' hardware.
    pub fn device(&self) -> DeviceChoice {
        let usual = DeviceChoice::default();
        DeviceChoice { name: self.device.clone(), port: self.port.unwrap_or(usual.port), gid_index: self.gid_index }
    }
}

/// How one process uses RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeVerbsConfig {
    /// Where to listen, as an IP address and a port. Absent: at the node's `address` in the cluster's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// The device's name. Absent, like the two below: as the cluster's file says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// The index of the address in the port's table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
}

impl NodeVerbsConfig {
    pub(super) fn is_empty(&self) -> bool {
        *self == NodeVerbsConfig::default()
    }

    pub(super) fn validate(&self, check: &Checker<'_>) -> Result<(), ConfigError> {
        if let Some(listen) = &self.listen
            && !listen.parse().is_ok_and(|address: SocketAddr| address.port() != 0)
        {
            let allowed = "an IP address and a port from 1 to 65535, such as \"0.0.0.0:7600\"";
            return Err(check.refuse("verbs.listen", format_args!("{listen:?}"), allowed));
        }
        check_device(check, self.device.as_deref(), self.port)
    }

    /// What this process uses of its host's hardware: what this table says or, where it says nothing, what `cluster` says.
    pub(super) fn device(&self, cluster: &VerbsConfig) -> DeviceChoice {
        let usual = cluster.device();
        DeviceChoice {
            name: self.device.clone().or(usual.name),
            port: self.port.unwrap_or(usual.port),
            gid_index: self.gid_index.or(usual.gid_index),
        }
    }
}

/// How ordinary hosts reach each other: the same for all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EthernetConfig {
    /// How long a peer may leave a request unanswered before the connection is given up, in microseconds. Both then meet anew, if they can.
    pub give_up_us: u64,
}

impl Default for EthernetConfig {
    fn default() -> Self {
        EthernetConfig { give_up_us: DEFAULT_GIVE_UP.as_micros() as u64 }
    }
}

impl EthernetConfig {
    /// How long a peer may be silent.
    pub fn give_up(&self) -> Duration {
        Duration::from_micros(self.give_up_us)
    }

    pub(super) fn validate(&self, check: &Checker<'_>) -> Result<(), ConfigError> {
        // A lost packet is sent again after up to 10 ms, and a few may be lost in a row.
        check.number("ethernet.give_up_us", self.give_up_us)
    }
}

impl ClusterConfig {
    /// The device for nodes and clients whose own file says nothing else; `None`: the first with an active port.
    pub fn use_device(&mut self, device: Option<String>) {
        self.verbs.device = device;
    }

    /// Where the messages of a node to all members go.
    pub fn use_multicast(&mut self, multicast: Multicast) {
        self.verbs.multicast = multicast.to_string();
    }

    /// Where the messages of a node to all members go, on a fabric that has multicast.
    pub fn multicast(&self) -> Multicast {
        self.verbs.multicast()
    }
}

impl NodeConfig {
    /// Which device this node uses; `None`: as the cluster's file says.
    pub fn use_device(&mut self, device: Option<String>) {
        self.verbs.device = device;
    }

    /// The node listens at its own address in the cluster's file, and not where the node did from which this file was copied.
    pub fn listens_elsewhere(&mut self) {
        self.verbs.listen = None;
    }
}

impl Settings {
    /// The name of the device that this node uses, on a fabric that has devices; `None`: the first with an active port.
    pub fn device(&self) -> Option<String> {
        self.verbs_device().name
    }

    /// What this node uses of its host's RDMA hardware.
    pub fn verbs_device(&self) -> DeviceChoice {
        self.node().verbs.device(&self.cluster().config().verbs)
    }

    /// Where this process listens for others over a network, if it has an address.
    pub fn verbs_listen(&self) -> Option<SocketAddr> {
        let own = self.node().verbs.listen.as_ref().map(|listen| listen.parse().expect("validated"));
        own.or_else(|| self.entry().meeting_point())
    }

    /// Where this process listens for others between ordinary hosts, if it has an address.
    pub fn ethernet_listen(&self) -> Option<SocketAddr> {
        self.entry().meeting_point()
    }
}

fn check_device(check: &Checker<'_>, device: Option<&str>, port: Option<u8>) -> Result<(), ConfigError> {
    if let Some(name) = device {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > MAX_DEVICE_BYTES || !name.chars().all(good) {
            return Err(check.refuse(
                "verbs.device",
                format_args!("{name:?}"),
                format_args!("1 to {MAX_DEVICE_BYTES} letters, digits, '-', '_' or '.', as `ibv_devices` shows it"),
            ));
        }
    }
    port.map_or(Ok(()), |port| check.number("verbs.port", port))
}

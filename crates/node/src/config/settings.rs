//! Configurations that have been validated, and can no longer change.

use std::fmt;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use martlet_fabric::NodeId;
use martlet_fabric::Rendezvous;
use martlet_protocol::basics::layout::Sizes;
use martlet_settings::{Checker, ConfigError, MAX_FILE_BYTES, load, read_text};

use super::{ClusterConfig, ElectionConfig, NodeConfig, NodeEntry, Pin, Reads, RecoveryConfig, Secret, UseWarden};

/// The secret that admits a process to a cluster. It is not shown in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A key whose bytes are known already.
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A new key from the system's randomness.
    pub fn generate() -> std::io::Result<Key> {
        martlet_fabric::host::random().map(Key)
    }

    /// Reads a key's file: 64 hexadecimal digits.
    ///
    /// # Errors
    /// When the file cannot be read, holds something else, or is readable by others than its owner; the file is named.
    pub fn load(file: &Path) -> Result<Key, ConfigError> {
        read_key(&file.to_owned())
    }

    /// The key as it is in a file: 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn from_hex(text: &str) -> Option<Key> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let digits = &text[2 * i..2 * i + 2];
            if digits.starts_with('+') {
                return None; // which from_str_radix would take for a sign
            }
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Key(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A cluster's configuration, validated, with its key at hand.
#[derive(Clone, Debug)]
pub struct Cluster {
    config: ClusterConfig,
    key: Key,
    /// The directory that its relative paths are relative to.
    base: PathBuf,
    /// The file that lists its nodes, if there is one.
    file: Option<PathBuf>,
    /// The user that the file with its key belongs to, if there is one.
    owner: Option<u32>,
}

impl Cluster {
    /// Reads and validates a cluster's file and its key.
    pub fn load(file: &Path) -> Result<Cluster, ConfigError> {
        let (config, text) = load(file)?;
        let base = file.parent().unwrap_or(Path::new("."));
        let cluster = Self::validated(config, file, base).map_err(|error| error.in_text(&text))?;
        let holds_key = cluster.config.key_file.as_ref().map_or_else(|| file.to_owned(), |key| base.join(key));
        let owner = std::fs::metadata(holds_key).ok().map(|about| about.uid());
        Ok(Cluster { file: Some(file.to_owned()), owner, ..cluster })
    }

    /// Validates a cluster's configuration that a program has built. Errors name `<cluster>` as the file; relative paths are relative to the working directory.
    pub fn new(config: ClusterConfig) -> Result<Cluster, ConfigError> {
        Self::validated(config, Path::new("<cluster>"), Path::new("."))
    }

    /// The same cluster with this change. Relative paths stay relative to the same directory.
    pub fn with(&self, change: impl FnOnce(&mut ClusterConfig)) -> Result<Cluster, ConfigError> {
        let mut config = ClusterConfig { key: Some(self.key.to_hex().into()), key_file: None, ..self.config.clone() };
        change(&mut config);
        // If the change only concerns a node's own entry, the list of nodes still comes from the file.
        let numbers = |config: &ClusterConfig| config.nodes.iter().map(|node| node.number).collect::<Vec<_>>();
        let file = self.file.clone().filter(|_| numbers(&config) == numbers(&self.config));
        Ok(Cluster { file, owner: self.owner, ..Self::validated(config, Path::new("<cluster>"), &self.base)? })
    }

    fn validated(config: ClusterConfig, file: &Path, base: &Path) -> Result<Cluster, ConfigError> {
        config.validate(file)?;
        let check = Checker::of::<ClusterConfig>(file);
        let key = match (&config.key, &config.key_file) {
            (Some(Secret(key)), None) => Key::from_hex(key)
                .ok_or_else(|| check.refuse("key", format_args!("a text of {} bytes", key.len()), "64 hexadecimal digits"))?,
            (None, Some(path)) => read_key(&base.join(path))?,
            (Some(_), Some(_)) => return Err(check.refuse("key", "given twice, as key and as key_file", "one of key and key_file")),
            (None, None) => return Err(check.refuse("key", "missing", "one of key and key_file")),
        };
        if let Some(directory) = config.rendezvous.as_ref().map(|directory| base.join(directory)) {
            let (bytes, most) = (
                directory.as_os_str().len(),
                Rendezvous::max_directory_bytes(&format!("{}~{}", config.name, RecoveryConfig::MAX_GENERATION)),
            );
            if config.rendezvous.as_ref().is_some_and(|given| given.as_os_str().is_empty()) || bytes > most {
                let value = format!("{:?}, which is {bytes} bytes long", directory.display().to_string());
                let allowed = format!("a directory whose path is 1 to {most} bytes long with the cluster's name {:?}", config.name);
                return Err(check.refuse("rendezvous", value, allowed));
            }
        }
        Ok(Cluster { config, key, base: base.to_owned(), file: None, owner: None })
    }

    /// What was configured.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Where its nodes keep their data. Each node has a directory of its own there, unless its own file says otherwise.
    pub fn data_directory(&self) -> PathBuf {
        self.base.join(&self.config.durability.directory)
    }

    /// How often it has been founded again from one node.
    pub fn generation(&self) -> u64 {
        self.config.recovery.as_ref().map_or(0, |recovery| recovery.generation)
    }

    /// Its name on the fabric, which differs between generations so that their processes do not meet.
    pub fn fabric_name(&self) -> String {
        match self.generation() {
            0 => self.config.name.clone(),
            generation => format!("{}~{generation}", self.config.name),
        }
    }

    /// The file that describes it, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The user that it belongs to: the one whose file has its key.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Where its processes meet, if they all run on one host.
    pub fn rendezvous(&self) -> Rendezvous {
        match &self.config.rendezvous {
            Some(directory) => Rendezvous::Directory(self.base.join(directory)),
            None => Rendezvous::Names,
        }
    }

    /// The cluster's secret.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The node of that number.
    pub fn node(&self, number: NodeId) -> Option<&NodeEntry> {
        self.config.nodes.iter().find(|n| n.number == number.0)
    }

    /// How large the rings are.
    pub fn sizes(&self) -> Sizes {
        self.config.layout_sizes()
    }

    /// The lease's length, in nanoseconds.
    pub fn lease_ns(&self) -> u64 {
        self.config.lease_us * 1_000
    }

    /// The rules of an election: the file's, or the detector's.
    pub fn election(&self) -> ElectionConfig {
        self.config.election.clone().unwrap_or_else(|| ElectionConfig::of(&self.config.detector))
    }

    /// Whether a leader's heartbeat is looked at more often than a host with busy cores lets it beat, which is once in some milliseconds.
    pub fn watches_closely(&self) -> bool {
        self.election().heartbeat_us < 10_000
    }
}

/// Why the list of a cluster's nodes was not read again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelistError {
    /// This node is no longer listed.
    #[error("{} does not list it any more: its nodes are {nodes:?}. It has been removed from the cluster", file.display())]
    Removed {
        /// The cluster's file.
        file: PathBuf,
        /// The nodes that are listed.
        nodes: Vec<u16>,
    },
    /// The file does not exist, or is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// All configuration of a process: its cluster's and its own, validated together.
#[derive(Clone, Debug)]
pub struct Settings {
    cluster: Cluster,
    node: NodeConfig,
    position: usize,
    all_here: bool,
}

impl Settings {
    /// Reads and validates a node's file and the cluster's file that it names.
    pub fn load(file: &Path) -> Result<Settings, ConfigError> {
        let (mut node, text): (NodeConfig, String) = load(file)?;
        node.validate(file).map_err(|error| error.in_text(&text))?;
        let base = file.parent().unwrap_or(Path::new("."));
        node.cluster = base.join(&node.cluster);
        if let Some(socket) = &mut node.redis.unix_socket {
            *socket = base.join(&*socket);
        }
        if let Some(socket) = &mut node.warden.socket {
            *socket = base.join(&*socket);
        }
        if let Some(directory) = &mut node.directory {
            *directory = base.join(&*directory);
        }
        let cluster = Cluster::load(&node.cluster)?;
        Self::joined(cluster, node, file).map_err(|error| error.in_text(&text))
    }

    /// Validates a node's configuration that a program has built; `node.cluster` is not read. Errors name `<node>` as the file.
    pub fn new(cluster: Cluster, node: NodeConfig) -> Result<Settings, ConfigError> {
        let file = Path::new("<node>");
        node.validate(file)?;
        Self::joined(cluster, node, file)
    }

    fn joined(cluster: Cluster, node: NodeConfig, file: &Path) -> Result<Settings, ConfigError> {
        let numbers: Vec<String> = cluster.config.nodes.iter().map(|n| n.number.to_string()).collect();
        let Some(position) = cluster.config.nodes.iter().position(|n| n.number == node.number) else {
            return Err(Checker::of::<NodeConfig>(file).refuse(
                "number",
                node.number,
                format_args!("the cluster's nodes: {}", numbers.join(", ")),
            ));
        };
        if node.warden.usage == UseWarden::On && cluster.config.fabric.traits().certain_deaths {
            let value = format!("\"on\" with the fabric {}", cluster.config.fabric);
            let allowed = "\"auto\" or \"off\": nodes that share memory see each other's deaths without a warden";
            return Err(Checker::of::<NodeConfig>(file).refuse("warden.use", value, allowed));
        }
        Ok(Settings { cluster, node, position, all_here: false })
    }

    /// The same settings with the cluster's nodes as its file lists them now: nodes are added and removed while others run. This node's own entry stays as it
    /// is, and so does everything else, which only a new start changes. If a program has built the list, the list stays.
    ///
    /// # Errors
    /// See [`RelistError`].
    pub(crate) fn relisted(&self) -> Result<Settings, RelistError> {
        self.read_again(|_| self.cluster.config.recovery.clone())
    }

    /// The same settings, in the generation of the cluster that its file names.
    ///
    /// # Errors
    /// See [`RelistError`].
    pub(crate) fn moved_on(&self) -> Result<Settings, RelistError> {
        self.read_again(|recovery| recovery)
    }

    fn read_again(&self, generation: impl FnOnce(Option<RecoveryConfig>) -> Option<RecoveryConfig>) -> Result<Settings, RelistError> {
        let Some(file) = &self.cluster.file else { return Ok(self.clone()) };
        let (ClusterConfig { mut nodes, recovery, .. }, text) = load(file)?;
        let recovery = generation(recovery);
        let Some(own) = nodes.iter_mut().find(|entry| entry.number == self.node.number) else {
            return Err(RelistError::Removed { file: file.clone(), nodes: nodes.iter().map(|entry| entry.number).collect() });
        };
        own.clone_from(self.entry());
        let cluster = Cluster { config: ClusterConfig { nodes, recovery, ..self.cluster.config.clone() }, ..self.cluster.clone() };
        cluster.config.validate(file).map_err(|error| error.in_text(&text))?;
        Ok(Settings { all_here: self.all_here, ..Self::joined(cluster, self.node.clone(), file)? })
    }

    /// The same settings, with or without the claim that every process of the cluster runs where this one sees it: in this network namespace, or with the same
    /// rendezvous directory. With that claim, a node that is not seen is not running, and the cluster can be founded without it. No process can find this out
    /// by itself: `docs/containers.md`. The claim means nothing on a fabric of several hosts.
    #[must_use]
    pub fn with_all_here(self, all_here: bool) -> Settings {
        Settings { all_here, ..self }
    }

    /// Whether it has been claimed that a node that is not seen here is not running.
    pub fn all_here(&self) -> bool {
        self.all_here
    }

    /// The cluster's part.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The process's part. Its paths have been made relative to the working directory.
    pub fn node(&self) -> &NodeConfig {
        &self.node
    }

    /// This node as the cluster knows it.
    pub fn entry(&self) -> &NodeEntry {
        &self.cluster.config.nodes[self.position]
    }

    /// Where this node keeps its data; `None` if nothing is written to a disk.
    pub fn data_directory(&self) -> Option<PathBuf> {
        let usual = || self.cluster.data_directory().join(format!("node-{}", self.node.number));
        self.cluster.config.durability.writes().then(|| self.node.directory.clone().unwrap_or_else(usual))
    }

    /// This node's place in the cluster's list, from 0 on.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Which cores its acting threads are bound to. On a fabric whose nodes wait for each other's turns, `auto` leaves this to the scheduler: a primary that
    /// spins for an answer would keep the threads that are to give it from the core that they share, on this host or on hosts that are parts of one.
    pub fn pin(&self) -> &Pin {
        match &self.node.threads.pin {
            Pin::Auto if self.cluster.config.fabric.traits().answers_in_turns => &Pin::None,
            pin => pin,
        }
    }

    /// This node's number.
    pub fn id(&self) -> NodeId {
        NodeId(self.node.number)
    }

    /// The TCP address to listen on for the Redis protocol, or `None` when the port is 0 or neither file names one.
    pub fn redis_listen(&self) -> Option<std::net::SocketAddr> {
        let port = self.node.redis.port.or_else(|| self.entry().redis_host_port().map(|(_, port)| port))?;
        let ip = self.node.redis.listen.parse().expect("validated");
        (port != 0).then_some(std::net::SocketAddr::new(ip, port))
    }

    /// Whether replies to Redis clients that say something about keys wait for a majority, unless the client chooses otherwise.
    pub fn reads_by_quorum(&self) -> bool {
        match self.node.redis.reads {
            Reads::Auto => self.cluster.config.fabric.traits().spans_hosts,
            Reads::Lease => false,
            Reads::Quorum => true,
        }
    }
}

fn read_key(file: &PathBuf) -> Result<Key, ConfigError> {
    // It is the cluster file's key, in a file of its own.
    let check = Checker::of::<ClusterConfig>(file);
    let mode = std::fs::metadata(file).map_err(|error| ConfigError::Read { file: file.clone(), error })?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(check.refuse(
            "its mode",
            format_args!("{mode:o}"),
            "600 or 400, since a process that reads the key can pass for any of those that share it",
        ));
    }
    let text = read_text(file, MAX_FILE_BYTES)?;
    let text = text.trim_ascii();
    Key::from_hex(text).ok_or_else(|| check.refuse("its content", format_args!("a text of {} bytes", text.len()), "64 hexadecimal digits"))
}

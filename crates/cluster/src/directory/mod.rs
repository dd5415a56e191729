//! A cluster's directory: what `martlet cluster up` writes and all other commands read.
//!
//! ```text
//! DIR/cluster.toml   what all nodes agree on; written last, so that its presence says that the rest is complete
//! DIR/cluster.key    the secret that admits a process
//! DIR/node-N.toml    the configuration of node N
//! DIR/node-N.log     the log of node N
//! DIR/node-N.change  what is under way with node N: it is being added, or starts afresh
//! DIR/node-N.pid     the process of node N, named so that another process with a reused number is not taken for it
//! DIR/data/node-N    what node N keeps on disk, where it keeps anything (`docs/durability.md`)
//! DIR/removed        the numbers of nodes that have been removed
//! DIR/server         which server `martlet run` runs, if this is its directory
//! DIR/runner.pid     the process of that `martlet run`
//! DIR/invitations/I  an invitation to another host, if this is a host's own directory (module `hosts`)
//! DIR/lock           held by the one command that changes something
//! ```

mod flags;
mod lock;
mod nodes;
mod origin;
mod ports;
mod service;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use martlet_fabric::host::process::PARENT;
use martlet_fabric::{Multicast, NodeId};
use martlet_node::config::{
    Cluster, ClusterConfig, DurabilityKind, ElectionConfig, EngineKind, FabricKind, Key, NodeConfig, NodeEntry, Role, ThreadsConfig,
};

use crate::fail::{Context as _, Fail, Outcome};
use crate::process::{Activity, ProcessName};

pub use flags::{FabricFlags, check_durability, engine_of_a_server};
pub use lock::Lock;
pub use nodes::{Change, Ports};
use ports::FreePorts;
pub use service::{Runner, running_replicas};

/// The plan for a new cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name; clusters on one host need different ones.
    pub name: String,
    /// How many nodes hold the state.
    pub replicas: u16,
    /// How many nodes keep consensus slots.
    pub coordinators: u16,
    /// Node `i` serves the Redis protocol on this port plus `i`; 0: on a port that is free now; `None`: not at all.
    pub redis_port: Option<u16>,
    /// The leader, whichever node that is, serves the Redis protocol on this port, and connections there outlive nodes; 0: on a port that is free now; `None`:
    /// not at all.
    pub service_port: Option<u16>,
    /// Whether Redis clients see the nodes as a Redis Cluster.
    pub redis_cluster: bool,
    /// How requests are replicated.
    pub engine: EngineKind,
    /// What an acknowledgement means.
    pub durability: DurabilityKind,
    /// How closely leaders are watched, if not by the detector's defaults.
    pub election: Option<ElectionConfig>,
    /// Which threads a node has, and on which cores they run.
    pub threads: ThreadsConfig,
    /// How the nodes reach each other's memory.
    pub fabric: FabricPlan,
    /// A directory in which `N.sock` is the socket of the warden of node N's host; `None`: the usual place.
    pub wardens: Option<PathBuf>,
}

/// How the nodes of a new cluster reach each other's memory, although all of them run on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPlan {
    /// Which fabric.
    pub kind: FabricKind,
    /// If each node needs an address: node `i` meets the others on this port plus `i`; `None`: on a port that is free now.
    pub port: Option<u16>,
    /// If the fabric has devices: the nodes take these in turn; if none are given, each takes the first one with an active port.
    pub devices: Vec<String>,
    /// If the fabric has multicast: where a node sends what it tells all others; `None`: the default.
    pub multicast: Option<Multicast>,
}

impl FabricPlan {
    /// That fabric, with all defaults.
    pub fn new(kind: FabricKind) -> FabricPlan {
        FabricPlan { kind, port: None, devices: Vec::new(), multicast: None }
    }
}

impl Plan {
    /// This many nodes on shared memory, each of which holds the state and keeps consensus slots; everything else has its default.
    pub fn new(name: impl Into<String>, nodes: u16) -> Plan {
        Plan {
            name: name.into(),
            replicas: nodes,
            coordinators: nodes,
            redis_port: None,
            service_port: None,
            redis_cluster: true,
            engine: EngineKind::default(),
            durability: DurabilityKind::default(),
            election: None,
            threads: ThreadsConfig::default(),
            fabric: FabricPlan::new(FabricKind::default()),
            wardens: None,
        }
    }

    /// How many nodes that takes: as far as possible, the same nodes are replicas and coordinators.
    pub fn nodes(&self) -> u16 {
        self.replicas.max(self.coordinators)
    }

    /// Checks that no two things have been given the same port.
    ///
    /// # Errors
    /// When two have; names both.
    fn check_ports(&self) -> Outcome {
        let Some(redis) = self.redis_port.filter(|first| *first != 0) else { return Ok(()) };
        // The node that has that Redis port.
        let node_at = |port: u16| port.checked_sub(redis).filter(|node| *node < self.nodes());
        if let Some(service) = self.service_port.filter(|port| *port != 0)
            && let Some(node) = node_at(service)
        {
            return Err(Fail::usage(format_args!(
                "--service-port is {service}, which is node {node}'s own: --redis-port is {redis}, and node I serves the Redis protocol on that plus I; allowed is a port outside \
                 {redis} to {}",
                redis.saturating_add(self.nodes() - 1)
            )));
        }
        if let Some(fabric) = self.fabric.port.filter(|_| self.fabric.kind.traits().needs_address)
            && let Some((one, other)) = (0..self.nodes()).find_map(|one| Some((one, node_at(fabric.checked_add(one)?)?)))
        {
            return Err(Fail::usage(format_args!(
                "--fabric-port is {fabric}, and --redis-port is {redis}: node {one} would meet the others on the port on which node {other} serves the Redis protocol, {}; allowed \
                 are ports that are {} or more apart",
                fabric + one,
                self.nodes()
            )));
        }
        Ok(())
    }

    /// Checks, before anything is created, that a cluster can be created like this.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self) -> Outcome {
        self.config().map(drop)
    }

    fn config(&self) -> Outcome<ClusterConfig> {
        self.check_ports()?;
        let mut nodes = Vec::new();
        let named = self.redis_port.filter(|first| *first != 0);
        let mut redis: Vec<u16> = named.iter().flat_map(|first| *first..first.saturating_add(self.nodes())).collect();
        redis.extend(self.service_port.filter(|port| *port != 0));
        let mut free = FreePorts::new(&redis);
        for number in 0..self.nodes() {
            let mut roles = Vec::new();
            if number < self.coordinators {
                roles.push(Role::Coordinator);
            }
            if number < self.replicas {
                roles.push(Role::Replica);
            }
            let redis = match self.redis_port {
                Some(0) => format!("127.0.0.1:{}", free.take()?),
                Some(port) => format!("127.0.0.1:{}", next_port("--redis-port", port, number)?),
                None => String::new(),
            };
            let address = match self.fabric.port {
                _ if !self.fabric.kind.traits().needs_address => String::new(),
                Some(port) => format!("127.0.0.1:{}", next_port("--fabric-port", port, number)?),
                None => format!("127.0.0.1:{}", free.take()?),
            };
            nodes.push(NodeEntry { number, redis, address, roles });
        }
        let mut config = ClusterConfig::new(self.name.clone(), nodes);
        config.fabric = self.fabric.kind;
        config.lease_us = config.fabric.traits().default_lease_us;
        config.use_device(self.fabric.devices.first().cloned());
        if let Some(multicast) = self.fabric.multicast {
            config.use_multicast(multicast);
        }
        config.engine = self.engine;
        let service_port = match self.service_port {
            Some(0) => Some(free.take()?),
            port => port,
        };
        config.service = service_port.map(|port| (std::net::Ipv4Addr::LOCALHOST, port).into());
        config.durability.mode = self.durability;
        config.election.clone_from(&self.election);
        config.key_file = Some("cluster.key".into());
        Ok(config)
    }
}

fn next_port(flag: &str, first: u16, number: u16) -> Outcome<u16> {
    first.checked_add(number).ok_or_else(|| {
        Fail::usage(format_args!(
            "{flag} is {first}; node {number} would need {}; allowed are ports up to 65535",
            u32::from(first) + u32::from(number)
        ))
    })
}

/// How long a killed process may take to release what it held.
const RELEASE: Duration = Duration::from_secs(20);

/// A cluster's directory.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// The directory at that path; it need not exist.
    pub fn new(path: &Path) -> Directory {
        Directory(path.to_path_buf())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The cluster's file.
    pub fn cluster_file(&self) -> PathBuf {
        self.0.join("cluster.toml")
    }

    /// A node's file.
    pub fn node_file(&self, number: u16) -> PathBuf {
        self.0.join(format!("node-{number}.toml"))
    }

    /// A node's log.
    pub fn log_file(&self, number: u16) -> PathBuf {
        self.0.join(format!("node-{number}.log"))
    }

    fn pid_file(&self, number: u16) -> PathBuf {
        self.0.join(format!("node-{number}.pid"))
    }

    /// The cluster, or `None` if none has been created here.
    pub fn cluster(&self) -> Outcome<Option<Cluster>> {
        let file = self.cluster_file();
        if !file.exists() {
            return Ok(None);
        }
        Cluster::load(&file).map(Some).map_err(Fail::failed)
    }

    /// The cluster.
    pub fn existing_cluster(&self) -> Outcome<Cluster> {
        self.cluster()?.ok_or_else(|| {
            Fail::absent(format_args!("there is no cluster in {0}; `martlet cluster up --dir {0}` creates one", self.0.display()))
        })
    }

    /// The cluster, if that node belongs to it.
    pub fn existing_node(&self, number: u16) -> Outcome<Cluster> {
        let cluster = self.existing_cluster()?;
        Directory::check_listed(&cluster, number)?;
        Ok(cluster)
    }

    /// Checks that a node belongs to the cluster.
    ///
    /// # Errors
    /// When it does not; names those that do.
    pub fn check_listed(cluster: &Cluster, number: u16) -> Outcome {
        let numbers: Vec<String> = cluster.config().nodes.iter().map(|node| node.number.to_string()).collect();
        match cluster.node(NodeId(number)) {
            Some(_) => Ok(()),
            None => Err(Fail::absent(format_args!("there is no node {number}; the cluster's nodes are {}", numbers.join(", ")))),
        }
    }

    /// The nodes that have been started from here and not been forgotten, whether or not they are still running.
    pub fn nodes_with_processes(&self) -> Outcome<Vec<u16>> {
        let doing = format!("cannot list {}", self.0.display());
        let mut nodes = Vec::new();
        for entry in fs::read_dir(&self.0).context(&doing)? {
            let name = entry.context(&doing)?.file_name();
            let number: Option<u16> = name.to_str().and_then(|name| name.strip_prefix("node-")?.strip_suffix(".pid")?.parse().ok());
            nodes.extend(number);
        }
        nodes.sort_unstable();
        Ok(nodes)
    }

    /// Creates everything that a cluster needs in the directory. Under the lock.
    pub fn create(&self, plan: &Plan) -> Outcome<Cluster> {
        let config = plan.config()?;
        let key = Key::generate().context("cannot draw a key")?;
        write_private(&self.0.join("cluster.key"), &format!("{}\n", key.to_hex()))?;
        for node in &config.nodes {
            let mut own = NodeConfig::new(node.number, "cluster.toml");
            own.threads = plan.threads.clone();
            own.redis.cluster = plan.redis_cluster;
            own.warden.socket = plan.wardens.as_ref().map(|dir| dir.join(format!("{}.sock", node.number)));
            let devices = &plan.fabric.devices;
            if !devices.is_empty() {
                own.use_device(devices.get(usize::from(node.number) % devices.len()).cloned());
            }
            write_whole(&self.node_file(node.number), &own.to_toml())?;
        }
        write_whole(&self.cluster_file(), &config.to_toml())?;
        self.existing_cluster()
    }

    /// Creates a host's own directory: the cluster's file and key, and the file of the only node that runs on this host. Under the lock.
    ///
    /// # Errors
    /// When there is a cluster already.
    pub fn create_host(&self, config: &ClusterConfig, key: &Key, own: &NodeConfig) -> Outcome<Cluster> {
        self.refuse_a_second_cluster()?;
        write_private(&self.0.join("cluster.key"), &format!("{}\n", key.to_hex()))?;
        // It may contain a password.
        write_private(&self.node_file(own.number), &own.to_toml())?;
        write_whole(&self.cluster_file(), &config.to_toml())?;
        self.existing_cluster()
    }

    /// # Errors
    /// When there is a cluster already.
    pub fn refuse_a_second_cluster(&self) -> Outcome {
        match self.cluster()? {
            None => Ok(()),
            Some(cluster) => Err(Fail::failed(format_args!(
                "there is already a cluster in {0}, {1:?}; choose another directory with --dir, or end that node and remove its files with `martlet cluster down --purge --dir {0}`",
                self.0.display(),
                cluster.config().name
            ))),
        }
    }

    fn invitations_directory(&self) -> PathBuf {
        self.0.join("invitations")
    }

    fn invitation_file(&self, id: &str) -> PathBuf {
        self.invitations_directory().join(format!("{id}.toml"))
    }

    /// The invitations that have been given here.
    pub fn invitations(&self) -> Outcome<Vec<String>> {
        let path = self.invitations_directory();
        let doing = format!("cannot list {}", path.display());
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(&doing)?,
        };
        let name = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.strip_suffix(".toml")).map(ToOwned::to_owned);
        entries.filter_map(|entry| entry.map(name).transpose()).collect::<Result<_, _>>().context(&doing)
    }

    /// The text of an invitation, if it exists. `id` becomes part of a path.
    pub fn invitation(&self, id: &str) -> Option<String> {
        fs::read_to_string(self.invitation_file(id)).ok()
    }

    /// Writes an invitation.
    pub fn write_invitation(&self, id: &str, text: &str) -> Outcome {
        let path = self.invitations_directory();
        fs::create_dir_all(&path).context(format_args!("cannot make {}", path.display()))?;
        write_private(&self.invitation_file(id), text)
    }

    /// Removes an invitation.
    pub fn forget_invitation(&self, id: &str) -> Outcome {
        remove(&self.invitation_file(id))
    }

    /// The process of a node, if one has been started from here; it may be gone. A living process that belongs to the directory of which this one is a copy
    /// does not count.
    pub fn process(&self, number: u16) -> Outcome<Option<ProcessName>> {
        let file = self.pid_file(number);
        let process = ProcessName::read(&file).context(format_args!("cannot read {}", file.display()))?;
        Ok(process.filter(|process| process.activity() == Activity::Gone || self.is_of_here(number, process)))
    }

    /// What a node's process is doing.
    pub fn activity(&self, number: u16) -> Outcome<Activity> {
        Ok(self.process(number)?.map_or(Activity::Gone, |process| process.activity()))
    }

    /// Starts a node, which must not be running. Under the lock.
    pub fn start(&self, number: u16, life: Life) -> Outcome<(ProcessName, Child)> {
        let mut command = own_command()?;
        command.arg("node").arg("--config").arg(self.node_file(number)).stdin(Stdio::null());
        if self.cluster()?.is_some_and(|cluster| self.nodes_here(&cluster).len() == cluster.config().nodes.len()) {
            command.arg("--all-here");
        }
        if life == Life::OfOurs {
            command.arg("--die-with-parent");
        }
        self.start_by(number, command)
    }

    /// Starts a node with another command of this executable, which gets the node's file. Its output goes to the node's log. Under the lock.
    pub fn start_by(&self, number: u16, mut command: Command) -> Outcome<(ProcessName, Child)> {
        if let Some(cluster) = self.cluster()? {
            self.refuse_as_root(&cluster, "start its nodes")?;
        }
        self.refuse_processes_of_elsewhere()?;
        // A process that was killed a moment ago may still hold its port.
        if let Some(before) = self.process(number)?
            && !before.await_release(RELEASE).context(format_args!("cannot wait for node {number}'s earlier process"))?
        {
            return Err(Fail::failed(format_args!("node {number}'s earlier process {} has not ended", before.pid)));
        }
        let log = self.log_file(number);
        let out = File::options().create(true).append(true).open(&log).context(format_args!("cannot write {}", log.display()))?;
        let err = out.try_clone().context("cannot duplicate a descriptor")?;
        // In a process group of its own, so that Ctrl-C at our terminal does not reach it.
        command.process_group(0).stdout(out).stderr(err);
        let child = command.spawn().context(format_args!("cannot start node {number}"))?;
        let name = ProcessName::of(child.id()).context(format_args!("cannot look at node {number}'s process"))?;
        let file = self.pid_file(number);
        name.write(&file).context(format_args!("cannot write {}", file.display()))?;
        Ok((name, child))
    }

    /// Forgets a node's process, which must be gone. A process that belongs to the directory of which this one is a copy is not forgotten: it shows that this
    /// is a copy. Under the lock.
    pub fn forget_process(&self, number: u16) -> Outcome {
        if self.elsewhere(number)?.is_some() {
            return Ok(());
        }
        remove(&self.pid_file(number))
    }

    /// The last lines of a node's log.
    pub fn log_tail(&self, number: u16, lines: usize) -> String {
        let text = fs::read(self.log_file(number)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Removes everything that [`Directory::create`] and the nodes wrote, and the directory if nothing else is in it. Under the lock. Returns whether there was
    /// anything of a cluster.
    pub fn purge(&self) -> Outcome<bool> {
        self.remove_all(&[], true)
    }

    /// The same, but keeps the nodes' logs, which say why a cluster failed to start, and data that may belong to an earlier cluster. Under the lock.
    pub fn unmake(&self, with_data: bool) -> Outcome {
        self.remove_all(&["log"], with_data).map(|_| ())
    }

    /// Removes a cluster's files, except its nodes' files of these kinds. Returns whether there were any.
    fn remove_all(&self, kept: &[&str], with_data: bool) -> Outcome<bool> {
        let mut found = self.cluster_file().exists();
        // The cluster's file first: without it there is no cluster, whatever a crash may leave behind.
        remove(&self.cluster_file())?;
        let data = self.0.join("data");
        if data.is_dir() && with_data {
            for entry in fs::read_dir(&data).context(format_args!("cannot list {}", data.display()))? {
                let path = entry.context(format_args!("cannot list {}", data.display()))?.path();
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
                if name.strip_prefix("node-").is_some_and(|number| number.parse::<u16>().is_ok()) {
                    found = true;
                    fs::remove_dir_all(&path).context(format_args!("cannot remove {}", path.display()))?;
                }
            }
            // Anything else in it is not ours.
            let _ = fs::remove_dir(&data);
        }
        for id in self.invitations()? {
            found = true;
            self.forget_invitation(&id)?;
        }
        let _ = fs::remove_dir(self.invitations_directory());
        let entries = fs::read_dir(&self.0).context(format_args!("cannot list {}", self.0.display()))?;
        for entry in entries {
            let path = entry.context(format_args!("cannot list {}", self.0.display()))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            let of_a_node = name.strip_prefix("node-").and_then(|rest| rest.split_once('.')).is_some_and(|(number, kind)| {
                number.parse::<u16>().is_ok()
                    && !kept.contains(&kind)
                    && ["toml", "log", "pid", "change", "pid.new", "toml.new", "change.new"].contains(&kind)
            });
            if of_a_node
                || [
                    "cluster.key",
                    "cluster.toml.new",
                    "removed",
                    "removed.new",
                    "server",
                    "server.new",
                    "runner.pid",
                    "runner.pid.new",
                    "lock",
                ]
                .contains(&name)
            {
                found |= name != "lock";
                remove(&path)?;
            }
        }
        match fs::remove_dir(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                Err(Fail::failed(format_args!("cannot remove {}: {error}", self.0.display())))
            }
            _ => Ok(found),
        }
    }
}

/// This executable, for running it again with other arguments.
///
/// # Errors
/// When it cannot be found.
pub fn own_command() -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this command's own executable")?);
    // For those that are to end with this process.
    command.env(PARENT, std::process::id().to_string());
    Ok(command)
}

/// How long a started node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Until it is told to end.
    OfItsOwn,
    /// No longer than the thread that started it.
    OfOurs,
}

fn remove(path: &Path) -> Outcome {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Fail::failed(format_args!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Writes a file in such a way that a reader finds either the whole of it or the previous one, even after a loss of power.
fn write_whole(path: &Path, text: &str) -> Outcome {
    let doing = format!("cannot write {}", path.display());
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let mut file = File::create(&fresh).context(&doing)?;
    // The new file can be read by the same users as the previous one.
    if let Ok(before) = fs::metadata(path) {
        file.set_permissions(before.permissions()).context(&doing)?;
        // Root may have changed a file of another user's.
        if rustix::process::geteuid().is_root() {
            fchown(&file, Some(before.uid()), Some(before.gid())).context(&doing)?;
        }
    }
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&fresh, path)).context(&doing)?;
    let holder = path.parent().filter(|holder| !holder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(holder).and_then(|holder| holder.sync_all()).context(&doing)
}

/// Writes a file that only its owner can read.
fn write_private(path: &Path, text: &str) -> Outcome {
    remove(path)?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.and_then(|mut file| file.write_all(text.as_bytes())).context(format_args!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    pub fn plan() -> Plan {
        Plan { coordinators: 3, redis_port: Some(7711), ..Plan::new("test", 2) }
    }

    #[test]
    fn nodes_serve_the_redis_protocol_on_free_ports_where_none_is_named() {
        let config = Plan { redis_port: Some(0), ..plan() }.config().expect("ports are free");
        let mut ports: Vec<&str> = config.nodes.iter().map(|node| node.redis.strip_prefix("127.0.0.1:").expect("an address")).collect();
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() == 3 && !ports.contains(&"0"), "{ports:?}");
    }

    #[test]
    fn a_cluster_made_here_is_found_again_and_purged() {
        let scratch = Scratch::new("directory").expect("a directory");
        let directory = Directory::new(&scratch.path().join("c"));
        fs::create_dir(directory.path()).expect("made");
        assert!(directory.cluster().expect("readable").is_none());
        let lock = directory.lock().expect("nobody else has it");
        let taken = directory.try_lock().expect_err("it is ours").to_string();
        assert!(taken.contains("another martlet command is changing the cluster in"), "{taken}");
        let cluster = directory.create(&plan()).expect("made");
        assert_eq!(cluster.config().nodes.len(), 3);
        assert_eq!(cluster.config().nodes[2].redis, "127.0.0.1:7713");
        assert_eq!(cluster.config().nodes[2].roles, [Role::Coordinator]);
        for number in 0..3 {
            martlet_node::config::Settings::load(&directory.node_file(number)).expect("a valid node");
        }
        let again = directory.existing_cluster().expect("there");
        assert_eq!(again.key().bytes(), cluster.key().bytes());
        fs::write(directory.path().join("mine"), "").expect("written");
        let life = directory.path().join("data/node-1/life-1");
        fs::create_dir_all(&life).and_then(|()| fs::write(life.join("segment"), "")).expect("written");
        assert!(directory.purge().expect("purged"));
        let left: Vec<_> = fs::read_dir(directory.path()).expect("still there").map(|e| e.expect("an entry").file_name()).collect();
        assert_eq!(left, ["mine"], "what is not ours stays");
        drop(lock);
        fs::remove_file(directory.path().join("mine")).expect("removed");
        assert!(!directory.purge().expect("purged"), "nothing of ours was there any more");
        assert!(!directory.path().exists());
    }

    #[test]
    fn nodes_on_rdma_get_an_address_each_and_take_the_devices_in_turn() {
        let scratch = Scratch::new("directory").expect("a directory");
        let directory = Directory::new(scratch.path());
        let devices = vec!["a".to_owned(), "b".to_owned()];
        let fabric = FabricPlan { port: Some(7611), devices: devices.clone(), multicast: Some(Multicast::On), kind: FabricKind::Verbs };
        let cluster = directory.create(&Plan { fabric, ..plan() }).expect("made");
        assert_eq!(cluster.config().fabric, FabricKind::Verbs);
        assert_eq!(cluster.config().nodes[2].address, "127.0.0.1:7613");
        assert_eq!(cluster.config().verbs.multicast(), Multicast::On);
        let of = |number| martlet_node::config::Settings::load(&directory.node_file(number)).expect("a valid node").verbs_device().name;
        assert_eq!([of(0), of(1), of(2)].map(Option::unwrap), ["a", "b", "a"]);
        directory.create(&Plan { fabric: FabricPlan::new(FabricKind::Verbs), ..plan() }).expect("made");
        assert_eq!(of(1), None, "each finds one by itself");
    }

    #[test]
    fn a_port_that_two_would_have_is_refused_with_both() {
        let refused = |plan: Plan| plan.config().expect_err("two would have it").to_string();
        let service = |port| Plan { service_port: Some(port), ..plan() };
        let why = refused(service(7713));
        assert!(why.starts_with("--service-port is 7713, which is node 2's own: --redis-port is 7711"), "{why}");
        assert!(why.ends_with("allowed is a port outside 7711 to 7713"), "{why}");
        for beside in [7710, 7714] {
            assert!(service(beside).config().is_ok(), "{beside}");
        }
        let meeting = |port| Plan { fabric: FabricPlan { port: Some(port), ..FabricPlan::new(FabricKind::Ethernet) }, ..plan() };
        let why = refused(meeting(7709));
        assert!(why.contains("node 2 would meet the others on the port on which node 0 serves the Redis protocol, 7711"), "{why}");
        assert!(meeting(7708).config().is_ok() && meeting(7714).config().is_ok());
        // Set by hand, or by a service at every address.
        let mut config = service(7720).config().expect("no two have one");
        config.key_file = None;
        config.key = Some(Key::generate().expect("drawn").to_hex().into());
        for (address, redis) in [("127.0.0.1:7712", "127.0.0.1:7712"), ("0.0.0.0:7712", "127.0.0.1:7712"), ("[::1]:7712", "[::1]:7712")] {
            config.nodes[1].redis = redis.into();
            config.service = Some(address.parse().expect("an address"));
            let why = Cluster::new(config.clone()).expect_err("two would have it").to_string();
            assert!(why.contains("service") && why.contains(&format!("but node 1 has {redis:?}")), "{why}");
        }
        config.service = Some("127.0.0.2:7712".parse().expect("an address"));
        config.nodes[1].redis = "127.0.0.1:7712".into();
        assert!(Cluster::new(config).is_ok(), "of another address of the host");
    }

    #[test]
    fn a_port_beyond_the_last_is_refused() {
        let scratch = Scratch::new("directory").expect("a directory");
        let directory = Directory::new(scratch.path());
        let error = directory.create(&Plan { redis_port: Some(65534), ..plan() }).expect_err("three ports do not fit");
        assert_eq!(error.to_string(), "--redis-port is 65534; node 2 would need 65536; allowed are ports up to 65535");
    }

    #[test]
    fn a_missing_cluster_is_said_with_the_way_out() {
        let scratch = Scratch::new("directory").expect("a directory");
        let error = Directory::new(scratch.path()).existing_cluster().expect_err("none");
        assert!(error.to_string().contains("`martlet cluster up --dir "), "{error}");
        assert_eq!(error.kind(), crate::fail::Kind::Absent);
    }
}

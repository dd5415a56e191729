//! Nodes that come and go: changes in the directory, made so that a command which is killed halfway can be repeated.
//!
//! `node-N.change` says what is under way with a node. It is written before any other step of a change, and removed when the node is complete.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use martlet_node::config::{Cluster, ClusterConfig, ListConfig, NodeConfig, NodeEntry, Settings};
use martlet_protocol::basics::layout::MAX_MEMBERS;

use super::{Directory, FabricFlags, remove, write_whole};
use crate::fail::{Context as _, Fail, Outcome};
use crate::process::{Activity, ProcessName};

/// What is under way with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is being added.
    Adding,
    /// Its data has been given up, and it starts afresh.
    Replacing,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Adding => "adding",
            Change::Replacing => "replacing",
        })
    }
}

/// The ports of a node to be added, as far as they were given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports {
    /// For the Redis protocol.
    pub redis: Option<u16>,
    /// For the other nodes, over a network.
    pub fabric: Option<u16>,
}

impl Directory {
    fn change_file(&self, number: u16) -> PathBuf {
        self.0.join(format!("node-{number}.change"))
    }

    /// What is under way with a node, if anything.
    pub fn change(&self, number: u16) -> Option<Change> {
        let text = fs::read_to_string(self.change_file(number)).ok()?;
        [Change::Adding, Change::Replacing].into_iter().find(|change| change.to_string() == text.trim())
    }

    /// Notes that something is under way with a node. Under the lock.
    pub fn begin_change(&self, number: u16, change: Change) -> Outcome {
        write_whole(&self.change_file(number), &format!("{change}\n"))
    }

    /// Notes that nothing is under way with a node any more. Under the lock.
    pub fn end_change(&self, number: u16) -> Outcome {
        remove(&self.change_file(number))
    }

    /// The node that an earlier command began to add, without finishing.
    pub fn half_added(&self) -> Option<u16> {
        (0..MAX_MEMBERS as u16).find(|number| self.change(*number) == Some(Change::Adding))
    }

    /// A number for a new node: above all others, so that no node makes way for it, and one of which nothing is left here.
    pub fn free_number(&self, cluster: &Cluster) -> Outcome<u16> {
        let listed = |number: u16| cluster.config().nodes.iter().any(|node| node.number == number);
        let left: Vec<u16> = (0..MAX_MEMBERS as u16).filter(|number| !listed(*number) && self.has_left(cluster, *number)).collect();
        let free = |number: &u16| !listed(*number) && !left.contains(number);
        let highest = cluster.config().nodes.iter().map(|node| node.number).max().unwrap_or(0);
        let above = (highest..MAX_MEMBERS as u16).find(free);
        above.or_else(|| (0..MAX_MEMBERS as u16).find(free)).ok_or_else(|| {
            let kept = if left.is_empty() {
                "none can be added".to_owned()
            } else {
                format!("files of the removed nodes {left:?} are kept; choose one of them with --node, or remove its files with `martlet cluster remove N --purge`")
            };
            Fail::failed(format_args!("the cluster has {} nodes, of {MAX_MEMBERS} that are allowed: {kept}", cluster.config().nodes.len()))
        })
    }

    /// Whether there are files of a node that the cluster may not list.
    pub fn has_left(&self, cluster: &Cluster, number: u16) -> bool {
        self.node_file(number).exists() || cluster.data_directory().join(format!("node-{number}")).exists()
    }

    /// The entry for a node to be added: like the cluster's first node, with ports that differ from that node's by as much as the numbers do.
    pub fn entry_for(&self, cluster: &Cluster, number: u16, ports: Ports) -> Outcome<NodeEntry> {
        let config = cluster.config();
        let known = config.nodes.iter().find(|node| node.number == number);
        let first = config.nodes.iter().find(|node| node.number != number);
        let beside = |flag: &str, asked: Option<u16>, of: &dyn Fn(&NodeEntry) -> Option<(String, u16)>| -> Outcome<String> {
            let Some((host, port)) = known.and_then(of).or_else(|| first.and_then(of)) else {
                return Ok(asked.map_or_else(String::new, |port| format!("127.0.0.1:{port}")));
            };
            if let (None, Some(known)) = (asked, known) {
                return Ok(of(known).map_or_else(String::new, |(host, port)| format!("{host}:{port}")));
            }
            let base = first.map_or(number, |first| first.number);
            let next = i32::from(port) + i32::from(number) - i32::from(base);
            let port = asked.or_else(|| u16::try_from(next).ok().filter(|port| *port > 0));
            let port = port.ok_or_else(|| {
                Fail::usage(format_args!(
                    "{flag} is absent, and would be {next}, counted from the port of node {base}; allowed are ports from 1 to 65535"
                ))
            })?;
            Ok(if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
        };
        let redis = beside("--redis-port", ports.redis, &|node| node.redis_host_port().map(|(host, port)| (host.to_owned(), port)))?;
        let address = if config.fabric.traits().needs_address {
            beside("--fabric-port", ports.fabric, &|node| node.meeting_point().map(|address| (address.ip().to_string(), address.port())))?
        } else {
            FabricFlags::check_port(config.fabric, ports.fabric)?;
            String::new()
        };
        if let Some(other) = config.nodes.iter().find(|node| node.number != number && !redis.is_empty() && node.redis == redis) {
            return Err(Fail::usage(format_args!(
                "node {number} would serve the Redis protocol on {redis}, as node {} does; choose another port with --redis-port",
                other.number
            )));
        }
        let roles = known.map_or_else(|| NodeEntry::new(number).roles, |known| known.roles.clone());
        Ok(NodeEntry { number, redis, address, roles })
    }

    /// Adds a node to the cluster, or changes where it is reached: first writes its own file, unless there is one already, and then its entry in the cluster's
    /// file. Under the lock.
    pub fn list_node(&self, cluster: &Cluster, entry: &NodeEntry) -> Outcome<Cluster> {
        if !self.node_file(entry.number).exists() {
            write_whole(&self.node_file(entry.number), &self.node_like_others(cluster, entry.number)?.to_toml())?;
        }
        self.list_entry(cluster, entry)
    }

    /// The same for a node of another host, which has no file of its own here. Under the lock.
    pub fn list_entry(&self, cluster: &Cluster, entry: &NodeEntry) -> Outcome<Cluster> {
        let mut nodes = cluster.config().nodes.clone();
        nodes.retain(|node| node.number != entry.number);
        nodes.push(entry.clone());
        self.rewrite(cluster, nodes, None, |text| ClusterConfig::list(text, entry))
    }

    /// Takes a node off the cluster's list. Its files stay. Under the lock.
    pub fn unlist_node(&self, cluster: &Cluster, number: u16) -> Outcome<Cluster> {
        let nodes = cluster.config().nodes.iter().filter(|node| node.number != number).cloned().collect();
        self.rewrite(cluster, nodes, None, |text| ClusterConfig::unlist(text, number))
    }

    /// From now on these are the cluster's nodes, as listed by the host that keeps the list, which has given the list this number. Under the lock.
    pub fn take_list(&self, cluster: &Cluster, list: &[NodeEntry], number: ListConfig) -> Outcome<Cluster> {
        self.rewrite(cluster, list.to_vec(), Some(number), |text| {
            let before = ClusterConfig::from_toml(text)?.nodes;
            let mut changed = text.to_owned();
            // Their order matters, so all entries from the first difference on are written again.
            let same = before.iter().zip(list).take_while(|(before, now)| before == now).count();
            for node in &before[same..] {
                changed = ClusterConfig::unlist(&changed, node.number)?;
            }
            list[same..].iter().try_fold(changed, |text, entry| ClusterConfig::list(&text, entry))
        })
    }

    fn removed_file(&self) -> PathBuf {
        self.0.join("removed")
    }

    /// Whether a node that the cluster does not list was one of its nodes, or was to become one: for a command that is repeated.
    pub fn was_node(&self, cluster: &Cluster, number: u16) -> bool {
        let noted = fs::read_to_string(self.removed_file()).unwrap_or_default();
        noted.split_whitespace().any(|noted| noted.parse() == Ok(number))
            || self.change(number).is_some()
            || self.pid_file(number).exists()
            || self.has_left(cluster, number)
    }

    /// Notes that nodes have been removed, or are about to be. Under the lock.
    pub fn note_removed(&self, numbers: &[u16]) -> Outcome {
        let noted = fs::read_to_string(self.removed_file()).unwrap_or_default();
        let mut all: BTreeSet<u16> = noted.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let before = all.len();
        all.extend(numbers);
        if all.len() == before {
            return Ok(());
        }
        write_whole(&self.removed_file(), &all.iter().map(|number| format!("{number}\n")).collect::<String>())
    }

    /// The cluster's nodes that are started from here: all of them or, on a fabric of several hosts, those that have a file here.
    pub fn nodes_here(&self, cluster: &Cluster) -> Vec<u16> {
        let everywhere = !cluster.config().fabric.traits().spans_hosts;
        let numbers = cluster.config().nodes.iter().map(|node| node.number);
        numbers.filter(|number| everywhere || self.node_file(*number).exists()).collect()
    }

    /// Checks that a cluster with these nodes would be valid.
    pub fn check_nodes(cluster: &Cluster, nodes: Vec<NodeEntry>) -> Outcome {
        cluster.with(|config| config.nodes = nodes).map(|_| ()).map_err(Fail::usage)
    }

    /// The number for a list with these nodes, where hosts have lists of their own.
    fn next_list(cluster: &Cluster, nodes: &[NodeEntry]) -> ListConfig {
        let config = cluster.config();
        if !config.fabric.traits().spans_hosts || config.nodes == nodes {
            return config.list;
        }
        let keeper = |nodes: &[NodeEntry]| Directory::keeper(nodes).map(|node| node.number);
        config.list.next(keeper(&config.nodes) == keeper(nodes))
    }

    /// The node whose host keeps the list of these nodes: the first one that may found the cluster.
    pub fn keeper(nodes: &[NodeEntry]) -> Option<&NodeEntry> {
        nodes.iter().find(|node| node.may_found())
    }

    fn rewrite(
        &self,
        cluster: &Cluster,
        nodes: Vec<NodeEntry>,
        number: Option<ListConfig>,
        change: impl Fn(&str) -> Result<String, String>,
    ) -> Outcome<Cluster> {
        let number = number.unwrap_or_else(|| Directory::next_list(cluster, &nodes));
        let stays = |number: u16| nodes.iter().any(|node| node.number == number);
        let removed: Vec<u16> = cluster.config().nodes.iter().map(|node| node.number).filter(|number| !stays(*number)).collect();
        // Check the result before it is written: readers must find a valid file.
        Directory::check_nodes(cluster, nodes)?;
        let file = self.cluster_file();
        let doing = format!("cannot change {}", file.display());
        let text = fs::read_to_string(&file).context(&doing)?;
        let numbered = |text: String| if number == cluster.config().list { Ok(text) } else { ClusterConfig::of_list(&text, number) };
        let changed = change(&text).and_then(numbered).map_err(|why| Fail::failed(format_args!("{doing}: {why}")))?;
        if changed != text {
            // First, so that it is known whenever the file does not list them any more.
            self.note_removed(&removed)?;
            write_whole(&file, &changed)?;
        }
        self.existing_cluster()
    }

    /// Replaces the cluster's file with this text. Under the lock.
    pub fn write_cluster(&self, text: &str) -> Outcome {
        write_whole(&self.cluster_file(), text)
    }

    /// The configuration of a node to be added: like the first node that has a file here.
    ///
    /// # Errors
    /// When that file cannot be read.
    pub fn node_like_others(&self, cluster: &Cluster, number: u16) -> Outcome<NodeConfig> {
        let mut others = cluster.config().nodes.iter().map(|node| node.number).filter(|other| *other != number);
        let Some(model) = others.find(|other| self.node_file(*other).exists()) else { return Ok(NodeConfig::new(number, "cluster.toml")) };
        let mut own = Settings::load(&self.node_file(model)).map_err(Fail::failed)?.node().clone();
        (own.number, own.cluster, own.directory) = (number, "cluster.toml".into(), None);
        // Leave out what only one process can have.
        (own.redis.port, own.redis.unix_socket) = (None, None);
        own.listens_elsewhere();
        Ok(own)
    }

    /// Removes a node's data on disk, wherever that is. Its process must be gone. Under the lock.
    pub fn clear_data(&self, number: u16) -> Outcome {
        let Some(data) = Settings::load(&self.node_file(number)).map_err(Fail::failed)?.data_directory() else { return Ok(()) };
        let hint = format!("is its disk gone? `directory` in {} names another one", self.node_file(number).display());
        let doing = || format!("cannot clear {} ({hint})", data.display());
        let entries = match fs::read_dir(&data) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.context(doing())?,
        };
        for entry in entries {
            let path = entry.context(doing())?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if name.starts_with("life-") {
                fs::remove_dir_all(&path).context(doing())?;
            } else if name.starts_with("return-") || name.starts_with("generation-") {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes all files of a node that the cluster does not list. Data that the node's file places elsewhere stays. Under the lock.
    pub fn purge_node(&self, cluster: &Cluster, number: u16) -> Outcome {
        let data = cluster.data_directory().join(format!("node-{number}"));
        if data.is_dir() {
            fs::remove_dir_all(&data).context(format_args!("cannot remove {}", data.display()))?;
        }
        for kind in ["log", "pid", "pid.new", "toml.new", "change.new", "change", "toml"] {
            remove(&self.0.join(format!("node-{number}.{kind}")))?;
        }
        Ok(())
    }

    /// Notes the process of a node that was started from here by a command that was killed before it could do so. Under the lock.
    pub fn adopt(&self, number: u16) -> Outcome {
        if self.activity(number)? != Activity::Gone {
            return Ok(());
        }
        let doing = format!("cannot tell whether node {number} runs");
        let of = |named: &Path| ProcessName::of_command(&["node", "--config"], named).context(&doing);
        let file = self.node_file(number);
        let mut found = of(&file)?;
        // A service manager may have started the node with the directory's name, if only one node has a file in it.
        if found.is_none() && file.exists() && (0..MAX_MEMBERS as u16).all(|other| other == number || !self.node_file(other).exists()) {
            found = of(&self.0)?;
        }
        if let Some(process) = found {
            let pid_file = self.pid_file(number);
            process.write(&pid_file).context(format_args!("cannot write {}", pid_file.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use martlet_node::config::FabricKind;

    use super::super::tests::plan;
    use super::super::{FabricPlan, Plan};
    use super::*;
    use crate::scratch::Scratch;

    fn cluster(scratch: &Scratch, plan: &Plan) -> (Directory, Cluster) {
        let directory = Directory::new(scratch.path());
        let cluster = directory.create(plan).expect("made");
        (directory, cluster)
    }

    #[test]
    fn a_node_is_listed_like_the_others_and_unlisted() {
        let scratch = Scratch::new("nodes").expect("a directory");
        let (directory, cluster) = cluster(&scratch, &plan());
        let number = directory.free_number(&cluster).expect("room");
        let entry = directory.entry_for(&cluster, number, Ports::default()).expect("ports");
        assert_eq!((number, entry.redis.as_str(), entry.address.as_str()), (3, "127.0.0.1:7714", ""));
        let four = directory.list_node(&cluster, &entry).expect("listed");
        assert_eq!(Settings::load(&directory.node_file(3)).expect("valid").entry(), &entry);
        assert_eq!(directory.list_node(&four, &entry).expect("again").config(), four.config());
        let again = directory.entry_for(&four, 3, Ports::default()).expect("as it is");
        assert_eq!(again, entry);
        let moved = directory.entry_for(&four, 3, Ports { redis: Some(9999), fabric: None }).expect("another port");
        assert_eq!(directory.list_node(&four, &moved).expect("listed").config().nodes[3].redis, "127.0.0.1:9999");
        let taken = directory.entry_for(&four, 3, Ports { redis: Some(7711), fabric: None }).expect_err("node 0's");
        assert!(taken.to_string().contains("127.0.0.1:7711, as node 0 does"), "{taken}");

        let three = directory.unlist_node(&four, 3).expect("unlisted");
        assert_eq!(three.config().nodes.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(directory.free_number(&three).expect("room"), 4, "files of 3 are kept");
        directory.purge_node(&three, 3).expect("purged");
        assert!(
            directory.was_node(&three, 3) && !directory.was_node(&three, 4),
            "a removal that is repeated is told from a number that never was a node"
        );
        directory.begin_change(4, Change::Adding).expect("noted");
        assert!(directory.was_node(&three, 4), "it was about to become one");
        directory.end_change(4).expect("over");
        assert_eq!(directory.free_number(&three).expect("room"), 3);
        let last = directory.unlist_node(&directory.unlist_node(&three, 0).expect("two"), 1).expect_err("node 2 only coordinates");
        assert!(last.to_string().contains("at least one node with both roles, which founds the cluster"), "{last}");
    }

    #[test]
    fn numbers_run_out_with_what_can_be_done_about_it() {
        let scratch = Scratch::new("nodes").expect("a directory");
        let (directory, mut cluster) = cluster(&scratch, &plan());
        let mut seen = BTreeSet::new();
        while let Ok(number) = directory.free_number(&cluster) {
            assert!(seen.insert(number));
            let entry = directory.entry_for(&cluster, number, Ports::default()).expect("ports");
            cluster = directory.list_node(&cluster, &entry).expect("listed");
        }
        assert_eq!(seen, (3..16).collect());
        let full = directory.free_number(&cluster).expect_err("full").to_string();
        assert_eq!(full, "the cluster has 16 nodes, of 16 that are allowed: none can be added");
        cluster = directory.unlist_node(&cluster, 5).expect("unlisted");
        let kept = directory.free_number(&cluster).expect_err("files of 5 are kept").to_string();
        assert!(kept.contains("files of the removed nodes [5] are kept"), "{kept}");
        directory.purge_node(&cluster, 5).expect("purged");
        assert_eq!(directory.free_number(&cluster).expect("room"), 5);
    }

    #[test]
    fn on_rdma_a_node_gets_an_address_too() {
        let scratch = Scratch::new("nodes").expect("a directory");
        let fabric = FabricPlan { port: Some(7611), devices: vec!["a".to_owned()], ..FabricPlan::new(FabricKind::Verbs) };
        let (directory, cluster) = cluster(&scratch, &Plan { fabric, ..plan() });
        let entry = directory.entry_for(&cluster, 4, Ports::default()).expect("ports");
        assert_eq!((entry.redis.as_str(), entry.address.as_str()), ("127.0.0.1:7715", "127.0.0.1:7615"));
        directory.list_node(&cluster, &entry).expect("listed");
        assert_eq!(Settings::load(&directory.node_file(4)).expect("valid").verbs_device().name.as_deref(), Some("a"));
    }

    #[test]
    fn each_change_of_a_list_between_hosts_makes_a_newer_one() {
        let scratch = Scratch::new("nodes").expect("a directory");
        let fabric = FabricPlan { port: Some(7611), ..FabricPlan::new(FabricKind::between_ordinary_hosts()) };
        let (directory, first) = cluster(&scratch, &Plan { fabric, ..plan() });
        let list = |cluster: &Cluster| (cluster.config().list.reign, cluster.config().list.change);
        let entry = directory.entry_for(&first, 3, Ports::default()).expect("ports");
        let four = directory.list_node(&first, &entry).expect("listed");
        assert_eq!((list(&first), list(&four)), ((0, 0), (0, 1)));
        assert_eq!(list(&directory.list_node(&four, &entry).expect("again")), (0, 1), "nothing has changed");
        let without = directory.unlist_node(&four, 0).expect("unlisted");
        assert_eq!(list(&without), (1, 0), "another node's host keeps it");
        let taken = ListConfig { reign: 4, change: 2 };
        let back = directory.take_list(&without, &four.config().nodes, taken).expect("taken");
        assert_eq!((back.config().list, &back.config().nodes), (taken, &four.config().nodes));
    }

    #[test]
    fn what_is_under_way_is_remembered() {
        let scratch = Scratch::new("nodes").expect("a directory");
        let (directory, _) = cluster(&scratch, &plan());
        assert_eq!((directory.half_added(), directory.change(2)), (None, None));
        directory.begin_change(2, Change::Replacing).expect("noted");
        directory.begin_change(3, Change::Adding).expect("noted");
        assert_eq!((directory.half_added(), directory.change(2)), (Some(3), Some(Change::Replacing)));
        directory.end_change(3).and_then(|()| directory.end_change(3)).expect("twice");
        assert_eq!(directory.half_added(), None);
    }
}

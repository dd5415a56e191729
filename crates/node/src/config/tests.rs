//! Valid files are written back as they were read; each invalid file gives an error that says what is wrong.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use martlet_fabric::Rendezvous;
use martlet_fabric::verbs::Multicast;
use martlet_protocol::membership::Roles;

use super::*;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("martlet-config-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Dir(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a temporary file");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn three() -> ClusterConfig {
    let nodes = (0..3)
        .map(|number| NodeEntry {
            number,
            redis: format!("127.0.0.1:{}", 7711 + number),
            address: String::new(),
            roles: vec![Role::Coordinator, Role::Replica],
        })
        .collect();
    ClusterConfig { key: Some(KEY.into()), ..ClusterConfig::new("demo", nodes) }
}

/// A cluster of three on that fabric, with addresses if the fabric needs them.
fn three_on(fabric: FabricKind) -> ClusterConfig {
    let mut config = ClusterConfig { fabric, ..three() };
    for node in config.nodes.iter_mut().filter(|_| fabric.traits().needs_address) {
        node.address = format!("10.0.0.{}:7600", node.number + 1);
    }
    config
}

#[test]
fn data_stand_beside_the_cluster_s_file_unless_somebody_says_otherwise() {
    let dir = Dir::new("durability");
    let text = |more: &str| format!("{}\n{more}", ClusterConfig { engine: EngineKind::Mu, ..three() }.to_toml());
    let node = |own: &str| dir.file("node-1.toml", &format!("number = 1\ncluster = \"cluster.toml\"\n{own}"));
    dir.file("cluster.toml", &text(""));
    assert_eq!(Settings::load(&node("")).expect("valid").data_directory(), None, "memory is the default");
    dir.file("cluster.toml", &text("[durability]\nmode = \"sync\"\n"));
    assert_eq!(Settings::load(&node("")).expect("valid").data_directory(), Some(dir.0.join("data/node-1")));
    assert_eq!(Settings::load(&node("directory = \"mine\"")).expect("valid").data_directory(), Some(dir.0.join("mine")));
    dir.file(
        "cluster.toml",
        &text("[durability]\nmode = \"async\"\ndirectory = \"/disk\"\nmax_pending_bytes = 1000000\nsnapshot_bytes_per_s = 5000000\n"),
    );
    let settings = Settings::load(&node("")).expect("valid");
    assert_eq!(settings.data_directory(), Some("/disk/node-1".into()));
    assert_eq!(settings.cluster().config().durability.directory, Path::new("/disk"));
    assert_eq!(settings.cluster().config().durability.max_pending_bytes, 1_000_000);
    assert_eq!(settings.cluster().config().durability.snapshot_bytes_per_s, 5_000_000);
}

#[test]
fn a_directory_to_meet_in_is_beside_the_cluster_s_file_and_short_enough_for_sockets() {
    let dir = Dir::new("rendezvous");
    dir.file("node-1.toml", "number = 1\ncluster = \"cluster.toml\"\n");
    let load = |rendezvous: Option<&str>, fabric: FabricKind| {
        dir.file("cluster.toml", &ClusterConfig { rendezvous: rendezvous.map(PathBuf::from), fabric, ..three() }.to_toml());
        Settings::load(&dir.0.join("node-1.toml"))
    };
    let meets = |rendezvous| load(rendezvous, FabricKind::Shm).expect("valid").cluster().rendezvous();
    assert_eq!(meets(None), Rendezvous::Names);
    assert_eq!(meets(Some("meet")), Rendezvous::Directory(dir.0.join("meet")));
    assert_eq!(meets(Some("/run/martlet")), Rendezvous::Directory("/run/martlet".into()));
    let refused = |rendezvous: &str, fabric| load(Some(rendezvous), fabric).expect_err("refused").to_string();
    let most = Rendezvous::max_directory_bytes("demo~999999");
    let long = format!("/{}", "d".repeat(most));
    let text = refused(&long, FabricKind::Shm);
    assert!(
        text.contains(&format!("which is {} bytes long; allowed: a directory whose path is 1 to {most} bytes long", most + 1)),
        "{text}"
    );
    assert!(load(Some(&long[1..]), FabricKind::Shm).is_err(), "it counts with where it is relative to");
    assert!(refused("", FabricKind::Shm).contains("rendezvous is"));
    let text = refused("meet", FabricKind::Verbs);
    assert!(text.contains("rendezvous is \"meet\"; allowed: none where fabric is \"verbs\""), "{text}");
}

#[test]
fn replies_wait_for_a_majority_where_nodes_can_be_on_several_hosts_and_where_the_file_says_so() {
    let dir = Dir::new("reads");
    let load = |fabric: FabricKind, reads: &str| {
        dir.file("cluster.toml", &three_on(fabric).to_toml());
        let node = dir.file("node-1.toml", &format!("number = 1\ncluster = \"cluster.toml\"\n[redis]\nreads = \"{reads}\"\n"));
        Settings::load(&node).expect("valid").reads_by_quorum()
    };
    let of = |fabric| ["auto", "lease", "quorum"].map(|reads| load(fabric, reads));
    assert_eq!(of(FabricKind::Shm), [false, false, true]);
    assert_eq!(of(FabricKind::Ethernet), [true, false, true]);
}

#[test]
fn nodes_whose_turns_others_wait_for_are_bound_to_the_cores_that_the_file_names_and_to_no_others() {
    let dir = Dir::new("pin");
    let load = |fabric: FabricKind, pin: &str| {
        dir.file("cluster.toml", &three_on(fabric).to_toml());
        let node = dir.file("node-1.toml", &format!("number = 1\ncluster = \"cluster.toml\"\n[threads]\npin = {pin}\n"));
        Settings::load(&node).expect("valid").pin().clone()
    };
    let of = |fabric| ["\"auto\"", "\"none\"", "[1, 0]"].map(|pin| load(fabric, pin));
    assert_eq!(of(FabricKind::Shm), [Pin::Auto, Pin::None, Pin::Cores(vec![1, 0])]);
    assert_eq!(of(FabricKind::Ethernet), [Pin::None, Pin::None, Pin::Cores(vec![1, 0])]);
}

#[test]
fn the_size_of_a_group_and_who_counts_in_it_are_the_engines_to_use() {
    let dir = Dir::new("group");
    let load = |fabric, group: GroupConfig| {
        let config = ClusterConfig { engine: EngineKind::Dare, group, ..three_on(fabric) };
        Cluster::load(&dir.file("cluster.toml", &config.to_toml())).map(|_| ()).map_err(|error| error.to_string())
    };
    let group = |places, zombies_us| GroupConfig { places, zombies_us };
    assert_eq!(load(FabricKind::Shm, group(16, 60_000_000)), Ok(()));
    assert_eq!(load(FabricKind::Ethernet, group(16, 0)), Ok(()));
    let refused = |fabric, group, why: &str| {
        let error = load(fabric, group).expect_err(why);
        assert!(error.contains(why), "{error}");
    };
    refused(FabricKind::Shm, group(17, 0), "group.places is 17; allowed: 0 to 16");
    refused(FabricKind::Shm, group(0, 60_000_001), "group.zombies_us is 60000001; allowed: 0 to 60000000");
    refused(FabricKind::Ethernet, group(0, 1), "group.zombies_us is 1; allowed: 0 where fabric is \"ethernet\"");
}

/// The documentation page with every key shows the defaults.
#[test]
fn the_page_of_keys_shows_the_defaults() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md")).expect("the page");
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().expect("a block ends")).collect();
    let [cluster, election, node] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let shown: ClusterConfig = toml::from_str(cluster).expect("a cluster's file");
    let own = NodeEntry { redis: "127.0.0.1:7711".into(), ..NodeEntry::new(0) };
    let usual = ClusterConfig { key_file: Some("cluster.key".into()), ..ClusterConfig::new("shop", vec![own]) };
    assert_eq!(shown, usual);
    let shown: ClusterConfig = toml::from_str(&format!("{cluster}\n{election}")).expect("with its election");
    assert_eq!(shown.election, Some(ElectionConfig::QUICK));
    let shown: NodeConfig = toml::from_str(node).expect("a node's file");
    assert_eq!(shown, NodeConfig::new(0, "cluster.toml"));
    // Every key that a file can have is on the page: those with a default, and, as comments, those that may be absent.
    let everything = ClusterConfig { durability: DurabilityConfig { mode: DurabilityKind::Sync, ..Default::default() }, ..usual };
    for line in [everything.to_toml(), toml::to_string(&shown).expect("a form")].iter().flat_map(|text| text.lines()) {
        if let Some((key, _)) = line.split_once(" = ") {
            let is_shown = |line: &str| line.starts_with(&format!("{key} = "));
            assert!(blocks.iter().any(|block| block.lines().any(is_shown)), "{key}");
        }
    }
    let whole = |block: &str| block.replace("\n# ", "\n");
    let cluster: ClusterConfig = toml::from_str(&whole(cluster)).expect("a cluster's file");
    assert!(matches!(&cluster.verbs, VerbsConfig { device: Some(_), port: Some(_), gid_index: Some(_), .. }));
    assert_ne!(cluster.nodes[0].address, "");
    let node: NodeConfig = toml::from_str(&whole(node)).expect("a node's file");
    assert!(node.directory.is_some() && node.answers_hosts);
    assert!(matches!(&node.redis, RedisConfig { port: Some(_), unix_socket: Some(_), requirepass: Some(_), .. }));
    assert!(matches!(&node.verbs, NodeVerbsConfig { listen: Some(_), device: Some(_), port: Some(_), gid_index: Some(_) }));
}

#[test]
fn execution_on_commit_is_refused_where_an_engine_executes_ahead() {
    let of = |engine, execution| Cluster::new(ClusterConfig { engine, execution, ..three() });
    let error = of(EngineKind::PrimaryBackup, Execution::Committed).expect_err("refused").to_string();
    assert!(
        error.contains("execution is \"committed\"; allowed: \"speculative\" with the engine \"primary-backup\"; \"committed\" with mu"),
        "{error}"
    );
    let cluster = of(EngineKind::Mu, Execution::Committed).expect("mu can");
    assert!(cluster.config().to_toml().contains("execution = \"committed\""));
    let wrong = toml::from_str::<ClusterConfig>("name = \"x\"\nexecution = \"late\"\n").expect_err("refused").to_string();
    assert!(wrong.contains("execution is \"late\"; allowed are speculative, committed"), "{wrong}");
}

/// A program can ask for durability where the file does not.
#[test]
fn a_cluster_that_is_changed_keeps_its_paths() {
    let dir = Dir::new("changed");
    let config = ClusterConfig { engine: EngineKind::Mu, key: None, key_file: Some("cluster.key".into()), ..three() };
    dir.file("cluster.toml", &config.to_toml());
    fs::set_permissions(dir.file("cluster.key", KEY), fs::Permissions::from_mode(0o600)).expect("ours");
    let node = dir.file("node-1.toml", "number = 1\ncluster = \"cluster.toml\"\n");
    let settings = Settings::load(&node).expect("valid");
    let changed = settings.cluster().with(|config| config.durability.mode = DurabilityKind::Sync).expect("valid");
    let settings = Settings::new(changed, settings.node().clone()).expect("valid");
    assert_eq!(settings.data_directory(), Some(dir.0.join("data/node-1")));
    let error = settings.cluster().with(|config| config.engine = EngineKind::PrimaryBackup).expect_err("refused").to_string();
    assert!(error.contains("durability.mode is \"sync\"; allowed: \"memory\" with the engine"), "{error}");
}

/// Nodes are added and removed while others run; everything else a process takes when it starts.
#[test]
fn the_list_of_nodes_is_read_again_and_nothing_else() {
    let dir = Dir::new("relisted");
    dir.file("cluster.toml", &three().to_toml());
    let settings = Settings::load(&dir.file("node-1.toml", "number = 1\ncluster = \"cluster.toml\"\n")).expect("valid");
    let mut other = three();
    other.nodes.remove(0);
    other.nodes[0].roles = vec![Role::Replica];
    other.nodes.push(NodeEntry::new(3));
    other.lease_us = 77_777;
    dir.file("cluster.toml", &other.to_toml());
    let relisted = settings.relisted().expect("valid");
    assert_eq!(relisted.cluster().config().nodes.iter().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((relisted.entry(), relisted.cluster().lease_ns()), (settings.entry(), settings.cluster().lease_ns()));
    let own = settings.cluster().with(|config| config.nodes[1].redis = "10.0.0.1:1".into()).expect("valid");
    let own = Settings::new(own, settings.node().clone()).expect("valid").relisted().expect("valid");
    assert_eq!((own.entry().redis.as_str(), own.cluster().config().nodes.len()), ("10.0.0.1:1", 3), "what it says of itself it keeps");
    let made = settings.cluster().with(|config| config.nodes.truncate(2)).expect("valid");
    let made = Settings::new(made, settings.node().clone()).expect("valid");
    assert_eq!(made.relisted().expect("as it is").cluster().config().nodes.len(), 2, "the program's list counts");

    other.nodes.remove(0);
    dir.file("cluster.toml", &other.to_toml());
    let error = settings.relisted().expect_err("it is not there").to_string();
    assert!(error.contains("cluster.toml does not list it any more: its nodes are [2, 3]"), "{error}");
    dir.file("cluster.toml", "name = 1");
    assert!(matches!(settings.relisted(), Err(RelistError::Config(_))));
}

#[test]
fn durability_is_refused_where_it_cannot_be_had() {
    let refused = |engine, durability| Cluster::new(ClusterConfig { engine, durability, ..three() }).expect_err("refused").to_string();
    let sync = DurabilityConfig { mode: DurabilityKind::Sync, ..DurabilityConfig::default() };
    let error = refused(EngineKind::PrimaryBackup, sync.clone());
    assert!(error.contains("durability.mode is \"sync\"; allowed: \"memory\" with the engine \"primary-backup\""), "{error}");
    let error = refused(EngineKind::Mu, DurabilityConfig { max_pending_bytes: 1000, ..sync.clone() });
    assert!(error.contains("durability.max_pending_bytes is 1000; allowed: 65536 to "), "{error}");
    for wrong in [0, 1 << 19, 1 << 40] {
        let error = refused(EngineKind::Mu, DurabilityConfig { snapshot_bytes_per_s: wrong, ..sync.clone() });
        assert!(error.contains(&format!("durability.snapshot_bytes_per_s is {wrong}; allowed: 1048576 to 68719476736")), "{error}");
    }
    let error = refused(EngineKind::Mu, DurabilityConfig { segment_bytes: 0, ..sync.clone() });
    assert!(error.contains("durability.segment_bytes is 0; allowed: 65536 to "), "{error}");
    let error = refused(EngineKind::Mu, DurabilityConfig { directory: PathBuf::new(), ..sync });
    assert!(error.contains("durability.directory is \"\"; allowed: the path of a directory"), "{error}");
    let error = toml::from_str::<DurabilityConfig>("mode = \"disk\"").expect_err("no such mode").to_string();
    assert!(error.contains("`memory`, `async`, `sync`"), "{error}");
}

#[test]
fn a_cluster_file_that_was_written_is_read_as_it_was() {
    let mut config = three();
    config.lease_us = 777;
    config.detector.recovery = 6;
    config.election = Some(ElectionConfig { heartbeat_us: 50, ..ElectionConfig::QUICK });
    config.sizes.log_ring_bytes = 1 << 20;
    config.nodes[2].roles = vec![Role::Coordinator];
    config.nodes[2].redis = String::new();
    assert_eq!(toml::from_str::<ClusterConfig>(&config.to_toml()).expect("what we wrote"), config);
    let dir = Dir::new("cluster-round-trip");
    let cluster = Cluster::load(&dir.file("cluster.toml", &config.to_toml())).expect("valid");
    assert_eq!(cluster.config(), &config);
    assert_eq!(cluster.key().to_hex(), KEY);
    assert_eq!(cluster.key().bytes()[..3], [0, 1, 2]);
    assert_eq!(cluster.lease_ns(), 777_000);
    assert_eq!(cluster.sizes().log_ring_bytes, 1 << 20);
    assert_eq!(cluster.node(martlet_fabric::NodeId(1)).expect("a node").redis_host_port(), Some(("127.0.0.1", 7712)));
    assert_eq!(cluster.node(martlet_fabric::NodeId(3)), None);
}

#[test]
fn a_node_file_that_was_written_is_read_as_it_was() {
    for (pin, maxmemory) in [(Pin::None, 0), (Pin::Auto, 256 << 20), (Pin::Cores(vec![1, 0]), u64::MAX)] {
        let mut config = NodeConfig::new(2, "cluster.toml");
        config.redis.port = Some(0);
        config.redis.unix_socket = Some("n2.sock".into());
        config.redis.requirepass = Some("secret \"word\"".into());
        config.redis.maxmemory = Bytes(maxmemory);
        config.redis.reads = Reads::Quorum;
        config.warden = WardenConfig { usage: UseWarden::Off, socket: Some("warden.sock".into()) };
        config.threads = ThreadsConfig {
            plan: ThreadPlan::Dedicated,
            pin,
            idle: Idle::Park,
            spin_us: 7,
            priority: Priority::Slice,
            rehearse_every_us: 0,
            wake_latency_us: Some(0),
        };
        assert_eq!(toml::from_str::<NodeConfig>(&config.to_toml()).expect("what we wrote"), config);
    }
}

#[test]
fn a_texts_meaning_is_that_of_a_files() {
    #[derive(serde::Deserialize)]
    struct File {
        idle: Idle,
        priority: Priority,
    }
    for (idle, priority) in [("spin", "auto"), ("yield", "fifo"), ("park", "slice"), ("adaptive", "normal")] {
        let file: File = toml::from_str(&format!("idle = {idle:?}\npriority = {priority:?}")).expect("names of both");
        assert_eq!((idle.parse(), priority.parse()), (Ok(file.idle), Ok(file.priority)));
    }
    assert_eq!("none".parse(), Ok(Pin::None));
    assert_eq!("auto".parse(), Ok(Pin::Auto));
    assert_eq!("3,0".parse(), Ok(Pin::Cores(vec![3, 0])));
    for refused in ["".parse::<Pin>().err(), "0,".parse::<Pin>().err(), "Spin".parse::<Idle>().err(), "real".parse::<Priority>().err()] {
        assert!(refused.is_some_and(|why| why.contains("allowed are")));
    }
}

#[test]
fn little_is_needed_and_the_rest_has_defaults() {
    let dir = Dir::new("defaults");
    dir.file("c.toml", &format!("name = \"small\"\nkey = \"{KEY}\"\n[[node]]\nnumber = 4\nredis = \"localhost:7000\"\n"));
    let settings = Settings::load(&dir.file("n.toml", "number = 4\ncluster = \"c.toml\"\n")).expect("valid");
    assert_eq!(settings.entry().roles, [Role::Coordinator, Role::Replica]);
    assert_eq!(settings.redis_listen(), Some("127.0.0.1:7000".parse().expect("an address")));
    assert_eq!(settings.node().redis, RedisConfig::default());
    assert_eq!(settings.node().threads, ThreadsConfig::default());
    assert_eq!(settings.cluster().config().detector, DetectorConfig::default());
    assert_eq!((settings.position(), settings.id()), (0, martlet_fabric::NodeId(4)));
}

#[test]
fn paths_in_a_file_are_relative_to_it() {
    let dir = Dir::new("relative");
    let key = dir.file("the.key", &format!("{KEY}\n"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("our file");
    dir.file("c.toml", "name = \"small\"\nkey_file = \"the.key\"\n[[node]]\nnumber = 0\n");
    let text = "number = 0\ncluster = \"c.toml\"\n[redis]\nunix_socket = \"s\"\nport = 9\nlisten = \"::1\"\n";
    let settings = Settings::load(&dir.file("n.toml", text)).expect("valid");
    assert_eq!(settings.node().redis.unix_socket, Some(dir.0.join("s")));
    assert_eq!(settings.redis_listen(), Some("[::1]:9".parse().expect("an address")));
    assert_eq!(settings.cluster().key().to_hex(), KEY);

    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("our file");
    let error = Cluster::load(&dir.0.join("c.toml")).expect_err("anybody may read the key").to_string();
    // A warden's key is read so, too, and its readers can join no cluster with it.
    let why = "the.key: its mode is 644; allowed: 600 or 400, since a process that reads the key can pass for any of those that share it";
    assert!(error.contains(why), "{error}");
}

/// Three nodes on RDMA, the second of which has settings of its own.
fn on_rdma() -> ClusterConfig {
    let mut config = three();
    config.fabric = FabricKind::Verbs;
    config.verbs = VerbsConfig {
        device: Some("mlx5_0".into()),
        gid_index: Some(3),
        timeout: 12,
        multicast: "239.192.7.1".into(),
        ..VerbsConfig::default()
    };
    for node in &mut config.nodes {
        node.address = format!("10.0.0.{}:7600", node.number + 1);
    }
    config
}

#[test]
fn a_cluster_on_rdma_says_where_its_nodes_meet_and_a_node_what_it_uses() {
    let config = on_rdma();
    let dir = Dir::new("rdma-round-trip");
    let file = dir.file("cluster.toml", &config.to_toml());
    let cluster = Cluster::load(&file).expect("valid");
    assert_eq!(cluster.config(), &config);
    assert_eq!(cluster.config().verbs.patience().timeout, 12);
    assert_eq!(cluster.config().verbs.multicast(), Multicast::At([239, 192, 7, 1].into()));
    assert_eq!(VerbsConfig::default().multicast(), Multicast::Off);
    let mut node = NodeConfig::new(1, "cluster.toml");
    let usual = Settings::load(&dir.file("a.toml", &node.to_toml())).expect("valid");
    assert_eq!(usual.verbs_listen(), Some("10.0.0.2:7600".parse().expect("an address")));
    assert_eq!(usual.verbs_device(), cluster.config().verbs.device());
    node.verbs = NodeVerbsConfig { listen: Some("0.0.0.0:7600".into()), device: Some("mlx5_1".into()), port: Some(2), gid_index: None };
    let own = Settings::load(&dir.file("b.toml", &node.to_toml())).expect("valid");
    assert_eq!(own.verbs_listen(), Some("0.0.0.0:7600".parse().expect("an address")));
    let device = own.verbs_device();
    assert_eq!((device.name.as_deref(), device.port, device.gid_index), (Some("mlx5_1"), 2, Some(3)));
}

#[test]
fn each_wrong_key_about_rdma_is_named_with_its_value_and_what_is_allowed() {
    let text = on_rdma().to_toml();
    for (from, to, wanted) in [
        ("10.0.0.2:7600", "", "node[1].address is \"\"; allowed: an IP address of its own and a port from 1 to 65535"),
        ("10.0.0.2:7600", "10.0.0.1:7600", "node[1].address is \"10.0.0.1:7600\"; allowed: an IP address"),
        ("10.0.0.2:7600", "0.0.0.0:7600", "node[1].address is \"0.0.0.0:7600\"; allowed: an IP address"),
        ("10.0.0.2:7600", "host:7600", "node[1].address is \"host:7600\"; allowed: an IP address"),
        ("mlx5_0", "", "verbs.device is \"\"; allowed: 1 to 63 letters"),
        ("mlx5_0", "mlx5/0", "verbs.device is \"mlx5/0\"; allowed: 1 to 63 letters"),
        ("gid_index = 3", "port = 0", "verbs.port is 0; allowed: 1 to 255"),
        ("timeout = 12", "timeout = 21", "verbs.timeout is 21; allowed: 1 to 20"),
        ("retries = 6", "retries = 7", "verbs.retries is 7; allowed: 1 to 6"),
        ("nap_us = 50", "nap_us = 0", "verbs.nap_us is 0; allowed: 1 to 20000"),
        ("239.192.7.1", "10.0.0.9", "verbs.multicast is \"10.0.0.9\"; allowed: \"off\", \"on\", or a multicast address"),
        ("fabric = \"verbs\"", "fabric = \"tin\"", "fabric is \"tin\"; allowed: \"shm\", \"verbs\" or \"ethernet\""),
    ] {
        assert!(text.contains(from), "{from:?} is not in\n{text}");
        let error = said_of_cluster("bad-rdma", &text.replacen(from, to, 1));
        assert!(error.starts_with(wanted), "{to}: {error}\nwanted: {wanted}");
    }
    let bad = NodeVerbsConfig { listen: Some("7600".into()), ..NodeVerbsConfig::default() };
    let cluster = Cluster::new(on_rdma()).expect("valid");
    let error = Settings::new(cluster, NodeConfig { verbs: bad, ..NodeConfig::new(1, "c") }).expect_err("no address").to_string();
    assert!(error.contains("verbs.listen is \"7600\"; allowed: an IP address and a port"), "{error}");
}

/// What is said about a cluster's file with that text, without the file and the line.
fn said_of_cluster(directory: &str, text: &str) -> String {
    let dir = Dir::new(directory);
    let file = dir.file("cluster.toml", text);
    let error = Cluster::load(&file).expect_err(text).to_string();
    let said = error.strip_prefix(&file.display().to_string()).unwrap_or_else(|| panic!("it names its file: {error}"));
    let after_line = said.strip_prefix(", line ").and_then(|said| said.split_once(": ")).map(|(_, said)| said);
    after_line.or_else(|| said.strip_prefix(": ")).expect("what is wrong").to_owned()
}

/// The same of a cluster's file in which one text has been replaced by another.
fn cluster_error(from: &str, to: &str) -> String {
    let text = three().to_toml();
    assert!(text.contains(from), "{from:?} is not in\n{text}");
    said_of_cluster("bad-cluster", &text.replacen(from, to, 1))
}

#[test]
fn each_wrong_key_of_a_cluster_file_is_named_with_its_value_and_what_is_allowed() {
    let key_line = format!("key = \"{KEY}\"");
    let election = |heartbeat_us: u64, recovery: u8| {
        format!("[election]\nheartbeat_us = {heartbeat_us}\ncap = 6\nfailure = 1\nrecovery = {recovery}\n\n[detector]")
    };
    for (from, to, wanted) in [
        ("name = \"demo\"", "name = \"\"", "name is \"\"; allowed: 1 to 48 letters, digits, '-', '_' or '.'"),
        ("name = \"demo\"", "name = \"a/b\"", "name is \"a/b\"; allowed: 1 to 48 letters"),
        (&key_line, "key = \"12\"", "key is a text of 2 bytes; allowed: 64 hexadecimal digits"),
        (&key_line, &key_line.replace("0001", "+1+1"), "key is a text of 64 bytes; allowed: 64 hexadecimal digits"),
        (&key_line, "", "key is missing; allowed: one of key and key_file"),
        (&key_line, &format!("key_file = \"k\"\n{key_line}"), "key is given twice, as key and as key_file; allowed: one of"),
        ("lease_us = 10000", "lease_us = 10", "lease_us is 10; allowed: 50 to 60000000"),
        ("lease_us = 10000", "lease_us = 10000\nclock_drift_ppm = 500001", "clock_drift_ppm is 500001; allowed: 0 to 500000"),
        ("heartbeat_us = 25000", "heartbeat_us = 99", "detector.heartbeat_us is 99; allowed: 100 to 60000000"),
        ("cap = 6", "cap = 1", "detector.cap is 1; allowed: 2 to 255"),
        ("failure = 1", "failure = 5", "detector.failure is 5; allowed: 0 to 4"),
        ("recovery = 4", "recovery = 1", "detector.recovery is 1; allowed: 2 to 6"),
        ("recovery = 4", "recovery = 7", "detector.recovery is 7; allowed: 2 to 6"),
        ("broadcast_us = 100000", "broadcast_us = 0", "detector.broadcast_us is 0; allowed: 100 to"),
        ("timeout_us = 1500000", "timeout_us = 299999", "detector.broadcast_timeout_us is 299999; allowed: 300000 to"),
        ("[detector]", &election(9, 4), "election.heartbeat_us is 9; allowed: 10 to 60000000"),
        ("[detector]", &election(100, 1), "election.recovery is 1; allowed: 2 to 6"),
        ("log_ring_bytes = 4194304", "log_ring_bytes = 100000", "sizes.log_ring_bytes is 100000; allowed: a power of two from 65536"),
        ("client_ring_bytes = 262144", "client_ring_bytes = 1024", "sizes.client_ring_bytes is 1024; allowed: a power of two from 4096"),
        (
            "[detector]",
            "[group]\nplaces = 3\n\n[detector]",
            "group.places is 3; allowed: 0 with the engine \"primary-backup\"; more with dare",
        ),
        (
            "[detector]",
            "[group]\nzombies_us = 5\n\n[detector]",
            "group.zombies_us is 5; allowed: 0 with the engine \"primary-backup\"; more",
        ),
        ("number = 1", "number = 0", "node[1].number is 0; allowed: 0 to 15, each number once"),
        ("number = 1", "number = 16", "node[1].number is 16; allowed: 0 to 15, each number once"),
        ("127.0.0.1:7712", "127.0.0.1", "node[1].redis is \"127.0.0.1\"; allowed: host:port"),
        ("127.0.0.1:7712", "127.0.0.1:70000", "node[1].redis is \"127.0.0.1:70000\"; allowed: host:port"),
        ("127.0.0.1:7712", ":7712", "node[1].redis is \":7712\"; allowed: host:port"),
        ("127.0.0.1:7712", "127.0.0.1:7711", "node[1].redis is \"127.0.0.1:7711\"; allowed: host:port"),
        ("[\"coordinator\", \"replica\"]", "[]", "node[0].roles is []; allowed: \"coordinator\", \"replica\" and \"lease-cache\""),
        ("[\"coordinator\", \"replica\"]", "[\"replica\", \"replica\"]", "node[0].roles is [\"replica\", \"replica\"]; allowed:"),
    ] {
        let error = cluster_error(from, to);
        assert!(error.starts_with(wanted), "{to}: {error}\nwanted: {wanted}");
    }
    // What the parser refuses: values of a wrong type are reported like others; for anything else that is wrong, the parser's message shows the line.
    for (from, to, wanted) in [
        ("lease_us = 10000", "lease_us = \"long\"", ["lease_us is \"long\"", "allowed: a whole number from 50 to 60000000"]),
        ("lease_us = 10000", "lease_us = -1", ["lease_us is -1", "allowed: a whole number from 50 to 60000000"]),
        ("engine = \"primary-backup\"", "engine = 1", ["engine is 1", "allowed: \"primary-backup\", "]),
        ("number = 1", "number = -1", ["node[1].number is -1", "allowed: a whole number from 0 to 15, each number once"]),
        ("[\"coordinator\", \"replica\"]", "\"replica\"", ["node[0].roles is \"replica\"", "allowed: a list of "]),
        (
            "lease_us = 10000",
            "leese_us = 1",
            ["leese_us is an unknown key", "allowed: name, key, key_file, fabric, rendezvous, lease_us, "],
        ),
        ("name = \"demo\"\n", "", ["name is missing; allowed: 1 to 48 letters", ""]),
        ("name = \"demo\"", "name = ", ["\"name =\" is not TOML: ", ""]),
        (
            "[\"coordinator\", \"replica\"]",
            "[\"king\"]",
            ["node[0].roles is [\"king\"]", "allowed: a list of \"coordinator\", \"replica\" and \"lease-cache\""],
        ),
    ] {
        let error = cluster_error(from, to);
        assert!(wanted.iter().all(|w| error.contains(w)), "{to}: {error}\nwanted: {wanted:?}");
    }
}

#[test]
fn a_node_can_be_a_lease_cache_beside_what_else_it_is_or_alone() {
    let mut config = three();
    config.nodes[1].roles.push(Role::LeaseCache);
    config.nodes[2].roles = vec![Role::LeaseCache];
    let text = config.to_toml();
    assert!(text.contains("\"lease-cache\""), "{text}");
    let read = toml::from_str::<ClusterConfig>(&text).expect("what we wrote");
    assert_eq!(read, config);
    let cluster = Cluster::new(read).expect("two replicas, one of them a lease cache, and another cache");
    let caches = cluster.config().nodes.iter().map(|n| n.role_set().has(Roles::LEASE_CACHE)).collect::<Vec<_>>();
    assert_eq!(caches, [false, true, true]);
}

#[test]
fn roles_that_nobody_has_are_missed() {
    let mut config = three();
    config.nodes.iter_mut().for_each(|n| n.roles = vec![Role::Coordinator]);
    config.nodes[1].roles = vec![Role::Replica];
    let error = Cluster::new(config).expect_err("nobody to found it").to_string();
    assert!(
        error.starts_with("<cluster>: node[..].roles is never both \"coordinator\" and \"replica\"; allowed: at least one node with both roles, which founds the cluster"),
        "{error}"
    );
    let error = Cluster::new(ClusterConfig { nodes: vec![], ..three() }).expect_err("no nodes").to_string();
    assert_eq!(error, "<cluster>: node is a list of 0; allowed: 1 to 16 [[node]] tables");
}

#[test]
fn each_wrong_key_of_a_node_file_is_named_with_its_value_and_what_is_allowed() {
    let dir = Dir::new("bad-node");
    dir.file("c.toml", &three().to_toml());
    let load = |text: &str| Settings::load(&dir.file("n.toml", text)).expect_err(text).to_string();
    let start = "number = 1\ncluster = \"c.toml\"\n";
    for (rest, wanted) in [
        ("[redis]\nlisten = \"here\"", "redis.listen is \"here\"; allowed: an IPv4 or IPv6 address"),
        ("[redis]\nunix_socket = \"\"", "redis.unix_socket is \"\"; allowed: a path of 1 to 107 bytes"),
        ("[warden]\nsocket = \"\"", "warden.socket is \"\"; allowed: a path of 1 to 107 bytes"),
        ("[warden]\nuse = \"on\"", "warden.use is \"on\" with the fabric shm; allowed: \"auto\" or \"off\": nodes that share memory"),
        ("[redis]\nrequirepass = \"\"", "redis.requirepass is a text of 0 bytes; allowed: 1 to 512 bytes"),
        ("[redis]\nmaxclients = 0", "redis.maxclients is 0; allowed: 1 to 1000000"),
        ("[redis]\nmaxmemory = \"1k\"", "redis.maxmemory is 1000; allowed: 0 for no limit, or at least 1mb"),
        ("[threads]\nplan = \"dedicated\"", "threads.plan is \"dedicated\"; allowed: \"shared\""),
        ("[threads]\nspin_us = 1000001", "threads.spin_us is 1000001; allowed: 0 to 1000000"),
        ("[threads]\nrehearse_every_us = 199", "threads.rehearse_every_us is 199; allowed: 0 for never, or 200 to 10000000"),
        ("[threads]\nwake_latency_us = 1000001", "threads.wake_latency_us is 1000001; allowed: 0 to 1000000"),
        ("[threads]\npin = []", "threads.pin is []; allowed: \"none\", \"auto\", or a list"),
        (
            "[threads]\npin = [0, 1024]",
            "threads.pin is [0, 1024]; allowed: \"none\", \"auto\", or a list of at least one core from 0 to 1023",
        ),
        ("[threads]\npriority = \"fifo\"\nidle = \"spin\"", "threads.priority is \"fifo\"; allowed: \"auto\", \"slice\" or \"normal\""),
    ] {
        let error = load(&format!("{start}{rest}\n"));
        let line = 2 + rest.lines().count() - usize::from(rest.contains("idle"));
        let wanted = format!("{}, line {line}: {wanted}", dir.0.join("n.toml").display());
        assert!(error.contains(&wanted), "{rest}: {error}\nwanted: {wanted}");
    }
    for (rest, wanted) in [
        ("[redis]\nmaxmemory = \"lots\"", ["redis.maxmemory is \"lots\"", "allowed: 0 for no limit, or at least 1mb"]),
        ("[redis]\nmaxmemory = -5", ["redis.maxmemory is -5", "allowed: 0 for no limit, or at least 1mb"]),
        ("[redis]\nport = 65536", ["redis.port is 65536", "allowed: a whole number from 0 to 65535"]),
        ("[warden]\nuse = \"maybe\"", ["warden.use is \"maybe\"", "allowed: \"auto\", \"on\" or \"off\""]),
        ("[redis]\nreads = \"stale\"", ["redis.reads is \"stale\"", "allowed: \"auto\", \"lease\" or \"quorum\""]),
        ("[redis]\nprot = 6553", ["n.toml, line 4: redis.prot is an unknown key", "allowed: listen, port, unix_socket, "]),
        ("[threads]\npin = \"here\"", ["threads.pin is \"here\"", "allowed: \"none\", \"auto\", or a list of at least one core"]),
        ("[threads]\npin = [\"a\"]", ["threads.pin is [\"a\"]", "from 0 to 1023"]),
        ("[threads]\nidle = \"dream\"", ["threads.idle is \"dream\"", "allowed: \"spin\", \"yield\", \"park\" or \"adaptive\""]),
        ("[threads]\nplan = \"many\"", ["threads.plan is \"many\"", "allowed: \"shared\", the only plan"]),
        ("[threads]\npriority = \"high\"", ["threads.priority is \"high\"", "allowed: \"auto\", \"fifo\", \"slice\" or \"normal\""]),
    ] {
        let error = load(&format!("{start}{rest}\n"));
        assert!(wanted.iter().all(|w| error.contains(w)), "{rest}: {error}\nwanted: {wanted:?}");
    }
    let error = load("number = 9\ncluster = \"c.toml\"\n");
    assert!(error.ends_with("n.toml, line 1: number is 9; allowed: the cluster's nodes: 0, 1, 2"), "{error}");
    let error = load("number = 1\ncluster = \"d.toml\"\n");
    assert!(error.contains("d.toml: cannot be read: No such file"), "{error}");
    let error = Settings::load(Path::new("/dev/zero")).expect_err("endless").to_string();
    assert!(error.starts_with("/dev/zero: cannot be read: it is longer than 1048576 bytes"), "{error}");
    let error = Settings::load(&dir.0).expect_err("a directory").to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

#[test]
fn units_are_those_of_redis() {
    #[derive(serde::Deserialize)]
    struct Holder {
        n: Bytes,
    }
    let parse = |text: &str| toml::from_str::<Holder>(&format!("n = {text}")).map(|h| h.n.0).ok();
    assert_eq!(parse("7"), Some(7));
    assert_eq!(parse("\"7\""), Some(7));
    assert_eq!(parse("\"3k\""), Some(3_000));
    assert_eq!(parse("\"3KB\""), Some(3 << 10));
    assert_eq!(parse("\"2mb\""), Some(2 << 20));
    assert_eq!(parse("\"2g\""), Some(2_000_000_000));
    assert_eq!(parse("\"20000000000gb\""), None);
    assert_eq!(parse("\"mb\""), None);
    assert_eq!(parse("\"1tb\""), None);
    assert_eq!(parse("\"\""), None);
    assert_eq!(parse("1.5"), None);
}

#[test]
fn two_keys_differ_and_none_shows_itself() {
    let (a, b) = (Key::generate().expect("randomness"), Key::generate().expect("randomness"));
    assert_ne!(a, b);
    let cluster = Cluster::new(ClusterConfig { key: Some(a.to_hex().into()), ..three() }).expect("valid");
    let mut node = NodeConfig::new(1, "");
    node.redis.requirepass = Some("open sesame".into());
    let shown = format!("{:?}", Settings::new(cluster, node).expect("valid"));
    assert!(!shown.contains(&a.to_hex()) && !shown.contains("sesame"), "{shown}");
}

#[test]
fn the_engine_is_named_in_the_cluster_file_whatever_the_fabric() {
    let mut config = ClusterConfig::new(
        "c",
        vec![NodeEntry {
            number: 0,
            redis: String::new(),
            address: "127.0.0.1:7611".into(),
            roles: vec![Role::Coordinator, Role::Replica],
        }],
    );
    config.key = Some(Key::generate().expect("randomness").to_hex().into());
    assert_eq!(config.engine, EngineKind::PrimaryBackup);
    config.engine = EngineKind::Mu;
    assert!(config.to_toml().contains("engine = \"mu\""));
    assert!(Cluster::new(config.clone()).is_ok());
    config.fabric = FabricKind::Verbs;
    assert!(Cluster::new(config).is_ok());
    let unknown = "paxos".parse::<EngineKind>().expect_err("no engine of ours");
    assert_eq!(unknown, "the engine is \"paxos\"; allowed are primary-backup, mu, dare, apus, hsuc, huc");
}

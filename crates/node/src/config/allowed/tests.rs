//! Each setting of both files is given values that it cannot have; the message names the setting, the value and what it may be.

use std::collections::BTreeSet;
use std::path::Path;

use martlet_fabric::verbs::Multicast;
use martlet_settings::read;
use toml::Value;

use super::super::*;
use super::*;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A cluster's file with every key. It is written out in full, so that a new key cannot be left out here.
fn cluster() -> ClusterConfig {
    ClusterConfig {
        name: "demo".into(),
        key: Some(KEY.into()),
        key_file: None,
        fabric: FabricKind::Shm,
        rendezvous: Some("meet".into()),
        lease_us: 10_000,
        clock_drift_ppm: Some(300),
        detector: DetectorConfig {
            heartbeat_us: 25_000,
            cap: 6,
            failure: 1,
            recovery: 4,
            broadcast_us: 100_000,
            broadcast_timeout_us: 1_500_000,
        },
        election: Some(ElectionConfig { heartbeat_us: 100, cap: 6, failure: 1, recovery: 4, leader_stays: true }),
        sizes: SizesConfig { log_ring_bytes: 4 << 20, client_ring_bytes: 256 << 10 },
        verbs: VerbsConfig {
            timeout: 12,
            retries: 6,
            nap_us: 50,
            huge_pages: true,
            multicast: "off".into(),
            device: Some("mlx5_0".into()),
            port: Some(1),
            gid_index: Some(3),
        },
        ethernet: EthernetConfig { give_up_us: 500_000 },
        engine: EngineKind::Dare,
        execution: Execution::Committed,
        service: Some("127.0.0.1:7700".parse().expect("an address")),
        durability: DurabilityConfig {
            mode: DurabilityKind::Memory,
            directory: "disk".into(),
            segment_bytes: 1 << 20,
            max_pending_bytes: 1 << 20,
            snapshot_bytes_per_s: 1 << 20,
        },
        group: GroupConfig { places: 3, zombies_us: 5 },
        recovery: Some(RecoveryConfig { generation: 1, from: 0 }),
        list: ListConfig { reign: 1, change: 2 },
        nodes: vec![NodeEntry {
            number: 1,
            redis: "127.0.0.1:7711".into(),
            address: "10.0.0.1:7600".into(),
            roles: vec![Role::Coordinator, Role::Replica],
        }],
    }
}

/// The same for a node's file.
fn node() -> NodeConfig {
    NodeConfig {
        number: 1,
        cluster: "cluster.toml".into(),
        directory: Some("disk".into()),
        answers_hosts: true,
        redis: RedisConfig {
            listen: "127.0.0.1".into(),
            port: Some(7711),
            unix_socket: Some("redis.sock".into()),
            cluster: true,
            reads: Reads::Auto,
            requirepass: Some("open sesame".into()),
            protected_mode: true,
            maxmemory: Bytes(1 << 30),
            maxclients: 100,
        },
        threads: ThreadsConfig {
            plan: ThreadPlan::Shared,
            pin: Pin::Cores(vec![0]),
            idle: Idle::Park,
            spin_us: 50,
            priority: Priority::Auto,
            rehearse_every_us: 5_000,
            wake_latency_us: Some(0),
        },
        verbs: NodeVerbsConfig { listen: Some("0.0.0.0:7600".into()), device: Some("mlx5_0".into()), port: Some(1), gid_index: Some(0) },
        warden: WardenConfig { usage: UseWarden::Auto, socket: Some("warden.sock".into()) },
    }
}

/// The keys of a file that has all of them.
fn keys(table: &toml::Table, path: &str, found: &mut BTreeSet<String>) {
    for (name, value) in table {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match value {
            Value::Table(table) => keys(table, &key, found),
            Value::Array(list) if list.iter().all(Value::is_table) => {
                list.iter().for_each(|value| keys(value.as_table().expect("one"), &format!("{key}[..]"), found));
                found.insert(format!("{key}[..]"));
            }
            _ => {}
        }
        found.insert(key);
    }
}

/// The text of a file with another value for that key, as TOML.
fn with(text: &str, key: &str, value: &str) -> String {
    let value = toml::from_str::<toml::Table>(&format!("v = {value}")).expect("a value")["v"].clone();
    let mut table: toml::Table = text.parse().expect("a file");
    let key = &key.replace("[..]", "[]");
    let (last, path) = key.rsplit_once('.').map_or((key.as_str(), ""), |(path, last)| (last, path));
    let mut at = &mut table;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        at = match at.get_mut(name.trim_end_matches("[]")).expect("there") {
            Value::Array(list) => list[0].as_table_mut().expect("a table"),
            value => value.as_table_mut().expect("a table"),
        };
    }
    match last.strip_suffix("[]") {
        Some(list) => at.insert(list.to_owned(), Value::Array(vec![value])),
        None => at.insert(last.to_owned(), value),
    };
    table.to_string()
}

/// What is said about a cluster's file, without the line.
fn of_cluster(text: &str) -> Option<String> {
    let checked = read::<ClusterConfig>(Path::new("f"), text).and_then(|config| Cluster::new(config).map(drop));
    checked.err().map(|error| without_line(error.to_string().replace("<cluster>: ", "f: ")))
}

/// What is said about a node's file, without the line.
fn of_node(text: &str) -> Option<String> {
    let file = Path::new("f");
    read::<NodeConfig>(file, text).and_then(|config| config.validate(file)).err().map(|error| without_line(error.to_string()))
}

fn without_line(said: String) -> String {
    match said.strip_prefix("f, line ").and_then(|rest| rest.split_once(": ")) {
        Some((_, rest)) => format!("f: {rest}"),
        None => said,
    }
}

/// A file's text, its keys, and a function that returns what is said about another text in its place.
type File = (String, Vec<&'static Setting>, fn(&str) -> Option<String>);

fn files() -> [File; 2] {
    [(cluster().to_toml(), ClusterConfig::keys().collect(), of_cluster), (node().to_toml(), NodeConfig::keys().collect(), of_node)]
}

#[test]
fn it_is_known_of_each_key_what_it_may_be_and_of_no_other() {
    for (text, known, said) in files() {
        assert_eq!(said(&text), None, "a file with all keys is valid");
        let mut found = BTreeSet::new();
        keys(&text.parse().expect("a file"), "", &mut found);
        if found.contains("key") {
            found.insert("key_file".to_owned()); // instead of `key`, so not in the same file
        }
        assert_eq!(found, known.iter().map(|(key, _)| (*key).to_owned()).collect::<BTreeSet<_>>());
    }
}

/// Values of which each is wrong for any key that does not have its type.
const OF_TYPES: [&str; 6] = ["true", "\"never\"", "-7", "1.5", "[[[7]]]", "2020-02-02"];

#[test]
fn a_value_of_a_wrong_type_is_named_with_its_key_and_what_the_key_may_be() {
    for (text, known, said) in files() {
        for (key, allowed) in &known {
            let text = if *key == "key_file" { text.replace(&format!("key = \"{KEY}\"\n"), "") } else { text.clone() };
            let is_right = |value: &str| match allowed {
                Truth => value == "true",
                // What such a text may be is checked elsewhere.
                Words(_) | Hidden(_) | Made(_) => {
                    value == "\"never\"" && !said(&with(&text, key, value)).is_some_and(|said| said.contains("allowed"))
                }
                _ => false,
            };
            let wrong: Vec<_> = OF_TYPES.into_iter().filter(|value| !is_right(value)).collect();
            assert!(wrong.len() >= OF_TYPES.len() - 1, "{key}");
            for value in wrong {
                let said = said(&with(&text, key, value)).unwrap_or_else(|| panic!("{key} = {value} is taken"));
                let shown = match (allowed, value) {
                    (Hidden(_), "true") => "true or false",
                    (Hidden(_), "\"never\"") => "a text of 5 bytes",
                    (Hidden(_), "-7" | "1.5") => "a number",
                    (Hidden(_), "[[[7]]]") => "a list",
                    (Hidden(_), _) => "a date",
                    (_, value) => value,
                };
                let named = key.replace("[..]", "[0]");
                let begins = match (*key, value) {
                    ("node" | "node[..]", "[[[7]]]") => continue, // a list, of what is no table
                    _ => format!("f: {named} is {shown}; allowed: "),
                };
                assert!(said.starts_with(&begins), "{key} = {value}: {said}");
                // A text may be refused for its content, with words of its own.
                assert!(value == "\"never\"" || said.ends_with(&format!("; allowed: {allowed}")), "{key} = {value}: {said}");
            }
        }
    }
}

#[test]
fn a_number_out_of_its_range_is_named_with_its_key_and_the_range() {
    for (text, known, said) in files() {
        for (key, from, to) in
            known.iter().filter_map(|(key, allowed)| if let Number(from, to) = allowed { Some((key, *from, *to)) } else { None })
        {
            let below = (i64::try_from(from).expect("small") - 1).to_string();
            // Includes one more than the largest number of any of our types.
            for value in
                [below.as_str(), "-1", "-9223372036854775808", "9223372036854775807", "4294967296", "65536", "256", &(to + 1).to_string()]
            {
                let number: i128 = value.parse().expect("a number");
                if (from.into()..=to.into()).contains(&number) || number > MOST.into() {
                    continue;
                }
                let said = said(&with(&text, key, value)).unwrap_or_else(|| panic!("{key} = {value} is taken"));
                let named = format!("f: {} is {value}; allowed: ", key.replace("[..]", "[0]"));
                assert!(said.starts_with(&named) && said.ends_with(&format!("{from} to {to}")), "{key} = {value}: {said}");
            }
            for value in [from, to] {
                let said = said(&with(&text, key, &value.to_string()));
                // Other keys may have to change along with it.
                assert!(said.is_none_or(|said| !said.contains(&format!("{key} is"))), "{key} = {value} is allowed");
            }
        }
    }
}

/// Values that are not simply outside a range.
#[test]
fn other_values_that_are_not_allowed_are_named_with_their_keys_and_what_is() {
    let long = format!("\"{}\"", "x".repeat(600));
    let long = long.as_str();
    let cluster: &[(&str, &[&str], &str)] = &[
        ("name", &["\"\"", "\"a/b\"", long], "1 to 48 letters"),
        ("key", &["\"\"", "\"12\"", long], "64 hexadecimal digits"),
        ("fabric", &["\"tin\"", "\"\""], "\"shm\", \"verbs\" or \"ethernet\""),
        ("rendezvous", &["\"\""], "a directory whose path is 1 to"),
        ("clock_drift_ppm", &["-1", "500001", "9223372036854775807"], "0 to 500000"),
        ("detector.failure", &["-1", "5", "256"], "0 to "),
        ("detector.recovery", &["-1", "1", "7", "256"], " to "),
        ("detector.broadcast_timeout_us", &["-1", "299999", "600000001"], " to 600000000"),
        ("election.failure", &["-1", "5", "256"], "0 to "),
        ("election.recovery", &["-1", "1", "7", "256"], " to "),
        ("sizes.log_ring_bytes", &["-1", "0", "65537", "2147483648"], "a power of two from 65536 to 1073741824"),
        ("sizes.client_ring_bytes", &["-1", "0", "2048", "4097", "134217728"], "a power of two from 4096 to 67108864"),
        ("verbs.multicast", &["\"\"", "\"10.0.0.9\""], Multicast::ALLOWED),
        ("verbs.device", &["\"\"", "\"a/b\"", long], "1 to 63 letters"),
        ("engine", &["\"paxos\""], "\"primary-backup\", \"mu\", \"dare\", \"apus\", \"hsuc\" or \"huc\""),
        ("execution", &["\"late\""], "\"speculative\" or \"committed\""),
        (
            "service",
            &["\"\"", "\"here\"", "\"127.0.0.1\"", "\"127.0.0.1:0\"", "\"127.0.0.1:65536\""],
            "an IP address and a port from 1 to 65535",
        ),
        ("durability.mode", &["\"disk\""], "\"memory\", \"async\" or \"sync\""),
        ("durability.directory", &["\"\""], "the path of a directory"),
        ("node", &["[]"], "1 to 16 [[node]] tables"),
        ("node[..].number", &["-1", "16", "65536"], "0 to 15, each number once in the cluster"),
        ("node[..].redis", &["\"here\"", "\":1\"", "\"a:0\"", "\"a:65536\""], "host:port with a port from 1 to 65535"),
        ("node[..].address", &["\"here:1\"", "\"10.0.0.1:0\""], "an IP address"),
        ("node[..].roles", &["[]", "[\"king\"]", "[\"replica\", \"replica\"]"], "\"coordinator\", \"replica\" and \"lease-cache\""),
    ];
    let node: &[(&str, &[&str], &str)] = &[
        ("number", &["-1", "65536", "99999999999"], "the number of a node in the cluster's file, from 0 to 15"),
        ("redis.listen", &["\"\"", "\"here\""], "an IPv4 or IPv6 address"),
        ("redis.unix_socket", &["\"\"", long], "a path of 1 to 107 bytes"),
        ("redis.reads", &["\"stale\""], "\"auto\", \"lease\" or \"quorum\""),
        ("redis.requirepass", &["\"\"", long], "1 to 512 bytes"),
        ("redis.maxmemory", &["-5", "1", "1048575", "\"lots\"", "\"20000000000gb\""], "0 for no limit, or at least 1mb"),
        ("threads.plan", &["\"dedicated\"", "\"many\""], "\"shared\", the only plan of this version"),
        (
            "threads.pin",
            &["[]", "[-1]", "[1024]", "[65536]", "[\"a\"]", "\"here\""],
            "\"none\", \"auto\", or a list of at least one core from 0 to 1023",
        ),
        ("threads.idle", &["\"dream\""], "\"spin\", \"yield\", \"park\" or \"adaptive\""),
        ("threads.priority", &["\"high\""], "\"auto\", \"fifo\", \"slice\" or \"normal\""),
        ("threads.rehearse_every_us", &["-1", "1", "199", "10000001"], "0 for never, or 200 to 10000000"),
        ("warden.use", &["\"maybe\""], "\"auto\", \"on\" or \"off\""),
        ("warden.socket", &["\"\"", long], "a path of 1 to 107 bytes"),
        ("verbs.listen", &["\"7600\"", "\"0.0.0.0:0\""], "an IP address and a port from 1 to 65535"),
        ("verbs.device", &["\"\"", "\"a/b\"", long], "1 to 63 letters"),
    ];
    for ((text, known, said), table) in files().into_iter().zip([cluster, node]) {
        for (key, allowed) in &known {
            // Ranges are checked above; these keys accept every value of their type.
            let is_free =
                matches!(allowed, Number(..) | Truth | Table(_)) || ["key_file", "cluster", "directory", "node[..]"].contains(key);
            assert_eq!(table.iter().any(|(named, ..)| named == key), !is_free, "{key}");
        }
        for (key, values, allowed) in table {
            for value in *values {
                let said = said(&with(&text, key, value)).unwrap_or_else(|| panic!("{key} = {value} is taken"));
                let (named, what) = said.split_once("; allowed: ").unwrap_or_else(|| panic!("{key} = {value}: {said}"));
                assert!(
                    named.starts_with(&format!("f: {} is ", key.replace("[..]", "[0]"))) && what.contains(allowed),
                    "{key} = {value}: {said}"
                );
                let is_secret = ["key", "redis.requirepass"].contains(key);
                let is_repeated = named.contains(value.trim_matches('"'))
                    || (*key, *value) == ("node", "[]")
                    || *value == long
                    || named.ends_with("is \"dedicated\"");
                assert!(is_secret || is_repeated, "{key} = {value}: {said}");
                assert!(!is_secret || !named.contains("xxx"), "{said}");
            }
        }
    }
}

#[test]
fn what_is_no_file_of_ours_is_shown_with_its_line() {
    let keys = "name, key, key_file, fabric, rendezvous, lease_us, clock_drift_ppm, detector, election, sizes, engine, execution, service, durability, \
                group, recovery, list, node, verbs, ethernet";
    let number = "a whole number from 0 to 15, each number once in the cluster";
    for (text, wanted) in [
        ("leese_us = 1\nname = \"x\"\n", format!("f, line 1: leese_us is an unknown key; allowed: {keys}")),
        ("name = \"x\"\n[detector]\ncpa = 5\n", {
            let allowed = "heartbeat_us, cap, failure, recovery, broadcast_us, broadcast_timeout_us";
            format!("f, line 3: detector.cpa is an unknown key; allowed: {allowed}")
        }),
        ("name = \"x\"\n[[node]]\nnumber = 1\nadress = 1\n", {
            "f, line 4: node[0].adress is an unknown key; allowed: number, redis, address, roles".into()
        }),
        (
            "lease_us = 99999999999999999999\n",
            "f, line 1: lease_us is 99999999999999999999; allowed: a whole number from 50 to 60000000".into(),
        ),
        (
            "name = \"x\"\nlease_us = \n",
            "f, line 2: \"lease_us =\" is not TOML: string values must be quoted, expected literal string".into(),
        ),
        (
            "name = \"x\"\n[election]\ncap = 5\n[[node]]\nnumber = 1\n",
            "f, line 2: election.heartbeat_us is missing; allowed: a whole number from 10 to 60000000".into(),
        ),
        ("name = \"x\"\n[[node]]\nredis = \"a:1\"\n", format!("f, line 2: node[0].number is missing; allowed: {number}")),
        ("name = \"x\"\n", "f: node is missing; allowed: 1 to 16 [[node]] tables".into()),
        (
            "name = \"x\"\n[[detector]]\ncap = 5\n[[node]]\nnumber = 1\n",
            "f, line 2: detector is a list; allowed: a table that begins with [detector]".into(),
        ),
        ("lease_us = 1\nlease_us = 2\n", "f, line 2: lease_us is given twice; allowed: once".into()),
    ] {
        assert_eq!(read::<ClusterConfig>(Path::new("f"), text).expect_err(text).to_string(), wanted);
    }
}

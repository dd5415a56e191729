//! Configuration files. A file that is accepted can be written and read again without a change. A refusal says why, and repeats no secrets.

use martlet_node::config::{Cluster, ClusterConfig, NodeConfig, NodeEntry, Settings};

pub(super) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = toml::from_str::<ClusterConfig>(text) {
        assert_eq!(toml::from_str::<ClusterConfig>(&config.to_toml()).as_ref(), Ok(&config), "written and read again");
        // If there is a key file, it would be looked for on this machine.
        if config.key_file.is_none() {
            match Cluster::new(config.clone()) {
                Ok(cluster) => {
                    assert_eq!(cluster.config(), &config);
                    assert!(cluster.lease_ns() > 0);
                    assert!(config.nodes.iter().any(NodeEntry::may_found));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    if let Ok(config) = toml::from_str::<NodeConfig>(text) {
        assert_eq!(toml::from_str::<NodeConfig>(&config.to_toml()).as_ref(), Ok(&config), "written and read again");
        match Settings::new(some_cluster(), config.clone()) {
            Ok(settings) => {
                assert_eq!(settings.id().0, config.number);
                // Validated means usable: this parses what was only checked before.
                let _ = settings.redis_listen();
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn some_cluster() -> Cluster {
    let nodes = "name = \"c\"\nkey = \"00000000000000000000000000000000000000000000000000000000000000ff\"\n";
    let nodes = (0..3).fold(nodes.to_owned(), |text, n| format!("{text}[[node]]\nnumber = {n}\nredis = \"127.0.0.1:{}\"\n", 7711 + n));
    Cluster::new(toml::from_str(&nodes).expect("a cluster's file")).expect("a good one")
}

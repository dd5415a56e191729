//! `martlet host init`

use std::net::SocketAddr;

use clap::Args;
use martlet_cluster::directory::{Directory, check_durability};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::named::{durability, engine};
use martlet_cluster::output::{self, Format};
use martlet_cluster::process::Activity;
use martlet_node::config::{Cluster, ClusterConfig, DurabilityKind, EngineKind, FabricKind, Key, NodeConfig, Secret};

use super::{Place, Starting, entry, meeting_point, redis_address, report};
use crate::commands::cluster::take_back;

/// Begin a cluster, with this host as its first.
///
/// The command creates the cluster's file and key, and the file of this host's node, in the host's directory, and starts the node. Other hosts join with the token that
/// `martlet host invite` prints. Redis clients need a password: it is drawn at random and written to the node's file.
///
/// Example: martlet host init shop --listen 10.0.0.1 && martlet host invite shop
#[derive(Debug, Args)]
pub struct Arguments {
    /// The cluster's name.
    name: String,
    /// Where the other hosts reach this one: an address of this host, with or without a port [default port: 7600].
    #[arg(long, value_name = "ADDRESS", value_parser = meeting_point)]
    listen: SocketAddr,
    /// Where Redis clients reach this host [default: the same address, port 7711].
    #[arg(long, value_name = "ADDRESS", value_parser = redis_address)]
    redis: Option<SocketAddr>,
    /// Let Redis clients in without a password. Only safe where nobody but trusted clients can reach the port.
    #[arg(long)]
    no_password: bool,
    /// Replication engine.
    #[arg(long, default_value = "mu", value_parser = engine())]
    engine: EngineKind,
    /// What an acknowledged request outlives. With memory: the failure of a minority of the hosts. With async or sync, which need --engine mu or apus: also a
    /// loss of power of all hosts at once. async may then lose what was not on disk yet; sync loses nothing.
    #[arg(long, default_value_t, value_parser = durability())]
    durability: DurabilityKind,
    #[command(flatten)]
    starting: Starting,
    #[command(flatten)]
    place: Place,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    check_durability(arguments.durability, arguments.engine)?;
    let redis = arguments.redis.unwrap_or_else(|| SocketAddr::new(arguments.listen.ip(), super::REDIS_PORT));
    let mut config = ClusterConfig::new(arguments.name.clone(), vec![entry(0, arguments.listen, redis)]);
    config.fabric = FabricKind::between_ordinary_hosts();
    config.lease_us = config.fabric.traits().default_lease_us;
    config.engine = arguments.engine;
    config.durability.mode = arguments.durability;
    let key = Key::generate().context("cannot draw a key")?;
    // What is wrong with the name is said before anything is made.
    Cluster::new(ClusterConfig { key: Some(key.to_hex().into()), ..config.clone() }).map_err(Fail::usage)?;
    config.key_file = Some("cluster.key".into());

    let mut own = NodeConfig::new(0, "cluster.toml");
    own.answers_hosts = true;
    own.redis.listen = redis.ip().to_string();
    own.redis.protected_mode = !arguments.no_password;
    if !arguments.no_password {
        let password = Key::generate().context("cannot draw a password")?.to_hex();
        own.redis.requirepass = Some(Secret::from(&password[..32]));
    }
    let directory = Directory::new(&arguments.place.path(&arguments.name));
    let (cluster, is_new) = {
        let lock = directory.make()?;
        (directory.create_host(&config, &key, &own)?, lock.is_new())
    };
    if let Err(fail) = arguments.starting.start(&directory, 0, format) {
        // A node that runs may yet come to count. Of one that has ended nothing is worth keeping: no other host has met it.
        if matches!(directory.activity(0), Ok(Activity::Gone)) {
            output::complain(format_args!("martlet: {}", left_behind(&directory, is_new)));
        }
        return Err(fail);
    }
    report(&directory, &cluster, 0, "founded", format)
}

/// Takes back what this command has begun. Returns what is to be said of it: if it fails, too, that is said beside the first failure and not instead of it.
fn left_behind(directory: &Directory, is_new: bool) -> String {
    match directory.lock() {
        Ok(_lock) => take_back(directory, &[0], is_new),
        Err(why) => {
            let path = directory.path().display();
            format!("cannot take back what this command has begun: {why}; `martlet cluster down --purge --dir {path}` takes it back")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_why_nothing_is_taken_back() {
        let path = std::env::temp_dir().join(format!("martlet-init-{}/none", std::process::id()));
        let said = left_behind(&Directory::new(&path), true);
        let path = path.display();
        assert!(said.starts_with("cannot take back what this command has begun: ") && said.contains("No such file"), "{said}");
        assert!(said.ends_with(&format!("; `martlet cluster down --purge --dir {path}` takes it back")), "{said}");
    }
}

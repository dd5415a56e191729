//! `martlet plan example`

use clap::Args;
use martlet_cluster::fail::Outcome;
use martlet_cluster::number::number;
use martlet_cluster::output;
use martlet_cluster::plan::fat_tree;

/// Print an example of a network, a fat tree, as a file for `martlet plan`.
///
/// Its latencies are those of a small network of 10 Gbit/s; put your own in their place.
///
/// Example: martlet plan example --height 2 --hosts 3 > net.toml
#[derive(Debug, Args)]
pub struct Arguments {
    /// Half the network's diameter in links: 1 is a pair of switches, 2 has racks, 3 has racks below a core.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u64>(1..=3))]
    height: u64,
    /// Number of hosts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<u64>(2..=32))]
    hosts: u64,
}

pub fn run(arguments: &Arguments) -> Outcome {
    output::raw(fat_tree::file(arguments.height, arguments.hosts).as_bytes());
    Ok(())
}

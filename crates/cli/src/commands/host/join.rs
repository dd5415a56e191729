//! `martlet host join`

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::Outcome;
use martlet_cluster::hosts::{Joining, Token};
use martlet_cluster::output::Format;

use super::{MEETING_PORT, Place, Starting, meeting_point, redis_address, report};

/// Join this host to the cluster that the token comes from.
///
/// The cluster's file and key come from the host that printed the token, over a connection that is sealed with it. Then this host's node is started. The
/// command returns when the node holds the data and is a full member. If it is interrupted before this host has its files, run it again: it continues where it
/// stopped.
///
/// Example: martlet host join martlet1-...
#[derive(Debug, Args)]
pub struct Arguments {
    /// The token that `martlet host invite` printed on another host.
    #[arg(value_parser = token)]
    token: Token,
    /// Where the other hosts reach this one: an address of this host, with or without a port [default: the address from which this host reaches the other one,
    /// port 7600].
    #[arg(long, value_name = "ADDRESS", value_parser = meeting_point)]
    listen: Option<SocketAddr>,
    /// Where Redis clients reach this host [default: the address of --listen, the port of the other host].
    #[arg(long, value_name = "ADDRESS", value_parser = redis_address)]
    redis: Option<SocketAddr>,
    #[command(flatten)]
    starting: Starting,
    #[command(flatten)]
    place: Place,
}

fn token(text: &str) -> Result<Token, String> {
    text.parse()
}

/// How long the other host may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    if let Some(dir) = &arguments.place.dir {
        Directory::new(dir).refuse_a_second_cluster()?;
    }
    let mut joining = Joining::begin(&arguments.token, PATIENCE)?;
    let address = arguments.listen.unwrap_or_else(|| SocketAddr::new(joining.own_ip(), MEETING_PORT));
    let welcome = joining.join(address, arguments.redis.map(|at| at.to_string()))?;
    let (config, key, own) = welcome.files()?;
    let directory = Directory::new(&arguments.place.path(&config.name));
    {
        let _lock = directory.make()?;
        directory.create_host(&config, &key, &own)?;
    }
    joining.complete()?;
    arguments.starting.start(&directory, welcome.number, format)?;
    let cluster = directory.existing_cluster()?;
    report(&directory, &cluster, welcome.number, "joined", format)
}

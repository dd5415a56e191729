//! The client of the measurement: it writes, and goes on writing at whoever leads next.

use std::net::SocketAddr;
use std::time::Duration;

use martlet_cluster::clients::FabricClient;
use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_node::clock;
use martlet_protocol::basics::Time;

use crate::trial::redis::ClusterClient;

/// How long a write may take before something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client that writes.
pub enum Writer {
    /// On the fabric.
    Fabric(Box<FabricClient>),
    /// Over the Redis protocol.
    Redis(ClusterClient),
    /// Over the Redis protocol, at the cluster's one address.
    Service(ServiceWriter),
}

/// One connection to the cluster's one address, opened once.
pub struct ServiceWriter(Connection);

impl ServiceWriter {
    pub fn open(address: SocketAddr) -> Outcome<ServiceWriter> {
        Connection::open(address, PATIENCE).map(ServiceWriter).context(format_args!("cannot connect to the cluster at {address}"))
    }

    /// One acknowledged write, and behind it the question which node answers.
    fn write(&mut self, words: &[&[u8]]) -> Outcome<u16> {
        let replies = self.0.commands([words, &[b"CLUSTER", b"MYID"]]);
        let replies =
            replies.map_err(|error| Fail::wrong(format_args!("the connection was to outlive its primary, and has ended: {error}")))?;
        match &replies {
            // The name begins with the node's number.
            [Value::Simple(_), Value::Bulk(Some(name))] => {
                let number = name.get(..8).and_then(|digits| u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
                number.ok_or_else(|| Fail::wrong(format_args!("a node calls itself {:?}", name.escape_ascii().to_string())))
            }
            replies => Err(Fail::wrong(format_args!("a write and CLUSTER MYID were answered with {replies:?}"))),
        }
    }
}

impl Writer {
    /// One acknowledged write. Returns who acknowledged it.
    pub fn write(&mut self) -> Outcome<u16> {
        const ARGS: [&[u8]; 3] = [b"SET", b"failover", &[b'v'; 64]];
        match self {
            Writer::Fabric(client) => {
                let acknowledged = client.request(&ARGS, |answer| (answer.reply.starts_with(b"+"), answer.node.0))?;
                match acknowledged {
                    Some((true, node)) => Ok(node),
                    Some((false, node)) => Err(Fail::failed(format_args!("node {node} refused a write"))),
                    None => Err(Fail::failed(format_args!("no reply to a write within {} s", PATIENCE.as_secs()))),
                }
            }
            Writer::Redis(client) => client.acknowledged(&ARGS).map_err(Fail::failed),
            Writer::Service(writer) => writer.write(&ARGS),
        }
    }

    /// A client that has not met the next primary yet would measure how long it takes to meet. One of the Redis protocol meets nodes as it
    /// needs them.
    pub fn await_nodes(&mut self, count: usize) -> Outcome {
        match self {
            Writer::Fabric(client) => client.await_nodes(count),
            Writer::Redis(_) | Writer::Service(_) => Ok(()),
        }
    }

    /// When it turned to the primary that acknowledged its latest write, where it can tell.
    pub fn turned_at(&mut self) -> Option<Time> {
        match self {
            Writer::Fabric(client) => Some(client.turned_at()),
            Writer::Redis(_) | Writer::Service(_) => None,
        }
    }

    /// Learns whom to try next should the primary die, where clients of the kind do so.
    pub fn learn_order(&mut self) -> Outcome {
        match self {
            // The fabric tells it, and whoever leads has the one address.
            Writer::Fabric(_) | Writer::Service(_) => Ok(()),
            Writer::Redis(client) => client.learn_order().context("cannot ask for the cluster's nodes"),
        }
    }

    /// Writes until one is acknowledged by another node than this one. Returns when that was.
    pub fn write_elsewhere(&mut self, dead: u16) -> Outcome<Time> {
        loop {
            let node = self.write()?;
            // A reply of the dead may still have been on its way. The survivors number their views upwards, and a dead node answers in
            // none of them.
            if node != dead {
                return Ok(clock::now());
            }
        }
    }
}

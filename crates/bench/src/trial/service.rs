//! Clients of a cluster's one address, whose connections outlive nodes: each is opened once, and its end is a fault, unless no node led for as long as a connection is held.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_node::config::Cluster;
use martlet_node::connections::service::HELD;
use martlet_sim::linearizability::kv::Input;

use super::caller::{AnyCaller, Caller, Reply};
use super::redis::{is_refusal, output, send};

/// How long a connection may be without a reply before it counts as ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where whichever node leads serves the Redis protocol.
///
/// # Errors
/// The cluster has no such address.
pub fn address(cluster: &Cluster) -> Outcome<SocketAddr> {
    cluster.config().service.ok_or_else(|| Fail::failed("the cluster has no address of its own beside its nodes'"))
}

/// What has become of connections that are to outlive nodes.
#[derive(Clone, Debug)]
pub struct Connections {
    /// Where they go.
    pub address: SocketAddr,
    /// How many there are.
    pub opened: usize,
    fate: Arc<Mutex<Fate>>,
}

/// What has become of them.
#[derive(Debug, Default)]
struct Fate {
    /// Those that ended since no node led for longer than connections are held, and were opened anew.
    outlasted: usize,
    /// Why the others ended that did.
    ended: Vec<String>,
}

impl Connections {
    /// Opens so many, each with a client of its own.
    pub fn open(cluster: &Cluster, count: u16) -> Outcome<(Vec<AnyCaller>, Connections)> {
        let address = address(cluster)?;
        let connections = Connections { address, opened: usize::from(count), fate: Arc::default() };
        let one = || -> Outcome<AnyCaller> {
            let connection = Connection::open(address, PATIENCE).context(format_args!("cannot connect to the cluster at {address}"))?;
            Ok(Box::new(Client { address, connection: Some(connection), may_reconnect: false, fate: Arc::clone(&connections.fate) }))
        };
        let callers = (0..count).map(|_| one()).collect::<Outcome<Vec<_>>>()?;
        Ok((callers, connections))
    }

    /// How many stand. The others ended since no node led for longer than they are held.
    ///
    /// # Errors
    /// Says how many have ended that should not have, and why the first one did.
    pub fn kept(&self) -> Outcome<usize> {
        let fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        match fate.ended.first() {
            None => Ok(self.opened.saturating_sub(fate.outlasted)),
            Some(why) => {
                Err(Fail::wrong(format_args!("{} of {} connections at {} have ended: {why}", fate.ended.len(), self.opened, self.address)))
            }
        }
    }
}

/// A client with one connection, which it opens once.
struct Client {
    address: SocketAddr,
    /// `None`: it has ended.
    connection: Option<Connection>,
    /// It ended since no node led for longer than connections are held.
    may_reconnect: bool,
    fate: Arc<Mutex<Fate>>,
}

impl Client {
    /// The connection has ended, after a request that had waited for so long. One on which no reply comes has not been ended by anybody.
    fn note_end(&mut self, waited: Duration, why: &io::Error) {
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        self.connection = None;
        if waited < HELD || matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            self.may_reconnect = false;
            fate.ended.push(why.to_string());
        } else {
            self.may_reconnect = true;
            fate.outlasted += 1;
        }
    }
}

impl Caller for Client {
    fn call(&mut self, input: &Input) -> Reply {
        if self.connection.is_none() && self.may_reconnect {
            self.connection = Connection::open(self.address, PATIENCE).ok();
        }
        let Some(connection) = &mut self.connection else { return Reply::Refused("the connection has ended".into()) };
        let asked = Instant::now();
        match send(connection, input) {
            Ok(Value::Error(error)) if !is_refusal(input, &error) => Reply::Refused(error),
            Ok(value) => output(&input.action, value),
            Err(error) => {
                self.note_end(asked.elapsed(), &error);
                Reply::Unknown
            }
        }
    }
}

//! A small client of the Redis protocol, for workloads: it follows redirections, and tells requests that cannot have taken effect from those
//! that may have.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use martlet_cluster::clients::redis::{Connection, Value};
use martlet_sim::linearizability::kv::{Action, Bytes, Input, Output};

use super::caller::{Caller, Reply};

/// A client of a whole cluster: it finds who leads.
#[derive(Debug)]
pub struct ClusterClient {
    addresses: Vec<SocketAddr>,
    /// In which order they are tried, by their places in `addresses`.
    order: Vec<usize>,
    at: usize,
    connection: Option<Connection>,
    patience: Duration,
}

impl ClusterClient {
    /// A client of the nodes with these addresses. A call gives up after `patience`.
    pub fn new(addresses: &[&str], patience: Duration) -> io::Result<ClusterClient> {
        let addresses: Vec<SocketAddr> = addresses.iter().map(|address| resolve(address)).collect::<io::Result<_>>()?;
        Ok(ClusterClient { order: (0..addresses.len()).collect(), addresses, at: 0, connection: None, patience })
    }

    /// Asks which nodes there are (`CLUSTER SLOTS`), as clients of a cluster do from time to time, and tries them in the order of the answer
    /// from now on: the primary comes first, and after it whoever would follow. Without a sensible answer the order stays.
    pub fn learn_order(&mut self) -> io::Result<()> {
        let Some(connection) = self.connected() else { return Ok(()) };
        let shards = match connection.command(&[b"CLUSTER", b"SLOTS"])? {
            Value::Array(Some(shards)) => shards,
            _ => return Ok(()),
        };
        let Some(Value::Array(Some(shard))) = shards.into_iter().next() else { return Ok(()) };
        // The first two say which slots.
        let listed = shard.iter().skip(2).filter_map(|node| match node {
            Value::Array(Some(node)) => match &node[..] {
                [Value::Bulk(Some(host)), Value::Integer(port), ..] => {
                    resolve(&format!("{}:{port}", String::from_utf8_lossy(host))).ok().and_then(|address| self.place(address))
                }
                _ => None,
            },
            _ => None,
        });
        let mut order: Vec<usize> = Vec::with_capacity(self.addresses.len());
        listed.chain(0..self.addresses.len()).for_each(|at| {
            if !order.contains(&at) {
                order.push(at);
            }
        });
        self.order = order;
        Ok(())
    }

    fn place(&self, address: SocketAddr) -> Option<usize> {
        self.addresses.iter().position(|known| *known == address)
    }

    /// Repeats a command until it is acknowledged, whatever happens to connections meanwhile: only for commands that may be executed twice.
    /// Returns the number of the node that acknowledged it, counted as the addresses were.
    pub fn acknowledged(&mut self, words: &[&[u8]]) -> Result<u16, String> {
        let until = Instant::now() + self.patience;
        let mut why = "no node could be reached".to_owned();
        while Instant::now() < until {
            let Some(connection) = self.connected() else { continue };
            match connection.command(words) {
                Ok(Value::Error(error)) => {
                    self.redirected(&error);
                    why = error;
                }
                Ok(_) => return Ok(self.at as u16),
                Err(error) => {
                    why = error.to_string();
                    self.next_node();
                }
            }
        }
        Err(why)
    }

    /// The connection to the present node; `None` when it cannot be reached, and it is the next one's turn.
    fn connected(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            match Connection::open(self.addresses[self.at], self.patience) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => {
                    self.next_node();
                    // All of them may be busy electing.
                    std::thread::sleep(PAUSE);
                }
            }
        }
        self.connection.as_mut()
    }

    /// Acts on an error that says that another node, or a later moment, may do better. `false`: it is none.
    fn redirected(&mut self, error: &str) -> bool {
        let mut words = error.split_whitespace();
        match (words.next(), words.nth(1)) {
            (Some("MOVED" | "ASK"), Some(address)) => self.go_to(address),
            (Some(code), _) if TRY_AGAIN.contains(&code) => {
                self.next_node();
                std::thread::sleep(PAUSE);
            }
            _ => return false,
        }
        true
    }

    fn next_node(&mut self) {
        self.connection = None;
        let place = self.order.iter().position(|at| *at == self.at).map_or(0, |place| place + 1);
        self.at = self.order[place % self.order.len()];
    }

    fn go_to(&mut self, address: &str) {
        self.connection = None;
        match resolve(address).ok().and_then(|address| self.place(address)) {
            Some(at) => self.at = at,
            None => self.next_node(),
        }
    }
}

fn resolve(address: &str) -> io::Result<SocketAddr> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("{address:?} is no address; allowed is host:port"));
    address.to_socket_addrs()?.next().ok_or_else(unknown)
}

/// Between two attempts, when nobody leads.
const PAUSE: Duration = Duration::from_micros(100);
/// Errors that say that another node, or a later moment, may do better. Nothing has been executed.
const TRY_AGAIN: [&str; 6] = ["READONLY", "CLUSTERDOWN", "LOADING", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS"];

impl Caller for ClusterClient {
    fn call(&mut self, input: &Input) -> Reply {
        let until = Instant::now() + self.patience;
        let mut why = "no node could be reached".to_owned();
        while Instant::now() < until {
            let Some(connection) = self.connected() else { continue };
            match send(connection, input) {
                Ok(Value::Error(error)) => {
                    if is_refusal(input, &error) {
                        return Reply::Output(Output::Refused);
                    }
                    if !self.redirected(&error) {
                        return Reply::Refused(error);
                    }
                    why = error;
                }
                Ok(value) => return output(&input.action, value),
                Err(_) => {
                    // It was on its way.
                    self.next_node();
                    return Reply::Unknown;
                }
            }
        }
        Reply::Refused(why)
    }
}

/// Whether an error is the reply that the store's model gives to a request: what is no number cannot be added to.
pub(super) fn is_refusal(input: &Input, error: &str) -> bool {
    matches!(input.action, Action::Add(_)) && error.contains("integer")
}

/// Sends a request, and takes its reply.
pub(super) fn send(connection: &mut Connection, input: &Input) -> io::Result<Value> {
    let key: &[u8] = &input.key.0;
    match &input.action {
        Action::Get => connection.command(&[b"GET", key]),
        Action::Put(value) => connection.command(&[b"SET", key, &value.0]),
        Action::Delete => connection.command(&[b"DEL", key]),
        Action::CompareAndSwap { expected: Some(expected), new } => connection.command(&[b"CAS", key, b"=", &expected.0, &new.0]),
        Action::CompareAndSwap { expected: None, new } => connection.command(&[b"CAS", key, b"NX", &new.0]),
        Action::Add(by) => connection.command(&[b"INCRBY", key, by.to_string().as_bytes()]),
        Action::Append(more) => connection.command(&[b"APPEND", key, &more.0]),
    }
}

/// What a reply to this request says.
pub(super) fn output(action: &Action, value: Value) -> Reply {
    match (action, value) {
        (Action::Add(_), Value::Error(error)) if error.contains("integer") => Reply::Output(Output::Refused),
        (Action::Get, Value::Bulk(held)) => Reply::Output(Output::Value(held.map(|held| Bytes::from(&held)))),
        (Action::Put(_), Value::Simple(_)) => Reply::Output(Output::Done),
        (Action::Delete | Action::CompareAndSwap { .. }, Value::Integer(n)) => Reply::Output(Output::Changed(n != 0)),
        (Action::Add(_), Value::Integer(n)) => Reply::Output(Output::Number(n)),
        (Action::Append(_), Value::Integer(n)) => Reply::Output(Output::Length(n as u64)),
        // A wrong kind of reply must not pass for a right one: no model returns it.
        (_, value) => Reply::Refused(format!("an unfit reply: {value:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers each request on each connection with the next of these bytes.
    fn scripted(answers: Vec<&'static [u8]>) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let thread = std::thread::spawn(move || {
            let mut answers = answers.into_iter().peekable();
            while answers.peek().is_some() {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut buffer = [0; 512];
                while answers.peek().is_some() && stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                    let answer = answers.next().expect("peeked");
                    if answer.is_empty() || stream.write_all(answer).is_err() {
                        break;
                    }
                }
            }
        });
        (address, thread)
    }

    fn input(action: Action) -> Input {
        Input { key: "k".into(), action }
    }

    fn client(addresses: &[SocketAddr]) -> ClusterClient {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        ClusterClient::new(&texts.iter().map(String::as_str).collect::<Vec<_>>(), Duration::from_secs(20)).expect("addresses")
    }

    #[test]
    fn replies_are_understood() {
        let (address, server) = scripted(vec![
            b"+OK\r\n",
            b"$2\r\nv1\r\n",
            b"$-1\r\n",
            b":1\r\n",
            b":8\r\n",
            b"-ERR value is not an integer or out of range\r\n",
        ]);
        let mut client = client(&[address]);
        assert_eq!(client.call(&input(Action::Put("v1".into()))), Reply::Output(Output::Done));
        assert_eq!(client.call(&input(Action::Get)), Reply::Output(Output::Value(Some("v1".into()))));
        assert_eq!(client.call(&input(Action::Get)), Reply::Output(Output::Value(None)));
        assert_eq!(client.call(&input(Action::Delete)), Reply::Output(Output::Changed(true)));
        assert_eq!(client.call(&input(Action::Add(1))), Reply::Output(Output::Number(8)));
        assert_eq!(client.call(&input(Action::Add(1))), Reply::Output(Output::Refused));
        server.join().expect("done");
    }

    #[test]
    fn a_redirection_is_followed_and_a_cut_connection_is_unknown() {
        let (leader, leading) = scripted(vec![b"+OK\r\n", b""]);
        let moved: &'static [u8] = format!("-MOVED 1 {leader}\r\n").leak().as_bytes();
        let (follower, following) = scripted(vec![moved]);
        let mut client = client(&[follower, leader]);
        assert_eq!(client.call(&input(Action::Put("v".into()))), Reply::Output(Output::Done));
        assert_eq!(client.call(&input(Action::Put("w".into()))), Reply::Unknown);
        following.join().expect("done");
        leading.join().expect("done");
    }

    #[test]
    fn nodes_are_tried_in_the_order_that_a_cluster_lists_them_in() {
        // Nobody listens where the first one is.
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let (next, following) = scripted(vec![b"+OK\r\n"]);
        let node = |address: SocketAddr| format!("*2\r\n$9\r\n127.0.0.1\r\n:{}\r\n", address.port());
        let (unknown, listener) = (SocketAddr::from(([127, 0, 0, 1], 1)), TcpListener::bind("127.0.0.1:0").expect("a port"));
        let primary = listener.local_addr().expect("an address");
        let list = format!("*1\r\n*6\r\n:0\r\n:16383\r\n{}{}{}{}", node(primary), node(unknown), node(next), node(nobody));
        let leading = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut buffer = [0; 512];
            assert!(stream.read(&mut buffer).is_ok_and(|n| n > 0));
            stream.write_all(list.as_bytes()).expect("it listens");
        });
        let mut client = client(&[nobody, next, primary]);
        client.at = 2;
        client.learn_order().expect("a list");
        assert_eq!(client.order, [2, 1, 0]);
        leading.join().expect("done");
        assert_eq!(client.acknowledged(&[b"SET", b"k", b"v"]), Ok(1));
        following.join().expect("done");
    }

    #[test]
    fn what_is_no_resp_is_unknown_and_what_cannot_be_sent_is_refused() {
        let (address, server) = scripted(vec![b"hello\r\n"]);
        assert_eq!(client(&[address]).call(&input(Action::Get)), Reply::Unknown);
        server.join().expect("done");
        let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let mut hopeless = ClusterClient { patience: Duration::from_millis(5), ..client(&[nobody]) };
        assert!(matches!(hopeless.call(&input(Action::Get)), Reply::Refused(_)));
    }
}

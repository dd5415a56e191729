//! Debian's Redis, to compare with: the server, and the load generator that its users measure with.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::scratch::Scratch;

use super::foreign::{ForeignServer, installed};

/// A redis-server without persistence. It ends with the value.
#[derive(Debug)]
pub struct RedisServer {
    server: ForeignServer,
    /// The server's directory.
    _scratch: Scratch,
}

impl RedisServer {
    /// Starts one that is not replicated. `None`: it is not installed.
    pub fn start(port: u16) -> Outcome<Option<RedisServer>> {
        RedisServer::launch(port, &[])
    }

    /// Starts a replica of this one.
    fn replicate(&self, port: u16) -> Outcome<Option<RedisServer>> {
        let primary = self.address();
        RedisServer::launch(port, &["--replicaof".to_owned(), primary.ip().to_string(), primary.port().to_string()])
    }

    fn launch(port: u16, more: &[String]) -> Outcome<Option<RedisServer>> {
        if !installed("redis-server") {
            return Ok(None);
        }
        // Not where the benchmark was started: a server loads the data that it finds there.
        let scratch = Scratch::new("bench-redis").context("cannot make a temporary directory")?;
        let (port_word, dir) = (port.to_string(), scratch.path().display().to_string());
        let arguments = ["--bind", "127.0.0.1", "--port", &port_word, "--save", "", "--appendonly", "no", "--dir", &dir].map(str::to_owned);
        let mut server = ForeignServer::start("redis-server", &[&arguments, more].concat(), port)?;
        server.await_listening()?;
        Ok(Some(RedisServer { server, _scratch: scratch }))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }
}

/// How long replicas may take to have what there is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A redis-server with replicas of Redis' own kind: unless a client waits for them (`WAIT`) it answers before they have heard of a request. They end with the value.
#[derive(Debug)]
pub struct RedisGroup {
    primary: RedisServer,
    _replicas: Vec<RedisServer>,
}

impl RedisGroup {
    /// Starts the primary at that port, and so many replicas at those behind it, which all have what the primary has when this returns. `None`: it is not installed.
    pub fn start(port: u16, replicas: u16) -> Outcome<Option<RedisGroup>> {
        let Some(primary) = RedisServer::start(port)? else { return Ok(None) };
        let copies = (1..=replicas).map(|n| primary.replicate(port + n)).collect::<Outcome<Option<Vec<_>>>>()?;
        let Some(copies) = copies else { return Ok(None) };
        let mut connection = Connection::open(primary.address(), PATIENCE).context("cannot reach redis-server")?;
        let (all, patience) = (replicas.to_string(), PATIENCE.as_millis().to_string());
        let set = connection.command(&[b"SET", b"first", b"v"]).context("redis-server")?;
        match connection.command(&[b"WAIT", all.as_bytes(), patience.as_bytes()]).context("redis-server")? {
            Value::Integer(there) if there == i64::from(replicas) => Ok(Some(RedisGroup { primary, _replicas: copies })),
            there => Err(Fail::failed(format_args!("redis-server: {set:?}, and then {there:?} of {all} replicas have it"))),
        }
    }

    /// The one that clients talk to.
    pub fn primary(&self) -> &RedisServer {
        &self.primary
    }
}

/// Whether redis-benchmark is there.
pub fn has_benchmark() -> bool {
    installed("redis-benchmark")
}

/// What redis-benchmark is to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests of each kind.
    pub requests: u32,
    /// Connections.
    pub clients: u32,
    /// Requests that a connection sends at once.
    pub pipeline: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
}

/// Requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// SET.
    pub set: f64,
    /// GET.
    pub get: f64,
}

/// What a run of SET came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sets {
    /// Requests a second.
    pub rate: f64,
    /// From request to reply on average, in microseconds.
    pub average_us: f64,
}

impl Load {
    /// Runs it once.
    pub fn run(self, address: SocketAddr) -> Outcome<Rates> {
        self.understood(address, "set,get", parse)
    }

    /// Runs it once, with SET only.
    pub fn run_sets(self, address: SocketAddr) -> Outcome<Sets> {
        self.understood(address, "set", parse_sets)
    }

    fn understood<T>(self, address: SocketAddr, tests: &str, parse: fn(&str) -> Option<T>) -> Outcome<T> {
        let output = Command::new("redis-benchmark")
            .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-t", tests, "--csv"])
            .args(["-n", &self.requests.to_string(), "-c", &self.clients.to_string()])
            .args(["-P", &self.pipeline.to_string(), "-d", &self.value_bytes.to_string()])
            .stdin(Stdio::null())
            .output()
            .context("cannot run redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        parse(&text).ok_or_else(|| {
            Fail::failed(format_args!("redis-benchmark: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
        })
    }
}

/// Its lines are `"SET","465116.25",...`.
fn parse(csv: &str) -> Option<Rates> {
    let rate = |verb: &str| {
        let line = csv.lines().find_map(|line| line.strip_prefix(&format!("\"{verb}\",\"")))?;
        line.split('"').next()?.parse().ok()
    };
    Some(Rates { set: rate("SET")?, get: rate("GET")? })
}

/// Its line is `"SET","465116.25","1.393",...`: requests a second, and the average in milliseconds.
fn parse_sets(csv: &str) -> Option<Sets> {
    let line = csv.lines().find(|line| line.starts_with("\"SET\","))?;
    let mut numbers = line.split(',').skip(1).map(|cell| cell.trim_matches('"').parse::<f64>().ok());
    Some(Sets { rate: numbers.next()??, average_us: numbers.next()?? * 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_table_is_understood() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"465116.25\",\"1.393\"\n\"GET\",\"571428.56\",\"0.982\"\n";
        assert_eq!(parse(csv), Some(Rates { set: 465_116.25, get: 571_428.56 }));
        assert_eq!(parse("Could not connect\n"), None);
        assert_eq!(parse_sets(csv), Some(Sets { rate: 465_116.25, average_us: 1_393.0 }));
        assert_eq!(parse_sets("\"SET\",\"465116.25\"\n"), None);
    }
}

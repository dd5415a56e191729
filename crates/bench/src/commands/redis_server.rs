//! Debian's Redis, to compare with: the server, and the load generator that its users measure with.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::scratch::Scratch;

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// An unreplicated redis-server without persistence. It ends with the value.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    /// The server's directory.
    _scratch: Scratch,
}

impl RedisServer {
    /// Starts one. `None`: it is not installed.
    pub fn start(port: u16) -> Outcome<Option<RedisServer>> {
        if !installed("redis-server") {
            return Ok(None);
        }
        // Another server that listens there would be measured in its place.
        drop(TcpListener::bind(("127.0.0.1", port)).context(format_args!("redis-server's port {port}"))?);
        let server =
            ["redis-server", "--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"].map(str::to_owned);
        // Debian's setpriv lets the kernel end it with us, should we be killed.
        let mut command = if installed("setpriv") {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).args(&server);
            command
        } else {
            let mut command = Command::new(&server[0]);
            command.args(&server[1..]);
            command
        };
        // Not where the benchmark was started: a server loads the data that it finds there.
        let scratch = Scratch::new("bench-redis").context("cannot make a temporary directory")?;
        command.arg("--dir").arg(scratch.path());
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start redis-server")?;
        let mut server = RedisServer { child, port, _scratch: scratch };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(server.address()).is_err() {
            if let Some(status) = server.child.try_wait().context("cannot look at redis-server")? {
                return Err(Fail::failed(format_args!("redis-server ended: {status}")));
            }
            if Instant::now() > until {
                return Err(Fail::failed("redis-server does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(server))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _: io::Result<()> = self.child.kill();
        let _ = self.child.wait();
    }
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
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

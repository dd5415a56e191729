//! etcd, to compare with: a group of servers on this host, and a client that asks their leader in JSON over HTTP.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::scratch::Scratch;
use serde_json::Value;

use super::super::foreign::{ForeignServer, PATIENCE, installed};

/// Where files are in memory: the paper's applications had a RamDisk.
const MEMORY: &str = "/dev/shm";
/// The longest body of a reply that is taken for one.
const MOST_BYTES: usize = 16 << 20;

/// A group of servers, and a connection with its leader. They end with the value.
pub struct Etcd {
    leader: Http,
    _servers: Vec<ForeignServer>,
    _scratch: Scratch,
}

impl Etcd {
    /// Starts so many, from that port on two each. `None`: etcd is not installed.
    pub fn start(servers: u16, port: u16, interrupt: &Interrupt) -> Outcome<Option<Etcd>> {
        if !installed("etcd") {
            return Ok(None);
        }
        let scratch = Scratch::within(Path::new(MEMORY), "bench-etcd").context(format_args!("cannot make a directory in {MEMORY}"))?;
        let (client, peer) = (|n: u16| port + 2 * n, |n: u16| port + 2 * n + 1);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let group: Vec<String> = (0..servers).map(|n| format!("s{n}={}", url(peer(n)))).collect();
        let one = |n: u16| {
            let data = scratch.path().join(n.to_string()).display().to_string();
            let arguments = [
                ("--name", format!("s{n}")),
                ("--data-dir", data),
                ("--listen-client-urls", url(client(n))),
                ("--advertise-client-urls", url(client(n))),
                ("--listen-peer-urls", url(peer(n))),
                ("--initial-advertise-peer-urls", url(peer(n))),
                ("--initial-cluster", group.join(",")),
                ("--initial-cluster-token", format!("martlet-{}", std::process::id())),
            ];
            let arguments: Vec<String> = arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
            ForeignServer::start("etcd", &arguments, client(n))
        };
        // None of them listens before a majority is there.
        let mut servers = (0..servers).map(one).collect::<Outcome<Vec<_>>>()?;
        servers.iter_mut().try_for_each(ForeignServer::await_listening)?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            interrupt.check()?;
            for server in &servers {
                let mut http = Http::open(server.address(), PATIENCE).context("cannot reach etcd")?;
                if http.leads().context("etcd does not say who leads")? {
                    return Ok(Some(Etcd { leader: http, _servers: servers, _scratch: scratch }));
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(Fail::failed(format_args!("etcd has no leader after {} s", PATIENCE.as_secs())))
    }

    /// Sets a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let body = format!("{{\"key\":\"{}\",\"value\":\"{}\"}}", base64(key), base64(value));
        self.leader.post("/v3/kv/put", &body).map(drop)
    }

    /// Gets a key, by a linearizable read. Whether it was there.
    pub fn get(&mut self, key: &[u8]) -> io::Result<bool> {
        let body = format!("{{\"key\":\"{}\"}}", base64(key));
        Ok(self.leader.post("/v3/kv/range", &body)?.windows(5).any(|word| word == b"\"kvs\""))
    }
}

/// A connection that stays open.
struct Http {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    body: Vec<u8>,
}

impl Http {
    fn open(address: SocketAddr, patience: Duration) -> io::Result<Http> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Http { stream: BufReader::new(stream), request: Vec::new(), body: Vec::new() })
    }

    /// Whether the server at the other end leads.
    fn leads(&mut self) -> io::Result<bool> {
        let status: Value = serde_json::from_slice(self.post("/v3/maintenance/status", "{}")?)?;
        let leader = status["leader"].as_str();
        Ok(leader.is_some() && leader == status["header"]["member_id"].as_str())
    }

    /// Makes a request, and returns the body of the reply.
    fn post(&mut self, path: &str, body: &str) -> io::Result<&[u8]> {
        self.request.clear();
        write!(self.request, "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        self.stream.get_mut().write_all(&self.request)?;
        let ok = read_reply(&mut self.stream, &mut self.body)?;
        if !ok {
            return Err(io::Error::other(format!("etcd: {path}: {}", String::from_utf8_lossy(&self.body))));
        }
        Ok(&self.body)
    }
}

/// Reads a reply of HTTP into `body`. Whether its status is 200.
fn read_reply(stream: &mut impl io::BufRead, body: &mut Vec<u8>) -> io::Result<bool> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("a reply of HTTP: {what}"));
    body.clear();
    let ok = line(stream)?.split(' ').nth(1) == Some("200");
    let (mut length, mut chunked) = (None, false);
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(|| invalid("a header without a colon"))?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.trim().parse().map_err(|_| invalid("its length is no number"))?),
            "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
            _ => {}
        }
    }
    loop {
        let part = match length {
            _ if chunked => usize::from_str_radix(line(stream)?.trim(), 16).map_err(|_| invalid("a chunk's length is no number"))?,
            Some(length) => length,
            None => return Err(invalid("neither a length nor chunks")),
        };
        if body.len() + part > MOST_BYTES {
            return Err(invalid("too long"));
        }
        let at = body.len();
        body.resize(at + part, 0);
        stream.read_exact(&mut body[at..])?;
        if !chunked {
            return Ok(ok);
        }
        line(stream)?;
        if part == 0 {
            return Ok(ok);
        }
    }
}

/// A line without its end.
fn line(stream: &mut impl io::BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.take(64 << 10).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// In base 64, as JSON has bytes there.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().enumerate().fold(0u32, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for digit in 0..4 {
            let value = word >> (18 - 6 * digit) & 63;
            out.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_by_length_and_by_chunks() {
        let mut body = Vec::new();
        let mut two: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert!(read_reply(&mut two, &mut body).expect("a reply"));
        assert_eq!(body, b"hello");
        assert!(!read_reply(&mut two, &mut body).expect("another one"));
        assert_eq!((&*body, two), (&b"abc0123456789"[..], &b""[..]));
        let endless: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(read_reply(&mut { endless }, &mut body).expect_err("no length").kind(), io::ErrorKind::InvalidData);
        let cut: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel";
        assert_eq!(read_reply(&mut { cut }, &mut body).expect_err("it ends too early").kind(), io::ErrorKind::UnexpectedEof);
    }

    /// RFC 4648, section 10.
    #[test]
    fn bytes_in_base_64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd, 0]), "//79AA==");
    }
}

//! nginx, which waits edge-triggered, in three replicas.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use super::{Service, library};

/// More than a connection's window and the kernel's buffers hold.
const LONG_BYTES: usize = 24 << 20;

/// A client that never reopens its connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> Client {
        Client(BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("the server listens")))
    }

    fn ask(&mut self, what: &str) {
        self.0.get_mut().write_all(format!("GET {what} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("the connection stands");
    }

    /// The head of an answer: its first line, and how many bytes follow the head.
    fn head(&mut self) -> (String, usize) {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("the connection stands") > 0, "the connection has ended");
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let len = lines.iter().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
        (lines[0].clone(), len.parse().expect("a number"))
    }

    fn body(&mut self, len: usize) -> Vec<u8> {
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).expect("the connection stands");
        body
    }
}

#[test]
fn downloads_from_an_nginx_that_is_killed_are_whole_and_connections_are_kept() {
    if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
        std::io::stderr().write_all(b"\nSKIPPED: no nginx was run in replicas: there is none\n\n").expect("standard error");
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let directory = std::env::temp_dir().join(format!("martlet-run-nginx-{}", std::process::id()));
    fs::create_dir_all(directory.join("files")).expect("a directory");
    let long: Vec<u8> = (0..LONG_BYTES as u32 / 4).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(directory.join("files/long"), &long).expect("a file");
    fs::write(directory.join("files/short"), b"a short one").expect("a file");
    let configuration = directory.join("nginx.conf");
    let there = directory.display();
    let text = format!(
        "error_log {there}/errors;\npid {there}/pid;\nevents {{ worker_connections 200; }}\nhttp {{ access_log {there}/accesses; sendfile on; keepalive_requests 100000; \
         client_body_temp_path {there}; proxy_temp_path {there}; fastcgi_temp_path {there}; uwsgi_temp_path {there}; scgi_temp_path {there}; \
         limit_req_zone $binary_remote_addr zone=shared:1m rate=1000000r/s; \
         server {{ listen 127.0.0.1:{port}; root {there}/files; limit_req zone=shared burst=1000 nodelay; add_header X-Connection $connection; }} }}\n"
    );
    fs::write(&configuration, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    command.args(["run", "--json", "--preload"]).arg(library()).args(["--", "nginx", "-c"]).arg(&configuration);
    let mut service = Service::begin(command, port);
    let (mut slow, mut steady) = (Client::connect(port), Client::connect(port));
    // The server has accepted it.
    steady.ask("/short");
    assert_eq!(steady.head().1, 11);
    steady.body(11);
    let mut served = 1;
    for _ in 0..4 {
        slow.ask("/long");
        let (status, len) = slow.head();
        assert_eq!((status.as_str(), len), ("HTTP/1.1 200 OK", LONG_BYTES));
        let mut got = slow.body(LONG_BYTES / 3);
        steady.ask("/short");
        assert!(service.kill_leader() >= 2, "both connections are kept");
        assert_eq!(steady.head().1, 11);
        assert_eq!(steady.body(11), b"a short one");
        // Two requests in one write, the second for a file that does not exist.
        steady.0.get_mut().write_all(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\n\r\n").expect("it stands");
        let (_, len) = steady.head();
        assert_eq!(steady.body(len), b"a short one");
        let (status, len) = steady.head();
        assert_eq!(status, "HTTP/1.1 404 Not Found");
        steady.body(len);
        got.extend(slow.body(LONG_BYTES - got.len()));
        assert!(got == long, "what was downloaded is what is there");
        served += 4;
        service.await_replicas();
    }
    // A body that is not read: the server is told that its connection has ended.
    let mut rude = Client::connect(port);
    rude.0.get_mut().write_all(b"POST /short HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc").expect("the connection stands");
    assert_eq!(rude.head().0, "HTTP/1.1 405 Not Allowed");
    steady.ask("/short");
    assert_eq!(steady.head().1, 11);
    drop((slow, steady, rude));
    service.stop();
    let logged = fs::read_to_string(directory.join("accesses")).expect("it logs");
    assert_eq!(logged.lines().count(), served + 2, "each request is logged once: {logged}");
    let _ = fs::remove_dir_all(&directory);
}

//! memcached, whose threads take turns, in three replicas.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use super::{Service, library};

/// More than a connection's window and the kernel's buffers hold.
const LONG_BYTES: usize = 900 << 10;

/// A client that never reopens its connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_nodelay(true).expect("TCP");
        Client(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the connection stands");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).expect("the connection stands") > 0, "the connection has ended");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, what: &str) -> String {
        self.send(format!("{what}\r\n").as_bytes());
        self.line()
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        assert_eq!(self.ask(""), "STORED");
    }

    /// Reads the value that is on its way.
    fn value(&mut self) -> Vec<u8> {
        let head = self.line();
        let len = head.rsplit(' ').next().and_then(|len| len.parse::<usize>().ok()).unwrap_or_else(|| panic!("{head}"));
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).expect("the connection stands");
        assert_eq!((value.split_off(len).as_slice(), self.line().as_str()), (&b"\r\n"[..], "END"));
        value
    }
}

#[test]
fn counters_of_a_memcached_that_is_killed_are_exact_and_connections_are_kept() {
    if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
        std::io::stderr().write_all(b"\nSKIPPED: no memcached was run in replicas: there is none\n\n").expect("standard error");
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    command.args(["run", "--json", "--preload"]).arg(library()).args(["--", "memcached", "-l", "127.0.0.1", "-p"]).arg(port.to_string());
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    let mut service = Service::begin(command, port);
    let long: Vec<u8> = (0..LONG_BYTES as u32 / 4).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let (mut slow, mut steady) = (Client::connect(port), Client::connect(port));
    slow.set("long", &long);
    steady.set("count", b"0");
    let mut count = 0;
    for round in 0..4 {
        // When the leader dies, some answers are on their way, some are still in its server, and some requests are not read yet.
        (0..8).for_each(|_| slow.send(b"get long\r\n"));
        (0..50).for_each(|_| steady.send(b"incr count 1\r\n"));
        assert!(service.kill_leader() >= 2, "both connections are kept");
        for _ in 0..50 {
            count += 1;
            assert_eq!(steady.line(), count.to_string(), "every increment is done once");
        }
        for _ in 0..8 {
            assert!(slow.value() == long, "what was stored is what is there");
        }
        let mut new = Client::connect(port);
        assert_eq!(new.ask(&format!("add round{round} 0 0 1\r\nx")), "STORED");
        assert_eq!(new.ask("delete none"), "NOT_FOUND");
        drop(new);
        service.await_replicas();
    }
    // What a thread other than the worker would send to a watching client is not captured. The service goes on as it is.
    let mut watching = Client::connect(port);
    assert_eq!(watching.ask("watch mutations"), "OK");
    steady.set("seen", b"x");
    for _ in 0..100 {
        count += 1;
        assert_eq!(steady.ask("incr count 1"), count.to_string());
    }
    service.kill_leader();
    service.await_replicas();
    assert_eq!(service.replicas.len(), 3 + 5, "a replica has ended that was not killed");
    assert_eq!(steady.ask("mn"), "MN");
    drop((slow, steady, watching));
    service.stop();
}

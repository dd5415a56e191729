//! An unmodified redis-server in three replicas, whose leader is killed.

mod appended;
mod crashes;
mod descriptors;
mod kept;
mod memcached;
mod nginx;
mod polling;
mod python;
mod saved;
mod slow;
mod software;
mod threads;

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::built;
use crate::martlet::{TempDir, run};

/// The library that is loaded into the server.
fn library() -> PathBuf {
    built::build("martlet-preload", &["--lib"]).join("libmartlet_preload.so")
}

/// Whether there is a redis-server.
fn find_server() -> bool {
    Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// A server that runs, and what `martlet run` reports about it.
struct Service {
    command: Child,
    events: Receiver<Value>,
    port: u16,
    leader: i32,
    replicas: Vec<i32>,
    /// Replicas that have died of a fault of their own.
    crashed: usize,
}

impl Service {
    /// `None`: there is no redis-server.
    fn start() -> Option<Service> {
        Service::start_with(&[])
    }

    /// With more arguments for the server.
    fn start_with(arguments: &[&str]) -> Option<Service> {
        Service::start_as(&[], arguments)
    }

    /// With more arguments for `martlet run`, and for the server.
    fn start_as(own: &[&str], arguments: &[&str]) -> Option<Service> {
        Service::start_from(own, None, arguments)
    }

    /// With a configuration file for the server, too.
    fn start_from(own: &[&str], configuration: Option<&str>, arguments: &[&str]) -> Option<Service> {
        let (command, port) = Service::command(own, configuration, arguments)?;
        Some(Service::begin(command, port))
    }

    /// A command that starts a service, and the service's port.
    fn command(own: &[&str], configuration: Option<&str>, arguments: &[&str]) -> Option<(Command, u16)> {
        if !find_server() {
            let line = "\nSKIPPED: no redis-server was run in replicas: there is none\n\n";
            std::io::stderr().write_all(line.as_bytes()).expect("standard error");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
        command.args(["run", "--json", "--preload"]).arg(library()).args(own).args(["--", "redis-server"]).args(configuration);
        command.args(["--loglevel", "warning", "--save", "", "--port"]);
        command.arg(port.to_string()).args(arguments);
        Some((command, port))
    }

    /// Starts a `martlet run` whose server listens at this port.
    fn begin(mut command: Command, port: u16) -> Service {
        let mut command = command.stdout(Stdio::piped()).spawn().expect("martlet runs");
        let output = BufReader::new(command.stdout.take().expect("piped"));
        let (tell, events) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if tell.send(event).is_err() {
                    break;
                }
            }
        });
        let mut service = Service { command, events, port, leader: 0, replicas: Vec::new(), crashed: 0 };
        service.await_leader();
        service.await_replicas();
        service
    }

    fn event(&mut self) -> Value {
        let event = self.events.recv().expect("martlet run has ended");
        match event["event"].as_str() {
            Some("replica") => self.replicas.push(event["pid"].as_i64().expect("a process") as i32),
            Some("ended") if ["SIGSEGV", "SIGABRT"].iter().any(|signal| event["how"].as_str().is_some_and(|how| how.contains(signal))) => {
                self.crashed += 1;
            }
            Some("leads") => self.leader = event["pid"].as_i64().expect("a process") as i32,
            _ => {}
        }
        event
    }

    /// Waits for a leader. Returns with how many connections it leads.
    fn await_leader(&mut self) -> u64 {
        loop {
            let event = self.event();
            if event["event"] == "leads" {
                return event["connections"].as_u64().expect("a number");
            }
        }
    }

    fn await_replicas(&mut self) {
        while self.event()["replicas"] != 3 {}
    }

    fn kill_leader(&mut self) -> u64 {
        self.kill_leader_with(Signal::KILL)
    }

    fn kill_leader_with(&mut self, signal: Signal) -> u64 {
        kill_process(Pid::from_raw(self.leader).expect("a process"), signal).expect("it lives");
        self.await_leader()
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_nodelay(true).expect("TCP");
        self.greet(Box::new(stream))
    }

    fn connect_to(&self, path: &Path) -> Client {
        self.greet(Box::new(UnixStream::connect(path).expect("the server listens")))
    }

    fn greet(&self, connection: Box<dyn Connection>) -> Client {
        let mut client = Client(BufReader::new(connection));
        client.send(b"PING\r\n");
        assert_eq!(client.line(), "+PONG\r\n", "the server has accepted it");
        client
    }

    /// All processes of the service except `martlet run`, including those that keep connections. They share a group, which is named after the first.
    fn processes(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").expect("the kernel lists processes");
        let all = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let is_of_group = |pid: &i32| {
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
            let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
            fields.first() != Some(&"Z") && fields.get(2).and_then(|group| group.parse().ok()) == self.replicas.first().copied()
        };
        all.filter(is_of_group).collect()
    }

    /// Waits until it has ended as the server does, and checks that nothing is left.
    fn await_end(&mut self) {
        while self.events.recv().is_ok() {}
        assert_eq!(self.command.wait().expect("it ends").code(), Some(0), "as the server does");
        let left = self.processes();
        assert!(left.is_empty(), "{left:?} still run");
    }

    /// Sends SIGTERM, and checks that nothing is left.
    fn stop(mut self) {
        let pid = Pid::from_child(&self.command);
        kill_process(pid, Signal::TERM).expect("it runs");
        self.await_end();
        assert!(TcpStream::connect(("127.0.0.1", self.port)).is_err(), "nobody listens any more");
    }
}

impl Drop for Service {
    /// For a test that has failed: everything is ended, and nothing is waited for that may not come.
    fn drop(&mut self) {
        if let Ok(None) = self.command.try_wait() {
            let _ = self.command.kill();
            let _ = self.command.wait();
        }
        self.processes().into_iter().filter_map(Pid::from_raw).for_each(|pid| {
            let _ = kill_process(pid, Signal::KILL);
        });
    }
}

/// A connection of any kind.
trait Connection: Read + Write + Send {}

impl<C: Read + Write + Send> Connection for C {}

/// A client with one connection, which it never reopens.
struct Client(BufReader<Box<dyn Connection>>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the connection stands");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).expect("the connection stands") > 0, "the connection has ended");
        line
    }

    /// Sends a line, and returns the first line of the answer.
    fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        self.line()
    }

    /// Sends a request in the protocol's own form, in which an argument may contain anything.
    fn send_words(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.send(request.as_bytes());
    }

    /// Reads an answer as text: a list in brackets, and anything else without its first byte.
    fn answer(&mut self) -> String {
        let line = self.line();
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("{line:?} has no length"));
        match kind {
            "$" | "*" if number() < 0 => "nil".into(),
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.0.read_exact(&mut bytes).expect("the connection stands");
                String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()
            }
            "*" => {
                let parts: Vec<String> = (0..number()).map(|_| self.answer()).collect();
                format!("[{}]", parts.join(" "))
            }
            _ => rest.into(),
        }
    }

    /// Sends a request, and returns the answer.
    fn call(&mut self, words: &[&str]) -> String {
        self.send_words(words);
        self.answer()
    }

    fn number(&mut self) -> u64 {
        let line = self.line();
        line.trim_end().strip_prefix(':').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line:?} is no number"))
    }

    fn bulk(&mut self) -> Vec<u8> {
        let line = self.line();
        let len = line.trim_end().strip_prefix('$').and_then(|len| len.parse().ok()).unwrap_or_else(|| panic!("{line:?} is no bulk"));
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the connection stands");
        assert_eq!(self.line(), "\r\n");
        bytes
    }
}

/// Whether a process still exists: a dead one has no executable.
fn is_there(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists()
}

/// Ends the load when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn clients_of_a_redis_that_is_killed_keep_their_connections_and_their_counts_are_exact() {
    const CLIENTS: usize = 8;
    const KILLS: usize = 6;
    /// How many requests a client has under way.
    const AHEAD: u64 = 3;
    let Some(mut service) = Service::start() else { return };
    let (done, mut last) = (AtomicBool::new(false), service.connect());
    let acknowledged: u64 = std::thread::scope(|scope| {
        // Dropped also when a check fails, so that this ends.
        let _ends = Ends(&done);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (mut client, done) = (service.connect(), &done);
                scope.spawn(move || {
                    let (mut sent, mut got, mut highest) = (0, 0, 0);
                    loop {
                        let ends = done.load(Ordering::Relaxed);
                        while sent - got < AHEAD && !ends {
                            client.send(format!("INCR own:{number}\r\nINCR shared\r\n").as_bytes());
                            sent += 1;
                        }
                        if sent == got {
                            return got;
                        }
                        got += 1;
                        assert_eq!(client.number(), got, "each of its own requests was executed once, and answered in order");
                        let shared = client.number();
                        assert!(shared > highest, "{shared} came behind {highest}");
                        highest = shared;
                    }
                })
            })
            .collect();
        for _ in 0..KILLS {
            assert_eq!(service.kill_leader(), CLIENTS as u64 + 1, "no connection is lost");
            service.await_replicas();
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    last.send(b"GET shared\r\n");
    assert_eq!(last.bulk(), acknowledged.to_string().as_bytes());
    drop(last);
    service.stop();
}

#[test]
fn one_replica_of_three_goes_on_with_the_same_connection_where_one_is_enough() {
    for engine in ["hsuc", "huc"] {
        let Some(mut service) = Service::start_as(&["--engine", engine], &[]) else { return };
        let mut client = service.connect();
        for round in 0..2 {
            client.send(b"INCR counted\r\n");
            assert_eq!(client.number(), 2 * round + 1, "{engine}");
            let other = service.replicas.iter().copied().find(|pid| *pid != service.leader && is_there(*pid)).expect("three run");
            client.send(b"INCR counted\r\n");
            kill_process(Pid::from_raw(other).expect("a process"), Signal::KILL).expect("it lives");
            assert_eq!(service.kill_leader(), 1, "{engine}: no connection is lost");
            assert_eq!(client.number(), 2 * round + 2, "{engine}: it was executed once");
            service.await_replicas();
        }
        drop(client);
        service.stop();
    }
}

/// As the engine demands, a majority has to live. The replica that was born last is not counted yet, though it lives.
#[test]
fn a_service_that_has_lost_its_majority_ends_though_a_newborn_lives() {
    let errors = std::env::temp_dir().join(format!("martlet-run-lost-{}", std::process::id()));
    let Some((mut command, port)) = Service::command(&["--longest-request", "1"], None, &[]) else { return };
    command.stderr(std::fs::File::create(&errors).expect("a file"));
    let mut service = Service::begin(command, port);
    let kill = |pid| kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("it lives");
    loop {
        let known = service.replicas.clone();
        let follower = known.iter().copied().find(|pid| *pid != service.leader && is_there(*pid)).expect("three live");
        kill(follower);
        while service.replicas.len() == known.len() {
            service.event();
        }
        kill(service.leader);
        // If the newborn is counted by then, the service goes on with it and the other one, and another replica is killed.
        let mut leads = false;
        while let Ok(event) = service.events.recv() {
            match event["event"].as_str() {
                Some("leads") => {
                    (service.leader, leads) = (event["pid"].as_i64().expect("a process") as i32, true);
                    break;
                }
                Some("replica") => service.replicas.push(event["pid"].as_i64().expect("a process") as i32),
                _ => {}
            }
        }
        if !leads {
            break;
        }
        service.await_replicas();
    }
    assert_eq!(service.command.wait().expect("it ends").code(), Some(1));
    let said = std::fs::read_to_string(&errors).expect("text");
    let _ = std::fs::remove_file(&errors);
    assert!(said.contains("replicas 1 lives and holds the state, and the service needs a majority of"), "{said}");
    let left = service.processes();
    assert!(left.is_empty(), "{left:?} still run");
}

#[test]
fn a_value_that_is_half_sent_or_half_read_when_the_server_dies_is_whole_afterwards() {
    const BYTES: usize = 3 << 20;
    let Some(mut service) = Service::start() else { return };
    let value: Vec<u8> = (0..BYTES).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut client = service.connect();
    client.send(format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${BYTES}\r\n").as_bytes());
    for part in value.chunks(BYTES / 3) {
        client.send(part);
        assert_eq!(service.kill_leader(), 1);
        service.await_replicas();
    }
    client.send(b"\r\n");
    assert_eq!(client.line(), "+OK\r\n");
    // More than the window and the kernel take: the rest waits in the server.
    (0..6).for_each(|_| client.send(b"GET long\r\n"));
    let read = |client: &mut Client| assert!(client.bulk() == value, "as it was sent");
    read(&mut client);
    assert_eq!(service.kill_leader(), 1);
    read(&mut client);
    service.await_replicas();
    assert_eq!(service.kill_leader(), 1);
    (0..4).for_each(|_| read(&mut client));
    client.send(b"QUIT\r\n");
    assert_eq!(client.line(), "+OK\r\n");
    assert_eq!(client.0.read(&mut [0; 1]).expect("the end"), 0, "the connection ends when the server ends it");
    service.stop();
}

#[test]
fn clients_at_a_unix_socket_keep_their_connections_and_lose_and_double_nothing() {
    const CLIENTS: usize = 4;
    const KILLS: usize = 6;
    /// More of a value than the kernel takes at once, and not more than replicas are told of while one of them is born.
    const BYTES: usize = 200_000;
    let path = std::env::temp_dir().join(format!("martlet-run-{}.sock", std::process::id()));
    let Some(mut service) = Service::start_with(&["--unixsocket", path.to_str().expect("Unicode")]) else { return };
    let (done, mut last) = (AtomicBool::new(false), service.connect_to(&path));
    let acknowledged: u64 = std::thread::scope(|scope| {
        let _ends = Ends(&done);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (mut client, done) = (service.connect_to(&path), &done);
                scope.spawn(move || {
                    let value: Vec<u8> = (0..BYTES).map(|at| (at.wrapping_mul(2_654_435_761 + number) >> 13) as u8).collect();
                    let mut got = 0;
                    while !done.load(Ordering::Relaxed) {
                        got += 1;
                        client.send(
                            format!("INCR own:{number}\r\nINCR shared\r\n*3\r\n$3\r\nSET\r\n$1\r\n{number}\r\n${BYTES}\r\n").as_bytes(),
                        );
                        client.send(&value);
                        client.send(format!("\r\nGET {number}\r\n").as_bytes());
                        assert_eq!(client.number(), got, "each of its own requests was executed once, and answered in order");
                        client.number();
                        assert_eq!(client.line(), "+OK\r\n");
                        assert!(client.bulk() == value, "as it was sent");
                    }
                    got
                })
            })
            .collect();
        for _ in 0..KILLS {
            assert_eq!(service.kill_leader(), CLIENTS as u64 + 1, "no connection is lost");
            service.await_replicas();
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    last.send(b"GET shared\r\n");
    assert_eq!(last.bulk(), acknowledged.to_string().as_bytes());
    drop(last);
    service.stop();
    let _ = std::fs::remove_file(&path);
}

/// More clients than there are numbers below the connections' own, which received sockets take first.
#[test]
fn hundreds_of_clients_keep_their_connections() {
    const CLIENTS: usize = 400;
    let Some(mut service) = Service::start() else { return };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| service.connect()).collect();
    let mut count = 0;
    for _ in 0..2 {
        assert_eq!(service.kill_leader(), CLIENTS as u64, "no connection is lost");
        for client in &mut clients {
            count += 1;
            client.send(b"INCR shared\r\n");
            assert_eq!(client.number(), count);
        }
        service.await_replicas();
    }
    drop(clients);
    service.stop();
}

#[test]
fn a_signal_that_is_sent_to_one_replica_ends_that_one_alone() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    for (count, signal) in [Signal::TERM, Signal::INT, Signal::TERM, Signal::INT, Signal::TERM].into_iter().enumerate() {
        assert_eq!(client.ask("INCR shared"), format!(":{}\r\n", count + 1));
        assert_eq!(service.kill_leader_with(signal), 1, "no connection is lost");
        service.await_replicas();
    }
    let follower = service.replicas.iter().rev().find(|pid| **pid != service.leader).expect("three run");
    kill_process(Pid::from_raw(*follower).expect("a process"), Signal::TERM).expect("it lives");
    service.await_replicas();
    assert_eq!(client.ask("GET shared"), "$1\r\n");
    assert_eq!(client.line(), "5\r\n");
    service.stop();
}

#[test]
fn a_request_that_never_ends_costs_one_replica_and_is_not_executed_again() {
    let Some(mut service) = Service::start_as(&["--longest-request", "1"], &["--enable-debug-command", "yes"]) else { return };
    let (mut client, mut poison) = (service.connect(), service.connect());
    assert_eq!(client.ask("INCR shared"), ":1\r\n");
    poison.call(&["SET", "poisoned", "0"]);
    poison.send(b"MULTI\r\nINCR poisoned\r\nDEBUG SLEEP 1000000\r\nEXEC\r\n");
    // The replica that executes it is given up, and so is a connection that cannot be answered.
    let mut rest = Vec::new();
    let _ = poison.0.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    assert_eq!(client.ask("INCR shared"), ":2\r\n", "the other one goes on, on its connection");
    assert_eq!(client.call(&["GET", "poisoned"]), "0", "nothing of it is executed");
    service.await_leader();
    service.await_replicas();
    assert_eq!(service.replicas.len(), 4, "it has cost one replica");
    service.stop();
}

#[test]
fn a_request_for_another_address_is_refused_and_the_service_goes_on() {
    let Some(mut service) = Service::start() else { return };
    let other = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let mut client = service.connect();
    for round in 1..=2 {
        for (name, value) in [("port", other.to_string()), ("bind", "127.0.0.2".into()), ("bind", "127.0.0.1 127.0.0.3".into())] {
            let answer = client.call(&["CONFIG", "SET", name, &value]);
            assert!(answer.starts_with("ERR CONFIG SET failed"), "{name} {value}: {answer}");
            assert!(service.connect().ask("PING") == "+PONG\r\n", "after {name} {value}");
            assert!(TcpStream::connect(("127.0.0.1", other)).is_err(), "nobody listens there");
        }
        // The client's own connection is not lost. One of those that have just ended may still be there.
        assert!(service.kill_leader() >= 1);
        assert_eq!(client.ask("INCR rounds"), format!(":{round}\r\n"));
        assert_eq!(service.connect().ask("GET rounds"), "$1\r\n");
        service.await_replicas();
        assert_eq!(service.replicas.len(), 3 + round, "a replica has ended that was not killed");
    }
    service.stop();
}

/// The name at which `martlet run` hears its replicas is no secret: the kernel lists it to everyone.
#[test]
fn a_process_that_another_one_calls_a_replica_is_left_alone() {
    let Some(mut service) = Service::start() else { return };
    let mut bystander = Command::new("sleep").arg("1000").spawn().expect("a process");
    let start = format!("@martlet-run-{}-", service.command.id());
    let listed = std::fs::read_to_string("/proc/net/unix").expect("a list of sockets");
    let name =
        listed.split_ascii_whitespace().find_map(|word| word.strip_prefix('@').filter(|_| word.starts_with(&start))).expect("it listens");
    let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    let said =
        [format!("hello 5 {}", bystander.id()), format!("hello 70 {}", std::process::id()), "group 1 0".into(), "leads 200 1".into()];
    let lines = said.map(|said| {
        let line = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None).expect("a socket");
        rustix::net::connect(&line, &address).expect("it listens");
        rustix::net::send(&line, said.as_bytes(), rustix::net::SendFlags::empty()).expect("it hears");
        line
    });
    // It hears these messages before it is told to end.
    let mut disbelieved = 0;
    while disbelieved < lines.len() {
        let event = service.event();
        assert!(event["event"] == "disbelieved", "{event}");
        disbelieved += 1;
    }
    assert_eq!(service.connect().ask("INCR once"), ":1\r\n", "the service goes on");
    service.stop();
    assert!(bystander.try_wait().expect("ours").is_none(), "a process that has nothing to do with it was ended");
    bystander.kill().expect("ours");
    bystander.wait().expect("it ends");
}

#[test]
fn a_service_shows_itself_in_the_directory_that_it_is_given_and_leaves_nothing_there() {
    let directory = std::env::temp_dir().join(format!("martlet-run-shown-{}", std::process::id()));
    let path = directory.to_str().expect("Unicode");
    let Some(mut service) = Service::start_as(&["--dir", path], &[]) else { return };
    let told = |service: &Service, clients: u64, takeovers: u64| {
        // What is shown is written out every few milliseconds, and a client that has left takes a while to be noticed.
        let told = loop {
            let line = run(&["status", "--dir", path, "--json"]).code(0).out;
            let told = line.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok()).expect("an object");
            if told["service"]["connections"] == clients && told["service"]["takeovers"] == takeovers {
                break told["service"].clone();
            }
        };
        assert_eq!((&told["pid"], &told["replaced"]), (&service.leader.into(), &takeovers.into()), "{told}");
        told
    };
    let clients = [service.connect(), service.connect()];
    assert_eq!(told(&service, 2, 0)["last_takeover_us"], Value::Null, "nobody has died");
    let before = std::time::Instant::now();
    service.kill_leader();
    service.await_replicas();
    let after = told(&service, 2, 1);
    let (took_us, serves_ms) = (after["last_takeover_us"].as_f64().expect("a time"), after["serves_for_ms"].as_u64().expect("a time"));
    assert!(took_us > 0.0 && took_us / 1e3 + serves_ms as f64 <= before.elapsed().as_secs_f64() * 1e3, "since the kill: {after}");
    drop(clients);
    told(&service, 0, 1);
    let status = run(&["status", "--dir", path, "--json"]).code(0).out;
    let events: Vec<Value> = status.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let server = events.iter().find(|event| event["event"] == "server").expect("it says which server it is");
    assert!(server["server"].as_str().is_some_and(|server| server.starts_with("redis-server ")), "{server}");
    let nodes: Vec<&Value> = events.iter().filter(|event| event["event"] == "node").collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    assert!(nodes.iter().any(|node| node["pid"] == service.leader && node["role"] == "primary"), "{nodes:?}");
    let top = run(&["top", "--once", "--dir", path]).code(0).out;
    assert!(top.contains(": replica ") && top.contains(" 0 connections; 1 takeover, the last one took "), "{top}");
    // Commands about a cluster's nodes name the command that does what was meant.
    let of_clusters = |words: &[&str], instead: &str| {
        let refused = run(&[words, &["--dir", path]].concat()).code(2).err;
        assert!(refused.contains("is not a cluster's directory: it shows \"redis-server "), "{words:?}: {refused}");
        assert!(refused.contains(&format!("in replicas, process {}. {instead}", service.command.id())), "{words:?}: {refused}");
    };
    let leader = nodes.iter().find(|node| node["pid"] == service.leader).expect("it is shown")["node"].to_string();
    of_clusters(&["cluster", "kill", &leader], &format!("Replica {leader} is process {0}: `kill -KILL {0}`", service.leader));
    of_clusters(&["cluster", "kill", "15"], "It has no replica 15; `martlet status` shows the numbers");
    of_clusters(&["cluster", "handover", "1"], "Its replicas take over from each other");
    of_clusters(&["cluster", "up"], "`martlet run --dir` starts such a server");
    of_clusters(&["cluster", "down", "--purge"], &format!("`kill -TERM {}` ends the server", service.command.id()));
    for words in [&["get", "key"][..], &["set", "key", "value"], &["del", "key"]] {
        of_clusters(words, "Ask that server itself, at its own port: redis-cli");
    }
    for words in [
        &["restart", "1"][..],
        &["restart", "--all"],
        &["add"],
        &["remove", "1"],
        &["replace", "1"],
        &["evict", "1"],
        &["recover"],
        &["level"],
    ] {
        of_clusters(&[&["cluster"], words].concat(), "martlet run looks after its replicas by itself");
    }
    let second = run(&["run", "--dir", path, "--preload", "/dev/null", "--", "redis-server"]).code(1);
    assert!(second.err.contains(path), "two cannot show themselves in one directory: {}", second.err);
    service.stop();
    assert!(!directory.exists(), "nothing is left of it");
}

#[test]
fn what_is_refused_at_the_start_is_refused_to_clients_by_name() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    for round in 1..=2 {
        for (words, name) in [
            (&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"][..], "maxmemory-policy allkeys-lru"),
            (&["CONFIG", "SET", "hz", "12", "maxmemory-policy", "volatile-ttl"], "maxmemory-policy volatile-ttl"),
            (&["REPLICAOF", "127.0.0.1", "6379"], "REPLICAOF 127.0.0.1 6379"),
            (&["slaveof", "127.0.0.1", "6379"], "slaveof 127.0.0.1 6379"),
            (&["MODULE", "LOAD", "/x.so"], "MODULE LOAD /x.so"),
            (&["MIGRATE", "127.0.0.1", "6379", "key", "0", "100"], "MIGRATE 127.0.0.1 6379"),
            (&["PSYNC", "?", "-1"], "PSYNC ? -1"),
        ] {
            let answer = client.call(words);
            assert!(answer.starts_with("ERR") && answer.contains(name) && answer.contains("refused by martlet run"), "{answer}");
        }
        assert_eq!(client.call(&["CONFIG", "GET", "maxmemory-policy"]), "[maxmemory-policy noeviction]");
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1gb"]), "OK");
        assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        // In a transaction it is an error like any other.
        assert_eq!(client.call(&["MULTI"]), "OK");
        assert!(client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).starts_with("ERR"));
        assert!(client.call(&["EXEC"]).starts_with("EXECABORT"));
        // A script may ask for more than a client may.
        let migrates =
            client.call(&["EVAL", "redis.call('SET', 'key', 1) return redis.call('MIGRATE', '127.0.0.1', '1', 'key', 0, 100)", "0"]);
        assert!(migrates.contains("IOERR"), "{migrates}");
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        assert_eq!(client.ask("INCR rounds"), format!(":{round}\r\n"));
        service.await_replicas();
        assert_eq!(service.replicas.len(), 3 + round, "a replica has ended that was not killed");
    }
    drop(client);
    service.stop();
}

#[test]
fn replicas_are_replaced_more_often_than_they_have_numbers() {
    const KILLS: u64 = 40;
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    for kill in 1..=KILLS {
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        assert_eq!(client.ask("INCR kills"), format!(":{kill}\r\n"));
        service.await_replicas();
        assert_eq!(service.replicas.len() as u64, 3 + kill, "a replica has ended that was not killed");
    }
    service.stop();
}

/// `timeout` signals what it has started, and then its group. So does a terminal, and so does closing it.
#[test]
fn nothing_is_left_however_often_and_whenever_it_is_told_to_end() {
    const ROUNDS: u64 = 12;
    // A machine that loses its power sends the second.
    for (round, signal) in (0..ROUNDS).zip([Signal::TERM, Signal::POWER, Signal::QUIT, Signal::STKFLT].into_iter().cycle()) {
        let Some(mut service) = Service::start() else { return };
        let mut rng = fastrand::Rng::with_seed(round);
        let mut client = service.connect();
        client.ask("INCR shared");
        let pid = Pid::from_child(&service.command);
        kill_process(Pid::from_raw(service.leader).expect("a process"), Signal::KILL).expect("it lives");
        // At some moment between the death and a while after the birth of the next replica. In every third round at once, while none leads.
        if round % 3 != 0 {
            std::thread::sleep(Duration::from_micros(rng.u64(0..1_500_000)));
        }
        for _ in 0..4 {
            // It may have ended by now.
            let _ = kill_process(pid, signal);
            std::thread::sleep(Duration::from_micros(rng.u64(0..20_000)));
        }
        service.await_end();
    }
}

#[test]
fn it_ends_with_the_servers_own_exit_code() {
    let library = library();
    let library = library.to_str().expect("Unicode");
    let ended = run(&["run", "--untried", "--preload", library, "--", "sh", "-c", "exit 7"]).code(7);
    assert!(ended.err.contains("before it could be replicated"), "{}", ended.err);
    let well = run(&["run", "--untried", "--preload", library, "--", "sh", "-c", "echo version 1"]).code(0);
    assert_eq!(well.out, "version 1\n");
    assert!(well.err.contains("the server has ended before it could be replicated (exit status: 0): nothing is running"), "{}", well.err);
    if let Some(python) = python::executable() {
        let leaves = "import os; os.posix_spawn('/bin/sleep', ['sleep', '1000'], {})";
        let left = run(&["run", "--untried", "--preload", library, "--", &python, "-c", leaves]).code(1);
        assert!(left.err.contains("behind, which are ended too. If the server leaves the foreground, tell it not to"), "{}", left.err);
    }
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    client.send(b"SHUTDOWN NOSAVE\r\n");
    assert_eq!(client.0.read(&mut [0; 1]).expect("the end"), 0);
    assert_eq!(service.command.wait().expect("it ends").code(), Some(0));
    // The last one has no majority to follow with, and is ended, but not as one that was killed.
    let hows: Vec<Value> = service.events.iter().filter(|event| event["event"] == "ended").map(|event| event["how"].clone()).collect();
    assert_eq!((hows.len(), &hows[0]), (3, &Value::from("exit status: 0")));
    assert!(hows[1..].iter().all(|how| *how == "exit status: 0" || *how == "with the service"), "{hows:?}");
}

/// A full disk, or a program that no longer reads, is no reason to end a service.
#[test]
fn a_service_goes_on_when_nobody_reads_its_events() {
    let Some((mut command, port)) = Service::command(&[], None, &[]) else { return };
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("martlet runs");
    let mut events = BufReader::new(running.stdout.take().expect("piped")).lines();
    let mut event = || serde_json::from_str::<Value>(&events.next().expect("more").expect("a line")).expect("an object");
    let mut leader = Value::Null;
    loop {
        let event = event();
        if event["event"] == "leads" {
            leader = event["pid"].clone();
        }
        if event["replicas"] == 3 {
            break;
        }
    }
    drop(events);
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it serves");
    let leader = leader.as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a process");
    kill_process(leader, Signal::KILL).expect("it lives");
    let mut said = BufReader::new(running.stderr.take().expect("piped")).lines();
    assert!(said.any(|line| line.expect("a line").contains("takes no more events")), "it ends, and has not said so");
    // The rest of its output has a reader.
    let rest = std::thread::spawn(move || said.count());
    client.write_all(b"PING\r\n").expect("it serves");
    let mut reply = [0; 7];
    client.read_exact(&mut reply).expect("it serves");
    assert_eq!(&reply, b"+PONG\r\n");
    let pid = Pid::from_raw(running.id() as i32).expect("a process");
    kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(running.wait().expect("it ends").code(), Some(0));
    rest.join().expect("it reads");
}

#[test]
fn what_cannot_be_captured_is_refused_before_it_starts() {
    let scratch = TempDir::new();
    let (above, shown) = (scratch.join("above"), scratch.join("above/shown"));
    // It gets as far as the server's start, and no further.
    run(&["run", "--untried", "--dir", &shown, "--preload", "/etc/passwd", "--", "/bin/sh", "-c", "sleep 1000"]).code(1);
    assert!(!Path::new(&above).exists(), "what was made for it goes with it");
    assert!(run(&["run", "--", "no-such-server"]).code(3).err.contains("no-such-server"));
    let unknown = run(&["run", "--preload", "/dev/null", "--", "/bin/true"]).code(2);
    assert!(unknown.err.contains("--untried"), "{}", unknown.err);
    let encrypting = run(&["run", "--preload", "/dev/null", "--", "redis-server", "--port", "0", "--tls-port", "6379"]);
    if find_server() {
        let encrypting = encrypting.code(1);
        assert!(encrypting.err.contains("tls-port 6379"), "{}", encrypting.err);
    }
    assert!(run(&["run", "--preload", "/nowhere", "--", "/bin/true"]).code(3).err.contains("/nowhere"));
    let passwords = run(&["run", "--untried", "--preload", "/etc/passwd", "--", "/bin/sh", "-c", "sleep 1000"]).code(1);
    assert!(passwords.err.contains("/etc/passwd cannot be loaded into servers"), "{}", passwords.err);
    let script = std::env::temp_dir().join(format!("martlet-run-script-{}", std::process::id()));
    std::fs::write(&script, "#!/bin/sh\n").expect("a file");
    let mut permissions = std::fs::metadata(&script).expect("there").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(&script, permissions).expect("its own");
    let refused = run(&["run", "--", script.to_str().expect("Unicode")]).code(1);
    let _ = std::fs::remove_file(&script);
    assert!(refused.err.contains("it is a script"), "{}", refused.err);
}

//! The single address of a cluster on one host: its connections outlive the nodes that serve them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::Cluster;
use crate::martlet::{fabric, free_ports};

/// A client that counts what it was told.
struct Client {
    stream: BufReader<TcpStream>,
    key: String,
    own: u64,
    asked: u64,
    /// Bytes of requests, cut off in the middle of one.
    cut: Vec<u8>,
}

impl Client {
    fn new(port: u16, number: usize) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
        stream.set_nodelay(true).expect("TCP");
        Client { stream: BufReader::new(stream), key: format!("own-{number}"), own: 0, asked: 0, cut: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the connection stands");
    }

    /// Sends some increments, the last of them incomplete.
    fn ask(&mut self, requests: u64) {
        let request = format!("INCR {}\r\nINCR shared\r\n", self.key);
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend(request.repeat(requests as usize).bytes());
        self.cut = bytes.split_off(bytes.len() - 7);
        self.send(&bytes);
        self.asked += requests;
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.stream.read_line(&mut line).expect("the connection stands"), 0, "it has ended");
        line.trim_end().to_owned()
    }

    /// Reads all replies: each increment of its own key yields the next number.
    fn settle(&mut self) {
        let cut = std::mem::take(&mut self.cut);
        self.send(&cut);
        while self.own < self.asked {
            self.own += 1;
            assert_eq!(self.line(), format!(":{}", self.own), "of {}", self.key);
            assert!(self.line().starts_with(':'), "of the shared key");
        }
    }
}

fn info(client: &mut Client, field: &str) -> u64 {
    client.send(b"INFO\r\n");
    let len: usize = client.line().trim_start_matches('$').parse().expect("a length");
    let mut text = vec![0; len + 2];
    std::io::Read::read_exact(&mut client.stream, &mut text).expect("the connection stands");
    let text = String::from_utf8(text).expect("UTF-8");
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or_else(|| panic!("{field} in {text}"));
    value.trim_start_matches('n').parse().expect("a number")
}

/// A cluster with one address, and its port. `None`: the tests run on a fabric between hosts, where there is none.
fn served(engine: &str) -> Option<(Cluster, u16)> {
    if !fabric().is_empty() {
        return None;
    }
    let cluster = Cluster::new();
    let port = free_ports(1);
    cluster.up_with(&["--service-port", &port.to_string(), "--engine", engine]).ok();
    Some((cluster, port))
}

fn service(name: &str) {
    const CLIENTS: usize = 8;
    const KILLS: u64 = 4;
    let Some((cluster, port)) = served(name) else { return };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(port, number)).collect();
    clients[0].send(b"CLIENT SETNAME first\r\nHELLO 3\r\nMULTI\r\nSET a 1\r\n");
    for kill in 0..KILLS {
        for client in &mut clients[1..] {
            client.ask(1 + kill * 50);
        }
        let node = info(&mut Client::new(port, CLIENTS), "node");
        let pid = cluster.nodes()[&node].1.expect("it runs");
        clients[1..].iter_mut().for_each(|client| client.ask(100));
        kill_process(Pid::from_raw(pid as i32).expect("a number"), Signal::KILL).expect("it runs");
        clients[1..].iter_mut().for_each(Client::settle);
        cluster.up_again().ok();
    }
    // This one was in the middle of a transaction all the time.
    let first = &mut clients[0];
    first.send(b"CLIENT GETNAME\r\nINCR a\r\nEXEC\r\nCLIENT GETNAME\r\n");
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &String| line == "*3") {
        lines.push(first.line());
    }
    assert_eq!(lines.iter().filter(|line| *line == "+QUEUED").count(), 3, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "+OK").count(), 2, "{lines:?}");
    let rest: Vec<String> = (0..6).map(|_| first.line()).collect();
    assert_eq!(rest, ["+OK", "$5", "first", ":2", "$5", "first"]);
    let first = &mut clients[0];
    first.send(b"GET shared\r\n");
    first.line();
    let shared = first.line();
    assert_eq!(shared, clients[1..].iter().map(|client| client.own).sum::<u64>().to_string(), "each was executed once");
    assert_eq!(info(&mut Client::new(port, CLIENTS), "connections_lost"), 0);
    assert!(info(&mut Client::new(port, CLIENTS), "connections_taken_over") >= CLIENTS as u64);
}

#[test]
fn connections_outlive_kills_and_each_request_is_executed_once() {
    service("primary-backup");
}

#[test]
fn with_an_engine_that_elects_its_leader_they_do_too() {
    service("mu");
}

/// The keeper of this process, if there is one.
fn keeper_of(pid: u64) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("a kernel that tells");
    let is_keeper = |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "martlet-keeper\n");
    Pid::from_raw(children.split_whitespace().find(is_keeper)?.parse().expect("a process id"))
}

#[test]
fn a_keeper_that_is_killed_alone_is_replaced_and_connections_outlive_its_node() {
    let Some((cluster, port)) = served("primary-backup") else { return };
    let mut client = Client::new(port, 0);
    for _ in 0..3 {
        client.ask(10);
        client.settle();
        let node = info(&mut Client::new(port, 1), "node");
        let pid = cluster.nodes()[&node].1.expect("it runs");
        let first = keeper_of(pid).expect("it has one");
        kill_process(first, Signal::KILL).expect("it runs");
        while keeper_of(pid).is_none_or(|keeper| keeper == first) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let log = std::path::Path::new(&cluster.dir).join(format!("node-{node}.log"));
        while !std::fs::read_to_string(&log)
            .expect("its log")
            .contains("the keeper of this node (martlet-keeper) had died; another one has")
        {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        client.ask(10);
        kill_process(Pid::from_raw(pid as i32).expect("a number"), Signal::KILL).expect("it runs");
        client.settle();
        assert_eq!(info(&mut Client::new(port, 1), "connections_lost"), 0);
        cluster.up_again().ok();
    }
}

#[test]
fn a_leader_that_is_stopped_with_its_keeper_is_succeeded_all_the_same() {
    let Some((cluster, port)) = served("primary-backup") else { return };
    let mut client = Client::new(port, 0);
    client.ask(10);
    client.settle();
    // On a busy machine, a node that was a member may have to join once more; without members there is no next leader.
    cluster.await_members(3);
    let node = info(&mut Client::new(port, 1), "node");
    let pid = cluster.nodes()[&node].1.expect("it runs");
    let keeper = keeper_of(pid).expect("it has one");
    // Should the group of the node and its keeper have no member whose parent is outside it, the kernel continues those that are stopped (see setpgid(2)). It may
    // find that as the node dies: the keeper's parent is the node at one moment, and a process outside the group at the next.
    let mut member = Command::new("cat").process_group(pid as i32).stdin(Stdio::piped()).spawn().expect("it runs");
    for stopped in [keeper, Pid::from_raw(pid as i32).expect("a number")] {
        kill_process(stopped, Signal::STOP).expect("it runs");
    }
    // The next leader accepts it once it has given up what the keeper holds.
    let mut next = Client::new(port, 1);
    next.ask(10);
    next.settle();
    next.send(b"GET own-0\r\n");
    assert_eq!((next.line(), next.line()), ("$2".into(), "10".into()));
    assert_ne!(info(&mut next, "node"), node);
    kill_process(keeper, Signal::CONT).expect("it was stopped");
    // No process asks for what the keeper holds.
    assert_eq!(client.stream.read_line(&mut String::new()).unwrap_or(0), 0);
    drop(member.stdin.take());
    member.wait().expect("our own child");
    cluster.up_again().ok();
}

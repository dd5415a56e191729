//! Reads by quorum from real processes that are killed, or stopped for longer than a lease.
//!
//! The child processes run this test binary itself, each with a counter. A child answers the line `add` with the counter after one more increment, and `read`
//! with what it has read by quorum; when it cannot, it answers with the error's name. It answers `replicas` with how many replicas its view has, if the view
//! lists it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use martlet::config::{ClusterConfig, DetectorConfig, EngineKind, FabricKind};
use martlet::counters::{Counter, Reading};
use martlet::{Plain, Replica};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::cluster::{threads, with_every_engine};
use crate::config::config;

/// The cluster's file and the node's number, for a child process.
const NODE: &str = "MARTLET_QUORUM_READS_NODE";
const NODES: usize = 3;

with_every_engine!(what_is_read_by_quorum_is_never_older_than_what_was_acknowledged_before_through_kills_and_pauses);

fn what_is_read_by_quorum_is_never_older_than_what_was_acknowledged_before_through_kills_and_pauses(engine: EngineKind) {
    reads_are_never_older(engine, FabricKind::Shm);
}

/// Between processes that reach each other by packets only, as if each were on its own host.
mod over_udp {
    use super::*;

    with_every_engine!(what_is_read_by_quorum_is_never_older_than_what_was_acknowledged_before);

    fn what_is_read_by_quorum_is_never_older_than_what_was_acknowledged_before(engine: EngineKind) {
        reads_are_never_older(engine, FabricKind::Ethernet);
    }
}

fn count(counter: &mut u64, _: &[u8], reply: &mut Vec<u8>) {
    *counter += 1;
    reply.extend_from_slice(&counter.to_le_bytes());
}

fn answer(replica: &Replica<Plain<u64>>, line: &str) -> String {
    let number = match line {
        "add" => replica.propose(b"").map(|reply| u64::from_le_bytes(reply.as_slice().try_into().expect("8 bytes"))),
        "read" => replica.read_by_quorum(|counter| *counter.value()),
        "replicas" => {
            // A node that has just begun may know a view that lists an earlier life of the node, and in which all nodes are there.
            let listed = |metrics: Reading| if metrics.get(Counter::Standing) == 0 { 0 } else { metrics.get(Counter::Replicas) };
            return replica.metrics().map_or_else(|error| error.to_string(), |metrics| listed(metrics).to_string());
        }
        other => panic!("{other:?}"),
    };
    number.map_or_else(|error| format!("error: {error}"), |number| number.to_string())
}

/// Not a test of its own: what the child processes run.
#[test]
fn quorum_reads_process() {
    let Ok(node) = std::env::var(NODE) else { return };
    let (file, node) = node.split_once(' ').expect("a file and a number");
    let node: u16 = node.parse().expect("a number");
    let builder = Replica::builder().cluster_file(file).node(node).threads(threads());
    let replica = builder.start(Plain::new(count)).expect("it starts");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = Path::new(file).with_file_name(format!("port-{node}"));
    std::fs::write(port.with_extension("new"), listener.local_addr().expect("bound").to_string()).expect("our directory");
    std::fs::rename(port.with_extension("new"), port).expect("our directory");
    for client in listener.incoming().flatten() {
        let replica = replica.clone();
        std::thread::spawn(move || {
            let mut told = client.try_clone().expect("descriptors");
            for line in BufReader::new(client).lines().map_while(Result::ok) {
                if writeln!(told, "{}", answer(&replica, &line)).is_err() {
                    return;
                }
            }
        });
    }
}

struct Processes {
    dir: PathBuf,
    children: Vec<Option<Child>>,
}

impl Processes {
    fn start(engine: EngineKind, fabric: FabricKind) -> Processes {
        let dir = std::env::temp_dir().join(format!("martlet-quorum-{engine}-{fabric}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        // A replica that is stopped is soon taken for dead.
        let mut config = ClusterConfig { engine, fabric, ..config(&format!("quorum-{engine}-{fabric}"), NODES as u16) };
        config.detector = DetectorConfig::default();
        config.lease_us = fabric.traits().default_lease_us;
        if fabric.traits().needs_address {
            // Addresses of the loopback device that nothing else uses, whatever runs beside this test: a node that has been killed comes back to its own
            // address.
            let of = std::process::id();
            let place = |node| 1 + 10 * engine as u32 + node;
            for (node, entry) in (0..).zip(&mut config.nodes) {
                entry.address = format!("127.{}.{}.{}:7600", 1 + of % 250, 1 + of / 250 % 250, place(node));
            }
        }
        std::fs::write(dir.join("cluster.toml"), config.to_toml()).expect("our directory");
        let mut processes = Processes { dir, children: (0..NODES).map(|_| None).collect() };
        (0..NODES).for_each(|node| processes.spawn(node));
        processes.settle();
        processes
    }

    fn spawn(&mut self, node: usize) {
        let _ = std::fs::remove_file(self.dir.join(format!("port-{node}")));
        let child = Command::new(std::env::current_exe().expect("ourselves"))
            .args(["--exact", "quorum::quorum_reads_process", "--nocapture", "--test-threads=1"])
            .env(NODE, format!("{} {node}", self.dir.join("cluster.toml").display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("ourselves again");
        self.children[node] = Some(child);
    }

    fn pid(&self, node: usize) -> Pid {
        Pid::from_child(self.children[node].as_ref().expect("it runs"))
    }

    /// Waits until all nodes know a view in which all of them are replicas.
    fn settle(&self) {
        for node in 0..NODES {
            while self.try_ask(node, "replicas").ok() != Some(NODES.to_string()) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn connect(&self, node: usize) -> std::io::Result<TcpStream> {
        TcpStream::connect(std::fs::read_to_string(self.dir.join(format!("port-{node}")))?)
    }

    fn try_ask(&self, node: usize, line: &str) -> std::io::Result<String> {
        let client = self.connect(node)?;
        writeln!(&client, "{line}")?;
        heard(client)
    }

    /// Asks the nodes in turn, starting with `node` and skipping the stopped one, until one answers with a number. Leaves in `node` which one it was.
    fn ask(&self, node: &mut usize, stopped: Option<usize>, line: &str) -> u64 {
        loop {
            if stopped != Some(*node) {
                match self.try_ask(*node, line).map(|answer| answer.parse()) {
                    Ok(Ok(number)) => return number,
                    // Ask again, or ask another node.
                    Ok(Err(_)) | Err(_) => std::thread::sleep(Duration::from_micros(200)),
                }
            }
            *node = (*node + 1) % NODES;
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A line read from a connection.
fn heard(client: TcpStream) -> std::io::Result<String> {
    let mut answer = String::new();
    match BufReader::new(client).read_line(&mut answer)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(answer.trim_end().to_owned()),
    }
}

fn reads_are_never_older(engine: EngineKind, fabric: FabricKind) {
    let mut processes = Processes::start(engine, fabric);
    let (mut leader, mut least) = (0, 0);
    // If an answer was lost, nothing tells whether the call took effect, so the counter may be further on.
    let read = |processes: &Processes, leader: &mut usize, stopped, least: &mut u64| {
        let seen = processes.ask(leader, stopped, "read");
        assert!(seen >= *least, "{seen} was read after {least} had been acknowledged or read");
        *least = seen;
    };
    let add = |processes: &Processes, leader: &mut usize, stopped, least: &mut u64| {
        let added = processes.ask(leader, stopped, "add");
        assert!(added > *least, "{added} came after {least}");
        *least = added;
    };
    for round in 0..4 {
        for _ in 0..20 {
            add(&processes, &mut leader, None, &mut least);
            read(&processes, &mut leader, None, &mut least);
        }
        // The replica that has just answered leads, or did.
        let victim = leader;
        if round % 2 == 0 {
            let mut child = processes.children[victim].take().expect("it runs");
            child.kill().expect("our own child");
            child.wait().expect("our own child");
            read(&processes, &mut leader, Some(victim), &mut least);
            add(&processes, &mut leader, Some(victim), &mut least);
            processes.spawn(victim);
        } else {
            kill_process(processes.pid(victim), Signal::STOP).expect("our own child");
            let stopped = waitpid(Some(processes.pid(victim)), WaitOptions::UNTRACED).expect("our own child");
            assert!(stopped.is_some_and(|(_, status)| status.stopped()));
            for _ in 0..5 {
                add(&processes, &mut leader, Some(victim), &mut least);
                read(&processes, &mut leader, Some(victim), &mut least);
            }
            // These requests wait in its sockets. They are the first thing that it finds when it goes on, with everything that it knew when it was stopped.
            let waiting: Vec<TcpStream> = (0..4).map(|_| processes.connect(victim).expect("its kernel takes it")).collect();
            waiting.iter().for_each(|mut client| writeln!(client, "read").expect("its kernel takes it"));
            kill_process(processes.pid(victim), Signal::CONT).expect("our own child");
            for client in waiting {
                let answer = heard(client).expect("every call is answered");
                if let Ok(seen) = answer.parse::<u64>() {
                    assert!(seen >= least, "a leader that was stopped reads {seen} after {least} had been acknowledged");
                }
            }
            read(&processes, &mut leader, None, &mut least);
        }
        processes.settle();
    }
}

//! The counter as three processes that are killed, told to end, or lose their disks, and a client that repeats its request until it has an answer. This file
//! also tests the example in C, which speaks the same protocol.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use martlet::config::{Cluster, ClusterConfig, DetectorConfig, DurabilityKind, EngineKind};
use martlet::observe::{ClientEndpoint, NodeId, Roles, View};

use crate::config::config;

/// The counter as processes.
struct Counters {
    program: PathBuf,
    dir: PathBuf,
    children: Vec<Option<Child>>,
    watcher: ClientEndpoint,
    port: u16,
}

impl Counters {
    fn start(name: &str, engine: EngineKind, durability: DurabilityKind, program: &Path) -> Counters {
        let dir = std::env::temp_dir().join(format!("martlet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        let mut config = ClusterConfig { engine, ..config(name, 3) };
        if engine.traits().elects() {
            // Elections use these heartbeats. One failover more does not matter to this test.
            config.detector = DetectorConfig::default();
        }
        config.durability.mode = durability;
        std::fs::write(dir.join("cluster.toml"), config.to_toml()).expect("our directory");
        // All of 127.0.0.0/8 is this host. With this port, these addresses belong to this process and to this value alone.
        static VALUES: AtomicU16 = AtomicU16::new(0);
        let port = 7000 + (std::process::id() >> 16) as u16 + 100 * VALUES.fetch_add(1, Ordering::Relaxed);
        let watcher = ClientEndpoint::open(&Cluster::new(config).expect("a good configuration")).expect("an endpoint");
        let mut counters = Counters { program: program.to_owned(), dir, children: vec![None, None, None], watcher, port };
        (0..3).for_each(|node| counters.spawn(node));
        counters.settle();
        counters
    }

    fn address(&self, node: usize) -> SocketAddr {
        let pid = std::process::id();
        SocketAddr::from(([127, (pid >> 8) as u8, pid as u8, node as u8 + 1], self.port))
    }

    fn spawn(&mut self, node: usize) {
        let log = std::fs::File::options().create(true).append(true).open(self.log(node)).expect("our directory");
        // A write that would grow a file beyond the process's limit then fails like a write to a full disk, instead of ending the process with a signal.
        let child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(&self.program)
            .arg(self.dir.join("cluster.toml"))
            .args([node.to_string(), self.address(node).to_string()])
            .stderr(log)
            .spawn()
            .expect("the example");
        self.children[node] = Some(child);
    }

    /// The file that a node logs to.
    fn log(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node-{node}.log"))
    }

    fn said(&self, node: usize) -> String {
        std::fs::read_to_string(self.log(node)).expect("our directory")
    }

    /// The answers waited for come from running nodes: a node that has ended unasked would never give one.
    fn check(&mut self) {
        for node in 0..self.children.len() {
            let Some(child) = &mut self.children[node] else { continue };
            if let Some(status) = child.try_wait().expect("our own child") {
                panic!("node {node}, {}, has ended: {status}; it says {:?}", self.program.display(), self.said(node));
            }
        }
    }

    fn pid(&self, node: usize) -> rustix::process::Pid {
        rustix::process::Pid::from_child(self.children[node].as_ref().expect("it runs"))
    }

    /// Waits until every node knows that all of them hold the whole state: then any two may die.
    fn settle(&mut self) {
        loop {
            self.check();
            while self.watcher.event().is_some() {}
            // Those that run. A view may still list an earlier life of a node that was killed, and a majority of that group may be two nodes, one of which is
            // killed next.
            let living: Vec<_> = (0..3).filter_map(|node| self.watcher.process(NodeId(node))).collect();
            let whole = |view: View| living.iter().all(|process| view.member(*process).is_some_and(|m| m.roles.has(Roles::REPLICA)));
            if living.len() == 3 && (0..3).all(|node| self.watcher.view(NodeId(node)).is_ok_and(|view| view.is_some_and(whole))) {
                return;
            }
            self.watcher.wait(Duration::from_millis(2));
        }
    }

    /// Asks the nodes in turn until one answers with a number, and leaves in `node` which one it was.
    fn ask(&mut self, node: &mut usize, line: &str) -> u64 {
        loop {
            self.check();
            match self.try_ask(*node, line) {
                Ok(answer) => match answer.trim().parse() {
                    Ok(number) => return number,
                    Err(_) => {
                        let elsewhere = ["error: not the leader", "error: the outcome", "error: this replica is shutting down"];
                        assert!(elsewhere.iter().any(|word| answer.starts_with(word)), "{answer:?}");
                    }
                },
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            *node = (*node + 1) % 3;
        }
    }

    fn try_ask(&self, node: usize, line: &str) -> std::io::Result<String> {
        let mut client = TcpStream::connect(self.address(node))?;
        client.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        match BufReader::new(client).read_line(&mut answer)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    }

    fn kill(&mut self, node: usize) {
        let mut child = self.children[node].take().expect("it runs");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What the program promises: it counts exactly once.
pub fn counts_exactly_once_through_kills(name: &str, engine: EngineKind, program: &Path) {
    let mut counters = Counters::start(name, engine, DurabilityKind::Memory, program);
    let mut node = 0;
    let session = counters.ask(&mut node, "open");
    let mut seq = 0;
    for _ in 0..4 {
        for _ in 0..50 {
            seq += 1;
            assert_eq!(counters.ask(&mut node, &format!("{session} {seq}")), seq);
        }
        // The replica that has just answered leads.
        let killed = node;
        counters.kill(killed);
        assert_eq!(counters.ask(&mut node, &format!("{session} {seq}")), seq, "the same again is no more");
        assert_ne!(node, killed);
        counters.spawn(killed);
        counters.settle();
    }
}

/// SIGTERM ends a node in order: it leaves with the state that it has, and the others go on at once.
pub fn ends_in_order_when_it_is_told_to(name: &str, engine: EngineKind, program: &Path) {
    let mut counters = Counters::start(name, engine, DurabilityKind::Memory, program);
    let mut node = 0;
    let session = counters.ask(&mut node, "open");
    for seq in 1..=3 {
        assert_eq!(counters.ask(&mut node, &format!("{session} {seq}")), seq, "and what was counted before is not lost");
        // The replica that has just answered leads. The last one has no successor to hand over to.
        let leader = node;
        rustix::process::kill_process(counters.pid(leader), rustix::process::Signal::TERM).expect("our own child");
        let status = counters.children[leader].take().expect("it runs").wait().expect("our own child");
        assert_eq!((status.code(), counters.said(leader).as_str()), (Some(0), ""), "node {leader} of {}", program.display());
    }
}

/// A node whose disk accepts no more writes leaves, with a message that names the file, and the others go on. The leader leaves first; after that no less than
/// a majority is left.
pub fn leaves_when_its_disk_takes_no_more(name: &str, program: &Path) {
    let mut counters = Counters::start(name, EngineKind::Mu, DurabilityKind::Sync, program);
    let mut node = 0;
    let session = counters.ask(&mut node, "open");
    let mut seq = 0;
    for victim_leads in [true, false] {
        seq += 1;
        assert_eq!(counters.ask(&mut node, &format!("{session} {seq}")), seq);
        let victim = if victim_leads { node } else { (node + 1) % 3 };
        // Its files are longer than that by now, so every write to them fails.
        let least = rustix::process::Rlimit { current: Some(4096), maximum: None };
        rustix::process::prlimit(Some(counters.pid(victim)), rustix::process::Resource::Fsize, least).expect("our own child");
        let mut child = counters.children[victim].take().expect("it runs");
        let status = loop {
            seq += 1;
            assert_eq!(counters.ask(&mut node, &format!("{session} {seq}")), seq, "the others go on");
            if let Some(status) = child.try_wait().expect("our own child") {
                break status;
            }
        };
        let (said, data) = (counters.said(victim), counters.dir.join("data").join(format!("node-{victim}")));
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("counter: node n{victim}: {}/", data.display())) && said.contains("File too large"), "{said}");
        seq += 1;
        assert_eq!(counters.ask(&mut node, &format!("{session} {seq}")), seq);
        assert_ne!(node, victim);
        // With a fresh disk it receives the state from the others, and is a member again.
        std::fs::remove_dir_all(&data).expect("our directory");
        std::fs::remove_file(counters.log(victim)).expect("our directory");
        counters.spawn(victim);
        counters.settle();
    }
}

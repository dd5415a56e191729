//! The conformance suite: endpoints in this process, bystanders in processes of their own.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use martlet_fabric::conformance::{self, Harness, Step, Task};
use martlet_fabric::verbs::VerbsFabric;
use martlet_fabric::{Fabric, Identity, NodeId, PeerKind, RegionSpec};

use crate::cluster::{identity, start, unique_cluster};

/// How the child learns who it is: cluster, node, incarnation, addresses of members.
const BYSTANDER: &str = "MARTLET_TEST_BYSTANDER";

enum Process {
    Here(Box<VerbsFabric>),
    /// A process of its own.
    There(Child),
}

struct VerbsHarness {
    cluster: String,
    /// Where the members listen, by node.
    addresses: Vec<SocketAddr>,
    processes: Vec<(Identity, Process)>,
}

impl Harness for VerbsHarness {
    type Fabric = VerbsFabric;

    fn start(_round: u64, members: usize, spec: &RegionSpec) -> VerbsHarness {
        assert_eq!(*spec, conformance::spec());
        let cluster = unique_cluster();
        let fabrics: Vec<_> = (0..members as u16)
            .map(|node| {
                let who = identity(node, 1, PeerKind::Member);
                (who, start(&cluster, who, conformance::spec(), conformance::client_spec()))
            })
            .collect();
        let addresses: Vec<_> = fabrics.iter().map(|(_, fabric)| fabric.listens_at().expect("it listens")).collect();
        // Everybody dials everybody: one connection a pair has to remain.
        for (who, fabric) in &fabrics {
            for (other, at) in addresses.iter().enumerate().filter(|(other, _)| *other != usize::from(who.node.0)) {
                fabric.connect(NodeId(other as u16), *at);
            }
        }
        let processes = fabrics.into_iter().map(|(who, fabric)| (who, Process::Here(Box::new(fabric)))).collect();
        VerbsHarness { cluster, addresses, processes }
    }

    fn client(&mut self, spec: &RegionSpec) -> Option<usize> {
        assert_eq!(*spec, conformance::client_spec());
        let who = identity(self.processes.len() as u16, 7, PeerKind::Client);
        let fabric = start(&self.cluster, who, conformance::spec(), conformance::client_spec());
        for (node, at) in self.addresses.iter().enumerate() {
            fabric.connect(NodeId(node as u16), *at);
        }
        self.processes.push((who, Process::Here(Box::new(fabric))));
        Some(self.processes.len() - 1)
    }

    fn bystander(&mut self, after: Option<usize>) -> Option<usize> {
        let who = match after {
            Some(life) => {
                let before = self.processes[life].0;
                identity(before.node.0, before.incarnation.0 + 1, PeerKind::Member)
            }
            None => identity(self.processes.len() as u16, 1, PeerKind::Member),
        };
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let child = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--ignored", "--exact", "conformance::be_a_bystander"])
            .env(BYSTANDER, format!("{} {} {} {}", self.cluster, who.node.0, who.incarnation.0, addresses.join(" ")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        self.processes.push((who, Process::There(child)));
        Some(self.processes.len() - 1)
    }

    fn crash(&mut self, bystander: usize) {
        let Process::There(child) = &mut self.processes[bystander].1 else { panic!("no bystander") };
        child.kill().expect("killed");
        child.wait().expect("gone");
    }

    fn identity(&self, process: usize) -> Identity {
        self.processes[process].0
    }

    fn fabric(&mut self, process: usize) -> &mut VerbsFabric {
        match &mut self.processes[process].1 {
            Process::Here(fabric) => fabric,
            Process::There(_) => panic!("a bystander has no endpoint here"),
        }
    }

    fn pass(&mut self) {
        std::thread::sleep(Duration::from_micros(100));
    }

    fn run(&mut self, tasks: Vec<(usize, Task<'_, VerbsFabric>)>) {
        let mut endpoints: Vec<Option<&mut VerbsFabric>> = self
            .processes
            .iter_mut()
            .map(|(_, process)| match process {
                Process::Here(fabric) => Some(&mut **fabric),
                Process::There(_) => None,
            })
            .collect();
        std::thread::scope(|scope| {
            for (process, mut task) in tasks {
                let fabric = endpoints[process].take().expect("one task a process");
                scope.spawn(move || {
                    while task(fabric) == Step::More {
                        // There may be fewer processors than tasks, and software RDMA needs one too.
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}

impl Drop for VerbsHarness {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            if let Process::There(child) = process {
                // It may be dead already.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// The child's side: a member that is there, until it is killed.
#[test]
#[ignore = "it is started by other tests, as a process of its own"]
fn be_a_bystander() {
    let Ok(who) = std::env::var(BYSTANDER) else { panic!("only as a child: {BYSTANDER} is not set") };
    // Not to outlive a test that fails.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("asked for");
    let mut parts = who.split(' ');
    let mut next = || parts.next().expect("three parts");
    let cluster = next().to_owned();
    let who = identity(next().parse().expect("a node"), next().parse().expect("an incarnation"), PeerKind::Member);
    let mut fabric = start(&cluster, who, conformance::spec(), conformance::client_spec());
    for (node, at) in parts.enumerate() {
        fabric.connect(NodeId(node as u16), at.parse().expect("an address"));
    }
    loop {
        while fabric.event().is_some() {}
        // Another's look at a lane of ours needs nothing of us, but our own requests may be waiting.
        while fabric.poll().is_some() {}
        std::thread::sleep(Duration::from_millis(1));
    }
}

martlet_fabric::conformance_suite!(VerbsHarness);

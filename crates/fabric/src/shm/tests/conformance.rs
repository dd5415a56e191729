//! The conformance suite on shared memory: endpoints in this process, bystanders in processes of their own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{KEY, ShmConfig, ShmFabric, identity, unique_cluster};
use crate::conformance::{self, Harness, Step, Task};
use crate::contract::{Fabric, Identity, NodeId, PeerKind, RegionSpec};

/// How the child learns who it is: cluster, node, incarnation, number of members.
const BYSTANDER: &str = "MARTLET_TEST_BYSTANDER";

fn start(cluster: &str, who: Identity) -> ShmFabric {
    let (members, clients) = (conformance::spec(), conformance::client_spec());
    ShmFabric::start(ShmConfig { prefault: false, ..ShmConfig::new(cluster, KEY, who, members, clients) }).expect("started")
}

enum Process {
    Here(Box<ShmFabric>),
    /// A process of its own.
    There(Child),
}

struct ShmHarness {
    cluster: String,
    members: usize,
    processes: Vec<(Identity, Process)>,
}

impl Harness for ShmHarness {
    type Fabric = ShmFabric;

    const ROUNDS: u64 = 3;

    fn start(_round: u64, members: usize, spec: &RegionSpec) -> ShmHarness {
        assert_eq!(*spec, conformance::spec());
        let cluster = unique_cluster();
        let processes = (0..members)
            .map(|node| {
                let who = identity(node as u16, 1, PeerKind::Member);
                let fabric = start(&cluster, who);
                // Everybody dials everybody, the later ones too: one connection a pair has to remain.
                for other in (0..members).filter(|other| *other != node) {
                    fabric.connect(NodeId(other as u16));
                }
                (who, Process::Here(Box::new(fabric)))
            })
            .collect();
        ShmHarness { cluster, members, processes }
    }

    fn client(&mut self, spec: &RegionSpec) -> Option<usize> {
        assert_eq!(*spec, conformance::client_spec());
        let who = identity(self.processes.len() as u16, 7, PeerKind::Client);
        let fabric = start(&self.cluster, who);
        for node in 0..self.members {
            fabric.connect(NodeId(node as u16));
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
        let child = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--ignored", "--exact", "shm::tests::conformance::be_a_bystander"])
            .env(BYSTANDER, format!("{} {} {} {}", self.cluster, who.node.0, who.incarnation.0, self.members))
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

    fn fabric(&mut self, process: usize) -> &mut ShmFabric {
        match &mut self.processes[process].1 {
            Process::Here(fabric) => fabric,
            Process::There(_) => panic!("a bystander has no endpoint here"),
        }
    }

    fn pass(&mut self) {
        std::thread::sleep(Duration::from_micros(100));
    }

    fn run(&mut self, tasks: Vec<(usize, Task<'_, ShmFabric>)>) {
        let mut endpoints: Vec<Option<&mut ShmFabric>> = self
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
                    let mut turns = 0u32;
                    while task(fabric) == Step::More {
                        // There may be fewer processors than tasks.
                        turns = turns.wrapping_add(1);
                        if turns.is_multiple_of(64) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    }
}

impl Drop for ShmHarness {
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
    let mut next = || parts.next().expect("four parts");
    let cluster = next().to_owned();
    let who = identity(next().parse().expect("a node"), next().parse().expect("an incarnation"), PeerKind::Member);
    let members: u16 = next().parse().expect("a count");
    let mut fabric = start(&cluster, who);
    for node in 0..members {
        fabric.connect(NodeId(node));
    }
    loop {
        while fabric.event().is_some() {}
        std::thread::sleep(Duration::from_millis(1));
    }
}

crate::conformance_suite!(ShmHarness);

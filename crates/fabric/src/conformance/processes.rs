//! The harness of a backend with real processes: endpoints in this process, on a thread each, and bystanders in processes of their own.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Harness, Step, Task, client_spec, spec};
use crate::contract::{Fabric, Identity, Incarnation, NodeId, PeerKind, RegionSpec};

/// How a bystander learns its part: cluster, node, incarnation, addresses of the members.
const BYSTANDER: &str = "MARTLET_TEST_BYSTANDER";

/// A backend whose endpoints may be in different processes of the operating system.
pub trait Backend {
    /// Its endpoint.
    type Fabric: Fabric + Send;

    /// [`Harness::ROUNDS`].
    const ROUNDS: u64;
    /// The full name of an ignored test of the same binary that calls [`be_a_bystander`].
    const BYSTANDER: &'static str;
    /// After this many turns of its task, a thread yields its processor: there may be fewer processors than tasks.
    const TURNS: u32;

    /// [`Harness::hand_over_acts`].
    fn hand_over_acts() -> usize {
        7
    }

    /// An endpoint of the suite's clusters.
    fn start(cluster: &str, who: Identity) -> Self::Fabric;

    /// Where it can be dialled, if its number does not suffice: a word without a space.
    fn address(fabric: &Self::Fabric) -> String;

    /// Asks for a connection to a member, whose address is `address`.
    fn dial(fabric: &Self::Fabric, member: NodeId, address: &str);
}

enum Process<F> {
    Here(Box<F>),
    /// A process of its own.
    There(Child),
}

/// The harness.
pub struct Processes<B: Backend> {
    cluster: String,
    /// The addresses of the members that were there from the start, by node.
    addresses: Vec<String>,
    processes: Vec<(Identity, Process<B::Fabric>)>,
}

/// A name of a cluster that no other test and no other run uses.
pub fn unique_cluster() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn identity(node: usize, incarnation: u64, kind: PeerKind) -> Identity {
    Identity { node: NodeId(node as u16), incarnation: Incarnation(incarnation), kind }
}

fn dial_all<B: Backend>(fabric: &B::Fabric, who: Identity, addresses: &[String]) {
    for (node, address) in addresses.iter().enumerate() {
        let node = NodeId(node as u16);
        if who.kind == PeerKind::Client || who.node != node {
            B::dial(fabric, node, address);
        }
    }
}

impl<B: Backend> Harness for Processes<B> {
    type Fabric = B::Fabric;

    const ROUNDS: u64 = B::ROUNDS;

    fn hand_over_acts() -> usize {
        B::hand_over_acts()
    }

    fn start(_round: u64, members: usize, offers: &RegionSpec) -> Processes<B> {
        assert_eq!(*offers, spec());
        let cluster = unique_cluster();
        let start = |node| {
            let who = identity(node, 1, PeerKind::Member);
            (who, B::start(&cluster, who))
        };
        let fabrics: Vec<_> = (0..members).map(start).collect();
        let addresses: Vec<String> = fabrics.iter().map(|(_, fabric)| B::address(fabric)).collect();
        // All members dial each other: one connection per pair has to remain.
        for (who, fabric) in &fabrics {
            dial_all::<B>(fabric, *who, &addresses);
        }
        let processes = fabrics.into_iter().map(|(who, fabric)| (who, Process::Here(Box::new(fabric)))).collect();
        Processes { cluster, addresses, processes }
    }

    fn client(&mut self, offers: &RegionSpec) -> Option<usize> {
        assert_eq!(*offers, client_spec());
        let who = identity(self.processes.len(), 7, PeerKind::Client);
        let fabric = B::start(&self.cluster, who);
        dial_all::<B>(&fabric, who, &self.addresses);
        self.processes.push((who, Process::Here(Box::new(fabric))));
        Some(self.processes.len() - 1)
    }

    fn bystander(&mut self, after: Option<usize>) -> Option<usize> {
        let who = match after {
            Some(life) => {
                let before = self.processes[life].0;
                Identity { incarnation: Incarnation(before.incarnation.0 + 1), ..before }
            }
            None => identity(self.processes.len(), 1, PeerKind::Member),
        };
        let child = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--ignored", "--exact", B::BYSTANDER])
            .env(BYSTANDER, format!("{} {} {} {}", self.cluster, who.node.0, who.incarnation.0, self.addresses.join(" ")))
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

    fn fabric(&mut self, process: usize) -> &mut B::Fabric {
        match &mut self.processes[process].1 {
            Process::Here(fabric) => fabric,
            Process::There(_) => panic!("a bystander has no endpoint here"),
        }
    }

    fn pass(&mut self) {
        std::thread::sleep(Duration::from_micros(100));
    }

    fn run(&mut self, tasks: Vec<(usize, Task<'_, B::Fabric>)>) {
        let mut endpoints: Vec<Option<&mut B::Fabric>> = self
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
                        turns = turns.wrapping_add(1);
                        if turns.is_multiple_of(B::TURNS) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    }
}

impl<B: Backend> Drop for Processes<B> {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            if let Process::There(child) = process {
                // It may already be dead.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// The other side of [`Harness::bystander`]: a member that is there until it is killed.
pub fn be_a_bystander<B: Backend>() {
    let Ok(who) = std::env::var(BYSTANDER) else { panic!("only as a child: {BYSTANDER} is not set") };
    // So that it does not outlive a test that fails.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("asked for");
    let mut parts = who.split(' ');
    let mut next = || parts.next().expect("a cluster, a node, an incarnation");
    let (cluster, node) = (next(), next().parse().expect("a node"));
    let who = identity(node, next().parse().expect("an incarnation"), PeerKind::Member);
    let addresses: Vec<String> = parts.map(str::to_owned).collect();
    let mut fabric = B::start(cluster, who);
    dial_all::<B>(&fabric, who, &addresses);
    loop {
        while fabric.event().is_some() {}
        // Another process's look at a lane of ours needs nothing from us, but our own requests may be waiting.
        while fabric.poll().is_some() {}
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! A cluster under lasting observation: what its nodes do, at what rates, and who took over from whom.
//!
//! One look reads each node's counters, a copy of 16 KiB; nothing asks a node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use martlet_cluster::directory::{Directory, Runner};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer, Role, Sight};
use martlet_cluster::watch::service::Service;
use martlet_node::clock;
use martlet_node::config::{Cluster, EngineKind};
use martlet_node::counters::{Counter, Reading};
use martlet_protocol::membership::View;

use crate::watch::failovers::Reigns;
use crate::watch::holders::Holders;
use crate::watch::known::{Doing, Known};

/// A node that has published nothing for so long is called silent. It does so every 10 ms, and before it sleeps, which it does for a heartbeat's time at
/// most: a second is many of them, also where an operator has chosen long ones.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// How long one look waits for an observer that is to take over, and how long it may take altogether.
const BRIEFLY: Duration = Duration::from_millis(200);
const SUCCESSION: Duration = Duration::from_secs(2);

/// What a node is doing, as far as it can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is connected, and publishes.
    Running,
    /// A signal has stopped its process.
    Stopped,
    /// It is connected, and has published nothing for a second.
    Silent,
    /// It is not connected, and has no process that could be.
    Gone,
    /// It is not connected, and whether it runs is not known: it is another host's.
    Unreached,
}

impl State {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Stopped => "stopped",
            State::Silent => "silent",
            State::Gone => Doing::Gone.name(),
            State::Unreached => Doing::Unreached.name(),
        }
    }
}

/// What a node did a second, between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests taken.
    pub requests: f64,
    /// Replies sent.
    pub replies: f64,
    /// Sleeps of the main thread.
    pub parks: f64,
    /// Times that the lease was asked for.
    pub active_checks: f64,
}

impl Rates {
    /// From an earlier and a later reading of one node. `None` when they are of different processes, or a counter went down: what lies between is not known.
    pub fn between(before: &Reading, after: &Reading) -> Option<Rates> {
        let same = |counter: Counter| before.get(counter) == after.get(counter);
        let elapsed_ns = after.get(Counter::PublishedNs).checked_sub(before.get(Counter::PublishedNs))?;
        if !(same(Counter::Pid) && same(Counter::StartedNs)) {
            return None;
        }
        let rate = |counter: Counter| {
            let more = after.get(counter).checked_sub(before.get(counter))?;
            // A node that has published nothing meanwhile has shown nothing to count.
            Some(if elapsed_ns == 0 { 0.0 } else { more as f64 * 1e9 / elapsed_ns as f64 })
        };
        Some(Rates {
            requests: rate(Counter::Requests)?,
            replies: rate(Counter::Replies)?,
            parks: rate(Counter::Parks)?,
            active_checks: rate(Counter::ActiveChecks)?,
        })
    }
}

/// A node at one look.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number.
    pub number: u16,
    /// What it is doing.
    pub state: State,
    /// What it shows; `None` when it is gone.
    pub sight: Option<Sight>,
    /// What it is, for all that is seen of the cluster.
    pub role: Option<Role>,
    /// What it did since the look before.
    pub rates: Option<Rates>,
}

impl Node {
    /// A counter, if it could be read.
    pub fn counter(&self, counter: Counter) -> Option<u64> {
        Some(self.sight.as_ref()?.reading.as_ref()?.get(counter))
    }
}

/// A cluster at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// Its name.
    pub cluster: String,
    /// How it replicates.
    pub engine: EngineKind,
    /// The wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The newest view that anybody shows.
    pub view: Option<View>,
    /// The node that leads, as it says itself.
    pub leader: Option<u16>,
    /// For how long it has led.
    pub leads_for: Option<Duration>,
    /// The server that `martlet run` runs, where it is one of those.
    pub server: Option<String>,
    /// What that does, then.
    pub runner: Option<Runner>,
    /// What is to be said of a node that is in the view, and not in the cluster's list.
    pub unlisted: Doing,
    /// Its nodes, in the order of its file; a server's replicas are those that run.
    pub nodes: Vec<Node>,
}

impl Look {
    /// What the replica that serves tells of the server as a whole.
    pub fn service(&self) -> Option<Service> {
        Service::of(self.nodes.iter().filter_map(|node| node.sight.as_ref()), clock::now())
    }

    /// Which of a view's replicas are seen to live.
    pub fn holders(&self, view: &View) -> Holders {
        let node = |number: u16| self.nodes.iter().find(|node| node.number == number);
        let runs = |number: u16| match node(number).map(|node| node.state) {
            Some(State::Running) => Ok(()),
            Some(state) => Err(state.name()),
            None => self.unlisted.runs(),
        };
        Holders::of(view, runs, |number| node(number)?.sight.as_ref())
    }

    /// How many entries a node has yet to apply of those that the leader knows to be committed.
    pub fn lag(&self, node: &Node) -> Option<u64> {
        let leader = self.nodes.iter().find(|other| Some(other.number) == self.leader)?;
        // The two were read one after the other: it may have got further meanwhile.
        Some(leader.counter(Counter::CommittedIndex)?.saturating_sub(node.counter(Counter::AppliedIndex)?))
    }
}

/// What is remembered of a node between looks.
#[derive(Debug)]
struct Memory {
    reading: Reading,
    /// When what it publishes last changed.
    changed: Instant,
}

/// Which state of a file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl Stamp {
    fn of(directory: &Directory) -> Option<Stamp> {
        let about = fs::metadata(directory.cluster_file()).ok()?;
        Some(Stamp { inode: about.ino(), modified: (about.mtime(), about.mtime_nsec()), bytes: about.size() })
    }
}

/// Looks at a cluster again and again.
pub struct Lookout {
    directory: Directory,
    cluster: Cluster,
    stamp: Option<Stamp>,
    observer: Observer,
    memories: BTreeMap<u16, Memory>,
    reigns: Reigns,
    interrupt: Interrupt,
    /// What is looked through instead as soon as it shows as much: the cluster's nodes have become others.
    successor: Option<Successor>,
}

/// An observer on its way to be the one that is looked through.
struct Successor {
    cluster: Cluster,
    stamp: Option<Stamp>,
    observer: Observer,
    since: Instant,
}

impl Lookout {
    /// Begins to connect with the nodes of the cluster in that directory.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(directory: Directory, interrupt: &Interrupt) -> Outcome<Lookout> {
        let stamp = Stamp::of(&directory);
        let cluster = directory.existing_cluster()?;
        let observer = Observer::open(&cluster)?;
        let (memories, reigns) = (BTreeMap::new(), Reigns::default());
        Ok(Lookout { directory, cluster, stamp, observer, memories, reigns, interrupt: interrupt.clone(), successor: None })
    }

    /// The cluster's configuration.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The changes of leadership that have been seen.
    pub fn reigns(&self) -> &Reigns {
        &self.reigns
    }

    /// Waits until those nodes are connected whose process runs, not for ever. Returns whether any of them is.
    pub fn connect(&mut self) -> Outcome<bool> {
        let numbers = self.cluster.config().nodes.iter().map(|node| node.number);
        let known: Vec<Known> = numbers.map(|node| Known::of(&self.directory, &self.cluster, node)).collect::<Outcome<_>>()?;
        let perhaps: Vec<u16> = known.iter().filter(|known| known.activity != Some(Activity::Gone)).map(|known| known.node).collect();
        if perhaps.is_empty() {
            return Ok(false);
        }
        let sights = self.observer.connect(&perhaps, &self.interrupt)?;
        let runs = |known: &Known| matches!(known.activity, Some(Activity::Running | Activity::Stopped));
        Ok(known.iter().any(runs) || sights.iter().any(|sight| sight.reading.is_some()))
    }

    /// The error of a command that needs a node that runs.
    pub fn nobody_runs(&self) -> Fail {
        let elsewhere = self.directory.nodes_here(&self.cluster).len() < self.cluster.config().nodes.len();
        let runs = if elsewhere { "can be reached from here" } else { "is running" };
        Fail::absent(format_args!("no node of the cluster in {} {runs}", self.directory.path().display()))
    }

    /// Looks once.
    pub fn look(&mut self) -> Look {
        self.follow_file();
        self.succeed();
        let sights = self.observer.look();
        let (now, wall_ns) = (Instant::now(), clock::wall_ns());
        let readings: Vec<(u16, &Reading)> = sights.iter().filter_map(|sight| Some((sight.node, sight.reading.as_ref()?))).collect();
        let engine = self.cluster.config().engine;
        sights.iter().filter_map(|sight| sight.view.as_ref()).for_each(|view| self.reigns.note_view(view));
        self.reigns.note(&readings, engine.traits().elects(), wall_ns);
        let view = observer::newest_view(&sights).cloned();
        let leader = observer::primary(&sights).map(|sight| sight.node);
        let roles: Vec<Option<Role>> = sights.iter().map(|sight| observer::role(&sights, sight.node)).collect();
        let server = self.directory.server();
        let since_ns = leader.and_then(|leader| self.reigns.leads_since_ns(leader));
        Look {
            cluster: self.cluster.config().name.clone(),
            engine,
            wall_ns,
            view,
            leader,
            unlisted: Doing::of_unlisted(&self.cluster),
            runner: server.as_ref().map(|_| self.directory.runner()),
            leads_for: since_ns.map(|since_ns| Duration::from_nanos(wall_ns.saturating_sub(since_ns))),
            nodes: sights
                .into_iter()
                .zip(roles)
                .map(|(sight, role)| Node { role, ..self.node(sight, now) })
                // Three of a server's many numbers are its replicas', and one that takes a dead one's place has another.
                .filter(|node| server.is_none() || node.state != State::Gone)
                .collect(),
            server,
        }
    }

    fn node(&mut self, sight: Sight, now: Instant) -> Node {
        let number = sight.node;
        let Some(reading) = sight.reading.as_ref() else {
            self.memories.remove(&number);
            let state = match self.directory.activity(number) {
                // It cannot connect.
                Ok(Activity::Stopped) => State::Stopped,
                _ if self.cluster.config().fabric.traits().spans_hosts
                    && !self.directory.process(number).is_ok_and(|known| known.is_some()) =>
                {
                    State::Unreached
                }
                _ => State::Gone,
            };
            return Node { number, state, sight: None, role: None, rates: None };
        };
        let before = self.memories.get(&number);
        let rates = before.and_then(|before| Rates::between(&before.reading, reading));
        let said = |reading: &Reading| (reading.get(Counter::Pid), reading.get(Counter::PublishedNs));
        let changed = before.filter(|before| said(&before.reading) == said(reading)).map_or(now, |before| before.changed);
        self.memories.insert(number, Memory { reading: reading.clone(), changed });
        let state = match self.directory.activity(number) {
            Ok(Activity::Stopped) => State::Stopped,
            _ if now.duration_since(changed) >= SILENT_AFTER => State::Silent,
            _ => State::Running,
        };
        Node { number, state, sight: Some(sight), role: None, rates }
    }

    /// Nodes may have been added or removed, or the cluster been made anew. What cannot be read is as it was: whoever removes a cluster removes its file first.
    fn follow_file(&mut self) {
        let stamp = Stamp::of(&self.directory);
        if stamp.is_none() || stamp == self.successor.as_ref().map_or(self.stamp, |successor| successor.stamp) {
            return;
        }
        // What does not succeed is tried again at the next look.
        let Ok(cluster) = self.directory.existing_cluster() else { return };
        let numbers = |cluster: &Cluster| cluster.config().nodes.iter().map(|node| node.number).collect::<Vec<_>>();
        let same = cluster.key().bytes() == self.cluster.key().bytes()
            && cluster.fabric_name() == self.cluster.fabric_name()
            && numbers(&cluster) == numbers(&self.cluster);
        if same {
            (self.cluster, self.stamp, self.successor) = (cluster, stamp, None);
            return;
        }
        let Ok(observer) = Observer::open(&cluster) else { return };
        if cluster.key().bytes() == self.cluster.key().bytes() {
            self.successor = Some(Successor { cluster, stamp, observer, since: Instant::now() });
        } else {
            // Another cluster in the same place.
            (self.cluster, self.observer, self.stamp, self.successor) = (cluster, observer, stamp, None);
            (self.memories, self.reigns) = (BTreeMap::new(), Reigns::default());
        }
    }

    /// Looks through the successor from now on, once it is connected with all nodes that are seen without it and that it has too, and with those that have
    /// been started here. Where it does not get there, since a node is stopped, it takes over after a while.
    fn succeed(&mut self) {
        let Some(mut successor) = self.successor.take() else { return };
        let mut expected: Vec<u16> =
            self.observer.look().into_iter().filter(|sight| sight.reading.is_some()).map(|sight| sight.node).collect();
        let numbers: Vec<u16> = successor.cluster.config().nodes.iter().map(|node| node.number).collect();
        expected.extend(numbers.iter().filter(|node| self.directory.activity(**node).is_ok_and(|activity| activity == Activity::Running)));
        expected.retain(|node| numbers.contains(node));
        let shown =
            |sights: &[Sight]| expected.iter().all(|node| sights.iter().any(|sight| sight.node == *node && sight.reading.is_some()));
        let waited = successor.observer.wait_for(BRIEFLY, &self.interrupt, shown);
        if matches!(waited, Ok(Ok(_))) || successor.since.elapsed() >= SUCCESSION {
            (self.cluster, self.observer, self.stamp) = (successor.cluster, successor.observer, successor.stamp);
            self.memories.retain(|node, _| numbers.contains(node));
        } else {
            self.successor = Some(successor);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::watch::failovers::tests::reading;

    fn said(pid: u64, published_ns: u64, requests: u64, parks: u64) -> Reading {
        let values = [(Counter::Pid, pid), (Counter::PublishedNs, published_ns), (Counter::Requests, requests), (Counter::Parks, parks)];
        reading(&values, &[])
    }

    #[test]
    fn rates_count_by_the_nodes_own_clock() {
        let rates = Rates::between(&said(7, 1_000_000_000, 10, 4), &said(7, 3_000_000_000, 1_010, 4)).expect("of one process");
        assert_eq!(rates, Rates { requests: 500.0, ..Rates::default() });
        let nothing = Rates::between(&said(7, 5, 10, 4), &said(7, 5, 10, 4)).expect("of one process");
        assert_eq!(nothing, Rates::default(), "a node that is stopped publishes nothing");
    }

    #[test]
    fn a_restarted_node_has_no_rate_until_it_has_been_read_twice() {
        assert_eq!(Rates::between(&said(7, 1_000, 10, 4), &said(8, 2_000, 1_000, 4)), None, "another process");
        assert_eq!(Rates::between(&said(7, 1_000, 10, 4), &said(7, 2_000, 9, 4)), None, "the same number again: a counter went down");
        assert_eq!(Rates::between(&said(7, 2_000, 10, 4), &said(7, 1_000, 10, 4)), None, "time went back");
    }
}

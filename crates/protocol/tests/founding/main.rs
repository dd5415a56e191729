//! The choice of a founder for a cluster whose processes have all lost their power. The tests run over the simulated fabric, on one host and on a network, with
//! disks of any content and with processes that die and come back meanwhile.

use fastrand::Rng;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::{DeathWords, Endpoint, Faults, Span, World};
use martlet_fabric::{Fabric, Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind};
use martlet_protocol::basics::ballot::majority;
use martlet_protocol::basics::layout::{BOARD, Component, LIFE, MAX_WATCHERS, RETURNED, SLOT_WORDS, Sizes, life, regions, returned};
use martlet_protocol::basics::{LogIndex, ProcessId, RETURN_BITS, Time, ViewNumber};
use martlet_protocol::founding::simulated::{Claim, Lock, Place};
use martlet_protocol::founding::{self, Founding, Refounding, Returned, Verdict};
use martlet_protocol::membership::{Authority, Config, Core, Event, Member, Roles, View};

const BOTH: Roles = Roles::COORDINATOR.with(Roles::REPLICA);
const DUTY_NS: u64 = 20_000;
const PATIENCE_NS: u64 = 1_000_000;

/// The process with which a node's log begins.
fn born(node: u16) -> ProcessId {
    ProcessId { node: NodeId(node), incarnation: Incarnation(1 << RETURN_BITS) }
}

struct Process<const HOST: bool> {
    index: usize,
    me: ProcessId,
    fabric: Endpoint<HOST>,
    core: Core,
    founding: Option<Founding<Claim>>,
    members: Vec<(PeerId, ProcessId)>,
    returns: bool,
    over: bool,
}

/// A founding: which process did it, and which group it founded again.
type Founded = (ProcessId, Option<Refounding>);

struct Cluster<const HOST: bool> {
    world: World<HOST>,
    lock: Lock,
    /// Whether disks are used,
    on_disks: bool,
    /// and what each node has on its own.
    disks: Vec<Option<Returned>>,
    /// How many nodes may found it: the first ones.
    founders: u16,
    /// Whether every process has been told that the others would be seen.
    all_here: bool,
    /// Whether every process has held the state in an earlier life.
    has_held: bool,
    /// The nodes that each node takes for the cluster's, itself among them.
    lists: Vec<Vec<u16>>,
    /// Further lives that each node's disk holds.
    others: Vec<Vec<u64>>,
    /// The processes that were told to come back as another of their lives, and as which.
    to_come_back: Vec<(u16, u64)>,
    /// How many processes of each node there have been.
    lives: Vec<u64>,
    processes: Vec<Option<Process<HOST>>>,
    founded: Vec<Founded>,
    reasons: Vec<(u16, String)>,
}

impl<const HOST: bool> Cluster<HOST> {
    fn new(seed: u64, faults: Faults, disks: Vec<Option<Returned>>) -> Self {
        let nodes = disks.len();
        Cluster {
            world: World::new(seed, faults),
            lock: Lock::default(),
            on_disks: true,
            disks,
            founders: nodes as u16,
            all_here: HOST,
            has_held: false,
            lists: vec![(0..nodes as u16).collect(); nodes],
            others: vec![Vec::new(); nodes],
            to_come_back: Vec::new(),
            lives: vec![0; nodes],
            processes: (0..nodes).map(|_| None).collect(),
            founded: Vec::new(),
            reasons: Vec::new(),
        }
    }

    /// Starts a process of that node, which comes back as what is on its disk, unless it is to join the processes that have a view.
    fn start(&mut self, node: usize, afresh: bool) {
        self.lives[node] += 1;
        let life = self.lives[node];
        let back = self.disks[node].clone().filter(|_| !afresh);
        // It comes back as what it was, or as a later life than all those.
        let incarnation = if back.is_some() { life } else { life << RETURN_BITS };
        let me = ProcessId { node: NodeId(node as u16), incarnation: Incarnation(born(0).incarnation.0 + incarnation) };
        let identity = Identity { node: me.node, incarnation: me.incarnation, kind: PeerKind::Member };
        let mut spec = regions(Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 });
        spec.own([(RETURNED, returned::WORDS * 8)]);
        let (index, fabric) = self.world.spawn(identity, &spec);
        let words = fabric.memory(LocalRegion::Public(LIFE)).expect("declared");
        for watcher in 0..MAX_WATCHERS {
            words[life::death(0, watcher)].store(life::WAITERS | 1000, Ordering::SeqCst);
        }
        words[life::THREADS].store(1, Ordering::SeqCst);
        Returned::store(back.as_ref(), fabric.memory(LocalRegion::Public(RETURNED)).expect("declared"));
        let now = Time(self.world.now());
        let config = Config {
            authority: Authority::Engine,
            heartbeat_interval_ns: 500_000,
            broadcast_interval_ns: 1_000_000,
            broadcast_timeout_ns: 20_000_000,
            pull_interval_ns: 200_000,
            resend_interval_ns: 200_000,
            ..Config::new(me, BOTH)
        };
        let mut core = Core::new(now, config);
        let returns = back.is_some();
        if !returns {
            core.join(now);
        }
        let config = founding::Config {
            me,
            others: self.lists[node].iter().filter(|other| **other != me.node.0).map(|other| NodeId(*other)).collect(),
            founders: (0..self.founders).map(NodeId).collect(),
            look_interval_ns: 50_000,
            unable_interval_ns: 100_000,
            return_patience_ns: PATIENCE_NS,
            has_begun: false,
            has_held: self.has_held,
            all_here: self.all_here,
        };
        let founding = Some(match self.on_disks {
            true => Founding::with_disks(config, back, self.others[node].clone()),
            false => Founding::new(config),
        });
        self.world.wake(index);
        self.processes[node] = Some(Process { index, me, fabric, core, founding, members: Vec::new(), returns, over: false });
    }

    fn kill(&mut self, node: usize) {
        if let Some(process) = self.processes[node].take() {
            let words = (0..MAX_WATCHERS).map(|w| life::death(0, w)).collect();
            self.world.kill(process.index, Some(DeathWords { region: LIFE, threads: vec![words] }));
        }
    }

    fn views(&self) -> impl Iterator<Item = (&Process<HOST>, &View)> {
        self.processes.iter().flatten().filter_map(|process| Some((process, process.core.view()?)))
    }

    /// Lets the next turn come, and returns the node that had it.
    fn next(&mut self, until: u64) -> Option<usize> {
        let index = self.world.next_turn(until)?;
        let node = self.processes.iter().position(|p| p.as_ref().is_some_and(|p| p.index == index))?;
        self.turn(node);
        Some(node)
    }

    fn turn(&mut self, node: usize) {
        let now = Time(self.world.now());
        let running: Vec<bool> = self.processes.iter().map(Option::is_some).collect();
        let known = self.views().next().is_some();
        let Process { index, me, fabric, core, founding, members, returns, over } = self.processes[node].as_mut().expect("it runs");
        while let Some(event) = fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } => {
                    members.push((peer, ProcessId { node: identity.node, incarnation: identity.incarnation }));
                }
                PeerEvent::Gone { peer, .. } => members.retain(|(p, _)| *p != peer),
            }
            core.handle_peer(now, fabric, event);
        }
        let mut datagram = Vec::new();
        while let Some(from) = fabric.receive(&mut datagram) {
            core.handle_datagram(now, fabric, from, &datagram);
        }
        while let Some(completion) = fabric.poll() {
            match (founding.as_mut(), Component::Founding.owns(completion.token)) {
                (Some(founding), true) => founding.handle_completion(completion),
                (None, true) => {}
                (_, false) => core.handle_completion(now, fabric, completion),
            }
        }
        core.tick(now, fabric, true);
        if core.view().is_some() {
            *founding = None;
        }
        if let Some(looking) = founding {
            let system = Place::<HOST> { me: me.node, lock: &self.lock, running: running.clone() };
            let verdict = looking.look(now, &system, fabric, members).expect("it can be said");
            self.reasons.extend(looking.poll_reason().map(|why| (me.node.0, why.to_owned())));
            match verdict {
                Verdict::Wait => {}
                Verdict::StartOver => *over = true,
                Verdict::ComeBackAs(life) => {
                    self.to_come_back.push((me.node.0, life));
                    *founding = None;
                }
                Verdict::Found(again) => {
                    assert!(!known, "{me} founds a cluster, and somebody has a view");
                    match &again {
                        None => core.bootstrap(now, fabric),
                        Some(again) => {
                            let member = |id: &ProcessId| Member::new(*id, BOTH);
                            core.found_again(now, fabric, again.number, again.members.iter().map(member).collect());
                        }
                    }
                    self.founded.push((*me, again));
                    *founding = None;
                }
            }
        }
        while let Some(event) = core.poll_event() {
            *over |= event == Event::Excluded;
        }
        // The others have a view and go on without it.
        let in_vain = *returns && core.view().is_some() && core.is_view_shared() && !core.is_member();
        let afresh = core.view().is_some();
        self.world.wake_at(*index, now.0 + DUTY_NS);
        if *over || in_vain {
            self.kill(node);
            self.start(node, afresh);
        }
    }

    /// Runs until all know one view, or so much time has passed. Returns whether they do.
    fn until_known(&mut self, ns: u64) -> bool {
        let until = self.world.now() + ns;
        loop {
            let numbers: Vec<ViewNumber> = self.views().map(|(_, view)| view.number).collect();
            if numbers.len() == self.disks.len() && numbers.iter().all(|number| *number == numbers[0]) {
                return true;
            }
            if self.next(until).is_none() && self.world.now() >= until {
                return false;
            }
        }
    }

    /// Checks that views of one number are the same.
    fn check(&self) {
        let views: Vec<&View> = self.views().map(|(_, view)| view).collect();
        for view in &views {
            assert!(views.iter().all(|other| other.number != view.number || other == view), "two views of one number");
        }
    }
}

fn log(ballot: u64, last: u64, group: &[u16]) -> Returned {
    let members = group.iter().map(|node| born(*node)).collect();
    Returned { ballot, last: LogIndex(last), view: ViewNumber(ballot), members }
}

fn nodes(members: &[ProcessId]) -> Vec<u16> {
    members.iter().map(|id| id.node.0).collect()
}

/// The only node that may found the cluster has no part in the newest log: its disk is empty, or holds a log from before it was removed.
#[test]
fn over_a_network_the_founder_founds_for_those_who_have_the_data() {
    for (seed, own) in [(1, None), (2, Some(log(3, 90, &[0, 1, 2])))] {
        let newest = log(5, 70, &[1, 2]);
        let mut c = Cluster::<false>::new(seed, Faults::calm(), vec![own, Some(newest.clone()), Some(newest)]);
        (0..3).for_each(|node| c.start(node, false));
        assert!(c.until_known(20_000_000), "nobody founds it");
        c.check();
        let [(founder, Some(again))] = &c.founded[..] else { panic!("{:?}", c.founded) };
        assert_eq!((founder.node, nodes(&again.members), again.number), (NodeId(0), vec![1, 2], ViewNumber(6)));
    }
}

/// The node was away while all the nodes that it knew were removed and others were added.
#[test]
fn one_that_has_an_old_list_founds_nothing_beside_those_who_have_a_view() {
    for seed in 0..20 {
        let newest = log(5, 70, &[1, 2]);
        // In about half the lives, it looks around before any other process has met it.
        let faults = Faults { connect: Span(0, 400_000), ..Faults::calm() };
        let mut c = Cluster::<true>::new(seed, faults, vec![None, Some(newest.clone()), Some(newest)]);
        c.lists = vec![vec![0], vec![1, 2], vec![1, 2]];
        (1..3).for_each(|node| c.start(node, false));
        while c.views().count() < 2 {
            assert!(!c.until_known(100_000), "one does not run");
        }
        c.start(0, false);
        assert!(c.until_known(200_000_000), "it learns their view");
        c.check();
        assert_eq!(c.founded.len(), 1);
    }
}

#[test]
fn over_a_network_everybody_who_waits_for_data_says_for_whose() {
    let mut c = Cluster::<false>::new(3, Faults::calm(), vec![None, Some(log(5, 70, &[1, 2])), None]);
    (0..3).for_each(|node| c.start(node, false));
    assert!(!c.until_known(5_000_000), "one of two is no majority");
    assert!((0..3).all(|node| c.reasons.iter().any(|(who, why)| *who == node && why.contains("only [1] are here"))), "{:?}", c.reasons);
    c.kill(2);
    c.until_known(5_000_000);
    assert!((0..2).all(|node| c.reasons.iter().any(|(who, why)| *who == node && why.contains("[2] are not connected"))), "{:?}", c.reasons);
}

/// All processes that held the state since this one was excluded have died.
#[test]
fn one_that_held_the_state_and_was_excluded_founds_no_empty_cluster_and_others_may() {
    for on_disks in [false, true] {
        let mut c = Cluster::<true>::new(7, Faults::calm(), vec![None; 3]);
        (c.on_disks, c.has_held) = (on_disks, true);
        c.start(0, false);
        if on_disks {
            // Nodes with empty disks do not found a cluster before every node is there.
            (1..3).for_each(|node| c.start(node, false));
        }
        assert!(!c.until_known(10_000_000), "it is all here, and could");
        assert_eq!(c.founded, []);
        assert_eq!(
            c.reasons.iter().filter(|(_, why)| why.contains("what this node held before it was excluded is gone")).count(),
            if on_disks { 3 } else { 1 }
        );
        // It is started anew, by an operator who knows what that means.
        c.has_held = false;
        (1..3).for_each(|node| c.kill(node));
        (1..3).for_each(|node| c.start(node, false));
        assert!(c.until_known(50_000_000));
        assert!(matches!(c.founded[..], [(who, None)] if who.node != NodeId(0)), "{:?}", c.founded);
        c.check();
    }
}

/// Two run. The third may be running, and have a view, where they do not see it.
#[test]
fn on_a_host_nobody_founds_without_a_node_that_may_run_unseen_unless_it_has_been_told() {
    for (all_here, founded) in [(true, 1), (false, 0)] {
        for group in [None, Some(log(5, 70, &[0, 1, 2]))] {
            let mut c = Cluster::<true>::new(7, Faults::calm(), vec![group.clone(), group.clone(), group.clone()]);
            c.all_here = all_here;
            (0..2).for_each(|node| c.start(node, false));
            c.until_known(10_000_000);
            let empty_disks = u16::from(group.is_none());
            assert_eq!(c.founded.len() as u16, founded - founded * empty_disks, "{all_here}, {group:?}");
            let named = |node: u16| c.reasons.iter().any(|(who, why)| *who == node && why.contains("nodes [2] are not connected"));
            assert_eq!((named(0), named(1)), (!all_here, !all_here), "{:?}", c.reasons);
            c.start(2, false);
            assert!(c.until_known(50_000_000), "all are there");
            assert_eq!(c.founded.len(), 1);
            c.check();
        }
    }
}

/// A node that may never found says this on a host as well as on a network.
#[test]
fn one_that_may_not_found_says_for_whom_it_waits_and_comes_back_as_whom_the_newest_log_names() {
    let mut c = Cluster::<true>::new(5, Faults::calm(), vec![None, Some(log(5, 70, &[1, 2])), None]);
    c.founders = 1;
    (0..3).for_each(|node| c.start(node, false));
    assert!(!c.until_known(5_000_000), "one of two is no majority");
    assert!((0..3).all(|node| c.reasons.iter().any(|(who, why)| *who == node && why.contains("only [1] are here"))), "{:?}", c.reasons);

    let later = 7 << RETURN_BITS;
    let mut newest = log(5, 70, &[0, 1]);
    newest.members[1].incarnation = Incarnation(later);
    let mut c = Cluster::<true>::new(6, Faults::calm(), vec![Some(newest), Some(log(3, 60, &[0, 1]))]);
    (c.founders, c.others[1]) = (1, vec![later]);
    (0..2).for_each(|node| c.start(node, false));
    c.until_known(5_000_000);
    assert_eq!((&c.to_come_back[..], &c.founded[..]), (&[(1, later)][..], &[][..]));
}

#[test]
fn one_that_is_made_an_acceptor_by_somebody_with_a_view_does_not_start_over_for_what_it_saw_before() {
    for at in 0..15 {
        // It has looked around often, because too few are there.
        let mut c = Cluster::<false>::new(4, Faults::calm(), vec![None, Some(log(5, 70, &[1, 2])), None]);
        (0..3).for_each(|node| c.start(node, false));
        assert!(!c.until_known(500_000 + at * 7_000));
        let memory =
            |node: usize, region| c.processes[node].as_ref().expect("it runs").fabric.memory(LocalRegion::Public(region)).expect("offered");
        memory(2, BOARD)[0].store(7, Ordering::SeqCst);
        memory(1, SLOT_WORDS)[3].store(0x1234, Ordering::SeqCst);
        assert!(!c.until_known(500_000));
        assert_eq!(c.lives[1], 1, "started over, {at}");
    }
}

/// Logs as they can be left behind: a newest one at a majority of its group, older ones of larger groups, and empty disks.
fn drawn(rng: &mut Rng) -> (Vec<u16>, Vec<Option<Returned>>) {
    let nodes = rng.u16(2..=5);
    let mut order: Vec<u16> = (0..nodes).collect();
    rng.shuffle(&mut order);
    let mut group = order[..rng.usize(1..=usize::from(nodes))].to_vec();
    group.sort_unstable();
    let disk = |node: u16, rng: &mut Rng| match group.contains(&node) {
        // All but a majority of them may lag behind.
        true => Some(log(9, rng.u64(40..50), &group)),
        false if rng.bool() => None,
        false => Some(log(rng.u64(1..9), rng.u64(0..99), &(0..nodes).collect::<Vec<_>>())),
    };
    let disks = (0..nodes).map(|node| disk(node, rng)).collect();
    (group, disks)
}

fn live<const HOST: bool>(seed: u64, all_here: bool, kills: &mut usize, for_others: &mut usize) {
    let mut rng = Rng::with_seed(seed);
    let (group, disks) = drawn(&mut rng);
    let faults = Faults::drawn(&mut rng);
    let nodes_in_all = disks.len();
    let mut c = Cluster::<HOST>::new(seed, faults, disks);
    c.all_here = all_here;
    let mut down: Vec<(u64, usize)> = (0..nodes_in_all).map(|node| (rng.u64(0..2_000_000), node)).collect();
    let trouble_ns = rng.u64(0..6_000_000);
    while !down.is_empty() || c.world.now() < trouble_ns {
        let now = c.world.now();
        for (_, node) in down.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            c.start(node, false);
        }
        let founded = c.founded.len();
        let next = down.iter().map(|(at, _)| *at).min().unwrap_or(u64::MAX).min(now + DUTY_NS);
        let node = c.next(next);
        if c.world.now() == now && node.is_none() {
            c.world.run_for(DUTY_NS);
        }
        // A founder that is not a member itself may die just after it has founded, and any process may die while there is no view.
        let for_others_now = c.founded.len() > founded
            && c.founded.last().is_some_and(|(by, again)| again.as_ref().is_some_and(|again| !again.members.contains(by)));
        *for_others += usize::from(for_others_now);
        let dies = match c.views().next() {
            Some(_) => for_others_now && rng.bool(),
            None => rng.u16(0..2000) == 0,
        };
        if let Some(node) = node.filter(|_| dies) {
            *kills += 1;
            c.kill(node);
            down.push((c.world.now() + rng.u64(10_000..1_000_000), node));
        }
        c.check();
    }
    assert!(c.until_known(200_000_000), "nobody founds it: {:?}, {:?}", c.founded, c.reasons);
    c.check();
    for (by, again) in &c.founded {
        assert_eq!(c.to_come_back, [], "nobody has another life");
        let again = again.as_ref().expect("there are logs");
        let of = nodes(&again.members);
        assert!(of.iter().all(|node| group.contains(node)) && of.len() >= majority(group.len()), "{by} founds it of {of:?}");
    }
}

fn lives<const HOST: bool>(all_here: bool) -> usize {
    struct Name(u64);
    impl Drop for Name {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failing seed: {}", self.0);
            }
        }
    }
    let (mut kills, mut for_others) = (0, 0);
    for seed in 0..60 {
        let _name = Name(seed);
        live::<HOST>(seed, all_here, &mut kills, &mut for_others);
    }
    // The random lives must have contained what they are meant to test.
    eprintln!("{kills} kills, {for_others} founded for others");
    assert!(kills > 10);
    for_others
}

#[test]
fn on_a_host_those_with_the_newest_log_found_the_cluster_once() {
    assert_eq!(lives::<true>(true), 0, "whoever can takes the claim");
}

#[test]
fn on_a_host_of_which_nobody_knows_that_it_is_the_only_one_they_do_so_too_when_all_are_there() {
    assert_eq!(lives::<true>(false), 0, "whoever can takes the claim");
}

#[test]
fn over_a_network_the_cluster_is_founded_once_of_those_with_the_newest_log() {
    assert!(lives::<false>(false) > 8);
}

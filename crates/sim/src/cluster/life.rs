//! A cluster and the course of its life: processes start, take their turns, and end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use hashbrown::HashMap;
use martlet_fabric::sim::World;
use martlet_fabric::{Identity, Incarnation, Levels, NodeId, PeerKind};
use martlet_protocol::basics::layout::{RETURNED, Sizes, regions, returned};
use martlet_protocol::basics::{ProcessId, RETURN_BITS, ViewNumber};
use martlet_protocol::detector::wardens::{Digest, Secret};
use martlet_protocol::duty::Host;
use martlet_protocol::membership::{Config, Core};
use martlet_protocol::version;

use super::clients::Client;
use super::clients::traffic::Message;
use super::engine::Engine;
use super::faults::Fault;
use super::node::Node;
use super::node::clock::Clock;
use super::node::machine::Machine;
use super::oracles::Oracles;
use super::oracles::linearizable::Recorded;
use super::oracles::story::told_so_far;
use super::plan::{Canary, Changes, Plan};
use super::report::{FaultCounts, Report};
use super::settings::Settings;
use super::storage::disk::{Disk, End};
use super::storage::power::{self, Lasting};
use super::wardens;

/// The source of randomness for one purpose: the same, whatever else happens.
pub fn stream(seed: u64, purpose: &str, number: u64) -> Rng {
    let mut mixed = seed ^ 0x6d61_7274_6c65_7473;
    for word in purpose.bytes().map(u64::from).chain([number]) {
        mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    Rng::with_seed(mixed)
}

/// Something that is scheduled to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// A fault, and which of its kind.
    Fault {
        fault: Fault,
        nth: u32,
    },
    Restart {
        node: u16,
    },
    Release {
        process: usize,
    },
    /// A slow process gets the processor or loses it, and will that many more times.
    Doze {
        process: usize,
        left: u32,
        held: bool,
    },
    /// What was cut off is connected again.
    Mend {
        cut: usize,
    },
    /// A process is killed; or its last thread dies, some time after the first one.
    Perish {
        process: usize,
    },
    /// A process is asked to end.
    Leave {
        process: usize,
    },
    DeclareDead,
    /// The warden of a node's host reports the death of a process.
    Certify {
        node: u16,
        of: usize,
    },
    Call {
        client: usize,
    },
    Send {
        client: usize,
        number: u64,
    },
    Resend {
        client: usize,
        number: u64,
    },
    Arrive {
        slot: usize,
    },
    GiveUp {
        client: usize,
        number: u64,
    },
}

/// The feature levels that the later build supports when a cluster is being upgraded.
pub(super) const LATER_BUILD: Levels = Levels { least: 1, most: 2 };

/// A cluster, its world, and the trouble it is in for.
pub struct Cluster<E, const HOST: bool> {
    pub(super) seed: u64,
    pub(super) changes: Changes,
    keeps_history: bool,
    pub(super) settings: Settings,
    pub(super) world: World<HOST>,
    /// Randomness for the processes: clocks, turns, messages.
    pub(super) chance: Rng,
    /// By process; `None` once the process is dead.
    pub(super) nodes: Vec<Option<Node<E, HOST>>>,
    /// Which index each process has, or had.
    pub(super) processes: HashMap<ProcessId, usize>,
    /// The running life of each node; `None` between two lives.
    pub(super) current: Vec<Option<usize>>,
    pub(super) lives: Vec<u64>,
    /// Nodes whose earlier build was refused because the feature level had risen: they run the later build from then on.
    pub(super) upgraded: Vec<bool>,
    /// For each process, how many reasons there are for it to be stopped.
    pub(super) holds: Vec<u32>,
    pub(super) agenda: BinaryHeap<Reverse<(u64, u64, Due)>>,
    entered: u64,
    pub(super) oracles: Oracles,
    pub(super) clients: Vec<Client>,
    pub(super) messages: Vec<Option<Message>>,
    pub(super) free_messages: Vec<usize>,
    pub(super) history: Vec<Recorded>,
    /// What outlives processes, where there are disks.
    pub(super) lasting: Option<Lasting>,
    /// All nodes are about to end, and start again when they all have; the randomness for that.
    pub(super) shutdown: Option<Rng>,
    /// Connections that have been cut: pairs of processes, in one direction each.
    pub(super) cuts: Vec<Vec<(usize, usize)>>,
    /// How many values have been handed out, so that no two writes write the same one.
    pub(super) values: u64,
    /// Requests that clients have begun.
    pub(super) requests: u64,
    pub(super) kills: u64,
    pub(super) replies: u64,
    pub(super) faults: FaultCounts,
    pub(super) struck: FaultCounts,
    /// Clients start nothing new any more.
    pub(super) closing: bool,
    /// Too little was left to continue when all trouble ended.
    pub(super) ended: bool,
    /// The nodes of the majority that has to serve alone at the moment,
    pub(super) alone: Vec<u16>,
    /// and others that start again once that is over.
    pub(super) late: Vec<u16>,
    /// A majority served while the others were stopped or out of reach.
    pub(super) served_alone: bool,
    /// The cluster has become whole again: everything that is committed has been seen.
    pub(super) settled: bool,
    /// The clients' history was too hard to judge.
    pub(super) undecided: bool,
}

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// A cluster whose first node founds it, and which the others join.
    pub fn new(plan: &Plan, settings: Settings) -> Self {
        let seed = plan.seed;
        let world = World::new(stream(seed, "world", 0).u64(..), settings.faults.clone());
        let nodes = usize::from(settings.nodes);
        let client = |id| {
            let mut chance = stream(seed, "client", id as u64);
            let mut client = Client::new(id, settings.keys, chance.u16(..settings.nodes), chance);
            client.read_by_quorum(settings.quorum_reads, stream(seed, "reads by quorum", id as u64));
            client
        };
        let clients = (0..settings.clients as usize).map(client).collect();
        let mut cluster = Cluster {
            seed,
            changes: plan.changes.clone(),
            keeps_history: plan.keep_history,
            settings,
            world,
            chance: stream(seed, "processes", 0),
            nodes: Vec::new(),
            processes: HashMap::new(),
            current: vec![None; nodes],
            lives: vec![0; nodes],
            upgraded: vec![false; nodes],
            holds: Vec::new(),
            agenda: BinaryHeap::new(),
            entered: 0,
            oracles: Oracles::default(),
            clients,
            messages: Vec::new(),
            free_messages: Vec::new(),
            history: Vec::new(),
            lasting: None,
            shutdown: None,
            cuts: Vec::new(),
            values: 0,
            requests: 0,
            kills: 0,
            replies: 0,
            faults: FaultCounts::default(),
            struck: FaultCounts::default(),
            closing: false,
            ended: false,
            alone: Vec::new(),
            late: Vec::new(),
            served_alone: false,
            settled: false,
            undecided: false,
        };
        cluster.world.let_stores_wake(!cluster.settings.sleepers);
        cluster.oracles.story.begin(plan.narrate);
        if plan.keep_trace {
            cluster.world.keep_trace();
        }
        if let Some(disks) = cluster.settings.disks {
            cluster.lasting = Some(Lasting::new(nodes, |node| Disk::new(stream(seed, "disk", node), disks)));
        }
        for node in 0..nodes {
            cluster.start(node as u16);
        }
        cluster.plan_trouble();
        for client in 0..cluster.clients.len() {
            let at = cluster.clients[client].chance().u64(5_000..=35_000);
            cluster.enter(at, Due::Call { client });
        }
        cluster
    }

    /// Runs the whole life.
    pub fn live(mut self) -> (Report, String) {
        self.suffer();
        self.heal_all();
        self.settle();
        if self.settings.alone {
            self.serve_alone();
        }
        self.recover();
        self.finish()
    }

    /// Ends the life, judges what the clients saw, and reports.
    pub fn finish(mut self) -> (Report, String) {
        self.judge_history();
        let counts = self.world.counts();
        for (fault, times) in [
            (Fault::Drop, counts.drops),
            (Fault::Repeat, counts.repeats),
            (Fault::Tear, counts.tears),
            (Fault::Spike, counts.spikes),
            (Fault::Stall, counts.stalls),
            (Fault::LostNotice, counts.lost_notices),
            (Fault::Delay, counts.overtaken),
            (Fault::LateDeath, counts.late_deaths),
        ] {
            self.faults.add(fault, times);
        }
        let held = self.oracles.memory.most;
        let report = Report {
            seed: self.seed,
            temper: self.settings.temper,
            violation: self.oracles.violation().cloned(),
            length_ns: self.world.now(),
            operations: self.world.operations(),
            views: self.oracles.views.count(),
            active_views: self.oracles.active_views(),
            takeovers: self.oracles.takeovers,
            kills: self.kills,
            faults: self.faults,
            struck: self.struck,
            ended: self.has_ended(),
            served_alone: self.served_alone,
            lost_completions: counts.lost_completions,
            lost_swaps: counts.lost_swaps,
            writes_across_revocations: counts.writes_across_revocations,
            undecided: self.undecided,
            replies: self.replies,
            unknown: self.history.len() as u64 - self.replies,
            decisions_seen: self.oracles.decisions_seen(),
            footprint: held.core + held.engine,
            history: if self.keeps_history { self.history.drain(..).map(|(_, operation)| operation).collect() } else { Vec::new() },
            trace: self.world.trace(),
            digest: self.world.digest(),
        };
        let story = if self.oracles.story.is_told() { told_so_far().1 } else { String::new() };
        (report, story)
    }

    pub(super) fn enter(&mut self, at: u64, due: Due) {
        self.entered += 1;
        self.agenda.push(Reverse((at, self.entered, due)));
    }

    /// The next life of a node begins.
    pub(super) fn start(&mut self, node: u16) {
        self.lives[usize::from(node)] += 1;
        let first = self.lives.iter().sum::<u64>() == 1;
        let lives = self.lives[usize::from(node)];
        let secret = stream(self.seed, "secret", self.lives.iter().sum()).u64(..);
        let engine_config = E::config(&self.settings, !HOST, secret);
        let (me, back) = match &self.lasting {
            None => (ProcessId { node: NodeId(node), incarnation: Incarnation(lives) }, None),
            Some(Lasting { disks, joins, known_as, .. }) => {
                let afresh = ProcessId { node: NodeId(node), incarnation: Incarnation(lives << RETURN_BITS) };
                let origin = disks[usize::from(node)]
                    .origin::<E>(afresh, &engine_config, known_as[usize::from(node)])
                    .filter(|_| !joins[usize::from(node)]);
                origin.map_or((afresh, None), |(me, stored)| (me, Some(stored.clone())))
            }
        };
        let identity = Identity { node: me.node, incarnation: me.incarnation, kind: PeerKind::Member };
        let sizes = Sizes { log_ring_bytes: self.settings.log_ring_bytes, client_ring_bytes: 256 };
        let settings = &self.settings;
        let mut offered = regions(sizes);
        E::add_regions(&mut offered, &engine_config);
        if settings.disks.is_some() {
            offered.own([(RETURNED, returned::WORDS * 8)]);
        }
        let (process, fabric) = self.world.spawn(identity, &offered);
        let drift_ppm = match settings.canary {
            Some(Canary::WildClocks) => 400_000,
            _ if self.changes.lacks(Fault::Drift) => 0,
            _ => settings.clocks.drift_ppm,
        };
        let clock = Clock::drawn(&mut self.chance, drift_ppm, settings.clocks.skew_ns);
        for (fault, happens) in [
            (Fault::Restart, self.lives[usize::from(node)] > 1),
            (Fault::Drift, drift_ppm > 0 || settings.clocks.skew_ns > 0),
            (Fault::Sleep, settings.sleepers),
            (Fault::WornBallots, settings.worn),
        ] {
            self.faults.add(fault, u64::from(happens));
        }
        let later = settings.upgrades > 0
            && (self.upgraded[usize::from(node)]
                || lives > 1 && stream(self.seed, "builds", (u64::from(node) << 32) | lives).u32(..1000) < settings.upgrades);
        let levels = if later { LATER_BUILD } else { version::LEVELS };
        self.oracles.levels.note(me, levels);
        let config = Config {
            levels,
            lease_ns: settings.lease_ns,
            clocks: settings.clocks,
            heartbeat_interval_ns: settings.heartbeat_interval_ns,
            broadcast_interval_ns: settings.broadcast_interval_ns,
            broadcast_timeout_ns: settings.broadcast_timeout_ns,
            pull_interval_ns: settings.heartbeat_interval_ns,
            resend_interval_ns: settings.heartbeat_interval_ns,
            backoff_ns: 2_000,
            seed: self.chance.u64(..),
            leases: settings.leases,
            authority: E::TRAITS.authority(),
            digest: settings.wardens.map(|_| wardens::digest as fn(&Secret) -> Digest),
            ..Config::new(me, settings.roles[usize::from(node)])
        };
        let now = self.world.now();
        let local = clock.read(now, &mut self.chance);
        let mut core = Core::new(local, config);
        if settings.wardens.is_some() {
            core.pledge(&fabric, wardens::secret_of(self.seed, process));
        }
        let mut machine = Machine::default();
        let engine = match &back {
            None => E::new(me, engine_config),
            Some(stored) => E::recover(me, engine_config, &stored.parts, &stored.last, &stored.journal(), &fabric, &mut machine)
                .expect("what it has written")
                .expect("an engine that writes"),
        };
        let host = Host::new(me, fabric, core, engine, machine, local);
        let mut life = Node::new(host, clock, settings.pace, settings.threads);
        if settings.worn {
            let known = self.oracles.views.newest().map_or(ViewNumber(0), |view| view.number);
            life.wear_out(known.next(), &mut self.chance);
        }
        if !HOST && !self.alone.is_empty() {
            let others: Vec<usize> = self.alive().filter(|p| !self.alone.contains(&self.name(*p).node.0)).collect();
            self.world.partition(&[process], &others);
        }
        let founds = first && self.lasting.is_none();
        let how = match &back {
            Some(_) => " with the log of an earlier life",
            None if founds => " and founds the cluster",
            None => "",
        };
        self.oracles.story.tell(now, || format!("{me} starts{how}"));
        if let Some(Lasting { disks, known_as, .. }) = &mut self.lasting {
            let lives = disks[usize::from(node)].lives();
            disks[usize::from(node)].begin(me);
            life.begin_with_disk(&self.settings, back.is_some(), lives);
            known_as[usize::from(node)] = None;
        }
        if back.is_some() {
            // The others may be waiting for it; until there is a view, it waits as well.
        } else if founds {
            life.bootstrap(now, &mut self.chance);
        } else {
            life.join(now, &mut self.chance);
        }
        self.nodes.push(Some(life));
        self.processes.insert(me, process);
        self.holds.push(0);
        self.current[usize::from(node)] = Some(process);
        self.look_at(process);
        self.world.wake(process);
    }

    /// A process ends, cleanly or by SIGKILL.
    pub(super) fn end(&mut self, process: usize, cleanly: bool) {
        let Some(node) = self.nodes[process].take() else { return };
        self.oracles.story.tell(self.world.now(), || format!("{} ends{}", node.me(), if cleanly { "" } else { " by SIGKILL" }));
        if cleanly {
            // The threads give back their robust futexes first, so the kernel reports no death (TRAPS 28).
            node.set_death_words(0);
        }
        self.world.kill(process, Some(node.death_words()));
        if !HOST && !cleanly {
            self.certify(node.me().node.0, process);
        }
        self.current[usize::from(node.me().node.0)] = None;
        self.end_writing(node.me().node.0, if cleanly { End::Clean } else { End::Sudden });
    }

    /// Lets the world run, with turns and faults, up to `end` or the first violation.
    pub(super) fn go_on_until(&mut self, end: u64) {
        while self.oracles.violation().is_none() && self.advance(end) {}
    }

    /// As [`Cluster::advance`], but lets only a single thing happen in the world, even if that is only one store that lands.
    pub(super) fn advance_a_step(&mut self, end: u64) -> bool {
        self.start_again_after_shutdown();
        let next = self.agenda.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
        match self.world.next_event(next.min(end)) {
            Some(Some(process)) => self.turn(process),
            Some(None) => {}
            None if next > end => return false,
            None => {
                let Some(Reverse((_, _, due))) = self.agenda.pop() else { return false };
                self.happen(due);
            }
        }
        true
    }

    /// Lets the next turn or event happen, if one is due by `end`. Returns whether one was.
    pub(super) fn advance(&mut self, end: u64) -> bool {
        self.start_again_after_shutdown();
        let next = self.agenda.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
        if let Some(process) = self.world.next_turn(next.min(end)) {
            self.turn(process);
            return true;
        }
        if next > end {
            return false;
        }
        let Some(Reverse((_, _, due))) = self.agenda.pop() else { return false };
        self.happen(due);
        true
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Fault { fault, nth } => self.strike(fault, nth),
            Due::Restart { node } if !self.alone.is_empty() && !self.alone.contains(&node) => self.late.push(node),
            // All nodes start again together, when the last one has ended.
            Due::Restart { .. } if self.shutdown.is_some() => {}
            Due::Restart { node } => {
                if self.current[usize::from(node)].is_none() {
                    self.start(node);
                }
            }
            Due::Release { process } => self.release(process),
            Due::Doze { process, left, held } => self.doze(process, left, held),
            Due::Mend { cut } => self.mend(cut),
            Due::Perish { process } => self.end(process, false),
            Due::Leave { process } => {
                if self.nodes[process].is_some() {
                    self.leave(process);
                }
            }
            Due::DeclareDead => self.declare_dead(),
            Due::Certify { node, of } => self.hear_warden(node, of),
            Due::Call { client } => self.call(client),
            Due::Send { client, number } => self.send_request(client, number),
            Due::Resend { client, number } => self.resend(client, number),
            Due::Arrive { slot } => self.arrive(slot),
            Due::GiveUp { client, number } => self.give_up(client, number),
        }
    }

    pub(super) fn turn(&mut self, process: usize) {
        let now = self.world.now();
        let Some(node) = &mut self.nodes[process] else { return };
        let mut place = power::place::<HOST>(&mut self.lasting, node.me().node, &self.current);
        let turn = node.turn(now, &self.settings, &mut self.chance, place.as_mut());
        // A node that ends in an orderly way ends its process; the next process looks at the disk.
        let (joins_again, comes_back_as) = (node.core().view().is_some() && !node.is_leaving(), node.comes_back_as);
        let has_stopped_clock = node.clock.has_stopped();
        let (me, over, replies) = (node.me(), node.over, std::mem::take(&mut node.server.outbox));
        self.upgraded[usize::from(me.node.0)] |= node.core().unsuited().is_some();
        self.faults.add(Fault::FullLog, std::mem::take(&mut node.server.refused));
        if node.is_mid_turn() {
            self.faults.add(Fault::BrokenTurn, 1);
            if self.settings.long_breaks > 0 && self.chance.u32(..1000) < self.settings.long_breaks {
                self.hold(process);
                let span = self.settings.pause;
                let until = now + self.chance.u64(span.0..=span.1.max(span.0));
                self.enter(until, Due::Release { process });
            }
        }
        self.world.wake_at(process, turn.due.max(now + 1));
        self.look_at(process);
        self.judge_vote(process);
        // A process whose clock is outside the model is only required not to give wrong replies.
        if let Some(view) = turn.active
            && !has_stopped_clock
        {
            let others = self.nodes.iter().flatten().filter(|n| n.me() != me && !n.clock.has_stopped());
            let others = others.filter_map(|n| Some((n.me(), n.may_act_in(now)?)));
            self.oracles.active(now, me, view, others);
        }
        for reply in replies {
            if let Some((index, token)) = reply.proposed {
                self.oracles.replied(now, me, index, token);
            }
            self.send(Message::Reply(reply));
        }
        if over {
            self.end(process, true);
            if let Some(Lasting { joins, known_as, .. }) = &mut self.lasting {
                joins[usize::from(me.node.0)] = joins_again;
                known_as[usize::from(me.node.0)] = comes_back_as;
            }
            let span = self.settings.restart;
            let at = now + self.chance.u64(span.0..=span.1.max(span.0));
            self.enter(at, Due::Restart { node: me.node.0 });
        }
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|p| self.nodes[*p].is_some())
    }

    /// The id of a process that is alive.
    pub(super) fn name(&self, process: usize) -> ProcessId {
        self.nodes[process].as_ref().expect("it lives").me()
    }
}

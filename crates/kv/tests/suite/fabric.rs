//! The front end over the fabric and its client, in simulated worlds where primaries die.

use std::collections::VecDeque;
use std::rc::Rc;

use fastrand::Rng;
use martlet_fabric::sim::{Endpoint, Faults, ProcessIndex, World};
use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind, RegionSpec, ring};
use martlet_kv::client::{Client, ClientConfig, Reads, RequestError, Value};
use martlet_kv::{KvApp, KvConfig};
use martlet_protocol::basics::layout::{self, Component, Sizes};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::membership::{Member, Roles};
use martlet_protocol::replica::{Application, ClientEvent, StateMachine, Ticket};

use crate::fake::{FakeReplica, Log};

/// So small that every test wraps and fills the rings.
const SIZES: Sizes = Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 };
const PATIENCE: usize = 2_000_000;

fn lanes() -> Vec<(martlet_fabric::RegionName, usize)> {
    vec![(layout::CLIENT_LANE, ring::lane_bytes(SIZES.client_ring_bytes))]
}

type End = Endpoint<true>;

struct Server {
    index: ProcessIndex,
    id: ProcessId,
    app: KvApp,
    replica: FakeReplica<End>,
    /// The view that it has not heard of yet, and the processes there, the leader first.
    news: Option<(ViewNumber, Vec<ProcessId>)>,
}

impl Server {
    /// Tells it of the newest view.
    fn learn(&mut self) {
        let Some((number, ids)) = self.news.take() else { return };
        let members = ids.iter().map(|id| Member::new(*id, Roles::REPLICA));
        self.replica.view.members = members.collect();
        self.replica.view.number = number;
        if ids[0] == self.id { self.replica.lead() } else { self.replica.follow(Some(ids[0])) }
    }
}

/// A client that increments a key of its own, and checks each reply: the n-th increment answers n, whatever has happened to primaries.
struct Caller {
    index: ProcessIndex,
    client: Client<End>,
    key: String,
    posted: u64,
    answered: u64,
    /// The requests that await a reply: the number of each, and for a read the count of increments before it.
    awaited: VecDeque<(u64, Option<u64>)>,
    views: Vec<ViewNumber>,
}

struct Cluster {
    world: World<true>,
    chance: Rng,
    servers: Vec<Server>,
    callers: Vec<Caller>,
    log: Log,
    view: u64,
    primary: usize,
    /// How much of the log the replies that the primary has released depend on: no failover loses it.
    committed: usize,
    /// The length of the log at the end of each turn whose replies are not released yet.
    turns: VecDeque<(Ticket, usize)>,
    lives: u64,
    repeats: u64,
}

impl Cluster {
    fn new(seed: u64, servers: u16, callers: u16, faults: impl FnOnce(&mut Rng) -> Faults) -> Cluster {
        Cluster::reading(seed, servers, callers, faults, Reads::Lease)
    }

    fn reading(seed: u64, servers: u16, callers: u16, faults: impl FnOnce(&mut Rng) -> Faults, reads: Reads) -> Cluster {
        let mut chance = Rng::with_seed(seed);
        let faults = faults(&mut chance);
        let mut cluster = Cluster {
            world: World::new(chance.u64(..), faults),
            chance,
            servers: Vec::new(),
            callers: Vec::new(),
            log: Rc::default(),
            view: 0,
            primary: 0,
            committed: 0,
            turns: VecDeque::new(),
            lives: 0,
            repeats: 0,
        };
        for n in 0..servers {
            cluster.start_server(n);
        }
        for n in 0..callers {
            let incarnation = Incarnation(1_000_000 + u64::from(n));
            let identity = Identity { node: NodeId(n), incarnation, kind: PeerKind::Client };
            let spec = RegionSpec { member_lanes: lanes(), ..RegionSpec::default() };
            let (index, endpoint) = cluster.world.spawn(identity, &spec);
            let config = ClientConfig { sizes: SIZES, max_outstanding: 20, reads, ..ClientConfig::new(incarnation.0) };
            cluster.callers.push(Caller {
                index,
                client: Client::new(endpoint, config),
                key: format!("counter:{n}"),
                posted: 0,
                answered: 0,
                awaited: VecDeque::new(),
                views: Vec::new(),
            });
            cluster.world.wake(index);
        }
        cluster.fail_over(0);
        cluster
    }

    fn start_server(&mut self, n: u16) {
        self.lives += 1;
        let id = ProcessId { node: NodeId(n), incarnation: Incarnation(self.lives) };
        let identity = Identity { node: id.node, incarnation: id.incarnation, kind: PeerKind::Member };
        let spec = RegionSpec { client_lanes: lanes(), ..RegionSpec::default() };
        let (index, endpoint) = self.world.spawn(identity, &spec);
        let config = KvConfig { node: id.node, sizes: SIZES, ..KvConfig::default() };
        let app = KvApp::new(config, Box::new(|| 1_700_000_000_000), [id.incarnation.0, 5]).expect("a good configuration");
        let mut replica = FakeReplica::new(endpoint, self.log.clone());
        replica.catch_up(self.committed);
        self.servers.push(Server { index, id, app, replica, news: None });
        self.world.wake(index);
    }

    /// A new view, whose primary is `servers[primary]`. Entries that the old primary had not released may be lost, from some entry on.
    fn fail_over(&mut self, primary: usize) {
        self.view += 1;
        self.primary = primary;
        let kept = self.chance.usize(self.committed..=self.log.borrow().len());
        self.log.borrow_mut().truncate(kept);
        self.committed = kept;
        self.turns.clear();
        let leader = self.servers[primary].id;
        let mut ids: Vec<_> = self.servers.iter().map(|s| s.id).collect();
        ids.sort_by_key(|id| *id != leader);
        for server in &mut self.servers {
            server.news = Some((ViewNumber(self.view), ids.clone()));
            self.world.wake(server.index);
        }
    }

    fn kill_primary(&mut self) {
        let dead = self.servers.remove(self.primary);
        self.repeats += dead.app.stats().fabric_repeats;
        self.world.kill(dead.index, None);
        let next = self.chance.usize(..self.servers.len());
        self.fail_over(next);
        self.start_server(dead.id.node.0);
        let ids = self.servers[self.primary].id;
        let newcomer = self.servers.last_mut().expect("just started");
        newcomer.news = Some((ViewNumber(self.view), vec![ids]));
    }

    /// Gives the next process its turn.
    fn step(&mut self, goal: u64) {
        let limit = self.world.now() + 10_000_000;
        let Some(index) = self.world.next_turn(limit) else { return };
        if let Some(at) = self.servers.iter().position(|s| s.index == index) {
            self.serve(at);
        } else if let Some(at) = self.callers.iter().position(|c| c.index == index) {
            self.call(at, goal);
        }
    }

    fn serve(&mut self, at: usize) {
        let server = &mut self.servers[at];
        if self.chance.u8(..) < 100 {
            server.learn();
        }
        let leads = at == self.primary && server.news.is_none();
        let Server { index, app, replica, news, .. } = server;
        replica.now = Time(self.world.now());
        replica.take_events();
        if !leads {
            replica.catch_up(self.committed);
        }
        replica.ticket = Ticket(replica.ticket.0 + 1);
        app.poll(replica);
        if leads {
            self.turns.push_back((replica.ticket, self.log.borrow().len()));
            // Sometimes nothing is released for a while.
            if self.chance.u8(..) < 200 {
                let upto = self.chance.usize(0..=self.turns.len());
                for (ticket, committed) in self.turns.drain(..upto) {
                    (replica.released, self.committed) = (ticket, committed);
                }
            }
            if !self.turns.is_empty() {
                self.world.wake(*index);
            }
        }
        app.release(replica);
        while let Some(completion) = martlet_fabric::Fabric::poll(&mut replica.fabric) {
            assert!(Component::Application.owns(completion.token));
            app.complete(replica, completion);
        }
        if !app.is_idle() || news.is_some() {
            self.world.wake(*index);
        }
    }

    fn call(&mut self, at: usize, goal: u64) {
        let now = Time(self.world.now());
        let Caller { index, client, key, posted, answered, awaited, views } = &mut self.callers[at];
        while let Some(answer) = client.poll(now) {
            let place = awaited.iter().position(|(seq, _)| *seq == answer.seq).expect("an answer to what was asked, once");
            let (_, before) = awaited.remove(place).expect("just found");
            let value = Value::parse(answer.reply);
            match (before, value) {
                (None, Some(Value::Int(n))) => {
                    *answered += 1;
                    assert_eq!(n as u64, *answered, "increment {answered} of {key} was executed {n} times");
                }
                (Some(before), Some(Value::Bulk(text))) => {
                    let n: u64 = std::str::from_utf8(text).expect("digits").parse().expect("a number");
                    assert!(before <= n && n <= *posted, "{key} read {n} when it stood between {before} and {posted}");
                }
                (Some(0), Some(Value::Null)) => {}
                (_, other) => panic!("{key}: {other:?} is no reply to what was asked"),
            }
            views.push(answer.view);
        }
        while *posted < goal {
            let read = self.chance.u8(..) < 80;
            let posting = if read { client.post(&[b"GET", key.as_bytes()]) } else { client.post(&[b"INCR", key.as_bytes()]) };
            match posting {
                Ok(seq) => {
                    awaited.push_back((seq, read.then_some(*posted)));
                    *posted += u64::from(!read);
                }
                Err(RequestError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if !awaited.is_empty() || *posted < goal {
            self.world.wake_at(*index, now.0 + 50_000);
        }
    }

    fn run_to(&mut self, goal: u64) {
        for caller in &self.callers {
            self.world.wake(caller.index);
        }
        for _ in 0..PATIENCE {
            if self.callers.iter().all(|c| c.answered == goal && c.awaited.is_empty()) {
                return;
            }
            self.step(goal);
        }
        let left: Vec<_> = self.callers.iter().map(|c| (&c.key, c.posted, c.answered, c.client.primary(), c.client.view())).collect();
        panic!("no end after {PATIENCE} turns; the view is {}, led by {}; {left:?}", self.view, self.servers[self.primary].id);
    }

    /// The answer to a request of the first caller.
    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let seq = self.callers[0].client.post(args).expect("room");
        self.answer(seq)
    }

    /// The first caller's next answer, which has to be the one to that request.
    fn answer(&mut self, seq: u64) -> Vec<u8> {
        self.answer_within(seq, PATIENCE).expect("an answer")
    }

    /// The same, if it comes within this many turns.
    fn answer_within(&mut self, seq: u64, turns: usize) -> Option<Vec<u8>> {
        for _ in 0..turns {
            let (caller, now) = (&mut self.callers[0], Time(self.world.now()));
            if let Some(answer) = caller.client.poll(now) {
                assert_eq!(answer.seq, seq);
                return Some(answer.reply.to_vec());
            }
            self.world.wake_at(caller.index, now.0 + 50_000);
            let Some(index) = self.world.next_turn(u64::MAX) else { panic!("nothing is due") };
            if let Some(at) = self.servers.iter().position(|s| s.index == index) {
                self.serve(at);
            }
        }
        None
    }

    /// Checks that all replicas that apply the log hold the same.
    fn check_replicas(&mut self) {
        let expected = self.servers[self.primary].replica.machine.digest();
        for server in &mut self.servers {
            server.learn();
            server.replica.catch_up(usize::MAX);
            assert_eq!(server.replica.machine.digest(), expected, "{} differs", server.id);
        }
    }
}

#[test]
fn requests_are_answered_in_a_calm_world() {
    let mut cluster = Cluster::new(1, 3, 2, |_| Faults::calm());
    cluster.run_to(500);
    for caller in &cluster.callers {
        assert!(caller.views.iter().all(|v| *v == ViewNumber(1)));
    }
    cluster.check_replicas();
    // A client that confirms replies leaves nothing to repeat except the last window.
    let sessions = cluster.servers[cluster.primary].replica.machine.sessions();
    assert_eq!(sessions.len(), 2);
    assert!(sessions.heap_bytes() < 2 * 41 * 100, "{} bytes of sessions", sessions.heap_bytes());
}

#[test]
fn one_that_reads_by_quorum_is_answered_when_a_majority_has_been_asked() {
    for (reads, waits) in [(Reads::Lease, false), (Reads::Quorum, true)] {
        let mut cluster = Cluster::reading(10, 3, 1, |_| Faults::calm(), reads);
        cluster.run_to(5);
        let key = cluster.callers[0].key.clone();
        cluster.servers[cluster.primary].replica.majority = false;
        let seq = cluster.callers[0].client.post(&[b"GET", key.as_bytes()]).expect("room");
        let answered = cluster.answer_within(seq, 5_000);
        assert_eq!(answered.is_some(), !waits, "{reads:?}");
        if waits {
            cluster.servers[cluster.primary].replica.majority = true;
            assert_eq!(cluster.answer(seq), b"$1\r\n5\r\n");
        }
    }
}

/// With `mu` a ticket costs a write to each follower, and a primary takes turns all the time.
#[test]
fn a_turn_without_replies_takes_no_ticket() {
    let mut cluster = Cluster::new(8, 1, 1, |_| Faults::calm());
    cluster.run_to(5);
    let taken = |c: &Cluster| c.servers[0].replica.tickets_taken.get();
    let before = taken(&cluster);
    assert!(before >= 5, "{before} tickets for five increments");
    (0..20).for_each(|_| cluster.serve(0));
    assert_eq!(taken(&cluster), before);
}

#[test]
fn nothing_is_executed_twice_whatever_dies() {
    let mut repeats = 0;
    for seed in 0..60 {
        eprintln!("seed {seed}");
        let mut cluster = Cluster::new(seed, 3, 3, Faults::drawn);
        for round in 1..=8 {
            // The primary dies somewhere in the middle of these requests.
            for caller in &cluster.callers {
                cluster.world.wake(caller.index);
            }
            for _ in 0..cluster.chance.usize(0..400) {
                cluster.step(round * 30);
            }
            cluster.kill_primary();
            if cluster.chance.bool() {
                cluster.run_to(round * 30);
            }
        }
        cluster.run_to(300);
        cluster.check_replicas();
        repeats += cluster.repeats + cluster.servers.iter().map(|s| s.app.stats().fabric_repeats).sum::<u64>();
        for caller in &cluster.callers {
            assert!(caller.views.last() <= Some(&ViewNumber(cluster.view)));
        }
    }
    assert!(repeats > 100, "only {repeats} requests were repeated: the test tests too little");
}

/// A primary loses sight of a client that another node sees all the time. Neither may execute again what was executed before.
#[test]
fn a_session_that_ended_while_its_client_lived_executes_nothing_again() {
    let mut cluster = Cluster::new(6, 3, 1, |_| Faults::calm());
    cluster.run_to(1);
    let key = cluster.callers[0].key.clone();
    let stored = |c: &mut Cluster| {
        let machine = &c.servers[c.primary].replica.machine;
        machine.get(machine.keyed(key.as_bytes())).map(|e| e.value().to_vec())
    };
    // The second increment is executed, but its reply is never released.
    let seq = cluster.callers[0].client.post(&[b"INCR", key.as_bytes()]).expect("room");
    for _ in 0..PATIENCE {
        if stored(&mut cluster).as_deref() == Some(b"2") {
            break;
        }
        let Some(index) = cluster.world.next_turn(u64::MAX) else { panic!("nothing is due") };
        let at = cluster.servers.iter().position(|s| s.index == index);
        let Some(server) = at.map(|at| &mut cluster.servers[at]) else { continue };
        server.replica.take_events();
        server.replica.now = Time(cluster.world.now());
        server.app.poll(&mut server.replica);
    }
    assert_eq!(stored(&mut cluster).as_deref(), Some(&b"2"[..]));
    cluster.committed = cluster.log.borrow().len();
    // The next primary loses sight of the client, and keeps the client's session no longer than it promises.
    let next = (cluster.primary + 1) % 3;
    cluster.fail_over(next);
    let server = &mut cluster.servers[next];
    server.learn();
    let peer = *server.replica.clients_seen.last().expect("it is connected");
    server.replica.clients.push_back(ClientEvent::Gone { peer, certain: false });
    for (after_ns, sessions) in [(0, 1), (9_000_000_000, 1), (2_000_000_000, 0)] {
        server.replica.now = server.replica.now.after(after_ns);
        server.app.poll(&mut server.replica);
        assert_eq!(server.replica.machine.sessions().len(), sessions, "after {after_ns} ns more");
    }
    cluster.committed = cluster.log.borrow().len();
    // The client has been connected to the primary after that all the time, and repeats its request there.
    cluster.fail_over((next + 1) % 3);
    for server in &mut cluster.servers {
        server.learn();
    }
    let reply = cluster.answer(seq);
    assert!(reply.starts_with(b"-UNCERTAIN your session ended while you were away"), "{}", reply.escape_ascii());
    assert_eq!(stored(&mut cluster).as_deref(), Some(&b"2"[..]), "not executed twice");
    // Its requests from now on are executed.
    cluster.callers[0].posted = 2;
    cluster.callers[0].answered = 2;
    cluster.run_to(5);
}

/// Between hosts, connections end while both ends live, and clients come back at once. A session may not be forgotten because the reign began, or another
/// connection of the client's ended, long enough ago.
#[test]
fn a_session_is_kept_from_the_time_when_its_client_was_last_seen() {
    let mut cluster = Cluster::new(7, 3, 1, |_| Faults::calm());
    cluster.run_to(1);
    let next = (cluster.primary + 1) % 3;
    cluster.fail_over(next);
    let server = &mut cluster.servers[next];
    server.learn();
    // The client is seen, and seen again: each time so many seconds into the reign.
    let mut seen = *server.replica.clients_seen.last().expect("it is connected");
    let mut second = 0;
    let mut until = |second_now: u64, server: &mut Server| {
        server.replica.now = server.replica.now.after((second_now - second) * 1_000_000_000);
        second = second_now;
        server.app.poll(&mut server.replica);
        server.replica.machine.sessions().len()
    };
    assert_eq!(until(0, server), 1);
    for second in [4, 9] {
        server.replica.clients.push_back(ClientEvent::Gone { peer: seen, certain: false });
        assert_eq!(until(second, server), 1);
        // A new connection of the same client, whose lane holds the same introduction.
        server.replica.clients.push_back(ClientEvent::Up(seen));
        seen = *server.replica.clients_seen.last().expect("it is connected");
        assert_eq!(until(second, server), 1);
    }
    server.replica.clients.push_back(ClientEvent::Gone { peer: seen, certain: false });
    for (second, sessions) in [(9, 1), (11, 1), (15, 1), (18, 1), (20, 0)] {
        assert_eq!(until(second, server), sessions, "at {second} s");
    }
}

/// The first primary has no memory left, and says so; its successor has. By then, a client that repeats its request may have heard the refusal.
#[test]
fn a_write_that_was_refused_is_not_executed_by_the_next_primary() {
    let mut cluster = Cluster::new(9, 2, 1, |_| Faults::calm());
    let max_memory_bytes = cluster.servers[0].replica.machine.used_bytes() + 5_000;
    let small = KvConfig { node: cluster.servers[0].id.node, sizes: SIZES, max_memory_bytes, ..KvConfig::default() };
    cluster.servers[0].app = KvApp::new(small, Box::new(|| 1_700_000_000_000), [1, 5]).expect("a good configuration");
    let mut key = 0_u32;
    while !cluster.ask(&[b"SET", &key.to_le_bytes(), &[b'x'; 700]]).starts_with(b"-OOM ") {
        key += 1;
    }
    assert!(key > 0, "at first there was room");
    // The next write is refused, and the refusal is not released.
    let seq = cluster.callers[0].client.post(&[b"SET", b"k", b"v"]).expect("room");
    let refusals = |c: &Cluster| c.servers[0].app.stats().errors;
    let before = refusals(&cluster);
    for _ in 0..PATIENCE {
        let now = Time(cluster.world.now());
        assert!(cluster.callers[0].client.poll(now).is_none());
        cluster.world.wake_at(cluster.callers[0].index, now.0 + 50_000);
        cluster.world.next_turn(u64::MAX);
        let server = &mut cluster.servers[0];
        server.replica.now = now;
        server.replica.ticket = Ticket(server.replica.ticket.0 + 1);
        server.app.poll(&mut server.replica);
        if refusals(&cluster) > before {
            break;
        }
    }
    assert_eq!(refusals(&cluster), before + 1);
    cluster.committed = cluster.log.borrow().len();
    let dead = cluster.servers.remove(0);
    cluster.world.kill(dead.index, None);
    cluster.fail_over(0);
    cluster.servers[0].learn();
    let reply = cluster.answer(seq);
    assert!(reply.starts_with(b"-OOM "), "{}", reply.escape_ascii());
    let machine = &cluster.servers[0].replica.machine;
    assert!(machine.get(machine.keyed(b"k")).is_none());
}

#[test]
fn a_change_of_primary_without_a_death_is_followed() {
    for seed in 0..60 {
        let mut cluster = Cluster::new(seed, 3, 2, Faults::drawn);
        for round in 1..=10 {
            for _ in 0..cluster.chance.usize(0..200) {
                cluster.step(round * 20);
            }
            // The old primary lives, and forgets what it executed speculatively.
            let old = cluster.primary;
            let next = (old + 1) % cluster.servers.len();
            cluster.fail_over(next);
            let server = &mut cluster.servers[old];
            server.learn();
            server.replica.machine.clear();
            server.replica.applied = 0;
        }
        cluster.run_to(250);
        cluster.check_replicas();
    }
}

#[test]
fn sessions_end_with_their_clients() {
    let mut cluster = Cluster::new(3, 2, 3, |_| Faults::calm());
    cluster.run_to(10);
    let session_count = |c: &Cluster| c.servers[c.primary].replica.machine.sessions().len();
    assert_eq!(session_count(&cluster), 3);
    // One client leaves while the primary sees it, and one just before the primary dies too.
    let gone = cluster.callers.remove(0);
    cluster.world.kill(gone.index, None);
    for _ in 0..PATIENCE {
        if session_count(&cluster) == 2 {
            break;
        }
        cluster.step(10);
    }
    assert_eq!(session_count(&cluster), 2);
    let gone = cluster.callers.remove(0);
    cluster.world.kill(gone.index, None);
    cluster.kill_primary();
    cluster.run_to(20);
    for _ in 0..100 {
        let (index, now) = (cluster.servers[cluster.primary].index, cluster.world.now());
        cluster.world.wake_at(index, now + 1_000_000_000);
        cluster.world.run_for(999_999_000);
        for _ in 0..50 {
            cluster.step(20);
        }
    }
    assert_eq!(session_count(&cluster), 1);
    cluster.check_replicas();
}

#[test]
fn requests_that_cannot_be_sent_are_refused_with_reasons() {
    let mut cluster = Cluster::new(4, 1, 1, |_| Faults::calm());
    cluster.run_to(5);
    let client = &mut cluster.callers[0].client;
    let longest = client.longest_request();
    assert_eq!(client.post(&[]), Err(RequestError::Arguments(0)));
    let error = client.post(&[&b"SET"[..], b"k", &vec![b'x'; longest]]).expect_err("too long");
    let (text, start) =
        (error.to_string(), format!("the request has {} bytes; allowed over the fabric: up to {}, ", longest + 40, longest + 24));
    assert!(text.starts_with(&start) && text.contains("client_ring_bytes") && text.contains("Redis port"), "{text}");
    assert_eq!(client.post(&vec![&b"a"[..]; 70_000]), Err(RequestError::Arguments(70_000)));
}

#[test]
fn a_client_knows_which_of_its_requests_no_node_has_been_sent() {
    let mut cluster = Cluster::new(6, 1, 1, |_| Faults::calm());
    let client = &mut cluster.callers[0].client;
    let given_up = client.post(&[b"INCR", b"k"]).expect("room");
    client.abandon();
    let seq = client.post(&[b"INCR", b"k"]).expect("room");
    assert!(!client.was_sent(given_up) && !client.was_sent(seq), "it is not connected");
    assert_eq!(cluster.answer(seq), b":1\r\n", "what was given up unsent has not been executed");
    let client = &cluster.callers[0].client;
    assert!(client.was_sent(seq));
}

#[test]
fn replies_that_do_not_fit_are_errors_and_state_needs_a_connection() {
    let mut cluster = Cluster::new(5, 1, 1, |_| Faults::calm());
    cluster.run_to(5);
    assert_eq!(cluster.ask(&[b"SET", b"k", &[b'x'; 700]]), b"+OK\r\n");
    let error = cluster.ask(&[b"MGET", b"k", b"k"]);
    assert!(error.starts_with(b"-ERR the request was executed, but its reply has 1420 bytes, and at most "), "{}", error.escape_ascii());
    assert_eq!(cluster.ask(&[b"MULTI"]), b"-ERR 'multi' works on a socket only, and not over the fabric\r\n");
    assert_eq!(cluster.ask(&[b"NOSUCH"]), b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n");
    assert_eq!(cluster.ask(&[b"CAS", b"k", b"y", b"z"]), b":0\r\n");
    assert_eq!(cluster.ask(&[b"GET", b"nope"]), b"_\r\n");
}

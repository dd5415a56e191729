//! The stage: a whole failover on private memory, played by the code that runs a real one.
//!
//! Three processes and a client are on endpoints of this process that are connected with no process outside. The successor is what a node is, an [`Agent`] with
//! a membership, an engine, an application and a machine, of the node's own types, so that one and the same code runs. The primary is only a proposer, which
//! prepares the next slot ahead as a living primary does; the other backup is only an engine, which says that it reads its lane. Nothing here refers to
//! anything of the node: what is played cannot touch it.
//!
//! Everything except the application, the machine and the client starts over for each rehearsal. Those three continue from one rehearsal to the next, as they
//! do in a node that serves for long. So the successor's engine believes its machine to be empty, which makes no difference on the stage.

use std::io;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::{Identity, Incarnation, LocalRegion, NodeId, PeerEvent, PeerId, PeerKind, RegionSpec};
use martlet_protocol::basics::layout::{self, LIFE, SLOT_WORDS, SLOTS, Sizes, life};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber, ballot};
use martlet_protocol::consensus::Proposer;
use martlet_protocol::duty::Host;
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{ClockBounds, Core, Member, Roles, View};
use martlet_protocol::replica::{Application, MadeUpClient, NoState, Standing};

use crate::agent::Agent;
use crate::backend::Backend;
use crate::config::Cluster;
use crate::counters::Counters;
use crate::engine::{self, NodeEngine};

/// The rings hold what is said in one rehearsal, and little more: they are cleared for each.
const SIZES: Sizes = Sizes { log_ring_bytes: 2 << 10, client_ring_bytes: 4 << 10 };
/// The processes, by their place in the view; the client comes after them.
const PRIMARY: usize = 0;
const SUCCESSOR: usize = 1;
const BACKUP: usize = 2;
const CLIENT: usize = 3;
/// How many turns the successor gets for something that takes one or two.
const PATIENCE: usize = 8;
/// At this view a stage is built anew: view numbers only grow, and there is a last one.
const LAST: u64 = layout::LAST_VIEW - 2 * SLOTS as u64;

/// How a rehearsal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Played {
    /// It was played to the end: the client has its reply.
    Whole,
    /// It was broken off.
    Cut,
    /// It did not go as planned. A thread that loses its core for milliseconds may find that its lease has run out, and that the dead process has been
    /// forgotten.
    Failed,
}

/// See the [module](self).
pub(crate) struct Stage<F: Backend, E: NodeEngine, A: Application> {
    cluster: Cluster,
    clocks: ClockBounds,
    /// The successor; `None` only while it is being set up.
    agent: Option<Agent<F, E, A>>,
    primary: F,
    backup: F,
    backup_engine: E,
    client: Option<Box<dyn MadeUpClient>>,
    view: View,
    message: Vec<u8>,
}

fn process(place: usize) -> ProcessId {
    ProcessId { node: NodeId(place as u16), incarnation: Incarnation(1) }
}

/// The number by which all others know the process at that place.
fn peer(place: usize) -> PeerId {
    PeerId(place as u32 + 1)
}

impl<F: Backend, E: NodeEngine, A: Application> Stage<F, E, A> {
    /// Builds a stage with the application's understudy. `None` if the application has none, or the backend has no private memory.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    pub fn build(cluster: &Cluster, clocks: ClockBounds, app: &A, clock: fn() -> Time) -> io::Result<Option<Self>> {
        let Some((understudy, machine)) = app.understudy(SIZES) else { return Ok(None) };
        let identity = |place: usize, kind| Identity { node: NodeId(place as u16), incarnation: Incarnation(1), kind };
        let regions = engine::regions(cluster, SIZES);
        let mut processes: Vec<(Identity, RegionSpec)> =
            [PRIMARY, SUCCESSOR, BACKUP].map(|place| (identity(place, PeerKind::Member), regions.clone())).into();
        processes.push((identity(CLIENT, PeerKind::Client), layout::client_regions(SIZES)));
        let Some(endpoints) = F::private(&processes)? else { return Ok(None) };
        let Ok([primary, successor, backup, client]) = <[F; 4]>::try_from(endpoints) else { return Ok(None) };
        let lease_ns = cluster.lease_ns();
        let roles = Roles::COORDINATOR.with(Roles::REPLICA);
        let member = |place| Member::new(process(place), roles);
        let view = View {
            number: ViewNumber(0),
            lease_ns,
            fence_ns: lease_ns,
            compatible: false,
            level: 1,
            members: [PRIMARY, SUCCESSOR, BACKUP].map(member).into(),
            departed: Vec::new(),
        };
        // Random secrets keep strangers from making records that others take for their own. There are no strangers here.
        let config = E::without_disk(E::config(cluster, SIZES, 1));
        let core = Core::new(clock(), engine::membership(cluster, process(SUCCESSOR), roles, clocks));
        let engine = E::new(process(SUCCESSOR), config);
        let me = process(SUCCESSOR);
        let agent = Agent::new(me, successor, core, engine, machine, understudy, Counters::default(), clock);
        Ok(Some(Stage {
            cluster: cluster.clone(),
            clocks,
            agent: Some(agent),
            primary,
            backup,
            backup_engine: E::new(process(BACKUP), config),
            client: app.made_up_client(client, SIZES),
            view,
            message: Vec::with_capacity(512),
        }))
    }

    /// Whether its view numbers are used up.
    pub fn is_worn_out(&self) -> bool {
        self.view.number.0 >= LAST
    }

    /// Plays once. Before each of the two acts after the first, `go_on` is asked, and `false` ends the rehearsal.
    pub fn play(&mut self, mut go_on: impl FnMut() -> bool) -> Played {
        if !self.set_the_scene() {
            return Played::Failed;
        }
        if !go_on() {
            return Played::Cut;
        }
        let led = self.kill_the_primary();
        let goes_on = go_on();
        let answered = led && goes_on && self.serve();
        // Lets what the application has posted complete.
        self.agent().turn();
        match (goes_on, answered) {
            (_, true) => Played::Whole,
            (false, _) if led => Played::Cut,
            _ => Played::Failed,
        }
    }

    fn agent(&mut self) -> &mut Agent<F, E, A> {
        self.agent.as_mut().expect("it is dressed")
    }

    /// Everyone starts over: the primary prepares the slot of the next view, the backup attends to its lane, and the successor learns its place. Returns
    /// whether it has.
    fn set_the_scene(&mut self) -> bool {
        let Some(Agent { host, app, instruments, .. }) = self.agent.take() else { return false };
        let Host { member, mut engine, machine, .. } = host;
        let (mut fabric, clock) = (member.fabric, instruments.clock);
        fabric.rewind();
        self.primary.rewind();
        self.backup.rewind();
        // The same slot each time, so that the same memory is used: one lap later.
        self.view.number = ViewNumber(self.view.number.0 + SLOTS as u64);
        let now = clock();
        let life = self.primary.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        life[life::THREADS].store(life::counting(0, 0), Ordering::Release);
        life[life::death(0, SUCCESSOR)].store(life::WAITERS | 1, Ordering::Release);

        self.prepare_the_next_slot();
        self.backup_engine.reset(process(BACKUP), &mut NoState);
        while let Some(event) = self.backup.event() {
            if let PeerEvent::Up { peer, identity: Identity { node, incarnation, kind: PeerKind::Member } } = event {
                self.backup_engine.handle_peer_up(peer, ProcessId { node, incarnation }, &mut self.backup);
            }
        }
        self.backup_engine.post(now, &mut self.backup, &mut NoState);

        let me = process(SUCCESSOR);
        let roles = Roles::COORDINATOR.with(Roles::REPLICA);
        let core = Core::new(now, engine::membership(&self.cluster, me, roles, self.clocks));
        engine.reset(me, &mut NoState);
        let mut agent = Agent::new(me, fabric, core, engine, machine, app, instruments.counters, clock);
        // The successor meets the others, learns the view, and asks the backup whether it reads its lane.
        agent.host.take_peer_events(&mut agent.instruments);
        Message::View(self.view.clone()).encode(&mut self.message);
        let member = &mut agent.host.member;
        member.core.handle_datagram(now, &mut member.fabric, peer(PRIMARY), &self.message);
        agent.take_membership_events();
        let learned = agent.host.engine.view() == self.view.number;
        self.agent = Some(agent);
        self.agent().turn();
        if let Some(client) = &mut self.client {
            client.poll(now);
            client.ask();
        }
        learned
    }

    /// What a primary does as soon as it learns a view.
    fn prepare_the_next_slot(&mut self) {
        let primary = &mut self.primary;
        while primary.event().is_some() {}
        let slot = self.view.number.next();
        let mut proposer = Proposer::new(slot, &[Some(PeerId::SELF), Some(peer(SUCCESSOR)), Some(peer(BACKUP))], PRIMARY);
        let words = primary.memory(LocalRegion::Public(SLOT_WORDS)).expect("every process is an acceptor");
        proposer.predict_word(words[ballot::slot_of(slot)].load(Ordering::SeqCst));
        proposer.prepare(primary);
    }

    /// The primary dies, and the successor sees this in its next turn. Returns whether the successor then leads.
    fn kill_the_primary(&mut self) -> bool {
        let life = self.primary.memory(LocalRegion::Public(LIFE)).expect("every process offers signs of life");
        life[life::death(0, SUCCESSOR)].store(life::WAITERS | life::OWNER_DIED, Ordering::Release);
        (0..PATIENCE).any(|_| {
            self.agent().turn();
            self.agent().host.engine.standing() == Standing::Primary
        })
    }

    /// The client turns to the new primary. Returns whether it gets its reply, if there is a client.
    fn serve(&mut self) -> bool {
        let Some(mut client) = self.client.take() else { return true };
        let mut answered = client.poll(self.agent().instruments.clock());
        for _ in 0..PATIENCE {
            if answered {
                break;
            }
            self.agent().turn();
            answered = client.poll(self.agent().instruments.clock());
        }
        self.client = Some(client);
        answered
    }
}

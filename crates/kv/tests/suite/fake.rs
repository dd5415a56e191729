//! A replica for tests. It replicates each entry by handing it to the other machines at once, and releases replies when the test says so.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use martlet_fabric::{Fabric, Incarnation, NodeId, PeerEvent, PeerId, PeerKind, Pulse};
use martlet_kv::store::KvMachine;
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::membership::{Member, Roles, View};
use martlet_protocol::replica::{ClientEvent, ProposeError, Replica, Standing, StateMachine, Ticket};

/// The process of node `n`.
pub fn process(n: u16) -> ProcessId {
    ProcessId { node: NodeId(n), incarnation: Incarnation(100 + u64::from(n)) }
}

/// The entries in order. Every replica applies those that it has not made itself.
pub type Log = Rc<RefCell<Vec<Vec<u8>>>>;

/// The replica.
pub struct FakeReplica<F> {
    pub fabric: F,
    pub pulse: Pulse,
    pub machine: KvMachine,
    pub now: Time,
    pub standing: Standing,
    pub view: View,
    pub reign: u64,
    /// Whether a backup shows committed state.
    pub shows_committed: bool,
    pub ticket: Ticket,
    /// How often a ticket was asked for.
    pub tickets_taken: Cell<usize>,
    pub released: Ticket,
    /// Whether a majority answers when it is asked on behalf of clients that do not trust a lease.
    pub majority: bool,
    pub room: bool,
    /// The longest entry that it accepts.
    pub limit: usize,
    /// All entries of the cluster.
    pub log: Log,
    /// How many of the entries this machine has applied.
    pub applied: usize,
    pub clients: VecDeque<ClientEvent>,
    /// The clients that have been connected.
    pub clients_seen: Vec<PeerId>,
}

impl<F: Fabric> FakeReplica<F> {
    /// Node `n` of three, following node 0.
    pub fn new(fabric: F, log: Log) -> FakeReplica<F> {
        let members = (0..3)
            .map(|n| Member {
                address: format!("127.0.0.1:{}", 7711 + n),
                ..Member::new(process(n), Roles::COORDINATOR.with(Roles::REPLICA))
            })
            .collect();
        FakeReplica {
            fabric,
            pulse: Pulse::default(),
            machine: KvMachine::new(),
            now: Time(1_000_000),
            standing: Standing::Backup { primary: Some(process(0)) },
            view: View {
                number: ViewNumber(1),
                lease_ns: 1_000_000,
                fence_ns: 0,
                compatible: false,
                level: 1,
                members,
                departed: Vec::new(),
            },
            reign: 0,
            shows_committed: true,
            ticket: Ticket(1),
            tickets_taken: Cell::new(0),
            released: Ticket(0),
            majority: true,
            room: true,
            limit: usize::MAX,
            log,
            applied: 0,
            clients: VecDeque::new(),
            clients_seen: Vec::new(),
        }
    }

    /// Makes it the primary, with every entry of the log applied.
    pub fn lead(&mut self) {
        self.catch_up(usize::MAX);
        self.standing = Standing::Primary;
        self.reign += 1;
    }

    /// Makes it a follower of `primary`.
    pub fn follow(&mut self, primary: Option<ProcessId>) {
        if self.standing == Standing::Primary {
            self.reign += 1;
        }
        self.standing = Standing::Backup { primary };
    }

    /// Applies further entries of the log, up to this many in all.
    pub fn catch_up(&mut self, upto: usize) {
        for entry in self.log.borrow().iter().take(upto).skip(self.applied) {
            self.applied += 1;
            self.machine.apply(LogIndex(self.applied as u64), entry);
        }
    }
}

impl<F: Fabric> FakeReplica<F> {
    /// Takes the fabric's events for clients.
    pub fn take_events(&mut self) {
        while let Some(event) = self.fabric.event() {
            match event {
                PeerEvent::Up { peer, identity } if identity.kind == PeerKind::Client => {
                    self.clients_seen.push(peer);
                    self.clients.push_back(ClientEvent::Up(peer));
                }
                PeerEvent::Gone { peer, certain } => self.clients.push_back(ClientEvent::Gone { peer, certain }),
                PeerEvent::Up { .. } => {}
            }
        }
    }
}

impl<F: Fabric> Replica for FakeReplica<F> {
    type Fabric = F;
    type Machine = KvMachine;

    fn now(&self) -> Time {
        self.now
    }
    fn standing(&self) -> Standing {
        self.standing
    }
    fn view(&self) -> ViewNumber {
        self.view.number
    }
    fn current_view(&self) -> Option<&View> {
        Some(&self.view)
    }
    fn address_of(&self, process: ProcessId) -> Option<&str> {
        self.view.member(process).map(|m| m.address.as_str())
    }
    fn reign(&self) -> u64 {
        self.reign
    }
    fn shows_committed(&self) -> bool {
        self.shows_committed && self.standing != Standing::Primary
    }
    fn pulse(&self) -> &Pulse {
        &self.pulse
    }
    fn machine(&self) -> &KvMachine {
        &self.machine
    }
    fn machine_mut(&mut self) -> &mut KvMachine {
        &mut self.machine
    }
    fn has_room(&self, _: usize) -> bool {
        self.room
    }
    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError> {
        assert_eq!(self.standing, Standing::Primary, "only a primary proposes");
        assert_eq!(self.applied, self.log.borrow().len(), "the primary has everything");
        if effects.len() > self.limit {
            return Err(ProposeError::TooLong { bytes: effects.len(), allowed: self.limit });
        }
        self.log.borrow_mut().push(effects.to_vec());
        self.applied += 1;
        Ok(LogIndex(self.applied as u64))
    }
    fn max_proposal_bytes(&self) -> usize {
        self.limit
    }
    fn give_up(&mut self) {
        panic!("what was executed cannot be replicated");
    }
    fn ticket(&self) -> Ticket {
        self.tickets_taken.update(|taken| taken + 1);
        self.ticket
    }
    fn released(&self) -> Ticket {
        self.released
    }
    fn ticket_by_quorum(&mut self) -> Ticket {
        self.ticket()
    }
    fn released_by_quorum(&self) -> Ticket {
        if self.majority { self.released } else { Ticket(0) }
    }
    fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }
    fn client_event(&mut self) -> Option<ClientEvent> {
        self.clients.pop_front()
    }
}

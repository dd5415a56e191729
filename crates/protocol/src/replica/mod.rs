//! What surrounds every engine: the state machine that the user supplies, how an application sees its replica, and what engines share.

pub mod backlog;
pub mod electorate;
pub mod entries;
mod error;
mod execution;
pub mod group;
pub mod handover;
pub mod journal;
pub mod journal_encoding;
pub mod lane;
pub mod ledger;
pub mod nudges;
pub mod operations;
pub mod part;
pub mod patience;
pub mod record;
pub mod release;
pub mod restoring;
pub mod roster;
mod settings;
pub mod signs;
pub mod state_transfer;
pub mod watch;

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse};

pub use error::ConfigError;
pub use execution::Execution;
pub use journal::Durability;
pub use part::{PartFault, REST_NS};
pub use settings::Settings;

use crate::basics::layout::Sizes;
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::membership::{LevelError, View};

/// The longest part of the state, in bytes: the longest value of the key-value store is half of it, and goes in one part. A longer part is neither sent to a
/// learner nor written down, and the replica that would have to do so reports it.
pub const MAX_PART_BYTES: usize = 1 << 30;
/// The most that a state machine is asked for in one part, in bytes. A part exceeds that only by a value that cannot be divided.
pub const MAX_TRANSFER_BUDGET_BYTES: usize = MAX_PART_BYTES / 8;

/// Bytes that a state machine was asked to install as a part of the state, and cannot read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("a part of the state cannot be read: do all nodes of the cluster run the same program?")]
pub struct UnreadablePart;

/// An entry of the log that a state machine cannot read, because another build wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} of the log cannot be read: {why}")]
pub struct UnreadableEntry {
    /// Its place in the log.
    pub index: LogIndex,
    /// What is wrong with it.
    pub why: String,
}

/// The replicated state. Every replica applies the same commands in the same order and so holds the same state.
///
/// With [`Execution::Speculative`] a leader has already changed its machine when it proposes (uKharon section 7.3), whatever the engine. There, commands are the
/// *effects* of a request, and `apply` runs on the other replicas only.
pub trait StateMachine {
    /// Applies one command; each is applied once, in order. While a machine is being taught it holds only a part of the state. What a command finds or changes
    /// outside the ranges installed so far is replaced when those are installed, and must do no harm. Deterministic: the result depends on the state and the
    /// arguments only, never on a clock or on chance.
    ///
    /// A command that it cannot read was proposed by a replica of this cluster that runs another build. The machine then reports that through
    /// [`unreadable`](StateMachine::unreadable). From there on its contents mean nothing, and its replica steps aside.
    fn apply(&mut self, index: LogIndex, command: &[u8]);

    /// The first entry that it could not read since it was last [cleared](StateMachine::clear). Until it is cleared again it takes no more commands, and no
    /// replica installs what it [transfers](StateMachine::transfer).
    fn unreadable(&self) -> Option<&UnreadableEntry> {
        None
    }

    /// Appends to `out` the next part of the state from `cursor` on (0 at the start), about `budget` bytes of it. Returns the cursor after it, or `None` when
    /// that was the last. Commands may be applied between two calls: a receiver that has applied the same commands at the same points between its
    /// [`StateMachine::install`] calls ends with the same state. So a replica joins without stopping the primary: each part is small, and the whole state is
    /// never copied. A part of more than [`MAX_PART_BYTES`] is sent to no learner, nor is any other part of a state that has one.
    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64>;

    /// Takes a part that [`StateMachine::transfer`] produced: it replaces everything that this machine held in the part's range.
    ///
    /// # Errors
    /// When the bytes are not such a part. The machine's contents mean nothing then, and it is [cleared](StateMachine::clear) before anything else is asked of
    /// it.
    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart>;

    /// Forgets everything: a fresh machine.
    fn clear(&mut self);

    /// From now on the machine belongs to the process with this pulse. A call that may take long reports its progress there, so that the process is not taken
    /// for dead meanwhile. A machine whose calls never take longer than a turn may does not need it.
    fn keep_alive(&mut self, _pulse: &Pulse) {}

    /// A digest of the whole state, equal on replicas that have applied the same commands. For tests and `martlet status`; may be slow.
    fn digest(&self) -> u64;
}

/// A state machine without state, for code that only inspects a log or imitates a replica.
#[derive(Debug)]
pub struct NoState;

impl StateMachine for NoState {
    fn apply(&mut self, _: LogIndex, _: &[u8]) {}

    fn transfer(&self, _: u64, _: usize, _: &mut Vec<u8>) -> Option<u64> {
        None
    }

    fn install(&mut self, _: &[u8]) -> Result<(), UnreadablePart> {
        Ok(())
    }

    fn clear(&mut self) {}

    fn digest(&self) -> u64 {
        0
    }
}

/// Why a proposal was refused. No part of it is in any log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This process does not lead, or no longer.
    #[error("this replica does not lead")]
    NotLeading,
    /// It is longer than the engine's records can be.
    #[error("a proposal of {bytes} bytes; at most {allowed} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest that is taken.
        allowed: usize,
    },
}

/// Why leadership is not handed over. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// This process does not lead, or no longer.
    #[error("this replica does not lead")]
    NotLeading,
    /// No other replica, or not the requested one, is alive and holds the state.
    #[error("no such replica holds the state")]
    NoSuccessor,
    /// Leadership is already being handed over to another replica.
    #[error("leadership is being handed over to another replica")]
    UnderWay,
    /// The view determines the leader, which hands over by leaving.
    #[error("with this engine a leader hands over by leaving")]
    ByLeaving,
}

/// Why a request for another number of places is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// This process does not lead, or no longer.
    #[error("this replica does not lead")]
    NotLeading,
    /// That many places are not allowed.
    #[error("a group of {places} places; at most {most} are allowed")]
    TooMany {
        /// What was asked for.
        places: usize,
        /// The most that there are.
        most: usize,
    },
    /// The engine's groups have as many places as members.
    #[error("with this engine a group has as many places as members: add nodes, or remove some")]
    ByMembers,
}

/// How far a hand-over of leadership has come, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOverState {
    /// The outcome is not known yet.
    UnderWay,
    /// This process no longer leads, and the successor leads, or a committed entry names it as the next leader.
    Done,
    /// The successor was lost, so this process still leads.
    SuccessorLost,
    /// This process lost its leadership on the way, and the named process, not the successor, leads now. It may be this process again. `None`: no leader has
    /// been seen for long, and the successor may still become one.
    Overtaken(Option<ProcessId>),
}

/// What a replica is just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads: it takes requests, and its replies go out as far as [`Replica::released`] says.
    Primary,
    /// It follows, or is joining; as far as it knows, `primary` leads.
    Backup {
        /// The process to which clients are redirected.
        primary: Option<ProcessId>,
    },
    /// It has been excluded and starts over; everything that it held is void.
    Excluded,
}

/// The moment that a reply waits for. A replica's tickets only grow. They mean nothing across a change of [`Replica::reign`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A client on the fabric came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// It is connected: its lane may be read, and its reply lane written.
    Up(PeerId),
    /// Its connection has ended for good. `certain`: its process has ended too, so its requests will never be repeated.
    Gone {
        /// Which client.
        peer: PeerId,
        /// Whether its kernel says that it has ended.
        certain: bool,
    },
}

/// An application's view of its replica, during one turn of the duty cycle.
///
/// The order of a turn: the application takes requests, executes them on [`Replica::machine`] and proposes their effects; the engine writes them to the
/// backups, fences, and checks `active`; then the application sends the replies whose ticket is released. So every reply, to a read or a write, follows an
/// `active` check that is later than the execution (TRAPS 7).
pub trait Replica {
    /// The fabric the process runs on.
    type Fabric: Fabric;
    /// The application's state.
    type Machine: StateMachine;

    /// The time at the start of this turn.
    fn now(&self) -> Time;
    /// What this replica is.
    fn standing(&self) -> Standing;
    /// The newest view that this replica knows.
    fn view(&self) -> ViewNumber;
    /// That view itself, for reports; `None` before the first.
    fn current_view(&self) -> Option<&View> {
        None
    }
    /// Where clients reach a member, as `host:port`.
    fn address_of(&self, process: ProcessId) -> Option<&str>;
    /// Counts the times that this process became or ceased to be primary. When it changes, waiting replies must be dropped, and their clients told or cut off,
    /// because it is unknown whether those requests took effect.
    fn reign(&self) -> u64;
    /// While it leads: the number of its reign, unique among the reigns of all processes. Others can use it to refuse what an earlier reign produced.
    fn fencing_token(&self) -> Option<u64> {
        None
    }
    /// Where the application, like the machine, reports progress during long work. It changes with each life of the process.
    fn pulse(&self) -> &Pulse;
    /// The state, to read.
    fn machine(&self) -> &Self::Machine;
    /// Whether the machine of a replica that does not lead shows the whole state as it was after some committed command, perhaps a while ago. Nothing is
    /// missing, as it would be while the replica is taught, and nothing is there that may yet be lost, as it would be after a reign. Its answers may be out of
    /// date, but never come from a state that did not exist.
    fn shows_committed(&self) -> bool;
    /// When the machine of a leader executes a command. With [`Execution::Committed`] an application proposes commands, and answers from its machine once their
    /// ticket is [released](Replica::released): by then everything proposed before the ticket was taken has been applied.
    fn execution(&self) -> Execution {
        Execution::Speculative
    }
    /// The state, for a primary to execute a request at once, before it is replicated. Not with [`Execution::Committed`].
    fn machine_mut(&mut self) -> &mut Self::Machine;
    /// Whether proposals of about `bytes` more would find room; if not, the application takes no further request in this turn.
    fn has_room(&self, bytes: usize) -> bool;
    /// Hands the effects of requests to the engine, as primary. They are taken in order.
    ///
    /// # Errors
    /// When this process does not lead, or they are longer than [`max_proposal_bytes`](Replica::max_proposal_bytes). The machine shows the effects already, so
    /// an application must check both before it executes.
    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError>;
    /// The longest proposal that the engine takes, in bytes.
    fn max_proposal_bytes(&self) -> usize {
        usize::MAX
    }
    /// The machine shows something that is in no log and never will be, so this process starts over and is taught by the others. A waiting client gets no
    /// answer, or learns that the process is gone.
    fn give_up(&mut self) {}
    /// Hands leadership over to the replica of this node, or to the next in line. [`hand_over_state`](Replica::hand_over_state) reports the outcome; until then
    /// there may be no room for proposals.
    ///
    /// # Errors
    /// See [`HandOverError`].
    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        let _ = to;
        Err(HandOverError::ByLeaving)
    }
    /// The state of the last hand-over that was not refused; `None` if there was none in this life.
    fn hand_over_state(&self) -> Option<HandOverState> {
        None
    }
    /// Asks for a group of `places` places, or of as many as it has members if `places` is 0. The request is in the log once [`places`](Replica::places) shows
    /// it; if the leader is lost before that, the request may be lost too.
    ///
    /// # Errors
    /// See [`ResizeError`].
    fn resize(&mut self, places: usize) -> Result<(), ResizeError> {
        let _ = places;
        Err(ResizeError::ByMembers)
    }
    /// Whether the group can have another number of places than members.
    fn resizes(&self) -> bool {
        false
    }
    /// How many places the group has and how many it will have, as far as this process knows; `None` if both follow from its members.
    fn places(&self) -> Option<(usize, usize)> {
        None
    }
    /// Asks for another member's removal, for example because an operator saw it hang. A view without it is decided, and where a majority commits, the group
    /// continues without it. If the removed process is alive, it starts over when it learns of this. For a process that is not a member, nothing happens.
    fn evict(&mut self, process: ProcessId) {
        let _ = process;
    }
    /// Whether leadership can be handed over at all, other than by leaving.
    fn hands_over(&self) -> bool {
        false
    }
    /// Asks for a higher feature level; the [view](Replica::current_view) shows when it has risen. A request can be lost, so repeat it until then.
    ///
    /// # Errors
    /// See [`LevelError`].
    fn raise_level(&mut self, level: u8) -> Result<(), LevelError> {
        let _ = level;
        Err(LevelError::NoView)
    }
    /// The ticket for replies computed in this turn.
    fn ticket(&self) -> Ticket;
    /// Replies with tickets up to this one may go out.
    fn released(&self) -> Ticket;
    /// The ticket for replies computed in this turn that must not depend on any clock.
    fn ticket_by_quorum(&mut self) -> Ticket;
    /// Replies whose ticket was [asked for by quorum](Replica::ticket_by_quorum) may go out up to this one: after everything that they saw had been replicated,
    /// a majority was asked, and knew of no other process that could lead.
    fn released_by_quorum(&self) -> Ticket;
    /// The endpoint, for the application's own lanes.
    fn fabric(&mut self) -> &mut Self::Fabric;
    /// The next arrival or departure of a client on the fabric.
    fn client_event(&mut self) -> Option<ClientEvent>;
}

/// A node may add its own descriptors to the epoll instance that an application sleeps on. Their events carry this user data; such an event ends a sleep and
/// means nothing else.
pub const NODES_OWN: u64 = u64::MAX;

/// What a node shows of a service that outlives its processes, as reported by the service's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Since when it has served.
    pub since: Time,
    /// Clients' connections that it holds.
    pub connections: u64,
    /// How often a replica has taken the service over, since it was started.
    pub takeovers: u64,
    /// How long the last takeover took, in nanoseconds: from when the predecessor's death or silence was noticed until the successor served. 0: unknown.
    pub last_takeover_ns: u64,
    /// Replicas that have been started to replace others.
    pub replaced: u64,
}

/// What a node serves with its replica. Its methods are called in turn by the node's duty cycle and never block, except `sleep`.
pub trait Application {
    /// Its state.
    type Machine: StateMachine;

    /// Whether it can serve where a leader executes [on commit](Execution::Committed).
    const ON_COMMIT: bool = false;

    /// Takes requests and executes them. Returns how many it took; 0 lets the node idle.
    fn poll<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R) -> usize;

    /// Sends what has been released. Returns how many replies went out.
    fn release<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R) -> usize;

    /// The last call in a life: a leader has stopped leading, and no waiting reply will be released. Requests taken now are not replicated.
    fn end_life<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R) {
        self.poll(replica);
        self.release(replica);
    }

    /// How many requests of its clients broke their protocol, since it was started.
    fn malformed_requests(&self) -> u64 {
        0
    }

    /// Its report on the service that it leads. `None`: it leads no such service.
    fn service(&self) -> Option<Service> {
        None
    }

    /// Whether a client of the application has asked this node to end; the node then leaves the cluster in an orderly way.
    fn wants_end(&self) -> bool {
        false
    }

    /// Sleeps until the application's own sources, such as sockets, have work for it, or until one of the node's descriptors among them is readable; at most so
    /// many nanoseconds. `false`: it cannot sleep, and has not slept.
    fn sleep(&mut self, _at_most_ns: u64) -> bool {
        false
    }

    /// The latest time of the application's next turn, even if nothing arrives: its own timer. The largest [`Time`]: it has none.
    fn deadline(&self) -> Time {
        Time(u64::MAX)
    }

    /// Whether the most recently served clients send requests through memory, where only a thread that is awake finds the next one at once. A client on a
    /// socket, in contrast, wakes a sleeping thread.
    fn is_heard_in_memory(&self) -> bool {
        true
    }

    /// Whether there are clients on the fabric that would turn to this replica at once if it began to lead. A thread that sleeps then would make them wait.
    fn has_clients_in_memory(&self) -> bool {
        false
    }

    /// Takes the completion of an operation that the application posted on its own lanes, under a token of
    /// [`Component::Application`](crate::basics::layout::Component::Application).
    fn complete<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R, completion: Completion) {
        let _ = (replica, completion);
    }
    /// A hint that this replica may lead soon: it can prefetch the memory that it would first write for its clients.
    fn expect_to_lead<F: Fabric>(&self, _fabric: &F) {}

    /// For rehearsals of a failover: an application of the same kind with an empty machine, which serves only clients on its replica's fabric, with rings of
    /// these sizes. Nothing that it does may be visible outside. `None`: there is none, and the node rehearses nothing.
    fn understudy(&self, _sizes: Sizes) -> Option<(Self, Self::Machine)>
    where
        Self: Sized,
    {
        None
    }

    /// For rehearsals of a failover: a client at this endpoint, whose regions are [`client_regions`](crate::basics::layout::client_regions) of these
    /// sizes. `None`: clients of this application do not come over the fabric.
    fn made_up_client<F: Fabric + 'static>(&self, _endpoint: F, _sizes: Sizes) -> Option<Box<dyn MadeUpClient>> {
        None
    }
}

/// A made-up client for a rehearsal. It requests one change after another.
pub trait MadeUpClient {
    /// Prepares the next request, unless the last one is still unanswered.
    fn ask(&mut self);
    /// Reads what has arrived and sends what is due. Returns whether the request has been answered.
    fn poll(&mut self, now: Time) -> bool;
}

//! What stands around every engine: the state machine that the user supplies, how an application sees its replica, and what engines share.

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

/// The longest part of the state, in bytes: the longest value of the key-value store is half of it, and goes in one part. What stands in a longer one is
/// taught to nobody, and not written down; whoever would have to says so.
pub const MAX_PART_BYTES: usize = 1 << 30;
/// The most that a state machine is asked for in one part, in bytes. A part goes beyond that by what cannot be divided.
pub const MAX_TRANSFER_BUDGET_BYTES: usize = MAX_PART_BYTES / 8;

/// Bytes that a state machine was to take for a part of the state, and cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("a part of the state cannot be read: do all nodes of the cluster run the same program?")]
pub struct UnreadablePart;

/// An entry of the log that a state machine cannot read: another build has written it.
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
/// Under `primary-backup` the primary has already changed its machine when it proposes (speculative execution, uKharon section 7.3): there,
/// commands are the *effects* of a request, and `apply` runs on backups only.
pub trait StateMachine {
    /// Applies one command, each once and in order. While a machine is being taught it holds only a part of the state: what a command finds
    /// or does outside of the ranges installed so far is replaced when they are installed, and must do no harm. Deterministic: neither clock nor chance, nothing but the state and the arguments.
    ///
    /// A command that it cannot read was proposed by a replica of this cluster that runs another build. The machine then says so by
    /// [`unreadable`](StateMachine::unreadable): what it holds means nothing from there on, and its replica steps aside.
    fn apply(&mut self, index: LogIndex, command: &[u8]);

    /// The first entry that it could not read since it was last [cleared](StateMachine::clear). Until it is cleared again it takes no more commands, and what it
    /// [transfers](StateMachine::transfer) is no part that a replica installs.
    fn unreadable(&self) -> Option<&UnreadableEntry> {
        None
    }

    /// Appends to `out` the next part of the state from `cursor` on (0 at the start), about `budget` bytes of it, and returns the cursor
    /// after it, or `None` when that was the last. Between two calls commands may be applied; a receiver that has applied the same
    /// commands at the same points between its [`StateMachine::install`] calls ends with the same state. This is how a replica joins
    /// without stopping the primary: a part is small, and no copy of the whole is made. One of more than [`MAX_PART_BYTES`] goes to
    /// nobody, nor does any other of a state that has one.
    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64>;

    /// Takes a part that [`StateMachine::transfer`] produced: it replaces whatever this machine held in the part's range.
    ///
    /// # Errors
    /// When the bytes are none. What the machine holds then means nothing: it is [cleared](StateMachine::clear) before anything else.
    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart>;

    /// Forgets everything: a fresh machine.
    fn clear(&mut self);

    /// The machine belongs to the process of this pulse from now on. A call that may take long reports there what it has done, so that this process is
    /// not taken for dead meanwhile. Not needed where no call takes longer than a turn may.
    fn keep_alive(&mut self, _pulse: &Pulse) {}

    /// A digest of the whole state, equal on replicas that have applied the same commands. For tests and `martlet status`; may be slow.
    fn digest(&self) -> u64;
}

/// A state that is nothing: for whoever only wants to know what a log is, or plays a replica.
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

/// Why a proposal was not taken. Nothing of it is in any log.
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
    /// Nobody else, or not the one that was asked for, lives and holds the state.
    #[error("no such replica holds the state")]
    NoSuccessor,
    /// It is being handed over to another one.
    #[error("leadership is being handed over to another replica")]
    UnderWay,
    /// The leader follows from the view: it hands over by leaving.
    #[error("with this engine a leader hands over by leaving")]
    ByLeaving,
}

/// Why a group is not asked for another number of places. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// This process does not lead, or no longer.
    #[error("this replica does not lead")]
    NotLeading,
    /// There are never so many.
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

/// What has come of handing leadership over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOverState {
    /// It cannot be told yet.
    UnderWay,
    /// This process leads no more, and the successor leads, or is named as the one that leads next by what is committed.
    Done,
    /// This process leads on: the successor was lost.
    SuccessorLost,
    /// This process lost its leadership on the way, and it did not go to the successor but to this one, which may be this process again; `None`: nobody
    /// has been seen to lead for long, and the successor may yet.
    Overtaken(Option<ProcessId>),
}

/// What a replica is just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads: it takes requests, and its replies go out as far as [`Replica::released`] says.
    Primary,
    /// It follows, or is on its way in; `primary` leads, as far as it knows.
    Backup {
        /// Whom to redirect clients to.
        primary: Option<ProcessId>,
    },
    /// It has been excluded and starts over: everything it held is void.
    Excluded,
}

/// The moment a reply waits for. Tickets of one replica only grow; they mean nothing across a change of [`Replica::reign`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A client on the fabric came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// It is connected: its lane may be read, and its reply lane written.
    Up(PeerId),
    /// Its connection has ended for good. `certain`: its process has, too, so nobody will ever ask again what it asked.
    Gone {
        /// Which client.
        peer: PeerId,
        /// Whether its kernel says that it has ended.
        certain: bool,
    },
}

/// An application's view of its replica, during one turn of the duty cycle.
///
/// The order of a turn: the application takes requests, executes them on [`Replica::machine`] and proposes their effects; the engine writes
/// them to the backups, fences, and checks `active`; then the application sends the replies whose ticket is released. So every reply, to a
/// read as to a write, follows an `active` check that is later than the execution (TRAPS 7).
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
    /// That view itself, for those who report on it; `None` before the first.
    fn current_view(&self) -> Option<&View> {
        None
    }
    /// Where clients reach a member, as `host:port`.
    fn address_of(&self, process: ProcessId) -> Option<&str>;
    /// Counts the times that this process became or ceased to be primary. When it changes, replies that wait must be dropped and their
    /// clients told or cut off: whether those requests took effect is unknown.
    fn reign(&self) -> u64;
    /// While it leads: the number of its reign among those of all processes, by which others can refuse what comes of an earlier one.
    fn fencing_token(&self) -> Option<u64> {
        None
    }
    /// Where the application reports long work, as the machine does. It changes with each life of the process.
    fn pulse(&self) -> &Pulse;
    /// The state, to read.
    fn machine(&self) -> &Self::Machine;
    /// Whether the machine of a replica that does not lead shows the whole state as it was after some committed command, perhaps a while ago: nothing is missing, as
    /// while it is taught, and nothing is there that may yet be lost, as after a reign. What it answers then is true of the past, and never of a state that was
    /// not to be.
    fn shows_committed(&self) -> bool;
    /// When the machine of a leader executes a command. With [`Execution::Committed`] an application proposes commands, and answers them by what its machine shows once
    /// their ticket is [released](Replica::released): everything that was proposed before the ticket was taken has been applied by then.
    fn execution(&self) -> Execution {
        Execution::Speculative
    }
    /// The state, to execute a request as primary, at once and before it is replicated. Not with [`Execution::Committed`].
    fn machine_mut(&mut self) -> &mut Self::Machine;
    /// Whether proposals of about `bytes` more would find room; if not, the application takes no further request in this turn.
    fn has_room(&self, bytes: usize) -> bool;
    /// Hands the effects of requests to the engine, as primary. They are taken in order.
    ///
    /// # Errors
    /// When this process does not lead, or they are longer than [`max_proposal_bytes`](Replica::max_proposal_bytes): since the machine shows
    /// them already, an application asks before it executes.
    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError>;
    /// The longest proposal that the engine takes, in bytes.
    fn max_proposal_bytes(&self) -> usize {
        usize::MAX
    }
    /// The machine shows what is in no log and never will be: this process starts over, and is taught by the others. A client that waits for it hears
    /// nothing, or that it is gone.
    fn give_up(&mut self) {}
    /// Hands leadership over to the replica of this node, or to whoever comes next. [`hand_over_state`](Replica::hand_over_state) tells what comes of it; until
    /// then there may be no room for proposals.
    ///
    /// # Errors
    /// See [`HandOverError`].
    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError> {
        let _ = to;
        Err(HandOverError::ByLeaving)
    }
    /// What has come of the last wish to hand leadership over that was not refused; `None` if there was none in this life.
    fn hand_over_state(&self) -> Option<HandOverState> {
        None
    }
    /// Has the group have so many places, or as many as it has members if `places` is 0. What is asked for stands in the log once [`places`](Replica::places) shows it:
    /// a leader that is lost before may have told nobody.
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
    /// How many places the group has, and how many it is to have, if that does not follow from its members; as far as this process knows.
    fn places(&self) -> Option<(usize, usize)> {
        None
    }
    /// Asks for another member's removal, as an operator does of one that hangs: a view without it is decided, and where a majority commits its group goes on without it.
    /// If it lives it starts over when it hears of that. A process that is no member is asked for in vain.
    fn evict(&mut self, process: ProcessId) {
        let _ = process;
    }
    /// Whether leadership can be handed over at all, other than by leaving.
    fn hands_over(&self) -> bool {
        false
    }
    /// Asks for a higher feature level; the [view](Replica::current_view) tells when it has risen. A request can be lost: ask again until it has.
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
    /// The ticket for replies computed in this turn that are not to depend on any clock.
    fn ticket_by_quorum(&mut self) -> Ticket;
    /// Replies whose ticket was [asked for by quorum](Replica::ticket_by_quorum) may go out up to this one: a majority was asked, after everything that they
    /// saw had been replicated, and knew of nobody else who could lead.
    fn released_by_quorum(&self) -> Ticket;
    /// The endpoint, for the application's own lanes.
    fn fabric(&mut self) -> &mut Self::Fabric;
    /// The next coming or going of a client on the fabric.
    fn client_event(&mut self) -> Option<ClientEvent>;
}

/// What says of an event that it is the node's, where a node has put descriptors of its own among those that an application sleeps on: the
/// user data in its epoll instance. Such an event ends a sleep and means nothing else.
pub const NODES_OWN: u64 = u64::MAX;

/// What the leader of a service that outlives its processes tells of it to whoever looks at its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Since when it has served.
    pub since: Time,
    /// Clients' connections that it holds.
    pub connections: u64,
    /// How often a replica has taken the service over, since it was started.
    pub takeovers: u64,
    /// How long the last time took, from when the death or silence of the one before was seen until the successor served, in nanoseconds; 0: nobody knows.
    pub last_takeover_ns: u64,
    /// Replicas that have been started in the place of others.
    pub replaced: u64,
}

/// What a node serves with its replica. Its methods are called in turn by the node's duty cycle and never block, but for `sleep`.
pub trait Application {
    /// Its state.
    type Machine: StateMachine;

    /// Whether it can serve where a leader executes [on commit](Execution::Committed).
    const ON_COMMIT: bool = false;

    /// Takes requests and executes them. Returns how many it took; 0 lets the node idle.
    fn poll<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R) -> usize;

    /// Sends what has been released. Returns how many replies went out.
    fn release<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R) -> usize;

    /// The last call in a life: whoever leads then leads no more, and nothing that waits will be released. What is taken now is not replicated.
    fn end_life<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R) {
        self.poll(replica);
        self.release(replica);
    }

    /// How many requests of its clients broke their protocol, since it was started.
    fn malformed_requests(&self) -> u64 {
        0
    }

    /// What it tells of the service that it leads. `None`: it leads none of that kind.
    fn service(&self) -> Option<Service> {
        None
    }

    /// Whether somebody whom the application serves has asked for this node's end: it then leaves the cluster in order.
    fn wants_end(&self) -> bool {
        false
    }

    /// Sleeps until there is something to do that the application learns of by its own means, such as sockets, or until a node's descriptor
    /// is readable that has been put among them; at most so many nanoseconds. `false`: it cannot, and has not slept.
    fn sleep(&mut self, _at_most_ns: u64) -> bool {
        false
    }

    /// When the application wants its next turn at the latest, though nothing comes: a timer of its own. [`Time`]'s largest: it has none.
    fn deadline(&self) -> Time {
        Time(u64::MAX)
    }

    /// Whether those whom the application has served last are heard of in memory, where only an awake thread finds their next request at
    /// once. A client that comes by a socket wakes a thread that sleeps there.
    fn is_heard_in_memory(&self) -> bool {
        true
    }

    /// Whether there are clients on the fabric that would come at once, should this replica begin to lead: a thread that sleeps meanwhile would make
    /// them wait.
    fn has_clients_in_memory(&self) -> bool {
        false
    }

    /// Takes the end of an operation that the application posted on its own lanes, under a token of
    /// [`Component::Application`](crate::basics::layout::Component::Application).
    fn complete<R: Replica<Machine = Self::Machine>>(&mut self, replica: &mut R, completion: Completion) {
        let _ = (replica, completion);
    }
    /// A hint that this replica may lead soon: what it would write to its clients first can be brought near.
    fn expect_to_lead<F: Fabric>(&self, _fabric: &F) {}

    /// For rehearsals of a failover: an application of the same kind with an empty machine, that serves nobody but who comes over its replica's
    /// fabric, with rings of these sizes. Nothing that it does may be noticed outside. `None`: it has none, and its node rehearses nothing.
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

/// A client that an application makes up for a rehearsal. It asks for one change after another.
pub trait MadeUpClient {
    /// Has a request to send, unless the last one is still without its reply.
    fn ask(&mut self);
    /// Looks at what has come, and sends what is to be sent. Returns whether the request has been answered.
    fn poll(&mut self, now: Time) -> bool;
}

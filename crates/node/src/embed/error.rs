//! What can go wrong for a program that embeds a replica.

use std::fmt;
use std::io;

use crate::config::ConfigError;
use crate::runner::RunError;

/// The leader, as a replica that does not lead knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its node's number in the cluster.
    pub node: u16,
    /// Where its clients reach it, as its builder's [`listen`](super::Builder::listen) or the cluster's configuration says. `None`: it has no such address.
    pub address: Option<String>,
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.node)?;
        self.address.as_ref().map_or(Ok(()), |address| write!(f, " at {address}"))
    }
}

fn who(leader: &Option<Leader>) -> String {
    leader.as_ref().map_or("no leader is known".to_owned(), |leader| format!("{leader} leads"))
}

/// Why a call failed. Only [`CallError::OutcomeUnknown`] leaves open whether a command has taken effect. After [`CallError::Confirmed`] and
/// [`CallError::ReplyTooLong`] it has; after any other error it has not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// This replica does not lead. Ask the leader.
    #[error("not the leader: {}", who(leader))]
    NotLeader {
        /// The leader, if it is known.
        leader: Option<Leader>,
    },
    /// The log has no room, because a follower or this replica's disk is slow, and no more calls may wait.
    #[error("the log is full, and {waiting} calls already wait, the most that may: try again later")]
    LogFull {
        /// How many wait.
        waiting: usize,
    },
    /// No more calls may wait. This replica is making progress with those that do.
    #[error("{waiting} calls already wait, the most that may: try again later")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The command is longer than one entry can hold.
    #[error("the command has {bytes} bytes; allowed: up to {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest that is allowed.
        limit: usize,
    },
    /// Leadership was lost, or the time allowed ran out, while the command was being replicated: it may have taken effect, or may yet. A session's command can
    /// be asked for again, whichever replica leads then.
    #[error("the outcome is unknown: the command may have taken effect, or may take effect later")]
    OutcomeUnknown,
    /// The time allowed ran out on a read, or on a handover of leadership, which may still take effect.
    #[error("no answer in the time allowed")]
    TimedOut,
    /// This replica is shutting down, or has shut down.
    #[error("this replica is shutting down")]
    ShuttingDown,
    /// This was a blocking call from a completion callback, where it would wait for itself.
    #[error("a blocking call on the replica's own thread would wait for itself: use the call that takes a callback")]
    OnReplicaThread,
    /// The session is not among those that are kept: it was never opened, it was closed, or so many sessions were used since that it was forgotten.
    #[error(
        "session {session} is not known: it was never opened, or was closed or forgotten. Whether its last commands took effect is unknown"
    )]
    SessionUnknown {
        /// Which.
        session: u64,
    },
    /// A session's command came out of turn. Commands of a session are executed in the order of their numbers.
    #[error("command {seq} of session {session} is out of turn: send command {next} next")]
    OutOfTurn {
        /// Which session.
        session: u64,
        /// The command's number.
        seq: u64,
        /// The number that is next.
        next: u64,
    },
    /// The client has confirmed the reply to this session's command, so the reply is not kept any more. The command took effect once.
    #[error("command {seq} of session {session} took effect; its reply was confirmed, and is no longer kept")]
    Confirmed {
        /// Which session.
        session: u64,
        /// The command's number.
        seq: u64,
    },
    /// This session's command was executed before, with a reply too long to be kept. It took effect once, and the call that asked for it first may have had the
    /// reply.
    #[error("command {seq} of session {session} took effect, but its reply of {bytes} bytes was too long to keep")]
    ReplyTooLong {
        /// Which session.
        session: u64,
        /// The command's number.
        seq: u64,
        /// The reply's length.
        bytes: u64,
    },
    /// The client has left so many of the session's replies unconfirmed, or such long ones, that no more are kept for it.
    #[error("session {session} has {kept} unconfirmed replies: confirm some first")]
    TooManyUnconfirmed {
        /// Which session.
        session: u64,
        /// How many.
        kept: usize,
    },
    /// Leadership cannot be handed over: no other replica holds the whole state, or the chosen successor does not hold it, or it was lost on the way.
    #[error("no other replica has the whole state, or the chosen one cannot take over")]
    NoSuccessor,
    /// Leadership is already being handed over, to another replica than this call asks for.
    #[error("leadership is already being handed over to another replica")]
    HandingOver,
    /// This replica lost its leadership while it was handing it over, and it did not go to the successor. Where no leader is known, it may still go there.
    #[error("leadership was lost before it was handed over: {}", who(leader))]
    NotHandedOver {
        /// The leader now, if that is known; it may be this replica again.
        leader: Option<Leader>,
    },
    /// The counters could not be read.
    #[error("cannot read the counters: {0}")]
    Metrics(crate::counters::ReadingError),
}

impl CallError {
    /// The error of a call that is refused because no more calls may wait; `full`: because they wait for room in the log.
    pub(super) fn too_many(full: bool, waiting: usize) -> CallError {
        if full { CallError::LogFull { waiting } } else { CallError::Busy { waiting } }
    }
}

/// Why a replica did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The builder was not told something that it needs.
    #[error("{what} is not set: call `{call}` on the builder")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// The builder's call that sets it.
        call: &'static str,
    },
    /// The builder was given a value that is not allowed.
    #[error("{key} is {value}; allowed: {allowed}")]
    Value {
        /// The setting.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A call on the builder gave the configuration something that is not allowed there.
    #[error("what the call `{call}` on the builder was given is refused: {error}")]
    Given {
        /// The builder's call.
        call: &'static str,
        /// Which key of the configuration it sets, and what that may be.
        #[source]
        error: Box<ConfigError>,
    },
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system has no descriptors or threads left.
    #[error("{what}: {error}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// The node does not start.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The replica's thread panicked before it had started. A possible cause is the state machine, which was given what was on disk.
    #[error("the replica's thread panicked at its start: {0}")]
    Panicked(String),
}

/// How a replica ended that did not end in order.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The node could not go on.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The state machine or a callback panicked on the replica's thread. The other replicas have taken the replica for dead.
    #[error("the replica's thread panicked: {0}")]
    Panicked(String),
    /// Another thread is already waiting for the replica's end, or this is the replica's own thread.
    #[error("cannot wait for the replica's end: another thread already does, or this is the replica's own thread")]
    Elsewhere,
}

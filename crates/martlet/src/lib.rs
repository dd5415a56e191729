//! What a program uses that embeds Martlet: replication for the program's own state, at the price of one write.
//!
//! ```no_run
//! use martlet::{LogIndex, Replica, StateMachine, UnreadablePart};
//!
//! /// Counts.
//! #[derive(Default)]
//! struct Counter(u64);
//!
//! impl StateMachine for Counter {
//!     fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
//!         self.0 = self.0.wrapping_add(command.len() as u64);
//!         reply.extend_from_slice(&self.0.to_le_bytes());
//!     }
//!     fn snapshot(&self, out: &mut Vec<u8>) {
//!         out.extend_from_slice(&self.0.to_le_bytes());
//!     }
//!     fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
//!         self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| UnreadablePart)?);
//!         Ok(())
//!     }
//!     fn clear(&mut self) {
//!         self.0 = 0;
//!     }
//! }
//!
//! let replica = Replica::builder().cluster_file("cluster.toml").node(0).start(Counter::default())?;
//! let reply = replica.propose(b"+")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/embedding.md` explains how to use this crate and what it promises. `examples/counter.rs` is a whole program; `examples/exchange` in the workspace is a
//! larger one.

#![forbid(unsafe_code)]

pub use martlet_fabric::{Incarnation, NodeId, Pulse};
pub use martlet_node::embed::{
    Apply, Builder, CallError, Direct, Here, Leader, MAX_COMMAND_BYTES, MAX_KEPT_REPLY_BYTES, MAX_SESSIONS, MAX_UNCONFIRMED,
    MAX_UNCONFIRMED_BYTES, Plain, Replica, Role, RoleChange, RoleChanges, SessionCommand, StartError, StateMachine, StopError, Turn, Value,
    Waker,
};
pub use martlet_node::sched::{Class, Placement};
pub use martlet_node::stop::Stop;
pub use martlet_node::{ActingThread, ActingThreads, Ended, ProcessPolicy, Started};
pub use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
pub use martlet_protocol::replica::UnreadablePart;

/// Configuration: clusters, nodes, threads.
pub use martlet_node::config;
/// Counters and the events of failovers, as [`Replica::metrics`] returns them.
pub use martlet_node::counters;

/// The parts of [`StartError`] and [`StopError`], for programs that need more than the text. A configuration's errors are in [`config`], and those of counters
/// in [`counters`].
pub mod errors {
    pub use martlet_fabric::PartyError;
    pub use martlet_fabric::Protocol;
    pub use martlet_fabric::host::DeathWordsError;
    pub use martlet_node::backend::StartError as FabricError;
    pub use martlet_node::backend::errors::*;
    pub use martlet_node::wal::{Operation, WalError, format::Owner};
    pub use martlet_node::{ActingError, DiskError, RunError};
    pub use martlet_protocol::replica::UnreadableEntry;
    pub use martlet_protocol::replica::journal::RecoverError;
}

/// A cluster seen from outside, at no cost to it: the view that its nodes know, their counters, and the events of their failovers.
pub mod observe {
    pub use martlet_fabric::{Levels, NodeId, PeerEvent, PeerId};
    pub use martlet_node::client::{OpenError, ReadError};
    pub use martlet_protocol::membership::view::Departed;
    pub use martlet_protocol::membership::{Member, Roles, View};

    /// A client of a cluster on this host whose `fabric` is `shm`. It reads what the nodes show. If the cluster uses another fabric, the client never connects
    /// to any node: `martlet status --json` and `martlet metrics` show those.
    pub type ClientEndpoint = martlet_node::client::ClientEndpoint;
}

/// Failure detection for any program, whether or not it holds a replica: a client of its host's warden (FiDe; `docs/fide.md`). `examples/watcher.rs` is a whole
/// program.
pub mod fide {
    pub use martlet_warden::board::{Board, Evidence, Seen, Slot, State};
    pub use martlet_warden::client::{ActError, Acting, Error, Failure, Handler, Threads, Warden};
    pub use martlet_warden::place::{DEFAULT_SOCKET, SOCKET_VARIABLE, default_socket};
    pub use martlet_warden::wire::{AppStatus, HostStatus};
    pub use martlet_warden::{AppId, BadAppId, MAX_PIGGYBACK_BYTES, Resources, now_ns};
}

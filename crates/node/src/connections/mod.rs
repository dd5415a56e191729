//! Connections of clients that outlive the process that serves them, on one host.
//!
//! A process that dies by `kill -9` takes its connections along, since the kernel closes its descriptors. So it has a second process, its *keeper*, which
//! shares its table of descriptors and outlives it. A successor makes sure that the process is dead, with all its threads, asks its keeper for the sockets, and
//! asks the kernel how far each connection had come: how many bytes had been read from it, and how many written into it. What the dead process had received and
//! not executed, and what it had produced and not sent, is in memory that also outlives it. So no byte is lost or doubled. Both `martlet run` (the crate
//! `preload`) and the store's front end for the Redis protocol (`kv`) are built on this.
//!
//! | module | contents |
//! |---|---|
//! | [`keeper`] | the second process, and how a successor asks it |
//! | `handover` | how a keeper gives a successor its sockets, as fast as the kernel accepts them |
//! | [`process`] | how a process is identified, and how its death is made sure of |
//! | [`socket`] | what the kernel knows of a connection, whichever process holds it |
//! | [`ledger`] | the store's memory of what its clients have sent and are to be sent |
//! | [`service`] | the one address of a store's cluster on one host |
//! | [`sys`] | system calls as results |
//!
//! # How the store's connections are handed over
//!
//! The store's log holds effects, not requests. So for a request that changes something, the same log entry also holds its connection's *mark*: up to which
//! byte the client's stream has been executed, and which byte of the output comes next. Marks are kept in the table of sessions, under names of their own.
//! Before the leader posts that entry it has written the replies into its ledger; and before it sends anything, it notes in its ledger up to where both streams
//! are *settled*: everything that they say before that is committed. A successor has applied everything that is committed. Of the mark and the ledger's note,
//! it takes the one that is further. What comes before that place in the client's stream has been executed, and its replies are in the ledger, from the byte on
//! that the kernel says comes next. What comes after that place has had no committed effect and has been answered to no client; the successor executes it.
//! So each request is executed exactly once.
//!
//! The first leader has its *hold* committed, an entry that names its process, and takes sockets only then. So each successor knows of all processes that may
//! hold connections, and continues when each of them is dead or has said through its keeper that it has let go. When it has everything that they held, it ends
//! their holds.

mod handover;
pub mod keeper;
pub mod ledger;
pub mod process;
pub mod service;
pub mod socket;
pub mod sys;

/// A process that may hold connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its node.
    pub node: u16,
    /// Its process.
    pub pid: i32,
    /// When that process started, in clock ticks since the host started.
    pub started: u64,
}

impl Holder {
    /// This process.
    ///
    /// # Errors
    /// When the kernel does not say when the process started.
    pub fn this(node: u16) -> std::io::Result<Holder> {
        let pid = std::process::id() as i32;
        Ok(Holder { node, pid, started: process::started(pid)? })
    }
}

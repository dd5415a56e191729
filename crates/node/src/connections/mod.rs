//! Connections of clients that outlive the process which serves them, on one host.
//!
//! A process that dies by `kill -9` takes its connections along, since the kernel closes its descriptors. So it has a second process, its *keeper*, which shares its
//! table of descriptors and outlives it. A successor makes sure that the dead one is dead, with all its threads, asks its keeper for the sockets, and asks
//! the kernel how far each had come: how many bytes had been read out of it, and how many written into it. What the dead one had received and not executed, and
//! produced and not sent, lies in memory that outlives it as well. So no byte is lost or doubled. `martlet run` (the crate `preload`) and the store's front end
//! for the Redis protocol (`kv`) both stand on this.
//!
//! | module | what stands there |
//! |---|---|
//! | [`keeper`] | the second process, and how a successor asks it |
//! | `handover` | how it gives what it keeps, as far as the kernel takes it |
//! | [`process`] | who a process is, and that it is dead |
//! | [`socket`] | what the kernel knows of a connection, whoever holds it |
//! | [`ledger`] | the store's memory of what its clients have sent and are to be sent |
//! | [`service`] | the one address of a store's cluster on one host |
//! | [`sys`] | system calls as results |
//!
//! # How the store's connections are handed over
//!
//! The store's log holds effects, not requests. So a request that changes something leaves in the log, in the same entry as its effects, its connection's *mark*: up to
//! which byte its client's stream has been executed, and which byte of the output comes next. Marks stand in the table of sessions, under names of their own.
//! Before the leader posts that entry it has written the replies into its ledger; and before it sends anything, it notes in its ledger up to where both streams are *settled*:
//! what they say is committed. A successor has applied all that is committed. It takes, of the mark and the ledger's word, what is further: what stands before that
//! place in the client's stream has been executed, and its replies are in the ledger, from the byte on that the kernel says comes next; what stands behind
//! it has not been, has been answered to nobody, and is executed by the successor. So each request is executed exactly once.
//!
//! The first leader has its *hold* committed, an entry that names its process, and takes sockets only then. So each successor knows of all processes that may hold
//! connections, and goes on when each of them is dead or has said in its ledger's keeper that it let go. When it has all that they held it ends their holds.

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
    /// When that started, in clock ticks since the host did.
    pub started: u64,
}

impl Holder {
    /// This process.
    ///
    /// # Errors
    /// When the kernel does not say when it started.
    pub fn this(node: u16) -> std::io::Result<Holder> {
        let pid = std::process::id() as i32;
        Ok(Holder { node, pid, started: process::started(pid)? })
    }
}

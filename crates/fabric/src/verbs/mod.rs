//! The fabric of hosts with RDMA: libibverbs, loaded at run time.
//!
//! Every process registers its regions with its network card and hands the keys to its peers over TCP, after both have proved that they have the
//! cluster's key (module `meeting`). From then on, operations are requests to the cards, and the CPU at the other end takes no part.
//!
//! | file | contents |
//! |---|---|
//! | `ffi` | the library's binary interface |
//! | `device` | which device, port and address |
//! | `memory`, `queue` | registered memory; queue pairs and completion queues |
//! | `peer`, `offer` | what two processes keep for each other, and what they tell each other about it |
//! | `grant` | the right to write a lane |
//! | `line` | the operations on one peer, in order |
//! | `overdue` | how long to wait for a request that the device may have forgotten |
//! | `mail`, `mailbox` | datagrams, and the queue pairs that they go by |
//! | `group`, `packet` | the cluster's multicast group, and the layout of a packet to it |
//! | `fences` | a self-test of revocation |
//! | `events` | what a device reports by itself, for the log |
//! | `carrier` | what is added to the handshake of two processes (`meeting::tcp`) |
//! | `endpoint` | the contract's operations: `posting`, `completions`, `revocation` |
//!
//! # Planes
//! The background plane is one queue pair for each peer: public memory, compare-and-swap, all reading. The replication plane is one queue pair for
//! each lane and writer, with keys of its own, so that revoking a lane disturbs nothing else. Each plane has its own completion queue.
//!
//! # Trust
//! A process that holds the cluster's key is trusted with memory; clients get keys only for reading. The TCP connection is authenticated but not
//! encrypted, and what one card writes to another is neither: RDMA offers neither. Keep cluster and clients on a network of their own
//! (`docs/rdma.md`).

mod carrier;
mod config;
mod device;
mod endpoint;
mod events;
mod fences;
mod ffi;
mod grant;
mod group;
mod line;
pub(crate) mod mail;
mod mailbox;
mod memory;
pub(crate) mod offer;
mod overdue;
pub(crate) mod packet;
mod peer;
mod queue;
mod standalone;

pub use crate::exchange::BootstrapCounters;
pub use crate::meeting::{DEFAULT_MAX_CLIENTS, MIN_KEY_BYTES, PartyError};
pub use config::{StartError, VerbsConfig};
pub use device::{DeviceChoice, DeviceError, devices};
pub use endpoint::VerbsFabric;
pub use fences::{Fence, FenceTrial, try_fences};
pub use group::{Multicast, MulticastTrial, try_multicast};
pub use mail::MailCounters;
pub use queue::Patience;

/// What RDMA is like. A lease has to outlast the retransmission of a lost request, which comes after 67 ms.
pub(crate) const TRAITS: crate::Traits = crate::Traits {
    name: "verbs",
    spans_hosts: true,
    needs_address: true,
    certain_deaths: false,
    memory_outlives_process: false,
    answers_in_turns: false,
    has_devices: true,
    has_multicast: true,
    // It has to outlast the retransmission of a lost request, which comes after 67 ms.
    default_lease_us: 100_000,
    proves: "memory is registered and a queue pair connected with itself",
};

/// Samples of what processes on RDMA write for each other.
#[cfg(feature = "fuzzing")]
pub(crate) fn samples() -> Vec<crate::samples::Sample> {
    let grant = grant::Grant { epoch: 5, granted: true, queue_pair: 0x01_0203 };
    vec![
        ("verbs/offer".into(), offer::sample()),
        ("verbs/packet".into(), mail::sample()),
        ("verbs/packet to a group".into(), packet::sample()),
        ("verbs/grant".into(), grant.word().to_le_bytes().to_vec()),
    ]
}

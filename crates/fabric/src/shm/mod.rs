//! The fabric of processes on one host: shared memory.
//!
//! Every process creates its regions as sealed memfds and hands them to its peers over a Unix socket, after both have proved that they have the
//! cluster's key (module `meeting`). From then on, operations are loads and stores without any system call (module `endpoint`).
//!
//! Nothing is left behind, however a process ends: memfds, sockets and their abstract names disappear with the last process that holds them (TRAPS
//! 31). If processes find each other in a directory, some files stay there, which do no harm (module `rendezvous`).
//!
//! | file | contents |
//! |---|---|
//! | `peer` | our memory, lanes with their grant words, a mapped peer |
//! | `mail` | datagram rings |
//! | `bell` | parking and waking |
//! | `ear` | how descriptors are listened to for a parked thread |
//! | `rendezvous`, `handshake`, `bootstrap` | where and how processes meet |
//! | `shared` | what the bootstrap thread and the endpoint share |
//! | `endpoint` | the contract's operations; sleeping (`parking`); endpoints of one process that are connected to each other (`private`) |
//! | `regions` | this process's regions, for its other threads |
//!
//! # Trust
//! A process that holds the cluster's key and runs as the same user (or root) is trusted with memory. Clients get all public regions read-only, and
//! members get those that only their owner writes read-only. This guards against mistakes, such as a stray store, and not against malice: a process
//! of the same user could always trace ours. Whatever a peer writes is data: it is checked where it is read, and no length or position from a peer is
//! ever taken on trust.

mod bell;
mod bootstrap;
mod config;
mod ear;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod handshake;
mod mail;
mod peer;
mod regions;
mod rendezvous;
mod shared;
mod standalone;
#[cfg(test)]
mod tests;

pub use crate::host::socket::{Peer, peer};
pub use crate::meeting::{DEFAULT_MAX_CLIENTS, MIN_KEY_BYTES};
pub use bell::{MAX_PARK_WORDS, Vigil};
pub use config::{MemoryNeed, ShmConfig, StartError};
pub use ear::Ear;
pub use endpoint::{DatagramCounters, ParkWord, ShmFabric};
pub use regions::OwnRegions;
pub use rendezvous::{HostLock, Rendezvous};

/// What shared memory is like.
pub(crate) const TRAITS: crate::Traits = crate::Traits {
    name: "shm",
    spans_hosts: false,
    needs_address: false,
    certain_deaths: true,
    memory_outlives_process: true,
    answers_in_turns: false,
    has_devices: false,
    has_multicast: false,
    default_lease_us: 10_000,
    proves: "memory can be shared between processes of this user",
};

/// The layout of regions and lanes, for the samples of encodings.
#[cfg(feature = "fuzzing")]
pub(crate) fn sample_of_lanes() -> Vec<u8> {
    use crate::contract::{RegionName, RegionSpec};
    let regions = |name| vec![(RegionName(name), 64), (RegionName(name + 1), 3 * 4096), (RegionName(name + 2), 8)];
    let public = crate::host::plan::PublicPlan::new(&RegionSpec { public: regions(1), ..RegionSpec::default() });
    let lanes = crate::host::plan::LanesPlan::new(&regions(16), Some(mail::BYTES));
    let mail = lanes.mail.expect("asked for");
    let places = public.offsets.iter().chain([&public.bytes]).chain(&lanes.offsets).chain([&mail, &lanes.body]);
    places.chain([&crate::host::plan::GRANT_STRIDE]).flat_map(|at| (*at as u64).to_le_bytes()).collect()
}

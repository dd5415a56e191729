//! The fabric of processes on one host: shared memory.
//!
//! Every process makes its regions as sealed memfds and hands them to its peers over a Unix socket, after both have
//! proved that they have the cluster's key (module `meeting`). From then on operations are loads and stores, and no system call is made on the
//! way (module `endpoint`). Nothing is left behind, however a process ends: memfds, sockets and their abstract names go with the last process
//! that holds them (TRAPS 31); where processes meet in a directory, files stay there that are in nobody's way (module `rendezvous`).
//!
//! | file | what stands there |
//! |---|---|
//! | `peer` | our memory, lanes with their grant words, a mapped peer |
//! | `mail` | datagram rings |
//! | `bell` | parking and waking |
//! | `ear` | who listens to descriptors for a parked thread |
//! | `rendezvous`, `handshake`, `bootstrap` | where and how processes meet |
//! | `shared` | between the bootstrap thread and the endpoint |
//! | `endpoint` | the contract's operations; sleeping (`parking`); endpoints of one process, connected with each other (`private`) |
//! | `regions` | this process's regions, for its other threads |
//!
//! # Trust
//! A process that holds the cluster's key and runs as the same user (or root) is trusted with memory. Clients get public regions read-only, and members those that only
//! their owner writes, which guards against mistakes, a stray store among them; a process of the same user could always trace ours. Whatever a peer writes is data: it is checked where
//! it is read, and neither a length nor a position of a peer's is ever taken on faith.

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
};

/// Where regions and lanes lie, for the samples of encodings.
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

//! One-sided memory: processes act on each other's memory without the owner's CPU.
//!
//! [`contract`] says what every backend promises, and [`ring`] is the only way in which records travel through a lane. [`probe`] is for simulators.
//! The backends are `shm` (processes on one host), `verbs` (RDMA), `ethernet` (UDP) and `sim` (virtual time, one seed).
//!
//! Only the backends that map memory contain `unsafe`, and each use argues why it is sound.

pub mod canary;
#[cfg(all(any(test, feature = "conformance"), not(loom)))]
pub mod conformance;
pub mod contract;
pub mod datagrams;
pub mod double;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod ethernet;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
mod exchange;
#[cfg(all(any(test, feature = "fuzzing"), target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod fuzz;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod host;
/// The registry of fabrics.
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
mod kind;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod limits;
// How processes find and authenticate each other, for the backends in which they have to.
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
mod meeting;
pub mod primitive;
pub mod probe;
pub mod pulse;
pub mod ring;
#[cfg(all(feature = "fuzzing", target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod samples;
// Little-endian only: the kernel's futex words are the low halves of our words.
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod shm;
#[cfg(all(any(test, feature = "sim"), not(loom)))]
pub mod sim;
mod speech;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod standalone;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod verbs;

/// Sealed packets, for programs that send datagrams without a fabric.
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod sealing {
    pub use crate::ethernet::sealing::{Agreement, MAX_SEALED_BYTES, Opening, Sealing, Unopened};
}
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub use exchange::BootstrapCounters;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub use kind::{FabricKind, Traits};
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub use meeting::PartyError;
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub use shm::{HostLock, Peer, Rendezvous, peer};
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub use verbs::Multicast;

/// This host's RDMA devices, which a fabric may use, and what they can do.
#[cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64", not(loom)))]
pub mod devices {
    pub use crate::verbs::{DeviceChoice, Fence, devices as names, try_fences, try_multicast};
}

pub use contract::{
    Completion, Fabric, Identity, Incarnation, Local, LocalRegion, Memory, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region,
    RegionName, RegionSpec, Remote, Token,
};
pub use pulse::Pulse;
pub use speech::{Levels, MAX_BUILD_BYTES, Protocol};

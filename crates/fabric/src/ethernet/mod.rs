//! The fabric of ordinary hosts: one-sided memory over sealed UDP.
//!
//! Processes connect over TCP, prove to each other that they have the cluster's key, and agree on keys of their own. From then on, operations are UDP
//! packets, encrypted and authenticated, which the owner's processor answers: in a turn of the endpoint's thread, or by a stand-in while that thread
//! does something else.
//!
//! | file | contents |
//! |---|---|
//! | `packet` | the layout of packets |
//! | `cipher` | encryption and authentication, by either of two libraries |
//! | `seal` | keys, encryption, and the rejection of forged and repeated packets |
//! | `sealing` | the same, for programs that send datagrams without a fabric |
//! | `requester`, `responder` | the two halves of a flow, as pure state machines |
//! | `window` | how much may be under way |
//! | `path` | how large the packets are that a path carries |
//! | `mail` | datagrams in parts |
//! | `bundle` | many packets in one system call |
//! | `serving` | the guarded half of an endpoint: what others ask of it |
//! | `socket_filter` | which packets of strangers the system drops before they are queued |
//! | `stand_in` | the thread that serves while the endpoint's thread does not |
//! | `doubt` | whether a peer is still there after its TCP connection has ended |
//! | `peer`, `offer` | what two processes keep for each other, and what they tell each other when they connect |
//! | `endpoint` | the contract's operations |
//! | `mangled` | a hostile wire, for tests |
//! | `canary` | known bugs that the model tests have to find |
//!
//! # Rules
//! - The asker does all the remembering. A responder is a function of its state and one packet, so any thread may be the responder.
//! - A response says everything about the parts between what the asker has confirmed and `done`.
//! - Every effect that a peer has on our memory is made under one guard. So a revocation is a store under the guard, and no write can take effect
//!   late.
//! - Nothing in clear is believed: only what opens under the keys of this connection between these two lives. The end of a TCP connection is only a
//!   reason to ask the peer.
//! - No counter is used twice: a retransmission is sealed anew.

mod bundle;
mod canary;
mod cipher;
mod config;
mod doubt;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod mail;
#[cfg(any(test, feature = "conformance"))]
mod mangled;
mod offer;
mod packet;
mod path;
mod peer;
mod requester;
mod responder;
mod seal;
pub(crate) mod sealing;
mod serving;
mod socket_filter;
mod stand_in;
mod standalone;
#[cfg(test)]
mod tests;
mod window;

/// What ordinary hosts are like.
pub(crate) const TRAITS: crate::Traits = crate::Traits {
    name: "ethernet",
    spans_hosts: true,
    needs_address: true,
    certain_deaths: false,
    memory_outlives_process: false,
    answers_in_turns: true,
    has_devices: false,
    has_multicast: false,
    // It has to outlast the time for which a scheduler may keep a host's process from running: up to 70 ms were seen beside busy processes.
    default_lease_us: 100_000,
    proves: "a UDP socket can be opened; whether packets reach other hosts, `martlet doctor --peers` finds out in a cluster that runs",
};

/// Samples of what processes on ordinary hosts write for each other.
#[cfg(feature = "fuzzing")]
pub(crate) fn samples() -> Vec<crate::samples::Sample> {
    let mut samples = vec![("ethernet/offer".into(), offer::sample().encode())];
    samples.extend(packet::samples().into_iter().map(|(name, bytes)| (format!("ethernet/{name}"), bytes)));
    samples
}

pub use config::{DEFAULT_GIVE_UP, EthernetConfig, StartError};
pub use endpoint::EthernetFabric;
#[cfg(any(test, feature = "conformance"))]
pub use mangled::Mangling;
pub use serving::EthernetCounters;

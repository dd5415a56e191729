//! A plan of the network for heartbeats: the multicast trees that carry them, how large and how frequent packets may be, when they arrive, and the timeouts
//! that follow from that (FiDe section 3.3, appendices B and C; `docs/fide.md`).
//!
//! A plan is computed before anything runs, from a file that describes the network. Nothing here talks to a switch.
//!
//! | module | what it contains |
//! |---|---|
//! | [`topology`] | the network and the requests made of it, as read from a file |
//! | [`trees`] | the search for trees that share no switch |
//! | [`schedule`] | the parameters of the periodic multicast, with other trees and other traffic in the same queues |
//! | [`critical`] | how likely it is that both trees fail at once |
//! | [`fat_tree`] | the network of the paper's examples |
//! | [`outline`], [`map`] | trees drawn as text, and as SVG |

pub mod critical;
pub mod fat_tree;
pub mod map;
pub mod outline;
pub mod schedule;
pub mod topology;
pub mod trees;

pub use schedule::{Plan, Planned};
pub use topology::Topology;

//! A plan of the network for heartbeats: which multicast trees carry them, how large and how frequent packets may be, when they arrive, and which timeouts follow
//! (FiDe section 3.3, appendices B and C; `docs/fide.md`).
//!
//! A plan is made before anything runs, from a file that describes the network. Nothing here talks to a switch.
//!
//! | module | what stands there |
//! |---|---|
//! | [`topology`] | the network and what is asked of it, as a file says it |
//! | [`trees`] | the search for trees that have no switch in common |
//! | [`schedule`] | the parameters of the periodic multicast, with other trees and other traffic in the same queues |
//! | [`critical`] | how likely both trees fail at once |
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

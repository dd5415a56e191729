//! What distinguishes the engines that keep this log.

use std::fmt::Debug;

use crate::engine::Traits;

/// When a replica counts as holding an entry. An entry is committed when every replica of the view does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// When it is in the replica's memory, whether or not the process has looked there: a new primary reads its memory to the end before it leads.
    Written,
    /// When its process has taken the entry into its log and acknowledged that, before it learned of a view that excludes the primary.
    Acknowledged,
}

/// An engine that keeps this log.
pub trait Rule: Copy + Debug + 'static {
    /// What it is like.
    const TRAITS: Traits;
    /// When a replica counts as holding an entry.
    const HOLDS: Holds;
}

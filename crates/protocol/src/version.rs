//! Which protocol this build speaks (`docs/operating.md`, "Upgrade").
//!
//! Everything that a process writes for another one, or for a later life of its own, is an *encoding*: datagrams, views, records of lanes, effects, parts of
//! the state. `encodings.txt` beside this crate's manifest has a digest of fixed samples of each, and `cargo xtask tidy` compares them. An encoding changes in
//! one of two ways:
//!
//! - **With a new [`VERSION`].** Builds of different versions do not connect: a cluster is stopped before it is upgraded.
//! - **With a new level.** Whatever stands in `encodings.txt` stays as it is; the new form gets samples of its own, and bytes that no earlier build takes for
//!   something else, such as a new kind. [`LEVELS`] then reaches one further, and whoever writes asks the view whether its level has come so far
//!   ([`View::level`](crate::membership::View::level)). Nodes are upgraded one after the other.

use martlet_fabric::Levels;

/// The version of all encodings together, above the fabric's handshake.
pub const VERSION: u32 = 2;

/// The feature levels that this build can work at.
pub const LEVELS: Levels = Levels { least: 1, most: 1 };

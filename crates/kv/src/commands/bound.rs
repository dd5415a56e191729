//! How much a request may add to the log, told before it is executed: an engine takes records up to a length, and what has been executed cannot be
//! taken back.
//!
//! Changes are made of what stands in the request, so its arguments bound them. RENAME alone copies what it does not name, and asks for room itself
//! when it knows how much that is.

use super::table::{Command, flag};
use crate::resp::Args;

/// What one effect takes beside its key and its value: a tag, two lengths, a time.
pub(super) const EFFECT_BYTES: usize = 32;

/// Bounds what any command with these arguments adds, but for copies.
#[inline]
pub(crate) fn roughly(args: Args<'_>) -> usize {
    3 * (args.total_bytes() + args.len() * EFFECT_BYTES)
}

/// Bounds what this command adds, but for copies. A command that only reads adds nothing that it has to have room for: it deletes keys that are due on its way,
/// as far as there is room.
pub(super) fn of(command: &Command, args: Args<'_>) -> usize {
    if !command.has(flag::WRITE) {
        return 0;
    }
    // A key that is due is deleted before it is given a new value.
    let keys: usize = command.key_positions(args.len()).map(|i| args.at(i).len() + EFFECT_BYTES).sum();
    args.total_bytes() + 2 * keys
}

//! How much a request may add to the log. This has to be known before the request is executed: an engine takes records up to some length, and what has been
//! executed cannot be undone.
//!
//! Effects are made of what the request contains, so its arguments bound them. Only RENAME copies something that the request does not contain. It asks for room
//! itself, once it knows how much it needs.

use super::table::{Command, flag};
use crate::resp::Args;

/// What an effect takes besides its key and its value: a tag, two lengths, a time.
pub(super) const EFFECT_BYTES: usize = 32;

/// Bounds what any command with these arguments adds, apart from copies.
#[inline]
pub(crate) fn roughly(args: Args<'_>) -> usize {
    3 * (args.total_bytes() + args.len() * EFFECT_BYTES)
}

/// Bounds what this command adds, apart from copies. A command that only reads needs no room: it deletes due keys on its way, but only as far as there is room.
pub(super) fn of(command: &Command, args: Args<'_>) -> usize {
    if !command.has(flag::WRITE) {
        return 0;
    }
    // A key that is due is deleted before it is given a new value.
    let keys: usize = command.key_positions(args.len()).map(|i| args.at(i).len() + EFFECT_BYTES).sum();
    args.total_bytes() + 2 * keys
}

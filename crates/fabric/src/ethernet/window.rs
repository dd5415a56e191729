//! How much may be under way to a peer: a window that grows by a packet a round trip and shrinks by 3 of 10 where something was lost. A pure state machine; time comes in as an
//! argument, in microseconds.
//!
//! A connection begins with a window of [`FIRST_WINDOW`], which grows by a packet with each part that comes, so to twice as much in a round trip, until something is lost.
//!
//! A silence says nothing of the path and leaves the window as it is. Where it turns out that all before it was lost, each time that the patience has run out in it counts as
//! a loss of its own: the path may have become another one.

use super::packet::{MAX_PACKET, MAX_UNDER_WAY};

/// The window in bytes: at first, at least, at most.
const FIRST_WINDOW: usize = 10 * MAX_PACKET;
const LEAST_WINDOW: usize = 4 * MAX_PACKET;
const MOST_WINDOW: usize = MAX_UNDER_WAY as usize * MAX_PACKET;

/// The window of one flow.
#[derive(Debug)]
pub(super) struct Window {
    bytes: usize,
    /// No second shrinking before this time.
    shrink_again: u64,
    /// Nothing has been lost yet.
    grows: bool,
    /// How often the patience has run out, until it is known what became of what was sent before.
    silent: u32,
}

impl Window {
    pub(super) fn new() -> Window {
        Window { bytes: FIRST_WINDOW, shrink_again: 0, grows: true, silent: 0 }
    }

    /// Bytes that may be under way.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// One more part has come through.
    pub(super) fn grow(&mut self) {
        let more = if self.grows { MAX_PACKET } else { (MAX_PACKET * MAX_PACKET / self.bytes).max(1) };
        self.bytes = (self.bytes + more).min(MOST_WINDOW);
    }

    /// Something was lost. Where that was all before a silence, each time that the patience has run out counts. What else is lost before `once_in_us` have passed is the same loss.
    pub(super) fn shrink(&mut self, now: u64, once_in_us: u64) {
        if now >= self.shrink_again {
            for _ in 0..std::mem::take(&mut self.silent).max(1) {
                self.bytes = (self.bytes / 10 * 7).max(LEAST_WINDOW);
            }
            self.grows = false;
            self.shrink_again = now + once_in_us;
        }
    }

    /// The patience has run out: nothing has been heard for long.
    pub(super) fn silence(&mut self) {
        self.silent += 1;
    }

    /// What was sent before the silence has come, or nothing is under way: nothing was wrong with the path.
    pub(super) fn silence_was_none(&mut self) {
        self.silent = 0;
    }
}

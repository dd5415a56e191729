//! How much may be under way to a peer: a window that grows by one packet per round trip and shrinks by 3/10 when something was lost. A pure state
//! machine; time is passed in as an argument, in microseconds.
//!
//! A connection begins with a window of [`FIRST_WINDOW`]. Until something is lost, the window grows by a packet with each part that arrives, and so
//! doubles in each round trip.
//!
//! A silence says nothing about the path and leaves the window as it is. If it turns out that everything before the silence was lost, each time that
//! patience ran out in it counts as a loss of its own: the path may have changed.

use super::packet::{MAX_PACKET, MAX_UNDER_WAY};

/// The window in bytes: at first, at least, and at most.
const FIRST_WINDOW: usize = 10 * MAX_PACKET;
const LEAST_WINDOW: usize = 4 * MAX_PACKET;
const MOST_WINDOW: usize = MAX_UNDER_WAY as usize * MAX_PACKET;

/// The window of one flow.
#[derive(Debug)]
pub(super) struct Window {
    bytes: usize,
    /// The window does not shrink again before this time.
    shrink_again: u64,
    /// Whether nothing has been lost yet.
    grows: bool,
    /// How often patience has run out while the fate of what was sent before is unknown.
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

    /// Something was lost. If that was everything before a silence, each time that patience ran out counts. Whatever else is lost within `once_in_us`
    /// is part of the same loss.
    pub(super) fn shrink(&mut self, now: u64, once_in_us: u64) {
        if now >= self.shrink_again {
            for _ in 0..std::mem::take(&mut self.silent).max(1) {
                self.bytes = (self.bytes / 10 * 7).max(LEAST_WINDOW);
            }
            self.grows = false;
            self.shrink_again = now + once_in_us;
        }
    }

    /// Patience has run out: nothing has been heard for long.
    pub(super) fn silence(&mut self) {
        self.silent += 1;
    }

    /// What was sent before the silence has arrived, or nothing is under way: the path was all right.
    pub(super) fn silence_was_none(&mut self) {
        self.silent = 0;
    }
}

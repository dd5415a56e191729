//! Replies on their way to a client: some may go, some wait for their ticket.

use std::collections::VecDeque;

use crate::turn::{Released, Wait};

/// Above so many bytes an emptied buffer is given back.
const KEPT_BYTES: usize = 64 << 10;

/// A connection's output. Replies leave in the order in which they came; one that says something of keys leaves only once its ticket is
/// released, and holds back what comes after it.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// Up to here the socket has taken it.
    written: usize,
    /// Up to here it may go.
    released: usize,
    /// What waits: up to `end`, for the ticket.
    held: VecDeque<(Wait, usize)>,
}

impl Output {
    /// Where replies are appended. [`Output::hold`] must follow.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Lets what was appended wait for that, or for nothing but what waits before it.
    pub(super) fn hold(&mut self, wait: Option<Wait>) {
        let end = self.bytes.len();
        if end == self.held.back().map_or(self.released, |(_, end)| *end) {
            return;
        }
        match (wait, self.held.back_mut()) {
            (Some(wait), Some((last, last_end))) if last.by_quorum == wait.by_quorum && last.ticket >= wait.ticket => *last_end = end,
            (Some(wait), _) => self.held.push_back((wait, end)),
            (None, Some((_, last_end))) => *last_end = end,
            (None, None) => self.released = end,
        }
    }

    /// Lets go of what waited for these tickets.
    pub(super) fn release(&mut self, released: Released) {
        while let Some(&(wait, end)) = self.held.front() {
            if !released.lets_go(wait) {
                break;
            }
            self.released = end;
            self.held.pop_front();
        }
    }

    /// What may go and has not gone.
    pub(super) fn sendable(&self) -> &[u8] {
        &self.bytes[self.written..self.released]
    }

    /// Takes note that the socket took `n` bytes.
    pub(super) fn sent(&mut self, n: usize) {
        self.written += n;
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            (self.written, self.released) = (0, 0);
            self.held.clear();
        } else if self.written > KEPT_BYTES && self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.released -= self.written;
            for (_, end) in &mut self.held {
                *end -= self.written;
            }
            self.written = 0;
        }
    }

    /// How many bytes wait, for their ticket or for the client.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Whether replies wait for their ticket.
    pub(super) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use martlet_protocol::replica::Ticket;

    use super::*;

    fn put(output: &mut Output, text: &str, ticket: Option<u64>) {
        output.buffer().extend_from_slice(text.as_bytes());
        output.hold(ticket.map(|ticket| Wait { ticket: Ticket(ticket), by_quorum: false }));
    }

    fn by_lease(ticket: u64) -> Released {
        Released { usual: Ticket(ticket), by_quorum: Ticket(0) }
    }

    #[test]
    fn what_waits_for_a_quorum_holds_back_what_comes_after_it() {
        let mut output = Output::default();
        output.buffer().extend_from_slice(b"quorum");
        output.hold(Some(Wait { ticket: Ticket(5), by_quorum: true }));
        put(&mut output, "lease", Some(5));
        output.release(by_lease(9));
        assert_eq!(output.sendable(), b"");
        output.release(Released { usual: Ticket(4), by_quorum: Ticket(5) });
        assert_eq!(output.sendable(), b"quorum");
        output.release(by_lease(5));
        assert_eq!(output.sendable(), b"quorumlease");
    }

    #[test]
    fn replies_leave_in_order_and_not_before_their_ticket() {
        let mut output = Output::default();
        put(&mut output, "free", None);
        assert_eq!(output.sendable(), b"free");
        put(&mut output, "five", Some(5));
        put(&mut output, "+", None);
        put(&mut output, "six", Some(6));
        assert_eq!(output.sendable(), b"free");
        output.sent(2);
        assert_eq!(output.sendable(), b"ee");
        output.release(by_lease(4));
        assert_eq!(output.sendable(), b"ee");
        output.release(by_lease(5));
        assert_eq!(output.sendable(), b"eefive+");
        assert!(output.is_held());
        output.release(by_lease(9));
        output.sent(output.sendable().len());
        assert_eq!((output.pending(), output.is_held()), (0, false));
    }

    #[test]
    fn a_long_output_gives_back_what_has_gone() {
        let mut output = Output::default();
        put(&mut output, &"x".repeat(300_000), Some(1));
        put(&mut output, "tail", Some(2));
        output.release(by_lease(1));
        output.sent(299_999);
        assert_eq!(output.sendable(), b"x");
        output.sent(1);
        assert_eq!((output.sendable(), output.pending()), (&b""[..], 4));
        output.release(by_lease(2));
        assert_eq!(output.sendable(), b"tail");
    }
}

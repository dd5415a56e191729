//! Replies on their way to a client: some may be sent, some wait for their ticket.

use std::collections::VecDeque;

use martlet_node::connections::ledger::Settled;

use super::tracked::Place;
use crate::turn::{Released, Wait};

/// An emptied buffer above this size is given back to the allocator.
const KEPT_BYTES: usize = 64 << 10;

/// A connection's output. Replies leave in the order in which they were appended. A reply that says something about keys leaves only once its ticket is
/// released, and holds back everything after it.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// The socket has taken the output up to here.
    written: usize,
    /// The output may be sent up to here.
    released: usize,
    /// Output that waits: the ticket, where the output that waits for it ends, and how far the connection's requests are executed at that point.
    held: VecDeque<(Wait, usize, Place)>,
    /// The position of `bytes` in the connection's whole output.
    start: u64,
    /// How far the requests are executed whose replies may be sent.
    place: Place,
    /// Requests without a reply wait for their ticket, too.
    counts_all: bool,
}

impl Output {
    /// The output of a connection that a successor may have to take over. It is settled up to `settled`, and `bytes` of its output are still to be sent.
    pub(super) fn tracked(settled: Settled, bytes: Vec<u8>) -> Output {
        Output {
            released: bytes.len(),
            start: settled.sent - bytes.len() as u64,
            bytes,
            place: Place { input: settled.input, output: settled.output },
            counts_all: true,
            ..Output::default()
        }
    }

    /// How far the connection is settled.
    pub(super) fn settled(&self) -> Settled {
        Settled { input: self.place.input, output: self.place.output, sent: self.start + self.released as u64 }
    }

    /// Up to which position the socket has taken the output.
    pub(super) fn taken(&self) -> u64 {
        self.start + self.written as u64
    }

    /// Where the next reply begins in the buffer.
    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// What has been appended from `at` on.
    pub(super) fn since(&self, at: usize) -> &[u8] {
        &self.bytes[at..]
    }

    /// Removes up to `most` of the bytes appended from `at` on, because the client already has them. Returns how many were removed.
    pub(super) fn suppress(&mut self, at: usize, most: u64) -> u64 {
        let bytes = self.bytes.len() - at;
        let suppressed = usize::try_from(most).unwrap_or(usize::MAX).min(bytes);
        self.bytes.drain(at..at + suppressed);
        suppressed as u64
    }

    /// Where replies are appended. [`Output::hold`] must follow.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Lets what was appended wait for `wait`; with `None` it waits only for what is ahead of it. `place`: how far the connection's requests are executed.
    pub(super) fn hold(&mut self, wait: Option<Wait>, place: Place) {
        let end = self.bytes.len();
        if !self.counts_all && end == self.held.back().map_or(self.released, |(_, end, _)| *end) {
            return;
        }
        match (wait, self.held.back_mut()) {
            (Some(wait), Some((last, last_end, last_place))) if last.by_quorum == wait.by_quorum && last.ticket >= wait.ticket => {
                (*last_end, *last_place) = (end, place);
            }
            (Some(wait), _) => self.held.push_back((wait, end, place)),
            (None, Some((_, last_end, last_place))) => (*last_end, *last_place) = (end, place),
            (None, None) => (self.released, self.place) = (end, place),
        }
    }

    /// Releases what waited for these tickets.
    pub(super) fn release(&mut self, released: Released) {
        while let Some(&(wait, end, place)) = self.held.front() {
            if !released.lets_go(wait) {
                break;
            }
            (self.released, self.place) = (end, place);
            self.held.pop_front();
        }
    }

    /// What may be sent and has not been.
    pub(super) fn sendable(&self) -> &[u8] {
        &self.bytes[self.written..self.released]
    }

    /// Takes note that the socket took `n` bytes.
    pub(super) fn sent(&mut self, n: usize) {
        self.written += n;
        if self.written == self.bytes.len() {
            self.start += self.written as u64;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            (self.written, self.released) = (0, 0);
            // The buffer is empty, so whatever still waits has no reply.
            self.held.iter_mut().for_each(|(_, end, _)| *end = 0);
        } else if self.written > KEPT_BYTES && self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.released -= self.written;
            for (_, end, _) in &mut self.held {
                *end -= self.written;
            }
            self.start += self.written as u64;
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
        output.hold(ticket.map(|ticket| Wait { ticket: Ticket(ticket), by_quorum: false }), Place::default());
    }

    fn by_lease(ticket: u64) -> Released {
        Released { usual: Ticket(ticket), by_quorum: Ticket(0) }
    }

    #[test]
    fn what_waits_for_a_quorum_holds_back_what_comes_after_it() {
        let mut output = Output::default();
        output.buffer().extend_from_slice(b"quorum");
        output.hold(Some(Wait { ticket: Ticket(5), by_quorum: true }), Place::default());
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

    #[test]
    fn a_tracked_one_says_how_far_it_is_settled_also_by_requests_without_replies() {
        let place = |input, output| Place { input, output };
        let mut output = Output::tracked(Settled { input: 100, output: 50, sent: 50 }, b"old".to_vec());
        assert_eq!((output.sendable(), output.taken()), (&b"old"[..], 47));
        let wait = |ticket| Some(Wait { ticket: Ticket(ticket), by_quorum: false });
        output.buffer().extend_from_slice(b"+OK");
        output.hold(wait(5), place(120, 53));
        output.hold(wait(6), place(140, 53));
        output.sent(3);
        assert_eq!(output.settled(), Settled { input: 100, output: 50, sent: 50 });
        output.release(by_lease(5));
        assert_eq!((output.sendable(), output.settled()), (&b"+OK"[..], Settled { input: 120, output: 53, sent: 53 }));
        output.sent(3);
        assert!(output.is_held(), "a request that nobody is told of");
        output.release(by_lease(6));
        assert_eq!((output.settled().input, output.taken()), (140, 53));
        let at = output.end();
        output.buffer().extend_from_slice(b"+QUEUED");
        assert_eq!((output.suppress(at, 3), output.since(at)), (3, &b"EUED"[..]));
        assert_eq!((output.suppress(at, 9), output.end()), (4, at));
    }
}

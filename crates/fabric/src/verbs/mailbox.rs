//! A queue pair for datagrams, with the memory for packets that have arrived or are on their way.
//!
//! A card is done with a datagram as soon as it has sent it. If it never says so, the datagram keeps its slot, and once the last slot is taken
//! nothing could be sent any more. So if a datagram has been waited for far too long, its queue pair counts as broken (module `overdue`), whether or
//! not the other datagrams are still sent, and the user of the queue pair replaces it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::Device;
use super::ffi::{ACCESS_LOCAL_WRITE, GRH_BYTES, RecvWr, SEND_SIGNALED, SendWr, Sge, WC_SUCCESS, WR_SEND, Wc};
use super::memory::{Block, Plane, Registered};
use super::overdue::{Attention, LEAST_TURNS};
use super::queue::{CompletionQueue, Destination, QueuePair, Shape, Transport};
use crate::host::memory::Area;
use crate::primitive::Ordering;

/// How many packets there is room for, to be received and to be sent.
const RECEIVES: usize = 256;
const SENDS: usize = 128;
/// When the card should have sent a packet, with time to spare: a link may be paused for a while, but datagrams are never retransmitted.
const LONGEST: Duration = Duration::from_secs(2);
// Each turn takes a completion. So before anything is overdue, all completions have been taken that had arrived when the wait for it began.
const _: () = assert!(LEAST_TURNS as usize > RECEIVES + SENDS);
/// Marks the completion of a sent packet.
const SENT: u64 = 1 << 32;
/// Every queue pair for datagrams has the same key. It guards against strays; the signatures guard against everything else.
pub(super) const QUEUE_KEY: u32 = 0x6d61_7274;

/// Where a packet goes: an address, a queue pair's number and its key.
pub(super) type To<'a> = (&'a Arc<Destination>, u32, u32);

/// The queue pair, with its slots. See the module.
#[derive(Debug)]
pub(super) struct Mailbox {
    // Dropped before the memory that it works on, and the addresses that it sends to.
    pub(super) qp: QueuePair,
    completions: Arc<CompletionQueue>,
    slot_bytes: usize,
    received: Area,
    received_in: Registered,
    sent: Area,
    sent_from: Registered,
    ledger: Ledger<Arc<Destination>>,
    attention: Attention,
    #[cfg(feature = "conformance")]
    forgetful: bool,
}

/// What went wrong with a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A request has failed with this status, by the card's number.
    Status(i32),
    /// The card has said nothing about a packet for this long.
    Silence(Duration),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status(status) => write!(f, "status {status}"),
            Failure::Silence(lasted) => write!(f, "the device has said nothing of a packet for {lasted:.1?}, and should have sent it"),
        }
    }
}

/// A packet has arrived, or the card is done with one that we sent, or the queue pair returns a buffer unused.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Came { slot: usize, bytes: usize },
    Left,
}

/// What the card has to send, and what it has said about it.
#[derive(Debug)]
struct Ledger<T> {
    /// The free slots for sending.
    free: Vec<usize>,
    /// The destination of what is under way, by its slot. It is kept until the card is done with the packet.
    to: Vec<Option<T>>,
    /// The slots of what is under way, in the order in which they were handed over, each with the time at which that happened.
    under_way: VecDeque<(usize, Duration)>,
    /// The time that has passed, as far as it counts.
    now: Duration,
    broken: Option<Failure>,
}

impl<T> Ledger<T> {
    fn new(sends: usize) -> Ledger<T> {
        Ledger {
            free: (0..sends).collect(),
            to: (0..sends).map(|_| None).collect(),
            under_way: VecDeque::with_capacity(sends),
            now: Duration::ZERO,
            broken: None,
        }
    }

    /// Takes a slot for a packet that goes to `to`.
    fn take(&mut self, to: T) -> Option<usize> {
        let slot = self.free.pop()?;
        self.to[slot] = Some(to);
        self.under_way.push_back((slot, self.now));
        Some(slot)
    }

    /// Frees a slot: the card has refused its packet, or is done with it.
    fn free(&mut self, slot: usize) {
        self.to[slot] = None;
        self.free.push(slot);
        // It is usually the first.
        if let Some(at) = self.under_way.iter().position(|(other, _)| *other == slot) {
            self.under_way.remove(at);
        }
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        if let Some((_, since)) = self.under_way.front()
            && self.now - *since > LONGEST
        {
            self.broken.get_or_insert(Failure::Silence(self.now - *since));
        }
    }

    fn completed(&mut self, wc: &Wc) -> Event {
        if wc.status != WC_SUCCESS {
            // The first failure says what was wrong; the requests after it are only flushed.
            self.broken.get_or_insert(Failure::Status(wc.status));
        }
        match wc.wr_id & SENT {
            0 if wc.status == WC_SUCCESS => Event::Came { slot: wc.wr_id as usize, bytes: wc.byte_len as usize },
            // If it were handed over once more, it would only come back at once.
            0 => Event::Left,
            _ => {
                self.free((wc.wr_id & !SENT) as usize);
                Event::Left
            }
        }
    }
}

impl Mailbox {
    /// Makes a mailbox, which receives from now on.
    pub(super) fn new(device: &Arc<Device>) -> io::Result<Mailbox> {
        let slot_bytes = (GRH_BYTES + device.port.mtu_bytes()).next_multiple_of(64);
        let completions = CompletionQueue::new(device, (RECEIVES + SENDS) as u32 + 16)?;
        let shape = Shape { sends: SENDS as u32, receives: RECEIVES as u32, inline: 0 };
        let qp = QueuePair::new(device, Plane::Background, &completions, Transport::Datagram, shape)?;
        let (received, sent) = (Block::new(RECEIVES * slot_bytes)?, Block::new(SENDS * slot_bytes)?);
        let mailbox = Mailbox {
            qp,
            completions,
            slot_bytes,
            received: received.area(0, RECEIVES * slot_bytes),
            received_in: Registered::new(device, Plane::Background, &received, ACCESS_LOCAL_WRITE)?,
            sent: sent.area(0, SENDS * slot_bytes),
            sent_from: Registered::new(device, Plane::Background, &sent, 0)?,
            ledger: Ledger::new(SENDS),
            attention: Attention::new(LONGEST),
            #[cfg(feature = "conformance")]
            forgetful: false,
        };
        mailbox.qp.open_for_datagrams(QUEUE_KEY)?;
        for slot in 0..RECEIVES {
            mailbox.expect(slot)?;
        }
        Ok(mailbox)
    }

    /// What went wrong with the queue pair; if anything did, it can no longer be relied on.
    pub(super) fn broken(&self) -> Option<Failure> {
        self.ledger.broken
    }

    #[cfg(feature = "conformance")]
    pub(super) fn forget(&mut self) {
        self.forgetful = true;
    }

    /// Hands a slot over for the next packet.
    fn expect(&self, slot: usize) -> io::Result<()> {
        let address = self.received_in.address + (slot * self.slot_bytes) as u64;
        let mut sge = Sge { addr: address, length: self.slot_bytes as u32, lkey: self.received_in.lkey };
        let mut wr = RecvWr { wr_id: slot as u64, next: std::ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: a single request; the slot is in memory that stays registered as long as the queue pair, and is not read before the request's
        // completion.
        unsafe { self.qp.post_receive(&mut wr) }
    }

    /// Whether so many packets can be sent now. To make room, packets that have arrived meanwhile may be dropped, since they have not been asked for
    /// in a long time; they are counted in `dropped`.
    pub(super) fn has_room(&mut self, packets: usize, dropped: &mut u64) -> bool {
        while self.ledger.free.len() < packets {
            match self.next() {
                Some(Event::Came { slot, .. }) => {
                    *dropped += 1;
                    self.give_back(slot);
                }
                Some(Event::Left) => {}
                None => return false,
            }
        }
        true
    }

    /// Sends a packet, after [`Mailbox::has_room`] has said that there is room.
    pub(super) fn send(&mut self, packet: &[u8], (to, number, key): To<'_>) -> io::Result<()> {
        let slot = self.ledger.take(to.clone()).ok_or(io::ErrorKind::WouldBlock)?;
        let words = &self.sent.memory()[slot * self.slot_bytes / 8..];
        for (word, chunk) in words.iter().zip(packet.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        let address = self.sent_from.address + (slot * self.slot_bytes) as u64;
        let mut sge = Sge { addr: address, length: packet.len() as u32, lkey: self.sent_from.lkey };
        let mut wr = SendWr {
            wr_id: SENT | slot as u64,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: WR_SEND,
            send_flags: SEND_SIGNALED,
            ..SendWr::EMPTY
        };
        wr.datagram(to.handle(), number, key);
        // SAFETY: a single request; its slot is in memory that stays registered as long as the queue pair, and is freed only after the request's
        // completion. The ledger keeps the address for just as long.
        let posted = unsafe { self.qp.post(&mut wr) };
        if posted.is_err() {
            // The card accepts no more for now.
            self.ledger.free(slot);
        }
        posted
    }

    fn next(&mut self) -> Option<Event> {
        let mut wc = [Wc::EMPTY; 1];
        if self.completions.poll(&mut wc) == 0 {
            return None;
        }
        #[cfg(feature = "conformance")]
        if self.forgetful && wc[0].wr_id & SENT != 0 {
            return Some(Event::Left);
        }
        Some(self.ledger.completed(&wc[0]))
    }

    fn give_back(&self, slot: usize) {
        if let Err(error) = self.expect(slot) {
            // One slot less; the others still receive.
            tracing::error!(%error, "a buffer for datagrams is lost");
        }
    }

    /// Takes the next packet into `packet`.
    pub(super) fn receive(&mut self, packet: &mut Vec<u8>) -> bool {
        if !self.ledger.under_way.is_empty()
            && let Some(time) = self.attention.turn(Instant::now)
        {
            self.ledger.pass(time);
        }
        while let Some(event) = self.next() {
            let Event::Came { slot, bytes } = event else { continue };
            let words = &self.received.memory()[slot * self.slot_bytes / 8..(slot + 1) * self.slot_bytes / 8];
            packet.clear();
            for word in &words[GRH_BYTES / 8..bytes.div_ceil(8).clamp(GRH_BYTES / 8, words.len())] {
                packet.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            packet.truncate(bytes.saturating_sub(GRH_BYTES));
            self.give_back(slot);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::ffi;

    fn done(name: u64, status: i32) -> Wc {
        Wc { wr_id: name, status, ..Wc::EMPTY }
    }

    /// A peer is forgotten, and with it its address, while the card still has packets to that address.
    #[test]
    fn an_address_is_kept_until_the_card_is_done_with_all_that_goes_there() {
        let mut ledger = Ledger::new(3);
        let address = Arc::new(());
        let slots: Vec<usize> = (0..2).map(|_| ledger.take(address.clone()).expect("free")).collect();
        let other = ledger.take(Arc::new(())).expect("free");
        assert_eq!(ledger.take(address.clone()), None, "all slots are in use");
        let forgotten = Arc::downgrade(&address);
        drop(address);
        ledger.completed(&done(SENT | slots[1] as u64, WC_SUCCESS));
        ledger.completed(&done(SENT | other as u64, WC_SUCCESS));
        assert!(forgotten.upgrade().is_some(), "the first is still under way");
        ledger.completed(&done(SENT | slots[0] as u64, WC_SUCCESS));
        assert!(forgotten.upgrade().is_none(), "nobody needs it any more");
        assert_eq!(ledger.free.len(), 3);
    }

    #[test]
    fn a_packet_that_the_card_does_not_take_keeps_no_address() {
        let mut ledger = Ledger::new(1);
        let address = Arc::new(());
        let slot = ledger.take(address.clone()).expect("free");
        ledger.free(slot);
        assert_eq!((Arc::strong_count(&address), ledger.free.len()), (1, 1));
    }

    #[test]
    fn the_first_failure_tells_what_is_wrong_with_the_queue_pair() {
        let mut ledger = Ledger::new(2);
        let slot = ledger.take(()).expect("free");
        assert_eq!(ledger.completed(&Wc { byte_len: 60, ..done(7, WC_SUCCESS) }), Event::Came { slot: 7, bytes: 60 });
        assert_eq!(ledger.broken, None);
        // A send for which no address was found; then the buffers handed over for receiving come back.
        assert_eq!(ledger.completed(&done(SENT | slot as u64, 2)), Event::Left);
        assert_eq!(ledger.completed(&done(8, ffi::WC_WR_FLUSH_ERR)), Event::Left);
        assert_eq!((ledger.broken, ledger.free.len()), (Some(Failure::Status(2)), 2));
    }

    #[test]
    fn a_packet_that_is_never_heard_of_breaks_the_queue_pair() {
        let mut ledger = Ledger::new(3);
        let forgotten = ledger.take(()).expect("free");
        // The others are sent all the time, and one slot stays behind.
        for _ in 0..20 {
            let slot = ledger.take(()).expect("free");
            ledger.pass(LONGEST / 20);
            ledger.completed(&done(SENT | slot as u64, WC_SUCCESS));
        }
        assert_eq!((ledger.broken, ledger.free.len()), (None, 2), "it may yet be sent");
        let slot = ledger.take(()).expect("free");
        ledger.pass(LONGEST / 20);
        assert_eq!(ledger.broken, Some(Failure::Silence(LONGEST + LONGEST / 20)));
        // Later events do not change what was wrong.
        for slot in [slot, forgotten] {
            ledger.completed(&done(SENT | slot as u64, 5));
        }
        assert_eq!((ledger.broken, ledger.under_way.len()), (Some(Failure::Silence(LONGEST + LONGEST / 20)), 0));
    }

    #[test]
    fn what_is_sent_in_time_breaks_nothing_however_long_it_goes_on() {
        let mut ledger = Ledger::new(2);
        for _ in 0..100 {
            let slot = ledger.take(()).expect("free");
            ledger.pass(LONGEST);
            ledger.completed(&done(SENT | slot as u64, WC_SUCCESS));
            // Nothing is under way, so nothing is waited for.
            ledger.pass(LONGEST * 3);
        }
        assert_eq!(ledger.broken, None);
    }
}

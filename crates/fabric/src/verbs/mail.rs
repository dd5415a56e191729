//! Datagrams: unreliable messages on one queue pair for all peers, each packet signed with the key of its pair.
//!
//! ```text
//! 0   4  the number by which the receiver knows the sender
//! 4   1  which packet of the datagram this is
//! 5   1  how many there are
//! 6   2  bytes of the whole datagram
//! 8   8  the datagram's sequence number
//! 16  16 HMAC-SHA256 of all but itself, cut to 16 bytes, under the key of this direction of this connection
//! 32     a part of the datagram: all but the last packet are full
//! ```
//!
//! The key is of one meeting of two processes, so nothing that was said in an earlier life, or by somebody else, passes. A repeated packet may
//! be taken again; the contract allows that.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::device::Device;
use super::endpoint::Entry;
use super::ffi::{ACCESS_LOCAL_WRITE, GRH_BYTES, RecvWr, SEND_SIGNALED, SendWr, Sge, WC_SUCCESS, WR_SEND, Wc};
use super::memory::{Block, Plane, Registered};
use super::peer::Peer;
use super::queue::{CompletionQueue, QueuePair, Shape, Transport};
use crate::contract::{MAX_DATAGRAM_BYTES, PeerId};
use crate::primitive::Ordering;
use crate::shm::memory::Area;

/// Packets kept for receiving, and for sending.
const RECEIVES: usize = 256;
const SENDS: usize = 128;
const HEADER: usize = 32;
const TAG: usize = 16;
/// Marks the completion of a sent packet.
const SENT: u64 = 1 << 32;
/// Every queue pair for datagrams has the same: it guards against strays, the signatures against everything else.
pub(super) const QUEUE_KEY: u32 = 0x6d61_7274;

/// The keys of one connection.
#[derive(Clone)]
pub(super) struct Keys {
    ours: Hmac<Sha256>,
    theirs: Hmac<Sha256>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the keys: this may end in a log.
        f.write_str("Keys")
    }
}

impl Keys {
    pub(super) fn new(ours: &[u8], theirs: &[u8]) -> Keys {
        let key = |bytes| <Hmac<Sha256> as KeyInit>::new_from_slice(bytes).expect("HMAC takes keys of any length");
        Keys { ours: key(ours), theirs: key(theirs) }
    }
}

/// What happened to datagrams at this endpoint since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailCounters {
    /// Sent.
    pub sent: u64,
    /// Dropped because too many were under way, or because the receiver is no member, gone or unknown.
    pub dropped: u64,
    /// Received whole.
    pub received: u64,
    /// Packets thrown away: malformed, of an unknown sender, or wrongly signed.
    pub rejected: u64,
}

/// A datagram of which not all packets have come.
#[derive(Debug)]
pub(super) struct Assembly {
    sequence: u64,
    total: usize,
    /// A bit for each packet that is still to come.
    missing: u32,
    bytes: Box<[u8; MAX_DATAGRAM_BYTES]>,
}

impl Default for Assembly {
    fn default() -> Assembly {
        Assembly { sequence: 0, total: 0, missing: 0, bytes: Box::new([0; MAX_DATAGRAM_BYTES]) }
    }
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    number: u32,
    index: u8,
    count: u8,
    total: u16,
    sequence: u64,
}

impl Header {
    fn encode(self) -> [u8; HEADER - TAG] {
        let mut out = [0; HEADER - TAG];
        out[..4].copy_from_slice(&self.number.to_le_bytes());
        out[4] = self.index;
        out[5] = self.count;
        out[6..8].copy_from_slice(&self.total.to_le_bytes());
        out[8..].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER - TAG]) -> Header {
        let (number, rest) = bytes.split_first_chunk::<4>().expect("16 bytes");
        let (sequence, _) = bytes[8..].split_first_chunk::<8>().expect("16 bytes");
        Header {
            number: u32::from_le_bytes(*number),
            index: rest[0],
            count: rest[1],
            total: u16::from_le_bytes([rest[2], rest[3]]),
            sequence: u64::from_le_bytes(*sequence),
        }
    }
}

fn tag(key: &Hmac<Sha256>, header: &[u8], part: &[u8]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(header);
    mac.update(part);
    mac
}

/// The endpoint's mailbox.
#[derive(Debug)]
pub(super) struct Mail {
    // Before the memory that it works on.
    qp: QueuePair,
    completions: Arc<CompletionQueue>,
    /// Bytes of a datagram that one packet carries.
    part: usize,
    slot_bytes: usize,
    received: Area,
    received_in: Registered,
    sent: Area,
    sent_from: Registered,
    free: Vec<usize>,
    sequence: u64,
    to_self: VecDeque<Vec<u8>>,
    packet: Vec<u8>,
    pub(super) counters: MailCounters,
}

impl Mail {
    pub(super) fn new(device: &Arc<Device>) -> io::Result<Mail> {
        let mtu = device.port.mtu_bytes();
        let slot_bytes = (GRH_BYTES + mtu).next_multiple_of(64);
        let completions = CompletionQueue::new(device, (RECEIVES + SENDS) as u32 + 16)?;
        let shape = Shape { sends: SENDS as u32, receives: RECEIVES as u32, inline: 0 };
        let qp = QueuePair::new(device, Plane::Background, &completions, Transport::Datagram, shape)?;
        let (received, sent) = (Block::new(RECEIVES * slot_bytes)?, Block::new(SENDS * slot_bytes)?);
        let mail = Mail {
            qp,
            completions,
            part: mtu - HEADER,
            slot_bytes,
            received: received.area(0, RECEIVES * slot_bytes),
            received_in: Registered::new(device, Plane::Background, &received, ACCESS_LOCAL_WRITE)?,
            sent: sent.area(0, SENDS * slot_bytes),
            sent_from: Registered::new(device, Plane::Background, &sent, 0)?,
            free: (0..SENDS).collect(),
            sequence: 0,
            to_self: VecDeque::new(),
            packet: Vec::with_capacity(slot_bytes),
            counters: MailCounters::default(),
        };
        mail.qp.open_for_datagrams(QUEUE_KEY)?;
        for slot in 0..RECEIVES {
            mail.expect(slot)?;
        }
        Ok(mail)
    }

    /// The queue pair's number and key, for peers.
    pub(super) fn address(&self) -> (u32, u32) {
        (self.qp.number, QUEUE_KEY)
    }

    /// Hands a slot over for the next packet.
    fn expect(&self, slot: usize) -> io::Result<()> {
        let address = self.received_in.address + (slot * self.slot_bytes) as u64;
        let mut sge = Sge { addr: address, length: self.slot_bytes as u32, lkey: self.received_in.lkey };
        let mut wr = RecvWr { wr_id: slot as u64, next: std::ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: a single request; the slot is in memory that stays registered as long as the queue pair, and is not looked at before its
        // completion.
        unsafe { self.qp.post_receive(&mut wr) }
    }

    pub(super) fn send_to_self(&mut self, datagram: &[u8]) {
        self.to_self.push_back(datagram.to_vec());
        self.counters.sent += 1;
    }

    /// Sends a datagram, or drops it when too many are under way.
    pub(super) fn send(&mut self, peer: &Peer, datagram: &[u8]) {
        let count = datagram.len().div_ceil(self.part).max(1);
        if self.free.len() < count {
            self.collect_sent();
        }
        if self.free.len() < count {
            self.counters.dropped += 1;
            return;
        }
        self.sequence += 1;
        for index in 0..count {
            let part = &datagram[index * self.part..datagram.len().min((index + 1) * self.part)];
            let header = Header {
                number: peer.number,
                index: index as u8,
                count: count as u8,
                total: datagram.len() as u16,
                sequence: self.sequence,
            };
            let slot = self.free.pop().expect("counted before");
            if self.post(peer, header, part, slot).is_err() {
                // The card takes no more for now.
                self.free.push(slot);
                self.counters.dropped += 1;
                return;
            }
        }
        self.counters.sent += 1;
    }

    fn post(&mut self, peer: &Peer, header: Header, part: &[u8], slot: usize) -> io::Result<()> {
        let header = header.encode();
        self.packet.clear();
        self.packet.extend_from_slice(&header);
        self.packet.extend_from_slice(&tag(&peer.keys.ours, &header, part).finalize().into_bytes()[..TAG]);
        self.packet.extend_from_slice(part);
        let words = &self.sent.memory()[slot * self.slot_bytes / 8..];
        for (word, chunk) in words.iter().zip(self.packet.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        let address = self.sent_from.address + (slot * self.slot_bytes) as u64;
        let mut sge = Sge { addr: address, length: self.packet.len() as u32, lkey: self.sent_from.lkey };
        let mut wr = SendWr {
            wr_id: SENT | slot as u64,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: WR_SEND,
            send_flags: SEND_SIGNALED,
            ..SendWr::EMPTY
        };
        wr.datagram(peer.destination.handle(), peer.mail.0, peer.mail.1);
        // SAFETY: a single request; its slot is in memory that stays registered as long as the queue pair, and is free again only after its
        // completion.
        unsafe { self.qp.post(&mut wr) }
    }

    /// Frees the slots of packets that have left. What has come meanwhile is dropped: nobody has asked for it in a long time.
    fn collect_sent(&mut self) {
        let mut wcs = [Wc::EMPTY; 16];
        loop {
            let count = self.completions.poll(&mut wcs);
            for wc in &wcs[..count] {
                if wc.wr_id & SENT != 0 {
                    self.free.push((wc.wr_id & !SENT) as usize);
                } else {
                    self.counters.dropped += 1;
                    self.give_back(wc.wr_id as usize);
                }
            }
            if count < wcs.len() {
                return;
            }
        }
    }

    fn give_back(&self, slot: usize) {
        if let Err(error) = self.expect(slot) {
            // One slot less; the others still receive.
            tracing::error!(%error, "a buffer for datagrams is lost");
        }
    }

    /// Takes the next whole datagram into `into`. `entries` are the connected processes by number.
    pub(super) fn receive(&mut self, into: &mut Vec<u8>, entries: &mut [Option<Box<Entry>>]) -> Option<PeerId> {
        into.clear();
        if let Some(datagram) = self.to_self.pop_front() {
            into.extend_from_slice(&datagram);
            self.counters.received += 1;
            return Some(PeerId::SELF);
        }
        let mut wc = [Wc::EMPTY; 1];
        while self.completions.poll(&mut wc) == 1 {
            let [wc] = wc;
            if wc.wr_id & SENT != 0 {
                self.free.push((wc.wr_id & !SENT) as usize);
                continue;
            }
            let slot = wc.wr_id as usize;
            let whole = if wc.status == WC_SUCCESS { self.take(slot, wc.byte_len as usize, into, entries) } else { None };
            self.give_back(slot);
            if let Some(from) = whole {
                self.counters.received += 1;
                return Some(from);
            }
        }
        None
    }

    fn take(&mut self, slot: usize, bytes: usize, into: &mut Vec<u8>, entries: &mut [Option<Box<Entry>>]) -> Option<PeerId> {
        let words = &self.received.memory()[slot * self.slot_bytes / 8..(slot + 1) * self.slot_bytes / 8];
        self.packet.clear();
        for word in &words[GRH_BYTES / 8..bytes.div_ceil(8).clamp(GRH_BYTES / 8, words.len())] {
            self.packet.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        self.packet.truncate(bytes.saturating_sub(GRH_BYTES));
        match take_packet(&self.packet, self.part, entries) {
            None => {
                self.counters.rejected += 1;
                None
            }
            Some((_, None)) => None,
            Some((from, Some(whole))) => {
                into.extend_from_slice(whole);
                Some(from)
            }
        }
    }
}

/// Takes a packet apart and puts it with the others of its datagram: `None` for one that is not to be believed, the whole datagram with the last
/// of its packets.
fn take_packet<'a>(packet: &[u8], full: usize, entries: &'a mut [Option<Box<Entry>>]) -> Option<(PeerId, Option<&'a [u8]>)> {
    let (head, rest) = packet.split_first_chunk::<{ HEADER - TAG }>()?;
    let (signature, part) = rest.split_first_chunk::<TAG>()?;
    let header = Header::decode(head);
    let from = PeerId(header.number);
    let entry = entries.get_mut(from.0 as usize)?.as_deref_mut().filter(|_| from != PeerId::SELF)?;
    tag(&entry.peer.keys.theirs, head, part).verify_truncated_left(signature).ok()?;
    entry.assembly.add(header, part, full).map(|whole| (from, whole))
}

impl Assembly {
    /// Puts a packet in its place; the whole datagram with its last packet. `None` when its numbers make no sense.
    fn add(&mut self, header: Header, part: &[u8], full: usize) -> Option<Option<&[u8]>> {
        let (total, index, count) = (usize::from(header.total), usize::from(header.index), usize::from(header.count));
        let start = index * full;
        let sane = total <= MAX_DATAGRAM_BYTES && count == total.div_ceil(full).max(1) && index < count && count <= 32;
        if !sane || part.len() != total.saturating_sub(start).min(full) {
            return None;
        }
        if header.sequence < self.sequence {
            // A straggler of a datagram that has been given up.
            return Some(None);
        }
        if header.sequence > self.sequence {
            let all = if count == 32 { u32::MAX } else { (1 << count) - 1 };
            (self.sequence, self.total, self.missing) = (header.sequence, total, all);
        }
        if self.missing & 1 << index == 0 || self.total != total {
            return Some(None);
        }
        self.bytes[start..start + part.len()].copy_from_slice(part);
        self.missing &= !(1 << index);
        Some((self.missing == 0).then(|| &self.bytes[..total]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: usize = 992;

    fn header(sequence: u64, index: u8, total: u16) -> Header {
        Header { number: 7, index, count: usize::from(total).div_ceil(FULL).max(1) as u8, total, sequence }
    }

    #[test]
    fn headers_survive_the_wire() {
        let header = Header { number: 0x0102_0304, index: 3, count: 5, total: 4096, sequence: u64::MAX - 1 };
        assert_eq!(Header::decode(&header.encode()), header);
    }

    #[test]
    fn packets_make_a_datagram_in_any_order_and_once() {
        let bytes: Vec<u8> = (0..4096u32).map(|at| (at * 7) as u8).collect();
        let mut assembly = Assembly::default();
        let parts: Vec<&[u8]> = bytes.chunks(FULL).collect();
        for index in [4, 1, 3, 1, 0] {
            assert_eq!(assembly.add(header(1, index, 4096), parts[usize::from(index)], FULL), Some(None));
        }
        assert_eq!(assembly.add(header(1, 2, 4096), parts[2], FULL), Some(Some(&bytes[..])));
        assert_eq!(assembly.add(header(1, 2, 4096), parts[2], FULL), Some(None), "repeated");
        assert_eq!(assembly.add(header(2, 0, 0), b"", FULL), Some(Some(&b""[..])), "the empty one");
    }

    #[test]
    fn a_later_datagram_ends_an_earlier_one() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(header(5, 0, 1000), &[1; FULL], FULL), Some(None));
        assert_eq!(assembly.add(header(6, 0, 3), b"abc", FULL), Some(Some(&b"abc"[..])));
        assert_eq!(assembly.add(header(5, 1, 1000), &[1; 8], FULL), Some(None));
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let mut assembly = Assembly::default();
        for (bad, len) in [
            (Header { total: 4097, count: 5, ..header(1, 0, 0) }, FULL),
            (Header { count: 2, ..header(1, 0, 10) }, 10),
            (Header { index: 1, ..header(1, 0, 10) }, 0),
            (header(1, 0, 10), 9),
            (header(1, 1, 1000), 9),
            (Header { count: 0, ..header(1, 0, 0) }, 0),
        ] {
            assert_eq!(assembly.add(bad, &vec![0; len], FULL), None, "{bad:?} with {len} bytes");
        }
    }
}

//! Datagrams: unreliable messages, each packet signed with the key of its pair. One queue pair sends the datagrams to single peers:
//!
//! ```text
//! 0   4  the number by which the receiver knows the sender
//! 4   1  which packet of the datagram this is
//! 5   1  how many there are
//! 6   2  bytes of the whole datagram
//! 8   8  the datagram's sequence number
//! 16  8  the latest packet to the multicast group that the sender has heard from the receiver (module `packet`)
//! 24  16 HMAC-SHA256 of all but itself, cut to 16 bytes, under the key of this direction of this connection
//! 40     a part of the datagram: all but the last packet are full
//! ```
//!
//! The key belongs to one handshake of two processes, so nothing that was said in an earlier life, or by another process, is accepted. A repeated
//! packet may be accepted again; the contract allows that. Datagrams to all members may go to a multicast group (modules `group` and `packet`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::device::Device;
use super::endpoint::Entry;
use super::group::Group;
use super::mailbox::{Failure, Mailbox};
use super::packet::{self, Addressee, Hearing, Route, Taken};
use crate::contract::{MAX_DATAGRAM_BYTES, NodeId, PeerId};

const HEADER: usize = 40;
pub(super) const TAG: usize = 16;
/// The most packets of the group that are looked at in one go: a flood of the group takes no more than that from the rest.
const GROUP_BATCH: usize = 64;

/// The keys of one connection.
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) ours: Hmac<Sha256>,
    pub(super) theirs: Hmac<Sha256>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the keys, since this may end up in a log.
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
    /// Sent; a multicast counts for each member.
    pub sent: u64,
    /// Dropped because too many were under way, or because the receiver is not a member, is gone or is unknown.
    pub dropped: u64,
    /// Received whole.
    pub received: u64,
    /// Packets discarded because they were malformed, from an unknown sender, or wrongly signed.
    pub rejected: u64,
    /// Packets handed to the card, and those among them to the multicast group.
    pub posted: u64,
    /// See `posted`.
    pub to_group: u64,
    /// Received datagrams that came through the group.
    pub by_group: u64,
    /// Packets of the group that were not addressed to us: our own, and those of others that use the group.
    pub not_ours: u64,
}

/// A datagram of which not all packets have arrived.
#[derive(Debug)]
pub(super) struct Assembly {
    sequence: u64,
    total: usize,
    /// A bit for each packet that has not arrived yet.
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
    heard: u64,
}

impl Header {
    fn encode(self) -> [u8; HEADER - TAG] {
        let mut out = [0; HEADER - TAG];
        out[..4].copy_from_slice(&self.number.to_le_bytes());
        out[4] = self.index;
        out[5] = self.count;
        out[6..8].copy_from_slice(&self.total.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..].copy_from_slice(&self.heard.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER - TAG]) -> Header {
        let (number, rest) = bytes.split_first_chunk::<4>().expect("24 bytes");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Header {
            number: u32::from_le_bytes(*number),
            index: rest[0],
            count: rest[1],
            total: u16::from_le_bytes([rest[2], rest[3]]),
            sequence: word(8),
            heard: word(16),
        }
    }
}

pub(super) fn tag(key: &Hmac<Sha256>, header: &[u8], part: &[u8]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(header);
    mac.update(part);
    mac
}

/// A process to which datagrams may be sent.
fn reachable(entries: &[Option<Box<Entry>>], id: PeerId) -> Option<&Entry> {
    entries.get(id.0 as usize)?.as_deref().filter(|entry| !entry.peer.gone)
}

/// The endpoint's mail.
#[derive(Debug)]
pub(super) struct Mail {
    /// Our node, the address under which packets to the group reach us.
    us: NodeId,
    letters: Mailbox,
    group: Option<Group>,
    /// Bytes of a datagram that one packet carries.
    part: usize,
    sequence: u64,
    to_self: VecDeque<Vec<u8>>,
    packet: Vec<u8>,
    /// The members that the packet to the group being made addresses, and for each whether it is only asked.
    addressed: Vec<(PeerId, bool)>,
    pub(super) counters: MailCounters,
}

impl Mail {
    pub(super) fn new(device: &Arc<Device>, us: NodeId, group: Option<Group>) -> io::Result<Mail> {
        let mtu = device.port.mtu_bytes();
        Ok(Mail {
            us,
            letters: Mailbox::new(device)?,
            group,
            part: mtu - HEADER,
            sequence: 0,
            to_self: VecDeque::new(),
            packet: Vec::with_capacity(mtu.next_multiple_of(64)),
            addressed: Vec::with_capacity(64),
            counters: MailCounters::default(),
        })
    }

    /// The number of the queue pair for datagrams to us, as told to peers.
    pub(super) fn number(&self) -> u32 {
        self.letters.qp.number
    }

    /// What has gone wrong with that queue pair, by the card's number. Nothing is sent or received on it any more.
    pub(super) fn broken(&self) -> Option<Failure> {
        self.letters.broken()
    }

    /// Replaces it with a new queue pair of another number. What was under way is lost.
    pub(super) fn renew(&mut self, device: &Arc<Device>) -> io::Result<()> {
        // The old one is destroyed only after the new one has been made, so the two have different numbers.
        self.letters = Mailbox::new(device)?;
        Ok(())
    }

    #[cfg(feature = "conformance")]
    pub(super) fn forget(&mut self) {
        self.letters.forget();
    }

    #[cfg(feature = "conformance")]
    pub(super) fn fail(&self) -> io::Result<()> {
        self.letters.qp.fail()
    }

    /// The group that datagrams to all members may go to.
    #[cfg(feature = "conformance")]
    pub(super) fn group(&self) -> Option<std::net::IpAddr> {
        self.group.as_ref().map(|group| group.address)
    }

    #[cfg(feature = "conformance")]
    pub(super) fn leave_group(&mut self) {
        self.group = None;
    }

    pub(super) fn send_to_self(&mut self, datagram: &[u8]) {
        self.to_self.push_back(datagram.to_vec());
        self.counters.sent += 1;
    }

    /// Sends a datagram to one peer, or drops it if too many are under way.
    pub(super) fn send(&mut self, to: &Entry, datagram: &[u8]) {
        let count = datagram.len().div_ceil(self.part).max(1);
        if !self.letters.has_room(count, &mut self.counters.dropped) {
            self.counters.dropped += 1;
            return;
        }
        self.sequence += 1;
        for index in 0..count {
            let part = &datagram[index * self.part..datagram.len().min((index + 1) * self.part)];
            let header = Header {
                number: to.peer.number,
                index: index as u8,
                count: count as u8,
                total: datagram.len() as u16,
                sequence: self.sequence,
                heard: to.hearing.heard,
            };
            seal(header, part, &to.peer.keys, &mut self.packet);
            if self.letters.send(&self.packet, (&to.peer.destination, to.peer.mail.0, to.peer.mail.1)).is_err() {
                self.counters.dropped += 1;
                return;
            }
            self.counters.posted += 1;
        }
        self.counters.sent += 1;
    }

    /// Sends a datagram to all reachable members among `members`: through the group to those that hear it, and individually to each of the others.
    pub(super) fn multicast(&mut self, members: &[PeerId], entries: &mut [Option<Box<Entry>>], datagram: &[u8]) {
        self.send_to_group(members, entries, datagram);
        for id in members {
            let Some(entry) = reachable(entries, *id) else { continue };
            match self.addressed.iter().find(|(to, _)| to == id) {
                Some((_, false)) => self.counters.sent += 1,
                Some((_, true)) => self.send(entry, datagram),
                None => {
                    self.send(entry, datagram);
                    entries[id.0 as usize].as_deref_mut().expect("just seen").hearing.pass_over();
                }
            }
        }
    }

    /// Sends a datagram to the group, if that saves anything. Afterwards `addressed` says to which members.
    fn send_to_group(&mut self, members: &[PeerId], entries: &mut [Option<Box<Entry>>], datagram: &[u8]) {
        self.addressed.clear();
        let Some(group) = &mut self.group else { return };
        let room = group.mailbox.has_room(1, &mut self.counters.dropped);
        if let Some(failure) = group.mailbox.broken() {
            tracing::error!("nothing can be sent to group {} any more ({failure}); members get their datagrams one by one", group.address);
            self.group = None;
            return;
        }
        let (mut bytes, mut there) = (self.part + HEADER, 0);
        for id in members {
            let Some(entry) = reachable(entries, *id) else { continue };
            there += 1;
            let route = entry.hearing.route();
            if route != Route::Alone {
                self.addressed.push((*id, route == Route::Asked));
                bytes = bytes.min(entry.peer.packet as usize);
            }
        }
        let asked = self.addressed.iter().filter(|(_, asked)| *asked).count();
        // For a single member, the group saves nothing.
        let spares = there > 1 && (asked > 0 || self.addressed.len() > 1);
        let fits = self.addressed.len() <= usize::from(u8::MAX) && packet::len(self.addressed.len(), datagram.len()) <= bytes;
        if !room || !spares || !fits {
            self.addressed.clear();
            return;
        }
        let addressees = self.addressed.iter().map(|(id, asked)| {
            let Entry { peer, hearing, .. } = reachable(entries, *id).expect("just seen");
            Addressee { number: peer.number, node: peer.identity.node, asked: *asked, heard: hearing.heard, keys: &peer.keys }
        });
        self.sequence += 1;
        packet::encode(self.sequence, addressees, datagram, &mut self.packet);
        if group.send(&self.packet).is_err() {
            // The card accepts no more for now.
            self.addressed.clear();
            return;
        }
        (self.counters.posted, self.counters.to_group) = (self.counters.posted + 1, self.counters.to_group + 1);
        for (id, _) in &self.addressed {
            entries[id.0 as usize].as_deref_mut().expect("just seen").hearing.address(self.sequence);
        }
    }

    /// Takes the next complete datagram into `into`. `entries` are the connected processes by number.
    pub(super) fn receive(&mut self, into: &mut Vec<u8>, entries: &mut [Option<Box<Entry>>]) -> Option<PeerId> {
        into.clear();
        if let Some(datagram) = self.to_self.pop_front() {
            into.extend_from_slice(&datagram);
            self.counters.received += 1;
            return Some(PeerId::SELF);
        }
        while self.letters.receive(&mut self.packet) {
            let taken = take_packet(&self.packet, self.part, |id| {
                let Entry { peer, hearing, assembly, .. } = entries.get_mut(id.0 as usize)?.as_deref_mut()?;
                Some((&peer.keys, hearing, assembly))
            });
            match taken {
                None => self.counters.rejected += 1,
                Some((_, None)) => {}
                Some((from, Some(whole))) => {
                    into.extend_from_slice(whole);
                    self.counters.received += 1;
                    return Some(from);
                }
            }
        }
        let group = self.group.as_mut()?;
        for _ in 0..GROUP_BATCH {
            if !group.mailbox.receive(&mut self.packet) {
                return None;
            }
            let taken = packet::take(&self.packet, self.us, |id| {
                let Entry { peer, hearing, .. } = entries.get_mut(id.0 as usize)?.as_deref_mut()?;
                Some((&peer.keys, hearing))
            });
            match taken {
                Taken::Rejected => self.counters.rejected += 1,
                Taken::NotOurs => self.counters.not_ours += 1,
                Taken::Nothing => {}
                Taken::Datagram(from, datagram) => {
                    into.extend_from_slice(datagram);
                    (self.counters.received, self.counters.by_group) = (self.counters.received + 1, self.counters.by_group + 1);
                    return Some(from);
                }
            }
        }
        None
    }
}

/// Parses a packet and adds it to the others of its datagram. Returns `None` for a packet that is not to be believed, and the complete datagram with
/// the last of its packets. `known` finds what is kept for a connected process.
fn take_packet<'a>(
    packet: &[u8],
    full: usize,
    known: impl FnOnce(PeerId) -> Option<(&'a Keys, &'a mut Hearing, &'a mut Assembly)>,
) -> Option<(PeerId, Option<&'a [u8]>)> {
    let (head, rest) = packet.split_first_chunk::<{ HEADER - TAG }>()?;
    let (signature, part) = rest.split_first_chunk::<TAG>()?;
    let header = Header::decode(head);
    let from = PeerId(header.number);
    let (keys, hearing, assembly) = known(from).filter(|_| from != PeerId::SELF)?;
    tag(&keys.theirs, head, part).verify_truncated_left(signature).ok()?;
    hearing.confirm(header.heard);
    assembly.add(header, part, full).map(|whole| (from, whole))
}

/// A packet, for the samples of encodings.
#[cfg(feature = "fuzzing")]
pub(super) fn sample() -> Vec<u8> {
    let header = Header { number: 0x0102_0304, index: 1, count: 2, total: 1500, sequence: 9, heard: 8 };
    let mut out = Vec::new();
    seal(header, b"a part", &Keys::new(b"ours", b"theirs"), &mut out);
    out
}

/// A packet as it is sent to a peer.
fn seal(header: Header, part: &[u8], keys: &Keys, out: &mut Vec<u8>) {
    let header = header.encode();
    out.clear();
    out.extend_from_slice(&header);
    out.extend_from_slice(&tag(&keys.ours, &header, part).finalize().into_bytes()[..TAG]);
    out.extend_from_slice(part);
}

/// For the fuzz targets: packets of datagrams in any order, some of them altered on the way, and some signed by a peer that keeps no rules. An
/// altered packet is not believed, and as long as the peer keeps the rules, each datagram comes out as it went in, once.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check(bytes: &[u8]) {
    let (theirs, ours) = (Keys::new(b"forth", b"back"), Keys::new(b"back", b"forth"));
    let (mut assembly, mut hearing, mut packet) = (Assembly::default(), Hearing::default(), Vec::new());
    let Some((&choice, mut rest)) = bytes.split_first() else { return };
    let full = [128, 992, MAX_DATAGRAM_BYTES][usize::from(choice) % 3];
    let mut take = |packet: &[u8]| {
        let taken = take_packet(packet, full, |id| (id == PeerId(7)).then_some((&ours, &mut hearing, &mut assembly)));
        taken.map(|(from, whole)| {
            assert_eq!(from, PeerId(7));
            whole.map(<[u8]>::to_vec)
        })
    };
    assert_eq!(take(rest), None, "nobody has signed it");
    let (mut datagram, mut sequence, mut missing, mut honest) = (Vec::new(), 0, Vec::new(), true);
    while let Some((&[what, at, with], after)) = rest.split_first_chunk() {
        rest = after;
        let count = datagram.len().div_ceil(full).max(1);
        let index = usize::from(at) % count;
        let part = &datagram[index * full..datagram.len().min((index + 1) * full)];
        let header = Header { number: 7, index: index as u8, count: count as u8, total: datagram.len() as u16, sequence, heard: 0 };
        match what % 4 {
            0 => {
                datagram = (0..usize::from(u16::from_le_bytes([at, with])) % (MAX_DATAGRAM_BYTES + 1)).map(|n| (n * 7) as u8).collect();
                sequence += 1;
                missing = (0..datagram.len().div_ceil(full).max(1)).collect();
            }
            1 if sequence > 0 => {
                seal(header, part, &theirs, &mut packet);
                let last = missing == [index];
                missing.retain(|other| *other != index);
                let found = take(&packet);
                assert!(!honest || found == Some(last.then(|| datagram.clone())), "packet {index} of {count}");
            }
            2 => {
                seal(header, part, &theirs, &mut packet);
                let at = usize::from(u16::from_le_bytes([at, what])) % packet.len();
                packet[at] ^= with | 1;
                assert_eq!(take(&packet), None, "altered at {at}");
            }
            _ => {
                let Some((&head, after)) = rest.split_first_chunk() else { return };
                let part = &after[..usize::from(u16::from_le_bytes([at, with & 0xf])).min(after.len())];
                seal(Header { number: 7, ..Header::decode(&head) }, part, &theirs, &mut packet);
                (honest, rest) = (false, after);
                let whole = take(&packet).flatten();
                assert!(whole.is_none_or(|whole| whole.len() <= MAX_DATAGRAM_BYTES));
            }
        }
    }
}

impl Assembly {
    /// Puts a packet in its place. Returns the complete datagram with its last packet, and `None` if the packet's numbers make no sense.
    fn add(&mut self, header: Header, part: &[u8], full: usize) -> Option<Option<&[u8]>> {
        let (total, index, count) = (usize::from(header.total), usize::from(header.index), usize::from(header.count));
        let start = index * full;
        let sane = total <= MAX_DATAGRAM_BYTES && count == total.div_ceil(full).max(1) && index < count && count <= 32;
        if !sane || part.len() != total.saturating_sub(start).min(full) {
            return None;
        }
        if header.sequence < self.sequence {
            // A late packet of a datagram that has been given up.
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
        Header { number: 7, index, count: usize::from(total).div_ceil(FULL).max(1) as u8, total, sequence, heard: 9 }
    }

    #[test]
    fn headers_survive_the_wire() {
        let header = Header { number: 0x0102_0304, index: 3, count: 5, total: 4096, sequence: u64::MAX - 1, heard: 0x0506_0708_090a };
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

//! Packets to the cluster's multicast group: one datagram, and for each member that it addresses a signature with the key of their pair.
//!
//! ```text
//! 0   4  0, which is no process's number: so no signature here is one of a packet to a single peer (module `mail`)
//! 4   1  how many members it addresses, 1 or more
//! 5   1  0
//! 6   2  bytes of the datagram
//! 8   8  its sequence number
//! 16     for each member that it addresses:
//!     0   4  the number by which that member knows the sender
//!     4   2  that member's node
//!     6   2  1: the datagram also comes to it alone, and this only asks whether it hears the group; else 0
//!     8   8  the latest packet to the group that the sender has heard from it
//!     16  16 HMAC-SHA256 of the 16 bytes at 0, the 16 bytes before this, and the datagram, cut to 16 bytes, under the key of this direction
//!            of this connection
//! then   the datagram
//! ```
//!
//! To each of the members, the packet is as good as one of its own: only the sender and that member can make its signature, and no key is shared by
//! more than two (the "authenticator" of Castro and Liskov, OSDI'99).
//!
//! # Which members get a datagram this way
//! A network may lose what goes to a group and carry everything else: a switch may have forgotten who listens, or a router may never have known. The
//! sender would not notice, and the member would take it for dead. So every datagram says which packet to the group its sender has last heard from
//! the receiver. A member gets a datagram through the group only if it has heard the last packet that addressed it; otherwise it gets the datagram
//! individually, as without a group. So a group that falls silent costs each member one datagram, as a lost packet does, and no clock is needed to
//! notice it.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::mail::{self, Keys, TAG};
use crate::contract::{MAX_DATAGRAM_BYTES, NodeId, PeerId};

const HEAD: usize = 16;
const ENTRY: usize = 16 + TAG;
/// After this many multicasts, a member that does not hear the group, or does not say so, is asked again.
const ASK_AGAIN: u32 = 16;

/// How a member gets the next multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Through the group.
    Group,
    /// Individually, and a packet to the group asks whether the member hears the group.
    Asked,
    /// Individually.
    Alone,
}

/// What one end of a connection knows about the group's packets between the two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hearing {
    /// Our latest packet that addressed the peer, and the latest one that the peer says it has heard. 0 means none.
    addressed: u64,
    confirmed: u64,
    /// How many multicasts it has got individually since then.
    alone: u32,
    /// The peer's latest packet that we have heard.
    pub(super) heard: u64,
}

impl Hearing {
    /// How the peer gets the next multicast.
    pub(super) fn route(&self) -> Route {
        match self.addressed {
            0 => Route::Asked,
            addressed if addressed == self.confirmed => Route::Group,
            _ if self.alone >= ASK_AGAIN => Route::Asked,
            _ => Route::Alone,
        }
    }

    /// A packet to the group has addressed it.
    pub(super) fn address(&mut self, sequence: u64) {
        (self.addressed, self.alone) = (sequence, 0);
    }

    /// A multicast has gone to it individually, and no packet to the group addressed it.
    pub(super) fn pass_over(&mut self) {
        self.alone = self.alone.saturating_add(1);
    }

    /// The peer says which packet it has last heard. A late statement changes nothing, and a packet that we never sent confirms nothing.
    pub(super) fn confirm(&mut self, heard: u64) {
        if heard <= self.addressed {
            self.confirmed = self.confirmed.max(heard);
        }
    }

    /// One of the peer's packets has arrived. Returns whether it is new.
    fn hear(&mut self, sequence: u64) -> bool {
        let news = sequence > self.heard;
        self.heard = self.heard.max(sequence);
        news
    }
}

/// One of the members that a packet addresses, as its sender knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addressee<'a> {
    pub(super) number: u32,
    pub(super) node: NodeId,
    pub(super) asked: bool,
    /// The latest packet to the group that we have heard from it.
    pub(super) heard: u64,
    pub(super) keys: &'a Keys,
}

/// The length of a packet that addresses so many members.
pub(super) fn len(addressees: usize, datagram: usize) -> usize {
    HEAD + addressees * ENTRY + datagram
}

/// Writes a packet, for at most 255 members and with a datagram of at most [`MAX_DATAGRAM_BYTES`].
pub(super) fn encode<'a>(sequence: u64, addressees: impl ExactSizeIterator<Item = Addressee<'a>>, datagram: &[u8], out: &mut Vec<u8>) {
    let count = u8::try_from(addressees.len()).expect("bounded by the caller");
    let bytes = u16::try_from(datagram.len()).expect("bounded by the caller");
    let mut head = [0; HEAD];
    head[4] = count;
    head[6..8].copy_from_slice(&bytes.to_le_bytes());
    head[8..].copy_from_slice(&sequence.to_le_bytes());
    out.clear();
    out.extend_from_slice(&head);
    for to in addressees {
        let mut entry = [0; ENTRY - TAG];
        entry[..4].copy_from_slice(&to.number.to_le_bytes());
        entry[4..6].copy_from_slice(&to.node.0.to_le_bytes());
        entry[6] = to.asked.into();
        entry[8..].copy_from_slice(&to.heard.to_le_bytes());
        out.extend_from_slice(&entry);
        out.extend_from_slice(&tag(&to.keys.ours, &head, &entry, datagram).finalize().into_bytes()[..TAG]);
    }
    out.extend_from_slice(datagram);
}

/// A packet for the samples of encodings.
#[cfg(feature = "fuzzing")]
pub(super) fn sample() -> Vec<u8> {
    let keys = Keys::new(b"ours", b"theirs");
    let to = |number: u32, asked| Addressee { number, node: NodeId(number as u16), asked, heard: 8, keys: &keys };
    let mut out = Vec::new();
    encode(9, [to(1, false), to(2, true)].into_iter(), b"a datagram", &mut out);
    out
}

fn tag(key: &Hmac<Sha256>, head: &[u8], entry: &[u8], datagram: &[u8]) -> Hmac<Sha256> {
    let mut mac = mail::tag(key, head, entry);
    mac.update(datagram);
    mac
}

/// What a packet from the group means to one member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken<'p> {
    /// A datagram from that peer.
    Datagram(PeerId, &'p [u8]),
    /// Either its sender only wanted to know whether we hear the group, or it has arrived before.
    Nothing,
    /// It does not address us: it is our own, or from others that use the same group.
    NotOurs,
    /// Malformed, from an unknown sender, or wrongly signed.
    Rejected,
}

/// Parses a packet for the member `us`. `known` finds what that member keeps for a connected process.
pub(super) fn take<'p, 'k>(packet: &'p [u8], us: NodeId, known: impl FnOnce(PeerId) -> Option<(&'k Keys, &'k mut Hearing)>) -> Taken<'p> {
    take_apart(packet, us, known).unwrap_or(Taken::Rejected)
}

fn take_apart<'p, 'k>(
    packet: &'p [u8],
    us: NodeId,
    known: impl FnOnce(PeerId) -> Option<(&'k Keys, &'k mut Hearing)>,
) -> Option<Taken<'p>> {
    let (head, rest) = packet.split_first_chunk::<HEAD>()?;
    let count = usize::from(head[4]);
    let bytes = usize::from(u16::from_le_bytes([head[6], head[7]]));
    let sane = head[..4] == [0; 4] && head[5] == 0 && count > 0 && bytes <= MAX_DATAGRAM_BYTES && packet.len() == len(count, bytes);
    if !sane {
        return None;
    }
    let (entries, datagram) = rest.split_at(count * ENTRY);
    let Some(entry) = entries.chunks_exact(ENTRY).find(|entry| entry[4..6] == us.0.to_le_bytes()) else {
        return Some(Taken::NotOurs);
    };
    let (entry, signature) = entry.split_at(ENTRY - TAG);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let from = PeerId(u32::from_le_bytes(entry[..4].try_into().expect("4 bytes")));
    let asked = match entry[6..8] {
        [0, 0] => false,
        [1, 0] => true,
        _ => return None,
    };
    let (keys, hearing) = known(from).filter(|_| from != PeerId::SELF)?;
    tag(&keys.theirs, head, entry, datagram).verify_truncated_left(signature).ok()?;
    hearing.confirm(word(&entry[8..]));
    let news = hearing.hear(word(&head[8..]));
    Some(if news && !asked { Taken::Datagram(from, datagram) } else { Taken::Nothing })
}

/// Parses a packet for the node `to`, which knows the sender as `to + 7`.
#[cfg(any(test, feature = "fuzzing"))]
fn take_for<'p>(packet: &'p [u8], to: usize, keys: &Keys, hearing: &mut Hearing) -> Taken<'p> {
    take(packet, NodeId(to as u16), |peer| (peer == PeerId(to as u32 + 7)).then_some((keys, hearing)))
}

/// For the fuzz targets: a packet to three members is sent to them, changed as the input says. Only members that the change does not concern take
/// anything from it, and they take what was sent, once.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check(bytes: &[u8]) {
    let pair = |of: u8| (Keys::new(&[of], b"back"), Keys::new(b"back", &[of]));
    let pairs = [pair(1), pair(2), pair(3)];
    // Unchanged, the input is accepted by no member, since none of the keys has ever been used.
    for us in [0, 1] {
        let mut hearing = Hearing::default();
        let taken = take(bytes, NodeId(us), |_| Some((&pairs[0].1, &mut hearing)));
        assert!(matches!(taken, Taken::Rejected | Taken::NotOurs), "a forged packet: {taken:?}");
        assert_eq!(hearing.heard, 0);
    }
    let Some((&[asked, at, at_high, xor, cut], datagram)) = bytes.split_first_chunk() else { return };
    let datagram = &datagram[..datagram.len().min(MAX_DATAGRAM_BYTES)];
    let addressee = |to: usize| Addressee {
        number: to as u32 + 7,
        node: NodeId(to as u16),
        asked: asked >> to & 1 == 1,
        heard: u64::from(asked),
        keys: &pairs[to].0,
    };
    let mut packet = Vec::new();
    encode(5, [0, 1, 2].map(addressee).into_iter(), datagram, &mut packet);
    assert_eq!(packet.len(), len(3, datagram.len()));
    let right = packet.clone();
    let at = usize::from(u16::from_le_bytes([at, at_high])) % packet.len();
    packet[at] ^= xor;
    if cut & 1 == 1 {
        packet.truncate(packet.len() - usize::from(cut >> 1) % packet.len());
    }
    for (to, (_, keys)) in pairs.iter().enumerate() {
        let mut hearing = Hearing::default();
        let signed = |at: usize| !(HEAD..HEAD + 3 * ENTRY).contains(&at) || (HEAD + to * ENTRY..HEAD + (to + 1) * ENTRY).contains(&at);
        let same = packet.len() == right.len() && (0..packet.len()).all(|at| packet[at] == right[at] || !signed(at));
        match take_for(&packet, to, keys, &mut hearing) {
            Taken::Datagram(from, got) => {
                assert!(same && asked >> to & 1 == 0 && from == PeerId(to as u32 + 7) && got == datagram);
                assert_eq!(take_for(&packet, to, keys, &mut hearing), Taken::Nothing, "twice");
            }
            Taken::Nothing => assert!(same && asked >> to & 1 == 1, "what was sent is lost"),
            Taken::NotOurs | Taken::Rejected => {
                // Another member's entry may have been changed to name this one. It is then looked at first, and refused.
                let renamed = (0..to).any(|other| (HEAD + other * ENTRY + 4..HEAD + other * ENTRY + 6).contains(&at));
                assert!(!same || renamed, "what was sent is refused");
                assert_eq!(hearing.heard, 0, "nothing is believed of it");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of the sender and of the member `of`.
    fn pair(of: u8) -> (Keys, Keys) {
        (Keys::new(&[of, 1], &[of, 2]), Keys::new(&[of, 2], &[of, 1]))
    }

    /// A packet with `sequence` to the nodes 1 and 2, which know the sender as 8 and 9; the second is only asked.
    fn packet(sequence: u64, datagram: &[u8]) -> Vec<u8> {
        let keys = [pair(1).0, pair(2).0];
        let to = |at: usize| Addressee {
            number: 8 + at as u32,
            node: NodeId(1 + at as u16),
            asked: at == 1,
            heard: 40 + at as u64,
            keys: &keys[at],
        };
        let mut out = Vec::new();
        encode(sequence, [to(0), to(1)].into_iter(), datagram, &mut out);
        out
    }

    /// What a node takes from a packet, with its own keys or another node's.
    fn taken<'p>(packet: &'p [u8], node: u8, keys: u8, hearing: &mut Hearing) -> Taken<'p> {
        take_for(packet, node.into(), &pair(keys).1, hearing)
    }

    #[test]
    fn each_member_takes_what_is_its_own_and_confirms_it() {
        let packet = packet(7, b"words");
        let mut first = Hearing { addressed: 50, ..Hearing::default() };
        assert_eq!(taken(&packet, 1, 1, &mut first), Taken::Datagram(PeerId(8), b"words"));
        assert_eq!((first.heard, first.confirmed), (7, 40));
        let mut second = Hearing { addressed: 50, ..Hearing::default() };
        assert_eq!(taken(&packet, 2, 2, &mut second), Taken::Nothing, "it is asked, and gets the datagram alone");
        assert_eq!((second.heard, second.confirmed), (7, 41));
        let mut other = Hearing::default();
        assert_eq!(taken(&packet, 3, 1, &mut other), Taken::NotOurs, "no signature for it");
        assert_eq!(other.heard, 0);
    }

    #[test]
    fn nothing_is_taken_twice_or_from_before() {
        let mut hearing = Hearing::default();
        assert_eq!(taken(&packet(7, b"a"), 1, 1, &mut hearing), Taken::Datagram(PeerId(8), b"a"));
        assert_eq!(taken(&packet(7, b"a"), 1, 1, &mut hearing), Taken::Nothing);
        assert_eq!(taken(&packet(6, b"b"), 1, 1, &mut hearing), Taken::Nothing);
        assert_eq!(taken(&packet(8, b""), 1, 1, &mut hearing), Taken::Datagram(PeerId(8), b""));
    }

    #[test]
    fn a_member_cannot_speak_for_the_sender() {
        let mut hearing = Hearing::default();
        // Member 2 has a key with the sender, too, but only its own.
        assert_eq!(taken(&packet(7, b"words"), 1, 2, &mut hearing), Taken::Rejected);
        // Nor is a signature valid for another member: here the entries are exchanged, each with the other's name on it.
        let mut packet = packet(7, b"words");
        let (first, second) = packet[HEAD..].split_at_mut(ENTRY);
        first[ENTRY - TAG..].swap_with_slice(&mut second[ENTRY - TAG..ENTRY]);
        assert_eq!(taken(&packet, 1, 1, &mut hearing), Taken::Rejected);
        assert_eq!((hearing.heard, hearing.confirmed), (0, 0));
    }

    #[test]
    fn what_is_cut_lengthened_or_changed_is_refused() {
        let right = packet(7, b"words");
        let refused = |packet: &[u8], why: &str| {
            let mut hearing = Hearing::default();
            assert_eq!(taken(packet, 1, 1, &mut hearing), Taken::Rejected, "{why}");
            assert_eq!(hearing.heard, 0, "{why}");
        };
        for len in 0..right.len() {
            refused(&right[..len], &format!("cut at {len}"));
        }
        refused(&[&right[..], &[0]].concat(), "a byte too many");
        for count in [0, 1, 3, 255] {
            let mut packet = right.clone();
            packet[4] = count;
            refused(&packet, &format!("{count} entries"));
        }
        // Everything that the first member's signature covers, and the signature itself; but not its node, by which it finds its own entry.
        for at in (0..HEAD + ENTRY).chain(right.len() - 5..right.len()).filter(|at| !(HEAD + 4..HEAD + 6).contains(at)) {
            let mut packet = right.clone();
            packet[at] ^= 0x10;
            refused(&packet, &format!("byte {at} changed"));
        }
    }

    #[test]
    fn one_that_has_not_confirmed_the_last_packet_gets_the_next_alone() {
        let mut hearing = Hearing::default();
        assert_eq!(hearing.route(), Route::Asked, "not known yet");
        hearing.address(3);
        assert_eq!(hearing.route(), Route::Alone);
        hearing.confirm(3);
        assert_eq!(hearing.route(), Route::Group);
        hearing.address(5);
        assert_eq!(hearing.route(), Route::Alone, "one at most is lost when the group falls silent");
        hearing.confirm(3);
        assert_eq!(hearing.route(), Route::Alone, "that was the one before");
        for _ in 0..ASK_AGAIN {
            assert_eq!(hearing.route(), Route::Alone);
            hearing.pass_over();
        }
        assert_eq!(hearing.route(), Route::Asked);
        hearing.address(30);
        assert_eq!(hearing.route(), Route::Alone);
        hearing.confirm(30);
        assert_eq!(hearing.route(), Route::Group);
        hearing.address(31);
        hearing.confirm(u64::MAX);
        assert_eq!(hearing.route(), Route::Alone, "a packet that never was");
    }

    #[test]
    fn changes_are_noticed_wherever_they_are() {
        for asked in [0, 2, 7] {
            for at in 0..130u16 {
                let [low, high] = at.to_le_bytes();
                check(&[asked, low, high, 1, 0, b'w', b'o', b'r', b'd']);
                check(&[asked, low, high, 0, 1 | (at as u8) << 1, b'w', b'o', b'r', b'd']);
            }
        }
    }
}

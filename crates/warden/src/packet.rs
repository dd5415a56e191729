//! Packets between wardens: the sealed encoding of [`Packet`].
//!
//! ```text
//! 0   2  kind, 0x5702                 clear, 12 bytes; if any of it is wrong, the packet does not open
//! 2   2  the sender's host
//! 4   8  the sender's life
//! 12     sealed: the packet, in little-endian numbers
//! ```
//!
//! The key of a direction derives from the cluster's key, the two hosts, the path, and the sender's life. So a packet is valid only between these two hosts, in
//! this direction and over this path.

use martlet_fabric::sealing::{Opening, Sealing, Unopened};
use martlet_protocol::detector::wardens::{AppLife, Entry, HostId, MAX_ENTRIES, Packet, Standing};

use crate::canary::Canary;

/// Length of the clear head, in bytes.
const HEAD: usize = 12;
const WHICH: u16 = 0x5702;
/// Length of an entry, in bytes.
const ENTRY: usize = 4 + 8 + 32 + 1 + 16;
const FIXED: usize = 8 * 6 + 1 + 1;
const _: () = assert!(FIXED + MAX_ENTRIES * ENTRY <= martlet_fabric::sealing::MAX_SEALED_BYTES, "the largest packet can be sealed");

/// The part that is sent in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) host: HostId,
    pub(crate) life: u64,
}

/// Reads the head of a packet.
pub(crate) fn head(packet: &[u8]) -> Option<Head> {
    let head: &[u8; HEAD] = packet.first_chunk()?;
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let life = u64::from_le_bytes(head[4..].try_into().expect("eight bytes"));
    (number(0) == WHICH).then(|| Head { host: HostId(number(2)), life })
}

fn direction(from: HostId, to: HostId, path: u8, life: u64) -> Vec<u8> {
    let to = if Canary::AnyHost.is_planted() { HostId(0) } else { to };
    let path = if Canary::AnyPath.is_planted() { 0 } else { path };
    let mut name = b"warden".to_vec();
    name.extend(from.0.to_le_bytes());
    name.extend(to.0.to_le_bytes());
    name.push(path);
    name.extend(life.to_le_bytes());
    name
}

/// Seals what one warden sends to another over one path.
#[derive(Debug)]
pub(crate) struct Sender {
    sealing: Sealing,
    head: [u8; HEAD],
    sealed: Vec<u8>,
}

impl Sender {
    pub(crate) fn new(key: &[u8], from: HostId, to: HostId, path: u8, life: u64) -> Sender {
        let mut head = [0; HEAD];
        head[..2].copy_from_slice(&WHICH.to_le_bytes());
        head[2..4].copy_from_slice(&from.0.to_le_bytes());
        head[4..].copy_from_slice(&life.to_le_bytes());
        Sender { sealing: Sealing::new(key, &direction(from, to, path, life)), head, sealed: Vec::new() }
    }

    /// The bytes to send.
    pub(crate) fn seal(&mut self, packet: &Packet) -> Vec<u8> {
        self.sealing.seal(&encode(packet), &mut self.sealed);
        [&self.head[..], &self.sealed].concat()
    }
}

/// Opens what one life of a warden sends over one path.
#[derive(Debug)]
pub(crate) struct Receiver {
    opening: Opening,
    pub(crate) life: u64,
}

impl Receiver {
    pub(crate) fn new(key: &[u8], from: HostId, to: HostId, path: u8, life: u64) -> Receiver {
        Receiver { opening: Opening::new(key, &direction(from, to, path, life)), life }
    }

    /// Returns the packet, if this warden has sealed it.
    pub(crate) fn open(&mut self, packet: &mut [u8]) -> Result<Packet, Unopened> {
        let body = self.opening.open(packet.get_mut(HEAD..).ok_or(Unopened::Forged)?)?;
        // If the sender has the key but its bytes are no packet, it is of another version.
        decode(body, self.life).ok_or(Unopened::Forged)
    }
}

pub(crate) fn encode(packet: &Packet) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED + packet.entries.len() * ENTRY);
    for number in [packet.challenge, packet.repeats, packet.seq, packet.heard, packet.after, packet.upto] {
        out.extend(number.to_le_bytes());
    }
    out.push(u8::from(packet.bye));
    out.push(packet.entries.len() as u8);
    for entry in &packet.entries {
        out.extend(entry.life.app.to_le_bytes());
        out.extend(entry.life.incarnation.to_le_bytes());
        out.extend(entry.digest);
        let (standing, secret) = match entry.standing {
            Standing::Alive => (1, [0; 16]),
            Standing::Failed(secret) => (2, secret),
            Standing::Left => (3, [0; 16]),
        };
        out.push(standing);
        out.extend(secret);
    }
    out
}

/// The length of the packet that begins with these bytes.
#[cfg(feature = "fuzzing")]
pub(crate) fn body_len(bytes: &[u8]) -> usize {
    FIXED + bytes.get(FIXED - 1).map_or(0, |count| usize::from(*count) * ENTRY)
}

pub(crate) fn decode(body: &[u8], from_life: u64) -> Option<Packet> {
    let (fixed, mut rest) = body.split_at_checked(FIXED)?;
    let number = |at: usize| u64::from_le_bytes(fixed[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    let (bye, count) = (fixed[48], usize::from(fixed[49]));
    if bye > 1 || count > MAX_ENTRIES && !Canary::EntriesUncounted.is_planted() {
        return None;
    }
    if rest.len() != count * ENTRY && !(Canary::PacketGoesOn.is_planted() && rest.len() > count * ENTRY) {
        return None;
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let (entry, more) = rest.split_first_chunk::<ENTRY>()?;
        rest = more;
        let secret = entry[45..].try_into().expect("16 bytes");
        entries.push(Entry {
            life: AppLife {
                app: u32::from_le_bytes(entry[..4].try_into().expect("four bytes")),
                incarnation: u64::from_le_bytes(entry[4..12].try_into().expect("eight bytes")),
            },
            digest: entry[12..44].try_into().expect("32 bytes"),
            standing: match entry[44] {
                1 => Standing::Alive,
                2 => Standing::Failed(secret),
                3 => Standing::Left,
                _ => return None,
            },
        });
    }
    let [challenge, repeats, seq, heard, after, upto] = [0, 1, 2, 3, 4, 5].map(number);
    Some(Packet { from_life, challenge, repeats, seq, bye: bye == 1, heard, after, upto, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(entries: usize) -> Packet {
        let standing = |n: usize| [Standing::Alive, Standing::Failed([7; 16]), Standing::Left][n % 3];
        let entry = |n: usize| Entry { life: AppLife { app: n as u32 + 1, incarnation: 99 }, digest: [n as u8; 32], standing: standing(n) };
        let bye = entries.is_multiple_of(2);
        let entries = (0..entries).map(entry).collect();
        Packet { from_life: 5, challenge: 6, repeats: 7, seq: 8, bye, heard: 9, after: 10, upto: 11, entries }
    }

    #[test]
    fn a_packet_is_read_by_its_receiver_over_its_path_once() {
        let (one, two) = (HostId(1), HostId(2));
        let (mut sender, mut receiver) = (Sender::new(b"key", one, two, 0, 5), Receiver::new(b"key", one, two, 0, 5));
        for entries in 0..=MAX_ENTRIES {
            let bytes = sender.seal(&packet(entries));
            assert!(bytes.len() <= 1_232 + HEAD);
            assert_eq!(head(&bytes), Some(Head { host: one, life: 5 }));
            for (from, to, path, life) in [(two, one, 0, 5), (one, HostId(3), 0, 5), (one, two, 1, 5), (one, two, 0, 6)] {
                assert_eq!(Receiver::new(b"key", from, to, path, life).open(&mut bytes.clone()), Err(Unopened::Forged));
            }
            assert_eq!(receiver.open(&mut bytes.clone()), Ok(packet(entries)));
            assert_eq!(receiver.open(&mut bytes.clone()), Err(Unopened::Repeated));
        }
        assert_eq!(receiver.open(&mut [1, 2, 3]), Err(Unopened::Forged));
        assert_eq!(head(&[0; 11]), None);
    }

    #[test]
    fn bytes_that_are_no_packet_are_none() {
        let whole = encode(&packet(3));
        assert_eq!(decode(&whole, 5), Some(packet(3)));
        (0..whole.len()).for_each(|len| assert_eq!(decode(&whole[..len], 5), None));
        for (at, value) in [(48, 2), (49, 17), (FIXED + 44, 0), (FIXED + 44, 4)] {
            let mut wrong = whole.clone();
            wrong[at] = value;
            assert_eq!(decode(&wrong, 5), None, "byte {at}");
        }
    }
}

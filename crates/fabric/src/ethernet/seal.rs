//! Sealing: each packet is encrypted and authenticated by AES-128-GCM under a key of one direction of one flow of one connection.
//!
//! | | |
//! |---|---|
//! | source of the key | HMAC-SHA256 under the cluster's key and a secret of the two ends (X25519), over both Hellos and both offers: module `offer` |
//! | nonce | 4 bytes of salt from the key, then the packet's counter, which never stands still: a retransmission is sealed anew |
//! | next key | after [`EPOCH_PACKETS`] packets, derived from the current one; the receiver changes with the first packet that opens under it |
//! | repetitions | a window of [`WINDOW`] counters; checked before a packet is opened, updated after |
//!
//! Only one thread at a time seals under a key: the endpoint's thread seals requests and datagrams, and the thread that holds the guard seals
//! responses.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::cipher::{Cipher, NONCE};
use super::packet::{HEAD, Head, Kind, TAG};

/// How many packets one key seals. A forger who sends so many short packets succeeds with a probability below 2^-50.
const EPOCH_PACKETS: u64 = 1 << 27;
/// How far behind the newest counter a packet may arrive.
const WINDOW: u64 = 1024;

/// What a direction's keys are derived from.
#[derive(Clone)]
pub(super) struct Secret(pub(super) [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    fn derive(&self, label: &[u8]) -> [u8; 32] {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label);
        mac.finalize().into_bytes().into()
    }

    fn next(&self) -> Secret {
        Secret(self.derive(b"martlet next"))
    }

    fn keys(&self) -> Keys {
        let (key, salt) = (self.derive(b"martlet key"), self.derive(b"martlet salt"));
        let cipher = Cipher::new(key.first_chunk().expect("16 bytes are a key"));
        Keys { cipher, salt: salt[..4].try_into().expect("4 bytes") }
    }
}

struct Keys {
    cipher: Cipher,
    salt: [u8; 4],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    fn nonce(&self, counter: u64) -> [u8; NONCE] {
        let mut nonce = [0; NONCE];
        nonce[..4].copy_from_slice(&self.salt);
        nonce[4..].copy_from_slice(&counter.to_le_bytes());
        nonce
    }

    fn open(&self, counter: u64, packet: &mut [u8]) -> bool {
        let (head, rest) = packet.split_at_mut(HEAD);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG);
        let tag: [u8; TAG] = (&*tag).try_into().expect("its length");
        self.cipher.open(&self.nonce(counter), head, body, &tag)
    }
}

/// The sending end of one direction.
#[derive(Debug)]
pub(super) struct Sealer {
    secret: Secret,
    keys: Keys,
    epoch: u64,
    counter: u64,
    /// The receiver's number for the flow.
    flow: u32,
    epoch_packets: u64,
}

impl Sealer {
    pub(super) fn new(secret: Secret, flow: u32) -> Sealer {
        Sealer { keys: secret.keys(), secret, epoch: 0, counter: 0, flow, epoch_packets: EPOCH_PACKETS }
    }

    /// Begins an empty packet, to which the body is appended.
    pub(super) fn begin(packet: &mut Vec<u8>) {
        packet.clear();
        packet.resize(HEAD, 0);
    }

    /// Completes a packet.
    pub(super) fn seal(&mut self, kind: Kind, packet: &mut Vec<u8>) {
        if self.counter == self.epoch_packets {
            self.secret = self.secret.next();
            self.keys = self.secret.keys();
            (self.epoch, self.counter) = (self.epoch + 1, 0);
        }
        self.counter += 1;
        let head = Head { kind, epoch: self.epoch as u16, flow: self.flow, counter: self.counter }.encode();
        packet[..HEAD].copy_from_slice(&head);
        let tag = self.keys.cipher.seal(&self.keys.nonce(self.counter), &head, &mut packet[HEAD..]);
        packet.extend_from_slice(&tag);
    }
}

/// Which counters have been seen.
#[derive(Debug)]
struct Seen {
    newest: u64,
    bits: [u64; (WINDOW / 64) as usize],
}

impl Seen {
    const NONE: Seen = Seen { newest: 0, bits: [0; (WINDOW / 64) as usize] };

    fn place(counter: u64) -> (usize, u64) {
        ((counter % WINDOW / 64) as usize, 1 << (counter % 64))
    }

    fn is_new(&self, counter: u64) -> bool {
        if counter > self.newest {
            return true;
        }
        let (word, bit) = Seen::place(counter);
        counter != 0 && self.newest - counter < WINDOW && self.bits[word] & bit == 0
    }

    fn note(&mut self, counter: u64) {
        if counter > self.newest {
            for passed in (self.newest + 1).max(counter.saturating_sub(WINDOW - 1))..=counter {
                let (word, bit) = Seen::place(passed);
                self.bits[word] &= !bit;
            }
            self.newest = counter;
        }
        let (word, bit) = Seen::place(counter);
        self.bits[word] |= bit;
    }
}

/// Why a packet is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// It has been taken before, or is too old to tell.
    Repeated,
    /// It does not open: it is not for this flow, was altered, or is under a key that has been dropped.
    Forged,
}

/// The place of an opened packet among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Whether no packet that was sent later has arrived before it.
    pub(super) newest: bool,
}

/// The receiving end of one direction.
#[derive(Debug)]
pub(super) struct Opener {
    epoch: u64,
    /// The keys of the previous epoch, the current one and the next. Each takes a kilobyte, and most peers have only the second: the third is created
    /// for the first packet that claims to be of that epoch.
    keys: [Option<Box<Keys>>; 3],
    seen: [Seen; 3],
    /// The secret of the next epoch.
    next: Secret,
}

impl Opener {
    pub(super) fn new(secret: Secret) -> Opener {
        let next = secret.next();
        Opener { epoch: 0, keys: [None, Some(Box::new(secret.keys())), None], seen: [Seen::NONE; 3], next }
    }

    /// The heap memory that it uses.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.keys.iter().flatten().count() * size_of::<Keys>()
    }

    /// Opens a packet in place. Afterwards the body is between the head and the tag.
    pub(super) fn open(&mut self, head: Head, packet: &mut [u8]) -> Result<Opened, Rejected> {
        // 0: the previous epoch, 1: the current one, 2: the next.
        let at = usize::from(head.epoch.wrapping_sub(self.epoch as u16).wrapping_add(1));
        if at == 2 && self.keys[2].is_none() {
            self.keys[2] = Some(Box::new(self.next.keys()));
        }
        let Some(Some(keys)) = self.keys.get(at) else { return Err(Rejected::Forged) };
        if !self.seen[at].is_new(head.counter) {
            return Err(Rejected::Repeated);
        }
        if !keys.open(head.counter, packet) {
            return Err(Rejected::Forged);
        }
        let newest = at > 0 && head.counter > self.seen[at].newest;
        self.seen[at].note(head.counter);
        if at == 2 {
            self.epoch += 1;
            self.next = self.next.next();
            self.keys.rotate_left(1);
            self.keys[2] = None;
            self.seen.rotate_left(1);
            self.seen[2] = Seen::NONE;
        }
        Ok(Opened { newest })
    }
}

/// The body of a packet that has been opened.
pub(super) fn body(packet: &[u8]) -> &[u8] {
    &packet[HEAD..packet.len() - TAG]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(epoch_packets: u64) -> (Sealer, Opener) {
        let secret = Secret([7; 32]);
        (Sealer { epoch_packets, ..Sealer::new(secret.clone(), 9) }, Opener::new(secret))
    }

    fn sealed(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        Sealer::begin(&mut packet);
        packet.extend_from_slice(text);
        sealer.seal(Kind::Request, &mut packet);
        packet
    }

    fn open(opener: &mut Opener, packet: &[u8]) -> Result<Vec<u8>, Rejected> {
        let mut packet = packet.to_vec();
        let head = Head::decode(&packet).expect("a packet");
        opener.open(head, &mut packet).map(|_| body(&packet).to_vec())
    }

    #[test]
    fn what_is_sealed_is_opened_once_and_nothing_of_it_is_in_clear() {
        let (mut sealer, mut opener) = pair(EPOCH_PACKETS);
        let packet = sealed(&mut sealer, b"the value");
        assert!(!packet.windows(4).any(|part| part == b"valu"));
        assert_eq!(open(&mut opener, &packet), Ok(b"the value".to_vec()));
        assert_eq!(open(&mut opener, &packet), Err(Rejected::Repeated));
    }

    #[test]
    fn a_packet_with_any_bit_altered_does_not_open() {
        let (mut sealer, mut opener) = pair(EPOCH_PACKETS);
        let packet = sealed(&mut sealer, b"bits");
        for at in 0..packet.len() * 8 {
            let mut altered = packet.clone();
            altered[at / 8] ^= 1 << (at % 8);
            // Looking up the flow's number is up to the code that has the flows; everything else is rejected here.
            if let Some(head) = Head::decode(&altered) {
                assert!(opener.open(head, &mut altered).is_err(), "bit {at}");
            }
        }
        assert_eq!(open(&mut opener, &packet), Ok(b"bits".to_vec()), "and none of them took its place");
    }

    #[test]
    fn counters_are_taken_in_any_order_within_the_window_and_once() {
        let (mut sealer, mut opener) = pair(EPOCH_PACKETS);
        let packets: Vec<_> = (0..2 * WINDOW).map(|n| sealed(&mut sealer, &n.to_le_bytes())).collect();
        for n in [5, 3, 4, 900, 6] {
            assert!(open(&mut opener, &packets[n]).is_ok(), "{n}");
        }
        for n in [3, 4, 5, 6, 900] {
            assert_eq!(open(&mut opener, &packets[n]), Err(Rejected::Repeated), "{n}");
        }
        assert!(open(&mut opener, &packets[1500]).is_ok());
        assert_eq!(open(&mut opener, &packets[400]), Err(Rejected::Repeated), "too old to tell");
        assert_eq!(open(&mut opener, &packets[900]), Err(Rejected::Repeated));
        assert!(open(&mut opener, &packets[901]).is_ok());
        let newest = 2 * WINDOW as usize - 1;
        assert!(open(&mut opener, &packets[newest]).is_ok());
        for (n, packet) in packets.iter().enumerate().take(newest).skip(newest + 1 - WINDOW as usize) {
            let expected = if n == 1500 { Err(Rejected::Repeated) } else { Ok((n as u64).to_le_bytes().to_vec()) };
            assert_eq!(open(&mut opener, packet), expected, "{n}");
        }
    }

    #[test]
    fn keys_change_and_what_is_late_by_one_epoch_still_opens_once() {
        let (mut sealer, mut opener) = pair(3);
        let packets: Vec<_> = (0..12u8).map(|n| sealed(&mut sealer, &[n])).collect();
        let heads: Vec<_> = packets.iter().map(|packet| Head::decode(packet).expect("a packet")).collect();
        assert_eq!(heads.iter().map(|head| head.epoch).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert!(open(&mut opener, &packets[0]).is_ok());
        assert_eq!(open(&mut opener, &packets[6]), Err(Rejected::Forged), "two epochs ahead");
        for n in [4, 2, 1, 5] {
            assert_eq!(open(&mut opener, &packets[n]), Ok(vec![n as u8]), "{n}");
            assert_eq!(open(&mut opener, &packets[n]), Err(Rejected::Repeated), "{n}");
        }
        assert!(open(&mut opener, &packets[8]).is_ok());
        assert!(open(&mut opener, &packets[3]).is_ok());
        assert_eq!(open(&mut opener, &packets[2]), Err(Rejected::Forged), "its key is no more");
    }
}

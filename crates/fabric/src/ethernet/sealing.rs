//! Sealed packets in one direction, for programs that send datagrams without a fabric: the same sealing as for packets between hosts, without flows.

use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::offer::{agreed, share_of};
use super::packet::{Head, Kind, MAX_BODY};
use super::seal::{Opener, Sealer, Secret, body};
use crate::host::random;

/// The longest body of a sealed packet, in bytes.
pub const MAX_SEALED_BYTES: usize = MAX_BODY;

/// Why a packet does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// It is not a sealed packet, is not of this direction and key, or was altered.
    #[error("a packet that is not what its key seals")]
    Forged,
    /// It has been opened before, or is too old to tell.
    #[error("a packet that came before")]
    Repeated,
}

/// Both ends derive a direction's secret from the key that they share and from `direction`, which tells the direction apart from all others. The same
/// `direction` must never be used twice by one sending end, so include a random number of the sender's in it.
fn secret(key: &[u8], direction: &[u8]) -> Secret {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(b"martlet sealing ");
    mac.update(direction);
    Secret(mac.finalize().into_bytes().into())
}

/// One end's part in a secret that two ends make together and use once (X25519). An eavesdropper who hears both shares does not learn the secret. It
/// does not prove who the other end is.
pub struct Agreement([u8; 32]);

impl std::fmt::Debug for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agreement")
    }
}

impl Agreement {
    /// Drawn from the system's random numbers.
    ///
    /// # Errors
    /// When the system has none.
    pub fn draw() -> io::Result<Agreement> {
        random().map(Agreement)
    }

    /// The share to send to the other end.
    pub fn share(&self) -> [u8; 32] {
        share_of(self.0)
    }

    /// The common secret; `None` if `theirs` is not a valid share.
    pub fn with(&self, theirs: [u8; 32]) -> Option<[u8; 32]> {
        agreed(self.0, theirs)
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Sealing(Sealer);

impl Sealing {
    /// The sending end of a direction.
    pub fn new(key: &[u8], direction: &[u8]) -> Sealing {
        Sealing(Sealer::new(secret(key, direction), 0))
    }

    /// Seals a body of up to [`MAX_SEALED_BYTES`]. The packet replaces what `packet` held.
    ///
    /// # Panics
    /// When the body is longer.
    pub fn seal(&mut self, bytes: &[u8], packet: &mut Vec<u8>) {
        crate::invariant!(bytes.len() <= MAX_SEALED_BYTES, "{} bytes to seal, at most {MAX_SEALED_BYTES}", bytes.len());
        Sealer::begin(packet);
        packet.extend_from_slice(bytes);
        self.0.seal(Kind::Datagram, packet);
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Opening(Opener);

impl Opening {
    /// The receiving end of a direction.
    pub fn new(key: &[u8], direction: &[u8]) -> Opening {
        Opening(Opener::new(secret(key, direction)))
    }

    /// Opens a packet in place and returns its body. Each packet opens only once.
    ///
    /// # Errors
    /// When it is not what the key seals, or was opened before.
    pub fn open<'a>(&mut self, packet: &'a mut [u8]) -> Result<&'a [u8], Unopened> {
        let head = Head::decode(packet).filter(|head| head.kind == Kind::Datagram).ok_or(Unopened::Forged)?;
        match self.0.open(head, packet) {
            Ok(_) => Ok(body(packet)),
            Err(super::seal::Rejected::Forged) => Err(Unopened::Forged),
            Err(super::seal::Rejected::Repeated) => Err(Unopened::Repeated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_shares_make_one_secret_and_no_share_makes_none() {
        let [one, other, third] = [(); 3].map(|()| Agreement::draw().expect("randomness"));
        let secret = one.with(other.share()).expect("a share");
        assert_eq!(other.with(one.share()), Some(secret));
        assert_ne!(third.with(one.share()), Some(secret));
        assert_eq!(one.with([0; 32]), None);
    }

    #[test]
    fn a_packet_opens_once_for_its_direction_and_for_no_other() {
        let (mut sealing, mut opening) = (Sealing::new(b"key", b"1 to 2"), Opening::new(b"key", b"1 to 2"));
        let mut packet = Vec::new();
        sealing.seal(b"hello", &mut packet);
        for mut other in [Opening::new(b"key", b"2 to 1"), Opening::new(b"yek", b"1 to 2")] {
            assert_eq!(other.open(&mut packet.clone()), Err(Unopened::Forged));
        }
        for at in 0..packet.len() {
            let mut altered = packet.clone();
            altered[at] ^= 1;
            assert!(opening.open(&mut altered).is_err(), "byte {at}");
            assert!(opening.open(&mut packet[..at].to_vec()).is_err());
        }
        assert_eq!(opening.open(&mut packet.clone()), Ok(&b"hello"[..]));
        assert_eq!(opening.open(&mut packet), Err(Unopened::Repeated));
    }
}

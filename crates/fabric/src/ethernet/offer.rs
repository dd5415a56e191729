//! What two processes tell each other when they connect, and the keys that follow from it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

use super::packet::Bytes;
use super::seal::Secret;
use crate::meeting::wire::Said;

/// How a process is reached, and its share of the keys. If it names no address, the address is that of the handshake's TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// The address of both sockets. `None`: the one that the handshake came from.
    pub(super) ip: Option<IpAddr>,
    /// The port that takes requests to it.
    pub(super) answers_at: u16,
    /// The port from which it sends requests.
    pub(super) asks_at: u16,
    /// The number with which requests to it are to be marked.
    pub(super) asked: u32,
    /// The number with which responses to it are to be marked.
    pub(super) asking: u32,
    /// Its share of the secret, used once.
    pub(super) share: [u8; 32],
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let ip = match self.ip {
            None => Ipv6Addr::UNSPECIFIED,
            Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
            Some(IpAddr::V6(ip)) => ip,
        };
        out.extend_from_slice(&ip.octets());
        out.extend_from_slice(&self.answers_at.to_le_bytes());
        out.extend_from_slice(&self.asks_at.to_le_bytes());
        out.extend_from_slice(&self.asked.to_le_bytes());
        out.extend_from_slice(&self.asking.to_le_bytes());
        out.extend_from_slice(&self.share);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Offer, String> {
        let Some((ip, rest)) = bytes.split_first_chunk::<16>() else { return Err("its offer ends too early".into()) };
        let mut rest = Bytes(rest);
        let ip = match Ipv6Addr::from(*ip) {
            Ipv6Addr::UNSPECIFIED => None,
            ip => Some(ip.to_canonical()),
        };
        let mut take = || Some((rest.u16()?, rest.u16()?, rest.u32()?, rest.u32()?));
        let (answers_at, asks_at, asked, asking) = take().ok_or("its offer ends too early")?;
        let share = rest.0.try_into().map_err(|_| format!("its offer's share of the key has {} bytes, not 32", rest.0.len()))?;
        if answers_at == 0 || asks_at == 0 {
            return Err("its offer names no port".into());
        }
        Ok(Offer { ip, answers_at, asks_at, asked, asking, share })
    }

    /// Where requests to the process go.
    pub(super) fn answers_at(&self, from: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.ip.unwrap_or(from.ip()), self.answers_at)
    }

    /// Where the process sends its requests from, at first.
    pub(super) fn asks_at(&self, from: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.ip.unwrap_or(from.ip()), self.asks_at)
    }
}

/// The public share that belongs to a private number.
pub(super) fn share_of(private: [u8; 32]) -> [u8; 32] {
    x25519(private, X25519_BASEPOINT_BYTES)
}

/// The secret made from our private number and the other end's share; `None` if `theirs` is not a valid share.
pub(super) fn agreed(private: [u8; 32], theirs: [u8; 32]) -> Option<[u8; 32]> {
    let shared = x25519(private, theirs);
    (shared != [0; 32]).then_some(shared)
}

/// The secrets that seal a connection's packets: for each end as the asker, one for requests and one for responses.
#[derive(Clone, Debug)]
pub(super) struct Secrets {
    pub(super) requests: [Secret; 2],
    pub(super) responses: [Secret; 2],
}

/// Derives the secrets of a connection. `said` holds both Hellos and both offers, the dialer's first; likewise, the first of each pair of secrets is
/// the dialer's. The cluster's key ties them to this cluster. The shares keep them known to the two ends alone, even if that key leaks later.
///
/// # Errors
/// When the other end's share is not valid.
pub(super) fn secrets(key: &[u8], said: Said<'_>, private: [u8; 32], theirs: [u8; 32]) -> Result<Secrets, String> {
    let shared = agreed(private, theirs).ok_or("its offer's share of the key is none")?;
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(b"martlet ethernet");
    for part in [said.dialer, said.acceptor, said.body, &shared] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    let root: [u8; 32] = mac.finalize().into_bytes().into();
    let of = |label: &[u8]| {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&root).expect("HMAC takes keys of any length");
        mac.update(label);
        Secret(mac.finalize().into_bytes().into())
    };
    Ok(Secrets { requests: [of(b"dialer asks"), of(b"acceptor asks")], responses: [of(b"acceptor answers"), of(b"dialer answers")] })
}

/// An offer for tests and the samples of encodings.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn sample() -> Offer {
    let ip = Some(IpAddr::from([10, 0, 0, 1]));
    Offer { ip, answers_at: 7600, asks_at: 40_000, asked: 0x0102_0304, asking: 0x0506_0708, share: [9; 32] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_the_wire_and_bad_ones_are_named() {
        for offer in [sample(), Offer { ip: None, ..sample() }, Offer { ip: Some("fd00::1".parse().expect("an address")), ..sample() }] {
            let encoded = offer.encode();
            assert_eq!(Offer::decode(&encoded), Ok(offer));
            for cut in 0..encoded.len() {
                assert!(Offer::decode(&encoded[..cut]).is_err(), "cut at {cut}");
            }
        }
        let error = Offer::decode(&Offer { answers_at: 0, ..sample() }.encode()).expect_err("no port");
        assert_eq!(error, "its offer names no port");
        let from = SocketAddr::from(([10, 0, 0, 7], 5));
        assert_eq!(sample().answers_at(from), SocketAddr::from(([10, 0, 0, 1], 7600)));
        assert_eq!(Offer { ip: None, ..sample() }.answers_at(from), SocketAddr::from(([10, 0, 0, 7], 7600)));
    }

    #[test]
    fn both_ends_come_to_the_same_secrets_and_no_other_does() {
        let said = Said { dialer: b"d", acceptor: b"a", body: b"offers" };
        let (a, b) = ([3; 32], [5; 32]);
        let all = |secrets: Secrets| [secrets.requests, secrets.responses].concat().iter().map(|secret| secret.0).collect::<Vec<_>>();
        let of = |key: &[u8], said, mine, theirs| all(secrets(key, said, mine, share_of(theirs)).expect("a share"));
        let ours = of(b"key", said, a, b);
        assert_eq!(ours, of(b"key", said, b, a));
        assert!((1..4).all(|at| !ours[..at].contains(&ours[at])), "four of them");
        for other in [of(b"kez", said, a, b), of(b"key", Said { body: b"offerz", ..said }, a, b), of(b"key", said, a, a)] {
            assert!(ours.iter().all(|secret| !other.contains(secret)));
        }
        assert!(secrets(b"key", said, a, [0; 32]).is_err(), "a share that makes any secret nothing");
    }
}

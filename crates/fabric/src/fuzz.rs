//! What must hold for any bytes that arrive before two processes share memory. For the fuzz targets, as are [`Input`] and [`Mutations`], from which
//! all of them take their inputs.

mod input;
mod mutate;

pub use input::Input;
pub use mutate::Mutations;

use crate::meeting::wire::{self, Hello, Message, Prover, Said};

/// Messages of the handshake. What is accepted means the same when it is encoded again, a Hello is encoded to the same bytes, and a proof is valid
/// only for what it was made for.
///
/// # Panics
/// If that does not hold.
pub fn handshake(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let again = message.encode();
        assert_eq!(Message::decode(&again).as_ref(), Ok(&message), "a message encoded and decoded again");
        if let Message::Hello(hello) | Message::Answer { hello, .. } = message
            && let Ok(decoded) = Hello::decode(hello)
        {
            assert_eq!(decoded.encode(), hello, "a Hello has one encoding");
        }
        if let Message::Offer { body, .. } = message {
            crate::verbs::offer::check(body);
        }
        if let Message::Answer { proof, hello } = message {
            let said = Said { dialer: b"", acceptor: hello, body: b"" };
            let right = wire::prove(b"key", Prover::Acceptor, said);
            assert!(wire::proven(b"key", Prover::Acceptor, said, &right));
            assert!(!wire::proven(b"key", Prover::Dialer, said, &right), "reflected");
            assert_eq!(wire::proven(b"key", Prover::Acceptor, said, proof), *proof == right);
        }
    }
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), bytes, "a Hello has one encoding");
    }
}

/// Packets to a multicast group. Nothing is believed unless its sender has signed it for the member that looks at it, and nothing is believed twice.
///
/// # Panics
/// If that does not hold.
pub fn group_packets(bytes: &[u8]) {
    crate::verbs::packet::check(bytes);
}

/// Packets with parts of datagrams, to one peer.
///
/// # Panics
/// If an altered packet is believed, or an unaltered one comes out as something else.
pub fn packets(bytes: &[u8]) {
    crate::verbs::mail::check(bytes);
}

/// Messages over TCP, each preceded by its length.
///
/// # Panics
/// If the messages depend on where the stream is cut.
pub fn stream(bytes: &[u8]) {
    crate::meeting::tcp::stream::check(bytes);
}

/// Packets between ordinary hosts, before and after they have been opened, and offers.
///
/// # Panics
/// If a packet opens that was never sealed, or one that opens does what its sender may not do.
pub fn sealed_packets(bytes: &[u8]) {
    crate::ethernet::fuzz::check(bytes);
}

//! The kinds of an engine's operations, and how tokens encode them.

use martlet_fabric::{PeerId, Token};

use crate::basics::layout::{Component, token_rest};

/// The token of an engine's operation of this kind on `peer`. `round` tells the uses of one kind apart. Its low 16 bits are kept, which is enough, since
/// operations on one peer complete in the order in which they were posted.
pub fn token(kind: u8, round: u64, peer: PeerId) -> Token {
    Component::Engine.token((u64::from(kind) << 48) | ((round & 0xffff) << 32) | u64::from(peer.0))
}

/// What [`token`] packed: the kind, the round's low 16 bits, and the peer.
pub fn parse(token: Token) -> (u8, u64, PeerId) {
    let rest = token_rest(token);
    ((rest >> 48) as u8, (rest >> 32) & 0xffff, PeerId(rest as u32))
}

/// Declares the kinds of an engine's operations: an enum whose values are encoded in tokens, numbered from 0 in the order of declaration.
macro_rules! operations {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $kind:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $kind,)+ }

        impl $name {
            const ALL: &[$name] = &[$($name::$kind),+];

            /// The token of such an operation on `peer`; see [`token`]($crate::replica::operations::token).
            pub fn token(self, round: u64, peer: martlet_fabric::PeerId) -> martlet_fabric::Token {
                $crate::replica::operations::token(self as u8, round, peer)
            }

            /// What the token says: which operation, the round's low 16 bits, and the peer.
            pub fn parse(token: martlet_fabric::Token) -> ($name, u64, martlet_fabric::PeerId) {
                let (kind, round, peer) = $crate::replica::operations::parse(token);
                ($name::ALL[usize::from(kind) % $name::ALL.len()], round, peer)
            }
        }
    };
}

pub(crate) use operations;

#[cfg(test)]
mod tests {
    use super::*;

    operations! {
        /// Some.
        pub enum Op {
            /// The first.
            Log,
            /// The second.
            Consumed,
            /// The third.
            Words,
        }
    }

    #[test]
    fn tokens_name_their_operation_round_and_peer() {
        for (at, op) in Op::ALL.iter().copied().enumerate() {
            assert_eq!(op as usize, at);
            for (round, peer) in [(0, 0), (7, 1), (0xffff, u32::MAX)] {
                let token = op.token(round, PeerId(peer));
                assert!(Component::Engine.owns(token));
                assert_eq!(Op::parse(token), (op, round, PeerId(peer)));
            }
        }
        assert_eq!(Op::parse(Op::Words.token(0x1_0002, PeerId(3))), (Op::Words, 2, PeerId(3)), "of a round its low bits go along");
    }
}

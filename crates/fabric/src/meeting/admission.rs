//! Admission: which connections a process accepts, and how many.

use super::wire::Code;
use super::{Refusal, describe};
use crate::contract::{Identity, PeerKind};

/// The most accepted connections whose handshakes are under way at once. A newcomer displaces the one that has been silent longest.
const MAX_HANDSHAKES: usize = 64;
/// The most member connections, live or not yet forgotten.
const MAX_MEMBERS: usize = 256;

/// Whether a process may connect now to the process `ours`. Only the authority of a pair asks this. `connections` lists every connection that is not
/// forgotten yet: the identity at its other end, and whether it is live.
pub(crate) fn admit(
    ours: Identity,
    max_clients: usize,
    mut connections: impl Iterator<Item = (Identity, bool)> + Clone,
    newcomer: Identity,
) -> Result<(), Refusal> {
    if connections.clone().any(|(identity, live)| live && identity == newcomer) {
        return Err(Refusal::new(Code::Duplicate, "the two are connected already"));
    }
    let count = connections.clone().filter(|(identity, _)| identity.kind == newcomer.kind).count();
    // The newcomer's own earlier connection, if it has only lost its socket, still exists until this one replaces it. So it takes up no place.
    let count = count - usize::from(connections.any(|(identity, _)| identity == newcomer));
    let (limit, what) = match newcomer.kind {
        PeerKind::Client => (max_clients, "clients"),
        PeerKind::Member => (MAX_MEMBERS, "members"),
    };
    if count >= limit {
        let us = describe(ours);
        return Err(Refusal::new(Code::Full, format!("{us} serves {count} {what} already, at most {limit} are allowed")));
    }
    Ok(())
}

/// How far a handshake has come. This decides which handshake has to make room for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// We have dialled.
    Ours,
    /// We accepted it, and the other end has said nothing yet.
    Silent,
    /// We accepted it, and it is making progress.
    Speaking,
}

/// Which of the handshakes under way, given in order of arrival, has to make room for one more that is accepted.
pub(crate) fn displaced(handshakes: impl Iterator<Item = Standing> + Clone) -> Option<usize> {
    if handshakes.clone().filter(|standing| *standing != Standing::Ours).count() < MAX_HANDSHAKES {
        return None;
    }
    let silent = handshakes.clone().position(|standing| standing == Standing::Silent);
    silent.or(handshakes.clone().position(|standing| standing != Standing::Ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Incarnation, NodeId};

    fn client(incarnation: u64) -> Identity {
        Identity { node: NodeId(9), incarnation: Incarnation(incarnation), kind: PeerKind::Client }
    }

    #[test]
    fn a_live_connection_is_not_made_twice() {
        let ours = Identity { kind: PeerKind::Member, ..client(1) };
        let with = |live| admit(ours, 2, [(client(1), live)].into_iter(), client(1)).map_err(|refusal| refusal.code);
        assert_eq!((with(true), with(false)), (Err(Code::Duplicate), Ok(())));
    }

    #[test]
    fn those_count_that_are_gone_but_not_forgotten() {
        let ours = Identity { kind: PeerKind::Member, ..client(1) };
        let others = [(client(1), true), (client(2), false), (Identity { kind: PeerKind::Member, ..client(3) }, true)];
        assert!(admit(ours, 3, others.into_iter(), client(4)).is_ok());
        let refusal = admit(ours, 2, others.into_iter(), client(4)).expect_err("full");
        assert_eq!(
            (refusal.code, refusal.text.as_str()),
            (Code::Full, "member n9 (incarnation 1) serves 2 clients already, at most 2 are allowed")
        );
    }

    #[test]
    fn a_process_that_comes_back_takes_its_own_place_and_no_second_one() {
        let ours = Identity { kind: PeerKind::Member, ..client(1) };
        let full = [(client(1), false), (client(2), true)];
        assert!(admit(ours, 2, full.into_iter(), client(1)).is_ok());
        assert!(admit(ours, 2, full.into_iter(), client(3)).is_err());
        let twice = [(client(1), false), (client(1), false), (client(2), true)];
        assert!(admit(ours, 2, twice.into_iter(), client(1)).is_err());
    }

    #[test]
    fn the_silent_make_room_first() {
        use Standing::{Ours, Silent, Speaking};
        let crowd = |first: &[Standing], count| displaced(first.iter().copied().chain(std::iter::repeat_n(Speaking, count)));
        assert_eq!(crowd(&[Ours, Ours], MAX_HANDSHAKES - 1), None, "our own attempts take nobody's place");
        assert_eq!(crowd(&[Ours, Speaking, Silent], MAX_HANDSHAKES - 2), Some(2));
        assert_eq!(crowd(&[Ours], MAX_HANDSHAKES), Some(1));
    }
}

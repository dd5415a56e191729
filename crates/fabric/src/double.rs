//! For tests that replace a fabric by a test double: [`Nobody`], a fabric without any peers, and [`idle!`](crate::idle), which fills in those calls
//! of [`Fabric`] that a double has no use for.

use crate::{Fabric, Local, LocalRegion, Memory, Remote, Token};

/// Fills in calls of [`Fabric`] by name, within its `impl`: what is sent is dropped, and nothing ever arrives. It does not offer calls that act on
/// others' memory: a double has to define what those do.
#[macro_export]
macro_rules! idle {
    (@ send) => { fn send(&mut self, _: $crate::PeerId, _: &[u8]) {} };
    (@ multicast) => { fn multicast(&mut self, _: &[u8]) {} };
    (@ receive) => { fn receive(&mut self, _: &mut Vec<u8>) -> Option<$crate::PeerId> { None } };
    (@ poll) => { fn poll(&mut self) -> Option<$crate::Completion> { None } };
    (@ event) => { fn event(&mut self) -> Option<$crate::PeerEvent> { None } };
    (@ grant) => { fn grant(&mut self, _: $crate::PeerId, _: $crate::RegionName) {} };
    (@ revoke) => { fn revoke(&mut self, _: $crate::PeerId, _: $crate::RegionName, _: $crate::Token) {} };
    (@ nudge) => { fn nudge(&mut self, _: $crate::PeerId) {} };
    (@ forget) => { fn forget(&mut self, _: $crate::PeerId) {} };
    ($($call:ident),+) => { $($crate::idle!(@ $call);)+ };
}

/// A fabric without peers and without memory. A caller that acts on a peer's memory all the same is wrong, and gets a panic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Fabric for Nobody {
    const ZOMBIES_REACHABLE: bool = true;

    fn memory(&self, _: LocalRegion) -> Option<&Memory> {
        None
    }
    fn write(&mut self, at: Remote, _: &[u8], _: Token) {
        panic!("nobody is there to write to: {at:?}");
    }
    fn read(&mut self, from: Remote, _: Local, _: usize, _: Token) {
        panic!("nobody is there to read from: {from:?}");
    }
    fn read_word(&mut self, from: Remote, _: Token) {
        panic!("nobody is there to read from: {from:?}");
    }
    fn compare_and_swap(&mut self, at: Remote, _: u64, _: u64, _: Token) {
        panic!("nobody is there to swap at: {at:?}");
    }
    idle!(poll, send, multicast, receive, event, grant, revoke, nudge, forget);
}

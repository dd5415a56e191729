//! What a peer that asks for nothing costs: a node may have a thousand of them.

use crate::contract::{RegionName, Token};
use crate::ethernet::endpoint::Entry;
use crate::ethernet::packet::LARGEST_PACKET;
use crate::ethernet::requester::{Requester, Target, Work};
use crate::ethernet::seal::{Opener, Secret};
use crate::ethernet::serving::Served;

/// The most memory that an idle peer may take, apart from the lanes that are kept for it, whose memory is allocated when they are written.
const MOST: usize = 8 << 10;

#[test]
fn an_idle_peer_takes_less_than_8_kib_and_so_does_one_that_is_answered_now_and_then() {
    let opener = Opener::new(Secret([7; 32]));
    let fixed = size_of::<Entry>() + size_of::<Served>() + 2 * opener.heap_bytes();
    let mut requester = Requester::new(LARGEST_PACKET);
    assert!(fixed + requester.heap_bytes() <= MOST, "{fixed} bytes, and {} besides", requester.heap_bytes());
    // Like a client whose request is answered, and whose lane's ring is told.
    let target = Target { lane: true, region: RegionName(17), offset: 0, epoch: 1 };
    for _ in 0..2 {
        requester.post(Token(1), Ok(target), Work::Write, 128, &[7; 128]);
    }
    assert!(fixed + requester.heap_bytes() <= MOST, "{fixed} bytes, and {} besides", requester.heap_bytes());
}

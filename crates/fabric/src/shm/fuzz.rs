//! What must hold whatever a peer writes into its mail ring. For the fuzz targets.

use super::mail::{self, Popped};
use crate::contract::MAX_DATAGRAM_BYTES;
use crate::host::memory::{Access, Area, Map, create, page};
use crate::primitive::Ordering;

/// A mail ring whose writer keeps no rules. Each operation is a byte. Our datagrams come out as they went in until the other end has written what it
/// should not. After that, whatever comes out is bounded, and reading goes on.
///
/// # Panics
/// If that does not hold.
pub fn mail_ring(bytes: &[u8]) {
    let len = mail::BYTES.next_multiple_of(page());
    let fd = create("martlet-fuzz", len).expect("a memfd");
    let area = Area::new(&Map::new(&fd, 0, len, Access::ReadWrite, false).expect("mapped"), 0, mail::BYTES);
    let (mut sender, mut receiver) = (mail::Sender::new(area.clone()), mail::Receiver::new(area.clone()));
    let (mut on_the_way, mut got) = (std::collections::VecDeque::new(), Vec::new());
    let mut hostile = false;
    for operation in bytes.chunks(4) {
        let number = |at: usize| operation.get(at).copied().map_or(0, usize::from);
        match number(0) % 4 {
            0 => {
                let datagram = vec![number(1) as u8; (number(2) << 4 | number(3)) % (MAX_DATAGRAM_BYTES + 1)];
                if sender.push(&datagram) {
                    on_the_way.push_back(datagram);
                }
            }
            1 | 2 => match receiver.pop(&mut got) {
                Popped::Datagram if hostile => assert!(got.len() <= MAX_DATAGRAM_BYTES),
                Popped::Datagram => assert_eq!(Some(&got), on_the_way.pop_front().as_ref()),
                Popped::Nothing => assert!(hostile || on_the_way.is_empty()),
                Popped::Malformed => assert!(hostile, "a datagram of ours is malformed"),
            },
            _ => {
                // A process that may write the ring can write any word of it, above all the positions.
                hostile = true;
                let memory = area.memory();
                let at = if number(1) & 1 == 0 { number(1) % 16 } else { 16 + (number(1) << 8 | number(2)) % (memory.len() - 16) };
                let old = memory[at].load(Ordering::Relaxed);
                let word = match number(3) % 5 {
                    0 => u64::MAX - number(2) as u64,
                    1 => old.wrapping_add(number(2) as u64),
                    2 => old.wrapping_sub(number(2) as u64),
                    3 => (number(2) as u64) << 56,
                    _ => number(2) as u64,
                };
                memory[at].store(word, Ordering::Relaxed);
            }
        }
    }
    for _ in 0..=mail::BYTES {
        if receiver.pop(&mut got) == Popped::Nothing {
            return;
        }
    }
    panic!("more datagrams than the ring has words");
}

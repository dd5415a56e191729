//! Promise 2: words.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cluster::{Cluster, LANDING, PUBLIC, PUBLIC_BYTES, bytes_of};
use super::{Harness, Step};
use crate::contract::{Fabric, Local, LocalRegion, Token};
use crate::primitive::Ordering;

/// Promise 2: the owner and a reader see a word as it was before a write or as it is after it, within a long transfer as well as by itself.
pub fn words_never_tear<H: Harness>(round: u64) {
    const WRITES: u64 = 200;
    const WORDS: usize = 64;
    // All bytes of a word are the same, so a torn word gives itself away.
    fn whole(word: u64) -> bool {
        word == (word & 0xff) * 0x0101_0101_0101_0101
    }
    let mut cluster = Cluster::<H>::connected(round, 3);
    let (to, from) = (cluster.public(0, 1, 0), cluster.public(2, 1, 0));
    let (mut written, mut writing) = (0, false);
    let mut reading = false;
    let last = 0x0101_0101_0101_0101 * WRITES;
    cluster.harness.run(vec![
        (
            0,
            Box::new(move |fabric| {
                if fabric.poll().is_some() {
                    writing = false;
                }
                if writing {
                    return Step::More;
                }
                if written == WRITES {
                    return Step::Done;
                }
                (written, writing) = (written + 1, true);
                fabric.write(to, &[written as u8; WORDS * 8], Token(0));
                Step::More
            }),
        ),
        (
            1,
            Box::new(move |fabric| {
                let memory = &fabric.memory(LocalRegion::Public(PUBLIC)).expect("declared")[..WORDS];
                let mut ended = true;
                for word in memory {
                    let word = word.load(Ordering::Relaxed);
                    assert!(whole(word), "the owner sees the torn word {word:#x}");
                    ended &= word == last;
                }
                if ended { Step::Done } else { Step::More }
            }),
        ),
        (
            2,
            Box::new(move |fabric| {
                if !reading {
                    reading = true;
                    let into = Local { region: LocalRegion::Public(LANDING), offset: 0 };
                    fabric.read(from, into, WORDS * 8, Token(0));
                }
                if fabric.poll().is_none() {
                    return Step::More;
                }
                reading = false;
                let mut ended = true;
                for word in &fabric.memory(LocalRegion::Public(LANDING)).expect("declared")[..WORDS] {
                    let word = word.load(Ordering::Relaxed);
                    assert!(whole(word), "a reader sees the torn word {word:#x}");
                    ended &= word == last;
                }
                if ended { Step::Done } else { Step::More }
            }),
        ),
    ]);
}

/// Whatever happened on the way, once a long transfer has completed, all of it is there, and nothing around it has changed.
pub fn long_transfers_arrive_whole_in_the_end<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    for (turn, len) in [1usize, 2, 3, 8, 63, 64, 65, 200].into_iter().enumerate() {
        let words: Vec<u64> = (0..len as u64).map(|i| ((turn as u64 + 1) << 32) | i).collect();
        let (before, at, after) = (cluster.public(0, 1, 0), cluster.public(0, 1, 1), cluster.public(0, 1, 1 + len));
        assert_eq!(cluster.write(0, before, &[7]), Ok(0));
        assert_eq!(cluster.write(0, after, &[9]), Ok(0));
        assert_eq!(cluster.write(0, at, &words), Ok(0));
        assert_eq!(cluster.read(0, at, len), Ok(words));
        assert_eq!(cluster.read_word(0, before), Ok(7));
        assert_eq!(cluster.read_word(0, after), Ok(9));
    }
}

/// An address outside the region, or off a word's boundary, is the caller's mistake: it panics and touches nothing.
pub fn addresses_outside_a_region_are_refused<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let at = |cluster: &mut Cluster<H>, offset| crate::Remote { offset, ..cluster.public(0, 1, 0) };
    let (end, odd, last) = (at(&mut cluster, PUBLIC_BYTES), at(&mut cluster, 4), at(&mut cluster, PUBLIC_BYTES - 8));
    let fabric = cluster.harness.fabric(0);
    let mut refused = |what: &str, post: &mut dyn FnMut(&mut H::Fabric)| {
        assert!(catch_unwind(AssertUnwindSafe(|| post(fabric))).is_err(), "{what} was accepted");
    };
    refused("a write behind the end", &mut |f| f.write(end, &bytes_of(&[1]), Token(0)));
    refused("a write across the end", &mut |f| f.write(last, &bytes_of(&[1, 2]), Token(0)));
    refused("a write off the word boundary", &mut |f| f.write(odd, &bytes_of(&[1]), Token(0)));
    refused("a write of half a word", &mut |f| f.write(last, &[0; 4], Token(0)));
    refused("a read behind the end", &mut |f| f.read_word(end, Token(0)));
    refused("a swap behind the end", &mut |f| f.compare_and_swap(end, 0, 1, Token(0)));
    assert_eq!(cluster.write(0, last, &[3]), Ok(0), "the endpoint goes on working");
    assert_eq!(cluster.read_word(0, last), Ok(3));
}

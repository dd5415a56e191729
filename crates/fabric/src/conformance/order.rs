//! Promises 1 and 5: order and visibility.

use super::cluster::{Cluster, LANDING, PUBLIC, bytes_of};
use super::{Harness, Step};
use crate::contract::{Fabric, Local, LocalRegion, Token};
use crate::primitive::{AtomicU64, Ordering};

/// Promise 1: a process that sees a later write of an endpoint sees its earlier ones.
pub fn writes_take_effect_in_order<H: Harness>(round: u64) {
    const LAST: u64 = 300;
    let mut cluster = Cluster::<H>::connected(round, 2);
    let (first, second) = (cluster.public(0, 1, 0), cluster.public(0, 1, 200));
    let (mut value, mut in_flight) = (0, 0);
    cluster.harness.run(vec![
        (
            0,
            Box::new(move |fabric| {
                while fabric.poll().is_some() {
                    in_flight -= 1;
                }
                if value < LAST && in_flight < 8 {
                    value += 1;
                    fabric.write(first, &bytes_of(&[value]), Token(value));
                    fabric.write(second, &bytes_of(&[value]), Token(value));
                    in_flight += 2;
                }
                if value == LAST && in_flight == 0 { Step::Done } else { Step::More }
            }),
        ),
        (
            1,
            Box::new(move |fabric| {
                let memory = fabric.memory(LocalRegion::Public(PUBLIC)).expect("declared");
                let later = memory[200].load(Ordering::Acquire);
                let earlier = memory[0].load(Ordering::Acquire);
                assert!(earlier >= later, "write {later} is visible, and the write before it, which ends at {earlier}, is not");
                if later == LAST { Step::Done } else { Step::More }
            }),
        ),
    ]);
}

/// Promise 1: completions come in the order of posting, whatever the kinds of the operations.
pub fn completions_come_in_posting_order<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let (word, long) = (cluster.public(0, 1, 0), cluster.public(0, 1, 64));
    let into = Local { region: LocalRegion::Public(LANDING), offset: 0 };
    let mut posted = Vec::new();
    for turn in 0..40u64 {
        let token = cluster.token();
        posted.push(token);
        let fabric = cluster.harness.fabric(0);
        match turn % 4 {
            0 => fabric.write(long, &[turn as u8; 1024], token),
            1 => fabric.read_word(word, token),
            2 => fabric.read(long, into, 2048, token),
            _ => fabric.compare_and_swap(word, 0, 0, token),
        }
        if turn % 7 == 0 {
            cluster.harness.pass();
            cluster.observe(0);
        }
    }
    cluster.until("all operations complete", |c| {
        c.observe(0);
        c.completions[0].len() == posted.len()
    });
    let order: Vec<Token> = cluster.completions[0].iter().map(|done| done.token).collect();
    assert_eq!(order, posted);
    assert!(cluster.completions[0].iter().all(|done| done.result.is_ok()));
}

/// Promise 1: an operation takes effect after those that were posted before it, without waiting for their completions.
pub fn reads_follow_the_writes_posted_before_them<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let at = cluster.public(0, 1, 5);
    for value in 1..50u64 {
        let (write, read) = (cluster.token(), cluster.token());
        let fabric = cluster.harness.fabric(0);
        fabric.write(at, &bytes_of(&[value]), write);
        fabric.read_word(at, read);
        assert_eq!(cluster.complete(0, read), Ok(value));
        assert_eq!(cluster.complete(0, write), Ok(0), "a write completes with 0");
    }
}

/// Promise 5: what has completed is in the owner's memory, in a public region or a lane, at the owner itself or at a peer.
pub fn a_completed_write_is_visible_to_the_owner<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    for value in 1..30u64 {
        let words = [value, value + 1, value + 2];
        for of in [0, 1] {
            let at = cluster.public(of, 1, of * 8);
            assert_eq!(cluster.write(of, at, &words), Ok(0));
            let memory = cluster.memory(1, LocalRegion::Public(PUBLIC));
            assert_eq!(super::cluster::words_of(&memory[of * 8..of * 8 + 3]), words);
        }
        let at = cluster.lane(0, 1, 1);
        assert_eq!(cluster.write(0, at, &words), Ok(0));
        assert_eq!(cluster.lane_words(1, 0, 4)[1..], words);
    }
}

/// The full fence of [`Fabric::poll`]: each of two processes writes its own word, and after the completion reads the other's. If both read 0, both
/// reads have passed the writes ahead of them.
pub fn a_completed_write_comes_before_later_reads<H: Harness>(round: u64) {
    const TRIES: usize = 200;
    let mut cluster = Cluster::<H>::connected(round, 3);
    let arrived = AtomicU64::new(0);
    let seen: Vec<[AtomicU64; 2]> = (0..TRIES).map(|_| [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)]).collect();
    let mut tasks: Vec<(usize, super::Task<'_, H::Fabric>)> = Vec::new();
    for me in [0, 1] {
        // One pair of words for each try, in the memory of a third process, to which neither has a shorter way.
        let (own, other) = (cluster.public(me, 2, me), cluster.public(me, 2, 1 - me));
        let (arrived, seen) = (&arrived, &seen);
        let (mut attempt, mut written, mut posted) = (0, false, false);
        tasks.push((
            me,
            Box::new(move |fabric| {
                let pair = attempt * 16;
                if !posted && arrived.load(Ordering::SeqCst) >= 2 * attempt as u64 {
                    posted = true;
                    let at = crate::Remote { offset: own.offset + pair, ..own };
                    fabric.write(at, &bytes_of(&[1]), Token(0));
                }
                while let Some(done) = fabric.poll() {
                    let word = done.result.expect("nobody has died");
                    if written {
                        seen[attempt][me].store(word, Ordering::SeqCst);
                        arrived.fetch_add(1, Ordering::SeqCst);
                        (attempt, written, posted) = (attempt + 1, false, false);
                    } else {
                        written = true;
                        fabric.read_word(crate::Remote { offset: other.offset + pair, ..other }, Token(1));
                    }
                }
                if attempt == TRIES { Step::Done } else { Step::More }
            }),
        ));
    }
    cluster.harness.run(tasks);
    for (attempt, words) in seen.iter().enumerate() {
        let found = [words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst)];
        assert_ne!(found, [0, 0], "try {attempt}: each has read the other's word from before its write");
    }
}

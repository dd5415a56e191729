//! Promise 3: compare-and-swap.

use super::cluster::Cluster;
use super::{Harness, Step, Task};
use crate::contract::{Fabric, Token};

/// A swap that finds the expected word swaps it, and one that does not leaves the word as it is. Both report what they found.
pub fn swap_reports_the_word_as_found<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    for of in [0, 1] {
        let at = cluster.public(of, 1, of);
        assert_eq!(cluster.swap(of, at, 0, 10), Ok(0));
        assert_eq!(cluster.swap(of, at, 0, 20), Ok(10), "found another word, so it reports it");
        assert_eq!(cluster.read_word(of, at), Ok(10), "and leaves it");
        assert_eq!(cluster.swap(of, at, 10, u64::MAX), Ok(10));
        assert_eq!(cluster.swap(of, at, u64::MAX, 0), Ok(u64::MAX));
        assert_eq!(cluster.read_word(of, at), Ok(0));
    }
}

/// Promise 3: no increment is lost, although the owner of the word swaps it too (TRAPS 5).
pub fn swap_is_atomic_with_the_owner_included<H: Harness>(round: u64) {
    const EACH: u64 = 150;
    let mut cluster = Cluster::<H>::connected(round, 3);
    let mut tasks: Vec<(usize, Task<'_, H::Fabric>)> = Vec::new();
    for process in 0..3 {
        let at = cluster.public(process, 2, 7);
        let (mut expected, mut done, mut posted) = (0, 0, false);
        tasks.push((
            process,
            Box::new(move |fabric| {
                if !posted {
                    posted = true;
                    fabric.compare_and_swap(at, expected, expected + 1, Token(done));
                }
                if let Some(completion) = fabric.poll() {
                    posted = false;
                    let found = completion.result.expect("nobody has died");
                    if found == expected {
                        done += 1;
                        expected += 1;
                    } else {
                        expected = found;
                    }
                }
                if done == EACH { Step::Done } else { Step::More }
            }),
        ));
    }
    cluster.harness.run(tasks);
    let at = cluster.public(0, 2, 7);
    assert_eq!(cluster.read_word(0, at), Ok(3 * EACH));
}

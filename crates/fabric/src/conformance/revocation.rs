//! Promise 6: revocation.

use super::cluster::{Cluster, LANE, bytes_of, words_of};
use super::{Harness, Step};
use crate::contract::{Fabric, LocalRegion, OpError, Remote, Token};
use crate::primitive::{AtomicU64, Ordering};

/// Words of one record of these tests.
const WORDS: usize = 8;
/// Records that fit in the lane, each in a place of its own.
const RECORDS: usize = 60;

/// Promise 6: when the owner revokes while writes are running, every write that completes `Ok` was in the lane, whole, when the revocation completed.
/// Every other write completes with [`OpError::AccessLost`], and so do all writes after the first of those.
pub fn revocation_keeps_whole_writes_and_loses_the_others<H: Harness>(round: u64) {
    for start in [0, 1, 7, 20, 55] {
        let mut cluster = Cluster::<H>::connected(round, 2);
        let lane = cluster.lane(0, 1, 0);
        let writer = cluster.peer(1, 0);
        let progress = AtomicU64::new(0);
        let mut outcome = Vec::new();
        let mut snapshot = Vec::new();
        {
            let (progress, outcome, snapshot) = (&progress, &mut outcome, &mut snapshot);
            let (mut posted, mut asked) = (0, false);
            cluster.harness.run(vec![
                (
                    0,
                    Box::new(move |fabric| {
                        if posted < RECORDS && posted < outcome.len() + 4 {
                            let at = Remote { offset: posted * WORDS * 8, ..lane };
                            posted += 1;
                            fabric.write(at, &bytes_of(&[posted as u64; WORDS]), Token(posted as u64));
                            progress.store(posted as u64, Ordering::SeqCst);
                        }
                        while let Some(done) = fabric.poll() {
                            assert_eq!(done.token, Token(outcome.len() as u64 + 1));
                            outcome.push(done.result);
                        }
                        if outcome.len() == RECORDS { Step::Done } else { Step::More }
                    }),
                ),
                (
                    1,
                    Box::new(move |fabric| {
                        if !asked && progress.load(Ordering::SeqCst) >= start {
                            asked = true;
                            fabric.revoke(writer, LANE, Token(1));
                        }
                        let Some(done) = fabric.poll() else { return Step::More };
                        assert_eq!((done.token, done.result), (Token(1), Ok(0)));
                        let lane = fabric.memory(LocalRegion::Lane { writer, name: LANE }).expect("not forgotten");
                        snapshot.extend(words_of(&lane[..RECORDS * WORDS]));
                        Step::Done
                    }),
                ),
            ]);
        }
        for (i, result) in outcome.iter().enumerate() {
            let record = &snapshot[i * WORDS..(i + 1) * WORDS];
            match result {
                Ok(_) => assert_eq!(record, [i as u64 + 1; WORDS], "write {i} completed, and the owner did not see it"),
                Err(error) => assert_eq!(*error, OpError::AccessLost),
            }
        }
        let kept = outcome.iter().take_while(|result| result.is_ok()).count();
        assert!(outcome[kept..].iter().all(Result::is_err), "a write went through after one that lost its access: {outcome:?}");
        let at = cluster.lane(0, 1, 0);
        assert_eq!(cluster.write(0, at, &[1]), Err(OpError::AccessLost), "the loss is for good");
    }
}

/// A new grant opens the lane again, with the same memory.
pub fn a_grant_after_a_revocation_opens_the_lane_again<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 2);
    let at = cluster.lane(0, 1, 0);
    let writer = cluster.peer(1, 0);
    for value in 1..20u64 {
        assert_eq!(cluster.write(0, at, &[value; WORDS]), Ok(0));
        let token = cluster.token();
        cluster.harness.fabric(1).revoke(writer, LANE, token);
        assert_eq!(cluster.complete(1, token), Ok(0));
        assert_eq!(cluster.lane_words(1, 0, WORDS), [value; WORDS]);
        assert_eq!(cluster.write(0, at, &[value; WORDS]), Err(OpError::AccessLost));
        cluster.harness.fabric(1).grant(writer, LANE);
        assert_eq!(cluster.read_word(0, at), Ok(value), "the writer reads its lane, granted or not");
    }
}

/// Revoking one writer's lane affects neither another writer's lane of that name, nor this writer's other lanes, nor public memory.
pub fn revocation_spares_other_writers_and_regions<H: Harness>(round: u64) {
    let mut cluster = Cluster::<H>::connected(round, 3);
    let writer = cluster.peer(1, 0);
    let token = cluster.token();
    cluster.harness.fabric(1).revoke(writer, LANE, token);
    assert_eq!(cluster.complete(1, token), Ok(0));
    let (revoked, other) = (cluster.lane(0, 1, 0), cluster.lane(2, 1, 0));
    let (ring, public) = (Remote { region: crate::Region::Lane(super::RING), ..revoked }, cluster.public(0, 1, 0));
    let elsewhere = cluster.lane(0, 2, 0);
    assert_eq!(cluster.write(0, revoked, &[1]), Err(OpError::AccessLost));
    assert_eq!(cluster.write(2, other, &[2]), Ok(0));
    assert_eq!(cluster.write(0, ring, &[3]), Ok(0));
    assert_eq!(cluster.write(0, public, &[4]), Ok(0));
    assert_eq!(cluster.write(0, elsewhere, &[5]), Ok(0));
    assert_eq!(cluster.lane_words(1, 2, 1), [2]);
    assert_eq!(cluster.lane_words(2, 0, 1), [5]);
}

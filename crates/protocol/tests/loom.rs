//! Records at fixed places under loom: every interleaving of the words, and every value that the memory model lets a load return.
//!
//! `cargo xtask loom` runs it, with the bugs that can be planted. Without the flag `loom` this file is empty.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use martlet_fabric::primitive::AtomicU64;
use martlet_protocol::basics::sealed::{self, Sealed};

/// One record, and a second, longer one.
const RECORDS: [(u64, u64, &[u8]); 2] = [(4, 1, b"before"), (5, 2, b"what follows")];

fn encoded(record: usize) -> Vec<u8> {
    let (subject, ballot, payload) = RECORDS[record];
    let mut bytes = Vec::new();
    sealed::encode(subject, ballot, payload, &mut bytes);
    bytes
}

fn as_read(record: usize) -> Option<Sealed> {
    let (subject, ballot, payload) = RECORDS[record];
    Some(Sealed { subject, ballot, payload: payload.to_vec() })
}

/// A record is written over another one, by `store`, while it is read. A read returns one of the two, whole, or none. Once the write is known to be complete,
/// it returns the new one.
fn rewritten(store: fn(&[AtomicU64], &[u8])) {
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..encoded(1).len() / 8).map(|_| AtomicU64::new(0)).collect());
        sealed::store(&words, &encoded(0));
        let shared = words.clone();
        let writing = thread::spawn(move || store(&shared, &encoded(1)));
        let read = sealed::read(&words);
        assert!(read.is_none() || read == as_read(0) || read == as_read(1), "torn: {read:?}");
        writing.join().unwrap();
        assert_eq!(sealed::read(&words), as_read(1), "written, and not there");
    });
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    println!("{executions} executions");
    assert!(executions > 2, "a model without a race proves nothing");
}

#[test]
fn trap_14_a_record_is_read_whole_or_not_at_all() {
    rewritten(sealed::store);
}

/// A process that writes another's memory promises no order among the words of one write.
#[test]
fn trap_14_in_whatever_order_its_words_are_written() {
    rewritten(|words, bytes| {
        for (at, word) in words.iter().enumerate().rev() {
            let bytes = bytes[at * 8..at * 8 + 8].try_into().unwrap();
            word.store(u64::from_le_bytes(bytes), martlet_fabric::primitive::Ordering::Relaxed);
        }
    });
}

/// A reader takes a record although its checksum does not hold.
#[cfg(feature = "canaries")]
#[test]
#[should_panic(expected = "torn")]
fn canary_torn_view() {
    martlet_fabric::probe::plant(Some(martlet_protocol::basics::Canary::TornView.name()));
    rewritten(sealed::store);
}

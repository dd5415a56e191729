//! What must hold for any bytes that peers send, where it cannot be checked from outside this crate. For the fuzz targets.

use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_protocol::basics::layout::returned;
use martlet_protocol::basics::{ProcessId, ViewNumber};
use martlet_protocol::founding::{Returned, refound};

/// Entries and parts of an embedded replica.
///
/// # Panics
/// When replicas that take the same input do not hold the same state.
pub fn embedded(bytes: &[u8]) {
    crate::embed::fuzz::check(bytes);
}

/// What processes say that they have returned with: repeating it must not change what it means, and a process that founds a cluster by it must get a valid
/// cluster.
///
/// # Panics
/// When that does not hold.
pub fn returned_words(bytes: &[u8]) {
    let mut present: Vec<(ProcessId, Returned)> = Vec::new();
    for said in bytes.chunks(returned::WORDS * 8).take(4) {
        let mut words = [0; returned::WORDS];
        for (word, bytes) in words.iter_mut().zip(said.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        let Ok(parsed) = Returned::parse(&words) else { continue };
        let region: Vec<AtomicU64> = (0..returned::WORDS).map(|_| AtomicU64::new(0)).collect();
        Returned::store(parsed.as_ref(), &region);
        let again = std::array::from_fn(|at| region[at].load(Ordering::Relaxed));
        assert_eq!(Returned::parse(&again).as_ref(), Ok(&parsed), "said again");
        if let Some(log) = parsed {
            // One of those that its log lists, in a later life.
            let mut id = log.members[present.len() % log.members.len()];
            id.incarnation.0 |= 1;
            present.push((id, log));
        }
    }
    match refound(&present) {
        Ok(refounding) => {
            assert!(refounding.number > ViewNumber(0) && !refounding.members.is_empty());
            assert!(refounding.members.is_sorted_by(|a, b| a < b), "each once");
        }
        Err(lack) => assert!(!lack.to_string().is_empty()),
    }
}

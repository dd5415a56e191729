//! Views, datagrams of membership, records at fixed places, and the words of processes that come back from their disks.

use martlet_fabric::fuzz::Input;
use martlet_fabric::primitive::{AtomicU64, Ordering};
use martlet_node::counters::{Counters, Reading};
use martlet_protocol::basics::layout::{COUNTERS_BYTES, LAST_VIEW, MAX_MEMBERS, VIEW_RECORD_BYTES};
use martlet_protocol::basics::{LogIndex, ViewNumber, sealed};
use martlet_protocol::engine::mu::Group;
use martlet_protocol::engine::mu::layout::{Header, Kind, check_entries, commands};
use martlet_protocol::membership::message::Message;
use martlet_protocol::membership::{View, ViewError};

pub(super) fn run(data: &[u8]) {
    match View::decode(data) {
        Ok(view) => check(&view, data),
        Err(ViewError::Trailing(n)) => assert!(n <= data.len()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(message) = Message::decode(data) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(again, data, "a datagram has one encoding");
    }
    mu(data);
    counters(data);
    records(data);
    martlet_node::fuzz::returned_words(data);
}

/// Records and groups of the engine `mu`, which followers find in their lanes.
fn mu(data: &[u8]) {
    if let Ok((header, body)) = Header::decode(data) {
        let mut again = Vec::new();
        header.encode(&mut again);
        again.extend_from_slice(body);
        assert_eq!(again, data, "a record has one encoding");
        assert!(header.last() < LogIndex(1 << 63));
        if check_entries(&header, body).is_ok() && header.kind == Kind::Commands {
            let bytes: usize = commands(body).map(|command| command.expect("checked").len()).sum();
            assert!(bytes < body.len(), "commands are no longer than their record");
        }
    }
    if let Some(group) = Group::decode(data) {
        let mut again = Vec::new();
        group.encode(&mut again);
        assert_eq!(again, data, "a group has one encoding");
        // In a group with unoccupied places, all members together may be no majority.
        assert!(group.electorates().all(|(members, quorum)| !members.is_empty() && quorum * 2 > members.len() && quorum <= MAX_MEMBERS));
    }
}

/// Counters and events as any process may show them: what is read of a node's region stays within it.
fn counters(data: &[u8]) {
    let region: Vec<AtomicU64> = (0..COUNTERS_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    Counters::default().open(&region);
    for (word, bytes) in region[2..].iter().zip(data.chunks_exact(8).cycle()) {
        word.store(u64::from_le_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
    }
    let bytes: Vec<u8> = region.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
    let reading = Reading::parse(&bytes).expect("it is long enough and starts as it should");
    assert!(reading.events.len() * 8 <= bytes.len() && reading.events.is_sorted_by_key(|(number, _)| *number));
}

fn check(view: &View, bytes: &[u8]) {
    let mut again = Vec::new();
    view.encode(&mut again);
    assert_eq!(again, bytes, "a view has one encoding");
    assert!(view.number <= ViewNumber(LAST_VIEW) && view.members.len() <= MAX_MEMBERS && view.departed.len() <= MAX_MEMBERS);
    assert!(sealed::HEADER_BYTES + again.len() <= VIEW_RECORD_BYTES, "a view of {} bytes does not fit its record", again.len());
}

/// A read returns what was stored, or nothing, whatever words of another record, or of none, are among the record's own.
fn records(data: &[u8]) {
    let mut input = Input(data);
    let (subject, ballot) = (input.number(), input.number());
    let len = usize::from(input.u8());
    let payload = input.bytes(len);
    let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let mut encoded = Vec::new();
    sealed::encode(subject, ballot, payload, &mut encoded);
    sealed::store(&words, &encoded);
    let record = sealed::Sealed { subject, ballot, payload: payload.to_vec() };
    assert_eq!(sealed::read(&words), Some(record.clone()));
    while !input.is_empty() {
        words[usize::from(input.u8()) % (encoded.len() / 8)].store(input.u64(), Ordering::Relaxed);
    }
    let stands: Vec<u8> = words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
    let whole = sealed::HEADER_BYTES + payload.len();
    let found = sealed::read(&words);
    assert_eq!(found == Some(record), stands[..whole] == encoded[..whole], "a record is whole, or it is not there");
    if let Some(found) = found {
        let mut again = Vec::new();
        sealed::encode(found.subject, found.ballot, &found.payload, &mut again);
        let whole = sealed::HEADER_BYTES + found.payload.len();
        assert_eq!(again[..whole], stands[..whole], "what is read is what stands there");
    }
}

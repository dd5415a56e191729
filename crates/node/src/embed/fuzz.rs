//! Checks entries and parts that another process wrote, for the fuzz targets.

use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{StateMachine as _, UnreadablePart};

use super::entry::Entry;
use super::machine::{Lent, Replicated, StateMachine};

/// Keeps every command, preceded by the last byte of its index, and replies with the total number of bytes.
#[derive(Default)]
struct List(Vec<u8>);

impl StateMachine for List {
    fn apply(&mut self, index: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        self.0.push(index.0 as u8);
        self.0.extend_from_slice(command);
        reply.extend_from_slice(&self.0.len().to_le_bytes());
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        self.0 = snapshot.to_vec();
        Ok(())
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Takes pieces off the front of an input. What is not there counts as zero.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n.min(self.0.len()));
        self.0 = tail;
        head
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Usually small; after a 255, a whole word.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => self.bytes(8).iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
            small => u64::from(small),
        }
    }
}

/// Entries and parts come in any order. What is refused leaves nothing behind once the machine has been cleared, as it is before a replica receives the state
/// again. Two replicas that accept the same input hold the same state, and so does a third that receives its state from one of them.
pub(crate) fn check(bytes: &[u8]) {
    let (mut one, mut other) = (Replicated::new(List::default()), Replicated::new(List::default()));
    let (mut rest, mut index) = (Rest(bytes), 0);
    while !rest.0.is_empty() {
        let mut entry = Vec::new();
        match rest.byte() % 8 {
            0 => {
                let len = usize::from(rest.byte());
                entry.extend_from_slice(rest.bytes(len));
            }
            1 | 2 => {
                let (session, seq, confirmed) = (rest.number(), rest.number(), rest.number());
                Entry::InSession { session, seq, confirmed, command: rest.bytes(3) }.encode(&mut entry);
            }
            3 => Entry::Open { evicted: Some(LogIndex(rest.number())).filter(|index| index.0 > 0) }.encode(&mut entry),
            4 => Entry::Close { session: rest.number() }.encode(&mut entry),
            5 => {
                let len = usize::from(rest.byte());
                install(rest.bytes(len), &mut one, &mut other);
            }
            6 => install(&sessions(&mut rest), &mut one, &mut other),
            _ => {
                let (session, seq) = (rest.number(), rest.number());
                let asked = one.sessions().turn(session, seq);
                assert!(asked.is_ok() || asked.is_err_and(|error| !error.to_string().is_empty()));
                assert_eq!(one.sessions().has_room(session, seq), other.sessions().has_room(session, seq));
            }
        }
        if let Some(decoded) = Entry::decode(&entry) {
            let mut again = Vec::new();
            decoded.encode(&mut again);
            assert_eq!(again, entry, "an entry has one encoding");
            index += 1;
            Lent(&mut one).apply(LogIndex(index), &entry);
            Lent(&mut other).apply(LogIndex(index), &entry);
        }
    }
    let digest = Lent(&mut one).digest();
    assert_eq!(digest, Lent(&mut other).digest());
    let mut learner = Replicated::new(List::default());
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let mut part = Vec::new();
        cursor = Lent(&mut one).transfer(at, 40, &mut part);
        Lent(&mut learner).install(&part).expect("a part of ours");
    }
    assert_eq!(digest, Lent(&mut learner).digest(), "what was taken is taught again");
    assert_eq!(one.sessions(), learner.sessions());
}

fn install(part: &[u8], one: &mut Replicated<List>, other: &mut Replicated<List>) {
    let taken = Lent(one).install(part);
    assert_eq!(Lent(other).install(part), taken);
    if taken.is_err() {
        Lent(one).clear();
        Lent(other).clear();
    }
}

/// A part with sessions, whose numbers mostly fit.
fn sessions(rest: &mut Rest<'_>) -> Vec<u8> {
    let mut part = vec![2];
    let mut word = |word: u64| part.extend_from_slice(&word.to_le_bytes());
    word(rest.number());
    word(rest.number().wrapping_sub(1));
    for _ in 0..rest.byte() % 4 {
        (0..3).for_each(|_| word(rest.number()));
        let replies = rest.number();
        word(replies);
        (0..replies % 4).for_each(|_| word(0));
    }
    part
}

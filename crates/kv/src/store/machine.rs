//! The replicated state: keys, sessions and the seed.

use martlet_fabric::Pulse;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{StateMachine, UnreadableEntry, UnreadablePart};

use super::effects::{Decoder, Effect};
use super::entry::Entry;
use super::expiry::ExpiryIndex;
use super::hash::{Hasher, Position, Seed};
use super::remains::Remains;
use super::sessions::Sessions;
use super::table::{Keyed, Table};
use super::transfer;

/// The key-value state machine. Its commands are [effects](super::effects). The primary executes requests on its own machine and proposes their effects; a
/// backup applies the effects (uKharon section 7.3).
///
/// Nothing here looks at a clock: the primary decides that a key has expired, and the other replicas learn of it as a deletion.
#[derive(Debug)]
pub struct KvMachine {
    pub(super) table: Table,
    pub(super) expiry: ExpiryIndex,
    pub(super) sessions: Sessions,
    /// Removed keys that are not freed yet. Not part of the state.
    remains: Remains,
    /// Where long work is reported.
    pub(super) pulse: Pulse,
    /// The first entry that could not be read. Not part of the state.
    unreadable: Option<UnreadableEntry>,
}

impl Default for KvMachine {
    fn default() -> KvMachine {
        KvMachine {
            table: Table::new(Seed::default()),
            expiry: ExpiryIndex::default(),
            sessions: Sessions::default(),
            remains: Remains::default(),
            pulse: Pulse::default(),
            unreadable: None,
        }
    }
}

impl KvMachine {
    /// An empty machine, without a seed.
    pub fn new() -> KvMachine {
        KvMachine::default()
    }

    /// Whether it has the seed that keys are hashed under.
    pub fn is_seeded(&self) -> bool {
        self.table.seed() != Seed::default()
    }

    /// Hashes keys under `seed` from now on. A table that holds keys has to be rebuilt for that, which never happens where the first primary has proposed the
    /// seed ahead of everything else.
    pub fn set_seed(&mut self, seed: Seed) {
        if self.table.seed() == seed {
            return;
        }
        let old = std::mem::replace(&mut self.table, Table::new(seed));
        self.expiry = ExpiryIndex::default();
        for entry in old.iter() {
            self.adopt(entry.clone());
        }
    }

    /// [`StateMachine::install`], for parts that may be malformed.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn install_part(&mut self, part: &[u8]) -> Result<(), super::effects::EffectError> {
        transfer::install(self, part)
    }

    /// Hashes keys under `seed` from now on. If the seed is new, it forgets every key: each of them is about to be received again.
    pub(super) fn take_seed(&mut self, seed: Seed) {
        if self.table.seed() != seed {
            self.start_over(seed);
        }
    }

    /// Adds an entry to the table, which must not hold its key.
    pub(super) fn adopt(&mut self, entry: Entry) {
        let hash = self.table.keyed(entry.key()).hash;
        self.expiry.moved(hash, None, entry.expiry());
        self.table.insert_new(hash, entry);
    }

    /// The key with its hash, for the calls below. It becomes invalid when the seed changes.
    #[inline]
    pub fn keyed<'a>(&self, key: &'a [u8]) -> Keyed<'a> {
        self.table.keyed(key)
    }

    /// The entry of a key, expired or not.
    #[inline]
    pub fn get(&self, k: Keyed<'_>) -> Option<&Entry> {
        self.table.get(k)
    }

    /// Gives a key this value and expiry.
    pub fn put(&mut self, k: Keyed<'_>, value: &[u8], expiry: Option<u64>) {
        let pulse = &self.pulse;
        let old = self.table.update(k, |e| {
            let old = e.expiry();
            e.replace(value, expiry, pulse);
            old
        });
        if old.is_none() {
            self.table.insert_new(k.hash, Entry::copied(k.key, value, expiry, pulse));
        }
        self.expiry.moved(k.hash, old.flatten(), expiry);
    }

    /// Removes a key. Returns whether it was there.
    pub fn delete(&mut self, k: Keyed<'_>) -> bool {
        self.take(k).is_some()
    }

    /// Removes a key and returns its entry.
    pub fn take(&mut self, k: Keyed<'_>) -> Option<Entry> {
        let entry = self.table.remove(k)?;
        self.expiry.moved(k.hash, entry.expiry(), None);
        Some(entry)
    }

    /// Gives a key another expiry. Returns whether the key was there.
    pub fn set_expiry(&mut self, k: Keyed<'_>, expiry: Option<u64>) -> bool {
        let pulse = &self.pulse;
        let old = self.table.update(k, |e| {
            let old = e.expiry();
            e.set_expiry(expiry, pulse);
            old
        });
        match old {
            Some(old) => {
                self.expiry.moved(k.hash, old, expiry);
                true
            }
            None => false,
        }
    }

    /// Writes into a key's value from `offset` on, filling any gap before `offset` with zeros; an absent key counts as empty. Returns the value's new length.
    pub fn write_at(&mut self, k: Keyed<'_>, offset: usize, bytes: &[u8]) -> usize {
        let pulse = &self.pulse;
        let after = self.table.update(k, |e| {
            e.write_at(offset, bytes, pulse);
            e.value().len()
        });
        after.unwrap_or_else(|| {
            let mut entry = if offset == 0 { Entry::copied(k.key, bytes, None, pulse) } else { Entry::new(k.key, &[], None) };
            if offset > 0 {
                entry.write_at(offset, bytes, pulse);
            }
            self.table.insert_new(k.hash, entry);
            offset + bytes.len()
        })
    }

    /// Appends to a key's value; an absent key counts as empty. Returns the value's new length.
    pub fn append(&mut self, k: Keyed<'_>, suffix: &[u8]) -> usize {
        let len = self.get(k).map_or(0, |e| e.value().len());
        self.write_at(k, len, suffix)
    }

    /// Removes every key. Sessions stay, since their clients are still there.
    pub fn flush(&mut self) {
        self.start_over(self.table.seed());
    }

    /// Starts again without keys, hashing under `seed`.
    fn start_over(&mut self, seed: Seed) {
        if self.table.seed() == seed && self.table.is_small() {
            // A small table is cleared in place: otherwise each flush of a transaction would leave one more table to free.
            self.table.clear_small(&self.pulse);
            self.expiry = ExpiryIndex::default();
            return;
        }
        let table = std::mem::replace(&mut self.table, Table::new(seed));
        self.remains.take(table, std::mem::take(&mut self.expiry));
    }

    /// Frees a little of what [`KvMachine::flush`] and [`StateMachine::clear`] have discarded, and returns whether anything is left. Must be called once a
    /// turn.
    #[inline]
    pub fn tidy(&mut self) -> bool {
        for _ in 0..self.remains.due() {
            self.remains.step();
        }
        self.remains.due() > 0
    }

    /// How many keys there are, including those that have expired unnoticed.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// How many keys have an expiry.
    pub fn expiring(&self) -> usize {
        self.expiry.len()
    }

    /// The mean time to live of the keys that expire next, in milliseconds.
    pub fn mean_ttl_ms(&self, now_ms: u64) -> u64 {
        self.expiry.mean_ttl_ms(now_ms)
    }

    /// Roughly how much heap the state takes, in bytes: this is what `maxmemory` limits. Removed keys are no longer counted, though they are freed a little
    /// later.
    pub fn used_bytes(&self) -> usize {
        self.table.heap_bytes() + self.expiry.heap_bytes() + self.sessions.heap_bytes()
    }

    /// The entry that is due first, if its expiry is not after `now_ms`.
    pub fn first_due(&mut self, now_ms: u64) -> Option<&Entry> {
        loop {
            let (when, hash) = self.expiry.first_due(now_ms)?;
            // Two keys with the same hash and expiry share one place in the index. The second one then stays until a command looks it up.
            if self.table.find_expiring(hash, when).is_some() {
                return self.table.find_expiring(hash, when);
            }
            self.expiry.moved(hash, Some(when), None);
        }
    }

    /// Every entry, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.table.iter()
    }

    /// Visits entries in the order of their positions; see [`Table::walk`].
    pub fn walk<'a>(&'a self, from: Position, visit: impl FnMut(Position, &'a Entry) -> bool) -> Option<Position> {
        self.table.walk(from, visit)
    }

    /// An entry chosen by `chance`.
    pub fn any(&self, chance: u64) -> Option<&Entry> {
        self.table.any(chance)
    }

    /// The clients' sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Executes one effect.
    pub fn perform(&mut self, effect: Effect<'_>) {
        match effect {
            Effect::Put { key, value, expiry } => self.put(self.keyed(key), value, expiry),
            Effect::Delete { key } => {
                self.delete(self.keyed(key));
            }
            Effect::Expire { key, expiry } => {
                self.set_expiry(self.keyed(key), expiry);
            }
            Effect::Append { key, suffix } => {
                self.append(self.keyed(key), suffix);
            }
            Effect::WriteAt { key, offset, bytes } => {
                self.write_at(self.keyed(key), offset, bytes);
            }
            Effect::Flush => self.flush(),
            Effect::Seed(seed) => self.set_seed(seed),
            Effect::Answer { session, seq, lowest, reply } => self.sessions.answer(session, seq, lowest, reply),
            Effect::End { session } => self.sessions.end(session),
        }
    }
}

impl StateMachine for KvMachine {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        if self.unreadable.is_some() {
            return;
        }
        for effect in Decoder::new(command) {
            self.pulse.stepped();
            match effect {
                Ok(effect) => self.perform(effect),
                Err(error) => {
                    self.unreadable = Some(UnreadableEntry { index, why: error.to_string() });
                    return;
                }
            }
        }
    }

    fn unreadable(&self) -> Option<&UnreadableEntry> {
        self.unreadable.as_ref()
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        if self.unreadable.is_some() {
            out.push(transfer::NO_PART);
            return None;
        }
        transfer::transfer(self, cursor, budget, out)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        transfer::install(self, part).map_err(|error| {
            tracing::error!(%error, "cannot read a part of the state that another node sent");
            UnreadablePart
        })
    }

    fn keep_alive(&mut self, pulse: &Pulse) {
        self.pulse = pulse.clone();
    }

    fn clear(&mut self) {
        self.start_over(Seed::default());
        self.sessions = Sessions::default();
        self.unreadable = None;
    }

    fn digest(&self) -> u64 {
        // Hashes are summed, so that order does not matter: tables that grew differently hold the same entries in different places.
        let h = Hasher::new(Seed(0x6d61_7274_6c65_7421, self.table.seed().0 ^ self.table.seed().1.rotate_left(32)));
        let mut sum = h.hash(&(self.len() as u64).to_le_bytes());
        for entry in self.table.iter() {
            let parts = [h.hash(entry.key()), h.hash(entry.value()), entry.expiry().map_or(0, |e| e.wrapping_add(1))];
            sum = sum.wrapping_add(hash_words(&h, &parts));
        }
        for (id, session) in self.sessions.from(Default::default()) {
            sum = sum.wrapping_add(hash_words(&h, &[1, id.0, session.lowest()]));
            for (seq, reply) in session.replies() {
                sum = sum.wrapping_add(hash_words(&h, &[2, id.0, seq, h.hash(reply)]));
            }
        }
        sum
    }
}

fn hash_words(h: &Hasher, words: &[u64]) -> u64 {
    let mut bytes = [0u8; 32];
    for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    h.hash(&bytes[..words.len() * 8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Effects;

    #[test]
    fn an_entry_that_cannot_be_read_is_named_and_what_follows_is_not_taken() {
        let put = |key: &'static [u8]| {
            let mut effects = Effects::default();
            effects.push(Effect::Put { key, value: b"value", expiry: None });
            effects.bytes().to_vec()
        };
        let (mut machine, mut learner) = (KvMachine::new(), KvMachine::new());
        machine.apply(LogIndex(1), &put(b"one"));
        assert_eq!(machine.unreadable(), None);
        // What a later build may write: an effect of an unknown kind.
        machine.apply(LogIndex(2), &[200, 1, 2]);
        machine.apply(LogIndex(3), &put(b"three"));
        let unreadable = machine.unreadable().expect("an entry").to_string();
        assert_eq!(unreadable, "entry 2 of the log cannot be read: 200 is no kind of effect");
        assert_eq!(machine.len(), 1);
        let mut part = Vec::new();
        assert_eq!(machine.transfer(0, 1000, &mut part), None);
        assert!(learner.install(&part).is_err(), "a state that lacks something is not taken");
        machine.clear();
        assert_eq!(machine.unreadable(), None);
        machine.apply(LogIndex(1), &put(b"one"));
        assert_eq!(machine.len(), 1);
    }
}

//! Which clients watch which keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use martlet_fabric::Pulse;

use super::client::ClientSlot;

/// The keys that one client watches.
#[derive(Debug, Default)]
pub struct Watched(HashSet<Arc<[u8]>>);

impl Watched {
    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|key| &**key)
    }
}

/// For each watched key, the clients that watch it. A change of a key breaks all watches on it for good, so its watchers are forgotten with the change: each
/// watch costs something only once, however often the key changes.
#[derive(Debug, Default)]
pub(super) struct Watchers(HashMap<Arc<[u8]>, BTreeSet<ClientSlot>>);

impl Watchers {
    /// Lets the client of `slot`, which watches `watched`, watch one more key.
    pub(super) fn add(&mut self, slot: ClientSlot, watched: &mut Watched, key: &[u8]) {
        if watched.0.contains(key) {
            return;
        }
        let shared = self.0.get_key_value(key).map_or_else(|| Arc::from(key), |(known, _)| known.clone());
        watched.0.insert(shared.clone());
        self.0.entry(shared).or_default().insert(slot);
    }

    /// Ends all watches of the client of `slot`.
    pub(super) fn remove(&mut self, slot: ClientSlot, watched: &mut Watched, pulse: &Pulse) {
        for key in std::mem::take(&mut watched.0) {
            pulse.stepped();
            if let Some(watchers) = self.0.get_mut(&key) {
                watchers.remove(&slot);
                if watchers.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    /// How many keys are watched.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A key has changed. Returns the clients that watched it.
    #[inline]
    pub(super) fn changed(&mut self, key: &[u8]) -> Option<BTreeSet<ClientSlot>> {
        if self.0.is_empty() { None } else { self.0.remove(key) }
    }

    /// Every key is removed; `is_there` says which keys exist. Returns the clients that watched one of those.
    pub(super) fn flushed(&mut self, mut is_there: impl FnMut(&[u8]) -> bool) -> BTreeSet<ClientSlot> {
        self.0.extract_if(|key, _| is_there(key)).flat_map(|(_, watchers)| watchers).collect()
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::pulse::STEP_BYTES;

    use super::super::{Client, Clients};
    use super::*;

    fn clients(n: usize) -> (Clients, Vec<ClientSlot>) {
        let mut clients = Clients::default();
        let slots = (0..n).map(|_| clients.add(Client::new(String::new(), String::new(), true, 0))).collect();
        (clients, slots)
    }

    /// A cost that grows with the square of the keys would keep this test busy for hours.
    #[test]
    fn a_million_keys_are_watched_and_forgotten_key_by_key() {
        const KEYS: u64 = 1_000_000;
        let (mut clients, slots) = clients(1);
        for key in (0..KEYS).chain(0..KEYS) {
            clients.watch(slots[0], &key.to_le_bytes());
        }
        assert_eq!(clients.get(slots[0]).watched.len() as u64, KEYS);
        let pulse = Pulse::default();
        clients.unwatch(slots[0], &pulse);
        assert_eq!(pulse.total(), KEYS * STEP_BYTES as u64);
        assert_eq!(clients.watched_keys(), 0);
    }

    /// As above: with a list for each key, or with a look at all watchers for each change, this test would run for hours.
    #[test]
    fn many_who_watch_one_key_cost_something_once() {
        let (mut clients, slots) = clients(300_000);
        slots.iter().for_each(|slot| clients.watch(*slot, b"all"));
        (0..1_000_000).for_each(|_| clients.touched(b"all"));
        assert!(slots.iter().all(|slot| clients.get(*slot).watch_broken));
        let pulse = Pulse::default();
        for slot in &slots {
            clients.unwatch(*slot, &pulse);
            clients.watch(*slot, b"all");
        }
        slots.iter().for_each(|slot| clients.remove(*slot, &pulse));
        assert_eq!(clients.watched_keys(), 0);
    }

    #[test]
    fn a_broken_watch_stays_broken_and_breaks_no_other() {
        let (mut clients, slots) = clients(3);
        let pulse = Pulse::default();
        let broken = |clients: &Clients| slots.iter().map(|slot| clients.get(*slot).watch_broken).collect::<Vec<_>>();
        clients.watch(slots[0], b"k");
        clients.touched(b"k");
        clients.watch(slots[1], b"k");
        clients.watch(slots[0], b"k");
        clients.watch(slots[2], b"other");
        assert_eq!(broken(&clients), [true, false, false]);
        clients.unwatch(slots[0], &pulse);
        clients.touched(b"k");
        assert_eq!(broken(&clients), [false, true, false], "the first had ended its watches");
        clients.watch(slots[0], b"gone");
        clients.flushed(|key| key != b"gone", &pulse);
        assert_eq!(broken(&clients), [false, true, true], "what was not there does not change");
    }
}

//! The context in which a command's handler works.

use martlet_fabric::{NodeId, Pulse};
use martlet_protocol::basics::ProcessId;

use super::bound;
use super::calls::Calls;
use super::client::{Client, ClientSlot, Clients};
use super::clock::Clock;
use super::env::Env;
use super::errors;
use crate::config::KvConfig;
use crate::resp::Reply;
use crate::stats::KvStats;
use crate::store::{Effect, Effects, Entry, Keyed, KvMachine};

/// Reports how much processor time this process has used.
pub type CpuClock = Box<dyn Fn() -> CpuTimes + Send>;

/// How much processor time a process has used, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// In the program.
    pub user_us: u64,
    /// In the kernel, on its behalf.
    pub system_us: u64,
    /// The calling thread's part of the first two: in the program, and in the kernel.
    pub thread_us: (u64, u64),
    /// What its child processes used that have ended: in the program, and in the kernel.
    pub children_us: (u64, u64),
}

/// What outlives a command: the clients, the effects not yet proposed, the counters.
pub struct Shared {
    /// The server around.
    pub env: Env,
    /// All clients.
    pub clients: Clients,
    /// Effects that have not been handed to the engine yet.
    pub effects: Effects,
    /// The most that one entry of the log may take, in bytes.
    pub limit: usize,
    /// How much more the request being executed may add to the effects than was bounded from its arguments.
    pub spare: usize,
    /// Whether the effects of the request being executed have been bounded beforehand, because it may change keys. A request that only reads may also delete
    /// due keys, but within what is spare.
    pub may_add: bool,
    /// How far in the output the reply to the request being executed may reach.
    pub reply_end: usize,
    /// Where long work is reported.
    pub pulse: Pulse,
    /// How many keys the request being executed has gone through in its searches.
    pub visited: usize,
    /// Counters.
    pub stats: KvStats,
    /// Counters by command and by error.
    pub calls: Calls,
    /// How much processor time this process has used; `None` if that is not known.
    pub cpu: Option<CpuClock>,
    /// Randomness, for RANDOMKEY only.
    pub random: fastrand::Rng,
    /// A client has killed another one, whose connection has to be closed.
    pub killed: bool,
    /// A client asked the node to leave and end.
    pub shutdown: bool,
    /// A client asked for leadership to be handed over: to this node, or to any successor.
    pub hand_over: Option<Option<NodeId>>,
    /// CLUSTER FORGET asked for the removal of this process.
    pub evict: Option<ProcessId>,
    /// A client asked that the group have this many places; 0: as many as members.
    pub resize: Option<usize>,
    /// A client asked for this feature level.
    pub raise_level: Option<u8>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("env", &self.env).field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Shared {
    /// A server without clients, at `now_ms` of Unix time. `seed` is for its randomness.
    pub fn new(config: KvConfig, now_ms: u64, seed: u64) -> Shared {
        Shared {
            env: Env::new(config, now_ms),
            clients: Clients::default(),
            effects: Effects::default(),
            limit: usize::MAX,
            spare: usize::MAX,
            may_add: true,
            reply_end: usize::MAX,
            pulse: Pulse::default(),
            visited: 0,
            stats: KvStats::default(),
            calls: Calls::default(),
            cpu: None,
            random: fastrand::Rng::with_seed(seed),
            killed: false,
            shutdown: false,
            hand_over: None,
            evict: None,
            resize: None,
            raise_level: None,
        }
    }
}

impl Shared {
    /// From now on the process shows by this pulse that it is alive.
    #[inline]
    pub fn keep_alive(&mut self, pulse: &Pulse) {
        if !self.pulse.is_of_same_heart(pulse) {
            self.pulse = pulse.clone();
            self.effects.keep_alive(pulse.clone());
        }
    }

    /// How much work commands have done so far, in bytes copied or their equivalent.
    #[inline]
    pub fn work(&self) -> u64 {
        self.pulse.total().wrapping_add(self.effects.work())
    }
}

/// What one command has access to. Every change of the state goes through its methods, which do four things at once: they change the machine, append the effect
/// for the backups, break the watches on the key, and count.
#[derive(Debug)]
pub struct Ctx<'a> {
    /// The state. For reading only: changes go through the methods of this type.
    pub machine: &'a mut KvMachine,
    /// What outlives the command.
    pub shared: &'a mut Shared,
    /// The client that sent the command.
    pub slot: ClientSlot,
    /// The time; it stands still during a command and a transaction.
    pub clock: &'a mut Clock,
}

impl Ctx<'_> {
    /// The client.
    #[inline]
    pub fn client(&mut self) -> &mut Client {
        self.shared.clients.get_mut(self.slot)
    }

    /// The command's time, in milliseconds of Unix time.
    #[inline]
    pub fn now_ms(&mut self) -> u64 {
        self.clock.now_ms()
    }

    /// The server.
    #[inline]
    pub fn env(&self) -> &Env {
        &self.shared.env
    }

    /// The key with its hash.
    #[inline]
    pub fn key<'k>(&self, key: &'k [u8]) -> Keyed<'k> {
        self.machine.keyed(key)
    }

    /// The entry of a key that exists and is not due. A primary deletes a due key here if the log has room for that; before a change it always has.
    #[inline]
    pub fn live(&mut self, k: Keyed<'_>) -> Option<&Entry> {
        self.shared.pulse.stepped();
        if self.machine.expiring() > 0 {
            let now_ms = self.now_ms();
            if self.machine.get(k)?.expiry().is_some_and(|at| at <= now_ms) {
                // A client that asks a backup does not see the key either; but only the primary deletes it.
                if self.env().is_primary {
                    self.expire_in_passing(k);
                }
                return None;
            }
        }
        self.machine.get(k)
    }

    #[cold]
    fn expire_in_passing(&mut self, k: Keyed<'_>) {
        if !self.shared.may_add {
            let Some(spare) = self.shared.spare.checked_sub(k.key.len() + bound::EFFECT_BYTES) else { return };
            self.shared.spare = spare;
        }
        self.expire(k);
    }

    /// The same, and counts a hit or a miss.
    #[inline]
    pub fn look_up(&mut self, k: Keyed<'_>) -> Option<&Entry> {
        if self.live(k).is_some() {
            self.shared.stats.keyspace_hits += 1;
            self.machine.get(k)
        } else {
            self.shared.stats.keyspace_misses += 1;
            None
        }
    }

    /// Deletes a key that is due.
    pub fn expire(&mut self, k: Keyed<'_>) {
        self.shared.stats.expired_keys += 1;
        self.delete(k);
    }

    /// Writes what a key holds into the reply. Returns whether it did: in a transaction, or in MGET, the reply may have no room left for it.
    #[inline]
    pub fn show(&mut self, k: Keyed<'_>, reply: &mut Reply<'_>) -> bool {
        let end = self.shared.reply_end;
        if self.live(k).is_none() {
            self.shared.stats.keyspace_misses += 1;
            reply.null();
            return true;
        }
        self.shared.stats.keyspace_hits += 1;
        let Some(entry) = self.machine.get(k) else { return true };
        let fits = entry.value().len() <= end.saturating_sub(reply.position());
        if fits {
            reply.long_bulk(entry.value(), &self.shared.pulse)
        } else {
            reply.error(errors::REPLY_TOO_LONG)
        }
        fits
    }

    /// Gives a key this value and expiry.
    #[inline]
    pub fn put(&mut self, k: Keyed<'_>, value: &[u8], expiry: Option<u64>) {
        self.machine.put(k, value, expiry);
        self.shared.effects.push(Effect::Put { key: k.key, value, expiry });
        self.shared.clients.touched(k.key);
    }

    /// Removes a key. Returns whether it was there.
    pub fn delete(&mut self, k: Keyed<'_>) -> bool {
        self.take(k).is_some()
    }

    /// Removes a key and returns its entry.
    pub fn take(&mut self, k: Keyed<'_>) -> Option<Entry> {
        let entry = self.machine.take(k);
        if entry.is_some() {
            self.shared.effects.push(Effect::Delete { key: k.key });
            self.shared.clients.touched(k.key);
        }
        entry
    }

    /// Gives an existing key another expiry; an expiry that is not in the future deletes it.
    pub fn set_expiry(&mut self, k: Keyed<'_>, expiry: Option<u64>) {
        if expiry.is_some_and(|at| at <= self.now_ms()) {
            self.delete(k);
        } else if self.machine.set_expiry(k, expiry) {
            self.shared.effects.push(Effect::Expire { key: k.key, expiry });
            self.shared.clients.touched(k.key);
        }
    }

    /// Appends to a key's value and returns its length.
    pub fn append(&mut self, k: Keyed<'_>, suffix: &[u8]) -> usize {
        let len = self.machine.append(k, suffix);
        self.shared.effects.push(Effect::Append { key: k.key, suffix });
        self.shared.clients.touched(k.key);
        len
    }

    /// Writes into a key's value and returns its length.
    pub fn write_at(&mut self, k: Keyed<'_>, offset: usize, bytes: &[u8]) -> usize {
        let len = self.machine.write_at(k, offset, bytes);
        self.shared.effects.push(Effect::WriteAt { key: k.key, offset, bytes });
        self.shared.clients.touched(k.key);
        len
    }

    /// Removes every key.
    pub fn flush(&mut self) {
        let (machine, Shared { clients, pulse, .. }) = (&*self.machine, &mut *self.shared);
        // Go through whichever are fewer: watches on absent keys must not make every flush expensive.
        if machine.len() < clients.watched_keys() {
            for entry in machine.iter() {
                pulse.stepped();
                clients.touched(entry.key());
            }
        } else {
            clients.flushed(|key| machine.get(machine.keyed(key)).is_some(), pulse);
        }
        self.machine.flush();
        self.shared.effects.push(Effect::Flush);
    }

    /// Deletes up to `most` due keys, and no more than fit into one entry of the log. Returns whether there may be more.
    pub fn expire_some(&mut self, most: usize) -> bool {
        let now_ms = self.now_ms();
        for _ in 0..most {
            let Some(key) = self.machine.first_due(now_ms).map(|e| e.key().to_vec()) else { return false };
            if self.shared.effects.bytes().len() + key.len() + bound::EFFECT_BYTES > self.shared.limit {
                return true;
            }
            self.expire(self.machine.keyed(&key));
        }
        true
    }
}

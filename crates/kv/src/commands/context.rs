//! What a command's handler works on.

use martlet_fabric::NodeId;
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

/// Tells how much of the processors this process has had.
pub type CpuClock = Box<dyn Fn() -> CpuTimes + Send>;

/// How much of the processors a process has had, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// In the program.
    pub user_us: u64,
    /// In the kernel, for it.
    pub system_us: u64,
    /// Of the first two, what the calling thread has had: in the program, and in the kernel.
    pub thread_us: (u64, u64),
    /// What processes that it started and that have ended had: in the program, and in the kernel.
    pub children_us: (u64, u64),
}

/// What outlives a command: the clients, the effects not yet proposed, the counters.
pub struct Shared {
    /// The server around.
    pub env: Env,
    /// All clients.
    pub clients: Clients,
    /// Effects that the engine has not got yet.
    pub effects: Effects,
    /// The most that one entry of the log may take, in bytes.
    pub limit: usize,
    /// How much more the request being executed may add to the effects than its arguments say.
    pub spare: usize,
    /// How far the reply to the request being executed may reach in the output.
    pub reply_end: usize,
    /// Counters.
    pub stats: KvStats,
    /// Counters by command and by error.
    pub calls: Calls,
    /// How much of the processors this process has had; `None`: nobody can tell.
    pub cpu: Option<CpuClock>,
    /// Chance, for RANDOMKEY only.
    pub random: fastrand::Rng,
    /// Some client has been killed by another, and its connection is to be closed.
    pub killed: bool,
    /// A client asked the node to leave and end.
    pub shutdown: bool,
    /// A client asked for leadership to be handed over: to this node, or to whoever comes next.
    pub hand_over: Option<Option<NodeId>>,
    /// Whose removal CLUSTER FORGET has asked for.
    pub evict: Option<ProcessId>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("env", &self.env).field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Shared {
    /// A server without clients, at `now_ms` of Unix time. `seed` is for chance.
    pub fn new(config: KvConfig, now_ms: u64, seed: u64) -> Shared {
        Shared {
            env: Env::new(config, now_ms),
            clients: Clients::default(),
            effects: Effects::default(),
            limit: usize::MAX,
            spare: usize::MAX,
            reply_end: usize::MAX,
            stats: KvStats::default(),
            calls: Calls::default(),
            cpu: None,
            random: fastrand::Rng::with_seed(seed),
            killed: false,
            shutdown: false,
            hand_over: None,
            evict: None,
        }
    }
}

/// One command's world. Every change of the state goes through its methods, which do four things at once: they change the machine, append
/// the effect for the backups, break the watches on the key, and count.
#[derive(Debug)]
pub struct Ctx<'a> {
    /// The state. To read: see the type on changes.
    pub machine: &'a mut KvMachine,
    /// What outlives the command.
    pub shared: &'a mut Shared,
    /// Whose command it is.
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

    /// The entry of a key that is there and not due. One that is due is deleted here, by a primary.
    #[inline]
    pub fn live(&mut self, k: Keyed<'_>) -> Option<&Entry> {
        if self.machine.expiring() > 0 {
            let now_ms = self.now_ms();
            if self.machine.get(k)?.expiry().is_some_and(|at| at <= now_ms) {
                // It is gone for whoever asks a backup too; but only the primary deletes.
                if self.env().is_primary {
                    self.expire(k);
                }
                return None;
            }
        }
        self.machine.get(k)
    }

    /// The same, counted as a hit or a miss.
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

    /// Writes what a key holds. Returns whether it did: in a transaction, or in MGET, there may be too much before it.
    #[inline]
    pub fn show(&mut self, k: Keyed<'_>, reply: &mut Reply<'_>) -> bool {
        let end = self.shared.reply_end;
        let Some(entry) = self.look_up(k) else {
            reply.null();
            return true;
        };
        let fits = entry.value().len() <= end.saturating_sub(reply.position());
        if fits {
            reply.bulk(entry.value())
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
        let was_there = self.machine.delete(k);
        if was_there {
            self.shared.effects.push(Effect::Delete { key: k.key });
            self.shared.clients.touched(k.key);
        }
        was_there
    }

    /// Gives a key that is there another expiry; one that is not in the future deletes it.
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
        let machine = &*self.machine;
        self.shared.clients.flushed(|key| machine.get(machine.keyed(key)).is_some());
        self.machine.flush();
        self.shared.effects.push(Effect::Flush);
    }

    /// Deletes up to `most` keys that are due, and no more than one entry of the log tells of. Returns whether there may be more.
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

//! Which commands there are.

use std::sync::LazyLock;

use super::context::Ctx;
use super::{cluster, connection, expiry, info, keyspace, numbers, server, strings, transactions};
use crate::resp::{Args, Reply};

/// What runs a command.
pub type Handler = fn(&mut Ctx<'_>, Args<'_>, &mut Reply<'_>);

/// What is special about a command: bits of [`Command::flags`].
pub mod flag {
    /// It reads keys.
    pub const READ: u16 = 1;
    /// It may change keys.
    pub const WRITE: u16 = 2;
    /// It may need more memory, and is refused when that is used up.
    pub const DENY_OOM: u16 = 4;
    /// It runs before the client has given the password.
    pub const NO_AUTH: u16 = 8;
    /// It cannot be part of a transaction.
    pub const NO_MULTI: u16 = 16;
    /// It takes constant time.
    pub const FAST: u16 = 32;
    /// It is for operators.
    pub const ADMIN: u16 = 64;
    /// It runs at once within a transaction, instead of being queued.
    pub const UNQUEUED: u16 = 128;
    /// It changes what the server keeps of a connection, so it means nothing where there is none.
    pub const CONNECTION: u16 = 256;
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name, in lower case.
    pub name: &'static str,
    /// How many arguments, its name included; below zero: at least so many.
    pub arity: i32,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Where its keys stand: the first, the last (below zero: from the end), and the step. 0 for no keys.
    pub keys: (i32, i32, i32),
    /// Its family, as Redis groups it.
    pub group: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// What runs it.
    pub handler: Handler,
}

impl Command {
    /// Whether it has that flag.
    #[inline]
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it touches keys, so that only a primary runs it.
    #[inline]
    pub const fn is_data(&self) -> bool {
        self.has(flag::READ | flag::WRITE)
    }

    /// Whether so many arguments are right.
    #[inline]
    pub const fn takes(&self, arguments: usize) -> bool {
        if self.arity >= 0 { arguments == self.arity as usize } else { arguments >= self.arity.unsigned_abs() as usize }
    }

    /// The positions of its keys among so many arguments.
    pub fn key_positions(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { arguments as i32 + last } else { last };
        let range = if first > 0 { first..last.min(arguments as i32 - 1) + 1 } else { 0..0 };
        range.step_by(step.max(1) as usize).map(|i| i as usize)
    }
}

macro_rules! commands {
    ($($name:literal $arity:literal [$($flag:ident)*] ($first:literal $last:literal $step:literal) $group:literal $handler:path, $summary:literal;)*) => {
        &[$(Command {
            name: $name,
            arity: $arity,
            flags: 0 $(| flag::$flag)*,
            keys: ($first, $last, $step),
            group: $group,
            summary: $summary,
            handler: $handler,
        },)*]
    };
}

static COMMANDS: &[Command] = commands! {
    "append" 3 [WRITE DENY_OOM FAST] (1 1 1) "string" strings::append, "Appends to a key's value.";
    "asking" 1 [FAST CONNECTION] (0 0 0) "cluster" cluster::connection_hint, "Accepted, and without effect: no slot ever moves.";
    "auth" -2 [NO_AUTH FAST CONNECTION] (0 0 0) "connection" connection::auth, "Gives the password.";
    "cas" -4 [WRITE DENY_OOM FAST] (1 1 1) "string" strings::cas, "Sets a key if it holds the expected value, or with NX if it is not there.";
    "client" -2 [CONNECTION] (0 0 0) "connection" connection::client, "Shows or sets what the server keeps of connections.";
    "cluster" -2 [] (0 0 0) "cluster" cluster::cluster, "Shows the cluster to clients of Redis Cluster.";
    "command" -1 [] (0 0 0) "server" server::command, "Describes the commands.";
    "config" -2 [ADMIN] (0 0 0) "server" server::config, "Shows the configuration.";
    "dbsize" 1 [READ FAST] (0 0 0) "server" keyspace::dbsize, "Counts the keys.";
    "decr" 2 [WRITE DENY_OOM FAST] (1 1 1) "string" numbers::decr, "Decrements an integer by one.";
    "decrby" 3 [WRITE DENY_OOM FAST] (1 1 1) "string" numbers::decrby, "Decrements an integer.";
    "del" -2 [WRITE] (1 -1 1) "generic" keyspace::del, "Removes keys.";
    "discard" 1 [FAST UNQUEUED NO_MULTI CONNECTION] (0 0 0) "transactions" transactions::discard, "Gives a transaction up.";
    "echo" 2 [FAST] (0 0 0) "connection" connection::echo, "Returns its argument.";
    "exec" 1 [UNQUEUED CONNECTION] (0 0 0) "transactions" transactions::exec, "Executes a transaction, as one.";
    "exists" -2 [READ FAST] (1 -1 1) "generic" keyspace::exists, "Counts the keys that are there.";
    "expire" -3 [WRITE FAST] (1 1 1) "generic" expiry::expire, "Lets a key expire in seconds.";
    "expireat" -3 [WRITE FAST] (1 1 1) "generic" expiry::expireat, "Lets a key expire at a time in seconds.";
    "expiretime" 2 [READ FAST] (1 1 1) "generic" expiry::expiretime, "When a key expires, in seconds.";
    "failover" -1 [ADMIN NO_MULTI] (0 0 0) "server" server::failover, "Hands leadership over to another node.";
    "flushall" -1 [WRITE] (0 0 0) "server" keyspace::flush, "Removes all keys.";
    "flushdb" -1 [WRITE] (0 0 0) "server" keyspace::flush, "Removes all keys.";
    "get" 2 [READ FAST] (1 1 1) "string" strings::get, "The value of a key.";
    "getdel" 2 [WRITE FAST] (1 1 1) "string" strings::getdel, "The value of a key, which is removed.";
    "getex" -2 [WRITE FAST] (1 1 1) "string" strings::getex, "The value of a key, whose expiry is set.";
    "getrange" 4 [READ] (1 1 1) "string" strings::getrange, "A part of a value.";
    "getset" 3 [WRITE DENY_OOM FAST] (1 1 1) "string" strings::getset, "Sets a key and returns the value before.";
    "hello" -1 [NO_AUTH FAST CONNECTION] (0 0 0) "connection" connection::hello, "Chooses the protocol.";
    "incr" 2 [WRITE DENY_OOM FAST] (1 1 1) "string" numbers::incr, "Increments an integer by one.";
    "incrby" 3 [WRITE DENY_OOM FAST] (1 1 1) "string" numbers::incrby, "Increments an integer.";
    "incrbyfloat" 3 [WRITE DENY_OOM FAST] (1 1 1) "string" numbers::incrbyfloat, "Increments a number.";
    "info" -1 [] (0 0 0) "server" info::info, "Facts and counters.";
    "keys" 2 [READ] (0 0 0) "generic" keyspace::keys, "The keys that match a pattern.";
    "lolwut" -1 [FAST] (0 0 0) "server" server::lolwut, "The version.";
    "mget" -2 [READ FAST] (1 -1 1) "string" strings::mget, "The values of keys.";
    "mset" -3 [WRITE DENY_OOM] (1 -1 2) "string" strings::mset, "Sets keys, as one.";
    "msetnx" -3 [WRITE DENY_OOM] (1 -1 2) "string" strings::msetnx, "Sets keys, as one, if none is there.";
    "multi" 1 [FAST UNQUEUED CONNECTION] (0 0 0) "transactions" transactions::multi, "Starts a transaction.";
    "persist" 2 [WRITE FAST] (1 1 1) "generic" expiry::persist, "Lets a key never expire.";
    "pexpire" -3 [WRITE FAST] (1 1 1) "generic" expiry::pexpire, "Lets a key expire in milliseconds.";
    "pexpireat" -3 [WRITE FAST] (1 1 1) "generic" expiry::pexpireat, "Lets a key expire at a time in milliseconds.";
    "pexpiretime" 2 [READ FAST] (1 1 1) "generic" expiry::pexpiretime, "When a key expires, in milliseconds.";
    "ping" -1 [FAST] (0 0 0) "connection" connection::ping, "Answers PONG.";
    "psetex" 4 [WRITE DENY_OOM] (1 1 1) "string" strings::psetex, "Sets a key that expires in milliseconds.";
    "pttl" 2 [READ FAST] (1 1 1) "generic" expiry::pttl, "How long a key lasts, in milliseconds.";
    "quit" -1 [NO_AUTH FAST UNQUEUED CONNECTION] (0 0 0) "connection" connection::quit, "Closes the connection.";
    "randomkey" 1 [READ] (0 0 0) "generic" keyspace::randomkey, "Some key.";
    "readonly" 1 [FAST CONNECTION] (0 0 0) "cluster" cluster::connection_hint, "Accepted, and without effect: reads too are the primary's.";
    "readwrite" 1 [FAST CONNECTION] (0 0 0) "cluster" cluster::connection_hint, "Accepted, and without effect: reads too are the primary's.";
    "rename" 3 [WRITE] (1 2 1) "generic" keyspace::rename, "Gives a key another name.";
    "renamenx" 3 [WRITE FAST] (1 2 1) "generic" keyspace::renamenx, "Gives a key another name that is free.";
    "reset" 1 [NO_AUTH FAST UNQUEUED CONNECTION] (0 0 0) "connection" connection::reset, "Makes the connection as good as new.";
    "role" 1 [FAST] (0 0 0) "server" info::role, "Whether this node leads, and who the others are.";
    "scan" -2 [READ] (0 0 0) "generic" keyspace::scan, "Goes through the keys, a few at a time.";
    "select" 2 [FAST CONNECTION] (0 0 0) "connection" connection::select, "Chooses the database, of which there is one.";
    "set" -3 [WRITE DENY_OOM] (1 1 1) "string" strings::set, "Sets a key.";
    "setex" 4 [WRITE DENY_OOM] (1 1 1) "string" strings::setex, "Sets a key that expires in seconds.";
    "setnx" 3 [WRITE DENY_OOM FAST] (1 1 1) "string" strings::setnx, "Sets a key if it is not there.";
    "setrange" 4 [WRITE DENY_OOM] (1 1 1) "string" strings::setrange, "Writes into a value.";
    "shutdown" -1 [ADMIN NO_MULTI] (0 0 0) "server" server::shutdown, "Lets the node leave the cluster and end.";
    "strlen" 2 [READ FAST] (1 1 1) "string" strings::strlen, "The length of a value.";
    "substr" 4 [READ] (1 1 1) "string" strings::getrange, "A part of a value.";
    "time" 1 [FAST] (0 0 0) "server" server::time, "The server's clock.";
    "touch" -2 [READ FAST] (1 -1 1) "generic" keyspace::exists, "Counts the keys that are there.";
    "ttl" 2 [READ FAST] (1 1 1) "generic" expiry::ttl, "How long a key lasts, in seconds.";
    "type" 2 [READ FAST] (1 1 1) "generic" keyspace::type_of, "What a key holds: string, or none.";
    "unlink" -2 [WRITE FAST] (1 -1 1) "generic" keyspace::del, "Removes keys.";
    "unwatch" 1 [FAST CONNECTION] (0 0 0) "transactions" transactions::unwatch, "Ends all watching.";
    "watch" -2 [READ FAST UNQUEUED CONNECTION] (1 -1 1) "transactions" transactions::watch, "Lets the next transaction fail if keys change.";
};

/// Every command, by name.
pub fn all() -> &'static [Command] {
    COMMANDS
}

/// No name is longer.
const MAX_NAME: usize = 16;
/// A power of two, several times the number of commands.
const LOOKUP_SLOTS: usize = 1024;

/// A name in lower case, as a number.
#[inline]
fn packed(name: &[u8]) -> Option<u128> {
    let mut bytes = [0u8; MAX_NAME];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    bytes.make_ascii_lowercase();
    Some(u128::from_le_bytes(bytes))
}

#[inline]
fn slot_of(name: u128) -> usize {
    let folded = (name as u64 ^ ((name >> 64) as u64).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (folded >> 54) as usize
}

type Lookup = Box<[Option<(u128, &'static Command)>]>;

/// Open addressing by the packed name; filled once.
static LOOKUP: LazyLock<Lookup> = LazyLock::new(|| {
    let mut slots = vec![None; LOOKUP_SLOTS].into_boxed_slice();
    for command in COMMANDS {
        let name = packed(command.name.as_bytes()).expect("no name in the table is too long");
        let mut at = slot_of(name);
        while slots[at].is_some() {
            at = (at + 1) % LOOKUP_SLOTS;
        }
        slots[at] = Some((name, command));
    }
    slots
});

/// The command of that name, in whatever case.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let packed_name = packed(name)?;
    let mut at = slot_of(packed_name);
    while let Some((known, command)) = LOOKUP[at] {
        // The length tells `get` from `get` with a zero byte behind it.
        if known == packed_name && command.name.len() == name.len() {
            return Some(command);
        }
        at = (at + 1) % LOOKUP_SLOTS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        assert!(all().is_sorted_by_key(|c| c.name));
        for command in all() {
            assert_eq!(find(command.name.as_bytes()).map(|c| c.name), Some(command.name));
            assert_eq!(find(command.name.to_uppercase().as_bytes()).map(|c| c.name), Some(command.name));
        }
        for name in ["", "gett", "ge", "a name that is longer than any", "get\0"] {
            assert!(find(name.as_bytes()).is_none(), "{name:?}");
        }
    }

    #[test]
    fn keys_stand_where_the_table_says() {
        let keys = |name: &str, n| find(name.as_bytes()).unwrap().key_positions(n).collect::<Vec<_>>();
        assert_eq!(keys("get", 2), [1]);
        assert_eq!(keys("mset", 7), [1, 3, 5]);
        assert_eq!(keys("del", 4), [1, 2, 3]);
        assert_eq!(keys("rename", 3), [1, 2]);
        assert_eq!(keys("ping", 2), [0usize; 0]);
    }
}

//! What a command is, and how one is found.

use std::sync::LazyLock;

use super::catalogue::COMMANDS;
use super::context::Ctx;
use crate::resp::{Args, Reply};

/// What runs a command.
pub type Handler = fn(&mut Ctx<'_>, Args<'_>, &mut Reply<'_>);

/// Special properties of a command: bits of [`Command::flags`]. The second half has no effect here; it is only reported, as Redis's `COMMAND INFO` does.
pub mod flag {
    /// It reads keys.
    pub const READ: u32 = 1;
    /// It may change keys.
    pub const WRITE: u32 = 1 << 1;
    /// It may need more memory, and is refused when that is used up.
    pub const DENY_OOM: u32 = 1 << 2;
    /// It runs before the client has given the password.
    pub const NO_AUTH: u32 = 1 << 3;
    /// It cannot be part of a transaction.
    pub const NO_MULTI: u32 = 1 << 4;
    /// It runs at once within a transaction, instead of being queued.
    pub const UNQUEUED: u32 = 1 << 5;
    /// It changes what the server keeps about a connection, so it makes no sense without one.
    pub const CONNECTION: u32 = 1 << 6;
    /// Its reply says something about keys, though Redis does not count it among the commands that read.
    pub const TELLS: u32 = 1 << 7;

    /// It is for operators.
    pub const ADMIN: u32 = 1 << 16;
    /// It takes constant time.
    pub const FAST: u32 = 1 << 17;
    /// No script may call it.
    pub const NO_SCRIPT: u32 = 1 << 18;
    /// It runs while the state is being loaded.
    pub const LOADING: u32 = 1 << 19;
    /// It runs on a replica that has lost its primary.
    pub const STALE: u32 = 1 << 20;
    /// It is left out of the log of slow commands.
    pub const SKIP_SLOWLOG: u32 = 1 << 21;
    /// It runs while a script does.
    pub const BUSY: u32 = 1 << 22;
    /// Of the category `@keyspace`, and so on.
    pub const IN_KEYSPACE: u32 = 1 << 23;
    /// `@string`.
    pub const IN_STRING: u32 = 1 << 24;
    /// `@bitmap`.
    pub const IN_BITMAP: u32 = 1 << 25;
    /// `@connection`.
    pub const IN_CONNECTION: u32 = 1 << 26;
    /// `@transaction`.
    pub const IN_TRANSACTION: u32 = 1 << 27;
    /// `@dangerous`.
    pub const IN_DANGEROUS: u32 = 1 << 28;
    /// `@admin`, without being one for operators only.
    pub const IN_ADMIN: u32 = 1 << 29;
    /// It does not run while the state is being loaded beside the old one.
    pub const NO_ASYNC_LOADING: u32 = 1 << 30;
}

/// What a command does with a key: bits of [`Keys::uses`], in Redis's words.
pub mod key_use {
    /// It reads it only.
    pub const RO: u16 = 1;
    /// It reads and changes it.
    pub const RW: u16 = 1 << 1;
    /// It overwrites it.
    pub const OW: u16 = 1 << 2;
    /// It removes it.
    pub const RM: u16 = 1 << 3;
    /// It returns, copies or uses what the key holds.
    pub const ACCESS: u16 = 1 << 4;
    /// It changes what the key holds, and what it holds then may depend on what it held.
    pub const UPDATE: u16 = 1 << 5;
    /// It adds, and changes nothing that was there.
    pub const INSERT: u16 = 1 << 6;
    /// It deletes what the key holds.
    pub const DELETE: u16 = 1 << 7;
    /// What it does depends on its arguments.
    pub const VARIES: u16 = 1 << 8;
}

/// Where a command's keys are among its arguments, and what it does with them.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The position of the first.
    pub first: i32,
    /// The position of the last; below zero: from the end.
    pub last: i32,
    /// The distance from one to the next.
    pub step: i32,
    /// Bits of [`key_use`].
    pub uses: u16,
    /// The reason, in Redis's words; mostly empty.
    pub note: &'static str,
}

impl Keys {
    /// Their positions among so many arguments.
    pub fn positions(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        let last = if self.last < 0 { arguments as i32 + self.last } else { self.last };
        (self.first..last.min(arguments as i32 - 1) + 1).step_by(self.step.max(1) as usize).map(|i| i as usize)
    }
}

/// One command, or one subcommand.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name, in lower case; a subcommand's is `container|subcommand`.
    pub name: &'static str,
    /// How many arguments it takes, its name included; below zero: at least that many.
    pub arity: i32,
    /// Bits of [`flag`].
    pub flags: u32,
    /// Its keys.
    pub keys: &'static [Keys],
    /// Its family, as Redis groups it.
    pub group: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// What Redis advises clients and proxies about it.
    pub tips: &'static [&'static str],
    /// The function that runs it.
    pub handler: Handler,
    /// Its index in the table, below the number of all commands.
    pub number: usize,
    /// Its subcommands, as the catalogue lists them.
    pub(super) rows: &'static [Command],
    /// Where in the table its subcommands begin.
    pub(super) first_subcommand: usize,
}

impl Command {
    /// Whether it has that flag, or one of those flags.
    #[inline]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether its reply says something about keys, or it changes them.
    #[inline]
    pub const fn is_data(&self) -> bool {
        self.has(flag::READ | flag::WRITE | flag::TELLS) || !self.keys.is_empty()
    }

    /// Whether it takes this many arguments.
    #[inline]
    pub const fn takes(&self, arguments: usize) -> bool {
        if self.arity >= 0 { arguments == self.arity as usize } else { arguments >= self.arity.unsigned_abs() as usize }
    }

    /// The positions of its keys among so many arguments.
    pub fn key_positions(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        self.keys.iter().flat_map(move |keys| keys.positions(arguments))
    }

    /// The first key, the last and the step: all that Redis before 7 reported about keys. Zeros if there are none.
    pub fn key_range(&self) -> (i32, i32, i32) {
        match (self.keys.first(), self.keys.last()) {
            (Some(first), Some(last)) => (first.first, last.last, first.step),
            _ => (0, 0, 0),
        }
    }

    /// Its subcommands, by name.
    pub fn subcommands(&self) -> &'static [Command] {
        &TABLE[self.first_subcommand..self.first_subcommand + self.rows.len()]
    }

    /// What follows the bar in a subcommand's name; for other commands, the name.
    pub fn short_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, name)| name)
    }
}

/// Every command, in order of their numbers, followed by all subcommands.
static TABLE: LazyLock<Box<[Command]>> = LazyLock::new(|| {
    let mut table = COMMANDS.to_vec();
    for at in 0..COMMANDS.len() {
        table[at].first_subcommand = table.len();
        table.extend_from_slice(table[at].rows);
    }
    for (number, command) in table.iter_mut().enumerate() {
        command.number = number;
    }
    table.into_boxed_slice()
});

/// How many commands and subcommands there are.
pub fn count() -> usize {
    TABLE.len()
}

/// The command or subcommand of that number.
pub fn numbered(number: usize) -> &'static Command {
    &TABLE[number]
}

/// Every command, by name.
pub fn all() -> &'static [Command] {
    &TABLE[..COMMANDS.len()]
}

/// The length of the longest name at most.
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
    for command in all() {
        let name = packed(command.name.as_bytes()).expect("no name in the table is too long");
        let mut at = slot_of(name);
        while slots[at].is_some() {
            at = (at + 1) % LOOKUP_SLOTS;
        }
        slots[at] = Some((name, command));
    }
    slots
});

/// The command with that name, in upper or lower case.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let packed_name = packed(name)?;
    let mut at = slot_of(packed_name);
    while let Some((known, command)) = LOOKUP[at] {
        // The length distinguishes `get` from `get` with a zero byte behind it.
        if known == packed_name && command.name.len() == name.len() {
            return Some(command);
        }
        at = (at + 1) % LOOKUP_SLOTS;
    }
    None
}

/// A request that names no command.
#[derive(Clone, Copy, Debug)]
pub enum NoCommand {
    /// There is no command with that name.
    Unknown,
    /// The command has no such subcommand.
    Subcommand(&'static Command),
}

/// The command or subcommand that a request names.
#[inline]
pub fn find_request(args: Args<'_>) -> Result<&'static Command, NoCommand> {
    let command = args.get(0).and_then(find).ok_or(NoCommand::Unknown)?;
    match args.get(1) {
        Some(name) if !command.rows.is_empty() => {
            let is = |c: &&Command| name.eq_ignore_ascii_case(c.short_name().as_bytes());
            command.subcommands().iter().find(is).ok_or(NoCommand::Subcommand(command))
        }
        _ => Ok(command),
    }
}

/// The same for a name as `COMMAND INFO` takes and reports it: `get`, `client|list`.
pub fn find_named(name: &[u8]) -> Option<&'static Command> {
    match memchr::memchr(b'|', name) {
        None => find(name),
        Some(_) => all().iter().flat_map(Command::subcommands).find(|c| name.eq_ignore_ascii_case(c.name.as_bytes())),
    }
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
            assert!(command.subcommands().is_sorted_by_key(|c| c.name));
            for sub in command.subcommands() {
                assert_eq!(sub.name, format!("{}|{}", command.name, sub.short_name()));
                assert_eq!(find_named(sub.name.to_uppercase().as_bytes()).map(|c| c.name), Some(sub.name));
            }
        }
        assert!((0..count()).all(|n| numbered(n).number == n));
        for name in ["", "gett", "ge", "a name that is longer than any", "get\0", "client|", "client|nope", "get|x"] {
            assert!(find_named(name.as_bytes()).is_none(), "{name:?}");
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

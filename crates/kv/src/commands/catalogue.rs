//! Lists the commands.
//!
//! A row gives a command's name, its arity, its special properties ([`flag`]), its keys (first, last, step, and [their use](key_use)), its group, its handler,
//! what it does, and what Redis advises clients about it. Except for commands that only Martlet has, rows say what `COMMAND INFO` of Redis 7.0.15 says, because
//! clients rely on it. A test compares.

use super::context::Ctx;
use super::table::{Command, Keys, flag, key_use};
use super::{client_commands, cluster, connection, describe, expiry, info, keyspace, numbers, server, strings, transactions};
use crate::resp::{Args, Reply};

macro_rules! commands {
    ($($name:literal $arity:literal [$($flag:ident)*] $({$first:literal $last:literal $step:literal $($use:ident)* $(($note:literal))?})* $group:literal $handler:path,
       $summary:literal $(, $tip:literal)* $(=> $rows:ident)?;)*) => {
        &[$(Command {
            name: $name,
            arity: $arity,
            flags: 0 $(| flag::$flag)*,
            keys: &[$(Keys { first: $first, last: $last, step: $step, uses: 0 $(| key_use::$use)*, note: concat!($($note)?) },)*],
            group: $group,
            summary: $summary,
            tips: &[$($tip,)*],
            handler: $handler,
            rows: rows!($($rows)?),
            number: 0,
            first_subcommand: 0,
        },)*]
    };
}

macro_rules! rows {
    () => {
        &[]
    };
    ($rows:ident) => {
        $rows
    };
}

/// The handler of a command that needs a subcommand. It is never reached: the arity has refused the request before.
fn container(_: &mut Ctx<'_>, args: Args<'_>, _: &mut Reply<'_>) {
    martlet_fabric::invariant!(false, "a request of {} words has reached a command that needs a subcommand", args.len());
}

pub(super) static COMMANDS: &[Command] = commands! {
    "append" 3 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW INSERT} "string" strings::append, "Appends to a key's value.";
    "asking" 1 [FAST CONNECTION IN_CONNECTION] "cluster" cluster::asking, "Accepted, and without effect: no slot ever moves.";
    "auth" -2 [NO_SCRIPT LOADING STALE FAST NO_AUTH BUSY CONNECTION IN_CONNECTION] "connection" connection::auth, "Gives the password.";
    "cas" -4 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" strings::cas, "Sets a key if it holds the expected value, or with NX if it is not there.";
    "client" -2 [CONNECTION] "connection" container, "Shows or sets what the server keeps of connections." => CLIENT;
    "cluster" -2 [] "cluster" container, "Shows the cluster to clients of Redis Cluster." => CLUSTER;
    "command" -1 [LOADING STALE IN_CONNECTION] "server" describe::all, "Describes the commands.", "nondeterministic_output_order" => COMMAND;
    "config" -2 [] "server" container, "Shows the configuration." => CONFIG;
    "dbsize" 1 [READ FAST IN_KEYSPACE] "server" keyspace::dbsize, "Counts the keys.", "request_policy:all_shards", "response_policy:agg_sum";
    "decr" 2 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" numbers::decr, "Decrements an integer by one.";
    "decrby" 3 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" numbers::decrby, "Decrements an integer.";
    "del" -2 [WRITE IN_KEYSPACE] {1 -1 1 RM DELETE} "generic" keyspace::del, "Removes keys.", "request_policy:multi_shard", "response_policy:agg_sum";
    "discard" 1 [NO_SCRIPT LOADING STALE FAST BUSY UNQUEUED NO_MULTI CONNECTION IN_TRANSACTION] "transactions" transactions::discard, "Gives a transaction up.";
    "echo" 2 [LOADING STALE FAST IN_CONNECTION] "connection" connection::echo, "Returns its argument.";
    "exec" 1 [NO_SCRIPT LOADING STALE SKIP_SLOWLOG UNQUEUED CONNECTION IN_TRANSACTION] "transactions" transactions::exec, "Executes a transaction, as one.";
    "exists" -2 [READ FAST IN_KEYSPACE] {1 -1 1 RO} "generic" keyspace::exists, "Counts the keys that are there.", "request_policy:multi_shard", "response_policy:agg_sum";
    "expire" -3 [WRITE FAST IN_KEYSPACE] {1 1 1 RW UPDATE} "generic" expiry::expire, "Lets a key expire in seconds.";
    "expireat" -3 [WRITE FAST IN_KEYSPACE] {1 1 1 RW UPDATE} "generic" expiry::expireat, "Lets a key expire at a time in seconds.";
    "expiretime" 2 [READ FAST IN_KEYSPACE] {1 1 1 RO ACCESS} "generic" expiry::expiretime, "When a key expires, in seconds.";
    "failover" -1 [ADMIN NO_SCRIPT STALE NO_MULTI] "server" server::failover, "Hands leadership over to another node.";
    "flushall" -1 [WRITE IN_KEYSPACE IN_DANGEROUS] "server" keyspace::flush, "Removes all keys.", "request_policy:all_shards", "response_policy:all_succeeded";
    "flushdb" -1 [WRITE IN_KEYSPACE IN_DANGEROUS] "server" keyspace::flush, "Removes all keys.", "request_policy:all_shards", "response_policy:all_succeeded";
    "get" 2 [READ FAST IN_STRING] {1 1 1 RO ACCESS} "string" strings::get, "The value of a key.";
    "getdel" 2 [WRITE FAST IN_STRING] {1 1 1 RW ACCESS DELETE} "string" strings::getdel, "The value of a key, which is removed.";
    "getex" -2 [WRITE FAST IN_STRING] {1 1 1 RW ACCESS UPDATE ("RW and UPDATE because it changes the TTL")} "string" strings::getex, "The value of a key, whose expiry is set.";
    "getrange" 4 [READ IN_STRING] {1 1 1 RO ACCESS} "string" strings::getrange, "A part of a value.";
    "getset" 3 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" strings::getset, "Sets a key and returns the value before.";
    "hello" -1 [NO_SCRIPT LOADING STALE FAST NO_AUTH BUSY CONNECTION IN_CONNECTION] "connection" connection::hello, "Chooses the protocol.";
    "incr" 2 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" numbers::incr, "Increments an integer by one.";
    "incrby" 3 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" numbers::incrby, "Increments an integer.";
    "incrbyfloat" 3 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 RW ACCESS UPDATE} "string" numbers::incrbyfloat, "Increments a number.";
    "info" -1 [LOADING STALE IN_DANGEROUS] "server" info::info, "Facts and counters.", "nondeterministic_output", "request_policy:all_shards", "response_policy:special";
    "keys" 2 [READ IN_KEYSPACE IN_DANGEROUS] "generic" keyspace::keys, "The keys that match a pattern.", "request_policy:all_shards", "nondeterministic_output_order";
    "lolwut" -1 [FAST] "server" server::lolwut, "The version.";
    "mget" -2 [READ FAST IN_STRING] {1 -1 1 RO ACCESS} "string" strings::mget, "The values of keys.", "request_policy:multi_shard";
    "mset" -3 [WRITE DENY_OOM IN_STRING] {1 -1 2 OW UPDATE} "string" strings::mset, "Sets keys, as one.", "request_policy:multi_shard", "response_policy:all_succeeded";
    "msetnx" -3 [WRITE DENY_OOM IN_STRING] {1 -1 2 OW INSERT} "string" strings::msetnx, "Sets keys, as one, if none is there.", "request_policy:multi_shard", "response_policy:agg_min";
    "multi" 1 [NO_SCRIPT LOADING STALE FAST BUSY UNQUEUED CONNECTION IN_TRANSACTION] "transactions" transactions::multi, "Starts a transaction.";
    "persist" 2 [WRITE FAST IN_KEYSPACE] {1 1 1 RW UPDATE} "generic" expiry::persist, "Lets a key never expire.";
    "pexpire" -3 [WRITE FAST IN_KEYSPACE] {1 1 1 RW UPDATE} "generic" expiry::pexpire, "Lets a key expire in milliseconds.";
    "pexpireat" -3 [WRITE FAST IN_KEYSPACE] {1 1 1 RW UPDATE} "generic" expiry::pexpireat, "Lets a key expire at a time in milliseconds.";
    "pexpiretime" 2 [READ FAST IN_KEYSPACE] {1 1 1 RO ACCESS} "generic" expiry::pexpiretime, "When a key expires, in milliseconds.";
    "ping" -1 [FAST IN_CONNECTION] "connection" connection::ping, "Answers PONG.", "request_policy:all_shards", "response_policy:all_succeeded";
    "psetex" 4 [WRITE DENY_OOM IN_STRING] {1 1 1 OW UPDATE} "string" strings::psetex, "Sets a key that expires in milliseconds.";
    "pttl" 2 [READ FAST IN_KEYSPACE] {1 1 1 RO ACCESS} "generic" expiry::pttl, "How long a key lasts, in milliseconds.", "nondeterministic_output";
    "quit" -1 [NO_SCRIPT LOADING STALE FAST NO_AUTH BUSY UNQUEUED CONNECTION IN_CONNECTION] "connection" connection::quit, "Closes the connection.";
    "raiselevel" 2 [ADMIN NO_SCRIPT STALE NO_MULTI] "server" server::raise_level, "Raises the feature level of the cluster.";
    "randomkey" 1 [READ IN_KEYSPACE] "generic" keyspace::randomkey, "Some key.", "request_policy:all_shards", "nondeterministic_output";
    "read" 2 [LOADING STALE FAST NO_MULTI CONNECTION IN_CONNECTION] "connection" connection::read, "Has replies wait for a majority (QUORUM), or for the lease (LEASE).";
    "readonly" 1 [LOADING STALE FAST CONNECTION IN_CONNECTION] "cluster" cluster::read_only, "Lets a backup answer what it knows, instead of sending the client to the primary.";
    "readwrite" 1 [LOADING STALE FAST CONNECTION IN_CONNECTION] "cluster" cluster::read_write, "Ends READONLY.";
    "rename" 3 [WRITE IN_KEYSPACE] {1 1 1 RW ACCESS DELETE} {2 2 1 OW UPDATE} "generic" keyspace::rename, "Gives a key another name.";
    "renamenx" 3 [WRITE FAST IN_KEYSPACE] {1 1 1 RW ACCESS DELETE} {2 2 1 OW INSERT} "generic" keyspace::renamenx, "Gives a key another name that is free.";
    "reset" 1 [NO_SCRIPT LOADING STALE FAST NO_AUTH BUSY UNQUEUED CONNECTION IN_CONNECTION] "connection" connection::reset, "Makes the connection as good as new.";
    "resize" -1 [ADMIN NO_SCRIPT STALE NO_MULTI] "server" server::resize, "Shows or says how many places the group has.";
    "role" 1 [NO_SCRIPT LOADING STALE FAST IN_ADMIN IN_DANGEROUS] "server" info::role, "Whether this node leads, and who the others are.";
    "scan" -2 [READ IN_KEYSPACE] "generic" keyspace::scan, "Goes through the keys, a few at a time.", "nondeterministic_output", "request_policy:special";
    "select" 2 [LOADING STALE FAST CONNECTION IN_CONNECTION] "connection" connection::select, "Chooses the database, of which there is one.";
    "set" -3 [WRITE DENY_OOM IN_STRING] {1 1 1 RW ACCESS UPDATE VARIES ("RW and ACCESS due to the optional `GET` argument")} "string" strings::set, "Sets a key.";
    "setex" 4 [WRITE DENY_OOM IN_STRING] {1 1 1 OW UPDATE} "string" strings::setex, "Sets a key that expires in seconds.";
    "setnx" 3 [WRITE DENY_OOM FAST IN_STRING] {1 1 1 OW INSERT} "string" strings::setnx, "Sets a key if it is not there.";
    "setrange" 4 [WRITE DENY_OOM IN_STRING] {1 1 1 RW UPDATE} "string" strings::setrange, "Writes into a value.";
    "shutdown" -1 [ADMIN NO_SCRIPT LOADING STALE NO_MULTI BUSY] "server" server::shutdown, "Lets the node leave the cluster and end.";
    "strlen" 2 [READ FAST IN_STRING] {1 1 1 RO} "string" strings::strlen, "The length of a value.";
    "substr" 4 [READ IN_STRING] {1 1 1 RO ACCESS} "string" strings::getrange, "A part of a value.";
    "time" 1 [LOADING STALE FAST] "server" server::time, "The server's clock.", "nondeterministic_output";
    "touch" -2 [READ FAST IN_KEYSPACE] {1 -1 1 RO} "generic" keyspace::exists, "Counts the keys that are there.", "request_policy:multi_shard", "response_policy:agg_sum";
    "ttl" 2 [READ FAST IN_KEYSPACE] {1 1 1 RO ACCESS} "generic" expiry::ttl, "How long a key lasts, in seconds.", "nondeterministic_output";
    "type" 2 [READ FAST IN_KEYSPACE] {1 1 1 RO} "generic" keyspace::type_of, "What a key holds: string, or none.";
    "unlink" -2 [WRITE FAST IN_KEYSPACE] {1 -1 1 RM DELETE} "generic" keyspace::del, "Removes keys.", "request_policy:multi_shard", "response_policy:agg_sum";
    "unwatch" 1 [NO_SCRIPT LOADING STALE FAST BUSY CONNECTION IN_TRANSACTION] "transactions" transactions::unwatch, "Ends all watching.";
    "watch" -2 [NO_SCRIPT LOADING STALE FAST BUSY UNQUEUED CONNECTION IN_TRANSACTION] {1 -1 1 RO} "transactions" transactions::watch, "Lets the next transaction fail if keys change.";
};

static CLIENT: &[Command] = commands! {
    "client|getname" 2 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::get_name, "The name of this connection.";
    "client|help" 2 [LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::help, "What the subcommands do.";
    "client|id" 2 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::id, "The id of this connection.";
    "client|info" 2 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::info, "What is known of this connection.", "nondeterministic_output";
    "client|kill" -3 [ADMIN NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::kill, "Closes connections.";
    "client|list" -2 [ADMIN NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::list, "What is known of connections.", "nondeterministic_output";
    "client|no-evict" 3 [ADMIN NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::no_evict, "Accepted, and without effect: nobody is evicted.";
    "client|no-touch" 3 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::no_touch, "Accepted, and without effect: when keys were last used is not kept.";
    "client|reply" 3 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::reply, "Whether this connection gets replies.";
    "client|setinfo" 4 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::set_info, "Names the library that the client uses.";
    "client|setname" 3 [NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::set_name, "Names this connection.";
    "client|unblock" -3 [ADMIN NO_SCRIPT LOADING STALE CONNECTION IN_CONNECTION] "connection" client_commands::unblock, "Ends another connection's waiting: none ever waits.";
};

static CLUSTER: &[Command] = commands! {
    "cluster|countkeysinslot" 3 [TELLS STALE] "cluster" cluster::count_keys_in_slot, "How many keys lie in a slot.";
    "cluster|forget" 3 [ADMIN STALE NO_ASYNC_LOADING] "cluster" cluster::forget, "Remove a node that hangs.";
    "cluster|getkeysinslot" 4 [TELLS STALE] "cluster" cluster::get_keys_in_slot, "Some keys of a slot.", "nondeterministic_output";
    "cluster|help" 2 [LOADING STALE] "cluster" cluster::help, "What the subcommands do.";
    "cluster|info" 2 [STALE] "cluster" cluster::info, "The cluster's state.", "nondeterministic_output";
    "cluster|keyslot" 3 [STALE] "cluster" cluster::key_slot_of, "The slot of a key.";
    "cluster|myid" 2 [STALE] "cluster" cluster::my_id, "This node's name.";
    "cluster|nodes" 2 [STALE] "cluster" cluster::nodes, "The nodes, a line each.", "nondeterministic_output";
    "cluster|replicas" 3 [ADMIN STALE] "cluster" cluster::replicas, "The nodes that follow a primary, a line each.", "nondeterministic_output";
    "cluster|shards" 2 [STALE] "cluster" cluster::shards, "The one shard: its slots and its nodes.", "nondeterministic_output";
    "cluster|slaves" 3 [ADMIN STALE] "cluster" cluster::replicas, "The nodes that follow a primary, a line each.", "nondeterministic_output";
    "cluster|slots" 2 [STALE] "cluster" cluster::slots, "Which nodes serve which slots.", "nondeterministic_output";
};

static COMMAND: &[Command] = commands! {
    "command|count" 2 [LOADING STALE IN_CONNECTION] "server" describe::count, "How many commands there are.";
    "command|docs" -2 [LOADING STALE IN_CONNECTION] "server" describe::docs, "What commands do.", "nondeterministic_output_order";
    "command|getkeys" -4 [LOADING STALE IN_CONNECTION] "server" describe::get_keys, "The keys of a request.";
    "command|getkeysandflags" -4 [LOADING STALE IN_CONNECTION] "server" describe::get_keys_and_flags, "The keys of a request, and what it does with them.";
    "command|help" 2 [LOADING STALE IN_CONNECTION] "server" describe::help, "What the subcommands do.";
    "command|info" -2 [LOADING STALE IN_CONNECTION] "server" describe::info, "What there is to know of commands.", "nondeterministic_output_order";
    "command|list" -2 [LOADING STALE IN_CONNECTION] "server" describe::list, "The names of commands.", "nondeterministic_output_order";
};

static CONFIG: &[Command] = commands! {
    "config|get" -3 [ADMIN NO_SCRIPT LOADING STALE] "server" server::config_get, "The settings that match a pattern.";
    "config|help" 2 [LOADING STALE] "server" server::config_help, "What the subcommands do.";
    "config|resetstat" 2 [ADMIN NO_SCRIPT LOADING STALE] "server" server::config_resetstat, "Sets the counters of INFO to 0.";
    "config|set" -4 [ADMIN NO_SCRIPT LOADING STALE] "server" server::config_set, "Refused: settings are fixed while a node runs.", "request_policy:all_nodes", "response_policy:all_succeeded";
};

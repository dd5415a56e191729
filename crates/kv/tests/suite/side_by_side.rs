//! Sends the same requests to a real Redis and to ours: the replies must be equal byte for byte.

use std::time::{SystemTime, UNIX_EPOCH};

use martlet_kv::KvConfig;
use martlet_kv::commands::{Client, ClientSlot, Clock, Ctx, Shared, all, execute};
use martlet_kv::resp::{Limits, RequestParser};
use martlet_kv::store::KvMachine;

use crate::redis::{Server, request};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// A primary with nothing around it.
struct Ours {
    machine: KvMachine,
    shared: Shared,
    slot: ClientSlot,
    clock: Clock,
}

impl Ours {
    fn new() -> Ours {
        let config = KvConfig { limits: Limits { max_bulk_bytes: 512 << 20, ..Limits::default() }, ..KvConfig::default() };
        let mut shared = Shared::new(config, now_ms(), 1);
        shared.env.is_primary = true;
        let slot = shared.clients.add(Client::new(String::new(), String::new(), true, now_ms()));
        Ours { machine: KvMachine::new(), shared, slot, clock: Clock::new(Box::new(|| now_ms() * 1_000_000)) }
    }

    fn call(&mut self, request: &[u8]) -> Vec<u8> {
        let (mut parser, mut out) = (RequestParser::new(), Vec::new());
        let whole = parser.parse(request, &Limits::default(), true).expect("a request");
        assert_eq!(whole, Some(request.len()));
        let mut ctx = Ctx { machine: &mut self.machine, shared: &mut self.shared, slot: self.slot, clock: &mut self.clock };
        ctx.clock.forget();
        execute(&mut ctx, parser.args(request), &mut out);
        out
    }
}

/// Splits a line at its spaces; a word in quotes may hold escapes.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut parser = RequestParser::new();
    let input = format!("{line}\n").into_bytes();
    let taken = parser.parse(&input, &Limits::default(), true).expect("words");
    assert_eq!(taken, Some(input.len()), "{line}");
    parser.args(&input).from(0).map(<[u8]>::to_vec).collect()
}

fn compare(script: &str) {
    let Some(mut server) = Server::start() else { return };
    for resp3 in [false, true] {
        let (mut theirs, mut ours) = (server.connect(), Ours::new());
        theirs.send(b"*1\r\n$8\r\nFLUSHALL\r\n");
        theirs.reply();
        if resp3 {
            let hello = request(&words("HELLO 3"));
            theirs.send(&hello);
            theirs.reply();
            ours.call(&hello);
        }
        for line in script.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let request = request(&words(line));
            theirs.send(&request);
            let (expected, got) = (theirs.reply(), ours.call(&request));
            assert!(
                expected == got,
                "{line}\n  Redis:   {}\n  Martlet: {}\n  (RESP{})",
                expected.escape_ascii(),
                got.escape_ascii(),
                if resp3 { 3 } else { 2 }
            );
        }
    }
}

#[test]
fn strings_answer_as_redis_does() {
    compare(
        r#"
        GET k
        SET k v
        GET k
        SET k "a\r\nb\x00c"
        GET k
        SET
        SET k
        SET k v NX
        SET k v XX
        SET absent v XX
        SET absent v XX GET
        SET k w GET
        SET n v NX GET
        SET n w NX GET
        GET n
        SET k v NX XX
        SET k v EX
        SET k v EX 0
        SET k v EX -5
        SET k v EX abc
        SET k v EX 9223372036854775807
        SET k v PX 9223372036854775807
        SET k v EX 10 PX 10
        SET k v EX 10 EX 20
        TTL k
        SET k v EX 10 EXAT 99999999999
        SET k v EX 10 EX
        GETEX k PX 10 PX 20000
        TTL k
        SET k v EX 10 KEEPTTL
        SET k v KEEPTTL EX 10
        SET k v KEEPTTL
        SET k v PERSIST
        SET k v EXAT 0
        SET k v EXAT 99999999999
        TTL n
        SET k w KEEPTTL
        EXPIRETIME k
        SET k w
        EXPIRETIME k
        SET k w PXAT 99999999999123
        PEXPIRETIME k
        SET k gone PXAT 1
        GET k
        EXISTS k
        SETEX k 100 v
        TTL k
        SETEX k 0 v
        SETEX k x v
        SETEX k 9223372036854775807 v
        PSETEX k 100000 v
        TTL k
        PSETEX k -1 v
        SETNX k x
        SETNX fresh x
        GETSET k new
        GETSET other new
        TTL k
        GETDEL k
        GETDEL k
        SET k v EX 100
        GETEX k
        TTL k
        GETEX k PERSIST
        TTL k
        GETEX k EX 50
        TTL k
        GETEX k EX 50 PERSIST
        GETEX k NX
        GETEX k KEEPTTL
        GETEX k EX 0
        GETEX absent EX 0
        GETEX k PXAT 1
        GET k
        MSET a 1 b 2 c 3
        MGET a b nope c
        MSET a
        MSET a 1 b
        MSET a 1 a 2
        GET a
        MSETNX a 1 zz 2
        MSETNX y1 1 y2 2
        MGET y1 y2 zz
        MSETNX y1
        MSETNX y1 2 y2
        APPEND a xyz
        APPEND newkey hello
        GET a
        STRLEN a
        STRLEN nokey
        GETRANGE newkey 0 -1
        GETRANGE newkey 1 3
        GETRANGE newkey -3 -2
        GETRANGE newkey -1 -3
        GETRANGE newkey 3 1
        GETRANGE newkey 0 100
        GETRANGE newkey -100 100
        GETRANGE newkey 5 10
        GETRANGE newkey -100 -200
        GETRANGE newkey -200 -100
        GETRANGE nokey 0 -1
        GETRANGE newkey a b
        GETRANGE newkey -9223372036854775808 9223372036854775807
        SUBSTR newkey 0 1
        SETRANGE newkey 1 EY
        GET newkey
        SETRANGE newkey 10 far
        GET newkey
        SETRANGE nokey2 3 x
        GET nokey2
        SETRANGE nokey3 3 ""
        EXISTS nokey3
        SETRANGE newkey -1 x
        SETRANGE newkey abc x
        SETRANGE newkey 536870912 x
        SETRANGE newkey 9223372036854775807 x
        "#,
    );
}

#[test]
fn numbers_answer_as_redis_does() {
    compare(
        r#"
        INCR n
        INCR n
        DECR n
        INCRBY n 10
        DECRBY n 3
        INCRBY n abc
        INCRBY n 1.5
        DECRBY n -9223372036854775808
        SET n 9223372036854775807
        INCR n
        INCRBY n -1
        SET n -9223372036854775808
        DECR n
        SET n " 1"
        INCR n
        SET n 01
        INCR n
        SET n ""
        INCR n
        SET n 10 EX 100
        INCR n
        TTL n
        INCRBYFLOAT f 0.1
        INCRBYFLOAT f 0.2
        INCRBYFLOAT f 1e3
        INCRBYFLOAT f -1000.3
        INCRBYFLOAT f abc
        INCRBYFLOAT f ""
        INCRBYFLOAT f " 1"
        INCRBYFLOAT f 1x
        INCRBYFLOAT f nan
        INCRBYFLOAT f inf
        INCRBYFLOAT f -inf
        SET f 10.50
        INCRBYFLOAT f 0.1
        INCRBYFLOAT f -5
        SET f 5.0e3
        INCRBYFLOAT f 2.0e2
        SET f 3.0
        INCRBYFLOAT f 1.000000000000000005
        SET f 1234567.1
        INCRBYFLOAT f 0.1
        SET f 99999999999999999999
        INCRBYFLOAT f 0.5
        SET f 1e300
        INCRBYFLOAT f 1
        SET f 1e-5
        INCRBYFLOAT f 1e-18
        INCRBYFLOAT f 1e-17
        INCRBYFLOAT f 3.33333333333333333333
        INCRBYFLOAT f -3.33333333333333333333
        SET f -1
        INCRBYFLOAT f 1
        INCRBYFLOAT f 17179869184.123456789
        INCRBYFLOAT f 0.0000000001
        SET f notanumber
        INCRBYFLOAT f 1
        "#,
    );
}

#[test]
fn keys_and_expiry_answer_as_redis_does() {
    compare(
        r#"
        DBSIZE
        RANDOMKEY
        KEYS *
        SCAN 0
        SET a 1
        DBSIZE
        RANDOMKEY
        KEYS *
        KEYS b*
        KEYS [a-c]
        SCAN 0
        SCAN 0 MATCH b* COUNT 100
        SCAN 0 TYPE string
        SCAN 0 TYPE list
        SCAN x
        SCAN 0 COUNT 0
        SCAN 0 COUNT x
        SCAN 0 COUNT
        SCAN 0 NOPE 1
        SCAN ""
        SCAN "" COUNT 100
        SCAN +0
        SCAN -0
        SCAN " 0"
        SCAN "0 "
        SCAN -
        SCAN +-0
        SCAN "0\x000"
        SCAN "\xff"
        SCAN 0x0
        SCAN 99999999999999999999
        EXISTS a a b
        TOUCH a b
        TYPE a
        TYPE b
        DEL a b a
        UNLINK a
        SET a 1
        RENAME a b
        RENAME a b
        GET b
        RENAME b b
        SET c 2 EX 100
        RENAMENX b c
        RENAMENX b d
        RENAMENX nope d
        RENAME c e
        TTL e
        TTL d
        TTL nope
        PTTL d
        PTTL nope
        EXPIRETIME d
        PEXPIRETIME nope
        EXPIRE d 100
        TTL d
        EXPIRE nope 100
        EXPIRE d abc
        EXPIRE d 9223372036854775807
        EXPIRE d -9223372036854775808
        PEXPIRE d 9223372036854775807
        EXPIRE d 200 NX
        EXPIRE d 200 XX
        EXPIRE d 100 GT
        EXPIRE d 300 GT
        EXPIRE d 400 LT
        EXPIRE d 200 LT
        TTL d
        EXPIRE d 200 NX XX
        EXPIRE d 200 GT LT
        EXPIRE d 200 FOO
        # Not 200 again: whether that is later hangs on the millisecond.
        EXPIRE d 150 XX GT
        EXPIRE d 250 XX GT
        PERSIST d
        PERSIST d
        PERSIST nope
        EXPIRE d 100 GT
        EXPIRE d 100 LT
        PEXPIRE d 100000
        EXPIREAT d 99999999999
        EXPIRETIME d
        PEXPIREAT d 99999999999123
        PEXPIRETIME d
        EXPIRE d -1
        EXISTS d
        SET d 1
        EXPIREAT d 0
        EXISTS d
        SET d 1
        PEXPIREAT d -5
        GET d
        FLUSHDB
        DBSIZE
        SET x 1
        FLUSHALL ASYNC
        FLUSHALL SYNC
        FLUSHALL nope
        FLUSHALL SYNC ASYNC
        DBSIZE
        "#,
    );
}

#[test]
fn transactions_answer_as_redis_does() {
    compare(
        r#"
        EXEC
        DISCARD
        MULTI
        MULTI
        SET a 1
        INCR a
        GET a
        INCR b x
        EXEC
        MULTI
        SET a 1
        NOSUCH x
        GET a
        EXEC
        MULTI
        SET a x
        INCR a
        GET a
        EXEC
        MULTI
        SET a 1
        DISCARD
        GET a
        WATCH a
        SET a 5
        MULTI
        GET a
        EXEC
        WATCH a b
        MULTI
        GET a
        EXEC
        WATCH a
        SET a 6
        UNWATCH
        MULTI
        GET a
        EXEC
        WATCH nope
        DEL nope
        MULTI
        PING
        EXEC
        WATCH nope
        SET nope 1
        MULTI
        PING
        EXEC
        WATCH nope
        FLUSHALL
        MULTI
        PING
        EXEC
        WATCH nope
        FLUSHALL
        MULTI
        PING
        EXEC
        MULTI
        WATCH a
        EXEC
        MULTI
        EXEC
        MULTI
        UNWATCH
        ECHO x
        EXEC
        SET a 1 PXAT 99999999999123
        WATCH a
        EXPIRE a 100
        MULTI
        EXEC
        WATCH
        MULTI
        WATCH
        EXEC
        MULTI
        GETSET a b c
        EXEC
        MULTI
        SELECT 0
        EXEC
        EXEC x
        MULTI
        SET a 1
        EXEC x
        EXEC
        MULTI
        SET a 1
        CLIENT NOPE
        EXEC
        MULTI
        CLIENT SETNAME
        EXEC
        MULTI
        CLIENT
        EXEC
        MULTI
        CONFIG NOPE
        EXEC
        MULTI
        CONFIG GET
        EXEC
        MULTI
        COMMAND NOPE
        EXEC
        MULTI
        COMMAND COUNT x
        EXEC
        MULTI
        COMMAND GETKEYS GET
        EXEC
        MULTI
        CLUSTER NOPE
        EXEC
        MULTI
        CLUSTER KEYSLOT
        EXEC
        MULTI
        CLUSTER
        EXEC
        MULTI
        CLUSTER INFO
        CLIENT GETNAME
        CONFIG GET save
        COMMAND GETKEYS GET
        EXEC
        MULTI
        CLIENT SETNAME x
        CONFIG GET save
        CLUSTER INFO
        CLIENT KILL ID 0
        EXEC
        "#,
    );
}

#[test]
fn connections_answer_as_redis_does() {
    compare(
        r#"
        PING
        PING hello
        PING a b
        ECHO x
        ECHO
        NOSUCH
        NOSUCH a b c
        nosuch "with\r\nbreak"
        "" a
        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA b
        NOSUCH AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA b c
        SELECT 0
        SELECT abc
        SELECT 99
        SELECT -1
        SELECT
        AUTH x
        AUTH default x
        AUTH nobody x
        AUTH a b c
        HELLO x
        HELLO 9
        HELLO 2 AUTH
        HELLO 2 AUTH nobody x
        HELLO 2 SETNAME "a b"
        CLIENT
        CLIENT NOPE
        CLIENT GETNAME
        CLIENT SETNAME
        CLIENT SETNAME me
        CLIENT GETNAME
        CLIENT SETNAME "a b"
        CLIENT SETNAME ""
        CLIENT GETNAME
        CLIENT ID x
        CLIENT NO-EVICT on
        CLIENT NO-EVICT nope
        CLIENT REPLY on
        CLIENT REPLY nope
        CLIENT LIST TYPE nope
        CLIENT LIST ID x
        CLIENT LIST nope
        CLIENT KILL
        CLIENT KILL 192.0.2.1:1
        CLIENT KILL ADDR
        CLIENT KILL ADDR 192.0.2.1:1
        CLIENT KILL LADDR 192.0.2.1:1 ADDR 192.0.2.1:2
        CLIENT KILL ID 999999999
        CLIENT KILL ID 0
        CLIENT KILL ID x
        CLIENT KILL TYPE pubsub
        CLIENT KILL TYPE Nope
        CLIENT KILL USER nobody
        CLIENT KILL USER default ID 999999999
        CLIENT KILL SKIPME yes ID 999999999
        CLIENT KILL SKIPME nope ID 1
        CLIENT KILL ID 999999999 ADDR
        CLIENT KILL nope x
        CLIENT UNBLOCK 999999999
        CLIENT UNBLOCK 999999999 TIMEOUT
        CLIENT UNBLOCK 999999999 error
        CLIENT UNBLOCK 999999999 nope
        CLIENT UNBLOCK x
        CLIENT UNBLOCK
        CLIENT "NO\r\nPE"
        SHUTDOWN ABORT
        SHUTDOWN abort ABORT
        SHUTDOWN ABORT NOW
        SHUTDOWN SAVE NOSAVE
        SHUTDOWN nope
        FAILOVER abort
        FAILOVER ABORT nope
        FAILOVER nope
        FAILOVER TO 127.0.0.1
        FAILOVER TO 127.0.0.1 x
        MULTI
        CLIENT REPLY ON
        CLIENT REPLY nope
        PING
        EXEC
        CLUSTER NOPE
        CLUSTER KEYSLOT
        CLUSTER HELP
        READONLY
        READWRITE
        ASKING
        ROLE
        ROLE x
        CLUSTER INFO
        CONFIG GET save
        CONFIG GET appendonly
        CONFIG GET nosuchsetting
        CONFIG GET
        CONFIG NOPE
        COMMAND COUNT x
        COMMAND NOPE
        COMMAND GETKEYS GET
        COMMAND GETKEYS SET a b
        COMMAND GETKEYS MSET a b c d
        COMMAND GETKEYS PING
        COMMAND GETKEYS NOPE x
        COMMAND GETKEYS GET a b c
        COMMAND GETKEYS CLIENT LIST
        COMMAND GETKEYS CLIENT NOPE
        COMMAND GETKEYSANDFLAGS GET a
        COMMAND GETKEYSANDFLAGS SET a b
        COMMAND GETKEYSANDFLAGS SET a b EX 10 get
        COMMAND GETKEYSANDFLAGS MSET a 1 b 2
        COMMAND GETKEYSANDFLAGS RENAME a b
        COMMAND GETKEYSANDFLAGS GETEX a
        COMMAND GETKEYSANDFLAGS DEL a b c
        COMMAND GETKEYSANDFLAGS PING
        COMMAND GETKEYSANDFLAGS PING x
        COMMAND INFO get|x nosuch client|nope
        COMMAND INFO nosuch
        COMMAND LIST nope
        COMMAND LIST FILTERBY nope x
        COMMAND LIST FILTERBY MODULE x
        COMMAND LIST FILTERBY PATTERN GETD*
        COMMAND LIST FILTERBY ACLCAT nosuch
        COMMAND LIST FILTERBY PATTERN
        COMMAND DOCS nosuch
        TIME x
        SHUTDOWN NOPE
        SHUTDOWN SAVE NOSAVE
        INFO nosuchsection
        RESET
        "#,
    );
}

/// Clients ask before they route, cache or repeat a request.
#[test]
fn command_info_tells_of_each_command_what_redis_tells() {
    // These are unknown to Redis 7.0, or described differently: FAILOVER cannot be part of a transaction here, and LOLWUT reads no keys.
    let ours = ["cas", "client|no-touch", "client|setinfo", "failover", "lolwut", "raiselevel", "read", "resize"];
    let both = all().iter().flat_map(|command| std::iter::once(command).chain(command.subcommands()));
    let names: Vec<&str> = both.filter(|c| c.subcommands().is_empty()).map(|c| c.name).filter(|name| !ours.contains(name)).collect();
    assert!(names.len() > 90 && names.contains(&"client|list") && names.contains(&"set"), "{names:?}");
    compare(&names.iter().map(|name| format!("COMMAND INFO {name}\n")).collect::<String>());
}

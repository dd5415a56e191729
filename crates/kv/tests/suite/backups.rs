//! The answers of a node that does not lead.

use std::sync::atomic::Ordering;

use martlet_fabric::NodeId;
use martlet_kv::KvConfig;
use martlet_kv::commands::{Client, Clock, Ctx, Shared, execute, key_slot};
use martlet_kv::resp::RequestParser;
use martlet_kv::store::KvMachine;

use crate::fake::process;
use crate::rig::Rig;

/// A backup with two keys, and one that is due to expire.
fn backup(cluster_mode: bool) -> Rig {
    let mut rig = Rig::new(KvConfig { node: NodeId(1), cluster_mode, ..KvConfig::default() });
    let mut client = rig.connect();
    for request in ["SET a 1", "SET b 2", "SET due v PX 1000"] {
        assert_eq!(rig.call(&mut client, request), "+OK\r\n");
    }
    rig.replica.follow(Some(process(0)));
    rig.wall.fetch_add(2_000, Ordering::Relaxed);
    rig
}

#[test]
fn a_backup_answers_what_names_no_key_as_a_replica_of_redis_does() {
    for cluster_mode in [false, true] {
        let mut rig = backup(cluster_mode);
        let mut client = rig.connect();
        // A key that is due is counted until the primary deletes it, but for every read it is gone.
        assert_eq!(rig.call(&mut client, "DBSIZE"), ":3\r\n");
        assert!(["*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*2\r\n$1\r\nb\r\n$1\r\na\r\n"].contains(&rig.call(&mut client, "KEYS *").as_str()));
        let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
        loop {
            let reply = rig.call(&mut client, &format!("SCAN {cursor}"));
            let mut lines = reply.split("\r\n").skip(2);
            cursor = lines.next().expect("a cursor").to_owned();
            keys.extend(lines.skip(1).filter(|l| !l.is_empty() && !l.starts_with('$')).map(str::to_owned));
            if cursor == "0" {
                break;
            }
        }
        keys.sort();
        assert_eq!(keys, ["a", "b"]);
        for _ in 0..100 {
            let key = rig.call(&mut client, "RANDOMKEY");
            assert!(["$1\r\na\r\n", "$1\r\nb\r\n"].contains(&key.as_str()), "{key}");
        }
        if cluster_mode {
            assert_eq!(rig.call(&mut client, &format!("CLUSTER COUNTKEYSINSLOT {}", key_slot(b"a"))), ":1\r\n");
            assert_eq!(rig.call(&mut client, &format!("CLUSTER GETKEYSINSLOT {} 9", key_slot(b"due"))), "*0\r\n");
        }
        assert_eq!(rig.call(&mut client, "MULTI"), "+OK\r\n");
        assert_eq!(rig.call(&mut client, "DBSIZE"), "+QUEUED\r\n");
        assert_eq!(rig.call(&mut client, "EXEC"), "*1\r\n:3\r\n");
        let elsewhere = if cluster_mode { "-MOVED " } else { "-READONLY " };
        for request in ["GET a", "TTL due", "FLUSHALL", "WATCH a"] {
            assert!(rig.call(&mut client, request).starts_with(elsewhere), "{request}");
        }
        assert_eq!(rig.replica.machine.len(), 3, "a backup deletes nothing by itself");
    }
}

#[test]
fn a_client_of_a_cluster_that_takes_what_a_backup_knows_says_so() {
    let mut rig = backup(true);
    let mut client = rig.connect();
    let moved = format!("-MOVED {} 127.0.0.1:7711\r\n", key_slot(b"a"));
    assert_eq!(rig.call(&mut client, "GET a"), moved);
    assert_eq!(rig.call(&mut client, "READONLY"), "+OK\r\n");
    assert!(rig.call(&mut client, "CLIENT INFO").contains(" flags=r "));
    for (request, reply) in [
        ("GET a", "$1\r\n1\r\n"),
        ("MGET a b due", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n"),
        ("PTTL due", ":-2\r\n"),
        ("MULTI", "+OK\r\n"),
        ("GET a", "+QUEUED\r\n"),
        ("STRLEN b", "+QUEUED\r\n"),
        ("EXEC", "*2\r\n$1\r\n1\r\n:1\r\n"),
        // Commands that change keys, or announce what is to come, are the primary's.
        ("SET a 2", &moved),
        ("GETEX a", &moved),
        ("WATCH a", &moved),
        ("READWRITE", "+OK\r\n"),
        ("GET a", &moved),
        ("READONLY", "+OK\r\n"),
        ("RESET", "+RESET\r\n"),
        ("GET a", &moved),
    ] {
        assert_eq!(rig.call(&mut client, request), reply, "{request}");
    }
    rig.call(&mut client, "READONLY");
    rig.call(&mut client, "MULTI");
    rig.call(&mut client, "GET a");
    rig.replica.shows_committed = false;
    assert_eq!(
        rig.call(&mut client, "EXEC"),
        "-EXECABORT Transaction discarded because of: LOADING Redis is loading the dataset in memory\r\n"
    );
    assert_eq!(rig.replica.machine.len(), 3);
    // Outside of a cluster there is no such command, as in Redis.
    let mut rig = backup(false);
    let mut client = rig.connect();
    assert_eq!(rig.call(&mut client, "READONLY"), "-ERR This instance has cluster support disabled\r\n");
    assert!(rig.call(&mut client, "GET a").starts_with("-READONLY "));
}

/// Neither a part of the state, nor what was executed and is not committed, may be shown.
#[test]
fn a_backup_answers_nothing_from_what_is_not_the_state() {
    let mut rig = backup(true);
    let mut client = rig.connect();
    rig.call(&mut client, "READONLY");
    assert!(rig.call(&mut client, "INFO").contains("\r\nloading:0\r\n"));
    rig.replica.shows_committed = false;
    for request in ["DBSIZE", "SCAN 0", "KEYS *", "RANDOMKEY", "GET a"] {
        assert_eq!(rig.call(&mut client, request), "-LOADING Redis is loading the dataset in memory\r\n", "{request}");
    }
    let info = rig.call(&mut client, "INFO");
    assert!(info.contains("\r\nloading:1\r\n") && info.contains("\r\nmaster_sync_in_progress:1\r\n"), "{info}");
    rig.replica.shows_committed = true;
    assert_eq!(rig.call(&mut client, "DBSIZE"), ":3\r\n");
    rig.replica.follow(None);
    for request in ["DBSIZE", "GET a"] {
        assert_eq!(rig.call(&mut client, request), "-CLUSTERDOWN The cluster is down\r\n", "{request}");
    }
}

/// A client over shared memory is promised that no read is stale.
#[test]
fn a_request_over_shared_memory_is_the_primarys() {
    let mut shared = Shared::new(KvConfig { node: NodeId(1), ..KvConfig::default() }, 0, 1);
    shared.env.shows_committed = true;
    shared.env.primary_address = Some("127.0.0.1:7711".to_owned());
    let slot = shared.clients.add(Client { stateless: true, ..Client::new(String::new(), String::new(), true, 0) });
    for (stateless, redirected) in [(true, true), (false, false)] {
        shared.clients.get_mut(slot).stateless = stateless;
        let (mut parser, mut out) = (RequestParser::new(), Vec::new());
        let request = b"DBSIZE\r\n";
        parser.parse(request, &shared.env.config.limits, true).expect("a request");
        let mut ctx = Ctx { machine: &mut KvMachine::new(), shared: &mut shared, slot, clock: &mut Clock::standing_at_ms(1) };
        assert_eq!(execute(&mut ctx, parser.args(request), &mut out).redirected, redirected, "{}", out.escape_ascii());
    }
}

//! The Redis front end over real sockets.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use martlet_fabric::NodeId;
use martlet_kv::resp::Limits;
use martlet_kv::{KvApp, KvConfig};
use martlet_protocol::replica::Application;

use crate::fake::process;
use crate::rig::{Client, PATIENCE, Rig};

#[test]
fn requests_are_answered_and_replicated() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    assert_eq!(rig.call(&mut client, "PING"), "+PONG\r\n");
    assert_eq!(rig.call(&mut client, "SET k v"), "+OK\r\n");
    assert_eq!(rig.call(&mut client, "GET k"), "$1\r\nv\r\n");
    assert_eq!(rig.call(&mut client, "APPEND k w"), ":2\r\n");
    assert_eq!(rig.call(&mut client, "SETRANGE k 5 x"), ":6\r\n");
    assert_eq!(rig.call(&mut client, "CAS k v w"), ":0\r\n");
    assert_eq!(rig.call(&mut client, "CAS new NX w"), ":1\r\n");
    assert_eq!(rig.call(&mut client, "CAS new NX x"), ":0\r\n");
    assert_eq!(rig.call(&mut client, "CAS new w x"), ":1\r\n");
    assert_eq!(rig.call(&mut client, "EXPIRE new 100"), ":1\r\n");
    assert_eq!(rig.call(&mut client, "CAS new x y"), ":1\r\n");
    assert_eq!(rig.call(&mut client, "TTL new"), ":100\r\n");
    assert_eq!(rig.call(&mut client, "PERSIST new"), ":1\r\n");
    assert_eq!(rig.call(&mut client, "DEL k"), ":1\r\n");
    rig.check_backup();
}

#[test]
fn no_reply_leaves_before_its_ticket_to_reads_either() {
    let mut rig = Rig::new(KvConfig::default());
    let (mut asker, mut other) = (rig.connect(), rig.connect());
    rig.releasing = false;
    asker.send(&mut rig, b"GET k\r\nPING\r\n");
    assert_eq!(rig.call(&mut other, "PING"), "+PONG\r\n", "what says nothing of keys need not wait");
    for _ in 0..1000 {
        rig.turn();
        asker.receive();
        assert_eq!(asker.received.escape_ascii().to_string(), "");
    }
    rig.releasing = true;
    assert_eq!(rig.reply(&mut asker), "$-1\r\n");
    assert_eq!(rig.reply(&mut asker), "+PONG\r\n");
}

/// A lease depends on the primary's clock. A client that does not trust it can say so.
#[test]
fn one_that_reads_by_quorum_is_answered_when_a_majority_has_been_asked() {
    let mut rig = Rig::new(KvConfig::default());
    let (mut asker, mut other) = (rig.connect(), rig.connect());
    assert_eq!(rig.call(&mut asker, "READ maybe"), "-ERR READ takes QUORUM or LEASE\r\n");
    assert_eq!(rig.call(&mut asker, "read quorum"), "+OK\r\n");
    rig.replica.majority = false;
    asker.send(&mut rig, b"SET k v\r\nGET k\r\nPING\r\n");
    assert_eq!(rig.call(&mut other, "SET other v"), "+OK\r\n", "it trusts the lease");
    for _ in 0..1000 {
        rig.turn();
        asker.receive();
        assert_eq!(asker.received.escape_ascii().to_string(), "");
    }
    rig.replica.majority = true;
    for expected in ["+OK\r\n", "$1\r\nv\r\n", "+PONG\r\n"] {
        assert_eq!(rig.reply(&mut asker), expected);
    }
    // This holds for transactions too, and until the connection says otherwise or is reset.
    for back in ["READ LEASE", "RESET"] {
        assert_eq!(rig.call(&mut asker, "READ QUORUM"), "+OK\r\n");
        rig.call(&mut asker, "MULTI");
        assert_eq!(rig.call(&mut asker, "READ LEASE"), "-ERR Command not allowed inside a transaction\r\n");
        rig.call(&mut asker, "DISCARD");
        rig.call(&mut asker, "MULTI");
        rig.call(&mut asker, "GET k");
        rig.replica.majority = false;
        asker.send(&mut rig, b"EXEC\r\n");
        (0..1000).for_each(|_| _ = rig.turn());
        asker.receive();
        assert_eq!(asker.received.escape_ascii().to_string(), "");
        rig.replica.majority = true;
        assert_eq!(rig.reply(&mut asker), "*1\r\n$1\r\nv\r\n");
        rig.call(&mut asker, back);
        rig.replica.majority = false;
        assert_eq!(rig.call(&mut asker, "GET k"), "$1\r\nv\r\n", "after {back}");
        rig.replica.majority = true;
    }
    // A backup has no majority to ask.
    rig.replica.follow(Some(process(1)));
    assert_eq!(rig.call(&mut other, "DBSIZE"), ":2\r\n");
    rig.call(&mut other, "READ QUORUM");
    assert!(rig.call(&mut other, "DBSIZE").starts_with("-"), "it says who leads");
}

#[test]
fn where_reads_are_by_quorum_a_client_that_says_nothing_waits_for_a_majority() {
    let mut rig = Rig::new(KvConfig { reads_by_quorum: true, cluster_mode: true, ..KvConfig::default() });
    let (mut asker, mut trusting) = (rig.connect(), rig.connect());
    assert_eq!(rig.call(&mut trusting, "READ LEASE"), "+OK\r\n");
    let waits = |rig: &mut Rig, client: &mut Client<TcpStream>| {
        rig.replica.majority = false;
        client.send(rig, b"GET k\r\n");
        (0..1000).for_each(|_| _ = rig.turn());
        client.receive();
        let waits = client.received.is_empty();
        rig.replica.majority = true;
        assert_eq!(rig.reply(client), "$-1\r\n");
        waits
    };
    assert!(waits(&mut rig, &mut asker));
    assert!(!waits(&mut rig, &mut trusting), "it trusts the lease");
    rig.call(&mut trusting, "RESET");
    assert!(waits(&mut rig, &mut trusting), "it begins anew");
    rig.call(&mut asker, "READONLY");
    assert!(!waits(&mut rig, &mut asker), "it does not mind what is old");
    // A backup's state is never said to be the newest.
    rig.replica.follow(Some(process(1)));
    assert_eq!(rig.call(&mut trusting, "DBSIZE"), ":0\r\n");
}

/// The reply to EXEC says whether keys have changed, whatever it executes.
#[test]
fn an_exec_after_a_watch_waits_for_its_ticket_and_is_answered_by_who_leads() {
    let mut rig = Rig::new(KvConfig::default());
    let (mut watching, mut other) = (rig.connect(), rig.connect());
    for request in ["WATCH k", "MULTI", "PING"] {
        rig.call(&mut watching, request);
    }
    rig.releasing = false;
    watching.send(&mut rig, b"EXEC\r\n");
    assert_eq!(rig.call(&mut other, "PING"), "+PONG\r\n");
    for _ in 0..1000 {
        rig.turn();
        watching.receive();
        assert_eq!(watching.received.escape_ascii().to_string(), "");
    }
    rig.releasing = true;
    assert_eq!(rig.reply(&mut watching), "*1\r\n+PONG\r\n");
    for request in ["WATCH k", "MULTI", "PING"] {
        rig.call(&mut watching, request);
    }
    rig.replica.follow(Some(process(1)));
    assert!(
        rig.call(&mut watching, "EXEC").starts_with("-EXECABORT Transaction discarded because of: READONLY "),
        "another may have changed it"
    );
    for request in ["MULTI", "PING"] {
        rig.call(&mut other, request);
    }
    assert_eq!(rig.call(&mut other, "EXEC"), "*1\r\n+PONG\r\n", "this says nothing of keys");
}

#[test]
fn a_change_of_reign_cuts_off_those_who_wait_and_nobody_else() {
    let mut rig = Rig::new(KvConfig::default());
    let (mut waiting, mut idle, mut watching) = (rig.connect(), rig.connect(), rig.connect());
    rig.call(&mut idle, "PING");
    rig.call(&mut watching, "WATCH k");
    rig.releasing = false;
    let before = rig.app.stats().commands;
    waiting.send(&mut rig, b"SET k v\r\n");
    while rig.app.stats().commands == before {
        rig.turn();
    }
    rig.replica.follow(Some(process(1)));
    rig.releasing = true;
    assert_eq!(rig.end(&mut waiting), "");
    assert_eq!(rig.call(&mut idle, "GET k"), "-READONLY You can't write against a read only replica. The primary is 127.0.0.1:7712\r\n");
    assert_eq!(rig.call(&mut idle, "PING"), "+PONG\r\n");
    assert_eq!(rig.app.stats().voided_connections, 1);
    rig.replica.lead();
    assert_eq!(rig.call(&mut watching, "MULTI"), "+OK\r\n");
    assert_eq!(rig.call(&mut watching, "PING"), "+QUEUED\r\n");
    assert_eq!(rig.call(&mut watching, "EXEC"), "*-1\r\n", "the key may have changed unseen");
}

#[test]
fn one_that_does_not_lead_says_who_does() {
    let mut rig = Rig::new(KvConfig { node: NodeId(1), ..KvConfig::default() });
    rig.replica.follow(Some(process(0)));
    let mut client = rig.connect();
    let readonly = "-READONLY You can't write against a read only replica. The primary is 127.0.0.1:7711\r\n";
    for request in ["SET k v", "GET k", "FLUSHALL", "MGET a b", "WATCH k"] {
        assert_eq!(rig.call(&mut client, request), readonly, "{request}");
    }
    for request in ["PING", "INFO", "COMMAND COUNT", "CONFIG GET save", "SELECT 0", "CLIENT ID", "TIME"] {
        assert!(!rig.call(&mut client, request).starts_with('-'), "{request}");
    }
    assert!(rig.call(&mut client, "INFO replication").contains("role:slave\r\nmaster_host:127.0.0.1\r\nmaster_port:7711"));
    assert!(rig.call(&mut client, "INFO martlet").contains("node:n1\r\nview:1\r\nprimary:n0.64\r\n"));
    rig.call(&mut client, "MULTI");
    assert_eq!(rig.call(&mut client, "GET k"), readonly);
    assert_eq!(rig.call(&mut client, "EXEC"), "-EXECABORT Transaction discarded because of previous errors.\r\n");
    rig.replica.follow(None);
    assert!(rig.call(&mut client, "GET k").starts_with("-MASTERDOWN "));

    let mut rig = Rig::new(KvConfig { node: NodeId(1), cluster_mode: true, ..KvConfig::default() });
    rig.replica.follow(Some(process(2)));
    let mut client = rig.connect();
    assert_eq!(rig.call(&mut client, "GET foo"), "-MOVED 12182 127.0.0.1:7713\r\n");
    rig.replica.follow(None);
    assert_eq!(rig.call(&mut client, "GET foo"), "-CLUSTERDOWN The cluster is down\r\n");
    assert!(rig.call(&mut client, "CLUSTER SLOTS").starts_with("*1\r\n*5\r\n:0\r\n:16383\r\n"));
    assert!(rig.call(&mut client, "CLUSTER NODES").contains("myself,"));
    assert_eq!(rig.call(&mut client, "CLUSTER KEYSLOT foo"), ":12182\r\n");
}

#[test]
fn clients_of_redis_cluster_find_what_they_ask_for() {
    let mut rig = Rig::new(KvConfig { cluster_mode: true, ..KvConfig::default() });
    let mut client = rig.connect();
    for request in ["READONLY", "READWRITE", "ASKING"] {
        assert_eq!(rig.call(&mut client, request), "+OK\r\n");
    }
    for key in ["{t}1", "{t}2", "{t}3", "other"] {
        rig.call(&mut client, &format!("SET {key} v"));
    }
    rig.call(&mut client, "SET {t}gone v PX 10");
    rig.wall.fetch_add(1_000, Ordering::Relaxed);
    let slot = martlet_kv::commands::key_slot(b"{t}1");
    assert_eq!(rig.call(&mut client, &format!("CLUSTER COUNTKEYSINSLOT {slot}")), ":3\r\n");
    let no_integer = "-ERR value is not an integer or out of range\r\n";
    for (asked, told) in [
        ("COUNTKEYSINSLOT x", no_integer),
        ("COUNTKEYSINSLOT 16384", "-ERR Invalid slot\r\n"),
        ("GETKEYSINSLOT x 1", no_integer),
        ("GETKEYSINSLOT 1 x", no_integer),
        ("GETKEYSINSLOT 16384 x", no_integer),
        ("GETKEYSINSLOT 16384 1", "-ERR Invalid slot or number of keys\r\n"),
        ("GETKEYSINSLOT 1 -1", "-ERR Invalid slot or number of keys\r\n"),
    ] {
        assert_eq!(rig.call(&mut client, &format!("CLUSTER {asked}")), told, "{asked}");
    }
    assert!(rig.call(&mut client, &format!("CLUSTER GETKEYSINSLOT {slot} 2")).starts_with("*2\r\n$4\r\n{t}"));
    assert!(rig.call(&mut client, &format!("CLUSTER GETKEYSINSLOT {slot} 10")).starts_with("*3\r\n"));
    assert_eq!(rig.call(&mut client, "CLUSTER GETKEYSINSLOT 1 10"), "*0\r\n");
    // These replies say something about keys, so a node that may have been deposed does not send them.
    rig.releasing = false;
    client.send(&mut rig, format!("CLUSTER COUNTKEYSINSLOT {slot}\r\n").as_bytes());
    for _ in 0..1000 {
        rig.turn();
        client.receive();
        assert_eq!(client.received.escape_ascii().to_string(), "");
    }
    rig.releasing = true;
    assert_eq!(rig.reply(&mut client), ":3\r\n");
    rig.replica.follow(Some(process(1)));
    assert_eq!(rig.call(&mut client, "ROLE"), "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:7712\r\n$9\r\nconnected\r\n:0\r\n");
}

#[test]
fn a_client_can_be_killed_by_another_and_by_itself() {
    let mut rig = Rig::new(KvConfig::default());
    let (mut killer, mut idle, mut busy) = (rig.connect(), rig.connect(), rig.connect());
    let id = |reply: String| reply.trim_start_matches(':').trim_end().parse::<u64>().expect("an id");
    let own = id(rig.call(&mut killer, "CLIENT ID"));
    let idles = id(rig.call(&mut idle, "CLIENT ID"));
    rig.call(&mut busy, "CLIENT ID");
    assert_eq!(rig.call(&mut killer, &format!("CLIENT KILL ID {idles}")), ":1\r\n");
    assert_eq!(rig.end(&mut idle), "");
    assert_eq!(rig.call(&mut killer, &format!("CLIENT KILL ID {idles}")), ":0\r\n");
    let address = busy.stream.local_addr().expect("a socket");
    busy.send(&mut rig, b"SET cut off");
    assert_eq!(rig.call(&mut killer, &format!("CLIENT KILL {address}")), "+OK\r\n");
    assert_eq!(rig.end(&mut busy), "");
    let mut new = rig.connect();
    assert_eq!(rig.call(&mut new, "PING"), "+PONG\r\n", "a place that is free again serves");
    assert_eq!(rig.call(&mut killer, "CLIENT KILL TYPE normal"), ":1\r\n");
    assert_eq!(rig.end(&mut new), "");
    assert_eq!(rig.call(&mut killer, &format!("CLIENT KILL ID {own}")), ":0\r\n", "SKIPME is the default");
    killer.send(&mut rig, format!("CLIENT KILL SKIPME no ID {own}\r\nPING\r\n").as_bytes());
    assert_eq!(rig.end(&mut killer), ":1\r\n");
    assert_eq!(rig.app.stats().connections, 0);
}

#[test]
fn a_node_rests_only_when_what_a_flush_threw_away_is_freed() {
    let mut rig = Rig::new(KvConfig::default());
    let machine = &mut rig.replica.machine;
    for i in 0..200_000u32 {
        let key = i.to_le_bytes();
        machine.put(machine.keyed(&key), b"v", Some(u64::MAX));
    }
    let mut client = rig.connect();
    assert_eq!(rig.call(&mut client, "FLUSHALL"), "+OK\r\n");
    assert_eq!(rig.call(&mut client, "SET k v"), "+OK\r\n", "the store serves meanwhile");
    while !rig.app.is_idle() {
        rig.turn();
    }
    assert!(!rig.replica.machine.tidy(), "something was left to free");
    assert_eq!(rig.call(&mut client, "DBSIZE"), ":1\r\n");
    rig.check_backup();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut rig = Rig::new(KvConfig { commands_per_turn: 100, ..KvConfig::default() });
    let mut client = rig.connect();
    let mut all = String::new();
    for i in 0..20_000 {
        all.push_str(&format!(
            "*3\r\n$3\r\nSET\r\n$4\r\nk{:03}\r\n${}\r\n{i}\r\n*2\r\n$3\r\nGET\r\n$4\r\nk{:03}\r\n",
            i % 1000,
            i.to_string().len(),
            i % 1000
        ));
    }
    // The client does not read before it has sent everything. Neither side may wait for the other for ever.
    let mut sent = 0;
    let mut stalled = 0;
    while sent < all.len() && stalled < 1000 {
        match client.stream.write(&all.as_bytes()[sent..]) {
            Ok(n) => (sent, stalled) = (sent + n, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                rig.turn();
                stalled += 1;
            }
            Err(error) => panic!("cannot send: {error}"),
        }
    }
    let rest = all.as_bytes()[sent..].to_vec();
    let mut unsent = &rest[..];
    for i in 0..20_000 {
        if !unsent.is_empty() {
            client.receive();
            if let Ok(n) = client.stream.write(unsent) {
                unsent = &unsent[n..];
            }
        }
        assert_eq!(rig.reply(&mut client), "+OK\r\n");
        assert_eq!(rig.reply(&mut client), format!("${}\r\n{i}\r\n", i.to_string().len()));
    }
    rig.check_backup();
}

#[test]
fn strangers_must_give_the_password() {
    let mut rig = Rig::new(KvConfig { password: Some("secret".to_owned()), ..KvConfig::default() });
    let mut client = rig.connect();
    assert_eq!(rig.call(&mut client, "GET k"), "-NOAUTH Authentication required.\r\n");
    assert_eq!(rig.call(&mut client, "AUTH wrong"), "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    assert_eq!(rig.call(&mut client, "AUTH secret"), "+OK\r\n");
    assert_eq!(rig.call(&mut client, "GET k"), "$-1\r\n");
    assert_eq!(rig.call(&mut client, "RESET"), "+RESET\r\n");
    assert_eq!(rig.call(&mut client, "GET k"), "-NOAUTH Authentication required.\r\n");
    assert!(rig.call(&mut client, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(rig.call(&mut client, "HELLO 3 AUTH default secret").starts_with("%7\r\n"));
    assert_eq!(rig.call(&mut client, "GET k"), "_\r\n");
    let mut client = rig.connect();
    client.send(&mut rig, b"*11\r\n");
    assert_eq!(rig.end(&mut client), "-ERR Protocol error: unauthenticated multibulk length\r\n");
}

#[test]
fn connections_are_limited_and_thousands_are_served() {
    let mut rig = Rig::new(KvConfig { max_clients: 2000, ..KvConfig::default() });
    let mut clients = Vec::new();
    for _ in 0..2000 {
        clients.push(rig.connect());
        rig.turn();
    }
    for client in &mut clients {
        client.send(&mut rig, b"INCR n\r\n");
    }
    for (i, client) in clients.iter_mut().enumerate() {
        let reply = rig.reply(client);
        assert!(reply.starts_with(':'), "client {i}: {reply}");
    }
    let mut one_more = rig.connect();
    assert_eq!(rig.end(&mut one_more), "-ERR max number of clients reached\r\n");
    drop(clients.pop());
    for _ in 0..10 {
        rig.turn();
    }
    let mut again = rig.connect();
    assert_eq!(rig.call(&mut again, "GET n"), "$4\r\n2000\r\n");
    rig.check_backup();
}

#[test]
fn one_that_does_not_read_is_not_read_from() {
    let config = KvConfig { output_pause_bytes: 64 << 10, ..KvConfig::default() };
    let mut rig = Rig::new(config);
    let mut client = rig.connect();
    let value = "x".repeat(50_000);
    assert_eq!(rig.call(&mut client, &format!("SET k {value}")), "+OK\r\n");
    let asked = 2000;
    client.send(&mut rig, "GET k\r\n".repeat(asked).as_bytes());
    let mut last = 0;
    let mut still = 0;
    while still < 2000 {
        rig.turn();
        let commands = rig.app.stats().commands;
        still = if commands == last { still + 1 } else { 0 };
        last = commands;
    }
    assert!(last < asked as u64 / 2, "{last} of {asked} requests were executed for a client that reads nothing");
    for _ in 0..asked {
        assert_eq!(rig.reply(&mut client).len(), value.len() + 10);
    }
    assert_eq!(rig.call(&mut client, "PING"), "+PONG\r\n");
}

/// Each client may have as much outstanding as it likes. But what one turn copies for all of them is bounded, or a primary with many clients would be taken for
/// dead.
#[test]
fn a_turn_writes_and_sends_no_more_than_so_much() {
    const TURN: u64 = 4 << 20;
    const VALUE: u64 = 1 << 20;
    let mut rig = Rig::new(KvConfig::default());
    let mut clients: Vec<_> = (0..60).map(|_| rig.connect()).collect();
    let value = "x".repeat(VALUE as usize);
    clients[0].send(&mut rig, format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${VALUE}\r\n{value}\r\n").as_bytes());
    assert_eq!(rig.reply(&mut clients[0]), "+OK\r\n");
    while rig.turn() > 0 {}
    for client in &mut clients {
        client.stream.write_all(b"GET k\r\n").expect("a short request");
    }
    // The requests are executed and the replies sent in different turns, to see that each is bounded by itself.
    rig.releasing = false;
    let done = rig.app.stats().commands + clients.len() as u64;
    while rig.app.stats().commands < done {
        let before = rig.app.stats().commands;
        rig.turn();
        let executed = rig.app.stats().commands - before;
        assert!(executed <= TURN / VALUE, "{executed} values in one turn");
    }
    rig.releasing = true;
    let mut turns = 0;
    let all = rig.app.stats().output_bytes + clients.len() as u64 * (VALUE + 12);
    while rig.app.stats().output_bytes < all {
        let before = rig.app.stats().output_bytes;
        rig.turn();
        let sent = rig.app.stats().output_bytes - before;
        assert!(sent <= TURN + VALUE + 12, "{sent} bytes in one turn");
        turns += u64::from(sent > 0);
        clients.iter_mut().for_each(Client::receive);
    }
    assert!(turns >= clients.len() as u64 * VALUE / (TURN + VALUE + 12));
    for client in &mut clients {
        assert_eq!(rig.reply(client).len() as u64, VALUE + 12);
    }
}

#[test]
fn no_reply_is_longer_than_the_longest_value() {
    let limits = Limits { max_bulk_bytes: 100_000, ..Limits::default() };
    let mut rig = Rig::new(KvConfig { limits, ..KvConfig::default() });
    let mut client = rig.connect();
    let value = "x".repeat(40_000);
    for key in ["a", "b", "c"] {
        assert_eq!(rig.call(&mut client, &format!("SET {key} {value}")), "+OK\r\n");
    }
    let refused = "-ERR the reply is longer than a value may be: ask for fewer keys at once\r\n";
    assert_eq!(rig.call(&mut client, "MGET a b").len(), 80_000 + 4 + 2 * 10);
    assert_eq!(rig.call(&mut client, "MGET a b c"), refused);
    // In a transaction, what has been done stays done. So only the commands whose replies would be too much are refused, and have no effect.
    for request in
        ["MULTI", "GET a", "GET b", "GETSET c new", "GETDEL c", "SET c new GET", "GETEX c EX 10", "GETRANGE c 0 -1", "STRLEN c", "SET d 1"]
    {
        rig.call(&mut client, request);
    }
    let reply = rig.call(&mut client, "EXEC");
    assert!(reply.starts_with("*9\r\n$40000\r\n"), "{}", &reply[..20]);
    assert!(reply.ends_with(&format!("{}:40000\r\n+OK\r\n", refused.repeat(5))), "{}", &reply[80_000..]);
    assert_eq!(rig.call(&mut client, "TTL c"), ":-1\r\n");
    assert_eq!(rig.call(&mut client, "GET d"), "$1\r\n1\r\n");
    rig.check_backup();
    // Long keys count as well.
    let mut client = rig.connect();
    for n in 0..3 {
        rig.call(&mut client, &format!("SET {n}{} v", "k".repeat(40_000)));
    }
    assert_eq!(rig.call(&mut client, "KEYS *"), refused);
    assert_eq!(rig.call(&mut client, "KEYS 1*").len(), 40_001 + 4 + 10);
}

#[test]
fn a_reply_beyond_the_output_limit_ends_the_connection() {
    let config = KvConfig { output_pause_bytes: 1024, output_limit_bytes: 100_000, ..KvConfig::default() };
    let mut rig = Rig::new(config);
    let mut client = rig.connect();
    rig.call(&mut client, &format!("SET k {}", "x".repeat(50_000)));
    client.send(&mut rig, b"MGET k k k\r\n");
    rig.end(&mut client);
    assert_eq!(rig.app.stats().output_limit_disconnections, 1);
}

#[test]
fn a_full_memory_refuses_what_adds_to_it_and_nothing_else() {
    let mut rig = Rig::new(KvConfig { max_memory_bytes: 1 << 20, ..KvConfig::default() });
    let mut client = rig.connect();
    let value = "x".repeat(10_000);
    let mut stored = 0;
    loop {
        let reply = rig.call(&mut client, &format!("SET k{stored} {value}"));
        if reply == "-OOM command not allowed when used memory > 'maxmemory'.\r\n" {
            break;
        }
        assert_eq!(reply, "+OK\r\n");
        stored += 1;
        assert!(stored < 110, "{stored} values of 10000 bytes in a mebibyte");
    }
    assert!(stored > 80, "only {stored} values of 10000 bytes in a mebibyte");
    assert_eq!(rig.call(&mut client, "GET k0").len(), value.len() + 10);
    rig.call(&mut client, "MULTI");
    assert!(rig.call(&mut client, "SET a b").starts_with("-OOM "));
    assert!(rig.call(&mut client, "EXEC").starts_with("-EXECABORT "));
    // Queued commands take memory too, even if they only read; a command that ends the transaction is not queued.
    rig.call(&mut client, "MULTI");
    assert!(rig.call(&mut client, "GET a").starts_with("-OOM "));
    assert!(rig.call(&mut client, "EXEC").starts_with("-EXECABORT "));
    rig.call(&mut client, "MULTI");
    assert_eq!(rig.call(&mut client, "EXEC"), "*0\r\n");
    rig.call(&mut client, "MULTI");
    assert_eq!(rig.call(&mut client, "DISCARD"), "+OK\r\n");
    assert_eq!(rig.call(&mut client, "DEL k0 k1 k2 k3 k4"), ":5\r\n");
    assert_eq!(rig.call(&mut client, "SET a b"), "+OK\r\n");
    rig.check_backup();
}

#[test]
fn keys_expire_by_the_primarys_clock_and_are_deleted_unasked() {
    let mut rig = Rig::new(KvConfig { expire_per_turn: 10, ..KvConfig::default() });
    let mut client = rig.connect();
    for i in 0..100 {
        rig.call(&mut client, &format!("SET k{i} v PX {}", 1000 + i));
    }
    rig.call(&mut client, "SET asked v PX 5000");
    assert_eq!(rig.call(&mut client, "DBSIZE"), ":101\r\n");
    rig.check_backup();
    rig.wall.fetch_add(1050, Ordering::Relaxed);
    rig.replica.room = false;
    rig.turn();
    assert_eq!(rig.app.stats().expired_keys, 0, "nothing can be told to the others now");
    rig.replica.room = true;
    rig.turn();
    assert_eq!(rig.app.stats().expired_keys, 10, "a bounded number in a turn");
    assert!(!rig.app.is_idle());
    for _ in 0..10 {
        rig.turn();
    }
    assert_eq!(rig.app.stats().expired_keys, 51);
    assert!(rig.app.is_idle());
    assert_eq!(rig.call(&mut client, "DBSIZE"), ":50\r\n");
    rig.check_backup();
    // A follower expires nothing by itself.
    rig.replica.follow(Some(process(1)));
    rig.wall.fetch_add(100_000, Ordering::Relaxed);
    for _ in 0..10 {
        rig.turn();
    }
    assert_eq!(rig.replica.machine.len(), 50);
}

#[test]
fn a_transaction_is_one_entry_of_the_log() {
    let mut rig = Rig::new(KvConfig { batch_bytes: 0, ..KvConfig::default() });
    let mut client = rig.connect();
    client.send(&mut rig, b"MULTI\r\nSET a 1\r\nINCR a\r\nDEL b\r\nSET c x\r\n");
    for _ in 0..5 {
        rig.reply(&mut client);
    }
    let before = rig.replica.log.borrow().len();
    assert_eq!(rig.call(&mut client, "EXEC"), "*4\r\n+OK\r\n:2\r\n:0\r\n+OK\r\n");
    assert_eq!(rig.replica.log.borrow().len(), before + 1);
    rig.check_backup();
}

/// An engine's records have a maximum length. A change that does not fit is refused before it is executed, and the node goes on.
#[test]
fn what_no_entry_of_the_log_can_hold_is_refused_and_has_no_effect() {
    let mut rig = Rig::new(KvConfig::default());
    rig.replica.limit = 4096;
    let mut client = rig.connect();
    let long = "x".repeat(5_000);
    let refused = |reply: String| assert!(reply.starts_with("-ERR the changes of this request may take "), "{reply}");
    refused(rig.call(&mut client, &format!("SET k {long}")));
    refused(rig.call(&mut client, &format!("MSET a {0} b {0}", "y".repeat(2_000))));
    assert_eq!(rig.call(&mut client, "EXISTS k a b"), ":0\r\n");
    assert!(rig.call(&mut client, &format!("ECHO {long}")).starts_with("$5000\r\n"), "it changes nothing");

    // Together these are too much, and the reply to one of them says so.
    assert_eq!(rig.call(&mut client, "MULTI"), "+OK\r\n");
    for key in ["a", "b", "c"] {
        assert_eq!(rig.call(&mut client, &format!("SET {key} {}", "z".repeat(1_000))), "+QUEUED\r\n");
    }
    refused(rig.call(&mut client, &format!("SET d {}", "z".repeat(1_000))));
    assert!(rig.call(&mut client, "EXEC").starts_with("-EXECABORT"));
    assert_eq!(rig.call(&mut client, "EXISTS a b c d"), ":0\r\n");

    // A value may grow beyond the limit, but then it cannot be renamed.
    for _ in 0..5 {
        rig.call(&mut client, &format!("APPEND grown {}", "w".repeat(1_000)));
    }
    refused(rig.call(&mut client, "RENAME grown other"));
    assert_eq!(rig.call(&mut client, "STRLEN grown"), ":5000\r\n");
    assert_eq!(rig.call(&mut client, "EXISTS other"), ":0\r\n");
    // Nor can it in a transaction; nor can two that fit one by one.
    for key in ["p", "q"] {
        rig.call(&mut client, &format!("SET {key} {}", "v".repeat(1_800)));
    }
    for request in ["MULTI", "RENAME p p2", "RENAME q q2"] {
        rig.call(&mut client, request);
    }
    let replies = rig.call(&mut client, "EXEC");
    assert!(replies.starts_with("*2\r\n+OK\r\n-ERR the changes of this request may take "), "{replies}");
    assert_eq!(rig.call(&mut client, "EXISTS p p2 q q2"), ":2\r\n");

    // Keys that are due together are deleted in as many entries as it takes.
    for n in 0..20 {
        assert_eq!(rig.call(&mut client, &format!("SET {}{n} v PX 10", "k".repeat(700))), "+OK\r\n");
    }
    rig.wall.fetch_add(1_000, Ordering::Relaxed);
    let keys = rig.replica.machine.len();
    for _ in 0..40 {
        rig.turn();
    }
    assert_eq!(rig.replica.machine.len(), keys - 20);
    // Commands that fit one by one go through, also in a pipeline.
    let pipeline: String = (0..20).map(|n| format!("SET s{n} {}\r\n", "u".repeat(900))).collect();
    client.send(&mut rig, pipeline.as_bytes());
    for _ in 0..20 {
        assert_eq!(rig.reply(&mut client), "+OK\r\n");
    }
    assert!(rig.replica.log.borrow().iter().all(|entry| entry.len() <= 4096));
    rig.check_backup();
}

#[test]
fn unix_sockets_are_served_and_survive_a_kill() {
    let path = std::env::temp_dir().join(format!("martlet-kv-unix-{}", std::process::id()));
    // A killed node leaves this behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    assert!(path.exists());
    let mut rig = Rig::new(KvConfig { unix_socket: Some(path.clone()), ..KvConfig::default() });
    let stream = UnixStream::connect(&path).expect("it listens");
    stream.set_nonblocking(true).expect("a socket");
    let mut client = Client { stream, received: Vec::new(), ended: false };
    assert_eq!(rig.call(&mut client, "SET k v"), "+OK\r\n");
    let taken = KvApp::new(KvConfig { unix_socket: Some(path.clone()), ..KvConfig::default() }, Box::new(|| 0), [1, 2]);
    let error = taken.expect_err("another node listens there").to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("in use"), "{error}");
    let taken = KvApp::new(KvConfig { listen: rig.app.address(), ..KvConfig::default() }, Box::new(|| 0), [1, 2]);
    let error = taken.expect_err("another node listens there").to_string();
    assert!(error.contains(&rig.app.address().unwrap().to_string()) && error.contains("in use"), "{error}");
    drop(rig);
    assert!(!path.exists(), "a clean end leaves nothing");
}

#[test]
fn shutdown_is_passed_on_to_the_node() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    assert!(!rig.app.wants_end());
    client.send(&mut rig, b"SHUTDOWN NOSAVE\r\n");
    assert_eq!(rig.end(&mut client), "");
    assert!(rig.app.wants_end());
}

#[test]
fn silence_can_be_asked_for() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    client
        .send(&mut rig, b"CLIENT REPLY SKIP\r\nSET a 1\r\nGET a\r\nCLIENT REPLY OFF\r\nSET a 2\r\nNOSUCH\r\nCLIENT REPLY ON\r\nGET a\r\n");
    assert_eq!(rig.reply(&mut client), "$1\r\n1\r\n");
    assert_eq!(rig.reply(&mut client), "+OK\r\n");
    assert_eq!(rig.reply(&mut client), "$1\r\n2\r\n");
    client.send(
        &mut rig,
        b"CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nPING\r\nCLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nRESET\r\nECHO a\r\n",
    );
    assert_eq!(rig.reply(&mut client), "+OK\r\n", "who asks for replies gets this one");
    assert_eq!(rig.reply(&mut client), "$1\r\na\r\n", "RESET is passed over like any other");
    assert_eq!(rig.call(&mut client, "QUIT"), "+OK\r\n");
    rig.end(&mut client);
}

#[test]
fn a_node_that_sleeps_when_told_so_leaves_nothing_unread() {
    let mut rig = Rig::new(KvConfig { commands_per_turn: 3, ..KvConfig::default() });
    let mut client = rig.connect();
    while rig.turn() > 0 {}
    // More than one read takes, but in one event.
    let value = "x".repeat(700_000);
    let whole = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n{}", value.len(), "PING\r\n".repeat(20));
    client.send(&mut rig, whole.as_bytes());
    let mut replies = 0;
    while replies < 21 {
        // Turns while the node says that there is work, then waits for the event set as a parked node does.
        while rig.turn() > 0 {}
        client.receive();
        while client.take_reply().is_some() {
            replies += 1;
        }
        if replies < 21 {
            let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let told = (0..PATIENCE).any(|_| {
                let mut events = [rustix::event::PollFd::from_borrowed_fd(rig.app.events(), rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut events, Some(&at_once)).expect("a poll") > 0
            });
            assert!(told, "the node sleeps with {replies} of 21 replies given");
        }
    }
}

#[test]
fn a_large_value_goes_in_and_out() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    let value = "0123456789abcdef".repeat(1 << 18);
    client.send(&mut rig, format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len()).as_bytes());
    assert_eq!(rig.reply(&mut client), "+OK\r\n");
    assert_eq!(rig.call(&mut client, "STRLEN k"), format!(":{}\r\n", value.len()));
    let reply = rig.call(&mut client, "GET k");
    assert!(reply.ends_with(&format!("{value}\r\n")));
    let limits = Limits { max_bulk_bytes: 1024, ..Limits::default() };
    let mut rig = Rig::new(KvConfig { limits, ..KvConfig::default() });
    let mut client = rig.connect();
    client.send(&mut rig, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1025\r\n");
    assert_eq!(rig.end(&mut client), "-ERR Protocol error: invalid bulk length\r\n");
}

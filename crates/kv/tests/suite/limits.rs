//! Large requests and their cost. Work is counted as the node itself reports it to show the others that it lives; time is never measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use martlet_fabric::double::Nobody;
use martlet_fabric::pulse::{BEAT_BYTES, Pulse, STEP_BYTES};
use martlet_kv::KvConfig;
use martlet_protocol::replica::StateMachine as _;

use crate::fake::FakeReplica;
use crate::rig::Rig;

/// A request in the form of an array.
fn array<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let words: Vec<&[u8]> = words.into_iter().collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// `command` with this many keys, each with a value if there is one.
fn of_keys(command: &str, keys: usize, value: Option<&[u8]>) -> Vec<u8> {
    let names: Vec<Vec<u8>> = (0..keys).map(|n| format!("key:{n}").into_bytes()).collect();
    array(std::iter::once(command.as_bytes()).chain(names.iter().flat_map(|name| std::iter::once(&name[..]).chain(value))))
}

/// A node whose signs of life are counted.
struct Counted {
    rig: Rig,
    beats: Arc<AtomicU64>,
}

impl Counted {
    fn new(config: KvConfig) -> Counted {
        let (mut rig, beats) = (Rig::new(config), Arc::new(AtomicU64::new(0)));
        rig.replica.pulse = Pulse::in_word(beats.clone());
        let pulse = rig.replica.pulse.clone();
        rig.replica.machine.keep_alive(&pulse);
        rig.turn();
        Counted { rig, beats }
    }

    fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }
}

/// The steps that a long request reports must be nearly as many as it makes; otherwise it lives off the others' patience.
#[test]
fn each_long_request_shows_that_its_node_lives_in_proportion_to_its_work() {
    const KEYS: usize = 20_000;
    let mut node = Counted::new(KvConfig { cluster_mode: true, ..KvConfig::default() });
    let mut client = node.rig.connect();
    let steps = (KEYS * STEP_BYTES / BEAT_BYTES) as u64;
    let requests: Vec<(&str, Vec<u8>)> = vec![
        ("MSET", of_keys("MSET", KEYS, Some(b"v"))),
        ("MGET", of_keys("MGET", KEYS, None)),
        ("EXISTS", of_keys("EXISTS", KEYS, None)),
        ("WATCH", of_keys("WATCH", KEYS, None)),
        ("UNWATCH", array([&b"UNWATCH"[..]])),
        ("KEYS", array([&b"KEYS"[..], b"key:1*"])),
        ("COUNTKEYSINSLOT", array([&b"CLUSTER"[..], b"COUNTKEYSINSLOT", b"7"])),
        ("DEL", of_keys("DEL", KEYS, None)),
    ];
    for (name, request) in requests {
        let before = node.beats();
        client.send(&mut node.rig, &request);
        let reply = node.rig.reply(&mut client);
        assert!(!reply.starts_with('-'), "{name}: {reply:.80}");
        let beats = node.beats() - before;
        assert!(beats >= steps, "{name}: {beats} beats for {steps} stretches of work");
    }
    // A transaction of the cheapest commands.
    client.send(&mut node.rig, b"MULTI\r\n");
    let mut queued = b"PING\r\n".repeat(KEYS);
    queued.extend_from_slice(b"EXEC\r\n");
    client.send(&mut node.rig, &queued);
    let before = node.beats();
    let mut reply = String::new();
    for _ in 0..KEYS + 2 {
        reply = node.rig.reply(&mut client);
    }
    assert!(reply.starts_with(&format!("*{KEYS}\r\n")), "{reply:.80}");
    assert!(node.beats() - before >= steps, "{}", node.beats() - before);
    node.rig.check_backup();
}

#[test]
fn each_copy_of_a_long_value_shows_that_its_node_lives() {
    const BYTES: usize = 4 << 20;
    let stretches = (BYTES / BEAT_BYTES) as u64;
    let mut node = Counted::new(KvConfig::default());
    let mut client = node.rig.connect();
    let value = vec![b'v'; BYTES];
    let far = BYTES.to_string();
    // With each request, how often the value is copied at least: into its entry, into the log, or out of it.
    let requests: Vec<(Vec<u8>, u64)> = vec![
        (array([&b"SET"[..], b"k", &value]), 2),
        (array([&b"SET"[..], b"k", &value]), 2),
        (array([&b"GET"[..], b"k"]), 1),
        (array([&b"RENAME"[..], b"k", b"other"]), 2),
        (array([&b"APPEND"[..], b"other", &value]), 2),
        (array([&b"SETRANGE"[..], b"new", far.as_bytes(), b"x"]), 1),
        (array([&b"GETRANGE"[..], b"other", b"0", b"-2"]), 1),
        (array([&b"CAS"[..], b"cas", b"NX", &value]), 2),
        (array([&b"GETSET"[..], b"cas", b"short"]), 1),
    ];
    for (request, copies) in requests {
        let before = node.beats();
        client.send(&mut node.rig, &request);
        let reply = node.rig.reply(&mut client);
        let beats = node.beats() - before;
        assert!(!reply.starts_with('-'), "{reply:.80}");
        assert!(beats >= copies * (stretches - 1), "{}: {beats} beats for {copies} copies", request[..40].escape_ascii());
    }
    // A backup applies just as much at once, and so does a replica that joins and receives the state.
    let log = node.rig.replica.log.clone();
    let mut backup = FakeReplica::new(Nobody, log);
    let beats = Arc::new(AtomicU64::new(0));
    backup.machine.keep_alive(&Pulse::in_word(beats.clone()));
    backup.catch_up(usize::MAX);
    assert!(beats.load(Ordering::Relaxed) >= 6 * (stretches - 1));
    let before = node.beats();
    let (mut part, mut cursor) = (Vec::new(), Some(0));
    while let Some(at) = cursor {
        cursor = node.rig.replica.machine.transfer(at, 1 << 20, &mut part);
        backup.machine.install(&part).expect("a part");
        part.clear();
    }
    assert!(node.beats() - before >= stretches);
    assert_eq!(backup.machine.digest(), node.rig.replica.machine.digest());
}

/// One client, with idle ones beside it, and nothing long: the only signs of life are those of the duty cycle.
#[test]
fn short_requests_report_little() {
    let mut node = Counted::new(KvConfig::default());
    let mut client = node.rig.connect();
    let before = node.beats();
    for n in 0..50 {
        node.rig.call(&mut client, &format!("SET k {n}"));
    }
    assert!(node.beats() - before <= 2);
}

#[test]
fn reads_need_no_room_in_the_log_however_many_keys_they_name() {
    const KEYS: usize = 12_000;
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    rig.call(&mut client, "SET key:7 v");
    rig.replica.limit = 64 << 10;
    for command in ["MGET", "EXISTS", "TOUCH", "WATCH"] {
        client.send(&mut rig, &of_keys(command, KEYS, None));
        let reply = rig.reply(&mut client);
        assert!(!reply.starts_with('-'), "{command}: {reply:.120}");
    }
    // Nor do the watched keys need any.
    for (request, reply) in [("MULTI", "+OK"), ("SET key:8 w", "+QUEUED"), ("EXEC", "*1\r\n+OK")] {
        assert_eq!(rig.call(&mut client, request), format!("{reply}\r\n"));
    }
    client.send(&mut rig, &of_keys("DEL", KEYS, None));
    let reply = rig.reply(&mut client);
    assert!(reply.starts_with("-ERR the changes of this request may take "), "{reply:.120}");
    rig.check_backup();
}

/// A key that is due is gone for every read, whether or not the log has room to say so at once.
#[test]
fn keys_that_are_due_are_gone_for_reads_that_have_no_room_to_delete_them() {
    const KEYS: usize = 3_000;
    let mut rig = Rig::new(KvConfig { expire_per_turn: 1, ..KvConfig::default() });
    let mut client = rig.connect();
    for n in 0..KEYS {
        rig.call(&mut client, &format!("SET key:{n} v PX 1000"));
    }
    rig.replica.limit = 4 << 10;
    rig.wall.fetch_add(2_000, Ordering::Relaxed);
    client.send(&mut rig, &of_keys("EXISTS", KEYS, None));
    assert_eq!(rig.reply(&mut client), ":0\r\n");
    assert!(rig.replica.machine.len() > KEYS / 2, "they were too many for one entry");
    // A command that changes a key first deletes it if it is due.
    assert_eq!(rig.call(&mut client, &format!("APPEND key:{} w", KEYS - 1)), ":1\r\n");
    // A watch on such a key may fail; one on a key that is there does not.
    rig.call(&mut client, &format!("WATCH key:{}", KEYS - 1));
    rig.call(&mut client, "MULTI");
    rig.call(&mut client, "PING");
    assert_eq!(rig.call(&mut client, "EXEC"), "*1\r\n+PONG\r\n");
    rig.check_backup();
}

#[test]
fn a_watched_key_that_becomes_due_has_changed() {
    let mut rig = Rig::new(KvConfig { expire_per_turn: 1, ..KvConfig::default() });
    let mut client = rig.connect();
    for n in 0..100 {
        rig.call(&mut client, &format!("SET key:{n} v PX 1000"));
    }
    rig.call(&mut client, "WATCH key:99");
    rig.call(&mut client, "MULTI");
    rig.call(&mut client, "PING");
    rig.wall.fetch_add(2_000, Ordering::Relaxed);
    assert_eq!(rig.call(&mut client, "EXEC"), "*-1\r\n");
}

/// A transaction may ask for the same key over and over.
#[test]
fn what_a_transaction_goes_through_and_answers_is_bounded_as_a_whole() {
    let limits = martlet_kv::resp::Limits { max_bulk_bytes: 64 << 10, ..Default::default() };
    let mut rig = Rig::new(KvConfig { limits, ..KvConfig::default() });
    let mut client = rig.connect();
    for n in 0..1000 {
        rig.call(&mut client, &format!("SET key:{n} v"));
    }
    let mut exec = |rig: &mut Rig, command: &str, times: usize| {
        let request = format!("MULTI\r\n{}EXEC\r\n", format!("{command}\r\n").repeat(times));
        client.send(rig, request.as_bytes());
        (0..times + 1).for_each(|_| _ = rig.reply(&mut client));
        rig.reply(&mut client)
    };
    let reply = exec(&mut rig, "KEYS nothing", 300);
    let refused = "-ERR KEYS would look at 101000 keys in one turn, but at most 100000 are allowed: use SCAN\r\n";
    assert_eq!((reply.matches("*0\r\n").count(), reply.matches(refused).count()), (100, 200));
    let reply = exec(&mut rig, "SCAN 0 COUNT 1000 MATCH nothing", 300);
    assert_eq!(reply.matches("-ERR the SCANs of a transaction may look at up to 100000 keys: send them outside of it").count(), 200);
    let reply = exec(&mut rig, "COMMAND", 300);
    assert!(reply.len() < 150_000, "{} bytes", reply.len());
    assert!(reply.contains("-ERR the reply is longer than a value may be: ask for fewer keys at once"));
    // What is written is written, and the reply says so.
    let reply = exec(&mut rig, "INCR n", 2000);
    assert!(reply.ends_with(":2000\r\n") && !reply.contains('-'));
}

/// One client watches many keys that do not exist, and another flushes. Neither pays for the other.
#[test]
fn flushes_do_not_go_through_watched_keys_that_are_not_there() {
    let mut node = Counted::new(KvConfig::default());
    let (mut watcher, mut client) = (node.rig.connect(), node.rig.connect());
    watcher.send(&mut node.rig, &of_keys("WATCH", 20_000, None));
    assert_eq!(node.rig.reply(&mut watcher), "+OK\r\n");
    let before = node.beats();
    for _ in 0..50 {
        node.rig.call(&mut client, "SET other v");
        node.rig.call(&mut client, "FLUSHALL");
    }
    assert!(node.beats() - before <= 3, "{} beats", node.beats() - before);
    // A watched key that exists does change.
    node.rig.call(&mut client, "SET key:7 v");
    node.rig.call(&mut watcher, "UNWATCH");
    for key in ["key:7", "key:8"] {
        node.rig.call(&mut watcher, &format!("WATCH {key} other"));
        node.rig.call(&mut watcher, "MULTI");
        node.rig.call(&mut client, "FLUSHALL");
        assert_eq!(node.rig.call(&mut watcher, "EXEC"), if key == "key:7" { "*-1\r\n" } else { "*0\r\n" });
    }
}

/// Otherwise as many tables as there are flushes would wait to be freed.
#[test]
fn flushes_of_little_leave_nothing_behind() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    let empty = rig.replica.machine.used_bytes();
    let request = format!("MULTI\r\n{}EXEC\r\n", "SET a 1\r\nFLUSHALL\r\n".repeat(1000));
    client.send(&mut rig, request.as_bytes());
    (0..2002).for_each(|_| _ = rig.reply(&mut client));
    assert!(!rig.replica.machine.tidy(), "nothing waits to be freed");
    assert_eq!((rig.replica.machine.len(), rig.replica.machine.used_bytes()), (0, empty));
    rig.check_backup();
}

#[test]
fn ipv6_addresses_are_told_as_redis_tells_them() {
    let mut rig = Rig::new(KvConfig { node: martlet_fabric::NodeId(1), cluster_mode: true, ..KvConfig::default() });
    for (n, member) in rig.replica.view.members.iter_mut().enumerate() {
        member.address = format!("[::1]:{}", 7711 + n);
    }
    rig.replica.view.number.0 += 1;
    rig.replica.follow(Some(crate::fake::process(2)));
    let mut client = rig.connect();
    assert_eq!(rig.call(&mut client, "GET foo"), "-MOVED 12182 ::1:7713\r\n");
    assert_eq!(rig.call(&mut client, "ROLE"), "*5\r\n$5\r\nslave\r\n$3\r\n::1\r\n:7713\r\n$9\r\nconnected\r\n:0\r\n");
    assert!(rig.call(&mut client, "INFO replication").contains("\r\nmaster_host:::1\r\nmaster_port:7713\r\n"));
    assert!(rig.call(&mut client, "CLUSTER NODES").contains(" ::1:7713@17713 master "));
    assert!(rig.call(&mut client, "CLUSTER SLOTS").contains("*4\r\n$3\r\n::1\r\n:7713\r\n"));
    let shards = rig.call(&mut client, "CLUSTER SHARDS");
    assert!(shards.contains("$2\r\nip\r\n$3\r\n::1\r\n") && shards.contains("$8\r\nendpoint\r\n$3\r\n::1\r\n"), "{shards}");
    rig.replica.lead();
    assert!(rig.call(&mut client, "ROLE").contains("*3\r\n$3\r\n::1\r\n$4\r\n7711\r\n"));
    assert!(rig.call(&mut client, "INFO replication").contains("ip=::1,port=7711,"));
}

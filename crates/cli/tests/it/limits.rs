//! Requests as long as the limits allow, to clusters of real processes: they succeed, and no leader is replaced because of them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use martlet_cluster::clients::redis::{Connection, Value};

use crate::cluster::Cluster;
use crate::martlet::fabric;

/// Longer than any request takes.
const PATIENCE: Duration = Duration::from_secs(600);
/// A node that gets no core for as long as the detector waits is replaced, whatever it is working on. A request that does not outlast the detector succeeds in
/// one of this many tries, however busy the machine is; one that does never succeeds.
const TRIES: usize = 5;

/// A connection to the primary, the primary's address, and its view and reign.
fn primary(cluster: &Cluster) -> (Connection, SocketAddr, String) {
    loop {
        let node: u16 = cluster.primary().parse().expect("a number");
        let address = SocketAddr::from(([127, 0, 0, 1], cluster.port + node));
        let Ok(mut connection) = Connection::open(address, PATIENCE) else { continue };
        let Ok(Value::Bulk(Some(info))) = connection.command(&[&b"INFO"[..], b"martlet"]) else { continue };
        let info = String::from_utf8(info).expect("text");
        let lines: Vec<&str> =
            info.lines().filter(|line| ["node:", "view:", "primary:", "reign:"].iter().any(|of| line.starts_with(of))).collect();
        return (connection, address, lines.join(" "));
    }
}

/// `command` with this many keys, each with a value if there is one.
fn of_keys(command: &str, keys: usize, value: Option<&str>) -> Vec<Vec<u8>> {
    let words = (0..keys).flat_map(|n| std::iter::once(format!("key:{n}")).chain(value.map(str::to_owned)));
    std::iter::once(command.to_owned()).chain(words).map(String::into_bytes).collect()
}

fn ask(connection: &mut Connection, words: &[Vec<u8>]) -> Result<Value, std::io::Error> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    connection.command(&words)
}

/// A short form of a reply: an array's length, or a string's.
fn short(value: Value) -> String {
    match value {
        Value::Simple(text) | Value::Error(text) => text,
        Value::Integer(n) => n.to_string(),
        Value::Bulk(bytes) => format!("{} bytes", bytes.map_or(0, |bytes| bytes.len())),
        Value::Array(values) => format!("{} values", values.map_or(0, |values| values.len())),
    }
}

/// Checks that the request gets this reply, and that the primary still leads in the same view and reign.
#[track_caller]
fn costs_no_failover(
    cluster: &Cluster,
    what: &str,
    reply: &str,
    request: impl Fn(&mut Connection, SocketAddr) -> Result<Value, std::io::Error>,
) {
    let mut outcomes = Vec::new();
    for _ in 0..TRIES {
        let (mut connection, address, before) = primary(cluster);
        let outcome = request(&mut connection, address).map_or_else(|error| error.to_string(), short);
        let (.., after) = primary(cluster);
        if outcome == reply && after == before {
            return;
        }
        outcomes.push(format!("{outcome:.200}; before: {before}; after: {after}"));
    }
    panic!("{what} of {TRIES} tries: {outcomes:#?}");
}

/// Sends, at once, a transaction each of whose commands gets a reply of this many bytes.
fn transaction(
    address: SocketAddr,
    commands: usize,
    command: impl Fn(usize) -> String,
    reply_bytes: usize,
) -> Result<Value, std::io::Error> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request: String =
        std::iter::once("MULTI\r\n".to_owned()).chain((0..commands).map(command)).chain(["EXEC\r\n".to_owned()]).collect();
    let mut sender = stream.try_clone()?;
    let sent = std::thread::spawn(move || sender.write_all(request.as_bytes()));
    let queued = format!("+OK\r\n{}*{commands}\r\n", "+QUEUED\r\n".repeat(commands));
    let mut reply = vec![0; queued.len() + commands * reply_bytes];
    stream.read_exact(&mut reply)?;
    sent.join().expect("no panic")?;
    let whole = reply.starts_with(queued.as_bytes()) && reply.ends_with(b"\r\n");
    Ok(Value::Simple(if whole { format!("{commands} values") } else { String::from_utf8_lossy(&reply[..200]).into_owned() }))
}

#[test]
fn long_requests_cost_a_primary_nothing() {
    let cluster = Cluster::new();
    cluster.up_with(&["--engine", "primary-backup"]).ok();
    costs_no_failover(&cluster, "WATCH", "OK", |c, _| ask(c, &of_keys("WATCH", 200_000, None)));
    costs_no_failover(&cluster, "MSET", "OK", |c, _| ask(c, &of_keys("MSET", 500_000, Some("value"))));
    costs_no_failover(&cluster, "EXISTS", "500000", |c, _| ask(c, &of_keys("EXISTS", 1_000_000, None)));
    costs_no_failover(&cluster, "MGET", "500000 values", |c, _| ask(c, &of_keys("MGET", 500_000, None)));
    let set = |n: usize| format!("SET k:{n} v\r\n");
    costs_no_failover(&cluster, "EXEC", "350000 values", |_, address| transaction(address, 350_000, set, "+OK\r\n".len()));
    let value = vec![b'v'; 60_000_000];
    costs_no_failover(&cluster, "SET", "OK", |c, _| c.command(&[&b"SET"[..], b"big", &value]));
    costs_no_failover(&cluster, "GET", "60000000 bytes", |c, _| c.command(&[&b"GET"[..], b"big"]));
    costs_no_failover(&cluster, "RENAME", "OK", |c, _| {
        c.command(&[&b"SET"[..], b"big", &value])?;
        c.command(&[&b"RENAME"[..], b"big", b"huge"])
    });
    costs_no_failover(&cluster, "FLUSHALL", "OK", |c, _| c.command(&[b"FLUSHALL"]));
}

#[test]
fn long_requests_cost_a_leader_of_mu_nothing() {
    let cluster = Cluster::new();
    cluster.up_with(&["--engine", "mu"]).ok();
    costs_no_failover(&cluster, "WATCH", "OK", |c, _| ask(c, &of_keys("WATCH", 200_000, None)));
    costs_no_failover(&cluster, "MSET", "OK", |c, _| ask(c, &of_keys("MSET", 5_000, Some("value"))));
    costs_no_failover(&cluster, "MGET", "12000 values", |c, _| ask(c, &of_keys("MGET", 12_000, None)));
    costs_no_failover(&cluster, "EXISTS", "5000", |c, _| ask(c, &of_keys("EXISTS", 1_000_000, None)));
    let exists = |n: usize| format!("EXISTS key:{n}\r\n");
    costs_no_failover(&cluster, "EXEC", "350000 values", |_, address| transaction(address, 350_000, exists, ":1\r\n".len()));
    // A change that the log cannot take is refused, and has no effect.
    let (mut connection, _, before) = primary(&cluster);
    let refused = short(ask(&mut connection, &of_keys("MSET", 500_000, Some("value"))).expect("a reply"));
    assert!(refused.starts_with("ERR the changes of this request may take "), "{refused}");
    assert_eq!(primary(&cluster).2, before);
}

/// Clients find the port after the last colon.
#[test]
fn redis_clients_follow_a_failover_over_ipv6() {
    if !fabric().is_empty() {
        return; // the addresses that nodes meet at are another matter
    }
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    }
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    cluster.run(&["cluster", "down"]).ok();
    let directory = std::path::Path::new(&cluster.dir);
    for (file, from, to) in [
        ("cluster.toml", "\"127.0.0.1:", "\"[::1]:"),
        ("node-0.toml", "\"127.0.0.1\"", "\"::1\""),
        ("node-1.toml", "\"127.0.0.1\"", "\"::1\""),
        ("node-2.toml", "\"127.0.0.1\"", "\"::1\""),
    ] {
        let path = directory.join(file);
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).expect("written");
    }
    cluster.up_again().ok();
    let cli = |port: u16, words: &[&str]| -> Option<String> {
        let ran = Command::new("redis-cli").args(["-c", "-h", "::1", "-p", &port.to_string()]).args(words).stdin(Stdio::null()).output();
        match ran {
            Ok(ran) => Some(String::from_utf8_lossy(&ran.stdout).into_owned()),
            Err(error) => {
                eprintln!("SKIPPED: redis-cli could not be started: {error}");
                None
            }
        }
    };
    // Whichever node is asked, the leader answers.
    let all = |words: &[&str], expected: &str| -> Option<()> {
        for node in 0..3 {
            loop {
                let said = cli(cluster.port + node, words)?;
                if said == expected {
                    break;
                }
                let waits = said.is_empty()
                    || said.contains("CLUSTERDOWN")
                    || said.contains("Could not connect")
                    || said.contains("Connection refused");
                assert!(waits, "node {node}: {said}");
            }
        }
        Some(())
    };
    let follow = || -> Option<()> {
        all(&["SET", "k", "v"], "OK\n")?;
        let first = cluster.primary();
        cluster.run(&["cluster", "kill", &first]).ok();
        cluster.up_again().ok();
        assert_ne!(cluster.primary(), first);
        all(&["GET", "k"], "v\n")
    };
    let _ = follow();
}

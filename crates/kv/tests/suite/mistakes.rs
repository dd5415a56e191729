//! Input from clients that is not a request, and how their connections end.

use std::io::Write;

use martlet_kv::KvConfig;
use martlet_kv::resp::Limits;
use martlet_protocol::replica::Application;

use crate::rig::Rig;

#[test]
fn mistakes_in_the_stream_are_told_and_end_the_connection() {
    for (bytes, error) in [
        (&b"*2\r\n$3\r\nGET\r\n$3221225472\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*2\r\n:3\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"*9999999999\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"GET \"k\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
    ] {
        let mut rig = Rig::new(KvConfig::default());
        let mut client = rig.connect();
        client.send(&mut rig, b"PING\r\n");
        client.send(&mut rig, bytes);
        assert_eq!(rig.end(&mut client), format!("+PONG\r\n{error}"));
        let mut next = rig.connect();
        assert_eq!(rig.call(&mut next, "PING"), "+PONG\r\n", "the node stays up");
    }
}

/// Most clients send all of a request before they read. If the connection were reset meanwhile, they would never read the error.
#[test]
fn one_that_sends_too_much_reads_the_error_and_nobody_sends_for_ever() {
    let limits = Limits { max_bulk_bytes: 1 << 20, max_request_bytes: 8 << 20, ..Limits::default() };
    let too_long = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4000000\r\n";
    let error = "-ERR Protocol error: invalid bulk length\r\n";
    let mut rig = Rig::new(KvConfig { limits, ..KvConfig::default() });
    let mut client = rig.connect();
    client.send(&mut rig, too_long);
    client.send(&mut rig, &vec![b'x'; 4_000_000]);
    client.send(&mut rig, b"\r\n");
    assert_eq!(rig.end(&mut client), error);
    drop(client);
    rig.until_nobody_is_connected();
    // The node does not wait for ever if the client goes on and on,
    let mut endless = rig.connect();
    endless.send(&mut rig, too_long);
    let sent = rig.flood(&mut endless, &[b'x'; 1 << 16]);
    assert!(sent >= limits.max_request_bytes && rig.app.stats().connections == 0, "{sent} bytes");
    // nor if the client sends nothing more.
    let mut silent = rig.connect();
    silent.send(&mut rig, too_long);
    assert_eq!(rig.end(&mut silent), error);
    assert_eq!(rig.app.stats().connections, 1, "it may be about to send");
    // The node asks to be woken for this client, and for those that were about to be closed and have gone.
    let latest = rig.replica.now.after(1_000_000_000);
    while rig.app.deadline().0 < u64::MAX {
        assert!(rig.app.deadline() <= latest);
        rig.replica.now = rig.replica.now.max(rig.app.deadline());
        rig.turn();
    }
    assert_eq!((rig.app.stats().connections, rig.app.deadline().0), (0, u64::MAX));
}

/// After these errors nothing says where the next request would start, and a stranger is owed nothing. So the connection is closed at once, as by Redis.
#[test]
fn what_is_no_request_ends_the_connection_at_once() {
    let password = Some("secret".to_owned());
    for (password, bytes, error) in [
        (None, &b"*x\r\n"[..], "invalid multibulk length"),
        (None, b"*1\r\n$x\r\n", "invalid bulk length"),
        (None, b"*1\r\nx", "expected '$', got 'x'"),
        (None, b"a \"b\r\n", "unbalanced quotes in request"),
        (password.clone(), b"*x\r\n", "invalid multibulk length"),
        (password.clone(), b"*100\r\n", "unauthenticated multibulk length"),
        (password.clone(), b"*2000000\r\n", "invalid multibulk length"),
        (password, b"*1\r\n$100000000\r\n", "invalid bulk length"),
    ] {
        let mut rig = Rig::new(KvConfig { password, ..KvConfig::default() });
        let mut client = rig.connect();
        client.send(&mut rig, bytes);
        assert_eq!(rig.end(&mut client), format!("-ERR Protocol error: {error}\r\n"));
        // The client has not left: the node has closed the connection.
        assert_eq!(rig.app.stats().connections, 0, "{error}");
    }
    // As in Redis's own tests: a client that sends until sending fails can still read the reason.
    for start in [&b"\0"[..], b"*\0", b"$\0"] {
        let mut rig = Rig::new(KvConfig::default());
        let mut client = rig.connect();
        client.send(&mut rig, start);
        let sent = rig.flood(&mut client, b"payload");
        assert!(sent < 16 << 20, "{sent} bytes were read of what is no request");
        client.receive();
        let told = String::from_utf8_lossy(&client.received).into_owned();
        assert!(told.starts_with("-ERR Protocol error: too big "), "{told:?}");
        assert_eq!(rig.app.stats().connections, 0);
    }
}

/// A web page that is opened in a browser can send these to a port of the same host, with any bytes after them.
#[test]
fn no_request_is_taken_from_within_http() {
    let error = "-ERR Protocol error: this is HTTP, but this server speaks the Redis protocol\r\n";
    for (head, before) in [
        ("POST / HTTP/1.1\r\nHost: 127.0.0.1:7711\r\n", ""),
        ("PUT / HTTP/1.1\r\nhost: 127.0.0.1:7711\r\n", "-ERR unknown command 'PUT', with args beginning with: '/' 'HTTP/1.1' \r\n"),
    ] {
        let mut rig = Rig::new(KvConfig::default());
        let mut client = rig.connect();
        client.send(&mut rig, format!("{head}Content-Length: 13\r\n\r\nSET k v\r\n").as_bytes());
        assert_eq!(rig.end(&mut client), format!("{before}{error}"));
        let mut next = rig.connect();
        assert_eq!(rig.call(&mut next, "EXISTS k"), ":0\r\n");
        assert_eq!(rig.app.stats().protocol_errors, 1);
    }
}

#[test]
fn a_truncated_stream_leaves_nothing_behind() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    client.send(&mut rig, b"SET a 1\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\nabc");
    client.stream.shutdown(std::net::Shutdown::Write).expect("a socket");
    assert_eq!(rig.end(&mut client), "+OK\r\n", "what was whole is executed and answered");
    assert_eq!(rig.app.stats().connections, 0);
    let mut next = rig.connect();
    assert_eq!(rig.call(&mut next, "EXISTS k a"), ":1\r\n");
}

/// One event reports the bytes and the end, and no other event follows.
#[test]
fn an_end_that_comes_together_with_the_last_bytes_is_seen() {
    let mut rig = Rig::new(KvConfig::default());
    for (last, answer) in [(&b"PING\r\n"[..], "+PONG\r\n"), (b"*2\r\n$3\r\nGET\r\n", "")] {
        let mut client = rig.connect();
        rig.call(&mut client, "PING");
        while rig.turn() > 0 {}
        client.stream.write_all(last).expect("a few bytes");
        client.stream.shutdown(std::net::Shutdown::Write).expect("a socket");
        assert_eq!(rig.end(&mut client), answer);
        assert_eq!(rig.app.stats().connections, 0);
    }
}

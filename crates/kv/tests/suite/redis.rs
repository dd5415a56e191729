//! A real redis-server on a Unix socket in a directory of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A running redis-server; killed, and its directory removed, when dropped.
pub struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    /// Starts a server. If there is none, prints why the test that wants it is skipped.
    pub fn start() -> Option<Server> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("martlet-kv-redis-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory in the temporary one");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(directory.join("socket"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Server { child, directory }),
            Err(error) => {
                eprintln!("SKIPPED: no redis-server to compare with could be started: {error}");
                let _ = std::fs::remove_dir_all(&directory);
                None
            }
        }
    }

    /// A connection.
    pub fn connect(&mut self) -> Connection {
        loop {
            match UnixStream::connect(self.directory.join("socket")) {
                Ok(stream) => return Connection(BufReader::new(stream)),
                Err(_) => {
                    if let Some(status) = self.child.try_wait().expect("our own child") {
                        panic!("redis-server ended at once: {status}");
                    }
                    std::thread::yield_now();
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// One client of it.
pub struct Connection(BufReader<UnixStream>);

impl Connection {
    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("redis-server reads");
    }

    /// Reads one whole reply, as bytes.
    pub fn reply(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        read_reply(&mut self.0, &mut out);
        out
    }
}

/// Copies one whole reply of RESP2 or RESP3.
pub fn read_reply(from: &mut impl BufRead, out: &mut Vec<u8>) {
    let start = out.len();
    from.read_until(b'\n', out).expect("a reply");
    assert!(out.ends_with(b"\r\n"), "the connection ended within a reply: {}", out.escape_ascii());
    let line = &out[start..out.len() - 2];
    let number = || std::str::from_utf8(&line[1..]).expect("digits").parse::<i64>().expect("a number");
    match line[0] {
        b'$' | b'=' => {
            let len = number();
            if len >= 0 {
                let at = out.len();
                out.resize(at + len as usize + 2, 0);
                from.read_exact(&mut out[at..]).expect("a whole reply");
            }
        }
        b'*' | b'~' | b'>' => (0..number().max(0)).for_each(|_| read_reply(from, out)),
        b'%' => (0..number() * 2).for_each(|_| read_reply(from, out)),
        _ => {}
    }
}

/// A request as an array of bulk strings.
pub fn request(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

//! A node whose duty cycle is driven by a test, and its clients over real sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use martlet_fabric::double::Nobody;
use martlet_kv::{CpuTimes, KvApp, KvConfig};
use martlet_protocol::replica::{Application, StateMachine, Ticket};

use crate::fake::FakeReplica;

/// How many turns without the expected outcome make a test fail. Each turn looks at the sockets, so only a hang takes nearly as many.
pub const PATIENCE: usize = 3_000_000;

/// A node: the application, its replica, and a duty cycle that the test drives.
pub struct Rig {
    pub app: KvApp,
    pub replica: FakeReplica<Nobody>,
    /// The wall clock, in milliseconds.
    pub wall: Arc<AtomicU64>,
    /// How much time passes in a turn, on the monotonic clock.
    pub turn_ns: u64,
    /// Whether replies are released at the end of their turn.
    pub releasing: bool,
}

impl Rig {
    pub fn new(config: KvConfig) -> Rig {
        let wall = Arc::new(AtomicU64::new(1_700_000_000_000));
        let config = KvConfig { listen: config.listen.or(Some("127.0.0.1:0".parse().expect("an address"))), socket_poll_ns: 0, ..config };
        let clock = wall.clone();
        let app = KvApp::new(config, Box::new(move || clock.load(Ordering::Relaxed) * 1_000_000), [7, 11]).expect("a good configuration");
        let app = app.with_cpu_clock(Box::new(|| CpuTimes { user_us: 1_000_001, system_us: 2, ..CpuTimes::default() }));
        let mut rig = Rig { app, replica: FakeReplica::new(Nobody, Default::default()), wall, turn_ns: 1_000_000, releasing: true };
        rig.replica.lead();
        rig.turn();
        rig
    }

    pub fn turn(&mut self) -> usize {
        self.replica.now = self.replica.now.after(self.turn_ns);
        self.replica.ticket = Ticket(self.replica.ticket.0 + 1);
        let executed = self.app.poll(&mut self.replica);
        if self.releasing {
            self.replica.released = self.replica.ticket;
        }
        self.app.release(&mut self.replica);
        executed
    }

    pub fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.app.address().expect("it listens")).expect("it accepts");
        stream.set_nonblocking(true).expect("a socket");
        // Without this, a request in two pieces waits each time for the acknowledgement of the first, 40 ms.
        stream.set_nodelay(true).expect("a socket");
        Client { stream, received: Vec::new(), ended: false }
    }

    /// Sends a request and turns until its reply has come.
    pub fn call<S: Read + Write>(&mut self, client: &mut Client<S>, request: &str) -> String {
        client.send(self, request.as_bytes());
        client.send(self, b"\r\n");
        self.reply(client)
    }

    pub fn reply<S: Read + Write>(&mut self, client: &mut Client<S>) -> String {
        for _ in 0..PATIENCE {
            if let Some(reply) = client.take_reply() {
                return String::from_utf8_lossy(&reply).into_owned();
            }
            self.turn();
            client.receive();
            assert!(!client.ended || has_whole(&client.received), "the connection ended: {}", client.received.escape_ascii());
        }
        panic!("no reply in {PATIENCE} turns");
    }

    /// Turns until the connection has ended. Returns what was received before that.
    pub fn end<S: Read + Write>(&mut self, client: &mut Client<S>) -> String {
        for _ in 0..PATIENCE {
            self.turn();
            client.receive();
            if client.ended {
                return String::from_utf8_lossy(&std::mem::take(&mut client.received)).into_owned();
            }
        }
        panic!("the connection did not end in {PATIENCE} turns");
    }

    /// Sends `chunk` again and again, turning the node, until sending fails. Returns how many bytes were sent.
    pub fn flood(&mut self, client: &mut Client<TcpStream>, chunk: &[u8]) -> usize {
        let mut sent = 0;
        loop {
            match client.stream.write(chunk) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return sent,
            }
            self.turn();
            assert!(sent < 1 << 30, "{sent} bytes were read of a client that ought not to send");
        }
    }

    /// Turns until the node has closed every connection.
    pub fn until_nobody_is_connected(&mut self) {
        let open = (0..PATIENCE).find(|_| {
            self.turn();
            self.app.stats().connections == 0
        });
        assert!(open.is_some(), "connections stay open for {PATIENCE} turns");
    }

    /// Checks that a machine that has applied every entry holds what the primary holds.
    pub fn check_backup(&self) {
        let mut backup = FakeReplica::new(Nobody, self.replica.log.clone());
        backup.catch_up(usize::MAX);
        assert_eq!(backup.machine.digest(), self.replica.machine.digest());
    }
}

pub struct Client<S> {
    pub stream: S,
    pub received: Vec<u8>,
    pub ended: bool,
}

fn has_whole(bytes: &[u8]) -> bool {
    split(bytes).is_some()
}

/// The length of the first whole reply.
fn split(bytes: &[u8]) -> Option<usize> {
    fn go(bytes: &[u8], at: usize) -> Option<usize> {
        let end = at + bytes.get(at..)?.iter().position(|&c| c == b'\n')? + 1;
        let number = || std::str::from_utf8(&bytes[at + 1..end - 2]).ok()?.parse::<i64>().ok();
        match bytes[at] {
            b'$' | b'=' if number()? >= 0 => {
                let whole = end + number()? as usize + 2;
                (whole <= bytes.len()).then_some(whole)
            }
            b'*' | b'~' | b'%' => {
                let n = number()?.max(0) * if bytes[at] == b'%' { 2 } else { 1 };
                (0..n).try_fold(end, |at, _| go(bytes, at))
            }
            _ => Some(end),
        }
    }
    go(bytes, 0)
}

impl<S: Read + Write> Client<S> {
    /// Sends all of it, and turns the node while the node's socket is full.
    pub fn send(&mut self, rig: &mut Rig, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    rig.turn();
                }
                Err(error) => panic!("cannot send: {error}"),
            }
        }
    }

    pub fn receive(&mut self) {
        let mut chunk = [0; 65536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The node closed the connection with bytes of ours unread.
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    pub fn take_reply(&mut self) -> Option<Vec<u8>> {
        split(&self.received).map(|n| self.received.drain(..n).collect())
    }
}

//! A sealed conversation over TCP between two hosts that share a secret: that of an invitation, or the cluster's key.
//!
//! ```text
//! asker     Hello: version, which secret, its share of the keys, its build        in the clear
//! answerer  Greeting: its share of the keys, or why it refuses                    in the clear
//! both      messages, each in chunks that are sealed one after another
//! ```
//!
//! The keys derive from the secret, from what X25519 makes of both shares, and from both first messages. So a recorded conversation stays unreadable even if
//! the secret is lost later, and no message of it can be used in another conversation. There is no separate proof of the secret: the first message that opens
//! is the proof. Each chunk carries its number, so no chunk can be left out or moved.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use martlet_fabric::sealing::{Agreement, MAX_SEALED_BYTES, Opening, Sealing};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{VERSION, hex};

/// The maximum length of a message, and of a packet or a first message, in bytes.
const MAX_MESSAGE: usize = 1 << 20;
const MAX_FRAME: usize = 4096;

/// Why a conversation has failed.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// Nothing answers there, or the connection ended.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// The other end refuses, for the reason that it gives.
    #[error("it says: {0}")]
    Refused(String),
    /// What arrived was not sealed with the secret.
    #[error(
        "its answer cannot be opened with the secret: it is not the host that has the secret, or somebody on the way alters what is sent"
    )]
    Forged,
    /// What arrived is no valid message.
    #[error("its answer makes no sense ({0}); is another service listening there?")]
    Senseless(String),
}

/// The asker's first message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version of the conversation: [`VERSION`].
    pub(super) version: u32,
    /// The invitation whose secret is used; `None`: the cluster's key is.
    pub(super) invitation: Option<String>,
    share: String,
    /// The name of the program's build.
    pub(super) build: String,
}

/// The answer to a Hello.
#[derive(Debug, Serialize, Deserialize)]
enum Greeting {
    Share(String),
    Refused(String),
}

/// One end of the conversation.
#[derive(Debug)]
pub(super) struct Channel {
    wire: Wire,
    sealing: Sealing,
    opening: Opening,
    sent: u32,
    received: u32,
}

/// Frames of bytes over TCP, each preceded by its length.
#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    /// When the conversation has to be over.
    until: Instant,
}

impl Wire {
    fn new(stream: TcpStream, patience: Duration) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(Wire { stream, until: Instant::now() + patience })
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer")) } else { Ok(left) }
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let bytes = [&(frame.len() as u32).to_le_bytes()[..], frame].concat();
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(&bytes).map_err(timely)
    }

    fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection")),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(timely(error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<u8>, TalkError> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME {
            return Err(TalkError::Senseless(format!("a message of {length} bytes where {MAX_FRAME} are allowed")));
        }
        let mut frame = vec![0; length];
        self.read(&mut frame)?;
        Ok(frame)
    }
}

/// Rewords the system's error for a socket's timeout.
fn timely(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer"),
        _ => error,
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structures have a JSON form")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, TalkError> {
    serde_json::from_slice(bytes).map_err(|error| TalkError::Senseless(error.to_string()))
}

impl Channel {
    /// Begins a conversation under a secret. The whole conversation takes no longer than `patience`.
    pub(super) fn ask(
        at: SocketAddr,
        invitation: Option<&[u8; 8]>,
        secret: &[u8],
        build: &str,
        patience: Duration,
    ) -> Result<Channel, TalkError> {
        let stream = TcpStream::connect_timeout(&at, patience)?;
        let mut wire = Wire::new(stream, patience)?;
        let ours = Agreement::draw()?;
        let share = hex::encode(&ours.share());
        let hello = json(&Hello { version: VERSION, invitation: invitation.map(|id| hex::encode(id)), share, build: build.into() });
        wire.send(&hello)?;
        let greeting = wire.receive()?;
        match parse(&greeting)? {
            Greeting::Refused(why) => Err(TalkError::Refused(why)),
            Greeting::Share(share) => Channel::agreed(wire, secret, &ours, &share, (&hello, &greeting), [b"asks", b"answers"]),
        }
    }

    /// Answers a conversation. `secret` returns the secret that the asker means, or says why there is none.
    pub(super) fn answer(
        stream: TcpStream,
        patience: Duration,
        secret: impl FnOnce(&Hello) -> Result<Vec<u8>, String>,
    ) -> Result<Channel, TalkError> {
        let mut wire = Wire::new(stream, patience)?;
        let hello = wire.receive()?;
        let heard: Hello = parse(&hello)?;
        match secret(&heard) {
            Err(why) => {
                wire.send(&json(&Greeting::Refused(why.clone())))?;
                Err(TalkError::Refused(why))
            }
            Ok(secret) => {
                let ours = Agreement::draw()?;
                let greeting = json(&Greeting::Share(hex::encode(&ours.share())));
                wire.send(&greeting)?;
                Channel::agreed(wire, &secret, &ours, &heard.share, (&hello, &greeting), [b"answers", b"asks"])
            }
        }
    }

    fn agreed(
        wire: Wire,
        secret: &[u8],
        ours: &Agreement,
        theirs: &str,
        (hello, greeting): (&[u8], &[u8]),
        [sends, receives]: [&[u8]; 2],
    ) -> Result<Channel, TalkError> {
        let none = || TalkError::Senseless("its share of the keys is none".into());
        let shared = hex::decode(theirs).and_then(|theirs| ours.with(theirs)).ok_or_else(none)?;
        let key = [secret, &shared].concat();
        // The lengths keep the two messages apart, so that no part of one can be taken for a part of the other.
        let direction = |name: &[u8]| [&b"martlet hosts "[..], name, &(hello.len() as u64).to_le_bytes(), hello, greeting].concat();
        let (sealing, opening) = (Sealing::new(&key, &direction(sends)), Opening::new(&key, &direction(receives)));
        Ok(Channel { wire, sealing, opening, sent: 0, received: 0 })
    }

    /// The address of this host from which the conversation goes out.
    pub(super) fn local_ip(&self) -> io::Result<IpAddr> {
        Ok(self.wire.stream.local_addr()?.ip().to_canonical())
    }

    /// Sends a message.
    pub(super) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), TalkError> {
        let bytes = json(message);
        let mut chunks = bytes.chunks(MAX_SEALED_BYTES - CHUNK_HEAD).peekable();
        let mut packet = Vec::new();
        while let Some(chunk) = chunks.next() {
            let head = [&self.sent.to_le_bytes()[..], &[u8::from(chunks.peek().is_none())]].concat();
            self.sealing.seal(&[&head[..], chunk].concat(), &mut packet);
            self.wire.send(&packet)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Receives the next message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, TalkError> {
        let mut message = Vec::new();
        loop {
            let mut packet = self.wire.receive()?;
            let chunk = self.opening.open(&mut packet).map_err(|_| TalkError::Forged)?;
            let Some((head, rest)) = chunk.split_first_chunk::<CHUNK_HEAD>() else { return Err(TalkError::Forged) };
            let [number @ .., last] = *head;
            if u32::from_le_bytes(number) != self.received {
                return Err(TalkError::Forged);
            }
            self.received += 1;
            message.extend_from_slice(rest);
            if message.len() > MAX_MESSAGE {
                return Err(TalkError::Senseless(format!("more than {MAX_MESSAGE} bytes")));
            }
            if last == 1 {
                return parse(&message);
            }
        }
    }
}

/// A chunk's number, and whether it is the last of its message.
const CHUNK_HEAD: usize = 5;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// The results for asker and answerer if what passes in each direction goes through `alter`.
    fn talk(secrets: [&[u8]; 2], alter: fn(usize, &mut Vec<u8>)) -> [Result<String, TalkError>; 2] {
        let (inner, outer) = (TcpListener::bind("127.0.0.1:0").expect("a port"), TcpListener::bind("127.0.0.1:0").expect("a port"));
        let (inner_at, outer_at) = (inner.local_addr().expect("bound"), outer.local_addr().expect("bound"));
        let (asks, answers) = (secrets[0].to_vec(), secrets[1].to_vec());
        let long = "x".repeat(5_000);
        let answerer = thread::spawn({
            let long = long.clone();
            move || -> Result<String, TalkError> {
                let (stream, _) = inner.accept().expect("a connection");
                let mut channel = Channel::answer(stream, PATIENCE, |_| Ok(answers))?;
                let heard: String = channel.receive()?;
                channel.send(&long)?;
                Ok(heard)
            }
        });
        // An attacker on the way, who passes frames on.
        thread::spawn(move || {
            let (asker, _) = outer.accept().expect("a connection");
            let answerer = TcpStream::connect(inner_at).expect("it listens");
            let pass = move |from: TcpStream, to: TcpStream| {
                let (mut from, mut to) = (Wire::new(from, PATIENCE).expect("a socket"), Wire::new(to, PATIENCE).expect("a socket"));
                let mut count = 0;
                while let Ok(mut frame) = from.receive() {
                    alter(count, &mut frame);
                    count += 1;
                    if to.send(&frame).is_err() {
                        break;
                    }
                }
                let _ = to.stream.shutdown(std::net::Shutdown::Both);
            };
            let ends = (asker.try_clone().expect("a socket"), answerer.try_clone().expect("a socket"));
            thread::spawn(move || pass(ends.1, ends.0));
            pass(asker, answerer);
        });
        let asker = || -> Result<String, TalkError> {
            let mut channel = Channel::ask(outer_at, None, &asks, "test", PATIENCE)?;
            channel.send(&"hello")?;
            channel.receive()
        };
        let asked = asker();
        [asked, answerer.join().expect("it does not panic")]
    }

    #[test]
    fn two_that_share_a_secret_understand_each_other_and_others_do_not() {
        let [asked, answered] = talk([b"secret", b"secret"], |_, _| {});
        assert_eq!((asked.expect("an answer").len(), answered.expect("a question").as_str()), (5_000, "hello"));
        let [asked, answered] = talk([b"secret", b"other"], |_, _| {});
        assert!(matches!(answered, Err(TalkError::Forged)), "{answered:?}");
        assert!(asked.is_err(), "{asked:?}");
    }

    #[test]
    fn what_is_altered_on_the_way_does_not_open() {
        for frame in 0..2 {
            static FRAME: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            FRAME.store(frame, std::sync::atomic::Ordering::SeqCst);
            let ends = talk([b"secret", b"secret"], |count, frame| {
                if count == FRAME.load(std::sync::atomic::Ordering::SeqCst) {
                    let at = frame.len() / 2;
                    frame[at] ^= 1;
                }
            });
            assert!(ends.iter().any(Result::is_err), "frame {frame}: {ends:?}");
            assert!(ends[0].is_err(), "the asker hears nothing that it was not told: {ends:?}");
        }
    }

    #[test]
    fn a_stranger_that_speaks_otherwise_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let other = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"-ERR unknown command\r\n").expect("sent");
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
        });
        let error = Channel::ask(at, None, b"secret", "test", PATIENCE).expect_err("no host").to_string();
        assert!(error.contains("is another service listening there?"), "{error}");
        other.join().expect("it does not panic");
    }
}

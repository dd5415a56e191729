//! A connection that speaks the Redis protocol.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+text`
    Simple(String),
    /// `-text`
    Error(String),
    /// `:number`
    Integer(i64),
    /// `$bytes`; `None` is nil.
    Bulk(Option<Vec<u8>>),
    /// `*values`; `None` is nil.
    Array(Option<Vec<Value>>),
}

/// The longest bulk or array that is accepted.
const MAX_LENGTH: i64 = 64 << 20;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

impl Connection {
    /// Connects. No call takes longer than `patience`.
    pub fn open(address: SocketAddr, patience: Duration) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection { stream: BufReader::new(stream), request: Vec::new() })
    }

    /// Sends one command and reads its reply.
    pub fn command(&mut self, words: &[&[u8]]) -> io::Result<Value> {
        let [reply] = self.commands([words])?;
        Ok(reply)
    }

    /// Sends some commands at once and reads their replies.
    pub fn commands<const N: usize>(&mut self, commands: [&[&[u8]]; N]) -> io::Result<[Value; N]> {
        self.request.clear();
        for words in commands {
            write!(self.request, "*{}\r\n", words.len())?;
            for word in words {
                write!(self.request, "${}\r\n", word.len())?;
                self.request.extend_from_slice(word);
                self.request.extend_from_slice(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&self.request)?;
        let mut replies = [const { Value::Array(None) }; N];
        for reply in &mut replies {
            *reply = self.value(0)?;
        }
        Ok(replies)
    }

    fn value(&mut self, depth: u32) -> io::Result<Value> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "the reply is not RESP");
        let Some((kind, text)) = line.strip_suffix(b"\r\n").and_then(|line| line.split_first()) else {
            return Err(if line.is_empty() { io::ErrorKind::UnexpectedEof.into() } else { broken() });
        };
        let text = std::str::from_utf8(text).map_err(|_| broken())?;
        let number = || text.parse::<i64>().map_err(|_| broken());
        let length = || number().and_then(|n| if (-1..=MAX_LENGTH).contains(&n) { Ok(n) } else { Err(broken()) });
        match kind {
            b'+' => Ok(Value::Simple(text.to_owned())),
            b'-' => Ok(Value::Error(text.to_owned())),
            b':' => Ok(Value::Integer(number()?)),
            b'$' => match usize::try_from(length()?) {
                Err(_) => Ok(Value::Bulk(None)),
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    if !bytes.ends_with(b"\r\n") {
                        return Err(broken());
                    }
                    bytes.truncate(length);
                    Ok(Value::Bulk(Some(bytes)))
                }
            },
            b'*' if depth < 8 => match usize::try_from(length()?) {
                Err(_) => Ok(Value::Array(None)),
                Ok(length) => {
                    (0..length).map(|_| self.value(depth + 1)).collect::<io::Result<_>>().map(|values| Value::Array(Some(values)))
                }
            },
            _ => Err(broken()),
        }
    }
}

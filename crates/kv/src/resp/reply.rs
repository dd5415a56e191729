//! Replies in RESP2 or RESP3, appended to a connection's output.

use martlet_fabric::Pulse;

/// Which protocol a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The one that every client understands.
    #[default]
    Resp2,
    /// The one that has its own maps, nulls, doubles and booleans.
    Resp3,
}

/// Appends the parts of a reply to a buffer.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    /// Replies that go to `out`, for a client that speaks `protocol`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Reply<'a> {
        Reply { out, protocol }
    }

    /// Switches the protocol: `HELLO` answers in the one it has chosen.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// How much has been written to the buffer in all.
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// The error at that position of the buffer, without its dash; `None` if something else is there, or nothing.
    pub fn error_at(&self, position: usize) -> Option<&[u8]> {
        self.out.get(position..)?.strip_prefix(b"-")
    }

    /// Removes what has been written since the buffer had this length.
    pub fn take_back(&mut self, position: usize) {
        self.out.truncate(position);
    }

    #[inline]
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn number_line(&mut self, kind: u8, n: impl itoa::Integer) {
        self.line(kind, itoa::Buffer::new().format(n).as_bytes());
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without line breaks.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: its code, a space, its text. Line breaks in it become spaces, as it may contain what a client sent.
    pub fn error<T: AsRef<[u8]> + ?Sized>(&mut self, text: &T) {
        self.out.push(b'-');
        self.out.extend(text.as_ref().iter().map(|&c| if c == b'\r' || c == b'\n' { b' ' } else { c }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer.
    #[inline]
    pub fn int(&mut self, n: i64) {
        match n {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            _ => self.number_line(b':', n),
        }
    }

    /// A count.
    #[inline]
    pub fn count(&mut self, n: usize) {
        self.int(n as i64);
    }

    /// A string of any bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + 26);
        self.number_line(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The same for a string that may be long.
    #[inline]
    pub fn long_bulk(&mut self, bytes: &[u8], pulse: &Pulse) {
        self.out.reserve(bytes.len() + 26);
        self.number_line(b'$', bytes.len());
        pulse.append(self.out, bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A text for people, which RESP3 marks as such.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.number_line(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Nothing, where a string could have been.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Nothing, where an array could have been.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array: `n` more parts follow.
    #[inline]
    pub fn array(&mut self, n: usize) {
        self.number_line(b'*', n);
    }

    /// The head of a map: `n` pairs follow.
    pub fn map(&mut self, n: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(n * 2),
            Protocol::Resp3 => self.number_line(b'%', n),
        }
    }

    /// The head of a set: `n` members follow.
    pub fn set(&mut self, n: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(n),
            Protocol::Resp3 => self.number_line(b'~', n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, f: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        f(&mut Reply::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_part_in_both_protocols() {
        let all = |r: &mut Reply<'_>| {
            r.ok();
            r.simple("PONG");
            r.error("ERR a\r\nb");
            r.int(-12);
            r.int(1);
            r.bulk(b"x\r\n");
            r.null();
            r.null_array();
            r.array(2);
            r.map(1);
            r.set(3);
            r.verbatim("t");
        };
        assert_eq!(
            written(Protocol::Resp2, all),
            "+OK\r\n+PONG\r\n-ERR a  b\r\n:-12\r\n:1\r\n$3\r\nx\r\n\r\n$-1\r\n*-1\r\n*2\r\n*2\r\n*3\r\n$1\r\nt\r\n"
        );
        assert_eq!(
            written(Protocol::Resp3, all),
            "+OK\r\n+PONG\r\n-ERR a  b\r\n:-12\r\n:1\r\n$3\r\nx\r\n\r\n_\r\n_\r\n*2\r\n%1\r\n~3\r\n=5\r\ntxt:t\r\n"
        );
    }
}

//! One connection as every replica knows it: what its client has sent and the server has not read, and what the server has written and the client may lack.
//!
//! What a server sees of a connection follows from the log alone, so it is the same at every replica: how much a read returns, and how much of a write is
//! taken.

use std::collections::VecDeque;

use crate::entry::End;
use crate::requests::Requests;

/// How many bytes a server may have written beyond what the log says the kernel has taken.
pub const WINDOW_BYTES: u64 = 1 << 20;

/// A connection.
#[derive(Debug)]
pub struct Stream {
    /// Its name.
    pub connection: u64,
    /// Its socket's cookie.
    pub cookie: u64,
    /// The client's address.
    pub peer: Box<[u8]>,
    /// The server's.
    pub local: Box<[u8]>,
    requests: Requests,
    input: Vec<u8>,
    /// How much of `input` has been read.
    read: usize,
    end: End,
    /// The server is given nothing more of what its client has sent.
    void: bool,
    /// How much of the client's stream is in the log, in bytes.
    logged: u64,
    /// How much the server has written, in bytes.
    produced: u64,
    /// A checksum of all that the server has written.
    checksum: u32,
    /// How much of it the log says that the kernel has taken, in bytes.
    drained: u64,
    /// What has been written from `kept_from` on.
    kept: VecDeque<u8>,
    kept_from: u64,
    /// The end of each write that is not wholly below `kept_from`, with the checksum there; and first, the last write end that is below it.
    marks: VecDeque<(u64, u32)>,
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// So many bytes.
    Bytes(usize),
    /// Nothing so far.
    Nothing,
    /// The end.
    Closed,
    /// An errno, once.
    Failed(i32),
}

impl Stream {
    /// Of a new connection.
    pub fn new(connection: u64, cookie: u64, peer: &[u8], local: &[u8]) -> Stream {
        Stream {
            connection,
            cookie,
            peer: peer.into(),
            local: local.into(),
            requests: Requests::default(),
            input: Vec::new(),
            read: 0,
            end: End::Open,
            void: false,
            logged: 0,
            produced: 0,
            checksum: 0,
            drained: 0,
            kept: VecDeque::new(),
            kept_from: 0,
            marks: VecDeque::from([(0, 0)]),
        }
    }

    /// How much of the client's stream is in the log, in bytes.
    pub fn logged(&self) -> u64 {
        self.logged
    }

    /// How much the server has written, in bytes.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// How much of it the log says that the kernel has taken.
    pub fn drained(&self) -> u64 {
        self.drained
    }

    /// The checksum of all that the server has written.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Whether nothing more is to be received: the client's side has ended, as the log says.
    pub fn has_ended(&self) -> bool {
        self.end != End::Open
    }

    /// Whether its client has asked for output that replicas word differently, so that the connection [may be sent](crate::wording) some.
    pub fn has_asked(&self) -> bool {
        self.requests.has_asked()
    }

    /// How many bytes a server could read.
    pub fn unread(&self) -> usize {
        self.input.len() - self.read
    }

    /// Whether a read would not have to wait.
    pub fn is_readable(&self) -> bool {
        self.read < self.input.len() || self.has_ended()
    }

    /// Whether a write would be taken, in part at least.
    pub fn is_writable(&self) -> bool {
        self.room() > 0
    }

    fn room(&self) -> u64 {
        (self.drained + WINDOW_BYTES).saturating_sub(self.produced)
    }

    /// Takes input from the log.
    pub fn receive(&mut self, bytes: &[u8], end: End) {
        if self.read == self.input.len() {
            self.input.clear();
            self.read = 0;
        }
        self.logged += bytes.len() as u64;
        if !self.void {
            self.requests.pass(bytes, &mut self.input);
            self.end = end;
        }
    }

    /// Makes the next read find that the connection has been reset. The server is given nothing of what has been received, or will be.
    pub fn avoid(&mut self) {
        (self.input, self.read) = (Vec::new(), 0);
        (self.void, self.end) = (true, End::Failed(libc::ECONNRESET));
    }

    /// Reads at most as much as `into` holds.
    pub fn read(&mut self, into: &mut [u8]) -> Found {
        let left = &self.input[self.read..];
        if !left.is_empty() {
            let len = left.len().min(into.len());
            into[..len].copy_from_slice(&left[..len]);
            self.read += len;
            return Found::Bytes(len);
        }
        match self.end {
            End::Open => Found::Nothing,
            End::Closed => Found::Closed,
            End::Failed(errno) => {
                self.end = End::Closed;
                Found::Failed(errno)
            }
        }
    }

    /// Notes how much of the output the kernel has taken, as the log says.
    pub fn drain(&mut self, offset: u64) {
        self.drained = self.drained.max(offset.min(self.produced));
    }

    /// How many bytes of a write of this length are taken.
    pub fn takes(&self, bytes: usize) -> usize {
        usize::try_from(self.room()).unwrap_or(usize::MAX).min(bytes)
    }

    /// Takes written bytes, for which [`takes`](Stream::takes) has said that there is room.
    pub fn produce(&mut self, parts: &[&[u8]]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.checksum);
        for part in parts {
            hasher.update(part);
            self.kept.extend(part.iter());
            self.produced += part.len() as u64;
        }
        self.checksum = hasher.finalize();
        self.marks.push_back((self.produced, self.checksum));
    }

    /// Forgets the output below this offset, which the kernel has.
    pub fn forget_below(&mut self, offset: u64) {
        let offset = offset.min(self.produced);
        if offset > self.kept_from {
            self.kept.drain(..(offset - self.kept_from) as usize);
            self.kept_from = offset;
        }
        while self.marks.get(1).is_some_and(|(end, _)| *end <= offset) {
            self.marks.pop_front();
        }
    }

    /// The output from [`kept_from`](Stream::kept_from) on, in two pieces.
    pub fn unsent(&self) -> (&[u8], &[u8]) {
        self.kept.as_slices()
    }

    /// The offset up to which the output has been forgotten.
    pub fn kept_from(&self) -> u64 {
        self.kept_from
    }

    /// Whether output is kept.
    pub fn has_unsent(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether some write ended at the offset of `seal`, with the checksum of `seal`.
    pub fn agrees_with(&self, seal: Seal) -> bool {
        self.marks.iter().any(|(end, checksum)| Seal::of(*end, *checksum) == seal)
    }
}

/// An offset in a stream of output and the checksum of everything before it, in one word, so that a leader cannot die between writing the one and the other.
/// Only the low 32 bits of the offset are kept: the writes among which it is looked for span less than 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub u64);

impl Seal {
    /// The seal of an offset and the checksum there.
    pub fn of(offset: u64, checksum: u32) -> Seal {
        Seal(offset << 32 | u64::from(checksum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream::new(1, 2, b"", b"")
    }

    #[test]
    fn reads_take_what_is_there_and_then_the_end() {
        let mut stream = stream();
        let mut buffer = [0; 4];
        assert_eq!(stream.read(&mut buffer), Found::Nothing);
        stream.receive(b"abcdef", End::Open);
        assert_eq!((stream.read(&mut buffer), buffer), (Found::Bytes(4), *b"abcd"));
        stream.receive(b"gh", End::Failed(104));
        assert_eq!((stream.read(&mut buffer), buffer), (Found::Bytes(4), *b"efgh"));
        assert!(stream.is_readable());
        assert_eq!(stream.read(&mut buffer), Found::Failed(104));
        assert_eq!(stream.read(&mut buffer), Found::Closed, "as the kernel does");
        assert_eq!(stream.logged(), 8);
    }

    #[test]
    fn one_that_is_void_gives_its_reader_nothing_more() {
        let (mut stream, mut buffer) = (stream(), [0; 4]);
        stream.receive(b"abcdef", End::Open);
        assert_eq!(stream.read(&mut buffer), Found::Bytes(4));
        stream.avoid();
        stream.receive(b"gh", End::Open);
        assert!(stream.is_readable() && stream.has_ended());
        assert_eq!((stream.read(&mut buffer), stream.read(&mut buffer)), (Found::Failed(libc::ECONNRESET), Found::Closed));
        assert_eq!(stream.logged(), 8, "the log goes on");
    }

    #[test]
    fn writes_fill_the_window_and_the_log_empties_it() {
        let mut stream = stream();
        let whole = vec![7; WINDOW_BYTES as usize];
        assert_eq!(stream.takes(usize::MAX), whole.len());
        stream.produce(&[&whole[..10], &whole[10..]]);
        assert_eq!((stream.takes(1), stream.is_writable()), (0, false));
        stream.drain(100);
        assert_eq!(stream.takes(1000), 100);
        stream.drain(50);
        assert_eq!(stream.drained(), 100, "it never goes back");
    }

    #[test]
    fn output_is_kept_until_the_kernel_has_it_and_compared_where_writes_ended() {
        let (mut leader, mut follower) = (stream(), stream());
        let mut seals = Vec::new();
        for part in [&b"+OK\r\n"[..], b"$3\r\nabc\r\n", b":1\r\n"] {
            leader.produce(&[part]);
            seals.push(Seal::of(leader.produced(), leader.checksum()));
            follower.produce(&[&part[..2], &part[2..]]);
        }
        follower.forget_below(7);
        assert_eq!(follower.kept_from(), 7);
        assert_eq!(follower.unsent().0, b"\r\nabc\r\n:1\r\n".as_slice().strip_prefix(b"").expect("all").get(..).expect("all"));
        assert!(follower.agrees_with(seals[0]) && follower.agrees_with(seals[2]));
        follower.forget_below(18);
        assert!(!follower.has_unsent());
        assert!(follower.agrees_with(seals[2]), "the last one, too");
        assert!(!follower.agrees_with(seals[0]), "long gone");
        let mut other = stream();
        other.produce(&[b"-ERR\n"]);
        assert!(!other.agrees_with(seals[0]), "as long, and something else");
    }
}

//! The entries of the log. An entry holds everything that a server learns between two of its waits: a *round*.
//!
//! The leader collects a round in memory that the other replicas map too (see [`board`](crate::board)), proposes it, and hands it to its server when it is
//! committed. So the bytes that the leader has taken out of the kernel are in the log or, should it die before that, in that memory: [`received`] finds them
//! there.
//!
//! All numbers are little-endian. A round begins with a format byte, [`FORMAT`], its kind, its number, and the time. Its records follow, each with a byte that
//! says what it is. Numbers are 32 or 64 bits wide, so that none wraps.

pub use martlet_node::connections::socket::MAX_ADDRESS_BYTES;
use std::fmt;

/// The longest round, in bytes: as long as the longest command of an embedded replica.
pub const MAX_ROUND_BYTES: usize = martlet_node::embed::MAX_COMMAND_BYTES;

/// The format that this build writes and reads. All replicas of a server are forks of one process, so there is no other.
const FORMAT: u8 = 1;
const ROUND: u8 = 1;
const REIGN: u8 = 2;

const ACCEPT: u8 = 1;
const INPUT: u8 = 2;
const DRAINED: u8 = 3;
const SIGNAL: u8 = 4;
const READY: u8 = 5;
const CHILD: u8 = 6;

/// The bytes before the first record.
const HEADER_BYTES: usize = 26;
/// The bytes of an input record before its data.
const INPUT_HEADER_BYTES: usize = 29;
/// Stands for the length of an input record while the kernel may still be writing its data.
const PENDING: u32 = u32::MAX;

/// When a round was collected, by the leader's clocks. All replicas show this time to their servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME, in nanoseconds since 1970.
    pub wall_ns: u64,
}

/// How a stream's input continues after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There may be more.
    Open,
    /// The client has closed its side.
    Closed,
    /// Reading failed with this errno.
    Failed(i32),
}

impl End {
    fn code(self) -> i32 {
        match self {
            End::Open => 0,
            End::Closed => -1,
            End::Failed(errno) => errno,
        }
    }

    fn of(code: i32) -> Option<End> {
        match code {
            0 => Some(End::Open),
            -1 => Some(End::Closed),
            1..=4095 => Some(End::Failed(code)),
            _ => None,
        }
    }
}

/// Something that a server learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A listener has a new connection.
    Accept {
        /// Its place in the table of connections, which gives its descriptor.
        slot: u32,
        /// Its name: the connections of a service are numbered from 1 on.
        connection: u64,
        /// The socket's cookie, by which the kernel tells it from all others.
        cookie: u64,
        /// The listener's descriptor.
        listener: i32,
        /// The client's address, as the kernel writes it.
        peer: &'a [u8],
        /// The server's.
        local: &'a [u8],
    },
    /// Input of a connection.
    Input {
        /// Its place.
        slot: u32,
        /// Its name.
        connection: u64,
        /// How many bytes came before these.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
        /// What follows them.
        end: End,
    },
    /// The kernel has taken a connection's output up to here.
    Drained {
        /// Its place.
        slot: u32,
        /// Its name.
        connection: u64,
        /// How many bytes.
        offset: u64,
    },
    /// A signal from outside.
    Signal {
        /// Its number.
        number: i32,
    },
    /// A child of the server has ended.
    Child {
        /// Its process.
        pid: i32,
        /// How, as `waitpid` says it.
        status: i32,
    },
    /// A descriptor is ready.
    Ready {
        /// Which.
        fd: i32,
        /// For what, as `epoll_wait` says it.
        events: u32,
    },
}

/// The bytes are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these bytes are no entry of a captured server")
    }
}

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A new leader has everything that is in the log before this entry. The entry means nothing to the servers.
    Reign {
        /// Its node.
        node: u16,
    },
    /// A round.
    Round(Round<'a>),
}

/// A round, all of whose records can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round<'a> {
    /// Rounds are numbered from 1 on, without a gap.
    pub number: u64,
    /// When.
    pub stamp: Stamp,
    records: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Parses an entry.
    ///
    /// # Errors
    /// When the bytes are no entry; every record is checked, down to the last.
    pub fn decode(bytes: &'a [u8]) -> Result<Entry<'a>, Unreadable> {
        let mut reader = Reader(bytes);
        if reader.u8()? != FORMAT {
            return Err(Unreadable);
        }
        match reader.u8()? {
            REIGN => {
                let node = u16::from_le_bytes(reader.array()?);
                if reader.0.is_empty() { Ok(Entry::Reign { node }) } else { Err(Unreadable) }
            }
            ROUND => {
                let number = reader.u64()?;
                let stamp = Stamp { monotonic_ns: reader.u64()?, wall_ns: reader.u64()? };
                let records = reader.0;
                while !reader.0.is_empty() {
                    reader.record()?;
                }
                Ok(Entry::Round(Round { number, stamp, records }))
            }
            _ => Err(Unreadable),
        }
    }

    /// The bytes of a new leader's entry.
    pub fn reign(node: u16) -> [u8; 4] {
        let [low, high] = node.to_le_bytes();
        [FORMAT, REIGN, low, high]
    }
}

impl<'a> Round<'a> {
    /// What the server learns, in order.
    pub fn records(&self) -> impl Iterator<Item = Record<'a>> + use<'a> {
        let mut reader = Reader(self.records);
        // All of them were parsed once already.
        std::iter::from_fn(move || if reader.0.is_empty() { None } else { reader.record().ok() })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Unreadable> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.bytes(N)?.try_into().map_err(|_| Unreadable)
    }

    fn u8(&mut self) -> Result<u8, Unreadable> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, Unreadable> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_le_bytes)
    }

    fn address(&mut self) -> Result<&'a [u8], Unreadable> {
        let len = usize::from(self.u8()?);
        if len > MAX_ADDRESS_BYTES { Err(Unreadable) } else { self.bytes(len) }
    }

    fn record(&mut self) -> Result<Record<'a>, Unreadable> {
        Ok(match self.u8()? {
            ACCEPT => Record::Accept {
                slot: self.u32()?,
                connection: self.u64()?,
                cookie: self.u64()?,
                listener: self.i32()?,
                peer: self.address()?,
                local: self.address()?,
            },
            INPUT => {
                let (slot, connection, offset) = (self.u32()?, self.u64()?, self.u64()?);
                let end = End::of(self.i32()?).ok_or(Unreadable)?;
                let len = self.u32()?;
                Record::Input { slot, connection, offset, bytes: self.bytes(len as usize)?, end }
            }
            DRAINED => Record::Drained { slot: self.u32()?, connection: self.u64()?, offset: self.u64()? },
            SIGNAL => Record::Signal { number: self.i32()? },
            READY => Record::Ready { fd: self.i32()?, events: self.u32()? },
            CHILD => Record::Child { pid: self.i32()?, status: self.i32()? },
            _ => return Err(Unreadable),
        })
    }
}

/// What a [`Record::Ready`] takes in a round.
pub const READY_BYTES: usize = 9;
/// What a [`Record::Drained`] takes in a round.
pub const DRAINED_BYTES: usize = 21;

/// Writes a round into memory.
#[derive(Debug)]
pub struct Writer<'b> {
    memory: &'b mut [u8],
    len: usize,
    records: usize,
}

impl<'b> Writer<'b> {
    /// Begins a round.
    ///
    /// # Panics
    /// When the memory has no room for a round without records.
    pub fn new(memory: &'b mut [u8], number: u64, stamp: Stamp) -> Writer<'b> {
        assert!(memory.len() >= HEADER_BYTES, "a round takes {HEADER_BYTES} bytes at least");
        let mut writer = Writer { memory, len: 0, records: 0 };
        writer.put(&[FORMAT, ROUND]);
        writer.put(&number.to_le_bytes());
        writer.put(&stamp.monotonic_ns.to_le_bytes());
        writer.put(&stamp.wall_ns.to_le_bytes());
        writer
    }

    /// How many records it has.
    pub fn records(&self) -> usize {
        self.records
    }

    fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    fn put(&mut self, bytes: &[u8]) {
        self.memory[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Begins an input record and returns the place for its bytes: at most `most`, and at most what leaves `reserve` more bytes of room after them. Nothing of
    /// the record is part of the round before [`end_input`](Writer::end_input), but from here on [`received`] finds what has been written there.
    pub fn begin_input(&mut self, slot: u32, connection: u64, offset: u64, most: usize, reserve: usize) -> Option<&mut [u8]> {
        let room = self.room().checked_sub(INPUT_HEADER_BYTES + reserve).filter(|room| *room > 0)?.min(most);
        let begin = self.len;
        self.put(&[INPUT]);
        self.put(&slot.to_le_bytes());
        self.put(&connection.to_le_bytes());
        self.put(&offset.to_le_bytes());
        self.put(&0i32.to_le_bytes());
        self.put(&PENDING.to_le_bytes());
        self.len = begin;
        Some(&mut self.memory[begin + INPUT_HEADER_BYTES..][..room])
    }

    /// Ends the input record that was begun last, into which so many bytes have been written.
    pub fn end_input(&mut self, bytes: usize, end: End) {
        let at = self.len + INPUT_HEADER_BYTES - 8;
        self.memory[at..at + 4].copy_from_slice(&end.code().to_le_bytes());
        self.memory[at + 4..at + 8].copy_from_slice(&(bytes as u32).to_le_bytes());
        self.len += INPUT_HEADER_BYTES + bytes;
        self.records += 1;
    }

    /// Adds a record other than input. Returns whether there was room for it.
    ///
    /// # Panics
    /// When the record is input, or has an address that is longer than any address can be.
    pub fn add(&mut self, record: &Record<'_>) -> bool {
        let mut bytes = Vec::with_capacity(64);
        match *record {
            Record::Accept { slot, connection, cookie, listener, peer, local } => {
                bytes.push(ACCEPT);
                bytes.extend_from_slice(&slot.to_le_bytes());
                bytes.extend_from_slice(&connection.to_le_bytes());
                bytes.extend_from_slice(&cookie.to_le_bytes());
                bytes.extend_from_slice(&listener.to_le_bytes());
                for address in [peer, local] {
                    assert!(address.len() <= MAX_ADDRESS_BYTES, "an address of {} bytes", address.len());
                    bytes.push(address.len() as u8);
                    bytes.extend_from_slice(address);
                }
            }
            Record::Input { .. } => panic!("input is written in place"),
            Record::Drained { slot, connection, offset } => {
                bytes.push(DRAINED);
                bytes.extend_from_slice(&slot.to_le_bytes());
                bytes.extend_from_slice(&connection.to_le_bytes());
                bytes.extend_from_slice(&offset.to_le_bytes());
            }
            Record::Signal { number } => {
                bytes.push(SIGNAL);
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            Record::Child { pid, status } => {
                bytes.push(CHILD);
                bytes.extend_from_slice(&pid.to_le_bytes());
                bytes.extend_from_slice(&status.to_le_bytes());
            }
            Record::Ready { fd, events } => {
                bytes.push(READY);
                bytes.extend_from_slice(&fd.to_le_bytes());
                bytes.extend_from_slice(&events.to_le_bytes());
            }
        }
        let fits = bytes.len() <= self.room();
        if fits {
            self.put(&bytes);
            self.records += 1;
        }
        fits
    }

    /// The length of the round so far, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// What a dead leader had received from this connection from `offset` on, if anything. `memory` is where that leader wrote its rounds. If it died while
/// receiving, only the kernel knows how many of the returned bytes were really received.
pub fn received(memory: &[u8], connection: u64, offset: u64) -> Option<&[u8]> {
    let mut reader = Reader(memory.get(HEADER_BYTES..)?);
    loop {
        let here = reader.0;
        if *here.first()? == INPUT {
            let mut input = Reader(here.get(1..)?);
            let (_, name, from, end, len) = (input.u32().ok()?, input.u64().ok()?, input.u64().ok()?, input.i32().ok()?, input.u32().ok()?);
            let pending = len == PENDING;
            let bytes = if pending { input.0 } else { input.bytes(len as usize).ok()? };
            End::of(end)?;
            if (name, from) == (connection, offset) {
                return Some(bytes);
            }
            if pending {
                return None;
            }
            reader = input;
        } else {
            reader.record().ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAMP: Stamp = Stamp { monotonic_ns: 5, wall_ns: 6 };

    fn input(writer: &mut Writer<'_>, connection: u64, offset: u64, bytes: &[u8], end: End) {
        writer.begin_input(3, connection, offset, bytes.len(), 0).expect("room").copy_from_slice(bytes);
        writer.end_input(bytes.len(), end);
    }

    #[test]
    fn a_round_reads_as_it_was_written() {
        let mut memory = vec![0xee; 4096];
        let mut writer = Writer::new(&mut memory, 9, STAMP);
        let accept = Record::Accept { slot: 3, connection: 7, cookie: 8, listener: 6, peer: b"peer", local: b"" };
        assert!(writer.add(&accept));
        input(&mut writer, 7, 11, b"PING\r\n", End::Open);
        input(&mut writer, 8, 0, b"", End::Closed);
        input(&mut writer, 9, 1, b"x", End::Failed(104));
        let rest = [
            Record::Drained { slot: 3, connection: 7, offset: 1 << 40 },
            Record::Signal { number: 15 },
            Record::Child { pid: 4711, status: 9 },
            Record::Ready { fd: -1, events: 5 },
        ];
        for record in &rest {
            let before = writer.len();
            assert!(writer.add(record));
            match record {
                Record::Ready { .. } => assert_eq!(writer.len() - before, READY_BYTES),
                Record::Drained { .. } => assert_eq!(writer.len() - before, DRAINED_BYTES),
                _ => {}
            }
        }
        let (len, records) = (writer.len(), writer.records());
        let Ok(Entry::Round(round)) = Entry::decode(&memory[..len]) else { panic!("it is a round") };
        assert_eq!((round.number, round.stamp), (9, STAMP));
        let of = |connection, offset, bytes, end| Record::Input { slot: 3, connection, offset, bytes, end };
        let expected = [accept, of(7, 11, b"PING\r\n", End::Open), of(8, 0, b"", End::Closed), of(9, 1, b"x", End::Failed(104))];
        let read: Vec<_> = round.records().collect();
        assert_eq!(read.len(), records);
        assert_eq!(read[..4], expected);
        assert_eq!(read[4..], rest);
        for cut in 0..len {
            let whole_records = Entry::decode(&memory[..cut]).is_ok();
            assert!(!whole_records || cut >= HEADER_BYTES, "cut at {cut}");
        }
    }

    #[test]
    fn a_reign_reads_as_it_was_written() {
        assert_eq!(Entry::decode(&Entry::reign(0x0102)), Ok(Entry::Reign { node: 0x0102 }));
        assert_eq!(Entry::decode(&[FORMAT, REIGN, 1, 2, 3]), Err(Unreadable));
        assert_eq!(Entry::decode(&[FORMAT + 1, REIGN, 1, 2]), Err(Unreadable));
    }

    #[test]
    fn what_was_received_is_found_also_where_the_round_was_never_finished() {
        let mut memory = vec![0; 1024];
        let mut writer = Writer::new(&mut memory, 9, STAMP);
        input(&mut writer, 1, 100, b"first", End::Open);
        assert!(writer.add(&Record::Ready { fd: 3, events: 1 }));
        // The kernel has written two bytes, and the leader died before it could say so.
        writer.begin_input(4, 2, 50, 64, 0).expect("room")[..2].copy_from_slice(b"ab");
        assert_eq!(received(&memory, 1, 100), Some(&b"first"[..]));
        assert_eq!(&received(&memory, 2, 50).expect("it was begun")[..2], b"ab");
        assert_eq!(received(&memory, 2, 51), None, "another place of the stream");
        assert_eq!(received(&memory, 3, 0), None);
        assert_eq!(received(&[], 1, 100), None);
    }

    #[test]
    fn a_full_round_takes_nothing_more_and_stays_whole() {
        let mut memory = vec![0; HEADER_BYTES + INPUT_HEADER_BYTES + 20];
        let mut writer = Writer::new(&mut memory, 1, STAMP);
        assert_eq!(writer.begin_input(0, 1, 0, 100, 10).expect("room").len(), 10, "what is reserved is left");
        writer.end_input(10, End::Open);
        assert!(writer.add(&Record::Ready { fd: 1, events: 1 }));
        assert!(!writer.add(&Record::Ready { fd: 2, events: 1 }));
        assert!(writer.begin_input(0, 1, 10, 100, 0).is_none());
        let len = writer.len();
        let Ok(Entry::Round(round)) = Entry::decode(&memory[..len]) else { panic!("it is a round") };
        assert_eq!(round.records().count(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), round in any::<bool>()) {
            let mut bytes = bytes;
            if round && bytes.len() >= 2 {
                (bytes[0], bytes[1]) = (FORMAT, ROUND);
            }
            if let Ok(Entry::Round(round)) = Entry::decode(&bytes) {
                let _ = round.records().count();
            }
            let _ = received(&bytes, 1, 1);
        }

        #[test]
        fn a_changed_byte_makes_no_panic(at in 0usize..90, to in any::<u8>()) {
            let mut memory = vec![0; 256];
            let mut writer = Writer::new(&mut memory, 9, STAMP);
            writer.add(&Record::Accept { slot: 3, connection: 7, cookie: 8, listener: 6, peer: b"peer", local: b"" });
            input(&mut writer, 7, 11, b"PING\r\n", End::Open);
            let len = writer.len();
            memory[at % len] = to;
            if let Ok(Entry::Round(round)) = Entry::decode(&memory[..len]) {
                let _ = round.records().count();
            }
            let _ = received(&memory, 7, 11);
        }
    }
}

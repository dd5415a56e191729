//! Bytes on disk: what a file begins with, and frames. Pure, so that any bytes can be tried (fuzz target `wal`).
//!
//! A file is a header of [`HEADER_BYTES`] and then frames, each at a multiple of 8 bytes. All numbers are little-endian.
//!
//! | header, bytes | content |
//! |---|---|
//! | 0 to 7 | what it is, [`FileKind`], and in which format: a digit |
//! | 8 to 15 | the cluster's fingerprint |
//! | 16 to 23 | the node's number |
//! | 24 to 31 | the life whose log it is |
//! | 32 to 39 | the segment's number; of a snapshot: that of the segment at whose start it begins |
//! | 40 to 47 | the number of the first frame |
//! | 48 to 55 | the salt of the frames' checksums: chance |
//! | 56 to 59 | CRC-32 of all that |
//! | 60 to 63 | zero |
//!
//! | frame, bytes | content |
//! |---|---|
//! | 0 to 7 | its number, one more than that of the frame before |
//! | 8 to 11 | bytes of its payload |
//! | 12 to 15 | CRC-32 of the salt, the number, the length and the payload |
//! | 16 on | the payload, and zeros up to a multiple of 8 |
//!
//! A frame is what one write and one sync have brought: the next is written only when it is stable. So only the last frame of the last segment can be *torn*,
//! that is, cut short or mixed with what was there before. Anything else that fails its checksum is *corrupt*: it was stable once. The salt prevents anything
//! that a client has put into a command from being taken for a frame.

use std::ops::RangeInclusive;

use martlet_protocol::replica::MAX_PART_BYTES;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a frame before its payload.
pub const FRAME_HEAD_BYTES: usize = 16;
/// What precedes a part of a snapshot in its frame: a byte that says what it is.
pub const TAG_BYTES: usize = 1;
/// The longest payload of a frame, in bytes: the longest part of a snapshot, with its tag.
pub const MAX_PAYLOAD_BYTES: usize = TAG_BYTES + MAX_PART_BYTES;

/// What a file is, by its first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A segment of the log.
    Segment,
    /// A snapshot of the state.
    Snapshot,
}

impl FileKind {
    const ALL: [FileKind; 2] = [FileKind::Segment, FileKind::Snapshot];

    const fn stem(self) -> &'static [u8; 7] {
        match self {
            FileKind::Segment => b"martlog",
            FileKind::Snapshot => b"martsnp",
        }
    }

    /// The formats that this build reads; it writes the last one. An older build must not take a file for a damaged one: so whatever an entry says that was not
    /// said before, including a new kind of entry, makes a new format.
    pub fn formats(self) -> RangeInclusive<u8> {
        match self {
            // 3 has entries that say what a snapshot shows.
            FileKind::Segment => b'2'..=b'3',
            FileKind::Snapshot => b'1'..=b'1',
        }
    }

    /// What a file is, and in which format.
    fn of(file: &[u8]) -> Option<(FileKind, u8)> {
        let (stem, format) = (file.first_chunk::<7>()?, *file.get(7)?);
        Some((FileKind::ALL.into_iter().find(|kind| kind.stem() == stem)?, format))
    }

    /// What a file is that another build has written, in a format that this build does not read.
    pub fn of_another_build(file: &[u8]) -> Option<(FileKind, char)> {
        FileKind::of(file)
            .filter(|(kind, format)| format.is_ascii_digit() && !kind.formats().contains(format))
            .map(|(kind, format)| (kind, format.into()))
    }
}

/// The owner of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identifies the cluster, from its name and key.
    pub cluster: u64,
    /// The node's number.
    pub node: u16,
}

/// What a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: FileKind,
    /// The node that it belongs to.
    pub owner: Owner,
    /// The life whose log it is.
    pub life: u64,
    /// The segment's number.
    pub segment: u64,
    /// The number of its first frame.
    pub first: u64,
    /// The salt of its frames.
    pub salt: u64,
}

impl Header {
    /// The header as it is on disk.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..7].copy_from_slice(self.kind.stem());
        bytes[7] = *self.kind.formats().end();
        let words = [self.owner.cluster, self.owner.node.into(), self.life, self.segment, self.first, self.salt];
        for (word, into) in words.into_iter().zip(bytes[8..56].as_chunks_mut::<8>().0) {
            *into = word.to_le_bytes();
        }
        let checksum = crc32fast::hash(&bytes[..56]);
        bytes[56..60].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header from the start of a file; `None` when there is none.
    pub fn decode(file: &[u8]) -> Option<Header> {
        let bytes = file.first_chunk::<HEADER_BYTES>()?;
        let (kind, _) = FileKind::of(bytes).filter(|(kind, format)| kind.formats().contains(format))?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (checksum, rest) = (u64::from(crc32fast::hash(&bytes[..56])), word(56));
        let node = u16::try_from(word(16)).ok().filter(|_| checksum == rest)?;
        let owner = Owner { cluster: word(8), node };
        Some(Header { kind, owner, life: word(24), segment: word(32), first: word(40), salt: word(48) })
    }
}

/// How many bytes a frame with this payload takes on disk.
pub const fn frame_bytes(payload: usize) -> usize {
    (FRAME_HEAD_BYTES + payload).next_multiple_of(8)
}

/// The checksum of a payload in pieces.
fn checksum(salt: u64, number: u64, payload: &[&[u8]]) -> u32 {
    let bytes: usize = payload.iter().map(|piece| piece.len()).sum();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(&(bytes as u32).to_le_bytes());
    payload.iter().for_each(|piece| hasher.update(piece));
    hasher.finalize()
}

/// Appends a frame. Panics when the payload is longer than [`MAX_PAYLOAD_BYTES`].
pub fn encode_frame(salt: u64, number: u64, payload: &[u8], out: &mut Vec<u8>) {
    encode_frame_of(salt, number, &[payload], out);
}

/// Appends a frame whose payload is these pieces, one after the other. Panics as [`encode_frame`].
pub fn encode_frame_of(salt: u64, number: u64, payload: &[&[u8]], out: &mut Vec<u8>) {
    let bytes: usize = payload.iter().map(|piece| piece.len()).sum();
    martlet_fabric::invariant!(bytes <= MAX_PAYLOAD_BYTES, "a frame of {bytes} bytes; at most {MAX_PAYLOAD_BYTES}");
    let end = out.len() + frame_bytes(bytes);
    out.reserve(frame_bytes(bytes));
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.extend_from_slice(&checksum(salt, number, payload).to_le_bytes());
    payload.iter().for_each(|piece| out.extend_from_slice(piece));
    out.resize(end, 0);
}

/// The payload of the frame with this number at the start of `bytes`; `None` when there is none, or its checksum does not match.
fn decode_frame(salt: u64, number: u64, bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.first_chunk::<FRAME_HEAD_BYTES>()?;
    let half = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let len = half(8) as usize;
    if head[..8] != number.to_le_bytes() || len > MAX_PAYLOAD_BYTES {
        return None;
    }
    let (payload, padding) = bytes.get(FRAME_HEAD_BYTES..frame_bytes(len))?.split_at(len);
    (checksum(salt, number, &[payload]) == half(12) && padding.iter().all(|byte| *byte == 0)).then_some(payload)
}

/// How the frames of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// At the end of the file.
    Clean,
    /// At this offset, with bytes that are no frame, and no frame after them: what a crash leaves of the last write.
    Torn(usize),
    /// At this offset, with bytes that are no frame, although a frame follows them: they were stable, and have changed.
    Corrupt(usize),
}

/// The frames of a file, in order. It ends where the next one is missing; [`Frames::tail`] says why.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    file: &'a [u8],
    at: usize,
    salt: u64,
    next: u64,
}

impl<'a> Frames<'a> {
    /// The frames of a file that begins with this header.
    pub fn new(header: &Header, file: &'a [u8]) -> Frames<'a> {
        Frames { file, at: HEADER_BYTES.min(file.len()), salt: header.salt, next: header.first }
    }

    /// The number that the next frame has to have.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Where in the file the next frame begins.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// What is at the place where the iterator has ended. Meaningless before that.
    pub fn tail(&self) -> Tail {
        if self.at == self.file.len() {
            return Tail::Clean;
        }
        // However many frames have gone bad, none after them can have a higher number than there is room for.
        let room = ((self.file.len() - self.at) / FRAME_HEAD_BYTES) as u64;
        let later = (self.at + 8..self.file.len()).step_by(8).any(|at| {
            let rest = &self.file[at..];
            let number = rest.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
            let ahead = number.wrapping_sub(self.next);
            (1..=room).contains(&ahead) && decode_frame(self.salt, number, rest).is_some()
        });
        if later { Tail::Corrupt(self.at) } else { Tail::Torn(self.at) }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let payload = decode_frame(self.salt, self.next, &self.file[self.at..])?;
        self.at += frame_bytes(payload.len());
        self.next = self.next.wrapping_add(1);
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { kind: FileKind::Segment, owner: Owner { cluster: 7, node: 2 }, life: 11, segment: 3, first: 40, salt: 0x5a17 };

    fn file(payloads: &[&[u8]]) -> Vec<u8> {
        let mut file = HEADER.encode().to_vec();
        for (payload, number) in payloads.iter().zip(HEADER.first..) {
            encode_frame(HEADER.salt, number, payload, &mut file);
        }
        file
    }

    fn read(file: &[u8]) -> (Vec<&[u8]>, Tail) {
        let mut frames = Frames::new(&Header::decode(file).expect("a header"), file);
        let payloads = frames.by_ref().collect();
        (payloads, frames.tail())
    }

    #[test]
    fn a_file_comes_back_as_it_went() {
        assert_eq!(Header::decode(&HEADER.encode()), Some(HEADER));
        let snapshot = Header { kind: FileKind::Snapshot, ..HEADER };
        assert_eq!(Header::decode(&snapshot.encode()), Some(snapshot));
        let payloads: [&[u8]; 4] = [b"", b"1", b"12345678", &[9; 1000]];
        assert_eq!(read(&file(&payloads)), (payloads.to_vec(), Tail::Clean));
    }

    #[test]
    fn a_file_of_an_earlier_format_is_read_and_one_of_a_later_one_is_told_apart_from_a_damaged_one() {
        let of_format = |format: u8| {
            let mut file = file(&[b"one"]);
            file[7] = format;
            let checksum = crc32fast::hash(&file[..56]);
            file[56..60].copy_from_slice(&checksum.to_le_bytes());
            file
        };
        for format in [b'2', b'3'] {
            assert_eq!(read(&of_format(format)), (vec![&b"one"[..]], Tail::Clean));
            assert_eq!(FileKind::of_another_build(&of_format(format)), None);
        }
        for format in [b'1', b'4', b'9'] {
            assert_eq!(Header::decode(&of_format(format)), None);
            assert_eq!(FileKind::of_another_build(&of_format(format)), Some((FileKind::Segment, format.into())));
        }
        // The part of the header that is needed for this, and bytes that no build writes.
        assert_eq!(FileKind::of_another_build(b"martlog9"), Some((FileKind::Segment, '9')));
        for file in [&b"martlog"[..], b"martlog\0", b"martlogx", b"martlux3", b""] {
            assert_eq!(FileKind::of_another_build(file), None);
        }
    }

    #[test]
    fn wherever_a_file_is_cut_its_whole_frames_remain_and_the_rest_is_torn() {
        let payloads: [&[u8]; 3] = [b"one", b"two and more", b"three"];
        let whole = file(&payloads);
        let ends: Vec<usize> = (0..=3).map(|n| file(&payloads[..n]).len()).collect();
        for cut in HEADER_BYTES..=whole.len() {
            let (found, tail) = read(&whole[..cut]);
            let n = ends.iter().rposition(|end| *end <= cut).expect("the header");
            assert_eq!(found, payloads[..n], "cut at {cut}");
            assert_eq!(tail, if ends[n] == cut { Tail::Clean } else { Tail::Torn(ends[n]) }, "cut at {cut}");
        }
        assert!((0..HEADER_BYTES).all(|cut| Header::decode(&whole[..cut]).is_none()));
    }

    #[test]
    fn an_altered_byte_of_the_last_frame_is_a_torn_tail_and_of_another_a_corruption() {
        let payloads: [&[u8]; 3] = [b"one", b"two and more", b"three"];
        let whole = file(&payloads);
        let ends: Vec<usize> = (0..=3).map(|n| file(&payloads[..n]).len()).collect();
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 0x10;
            let Some(header) = Header::decode(&altered) else {
                assert!(at < HEADER_BYTES, "at {at}");
                continue;
            };
            let mut frames = Frames::new(&header, &altered);
            let n = ends.iter().rposition(|end| *end <= at).expect("the header is altered otherwise");
            assert_eq!(frames.by_ref().count(), n, "at {at}");
            let expected = if n == 2 { Tail::Torn(ends[2]) } else { Tail::Corrupt(ends[n]) };
            assert_eq!(frames.tail(), expected, "at {at}");
        }
    }

    /// As the log stages it, with its tag.
    #[test]
    fn the_longest_part_of_a_state_fits_into_a_frame() {
        let part = vec![0; MAX_PART_BYTES];
        let mut frame = Vec::new();
        encode_frame_of(HEADER.salt, 1, &[&[7; TAG_BYTES], &part], &mut frame);
        let payload = decode_frame(HEADER.salt, 1, &frame).expect("whole");
        assert_eq!((payload.len(), payload[0]), (TAG_BYTES + MAX_PART_BYTES, 7));
    }

    #[test]
    fn a_frame_within_a_payload_is_none_without_the_salt() {
        let mut planted = Vec::new();
        encode_frame(HEADER.salt + 1, 41, b"from a client", &mut planted);
        let mut torn = file(&[&planted]);
        let at = HEADER_BYTES;
        torn[at + 12] ^= 1;
        assert_eq!(read(&torn).1, Tail::Torn(at));
    }
}

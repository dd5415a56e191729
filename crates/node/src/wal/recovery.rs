//! What is in a life's directory after a crash.

use std::path::Path;

use super::disk::Disk;
use super::error::{Operation, WalError, refused};
use super::format::{FileKind, Frames, HEADER_BYTES, Header, Tail};
use super::log::{END, Log, PART, Style, parse_name, segment_name, snapshot_name};

/// The content of a log and its snapshot.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The newest whole snapshot.
    pub snapshot: Option<Snapshot>,
    /// The frames from the snapshot's base on, or all frames if there is no snapshot.
    pub frames: Vec<Vec<u8>>,
    /// Set if a torn tail has been cut off: the file's name, and where the tail began.
    pub torn: Option<(String, u64)>,
}

/// A snapshot as it was written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its parts, in order.
    pub parts: Vec<Vec<u8>>,
    /// The last words.
    pub last: Vec<u8>,
}

impl Snapshot {
    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().chain([&self.last]).map(|part| part.len() as u64).sum()
    }
}

/// Reads the log of a life, cuts off its torn tail, removes what an interrupted removal has left, and opens the log to continue.
///
/// # Errors
/// When the disk refuses, when a file belongs to another owner, or when something that was stable does not match its checksum: which file, and where.
pub fn recover<D: Disk>(mut disk: D, dir: &Path, style: Style, life: u64) -> Result<(Recovered, Log<D>), WalError> {
    let mut recovered = Recovered::default();
    let names = disk.list(dir).map_err(refused(dir, Operation::Read))?;
    let files: Vec<(FileKind, u64)> = names.iter().filter_map(|name| parse_name(name)).collect();
    let of = |wanted| files.iter().filter(move |(kind, _)| *kind == wanted).map(|(_, number)| *number);
    let base = of(FileKind::Snapshot).max();

    // An unfinished snapshot, and what a whole one has made superfluous.
    for name in &names {
        let superfluous = match parse_name(name) {
            Some((_, number)) => base.is_some_and(|base| number < base),
            None => true,
        };
        if superfluous {
            let path = dir.join(name);
            disk.remove(&path).map_err(refused(&path, Operation::Remove))?;
        }
    }
    let mut reader = Source { disk: &mut disk, dir, style: &style, life };
    if let Some(base) = base {
        recovered.snapshot = Some(reader.snapshot(base)?);
    }

    let first = base.unwrap_or(1);
    let mut last = of(FileKind::Segment).max().unwrap_or(0);
    let (mut number, mut next) = (first, None);
    while number <= last {
        let name = segment_name(number);
        let file = reader.read(&name)?;
        let Some(header) = reader.header(&name, &file, FileKind::Segment, number)? else {
            // The header was not stable yet, so the segment was empty. But the segment on which a snapshot is based was stable.
            if number < last || Some(number) == base {
                return Err(reader.corrupt(&name, 0, "its header is missing"));
            }
            let path = dir.join(&name);
            reader.disk.remove(&path).map_err(refused(&path, Operation::Remove))?;
            recovered.torn = Some((name, 0));
            last -= 1;
            break;
        };
        if next.is_some_and(|next| next != header.first) {
            return Err(reader.corrupt(&name, 40, "it does not begin with the frame that is due"));
        }
        let mut frames = Frames::new(&header, &file);
        recovered.frames.extend(frames.by_ref().map(<[u8]>::to_vec));
        next = Some(frames.next_number());
        match frames.tail() {
            Tail::Clean => {}
            Tail::Torn(at) if number == last => {
                let path = dir.join(&name);
                reader.disk.shorten(&path, at as u64).map_err(refused(&path, Operation::Shorten))?;
                recovered.torn = Some((name, at as u64));
            }
            Tail::Torn(at) => return Err(reader.corrupt(&name, at, "a frame that does not check, and a later segment")),
            Tail::Corrupt(at) => return Err(reader.corrupt(&name, at, "a frame that does not check, and later ones that do")),
        }
        number += 1;
    }
    if base.is_some_and(|base| last < base) {
        return Err(reader.corrupt(&segment_name(first), 0, "it is missing, and a snapshot begins with it"));
    }
    let log = Log::go_on(disk, dir, style, life, last + 1, next.unwrap_or(1), base)?;
    Ok((recovered, log))
}

/// What files are read from, and for whom.
struct Source<'a, D> {
    disk: &'a mut D,
    dir: &'a Path,
    style: &'a Style,
    life: u64,
}

impl<D: Disk> Source<'_, D> {
    fn read(&mut self, name: &str) -> Result<Vec<u8>, WalError> {
        let path = self.dir.join(name);
        match self.disk.read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(self.corrupt(name, 0, "it is missing between others")),
            read => read.map_err(refused(&path, Operation::Read)),
        }
    }

    fn corrupt(&self, name: &str, offset: usize, what: &'static str) -> WalError {
        WalError::Corrupt { path: self.dir.join(name), offset: offset as u64, what }
    }

    /// The header that a file must begin with; `None` when the file is no longer than a header and has none: its creation was interrupted.
    fn header(&self, name: &str, file: &[u8], kind: FileKind, number: u64) -> Result<Option<Header>, WalError> {
        let Some(header) = Header::decode(file) else {
            if let Some((kind, found)) = FileKind::of_another_build(file) {
                return Err(WalError::Format { path: self.dir.join(name), found, known: kind.formats() });
            }
            if file.len() > HEADER_BYTES {
                return Err(self.corrupt(name, 0, "its header does not check"));
            }
            return Ok(None);
        };
        let own = self.style.owner;
        if header.owner != own {
            return Err(WalError::Foreign { path: self.dir.join(name), found: header.owner, own });
        }
        if (header.kind, header.life, header.segment) != (kind, self.life, number) {
            return Err(self.corrupt(name, 8, "its header is that of another file"));
        }
        Ok(Some(header))
    }

    fn snapshot(&mut self, base: u64) -> Result<Snapshot, WalError> {
        let name = snapshot_name(base);
        let file = self.read(&name)?;
        let Some(header) = self.header(&name, &file, FileKind::Snapshot, base)? else {
            return Err(self.corrupt(&name, 0, "its header is missing"));
        };
        let mut frames = Frames::new(&header, &file);
        let (mut snapshot, mut ended) = (Snapshot::default(), false);
        while !ended && let Some(frame) = frames.next() {
            match frame.split_first() {
                Some((&PART, part)) => snapshot.parts.push(part.to_vec()),
                Some((&END, last)) => (snapshot.last, ended) = (last.to_vec(), true),
                _ => break,
            }
        }
        // A snapshot gets its name only when it is whole.
        if !ended || frames.tail() != Tail::Clean {
            return Err(self.corrupt(&name, frames.offset(), "the snapshot breaks off"));
        }
        Ok(snapshot)
    }
}

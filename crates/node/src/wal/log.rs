//! The log of one life, as its writer sees it: appended to, rolled, and cut off below a snapshot.
//!
//! When a method returns `Ok`, its effect is stable. After the first error nothing more is written: the disk then holds what was stable before, and perhaps a
//! torn tail. In particular, a sync that has failed is not called again.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::{Operation, WalError, refused};
use super::format::{FileKind, HEADER_BYTES, Header, Owner, TAG_BYTES, encode_frame, encode_frame_of};

/// The last frame of a snapshot begins with this byte, all others with [`PART`].
pub(super) const END: u8 = 1;
/// See [`END`].
pub(super) const PART: u8 = 0;

/// A snapshot is written in slices of at most so many bytes, and each slice is on the device before anything else is written. So a frame of the log waits for
/// one slice at most, and its sync never has to write more than that besides its own bytes. A disk of 100 MB/s takes 2.6 ms for a slice; with smaller slices
/// the calls would take more processor time than the bytes do.
pub const SLICE_BYTES: usize = 256 << 10;

const UNFINISHED: &str = "snapshot.unfinished";

/// The name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("segment-{number:016x}")
}

/// The name of the file of the snapshot that begins at the start of this segment.
pub(super) fn snapshot_name(base: u64) -> String {
    format!("snapshot-{base:016x}")
}

/// What a file in a life's directory is, by its name: a segment or snapshot of that number.
pub(super) fn parse_name(name: &str) -> Option<(FileKind, u64)> {
    let (kind, number) = name.split_once('-')?;
    let kind = match kind {
        "segment" => FileKind::Segment,
        "snapshot" => FileKind::Snapshot,
        _ => return None,
    };
    let number = u64::from_str_radix(number, 16).ok()?;
    let canonical = name == segment_name(number) || name == snapshot_name(number);
    canonical.then_some((kind, number))
}

/// For whom the log is written, and how.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whose log it is.
    pub owner: Owner,
    /// When a segment has grown to so many bytes, the next one begins.
    pub segment_bytes: u64,
    /// Random bits from which the salts of the files are made.
    pub chance: u64,
}

/// An open log.
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: D,
    dir: PathBuf,
    style: Style,
    life: u64,
    segment: u64,
    /// The lowest segment that has not been removed.
    lowest: u64,
    file: D::File,
    path: PathBuf,
    written: u64,
    salt: u64,
    next: u64,
    /// The base of the newest whole snapshot.
    snapshot: Option<u64>,
    unfinished: Option<Unfinished<D::File>>,
    buffer: Vec<u8>,
    broken: bool,
}

#[derive(Debug)]
struct Unfinished<F> {
    file: F,
    base: u64,
    salt: u64,
    next: u64,
    /// How many bytes of the file have been written.
    written: u64,
    /// What has been added and not written: the bytes from `at` on.
    staged: Vec<u8>,
    at: usize,
}

impl<F> Unfinished<F> {
    fn stage(&mut self, tag: u8, part: &[u8]) {
        let tag: [u8; TAG_BYTES] = [tag];
        encode_frame_of(self.salt, self.next, &[&tag, part], &mut self.staged);
        self.next += 1;
    }

    fn unwritten(&self) -> usize {
        self.staged.len() - self.at
    }
}

impl<D: Disk> Log<D> {
    /// Begins the log of a life, in a directory that has nothing of it. `dir` itself must exist.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn create(mut disk: D, dir: &Path, style: Style, life: u64) -> Result<Log<D>, WalError> {
        disk.create_dir(dir).map_err(refused(dir, Operation::Create))?;
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent).map_err(refused(parent, Operation::Sync))?;
        }
        Log::go_on(disk, dir, style, life, 1, 1, None)
    }

    /// Continues a log, in a new segment whose first frame has the number `next`.
    pub(super) fn go_on(
        mut disk: D,
        dir: &Path,
        style: Style,
        life: u64,
        segment: u64,
        next: u64,
        snapshot: Option<u64>,
    ) -> Result<Log<D>, WalError> {
        let header = segment_header(&style, life, segment, next);
        let mut buffer = header.encode().to_vec();
        let (file, path) = begin(&mut disk, dir, &segment_name(segment), &buffer)?;
        disk.sync_dir(dir).map_err(refused(dir, Operation::Sync))?;
        buffer.clear();
        Ok(Log {
            disk,
            dir: dir.to_owned(),
            style,
            life,
            segment,
            lowest: snapshot.unwrap_or(1),
            file,
            path,
            written: HEADER_BYTES as u64,
            salt: header.salt,
            next,
            snapshot,
            unfinished: None,
            buffer,
            broken: false,
        })
    }

    /// The segment that is being written.
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// How many bytes the segment has so far.
    pub fn segment_bytes(&self) -> u64 {
        self.written
    }

    /// The base of the newest whole snapshot.
    pub fn snapshot(&self) -> Option<u64> {
        self.snapshot
    }

    /// Attempts something that may fail, and for the last time if it does.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, WalError>) -> Result<T, WalError> {
        if self.broken {
            return Err(WalError::Broken { path: self.dir.clone() });
        }
        let done = act(self);
        self.broken = done.is_err();
        done
    }

    /// Appends a frame and makes it stable.
    ///
    /// # Errors
    /// When the disk refuses, or has refused before.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), WalError> {
        if self.written >= self.style.segment_bytes {
            self.roll()?;
        }
        self.attempt(|log| {
            log.buffer.clear();
            encode_frame(log.salt, log.next, payload, &mut log.buffer);
            write_all(&mut log.disk, &mut log.file, &log.buffer).map_err(refused(&log.path, Operation::Write))?;
            log.disk.sync(&mut log.file).map_err(refused(&log.path, Operation::Sync))?;
            log.next += 1;
            log.written += log.buffer.len() as u64;
            Ok(())
        })
    }

    /// Continues in a new segment. Returns its number.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn roll(&mut self) -> Result<u64, WalError> {
        self.attempt(|log| {
            let segment = log.segment + 1;
            let header = segment_header(&log.style, log.life, segment, log.next);
            let (file, path) = begin(&mut log.disk, &log.dir, &segment_name(segment), &header.encode())?;
            log.disk.sync_dir(&log.dir).map_err(refused(&log.dir, Operation::Sync))?;
            (log.file, log.path, log.segment, log.salt, log.written) = (file, path, segment, header.salt, HEADER_BYTES as u64);
            Ok(segment)
        })
    }

    /// Begins a snapshot of the state as of the start of the segment `base`. An unfinished snapshot is abandoned.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn begin_snapshot(&mut self, base: u64) -> Result<(), WalError> {
        self.abandon_snapshot()?;
        self.attempt(|log| {
            let salt = salt(&log.style, base, FileKind::Snapshot);
            let header = Header { kind: FileKind::Snapshot, owner: log.style.owner, life: log.life, segment: base, first: 0, salt };
            let (file, _) = begin(&mut log.disk, &log.dir, UNFINISHED, &header.encode())?;
            let written = HEADER_BYTES as u64;
            log.unfinished = Some(Unfinished { file, base, salt, next: 0, written, staged: Vec::new(), at: 0 });
            Ok(())
        })
    }

    /// Appends a part to the snapshot that has been begun, without writing it: see [`Log::write_slice`]. Does nothing if none has been begun.
    pub fn stage_part(&mut self, part: &[u8]) {
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.stage(PART, part);
        }
    }

    /// How many bytes of the snapshot have been staged and not written.
    pub fn staged_bytes(&self) -> usize {
        self.unfinished.as_ref().map_or(0, Unfinished::unwritten)
    }

    /// Writes [`SLICE_BYTES`] of what has been staged, or as much as there is, and has the disk take it. It is not stable before [`Log::finish_snapshot`].
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn write_slice(&mut self) -> Result<(), WalError> {
        self.attempt(|log| {
            let Some(unfinished) = log.unfinished.as_mut().filter(|unfinished| unfinished.unwritten() > 0) else { return Ok(()) };
            let end = unfinished.staged.len().min(unfinished.at + SLICE_BYTES);
            let slice = &unfinished.staged[unfinished.at..end];
            let path = log.dir.join(UNFINISHED);
            write_all(&mut log.disk, &mut unfinished.file, slice).map_err(refused(&path, Operation::Write))?;
            log.disk.push(&mut unfinished.file, unfinished.written).map_err(refused(&path, Operation::Sync))?;
            unfinished.written += slice.len() as u64;
            unfinished.at = end;
            // What is left of the last part moves to the front, but the rest of a long part does not move with every slice.
            if unfinished.at >= unfinished.unwritten() {
                unfinished.staged.drain(..unfinished.at);
                unfinished.at = 0;
            }
            Ok(())
        })
    }

    /// Completes the snapshot with some last words, gives it its name, and removes what it makes superfluous: segments before its base, and older snapshots.
    /// Does nothing if none has been begun.
    ///
    /// # Errors
    /// As [`Log::append`]. The older snapshot remains until the new one is stable under its name.
    pub fn finish_snapshot(&mut self, last: &[u8]) -> Result<(), WalError> {
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.stage(END, last);
        }
        while self.staged_bytes() > 0 {
            self.write_slice()?;
        }
        self.attempt(|log| {
            let Some(mut unfinished) = log.unfinished.take() else { return Ok(()) };
            let (from, to) = (log.dir.join(UNFINISHED), log.dir.join(snapshot_name(unfinished.base)));
            log.disk.sync(&mut unfinished.file).map_err(refused(&from, Operation::Sync))?;
            drop(unfinished.file);
            log.disk.rename(&from, &to).map_err(refused(&from, Operation::Rename))?;
            log.disk.sync_dir(&log.dir).map_err(refused(&log.dir, Operation::Sync))?;
            let old = log.snapshot.replace(unfinished.base).filter(|old| *old != unfinished.base);
            let superfluous = (log.lowest..unfinished.base).map(segment_name).chain(old.map(snapshot_name));
            for path in superfluous.map(|name| log.dir.join(name)).collect::<Vec<_>>() {
                log.disk.remove(&path).map_err(refused(&path, Operation::Remove))?;
            }
            log.lowest = unfinished.base;
            Ok(())
        })
    }

    /// Abandons the snapshot that has been begun, if there is one.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn abandon_snapshot(&mut self) -> Result<(), WalError> {
        self.attempt(|log| {
            let Some(unfinished) = log.unfinished.take() else { return Ok(()) };
            drop(unfinished.file);
            let path = log.dir.join(UNFINISHED);
            log.disk.remove(&path).map_err(refused(&path, Operation::Remove))
        })
    }
}

/// Different for each file, even if a number is used again after an unfinished attempt.
fn salt(style: &Style, number: u64, kind: FileKind) -> u64 {
    let mixed = style.chance ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ kind as u64;
    (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn segment_header(style: &Style, life: u64, segment: u64, first: u64) -> Header {
    let kind = FileKind::Segment;
    Header { kind, owner: style.owner, life, segment, first, salt: salt(style, segment, kind) }
}

/// A new file with these bytes, which are stable; its name is not stable yet.
fn begin<D: Disk>(disk: &mut D, dir: &Path, name: &str, bytes: &[u8]) -> Result<(D::File, PathBuf), WalError> {
    let path = dir.join(name);
    let mut file = disk.create(&path).map_err(refused(&path, Operation::Create))?;
    write_all(disk, &mut file, bytes).map_err(refused(&path, Operation::Write))?;
    disk.sync(&mut file).map_err(refused(&path, Operation::Sync))?;
    Ok((file, path))
}

fn write_all<D: Disk>(disk: &mut D, file: &mut D::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match disk.write(file, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

//! What the log needs of the system, as a trait, so that tests can cut the power, fill the disk and break it at any point.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// The operations on files that the log uses. What has been written is stable when [`Disk::sync`] has returned without an error; names are stable after
/// [`Disk::sync_dir`] of their directory.
pub trait Disk: Send + 'static {
    /// An open file.
    type File: Send;

    /// Makes an empty file; it must not exist yet.
    ///
    /// # Errors
    /// As the system says, here and in all other methods.
    fn create(&mut self, path: &Path) -> io::Result<Self::File>;
    /// Appends some of `bytes`, and returns how many.
    ///
    /// # Errors
    /// As the system says.
    fn write(&mut self, file: &mut Self::File, bytes: &[u8]) -> io::Result<usize>;
    /// Makes stable what has been written. Never called again after an error: the kernel may have dropped the pages and report success.
    ///
    /// # Errors
    /// As the system says.
    fn sync(&mut self, file: &mut Self::File) -> io::Result<()>;
    /// Has everything from this byte of the file on written to the device, and waits for that. This does not make it stable. Like a sync it is never called
    /// again after an error, which the kernel reports only once.
    ///
    /// # Errors
    /// As the system says.
    fn push(&mut self, file: &mut Self::File, from: u64) -> io::Result<()>;
    /// Cuts a file down to so many bytes, and makes that stable.
    ///
    /// # Errors
    /// As the system says.
    fn shorten(&mut self, path: &Path, bytes: u64) -> io::Result<()>;
    /// Gives a file another name in the same directory, replacing any file of that name.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// Makes a directory, if it does not exist.
    ///
    /// # Errors
    /// As the system says.
    fn create_dir(&mut self, dir: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// As the system says.
    fn remove_dir(&mut self, dir: &Path) -> io::Result<()>;
    /// Makes the names in a directory stable.
    ///
    /// # Errors
    /// As the system says.
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()>;
    /// The names in a directory, in order; none when it does not exist.
    ///
    /// # Errors
    /// As the system says.
    fn list(&mut self, dir: &Path) -> io::Result<Vec<String>>;
    /// The whole content of a file.
    ///
    /// # Errors
    /// As the system says.
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    type File = File;

    fn create(&mut self, path: &Path) -> io::Result<File> {
        OpenOptions::new().append(true).create_new(true).open(path)
    }

    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn sync(&mut self, file: &mut File) -> io::Result<()> {
        file.sync_data()
    }

    fn push(&mut self, file: &mut File, from: u64) -> io::Result<()> {
        let from = i64::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: the call takes numbers only, and the descriptor is open for as long as the file is borrowed. A length of 0 is to the file's end.
        let rc = unsafe { libc::sync_file_range(file.as_raw_fd(), from, 0, all) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn shorten(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(bytes)?;
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&mut self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
            made => made,
        }
    }

    fn remove_dir(&mut self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }
}

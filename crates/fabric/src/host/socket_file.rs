//! The file by which a Unix socket is found. A dead process leaves it behind, and its successor removes it: never anything else that is at that path.

use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The file of a socket that this process has bound. It is removed when this is dropped, unless another file has taken its path meanwhile.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// `None`: it was gone as soon as it was there.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// The file of the socket that has just been bound to that path.
    pub fn of_bound(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), identity: at(path).ok().flatten().as_ref().map(identity) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let now = at(&self.path).ok().flatten();
        if now.as_ref().map(identity) == self.identity && now.is_some() {
            // If it stays, it does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket that a dead process has left at that path. The caller knows that none listens there.
///
/// # Errors
/// When something else is there than a socket, which stays, and when the system refuses.
pub fn remove_stale(path: &Path) -> io::Result<()> {
    if is_there(path)? {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Whether a socket is at that path.
///
/// # Errors
/// When something else is there, and when the system cannot tell.
pub fn is_there(path: &Path) -> io::Result<bool> {
    match at(path)?.map(|found| found.file_type()) {
        None => Ok(false),
        Some(kind) if kind.is_socket() => Ok(true),
        Some(kind) => {
            let why = format!("{} is there, which stays; only a socket that a dead process has left is replaced", named(kind));
            Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
        }
    }
}

/// What is at that path itself, not where a link there leads.
fn at(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn named(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a regular file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a named pipe",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("martlet-socket-file-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).expect("a fresh directory");
            Dir(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_socket_is_removed() {
        let dir = Dir::new("stale");
        let path = dir.0.join("s");
        remove_stale(&path).expect("nothing is there");
        drop(UnixListener::bind(&path).expect("bound"));
        remove_stale(&path).expect("it is one");
        assert!(!path.exists());
        let stays = |what: &str| {
            let error = remove_stale(&path).expect_err("no socket");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert!(error.to_string().starts_with(&format!("{what} is there, which stays")), "{error}");
            assert!(path.symlink_metadata().is_ok(), "{what} stays");
        };
        std::fs::write(&path, "precious").expect("a file");
        stays("a regular file");
        assert_eq!(std::fs::read(&path).expect("it stays"), b"precious");
        std::fs::remove_file(&path).expect("our own");
        let target = dir.0.join("target");
        drop(UnixListener::bind(&target).expect("bound"));
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        stays("a symbolic link");
        std::fs::remove_file(&path).expect("our own");
        std::fs::create_dir(&path).expect("a directory");
        stays("a directory");
    }

    #[test]
    fn a_file_that_has_taken_the_path_of_a_socket_outlives_it() {
        let dir = Dir::new("drop");
        let path = dir.0.join("s");
        let bind = || (UnixListener::bind(&path).expect("bound"), SocketFile::of_bound(&path));
        drop(bind());
        assert!(!path.exists(), "its own");
        let held = bind();
        std::fs::rename(&path, dir.0.join("moved")).expect("our own");
        std::fs::write(&path, "precious").expect("a file");
        drop(held);
        assert_eq!(std::fs::read(&path).expect("it stays"), b"precious");
        std::fs::remove_file(&path).expect("our own");
        let held = bind();
        std::fs::rename(&path, dir.0.join("moved")).expect("our own");
        let _successor = UnixListener::bind(&path).expect("bound");
        drop(held);
        assert!(path.exists(), "a successor's socket");
    }
}

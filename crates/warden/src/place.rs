//! Where programs and their warden meet: a socket at a path, which programs of other network namespaces can find too.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use martlet_fabric::host::lock::FileLock;
use martlet_fabric::host::socket::seqpacket;
use rustix::net::SocketAddrUnix;

/// The socket of the host's warden, unless another one is given.
pub const DEFAULT_SOCKET: &str = "/run/martlet/warden.sock";
/// The environment variable that gives another socket.
pub const SOCKET_VARIABLE: &str = "MARTLET_WARDEN";

/// The socket that the environment names, or the default.
pub fn default_socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

/// Why no warden can start there.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another one is running.
    #[error("a warden is already running at {0}; a host has only one")]
    Running(PathBuf),
    /// The path is too long for a socket, or empty.
    #[error("the socket's path {0} is not valid; allowed are paths of 1 to 107 bytes")]
    Path(PathBuf),
    /// The system refused something.
    #[error("{what} {path}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// The socket of a host's only warden, held by a lock.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    path: PathBuf,
    /// `None`: it has no path that another one could have.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is held"))]
    lock: Option<FileLock>,
}

#[cfg(feature = "fuzzing")]
impl Listener {
    /// A listener without a path, where it cannot be found.
    pub(crate) fn nowhere() -> io::Result<Listener> {
        Ok(Listener { socket: seqpacket()?, path: PathBuf::new(), lock: None })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The lock is released after this, so this is not a successor's file. If it stays, it does no harm: the next start removes it under the lock.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ListenError {
    let path = path.to_owned();
    move |error| ListenError::System { what, path, error }
}

/// Takes the place, and creates its directory. What a dead warden has left there is removed (TRAPS 31). Users that the mode lets in may connect.
pub(crate) fn listen(path: &Path, mode: u32) -> Result<Listener, ListenError> {
    let address = SocketAddrUnix::new(path).ok().filter(|_| !path.as_os_str().is_empty()).ok_or_else(|| ListenError::Path(path.into()))?;
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(system("cannot make the directory", directory))?;
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
    let lock = lock.map_err(system("cannot open", &lock_path))?;
    let lock = FileLock::take(lock).map_err(system("cannot lock", &lock_path))?;
    let lock = lock.ok_or_else(|| ListenError::Running(path.into()))?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(system("cannot remove", path)(error)),
        _ => {}
    }
    let socket = seqpacket().map_err(system("cannot make the socket", path))?;
    rustix::net::bind(&socket, &address).map_err(|error| system("cannot listen at", path)(error.into()))?;
    let listener = Listener { socket, path: path.into(), lock: Some(lock) };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(system("cannot set the mode of", path))?;
    rustix::net::listen(&listener.socket, 128).map_err(|error| system("cannot listen at", path)(error.into()))?;
    Ok(listener)
}

/// Connects to the warden at a path.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warden_at_a_place_and_none_stands_in_the_way_of_the_next() {
        let directory = std::env::temp_dir().join(format!("martlet-place-{}", std::process::id()));
        let path = directory.join("run/warden.sock");
        let mut first = listen(&path, 0o600).expect("free");
        assert!(connect(&path).is_ok());
        let second = listen(&path, 0o600).expect_err("taken");
        assert_eq!(second.to_string(), format!("a warden is already running at {}; a host has only one", path.display()));
        // As after a SIGKILL: the lock is released, the file stays.
        drop(first.lock.take().expect("held"));
        let Listener { socket, path: left, .. } = &first;
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).expect("it listens");
        assert!(left.exists());
        drop(listen(&path, 0o600).expect("the place is free"));
        assert!(!path.exists());
        drop(first);
        std::fs::remove_dir_all(directory).expect("our own");
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_named() {
        let long = PathBuf::from(format!("/tmp/{}", "a".repeat(200)));
        assert!(matches!(listen(&long, 0o600), Err(ListenError::Path(path)) if path == long));
        assert!(matches!(listen(Path::new(""), 0o600), Err(ListenError::Path(_))));
    }
}

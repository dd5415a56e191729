//! Where programs and their warden meet: a socket at a path, which programs of other network namespaces can find too.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use martlet_fabric::host::lock::FileLock;
use martlet_fabric::host::socket::seqpacket;
use martlet_fabric::host::socket_file::{self, SocketFile};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// The socket of the host's warden, unless another one is given.
pub const DEFAULT_SOCKET: &str = "/run/martlet/warden.sock";
/// The environment variable that gives another socket.
pub const SOCKET_VARIABLE: &str = "MARTLET_WARDEN";

/// How long to wait for a socket that is in use: of a killed warden the kernel may release the lock first, and the socket a moment later.
const PATIENCE: Duration = Duration::from_secs(1);

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
    /// Removed before the lock is released, so what is removed is not a successor's. `None`: it has no path.
    #[expect(dead_code, reason = "it is held")]
    file: Option<SocketFile>,
    /// `None`: it has no path that another one could have.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is held"))]
    lock: Option<FileLock>,
}

#[cfg(feature = "fuzzing")]
impl Listener {
    /// A listener without a path, where it cannot be found.
    pub(crate) fn nowhere() -> io::Result<Listener> {
        Ok(Listener { socket: seqpacket()?, file: None, lock: None })
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
    // Before a file for the lock is made beside it.
    socket_file::is_there(path).map_err(system("cannot listen at", path))?;
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
    let lock = lock.map_err(system("cannot open", &lock_path))?;
    let lock = FileLock::take(lock).map_err(system("cannot lock", &lock_path))?;
    let lock = lock.ok_or_else(|| ListenError::Running(path.into()))?;
    if socket_file::is_there(path).map_err(system("cannot listen at", path))? {
        check_unused(&address).map_err(system("cannot listen at", path))?;
        socket_file::remove_stale(path).map_err(system("cannot remove", path))?;
    }
    let socket = seqpacket().map_err(system("cannot make the socket", path))?;
    rustix::net::bind(&socket, &address).map_err(|error| system("cannot listen at", path)(error.into()))?;
    let listener = Listener { socket, file: Some(SocketFile::of_bound(path)), lock: Some(lock) };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(system("cannot set the mode of", path))?;
    rustix::net::listen(&listener.socket, 128).map_err(|error| system("cannot listen at", path)(error.into()))?;
    Ok(listener)
}

/// Checks that no process listens there. A warden that does has the lock, but another program does not know of that.
fn check_unused(address: &SocketAddrUnix) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match rustix::net::connect(&seqpacket()?, address) {
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(()),
            // Of another kind, or with no room for one more that waits.
            Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN) if Instant::now() >= until => return Err(Errno::ADDRINUSE.into()),
            Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
        }
    }
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
        rustix::net::shutdown(&first.socket, rustix::net::Shutdown::Both).expect("it listens");
        assert!(path.exists());
        drop(listen(&path, 0o600).expect("the place is free"));
        assert!(!path.exists());
        drop(first);
        std::fs::remove_dir_all(directory).expect("our own");
    }

    #[test]
    fn nothing_but_a_dead_wardens_socket_gives_way_to_a_warden() {
        let directory = std::env::temp_dir().join(format!("martlet-place-kept-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("our own");
        let path = directory.join("notes.txt");
        std::fs::write(&path, "precious").expect("a file");
        let refused = listen(&path, 0o600).expect_err("a file is there").to_string();
        assert!(refused.starts_with(&format!("cannot listen at {}: a regular file is there, which stays", path.display())), "{refused}");
        assert_eq!(std::fs::read(&path).expect("it stays"), b"precious");
        assert_eq!(std::fs::read_dir(&directory).expect("ours").count(), 1, "and nothing is put beside it");
        std::fs::remove_file(&path).expect("our own");
        let other = std::os::unix::net::UnixListener::bind(&path).expect("free");
        let refused = listen(&path, 0o600).expect_err("another program listens").to_string();
        assert!(refused.starts_with(&format!("cannot listen at {}: Address", path.display())), "{refused}");
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(other);
        let other = seqpacket().expect("a socket");
        std::fs::remove_file(&path).expect("our own");
        rustix::net::bind(&other, &SocketAddrUnix::new(&path).expect("short")).expect("free");
        rustix::net::listen(&other, 1).expect("bound");
        assert!(
            listen(&path, 0o600).expect_err("another program listens").to_string().contains("Address"),
            "of the same kind, without our lock"
        );
        assert!(path.exists());
        drop(other);
        let held = listen(&path, 0o600).expect("what is left of it");
        std::fs::remove_file(&path).expect("as an operator may");
        std::fs::write(&path, "precious").expect("a file");
        drop(held);
        assert_eq!(std::fs::read(&path).expect("it stays"), b"precious");
        std::fs::remove_dir_all(directory).expect("our own");
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_named() {
        let long = PathBuf::from(format!("/tmp/{}", "a".repeat(200)));
        assert!(matches!(listen(&long, 0o600), Err(ListenError::Path(path)) if path == long));
        assert!(matches!(listen(Path::new(""), 0o600), Err(ListenError::Path(_))));
    }
}

//! Where the processes of a cluster find each other on a host: under abstract names of Unix sockets, or by sockets in a directory.
//!
//! Abstract names belong to a network namespace: processes in different namespaces do not see each other, and nothing is left of a name when its
//! process is gone.
//!
//! A directory is shared by all processes that mount it, whatever their namespaces. A dead process leaves its socket's file there, which refuses
//! connections, and a file that it had locked. The kernel releases the lock when the process ends. A process that holds the lock may remove the
//! socket's file and put its own there.
//!
//! ```text
//! DIRECTORY/CLUSTER.nN.sock        where node N listens
//! DIRECTORY/CLUSTER.nN.lock        locked by the process of node N; the file stays
//! DIRECTORY/CLUSTER.founding.lock  locked by the process that may found the cluster; the file stays
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::contract::NodeId;
use crate::host::descriptors::open;
use crate::host::lock::FileLock;
use crate::host::socket;
use crate::host::socket_file::{self, SocketFile};

/// Where the processes of a cluster find each other on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rendezvous {
    /// Under abstract names, which all processes of a network namespace see.
    #[default]
    Names,
    /// By sockets in this directory. It has to exist, on a file system of this host that all the processes mount.
    Directory(PathBuf),
}

/// The longest path that a Unix socket can have, in bytes, without the terminating zero.
const MAX_PATH_BYTES: usize = 107;

/// A socket on which a node listens, and what makes it the only one of that node.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    /// In a directory: its file, and the lock that allows the file to be there, which is released after the file is removed.
    #[expect(dead_code, reason = "it is held")]
    file: Option<(SocketFile, FileLock)>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Held by the one process of a cluster that has its lock.
#[derive(Debug)]
pub struct HostLock {
    _held: Held,
}

/// A name that this process has bound, or a file that it has locked.
#[derive(Debug)]
enum Held {
    Name { _socket: OwnedFd },
    File { _lock: FileLock },
}

impl Rendezvous {
    /// How long the directory's path may be, in bytes, for a cluster of that name: the paths of sockets are limited.
    pub fn max_directory_bytes(cluster: &str) -> usize {
        MAX_PATH_BYTES.saturating_sub(format!("/{cluster}.{}.sock", NodeId(u16::MAX)).len())
    }

    /// A listening socket at the place of `node`. An error of the kind `AddrInUse` says that another process has it.
    pub(super) fn listen(&self, cluster: &str, node: NodeId) -> io::Result<Listener> {
        let socket = socket::seqpacket()?;
        let place = match self {
            Rendezvous::Names => None,
            Rendezvous::Directory(directory) => {
                let lock = lock(directory, &format!("{cluster}.{node}.lock"))?.ok_or(io::ErrorKind::AddrInUse)?;
                let path = directory.join(format!("{cluster}.{node}.sock"));
                // A socket there belongs to a process that has died, since only we have the lock.
                socket_file::remove_stale(&path).map_err(|error| about(&path, error))?;
                Some((path, lock))
            }
        };
        rustix::net::bind(&socket, &self.address(cluster, &node.to_string())?)?;
        let file = place.map(|(path, lock)| (SocketFile::of_bound(&path), lock));
        let listener = Listener { socket, file };
        rustix::net::listen(&listener.socket, 128)?;
        Ok(listener)
    }

    /// Connects to `node`; fails at once if no process listens there. A refused socket is kept in `spare` for the next attempt. Otherwise a process
    /// that looks often for an absent node would, each time and for a moment, take a descriptor number that the program in whose process we run may
    /// be about to get.
    pub(super) fn connect(&self, cluster: &str, node: NodeId, spare: &mut Option<OwnedFd>) -> io::Result<OwnedFd> {
        let socket = spare.take().map_or_else(socket::seqpacket, Ok)?;
        match rustix::net::connect(&socket, &self.address(cluster, &node.to_string())?) {
            Ok(()) => Ok(socket),
            Err(error) => {
                // Such a refusal leaves the socket unchanged.
                *spare = matches!(error, Errno::CONNREFUSED | Errno::NOENT).then_some(socket);
                Err(error.into())
            }
        }
    }

    /// Whether a process listens at the place of `node`, or has died so recently that the kernel has not yet taken its socket back. A node listens
    /// before it does anything else. Processes that use another rendezvous, in another network namespace or with another directory, are not seen.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn is_running(&self, cluster: &str, node: NodeId) -> io::Result<bool> {
        Ok(self.listener(cluster, node)?.is_some())
    }

    /// The process that has begun to listen at the place of `node`, as the kernel noted it then; 0 if it is in a PID namespace that this process does not see.
    /// `None`: none listens. The process may have died since, if another one keeps its descriptors.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn listener(&self, cluster: &str, node: NodeId) -> io::Result<Option<i32>> {
        let dialled = socket::seqpacket()?;
        match rustix::net::connect(&dialled, &self.address(cluster, &node.to_string())?) {
            Ok(()) => Ok(Some(socket::peer(&dialled)?.pid)),
            Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(Some(0)),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock under which one process at a time may found the cluster, unless another process has it. The lock is released when its holder
    /// ends.
    ///
    /// # Errors
    /// When the system refuses to say who has it.
    pub fn claim_founding(&self, cluster: &str) -> io::Result<Option<HostLock>> {
        match self {
            Rendezvous::Names => {
                let socket = open(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None))?;
                match rustix::net::bind(&socket, &self.address(cluster, "founding")?) {
                    Ok(()) => Ok(Some(HostLock { _held: Held::Name { _socket: socket } })),
                    Err(Errno::ADDRINUSE) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            Rendezvous::Directory(directory) => {
                let lock = lock(directory, &format!("{cluster}.founding.lock"))?;
                Ok(lock.map(|lock| HostLock { _held: Held::File { _lock: lock } }))
            }
        }
    }

    fn address(&self, cluster: &str, what: &str) -> io::Result<SocketAddrUnix> {
        match self {
            Rendezvous::Names => Ok(SocketAddrUnix::new_abstract_name(format!("martlet/{cluster}/{what}").as_bytes())?),
            Rendezvous::Directory(directory) => Ok(SocketAddrUnix::new(directory.join(format!("{cluster}.{what}.sock")))?),
        }
    }
}

/// A locked file of that name; `None` if another process has locked it.
fn lock(directory: &Path, name: &str) -> io::Result<Option<FileLock>> {
    let path = directory.join(name);
    let open_it = || OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map(OwnedFd::from);
    let file = File::from(open(open_it).map_err(|error| about(&path, error))?);
    FileLock::take(file).map_err(|error| about(&path, error))
}

fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    struct Places(PathBuf);

    impl Drop for Places {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Both kinds of rendezvous, and the directory of the second.
    fn both(purpose: &str) -> ([Rendezvous; 2], String, Places) {
        let cluster = format!("rendezvous-{purpose}-{}", std::process::id());
        let directory = std::env::temp_dir().join(&cluster);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        ([Rendezvous::Names, Rendezvous::Directory(directory.clone())], cluster, Places(directory))
    }

    #[test]
    fn a_place_is_running_while_a_process_holds_it() {
        let (kinds, cluster, _places) = both("held");
        for place in kinds {
            let is_running = || place.is_running(&cluster, NodeId(3)).expect("a socket");
            assert!(!is_running());
            let held = place.listen(&cluster, NodeId(3)).expect("a free place");
            assert!(is_running());
            assert_eq!(place.listener(&cluster, NodeId(3)).expect("a socket"), Some(std::process::id() as i32));
            // Even if it does not accept, since it may be paused.
            assert!((0..300).all(|_| is_running()));
            assert_eq!(place.listen(&cluster, NodeId(3)).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
            assert!(!place.is_running(&cluster, NodeId(4)).expect("a socket"));
            drop(held);
            // A process that another test starts has a copy of the socket until it executes its program, and keeps the name for as long.
            while place == Rendezvous::Names && is_running() {
                std::thread::yield_now();
            }
            assert!(!is_running());
            drop(place.listen(&cluster, NodeId(3)).expect("free again"));
        }
    }

    #[test]
    fn one_process_of_a_host_has_the_lock_and_it_goes_with_it() {
        let (kinds, cluster, _places) = both("claim");
        for place in kinds {
            let lock = place.claim_founding(&cluster).expect("it can be told");
            assert!(lock.is_some());
            assert!(place.claim_founding(&cluster).expect("it can be told").is_none());
            assert!(place.claim_founding(&format!("{cluster}-other")).expect("it can be told").is_some());
            drop(lock);
            let claim = || place.claim_founding(&cluster).expect("it can be told");
            // As above, a process that is being started may have a copy.
            while claim().is_none() {
                assert_eq!(place, Rendezvous::Names, "a file is unlocked whatever copies there are");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn the_socket_of_an_attempt_that_was_refused_serves_for_the_next_one() {
        let (kinds, cluster, _places) = both("spare");
        for place in kinds {
            let mut spare = None;
            assert!(place.connect(&cluster, NodeId(3), &mut spare).is_err());
            let number = spare.as_ref().expect("kept").as_raw_fd();
            assert!(place.connect(&cluster, NodeId(4), &mut spare).is_err());
            assert_eq!(spare.as_ref().expect("kept again").as_raw_fd(), number);
            let held = place.listen(&cluster, NodeId(3)).expect("free");
            let socket = place.connect(&cluster, NodeId(3), &mut spare).expect("one listens");
            assert_eq!((socket.as_raw_fd(), spare.is_none()), (number, true));
            assert!(socket::accept(&held).expect("it can be told").is_some());
        }
    }

    /// A process that was killed could not remove its socket's file.
    #[test]
    fn what_a_dead_process_has_left_in_a_directory_is_in_nobody_s_way() {
        let ([_, place], cluster, places) = both("debris");
        let path = places.0.join(format!("{cluster}.n3.sock"));
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        while place.is_running(&cluster, NodeId(3)).expect("it can be told") {
            std::thread::yield_now();
        }
        let held = place.listen(&cluster, NodeId(3)).expect("nobody holds it");
        assert!(place.connect(&cluster, NodeId(3), &mut None).is_ok());
        drop(held);
        assert!(!path.exists(), "in order, nothing but the lock's file is left");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let place = Rendezvous::Directory("/nowhere/at/all".into());
        let error = place.listen("shop", NodeId(1)).expect_err("no directory").to_string();
        assert!(error.starts_with("/nowhere/at/all/shop.n1.lock: No such file"), "{error}");
        let long = "d".repeat(Rendezvous::max_directory_bytes("shop"));
        let longest = Rendezvous::Directory(format!("/{}", &long[1..]).into());
        assert!(longest.is_running("shop", NodeId(15)).is_ok_and(|runs| !runs), "as long as is allowed");
    }
}

//! Listening sockets: TCP, and Unix sockets by path or, with a leading `@`, by abstract name.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use martlet_fabric::host::socket_file::{self, SocketFile};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, getsockname, listen, socket_with, sockopt,
};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The TCP address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The Unix socket cannot be had.
    #[error("cannot listen on the Unix socket {path}: {source}")]
    Unix {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The event set cannot be had.
    #[error("cannot wait for sockets: {0}")]
    Events(#[source] io::Error),
}

/// One listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    /// Of a Unix socket with a path; it goes with the listener.
    #[expect(dead_code, reason = "it is held")]
    file: Option<SocketFile>,
    pub(super) is_tcp: bool,
    /// It is the service's: the nodes of this host share it, and its connections outlive them.
    pub(super) is_of_service: bool,
    pub(super) name: String,
}

/// How long to wait for a port that is in use: a killed process holds its port until its last thread is gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tries again while the address is in use, for as long as an earlier life of this node may be holding it.
fn patiently(mut open: impl FnMut() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let until = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5))
            }
            done => return done,
        }
    }
}

impl Listener {
    pub(super) fn tcp(address: SocketAddr) -> Result<Listener, ListenError> {
        let open = || -> io::Result<OwnedFd> {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
            // So that a restarted node gets its port back while old connections linger.
            sockopt::set_socket_reuseaddr(&fd, true)?;
            bind(&fd, &address)?;
            listen(&fd, BACKLOG)?;
            Ok(fd)
        };
        let fd = patiently(open).map_err(|source| ListenError::Tcp { address, source })?;
        let name = local_address(&fd).map_or_else(|| address.to_string(), |a| a.to_string());
        Ok(Listener { fd, file: None, is_tcp: true, is_of_service: false, name })
    }

    /// A listener that this process shares with others.
    pub(super) fn of_service(fd: OwnedFd, address: SocketAddr) -> Listener {
        Listener { fd, file: None, is_tcp: true, is_of_service: true, name: address.to_string() }
    }

    pub(super) fn unix(path: &Path) -> Result<Listener, ListenError> {
        let name = path.display().to_string();
        let is_abstract = name.starts_with('@');
        let open = || -> io::Result<(OwnedFd, Option<SocketFile>)> {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
                None => {
                    remove_stale(path)?;
                    SocketAddrUnix::new(path)?
                }
            };
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
            bind(&fd, &address)?;
            let file = (!is_abstract).then(|| SocketFile::of_bound(path));
            listen(&fd, BACKLOG)?;
            Ok((fd, file))
        };
        let (fd, file) = open().map_err(|source| ListenError::Unix { path: name.clone(), source })?;
        Ok(Listener { fd, file, is_tcp: false, is_of_service: false, name })
    }

    /// The next connection, and the address it comes from.
    pub(super) fn accept(&self) -> io::Result<(OwnedFd, String)> {
        let (fd, from) = acceptfrom_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        if !self.is_tcp {
            return Ok((fd, format!("{}:0", self.name)));
        }
        // Replies are small and complete: waiting to send more along with them would only cost time.
        sockopt::set_tcp_nodelay(&fd, true)?;
        // So that a client whose host has gone is noticed eventually, as in Redis.
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, std::time::Duration::from_secs(300))?;
        let from = from.and_then(|a| SocketAddr::try_from(a).ok()).map_or_else(|| "?:0".to_owned(), |a| a.to_string());
        Ok((fd, from))
    }

    /// The TCP address it is bound to, with the actual port if 0 was asked for.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        local_address(&self.fd)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn local_address(fd: &OwnedFd) -> Option<SocketAddr> {
    let address: SocketAddrAny = getsockname(fd).ok()?;
    SocketAddr::try_from(address).ok()
}

/// Removes the socket that a killed process has left behind. If a process listens on it, it stays, and then `bind` fails.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !socket_file::is_there(path)? {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket_file::remove_stale(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_socket_of_a_dead_process_gives_way_to_a_listener() {
        let directory = std::env::temp_dir().join(format!("martlet-redis-listener-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a fresh directory");
        let path = directory.join("redis.sock");
        std::fs::write(&path, "precious").expect("a file");
        let refused = Listener::unix(&path).expect_err("a file is there").to_string();
        let wanted = format!("cannot listen on the Unix socket {}: a regular file is there, which stays", path.display());
        assert!(refused.starts_with(&wanted), "{refused}");
        assert_eq!(std::fs::read(&path).expect("it stays"), b"precious");
        std::fs::remove_file(&path).expect("our own");
        let alive = UnixListener::bind(&path).expect("free");
        let refused = Listener::unix(&path).expect_err("a process listens").to_string();
        assert!(refused.contains("Address"), "{refused}");
        drop(alive);
        let held = Listener::unix(&path).expect("nothing but what a dead process has left");
        std::fs::remove_file(&path).expect("as an operator may");
        std::fs::write(&path, "precious").expect("a file");
        drop(held);
        assert_eq!(std::fs::read(&path).expect("it stays"), b"precious");
        std::fs::remove_file(&path).expect("our own");
        drop(Listener::unix(&path).expect("free"));
        assert!(!path.exists(), "its own is removed");
        std::fs::remove_dir(&directory).expect("empty");
    }
}

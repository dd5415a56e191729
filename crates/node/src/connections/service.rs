//! The one address of a cluster on one host: a listener that the processes of all its nodes share, so that it outlives each of them.

use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use siphasher::sip::SipHasher13;

use super::keeper::{self, Keeps};
use super::ledger::Ledger;
use super::{Holder, keeper::name_of};

/// How long connections are kept while no node leads.
pub const HELD: Duration = Duration::from_millis(keeper::LOOK_MS as u64 * keeper::PATIENCE_OF_SERVICE as u64);
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long to wait for a listener that another process has, or has just had: longer than keepers without a successor keep it, such as those of a cluster that
/// was ended while it had clients.
const PATIENCE: Duration = Duration::from_millis(keeper::LOOK_MS as u64 * (keeper::PATIENCE_OF_SERVICE as u64 + 3));
const LOOK: Duration = Duration::from_millis(5);

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The address cannot be had.
    #[error("cannot listen on {address}, the service's address: {source}; no node of this cluster holds it")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A process of the service is in another PID namespace.
    #[error(
        "cannot listen on {address}, the service's address, together with process {process} (its number in its own PID namespace), which is in another PID \
         namespace: the nodes of one address have to share one, in which none of them is process 1"
    )]
    Apart {
        /// Which.
        address: SocketAddr,
        /// Its number there.
        process: i32,
    },
    /// The kernel refuses something.
    #[error("connections cannot be kept for a successor: {0}")]
    Kernel(#[from] io::Error),
}

/// This process's part of a service.
#[derive(Debug)]
pub struct Service {
    /// This process.
    pub holder: Holder,
    /// The address where clients connect.
    pub address: SocketAddr,
    /// The listener, from which the node that leads takes connections.
    pub listener: OwnedFd,
    /// What it notes of connections.
    pub ledger: Ledger,
    /// The first part of the names of its processes' keepers.
    kind: String,
}

/// The first part of the names of a service's keepers. It is short, because names have little room, and differs from other clusters'.
pub(super) fn kind(cluster: &str, address: SocketAddr) -> String {
    let mut hasher = SipHasher13::new();
    (cluster, address).hash(&mut hasher);
    format!("service-{:016x}", hasher.finish())
}

impl Service {
    /// Takes part in the service of that cluster at that address, as this node: with the listener of a process that already has it, or with a new one. To be
    /// called by the thread that lives longest.
    ///
    /// # Errors
    /// When another program listens there, another node of the service is in another PID namespace, or the kernel refuses.
    pub fn open(cluster: &str, address: SocketAddr, node: u16) -> Result<Service, ServiceError> {
        let kind = kind(cluster, address);
        let holder = Holder::this(node)?;
        let ledger = Ledger::create()?;
        keeper::LEDGER.store(ledger.file().as_raw_fd(), Ordering::Release);
        let own = name_of(&kind, holder);
        keeper::start(&own, Keeps::Service)?;
        let until = Instant::now() + PATIENCE;
        let listener = loop {
            match listener_of_others(&kind, &own)? {
                Others::Have(listener) => break listener,
                Others::Apart(process) => return Err(ServiceError::Apart { address, process }),
                Others::Lack => {}
            }
            match new_listener(address) {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => std::thread::sleep(LOOK),
                Err(source) => return Err(ServiceError::Listen { address, source }),
            }
        };
        keeper::SERVICE.store(listener.as_raw_fd(), Ordering::Release);
        Ok(Service { holder, address, listener, ledger, kind })
    }

    /// What is needed to end this process's part in order, when the rest of the service's state here is gone.
    pub fn ending(&self) -> Ending {
        Ending { kind: self.kind.clone(), own: self.keeper_of(self.holder) }
    }

    /// The name of the keeper of a process of this service.
    pub fn keeper_of(&self, holder: Holder) -> String {
        name_of(&self.kind, holder)
    }
}

/// The orderly end of a process's part in a service. If all processes that there are end, no process is left that would continue a connection; so the last ones
/// to end keep none.
#[derive(Debug)]
pub struct Ending {
    pub(super) kind: String,
    pub(super) own: String,
}

impl Ending {
    /// To be called when this process has let go of all connections, and holds none any more except for a successor.
    pub fn end(self) {
        // In this order: if two processes end at once, at least one of them learns of the other.
        keeper::LEAVES.store(true, Ordering::SeqCst);
        let others = keepers(&self.kind).unwrap_or_default();
        let others: Vec<&String> = others.iter().filter(|name| **name != self.own).collect();
        if others.iter().all(|name| keeper::ends(name)) {
            keeper::HOLDS.store(false, Ordering::SeqCst);
            others.into_iter().for_each(|name| keeper::is_over(name));
        }
    }
}

/// Ends the keepers that keep connections for dead processes of that cluster's service at that address. For a program that has ended
/// all processes of the service, and does not start any again.
pub fn let_go(cluster: &str, address: SocketAddr) {
    keepers(&kind(cluster, address)).unwrap_or_default().iter().for_each(|name| keeper::is_over(name));
}

fn new_listener(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    // Connections from before may linger at that address.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &address)?;
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// What other processes of a service have.
enum Others {
    /// The listener.
    Have(OwnedFd),
    /// No listener.
    Lack,
    /// One of them, whose number is this in its PID namespace, is in another one than this process: none of the two could make sure that the other is dead.
    Apart(i32),
}

/// Gets the listener from another process of the service, or from a dead one whose keeper is still there.
fn listener_of_others(kind: &str, own: &str) -> io::Result<Others> {
    for name in keepers(kind)?.iter().filter(|name| *name != own) {
        match keeper::ask_for_listener(name) {
            Ok(Some(listener)) => return Ok(Others::Have(listener)),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(Others::Apart(keeper::owner(name).unwrap_or(0))),
            // A keeper that has just gone, or does not answer, is skipped.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(Others::Lack)
}

/// The names of all keepers of a service.
fn keepers(kind: &str) -> io::Result<Vec<String>> {
    let start = format!("@martlet-{kind}-");
    let known = std::fs::read_to_string("/proc/net/unix")?;
    let names = known.lines().filter_map(|line| line.split_ascii_whitespace().last()).filter(|name| name.starts_with(&start));
    let mut names: Vec<String> = names.map(|name| name[1..].to_owned()).collect();
    // A connection to a keeper is listed under the keeper's name as well.
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

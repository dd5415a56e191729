//! Unix sockets that carry whole messages: sending messages and descriptors, and finding out which process is at the other end.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use super::descriptors::{Opening, open};

/// The longest message.
pub const MAX_MESSAGE: usize = 8192;
/// The most descriptors that travel with one message.
pub const MAX_FDS: usize = 4;

/// A new, unconnected socket.
///
/// # Errors
/// When the system refuses.
pub fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    open(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))
}

/// The next connection that waits, if any.
///
/// # Errors
/// When the system refuses, above all for lack of descriptors.
pub fn accept(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let opening = Opening::begin();
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => opening.kept(socket).map(Some),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends one message. Sockets here are fresh and messages few, so a full buffer means that the peer does not read, which is an error.
///
/// # Errors
/// When the other end is closed, or its buffer is full (`WouldBlock`).
pub fn send(socket: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What [`receive`] found.
#[derive(Debug)]
pub enum Received {
    /// Nothing yet.
    Nothing,
    /// The other end is closed.
    End,
    /// Longer than any message of ours.
    TooLong,
    /// A message in the buffer, of this length, and the descriptors that came with it.
    Message(usize, Vec<OwnedFd>),
}

/// Takes the next message into `buffer`.
pub fn receive(socket: &OwnedFd, buffer: &mut [u8; MAX_MESSAGE]) -> Received {
    // Held until the descriptors that are not taken are closed, too.
    let opening = Opening::begin();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::End,
        }
    };
    // Whatever is not taken here is closed when `control` is dropped.
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights.map(|fd| opening.kept(fd)));
        }
    }
    // This happens for lack of descriptors, as it does when the kernel drops them.
    let Ok(fds) = fds.into_iter().collect::<io::Result<Vec<OwnedFd>>>() else { return Received::End };
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Received::TooLong;
    }
    if message.bytes == 0 { Received::End } else { Received::Message(message.bytes, fds) }
}

/// Reads a socket option that is a plain value.
fn option<T: Copy>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, which has that many.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, then filled by the kernel; used with plain C structs and integers only, for which every bit pattern is a value.
    Ok(unsafe { value.assume_init() })
}

/// The process at the other end of a Unix socket, as the kernel noted it when the connection was made. It cannot pass for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its pid; 0 if it is in a PID namespace that this process does not see.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
}

/// Tells which process is at the other end.
///
/// # Errors
/// When it is not a Unix socket.
pub fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let libc::ucred { pid, uid, .. } = option(socket, libc::SO_PEERCRED)?;
    Ok(Peer { pid, uid })
}

/// Checks that the user at the other end may talk to us: our own user, root, or the further user, if there is one.
pub(crate) fn authorised(socket: &OwnedFd, further: Option<u32>) -> Result<(), String> {
    let peer = peer(socket).map_err(|e| format!("cannot tell the peer's user ({e})"))?;
    may_talk(peer, rustix::process::geteuid().as_raw(), further)
}

fn may_talk(peer: Peer, ours: u32, further: Option<u32>) -> Result<(), String> {
    if [Some(0), Some(ours), further].contains(&Some(peer.uid)) {
        return Ok(());
    }
    let mut users: Vec<u32> = further.into_iter().chain([ours]).filter(|user| *user != 0).collect();
    users.dedup();
    let allowed = match users.as_slice() {
        [] => "root is".to_owned(),
        [user] => format!("user {user} and root are"),
        users => format!("users {users:?} and root are"),
    };
    Err(format!("process {} belongs to user {}, only {allowed} allowed", peer.pid, peer.uid))
}

/// SO_PEERPIDFD, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// Why a process has no descriptor here.
const UNSEEN: &str =
    "it is in a PID namespace that this process does not see, and a kernel before 6.5 names no process across namespaces: share one";

/// A descriptor of the process at the other end, whatever its PID namespace. The descriptor becomes readable when that process has ended, and never
/// names another process.
///
/// On a kernel before 6.5 it is opened by pid. In theory this can name a later process, if the peer dies meanwhile and its pid is reused; the
/// handshake that follows on the same socket then fails, since the socket ends with the peer. On such a kernel, a process in a PID namespace that
/// this process does not see has no pid here, and cannot be watched.
///
/// # Errors
/// When there is no such descriptor.
pub fn pidfd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let opening = Opening::begin();
    match option::<libc::c_int>(socket, SO_PEERPIDFD) {
        // SAFETY: the kernel has just made this descriptor for us; no other code knows it.
        Ok(raw) => opening.kept(unsafe { OwnedFd::from_raw_fd(raw) }),
        Err(_) => {
            let pid = Pid::from_raw(peer(socket)?.pid).ok_or_else(|| io::Error::other(UNSEEN))?;
            opening.kept(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_user_may_talk_only_where_it_is_named() {
        let of = |uid, ours, further| may_talk(Peer { pid: 7, uid }, ours, further);
        for (uid, ours, further) in [(0, 5, None), (5, 5, None), (0, 0, None), (9, 0, Some(9)), (0, 0, Some(9)), (5, 5, Some(5))] {
            assert_eq!(of(uid, ours, further), Ok(()));
        }
        let refused = |uid, ours, further| of(uid, ours, further).expect_err("refused");
        assert_eq!(refused(6, 5, None), "process 7 belongs to user 6, only user 5 and root are allowed");
        assert_eq!(refused(6, 0, None), "process 7 belongs to user 6, only root is allowed");
        assert_eq!(refused(6, 0, Some(9)), "process 7 belongs to user 6, only user 9 and root are allowed");
        assert_eq!(refused(6, 5, Some(9)), "process 7 belongs to user 6, only users [9, 5] and root are allowed");
    }
}

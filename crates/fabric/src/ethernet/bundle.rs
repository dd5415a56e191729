//! Packets in bundles. One call hands the system many packets of one size, and the system cuts them apart again (UDP segmentation offload); likewise,
//! one call takes many from it (UDP_GRO).
//!
//! On its way through the system a bundle is one packet, so a stream costs one walk through the system for every fifty packets. On the wire, bundles
//! do not show. Which packets arrive together means nothing: each is opened by itself, and one that does not open affects no other.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::net::SocketAddrAny;

use super::packet::MAX_PACKET;

/// The most bytes that one call takes: the longest possible UDP packet, less the headers.
const MOST_BYTES: usize = 65_000;
/// The most packets in a bundle: older kernels do not cut one into more.
const MOST_PACKETS: usize = 64;

/// Room for the number that accompanies the bytes, aligned as the system requires.
#[repr(C, align(8))]
struct Beside([u8; 24]);

const _: () = assert!(size_of::<Beside>() == size_of::<libc::cmsghdr>() + 8, "a head and one aligned number");

/// Asks the system to deliver packets in bundles.
pub(super) fn take_bundles(socket: &UdpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is a number that outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, std::ptr::from_ref(&on).cast(), size_of::<libc::c_int>() as u32)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Packets for one address that have not been sent yet.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// The size of each packet but the last, which may be shorter.
    size: usize,
}

impl Outgoing {
    /// Whether the packet can go out in the same call as those before it.
    fn takes(&self, packet: &[u8]) -> bool {
        self.bytes.is_empty()
            || (self.bytes.len().is_multiple_of(self.size)
                && packet.len() <= self.size
                && self.bytes.len() + packet.len() <= MOST_BYTES
                && self.bytes.len() / self.size < MOST_PACKETS)
    }

    /// Appends a packet. If it cannot go out with those before it, `send` gets those first.
    pub(super) fn push(&mut self, packet: &[u8], send: impl FnOnce(&[u8], usize)) {
        if !self.takes(packet) {
            self.flush(send);
        }
        if self.bytes.is_empty() {
            self.size = packet.len();
        }
        self.bytes.extend_from_slice(packet);
    }

    /// Passes what has gathered to `send`: the bytes, and the size of a packet.
    pub(super) fn flush(&mut self, send: impl FnOnce(&[u8], usize)) {
        if !self.bytes.is_empty() {
            send(&self.bytes, self.size);
            self.bytes.clear();
        }
    }
}

/// Sends packets of `size` bytes each, of which the last may be shorter, in one call.
pub(super) fn send(socket: &UdpSocket, bytes: &[u8], size: usize, to: SocketAddr) -> io::Result<()> {
    let mut to = SocketAddrAny::from(to);
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut beside = Beside([0; 24]);
    // SAFETY: all zeroes is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.as_mut_ptr().cast();
    message.msg_namelen = to.addr_len();
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = beside.0.as_mut_ptr().cast();
    // SAFETY: a matter of arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as _;
    // SAFETY: the message has room for a head and a number of 16 bits, which is all that is written, where the system's own macros say.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_UDP;
        (*head).cmsg_type = libc::UDP_SEGMENT;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(head).cast::<u16>().write_unaligned(size as u16);
    }
    // SAFETY: whatever the message points to lives until the call has returned, and the system writes none of it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes of the longest UDP packet, rounded up.
const LONGEST: usize = 1 << 16;

/// A buffer for incoming packets. It takes no memory before the first one.
#[derive(Debug, Default)]
pub(super) struct Incoming(Vec<u8>);

/// How many bytes have arrived, how long each packet but the last is, and where they came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    len: usize,
    size: usize,
    pub(super) from: SocketAddr,
}

impl Incoming {
    /// Takes one packet, or several of one size from one sender.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> io::Result<Came> {
        self.0.resize(LONGEST, 0);
        let mut piece = libc::iovec { iov_base: self.0.as_mut_ptr().cast(), iov_len: self.0.len() };
        let mut beside = Beside([0; 24]);
        // SAFETY: all zeroes is a socket's address of no family.
        let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: all zeroes is a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = beside.0.as_mut_ptr().cast();
        message.msg_controllen = beside.0.len() as _;
        // SAFETY: whatever the message points to lives until the call has returned, and is written by nobody else.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        let len = len as usize;
        let mut size = len;
        // SAFETY: the system has set the lengths in the message. Its macros find the one header that there may be, and a 32-bit number follows that
        // header where its length says so.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            if !head.is_null()
                && (*head).cmsg_level == libc::SOL_UDP
                && (*head).cmsg_type == libc::UDP_GRO
                && (*head).cmsg_len as usize >= libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize
            {
                size = usize::try_from(libc::CMSG_DATA(head).cast::<libc::c_int>().read_unaligned()).unwrap_or(len);
            }
        }
        // SAFETY: the system has written an address of that length there.
        let from = unsafe { SocketAddrAny::read((&raw const name).cast(), message.msg_namelen) };
        let from = from.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Came { len, size: size.max(1), from })
    }

    /// The packets that arrived last.
    pub(super) fn packets(&mut self, came: Came) -> impl Iterator<Item = &mut [u8]> {
        let empty = came.len == 0;
        // An empty packet is still a packet.
        let none: Option<&mut [u8]> = empty.then_some(&mut []);
        self.0[..came.len].chunks_mut(came.size).chain(none)
    }
}

const _: () = assert!(MOST_BYTES >= 32 * MAX_PACKET, "a bundle is worth its trouble");

#[cfg(test)]
mod tests {
    use super::*;

    fn bundles(sizes: &[usize]) -> Vec<Vec<usize>> {
        let (mut outgoing, mut sent) = (Outgoing::default(), Vec::new());
        let mut send = |bytes: &[u8], size: usize| sent.push(bytes.chunks(size).map(<[u8]>::len).collect());
        for size in sizes {
            outgoing.push(&vec![1; *size], &mut send);
        }
        outgoing.flush(&mut send);
        outgoing.flush(&mut send);
        sent
    }

    #[test]
    fn packets_of_one_size_go_together_and_a_shorter_one_is_the_last() {
        assert_eq!(bundles(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(bundles(&[100]), [[100]]);
        assert_eq!(bundles(&[100, 100, 60, 60, 100]), [vec![100, 100, 60], vec![60], vec![100]]);
        let lengths = |sizes: &[usize]| bundles(sizes).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&[50; 150]), [64, 64, 22]);
        assert_eq!(lengths(&[MAX_PACKET; 100]), [MOST_BYTES / MAX_PACKET, 100 - MOST_BYTES / MAX_PACKET]);
    }

    #[test]
    fn what_is_sent_as_one_comes_apart_as_it_was_whether_it_comes_as_one_or_not() {
        for together in [true, false] {
            let [here, there] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
            if together && take_bundles(&there).is_err() {
                continue;
            }
            let bytes: Vec<u8> = (0..20 * 1_000 + 300).map(|n: u32| (n / 100) as u8).collect();
            let to = there.local_addr().expect("bound");
            send(&here, &bytes, 1_000, to).expect("the loopback device takes bundles");
            here.send_to(&[], to).expect("sent");
            let (mut incoming, mut packets, mut calls) = (Incoming::default(), Vec::new(), 0);
            while packets.len() < 22 {
                let came = incoming.receive(&there).expect("it comes");
                assert_eq!(Some(came.from), here.local_addr().ok());
                packets.extend(incoming.packets(came).map(|packet| packet.to_vec()));
                calls += 1;
            }
            assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [vec![1_000; 20], vec![300, 0]].concat());
            assert_eq!(packets.concat(), bytes);
            assert_eq!(calls, if together { 2 } else { 22 });
        }
    }
}

//! Packets from a host that has no key, mixed with those of the nodes: packets that were never sent, packets that were sent before, and what a host's kernel
//! says if nothing listens at a port.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth, ipproto};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::namespaces::Namespaces;

/// How many of the packets that were heard are remembered; and the most that are heard between two that are sent.
const MEMORY: usize = 4096;
const HEARD_AT_ONCE: usize = 64;
/// How long to rest when nothing is due.
const PAUSE: Duration = Duration::from_millis(1);
/// The clear bytes that a packet begins with, and those of them that name its flow.
pub const CLEAR: usize = 16;
pub const FLOW: std::ops::Range<usize> = 4..8;
/// Longer than any frame.
const LONGEST: usize = 2048;
/// Longer than what fits into a frame.
const LONGEST_NOISE: usize = 1473;

/// Sends until it is dropped.
pub struct Flood {
    over: Arc<AtomicBool>,
    began: Instant,
    thread: Option<JoinHandle<Sent>>,
}

/// How many packets of each kind were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub noise: u64,
    pub alike: u64,
    pub again: u64,
    pub altered: u64,
    pub unreachable: u64,
}

impl Sent {
    pub fn all(&self) -> u64 {
        self.noise + self.alike + self.again + self.altered + self.unreachable
    }

    /// What was sent since then, in words.
    pub fn since(&self, began: Instant) -> String {
        let Sent { noise, alike, again, altered, unreachable } = self;
        let (all, per_s) = (self.all(), self.all() as f64 / began.elapsed().as_secs_f64());
        format!(
            "has sent {all} packets, {per_s:.0} a second: {noise} of noise, {alike} that begin like ours, {again} that were sent before, {altered} of those with a wrong bit, \
             and {unreachable} times that a port is not to be reached"
        )
    }
}

/// A UDP datagram that was heard on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    /// The bytes from its IPv4 header up to the end of its UDP header.
    pub heads: Vec<u8>,
    pub content: Vec<u8>,
}

struct Sender {
    /// The socket of the host that has no key.
    udp: UdpSocket,
    icmp: OwnedFd,
    /// A socket that hears everything on the switch.
    ear: OwnedFd,
    own: Ipv4Addr,
    /// The nodes' addresses.
    nodes: Vec<SocketAddrV4>,
    chance: Rng,
    heard: VecDeque<Heard>,
    sent: Sent,
}

impl Flood {
    /// Sends this many packets a second from that host, to all nodes and everything that talks with them. Sends fewer if one thread cannot send as many.
    ///
    /// # Errors
    /// When it cannot send, or hear.
    pub fn start(namespaces: &Namespaces, host: usize, nodes: Vec<SocketAddrV4>, per_s: u64, seed: u64) -> Result<Flood, String> {
        let own: Ipv4Addr = namespaces.address(host, 0).parse().expect("an address of IPv4");
        let (udp, icmp) = inside(&namespaces.host(host), || {
            let udp = UdpSocket::bind((own, 0))?;
            udp.set_nonblocking(true)?;
            Ok((udp, rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::NONBLOCK, Some(ipproto::ICMP))?))
        })?;
        let ear = inside(&namespaces.switches(), || {
            Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(eth::ALL))?)
        })?;
        let mut sender = Sender { udp, icmp, ear, own, nodes, chance: Rng::with_seed(seed), heard: VecDeque::new(), sent: Sent::default() };
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (began, mut sent) = (Instant::now(), 0);
            while !told.load(Ordering::Relaxed) {
                sender.listen();
                let due = (began.elapsed().as_secs_f64() * per_s as f64) as u64;
                if sent >= due {
                    std::thread::sleep(PAUSE);
                }
                // What is overdue by more than that is not sent at all: it would be a burst at another rate.
                for _ in sent..due.min(sent + per_s.div_ceil(100)) {
                    sender.send();
                }
                sent = due;
            }
            sender.sent
        });
        Ok(Flood { over, began: Instant::now(), thread: Some(thread) })
    }

    /// Ends it, and returns what was sent, in words.
    pub fn end(mut self) -> String {
        let sent = self.join().expect("it has not ended before");
        format!("the host without a key {}", sent.since(self.began))
    }

    fn join(&mut self) -> Option<Sent> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().expect("it does not panic"))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.join();
    }
}

/// Moves this thread into that network namespace.
pub fn enter(namespace: &str) -> io::Result<()> {
    let namespace = File::open(Path::new("/run/netns").join(namespace))?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Opens something in a network namespace, to which it then belongs.
fn inside<T: Send>(namespace: &str, open: impl FnOnce() -> io::Result<T> + Send) -> Result<T, String> {
    let there = || enter(namespace).and_then(|()| open());
    // In a thread of its own, since a thread cannot be sure to get back.
    let opened = std::thread::scope(|scope| scope.spawn(there).join().expect("it does not panic"));
    opened.map_err(|e| format!("no socket in {namespace}: {e}"))
}

impl Sender {
    /// Remembers the packets that have come by.
    fn listen(&mut self) {
        let mut frame = [0; LONGEST];
        for _ in 0..HEARD_AT_ONCE {
            let Ok((len, _)) = rustix::net::recv(&self.ear, &mut frame, RecvFlags::empty()) else { return };
            if let Some(heard) = Heard::read(&frame[..len]).filter(|heard| *heard.from.ip() != self.own) {
                if self.heard.len() == MEMORY {
                    self.heard.pop_front();
                }
                self.heard.push_back(heard);
            }
        }
    }

    /// Sends a packet. A packet that the kernel refuses is as good as lost.
    fn send(&mut self) {
        let Sender { udp, icmp, nodes, chance, heard, sent, .. } = self;
        let say = |packet: &[u8], to: SocketAddrV4| u64::from(udp.send_to(packet, to).is_ok());
        if heard.is_empty() || chance.u8(..5) == 0 {
            let mut noise = [0; LONGEST];
            let len = chance.usize(1..LONGEST_NOISE);
            chance.fill(&mut noise[..len]);
            sent.noise += say(&noise[..len], nodes[chance.usize(..nodes.len())]);
            return;
        }
        let heard = &heard[chance.usize(..heard.len())];
        match chance.u8(..4) {
            0 => {
                // All of it is made up except the flow's number.
                let mut packet = heard.content.clone();
                chance.fill(&mut packet[FLOW]);
                sent.alike += say(&packet, heard.to);
            }
            1 => sent.again += say(&heard.content, heard.to),
            2 => {
                let mut packet = heard.content.clone();
                packet[chance.usize(CLEAR..heard.content.len())] ^= 1 << chance.u8(..8);
                sent.altered += say(&packet, heard.to);
            }
            _ => {
                let to = SocketAddrV4::new(*heard.from.ip(), 0);
                sent.unreachable += u64::from(rustix::net::sendto(icmp, &unreachable(&heard.heads), SendFlags::empty(), &to).is_ok());
            }
        }
    }
}

impl Heard {
    /// What an Ethernet frame carries, if that is a UDP datagram in IPv4 as long as one of ours.
    pub fn read(frame: &[u8]) -> Option<Heard> {
        const UDP: u8 = 17;
        let packet = frame.get(14..).filter(|_| frame[12..14] == [0x08, 0x00])?;
        let header = usize::from(packet.first()? & 0xF) * 4;
        let heads = packet.get(..header + 8).filter(|heads| heads[0] >> 4 == 4 && header >= 20 && heads[9] == UDP)?;
        let end = |ip: usize, port: usize| {
            let ip: [u8; 4] = heads[ip..ip + 4].try_into().expect("4 bytes");
            SocketAddrV4::new(ip.into(), u16::from_be_bytes([heads[port], heads[port + 1]]))
        };
        let len = usize::from(u16::from_be_bytes([heads[header + 4], heads[header + 5]]));
        let content = packet.get(header + 8..header + len).filter(|content| content.len() > CLEAR)?;
        Some(Heard { from: end(12, header), to: end(16, header + 2), heads: heads.to_owned(), content: content.to_owned() })
    }
}

/// What a host says by ICMP to the sender of a datagram, if nothing listens at its port.
pub fn unreachable(heads: &[u8]) -> Vec<u8> {
    let mut said = [&[3, 3, 0, 0, 0, 0, 0, 0], heads].concat();
    let sum: u32 = said.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    let folded = (folded & 0xFFFF) + (folded >> 16);
    said[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let mut frame = vec![0xAA; 14];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame.extend([0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x1D, 0xB0, 0x1D, 0xB1, 0, 40, 0, 0]);
        frame.extend(0..32);
        // Ethernet pads short frames.
        frame.extend([0; 6]);
        frame
    }

    #[test]
    fn datagrams_are_heard_with_their_ends_and_nothing_else_is() {
        let heard = Heard::read(&frame()).expect("a datagram");
        assert_eq!((heard.from.to_string(), heard.to.to_string()), ("10.0.0.1:7600".into(), "10.0.0.2:7601".into()));
        assert_eq!((heard.heads.len(), heard.content), (28, (0..32).collect()));
        for (at, byte, what) in
            [(13, 0x06, "ARP"), (14, 0x65, "IPv6"), (23, 6, "TCP"), (39, 200, "cut short"), (39, 24, "shorter than ours")]
        {
            let mut other = frame();
            other[at] = byte;
            assert_eq!(Heard::read(&other), None, "{what}");
        }
        assert_eq!((0..frame().len() - 6).find(|len| Heard::read(&frame()[..*len]).is_some()), None);
    }

    #[test]
    fn an_unreachable_port_is_told_with_the_check_sum_that_kernels_look_at() {
        let said = unreachable(&frame()[14..42]);
        assert_eq!((&said[..2], &said[8..]), (&[3, 3][..], &frame()[14..42]));
        let sum: u32 = said.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF);
    }
}

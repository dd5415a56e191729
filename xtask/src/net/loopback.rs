//! Packets from a sender without a key, on a host's loopback device: as many as a core can send, to all UDP ports that are bound there.
//!
//! A quarter of the packets is sent one by one, as if from many senders. The others are sent by UDP segmentation offload, as if a network card had merged those
//! of one sender.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth, ipproto};
use rustix::process::setpriority_process;

use super::flood::{CLEAR, FLOW, Heard, Sent, enter, unreachable};
use crate::namespaces::Namespaces;

/// How many of the packets that were heard are remembered.
const MEMORY: usize = 1024;
/// How many packets are heard at a time, for how long at most, and for how long not to listen after that. While the thread listens, it gets everything that is
/// sent here as well.
const HEARD_AT_ONCE: usize = 64;
const LISTENING: Duration = Duration::from_millis(20);
const DEAF: Duration = Duration::from_millis(200);
/// How long to rest when nothing is due.
const PAUSE: Duration = Duration::from_micros(200);
/// What is overdue by more than this is not sent at all: it would be a burst at another rate.
const LATEST: Duration = Duration::from_millis(10);
/// The most that one call sends, in bytes and in packets.
const LONGEST: usize = 64_000;
const AT_ONCE: usize = 50;
/// The shortest noise, and the longest packet that any host takes in one piece.
const SHORTEST_NOISE: usize = 100;
const LONGEST_PACKET: usize = 1_232;
/// One in this many volleys is of ICMP, which is sent packet by packet.
const UNREACHABLE: u32 = 64;

type Thread<T> = JoinHandle<Result<T, String>>;

/// Sends until it is dropped.
pub struct Flood {
    over: Arc<AtomicBool>,
    began: Instant,
    /// The thread that sends, and the one that listens.
    threads: Option<(Thread<Told>, Thread<()>)>,
}

/// What was sent, and what became of it.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    sent: Sent,
    /// Packets that were sent in a call of their own.
    singly: u64,
    /// All datagrams that the host's sockets did not take, including the nodes' own.
    untaken: Untaken,
}

/// The system's count of datagrams that reached a socket and were not queued there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Untaken {
    all: u64,
    /// Those for which the socket had no room.
    full: u64,
}

/// What is known about the programs that listen.
#[derive(Debug, Default)]
struct Known {
    ports: Vec<u16>,
    heard: VecDeque<Heard>,
}

impl Flood {
    /// Sends this many packets a second from that host to itself. Sends fewer if one thread cannot send as many.
    pub fn start(namespaces: &Namespaces, host: usize, per_s: u64, seed: u64) -> Flood {
        let namespace = namespaces.host(host);
        let (over, known, own) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Known::default())), Arc::new(AtomicU16::new(0)));
        let listening = {
            let (namespace, over, known, own) = (namespace.clone(), Arc::clone(&over), Arc::clone(&known), Arc::clone(&own));
            std::thread::spawn(move || within(&namespace).and_then(|()| listen(&over, &known, &own)))
        };
        let told = Arc::clone(&over);
        let sending = std::thread::spawn(move || within(&namespace).and_then(|()| flood(&told, &known, &own, per_s, seed)));
        Flood { over, began: Instant::now(), threads: Some((sending, listening)) }
    }

    /// Ends it, and returns what was sent, in words.
    ///
    /// # Errors
    /// When it could not send, or hear.
    pub fn end(mut self) -> Result<String, String> {
        let Told { sent, singly, untaken } = self.join().expect("it has not ended before")?;
        Ok(format!(
            "one without a key {}; {singly} of the packets went out singly; of all that came to a socket, bundles counted as one, {} were not queued, {} of them because there \
             was no room",
            sent.since(self.began),
            untaken.all,
            untaken.full
        ))
    }

    fn join(&mut self) -> Option<Result<Told, String>> {
        self.over.store(true, Ordering::Relaxed);
        let (sending, listening) = self.threads.take()?;
        let heard = listening.join().expect("it does not panic");
        let sent = sending.join().expect("it does not panic");
        Some(heard.and(sent))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.join();
    }
}

fn within(namespace: &str) -> Result<(), String> {
    enter(namespace).map_err(|e| format!("no thread in {namespace}: {e}"))
}

/// Repeatedly looks which ports are bound, and hears what is sent to them.
fn listen(over: &AtomicBool, known: &Mutex<Known>, own: &AtomicU16) -> Result<(), String> {
    let mut frame = vec![0; 1 << 16];
    while !over.load(Ordering::Relaxed) {
        let own = own.load(Ordering::Relaxed);
        let tables = ["udp", "udp6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default());
        let ports: Vec<_> = tables.iter().flat_map(|table| bound(table)).filter(|port| *port != own).collect();
        let ear = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(eth::ALL));
        let ear = ear.map_err(|e| format!("no socket that hears: {e}"))?;
        let (began, mut heard) = (Instant::now(), Vec::new());
        while heard.len() < HEARD_AT_ONCE && began.elapsed() < LISTENING {
            match rustix::net::recv(&ear, &mut frame, RecvFlags::empty()) {
                // A longer one was several packets, which only the system can tell apart.
                Ok((len, _)) => heard.extend(Heard::read(&frame[..len]).filter(|heard| {
                    let between = [heard.from.port(), heard.to.port()].iter().all(|port| ports.contains(port));
                    between && heard.content.len() <= LONGEST_PACKET
                })),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        drop(ear);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.ports = ports;
        known.heard.extend(heard);
        let passed = known.heard.len().saturating_sub(MEMORY);
        known.heard.drain(..passed);
        drop(known);
        std::thread::sleep(DEAF);
    }
    Ok(())
}

fn flood(over: &AtomicBool, known: &Mutex<Known>, own: &AtomicU16, per_s: u64, seed: u64) -> Result<Told, String> {
    let sockets = || {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        udp.set_nonblocking(true)?;
        Ok((udp, rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::NONBLOCK, Some(ipproto::ICMP))?))
    };
    let (udp, icmp) = sockets().map_err(|e: io::Error| format!("no socket that sends: {e}"))?;
    own.store(udp.local_addr().map_err(|e| e.to_string())?.port(), Ordering::Relaxed);
    // A network card's packets, too, are handled before any program runs. Where this priority is not allowed, fewer are sent.
    let _ = setpriority_process(None, -20);
    let mut chance = Rng::with_seed(seed);
    let mut noise = vec![0; 2 * LONGEST];
    chance.fill(&mut noise);
    let (began, mut sent, mut alone, mut done, mut volley) = (Instant::now(), Sent::default(), 0, 0, Vec::with_capacity(LONGEST));
    let before = Untaken::now();
    while !over.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * per_s as f64) as u64;
        if done >= due {
            std::thread::sleep(PAUSE);
            continue;
        }
        done = done.max(due.saturating_sub((LATEST.as_secs_f64() * per_s as f64) as u64));
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.ports.is_empty() {
            drop(known);
            std::thread::sleep(PAUSE);
            continue;
        }
        let singly = alone <= sent.all() / 4;
        let most = if singly { 1 } else { AT_ONCE.min((due - done) as usize) };
        if !known.heard.is_empty() && chance.u32(..UNREACHABLE) == 0 {
            let heard = &known.heard[chance.usize(..known.heard.len())];
            let to = SocketAddrV4::new(*heard.from.ip(), 0);
            // A packet that the kernel refuses is as good as lost, here and below.
            sent.unreachable += u64::from(rustix::net::sendto(&icmp, &unreachable(&heard.heads), SendFlags::empty(), &to).is_ok());
            done += 1;
            continue;
        }
        let (to, size, kind) = if known.heard.is_empty() || chance.u8(..4) == 0 {
            let size = chance.usize(SHORTEST_NOISE..=LONGEST_PACKET);
            let at = chance.usize(..LONGEST);
            volley.clear();
            volley.extend_from_slice(&noise[at..at + size * most.min(LONGEST / size)]);
            (SocketAddrV4::new(Ipv4Addr::LOCALHOST, known.ports[chance.usize(..known.ports.len())]), size, &mut sent.noise)
        } else {
            let heard = &known.heard[chance.usize(..known.heard.len())];
            let (content, kind) = (&heard.content, chance.u8(..3));
            volley.clear();
            for _ in 0..most.min(LONGEST / content.len()) {
                let at = volley.len();
                volley.extend_from_slice(content);
                match kind {
                    // All of it is made up except the flow's number.
                    0 => chance.fill(&mut volley[at..][FLOW]),
                    1 => {}
                    // A wrong bit in the counter, or in what is sealed.
                    _ => volley[at + chance.usize(CLEAR / 2..content.len())] ^= 1 << chance.u8(..8),
                }
            }
            (
                heard.to,
                content.len(),
                [&mut sent.alike, &mut sent.again, &mut sent.altered].into_iter().nth(kind.into()).expect("one of three"),
            )
        };
        drop(known);
        let packets = (volley.len() / size) as u64;
        let pieces = size as u16;
        let cut = [ControlMessage::UdpGsoSegments(&pieces)];
        let beside = if packets > 1 { &cut[..] } else { &[] };
        if sendmsg(udp.as_raw_fd(), &[IoSlice::new(&volley)], beside, MsgFlags::empty(), Some(&SockaddrIn::from(to))).is_ok() {
            *kind += packets;
            alone += u64::from(packets == 1);
        }
        done += packets;
    }
    Ok(Told { sent, singly: alone, untaken: Untaken::now().since(before) })
}

/// The ports in a table of UDP sockets, as the system writes it, that are bound at 127.0.0.1 or at any address and are not connected. A connected one gets none
/// of our packets.
fn bound(table: &str) -> impl Iterator<Item = u16> {
    table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (ip, port) = columns.next()?.split_once(':')?;
        let here = ip == "0100007F" || ip.bytes().all(|digit| digit == b'0') || ip == "0000000000000000FFFF00000100007F";
        let connected = !columns.next()?.ends_with(":0000");
        u16::from_str_radix(port, 16).ok().filter(|_| here && !connected)
    })
}

impl Untaken {
    /// The counts of this thread's namespace, since it was made.
    fn now() -> Untaken {
        Untaken::read(&fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default()).unwrap_or_default()
    }

    fn read(counters: &str) -> Option<Untaken> {
        let mut lines = counters.lines().filter(|line| line.starts_with("Udp:"));
        let (names, values) = (lines.next()?, lines.next()?);
        let of = |name: &str| names.split_whitespace().zip(values.split_whitespace()).find(|(of, _)| *of == name)?.1.parse().ok();
        Some(Untaken { all: of("InErrors")?, full: of("RcvbufErrors")? })
    }

    fn since(self, before: Untaken) -> Untaken {
        Untaken { all: self.all - before.all, full: self.full - before.full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_that_are_bound_at_this_host_and_no_others() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     4: 0100007F:1DB0 00000000:0000 07 00000000:00000000\n\
                     5: 00000000:0044 00000000:0000 07 00000000:00000000\n\
                     6: 01004D0A:1DB1 00000000:0000 07 00000000:00000000\n\
                     7: 0100007F:1DB4 0100007F:1DB5 01 00000000:00000000\n";
        assert_eq!(bound(table).collect::<Vec<_>>(), [7600, 68]);
        let table = "  sl  local_address                         remote_address\n\
                     7: 00000000000000000000000000000000:1DB2 00000000000000000000000000000000:0000 07\n\
                     8: 00000000000000000000000001000000:1DB3 00000000000000000000000000000000:0000 07\n";
        assert_eq!(bound(table).collect::<Vec<_>>(), [7602]);
    }

    #[test]
    fn what_the_system_counts_is_found_by_its_name() {
        let counters = "Tcp: RtoAlgorithm InErrs\nTcp: 1 2\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 10 1 7 20 5\nUdpLite: InErrors\nUdpLite: 0\n";
        let untaken = Untaken::read(counters).expect("they are there");
        assert_eq!(untaken, Untaken { all: 7, full: 5 });
        assert_eq!(untaken.since(Untaken { all: 3, full: 5 }), Untaken { all: 4, full: 0 });
        assert_eq!(Untaken::read("Tcp: InErrs\nTcp: 2\n"), None);
    }
}

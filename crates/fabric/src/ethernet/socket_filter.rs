//! What the system drops before it reaches a socket's queue: packets whose beginning no packet of ours has, and packets of no existing connection. So
//! noise and the packets of other clusters take up no room in the queue, cost no system call, and end no sleep. The filter is a classic BPF program
//! on the socket, which needs no privileges.
//!
//! The filter is no defence by itself. Whatever it lets pass is checked like everything else, and a bundle that the system has put together is
//! dropped or passed as its first packet is.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::packet::{HEAD, Kind, LAYOUT, TAG};

/// The most connections that the filter compares one by one. If there are more, it checks only how a packet begins.
const MOST_FLOWS: usize = 256;
/// Bytes of the UDP header, which packets begin with as the filter sees them.
const UDP_HEAD: u32 = 8;
/// The offset of the flow's number in our head.
const FLOW_AT: u32 = 4;

const LOAD_LENGTH: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn step(code: u32, k: u32, then: usize, otherwise: usize) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: then as u8, jf: otherwise as u8, k }
}

/// From now on, only packets of these kinds and flows reach the socket, if the system can do that. If it cannot, all packets do.
pub(super) fn admit(socket: &UdpSocket, kinds: &[Kind], flows: impl ExactSizeIterator<Item = u32>) {
    if let Err(error) = attach(socket, &mut program(kinds, flows)) {
        tracing::debug!("strangers' packets come to the queue: {error}");
        // An earlier filter would drop the packets of the latest peers.
        detach(socket);
    }
}

fn program(kinds: &[Kind], flows: impl ExactSizeIterator<Item = u32>) -> Vec<libc::sock_filter> {
    let (pass, drop) = (step(RETURN, u32::MAX, 0, 0), step(RETURN, 0, 0, 0));
    let mut steps = vec![step(LOAD_LENGTH, 0, 0, 0), step(IF_AT_LEAST, UDP_HEAD + (HEAD + TAG) as u32, 1, 0), drop];
    steps.push(step(LOAD_HALF, UDP_HEAD, 0, 0));
    for (at, kind) in kinds.iter().enumerate() {
        steps.push(step(IF_EQUAL, u16::from_be_bytes([LAYOUT, *kind as u8]).into(), kinds.len() - at, 0));
    }
    steps.push(drop);
    if flows.len() > MOST_FLOWS {
        steps.push(pass);
        return steps;
    }
    steps.push(step(LOAD_WORD, UDP_HEAD + FLOW_AT, 0, 0));
    for flow in flows {
        // The filter loads numbers in network byte order.
        steps.extend([step(IF_EQUAL, flow.swap_bytes(), 0, 1), pass]);
    }
    steps.push(drop);
    steps
}

fn attach(socket: &UdpSocket, steps: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the option's value is a program whose steps outlive the call, which copies them. The system checks the program.
    let result = unsafe {
        let value = std::ptr::from_ref(&program).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, size_of::<libc::sock_fprog>() as u32)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn detach(socket: &UdpSocket) {
    let nothing: libc::c_int = 0;
    // SAFETY: the option's value is a number that outlives the call. The call fails if there is no filter to detach, and then there is nothing to do.
    unsafe {
        let value = std::ptr::from_ref(&nothing).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, value, size_of::<libc::c_int>() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::Head;
    use super::*;

    fn packet(kind: Kind, flow: u32, len: usize) -> Vec<u8> {
        let mut packet = Head { kind, epoch: 0, flow, counter: 1 }.encode().to_vec();
        packet.resize(len, 0);
        packet
    }

    /// Sends these packets, and returns the positions of those that arrive.
    fn come(socket: &UdpSocket, packets: &[Vec<u8>]) -> Vec<usize> {
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
        for packet in packets {
            sender.send_to(packet, socket.local_addr().expect("bound")).expect("sent");
        }
        // On the loopback device a packet is queued, or dropped, before the call that sends it has returned.
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec()))
            .map(|packet| packets.iter().position(|of| *of == packet).expect("one that was sent"))
            .collect()
    }

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_nonblocking(true).expect("it can be");
        socket
    }

    #[test]
    fn what_begins_as_none_of_ours_and_what_is_of_no_flow_does_not_come() {
        let socket = socket();
        let flows = [0x0102_0304, 0xFFFF_FFFE, 7];
        let mut packets = vec![
            packet(Kind::Request, 7, 32),
            packet(Kind::Datagram, 0x0102_0304, 1_200),
            packet(Kind::Request, 0xFFFF_FFFE, 33),
            packet(Kind::Response, 7, 34),
            packet(Kind::Request, 8, 35),
            packet(Kind::Request, 0x0403_0201, 36),
            packet(Kind::Request, 7, 31),
            vec![],
            vec![LAYOUT],
        ];
        packets.push([&[LAYOUT ^ 1], &packets[0][1..], &[0]].concat());
        assert_eq!(come(&socket, &packets), (0..packets.len()).collect::<Vec<_>>(), "all do before");
        admit(&socket, &[Kind::Request, Kind::Datagram], flows.into_iter());
        assert_eq!(come(&socket, &packets), [0, 1, 2]);
        admit(&socket, &[Kind::Response], flows.into_iter());
        assert_eq!(come(&socket, &packets), [3]);
        admit(&socket, &[Kind::Request, Kind::Datagram], std::iter::empty());
        assert_eq!(come(&socket, &packets), [0; 0]);
    }

    /// What a flood does when it comes faster than it is taken.
    #[test]
    fn strangers_leave_room_in_the_queue_for_what_is_of_a_connection() {
        let mut packets = vec![packet(Kind::Request, 8, 1_000); 10_000];
        packets.push(packet(Kind::Request, 7, 1_000));
        let socket = socket();
        let before = come(&socket, &packets);
        assert!(before.len() < packets.len() - 1, "they are more than it holds");
        assert!(!before.contains(&(packets.len() - 1)), "so that the last one is lost");
        admit(&socket, &[Kind::Request], [7].into_iter());
        assert_eq!(come(&socket, &packets), [packets.len() - 1]);
    }

    /// No connection is locked out when there are many.
    #[test]
    fn each_of_the_most_flows_comes_and_of_more_all_that_begins_as_ours_do() {
        let socket = socket();
        let all: Vec<_> = (1..=MOST_FLOWS as u32).map(|flow| packet(Kind::Request, flow, 32)).collect();
        admit(&socket, &[Kind::Request], (1..=MOST_FLOWS as u32).collect::<Vec<_>>().into_iter());
        for at in [0, 1, 126, 127, 128, MOST_FLOWS - 1] {
            assert_eq!(come(&socket, &all[at..=at]), [0], "{at}");
        }
        let others = [packet(Kind::Request, 0, 32), packet(Kind::Request, 999, 33), packet(Kind::Response, 1, 34)];
        assert_eq!(come(&socket, &others), [0; 0]);
        admit(&socket, &[Kind::Request], (0..=MOST_FLOWS as u32).collect::<Vec<_>>().into_iter());
        assert_eq!(come(&socket, &others), [0, 1]);
    }

    #[test]
    fn where_the_system_takes_no_program_all_comes() {
        let socket = socket();
        admit(&socket, &[Kind::Request], std::iter::empty());
        assert_eq!(come(&socket, &[packet(Kind::Request, 7, 32)]), [0; 0]);
        assert!(attach(&socket, &mut []).is_err(), "a program has steps");
        detach(&socket);
        assert_eq!(come(&socket, &[packet(Kind::Request, 7, 32)]), [0]);
        detach(&socket);
    }
}

//! Servers that do only what any replicated write has to wait for: a client's request, a packet to each of two other hosts, the first answer, the reply. They
//! keep, check and encrypt nothing, and elect no leader. The time that they take is the system's part of what other servers take.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use clap::Args;

/// After how long an answer is taken for lost.
const LOST: Duration = Duration::from_millis(100);
/// The longest part of a request that is read.
const LONGEST: usize = 1 << 16;

/// One of these servers, for `cargo xtask peers`, which starts them on its hosts.
#[derive(Debug, Args)]
pub struct Place {
    /// The place of this server's address among them, from 0.
    number: usize,
    /// The addresses of all: `IP:PORT,...`.
    #[arg(required = true, value_delimiter = ',')]
    addresses: Vec<SocketAddr>,
}

/// Serves until it is killed. The first address is that of the server that clients ask, over TCP and in the Redis protocol; the others echo packets.
///
/// # Errors
/// Why it cannot serve.
pub fn serve(place: &Place) -> Result<(), String> {
    let Place { number, addresses } = place;
    let own = addresses.get(*number).ok_or_else(|| format!("the place {number}: allowed are 0 to {}", addresses.len() - 1))?;
    let trouble = |e: io::Error| format!("{own}: {e}");
    if *number > 0 {
        return echo(&UdpSocket::bind(own).map_err(trouble)?).map_err(trouble);
    }
    let listener = TcpListener::bind(own).map_err(trouble)?;
    for client in listener.incoming() {
        let (client, others) = (client.map_err(trouble)?, addresses[1..].to_vec());
        let packets = UdpSocket::bind((own.ip(), 0)).map_err(trouble)?;
        // A client that leaves ends only its own thread.
        std::thread::spawn(move || lead(&client, &packets, &others));
    }
    Ok(())
}

fn echo(packets: &UdpSocket) -> io::Result<()> {
    let mut packet = vec![0; LONGEST];
    loop {
        let (length, from) = packets.recv_from(&mut packet)?;
        // The sender looks at no more than this.
        packets.send_to(&packet[..length.min(8)], from)?;
    }
}

fn lead(client: &TcpStream, packets: &UdpSocket, others: &[SocketAddr]) -> io::Result<()> {
    client.set_nodelay(true)?;
    packets.set_read_timeout(Some(LOST))?;
    let mut requests = BufReader::new(client);
    let mut answer = [0; 8];
    for number in 1u64.. {
        let mut packet = number.to_le_bytes().to_vec();
        request(&mut requests, &mut packet)?;
        let tell = || others.iter().try_for_each(|other| packets.send_to(&packet, other).map(drop));
        tell()?;
        loop {
            match packets.recv(&mut answer) {
                Ok(8) if u64::from_le_bytes(answer) == number => break,
                // The answer to another client's request, or the second answer to an earlier one.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tell()?,
                Err(error) => return Err(error),
            }
        }
        (&*client).write_all(b"+OK\r\n")?;
    }
    Ok(())
}

/// Reads a request, and appends its parts to `to`.
fn request(from: &mut impl BufRead, to: &mut Vec<u8>) -> io::Result<()> {
    for _ in 0..length(from, '*')? {
        let bytes = length(from, '$')?;
        let begin = to.len();
        to.resize(begin + bytes + 2, 0);
        from.read_exact(&mut to[begin..])?;
        to.truncate(begin + bytes);
    }
    Ok(())
}

fn length(from: &mut impl BufRead, kind: char) -> io::Result<usize> {
    let mut line = String::new();
    from.take(16).read_line(&mut line)?;
    let length = line.trim_end().strip_prefix(kind).and_then(|digits| digits.parse().ok()).filter(|length| *length < LONGEST);
    length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} is no length")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_to_its_end_and_no_further() {
        let mut both = &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n"[..];
        let mut parts = Vec::new();
        request(&mut both, &mut parts).expect("a request");
        assert_eq!(parts, b"SETk\r\n");
        parts.clear();
        request(&mut both, &mut parts).expect("another one");
        assert_eq!((&parts[..], both.len()), (&b"PING"[..], 0));
        for bad in [&b""[..], b"PING\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$65536\r\n", b"*1\r\n$4\r\nPI"] {
            assert!(request(&mut &*bad, &mut Vec::new()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_client_is_answered_when_another_one_has_the_request() {
        let other = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let client = TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens");
        let (served, _) = listener.accept().expect("a client");
        let (packets, address) = (UdpSocket::bind("127.0.0.1:0").expect("a socket"), other.local_addr().expect("its address"));
        let leader = std::thread::spawn(move || lead(&served, &packets, &[address]));
        (&client).write_all(b"*1\r\n$4\r\nPING\r\n").expect("it is there");
        let mut packet = [0; 64];
        let (length, from) = other.recv_from(&mut packet).expect("it is told");
        assert_eq!(&packet[..length], b"\x01\0\0\0\0\0\0\0PING");
        // An answer that belongs to no request.
        other.send_to(&[9; 8], from).expect("sent");
        other.send_to(&packet[..8], from).expect("sent");
        let mut reply = [0; 5];
        (&client).read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"+OK\r\n");
        drop(client);
        assert!(leader.join().expect("it ends").is_err(), "its client is gone");
    }
}

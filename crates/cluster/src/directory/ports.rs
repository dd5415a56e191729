//! Ports for nodes that are all started on this host, if none were given.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::ops::RangeInclusive;

use crate::fail::{Fail, Outcome};

/// Where ports are looked for, leaving out those that the system gives to programs which ask for any port.
const RANGE: RangeInclusive<u16> = 26_000..=65_535;

/// Ports that are free now. Each is held until all are known, so that they differ. None of them is a port that the system gives to a program which asks for any
/// port. So a connection that another program opens before the node listens, or while the node is dead, cannot take it.
#[derive(Debug)]
pub(super) struct FreePorts {
    candidates: Vec<u16>,
    held: Vec<(TcpListener, UdpSocket)>,
}

impl FreePorts {
    /// `reserved` ports have owners that do not use them yet.
    pub(super) fn new(reserved: &[u16]) -> FreePorts {
        let given = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok().and_then(|text| range(&text));
        let mut candidates = candidates(given, reserved);
        // Processes that look at the same time start at different ports.
        let first = std::process::id() as usize * 61 % candidates.len().max(1);
        candidates.rotate_left(first);
        candidates.reverse();
        FreePorts { candidates, held: Vec::new() }
    }

    /// The next port that is free for TCP and for UDP.
    pub(super) fn take(&mut self) -> Outcome<u16> {
        while let Some(port) = self.candidates.pop() {
            if let (Ok(tcp), Ok(udp)) = (TcpListener::bind(("127.0.0.1", port)), UdpSocket::bind(("127.0.0.1", port))) {
                self.held.push((tcp, udp));
                return Ok(port);
            }
        }
        Err(Fail::failed(format_args!("cannot find a free port of 127.0.0.1 from {} to {}", RANGE.start(), RANGE.end())))
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(numbers.next()?.ok()?..=numbers.next()?.ok()?)
}

fn candidates(given: Option<RangeInclusive<u16>>, reserved: &[u16]) -> Vec<u16> {
    let free = |port: &u16| !reserved.contains(port);
    let ours: Vec<u16> = RANGE.filter(free).filter(|port| !given.as_ref().is_some_and(|given| given.contains(port))).collect();
    // If the system gives all of them away, there are no others.
    if ours.is_empty() { RANGE.filter(free).collect() } else { ours }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_none_that_the_system_gives_away() {
        assert_eq!(range("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(range("many"), None);
        let ours = candidates(Some(32_768..=60_999), &[27_711]);
        assert!(ours.contains(&26_000) && ours.contains(&32_767) && ours.contains(&61_000), "{ours:?}");
        assert!(!ours.contains(&32_768) && !ours.contains(&60_999) && !ours.contains(&27_711), "{ours:?}");
        assert_eq!(candidates(Some(1..=65_535), &[]).len(), RANGE.len());
    }

    #[test]
    fn they_differ_and_are_free() {
        let mut ports = FreePorts::new(&[]);
        let taken: Vec<u16> = (0..8).map(|_| ports.take().expect("a port")).collect();
        let mut different = taken.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), 8);
        assert!(TcpListener::bind(("127.0.0.1", taken[0])).is_err(), "held");
        drop(ports);
        assert!(TcpListener::bind(("127.0.0.1", taken[0])).is_ok(), "given back");
    }
}

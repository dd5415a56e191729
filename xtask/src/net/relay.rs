//! A bad wire between hosts that are network namespaces. Each host has a TUN device, and the command passes packets from one to the other. It carries all of
//! IPv4, including TCP.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tappers::{Interface, Tun};

use super::mangling::{Mangling, Wire};
use crate::namespaces::{Namespaces, ip};

/// How often to check whether to end.
const LOOK: Duration = Duration::from_millis(50);
/// Longer than any packet of a TUN device, whose MTU is 1,500.
const LONGEST: usize = 2048;

/// Carries packets until it is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// A device for each host, and the address whose packets are for it.
    ends: Vec<(Tun, Ipv4Addr)>,
    /// Whether a host is cut off: nothing comes from it or reaches it.
    cut: Vec<AtomicBool>,
    over: AtomicBool,
}

impl Relay {
    /// A wire in place of the hosts' cables to the first switch.
    ///
    /// # Errors
    /// When a device cannot be made.
    pub fn between(namespaces: &Namespaces, mangling: Mangling, seed: u64) -> Result<Relay, String> {
        let lay = |host: usize| {
            let (name, address) = (namespaces.host(host), namespaces.address(host, 0));
            let end: Ipv4Addr = address.parse().expect("an address of IPv4");
            ip(&["-n", &name, "link", "del", "eth0"])?;
            let device = device(&name, "eth0")?;
            ip(&["-n", &name, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            Ok((device, end))
        };
        Ok(Relay::carry((0..namespaces.hosts).map(lay).collect::<Result<_, String>>()?, mangling, seed))
    }

    /// A wire in place of a host's loopback device, for 127.0.0.1.
    ///
    /// # Errors
    /// When a device cannot be made.
    pub fn within(namespaces: &Namespaces, host: usize, mangling: Mangling, seed: u64) -> Result<Relay, String> {
        /// A table of routes that nothing else uses.
        const TABLE: &str = "77";
        let name = namespaces.host(host);
        let device = device(&name, "bad0")?;
        ip(&["netns", "exec", &name, "sysctl", "-qw", "net.ipv4.conf.bad0.route_localnet=1"])?;
        // Packets are sent by the device, and only those that come back from it have arrived.
        ip(&["-n", &name, "route", "add", "127.0.0.1", "dev", "bad0", "src", "127.0.0.1", "table", TABLE])?;
        ip(&["-n", &name, "rule", "add", "pref", "100", "lookup", "local"])?;
        ip(&["-n", &name, "rule", "add", "pref", "10", "iif", "lo", "to", "127.0.0.1", "lookup", TABLE])?;
        ip(&["-n", &name, "rule", "del", "pref", "0"])?;
        Ok(Relay::carry(vec![(device, Ipv4Addr::LOCALHOST)], mangling, seed))
    }

    fn carry(ends: Vec<(Tun, Ipv4Addr)>, mangling: Mangling, seed: u64) -> Relay {
        let cut = ends.iter().map(|_| AtomicBool::new(false)).collect();
        let shared = Arc::new(Shared { ends, cut, over: AtomicBool::new(false) });
        let carried = Arc::clone(&shared);
        let thread = std::thread::spawn(move || carried.run(Wire::new(mangling, seed)));
        Relay { shared, thread: Some(thread) }
    }

    /// Disconnects a host from the wire, or connects it again.
    pub fn cut(&self, host: usize, cut: bool) {
        self.shared.cut[host].store(cut, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

/// Makes a device of that host.
fn device(host: &str, name: &str) -> Result<Tun, String> {
    // First in our own namespace, under a name that nothing else there has.
    let own = format!("bad{}", std::process::id());
    let made = Interface::new(&own).and_then(Tun::new_named).and_then(|mut device| device.set_nonblocking(true).map(|()| device));
    let device = made.map_err(|e| format!("a TUN device cannot be made, which needs /dev/net/tun and CAP_NET_ADMIN: {e}"))?;
    ip(&["link", "set", &own, "netns", host, "name", name])?;
    ip(&["-n", host, "link", "set", name, "up"])?;
    Ok(device)
}

impl Shared {
    fn run(&self, mut wire: Wire) {
        let (began, mut packet) = (Instant::now(), [0; LONGEST]);
        while !self.over.load(Ordering::Relaxed) {
            let now = began.elapsed();
            while let Some((to, packet)) = wire.give(now) {
                if !self.cut[to].load(Ordering::Relaxed) {
                    // A packet that the kernel refuses is lost, as on any wire.
                    let _ = self.ends[to].0.send(&packet);
                }
            }
            let longest = wire.next().map_or(LOOK, |due| due.saturating_sub(now).min(LOOK));
            let timeout = Timespec::try_from(longest).expect("short");
            let mut awaited: Vec<_> = self.ends.iter().map(|(device, _)| PollFd::new(device, PollFlags::IN)).collect();
            if poll(&mut awaited, Some(&timeout)).is_err() {
                continue;
            }
            for (from, (device, _)) in self.ends.iter().enumerate() {
                while let Ok(len) = device.recv(&mut packet) {
                    if let Some(to) = self.towards(&packet[..len])
                        && !self.cut[from].load(Ordering::Relaxed)
                    {
                        wire.take(began.elapsed(), to, &packet[..len]);
                    }
                }
            }
        }
    }

    /// The host that a packet is for. A packet that is not IPv4, or is for no host, is dropped.
    fn towards(&self, packet: &[u8]) -> Option<usize> {
        if packet.first()? >> 4 != 4 {
            return None;
        }
        let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
        self.ends.iter().position(|(_, address)| address.octets() == to)
    }
}

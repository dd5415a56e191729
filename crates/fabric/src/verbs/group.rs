//! The multicast group of a cluster: its address, and a queue pair that is attached to it.
//!
//! The group has a queue pair of its own, separate from the one for datagrams to a single peer. So nothing that goes wrong with the group, such as a
//! network that does not carry it or strangers who flood it, affects those datagrams.
//!
//! On Ethernet, the kernel tells the switches (IGMP, MLD), on behalf of a socket that has joined the group and does nothing else. On InfiniBand, the
//! subnet manager would have to be asked, and would have to be there whenever anything changes; Martlet does not ask it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::device::{self, Device, DeviceChoice, DeviceError};
use super::mailbox::{Mailbox, QUEUE_KEY};
use super::queue::{Address, Destination};

/// Whether datagrams to all members go to a multicast group of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multicast {
    /// No: each member gets its own datagram.
    #[default]
    Off,
    /// Yes, to a group that is derived from the cluster's name and key.
    On,
    /// Yes, to this one.
    At(IpAddr),
}

impl Multicast {
    /// The allowed values, in words.
    pub const ALLOWED: &'static str =
        "\"off\", \"on\", or a multicast address such as \"239.192.7.1\" or \"ff18::7:1\", but none of 224.0.0.0/24";
}

impl FromStr for Multicast {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Multicast, &'static str> {
        match text {
            "off" => Ok(Multicast::Off),
            "on" => Ok(Multicast::On),
            text => match text.parse::<IpAddr>() {
                // 224.0.0.0/24 is reserved for networks themselves: switches send it everywhere, and routers listen to it.
                Ok(IpAddr::V4(ip)) if ip.is_multicast() && ip.octets()[..3] != [224, 0, 0] => Ok(Multicast::At(ip.into())),
                Ok(IpAddr::V6(ip)) if ip.is_multicast() => Ok(Multicast::At(ip.into())),
                _ => Err(Multicast::ALLOWED),
            },
        }
    }
}

impl fmt::Display for Multicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Multicast::Off => f.write_str("off"),
            Multicast::On => f.write_str("on"),
            Multicast::At(address) => address.fmt(f),
        }
    }
}

/// A cluster's group, among those that an organization may assign freely: for IPv4 one of 239.192.0.0/14 (RFC 2365), for IPv6 one of ff18::/16 (RFC
/// 4291). Two clusters may get the same group, which only makes each look in vain at the other's packets.
fn usual(cluster: &str, key: &[u8], ipv4: bool) -> IpAddr {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(b"the multicast group of ");
    mac.update(cluster.as_bytes());
    let hash = mac.finalize().into_bytes();
    if ipv4 {
        return Ipv4Addr::new(239, 192 | hash[0] & 3, hash[1], hash[2]).into();
    }
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xff, 0x18]);
    octets[2..].copy_from_slice(&hash[..14]);
    Ipv6Addr::from(octets).into()
}

/// The queue pair number that addresses every member of a group.
const EVERYBODY: u32 = 0x00ff_ffff;

/// The cluster's group and our queue pair for it. See the module.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) address: IpAddr,
    destination: Arc<Destination>,
    pub(super) mailbox: Mailbox,
    /// Has joined the group, so that the kernel tells the network and lets its packets in.
    _joined: UdpSocket,
}

impl Group {
    /// Joins the cluster's group, if one is wanted. The error says what the device, or its network, cannot do.
    pub(super) fn join(device: &Arc<Device>, wanted: Multicast, cluster: &str, key: &[u8]) -> Result<Option<Group>, String> {
        let ours = device.port.ip();
        let address = match wanted {
            Multicast::Off => return Ok(None),
            Multicast::On => usual(cluster, key, ours.is_ipv4()),
            Multicast::At(address) => address,
        };
        Group::join_at(device, address).map(Some)
    }

    fn join_at(device: &Arc<Device>, address: IpAddr) -> Result<Group, String> {
        let (port, limits, ours) = (&device.port, device.limits, device.port.ip());
        if !port.is_roce {
            return Err(format!(
                "port {} is InfiniBand, where a group has to be asked of the subnet manager, which Martlet does not do",
                port.number
            ));
        }
        if limits.groups == 0 || limits.group_members == 0 {
            return Err(format!(
                "it knows no groups (its limits max_mcast_grp and max_mcast_qp_attach are {} and {})",
                limits.groups, limits.group_members
            ));
        }
        if address.is_ipv4() != ours.is_ipv4() {
            return Err(format!("its address {ours} cannot send to group {address}, which is of another version of IP"));
        }
        let joined = tell_network(device, address).map_err(|e| format!("its network interface cannot join group {address} ({e})"))?;
        let gid = device::gid(match address {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        });
        let made = |e: io::Error| format!("cannot make a queue pair for group {address}: {e}");
        let destination = Arc::new(Destination::new(device, Address { gid, lid: 0, mtu: port.mtu }).map_err(made)?);
        let mailbox = Mailbox::new(device).map_err(made)?;
        mailbox.qp.attach(gid).map_err(|e| {
            format!(
                "a queue pair cannot be attached to group {address}: {e} (its limits are {} groups, {} queue pairs in each)",
                limits.groups, limits.group_members
            )
        })?;
        tracing::info!(device = device.name, %address, "datagrams to all members go to a multicast group, for those who hear it");
        Ok(Group { address, destination, mailbox, _joined: joined })
    }

    /// Sends a packet to the whole group.
    pub(super) fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.mailbox.send(packet, (&self.destination, EVERYBODY, QUEUE_KEY))
    }
}

fn tell_network(device: &Device, group: IpAddr) -> io::Result<UdpSocket> {
    // The system chooses the port, and nothing is sent to it: RoCE packets go to the card's port.
    match (group, device.port.ip()) {
        (IpAddr::V4(group), IpAddr::V4(ours)) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v4(&group, &ours)?;
            Ok(socket)
        }
        (group, _) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            let IpAddr::V6(group) = group else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
            socket.join_multicast_v6(&group, device.interface()?)?;
            Ok(socket)
        }
    }
}

/// What [`try_multicast`] found out about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastTrial {
    /// How many groups its queue pairs may be attached to, and how many queue pairs to each.
    pub groups: u32,
    /// See `groups`.
    pub members: u32,
    /// Whether one of its queue pairs heard what another sent to a group, or why that could not be tried.
    pub heard: Result<bool, String>,
}

impl fmt::Display for MulticastTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.heard {
            Ok(true) => write!(f, "one of its queue pairs hears what another sends to a group"),
            Ok(false) => {
                write!(f, "queue pairs can be attached to a group, but none heard another: nodes on it get their datagrams one by one")
            }
            Err(why) => return write!(f, "{why}"),
        }?;
        write!(f, "; at most {} groups with {} queue pairs each", self.groups, self.members)
    }
}

/// How long a packet to a group may take within a host, and how often it is tried.
const HEARD_WITHIN: Duration = Duration::from_millis(200);
const TRIES: u8 = 5;

/// Tries whether a device takes part in multicast: two of its queue pairs join a group of their own, and one of them sends to it. This cannot tell
/// whether the network carries such packets to other hosts; a running cluster finds that out by itself.
///
/// # Errors
/// When there is no such device.
pub fn try_multicast(choice: &DeviceChoice) -> Result<MulticastTrial, DeviceError> {
    let device = Device::open(choice)?;
    let trial = |heard| MulticastTrial { groups: device.limits.groups, members: device.limits.group_members, heard };
    let nonce = format!("{:?} {}", Instant::now(), std::process::id());
    let join = || Group::join_at(&device, usual("a trial", nonce.as_bytes(), device.port.ip().is_ipv4()));
    let (mut sender, mut listener) = match join().and_then(|one| Ok((one, join()?))) {
        Ok(both) => both,
        Err(why) => return Ok(trial(Err(why))),
    };
    let mut packet = Vec::new();
    for _ in 0..TRIES {
        if let Err(error) = sender.send(nonce.as_bytes()) {
            return Ok(trial(Err(format!("a packet to group {} cannot be sent ({error})", sender.address))));
        }
        let start = Instant::now();
        while start.elapsed() < HEARD_WITHIN {
            if listener.mailbox.receive(&mut packet) && packet == nonce.as_bytes() {
                return Ok(trial(Ok(true)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(trial(Ok(false)))
}

impl Drop for Group {
    fn drop(&mut self) {
        // An attached queue pair cannot be destroyed.
        if let Err(error) = self.mailbox.qp.detach(self.destination.gid) {
            tracing::error!(%error, "a queue pair cannot be detached from group {}", self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_have_groups_of_their_own() {
        let v4 = usual("shop", b"the key of the tests' cluster", true);
        assert_eq!(v4, usual("shop", b"the key of the tests' cluster", true), "the same at all its processes");
        let IpAddr::V4(ip) = v4 else { panic!("{v4}") };
        assert!(ip.octets()[0] == 239 && (192..196).contains(&ip.octets()[1]), "{ip}");
        assert_ne!(v4, usual("shop2", b"the key of the tests' cluster", true));
        assert_ne!(v4, usual("shop", b"the key of another cluster", true));
        let IpAddr::V6(ip) = usual("shop", b"the key of the tests' cluster", false) else { panic!("IPv4") };
        assert_eq!(ip.segments()[0], 0xff18);
    }

    #[test]
    fn groups_are_read_from_texts() {
        for good in ["off", "on", "239.1.2.3", "ff18::1"] {
            assert_eq!(good.parse::<Multicast>().map(|it| it.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "yes", "10.0.0.1", "224.0.0.1", "fe80::1", "239.1.2.3:5"] {
            assert_eq!(bad.parse::<Multicast>(), Err(Multicast::ALLOWED), "{bad}");
        }
    }
}

//! The multicast group: how many packets a multicast takes, and that every member gets it that would get it without a group.

use std::net::IpAddr;

use martlet_fabric::conformance::{self, Processes, unique_cluster};
use martlet_fabric::verbs::{DeviceChoice, MailCounters, Multicast, VerbsConfig, VerbsFabric, devices, try_multicast};
use martlet_fabric::{Fabric, NodeId, PeerEvent, PeerId, PeerKind, RegionSpec};

use crate::cluster::{config, identity};
use crate::conformance::Verbs;

/// Members that know each other, on the two devices in turn. So with three or more, at least two are on one device.
struct Cluster {
    members: Vec<VerbsFabric>,
    /// By what numbers member `i` knows the others, by node.
    numbers: Vec<Vec<PeerId>>,
    /// The latest datagram that each has heard from each.
    heard: Vec<Vec<u64>>,
    said: u64,
}

impl Cluster {
    fn new(name: &str, multicast: &[Multicast], key: Option<&[u8]>) -> Cluster {
        let start = |(node, multicast): (usize, &Multicast)| {
            let who = identity(node as u16, 1, PeerKind::Member);
            let usual = config(name, who, RegionSpec::default(), RegionSpec::default());
            let key = key.map_or(usual.key.clone(), <[u8]>::to_vec);
            VerbsFabric::start(VerbsConfig { multicast: *multicast, key, ..usual }).expect("started")
        };
        let mut members: Vec<VerbsFabric> = multicast.iter().enumerate().map(start).collect();
        for at in 0..members.len() {
            for other in 0..at {
                members[at].connect(NodeId(other as u16), members[other].listens_at().expect("it listens"));
            }
        }
        let count = members.len();
        let mut numbers = vec![vec![PeerId::SELF; count]; count];
        while (0..count).any(|of| (0..count).any(|to| of != to && numbers[of][to] == PeerId::SELF)) {
            for (of, member) in members.iter_mut().enumerate() {
                match member.event() {
                    Some(PeerEvent::Up { peer, identity }) => numbers[of][usize::from(identity.node.0)] = peer,
                    Some(gone) => panic!("{gone:?}"),
                    None => std::thread::yield_now(),
                }
            }
        }
        Cluster { heard: vec![vec![0; count]; count], members, numbers, said: 0 }
    }

    /// Lets one member say something to all. Returns by how much its counters of packets have grown: in all, and to the group.
    fn say(&mut self, of: usize) -> (u64, u64) {
        self.said += 1;
        let before = self.counters(of);
        self.members[of].multicast(&self.said.to_le_bytes());
        let after = self.counters(of);
        let others = self.members.len() as u64 - 1;
        assert_eq!(after.sent - before.sent + after.dropped - before.dropped, others, "one for each: {before:?} {after:?}");
        (after.posted - before.posted, after.to_group - before.to_group)
    }

    fn counters(&self, of: usize) -> MailCounters {
        self.members[of].mail_counters()
    }

    /// Takes what has arrived, for a while.
    fn listen(&mut self) {
        let mut datagram = Vec::new();
        for _ in 0..200 {
            for (at, member) in self.members.iter_mut().enumerate() {
                while let Some(from) = member.receive(&mut datagram) {
                    let from = self.numbers[at].iter().position(|peer| *peer == from).expect("a peer");
                    assert_ne!(from, at, "a member hears itself");
                    let said = u64::from_le_bytes(datagram[..].try_into().expect("8 bytes"));
                    assert!(said <= self.said, "never said");
                    self.heard[at][from] = self.heard[at][from].max(said);
                }
                assert_eq!(member.event(), None, "nobody goes");
            }
            std::thread::yield_now();
        }
    }

    /// Every member says something, and hears the others: so they confirm each other's packets to the group.
    fn chat(&mut self) {
        for at in 0..self.members.len() {
            self.say(at);
            self.listen();
        }
    }

    /// Whether all the others have heard the last thing that `of` has said.
    fn have_heard(&self, of: usize) -> bool {
        (0..self.members.len()).all(|at| at == of || self.heard[at][of] == self.said)
    }
}

#[test]
fn one_packet_reaches_all_members_on_one_device_and_on_two() {
    let mut cluster = Cluster::new(&unique_cluster(), &[Multicast::On; 4], None);
    let group = cluster.members[0].multicast_group().expect("one");
    assert!(group.is_multicast() && cluster.members.iter().all(|member| member.multicast_group() == Some(group)), "{group}");
    let mut packets = Vec::new();
    loop {
        cluster.chat();
        let by_group: Vec<u64> = (1..4).map(|at| cluster.counters(at).by_group).collect();
        let (posted, to_group) = cluster.say(0);
        packets.push(posted);
        cluster.listen();
        if (posted, to_group) == (1, 1) && cluster.have_heard(0) {
            let now = (1..4).map(|at| cluster.counters(at).by_group);
            assert!(now.zip(&by_group).all(|(now, before)| now > *before), "they heard it by the group");
            break;
        }
    }
    println!("packets for multicasts to three members, one after the other: {packets:?}");
    println!("{:?}", cluster.counters(0));
    assert_eq!(cluster.counters(0).rejected, 0);
}

/// A member outside the group, like one to which the network does not carry it.
#[test]
fn one_that_does_not_hear_the_group_gets_everything_alone() {
    let mut cluster = Cluster::new(&unique_cluster(), &[Multicast::On, Multicast::On, Multicast::Off, Multicast::On], None);
    assert_eq!(cluster.members[2].multicast_group(), None);
    loop {
        cluster.chat();
        let (posted, to_group) = cluster.say(0);
        assert!(posted > to_group, "one is always told alone");
        cluster.listen();
        if (posted, to_group) == (2, 1) && cluster.have_heard(0) {
            break;
        }
    }
    // Without a group, it sends to each member individually and asks none.
    assert_eq!(cluster.say(2), (3, 0));
    assert_eq!(cluster.counters(2).by_group, 0);
}

#[test]
fn a_group_that_falls_silent_costs_a_member_one_datagram() {
    let mut cluster = Cluster::new(&unique_cluster(), &[Multicast::On; 3], None);
    // Until both have heard a packet to the group and have said so.
    loop {
        cluster.chat();
        let packets = cluster.say(0);
        cluster.listen();
        if packets == (1, 1) && cluster.have_heard(0) {
            break;
        }
    }
    for at in [1, 2] {
        cluster.say(at);
        cluster.listen();
    }
    cluster.members[1].leave_multicast_group();
    let mut by_group_only = 0;
    let mut heard = 0;
    for _ in 0..60 {
        let (posted, to_group) = cluster.say(0);
        by_group_only += usize::from(posted == to_group);
        // With delay, and on a busy machine, it takes a while to arrive.
        heard += usize::from((0..20).any(|_| {
            cluster.listen();
            cluster.heard[1][0] == cluster.said
        }));
        cluster.say(1);
        cluster.say(2);
        cluster.listen();
    }
    println!("after it had left the group, a member got {heard} of 60 multicasts; {by_group_only} did not go to it alone");
    assert!(by_group_only <= 1, "{by_group_only} of 60 went to a group that it does not hear");
    assert!(heard >= 30, "{heard} of 60, on a link that may lose 5 %");
}

/// A group that the devices' addresses can send to, and one that they cannot: one is IPv4 and the other IPv6.
fn groups() -> (IpAddr, IpAddr) {
    let usual = config("c", identity(1, 1, PeerKind::Member), RegionSpec::default(), RegionSpec::default());
    let member = VerbsFabric::start(VerbsConfig { multicast: Multicast::On, ..usual }).expect("started");
    let both = (IpAddr::from([239, 192, 7, 7]), "ff18::7".parse().expect("an address"));
    if member.multicast_group().expect("one").is_ipv4() { both } else { (both.1, both.0) }
}

/// Two clusters that have the same group, by chance or by configuration: their members have the same numbers, and different keys.
#[test]
fn clusters_in_one_group_take_nothing_from_each_other() {
    let shared = Multicast::At(groups().0);
    let mut ours = Cluster::new(&unique_cluster(), &[shared; 3], None);
    let mut strangers = Cluster::new(&unique_cluster(), &[shared; 3], Some(b"the key of somebody else's cluster"));
    // It hears the others' packets. Some of them address a member of its number, but none of them is a datagram to it.
    while ours.counters(1).rejected == 0 || ours.counters(1).not_ours == 0 || ours.counters(1).by_group == 0 {
        ours.chat();
        strangers.chat();
    }
    println!("{:?}", ours.counters(1));
}

#[test]
fn what_a_device_cannot_do_is_named() {
    let who = identity(1, 1, PeerKind::Member);
    let usual = config("c", who, RegionSpec::default(), RegionSpec::default());
    let group = groups().1;
    let started = VerbsFabric::start(VerbsConfig { multicast: Multicast::At(group), ..usual });
    let error = started.map(|_| ()).expect_err("of another version").to_string();
    assert!(error.contains(&format!("cannot send to group {group}, which is of another version of IP")), "{error}");
}

#[test]
fn the_self_test_finds_that_these_devices_hear_a_group() {
    for name in devices().expect("RDMA") {
        let trial = try_multicast(&DeviceChoice { name: Some(name.clone()), ..DeviceChoice::default() }).expect("tried");
        println!("{name}: {trial}");
        assert_eq!(trial.heard, Ok(true), "{name}: {trial}");
    }
}

#[test]
fn datagrams_are_whole_and_come_from_peers() {
    conformance::datagrams_are_whole_and_come_from_peers::<Processes<Verbs<true>>>(0);
}

#[test]
fn multicast_reaches_members_but_not_the_sender() {
    conformance::multicast_reaches_members_but_not_the_sender::<Processes<Verbs<true>>>(0);
}

//! The RDMA backend on real devices, alternately the first and the second of this host. Run it where there are two:
//! `cargo xtask vm -- TEST-BINARY`.

#[cfg(target_os = "linux")]
mod conformance;
#[cfg(target_os = "linux")]
mod datagrams;
#[cfg(target_os = "linux")]
mod endpoint;
#[cfg(target_os = "linux")]
mod intruders;
#[cfg(target_os = "linux")]
mod multicast;
#[cfg(target_os = "linux")]
mod overdue;
#[cfg(target_os = "linux")]
mod revocation;
#[cfg(target_os = "linux")]
mod silence;

#[cfg(target_os = "linux")]
mod cluster {
    //! What the tests have in common.

    use std::net::SocketAddr;
    use std::str::FromStr;

    pub use martlet_fabric::conformance::unique_cluster;
    use martlet_fabric::verbs::{DeviceChoice, Patience, VerbsConfig, VerbsFabric, devices};
    use martlet_fabric::{Identity, Incarnation, NodeId, PeerKind, RegionSpec};

    pub const KEY: &[u8] = b"the key of the tests' cluster";

    pub fn identity(node: u16, incarnation: u64, kind: PeerKind) -> Identity {
        Identity { node: NodeId(node), incarnation: Incarnation(incarnation), kind }
    }

    /// How many of something to try: what the environment says, or else `usual`.
    pub fn number<T: FromStr>(variable: &str, usual: T) -> T {
        match std::env::var(variable) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}: `{text}`; allowed are numbers")),
            Err(_) => usual,
        }
    }

    /// Which of its addresses a device uses: the one that `MARTLET_GID_INDEX` names, or else its own choice.
    fn gid_index() -> Option<u8> {
        std::env::var_os("MARTLET_GID_INDEX").is_some().then(|| number("MARTLET_GID_INDEX", 0))
    }

    /// The device of a node: neighbours have different ones.
    fn device(node: u16) -> DeviceChoice {
        let names = devices().expect("RDMA");
        assert!(names.len() >= 2, "these tests need two RDMA devices, here are {names:?}");
        DeviceChoice { name: Some(names[usize::from(node) % 2].clone()), gid_index: gid_index(), ..DeviceChoice::default() }
    }

    pub fn config(cluster: &str, who: Identity, members: RegionSpec, clients: RegionSpec) -> VerbsConfig {
        VerbsConfig {
            listen: (who.kind == PeerKind::Member).then(|| SocketAddr::from(([127, 0, 0, 1], 0))),
            device: device(who.node.0),
            // An emulated processor may be stopped for long.
            patience: Patience { timeout: 16, ..Patience::default() },
            ..VerbsConfig::new(cluster, KEY, who, members, clients)
        }
    }

    pub fn start(cluster: &str, who: Identity, members: RegionSpec, clients: RegionSpec) -> VerbsFabric {
        VerbsFabric::start(config(cluster, who, members, clients)).expect("started")
    }

    /// Waits until something is so. It has no limit: a test that hangs says so by hanging.
    pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = look() {
                return found;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    use martlet_fabric::verbs::{DeviceChoice, VerbsConfig, VerbsFabric, devices};
    let who = cluster::identity(1, 1, martlet_fabric::PeerKind::Member);
    let config = VerbsConfig::new("c", cluster::KEY, who, Default::default(), Default::default());
    let choose = |device: DeviceChoice| VerbsFabric::start(VerbsConfig { device, ..config.clone() });
    let named = Some(devices().expect("RDMA")[0].clone());
    let error = choose(DeviceChoice { name: Some("none".into()), ..DeviceChoice::default() }).expect_err("none").to_string();
    assert!(error.contains("no RDMA device `none`; there are ") && error.contains(named.as_deref().expect("named")), "{error}");
    let error = choose(DeviceChoice { name: named.clone(), port: 9, ..DeviceChoice::default() }).expect_err("port").to_string();
    assert!(error.contains("it has no port 9; allowed are 1 to 1"), "{error}");
    let error = choose(DeviceChoice { name: named, gid_index: Some(200), ..DeviceChoice::default() }).expect_err("address").to_string();
    assert!(error.contains("port 1 has no address at index 200; there are 0, 1"), "{error}");
}

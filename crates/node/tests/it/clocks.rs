//! What nodes do when a clock has jumped.

use std::process::Command;

use martlet_node::counters::{Counter, EventKind};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};

use crate::cluster::Nodes;
use crate::session::Session;

/// Tells the test that it runs in a network namespace of its own, so that only it hears what it has the kernel announce.
const INSIDE: &str = "MARTLET_TEST_NET_NAMESPACE";
/// The kernel's announcement that a virtual machine has been started from a snapshot.
const EVENT: &[u8] = b"change@/devices/LNXSYSTM:00/VMGENCTR:00\0ACTION=change\0SUBSYSTEM=acpi\0NEW_VMGENID=1\0";

/// Has the kernel announce the event, which takes a privilege.
fn announce() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(KOBJECT_UEVENT))?;
    sendto(&socket, EVENT, SendFlags::empty(), &SocketAddrNetlink::new(0, 1)).map(|_| ())
}

#[test]
fn nodes_of_a_machine_that_was_set_up_from_a_snapshot_ask_for_their_lease_anew_and_go_on() {
    if std::env::var_os(INSIDE).is_none() {
        let (_, module) = module_path!().split_once("::").expect("the crate's name comes first");
        let name = format!("{module}::nodes_of_a_machine_that_was_set_up_from_a_snapshot_ask_for_their_lease_anew_and_go_on");
        let this = std::env::current_exe().expect("the test's own file");
        let inside = Command::new("unshare").arg("--net").arg(this).args(["--exact", &name]).env(INSIDE, "1").output();
        match inside {
            Ok(ended) if String::from_utf8_lossy(&ended.stderr).contains("unshare:") => {
                eprintln!("not tried: it takes the right to make a namespace");
            }
            Ok(ended) => {
                let said = String::from_utf8_lossy(&ended.stdout);
                assert!(ended.status.success() && said.contains("1 passed"), "{said}");
            }
            Err(error) => eprintln!("not tried: {error}"),
        }
        return;
    }
    let mut nodes = Nodes::start("snapshot", 3);
    nodes.settle();
    let mut session = Session::open(&nodes.cluster, 1);
    assert_eq!(session.add(), 1);
    let primary = nodes.primary();
    for round in 1..=3 {
        match announce() {
            Ok(()) => {}
            Err(Errno::PERM) => return eprintln!("not tried: it takes the right to announce events"),
            Err(error) => panic!("{error}"),
        }
        nodes.until("all have seen it", |nodes| {
            let seen = |nodes: &mut Nodes, n| nodes.reading(n).is_some_and(|r| r.get(Counter::ClockJumps) >= round);
            (0..3).all(|n| seen(nodes, n)).then_some(())
        });
        assert_eq!(session.add(), 1 + round, "it leads on");
    }
    assert!(nodes.has_event(primary, EventKind::ClockJumped));
    assert_eq!(nodes.primary(), primary, "nobody was replaced");
}

//! A link on which nothing arrives any more, while the processes at both ends live and their TCP connection stays open; and a link that goes down,
//! which the device notices.

use std::fmt;
use std::process::Command;
use std::sync::Mutex;

use martlet_fabric::{Completion, Fabric, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token};

use crate::cluster::{identity, start, unique_cluster, until};

const PUBLIC: RegionName = RegionName(1);
const LANE: RegionName = RegionName(16);

/// Lets nothing through between the virtual machine's two devices, or everything.
fn silence(silent: bool) {
    for device in ["ve0", "ve1"] {
        let mut tc = Command::new("tc");
        match silent {
            true => tc.args(["qdisc", "replace", "dev", device, "root", "netem", "loss", "100%"]),
            false => tc.args(["qdisc", "delete", "dev", device, "root"]),
        };
        assert!(tc.status().expect("tc is installed").success(), "{tc:?}");
    }
}

/// Never an infinite retry (TRAPS 34): everything that is under way or waits ends, with both planes in use. When the link is back, so is the peer,
/// under a new number.
#[test]
#[ignore = "it silences the link between the virtual machine's devices, so it runs alone"]
fn everything_ends_when_the_link_is_silent_and_goes_on_when_it_is_back() {
    let cluster = unique_cluster();
    let spec = RegionSpec { public: vec![(PUBLIC, 4096)], member_lanes: vec![(LANE, 4096)], ..RegionSpec::default() };
    let member = |node| start(&cluster, identity(node, 1, PeerKind::Member), spec.clone(), RegionSpec::default());
    let (owner, mut writer) = (member(0), member(1));
    writer.connect(NodeId(0), owner.listens_at().expect("it listens"));
    let up = |event| match event {
        PeerEvent::Up { peer, .. } => Some(peer),
        PeerEvent::Gone { .. } => None,
    };
    let first = until(|| writer.event().and_then(up));
    let lane = |peer| Remote { peer, region: Region::Lane(LANE), offset: 0 };
    let public = |peer| Remote { peer, region: Region::Public(PUBLIC), offset: 0 };
    writer.write(lane(first), &[1; 8], Token(0));
    assert_eq!(until(|| writer.poll()), Completion { token: Token(0), result: Ok(0) });

    silence(true);
    for token in 1..=100u64 {
        match token % 4 {
            0 => writer.compare_and_swap(public(first), 0, 1, Token(token)),
            1 => writer.read_word(public(first), Token(token)),
            _ => writer.write(lane(first), &[2; 64], Token(token)),
        }
    }
    for token in 1..=100 {
        assert_eq!(until(|| writer.poll()), Completion { token: Token(token), result: Err(OpError::PeerLost) });
    }
    assert_eq!(until(|| writer.event()), PeerEvent::Gone { peer: first, certain: false });

    silence(false);
    // The peer may have come back, and gone again, while the link was silent, since processes connect over another link.
    let mut lives: Vec<PeerId> = Vec::new();
    let mut token = 1000;
    let back = until(|| {
        lives.extend(writer.event().and_then(up));
        let peer = *lives.last()?;
        token += 1;
        writer.write(lane(peer), &[3; 8], Token(token));
        (until(|| writer.poll()).result == Ok(0)).then_some(peer)
    });
    assert!(back > first, "{back:?} is a number of its own");
    writer.read_word(public(back), Token(1));
    // Either the swaps had not been posted when the link fell silent, or their answers were lost: the word is 0 or 1.
    let word = until(|| writer.poll());
    assert!(word.token == Token(1) && word.result.is_ok_and(|word| word <= 1), "{word:?}");
}

/// Keeps what is logged, by any thread.
struct Log(Mutex<Vec<String>>);

impl tracing::Subscriber for &'static Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
            if field.name() == "message" {
                line += &format!(" {value:?}");
            }
        });
        self.0.lock().expect("nobody panics here").push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// An operator finds in the log that a port went down, and that it is back.
#[test]
#[ignore = "it takes the link between the virtual machine's devices down, and keeps all that is logged, so it runs alone"]
fn the_log_says_that_a_port_is_down_and_that_it_is_up() {
    static LOG: Log = Log(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(&LOG).expect("nobody else wants it");
    let spec = RegionSpec { public: vec![(PUBLIC, 4096)], ..RegionSpec::default() };
    let _member = start(&unique_cluster(), identity(0, 1, PeerKind::Member), spec, RegionSpec::default());
    let link = |state: &str| {
        let mut ip = Command::new("ip");
        assert!(ip.args(["link", "set", "ve0", state]).status().expect("ip is installed").success(), "{ip:?}");
    };
    for (state, line) in [("down", "ERROR RDMA device rxe0: port 1: down"), ("up", " INFO RDMA device rxe0: port 1: up")] {
        link(state);
        until(|| LOG.0.lock().expect("nobody panics here").iter().any(|logged| logged.trim() == line.trim()).then_some(()));
    }
}

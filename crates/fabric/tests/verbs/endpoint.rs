//! What the contract leaves to this backend: which processes are let in, clients that only read, and more operations under way than was planned for.

use std::sync::atomic::Ordering;

use martlet_fabric::verbs::{VerbsConfig, VerbsFabric};
use martlet_fabric::{
    Completion, Fabric, Local, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token,
};

use crate::cluster::{config, identity, unique_cluster, until};

const PUBLIC: RegionName = RegionName(1);
const LANE: RegionName = RegionName(16);
/// Several times the memory set aside for requests under way.
const LANE_BYTES: usize = 1 << 20;

fn setting(cluster: &str, node: u16, kind: PeerKind) -> VerbsConfig {
    let lanes = (vec![(LANE, LANE_BYTES)], vec![(LANE, 4096)]);
    let members = RegionSpec { public: vec![(PUBLIC, 4096)], owned: Vec::new(), member_lanes: lanes.0, client_lanes: lanes.1 };
    let clients = RegionSpec { public: vec![(PUBLIC, 64)], ..RegionSpec::default() };
    config(cluster, identity(node, 1, kind), members, clients)
}

fn start(config: VerbsConfig) -> VerbsFabric {
    VerbsFabric::start(config).expect("started")
}

fn up(fabric: &mut VerbsFabric) -> PeerId {
    match until(|| fabric.event()) {
        PeerEvent::Up { peer, .. } => peer,
        gone => panic!("{gone:?}"),
    }
}

fn dial(from: &VerbsFabric, node: u16, to: &VerbsFabric) {
    from.connect(NodeId(node), to.listens_at().expect("it listens"));
}

fn result(fabric: &mut VerbsFabric, token: u64) -> Result<u64, OpError> {
    let Completion { token: got, result } = until(|| fabric.poll());
    assert_eq!(got, Token(token));
    result
}

#[test]
fn one_that_has_another_key_is_refused() {
    let cluster = unique_cluster();
    let mut node = start(setting(&cluster, 0, PeerKind::Member));
    let stranger = VerbsConfig { key: b"not the key of the tests' cluster".to_vec(), ..setting(&cluster, 1, PeerKind::Member) };
    let mut stranger = start(stranger);
    dial(&stranger, 0, &node);
    let why = until(|| stranger.last_refusal());
    assert!(why.contains("different cluster keys"), "{why}");
    let why = until(|| node.last_refusal());
    assert!(why.contains("member n1") && why.contains("different cluster keys"), "{why}");
    assert_eq!((node.event(), stranger.event()), (None, None));
    assert_eq!((node.bootstrap_counters().connected, stranger.bootstrap_counters().connected), (0, 0));
    // A process with the key is still let in.
    let mut member = start(setting(&cluster, 1, PeerKind::Member));
    dial(&member, 0, &node);
    up(&mut member);
    up(&mut node);
}

#[test]
fn regions_in_huge_pages_are_like_any_others() {
    // The virtual machine is ours; elsewhere, the user who runs these tests has to provide for it.
    let _ = std::fs::write("/proc/sys/vm/nr_hugepages", "16");
    let cluster = unique_cluster();
    let roomy = |node| {
        let members = RegionSpec { public: vec![(PUBLIC, 2 << 20)], member_lanes: vec![(LANE, 2 << 20)], ..RegionSpec::default() };
        let config = config(&cluster, identity(node, 1, PeerKind::Member), members, RegionSpec::default());
        VerbsConfig { huge_pages: true, ..config }
    };
    let (mut node, mut other) = (start(roomy(0)), start(roomy(1)));
    dial(&other, 0, &node);
    let (to_node, to_other) = (up(&mut other), up(&mut node));
    let last = (2 << 20) - 8;
    for region in [Region::Public(PUBLIC), Region::Lane(LANE)] {
        other.write(Remote { peer: to_node, region, offset: last }, &77u64.to_le_bytes(), Token(1));
        assert_eq!(result(&mut other, 1), Ok(0));
    }
    for region in [LocalRegion::Public(PUBLIC), LocalRegion::Lane { writer: to_other, name: LANE }] {
        assert_eq!(node.memory(region).expect("kept")[last / 8].load(Ordering::Acquire), 77);
    }
    let kept = std::fs::read_to_string("/proc/self/smaps_rollup").expect("the kernel's account");
    assert!(kept.lines().any(|line| line.contains("Hugetlb:") && !line.contains(" 0 kB")), "{kept}");
}

#[test]
fn a_client_reads_public_memory_and_cannot_write_it() {
    let cluster = unique_cluster();
    let (mut node, mut user) = (start(setting(&cluster, 0, PeerKind::Member)), start(setting(&cluster, 1, PeerKind::Client)));
    dial(&user, 0, &node);
    let to_node = up(&mut user);
    up(&mut node);
    let word = |at: usize| Remote { peer: to_node, region: Region::Public(PUBLIC), offset: at * 8 };
    node.write(Remote { peer: PeerId::SELF, ..word(1) }, &77u64.to_le_bytes(), Token(1));
    assert_eq!(result(&mut node, 1), Ok(0));
    user.read_word(word(1), Token(1));
    assert_eq!(result(&mut user, 1), Ok(77));
    user.write(word(1), &[0; 8], Token(2));
    assert_eq!(result(&mut user, 2), Err(OpError::AccessLost));
    user.compare_and_swap(word(2), 0, 78, Token(3));
    assert_eq!(result(&mut user, 3), Err(OpError::AccessLost));
    user.write(Remote { region: Region::Lane(LANE), ..word(0) }, &[1; 8], Token(4));
    assert_eq!(result(&mut user, 4), Ok(0));
    user.read_word(word(1), Token(5));
    assert_eq!(result(&mut user, 5), Ok(77), "a refusal ends nothing");
}

/// Writes longer than the memory set aside for requests, and more of them than the card takes at once.
#[test]
fn much_may_be_under_way_at_once() {
    let cluster = unique_cluster();
    let (mut owner, mut writer) = (start(setting(&cluster, 0, PeerKind::Member)), start(setting(&cluster, 1, PeerKind::Member)));
    dial(&writer, 0, &owner);
    let (to_owner, to_writer) = (up(&mut writer), up(&mut owner));
    let at = |offset| Remote { peer: to_owner, region: Region::Lane(LANE), offset };
    // One of 600 KiB, then hundreds of small ones at its beginning, then one of 300 KiB after them.
    writer.write(at(0), &vec![1; 600 << 10], Token(0));
    for token in 1..=300u64 {
        writer.write(at(token as usize * 8), &token.to_le_bytes(), Token(token));
    }
    writer.write(at(700 << 10), &vec![2; 300 << 10], Token(301));
    for token in 0..=301 {
        assert_eq!(result(&mut writer, token), Ok(0));
    }
    let lane = owner.memory(LocalRegion::Lane { writer: to_writer, name: LANE }).expect("not forgotten");
    for (at, word) in lane.iter().enumerate() {
        let ones = 0x0101_0101_0101_0101;
        let wanted = match at * 8 {
            offset if (1..=300).contains(&at) => (offset / 8) as u64,
            offset if offset < 600 << 10 => ones,
            offset if (700 << 10..1000 << 10).contains(&offset) => 2 * ones,
            _ => 0,
        };
        assert_eq!(word.load(Ordering::Acquire), wanted, "word {at}");
    }
}

/// A READ of hundreds of packets, between words that show whether it stays within its bounds, and with operations before and after it in the line.
#[test]
fn long_reads_bring_everything() {
    let cluster = unique_cluster();
    let big = |node| {
        let members = RegionSpec { public: vec![(PUBLIC, LANE_BYTES)], ..RegionSpec::default() };
        start(config(&cluster, identity(node, 1, PeerKind::Member), members, RegionSpec::default()))
    };
    let (mut owner, mut reader) = (big(0), big(1));
    dial(&reader, 0, &owner);
    let to_owner = up(&mut reader);
    up(&mut owner);
    for (at, word) in owner.memory(LocalRegion::Public(PUBLIC)).expect("ours").iter().enumerate() {
        word.store(at as u64, Ordering::Relaxed);
    }
    let (from, into, words) = (1000, 2000, (600 << 10) / 8);
    let at = |word: usize| Remote { peer: to_owner, region: Region::Public(PUBLIC), offset: word * 8 };
    reader.read_word(at(7), Token(0));
    reader.read(at(from), Local { region: LocalRegion::Public(PUBLIC), offset: into * 8 }, words * 8, Token(1));
    reader.compare_and_swap(at(from), from as u64, 5, Token(2));
    reader.read_word(at(from), Token(3));
    assert_eq!([0, 1, 2, 3].map(|token| result(&mut reader, token)), [Ok(7), Ok(0), Ok(from as u64), Ok(5)]);
    for (at, word) in reader.memory(LocalRegion::Public(PUBLIC)).expect("ours").iter().enumerate() {
        let wanted = if (into..into + words).contains(&at) { at - into + from } else { 0 };
        assert_eq!(word.load(Ordering::Acquire), wanted as u64, "word {at}");
    }
}

/// A peer is forgotten while a READ from it is under way: once that has completed as lost, the memory is the caller's again.
#[test]
fn nothing_lands_after_a_read_has_completed_as_lost() {
    let cluster = unique_cluster();
    let big = |node| {
        let members = RegionSpec { public: vec![(PUBLIC, LANE_BYTES)], ..RegionSpec::default() };
        start(config(&cluster, identity(node, 1, PeerKind::Member), members, RegionSpec::default()))
    };
    let (owner, mut reader) = (big(0), big(1));
    owner.memory(LocalRegion::Public(PUBLIC)).expect("ours").iter().for_each(|word| word.store(1, Ordering::Relaxed));
    let landing = LocalRegion::Public(PUBLIC);
    let landed = |reader: &VerbsFabric| -> Vec<u64> {
        reader.memory(landing).expect("ours").iter().map(|word| word.load(Ordering::Acquire)).collect()
    };
    dial(&reader, 0, &owner);
    let mut lost = 0;
    while lost < 20 {
        let from = match until(|| reader.event()) {
            PeerEvent::Up { peer, .. } => peer,
            gone => panic!("{gone:?}"),
        };
        reader.memory(landing).expect("ours").iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let at = |offset| Remote { peer: from, region: Region::Public(PUBLIC), offset };
        reader.read(at(0), Local { region: landing, offset: 0 }, LANE_BYTES, Token(1));
        let early = until(|| {
            let done = reader.poll();
            (done.is_some() || landed(&reader)[lost] != 0).then_some(done)
        });
        // At every stage of the answer.
        for _ in 0..lost * 37 {
            std::hint::spin_loop();
        }
        reader.forget(from);
        let done = early.unwrap_or_else(|| until(|| reader.poll()));
        let at_once = landed(&reader);
        lost += usize::from(done.result == Err(OpError::PeerLost));
        for _ in 0..50 {
            std::thread::yield_now();
            assert!(landed(&reader) == at_once, "something has landed after the READ had completed: {done:?}");
        }
    }
}

/// An operation for whose bytes there is no room gets `PeerLost`. Its connection is then lost, and is made anew as soon as possible.
#[test]
fn a_peer_is_given_up_when_there_is_no_memory_for_an_operation() {
    // It leaves the process without free descriptors, so it runs in a process of its own.
    let test = "endpoint::write_without_memory";
    let program = std::env::current_exe().expect("this test");
    let ran = std::process::Command::new(program).args(["--exact", test, "--ignored", "--nocapture"]).output().expect("started");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
#[ignore = "it is started by another test, as a process of its own"]
fn write_without_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let cluster = unique_cluster();
    let (owner, mut writer) = (start(setting(&cluster, 0, PeerKind::Member)), start(setting(&cluster, 1, PeerKind::Member)));
    dial(&writer, 0, &owner);
    let first = up(&mut writer);
    let lane = |peer| Remote { peer, region: Region::Lane(LANE), offset: 0 };
    let bytes = vec![1; LANE_BYTES];
    // Memory for requests needs a descriptor.
    let usual = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).expect("less is always allowed");
    writer.write(lane(first), &bytes, Token(1));
    setrlimit(Resource::Nofile, usual).expect("no more than it was");
    assert_eq!(result(&mut writer, 1), Err(OpError::PeerLost));
    assert_eq!(until(|| writer.event()), PeerEvent::Gone { peer: first, certain: false });
    let second = up(&mut writer);
    writer.write(lane(second), &bytes, Token(2));
    assert_eq!(result(&mut writer, 2), Ok(0));
}

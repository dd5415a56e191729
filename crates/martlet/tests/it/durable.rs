//! State on disk: what was acknowledged outlives the replica.

use martlet::config::{Cluster, ClusterConfig, DurabilityKind, EngineKind};
use martlet::{Replica, Role, SessionCommand, StartError};

use crate::cluster::{Text, cluster, threads};

/// A directory that is deleted when the value is dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("martlet-embed-{name}-{}", std::process::id())))
    }

    /// Starts the cluster's only node from what is in this directory.
    fn start(&self, cluster: &Cluster) -> Result<Replica<Text>, StartError> {
        let builder = Replica::builder().cluster(cluster.clone()).node(0).threads(threads());
        builder.durability(DurabilityKind::Sync).directory(&self.0).start(Text::default())
    }

    /// The same, and waits until it leads.
    fn lead(&self, cluster: &Cluster) -> Replica<Text> {
        let replica = self.start(cluster).expect("it starts");
        assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
        replica
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_acknowledged_with_sync_is_there_after_an_end_and_so_are_the_sessions() {
    let scratch = Scratch::new("durable");
    let cluster = |engine| cluster("durable", engine, 1);
    let durable = cluster(EngineKind::Mu);
    let replica = scratch.lead(&durable);
    let session = replica.open_session().expect("room for one");
    let command = SessionCommand { session, seq: 1, confirmed: 0, command: b"once" };
    assert_eq!(replica.propose_once(command), Ok(b"4".to_vec()));
    replica.stop().expect("in order");
    let mut token = None;
    for more in [&b"a"[..], b"b", b"c"] {
        let replica = scratch.lead(&durable);
        let before = std::mem::replace(&mut token, replica.role().fencing_token);
        assert!(token > before, "a leader's token is larger than that of any before the end of all: {before:?}, {token:?}");
        let before = replica.read(|text| text.0.clone()).expect("it leads");
        assert!(before.starts_with(b"once"), "{before:?}");
        assert_eq!(replica.propose_once(command), Ok(b"4".to_vec()), "answered, and not executed again");
        replica.propose(more).expect("it leads");
        assert_eq!(replica.read(|text| text.0.clone()), Ok([&before[..], more].concat()));
        replica.stop().expect("in order");
    }
    let error = Replica::builder().cluster(cluster(EngineKind::PrimaryBackup)).node(0);
    let error = error.durability(DurabilityKind::Sync).start(Text::default());
    let error = error.expect_err("its engine has no journal").to_string();
    assert!(error.contains("durability.mode is \"sync\"") && error.contains("\"primary-backup\""), "{error}");
}

/// The files in a directory and in its subdirectories.
fn files(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(path).expect("there").map(|entry| entry.expect("an entry").path()).collect();
    entries.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_start_that_fails_is_no_return() {
    let scratch = Scratch::new("failing");
    let cluster = cluster("failing", EngineKind::Mu, 1);
    let number = |replica: &Replica<Text>| replica.started().process.incarnation.0 & 0xffff;
    let replica = scratch.lead(&cluster);
    replica.propose(b"kept").expect("it leads");
    replica.stop().expect("in order");
    let named = |path: &std::path::PathBuf, part: &str| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(part));
    let snapshot = files(&scratch.0).into_iter().find(|path| named(path, "snapshot")).expect("one is taken at once");
    let good = std::fs::read(&snapshot).expect("there");
    for returns in 1..3 {
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        std::fs::write(&snapshot, bad).expect("written");
        for _ in 0..3 {
            scratch.start(&cluster).expect_err("what was stable has changed");
        }
        std::fs::write(&snapshot, &good).expect("written");
        let replica = scratch.lead(&cluster);
        assert_eq!((number(&replica), replica.read(|text| text.0.clone())), (returns, Ok(b"kept".to_vec())));
        replica.stop().expect("in order");
    }
}

#[test]
fn a_log_of_another_size_is_refused_with_both_sizes_and_nothing_is_lost() {
    let scratch = Scratch::new("sizes");
    let before = cluster("sizes", EngineKind::Mu, 1);
    let mut config = ClusterConfig { key: Some(before.key().to_hex().into()), key_file: None, ..before.config().clone() };
    let written = config.sizes.log_ring_bytes;
    config.sizes.log_ring_bytes = 2 * written;
    let after = Cluster::new(config).expect("a good configuration");
    let replica = scratch.lead(&before);
    replica.propose(b"kept").expect("it leads");
    replica.stop().expect("in order");
    let said = scratch.start(&after).expect_err("what stands where depends on the size").to_string();
    let wanted = format!("written with a log of {written} bytes, and now it has {}; set sizes.log_ring_bytes back", 2 * written);
    assert!(said.contains(&wanted), "{said}");
    let replica = scratch.lead(&before);
    assert_eq!(replica.read(|text| text.0.clone()), Ok(b"kept".to_vec()));
    replica.stop().expect("in order");
}

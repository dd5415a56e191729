//! State on disk: what was acknowledged outlives the replica.

use martlet::config::{DurabilityKind, EngineKind};
use martlet::{Replica, Role, SessionCommand};

use crate::cluster::{Text, cluster, threads};

/// A directory that goes with the value.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_acknowledged_with_sync_is_there_after_an_end_and_so_are_the_sessions() {
    let scratch = Scratch(std::env::temp_dir().join(format!("martlet-embed-durable-{}", std::process::id())));
    let cluster = |engine| cluster("durable", engine, 1);
    let durable = cluster(EngineKind::Mu);
    let start = || {
        let builder = Replica::builder().cluster(durable.clone()).node(0).threads(threads());
        let replica = builder.durability(DurabilityKind::Sync).directory(&scratch.0).start(Text::default()).expect("it starts");
        assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
        replica
    };
    let replica = start();
    let session = replica.open_session().expect("room for one");
    let command = SessionCommand { session, seq: 1, confirmed: 0, command: b"once" };
    assert_eq!(replica.propose_once(command), Ok(b"4".to_vec()));
    replica.stop().expect("in order");
    for more in [&b"a"[..], b"b", b"c"] {
        let replica = start();
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

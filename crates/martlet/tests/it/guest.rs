//! A replica changes nothing of the process that it runs in unless the program asks for it.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use martlet::config::{DurabilityKind, EngineKind, ThreadsConfig};
use martlet::{Builder, ProcessPolicy, Replica, Role, Turn};
use rustix::process::{DumpableBehavior, dumpable_behavior};

use crate::cluster::{Text, cluster};

/// Set for the child process in which a test runs its replica: the test's own process contains other tests' threads and replicas.
const PART: &str = "MARTLET_TEST_GUEST";

/// Everything about a process that a replica could change, as the system reports it: its limits, how it handles signals, whether it may be dumped, its
/// children, and how the calling thread is scheduled.
fn of_the_process() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut state = read("/proc/self/limits");
    let wanted = ["Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Seccomp:", "THP_enabled", "Cpus_allowed_list", "Mems_allowed_list"];
    let status = read("/proc/thread-self/status");
    for line in status.lines().filter(|line| wanted.iter().any(|start| line.starts_with(start))) {
        writeln!(state, "{line}").expect("a string");
    }
    let stat = read("/proc/thread-self/stat");
    let (name, rest) = stat.rsplit_once(") ").expect("a name in brackets");
    // From the third field on: priority, nice value, real-time priority, policy.
    let fields: Vec<&str> = rest.split(' ').collect();
    writeln!(state, "{name}; scheduling {} {} {} {}", fields[15], fields[16], fields[37], fields[38]).expect("a string");
    let sched = read("/proc/thread-self/sched");
    // The length of its time slice, which not every kernel reports.
    for line in sched.lines().filter(|line| line.starts_with("se.slice") || line.starts_with("policy")) {
        writeln!(state, "{line}").expect("a string");
    }
    for file in ["timerslack_ns", "oom_score_adj", "coredump_filter", "personality"] {
        writeln!(state, "{file} {}", fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default()).expect("a string");
    }
    let dumpable = match dumpable_behavior().expect("asked for") {
        DumpableBehavior::NotDumpable => "not dumpable",
        DumpableBehavior::Dumpable => "dumpable",
        _ => "dumpable by root",
    };
    let children: Vec<String> = fs::read_dir("/proc/self/task")
        .expect("its threads")
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
        .collect();
    writeln!(state, "{dumpable}; children:{}", children.concat()).expect("a string");
    let directory = std::env::current_dir().expect("there is one");
    let variables: Vec<_> = std::env::vars_os().collect();
    writeln!(state, "{directory:?} {variables:?}").expect("a string");
    state
}

/// Runs a replica both ways, and records the state of the process before, meanwhile and afterwards.
fn look(builder: impl Fn() -> Builder) -> Vec<String> {
    let mut seen = vec![of_the_process()];
    let replica = builder().start(Text::default()).expect("it starts");
    assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
    replica.propose(b"a").expect("it leads");
    seen.push(of_the_process());
    replica.stop().expect("in order");
    // The handle may hold the process's signals, which the next replica needs.
    drop(replica);
    seen.push(of_the_process());
    let direct = builder().direct(Text::default()).expect("it can be prepared");
    let stop = direct.stop_handle();
    direct
        .run(|here| {
            if here.leads() && stop.requests() == 0 {
                here.propose_with(b"b", |reply| drop(reply.expect("it leads")));
                seen.push(of_the_process());
                stop.request_once();
            }
            Turn::Idle
        })
        .expect("in order");
    seen.push(of_the_process());
    seen
}

fn in_a_process_of_its_own(test: &str, of_a_guest: impl FnOnce()) {
    if std::env::var_os(PART).is_some() {
        return of_a_guest();
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let ran = command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_replica_changes_nothing_of_its_process_unasked() {
    in_a_process_of_its_own("guest::a_replica_changes_nothing_of_its_process_unasked", || {
        let directory = std::env::temp_dir().join(format!("martlet-embed-guest-{}", std::process::id()));
        for (engine, durability) in [(EngineKind::PrimaryBackup, DurabilityKind::Memory), (EngineKind::Mu, DurabilityKind::Sync)] {
            let cluster = cluster("guest", engine, 1);
            let seen = look(|| Replica::builder().cluster(cluster.clone()).node(0).durability(durability).directory(&directory));
            assert_eq!(seen.len(), 5, "before, and during and after each of two");
            for (place, state) in seen.iter().enumerate() {
                assert_eq!(*state, seen[0], "{engine}, {place}");
            }
        }
        let _ = fs::remove_dir_all(&directory);
    });
}

#[test]
fn what_a_program_gives_a_replica_is_seen_from_outside() {
    in_a_process_of_its_own("guest::what_a_program_gives_a_replica_is_seen_from_outside", || {
        let engine = EngineKind::PrimaryBackup;
        let cluster = cluster("host", engine, 1);
        let seen = look(|| {
            let builder = Replica::builder().cluster(cluster.clone()).node(0).threads(ThreadsConfig::default());
            builder.process_policy(ProcessPolicy::OWN)
        });
        for line in ["SigIgn", "SigCgt", "Max core file size", "children:"] {
            let of = |state: &str| state.lines().find(|one| one.contains(line)).expect("it is there").to_owned();
            assert_ne!(of(&seen[0]), of(&seen[1]), "the test above could not fail");
        }
    });
}

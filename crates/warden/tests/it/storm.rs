//! One application that is restarted again and again.

use martlet_warden::Resources;
use martlet_warden::client::Warden;

use crate::child::Process;
use crate::world::{Diary, Told, app, scratch};

/// How many restarts there are.
const RESTARTS: usize = 200;
/// After so many of them, the warden holds as much as it ever will.
const SETTLED: usize = 40;
/// How many lives the warden may not have cleaned up yet.
const UNDER_WAY: usize = 3;
/// By how much the allocator's own memory may grow for other reasons. A life that is not cleaned up takes more than 1.5 KiB.
const ALLOCATOR_KIB: usize = 128;

/// What a process holds.
#[derive(Debug)]
struct Holdings {
    descriptors: usize,
    mappings: usize,
    /// Its own memory, in KiB.
    anonymous: usize,
}

fn holdings(pid: i32) -> Holdings {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    let status = read("status");
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("from Linux 4.5 on");
    Holdings {
        descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count(),
        mappings: read("maps").lines().count(),
        anonymous: anonymous.trim().trim_end_matches(" kB").parse().expect("a number"),
    }
}

#[test]
fn an_application_that_is_restarted_200_times_is_told_of_each_time_and_leaves_nothing_with_its_warden() {
    let dir = scratch();
    let socket = dir.join("warden.sock");
    let daemon = Process::start("warden-with-marks", &socket);
    let mut warden = Warden::connect(&socket, "test").expect("a warden");
    let (mut diary, mut lives, mut settled) = (Diary::default(), Vec::new(), None);
    for restart in 0..RESTARTS {
        warden.monitor(app(7), Resources::default()).expect("granted");
        Process::start("joins 7", &socket).kill();
        let told = diary.next(&mut warden);
        let Told::Failure(failed, failure) = told else { panic!("restart {restart}: {told:?}") };
        assert!(failed == app(7) && failure.evidence.is_certain(), "restart {restart}: {failure:?}");
        assert_eq!(diary.0, [], "restart {restart}");
        assert!(!lives.contains(&failure.incarnation), "restart {restart} is told of again: {failure:?}");
        lives.push(failure.incarnation);
        // The warden answers this only after it has cleaned up the process, whose end it has seen.
        let (apps, _) = warden.status().expect("it answers");
        assert_eq!(apps.iter().map(|one| one.app).collect::<Vec<_>>(), [app(7)], "restart {restart}");
        if restart == SETTLED {
            settled = Some(holdings(daemon.pid()));
        }
    }
    let (before, after) = (settled.expect("before the last"), holdings(daemon.pid()));
    let is_as_before = |before: usize, after: usize, slack: usize| after <= before + slack;
    assert!(
        is_as_before(before.descriptors, after.descriptors, UNDER_WAY)
            && is_as_before(before.mappings, after.mappings, UNDER_WAY)
            && is_as_before(before.anonymous, after.anonymous, ALLOCATOR_KIB),
        "{before:?}, and after {RESTARTS} restarts {after:?}"
    );
    std::fs::remove_dir_all(dir).expect("our own");
}

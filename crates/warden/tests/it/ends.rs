//! Each way in which a program can end, or not.

use martlet_warden::Resources;
use martlet_warden::board::{Evidence, State};
use rustix::process::Signal;

use crate::child::Process;
use crate::world::{Diary, Told, World, app, state};

/// A warden, a program that joined as application 7, and one that watches it.
fn watched(role: &str) -> (World, Process, martlet_warden::client::Warden) {
    let world = World::new();
    let process = Process::start(role, &world.socket);
    let mut warden = world.connect();
    warden.monitor(app(7), Resources::default()).expect("granted");
    (world, process, warden)
}

#[test]
fn a_killed_program_has_failed_for_certain() {
    let (_world, process, mut warden) = watched("joins 7");
    process.kill();
    let (failed, failure) = Diary::default().failure(&mut warden);
    assert!(failed == app(7) && failure.evidence.is_certain(), "by its words, or by its process, whichever is seen first: {failure:?}");
    assert!(failure.incarnation != 0 && failure.at_ns != 0);
}

#[test]
fn a_program_without_words_is_known_by_its_process() {
    let (_world, process, mut warden) = watched("joins-without-words 7");
    process.kill();
    assert_eq!(Diary::default().failure(&mut warden).1.evidence, Evidence::Process);
}

#[test]
fn a_segmentation_fault_is_a_failure() {
    let (_world, mut process, mut warden) = watched("joins 7");
    process.order("segfault");
    let (failed, failure) = Diary::default().failure(&mut warden);
    assert!(failed == app(7) && failure.evidence.is_certain());
    process.await_end();
}

#[test]
fn one_that_ends_without_quitting_has_failed() {
    let (_world, mut process, mut warden) = watched("joins 7");
    process.order("exit");
    assert_eq!(Diary::default().failure(&mut warden).0, app(7));
    process.await_end();
}

#[test]
fn trap_28_one_that_quits_has_not_failed() {
    let (_world, mut process, mut warden) = watched("joins 7");
    process.order("quit");
    process.await_line("done");
    process.order("exit");
    process.await_end();
    assert_eq!(Diary::default().next(&mut warden), Told::Left(app(7)));
    assert_eq!(state(&mut warden, app(7)), State::Left);
}

#[test]
fn another_program_in_the_same_process_is_not_the_one_that_joined() {
    let (_world, mut process, mut warden) = watched("joins 7");
    process.order("exec");
    let (failed, failure) = Diary::default().failure(&mut warden);
    assert_eq!((failed, failure.evidence), (app(7), Evidence::Words));
    assert!(process.is_running());
}

#[test]
fn a_stopped_program_has_not_failed() {
    let (_world, process, mut warden) = watched("joins 7");
    process.signal(Signal::STOP);
    let mut diary = Diary::default();
    for _ in 0..100 {
        warden.poll(Some(std::time::Duration::from_millis(1)), &mut diary).expect("it waits");
        assert_eq!(state(&mut warden, app(7)), State::Alive);
    }
    process.signal(Signal::CONT);
    assert_eq!(state(&mut warden, app(7)), State::Alive);
    assert_eq!(diary.0, []);
    process.kill();
    assert_eq!(diary.failure(&mut warden).0, app(7));
}

#[test]
fn trap_32_a_program_has_failed_when_the_last_of_its_acting_threads_has_died() {
    let (_world, mut process, mut warden) = watched("joins 7");
    process.order("second thread");
    process.await_line("done");
    process.order("end second thread");
    process.await_line("done");
    let mut diary = Diary::default();
    for _ in 0..100 {
        warden.poll(Some(std::time::Duration::from_millis(1)), &mut diary).expect("it waits");
        assert_eq!(state(&mut warden, app(7)), State::Alive, "the first thread acts");
    }
    process.kill();
    // By its words, or by its process, whichever the warden's client comes to see first.
    assert!(diary.failure(&mut warden).1.evidence.is_certain());
}

#[test]
fn a_program_that_knows_of_no_warden_is_watched_unchanged() {
    let world = World::new();
    let process = Process::start("plain", &world.socket);
    let mut warden = world.connect();
    let number = warden.monitor_process(process.pid()).expect("it runs");
    assert!(!number.is_chosen());
    process.kill();
    let (failed, failure) = Diary::default().failure(&mut warden);
    assert_eq!((failed, failure.evidence), (number, Evidence::Process));
}

#[test]
fn a_process_is_adopted_as_an_application_that_others_monitor_before_and_after() {
    let world = World::new();
    let process = Process::start("plain", &world.socket);
    let mut early = world.connect();
    early.monitor(app(5), Resources::default()).expect("awaited");
    world.connect().adopt(app(5), process.pid()).expect("it runs");
    let mut late = world.connect();
    late.monitor(app(5), Resources::default()).expect("alive");
    process.kill();
    for warden in [&mut early, &mut late] {
        assert_eq!(Diary::default().failure(warden).0, app(5));
    }
}

#[test]
fn a_process_that_has_ended_already_is_told_of_at_once() {
    let world = World::new();
    let mut child = std::process::Command::new("true").spawn().expect("it runs");
    // It has ended and is not reaped: its number is still its own.
    let mut warden = world.connect();
    let number = warden.monitor_process(child.id() as i32).expect("still there");
    assert_eq!(Diary::default().failure(&mut warden).0, number);
    child.wait().expect("ours");
}

#[test]
fn a_later_process_of_the_same_number_is_not_taken_for_the_dead_one() {
    let world = World::new();
    let first = Process::start("plain", &world.socket);
    let pid = first.pid();
    let mut warden = world.connect();
    let number = warden.monitor_process(pid).expect("it runs");
    first.kill();
    assert_eq!(Diary::default().failure(&mut warden).0, number);
    // Others start processes too, so the number may be missed.
    let second = (0..200).find_map(|_| {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let process = Process::start("plain", &world.socket);
        (process.pid() == pid).then_some(process)
    });
    let Some(second) = second else {
        eprintln!("skipped: this process may not choose the next process's number");
        return;
    };
    let mut diary = Diary::default();
    let again = warden.monitor_process(pid).expect("it runs");
    assert_ne!(again, number);
    for _ in 0..20 {
        warden.poll(Some(std::time::Duration::from_millis(1)), &mut diary).expect("it waits");
        assert_eq!(state(&mut warden, again), State::Alive);
    }
    assert_eq!(diary.0, []);
    second.kill();
    assert_eq!(diary.failure(&mut warden).0, again);
}

#[test]
fn each_life_is_told_of_once_and_the_next_is_waited_for() {
    let world = World::new();
    let mut warden = world.connect();
    let mut seen = Vec::new();
    for _ in 0..20 {
        warden.monitor(app(7), Resources::default()).expect("granted");
        let process = Process::start("joins 7", &world.socket);
        process.kill();
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert_eq!(failed, app(7));
        assert!(!seen.contains(&failure.incarnation), "one life was told of twice");
        seen.push(failure.incarnation);
    }
}

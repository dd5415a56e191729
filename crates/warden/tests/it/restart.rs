//! The warden itself dies.

use std::time::Duration;

use martlet_warden::Resources;
use martlet_warden::board::{Evidence, MAX_SLOTS, State};
use martlet_warden::client::Warden;

use crate::child::Process;
use crate::world::{Diary, Told, app, scratch, state};

/// Polls until the program has registered with the next warden, and returns everything else that it was told.
fn back(diary: &mut Diary, warden: &mut Warden, daemon: &mut Process) -> Vec<Told> {
    loop {
        if let Some(at) = diary.0.iter().position(|told| matches!(told, Told::WardenBack(_))) {
            assert_eq!(diary.0[at], Told::WardenBack(Ok(())));
            return diary.0.drain(..=at).take(at).collect();
        }
        assert!(daemon.is_running(), "the next warden has ended");
        warden.poll(Some(Duration::from_millis(100)), diary).expect("it waits");
    }
}

#[test]
fn what_dies_while_there_is_no_warden_is_told_by_its_process() {
    let dir = scratch();
    let socket = dir.join("warden.sock");
    let first = Process::start("warden", &socket);
    let (process, plain) = (Process::start("joins 7", &socket), Process::start("plain", &socket));
    let mut warden = Warden::connect(&socket, "test").expect("a warden");
    warden.monitor(app(7), Resources::default()).expect("granted");
    let number = warden.monitor_process(plain.pid()).expect("it runs");
    first.kill();
    let mut diary = Diary::default();
    assert_eq!(diary.next(&mut warden), Told::WardenLost);
    assert!(warden.monitor(app(9), Resources::default()).is_err());
    process.kill();
    let (failed, failure) = diary.failure(&mut warden);
    assert_eq!((failed, failure.evidence), (app(7), Evidence::Process));
    plain.kill();
    assert_eq!(diary.failure(&mut warden).0, number);
    // The socket's path is free in spite of what the dead warden left there.
    let mut second = Process::start("warden", &socket);
    assert_eq!(back(&mut diary, &mut warden, &mut second), []);
    assert_eq!(warden.status().expect("it answers").0, []);
    std::fs::remove_dir_all(dir).expect("our own");
}

#[test]
fn programs_register_again_with_the_next_warden_and_are_watched_as_before() {
    let dir = scratch();
    let socket = dir.join("warden.sock");
    let mut daemon = Process::start("warden", &socket);
    let mut own = Warden::connect(&socket, "own").expect("a warden");
    let incarnation = own.join(app(1)).expect("free");
    let _acting = own.threads().act().expect("a word");
    let silent = Process::start("joins 7", &socket);
    let mut warden = Warden::connect(&socket, "test").expect("a warden");
    for number in [1, 7] {
        warden.monitor(app(number), Resources::default()).expect("granted");
    }
    let (mut diary, mut own_diary) = (Diary::default(), Diary::default());
    for _ in 0..20 {
        let life = warden.board().expect("a warden").life();
        daemon.kill();
        daemon = Process::start("warden", &socket);
        // In either order: the program that monitors may come back before the one that is monitored.
        assert_eq!(back(&mut diary, &mut warden, &mut daemon), [Told::WardenLost]);
        back(&mut own_diary, &mut own, &mut daemon);
        assert_ne!(warden.board().expect("a warden").life(), life);
        let (apps, _) = warden.status().expect("it answers");
        let one = apps.iter().find(|one| one.app == app(1)).expect("registered");
        assert_eq!((one.state, one.incarnation, one.words), (State::Alive, incarnation, 1));
        // The program does not poll, and is watched all the same.
        assert_eq!(state(&mut warden, app(7)), State::Alive);
    }
    silent.kill();
    assert_eq!(diary.failure(&mut warden).0, app(7));
    own.quit().expect("joined");
    assert_eq!(diary.next(&mut warden), Told::Left(app(1)));
    std::fs::remove_dir_all(dir).expect("our own");
}

#[test]
fn a_life_that_quit_while_no_warden_was_there_is_not_taken_for_the_next_one() {
    let dir = scratch();
    let socket = dir.join("warden.sock");
    let daemon = Process::start("warden", &socket);
    let mut own = Warden::connect(&socket, "own").expect("a warden");
    own.join(app(1)).expect("free");
    let mut warden = Warden::connect(&socket, "test").expect("a warden");
    warden.monitor(app(1), Resources::default()).expect("granted");
    daemon.kill();
    assert!(own.quit().is_err(), "nobody is told");
    let mut daemon = Process::start("warden", &socket);
    let (mut diary, mut own_diary) = (Diary::default(), Diary::default());
    back(&mut diary, &mut warden, &mut daemon);
    back(&mut own_diary, &mut own, &mut daemon);
    own.join(app(1)).expect("the same process, a new life");
    assert_eq!(diary.next(&mut warden), Told::Left(app(1)));
    std::fs::remove_dir_all(dir).expect("our own");
}

/// The application used to be kept as watched, and the program that had it did not ask for it again.
#[test]
fn a_monitor_that_the_next_warden_refuses_is_named_and_had_again_when_there_is_room() {
    let dir = scratch();
    let socket = dir.join("warden.sock");
    let first = Process::start("warden", &socket);
    let plain = Process::start("plain", &socket);
    let mut warden = Warden::connect(&socket, "test").expect("a warden");
    for number in [7, 8] {
        warden.monitor(app(number), Resources::default()).expect("awaited");
    }
    let watched = warden.monitor_process(plain.pid()).expect("it runs");
    first.kill();
    let mut second = Process::start("warden", &socket);
    let mut other = Warden::connect(&socket, "other").expect("a warden");
    for number in 0..MAX_SLOTS as i64 {
        other.monitor(app(1_000 + number), Resources::default()).expect("there is room");
    }
    let mut diary = Diary::default();
    while warden.slot(app(7)).is_some() || !diary.0.iter().any(|told| matches!(told, Told::WardenBack(_))) {
        assert!(second.is_running(), "the next warden has ended");
        warden.poll(Some(Duration::from_millis(100)), &mut diary).expect("it waits");
    }
    let full = "512 applications are known, as many as there is room for";
    let refused = |why: String| Told::WardenBack(Err(format!("the warden refuses: {why}")));
    let no_longer = |number: i64| refused(format!("application {number} is monitored no longer: {full}"));
    // It has a descriptor of that process itself.
    assert_eq!(diary.0, [Told::WardenLost, no_longer(7), no_longer(8), refused(full.into())]);
    diary.0.clear();
    plain.kill();
    assert_eq!(diary.failure(&mut warden).0, watched);
    drop(other);
    // The warden notices this in its own time.
    while warden.monitor(app(7), Resources::default()).is_err() {
        assert!(second.is_running(), "the next warden has ended");
        std::thread::yield_now();
    }
    Process::start("joins 7", &socket).kill();
    assert_eq!(diary.failure(&mut warden).0, app(7));
    std::fs::remove_dir_all(dir).expect("our own");
}

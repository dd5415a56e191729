//! Each way in which a program can end, and cases in which it does not.

use martlet_warden::Resources;
use martlet_warden::board::{Evidence, Marking, State};
use rustix::process::Signal;

use crate::child::{Process, spawn};
use crate::world::{Diary, Told, World, app, state};

/// Runs the test without marks and with them.
fn both(test: impl Fn(bool)) {
    test(false);
    test(true);
}

/// A warden, a program that joined as application 7, and one that watches it.
fn watched(role: &str, marks: bool) -> (World, Process, martlet_warden::client::Warden) {
    let world = World::with_marks(marks);
    let process = Process::start(role, &world.socket);
    let mut warden = world.connect();
    warden.monitor(app(7), Resources::default()).expect("granted");
    (world, process, warden)
}

#[test]
fn a_killed_program_has_failed_for_certain() {
    both(|marks| {
        let (_world, process, mut warden) = watched("joins 7", marks);
        process.kill();
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert!(failed == app(7) && failure.evidence.is_certain(), "by its words, or by its process, whichever is seen first: {failure:?}");
        assert!(failure.incarnation != 0 && failure.at_ns != 0);
    });
}

#[test]
fn a_program_without_words_is_known_by_its_process() {
    both(|marks| {
        let (_world, process, mut warden) = watched("joins-without-words 7", marks);
        process.kill();
        let (_, failure) = Diary::default().failure(&mut warden);
        assert!(
            matches!(failure.evidence, Evidence::Process | Evidence::Marks) && (marks || failure.evidence == Evidence::Process),
            "{failure:?}"
        );
    });
}

#[test]
fn a_segmentation_fault_is_a_failure() {
    both(|marks| {
        let (_world, mut process, mut warden) = watched("joins 7", marks);
        process.order("segfault");
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert!(failed == app(7) && failure.evidence.is_certain());
        process.await_end();
    });
}

#[test]
fn one_that_ends_without_quitting_has_failed() {
    both(|marks| {
        let (_world, mut process, mut warden) = watched("joins 7", marks);
        process.order("exit");
        assert_eq!(Diary::default().failure(&mut warden).0, app(7));
        process.await_end();
    });
}

#[test]
fn trap_28_one_that_quits_has_not_failed() {
    both(|marks| {
        let (_world, mut process, mut warden) = watched("joins 7", marks);
        process.order("quit");
        process.await_line("done");
        process.order("exit");
        process.await_end();
        assert_eq!(Diary::default().next(&mut warden), Told::Left(app(7)));
        assert_eq!(state(&mut warden, app(7)), State::Left);
    });
}

#[test]
fn another_program_in_the_same_process_is_not_the_one_that_joined() {
    both(|marks| {
        let (_world, mut process, mut warden) = watched("joins 7", marks);
        process.order("exec");
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert_eq!(failed, app(7));
        assert!(matches!(failure.evidence, Evidence::Words | Evidence::Marks), "{failure:?}");
        assert!(process.is_running());
    });
}

#[test]
fn a_stopped_program_has_not_failed() {
    both(|marks| {
        let (_world, process, mut warden) = watched("joins 7", marks);
        process.stop();
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
    });
}

#[test]
fn trap_32_a_program_has_failed_when_the_last_of_its_acting_threads_has_died() {
    both(|marks| {
        let (_world, mut process, mut warden) = watched("joins 7", marks);
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
        // Its words or its process may tell of the death: whichever the warden's client sees first.
        assert!(diary.failure(&mut warden).1.evidence.is_certain());
    });
}

#[test]
fn a_program_that_knows_of_no_warden_is_watched_unchanged() {
    both(|marks| {
        let world = World::with_marks(marks);
        let process = Process::start("plain", &world.socket);
        let mut warden = world.connect();
        let number = warden.monitor_process(process.pid()).expect("it runs");
        assert!(!number.is_chosen());
        process.kill();
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert_eq!(failed, number);
        assert!(
            matches!(failure.evidence, Evidence::Process | Evidence::Marks) && (marks || failure.evidence == Evidence::Process),
            "{failure:?}"
        );
    });
}

#[test]
fn a_process_is_adopted_as_an_application_that_others_monitor_before_and_after() {
    both(|marks| {
        let world = World::with_marks(marks);
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
    });
}

#[test]
fn a_process_that_has_ended_already_is_told_of_at_once() {
    both(|marks| {
        let world = World::with_marks(marks);
        let mut child = spawn(&mut std::process::Command::new("true"));
        // It has ended and is not reaped yet, so its process id is not reused.
        let mut warden = world.connect();
        let number = warden.monitor_process(child.id() as i32).expect("still there");
        assert_eq!(Diary::default().failure(&mut warden).0, number);
        child.wait().expect("ours");
    });
}

#[test]
fn a_later_process_of_the_same_number_is_not_taken_for_the_dead_one() {
    both(|marks| {
        let world = World::with_marks(marks);
        let first = Process::start("plain", &world.socket);
        let pid = first.pid();
        let mut warden = world.connect();
        let number = warden.monitor_process(pid).expect("it runs");
        first.kill();
        assert_eq!(Diary::default().failure(&mut warden).0, number);
        // Other programs start processes too, so the process id may be missed.
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
    });
}

#[test]
fn each_life_is_told_of_once_and_the_next_is_waited_for() {
    both(|marks| {
        let world = World::with_marks(marks);
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
    });
}

/// Whether a program's end is reported by marks, in one of a few attempts: on a busy host the kernel's own word may be seen first.
fn is_told_by_marks(marking: Marking, attempt: impl Fn(&World) -> Evidence) {
    let world = World::with_marks(true);
    let found = world.connect().board().map_or(Marking::Nothing, |board| board.marking());
    if (found as u8) < marking as u8 {
        eprintln!("skipped: the kernel permits {found:?}, not {marking:?}");
        return;
    }
    assert!((0..20).any(|_| attempt(&world) == Evidence::Marks), "never by marks");
}

#[test]
fn trap_33_a_program_that_dumps_core_is_told_of_while_it_does() {
    is_told_by_marks(Marking::Threads, |world| {
        let mut process = Process::start("joins 7", &world.socket);
        let mut warden = world.connect();
        warden.monitor(app(7), Resources::default()).expect("granted");
        process.order("second thread");
        process.await_line("done");
        process.order("dump");
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert_eq!(failed, app(7));
        process.await_end();
        failure.evidence
    });
}

#[test]
fn trap_33_a_program_that_is_watched_unchanged_is_told_of_while_it_dumps_core() {
    is_told_by_marks(Marking::Threads, |world| {
        let mut process = Process::start("plain", &world.socket);
        let mut warden = world.connect();
        let number = warden.monitor_process(process.pid()).expect("it runs");
        process.order("dump");
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert_eq!(failed, number);
        process.await_end();
        failure.evidence
    });
}

#[test]
fn trap_33_a_program_without_words_is_told_of_before_its_memory_is_gone() {
    is_told_by_marks(Marking::Processes, |world| {
        let mut process = Process::start("joins-without-words 7", &world.socket);
        let mut warden = world.connect();
        warden.monitor(app(7), Resources::default()).expect("granted");
        process.order("grow");
        process.await_line("done");
        process.kill();
        let (failed, failure) = Diary::default().failure(&mut warden);
        assert_eq!(failed, app(7));
        failure.evidence
    });
}

#[test]
fn a_process_that_runs_another_program_is_watched_on() {
    let world = World::with_marks(true);
    let mut process = Process::start("plain", &world.socket);
    let mut warden = world.connect();
    let number = warden.monitor_process(process.pid()).expect("it runs");
    process.order("exec");
    let mut diary = Diary::default();
    for _ in 0..50 {
        warden.poll(Some(std::time::Duration::from_millis(1)), &mut diary).expect("it waits");
        assert_eq!(state(&mut warden, number), State::Alive);
    }
    assert_eq!(diary.0, []);
    process.kill();
    assert_eq!(diary.failure(&mut warden).0, number);
}

#[test]
fn a_program_that_polls_sees_the_death_of_threads_while_its_warden_stands_still() {
    let dir = crate::world::scratch();
    let socket = dir.join("warden.sock");
    let daemon = Process::start("warden", &socket);
    let mut warden = martlet_warden::client::Warden::connect(&socket, "test").expect("a warden");
    let mut attempt = || {
        let process = Process::start("joins 7", &socket);
        warden.monitor(app(7), Resources::default()).expect("granted");
        let mut diary = Diary::default();
        // It finds that the thread lives.
        warden.poll(Some(std::time::Duration::ZERO), &mut diary).expect("it looks");
        daemon.stop();
        process.kill();
        while diary.0.is_empty() {
            warden.poll(Some(std::time::Duration::ZERO), &mut diary).expect("it looks");
        }
        daemon.signal(Signal::CONT);
        let Told::Failure(failed, failure) = &diary.0[0] else { panic!("{:?}", diary.0) };
        assert_eq!((diary.0.len(), *failed), (1, app(7)));
        failure.evidence
    };
    // The process's descriptor tells instead if this thread had to wait between its looks at the words and at the descriptor.
    assert!((0..20).any(|_| attempt() == Evidence::Words), "never by words");
    std::fs::remove_dir_all(dir).expect("our own");
}

/// A client used to learn of the end from the process's descriptor, which proves nothing to others, and then heard no more of that life: a node waited for a
/// lease.
#[test]
fn a_program_that_needs_secrets_is_told_by_the_warden_which_reveals_them() {
    let dir = crate::world::scratch();
    let socket = dir.join("warden.sock");
    let daemon = Process::start("warden", &socket);
    let process = Process::start("joins 7", &socket);
    let connect = || martlet_warden::client::Warden::connect(&socket, "test").expect("a warden");
    let (mut one, mut needy) = (connect(), connect());
    needy.need_secrets();
    let (mut diary, mut needy_diary) = (Diary::default(), Diary::default());
    for warden in [&mut one, &mut needy] {
        warden.monitor(app(7), Resources::default()).expect("granted");
    }
    daemon.stop();
    process.kill();
    let (failed, failure) = diary.failure(&mut one);
    assert_eq!((failed, failure.evidence, failure.secret), (app(7), Evidence::Process, None), "its warden stands still");
    needy.poll(Some(std::time::Duration::from_nanos(1)), &mut needy_diary).expect("it looks");
    assert_eq!(needy_diary.0, []);
    daemon.signal(Signal::CONT);
    let (failed, failure) = needy_diary.failure(&mut needy);
    assert!(failed == app(7) && failure.secret.is_some(), "{failure:?}");
    std::fs::remove_dir_all(dir).expect("our own");
}

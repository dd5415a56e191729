//! What a warden refuses, and that no refused message harms other programs.

use std::os::fd::{AsFd as _, OwnedFd};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::socket::{self, MAX_MESSAGE, Received};
use martlet_warden::board::MAX_SLOTS;
use martlet_warden::client::{Error, Warden};
use martlet_warden::daemon;
use martlet_warden::wire::{Answer, Request, VERSION};
use martlet_warden::{AppId, Resources};
use rustix::net::SocketAddrUnix;

use crate::child::Process;
use crate::world::{Diary, World, app};

fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome.expect_err("it is refused") {
        Error::Refused(why) => why,
        other => panic!("refused otherwise: {other}"),
    }
}

#[test]
fn an_application_that_lives_is_not_joined_twice() {
    let world = World::new();
    let process = Process::start("joins 7", &world.socket);
    let mut warden = world.connect();
    assert_eq!(refused(warden.join(app(7))), format!("application 7 is alive already: process {} (child)", process.pid()));
    warden.join(app(8)).expect("free");
    assert_eq!(refused(warden.join(app(9))), "the program is application 8 already: it has to quit first");
    let given = AppId::new(0x4000_0000).expect("in range");
    assert_eq!(refused(warden.adopt(given, process.pid())), "application 1073741824 is the warden's to give; allowed are 1 to 1073741823");
    // A dead program is no obstacle, whether or not the warden has heard of its death.
    process.kill();
    warden.quit().expect("joined");
    warden.join(app(7)).expect("its last life is over");
}

#[test]
fn messages_larger_than_allowed_are_refused() {
    let world = World::new();
    let mut warden = world.connect();
    assert_eq!(refused(warden.piggyback(b"x")), "the program is no application: it has to join first");
    warden.join(app(7)).expect("free");
    assert_eq!(refused(warden.piggyback(b"x")), "a message of 1 bytes; allowed to application 7 are 0, which its monitors ask for");
    assert_eq!(warden.piggyback(&[0; 1419]).expect_err("too long").to_string(), "a message of 1419 bytes; allowed are 0 to 1418");
    let mut other = world.connect();
    let want = Resources { pbsize: 1419, timeout_ns: 0 };
    assert_eq!(refused(other.monitor(app(7), want)), "messages of 1419 bytes are asked for; allowed are 0 to 1418");
}

#[test]
fn a_warden_that_is_full_tells_of_all_and_refuses_one_more() {
    let world = World::new();
    let mut warden = world.connect();
    for number in 1..=MAX_SLOTS as i64 {
        warden.monitor(app(number), Resources::default()).expect("there is room");
    }
    let (apps, _) = warden.status().expect("it answers, though a socket has no room for so much at once");
    let numbers: Vec<i64> = apps.iter().map(|one| i64::from(one.app.get())).collect();
    assert_eq!(numbers, (1..=MAX_SLOTS as i64).collect::<Vec<_>>());
    assert_eq!(refused(warden.monitor(app(1000), Resources::default())), "512 applications are known, as many as there is room for");
}

#[test]
fn processes_that_are_not_there_are_named() {
    let world = World::new();
    let mut warden = world.connect();
    for pid in [0, -1] {
        let error = warden.monitor_process(pid).expect_err("none").to_string();
        assert_eq!(error, format!("process {pid} cannot be watched: allowed are numbers of processes, from 1 on"));
    }
    assert!(warden.monitor_process(i32::MAX).expect_err("none").to_string().starts_with("process 2147483647 cannot be watched"));
    assert!(matches!(Warden::connect(&world.socket.with_extension("none"), "x"), Err(Error::Connect { .. })));
}

#[test]
fn one_warden_at_a_place() {
    let world = World::new();
    let second = daemon::Warden::new(&daemon::Options { socket: world.socket.clone(), mode: 0o600, party: None, marks: false });
    assert_eq!(
        second.expect_err("taken").to_string(),
        format!("a warden is already running at {}; a host has only one", world.socket.display())
    );
}

/// Sends messages with a descriptor each, and returns the refusals until the warden hangs up.
fn answers_to(world: &World, messages: &[(Vec<u8>, Option<OwnedFd>)]) -> Vec<String> {
    let ours = socket::seqpacket().expect("a socket");
    rustix::net::connect(&ours, &SocketAddrUnix::new(&world.socket).expect("short")).expect("it listens");
    for (message, fd) in messages {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let _ = socket::send(&ours, message, &fds);
    }
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Write).expect("connected");
    let (mut buffer, mut said) = (Box::new([0; MAX_MESSAGE]), Vec::new());
    loop {
        match socket::receive(&ours, &mut buffer) {
            Received::Nothing => std::thread::yield_now(),
            Received::Message(len, _) => {
                if let Ok((_, Answer::Refused { why })) = Answer::decode(&buffer[..len]) {
                    said.push(why);
                }
            }
            Received::End | Received::TooLong => return said,
        }
    }
}

#[test]
fn messages_that_are_none_end_a_connection_and_nothing_else() {
    let world = World::new();
    let process = Process::start("joins 7", &world.socket);
    let mut warden = world.connect();
    warden.monitor(app(7), Resources::default()).expect("granted");
    let page = || Some(Page::create("test", 512).expect("memory").as_fd().try_clone_to_owned().expect("a descriptor"));
    let hello = |version| Request::Hello { version, name: "x".into() }.encode(1);
    let no_page = || Some(OwnedFd::from(std::fs::File::open("/dev/null").expect("there")));
    for (messages, why) in [
        (vec![(b"garbage, and much of it".to_vec(), None)], "a message is of kind 103; allowed are those of version 5"),
        (vec![(vec![0; MAX_MESSAGE + 1], None)], "a message is longer than 8192 bytes"),
        (vec![(Request::Quit.encode(1), None)], "the first message has to be a Hello"),
        (vec![(hello(9), page())], "the program speaks version 9 with its warden; allowed is 5"),
        (vec![(hello(VERSION), None)], "a Hello comes without the page of the program's death words"),
        (vec![(hello(VERSION), no_page())], "the page of the program's death words is refused: its shared memory is no memfd"),
        (vec![(hello(VERSION), page()), (hello(VERSION), page())], "a second Hello"),
        (vec![(hello(VERSION), page()), (Request::MonitorProcess.encode(2), None)], "no descriptor of a process comes along"),
        (
            vec![(hello(VERSION), page()), (Request::MonitorProcess.encode(2), no_page())],
            "the process cannot be watched: the descriptor names no process",
        ),
        (
            vec![
                (hello(VERSION), page()),
                (Request::Monitor { app: app(4), want: Resources::default(), after: 0, presumed: 0, known: 9 }.encode(2), no_page()),
            ],
            "the process cannot be watched: the descriptor names no process",
        ),
        (
            vec![(hello(VERSION), page()), (Request::Adopt { app: app(3) }.encode(2), no_page())],
            "the process cannot be watched: the descriptor",
        ),
        (
            vec![
                (hello(VERSION), page()),
                (Request::Join { app: AppId::new(0x4000_0001).expect("in range"), incarnation: 1, secret: [1; 16] }.encode(2), None),
            ],
            "application 1073741825 is the warden's to give",
        ),
        (vec![(hello(VERSION), page()), (Request::Act { word: 64 }.encode(2), None)], "death word 64; allowed are 0 to 63"),
    ] {
        let said = answers_to(&world, &messages);
        assert!(said.iter().any(|said| said.starts_with(why)), "{said:?} instead of `{why}`");
    }
    // The same warden still does its work.
    process.kill();
    assert_eq!(Diary::default().failure(&mut warden).0, app(7));
    assert_eq!(warden.status().expect("it answers").0.len(), 1, "nothing is left of those");
}

#[test]
fn as_many_programs_as_there_is_room_for_and_then_again_when_some_have_gone() {
    let world = World::new();
    let mut programs: Vec<Warden> = (0..martlet_warden::board::MAX_SEATS).map(|_| world.connect()).collect();
    let why = refused(Warden::connect(&world.socket, "one more"));
    assert_eq!(why, "256 programs are registered, as many as there is room for");
    programs.pop();
    // The warden notices this in its own time.
    while Warden::connect(&world.socket, "one more").is_err() {
        std::thread::yield_now();
    }
}
